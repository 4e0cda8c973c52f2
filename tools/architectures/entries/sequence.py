"""Encoder-decoders of text, time series, and models of several kinds of input, of transformers."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tools.architectures.entries.text import SMALL, SPECIAL, model
from tools.architectures.entry import Entry, Inputs, images, padding_mask, tokens

BART = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=60, max_position_embeddings=40, use_cache=False,
            decoder_start_token_id=1, **SPECIAL)  # fmt: skip
T5 = dict(d_model=32, d_ff=48, d_kv=8, num_layers=2, num_heads=4, vocab_size=60, use_cache=False)
SERIES = dict(prediction_length=4, context_length=16, lags_sequence=[1, 2, 3], num_time_features=2, d_model=16,
              encoder_layers=2, decoder_layers=1, encoder_ffn_dim=24, decoder_ffn_dim=24, encoder_attention_heads=2,
              decoder_attention_heads=2, use_cache=False)  # fmt: skip
PATCHES = dict(num_input_channels=3, context_length=32, patch_length=8, patch_stride=8, d_model=32,
               num_attention_heads=4, num_hidden_layers=2, ffn_dim=48, prediction_length=6)  # fmt: skip
WORDS = dict(**SMALL, max_position_embeddings=40, **SPECIAL)
IMAGE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32,
             patch_size=8)  # fmt: skip


def texts(batch: int) -> dict[str, torch.Tensor]:
    return {"input_ids": tokens(batch), "attention_mask": padding_mask(batch), "decoder_input_ids": tokens(batch, 7)}


def padded_texts(batch: int) -> dict[str, torch.Tensor]:
    """With padding in the decoder too: without it transformers leaves the mask of UMT5's decoder out, except where it
    is traced, so that the decoder sees what follows in eager mode only."""
    mask = padding_mask(batch, 7)
    mask[:, -1] = 0
    return {**texts(batch), "decoder_attention_mask": mask}


def series(batch: int) -> dict[str, torch.Tensor]:
    past = 16 + 3
    return {
        "past_values": torch.randn(batch, past),
        "past_time_features": torch.randn(batch, past, 2),
        "past_observed_mask": torch.ones(batch, past),
        "future_values": torch.randn(batch, 4),
        "future_time_features": torch.randn(batch, 4, 2),
    }


def values(batch: int) -> dict[str, torch.Tensor]:
    return {"past_values": torch.randn(batch, 32, 3)}


def pictured(batch: int) -> dict[str, torch.Tensor]:
    return {"input_ids": tokens(batch), "pixel_values": images(batch), "attention_mask": padding_mask(batch)}


def of_two(name: str, inputs: Inputs = pictured, **config: Any) -> Entry:
    """A model with a configuration for text and one for images."""
    parts = {"text_config": {**WORDS}, "vision_config": {**IMAGE}, **config}
    return model(name, inputs, **parts)


def decision(batch: int) -> dict[str, torch.Tensor]:
    return {
        "states": torch.randn(batch, 6, 5), "actions": torch.randn(batch, 6, 3), "rewards": torch.randn(batch, 6, 1),
        "returns_to_go": torch.randn(batch, 6, 1), "timesteps": torch.arange(6).repeat(batch, 1),
        "attention_mask": torch.ones(batch, 6),
    }  # fmt: skip


ENTRIES = [
    model("T5", texts, **T5),
    model("T5", texts, kind="ForConditionalGeneration", decoder_start_token_id=0, **T5),
    model("MT5", texts, **T5),
    model("UMT5", padded_texts, **T5),
    model("LongT5", texts, local_radius=3, **T5),
    model("SwitchTransformers", texts, num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, **T5),
    model("Bart", texts, **BART),
    model("Bart", texts, kind="ForConditionalGeneration", **BART),
    model("MBart", texts, **BART),
    model("Marian", texts, **BART),
    model("Pegasus", texts, **BART),
    model("PegasusX", texts, block_size=4, num_global_tokens=2, **BART),
    model("Blenderbot", texts, **BART),
    model("BlenderbotSmall", texts, **BART),
    model("M2M100", texts, **BART),
    model("PLBart", texts, **BART),
    model("NllbMoe", texts, num_experts=4, expert_capacity=8, encoder_sparse_step=2, decoder_sparse_step=2, **BART),
    model("LED", texts, attention_window=4, **{**BART, "max_encoder_position_embeddings": 40,
                                            "max_decoder_position_embeddings": 40}),
    model("ProphetNet", texts, vocab_size=60, hidden_size=32, encoder_ffn_dim=48, num_encoder_layers=2,
          num_encoder_attention_heads=4, decoder_ffn_dim=48, num_decoder_layers=2, num_decoder_attention_heads=4,
          max_position_embeddings=40, use_cache=False, **SPECIAL),
    model("TimeSeriesTransformer", series, **SERIES),
    model("Informer", series, distil=False, **SERIES),
    model("Autoformer", series, **SERIES),
    model("PatchTST", values, kind="ForPrediction", **PATCHES),
    model("PatchTST", values, kind="ForClassification", use_cls_token=True, **PATCHES),
    model("PatchTSMixer", values, kind="ForPrediction", context_length=32, patch_length=8, patch_stride=8,
          num_input_channels=3, d_model=16, num_layers=2, prediction_length=4),
    model("DecisionTransformer", decision, state_dim=5, act_dim=3, hidden_size=32, n_layer=2, n_head=4, max_ep_len=20,
          use_cache=False),
    of_two("CLIP"),
    of_two("CLIPSeg", lambda batch: {**pictured(batch), "pixel_values": images(batch)}),
    of_two("ChineseCLIP"),
    of_two("Siglip", lambda batch: {key: value for key, value in pictured(batch).items() if "mask" not in key}),
    of_two("AltCLIP", text_config={
            **WORDS, "project_dim": 16}),
    of_two("Blip", text_config={**WORDS, "encoder_hidden_size": 32}),
    of_two("OwlViT"),
    model("Vilt", lambda batch: {**pictured(batch)}, **WORDS, image_size=32, patch_size=8, max_image_length=16),
    Entry("VisualBertModel", "transformers", lambda: (
        transformers.VisualBertModel(transformers.VisualBertConfig(**WORDS, visual_embedding_dim=16)),
        lambda batch: {"input_ids": tokens(batch), "visual_embeds": torch.randn(batch, 5, 16)})),
    Entry("CLIPTextModel", "transformers", lambda: (
        transformers.CLIPTextModel(transformers.CLIPTextConfig(**WORDS)),
        lambda batch: {"input_ids": tokens(batch), "attention_mask": padding_mask(batch)})),
    Entry("T5EncoderModel", "transformers", lambda: (
        transformers.T5EncoderModel(transformers.T5Config(**T5)),
        lambda batch: {"input_ids": tokens(batch), "attention_mask": padding_mask(batch)})),
]  # fmt: skip
