"""Convolutions with what follows them in models."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from benchmarks.breadth.draw import Draw, Drawn, family, shape_text, short


@family
def image_block(draw: Draw) -> Drawn:
    """A convolution of channels-first images and a norm, activation or pool, as in training mode and without."""
    dtype, dimensions = draw.dtype("float16", "bfloat16", "float32"), draw.choice((1, 2, 2, 3))
    batch, channels = draw.size(1, 64), draw.choice((3, 8, 16, 32, 64, 112, 128, 256))
    filters, kernel = draw.choice((16, 24, 32, 64, 128, 192)), draw.choice((1, 1, 3, 3, 4))
    side = {1: draw.size(1000, 100000), 2: draw.size(28, 512), 3: draw.size(8, 64)}[dimensions]
    while batch > 1 and batch * max(channels, filters) * side**dimensions > 1 << 25:
        batch //= 2
    while batch * max(channels, filters) * side**dimensions > 1 << 26:
        side = side * 3 // 4
    transposed = kernel > 1 and draw.random() < 0.25
    apply = getattr(F, f"conv{'_transpose' if transposed else ''}{dimensions}d")
    weight_shape = (channels, filters) if transposed else (filters, channels)
    x = draw.tensor(batch, channels, *(side,) * dimensions, dtype=dtype)
    w = draw.tensor(*weight_shape, *(kernel,) * dimensions, dtype=dtype, scale=(channels * kernel**dimensions) ** -0.5)
    s, b, c = (draw.tensor(filters, dtype=dtype) for _ in range(3))
    pool, spread = getattr(F, f"max_pool{dimensions}d"), (1, filters, *(1,) * dimensions)

    def batch_norm(y: torch.Tensor, s: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(y, None, None, s, c, training=True)

    follows = {
        "alone": lambda y, s, c: y,
        "batch norm": batch_norm,
        "batch norm, mish": lambda y, s, c: batch_norm(F.mish(y), s, c),
        "group norm": lambda y, s, c: F.group_norm(y, 8, s, c),
        "gelu, group norm": lambda y, s, c: F.group_norm(F.gelu(y), 4, s, c),
        "instance norm": lambda y, s, c: F.instance_norm(y, weight=s, bias=c),
        "layer norm of rows": lambda y, s, c: F.layer_norm(y, y.shape[-1:]),
        "norm of channels": lambda y, s, c: F.layer_norm(y.movedim(1, -1), (y.shape[1],), s, c).movedim(-1, 1),
        "softmax of channels": lambda y, s, c: y.softmax(1),
        "pool, scale": lambda y, s, c: pool(y, 2) * s.view(spread),
        "mean of images": lambda y, s, c: (F.hardswish(y) + c.view(spread)).flatten(2).mean(2),
        "log-sum-exp": lambda y, s, c: y.logsumexp(1, keepdim=True).clamp(-1, 1),
    }
    kind = draw.choice(tuple(follows))

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, s: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return follows[kind](apply(x, w, b), s, c)

    name = f"{apply.__name__} {shape_text(*x.shape)} to {filters} by {kernel}, {kind} {short(dtype)}"
    return Drawn(name, function, (x, w, b, s, c))
