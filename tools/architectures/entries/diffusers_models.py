"""Models of diffusers."""

from __future__ import annotations

from typing import Any

import diffusers
import torch

from tools.architectures.entry import Entry, Inputs, images

UNET = dict(sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16),
            norm_num_groups=4)  # fmt: skip
CROSS = dict(**UNET, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), cross_attention_dim=16,
             up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), attention_head_dim=4)  # fmt: skip
VAE = dict(down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
           block_out_channels=(8, 16), norm_num_groups=4)  # fmt: skip


def entry(name: str, inputs: Inputs, fixed: tuple[str, ...] = (), **config: Any) -> Entry:
    return Entry(f"diffusers {name}", "diffusers", lambda: (getattr(diffusers, name)(**config), inputs), fixed=fixed)


def latents(batch: int, channels: int = 4, size: int = 16) -> dict[str, torch.Tensor]:
    return {"sample": images(batch, size, channels), "timestep": torch.randint(0, 1000, (batch,))}


def guided(batch: int) -> dict[str, torch.Tensor]:
    return {**latents(batch), "encoder_hidden_states": torch.randn(batch, 5, 16)}


def stable(batch: int) -> dict[str, torch.Tensor]:
    return {"hidden_states": images(batch, 8, 4), "encoder_hidden_states": torch.randn(batch, 5, 16),
            "pooled_projections": torch.randn(batch, 12), "timestep": torch.randint(0, 1000, (batch,))}  # fmt: skip


def flux(batch: int) -> dict[str, torch.Tensor]:
    return {"hidden_states": torch.randn(batch, 16, 4), "encoder_hidden_states": torch.randn(batch, 5, 16),
            "pooled_projections": torch.randn(batch, 12), "timestep": torch.rand(batch),
            "img_ids": torch.randn(16, 3), "txt_ids": torch.zeros(5, 3), "guidance": torch.rand(batch)}  # fmt: skip


def film(channels: int) -> Inputs:
    return lambda batch: {"hidden_states": torch.randn(batch, channels, 2, 8, 8),
                          "encoder_hidden_states": torch.randn(batch, 5, 16),
                          "timestep": torch.randint(0, 1000, (batch,))}  # fmt: skip


