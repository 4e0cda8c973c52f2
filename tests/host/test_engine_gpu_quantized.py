"""Quantized products in engines for GPUs, on a stand-in for one: sums of 8-bit integers and floats, with scales, bias,
activation and the next quantization in the product's kernel."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from tests.host import cuda_stand_in
from tilewright.build.builder import build
from tilewright.dtypes import DType, bfloat16, float8e4nv, float8e5, float16, float32, int8, uint8
from tilewright.graph import reference, semantics
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> cuda_stand_in.Driver:
    return cuda_stand_in.install(monkeypatch)


@dataclass(frozen=True)
class Case:
    """A layer: activation(quantized(x) w + bias), perhaps quantized again."""

    activations: DType
    weights: DType
    given: DType  # of x
    stored: DType
    rows: int
    depth: int
    columns: int
    zero: int = 0
    by_row: bool = False
    by_column: bool = True
    transposed: bool = False
    bias: bool = True
    activation: str = ""
    dynamic: bool = False  # rows are known at run time

    def __str__(self) -> str:
        parts = [f"{self.rows}x{self.columns}x{self.depth}", self.activations, self.given, self.stored, self.activation]
        flags = [name for name in ("by_row", "by_column", "transposed", "bias", "dynamic") if getattr(self, name)]
        return "-".join(map(str, [*parts, self.zero, *flags]))


def drawn(seed: int, count: int) -> list[Case]:
    """Layers of any kind."""
    rng = np.random.default_rng(seed)

    def one(*options):
        return options[rng.integers(len(options))]

    cases = []
    for _ in range(count):
        kind = one(int8, uint8, float8e4nv, float8e5)
        weights = int8 if kind.is_integer else one(float8e4nv, float8e4nv, float8e5)
        fits = one(True, True, False)  # tensor copies
        depth = int(16 * rng.integers(1, 9)) if fits else int(4 * rng.integers(1, 30))
        columns = int(16 * rng.integers(1, 7)) if fits else int(rng.integers(1, 60))
        cases.append(
            Case(
                kind,
                weights,
                one(float32, float16, bfloat16),
                one(float32, float16, bfloat16, int8, uint8, float8e4nv),
                int(rng.integers(1, 90)),
                depth,
                columns,
                int(rng.integers(-20, 20)) + 128 * (kind == uint8) if kind.is_integer and one(True, False) else 0,
                one(True, False),
                one(True, False),
                one(True, False),
                one(True, False),
                one("", "relu", "gelu", "silu"),
                one(True, False),
            )  # fmt: skip
        )
    return cases


def limits(dtype: DType) -> tuple[float, float]:
    found = ml_dtypes.iinfo(dtype.numpy) if dtype.is_integer else ml_dtypes.finfo(dtype.numpy)
    return float(found.min), float(found.max)


def quantized(b: GraphBuilder, x: Value, scale: Value, zero: int, dtype: DType) -> Value:
    if dtype.is_float:
        low, high = limits(dtype)
        return b.op("cast", [b.op("clip", [b.op("divide", [x, scale])], low=low, high=high)], dtype=dtype)
    point = [b.constant(np.array(zero, dtype.numpy))] if zero else []
    return b.op("quantize", [x, scale, *point], dtype=dtype)


def dequantized(b: GraphBuilder, x: Value, scale: Value, zero: int = 0) -> Value:
    if x.dtype.is_float:
        return b.op("multiply", [b.op("cast", [x], dtype=float32), scale])
    point = [b.constant(np.array(zero, x.dtype.numpy))] if zero else []
    return b.op("dequantize", [x, scale, *point])


@dataclass
class Layer:
    """A graph of a case, with its constants."""

    graph: Graph
    scale: np.ndarray
    weights: np.ndarray  # [depth, columns]
    weight_scale: np.ndarray
    bias: np.ndarray | None
    out_scale: float


def layer_of(case: Case, rng: np.random.Generator) -> Layer:
    b = GraphBuilder("layer")
    rows = b.symbol("rows", 1, 100) if case.dynamic else case.rows
    x = b.input("x", case.given, (rows, case.depth))
    wide = b.op("cast", [x], dtype=float32) if case.given != float32 else x
    _, most = limits(case.activations)
    scale = np.array(4.0 / most, np.float32)
    steps = b.constant(scale)
    if case.by_row:  # of each row's own largest number
        largest = b.op("reduce_max", [b.op("absolute", [wide])], axes=(-1,), keepdims=True)
        steps = b.op("multiply", [largest, b.constant(np.array(1 / most, np.float32))])
    numbers = quantized(b, wide, steps, case.zero, case.activations)
    read = dequantized(b, numbers, steps, case.zero)
    data = rng.standard_normal((case.depth, case.columns))
    data = data * 40 if case.weights.is_integer else data
    data = (
        np.clip(np.rint(data), -127, 127).astype(np.int8)
        if case.weights.is_integer
        else data.astype(case.weights.numpy)
    )
    weight_scale = rng.uniform(0.002, 0.01, (1, case.columns) if case.by_column else ()).astype(np.float32)
    stored = np.ascontiguousarray(data.T) if case.transposed else data
    aside = np.ascontiguousarray(weight_scale.T) if case.transposed and case.by_column else weight_scale
    matrix = dequantized(b, b.constant(stored), b.constant(aside))
    operands = [read, matrix]
    if case.given != float32:
        operands = [b.op("cast", [item], dtype=case.given) for item in operands]
    y = b.op("matmul", operands, transpose_b=case.transposed)
    y = b.op("cast", [y], dtype=float32) if case.given != float32 else y
    bias = rng.standard_normal(case.columns).astype(np.float32) if case.bias else None
    if bias is not None:
        y = b.op("add", [y, b.constant(bias)])
    if case.activation:
        y = b.op(case.activation, [y])
    out_scale = 0.05
    if case.stored.bits == 8:
        y = quantized(b, y, b.constant(np.array(out_scale, np.float32)), 0, case.stored)
    elif case.stored != float32:
        y = b.op("cast", [y], dtype=case.stored)
    b.output(y, "y")
    return Layer(b.finish(), scale, data, weight_scale, bias, out_scale)


def expected(case: Case, layer: Layer, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The layer before the last rounding, of the integers or 8-bit floats exactly, and bounds of its error."""
    wide = x.astype(np.float32)
    low, most = limits(case.activations)
    scale = np.abs(wide).max(-1, keepdims=True) * np.float32(1 / most) if case.by_row else layer.scale
    ratio = wide / scale
    if case.activations.is_float:
        numbers = np.clip(ratio, low, most).astype(case.activations.numpy).astype(np.float64)
    else:
        numbers = np.clip(np.rint(ratio) + case.zero, low, most).astype(np.float64) - case.zero
    weights = layer.weights.astype(np.float64)
    steps = scale.astype(np.float64) * layer.weight_scale
    exact = numbers @ weights * steps
    magnitude = np.abs(numbers) @ np.abs(weights) * steps
    error = magnitude * 2.0**-23 * (case.depth if case.activations.is_float else 4)
    if case.given != float32:
        error += np.abs(exact) * float(ml_dtypes.finfo(case.given.numpy).eps)
    if layer.bias is not None:
        exact = exact + layer.bias
    activations = {
        "": lambda v: v,
        "relu": lambda v: np.maximum(v, 0),
        "gelu": lambda v: semantics.gelu([v], {"approximate": "none"}),
        "silu": lambda v: v / (1 + np.exp(-v)),
    }
    exact = activations[case.activation](exact)
    return exact, error * 1.2 + np.abs(exact) * 4e-4 + 1e-5


