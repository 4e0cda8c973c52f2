"""The parts that vision, language and detection networks are made of, each as a small module.

They show how widely models are imported and compiled; sizes are tiny, weights random.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class MultiheadAttention(nn.Module):
    """PyTorch's own attention layer with padded keys, weights returned."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.attention(x, x, x, key_padding_mask=mask)


class VisionTransformer(nn.Module):
    """Patches, a class token, positions, pre-norm encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.positions = nn.Parameter(torch.randn(1, 17, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.layers(x)[:, 0])


class UNet(nn.Module):
    """Group and instance norms, a strided and a transposed convolution, both kinds of upsampling, a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.down, self.instance = nn.Conv2d(8, 16, 3, 2, 1), nn.InstanceNorm2d(16, affine=True)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 3, 1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        top = functional.silu(self.norm(self.first(image)))
        low = functional.leaky_relu(self.instance(self.down(top)), 0.1)
        smooth = functional.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)[:, :8]
        joined = torch.cat([top, self.up(low) + smooth], 1)
        return self.last(joined), functional.interpolate(low, scale_factor=2, mode="nearest")


class GPT(nn.Module):
    """A stored triangular mask, attention in its parts, GELU written out, tied output weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(32, 16)
        self.packed, self.norm = nn.Linear(16, 48), nn.LayerNorm(16)
        self.inner, self.outer = nn.Linear(16, 64), nn.Linear(64, 16)
        self.register_buffer("triangle", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        x = self.words(ids) + self.places(torch.arange(length).unsqueeze(0))
        parts = self.packed(self.norm(x)).split(16, dim=2)
        query, key, value = (part.view(batch, length, 4, 4).transpose(1, 2) for part in parts)
        scores = (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(key.size(-1)))
        scores = scores.masked_fill(self.triangle[:, :, :length, :length] == 0, float("-inf"))
        context = (functional.softmax(scores, dim=-1) @ value).transpose(1, 2).contiguous().view(batch, length, 16)
        x = x + context
        h = self.inner(x)
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))
        return (x + self.outer(h)) @ self.words.weight.T


class RelativePositions(nn.Module):
    """T5's logarithmic buckets of distances."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        bucket = (distance > 0).to(torch.long) * 16
        distance = torch.abs(distance)
        far = 8 + (torch.log(distance.float() / 8) / math.log(16) * 8).to(torch.long)
        far = torch.min(far, torch.full_like(far, 15))
        bias = self.table(bucket + torch.where(distance < 8, distance, far)).permute(2, 0, 1)
        return x[:, None] + bias


class ShiftedWindows(nn.Module):
    """Swin's roll, window partition and attention inside windows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        x = torch.roll(x, (-2, -2), (1, 2)).view(batch, height // 4, 4, width // 4, 4, channels)
        x = x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 16, channels)
        x = functional.softmax(x @ x.transpose(1, 2), -1) @ x
        x = x.view(batch, height // 4, width // 4, 4, 4, channels).permute(0, 1, 3, 2, 4, 5)
        return torch.roll(x.reshape(batch, height, width, channels), (2, 2), (1, 2))


class MobileBlock(nn.Module):
    """A depthwise convolution, squeeze and excitation, several pools."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(8, 8, 5, 1, 2, groups=8, bias=False), nn.BatchNorm2d(8)
        self.squeeze, self.excite, self.head = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1), nn.Linear(8, 5)
        self.norm.running_var.uniform_(0.5, 1.5)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = functional.hardswish(self.norm(self.depthwise(image)))
        gate = self.excite(functional.relu(self.squeeze(functional.adaptive_avg_pool2d(x, 1))))
        x = x * functional.hardsigmoid(gate)
        x = functional.avg_pool2d(functional.max_pool2d(x, 3, 2, 1, ceil_mode=True), 2)
        return self.head(x.mean([2, 3])), functional.adaptive_avg_pool2d(x, (2, 2))


