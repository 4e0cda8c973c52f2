"""Networks for images with random weights, from plain PyTorch: classifiers, segmentation, detection."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

Activation = type[nn.Module]


def convolution(
    inside: int, outside: int, size: int, stride: int = 1, groups: int = 1, dilation: int = 1,
    activation: Activation | None = nn.ReLU,
) -> nn.Sequential:  # fmt: skip
    """A convolution that keeps the size (over `stride`), a batch norm and an activation."""
    padding = (size - 1) // 2 * dilation
    layers: list[nn.Module] = [
        nn.Conv2d(inside, outside, size, stride, padding, dilation, groups, bias=False), nn.BatchNorm2d(outside)
    ]  # fmt: skip
    return nn.Sequential(*layers, *([activation()] if activation else []))


def calibrated(module: nn.Module, image: int, batch: int = 2) -> nn.Module:
    """The module in inference mode, with the statistics of random images in its batch norms."""
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = None
    with torch.no_grad():
        module.train()(torch.randn(batch, 3, image, image))
    return module.eval().requires_grad_(False)


class Excitation(nn.Module):
    """Squeeze and excite: channels scaled by a gate computed of their means."""

    def __init__(
        self, channels: int, reduced: int, inner: Activation = nn.ReLU, gate: Activation = nn.Hardsigmoid
    ) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, reduced, 1), nn.Conv2d(reduced, channels, 1)
        self.inner, self.gate = inner(), gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(self.fc2(self.inner(self.fc1(self.pool(x)))))


class Inverted(nn.Module):
    """Expand by 1x1, depthwise, squeeze and excite, project by 1x1; a shortcut where the shapes agree."""

    def __init__(
        self, inside: int, size: int, expanded: int, outside: int, excitation: nn.Module | None,
        activation: Activation, stride: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shortcut = stride == 1 and inside == outside
        layers: list[nn.Module] = []
        if expanded != inside:
            layers.append(convolution(inside, expanded, 1, activation=activation))
        layers.append(convolution(expanded, expanded, size, stride, expanded, activation=activation))
        layers += [excitation] if excitation is not None else []
        layers.append(convolution(expanded, outside, 1, activation=None))
        self.block = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.block(x) if self.shortcut else self.block(x)


MobileRow = tuple[int, int, int, int, bool, Activation, int]


def mobilenet_v3(rows: Sequence[MobileRow], last: int, hidden: int) -> nn.Module:
    """MobileNetV3 of inverted residuals: (inside, kernel, expanded, outside, excitation, activation, stride)."""

    def block(row: MobileRow) -> Inverted:
        inside, size, expanded, outside, excite, activation, stride = row
        excitation = Excitation(expanded, -(-expanded // 4 // 8) * 8) if excite else None
        return Inverted(inside, size, expanded, outside, excitation, activation, stride)

    return nn.Sequential(
        convolution(3, 16, 3, 2, activation=nn.Hardswish), *map(block, rows),
        convolution(rows[-1][3], last, 1, activation=nn.Hardswish),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, hidden), nn.Hardswish(), nn.Linear(hidden, 1000),
    )  # fmt: skip


def mobilenet_v3_small() -> nn.Module:
    """MobileNetV3-small: images of 224 by 224 pixels."""
    rectified, swish = nn.ReLU, nn.Hardswish
    rows: list[MobileRow] = [
        (16, 3, 16, 16, True, rectified, 2), (16, 3, 72, 24, False, rectified, 2), (24, 3, 88, 24, False, rectified, 1),
        (24, 5, 96, 40, True, swish, 2), (40, 5, 240, 40, True, swish, 1), (40, 5, 240, 40, True, swish, 1),
        (40, 5, 120, 48, True, swish, 1), (48, 5, 144, 48, True, swish, 1), (48, 5, 288, 96, True, swish, 2),
        (96, 5, 576, 96, True, swish, 1), (96, 5, 576, 96, True, swish, 1),
    ]  # fmt: skip
    return mobilenet_v3(rows, 576, 1024)


def mobilenet_v3_large() -> nn.Module:
    """MobileNetV3-large: images of 224 by 224 pixels."""
    rectified, swish = nn.ReLU, nn.Hardswish
    rows: list[MobileRow] = [
        (16, 3, 16, 16, False, rectified, 1), (16, 3, 64, 24, False, rectified, 2),
        (24, 3, 72, 24, False, rectified, 1), (24, 5, 72, 40, True, rectified, 2),
        (40, 5, 120, 40, True, rectified, 1), (40, 5, 120, 40, True, rectified, 1),
        (40, 3, 240, 80, False, swish, 2), (80, 3, 200, 80, False, swish, 1), (80, 3, 184, 80, False, swish, 1),
        (80, 3, 184, 80, False, swish, 1), (80, 3, 480, 112, True, swish, 1), (112, 3, 672, 112, True, swish, 1),
        (112, 5, 672, 160, True, swish, 2), (160, 5, 960, 160, True, swish, 1), (160, 5, 960, 160, True, swish, 1),
    ]  # fmt: skip
    return mobilenet_v3(rows, 960, 1280)


def efficientnet_b0() -> nn.Module:
    """EfficientNet-B0: images of 224 by 224 pixels."""
    layers: list[nn.Module] = [convolution(3, 32, 3, 2, activation=nn.SiLU)]
    inside = 32
    stages = (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )  # fmt: skip
    for ratio, size, stride, outside, count in stages:
        for number in range(count):
            expanded = inside * ratio
            excitation = Excitation(expanded, max(1, inside // 4), nn.SiLU, nn.Sigmoid)
            layers.append(Inverted(inside, size, expanded, outside, excitation, nn.SiLU, stride if number == 0 else 1))
            inside = outside
    layers += [convolution(inside, 1280, 1, activation=nn.SiLU), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(1280, 1000))


def lcnet() -> nn.Module:
    """PP-LCNet, as used to tell how a line of text is turned: 80 by 160 pixels, strides of (2, 1) in deep stages."""
    rows = (
        (3, 16, 32, (1, 1), False), (3, 32, 64, (2, 1), False), (3, 64, 64, (1, 1), False),
        (3, 64, 128, (2, 1), False), (3, 128, 128, (1, 1), False), (3, 128, 256, (2, 1), False),
        *[(5, 256, 256, (1, 1), False)] * 5, (5, 256, 512, (2, 1), True), (5, 512, 512, (1, 1), True),
    )  # fmt: skip
    layers: list[nn.Module] = [convolution(3, 16, 3, 2, activation=nn.Hardswish)]
    for size, inside, outside, stride, excite in rows:
        layers += [
            nn.Conv2d(inside, inside, size, stride, size // 2, groups=inside, bias=False), nn.BatchNorm2d(inside),
            nn.Hardswish(),
        ]  # fmt: skip
        layers += [Excitation(inside, inside // 4)] if excite else []
        layers.append(convolution(inside, outside, 1, activation=nn.Hardswish))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Conv2d(512, 1280, 1), nn.Hardswish(), nn.Flatten(), nn.Linear(1280, 2)]
    return nn.Sequential(*layers, nn.Softmax(-1))


class Bottleneck(nn.Module):
    """1x1, 3x3 (in groups, dilated, strided), 1x1, a shortcut around them; squeeze and excite if asked for."""

    def __init__(
        self, inside: int, inner: int, outside: int, stride: int = 1, groups: int = 1, dilation: int = 1,
        reduced: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        layers: list[nn.Module] = [convolution(inside, inner, 1)]
        layers.append(convolution(inner, inner, 3, stride, groups, dilation))
        layers += [Excitation(inner, reduced, gate=nn.Sigmoid)] if reduced else []
        self.block = nn.Sequential(*layers, convolution(inner, outside, 1, activation=None))
        same = stride == 1 and inside == outside
        self.shortcut = nn.Identity() if same else convolution(inside, outside, 1, stride, activation=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.block(x) + self.shortcut(x))


def bottlenecks(
    inside: int, stages: Sequence[tuple[int, int, int, int, int, int]], excite: bool = False
) -> list[nn.Module]:
    """Stages of (inner channels, outer channels, blocks, stride, groups, dilation)."""
    layers: list[nn.Module] = []
    for inner, outside, count, stride, groups, dilation in stages:
        for number in range(count):
            reduced = inside // 4 if excite else 0
            layers.append(Bottleneck(inside, inner, outside, stride if number == 0 else 1, groups, dilation, reduced))
            inside = outside
    return layers


def regnet_y() -> nn.Module:
    """RegNetY-800MF, groups of 16 channels: images of 224 by 224 pixels."""
    stages = ((64, 1), (144, 3), (320, 8), (784, 2))
    body = bottlenecks(32, [(width, width, count, 2, width // 16, 1) for width, count in stages], excite=True)
    return nn.Sequential(convolution(3, 32, 3, 2), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(784, 1000))


def resnext_50() -> nn.Module:
    """ResNeXt-50 32x4d: images of 224 by 224 pixels."""
    stages = ((128, 256, 3, 1), (256, 512, 4, 2), (512, 1024, 6, 2), (1024, 2048, 3, 2))
    body = bottlenecks(64, [(*stage, 32, 1) for stage in stages])
    stem = [convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class DeepLab(nn.Module):
    """DeepLabV3 on a dilated ResNet-50: 21 classes a pixel, at the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        stages = [
            (64, 256, 3, 1, 1, 1), (128, 512, 4, 2, 1, 1), (256, 1024, 6, 1, 1, 2), (512, 2048, 3, 1, 1, 4)
        ]  # fmt: skip
        self.body = nn.Sequential(convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *bottlenecks(64, stages))
        self.branches = nn.ModuleList([
            convolution(2048, 256, 1), *(convolution(2048, 256, 3, dilation=rate) for rate in (12, 24, 36))
        ])  # fmt: skip
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), convolution(2048, 256, 1))
        self.head = nn.Sequential(convolution(1280, 256, 1), convolution(256, 256, 3), nn.Conv2d(256, 21, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.body(image)
        size = x.shape[-2:]
        pooled = functional.interpolate(self.pooled(x), size=size, mode="bilinear", align_corners=False)
        x = self.head(torch.cat([*(branch(x) for branch in self.branches), pooled], 1))
        return functional.interpolate(x, size=image.shape[-2:], mode="bilinear", align_corners=False)


class UNet(nn.Module):
    """Four levels of two convolutions each, down by pooling and up by transposed convolutions, with skips."""

    def __init__(self, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(
            nn.Sequential(convolution(inside, outside, 3), convolution(outside, outside, 3))
            for inside, outside in zip([3, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.joined = nn.ModuleList(
            nn.Sequential(convolution(2 * w, w, 3), convolution(w, w, 3)) for w in reversed(widths[:-1])
        )
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x, skips = image, []
        for level in self.down:
            x = level(x if not skips else functional.max_pool2d(x, 2))
            skips.append(x)
        for up, join, skip in zip(self.up, self.joined, reversed(skips[:-1]), strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return self.head(x)


class CrossStage(nn.Module):
    """Half of the channels through residual 3x3 convolutions, all parts joined (as in YOLO's newer backbones)."""

    def __init__(self, inside: int, outside: int, count: int) -> None:
        super().__init__()
        self.half = outside // 2
        self.first = convolution(inside, outside, 1, activation=nn.SiLU)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(convolution(self.half, self.half, 3, activation=nn.SiLU) for _ in range(2)))
            for _ in range(count)
        )
        self.last = convolution(outside + count * self.half, outside, 1, activation=nn.SiLU)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).split(self.half, 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Detector(nn.Module):
    """A one-stage detector: three scales joined top down, boxes and 80 class scores for every cell."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def stage(inside: int, outside: int, count: int) -> nn.Sequential:
            step = convolution(inside, outside, 3, 2, activation=nn.SiLU)
            return nn.Sequential(step, CrossStage(outside, outside, count))

        stem = convolution(3, width, 3, 2, activation=nn.SiLU)
        self.fine = nn.Sequential(stem, stage(width, 2 * width, 1), stage(2 * width, 4 * width, 2))
        self.middle, self.coarse = stage(4 * width, 8 * width, 2), stage(8 * width, 16 * width, 1)
        self.join_middle, self.join_fine = CrossStage(24 * width, 8 * width, 1), CrossStage(12 * width, 4 * width, 1)
        self.heads = nn.ModuleList(
            nn.Sequential(convolution(w, w, 3, activation=nn.SiLU), nn.Conv2d(w, 84, 1))
            for w in (4 * width, 8 * width, 16 * width)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        fine = self.fine(image)
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        middle = self.join_middle(torch.cat([functional.interpolate(coarse, scale_factor=2.0), middle], 1))
        fine = self.join_fine(torch.cat([functional.interpolate(middle, scale_factor=2.0), fine], 1))
        outputs = []
        for x, head in zip((fine, middle, coarse), self.heads, strict=True):
            cells = head(x).flatten(2).transpose(1, 2)
            boxes = functional.softplus(cells[..., :4])
            outputs.append(torch.cat([boxes, cells[..., 4:].sigmoid()], -1))
        return torch.cat(outputs, 1)


class ConvNeXtBlock(nn.Module):
    """A 7x7 depthwise convolution, a norm, two linear layers, a learned scale, a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.inner, self.outer = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.depthwise(image).permute(0, 2, 3, 1))
        x = self.outer(functional.gelu(self.inner(x))) * self.scale
        return image + x.permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of [batch, channels, height, width]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext_tiny() -> nn.Module:
    """ConvNeXt-T: images of 224 by 224 pixels."""
    widths, counts = (96, 192, 384, 768), (3, 3, 9, 3)
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96, eps=1e-6)]
    for level, (width, count) in enumerate(zip(widths, counts, strict=True)):
        if level:
            layers += [ChannelNorm(widths[level - 1], eps=1e-6), nn.Conv2d(widths[level - 1], width, 2, 2)]
        layers += [ConvNeXtBlock(width) for _ in range(count)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768, eps=1e-6), nn.Linear(768, 1000)]
    return nn.Sequential(*layers)


class WindowAttention(nn.Module):
    """Swin's attention inside windows of 7 by 7 tokens, shifted by `shift`, with learned relative positions."""

    def __init__(self, width: int, heads: int, extent: int, shift: int, size: int = 7) -> None:
        super().__init__()
        self.heads, self.extent, self.shift, self.size = heads, extent, shift, size
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.randn((2 * size - 1) ** 2, heads) * 0.02)
        places = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).flatten(1)
        distance = (places[:, :, None] - places[:, None, :]) + size - 1
        self.register_buffer("index", (distance[0] * (2 * size - 1) + distance[1]).flatten())
        regions = torch.zeros(extent, extent)
        if shift:
            parts = (slice(0, -size), slice(-size, -shift), slice(-shift, None))
            for number, (rows, columns) in enumerate((r, c) for r in parts for c in parts):
                regions[rows, columns] = number
        windows = self._windows(regions[None, :, :, None]).squeeze(-1)
        apart = windows[:, None, :] != windows[:, :, None]
        self.register_buffer("mask", torch.zeros(apart.shape).masked_fill(apart, -100.0))

    def _windows(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, extent, extent, width] -> [batch * windows, size * size, width]."""
        count, size = self.extent // self.size, self.size
        x = x.reshape(-1, count, size, count, size, x.shape[-1]).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, size * size, x.shape[-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, extent, _, width = x.shape
        tokens, count = self.size**2, extent // self.size
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        qkv = self.qkv(self._windows(x)).reshape(-1, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (query * (width // self.heads) ** -0.5) @ key.transpose(-2, -1)
        scores = scores + self.table[self.index].view(tokens, tokens, self.heads).permute(2, 0, 1)
        if self.shift:
            scores = scores.view(batch, count * count, self.heads, tokens, tokens) + self.mask[None, :, None]
            scores = scores.view(-1, self.heads, tokens, tokens)
        x = self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(-1, tokens, width))
        x = x.view(batch, count, count, self.size, self.size, width).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, extent, extent, width)
        return torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x


class SwinBlock(nn.Module):
    def __init__(self, width: int, heads: int, extent: int, shift: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, extent, shift)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.outer(functional.gelu(self.inner(self.norm2(x))))


class Merging(nn.Module):
    """Four neighbouring tokens become one of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduce(self.norm(torch.cat(parts, -1)))


class Swin(nn.Module):
    """Swin-T: images of 224 by 224 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, 96, 4, 4), nn.LayerNorm(96)
        layers: list[nn.Module] = []
        width, extent = 96, 56
        for level, (count, heads) in enumerate(((2, 3), (2, 6), (6, 12), (2, 24))):
            if level:
                layers.append(Merging(width))
                width, extent = 2 * width, extent // 2
            shifts = [3 if number % 2 and extent > 7 else 0 for number in range(count)]
            layers += [SwinBlock(width, heads, extent, shift) for shift in shifts]
        self.layers = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.first(self.patches(image).permute(0, 2, 3, 1)))
        return self.head(self.norm(x).mean((1, 2)))
