"""Random programs over rows: several reductions over the same axes, with elementwise ops before, between and after."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import DType, bfloat16, float16, float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.symbolic import Size

_UNARY = ("tanh", "sigmoid", "absolute", "sin", "relu", "negate")
_BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
_REDUCTIONS = ("reduce_mean", "reduce_max", "reduce_min", "mean_square", "variance", "log_sum_exp", "powers")
TYPES = {"float32": float32, "float16": float16, "bfloat16": bfloat16}
# Rounding of inputs and of what is stored between kernels, which differ from the reference by up to a few steps each.
TOLERANCES = {"float32": 3e-5, "float16": 1e-2, "bfloat16": 8e-2}


class RandomRows:
    """Draws a shape, the axes that are reduced, a type, and operations on [rows, columns] and on [rows]."""

    def __init__(self, seed: int, sizes: tuple[int, ...], most: int, length: int = 9, dynamic: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.builder = GraphBuilder(f"rows_{seed}")
        self.type = str(self.random.choice(list(TYPES)))
        rank = int(self.random.integers(2, 5))
        kinds = [bool(self.random.integers(2)) for _ in range(rank)]
        kinds[int(self.random.integers(rank))] = True
        self.axes = tuple(axis for axis in range(rank) if kinds[axis])
        self.extents = [int(self.random.choice(sizes)) for _ in range(rank)]
        while np.prod(self.extents) > most:
            self.extents[int(np.argmax(self.extents))] //= 3
        shape: list[Size] = list(self.extents)
        if dynamic:
            axis = int(self.random.integers(rank))
            shape[axis] = self.builder.symbol("n", 1, 1 << 20)
        self.shape = tuple(shape)
        self._draw(length)
        self.graph: Graph = self.builder.finish()

    @property
    def dtype(self) -> DType:
        return TYPES[self.type]

    def inputs(self) -> dict[str, np.ndarray]:
        """Random inputs, in the type of the graph."""
        arrays = {}
        for value in self.graph.inputs:
            extents = [1 if size == 1 else extent for size, extent in zip(value.shape, self.extents, strict=True)]
            arrays[value.name] = (self.random.standard_normal(extents) * 2).astype(value.dtype.numpy)
        return arrays

    def _draw(self, length: int) -> None:
        b = self.builder
        kept = tuple(1 if axis in self.axes else extent for axis, extent in enumerate(self.shape))
        line = tuple(extent if axis in self.axes else 1 for axis, extent in enumerate(self.shape))
        self.full = [b.input("x", self.dtype, self.shape), b.input("y", self.dtype, self.shape)]
        self.rows: list[Value] = []
        self.sides = [b.input("line", self.dtype, line), b.input("column", self.dtype, kept)]
        for number in range(length):
            self._step(number)
        self.rows += [self._reduce("reduce_mean", self.full[-1])]
        b.output(self.full[-1], "full")
        b.output(self.rows[-1], "row")
        b.output(self.rows[int(self.random.integers(len(self.rows)))], "other row")

    def _of(self, values: list[Value]) -> Value:
        """One of the last few values."""
        return values[-1 - int(self.random.integers(min(3, len(values))))]

    def _step(self, number: int) -> None:
        b, kind = self.builder, int(self.random.integers(6))
        if number % 3 == 0 or (kind == 0 and not self.rows):
            self.rows.append(self._reduce(str(self.random.choice(_REDUCTIONS)), self._of(self.full)))
        elif kind == 0:
            self.rows.append(b.op(str(self.random.choice(_UNARY)), [self._of(self.rows)]))
        elif kind == 1:
            self.full.append(b.op(str(self.random.choice(_UNARY)), [self._of(self.full)]))
        elif kind == 2:
            self.full.append(b.op(str(self.random.choice(_BINARY)), [self._of(self.full), self._of(self.full)]))
        elif kind == 3:
            side = self.sides[int(self.random.integers(2))]
            self.full.append(b.op(str(self.random.choice(_BINARY)), [self._of(self.full), side]))
        elif kind == 4 and self.axes[-1] == len(self.shape) - 1 == self.axes[0]:
            op = str(self.random.choice(("softmax", "log_softmax", "layer_norm", "rms_norm")))
            options = {"epsilon": 1e-3} if "norm" in op else {}
            self.full.append(b.op(op, [self._of(self.full)], axis=self.axes[0], **options))
        else:
            self._meet()

    def _meet(self) -> None:
        """A full value with numbers of its rows."""
        b = self.builder
        row = b.op("add", [b.op("absolute", [self._of(self.rows)]), 1.0])
        self.full.append(b.op(str(self.random.choice(("divide", "subtract", "multiply"))), [self._of(self.full), row]))
        if self.full[-1].shape == self.shape:  # bounded, so that types of 16 bits hold what comes
            self.full[-1] = b.op("tanh", [self.full[-1]])

    def _reduce(self, kind: str, x: Value) -> Value:
        b, options = self.builder, {"axes": self.axes, "keepdims": True}
        if kind == "mean_square":
            return b.op("sqrt", [b.op("add", [b.op("reduce_mean", [b.op("multiply", [x, x])], **options), 1e-3])])
        if kind == "variance":
            difference = b.op("subtract", [x, b.op("reduce_mean", [x], **options)])
            return b.op("reduce_mean", [b.op("multiply", [difference, difference])], **options)
        trailing = self.axes == tuple(range(self.axes[0], len(self.shape)))
        if kind == "log_sum_exp" and trailing:  # there is no such op of other axes
            return b.op("reduce_log_sum_exp", [x], **options)
        if kind in ("log_sum_exp", "powers"):
            top = b.op("reduce_max", [x], **options)
            powers = b.op("exp", [b.op("subtract", [x, top])])
            return b.op("add", [b.op("log", [b.op("reduce_sum", [powers], **options)]), top])
        return b.op(kind, [x], **options)
