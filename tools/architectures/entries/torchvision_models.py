"""Models and operators of torchvision."""

from __future__ import annotations

from typing import Any

import torch
from torchvision import models, ops

from tools.architectures.entry import Entry, Inputs, images


def entry(name: str, size: int = 64, **options: Any) -> Entry:
    def make() -> tuple[torch.nn.Module, Inputs]:
        return models.get_model(name, weights=None, num_classes=10, **options), lambda batch: {"x": images(batch, size)}

    return Entry(f"torchvision {name}", "torchvision", make)


def of(name: str, make: Any, size: int = 32, key: str = "x") -> Entry:
    return Entry(f"torchvision {name}", "torchvision", lambda: (make(), lambda batch: {key: images(batch, size)}))


def film(name: str, frames: int = 4, size: int = 32, **options: Any) -> Entry:
    def make() -> tuple[torch.nn.Module, Inputs]:
        module = models.get_model(name, weights=None, num_classes=10, **options)
        return module, lambda batch: {"x": torch.randn(batch, 3, frames, size, size)}

    return Entry(f"torchvision {name}", "torchvision", make)


class Regions(torch.nn.Module):
    """Features of regions of each image, as two-stage detectors take them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.align = ops.RoIAlign((3, 3), 0.5, 2)
        self.head = torch.nn.Linear(72, 5)

    def forward(self, x: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        return self.head(self.align(self.features(x), boxes).flatten(1))


class Deformable(torch.nn.Module):
    """A deformable convolution with masks, its offsets from a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = torch.nn.Conv2d(3, 27, 3, padding=1)
        self.convolution = ops.DeformConv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.offsets(x)
        return self.convolution(x, places[:, :18], places[:, 18:].sigmoid())


class Suppression(torch.nn.Module):
    """The boxes that non-maximum suppression keeps."""

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return ops.nms(boxes, scores, 0.5)


class Overlaps(torch.nn.Module):
    """Pairwise overlaps of boxes."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ops.box_iou(first, second), ops.generalized_box_iou(first, second)


def boxes(count: int, size: float = 30.0) -> torch.Tensor:
    low = torch.rand(count, 2) * size / 2
    return torch.cat([low, low + 1 + torch.rand(count, 2) * size / 2], 1)


def regions(batch: int) -> dict[str, torch.Tensor]:
    return {"x": images(batch), "boxes": torch.cat([torch.randint(0, batch, (6, 1)).float(), boxes(6)], 1)}


def detector(name: str, **options: Any) -> Entry:
    def make() -> tuple[torch.nn.Module, Inputs]:
        module = models.get_model(name, weights=None, weights_backbone=None, num_classes=5, **options)
        return module, lambda batch: {"images": [torch.rand(3, 64, 64)]}

    return Entry(f"torchvision {name}", "torchvision", make, batched=False)


class Flow(torch.nn.Module):
    """RAFT of small widths with two updates."""

    def __init__(self) -> None:
        super().__init__()
        self.raft = models.optical_flow.raft_small(weights=None)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.raft(first, second, num_flow_updates=2)[-1]


class Pyramid(torch.nn.Module):
    """Two levels of features, joined from the top down."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.Conv2d(8, 16, 3, 2, 1)
        self.pyramid = ops.FeaturePyramidNetwork([8, 16], 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        low = self.first(x)
        return self.pyramid({"low": low, "high": self.second(low)})


ENTRIES = [
    entry("resnet18", 32),
    entry("alexnet", 64),
    entry("mobilenet_v2", 32, width_mult=0.25),
    entry("mobilenet_v3_small", 32),
    entry("mobilenet_v3_large", 32),
    entry("shufflenet_v2_x0_5", 32),
    entry("squeezenet1_1", 64),
    entry("mnasnet0_5", 32),
    entry("efficientnet_b0", 32),
    entry("googlenet", 64, init_weights=False, aux_logits=False),
    entry("inception_v3", 96, init_weights=False, aux_logits=False),
    entry("regnet_y_400mf", 32),
    entry("regnet_x_400mf", 32),
    of("DenseNet", lambda: models.DenseNet(growth_rate=8, block_config=(2, 2), num_init_features=16, num_classes=10)),
    of("VGG", lambda: torch.nn.Sequential(models.vgg.make_layers([8, "M", 16, "M"], batch_norm=True),
                                         torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(64, 10)),
       key="input"),
    of("VisionTransformer", lambda: models.VisionTransformer(32, 8, 2, 4, 32, 48, num_classes=10)),
    of("SwinTransformer", lambda: models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10)),
    of("SwinTransformer V2", lambda: models.SwinTransformer(
        [4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10,
        block=models.swin_transformer.SwinTransformerBlockV2,
        downsample_layer=models.swin_transformer.PatchMergingV2)),
    of("MaxVit", lambda: models.MaxVit((64, 64), 16, 2, [16, 16], [1, 1], 8, 0.0, num_classes=10), size=64),
    of("ConvNeXt", lambda: models.ConvNeXt([models.convnext.CNBlockConfig(8, 16, 1),
                                            models.convnext.CNBlockConfig(16, None, 1)], num_classes=10)),
    of("lraspp_mobilenet_v3_large", lambda: models.get_model(
        "lraspp_mobilenet_v3_large", weights=None, weights_backbone=None, num_classes=10), 64, "input"),
    entry("deeplabv3_mobilenet_v3_large", 64, weights_backbone=None),
    entry("fcn_resnet50", 32, weights_backbone=None),
    film("r3d_18"),
    film("mc3_18"),
    film("r2plus1d_18"),
    film("s3d", frames=16, size=224),
    film("swin3d_t", 4, 32),
    Entry("torchvision raft_small", "torchvision", lambda: (
        Flow(), lambda batch: {"first": images(batch, 128), "second": images(batch, 128)})),
    Entry("torchvision RoIAlign", "torchvision", lambda: (Regions(), regions), fixed=("boxes",)),
    Entry("torchvision DeformConv2d", "torchvision", lambda: (
        Deformable(), lambda batch: {"x": images(batch, 12)})),
    Entry("torchvision nms", "torchvision", lambda: (
        Suppression(), lambda batch: {"boxes": boxes(20), "scores": torch.rand(20)}), batched=False),
    Entry("torchvision box_iou", "torchvision", lambda: (
        Overlaps(), lambda batch: {"first": boxes(batch), "second": boxes(7)}), fixed=("second",)),
    of("FeaturePyramidNetwork", lambda: Pyramid(), size=32),
    detector("fasterrcnn_mobilenet_v3_large_320_fpn", min_size=64, max_size=64),
    detector("fcos_resnet50_fpn", min_size=64, max_size=64),
    detector("ssdlite320_mobilenet_v3_large"),
    detector("retinanet_resnet50_fpn", min_size=64, max_size=64),
    detector("maskrcnn_resnet50_fpn", min_size=64, max_size=64),
    detector("keypointrcnn_resnet50_fpn", min_size=64, max_size=64),
    entry("deeplabv3_resnet50", 32, weights_backbone=None),
    entry("efficientnet_v2_s", 32),
    entry("maxvit_t", 224),
    entry("vit_b_32", 224),
]  # fmt: skip
