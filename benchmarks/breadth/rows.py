"""Reductions, row operations, scans, searches and losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from benchmarks.breadth.draw import Draw, Drawn, family, shape_text, short


@family
def row_operation(draw: Draw) -> Drawn:
    """softmax and norms of every aspect."""
    rows, columns = draw.rows()
    dtype, kind = draw.dtype(), draw.choice(("softmax", "log_softmax", "layer_norm", "rms_norm", "normalize"))
    x = draw.tensor(rows, columns, dtype=dtype)
    weight = draw.tensor(columns, dtype=dtype)
    functions = {
        "softmax": (lambda x: F.softmax(x, -1), (x,)),
        "log_softmax": (lambda x: F.log_softmax(x, -1), (x,)),
        "layer_norm": (lambda x, w: F.layer_norm(x, x.shape[-1:], w, w), (x, weight)),
        "rms_norm": (lambda x, w: x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w,
                     (x, weight)),
        "normalize": (lambda x: F.normalize(x, dim=-1), (x,)),
    }  # fmt: skip
    return Drawn(f"{kind} {shape_text(rows, columns)} {short(dtype)}", *functions[kind])


@family
def reduction(draw: Draw) -> Drawn:
    """Reductions over the first, a middle, the last or all axes."""
    outer, inner = draw.rows()
    middle = draw.choice((1, 1, draw.size(2, 64)))
    shape = (outer, inner) if middle == 1 else (max(1, outer // middle), middle, inner)
    dtype = draw.dtype()
    kind = draw.choice(("sum", "mean", "amax", "prod", "var", "norm", "logsumexp", "std_mean"))
    axis = draw.choice((*range(len(shape)), None))
    x = draw.tensor(*shape, dtype=dtype)
    axes = tuple(range(len(shape))) if axis is None else axis
    functions = {
        "sum": lambda x: x.sum(axes),
        "mean": lambda x: x.mean(axes),
        "amax": lambda x: x.amax(axes),
        "prod": lambda x: (1 + x * 1e-4).prod() if axis is None else (1 + x * 1e-4).prod(axis),
        "var": lambda x: x.var(axes),
        "norm": lambda x: torch.linalg.vector_norm(x, dim=axes),
        "logsumexp": lambda x: x.logsumexp(axes),
        "std_mean": lambda x: torch.std_mean(x, axes),
    }
    return Drawn(f"{kind} of {shape_text(*shape)} over {axis} {short(dtype)}", functions[kind], (x,))


@family
def row_program(draw: Draw) -> Drawn:
    """Several reductions over the same axes, with elementwise ops before, between and after them."""
    outer, inner = draw.rows(1 << 24)
    middle = draw.choice((1, draw.size(2, 64)))
    shape = (outer, inner) if middle == 1 else (max(1, outer // middle), middle, inner)
    axis, dtype = draw.choice([axis for axis, extent in enumerate(shape) if extent > 1]), draw.dtype()
    x, y = draw.tensor(*shape, dtype=dtype), draw.tensor(*shape, dtype=dtype)

    def centred(x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(axis, keepdim=True)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        low, high = x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
        return (x - low) / (high - low + 1e-3)

    functions = {
        "normalize": (lambda x: F.normalize(x, dim=axis), (x,)),
        "rms norm": (lambda x: x * torch.rsqrt((x * x).mean(axis, keepdim=True) + 1e-5), (x,)),
        "standardize": (lambda x: centred(x) / (x.std(axis, keepdim=True) + 1e-3), (x,)),
        "between extremes": (scaled, (x,)),
        "norm by hand": (lambda x, y: F.silu(centred(x) * torch.rsqrt(x.var(axis, keepdim=True) + 1e-5)) * y, (x, y)),
        "statistics": (lambda x: (x.mean(axis), x.std(axis), x.amax(axis), x.amin(axis)), (x,)),
        "weighted": (lambda x, y: (F.softmax(x, axis) * y).sum(axis), (x, y)),
        "entropy": (lambda x: -(F.softmax(x, axis) * F.log_softmax(x, axis)).sum(axis).mean(), (x,)),
        "divergence": (lambda x, y: F.kl_div(F.log_softmax(x, axis), F.softmax(y, axis), reduction="sum"), (x, y)),
        "cosine": (lambda x, y: F.cosine_similarity(x, y, dim=axis), (x, y)),
        "free energy": (lambda x, y: (torch.logsumexp(x * y, axis, keepdim=True) - x).mean(axis), (x, y)),
        "softmax twice": (lambda x: F.softmax(F.softmax(x, axis) * 8, axis), (x,)),
        "drawn": _drawn_program(draw, axis, x, y),
    }
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} of {shape_text(*shape)} along {axis} {short(dtype)}", *functions[kind])


def _drawn_program(
    draw: Draw, axis: int, x: torch.Tensor, y: torch.Tensor
) -> tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]:
    """Three rounds of elementwise ops and a reduction, whose result meets the elements again."""
    elementwise = (torch.tanh, torch.sigmoid, F.silu, torch.sin, torch.abs)
    reductions = (
        torch.mean,
        torch.amax,
        torch.amin,
        torch.logsumexp,
        lambda x, axis, keepdim: (x * x).mean(axis, True),
    )
    meetings = (torch.sub, lambda x, row: x / (row.abs() + 1), torch.maximum)
    steps = [(draw.choice(elementwise), draw.choice(reductions), draw.choice(meetings)) for _ in range(3)]

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for number, (each, reduce, meet) in enumerate(steps):
            x = each(x + y if number == 1 else x)
            x = meet(x, reduce(x, axis, keepdim=True))
        return x

    return program, (x, y)


@family
def scan(draw: Draw) -> Drawn:
    """Running sums and their kin along any axis, forwards and backwards."""
    outer, inner = draw.rows(1 << 24)
    dtype, axis = draw.dtype("float32", "float32", "bfloat16"), draw.choice((0, 1))
    kind = draw.choice(("cumsum", "cumprod", "reversed", "exclusive", "masked", "cummax"))
    x = draw.tensor(outer, inner, dtype=dtype)
    functions = {
        "cumsum": (lambda x: x.cumsum(axis), (x,)),
        "cumprod": (lambda x: (1 + 1e-4 * x).cumprod(axis), (x,)),
        "reversed": (lambda x: x.flip(axis).cumsum(axis).flip(axis), (x,)),
        "exclusive": (lambda x: x.cumsum(axis) - x, (x,)),
        "masked": (lambda x, m: (x * m).cumsum(axis), (x, draw.whole(2, outer, inner).bool())),
        "cummax": (lambda x: x.cummax(axis).values, (x,)),
    }
    return Drawn(f"{kind} of {shape_text(outer, inner)} along {axis} {short(dtype)}", *functions[kind])


@family
def search(draw: Draw) -> Drawn:
    """Positions of extremes, along any axis."""
    outer, inner = draw.rows()
    axis, kind, dtype = draw.choice((0, 1)), draw.choice(("argmax", "argmin", "max")), draw.dtype()
    x = draw.tensor(outer, inner, dtype=dtype)
    functions = {
        "argmax": lambda x: x.argmax(axis),
        "argmin": lambda x: x.argmin(axis),
        "max": lambda x: x.max(axis),
    }
    return Drawn(f"{kind} of {shape_text(outer, inner)} along {axis} {short(dtype)}", functions[kind], (x,), (0, axis))


@family
def sort(draw: Draw) -> Drawn:
    """Sorting rows, and the largest of them."""
    rows, columns = draw.rows(1 << 23)
    dtype, kind = draw.dtype(), draw.choice(("sort", "argsort", "topk", "topk", "descending"))
    x = draw.tensor(rows, columns, dtype=dtype)
    count = min(columns, draw.choice((1, 2, 5, 10, 50, 100)))
    functions = {
        "sort": lambda x: x.sort(-1),
        "argsort": lambda x: x.argsort(-1),
        "topk": lambda x: x.topk(count, -1),
        "descending": lambda x: x.sort(-1, descending=True),
    }
    label = f"topk {count}" if kind == "topk" else kind
    return Drawn(f"{label} of {shape_text(rows, columns)} {short(dtype)}", functions[kind], (x,), (0, 1))


@family
def loss(draw: Draw) -> Drawn:
    """Losses over whole batches."""
    rows, columns = draw.rows(1 << 24)
    dtype = draw.dtype("float32", "float32", "float16")
    x, y = draw.tensor(rows, columns, dtype=dtype), draw.tensor(rows, columns, dtype=dtype)
    labels = draw.whole(columns, rows)
    functions = {
        "mse": (F.mse_loss, (x, y)),
        "huber": (F.huber_loss, (x, y)),
        "kl_div": (lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"), (x, y)),
        "cross_entropy": (F.cross_entropy, (x, labels)),
        "cosine": (lambda x, y: (1 - F.cosine_similarity(x, y, dim=1)).mean(), (x, y)),
        "hinge": (lambda x, y: torch.clamp(1 - x * y.sign(), min=0).mean(), (x, y)),
        "triplet": (lambda x, y: F.triplet_margin_loss(x, y, x.flip(0)), (x, y)),
        "frobenius": (lambda x: x / torch.linalg.vector_norm(x), (x,)),
    }
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} of {shape_text(rows, columns)} {short(dtype)}", *functions[kind])


@family
def image_norm(draw: Draw) -> Drawn:
    """Norms over channels and whole images, in evaluation and training."""
    batch, channels = draw.size(1, 32), 8 * draw.size(1, 32)
    side = draw.size(7, 256)
    while batch * channels * side * side > 1 << 25:
        side = max(7, side // 2)
    dtype = draw.dtype("float32", "float16")
    x, weight = draw.tensor(batch, channels, side, side, dtype=dtype), draw.tensor(channels, dtype=dtype)
    mean, variance = draw.tensor(channels), draw.tensor(channels).abs() + 0.5
    functions = {
        "group_norm": (lambda x, w: F.group_norm(x, 8, w, w), (x, weight)),
        "group_norm silu": (lambda x, w: F.silu(F.group_norm(x, 8, w, w)), (x, weight)),
        "instance_norm": (lambda x: F.instance_norm(x), (x,)),
        "layer_norm": (lambda x: F.layer_norm(x, x.shape[1:]), (x,)),
        "batch_norm": (lambda x, m, v, w: F.batch_norm(x, m, v, w, w), (x, mean, variance, weight)),
        "batch_norm training": (lambda x, w: F.batch_norm(x, None, None, w, w, training=True), (x, weight)),
    }
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} of {shape_text(batch, channels, side, side)} {short(dtype)}", *functions[kind])


@family
def placement(draw: Draw) -> Drawn:
    """Gathers, scatters, embeddings, masks."""
    rows, columns = draw.size(1000, 200000), draw.size(8, 512)
    count = draw.size(1000, 100000)
    while max(rows, count) * columns > 1 << 25:
        rows, count = rows // 2, count // 2
    dtype = draw.dtype("float32", "float16")
    x, index = draw.tensor(rows, columns, dtype=dtype), draw.whole(rows, count)
    values = draw.tensor(count, columns, dtype=dtype)
    functions = {
        "embedding": (lambda x, i: F.embedding(i, x), (x, index)),
        "index_select": (lambda x, i: x.index_select(0, i), (x, index)),
        "gather": (lambda x, i: x.gather(0, i[:, None].expand(-1, x.shape[1])), (x, index)),
        "index_add": (lambda x, i, v: x.index_add(0, i, v), (x.float(), index, values.float())),
        "scatter_add": (lambda x, i, v: x.scatter_add(0, i[:, None].expand(-1, x.shape[1]), v),
                        (x.float(), index, values.float())),
        "masked_fill": (lambda x, m: x.masked_fill(m, 0.0), (x, draw.whole(2, rows, columns).bool())),
        "one_hot": (lambda i: F.one_hot(i % 1000, 1000).float(), (index,)),
        "triu": (lambda x: torch.triu(x), (x,)),
    }  # fmt: skip
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} {shape_text(rows, columns)} by {count} {short(dtype)}", *functions[kind])
