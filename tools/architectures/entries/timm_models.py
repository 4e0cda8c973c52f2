"""Models of timm: its own tiny ones, and small forms of others."""

from __future__ import annotations

from typing import Any

import timm
import torch
from timm.models import coat, convmixer, focalnet, metaformer, mlp_mixer, volo

from tools.architectures.entry import Entry, Inputs, images


def entry(name: str, size: int = 64, **options: Any) -> Entry:
    def make() -> tuple[torch.nn.Module, Inputs]:
        module = timm.create_model(name, pretrained=False, num_classes=10, **options)
        return module, lambda batch: {"x": images(batch, size)}

    return Entry(f"timm {name}", "timm", make)


def built(name: str, kind: type[torch.nn.Module], size: int = 32, **options: Any) -> Entry:
    """A class of timm with a configuration of its own, where the model's name leaves no choice of sizes."""

    def make() -> tuple[torch.nn.Module, Inputs]:
        module = kind(num_classes=10, **options)
        return module, lambda batch: {"x": images(batch, size)}

    return Entry(f"timm {name}", "timm", make)


def mixer(name: str, **options: Any) -> Entry:
    """A mixer whose layers are classes of timm's `mlp_mixer`, by name."""
    found = {key: getattr(mlp_mixer, value) if isinstance(value, str) else value for key, value in options.items()}
    return built(name, mlp_mixer.MlpMixer, img_size=32, patch_size=8, embed_dim=32, num_blocks=2, **found)


VIT = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4)

