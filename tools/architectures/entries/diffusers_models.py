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


def spoken(batch: int, **more: Any) -> dict[str, Any]:
    """A text, and the time."""
    return {"encoder_hidden_states": torch.randn(batch, 5, 16), "timestep": torch.rand(batch), **more}


def long_guided(batch: int) -> dict[str, Any]:
    """Two texts, sizes and a style."""
    return {
        "hidden_states": images(batch, 8, 4), "timestep": torch.randint(0, 1000, (batch,)).float(),
        "encoder_hidden_states": torch.randn(batch, 4, 16), "text_embedding_mask": torch.ones(batch, 4),
        "encoder_hidden_states_t5": torch.randn(batch, 5, 16), "text_embedding_mask_t5": torch.ones(batch, 5),
        "image_meta_size": torch.rand(batch, 6), "style": torch.zeros(batch).long(),
        "image_rotary_emb": (torch.randn(16, 8), torch.randn(16, 8)),
    }  # fmt: skip


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
    entry("QwenImageTransformer2DModel", lambda batch: spoken(
        batch, hidden_states=torch.randn(batch, 16, 16), encoder_hidden_states_mask=torch.ones(batch, 5).long(),
        img_shapes=[[(1, 4, 4)]]), patch_size=2, in_channels=16, out_channels=4, num_layers=1,
        attention_head_dim=16, num_attention_heads=2, joint_attention_dim=16, axes_dims_rope=(4, 6, 6)),
    entry("Lumina2Transformer2DModel", lambda batch: spoken(
        batch, hidden_states=images(batch, 8, 4), encoder_attention_mask=torch.ones(batch, 5).bool()), sample_size=8,
        patch_size=2, in_channels=4, hidden_size=24, num_layers=1, num_refiner_layers=1, num_attention_heads=2,
        num_kv_heads=1, axes_dim_rope=(4, 4, 4), axes_lens=(32, 16, 16), cap_feat_dim=16, multiple_of=16),
    entry("ChromaTransformer2DModel", lambda batch: spoken(
        batch, hidden_states=torch.randn(batch, 16, 4), img_ids=torch.randn(16, 3), txt_ids=torch.zeros(5, 3)),
        ("img_ids", "txt_ids"), patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=12,
        num_attention_heads=2, joint_attention_dim=16, axes_dims_rope=(4, 4, 4), approximator_hidden_dim=16,
        approximator_layers=1, approximator_num_channels=16),
    entry("CogView4Transformer2DModel", lambda batch: spoken(
        batch, hidden_states=images(batch, 8, 4), original_size=torch.full((batch, 2), 64.0),
        target_size=torch.full((batch, 2), 64.0), crop_coords=torch.zeros(batch, 2)), patch_size=2, in_channels=4,
        out_channels=4, num_layers=1, attention_head_dim=8, num_attention_heads=2, text_embed_dim=16, time_embed_dim=8,
        condition_dim=4, pos_embed_max_size=16, sample_size=8),
    entry("HunyuanVideoTransformer3DModel", lambda batch: {
        **film(4)(batch), "encoder_attention_mask": torch.ones(batch, 5), "pooled_projections": torch.randn(batch, 8),
        "guidance": torch.rand(batch)}, in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=12,
        num_layers=1, num_single_layers=1, num_refiner_layers=1, patch_size=2, patch_size_t=1, guidance_embeds=True,
        text_embed_dim=16, pooled_projection_dim=8, rope_axes_dim=(4, 4, 4)),
    entry("UNetSpatioTemporalConditionModel", lambda batch: {
        "sample": torch.randn(batch, 2, 8, 16, 16), "timestep": torch.rand(batch),
        "encoder_hidden_states": torch.randn(batch, 1, 16), "added_time_ids": torch.randn(batch, 3)}, sample_size=16,
        in_channels=8, out_channels=4, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=16,
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"), num_frames=2,
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"), num_attention_heads=(2, 4),
        addition_time_embed_dim=8, projection_class_embeddings_input_dim=24),
    entry("AutoencoderKLWan", lambda batch: {"sample": torch.randn(batch, 3, 5, 16, 16)}, base_dim=4, z_dim=4,
          dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True], latents_mean=[0.0] * 4,
          latents_std=[1.0] * 4),
    entry("AutoencoderKLCogVideoX", lambda batch: {"sample": torch.randn(batch, 3, 5, 16, 16)},
          block_out_channels=(8, 8, 8, 8), down_block_types=("CogVideoXDownBlock3D",) * 4, latent_channels=4,
          up_block_types=("CogVideoXUpBlock3D",) * 4, layers_per_block=1, norm_num_groups=2,
          temporal_compression_ratio=4),
    entry("AutoencoderKLLTXVideo", lambda batch: {"sample": torch.randn(batch, 3, 9, 16, 16)}, latent_channels=8,
          block_out_channels=(8, 8, 8, 8), decoder_block_out_channels=(8, 8, 8, 8), layers_per_block=(1,) * 5,
          decoder_layers_per_block=(1,) * 5, spatio_temporal_scaling=(True, True, False, False),
          decoder_spatio_temporal_scaling=(True, True, False, False), decoder_inject_noise=(False,) * 5,
          upsample_residual=(False,) * 4, upsample_factor=(1,) * 4, timestep_conditioning=False, patch_size=1,
          patch_size_t=1, encoder_causal=True, decoder_causal=False),
    entry("AutoencoderOobleck", lambda batch: {"sample": torch.randn(batch, 2, 64)}, encoder_hidden_size=8,
          downsampling_ratios=[2, 4], channel_multiples=[1, 2], decoder_channels=8, decoder_input_channels=4,
          audio_channels=2),
    entry("UVit2DModel", lambda batch: {
        "input_ids": torch.randint(0, 16, (batch, 8, 8)), "encoder_hidden_states": torch.randn(batch, 5, 16),
        "pooled_text_emb": torch.randn(batch, 16), "micro_conds": torch.rand(batch, 5)}, hidden_size=16,
        cond_embed_dim=16, micro_cond_encode_dim=2, micro_cond_embed_dim=10, encoder_hidden_size=16, vocab_size=17,
        codebook_size=16, in_channels=16, block_out_channels=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, block_num_heads=2, sample_size=8),
    entry("StableAudioDiTModel", lambda batch: spoken(
        batch, hidden_states=torch.randn(batch, 4, 16), global_hidden_states=torch.randn(batch, 1, 16)), sample_size=16,
        in_channels=4, num_layers=1, attention_head_dim=8, num_attention_heads=4, num_key_value_attention_heads=2,
        out_channels=4, cross_attention_dim=16, time_proj_dim=8, global_states_input_dim=16,
        cross_attention_input_dim=16),
    entry("HunyuanDiT2DModel", long_guided, num_attention_heads=2, attention_head_dim=8, in_channels=4, patch_size=2,
          sample_size=8, hidden_size=16, num_layers=2, mlp_ratio=2.0, cross_attention_dim=16, cross_attention_dim_t5=16,
          pooled_projection_dim=8, text_len=4, text_len_t5=5, norm_type="layer_norm"),
]  # fmt: skip