def check(case: Case, found: np.ndarray, exact: np.ndarray, error: np.ndarray, out_scale: float) -> None:
    """The result is one of the numbers that the exact one may be rounded to."""
    found = np.asarray(found)
    if case.stored.is_integer:
        low, high = limits(case.stored)
        least, most = (np.clip(np.rint((exact + sign * error) / out_scale), low, high) for sign in (-1, 1))
        assert np.all((found >= least) & (found <= most))
        return
    if case.stored.bits == 8:
        _, high = limits(case.stored)
        exact, error = np.clip(exact / out_scale, -high, high), error / out_scale
    step = float(ml_dtypes.finfo(case.stored.numpy).eps)
    smallest = float(ml_dtypes.finfo(case.stored.numpy).smallest_subnormal)
    assert np.all(
        np.abs(found.astype(np.float64) - exact) <= error + step / 2 * (np.abs(exact) + error) * 1.001 + smallest
    )


@pytest.mark.parametrize("case", drawn(20261128, 40), ids=str)
def test_drawn_layers(case: Case, driver, rng: np.random.Generator) -> None:
    layer = layer_of(case, rng)
    engine = build(layer.graph, "cuda:sm_90a")
    names = [step.evidence.get("chosen", "") for step in engine.plan.steps]
    fits = case.depth % 16 == 0 and case.columns * min(2, case.stored.itemsize) % 16 == 0
    assert any("hopper matmul" in name for name in names) == fits, names
    x = rng.standard_normal((case.rows, case.depth)).astype(case.given.numpy)
    found = engine.run({"x": x})["y"]
    check(case, found, *expected(case, layer, x), layer.out_scale)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_convolutions(seed: int, driver, rng: np.random.Generator) -> None:
    """8-bit images by int8 weights, with padding, strides, a residual in 8 bits, and the next quantization."""
    draw = np.random.default_rng(seed)

    def one(*options):
        return options[draw.integers(len(options))]

    kind, stored, size = one(uint8, int8), one(uint8, int8, float16), one(1, 3)
    channels, features = one(16, 32, 48, 20, 80), one(16, 32, 40, 96)
    zero = int(one(0, 0, 9))
    stride, pad = one(1, 2), one(0, size // 2)
    b = GraphBuilder("convolution")
    images = b.symbol("images", 1, 4) if one(True, False) else 2
    x = b.input("x", kind, (images, channels, 9, 7))
    read = b.op("dequantize", [x, b.constant(np.float32(0.02)), b.constant(np.array(zero, kind.numpy))])
    taps = draw.integers(-127, 128, (features, channels, size, size)).astype(np.int8)
    scales = draw.uniform(0.001, 0.003, (features, 1, 1, 1)).astype(np.float32)
    inputs = [read, b.op("dequantize", [b.constant(taps), b.constant(scales)])]
    if one(True, False):
        inputs.append(b.constant(draw.standard_normal(features).astype(np.float32)))
    y = b.op("conv", inputs, strides=(stride, stride), padding=((pad, pad), (pad, pad)), dilation=(1, 1))
    given = {"x": draw.integers(0, 127, (2, channels, 9, 7)).astype(kind.numpy)}
    if stored.bits == 8 and one(True, False):
        residual = b.input("r", stored, y.shape)
        y = b.op("add", [y, b.op("dequantize", [residual, b.constant(np.float32(0.05))])])
        shape = (2, *y.shape[1:])
        given["r"] = draw.integers(0, 100, shape).astype(stored.numpy)
    y = b.op("relu", [y])
    if stored.bits == 8:
        y = b.op("quantize", [y, b.constant(np.float32(0.05))], dtype=stored)
    else:
        y = b.op("cast", [y], dtype=stored)
    b.output(y, "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    names = [step.evidence.get("chosen", "") for step in engine.plan.steps]
    fits = channels % 16 == 0 and features * min(2, stored.itemsize) % 16 == 0
    assert any("hopper" in name for name in names) == fits, names
    found, exact = np.asarray(engine.run(given)["y"]), reference.run(graph, given)["y"]
    if stored.bits == 8:
        off = np.abs(found.astype(int) - exact.astype(int))
        assert off.max() <= 1 and off.mean() < 0.01 and len(np.unique(exact)) > 5
    else:
        np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2.0**-10, atol=1e-4)
