"""Models of transformers for tasks: texts with images, boxes and points found in images, sounds, series, documents."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tools.architectures.entries.newest import LATENT, MAMBA, pictures
from tools.architectures.entries.sequence import WORDS
from tools.architectures.entries.text import EXPERTS, GROUPED, SMALL, boxed, decoder, encoder, model, padded
from tools.architectures.entries.vision import DETR, VIT, rt_detr
from tools.architectures.entry import Entry, Inputs, images, lasting, padding_mask, tokens

DECODER = {**SMALL, **GROUPED}
SQUARES = dict(image_size=[32, 32], patch_size=[8, 8])
HEADLESS = {key: value for key, value in VIT.items() if key != "intermediate_size"}
IMAGE_WORD, IMAGE_WORDS = 58, 16  # the word in whose place a patch of the image stands, and how many patches
MIXER = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
             layer_types=["linear_attention", "full_attention"])  # fmt: skip
SPEECH = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, num_mel_bins=16,
              subsampling_conv_channels=8, subsampling_factor=4)  # fmt: skip


def described(count: int = IMAGE_WORDS) -> Inputs:
    """A text with the places of an image in front, and the image."""

    def inputs(batch: int) -> dict[str, torch.Tensor]:
        places = torch.full((batch, count), IMAGE_WORD)
        words = torch.cat([places, tokens(batch, 6, IMAGE_WORD)], 1)
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "pixel_values": images(batch)}

    return inputs


def question(batch: int) -> dict[str, torch.Tensor]:
    """The same, with an end of the text that is an answer: words before it see each other in both directions."""
    given = described()(batch)
    kinds = torch.zeros_like(given["input_ids"])
    kinds[:, -3:] = 1
    mask = torch.ones_like(kinds)
    mask[:, -1] = 0
    return {**given, "attention_mask": mask, "token_type_ids": kinds}


def of_image_and_text(name: str, kind: str, vision: Any, text: Any, inputs: Inputs | None = None, **more: Any) -> Entry:
    """A decoder of text with an encoder of images, made of the configurations that are given."""

    def make() -> tuple[torch.nn.Module, Inputs]:
        parts = {"vision_config": vision(), "text_config": text(), **more}
        chosen = getattr(transformers, f"{name}Config")(**parts)
        return getattr(transformers, name + kind)(chosen), inputs or described()

    return Entry(name + kind, "transformers", make)


def _llama(**more: Any) -> Any:
    return transformers.LlamaConfig(**DECODER, **more)


def _clip(**more: Any) -> Any:
    return transformers.CLIPVisionConfig(**VIT, **more)


def _siglip() -> Any:
    return transformers.SiglipVisionConfig(**VIT, vision_use_head=False)


def _gemma() -> Any:
    return transformers.GemmaConfig(**DECODER, head_dim=8)


class BoxesOf(torch.nn.Module):
    """A detector with what is done to its results: the best words and boxes in pixels, and which count."""

    def __init__(self, detector: torch.nn.Module, count: int = 4) -> None:
        super().__init__()
        self.detector = detector
        self.count = count

    def forward(self, pixel_values: torch.Tensor, sizes: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.detector(pixel_values=pixel_values)
        scores, places = found.logits.sigmoid().flatten(1).topk(self.count, dim=1)
        labels = places % found.logits.shape[2]
        center, extent = found.pred_boxes.split(2, dim=-1)
        corners = torch.cat([center - 0.5 * extent, center + 0.5 * extent], -1)
        chosen = corners.gather(1, (places // found.logits.shape[2])[..., None].expand(-1, -1, 4))
        return scores, labels, chosen * sizes.flip(1).repeat(1, 2)[:, None], scores > 0.3


class KeptBoxes(BoxesOf):
    """The boxes of a detector that overlap no better one, of the whole batch."""

    def forward(self, pixel_values: torch.Tensor, sizes: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores, labels, boxes, _ = super().forward(pixel_values, sizes)
        flat = boxes.flatten(0, 1)
        area = (flat[:, 2:] - flat[:, :2]).prod(1)
        low = torch.maximum(flat[:, None, :2], flat[None, :, :2])
        high = torch.minimum(flat[:, None, 2:], flat[None, :, 2:])
        shared = (high - low).clamp(min=0).prod(2)
        image = torch.arange(len(boxes), device=boxes.device).repeat_interleave(self.count)
        overlaps = (shared / (area[:, None] + area[None] - shared) > 0.6) & (image[:, None] == image[None])
        better = scores.flatten()[:, None] < scores.flatten()[None]
        selected = ~(overlaps & better).any(1)
        return flat[selected], labels.flatten()[selected], image[selected]


def sized(batch: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": images(batch, 64), "sizes": torch.randint(200, 400, (batch, 2)).float()}


def _detected(name: str, make: Any, wrapper: type[BoxesOf]) -> Entry:
    return Entry(name, "transformers", lambda: (wrapper(make()), sized))


def _rt_detr() -> torch.nn.Module:
    return transformers.RTDetrForObjectDetection(rt_detr()[0].config)


def _d_fine() -> torch.nn.Module:
    backbone = transformers.HGNetV2Config(
        stem_channels=[3, 8, 8], stage_in_channels=[8, 16, 16, 16], stage_mid_channels=[8, 8, 8, 8],
        stage_out_channels=[16, 16, 16, 16], stage_num_blocks=[1] * 4, stage_numb_of_layers=[1] * 4,
        hidden_sizes=[16, 16, 16, 16], depths=[1] * 4, embedding_size=8, out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    return transformers.DFineForObjectDetection(transformers.DFineConfig(
        backbone_config=backbone, encoder_hidden_dim=32, encoder_in_channels=[16, 16, 16], encoder_ffn_dim=48,
        encoder_attention_heads=4, d_model=32, num_queries=5, decoder_in_channels=[32, 32, 32], decoder_ffn_dim=48,
        decoder_layers=2, decoder_attention_heads=4, feat_strides=[8, 16, 32], decoder_n_points=[2, 2, 2],
        eval_idx=-1))  # fmt: skip


def _conditional_detr() -> torch.nn.Module:
    backbone = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
                                         out_features=["stage2"])  # fmt: skip
    return transformers.ConditionalDetrForObjectDetection(
        transformers.ConditionalDetrConfig(use_timm_backbone=False, backbone_config=backbone, **DETR)
    )


def _poses() -> tuple[torch.nn.Module, Inputs]:
    backbone = transformers.VitPoseBackboneConfig(**{**HEADLESS, **SQUARES},
                                                  mlp_ratio=2, out_features=["stage2"])  # fmt: skip
    return transformers.VitPoseForPoseEstimation(
        transformers.VitPoseConfig(backbone_config=backbone, num_labels=5)
    ), pictures


def _keypoints(batch: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": images(batch, 32)}


def marked(batch: int) -> dict[str, torch.Tensor]:
    """Words, their boxes and the page."""
    return {**boxed(batch), "pixel_values": images(batch)}


def corners(batch: int) -> dict[str, torch.Tensor]:
    return {**padded(batch), "bbox": torch.rand(batch, lasting(), 8)}


def spectrum(bins: int = 16, frames: int = 40) -> Inputs:
    return lambda batch: {"input_features": torch.randn(batch, lasting(frames), bins)}


def recorded(batch: int) -> dict[str, torch.Tensor]:
    """Spectra of several lengths."""
    return {"input_features": torch.randn(batch, 40, 16), "attention_mask": padding_mask(batch, 40)}


def wave(batch: int) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(batch, 1, lasting(640))}


ENTRIES: list[Entry] = [
    of_image_and_text("Llava", "ForConditionalGeneration", _clip, _llama, image_token_index=IMAGE_WORD),
    of_image_and_text("VipLlava", "ForConditionalGeneration", _clip, _llama, image_token_index=IMAGE_WORD,
                      vision_feature_layers=[-2, -1]),
    of_image_and_text("PaliGemma", "ForConditionalGeneration", _siglip, _gemma, question, image_token_index=IMAGE_WORD,
                      projection_dim=32, hidden_size=32),
    of_image_and_text("AyaVision", "ForConditionalGeneration", _siglip,
                      lambda: transformers.Cohere2Config(**DECODER, head_dim=8), described(4),
                      image_token_index=IMAGE_WORD, downsample_factor=2, alignment_intermediate_size=48),
    of_image_and_text("InternVL", "ForConditionalGeneration",
                      lambda: transformers.InternVLVisionConfig(**{**VIT, **SQUARES}),
                      lambda: transformers.Qwen2Config(**DECODER), described(4), image_token_id=IMAGE_WORD,
                      image_seq_length=4, downsample_ratio=0.5),
    model("Git", lambda batch: {"input_ids": tokens(batch), "pixel_values": images(batch)},
          vision_config=dict(VIT), **WORDS, num_image_with_embedding=None),
    model("Blip2", described(4), kind="ForConditionalGeneration", vision_config=dict(VIT), num_query_tokens=4,
          qformer_config=dict(SMALL, encoder_hidden_size=32), image_token_index=IMAGE_WORD,
          text_config=dict(model_type="opt", **SMALL, ffn_dim=48, word_embed_proj_dim=32,
                           max_position_embeddings=40, use_cache=False, pad_token_id=0)),
    model("BridgeTower", lambda batch: {**padded(batch), "pixel_values": images(batch)},
          hidden_size=64, num_hidden_layers=2, num_attention_heads=4, text_config=dict(WORDS, hidden_size=64),
          vision_config=dict(VIT, hidden_size=64)),
    model("Lxmert", lambda batch: {**padded(batch), "visual_feats": torch.randn(batch, 4, 16),
                                   "visual_pos": torch.rand(batch, 4, 4)},
          vocab_size=60, hidden_size=32, num_attention_heads=4, intermediate_size=48, max_position_embeddings=40,
          l_layers=1, x_layers=1, r_layers=1, visual_feat_dim=16),
    model("Flava", lambda batch: {**padded(batch), "pixel_values": images(batch)},
          image_config=dict(VIT), text_config=dict(WORDS), multimodal_config=dict(SMALL), hidden_size=32,
          projection_dim=16),
    model("GroupViT", lambda batch: {**padded(batch), "pixel_values": images(batch)},
          text_config=dict(WORDS), projection_dim=16, projection_intermediate_dim=16,
          vision_config=dict(hidden_size=32, intermediate_size=48, depths=[1, 1], num_group_tokens=[4, 0],
                             num_output_groups=[4, 2], image_size=32, patch_size=8, num_attention_heads=4)),
    model("XCLIP", lambda batch: {**padded(batch), "pixel_values": torch.randn(batch, 2, 3, 32, 32)},
          text_config=dict(WORDS), vision_config=dict(**VIT, num_frames=2, mit_hidden_size=32, mit_intermediate_size=48,
                                                      mit_num_hidden_layers=1, mit_num_attention_heads=4),
          projection_dim=32, prompt_num_attention_heads=4, prompt_layers=1),
    _detected("RTDetrForObjectDetection with its boxes", _rt_detr, BoxesOf),
    _detected("DFineForObjectDetection with its boxes", _d_fine, BoxesOf),
    _detected("ConditionalDetrForObjectDetection with boxes that overlap no better one", _conditional_detr, KeptBoxes),
    Entry("VitPoseForPoseEstimation", "transformers", _poses),
    model("SuperPoint", _keypoints, kind="ForKeypointDetection", encoder_hidden_sizes=[8, 8, 16, 16],
          decoder_hidden_size=16, descriptor_decoder_dim=16, keypoint_threshold=0.01),
    model("LayoutLMv3", marked, **WORDS, coordinate_size=6, shape_size=4, rel_pos_bins=8, max_rel_pos=16,
          rel_2d_pos_bins=8, max_rel_2d_pos=32, input_size=32, patch_size=8),
    encoder("Lilt", boxed, hidden_size=48, channel_shrink_ratio=2),
    model("Bros", corners, **{**WORDS, "hidden_size": 128}),
    encoder("Yoso", num_hash=4, hash_code_len=4),
    model("Perceiver", lambda batch: {"inputs": torch.randn(batch, lasting(), 24)}, num_latents=6, d_latents=16,
          d_model=24, num_self_attends_per_block=2, num_self_attention_heads=2, num_cross_attention_heads=2),
    model("ImageGPT", lambda batch: {"input_ids": tokens(batch)}, vocab_size=60, n_positions=32, n_embd=32, n_layer=2,
          n_head=4, use_cache=False),
    model("TimesFm", lambda batch: {
        "past_values": torch.randn(batch, 32), "past_values_padding": torch.zeros(batch, 32),
        "freq": torch.zeros(batch, 1, dtype=torch.long)},
          patch_length=8, context_length=32, horizon_length=8, num_hidden_layers=2, hidden_size=32,
          intermediate_size=48, head_dim=8, num_attention_heads=4),
    Entry("ParakeetForCTC", "transformers", lambda: (transformers.ParakeetForCTC(
        transformers.ParakeetCTCConfig(vocab_size=60, pad_token_id=59, encoder_config=dict(SPEECH))), spectrum())),
    model("ParakeetEncoder", recorded, kind="", **SPEECH),
    model("Mimi", wave, hidden_size=32, num_filters=4, upsampling_ratios=[4, 2], codebook_size=16, codebook_dim=16,
          num_quantizers=3, vector_quantization_hidden_dimension=16, upsample_groups=32, num_hidden_layers=1,
          intermediate_size=48, num_attention_heads=4, num_key_value_heads=4, sliding_window=8, sampling_rate=8000),
    model("UnivNet", lambda batch: {"input_features": torch.randn(batch, lasting(), 8),
                                    "noise_sequence": torch.randn(batch, lasting(), 8)},
          model_in_channels=8, model_hidden_channels=8, num_mel_bins=8, resblock_kernel_sizes=[3],
          resblock_stride_sizes=[4], resblock_dilation_sizes=[[1, 3]], kernel_predictor_hidden_channels=8),
    model("FastSpeech2Conformer", lambda batch: {"input_ids": tokens(batch)}, vocab_size=60, hidden_size=32,
          encoder_layers=1, decoder_layers=1, encoder_num_attention_heads=4, decoder_num_attention_heads=4,
          encoder_linear_units=48, decoder_linear_units=48, num_mel_bins=8, speech_decoder_postnet_units=16,
          speech_decoder_postnet_layers=2, duration_predictor_channels=16, energy_predictor_channels=16,
          pitch_predictor_channels=16),
    Entry("Llama4TextModel", "transformers", lambda: (transformers.Llama4TextModel(transformers.Llama4TextConfig(
        **DECODER, head_dim=8, intermediate_size_mlp=48, num_local_experts=4, attention_chunk_size=8)), padded)),
    decoder("LongcatFlash", num_layers=2, n_routed_experts=4, zero_expert_num=2, moe_topk=2, expert_ffn_hidden_size=16,
            ffn_hidden_size=48, head_dim=4, **LATENT),
    Entry("Qwen3_5TextModel", "transformers", lambda: (transformers.Qwen3_5TextModel(
        transformers.Qwen3_5TextConfig(**DECODER, head_dim=8, **MIXER)), padded)),
    Entry("Qwen3_5MoeTextModel", "transformers", lambda: (transformers.Qwen3_5MoeTextModel(
        transformers.Qwen3_5MoeTextConfig(**DECODER, head_dim=8, **EXPERTS, shared_expert_intermediate_size=16,
                                          **MIXER)), padded)),
    decoder("Zamba", kind="ForCausalLM", num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1,
            mamba_d_state=8, mamba_dt_rank=4, n_mamba_heads=2, use_mamba_kernels=False,
            layers_block_type=["mamba", "hybrid"] * 2),
    decoder("Bamba", kind="ForCausalLM", attn_layer_indices=[1], **MAMBA),
    model("HrmText", padded, **DECODER),
]  # fmt: skip
