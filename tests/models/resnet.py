"""ResNet-50 (bottleneck version 1.5) with random weights and realistic batch-norm statistics."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from .specification import ModelSpecification


class Bottleneck(nn.Module):
    """1x1 reduce, 3x3 (strided), 1x1 expand by four, and a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        expanded = 4 * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, expanded, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(expanded)
        self.downsample = (
            nn.Sequential(nn.Conv2d(channels, expanded, 1, stride=stride, bias=False), nn.BatchNorm2d(expanded))
            if stride != 1 or channels != expanded
            else None
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        shortcut = image if self.downsample is None else self.downsample(image)
        out = functional.relu(self.bn1(self.conv1(image)))
        out = functional.relu(self.bn2(self.conv2(out)))
        return functional.relu(self.bn3(self.conv3(out)) + shortcut)


class ResNet(nn.Module):
    """`blocks` bottlenecks in each stage; ResNet-50 has (3, 4, 6, 3) and width 64."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages = []
        channels = width
        for index, count in enumerate(blocks):
            inner = width << index
            layers = []
            for position in range(count):
                layers.append(Bottleneck(channels, inner, 2 if index > 0 and position == 0 else 1))
                channels = 4 * inner
            stages.append(nn.Sequential(*layers))
        self.layers = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """image float32 [batch, 3, height, width] -> logits [batch, classes]."""
        out = self.maxpool(functional.relu(self.bn1(self.conv1(image))))
        out = torch.flatten(self.avgpool(self.layers(out)), 1)
        return self.fc(out)


def random_model(blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000, seed: int = 0) -> ResNet:
    """He-initialised weights; the last norm of a block scales down so that activations stay in range."""
    torch.manual_seed(seed)
    module = ResNet(blocks, width, classes)
    for name, child in module.named_modules():
        if isinstance(child, nn.Conv2d):
            nn.init.kaiming_normal_(child.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(child, nn.BatchNorm2d):
            last = name.endswith("bn3")
            nn.init.uniform_(child.weight, 0.1, 0.4) if last else nn.init.uniform_(child.weight, 0.7, 1.3)
            nn.init.normal_(child.bias, 0.0, 0.1)
            child.running_mean.normal_(0.0, 0.2)
            child.running_var.uniform_(0.6, 1.6)
    return module.eval()


def specification(module: ResNet, batch: int = 2, size: int = 224, max_batch: int = 64) -> ModelSpecification:
    """Dynamic batch, fixed image size."""

    def make_inputs(batch: int = batch, seed: int = 0) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {"image": torch.randn(batch, 3, size, size, generator=generator)}

    return ModelSpecification(
        name="resnet50",
        module=module,
        inputs=make_inputs(),
        dynamic_shapes={"image": {0: ("batch", 1, max_batch)}},
        make_inputs=make_inputs,
        output_names=("logits",),
    )
