"""The models whose build is timed: small ones of each kind and usual ones, with random weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.models import images
from tests.models import bert, resnet

DynamicShapes = dict[str, dict[int, tuple[str, int, int]]]
Case = tuple[nn.Module, dict[str, torch.Tensor], DynamicShapes]

_BATCH = ("batch", 1, 64)
_SEQUENCE = ("sequence", 1, 256)
_HEIGHT, _WIDTH = ("height", 32, 256), ("width", 32, 256)


def cnn() -> Case:
    """Four convolutions, pooling and a classifier: images of 64 by 64 pixels, or of any sizes."""
    layers: list[nn.Module] = []
    for inside, outside, stride in ((3, 16, 1), (16, 32, 2), (32, 64, 2), (64, 64, 1)):
        layers += [nn.Conv2d(inside, outside, 3, stride, 1), nn.BatchNorm2d(outside), nn.ReLU()]
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return module, {"input": torch.randn(2, 3, 64, 64)}, {"input": {0: _BATCH, 2: _HEIGHT, 3: _WIDTH}}


def mlp() -> Case:
    """Three linear layers with GELU."""
    module = nn.Sequential(
        nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10), nn.Softmax(-1)
    )
    return module, {"input": torch.randn(8, 256)}, {"input": {0: _BATCH}}


class Encoder(nn.Module):
    """Two transformer layers, norm first, 4 heads of 64, written with PyTorch's attention function."""

    def __init__(self, width: int = 256, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.blocks = nn.ModuleList(
            nn.ModuleDict({
                "norm": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width),
                "between": nn.LayerNorm(width), "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width),
            })
            for _ in range(layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [batch, sequence, width] -> the same shape."""
        batch, sequence, width = x.shape
        for block in self.blocks:
            qkv = block["qkv"](block["norm"](x)).view(batch, sequence, 3, self.heads, width // self.heads)
            query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            attended = nn.functional.scaled_dot_product_attention(query, key, value)
            x = x + block["out"](attended.transpose(1, 2).reshape(batch, sequence, width))
            x = x + block["down"](nn.functional.gelu(block["up"](block["between"](x))))
        return self.norm(x)


def encoder() -> Case:
    """`Encoder` on sequences of 64."""
    return Encoder(), {"x": torch.randn(2, 64, 256)}, {"x": {0: _BATCH, 1: _SEQUENCE}}


def lstm() -> Case:
    """Two LSTM layers of 128 over 16 steps, and a linear layer."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(64, 128, 2, batch_first=True)
            self.head = nn.Linear(128, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    return Model(), {"x": torch.randn(2, 16, 64)}, {"x": {0: _BATCH}}


def mobilenet() -> Case:
    """MobileNetV3-small: images of 224 by 224 pixels."""
    return images.mobilenet_v3_small(), {"input": torch.randn(1, 3, 224, 224)}, {"input": {0: _BATCH}}


class _Basic(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.bn2(self.conv2(nn.functional.relu(self.bn1(self.conv1(x)))))
        return nn.functional.relu(inner + self.shortcut(x))


def resnet18() -> Case:
    """ResNet-18: images of 224 by 224 pixels."""
    blocks: list[nn.Module] = []
    inside = 64
    for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [_Basic(inside, outside, stride), _Basic(outside, outside, 1)]
        inside = outside
    module = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
    )  # fmt: skip
    return module, {"input": torch.randn(1, 3, 224, 224)}, {"input": {0: _BATCH}}


def resnet50() -> Case:
    """ResNet-50: images of 224 by 224 pixels."""
    return resnet.random_model(), {"input": torch.randn(1, 3, 224, 224)}, {"input": {0: _BATCH}}


def minilm() -> Case:
    """A sentence encoder of MiniLM's size: 6 layers of width 384, sentences of 128 tokens."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: torch.ones(1, 128, dtype=torch.int64) for name in names}
    return bert.random_model(bert.BertSize()), inputs, {name: {0: _BATCH, 1: _SEQUENCE} for name in names}


CASES: dict[str, Callable[[], Case]] = {
    "small CNN": cnn,
    "MLP": mlp,
    "encoder, 2 layers": encoder,
    "LSTM, 2 layers": lstm,
    "MobileNetV3-small": mobilenet,
    "ResNet-18": resnet18,
    "ResNet-50": resnet50,
    "MiniLM": minilm,
}


def case(name: str) -> Case:
    """A model in inference mode with example inputs and its dynamic sizes; equal weights at every call."""
    torch.manual_seed(0)
    module, inputs, shapes = CASES[name]()
    return module.eval().requires_grad_(False), inputs, shapes