class ConvNeXtBlock(nn.Module):
    """Channels moved to the back for a norm and two linear layers, a learned scale, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.LayerNorm(8, eps=1e-6)
        self.inner, self.outer = nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.5))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.depthwise(image).permute(0, 2, 3, 1))
        x = self.outer(functional.gelu(self.inner(x))) * self.scale
        return image + x.permute(0, 3, 1, 2)


class SentencePooling(nn.Module):
    """Masked mean, unit length, cosine similarity."""

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = mask.unsqueeze(-1).expand(hidden.size()).float()
        mean = (hidden * weights).sum(1) / torch.clamp(weights.sum(1), min=1e-9)
        return functional.normalize(mean, p=2, dim=1), functional.cosine_similarity(mean[:1], mean, dim=1)


class LinearBiases(nn.Module):
    """ALiBi: slopes by head times distances, and a triangular mask."""

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        heads, length = query.shape[1:3]
        slopes = torch.pow(2.0, -torch.arange(1, heads + 1) * 8.0 / heads)[:, None, None]
        places = torch.arange(length)
        bias = slopes * (places[None, None, :] - places[None, :, None]).float()
        hidden = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        mask = bias.unsqueeze(0).masked_fill(hidden, float("-inf")).to(query.dtype)
        return functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)


class InterleavedRotary(nn.Module):
    """Rotary positions over neighbouring pairs."""

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        frequencies = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))
        angles = torch.outer(positions.float(), frequencies)
        cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class DetectionHead(nn.Module):
    """Boxes from a grid of cells: meshgrid, sigmoid, slices of channels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        grid = torch.stack([columns, rows], -1).float()
        y = x.permute(0, 2, 3, 1).sigmoid()
        centre, size = (y[..., :2] * 2 - 0.5 + grid) * 8, (y[..., 2:4] * 2) ** 2
        return torch.cat([centre, size, y[..., 4:]], -1).reshape(batch, -1, channels)


class SlidingMask(nn.Module):
    """A causal window and padding combined into one additive mask."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        place = torch.arange(length)
        seen = (place[None, :] <= place[:, None]) & (place[None, :] > place[:, None] - 4)
        seen = seen[None, None] & mask[:, None, None, :].bool()
        scores = torch.zeros(batch, 1, length, length).masked_fill(~seen, torch.finfo(torch.float32).min)
        return scores.softmax(-1)


class TensorAlgebra(nn.Module):
    """Einsum, reductions, flips, stacks and repeats."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return {
            "batched": torch.einsum("bid,bjd->bij", x, y),
            "summed": torch.einsum("bid,bjd->ij", x, y),
            "reversed": x.cumsum(1).flip(1),
            "stacked": torch.stack(x.unbind(1), 2),
            "repeated": x.repeat(1, 2, 1),
            "deviation": x.std(-1),
            "variance": x.var(1, unbiased=False),
            "soft_maximum": torch.logsumexp(x, -1),
            "position": x.argmax(-1),
            "largest": x.max(-1)[0],
        }


def architectures() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, dict[int, Any]]]]:
    """Each module in eval mode with example inputs and dynamic shapes in the neutral form."""
    torch.manual_seed(0)
    randn = torch.randn
    batch, both = {0: "batch"}, {0: "batch", 1: "length"}
    image = {0: "batch", 2: "height", 3: "width"}
    ids, kept = torch.randint(0, 50, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    entries: list[tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, dict[int, Any]]]] = [
        (MultiheadAttention(), (randn(2, 5, 16), padding), {"x": both, "mask": both}),
        (VisionTransformer(), (randn(2, 3, 16, 16),), {"image": batch}),
        (UNet(), (randn(2, 3, 8, 8),), {"image": batch}),
        (GPT(), (ids,), {"ids": {0: "batch", 1: ("length", 1, 31)}}),
        (RelativePositions(), (randn(2, 6, 1),), {"x": both}),
        (ShiftedWindows(), (randn(2, 8, 8, 4),), {"x": batch}),
        (MobileBlock(), (randn(2, 8, 15, 15),), {"image": batch}),
        (ConvNeXtBlock(), (randn(2, 8, 9, 9),), {"image": image}),
        (SentencePooling(), (randn(2, 7, 8), kept), {"hidden": both, "mask": both}),
        (LinearBiases(), (randn(2, 4, 6, 8),), {"query": {0: "batch", 2: "length"}}),
        (InterleavedRotary(), (randn(2, 5, 3, 8), torch.arange(5)), {"x": both, "positions": {0: "length"}}),
        (DetectionHead(), (randn(2, 6, 4, 5),), {"x": image}),
        (SlidingMask(), (ids, kept), {"ids": both, "mask": both}),
        (TensorAlgebra(), (randn(2, 3, 4), randn(2, 5, 4)), {"x": batch, "y": batch}),
    ]
    return {type(module).__name__: (module.eval(), inputs, shapes) for module, inputs, shapes in entries}