ENTRIES = [
    *(entry(f"test_{name}", 96) for name in (
        "byobnet", "convnext", "convnext2", "convnext3", "efficientnet", "efficientnet_ln", "efficientnet_gn",
        "efficientnet_evos", "mambaout", "nfnet", "resnet")),
    *(entry(f"test_{name}", 160) for name in ("vit", "vit2", "vit3", "vit4")),
    entry("vit_tiny_patch16_224", 32, **VIT),
    entry("deit_tiny_distilled_patch16_224", 32, **VIT),
    entry("deit3_small_patch16_224", 32, **VIT),
    entry("eva02_tiny_patch14_224", 32, **VIT),
    entry("beit_base_patch16_224", 32, **VIT),
    entry("cait_xxs24_224", 32, **VIT),
    entry("xcit_nano_12_p16_224", 64, img_size=64, embed_dim=32, depth=2, num_heads=4),
    entry("vit_base_patch16_rope_224", 32, **VIT),
    entry("naflexvit_base_patch16_gap", 32, embed_dim=32, depth=2, num_heads=4, patch_size=8),
    mixer("mixer_s16_224"),
    mixer("resmlp_12_224", mlp_ratio=4, block_layer="ResBlock", norm_layer="Affine"),
    mixer("gmlp_s16_224", mlp_ratio=4, block_layer="SpatialGatingBlock", mlp_layer="GatedMlp"),
    built("convmixer_768_32", convmixer.ConvMixer, dim=32, depth=2, kernel_size=5, patch_size=4),
    entry("swin_tiny_patch4_window7_224", 32, img_size=32, window_size=4, embed_dim=16, depths=(2, 2),
          num_heads=(2, 4)),
    entry("swinv2_tiny_window8_256", 32, img_size=32, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4)),
    entry("pvt_v2_b0", 64, depths=(1, 1, 1, 1), embed_dims=(8, 16, 16, 16), num_heads=(1, 2, 2, 2)),
    entry("twins_pcpvt_small", 64, img_size=64, embed_dims=(8, 16, 16, 16), num_heads=(1, 2, 2, 2),
          depths=(1, 1, 1, 1)),
    built("poolformer_s12", metaformer.MetaFormer, 64, depths=(1, 1, 1, 1), dims=(8, 16, 16, 16),
          token_mixers=metaformer.Pooling, norm_layers=metaformer.GroupNorm1, layer_scale_init_values=1e-5,
          use_mlp_head=False),
    entry("edgenext_xx_small", 64),
    entry("mobilevit_xxs", 64),
    entry("mobilevitv2_050", 64),
    entry("fastvit_t8", 64),
    entry("mobileone_s0", 64),
    entry("repvgg_a0", 32),
    entry("ghostnet_050", 32),
    entry("mobilenetv4_conv_small_035", 64),
    entry("mobilenetv3_small_050", 32),
    entry("lcnet_035", 32),
    entry("tinynet_e", 32),
    entry("mnasnet_small", 32),
    entry("hardcorenas_a", 32),
    entry("regnetx_002", 32),
    entry("regnety_002", 32),
    entry("resnest14d", 32),
    entry("res2net50_14w_8s", 32, layers=(1, 1, 1, 1)),
    entry("skresnet18", 32, layers=(1, 1, 1, 1)),
    entry("seresnet18", 32, layers=(1, 1, 1, 1)),
    entry("ecaresnet26t", 32, layers=(1, 1, 1, 1)),
    entry("resnetv2_50", 32, layers=(1, 1, 1, 1), channels=(16, 32, 32, 32)),
    entry("dla34", 32),
    entry("densenet121", 32, growth_rate=8, block_config=(2, 2, 2, 2)),
    entry("dpn48b", 32),
    entry("cspresnet50", 64),
    entry("hrnet_w18_small", 64),
    entry("selecsls42", 64),
    entry("vovnet39a", 64),
    entry("xception41", 64),
    entry("nf_resnet26", 64),
    entry("rexnet_100", 32),
    entry("levit_128s", 224),
    built("coat_lite_tiny", coat.CoaT, 64, img_size=64, patch_size=4, embed_dims=(16, 16, 16, 16), num_heads=2,
          serial_depths=(1, 1, 1, 1), parallel_depth=0, mlp_ratios=(2, 2, 2, 2), crpe_window={3: 1, 5: 1}),
    entry("crossvit_9_240", 240),
    entry("gcvit_xxtiny", 224),
    entry("maxvit_rmlp_pico_rw_256", 256),
    entry("coatnet_pico_rw_224", 224),
    built("volo_d1_224", volo.VOLO, 64, img_size=64, layers=(1, 1, 1, 1), embed_dims=(24, 48, 48, 48),
          num_heads=(2, 2, 2, 2)),
    entry("visformer_tiny", 224),
    entry("inception_next_atto", 64),
    entry("mambaout_femto", 64),
    entry("starnet_s1", 64),
    entry("repvit_m0_9", 64),
    entry("efficientvit_b0", 64),
    entry("efficientvit_m0", 224),
    entry("convnextv2_atto", 64),
    entry("davit_tiny", 64, depths=(1, 1), embed_dims=(16, 32), num_heads=(2, 2)),
    built("focalnet_tiny_srf", focalnet.FocalNet, 64, embed_dim=16, depths=(1, 1, 1, 1)),
    entry("hgnetv2_b0", 64),
    entry("swiftformer_xs", 224),
    entry("shvit_s1", 64),
    entry("tiny_vit_5m_224", 224),
    entry("botnet26t_256", 256),
    entry("convit_tiny", 32, img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=4, local_up_to_layer=2),
    entry("cpubone_b0_bfrobust", 64),
    entry("csatv2", 512),
    entry("cspnext_s", 64),
    entry("efficientformer_l1", 224),
    entry("efficientformerv2_s0", 224),
    entry("efficientvim_m1", 64),
    entry("fasternet_t0", 64),
    entry("hiera_tiny_224", 64, img_size=64, embed_dim=16, num_heads=1, stages=(1, 1, 1, 1)),
    entry("iformer_t", 64),
    entry("lcnetv2_small", 64),
    entry("legacy_seresnet18", 64),
    entry("lowformer_b0", 64),
    entry("mobilenetv5_base", 64),
    entry("pit_ti_224", 64, img_size=64, depth=(1, 1, 1)),
    entry("qwen3_vit_88m", 64, depth=2),
    entry("rdnet_tiny", 64),
    entry("repghostnet_050", 64),
    entry("samvit_base_patch16_224", 64, img_size=64, patch_size=8, embed_dim=32, depth=2, num_heads=4,
          global_attn_indexes=(1,), window_size=4),
    entry("sequencer2d_s", 224, layers=(1, 1, 1, 1)),
    entry("swinv2_cr_tiny_224", 64, img_size=64, embed_dim=16, depths=(1, 1), num_heads=(2, 2), window_size=8),
    entry("vit_relpos_small_patch16_224", 32, **VIT),
    entry("tnt_s_patch16_224", 32, img_size=32, embed_dim=32, depth=2, inner_dim=8, num_heads_inner=2,
          num_heads_outer=4),
    entry("tresnet_m", 64, layers=(1, 1, 1, 1)),
    entry("vgg11_bn", 32),
    entry("vitamin_small_224", 64, img_size=64),
]  # fmt: skip
