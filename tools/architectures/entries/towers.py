"""Encoders of transformers that larger models consist of, for texts and images, and models that read text in images."""

from __future__ import annotations

import torch

from tools.architectures.entries.newest import pictures
from tools.architectures.entries.text import decoder, encoder, model, plain
from tools.architectures.entries.vision import VIT
from tools.architectures.entry import Entry, Inputs, tokens

HEADLESS = {key: value for key, value in VIT.items() if key in ("image_size", "patch_size")}
LAYERS = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)


def of_size(height: int, width: int) -> Inputs:
    return lambda batch: {"pixel_values": torch.randn(batch, 3, height, width)}


def patches(batch: int) -> dict[str, torch.Tensor]:
    shapes = torch.tensor([[4, 4]] * batch)
    return {"pixel_values": torch.randn(batch, 16, 192), "pixel_attention_mask": torch.ones(batch, 16).long(),
            "spatial_shapes": shapes}  # fmt: skip


def placed_patches(batch: int) -> dict[str, torch.Tensor]:
    places = torch.randint(1, 9, (batch, 6, 2)).float()
    return {"flattened_patches": torch.cat([places, torch.randn(batch, 6, 192)], -1)}


ENTRIES: list[Entry] = [
    encoder("AltCLIPText", project_dim=16),
    encoder("BlipText", plain, encoder_hidden_size=32, hidden_act="gelu", projection_dim=16),
    encoder("ClapText", projection_dim=16),
    encoder("FlavaText"),
    *(encoder(f"{name}Text", plain) for name in ("GroupViT", "MetaClip2", "Siglip2", "VideoPrism")),
    *(decoder(name) for name in ("Emu3Text", "HYV3", "HYV4", "Kolibri1", "MiMoV2Flash", "Qwen4ExpText", "Ultrabert")),
    decoder("Gemma4Text", head_dim=8),
    model("AlignVision", pictures, width_coefficient=0.2, depth_coefficient=0.2, hidden_dim=256),
    model("GroupViTVision", pictures, **HEADLESS, hidden_size=32, intermediate_size=48, depths=[1, 1, 1],
          num_hidden_layers=3, num_group_tokens=[8, 4, 0], num_output_groups=[8, 4, 2], num_attention_heads=4),
    model("MaskFormerSwin", pictures, image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
          window_size=4),
    model("SamVision", pictures, **HEADLESS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mlp_dim=48,
          output_channels=16, window_size=2, global_attn_indexes=[1]),
    model("Siglip2Vision", patches, num_patches=16, patch_size=8, **LAYERS),
    model("Pix2StructVision", placed_patches, hidden_size=32, patch_embed_hidden_size=192, d_ff=48, d_kv=8,
          num_hidden_layers=2, num_attention_heads=4, seq_len=16),
    model("VJEPA2", lambda batch: {"pixel_values_videos": torch.randn(batch, 4, 3, 32, 32)}, patch_size=8, crop_size=32,
          frames_per_clip=4, tubelet_size=2, hidden_size=48, num_attention_heads=4, num_hidden_layers=2,
          pred_hidden_size=48, pred_num_attention_heads=4, pred_num_hidden_layers=1, pred_num_mask_tokens=2,
          mlp_ratio=2.0),
    model("BarkCoarse", plain, input_vocab_size=60, output_vocab_size=60, num_layers=2, num_heads=4, hidden_size=32,
          block_size=32, use_cache=False),
    model("FSMT", lambda batch: {"input_ids": tokens(batch), "decoder_input_ids": tokens(batch)}, langs=["a", "b"],
          src_vocab_size=60, tgt_vocab_size=60, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=48,
          encoder_attention_heads=4, decoder_attention_heads=4, decoder_ffn_dim=48, max_position_embeddings=40,
          use_cache=False),
    model("Reformer", plain, vocab_size=60, hidden_size=32, attention_head_size=8, num_attention_heads=4,
          feed_forward_size=48, attn_layers=["local", "local"], axial_pos_embds=False, max_position_embeddings=40,
          local_attn_chunk_length=4, use_cache=False),
    model("Mgpstr", of_size(32, 64), kind="ForSceneTextRecognition", image_size=[32, 64], patch_size=8, hidden_size=32,
          num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2.0, max_token_length=6, num_character_labels=12,
          num_bpe_labels=20, num_wordpiece_labels=20),
]  # fmt: skip
