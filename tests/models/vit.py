"""A vision transformer (ViT-B/16 by default) with random weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from .specification import ModelSpecification


@dataclass(frozen=True)
class VitSize:
    image: int = 224
    patch: int = 16
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072
    classes: int = 1000
    epsilon: float = 1e-6

    @property
    def tokens(self) -> int:
        return (self.image // self.patch) ** 2 + 1


TINY = VitSize(image=32, patch=8, hidden=32, layers=2, heads=4, intermediate=64, classes=10)


class EncoderLayer(nn.Module):
    """Norm, attention with one product for query, key and value; norm, MLP; residuals around both."""

    def __init__(self, size: VitSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm1 = nn.LayerNorm(size.hidden, eps=size.epsilon)
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.proj = nn.Linear(size.hidden, size.hidden)
        self.norm2 = nn.LayerNorm(size.hidden, eps=size.epsilon)
        self.fc1 = nn.Linear(size.hidden, size.intermediate)
        self.fc2 = nn.Linear(size.intermediate, size.hidden)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = hidden.shape
        qkv = self.qkv(self.norm1(hidden)).reshape(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        context = functional.scaled_dot_product_attention(query, key, value)
        hidden = hidden + self.proj(context.transpose(1, 2).reshape(batch, tokens, width))
        return hidden + self.fc2(functional.gelu(self.fc1(self.norm2(hidden))))


class Vit(nn.Module):
    """image [batch, 3, image, image] -> logits [batch, classes]."""

    def __init__(self, size: VitSize) -> None:
        super().__init__()
        self.size = size
        self.patches = nn.Conv2d(3, size.hidden, size.patch, stride=size.patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, size.hidden) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, size.tokens, size.hidden) * 0.02)
        self.layers = nn.Sequential(*(EncoderLayer(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.hidden, eps=size.epsilon)
        self.head = nn.Linear(size.hidden, size.classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        first = self.class_token.expand(image.shape[0], -1, -1)
        hidden = torch.cat((first, tokens), dim=1) + self.positions
        return self.head(self.norm(self.layers(hidden))[:, 0])


def random_model(size: VitSize = TINY, seed: int = 0) -> Vit:
    """A model with PyTorch's initial weights and norms of ordinary scale."""
    torch.manual_seed(seed)
    module = Vit(size)
    for name, parameter in module.named_parameters():
        if "norm" in name:
            nn.init.uniform_(parameter, 0.5, 1.5) if name.endswith("weight") else nn.init.normal_(parameter, 0, 0.1)
    return module.eval()


def specification(module: Vit, batch: int = 2, max_batch: int = 64) -> ModelSpecification:
    """Dynamic batch, fixed image size."""

    def make_inputs(batch: int = batch, seed: int = 0) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {"image": torch.randn(batch, 3, module.size.image, module.size.image, generator=generator)}

    return ModelSpecification(
        name="vit",
        module=module,
        inputs=make_inputs(),
        dynamic_shapes={"image": {0: ("batch", 1, max_batch)}},
        make_inputs=make_inputs,
        output_names=("logits",),
    )
