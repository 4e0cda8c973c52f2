"""Products of small and odd sizes, float64, whole numbers and truth values, statistics and running operations."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from benchmarks.breadth.draw import Draw, Drawn, Function, family, shape_text, short


@family
def small_products(draw: Draw) -> Drawn:
    """Many small products, and einsums whose results have another order."""
    dtype = draw.dtype("float32", "bfloat16", "float16")
    batch, m, n, k = draw.size(64, 8192), draw.size(1, 64), draw.size(1, 64), draw.size(1, 64)
    while batch * (m * k + k * n + m * n) > 1 << 24:
        batch //= 2
    heads, length, width = draw.choice((2, 3, 8)), draw.size(8, 512), draw.choice((16, 40, 64))
    a, b = draw.tensor(batch, m, k, dtype=dtype), draw.tensor(batch, k, n, dtype=dtype, scale=k**-0.5)
    p, q = (draw.tensor(4, length, heads, width, dtype=dtype, scale=0.2) for _ in range(2))
    functions: dict[str, Function] = {
        "bmm": (torch.bmm, (a, b)),
        "transposed": (lambda a, b: (b.mT @ a.mT).relu(), (a, b)),
        "shared right": (lambda a, b: a @ b[0], (a, b)),
        "shared left": (lambda a, b: a[0] @ b, (a, b)),
        "to other order": (lambda a, b: torch.einsum("bik,bkj->jbi", a, b), (a, b)),
        "scores": (lambda p, q: torch.einsum("blhd,bmhd->bhlm", p, q), (p, q)),
        "sum of products": (lambda p, q: torch.einsum("blhd,blhe->bhde", p, q), (p, q)),
        "three": (lambda a, b: torch.einsum("bik,bkj,bjl->bil", a, b, b.mT), (a, b)),
        "traces": (lambda a, b: torch.einsum("bik,bki->b", a, b[..., :m] if n >= m else a.mT), (a, b)),
        "weighted": (lambda a, b: torch.einsum("bik,bk->bi", a, b[..., 0]), (a, b)),
    }
    kind = draw.choice(tuple(functions))
    shapes = " ".join(shape_text(*t.shape) for t in functions[kind][1])
    return Drawn(f"{kind} {shapes} {short(dtype)}", *functions[kind])


@family
def double(draw: Draw) -> Drawn:
    """float64: elementwise, rows, reductions, products, running sums."""
    rows, columns = draw.rows(1 << 22)
    x, y = (draw.tensor(rows, columns, dtype=torch.float64) for _ in range(2))
    m, n, k = (draw.size(16, 700) for _ in range(3))
    a, b = draw.tensor(m, k, dtype=torch.float64), draw.tensor(k, n, dtype=torch.float64)
    functions: dict[str, Function] = {
        "chain": (lambda x, y: torch.tanh(x) * y.sigmoid() + (x * x + 1).log(), (x, y)),
        "softmax": (lambda x: F.softmax(x, -1), (x,)),
        "layer_norm": (lambda x: F.layer_norm(x, x.shape[-1:]), (x,)),
        "sum": (lambda x: x.sum(0), (x,)),
        "row sums": (lambda x: x.sum(1), (x,)),
        "all": (lambda x, y: ((x - y) ** 2).mean(), (x, y)),
        "product": (lambda a, b: a @ b, (a, b)),
        "running": (lambda x: x.cumsum(1), (x,)),
        "largest": (lambda x: x.argmax(1), (x,)),
        "sorted": (lambda x: x.sort(-1).values, (x,)),
        "cast": (lambda x: x.float() * 2, (x,)),
    }  # fmt: skip
    kind = draw.choice(tuple(functions))
    shapes = " ".join(shape_text(*t.shape) for t in functions[kind][1])
    gather = (0, 1) if kind == "largest" else None
    return Drawn(f"{kind} {shapes} f64", *functions[kind], gather)


@family
def truth(draw: Draw) -> Drawn:
    """Truth values and whole numbers reduced over any axes, compared and counted."""
    outer, middle, inner = draw.size(1, 512), draw.size(2, 512), draw.size(2, 512)
    while outer * middle * inner > 1 << 24:
        outer, middle = max(1, outer // 2), max(2, middle // 2)
    dtype = draw.choice((torch.int32, torch.int64, torch.uint8, torch.bool))
    x, y = (draw.whole(2 if dtype == torch.bool else 50, outer, middle, inner).to(dtype) for _ in range(2))
    axis = draw.choice((0, 1, 2, (0, 1), (1, 2), (0, 2), (0, 1, 2)))
    functions = {
        "any": lambda x, y: (x & y).bool().any(axis) if isinstance(axis, int) else (x & y).bool().sum(axis) > 0,
        "all": lambda x, y: (x == y).all(axis) if isinstance(axis, int) else (x != y).sum(axis) == 0,
        "count": lambda x, y: torch.count_nonzero(x == y, axis),
        "sum": lambda x, y: x.sum(axis) + y.sum(axis),
        "xor": lambda x, y: (x ^ y) | (x & ~y),
        "where": lambda x, y: torch.where(x > y, x, y).sum(axis),
        "mean": lambda x, y: (x == y).float().mean(axis),
        "agreement": lambda x, y: ((x == y).sum(), (x != y).sum()),
        "extremes": lambda x, y: (x.int().amax(axis), y.int().amin(axis)),
    }
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} of {shape_text(outer, middle, inner)} over {axis} {short(dtype)}", functions[kind], (x, y))


@family
def running(draw: Draw) -> Drawn:
    """Running operations of every kind, over first, middle and last axes."""
    outer, middle, inner = draw.size(1, 512), draw.size(8, 20000), draw.size(1, 256)
    while outer * middle * inner > 1 << 22:
        outer, inner = max(1, outer // 2), max(1, inner // 2)
        middle = max(8, middle * 3 // 4)
    x = draw.tensor(outer, middle, inner)
    gates = torch.sigmoid(draw.tensor(outer, middle, inner))
    functions: dict[str, Function] = {
        "cumsum": (lambda x: x.cumsum(1), (x,)),
        "cummax": (lambda x: x.cummax(1).values, (x,)),
        "cummin positions": (lambda x: x.cummin(1).indices, (x,)),
        "logcumsumexp": (lambda x: x.logcumsumexp(1), (x,)),
        "cumprod": (lambda x: (1 + 1e-3 * x).cumprod(1), (x,)),
        "whole": (lambda x: (x > 0).cumsum(1), (x,)),
        "averages": (lambda x: x.cumsum(1) / torch.arange(1, middle + 1, device=x.device)[:, None], (x,)),
        "decayed": (lambda x, g: (x * g).cumsum(1) * (1 - g), (x, gates)),
        "differences": (lambda x: x.diff(dim=1), (x,)),
        "moving average": (lambda x: x.unfold(1, 8, 1).mean(-1), (x,)),
        "last axis": (lambda x: x.cumsum(2), (x,)),
        "first axis": (lambda x: x.cumsum(0), (x,)),
    }
    kind = draw.choice(tuple(functions))
    gather = (0, 1) if kind == "cummin positions" else None
    return Drawn(f"{kind} of {shape_text(outer, middle, inner)}", *functions[kind], gather)


@family
def statistics(draw: Draw) -> Drawn:
    """Norms of odd sizes, training statistics, distances, clipped and renormalised rows."""
    batch, channels, side = draw.size(1, 48), draw.size(2, 200), draw.size(3, 100)
    while batch * channels * side * side > 1 << 23:
        side = max(3, side // 2)
    dtype = draw.dtype("float32", "float16")
    x = draw.tensor(batch, channels, side, side, dtype=dtype)
    weight = draw.tensor(channels, dtype=dtype)
    groups = next(n for n in (7, 5, 3, 2, 1) if channels % n == 0)
    rows, more, width = draw.size(16, 2000), draw.size(16, 2000), draw.size(2, 200)
    p, q = draw.tensor(rows, width), draw.tensor(more, width)
    functions: dict[str, Function] = {
        "group_norm": (lambda x, w: F.group_norm(x, groups, w, w), (x, weight)),
        "batch_norm training": (lambda x, w: F.relu(F.batch_norm(x, None, None, w, w, training=True)), (x, weight)),
        "batch_norm of rows": (lambda p: F.batch_norm(p, None, None, training=True), (p,)),
        "instance_norm": (lambda x, w: F.instance_norm(x, None, None, w, w), (x, weight)),
        "channel norm": (lambda x, w: F.layer_norm(x.permute(0, 2, 3, 1), (channels,), w, w).permute(0, 3, 1, 2),
                         (x, weight)),
        "cdist": (torch.cdist, (p, q)),
        "cdist of 1": (lambda p, q: torch.cdist(p, q, p=1.0), (p[:500], q[:500])),
        "squared distances": (lambda p, q: (p * p).sum(1)[:, None] - 2 * p @ q.T + (q * q).sum(1), (p, q)),
        "renorm": (lambda p: torch.renorm(p, 2, 0, 1.0), (p,)),
        "weight norm": (lambda p, g: p * (g / p.norm(dim=1, keepdim=True)), (p, draw.tensor(rows, 1))),
        "clip": (lambda p: p * torch.clamp(1.0 / (p.norm() + 1e-6), max=1.0), (p,)),
        "similarity": (lambda p, q: F.normalize(p, dim=1) @ F.normalize(q, dim=1).T, (p, q)),
        "covariance": (lambda p: (p - p.mean(0)).T @ (p - p.mean(0)) / (rows - 1), (p,)),
        "cross": (lambda p: torch.linalg.cross(p.reshape(-1, 3), p.flip(0).reshape(-1, 3)),
                  (draw.tensor(rows * 30, 3),)),
        "quantized": (lambda p: torch.round(p / (p.abs().amax(1, keepdim=True) / 127 + 1e-9)).to(torch.int8), (p,)),
        "dice": (lambda x: 2 * (x.sigmoid() * x.tanh()).sum((2, 3)) / (x.sigmoid().sum((2, 3)) + 1), (x,)),
    }  # fmt: skip
    kind = draw.choice(tuple(functions))
    shapes = " ".join(shape_text(*t.shape) for t in functions[kind][1])
    return Drawn(f"{kind} {shapes} {short(functions[kind][1][0].dtype)}", *functions[kind])
