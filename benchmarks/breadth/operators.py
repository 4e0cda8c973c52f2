"""Operators that other families leave out: functions, activations, windows, orders, matrices, layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from benchmarks.breadth.draw import Draw, Drawn, Function, family, shape_text, short

Unary = Callable[[torch.Tensor], torch.Tensor]


@family
def mathematical(draw: Draw) -> Drawn:
    """Functions of one and two numbers that most models do without, in float32 and float64."""
    rows, columns = draw.rows(1 << 22)
    dtype = draw.choice((torch.float32, torch.float32, torch.float64))
    x, y = (draw.tensor(rows, columns, dtype=dtype) for _ in range(2))
    unit, positive = x.sigmoid() * 1.9 - 0.95, x.abs() + 0.1
    of_one: dict[str, tuple[Unary, torch.Tensor]] = {
        **{name: (getattr(torch, name), unit) for name in ("acos", "asin", "atanh", "erfinv")},
        **{name: (getattr(torch, name), x) for name in ("atan", "asinh", "cosh", "sinh", "tan", "expm1", "erfc", "sinc",
                                                        "exp2", "sgn", "frac", "trunc", "ceil", "i0", "positive")},
        **{name: (getattr(torch, name), positive) for name in ("log1p", "log2", "log10", "lgamma", "digamma", "sqrt",
                                                               "reciprocal", "rsqrt")},
        "acosh": (torch.acosh, positive + 1),
        "nan_to_num": (torch.nan_to_num, x.log()),
        "logit": (torch.logit, x.sigmoid()),
        "entr": (torch.special.entr, positive),
        "ndtr": (torch.special.ndtr, x),
    }  # fmt: skip
    of_two = {
        **{name: getattr(torch, name) for name in ("hypot", "copysign", "fmod", "remainder", "atan2", "logaddexp",
                                                   "logaddexp2", "fmax", "fmin", "nextafter", "floor_divide")},
        "xlogy": lambda x, y: torch.xlogy(x, y.abs() + 0.1),
        "pow": lambda x, y: (x.abs() + 0.1).pow(y),
        "ldexp": lambda x, y: torch.ldexp(x, (y * 3).int()),
        "lerp": lambda x, y: torch.lerp(x, y, 0.3),
        "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
        "addcdiv": lambda x, y: torch.addcdiv(x, x, y.abs() + 1, value=0.5),
        "logical": lambda x, y: (x > 0).logical_xor(y > 0).logical_or(x.isnan() | y.isinf()),
        "clamp by tensors": lambda x, y: torch.clamp(x, y - 1, y + 0.2),
    }  # fmt: skip
    kind = draw.choice((*of_one, *of_two))
    name = f"{kind} {shape_text(rows, columns)} {short(dtype)}"
    if kind in of_two:
        return Drawn(name, of_two[kind], (x, y))
    function, operand = of_one[kind]
    return Drawn(name, function, (operand,))


@family
def activated(draw: Draw) -> Drawn:
    """All activations, alone or after a bias for each column."""
    rows, columns = draw.rows(1 << 24)
    dtype = draw.dtype()
    x, bias = draw.tensor(rows, 2 * (columns // 2 + 1), dtype=dtype), draw.tensor(2 * (columns // 2 + 1), dtype=dtype)
    weight = draw.tensor(1, dtype=dtype)
    names = ("celu", "elu", "selu", "glu", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "relu6", "softplus",
             "mish", "logsigmoid", "softsign", "tanhshrink", "hardshrink", "softshrink", "silu", "gelu", "threshold",
             "prelu")  # fmt: skip
    kind, biased = draw.choice(names), draw.random() < 0.5
    given = {"threshold": (0.1, 0.5), "prelu": (weight,)}.get(kind, ())

    def function(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return getattr(F, kind)(x + bias if biased else x, *(part.to(x) if kind == "prelu" else part for part in given))

    return Drawn(f"{kind}{' of sums' * biased} {shape_text(*x.shape)} {short(dtype)}", function, (x, bias))


@family
def turned(draw: Draw) -> Drawn:
    """Dimensions in another order: many small matrices, short outer and inner dimensions, dimensions of one."""
    dtype = draw.dtype("float32", "float16", "bfloat16")
    sizes = [draw.choice((1, draw.size(2, 12), draw.size(2, 300))) for _ in range(draw.choice((2, 3, 4)))]
    place = draw.randrange(len(sizes))
    rest = max(1, (1 << 22) // max(1, torch.tensor(sizes).prod().item()))
    sizes[place] = draw.size(max(1, rest // 8), rest)
    order = list(range(len(sizes)))
    draw.shuffle(order)
    x = draw.tensor(*sizes, dtype=dtype)
    name = f"{shape_text(*sizes)} as {shape_text(*order)} {short(dtype)}"
    return Drawn(name, lambda x: x.permute(order).contiguous() * 2, (x,))


@family
def windowed(draw: Draw) -> Drawn:
    """Pools, pads and samples of one, two and three dimensions."""
    dtype, dimensions = draw.dtype("float32", "float16"), draw.choice((1, 2, 3))
    side = {1: draw.size(100, 20000), 2: draw.size(9, 256), 3: draw.size(6, 48)}[dimensions]
    batch, channels = draw.size(1, 16), draw.size(1, 96)
    while batch * channels * side**dimensions > 1 << 23:
        batch, channels = max(1, batch // 2), max(1, channels * 3 // 4)
        side = max(6, side * 7 // 8)
    x = draw.tensor(batch, channels, *(side,) * dimensions, dtype=dtype)
    kernel, stride = draw.choice((2, 3, 5)), draw.choice((1, 2))
    pads = (2, 1) * dimensions
    pool = {name: getattr(F, f"{name}{dimensions}d") for name in ("avg_pool", "max_pool", "adaptive_avg_pool")}
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "avg_pool": lambda x: pool["avg_pool"](x, kernel, stride, 1),
        "max_pool": lambda x: pool["max_pool"](x, kernel, stride, 1),
        "pooled by the least": lambda x: -pool["max_pool"](-x, kernel, stride, 1),
        "adaptive": lambda x: pool["adaptive_avg_pool"](x, 5),
        "reflected": lambda x: F.pad(x, pads, mode="reflect"),
        "replicated": lambda x: F.pad(x, pads, mode="replicate"),
        "circular": lambda x: F.pad(x, pads, mode="circular"),
        "constant": lambda x: F.pad(x, pads, value=0.5),
        "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
        "unpooled": lambda x: F.interpolate(pool["avg_pool"](x, 2), scale_factor=2, mode="nearest") - x[
            (..., *(slice(side // 2 * 2),) * dimensions)],
    }  # fmt: skip
    kind = draw.choice(tuple(functions))
    name = f"{kind} {shape_text(*x.shape)} by {kernel} stride {stride} {short(dtype)}"
    return Drawn(name, functions[kind], (x,))


@family
def sampled(draw: Draw) -> Drawn:
    """Images read at places that a tensor gives, between pixels and beyond the borders."""
    batch, channels, side, out = draw.size(1, 16), draw.size(1, 128), draw.size(8, 256), draw.size(8, 256)
    while batch * channels * max(side, out) ** 2 > 1 << 23:
        batch, channels = max(1, batch // 2), max(1, channels * 3 // 4)
        side, out = max(8, side * 7 // 8), max(8, out * 7 // 8)
    mode = draw.choice(("bilinear", "bilinear", "nearest", "bicubic"))
    border, corners = draw.choice(("zeros", "border", "reflection")), draw.random() < 0.5
    x, grid = draw.tensor(batch, channels, side, side), draw.tensor(batch, out, out, 2, scale=0.6)
    if mode == "nearest":  # a rounding of a place may choose another pixel: places near the middles of pixels
        grid = ((grid * side).round() * 2 + 1) / side - 1
        corners = False
    name = f"{mode} {border}{' corners' * corners} {shape_text(*x.shape)} to {out}"
    return Drawn(
        name, lambda x, g: F.grid_sample(x, g, mode=mode, padding_mode=border, align_corners=corners), (x, grid)
    )


@family
def ordered(draw: Draw) -> Drawn:
    """Places in an order, medians, counts and members, along any axis."""
    outer, inner = draw.rows(1 << 21)
    axis = draw.choice((0, 1))
    x, places = draw.tensor(outer, inner), draw.whole(1000, outer, inner)
    few, edges = draw.whole(1000, draw.choice((3, 33, 700))), draw.tensor(draw.choice((7, 60, 1000))).sort().values
    kth = max(1, x.shape[axis] // 3)
    functions: dict[str, Function] = {
        "kthvalue": (lambda x: x.kthvalue(kth, axis).values, (x,)),
        "median": (lambda x: x.median(axis).values, (x,)),
        "nanmedian": (lambda x: x.nanmedian(axis).values, (x,)),
        "sorted": (lambda x: x.sort(axis).values, (x,)),
        "smallest": (lambda x: x.topk(min(5, x.shape[axis]), axis, largest=False).values, (x,)),
        "extremes": (lambda x: x.aminmax(dim=axis), (x,)),
        "largest so far": (lambda x: x.cummax(axis).values, (x,)),
        "running log sum exp": (lambda x: x.logcumsumexp(axis), (x,)),
        "isin": (torch.isin, (places, few)),
        "bucketize": (torch.bucketize, (x, edges)),
        "histc": (lambda x: x.histc(50, -2.0, 2.0), (x,)),
        "quantile": (lambda x: x[:256, :4096].quantile(0.3, axis), (x,)),
        # Of several values that come equally often PyTorch's kernels take one or another.
        "mode": (lambda p: (p[:512, :2048] == p[:512, :2048].mode(1, True).values).sum(1), (places,)),
    }
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} of {shape_text(outer, inner)} along {axis}", *functions[kind])


@family
def counted(draw: Draw) -> Drawn:
    """Counts and groups whose number depends on the data."""
    count, most = draw.size(1000, 1000000), draw.choice((10, 256, 5000))
    whole = draw.whole(most, count)
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "bincount": lambda w: torch.bincount(w, minlength=most),
        "unique_consecutive": lambda w: torch.unique_consecutive(w // 7),
        "unique": lambda w: torch.unique(w),
        "nonzero": lambda w: (w == 3).nonzero(),
    }
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} of {count} below {most}", functions[kind], (whole,), captures=False)


@family
def matrices(draw: Draw) -> Drawn:
    """Matrices that are added to, factored and solved with: a few large ones, or many small ones."""
    side = draw.choice((2, 3, 4, 8, draw.size(9, 64)))
    batch = min(draw.size(16, 100000), (1 << 21) // side**2)
    many, m, n, k = draw.size(2, 32), draw.size(8, 400), draw.size(8, 400), draw.size(8, 400)
    a = draw.tensor(batch, side, side, scale=0.3 / side**0.5) + torch.eye(side, device=draw.device)
    square, rhs = a @ a.mT, draw.tensor(batch, side, 3)
    left, right, bias = draw.tensor(many, m, k, scale=k**-0.5), draw.tensor(many, k, n), draw.tensor(m, n)
    functions: dict[str, Function] = {
        "inverse": (torch.linalg.inv, (a,)),
        "solve": (torch.linalg.solve, (a, rhs)),
        "triangular": (lambda a, r: torch.linalg.solve_triangular(a, r, upper=True), (a.triu(), rhs)),
        "cholesky": (torch.linalg.cholesky, (square,)),
        "det": (torch.linalg.det, (a,)),
        "addbmm": (torch.addbmm, (bias, left, right)),
        "baddbmm": (lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5, alpha=2.0), (bias[None], left, right)),
        "addmm": (torch.addmm, (bias, left[0], right[0])),
        "addmv": (
            lambda b, x, v: torch.addmv(b, x, v),
            (bias[:, 0].contiguous(), left[0], right[0, :, 0].contiguous()),
        ),
        "absolute distances": (lambda x: torch.cdist(x, x, p=1.0), (left[:, :64, :16].contiguous(),)),
        "pairs": (F.pdist, (left[0, :200].contiguous(),)),
        "power": (lambda a: torch.linalg.matrix_power(a, 5), (a,)),
    }
    kind = draw.choice(tuple(functions))
    shapes = " ".join(shape_text(*t.shape) for t in functions[kind][1])
    return Drawn(f"{kind} {shapes}", *functions[kind])


@family
def layers(draw: Draw) -> Drawn:
    """Layers with weights as inputs: recurrent cells, bags, bilinear forms, norms of groups."""
    dtype = draw.dtype("float32", "float16")
    batch, width, hidden = draw.size(1, 512), draw.size(8, 512), draw.size(8, 512)
    x, h = draw.tensor(batch, width, dtype=dtype), draw.tensor(batch, hidden, dtype=dtype)
    scale = (width + hidden) ** -0.5

    def gates(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (draw.tensor(count * hidden, width, dtype=dtype, scale=scale),
                draw.tensor(count * hidden, hidden, dtype=dtype, scale=scale))  # fmt: skip

    def lstm(x: torch.Tensor, h: torch.Tensor, wi: torch.Tensor, wh: torch.Tensor) -> torch.Tensor:
        i, f, g, o = (F.linear(x, wi) + F.linear(h, wh)).chunk(4, -1)
        return o.sigmoid() * torch.tanh(f.sigmoid() * h + i.sigmoid() * g.tanh())

    def gru(x: torch.Tensor, h: torch.Tensor, wi: torch.Tensor, wh: torch.Tensor) -> torch.Tensor:
        (a, b, c), (d, e, f) = F.linear(x, wi).chunk(3, -1), F.linear(h, wh).chunk(3, -1)
        new = torch.tanh(c + (a + d).sigmoid() * f)
        return new + (b + e).sigmoid() * (h - new)

    functions: dict[str, Function] = {
        "lstm cell": (lstm, (x, h, *gates(4))),
        "gru cell": (gru, (x, h, *gates(3))),
        "rnn cell": (lambda x, h, wi, wh: torch.tanh(F.linear(x, wi) + F.linear(h, wh)), (x, h, *gates(1))),
        "bilinear": (F.bilinear, (x[:64], h[:64], draw.tensor(8, width, hidden, dtype=dtype, scale=scale))),
        "gated linear": (lambda x, w: F.glu(F.linear(x, w), -1), (x, gates(2)[0])),
        "experts": (lambda x, w: torch.einsum("bw,ehw->beh", x, w).amax(1), (x, gates(4)[0].view(4, hidden, width))),
    }  # fmt: skip
    kind = draw.choice(tuple(functions))
    shapes = " ".join(shape_text(*t.shape) for t in functions[kind][1])
    return Drawn(f"{kind} {shapes} {short(dtype)}", *functions[kind])
