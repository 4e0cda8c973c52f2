"""Models of images and video, of transformers."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tools.architectures.entries.text import model
from tools.architectures.entry import Entry, Inputs, images

VIT = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8
)
BACKBONE = dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
DETR = dict(d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=48, decoder_ffn_dim=48, num_queries=5)  # fmt: skip


def pictures(size: int = 32, channels: int = 3) -> Inputs:
    return lambda batch: {"pixel_values": images(batch, size, channels)}


def vision(name: str, size: int = 32, kind: str = "Model", **config: Any) -> Entry:
    return model(name, pictures(size), kind, **config)


def video(frames: int = 4, size: int = 32) -> Inputs:
    return lambda batch: {"pixel_values": torch.randn(batch, frames, 3, size, size)}


def resnet(**more: Any) -> Any:
    return transformers.ResNetConfig(**BACKBONE, **more)


def detector(name: str, size: int = 64, kind: str = "Model", **config: Any) -> Entry:
    def make() -> tuple[torch.nn.Module, Inputs]:
        levels = ["stage1", "stage2"] if name == "DeformableDetr" else ["stage2"]
        chosen = getattr(transformers, f"{name}Config")(backbone_config=resnet(out_features=levels), **config)
        return getattr(transformers, name + kind)(chosen), pictures(size)

    return Entry(f"{name}{kind}", "transformers", make)


def upernet() -> tuple[torch.nn.Module, Inputs]:
    backbone = transformers.ConvNextConfig(
        hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], out_features=["stage1", "stage2", "stage3", "stage4"]
    )
    config = transformers.UperNetConfig(backbone_config=backbone, hidden_size=16, pool_scales=[1, 2], num_labels=5,
                                        auxiliary_channels=8, auxiliary_in_channels=16)  # fmt: skip
    return transformers.UperNetForSemanticSegmentation(config), pictures(64)


def maskformer(kind: str) -> Entry:
    def make() -> tuple[torch.nn.Module, Inputs]:
        swin = transformers.SwinConfig(image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1],
                                       num_heads=[1, 2, 2, 2], window_size=2,
                                       out_features=["stage1", "stage2", "stage3", "stage4"])  # fmt: skip
        sizes = dict(feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=32, num_queries=5,
                     dim_feedforward=32, encoder_layers=1, decoder_layers=2, num_attention_heads=4)  # fmt: skip
        if kind == "MaskFormer":
            detr = transformers.DetrConfig(use_timm_backbone=False, backbone_config=resnet(), **DETR)
            config = transformers.MaskFormerConfig(backbone_config=swin, decoder_config=detr, fpn_feature_size=32,
                                                   mask_feature_size=32)  # fmt: skip
        else:
            config = transformers.Mask2FormerConfig(backbone_config=swin, **sizes)
        return getattr(transformers, f"{kind}Model")(config), pictures(64)

    return Entry(f"{kind}Model", "transformers", make)


def rt_detr() -> tuple[torch.nn.Module, Inputs]:
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = transformers.RTDetrConfig(
        backbone_config=backbone, encoder_hidden_dim=32, encoder_in_channels=[16, 16, 16], encoder_ffn_dim=48,
        encoder_attention_heads=4, d_model=32, num_queries=5, decoder_in_channels=[32, 32, 32], decoder_ffn_dim=48,
        decoder_layers=1, decoder_attention_heads=4, feat_strides=[8, 16, 32],
    )  # fmt: skip
    return transformers.RTDetrModel(config), pictures(64)


def depth(name: str) -> Entry:
    def make() -> tuple[torch.nn.Module, Inputs]:
        backbone = transformers.Dinov2Config(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=28, patch_size=14,
            out_features=["stage1", "stage1", "stage2", "stage2"][1:3], reshape_hidden_states=False,
        )  # fmt: skip
        backbone.out_features = ["stage1", "stage2"]
        config = transformers.DepthAnythingConfig(
            backbone_config=backbone, reassemble_hidden_size=32, patch_size=14, neck_hidden_sizes=[8, 16],
            reassemble_factors=[2, 1], fusion_hidden_size=16, head_hidden_size=8,
        )  # fmt: skip
        return transformers.DepthAnythingForDepthEstimation(config), pictures(28)

    return Entry(name, "transformers", make)


def boolean_masked(batch: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": images(batch), "bool_masked_pos": torch.rand(batch, 16) < 0.3}


SEGFORMER = dict(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[4, 2], hidden_sizes=[16, 32], patch_sizes=[7, 3],
                 strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2])  # fmt: skip

ENTRIES = [
    vision("ViT", **VIT),
    vision("ViT", kind="ForImageClassification", **VIT),
    vision("DeiT", **VIT),
    vision("ViTMSN", **VIT),
    vision("Beit", use_relative_position_bias=True, **VIT),
    model("Data2VecVision", pictures(), use_relative_position_bias=True, **VIT),
    vision("Dinov2", **{key: value for key, value in VIT.items() if key != "intermediate_size"}),
    vision("Dinov2WithRegisters", **{key: value for key, value in VIT.items() if key != "intermediate_size"}),
    vision("DINOv3ViT", **VIT),
    vision("DINOv3ConvNext", hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1]),
    vision("IJepa", **VIT),
    vision("CLIPVision", **VIT),
    vision("SiglipVision", **VIT),
    vision("Yolos", num_detection_tokens=3, **{**VIT, "image_size": [32, 32]}),
    vision("VitDet", **{key: value for key, value in VIT.items() if key != "intermediate_size"}),
    vision("Hiera", embed_dim=8, image_size=[32, 32], patch_size=[4, 4], patch_stride=[4, 4], patch_padding=[0, 0],
           depths=[1, 1], num_heads=[1, 2], masked_unit_size=[2, 2], query_stride=[2, 2], num_query_pool=1),
    vision("Swin", image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    vision("Swinv2", image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    vision("Swin2SR", embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4, image_size=16, upscale=2),
    vision("DonutSwin", image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    vision("FocalNet", image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], hidden_sizes=[16, 32],
           focal_levels=[2, 2], focal_windows=[3, 3]),
    vision("ConvNext", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    vision("ConvNextV2", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    vision("ResNet", **BACKBONE),
    vision("RegNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4),
    vision("Bit", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_groups=2),
    vision("MobileNetV1", depth_multiplier=0.25),
    vision("MobileNetV2", depth_multiplier=0.25, depth_divisible_by=4, min_depth=4),
    vision("EfficientNet", width_coefficient=0.2, depth_coefficient=0.2, hidden_dim=256),
    vision("MobileViT", image_size=32, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 32],
           num_attention_heads=4),
    vision("MobileViTV2", size=64, image_size=64, width_multiplier=0.25),
    vision("Segformer", **SEGFORMER),
    vision("Segformer", kind="ForSemanticSegmentation", decoder_hidden_size=16, **SEGFORMER),
    vision("GLPN", kind="ForDepthEstimation", size=64, decoder_hidden_size=16,
           **{**SEGFORMER, "num_encoder_blocks": 4, "depths": [1] * 4, "sr_ratios": [8, 4, 2, 1],
              "hidden_sizes": [8, 16, 16, 16], "patch_sizes": [7, 3, 3, 3], "strides": [4, 2, 2, 2],
              "num_attention_heads": [1, 2, 2, 2], "mlp_ratios": [2] * 4}),
    vision("Pvt", image_size=32, depths=[1, 1], num_encoder_blocks=2, hidden_sizes=[8, 16], patch_sizes=[4, 2],
           strides=[4, 2], sequence_reduction_ratios=[4, 1], num_attention_heads=[1, 2], mlp_ratios=[2, 2]),
    vision("PvtV2", image_size=32, depths=[1, 1], num_encoder_blocks=2, hidden_sizes=[8, 16], patch_sizes=[7, 3],
           strides=[4, 2], sr_ratios=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2]),
    vision("Cvt", embed_dim=[8, 16, 16], num_heads=[1, 2, 2], depth=[1, 2, 3]),
    vision("Levit", image_size=64, hidden_sizes=[16, 24, 32], num_attention_heads=[2, 2, 2], depths=[1, 1, 1],
           key_dim=[8, 8, 8], size=64),
    vision("PoolFormer", hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1]),
    vision("SwiftFormer", depths=[1, 1, 1, 1], embed_dims=[8, 16, 16, 16], size=64),
    vision("TextNet", stem_num_channels=3, stem_out_channels=8, hidden_sizes=[8, 8, 16, 16, 16],
           image_size=[32, 32]),
    vision("ViTMAE", decoder_hidden_size=16, decoder_num_hidden_layers=1, decoder_num_attention_heads=2,
           decoder_intermediate_size=24, mask_ratio=0.0, **VIT),
    model("Beit", boolean_masked, kind="ForMaskedImageModeling", use_mask_token=True, **VIT),
    vision("DPT", kind="ForDepthEstimation", neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=8, is_hybrid=False,
           backbone_out_indices=[0, 1, 2, 3], reassemble_factors=[4, 2, 1, 0.5], **{**VIT, "num_hidden_layers": 4}),
    depth("DepthAnythingForDepthEstimation"),
    detector("Detr", use_timm_backbone=False, **DETR),
    detector("Detr", kind="ForObjectDetection", use_timm_backbone=False, **DETR),
    detector("ConditionalDetr", use_timm_backbone=False, **DETR),
    detector("TableTransformer", use_timm_backbone=False, **DETR),
    detector("DeformableDetr", use_timm_backbone=False, num_feature_levels=2, encoder_n_points=2, decoder_n_points=2,
             **DETR),
    detector("DabDetr", use_timm_backbone=False, hidden_size=32, **DETR),
    Entry("RTDetrModel", "transformers", rt_detr),
    Entry("UperNetForSemanticSegmentation", "transformers", upernet),
    maskformer("MaskFormer"),
    maskformer("Mask2Former"),
    model("VideoMAE", video(), num_frames=4, tubelet_size=2, **VIT),
    model("Timesformer", video(), num_frames=4, **VIT),
    model("Vivit", video(), num_frames=4, tubelet_size=[2, 8, 8],
          **{key: value for key, value in VIT.items() if key != "patch_size"}),
]  # fmt: skip
