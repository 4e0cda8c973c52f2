"""Models of transformers as they are used: heads for tasks, caches, results of encoders, texts with images."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from tools.architectures.entries.text import GPT, GROUPED, SMALL, decoder, encoder, model
from tools.architectures.entries.vision import VIT
from tools.architectures.entry import BATCH, Entry, Inputs, images, padding_mask, tokens

TEXT = dict(**SMALL, max_position_embeddings=20, pad_token_id=0, bos_token_id=1, eos_token_id=59)
S2S = dict(d_model=32, vocab_size=60, decoder_start_token_id=0)
BART = dict(encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=40, pad_token_id=0)  # fmt: skip
CACHED = 6  # words that a cache holds


def ended(batch: int) -> dict[str, torch.Tensor]:
    """Token ids padded at the end: heads find the last token by the padding id."""
    words, mask = tokens(batch), padding_mask(batch)
    return {"input_ids": torch.where(mask.bool(), words, 0), "attention_mask": mask}


def begun(batch: int) -> dict[str, torch.Tensor]:
    """The same with the padding in front."""
    words, mask = tokens(batch), padding_mask(batch).flip(1)
    return {"input_ids": torch.where(mask.bool(), words, 0), "attention_mask": mask}


def choices(batch: int) -> dict[str, torch.Tensor]:
    return {name: value[:, None].expand(-1, 3, -1).contiguous() for name, value in ended(batch).items()}


def cached(family: str, **config: Any) -> Entry:
    """Two more words after those that a cache holds, which comes back with them."""

    def make() -> tuple[torch.nn.Module, Inputs]:
        chosen = getattr(transformers, f"{family}Config")(**{**SMALL, **GROUPED, **config})
        width = getattr(chosen, "head_dim", None) or chosen.hidden_size // chosen.num_attention_heads

        def inputs(batch: int) -> dict[str, Any]:
            cache = DynamicCache(config=chosen)
            for layer in range(2):
                keys, values = torch.randn(2, batch, chosen.num_key_value_heads, CACHED, width)
                cache.update(keys, values, layer)
            mask = torch.ones(batch, CACHED + 2, dtype=torch.long)
            mask[0, :2] = 0
            return {"input_ids": tokens(batch, 2), "attention_mask": mask, "past_key_values": cache, "use_cache": True}

        return getattr(transformers, f"{family}ForCausalLM")(chosen), inputs

    parts = [f"past_key_values_layers_{layer}_{part}" for layer in range(2) for part in ("keys", "values")]
    axes = {name: {0: BATCH} for name in ("input_ids", "attention_mask", *parts)}
    return Entry(f"{family}ForCausalLM with a cache", "transformers", make, axes)


def after_encoder(name: str, **config: Any) -> Entry:
    """The decoder of a model, with what its encoder gave."""

    def make() -> tuple[torch.nn.Module, Inputs]:
        def inputs(batch: int) -> dict[str, Any]:
            hidden = BaseModelOutput(last_hidden_state=torch.randn(batch, 7, 32))
            mask, words = padding_mask(batch, 7), tokens(batch, 4)
            return {"encoder_outputs": hidden, "attention_mask": mask, "decoder_input_ids": words, "use_cache": False}

        chosen = getattr(transformers, f"{name}Config")(**{**S2S, **config})
        return getattr(transformers, f"{name}ForConditionalGeneration")(chosen), inputs

    axes = {name: {0: BATCH} for name in ("encoder_outputs_last_hidden_state", "attention_mask", "decoder_input_ids")}
    return Entry(f"{name}ForConditionalGeneration after its encoder", "transformers", make, axes)


def image_and_text(name: str, **config: Any) -> Entry:
    """A text and an image."""

    def make() -> tuple[torch.nn.Module, Inputs]:
        def inputs(batch: int) -> dict[str, torch.Tensor]:
            words = tokens(batch, 10, 58)
            words[:, -1] = 59  # the end
            mask = torch.ones(batch, 10, dtype=torch.long)
            return {"input_ids": words, "pixel_values": images(batch), "attention_mask": mask}

        parts = {"text_config": dict(TEXT), "vision_config": dict(VIT)}
        chosen = getattr(transformers, f"{name}Config")(**parts, **config)
        return getattr(transformers, f"{name}Model")(chosen), inputs

    return Entry(f"{name}Model, text and image", "transformers", make)


ENTRIES: list[Entry] = [
    cached("Llama"),
    cached("Qwen3", head_dim=8),
    cached("Gemma2", head_dim=8, query_pre_attn_scalar=8),
    cached("Phi3"),
    after_encoder("T5", d_kv=8, d_ff=48, num_layers=2, num_heads=4),
    after_encoder("MBart", **BART),
    model("GPT2", ended, "ForSequenceClassification", **{**GPT, "pad_token_id": 0}),
    decoder("Llama", begun, "ForSequenceClassification"),
    decoder("Qwen2", ended, "ForTokenClassification"),
    encoder("Bert", ended, "ForTokenClassification", num_labels=5),
    encoder("Roberta", ended, "ForQuestionAnswering"),
    encoder("DebertaV2", ended, "ForQuestionAnswering", relative_attention=True, position_buckets=8,
            pos_att_type=["c2p", "p2c"]),
    encoder("Bert", choices, "ForMultipleChoice"),
    encoder("Electra", ended, "ForPreTraining", embedding_size=16),
    image_and_text("CLIP", projection_dim=16),
    image_and_text("Blip", projection_dim=16, image_text_hidden_size=16),
]  # fmt: skip
