"""Models of sound, of transformers."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tools.architectures.entries.text import SPECIAL, model
from tools.architectures.entry import Entry, Inputs, lasting, tokens

WAVES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, conv_dim=(8, 8),
             conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=8,
             num_conv_pos_embedding_groups=4, vocab_size=60)  # fmt: skip
WHISPER = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
               encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=60, use_cache=False, decoder_start_token_id=1,
               **SPECIAL)  # fmt: skip


def waves(batch: int) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(batch, lasting(400))}


def spectra(batch: int) -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(batch, 80, 40), "decoder_input_ids": tokens(batch)}


def codec(name: str, kind: str = "Model", **config: Any) -> Entry:
    def make() -> tuple[torch.nn.Module, Inputs]:
        chosen = getattr(transformers, f"{name}Config")(**config)
        return getattr(transformers, name + kind)(chosen), lambda batch: {
            "input_values": torch.randn(batch, 1, lasting(320))
        }

    return Entry(f"{name}{kind}", "transformers", make)


ENTRIES = [
    model("Whisper", spectra, max_source_positions=20, max_target_positions=20, **WHISPER),
    model("Whisper", spectra, kind="ForConditionalGeneration", max_source_positions=20, max_target_positions=20,
          **WHISPER),
    model("Speech2Text", lambda batch: {
        "input_features": torch.randn(batch, lasting(40), 16), "decoder_input_ids": tokens(batch)},
          input_feat_per_channel=16, conv_channels=16, conv_kernel_sizes=[3, 3], max_source_positions=40,
          max_target_positions=40, **WHISPER),
    model("Moonshine", lambda batch: {
        "input_values": torch.randn(batch, lasting(2000)), "decoder_input_ids": tokens(batch)},
          hidden_size=32, intermediate_size=48, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2,
          encoder_num_attention_heads=4, decoder_num_attention_heads=4, vocab_size=60, use_cache=False,
          decoder_start_token_id=1, **SPECIAL),
    model("Wav2Vec2", waves, **WAVES),
    model("Wav2Vec2", waves, kind="ForCTC", **WAVES),
    model("Hubert", waves, **WAVES),
    model("WavLM", waves, **WAVES),
    model("UniSpeech", waves, **WAVES),
    model("UniSpeechSat", waves, **WAVES),
    model("SEW", waves, squeeze_factor=2, **WAVES),
    model("SEWD", waves, squeeze_factor=2, position_buckets=8, **WAVES),
    model("Data2VecAudio", waves, **{**WAVES, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 3}),
    model("Wav2Vec2Conformer", waves, position_embeddings_type="relative", **WAVES),
    model("Wav2Vec2Bert", lambda batch: {"input_features": torch.randn(batch, lasting(20), 16)}, hidden_size=32,
          num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, feature_projection_input_dim=16),
    model("AST", lambda batch: {"input_values": torch.randn(batch, 32, 16)}, hidden_size=32,
          num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, patch_size=8, frequency_stride=8,
          time_stride=8, max_length=32, num_mel_bins=16),
    codec("Encodec", num_filters=4, hidden_size=16, upsampling_ratios=[4, 2], codebook_size=16, num_lstm_layers=1,
          target_bandwidths=[24.0], sampling_rate=8000),
    codec("Dac", encoder_hidden_size=8, downsampling_ratios=[2, 4], decoder_hidden_size=16, n_codebooks=2,
          codebook_size=16, codebook_dim=4),
    model("Vits", lambda batch: {"input_ids": tokens(batch)}, vocab_size=60, hidden_size=16, num_hidden_layers=1,
          num_attention_heads=2, ffn_dim=24, flow_size=16, spectrogram_bins=9, prior_encoder_num_flows=1,
          upsample_initial_channel=16, upsample_rates=[4, 2], upsample_kernel_sizes=[8, 4]),
    Entry("SpeechT5HifiGan", "transformers", lambda: (
        transformers.SpeechT5HifiGan(transformers.SpeechT5HifiGanConfig(
            model_in_dim=16, upsample_initial_channel=16, upsample_rates=[4, 2], upsample_kernel_sizes=[8, 4])),
        lambda batch: {"spectrogram": torch.randn(batch, lasting(), 16)})),
    Entry("ClapAudioModel", "transformers", lambda: (
        transformers.ClapAudioModel(transformers.ClapAudioConfig(
            spec_size=32, num_mel_bins=16, patch_size=4, patch_stride=[4, 4], patch_embeds_hidden_size=16,
            depths=[1, 1],            num_attention_heads=[2, 2], window_size=2, hidden_size=32,
            projection_dim=16, enable_fusion=False)),
        lambda batch: {"input_features": torch.randn(batch, 1, 32, 16)})),
]  # fmt: skip
