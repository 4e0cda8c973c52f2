"""What `tools/replay.py` builds: small graphs that reach every kernel of the library, and models of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.dtypes import (
    DType,
    bfloat16,
    float8e4nv,
    float16,
    float32,
    int4,
    int8,
    int32,
    int64,
    uint4,
    uint8,
)
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.fourier import roots_of_unity
from tilewright.importers.emitter import Emitter
from tilewright.importers.quantized_weights import QuantizedMatrix, multiply

GraphMaker = Callable[[], Graph]


def _constant(b: GraphBuilder, dtype: DType, *shape: int) -> Value:
    """Weights; no kernel depends on what they are."""
    return b.constant(np.ones(shape, dtype.numpy))


def _products(dtype: DType) -> Graph:
    """With each epilogue and prologue; few rows, many, a run-time number; batches; weights of both orders."""
    b = GraphBuilder("products")
    n = b.symbol("rows", 1, 512)
    for rows in (1, 16, 300, 4096, n):
        x = b.input(f"x_{rows}", dtype, (rows, 512))
        y = b.op("matmul", [x, _constant(b, dtype, 512, 1024)])
        b.output(b.op("gelu", [b.op("add", [y, _constant(b, dtype, 1024)])]))
        b.output(b.op("matmul", [x, _constant(b, dtype, 1000, 512)], transpose_b=True))
        normed = b.op("rms_norm", [x, _constant(b, dtype, 512)], axis=1, epsilon=1e-5)
        y = b.op("matmul", [normed, _constant(b, dtype, 512, 2048)])
        gate, up = (b.op("slice", [y], axis=1, start=start, stop=start + 1024) for start in (0, 1024))
        hidden = b.op("multiply", [b.op("silu", [gate]), up])
        b.output(b.op("add", [b.op("matmul", [hidden, _constant(b, dtype, 1024, 512)]), x]))
    left, right = (b.input(name, dtype, (12, 200, 64)) for name in ("left", "right"))
    b.output(b.op("softmax", [b.op("matmul", [left, right], transpose_b=True)], axis=2))
    return b.finish()


def _integers() -> Graph:
    b = GraphBuilder("integers")
    x, y = b.input("x", int8, (64, 256)), _constant(b, int8, 256, 128)
    b.output(b.op("matmul", [b.op("cast", [x], dtype=int32), b.op("cast", [y], dtype=int32)]))
    return b.finish()


def _experts(dtype: DType) -> Graph:
    b = GraphBuilder("experts")
    x, ends = b.input("x", dtype, (b.symbol("rows", 1, 4096), 256)), b.input("ends", int32, (8,))
    for transposed in (False, True):
        shape = (8, 512, 256) if transposed else (8, 256, 512)
        b.output(b.op("relu", [b.op("grouped_matmul", [x, _constant(b, dtype, *shape), ends], transpose_b=transposed)]))
    return b.finish()


def _window(stride: int, pad: int, dilation: int = 1) -> dict[str, Any]:
    return {"strides": (stride, stride), "padding": ((pad, pad), (pad, pad)), "dilation": (dilation, dilation),
            "layout": "NHWC"}  # fmt: skip


def _convolutions(dtype: DType) -> Graph:
    """Of every kind: few channels, 1x1, 3x3, strided, dilated, in groups, depthwise, with shortcuts and excitation."""
    b = GraphBuilder("convolutions")
    n = b.symbol("batch", 1, 32)
    for count in (1, n):
        image = b.input(f"image_{count}", dtype, (count, 56, 56, 3))
        x = b.op("relu", [b.op("conv", [image, _constant(b, dtype, 64, 3, 7, 7)], **_window(2, 3))])
        x = b.op("max_pool", [x], kernel=(3, 3), **_window(2, 1))
        for size, stride, dilation in ((1, 1, 1), (3, 1, 1), (3, 2, 1), (3, 1, 2), (5, 1, 1)):
            inside = x
            weight, bias = _constant(b, dtype, 64, 64, size, size), _constant(b, dtype, 64)
            x = b.op("conv", [x, weight, bias], **_window(stride, dilation * (size // 2), dilation))
            x = b.op("relu", [b.op("add", [x, inside]) if stride == 1 else x])
        for groups in (4, 64):
            x = b.op("conv", [x, _constant(b, dtype, 64, 64 // groups, 3, 3)], groups=groups, **_window(1, 1))
            x = b.op("silu", [x])
        mean = b.op("reduce_mean", [x], axes=(1, 2), keepdims=True)
        inner = b.op("relu", [b.op("conv", [mean, _constant(b, dtype, 16, 64, 1, 1)], **_window(1, 0))])
        gate = b.op("sigmoid", [b.op("conv", [inner, _constant(b, dtype, 64, 16, 1, 1)], **_window(1, 0))])
        x = b.op("multiply", [x, gate])
        b.output(b.op("average_pool", [x], kernel=(2, 2), **_window(2, 0)))
        b.output(b.op("reduce_mean", [x], axes=(1, 2)))
    return b.finish()


def _attention(dtype: DType) -> Graph:
    """Causal and not, with a bias, few queries, shared keys."""
    b = GraphBuilder("attention")
    n, s = b.symbol("batch", 1, 16), b.symbol("sequence", 1, 512)
    for size, rows, keys, heads in ((64, s, s, 8), (128, 1024, 1024, 2), (128, 1, s, 2), (80, 64, 64, 8)):
        label = f"{size}_{rows}"
        q = b.input(f"q_{label}", dtype, (n, 8, rows, size))
        k, v = (b.input(f"{name}_{label}", dtype, (n, heads, keys, size)) for name in "kv")
        bias = b.input(f"bias_{label}", dtype, (n, 1, rows, keys))
        for operands, causal in (([q, k, v], False), ([q, k, v], rows == keys), ([q, k, v, bias], False)):
            b.output(b.op("attention", operands, scale=size**-0.5, causal=causal))
    return b.finish()


def _rows(dtype: DType) -> Graph:
    """Reductions, norms and generated elementwise kernels: short rows and long ones, along both axes."""
    b = GraphBuilder("rows")
    for columns in (60, 1024, 20000):
        x = b.input(f"x_{columns}", dtype, (b.symbol("rows", 1, 4096), columns))
        gain, shift = _constant(b, dtype, columns), _constant(b, dtype, columns)
        b.output(b.op("layer_norm", [b.op("add", [x, shift]), gain, shift], axis=1, epsilon=1e-5))
        b.output(b.op("rms_norm", [x, gain], axis=1, epsilon=1e-5))
        for op in ("softmax", "log_softmax", "argmax", "cumsum"):
            b.output(b.op(op, [x], axis=1))
        for op in ("reduce_sum", "reduce_max", "reduce_mean"):
            b.output(b.op(op, [x], axes=(1,)))
            b.output(b.op(op, [b.op("exp", [x])], axes=(0,)))
        b.output(b.op("multiply", [b.op("tanh", [b.op("erf", [x])]), gain]))
    return b.finish()


def _movement() -> Graph:
    """Gathers, scatters, pads, joins and transpositions."""
    b = GraphBuilder("movement")
    x, index = b.input("x", float32, (64, 48)), b.input("index", int64, (20,))
    b.output(b.op("gather", [x, index], axis=0))
    b.output(b.op("concat", [x, b.op("permute", [b.input("t", float32, (48, 64))], order=(1, 0))], axis=1))
    b.output(b.op("pad", [x], pads=((1, 2), (0, 3))))
    b.output(b.op("permute", [b.input("y", float32, (4, 30, 40, 6))], order=(0, 3, 1, 2)))
    return b.finish()


def _recurrent(cell: str, gates: int, slots: int, functions: tuple[str, ...]) -> Graph:
    b = GraphBuilder(cell)
    steps, batch, hidden = b.symbol("steps"), b.symbol("batch", 1, 64), 128
    x = b.input("x", float32, (steps, 2, batch, gates * hidden))
    initial = b.input("initial", float32, (2, batch, slots * hidden))
    bias = _constant(b, float32, 2, gates * hidden) if cell == "gru" else None
    inputs = [x, _constant(b, float32, 2, hidden, gates * hidden), initial, bias, b.input("ends", int64, (batch,))]
    b.output(b.op("recurrent", inputs, cell=cell, functions=functions, reverse=(False, True)))
    return b.finish()


def _fourier() -> Graph:
    b = GraphBuilder("fourier")
    x = b.input("x", float32, (b.symbol("rows", 1, 100), 240))
    b.output(b.op("fourier", [x, b.constant(roots_of_unity(240, float32))], form="half"))
    return b.finish()


def _paged(dtype: DType) -> Graph:
    """Attention over pages: keys that many heads share and that none do, windows and soft caps."""
    b = GraphBuilder("paged")
    tokens, sequences = b.symbol("tokens", 1, 4096), b.symbol("sequences", 1, 256)
    columns, slots = b.symbol("columns", 1, 4096), b.symbol("slots", 1, 1 << 20)
    tables, starts = b.input("tables", int32, (sequences, columns)), b.input("starts", int32, (sequences + 1,))
    lengths = b.input("lengths", int32, (sequences,))
    for heads, shared, width, page, window, cap in ((32, 8, 128, 16, 0, 0.0), (4, 4, 64, 16, 0, 0.0),
                                                    (16, 2, 64, 32, 100, 30.0), (6, 6, 24, 8, 5, 0.0)):  # fmt: skip
        q = b.input(f"q_{heads}", dtype, (tokens, heads, width))
        pools = [b.input(f"{name}_{heads}", dtype, (slots, shared, width)) for name in ("keys", "values")]
        attributes = {"scale": width**-0.5, "page": page, "window": window, "softcap": cap}
        b.output(b.op("paged_attention", [q, *pools, tables, starts, lengths], **attributes))
    return b.finish()


def _heads(dtype: DType) -> Graph:
    """A product whose columns are heads of queries, keys and values, turned and stored in pools."""
    b = GraphBuilder("heads")
    rows, slots = b.symbol("rows", 1, 512), b.symbol("slots", 1, 1 << 20)
    x, places = b.input("x", dtype, (rows, 512)), b.input("places", int32, (rows,))
    cosine, sine = (b.input(name, dtype, (rows, 1, 32)) for name in ("cosine", "sine"))
    for name, heads in (("queries", 8), ("keys", 2), ("values", 2)):
        y = b.op("matmul", [x, _constant(b, dtype, 64 * heads, 512)], transpose_b=True)
        y = b.op("reshape", [y], shape=(rows, heads, 64))
        if name != "values":
            low, high = (b.op("slice", [y], axis=2, start=start, stop=start + 32) for start in (0, 32))
            left = b.op("subtract", [b.op("multiply", [low, cosine]), b.op("multiply", [high, sine])])
            right = b.op("add", [b.op("multiply", [high, cosine]), b.op("multiply", [low, sine])])
            y = b.op("concat", [left, right], axis=2)
        if name == "queries":
            b.output(y)
        else:
            pool = b.input(name, dtype, (slots, heads, 64))
            b.mutate(pool, b.op("scatter_update", [pool, places, y], axis=0, distinct=True))
    return b.finish()


def _weights(dtype: DType) -> Graph:
    """Products by weights that stay in 4 and 8 bits, in groups of the depth."""
    b = GraphBuilder("weights")
    rows = b.symbol("rows", 1, 512)
    forms = ((int4, 128, False), (uint4, 32, True), (int8, 1024, False), (uint8, 64, True), (float8e4nv, 128, False))
    for weights, group, zeros in forms:
        matrix = QuantizedMatrix(np.ones((512, 1024), weights.numpy), np.ones((512, 1024 // group), np.float32),
                                 np.ones((512, 1024 // group), np.uint8) if zeros else None)  # fmt: skip
        x = b.input(f"x_{weights}", dtype, (rows, 1024))
        b.output(b.op("relu", [b.op("add", [multiply(Emitter(b), x, matrix, f"w_{weights}"),
                                            _constant(b, dtype, 512)])]))  # fmt: skip
    return b.finish()


def _programs(dtype: DType) -> Graph:
    """Several reductions over the same rows."""
    b = GraphBuilder("programs")
    rows = b.symbol("rows", 1, 4096)
    for columns in (60, 1024, 20000):
        x = b.input(f"x_{columns}", dtype, (rows, columns))
        mean = b.op("reduce_mean", [x], axes=(1,), keepdims=True)
        apart = b.op("subtract", [x, mean])
        b.output(b.op("reduce_sum", [b.op("absolute", [apart])], axes=(1,), keepdims=True))
        b.output(b.op("divide", [apart, b.op("reduce_max", [apart], axes=(1,), keepdims=True)]))
    return b.finish()


def _orders() -> Graph:
    """Rows in order, the first of them, and updates that meet."""
    b = GraphBuilder("orders")
    for rows, columns, count in ((64, 1000, 1000), (4, 100000, 20), (300, 60, 60)):
        x = b.input(f"x_{columns}", float32, (rows, columns))
        b.output(b.op("argsort", [x], axis=1, count=count, descending=count < columns))
    table, index = b.input("table", float32, (1000, 64)), b.input("index", int64, (500,))
    update = b.input("update", float32, (500, 64))
    for reduction, ordered in (("add", False), ("add", True), ("maximum", False)):
        operands = [table, index, update]
        b.output(b.op("scatter_reduce", operands, axis=0, reduction=reduction, ordered=ordered))
    b.output(b.op("scatter_update", [table, index, update], axis=0))
    return b.finish()


def _choices() -> Graph:
    """A token of each row of logits."""
    b = GraphBuilder("choices")
    rows = b.symbol("rows", 1, 256)
    logits = b.input("logits", float32, (rows, 32000))
    names = ("temperatures", "shares", "floors", "portions", "counts", "histories", "presences", "frequencies",
             "repetitions")  # fmt: skip
    whole = ("counts", "histories")
    numbers = [b.input(name, int32 if name in whole else float32, (rows,)) for name in names]
    tables = [b.input(name, kind, (64 * 32000,)) for name, kind in (("seen", int32), ("biases", float32))]
    b.output(b.op("choose", [logits, *numbers, *tables]))
    return b.finish()


def _over(
    name: str, make: Callable[[DType], Graph], dtypes: tuple[DType, ...] = (float32, float16)
) -> dict[str, GraphMaker]:
    return {f"{name} {dtype}": lambda dtype=dtype: make(dtype) for dtype in dtypes}


LIBRARY: dict[str, GraphMaker] = {
    **_over("products", _products, (float32, float16, bfloat16)),
    **_over("convolutions", _convolutions),
    **_over("attention", _attention),
    **_over("rows", _rows, (float32, bfloat16)),
    **_over("experts", _experts),
    **_over("paged", _paged, (float32, bfloat16)),
    **_over("heads", _heads, (float32, bfloat16)),
    **_over("weights", _weights, (float32, bfloat16)),
    **_over("programs", _programs),
    "integers": _integers,
    "movement": _movement,
    "fourier": _fourier,
    "orders": _orders,
    "choices": _choices,
    "lstm": lambda: _recurrent("lstm", 4, 2, ("sigmoid", "tanh", "tanh")),
    "gru": lambda: _recurrent("gru", 3, 1, ("sigmoid", "tanh")),
}


# Models


def _model(make: Callable[[], Any], half: bool = False) -> GraphMaker:
    """A model of `benchmarks.models.small` or of the tests, as (module, inputs, dynamic sizes); PyTorch is needed."""

    def graph() -> Graph:
        import torch

        from tilewright.importers import import_model

        torch.manual_seed(0)
        made = make()
        module, inputs, shapes = made if isinstance(made, tuple) else (made.module, made.example, made.dynamic_shapes)
        if half:
            module = module.half()
            given = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
            halves = {name: x.half() if x.is_floating_point() else x for name, x in given}
            inputs = halves if isinstance(inputs, dict) else tuple(halves.values())
        return import_model(module.eval().requires_grad_(False), inputs, shapes, "model")

    return graph


def _small(name: str) -> Any:
    from benchmarks.models import small

    return small.case(name)


def _images(name: str, *arguments: Any, size: int = 64) -> Any:
    import torch

    from benchmarks.models import images

    module = getattr(images, name)(*arguments)
    label = "input" if isinstance(module, torch.nn.Sequential) else "image"
    return module, {label: torch.randn(1, 3, size, size)}, {}


def _tests(kind: str) -> Any:
    """The models of the tests, wide enough for the kernels of large ones, and shallow."""
    from tests.models import bert, llama, resnet, vit

    if kind == "encoder":
        return bert.specification(bert.random_model(bert.BertSize(hidden=768, layers=2, heads=12, intermediate=3072)))
    if kind == "vision":
        return vit.specification(vit.random_model(vit.VitSize(layers=2)))
    if kind == "ResNet":
        return resnet.specification(resnet.random_model((1, 1, 1, 1)), size=64)
    decoder = llama.random_model(llama.LlamaSize(layers=2))
    return llama.prefill_specification(decoder) if kind == "prefill" else llama.decode_specification(decoder)


class _Quantized:
    """A linear layer and what goes around it as PyTorch exports quantized models: int8 weights with scales."""

    @staticmethod
    def make() -> Any:
        import torch

        class Layer(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("weight", torch.randint(-127, 127, (512, 256), dtype=torch.int8))
                self.register_buffer("scale", torch.rand(512) * 1e-2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                rounded = torch.clamp(torch.round(x * 20), -128, 127).to(torch.int8)
                exact = torch.nn.functional.linear(x, self.weight.float() * self.scale[:, None])
                return exact + rounded.float().sum(-1, keepdim=True) / 20

        return Layer(), {"x": torch.randn(8, 256)}, {"x": {0: ("batch", 1, 64)}}


_MODELS: dict[str, Callable[[], Any]] = {
    "small CNN": lambda: _small("small CNN"), "MLP": lambda: _small("MLP"),
    "small encoder": lambda: _small("encoder, 2 layers"), "LSTM": lambda: _small("LSTM, 2 layers"),
    "MobileNetV3": lambda: _images("mobilenet_v3_small"), "detector": lambda: _images("Detector"),
    "U-Net": lambda: _images("UNet", 16, 3), "encoder": lambda: _tests("encoder"), "vision": lambda: _tests("vision"),
    "ResNet": lambda: _tests("ResNet"), "prefill": lambda: _tests("prefill"), "decode": lambda: _tests("decode"),
    "quantized": _Quantized.make,
}  # fmt: skip
_ALSO_HALF = ("small CNN", "encoder", "vision", "ResNet", "prefill", "decode", "detector")

MODELS: dict[str, GraphMaker] = {
    **{name: _model(make) for name, make in _MODELS.items()},
    **{f"{name} f16": _model(_MODELS[name], half=True) for name in _ALSO_HALF},
}