ENTRIES = [
    entry("UNet2DModel", latents, **UNET, down_block_types=("DownBlock2D", "AttnDownBlock2D"), attention_head_dim=4,
          up_block_types=("AttnUpBlock2D", "UpBlock2D")),
    entry("UNet2DConditionModel", guided, **CROSS),
    entry("UNet1DModel", lambda batch: {"sample": torch.randn(batch, 4, 32), "timestep": torch.rand(batch)},
          sample_size=32, in_channels=4, out_channels=4, block_out_channels=(32, 64), extra_in_channels=0,
          down_block_types=("DownBlock1D", "AttnDownBlock1D"), up_block_types=("AttnUpBlock1D", "UpBlock1D"),
          layers_per_block=1, norm_num_groups=4),
    entry("UNet3DConditionModel", lambda batch: {
        "sample": torch.randn(batch, 4, 2, 16, 16), "timestep": torch.randint(0, 1000, (batch,)),
        "encoder_hidden_states": torch.randn(batch, 5, 16)}, **UNET, cross_attention_dim=16, attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"), up_block_types=("UpBlock3D", "CrossAttnUpBlock3D")),
    entry("ControlNetModel", lambda batch: {**guided(batch), "controlnet_cond": images(batch, 128)},
          in_channels=4, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
          down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), cross_attention_dim=16, attention_head_dim=4,
          conditioning_embedding_out_channels=(8, 8, 8, 8)),
    entry("AutoencoderKL", lambda batch: {"sample": images(batch)}, latent_channels=4, **VAE),
    entry("AsymmetricAutoencoderKL", lambda batch: {"sample": images(batch)}, latent_channels=4, norm_num_groups=4,
          down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
          down_block_out_channels=(8, 16), up_block_out_channels=(8, 16)),
    entry("AutoencoderTiny", lambda batch: {"sample": images(batch)}, encoder_block_out_channels=(8, 8),
          decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)),
    entry("VQModel", lambda batch: {"sample": images(batch)}, latent_channels=4, num_vq_embeddings=16, **VAE),
    entry("AutoencoderDC", lambda batch: {"sample": images(batch)}, latent_channels=4,
          encoder_block_out_channels=(8, 16), decoder_block_out_channels=(8, 16), encoder_layers_per_block=(1, 1),
          decoder_layers_per_block=(1, 1), encoder_block_types="ResBlock", decoder_block_types="ResBlock",
          attention_head_dim=8, encoder_qkv_multiscales=((), ()), decoder_qkv_multiscales=((), ())),
    entry("DiTTransformer2DModel", lambda batch: {
        "hidden_states": images(batch, 8, 4), "timestep": torch.randint(0, 1000, (batch,)),
        "class_labels": torch.randint(0, 10, (batch,))}, num_attention_heads=2, attention_head_dim=8, num_layers=2,
        sample_size=8, num_embeds_ada_norm=10, norm_num_groups=4),
    entry("PixArtTransformer2DModel", lambda batch: {
        "hidden_states": images(batch, 8, 4), "timestep": torch.randint(0, 1000, (batch,)),
        "encoder_hidden_states": torch.randn(batch, 5, 16)}, num_attention_heads=2, attention_head_dim=8, num_layers=2,
        sample_size=8, cross_attention_dim=16, caption_channels=16, use_additional_conditions=False),
    entry("SD3Transformer2DModel", stable, sample_size=8, num_layers=2, attention_head_dim=8, num_attention_heads=2,
          joint_attention_dim=16, caption_projection_dim=16, pooled_projection_dim=12, in_channels=4, out_channels=4),
    entry("FluxTransformer2DModel", flux, ("img_ids", "txt_ids"), in_channels=4, num_layers=1, num_single_layers=1,
          attention_head_dim=12, num_attention_heads=2, joint_attention_dim=16, pooled_projection_dim=12,
          guidance_embeds=True, axes_dims_rope=(4, 4, 4)),
    entry("AuraFlowTransformer2DModel", lambda batch: {
        "hidden_states": images(batch, 8, 4), "timestep": torch.rand(batch),
        "encoder_hidden_states": torch.randn(batch, 5, 16)}, sample_size=8, num_mmdit_layers=1,
        num_single_dit_layers=1, attention_head_dim=8, num_attention_heads=2, joint_attention_dim=16,
        caption_projection_dim=16, pos_embed_max_size=16),
    entry("SanaTransformer2DModel", lambda batch: {
        "hidden_states": images(batch, 8, 4), "timestep": torch.randint(0, 1000, (batch,)),
        "encoder_hidden_states": torch.randn(batch, 5, 16)}, in_channels=4, out_channels=4, num_layers=1,
        num_attention_heads=2, attention_head_dim=8, num_cross_attention_heads=2, cross_attention_head_dim=8,
        cross_attention_dim=16, caption_channels=16, sample_size=8),
    entry("CogVideoXTransformer3DModel", lambda batch: {
        "hidden_states": torch.randn(batch, 2, 4, 8, 8), "timestep": torch.randint(0, 1000, (batch,)),
        "encoder_hidden_states": torch.randn(batch, 5, 16)}, num_attention_heads=2, attention_head_dim=8, in_channels=4,
        out_channels=4, time_embed_dim=8, text_embed_dim=16, num_layers=2, sample_width=8, sample_height=8,
        sample_frames=5, max_text_seq_length=5),
    entry("LTXVideoTransformer3DModel", lambda batch: {
        "hidden_states": torch.randn(batch, 32, 4), "encoder_hidden_states": torch.randn(batch, 5, 16),
        "timestep": torch.randint(0, 1000, (batch,)), "encoder_attention_mask": torch.ones(batch, 5),
        "num_frames": 2, "height": 4, "width": 4}, in_channels=4, out_channels=4, num_attention_heads=2,
        attention_head_dim=8, cross_attention_dim=16, num_layers=1, caption_channels=16),
    entry("WanTransformer3DModel", film(4), patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12,
          in_channels=4, out_channels=4, text_dim=16, freq_dim=16, ffn_dim=32, num_layers=1, rope_max_seq_len=32),
    entry("MochiTransformer3DModel", lambda batch: {
        **film(4)(batch), "encoder_attention_mask": torch.ones(batch, 5).bool()},
          patch_size=2, num_attention_heads=2, attention_head_dim=8, num_layers=2, pooled_projection_dim=16,
          in_channels=4, text_embed_dim=16, time_embed_dim=4, max_sequence_length=16),
    entry("PriorTransformer", lambda batch: {
        "hidden_states": torch.randn(batch, 16), "timestep": torch.randint(0, 1000, (batch,)),
        "proj_embedding": torch.randn(batch, 16), "encoder_hidden_states": torch.randn(batch, 5, 16)},
        num_attention_heads=2, attention_head_dim=8, num_layers=2, embedding_dim=16, num_embeddings=5,
        additional_embeddings=4),
    entry("T2IAdapter", lambda batch: {"x": images(batch, 64)}, channels=(8, 16), num_res_blocks=1,
          downscale_factor=8, adapter_type="full_adapter"),
    entry("Transformer2DModel", lambda batch: {"hidden_states": images(batch, 8, 4)}, num_attention_heads=2,
          attention_head_dim=8, in_channels=4, num_layers=1, norm_num_groups=4),
]  # fmt: skip
