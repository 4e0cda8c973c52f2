"""Elementwise chains, changes of layout, scatters, resampling and integers."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from benchmarks.breadth.draw import Draw, Drawn, family, shape_text, short

WHOLE = {"int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64}


@family
def elementwise(draw: Draw) -> Drawn:
    """Chains over tensors of which some are broadcast along rows, columns or the middle."""
    rows, columns = draw.rows(1 << 24)
    middle = draw.choice((1, draw.size(2, 64)))
    shape = (max(1, rows // middle), middle, columns)
    dtype = draw.dtype()
    x, y = draw.tensor(*shape, dtype=dtype), draw.tensor(*shape, dtype=dtype)
    row, column = draw.tensor(*shape[:2], 1, dtype=dtype), draw.tensor(columns, dtype=dtype)
    between = draw.tensor(middle, 1, dtype=dtype)
    mask = draw.whole(2, *shape).bool()
    functions = {
        "scale and shift by row": (lambda x, a, b: x * a + b, (x, row, between)),
        "scale and shift by column": (lambda x, a, b: F.silu(x * a + b), (x, column, column)),
        "where chain": (lambda x, y, m: torch.where(m, x, torch.where(x > y, y, 0.5)), (x, y, mask)),
        "masks": (lambda x, y: ((x > 0) & (y < 0.5) | ~(x != y)).to(x.dtype) * x, (x, y)),
        "gated": (lambda x, y, a: F.gelu(x) * y.sigmoid() + a, (x, y, row)),
        "transcendental": (lambda x, y: torch.atan2(x, y).sin() + torch.log1p(x.abs()).erf(), (x, y)),
        "halves": (lambda x: x.flatten(0, 1)[:, : columns // 2] * x.flatten(0, 1)[:, columns - columns // 2 :], (x,)),
        "to float32": (lambda x, a: (x.float() * a.float()).exp2(), (x, column)),
        "compared": (lambda x, a: x >= a, (x, row)),
    }
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} of {shape_text(*shape)} {short(dtype)}", *functions[kind])


@family
def layout(draw: Draw) -> Drawn:
    """Copies in another order: permuted, flipped, rolled, padded, joined, repeated, in windows."""
    rows, columns = draw.rows(1 << 24)
    batch = draw.choice((1, draw.size(2, 32)))
    shape = (batch, max(2, rows // batch), columns)
    dtype = draw.dtype("float32", "float16")
    x, y = draw.tensor(*shape, dtype=dtype), draw.tensor(*shape, dtype=dtype)
    shift, low, high = draw.size(1, columns), draw.choice((0, 1, 3)), draw.choice((1, 2, 5))
    functions = {
        "transposed": (lambda x: x.mT.contiguous(), (x,)),
        "permuted": (lambda x: x.permute(2, 0, 1).contiguous() * 2, (x,)),
        "added to a transposed": (lambda x, y: x + y, (x, draw.tensor(batch, columns, shape[1], dtype=dtype).mT)),
        "flip": (lambda x: x.flip(-1, 0), (x,)),
        "roll": (lambda x: x.roll((shift, 1), (-1, 1)), (x,)),
        "pad": (lambda x: F.pad(x, (low, high, high, low), value=1.0), (x,)),
        "pad reflected": (lambda x: F.pad(x, (1, 1), mode="reflect"), (x,)),
        "cat": (lambda x, y: torch.cat((x, y[..., :shift], x), -1), (x, y)),
        "stack": (lambda x, y: torch.stack((x, y), -1), (x, y)),
        "repeat": (lambda x: x[:, ::2].repeat_interleave(2, -1), (x,)),
        "every other": (lambda x: x[..., ::2] - x[..., columns % 2 :: 2][..., : (columns + 1) // 2], (x,)),
        "unfold": (lambda x: x[..., : 1 << 12].unfold(-1, 2, 1).sum(-1), (x,)),
        "cast": (lambda x: x.mT.to(torch.bfloat16).contiguous(), (x,)),
    }
    if columns % 2:
        del functions["every other"]
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} of {shape_text(*shape)} {short(dtype)}", *functions[kind])


@family
def scattered(draw: Draw) -> Drawn:
    """Updates at places given by tensors, and counts of them."""
    rows, columns = draw.size(1000, 200000), draw.size(1, 256)
    count = draw.size(1000, 200000)
    while max(rows, count) * columns > 1 << 23:
        rows, count = max(1, rows // 2), max(1, count // 2)
    x, values = draw.tensor(rows, columns), draw.tensor(count, columns)
    index = draw.whole(rows, count)
    wide = index[:, None].expand(-1, columns)
    once = torch.randperm(rows, device=x.device)[:count]
    functions = {
        "index_put": (lambda x, i, v: x.index_put((i,), v), (x, once, values[: len(once)])),
        "index_put add": (lambda x, i, v: x.index_put((i,), v, accumulate=True), (x, index, values)),
        "index_copy": (lambda x, i, v: x.index_copy(0, i, v), (x, once, values[: len(once)])),
        "largest": (lambda x, i, v: x.scatter_reduce(0, i, v, "amax"), (x, wide, values)),
        "mean": (lambda x, i, v: x.scatter_reduce(0, i, v, "mean"), (x, wide, values)),
        "rows": (lambda x, i: x[i, :] * x[i.flip(0), :], (x, index)),
        "take_along": (lambda x, i: x.take_along_dim(i, 0), (x, wide)),
        "histogram": (
            lambda i: torch.zeros(rows, device=i.device).index_add(0, i, torch.ones_like(i).float()),
            (index,),
        ),
        "bag": (lambda x, i: F.embedding_bag(i, x, mode="mean"), (x, draw.whole(rows, max(1, count // 8), 8))),
        "bucketize": (lambda x, b: torch.bucketize(x, b), (x, draw.tensor(1001).sort().values)),
    }
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} {shape_text(rows, columns)} by {count}", *functions[kind])


@family
def resampled(draw: Draw) -> Drawn:
    """Images of another size, in other places, or as windows."""
    dtype = draw.dtype("float32", "float16")
    batch, channels, side = draw.size(1, 16), 4 * draw.size(1, 32), draw.size(7, 200)
    while batch * channels * side * side > 1 << 22:
        side = max(7, side // 2)
    x = draw.tensor(batch, channels, side, side, dtype=dtype)
    size = draw.size(7, 2 * side)
    places = torch.rand(batch, side, side, 2, device=x.device).to(dtype) * 2 - 1
    functions = {
        "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
        "bilinear": lambda x: F.interpolate(x, size=(size, side), mode="bilinear"),
        "corners": lambda x: F.interpolate(x, size=(size, size), mode="bilinear", align_corners=True),
        "bicubic": lambda x: F.interpolate(x, size=(size, size), mode="bicubic"),
        "area": lambda x: F.interpolate(x, size=(max(1, side // 3), max(1, side // 2)), mode="area"),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
        "largest": lambda x: F.adaptive_max_pool2d(x, 5),
        "windows": lambda x: F.unfold(x, 3, padding=1, stride=2),
        "responses": lambda x: F.local_response_norm(x, 5),
        "channel shuffle": lambda x: F.channel_shuffle(x, 4).contiguous(),
    }
    kind = draw.choice((*functions, "grid_sample"))
    name = f"{kind} {shape_text(*x.shape)} to {size} {short(dtype)}"
    if kind == "grid_sample":
        return Drawn(name, lambda x, g: F.grid_sample(x, g, align_corners=False), (x, places))
    return Drawn(name, functions[kind], (x,))


@family
def integers(draw: Draw) -> Drawn:
    """Whole numbers of every width: arithmetic, bits, sums, running sums, extremes, order."""
    rows, columns = draw.rows(1 << 23)
    name = draw.choice(tuple(WHOLE))
    x, y = (draw.whole(100, rows, columns).to(WHOLE[name]) for _ in range(2))
    axis = draw.choice((0, 1))
    functions = {
        "sum": lambda x, y: x.sum(axis),
        "running": lambda x, y: x.cumsum(axis),
        "counted": lambda x, y: (x > y).sum(axis),
        "any": lambda x, y: (x > 98).any(axis),
        "arithmetic": lambda x, y: x * 3 + y - (x // (y + 1)),
        "bits": lambda x, y: (x << 1) ^ (y & 15) | (x >> 2),
        "remainder": lambda x, y: torch.remainder(x, y + 1) + x % 7,
        "clamped": lambda x, y: torch.maximum(x, y).clamp(3, 50),
        "scaled": lambda x, y: (x.float() - 3) * 0.25 + y.to(torch.float32),
        "rounded": lambda x, y: (x.float() * 0.3).round().clamp(-100, 100).to(torch.int8),
        "largest": lambda x, y: x.amax(axis),
        "sorted": lambda x, y: x.sort(-1).values,
        "where": lambda x, y: torch.where(x == y, x, y * 2),
    }
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} of {shape_text(rows, columns)} along {axis} {name}", functions[kind], (x, y))


@family
def vectors(draw: Draw) -> Drawn:
    """Batches of vectors: products with matrices, with each other, and distances."""
    dtype = draw.dtype("float32", "bfloat16")
    batch, m, k = draw.size(1, 512), draw.size(2, 1024), draw.size(2, 1024)
    while batch * m * k > 1 << 24:
        batch = max(1, batch // 2)
    a, v = draw.tensor(batch, m, k, dtype=dtype, scale=k**-0.5), draw.tensor(batch, k, dtype=dtype)
    functions = {
        "matrix by vector": (lambda a, v: (a @ v[:, :, None]).squeeze(-1), (a, v)),
        "vector by matrix": (lambda a, v: torch.einsum("bm,bmk->bk", v, a), (a, draw.tensor(batch, m, dtype=dtype))),
        "outer": (lambda u, v: u[:, :, None] * v[:, None, :], (draw.tensor(batch, m, dtype=dtype), v)),
        "inner": (lambda a, b: (a * b).sum(-1), (a, draw.tensor(batch, m, k, dtype=dtype))),
        "distances": (lambda a, b: torch.cdist(a, b), (draw.tensor(m, k), draw.tensor(max(1, m // 2), k))),
        "bilinear": (lambda u, a, v: torch.einsum("bm,bmk,bk->b", u, a, v), (draw.tensor(batch, m, dtype=dtype), a, v)),
        "scaled": (lambda a, v: a * F.softmax(v, -1)[:, None, :], (a, v)),
    }
    kind = draw.choice(tuple(functions))
    shapes = " ".join(shape_text(*x.shape) for x in functions[kind][1])
    return Drawn(f"{kind} {shapes} {short(dtype)}", *functions[kind])
