"""Products, convolutions, pools and attention."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from benchmarks.breadth.draw import Draw, Drawn, family, shape_text, short


@family
def product(draw: Draw) -> Drawn:
    """Products of two matrices in every layout and aspect."""
    dtype = draw.dtype("bfloat16", "float16", "float32")
    kind = draw.choice(("even", "deep", "flat", "thin", "wide"))
    most = 5000 if dtype != torch.float32 else 3000
    m, n, k = draw.size(64, most), draw.size(64, most), draw.size(64, most)
    if kind == "deep":
        m, n, k = draw.size(16, 256), draw.size(16, 256), draw.size(8192, 100000)
    elif kind == "flat":
        k = draw.size(8, 64)
    elif kind == "thin":
        m, n, k = draw.size(1, 64), draw.size(512, 16384), draw.size(512, 8192)
    elif kind == "wide":
        m, n = draw.size(8192, 60000), draw.size(8, 128)
    layout = draw.choice(("NN", "NT", "TN", "TT"))
    a = draw.tensor(*((k, m) if layout[0] == "T" else (m, k)), dtype=dtype)
    b = draw.tensor(*((n, k) if layout[1] == "T" else (k, n)), dtype=dtype, scale=k**-0.5)
    functions = {
        "NN": lambda a, b: a @ b,
        "NT": lambda a, b: a @ b.T,
        "TN": lambda a, b: a.T @ b,
        "TT": lambda a, b: a.T @ b.T,
    }
    return Drawn(f"{layout} {shape_text(m, n, k)} {short(dtype)}", functions[layout], (a, b))


@family
def batched(draw: Draw) -> Drawn:
    """Batches of products, vectors, outer products, triangles, diagonals."""
    dtype = draw.dtype("bfloat16", "float32")
    batch, m, n, k = draw.size(2, 128), draw.size(16, 512), draw.size(16, 512), draw.size(16, 512)
    large = draw.size(1000, 8192)
    square = draw.tensor(large, large, dtype=dtype, scale=large**-0.5)
    vector = draw.tensor(large, dtype=dtype)
    functions = {
        "bmm": (torch.bmm, (draw.tensor(batch, m, k, dtype=dtype), draw.tensor(batch, k, n, dtype=dtype))),
        "bmm transposed": (lambda a, b: a @ b.mT,
                           (draw.tensor(batch, m, k, dtype=dtype), draw.tensor(batch, n, k, dtype=dtype))),
        "broadcast": (lambda a, b: a @ b, (draw.tensor(batch, m, k, dtype=dtype), draw.tensor(k, n, dtype=dtype))),
        "matrix by vector": (lambda a, v: a @ v, (square, vector)),
        "vector by matrix": (lambda a, v: v @ a, (square, vector)),
        "outer": (lambda v: torch.outer(v, v), (vector,)),
        "diagonal": (lambda a, v: torch.diag(v) @ a, (square[:2048, :2048], vector[:2048])),
        "triangular": (lambda a: torch.tril(a @ torch.tril(a)), (square,)),
        "einsum": (lambda a, b: torch.einsum("bik,bjk->bij", a, b),
                   (draw.tensor(batch, m, k, dtype=dtype), draw.tensor(batch, n, k, dtype=dtype))),
    }  # fmt: skip
    kind = draw.choice(tuple(functions))
    shapes = " ".join(shape_text(*x.shape) for x in functions[kind][1])
    return Drawn(f"{kind} {shapes} {short(dtype)}", *functions[kind])


@family
def linear(draw: Draw) -> Drawn:
    """A linear layer and what follows it in models."""
    dtype = draw.dtype("bfloat16", "float16", "float32")
    rows, depth, columns = draw.size(1, 4096), draw.size(128, 4096), draw.size(128, 8192)
    x, w, b = draw.tensor(rows, depth, dtype=dtype), draw.tensor(columns, depth, dtype=dtype, scale=depth**-0.5), None
    b = draw.tensor(columns, dtype=dtype)
    functions = {
        "gelu": lambda x, w, b: F.gelu(F.linear(x, w, b)),
        "swish, sum": lambda x, w, b: F.silu(F.linear(x, w, b)).sum(1),
        "max, scale": lambda x, w, b: F.linear(x, w, b).max(1, keepdim=True).values * 0.5,
        "logsumexp": lambda x, w, b: F.linear(x, w, b).logsumexp(1),
        "softmax": lambda x, w, b: F.linear(x, w, b).softmax(-1),
        "residual": lambda x, w, b: torch.tanh(F.linear(x, w, b)) * torch.sigmoid(F.linear(x, w, b)),
    }
    kind = draw.choice(tuple(functions))
    return Drawn(f"{kind} {shape_text(rows, columns, depth)} {short(dtype)}", functions[kind], (x, w, b))


@family
def convolution(draw: Draw) -> Drawn:
    """Convolutions of 1 to 3 dimensions: grouped, strided, dilated, transposed, of few and of many channels."""
    dtype, dimensions = draw.dtype("float16", "float32"), draw.choice((1, 2, 2, 2, 3))
    groups = draw.choice((1, 1, 1, 4, 32))
    channels = groups * draw.choice((1, 2, 4, 8)) if groups > 1 else draw.choice((1, 3, 16, 32, 64, 128, 256))
    filters = groups * draw.choice((1, 2, 4, 8)) if groups > 1 else draw.choice((16, 32, 64, 96, 128, 256))
    side = {1: draw.size(500, 50000), 2: draw.size(14, 224), 3: draw.size(8, 48)}[dimensions]
    kernel, batch = draw.choice((1, 3, 3, 3, 5, 7)), draw.size(1, 32)
    stride, dilation = draw.choice((1, 1, 2)), draw.choice((1, 1, 1, 2))
    while batch > 1 and batch * max(channels, filters) * side**dimensions > 1 << 25:
        batch //= 2
    while batch * max(channels, filters) * side**dimensions > 1 << 26:
        side = max(kernel * dilation + 1, side * 3 // 4)
    transposed = draw.random() < 0.25
    shape = (channels, filters // groups) if transposed else (filters, channels // groups)
    scale = (channels // groups * kernel**dimensions) ** -0.5
    weight = draw.tensor(*shape, *(kernel,) * dimensions, dtype=dtype, scale=scale)
    x, bias = draw.tensor(batch, channels, *(side,) * dimensions, dtype=dtype), draw.tensor(filters, dtype=dtype)
    apply = getattr(F, f"conv{'_transpose' if transposed else ''}{dimensions}d")
    padding = kernel // 2

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.relu(apply(x, w, b, stride=stride, padding=padding, dilation=dilation, groups=groups))

    name = f"{apply.__name__} {shape_text(*x.shape)} to {filters} by {kernel}"
    extra = f" stride {stride} dilation {dilation} groups {groups} {short(dtype)}"
    return Drawn(name + extra, function, (x, weight, bias))


@family
def pool(draw: Draw) -> Drawn:
    """Pools of 1 to 3 dimensions."""
    dtype, dimensions = draw.dtype("float32", "float16"), draw.choice((1, 2, 3))
    side = {1: draw.size(1000, 60000), 2: draw.size(16, 300), 3: draw.size(8, 64)}[dimensions]
    channels, batch = draw.size(8, 128), draw.size(1, 32)
    while batch > 1 and batch * channels * side**dimensions > 1 << 25:
        batch //= 2
    kernel = draw.choice((2, 3, 3, 5))
    stride, padding = draw.choice((1, 2, kernel)), draw.choice((0, 1))
    x = draw.tensor(batch, channels, *(side,) * dimensions, dtype=dtype)
    kind = draw.choice(("max", "avg", "adaptive_avg"))
    if kind == "adaptive_avg":
        apply = getattr(F, f"adaptive_avg_pool{dimensions}d")
        return Drawn(f"{apply.__name__} {shape_text(*x.shape)} {short(dtype)}", lambda x: apply(x, 4), (x,))
    apply = getattr(F, f"{kind}_pool{dimensions}d")
    window = f"{kernel} stride {stride} padding {padding}"
    name = f"{kind}_pool{dimensions}d {shape_text(*x.shape)} by {window} {short(dtype)}"
    return Drawn(name, lambda x: apply(x, kernel, stride, padding), (x,))


@family
def attention(draw: Draw) -> Drawn:
    """Attention of any head size and lengths."""
    dtype, width = draw.dtype("bfloat16", "float16"), draw.choice((32, 40, 64, 72, 80, 96, 128, 160, 256, 512))
    batch, heads = draw.size(1, 16), draw.choice((1, 4, 8, 12, 16))
    queries = draw.choice((1, draw.size(16, 2048)))
    keys = queries if queries > 1 and draw.random() < 0.7 else draw.size(16, 4096)
    causal = queries == keys and draw.random() < 0.5
    q = draw.tensor(batch, heads, queries, width, dtype=dtype)
    k, v = (draw.tensor(batch, heads, keys, width, dtype=dtype) for _ in range(2))
    name = f"attention {shape_text(batch, heads, queries, keys, width)}{' causal' if causal else ''} {short(dtype)}"
    return Drawn(name, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), (q, k, v))
