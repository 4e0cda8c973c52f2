"""Families of the newest releases of transformers."""

from __future__ import annotations

import torch

from tools.architectures.entries.text import EXPERTS, decoder, encoder, model, plain
from tools.architectures.entries.vision import VIT
from tools.architectures.entry import Entry, images

MAMBA = dict(mamba_d_state=8, mamba_d_conv=4, mamba_expand=2, mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1,
             mamba_chunk_size=8)  # fmt: skip
LATENT = dict(num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=8, qk_nope_head_dim=4,
              qk_rope_head_dim=4, v_head_dim=8)  # fmt: skip

SHARED = dict(n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=16, n_group=1,
              topk_group=1, first_k_dense_replace=1)  # fmt: skip


def pictures(batch: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": images(batch)}


ENTRIES: list[Entry] = [
    decoder("Afmoe", **EXPERTS, num_dense_layers=1, head_dim=8),
    decoder("Bamba", attn_layer_indices=[1], **MAMBA),
    decoder("Cwm", head_dim=8),
    decoder("Doge", head_dim=8),
    decoder("Dots1", head_dim=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
            n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1),
    decoder("Ernie4_5_Moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=16, moe_layer_start_index=1, head_dim=8),
    decoder("ExaoneMoe", **EXPERTS, head_dim=8, n_group=1, topk_group=1, num_shared_experts=1),
    decoder("FalconH1", head_dim=8, mamba_d_ssm=64, **MAMBA),
    decoder("FlexOlmo", num_experts=4, num_experts_per_tok=2),
    decoder("Glm4Moe", head_dim=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
            n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1),
    decoder("Glm4MoeLite", n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1,
            first_k_dense_replace=1, n_group=1, topk_group=1, **LATENT),
    decoder("GraniteMoeHybrid", num_local_experts=4, shared_intermediate_size=16, layer_types=["mamba", "attention"],
            **MAMBA),
    decoder("GraniteMoeShared", num_local_experts=4, shared_intermediate_size=16),
    decoder("GraniteSWA"),
    decoder("HunYuanMoEV1", num_experts=4, moe_topk=2, head_dim=8),
    decoder("Jais2", head_dim=8),
    decoder("JetMoe", kv_channels=8, num_local_experts=4, num_experts_per_tok=2),
    decoder("KimiLinear"),
    decoder("Laguna", **EXPERTS, head_dim=8),
    decoder("Lfm2Moe", **EXPERTS, num_dense_layers=1, layer_types=["conv", "full_attention"]),
    decoder("Lfm3"),
    decoder("Mellum", head_dim=8),
    decoder("MiniCPM3", **LATENT),
    decoder("MiniMax", num_local_experts=4, block_size=8, head_dim=8),
    decoder("MiniMaxM2", num_local_experts=4, num_experts_per_tok=2, head_dim=8, rotary_dim=4),
    decoder("Ministral", head_dim=8, sliding_window=8),
    decoder("Ministral3", head_dim=8),
    decoder("ModernBertDecoder", global_attn_every_n_layers=2, local_attention=8, cls_token_id=1, sep_token_id=2),
    decoder("NanoChat"),
    decoder("NemotronH", mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=8, n_groups=1, chunk_size=8, head_dim=8,
            hybrid_override_pattern="M*"),
    decoder("OlmoHybrid"),
    decoder("OpenAIPrivacyFilter", num_local_experts=4, head_dim=8, sliding_window=8),
    decoder("SolarOpen", **EXPERTS, head_dim=8, n_routed_experts=4),
    decoder("VaultGemma", head_dim=8, query_pre_attn_scalar=8, sliding_window=8),
    decoder("Youtu", **LATENT),
    decoder("Zamba2", mamba_d_state=8, n_mamba_heads=4, mamba_headdim=16, mamba_ngroups=1, chunk_size=8,
            layers_block_type=["mamba", "hybrid"], hybrid_layer_ids=[1], num_mem_blocks=1),
    decoder("xLSTM", plain, num_blocks=2, num_heads=4, chunk_size=8),
    encoder("Gte"),
    encoder("JinaEmbeddingsV3"),
    encoder("Luke", entity_vocab_size=20, entity_emb_size=16),
    encoder("MarkupLM"),
    encoder("RoCBert"),
    encoder("Xmod", languages=["en_XX"], default_language="en_XX"),
    encoder("Esmc"),
    model("Pixio", pictures, **VIT),
    model("Aimv2Vision", pictures, **VIT),
    model("MLCDVision", pictures, **VIT),
    model("HGNetV2", pictures, kind="ForImageClassification"),
    model("Sapiens2", pictures, **VIT),
    *(decoder(name, plain) for name in (
        "Apertus1p5Text", "AriaText", "BailingHybrid", "Beam", "Cohere2Moe", "Cosmos3EdgeText", "CpmAnt", "Dory",
        "EmbeddingGemma2Text", "Flint", "Gemma4UnifiedText", "GraniteDoclingText", "GraniteMoeSWA", "HyperCLOVAX",
        "Inkling2LoopText", "Inkling2Text", "LaraMini", "MiniMaxM3VLText", "Molmo2Text", "Mra", "MuseGlimmerText",
        "Mvp", "Qwen3VLText", "Tapas", "Tipsv2Text", "Zaya")),
    *(decoder(name, plain, **LATENT, **SHARED) for name in (
        "AXK1", "AXK2", "DeepseekV32", "Dots3NoteText", "GlmMoeDsa", "MistralLarge4Text", "MuseSparkText")),
]  # fmt: skip
