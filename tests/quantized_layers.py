"""Layers of quantized numbers as graphs, drawn, with what they give in float64: for tests of engines."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType, bfloat16, float8e4nv, float8e5, float16, float32, int8, uint8
from tilewright.graph import semantics
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value


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


def expected(case: Case, layer: Layer, x: np.ndarray, sums: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """The layer before the last rounding, of the integers or 8-bit floats exactly, and bounds of its error; `sums` is
    that of sums of 8-bit floats, in their magnitudes."""
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
    error = magnitude * (max(2.0**-23 * case.depth, sums) if case.activations.is_float else 2.0**-21)
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
