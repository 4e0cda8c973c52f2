"""Encoders and decoders of text, of transformers."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tools.architectures.entry import Entry, Inputs, lasting, padding_mask, tokens

SMALL = dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=48, vocab_size=60)
LONG = dict(max_position_embeddings=40)
SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
GPT = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=60, n_positions=32, bos_token_id=1, eos_token_id=2)
GROUPED = dict(num_key_value_heads=2, use_cache=False, **SPECIAL, **LONG)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)


def padded(batch: int) -> dict[str, torch.Tensor]:
    return {"input_ids": tokens(batch), "attention_mask": padding_mask(batch)}


def plain(batch: int) -> dict[str, torch.Tensor]:
    return {"input_ids": tokens(batch)}


def model(name: str, inputs: Inputs = padded, kind: str = "Model", **config: Any) -> Entry:
    """The model of a family `name` with a configuration of its own."""

    def make() -> tuple[torch.nn.Module, Inputs]:
        chosen = getattr(transformers, f"{name}Config")(**config)
        return getattr(transformers, name + kind)(chosen), inputs

    return Entry(f"{name}{kind}", "transformers", make)


def encoder(name: str, inputs: Inputs = padded, kind: str = "Model", **config: Any) -> Entry:
    return model(name, inputs, kind, **{**SMALL, **LONG, **SPECIAL, **config})


def decoder(name: str, inputs: Inputs = padded, kind: str = "Model", **config: Any) -> Entry:
    return model(name, inputs, kind, **{**SMALL, **GROUPED, **config})


def boxed(batch: int) -> dict[str, torch.Tensor]:
    shape = (batch, lasting(), 2)
    corners = torch.randint(0, 500, shape)
    return {**padded(batch), "bbox": torch.cat([corners, corners + torch.randint(0, 400, shape)], -1)}


ENTRIES = [
    encoder("Bert"),
    encoder("Bert", kind="ForMaskedLM"),
    encoder("Bert", kind="ForSequenceClassification"),
    encoder("Albert", embedding_size=16),
    encoder("Electra", embedding_size=16),
    encoder("Roberta"),
    encoder("XLMRoberta"),
    encoder("XLMRobertaXL"),
    encoder("RobertaPreLayerNorm"),
    encoder("Camembert"),
    encoder("Data2VecText"),
    encoder("Ernie"),
    encoder("MegatronBert"),
    encoder("MPNet"),
    encoder("RoFormer", embedding_size=32),
    encoder("ConvBert", embedding_size=32, head_ratio=2, conv_kernel_size=3, num_groups=1),
    encoder("SqueezeBert", embedding_size=32, q_groups=2, k_groups=2, v_groups=2, output_groups=2,
            post_attention_groups=1, intermediate_groups=2),
    encoder("MobileBert", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    encoder("FNet", plain),
    encoder("Nystromformer", segment_means_seq_len=12, num_landmarks=12),
    encoder("BigBird", attention_type="original_full"),
    encoder("LayoutLM", boxed, max_2d_position_embeddings=1024),
    encoder("Splinter"),
    encoder("Esm", mask_token_id=3, position_embedding_type="rotary"),
    encoder("RemBert", input_embedding_size=16, output_embedding_size=16),
    encoder("IBert"),
    encoder("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=8,
            type_vocab_size=0),
    encoder("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8, type_vocab_size=0),
    encoder("ModernBert", cls_token_id=1, sep_token_id=2, local_attention=4),
    encoder("NomicBert"),
    encoder("EuroBert", num_key_value_heads=2, mask_token_id=3),
    encoder("Longformer", attention_window=4),
    encoder("Canine", num_hash_buckets=64, num_hash_functions=4, local_transformer_stride=4, downsampling_rate=4,
            upsampling_kernel_size=4, max_position_embeddings=64),
    model("DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=60, max_position_embeddings=32),
    model("XLM", emb_dim=32, n_layers=2, n_heads=4, vocab_size=60, max_position_embeddings=32, **SPECIAL),
    model("Flaubert", emb_dim=32, n_layers=2, n_heads=4, vocab_size=60, max_position_embeddings=32, **SPECIAL),
    model("XLNet", d_model=32, n_layer=2, n_head=4, d_inner=48, vocab_size=60, use_mems_eval=False, **SPECIAL),
    model("Funnel", vocab_size=60, block_sizes=[1, 1], num_decoder_layers=1, d_model=32, n_head=4, d_head=8,
          d_inner=48),
    model("GPT2", use_cache=False, **GPT),
    model("GPT2", kind="LMHeadModel", use_cache=False, **GPT),
    model("GPTBigCode", use_cache=False, **GPT),
    model("GPTJ", use_cache=False, rotary_dim=4, **GPT),
    model("CodeGen", use_cache=False, rotary_dim=4, n_ctx=32, **GPT),
    model("OpenAIGPT", plain, **{key: value for key, value in GPT.items() if "token" not in key}),
    model("CTRL", n_embd=32, dff=48, n_layer=2, n_head=4, vocab_size=60, n_positions=32, use_cache=False),
    model("GPTNeo", hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48, vocab_size=60, window_size=4,
          attention_types=[[["global", "local"], 1]], use_cache=False, **LONG, **SPECIAL),
    encoder("GPTNeoX", use_cache=False),
    encoder("GPTNeoXJapanese", use_cache=False, intermediate_multiple_size=2),
    encoder("BioGpt", use_cache=False),
    encoder("Persimmon", use_cache=False),
    model("OPT", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, vocab_size=60,
          word_embed_proj_dim=32, use_cache=False, **LONG, **SPECIAL),
    model("XGLM", d_model=32, num_layers=2, attention_heads=4, ffn_dim=48, vocab_size=60, use_cache=False, **SPECIAL),
    model("Bloom", hidden_size=32, n_layer=2, n_head=4, vocab_size=60, use_cache=False, **SPECIAL),
    model("Falcon", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=60, use_cache=False,
          **SPECIAL),
    model("Mpt", d_model=32, n_heads=4, n_layers=2, vocab_size=60, max_seq_len=32, use_cache=False),
    decoder("Llama"),
    decoder("Llama", kind="ForCausalLM"),
    Entry("LlamaForCausalLM with cache", "transformers", lambda: (
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, **GROUPED, "use_cache": True})), padded)),
    decoder("Mistral", sliding_window=4),
    decoder("Mixtral", num_local_experts=4),
    decoder("Qwen2", max_window_layers=2),
    decoder("Qwen2Moe", shared_expert_intermediate_size=16, decoder_sparse_step=1, **EXPERTS),
    decoder("Qwen3", head_dim=8),
    decoder("Qwen3Moe", head_dim=8, decoder_sparse_step=1, **EXPERTS),
    decoder("Qwen3Next", head_dim=8, linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=8,
            linear_value_head_dim=8, shared_expert_intermediate_size=16,
            layer_types=["linear_attention", "full_attention"], **EXPERTS),
    decoder("Gemma", head_dim=8),
    decoder("Gemma2", head_dim=8, sliding_window=4, query_pre_attn_scalar=8),
    Entry("Gemma3TextModel", "transformers", lambda: (
        transformers.Gemma3TextModel(transformers.Gemma3TextConfig(
            **{**SMALL, **GROUPED, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8})), padded)),
    decoder("Phi"),
    decoder("Phi3"),
    decoder("Phimoe", num_local_experts=4),
    decoder("Cohere"),
    decoder("Cohere2", sliding_window=4),
    decoder("Starcoder2"),
    decoder("StableLm"),
    decoder("Olmo"),
    decoder("Olmo2"),
    decoder("Olmoe", num_experts=4, num_experts_per_tok=2),
    decoder("Granite"),
    decoder("GraniteMoe", num_local_experts=4),
    decoder("DeepseekV2", kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
            n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=16,
            first_k_dense_replace=1, topk_group=1, n_group=1, num_key_value_heads=4),
    decoder("DeepseekV3", kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
            n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=16,
            first_k_dense_replace=1, topk_group=1, n_group=2, num_key_value_heads=4),
    decoder("GptOss", head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=4),
    decoder("Glm", head_dim=8),
    decoder("Glm4", head_dim=8),
    decoder("Helium", head_dim=8),
    decoder("Nemotron"),
    decoder("SmolLM3"),
    decoder("Exaone4", sliding_window=4, layer_types=["sliding_attention", "full_attention"]),
    decoder("Ernie4_5"),
    decoder("Arcee"),
    decoder("Apertus"),
    decoder("SeedOss", head_dim=8),
    decoder("HunYuanDenseV1", head_dim=8),
    decoder("BitNet"),
    decoder("DiffLlama"),
    decoder("Lfm2", layer_types=["conv", "full_attention"]),
    decoder("Jamba", num_experts=2, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
            expert_layer_offset=1, use_mamba_kernels=False, mamba_d_state=4),
    decoder("Olmo3", sliding_window=4),
    model("Mamba", plain, vocab_size=60, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=False),
    model("FalconMamba", plain, vocab_size=60, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=False),
    model("Mamba2", plain, vocab_size=60, hidden_size=16, state_size=4, num_hidden_layers=2, num_heads=4, head_dim=8,
          n_groups=1, chunk_size=4, use_cache=False),
    model("Rwkv", plain, vocab_size=60, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2,
          context_length=32, use_cache=False),
    model("RecurrentGemma", padded, vocab_size=60, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
          intermediate_size=48, lru_width=32, attention_window_size=8, use_cache=False, **SPECIAL),
]  # fmt: skip
