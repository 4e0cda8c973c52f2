"""Updates, lookups and orders that models seldom write: combined updates, every kind of rearrangement, selections."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from benchmarks.breadth.draw import Draw, Drawn, Function, family, shape_text, short


@family
def combined(draw: Draw) -> Drawn:
    """Updates of slices and of single elements, replaced or combined in every way, along any axis."""
    rows, columns, count = draw.size(16, 20000), draw.size(1, 512), draw.size(16, 50000)
    while max(rows, count) * columns > 1 << 23:
        rows, count = max(1, rows // 2), max(1, count // 2)
    dtype = draw.dtype("float32", "float32", "float16")
    x, values = draw.tensor(rows, columns, dtype=dtype), draw.tensor(count, columns, dtype=dtype)
    index, each = draw.whole(rows, count), draw.whole(rows, count, columns)
    number = draw.whole(rows, count).float()
    reduction = draw.choice(("amax", "amin", "mean", "sum"))
    functions: dict[str, Function] = {
        "each": (lambda x, i, v: x.scatter_reduce(0, i, v, reduction), (x, each, values)),
        "each afresh": (lambda x, i, v: x.scatter_reduce(0, i, v, reduction, include_self=False), (x, each, values)),
        "index_reduce": (lambda x, i, v: x.index_reduce(0, i, v, "amax"), (x, index, values)),
        # Each column once: of values for one place, any may be left.
        "columns": (lambda x, i, v: x.scatter(1, i, v), (x, draw.tensor(rows, columns).argsort(1), x.flip(0))),
        "columns added": (lambda x, i, v: x.index_add(1, i, v), (x, draw.whole(columns, 64), x[:, :1].repeat(1, 64))),
        "index_fill": (lambda x, i: x.index_fill(0, i, 0.5), (x, index)),
        "sums of groups": (lambda i, v: torch.zeros(rows, columns, device=i.device).index_add(0, i, v.float()),
                           (index, values)),
        "counts": (lambda i: torch.zeros(rows, dtype=torch.int64, device=i.device).scatter_add(
            0, i, torch.ones_like(i)), (index,)),
        "histogram": (lambda v: torch.zeros(256, device=v.device).index_add(
            0, (v * 0.01).long().clamp(0, 255), torch.ones_like(v)), (number,)),
        "put": (lambda x, i, v: x.put(i, v, accumulate=True), (x, draw.whole(rows * columns, count), values[:, 0])),
        "slice_scatter": (lambda x, v: torch.slice_scatter(x, v, 0, rows // 4, rows // 4 + len(v)),
                          (x, x[: rows // 2])),
        "select_scatter": (lambda x, v: torch.select_scatter(x, v, 1, columns // 2), (x, x[:, 0])),
        "every second": (lambda x: torch.slice_scatter(x, x[: (rows + 1) // 2] * 2, 0, 0, rows, 2), (x,)),
        "masked_scatter": (lambda x, m, v: x.masked_scatter(m, v), (x, draw.whole(2, rows, columns).bool(), x.flip(0))),
    }  # fmt: skip
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} {reduction} {shape_text(rows, columns)} by {count} {short(dtype)}", *functions[kind])


@family
def looked_up(draw: Draw) -> Drawn:
    """Gathers over first, middle and last axes, by one index and by several, bags, and edges."""
    outer, middle, inner = draw.size(2, 256), draw.size(16, 4096), draw.size(1, 256)
    while outer * middle * inner > 1 << 23:
        outer, middle = max(1, outer // 2), max(2, middle // 2)
    dtype = draw.dtype("float32", "float16")
    count = draw.size(16, 2 * middle)
    x = draw.tensor(outer, middle, inner, dtype=dtype)
    table = draw.tensor(middle * 16, 8 * draw.size(1, 32), dtype=dtype)
    bags = draw.whole(middle * 16, count, 5)
    functions: dict[str, Function] = {
        "middle": (lambda x, i: x.index_select(1, i), (x, draw.whole(middle, count))),
        "gather middle": (lambda x, i: x.gather(1, i), (x, draw.whole(middle, outer, count, inner))),
        "gather last": (lambda x, i: x.gather(2, i), (x, draw.whole(inner, outer, middle, max(1, inner // 2)))),
        "pairs": (lambda x, i, j: x[i, j], (x, draw.whole(outer, count), draw.whole(middle, count))),
        "grid": (lambda x, i, j: x[i[:, None], j[None, :]], (x, draw.whole(outer, 16), draw.whole(middle, count))),
        "take": (lambda x, i: torch.take(x, i), (x, draw.whole(x.numel(), count, 3))),
        "bag sum": (lambda t, i: F.embedding_bag(i, t, mode="sum"), (table, bags)),
        "bag max": (lambda t, i: F.embedding_bag(i, t, mode="max"), (table, bags)),
        "two tables": (lambda t, i: F.embedding(i[:, 0], t) + F.embedding(i[:, 1], t) * 0.5, (table, bags)),
        "searchsorted": (lambda x, e: torch.searchsorted(e, x), (x.float(), draw.tensor(777).sort().values)),
        "isin": (lambda i, j: torch.isin(i, j), (bags, draw.whole(middle, 33))),
    }
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} of {shape_text(outer, middle, inner)} by {count} {short(dtype)}", *functions[kind])


@family
def arranged(draw: Draw) -> Drawn:
    """Elements in another order, repeated, or between others."""
    dtype = draw.dtype("float32", "float16", "bfloat16")
    outer, rows, columns = draw.size(1, 32), draw.size(8, 2048), draw.size(8, 2048)
    while outer * rows * columns > 1 << 24:
        outer, rows = max(1, outer // 2), max(8, rows // 2)
    x = draw.tensor(outer, rows, columns, dtype=dtype)
    side = draw.size(7, 128)
    image = draw.tensor(draw.size(1, 8), 16 * draw.size(1, 8), side, side, dtype=dtype)
    functions: dict[str, Function] = {
        "tril": (lambda x: x.tril(-1), (x,)),
        "triu and scale": (lambda x: x.triu(2) * 0.5 + x, (x,)),
        "rot90": (lambda x: torch.rot90(x, 1, (1, 2)), (x,)),
        "flip rows": (lambda x: x.flip(1) - x, (x,)),
        "roll rows": (lambda x: x.roll(rows // 3, 1), (x,)),
        "roll flat": (lambda x: x.roll(7), (x,)),
        "tile": (lambda x: x[:, : max(1, rows // 4)].repeat(1, 2, 2), (x,)),
        "repeat rows": (lambda x: x.repeat_interleave(3, 1), (x[:, : max(1, rows // 3)],)),
        "movedim": (lambda x: x.movedim(0, -1).contiguous(), (x,)),
        "outermost last": (lambda x: x.permute(1, 2, 0).contiguous() + 1, (x,)),
        "interleave": (lambda x: torch.stack((x, -x), 2).flatten(1, 2), (x,)),
        "halves turned": (lambda x: torch.cat((-x[..., columns // 2 :], x[..., : columns // 2]), -1), (x,)),
        "split and join": (lambda x: torch.cat(x.split(max(1, columns // 3), -1)[::-1], -1), (x,)),
        "diagonal": (lambda x: x.diagonal(0, 1, 2).contiguous(), (x,)),
        "diag_embed": (lambda x: torch.diag_embed(x), (x[0, :256, :256],)),
        "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x[..., : side // 2 * 2, : side // 2 * 2], 2), (image,)),
        "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 4), (image,)),
        "channels last": (lambda x: x.permute(0, 2, 3, 1).contiguous(), (image,)),
        "circular": (lambda x: F.pad(x, (3, 2, 1, 3), mode="circular"), (image,)),
        "replicate": (lambda x: F.pad(x, (3, 2, 1, 3), mode="replicate"), (image,)),
        "windows": (lambda x: F.unfold(x, (3, 2), dilation=2), (image,)),
        "patches": (lambda x: x.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2, 3).flatten(3).contiguous(), (image,)),
        "folded": (lambda x: F.fold(F.unfold(x, 3, stride=2), (side, side), 3, stride=2), (image[:, :16],)),
        "outer sum": (lambda x: (x[0, :, 0][:, None] + x[0, 0][None, :]).contiguous(), (x,)),
        "kron": (lambda x: torch.kron(x[0, :64, :32], x[0, :16, :32]), (draw.tensor(1, 64, 64, dtype=dtype),)),
    }
    kind = draw.choice(tuple(functions))
    shapes = " ".join(shape_text(*t.shape) for t in functions[kind][1])
    return Drawn(f"{kind} {shapes} {short(dtype)}", *functions[kind])


@family
def selected(draw: Draw) -> Drawn:
    """Results whose size depends on the data, which PyTorch computes, between steps that it does not."""
    rows, columns = draw.size(1000, 100000), draw.size(1, 64)
    x = draw.tensor(rows, columns)
    functions = {
        "nonzero": lambda x: (x > 1).nonzero(),
        "masked_select": lambda x: torch.masked_select(x.exp(), x > 0),
        "rows": lambda x: (x * 2)[x[:, 0] > 0].sum(0),
        "unique": lambda x: torch.unique((x[:, 0] * 10).long()),
    }
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} of {shape_text(rows, columns)}", functions[kind], (x,), captures=False)
