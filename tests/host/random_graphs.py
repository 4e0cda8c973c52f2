"""Random valid graphs for the property tests of the graph passes."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float32, int64
from tilewright.errors import ShapeError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value

UNARY = ["negate", "absolute", "exp", "tanh", "erf", "sigmoid", "relu", "silu", "gelu", "sin", "reciprocal", "rsqrt"]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum"]
REDUCTIONS = ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min"]


class RandomGraph:
    """Draws one op after the other on values that exist."""

    def __init__(self, seed: int, length: int) -> None:
        self.random = np.random.default_rng(seed)
        self.builder = GraphBuilder(f"random_{seed}")
        batch = self.builder.symbol("batch", 1, 8)
        sequence = self.builder.symbol("sequence", 1, 8)
        self.values = [
            self.builder.input("x", float32, (batch, sequence, 4)),
            self.builder.input("y", float32, (batch, sequence, 4)),
            self.builder.input("image", float32, (batch, 3, 6, 6)),
            self.builder.input("mask", float32, (batch, 1, 1, sequence)),
        ]
        for _ in range(length):
            self._step()
        for index in range(min(3, len(self.values) // 2)):
            self.builder.output(self.values[-1 - index * 2], f"out{index}")
        self.graph: Graph = self.builder.finish()

    def inputs(self, batch: int, sequence: int) -> dict[str, np.ndarray]:
        shapes = {"x": (batch, sequence, 4), "y": (batch, sequence, 4), "image": (batch, 3, 6, 6)}
        shapes["mask"] = (batch, 1, 1, sequence)
        return {name: self.random.standard_normal(shape) for name, shape in shapes.items()}

    def _pick(self) -> Value:
        return self.values[int(self.random.integers(len(self.values)))]

    def _constant(self, *shape: int) -> Value:
        data = self.random.uniform(0.5, 1.5, shape).astype(np.float32)
        return self.builder.constant(data, "weight")

    def _step(self) -> None:
        steps = [self._unary, self._binary, self._number, self._matmul, self._reduce, self._norm, self._softmax]
        steps += [self._reshape, self._permute, self._slice, self._concat, self._conv, self._batch_norm, self._pool]
        steps += [self._where, self._iota, self._gather, self._attention]
        step = steps[int(self.random.integers(len(steps)))]
        try:
            made = step()
        except ShapeError:
            return
        if made is not None and made.dtype == float32:
            self.values.append(made)

    def _unary(self) -> Value:
        op = str(self.random.choice(UNARY))
        source = self._pick()
        if op in ("exp", "reciprocal", "rsqrt", "divide"):  # keep the numbers in a tame range
            source = self.builder.op("add", [self.builder.op("sigmoid", [source]), 0.5])
        return self.builder.op(op, [source])

    def _binary(self) -> Value:
        left, right = self._pick(), self._pick()
        op = str(self.random.choice(BINARY))
        if op == "divide":
            right = self.builder.op("add", [self.builder.op("sigmoid", [right]), 0.5])
        return self.builder.op(op, [left, right])

    def _number(self) -> Value:
        op = str(self.random.choice(["add", "subtract", "multiply", "divide", "power", "maximum"]))
        number = float(self.random.choice([0.0, 1.0, 2.0, 0.5, -1.0])) if op != "divide" else 4.0
        return self.builder.op(op, [self._pick(), 2.0 if op == "power" else number])

    def _matmul(self) -> Value:
        source = self._pick()
        width = source.shape[-1]
        if not isinstance(width, int) or source.rank < 2:
            return self.builder.op("matmul", [source, self._pick()], transpose_b=True)
        transposed = bool(self.random.integers(2))
        columns = int(self.random.choice([4, 6]))
        weight = self._constant(columns, width) if transposed else self._constant(width, columns)
        result = self.builder.op("matmul", [source, weight], transpose_b=transposed)
        return self.builder.op("add", [result, self._constant(columns)]) if self.random.integers(2) else result

    def _reduce(self) -> Value:
        source = self._pick()
        axis = int(self.random.integers(source.rank))
        op = str(self.random.choice(REDUCTIONS))
        return self.builder.op(op, [source], axes=(axis,), keepdims=bool(self.random.integers(2)))

    def _norm(self) -> Value:
        source = self._pick()
        width = source.shape[-1]
        if not isinstance(width, int):
            return self.builder.op("layer_norm", [source], axis=-1, epsilon=1e-5)
        if self.random.integers(2):
            return self.builder.op("layer_norm", [source, self._constant(width)], axis=-1, epsilon=1e-5)
        mean = self.builder.op("reduce_mean", [source], axes=(-1,), keepdims=True)
        centred = self.builder.op("subtract", [source, mean])
        square = self.builder.op("power", [centred, 2.0])
        variance = self.builder.op("reduce_mean", [square], axes=(-1,), keepdims=True)
        root = self.builder.op("sqrt", [self.builder.op("add", [variance, 1e-3])])
        return self.builder.op("multiply", [self.builder.op("divide", [centred, root]), self._constant(width)])

    def _softmax(self) -> Value:
        op = str(self.random.choice(["softmax", "log_softmax"]))
        return self.builder.op(op, [self._pick()], axis=-1)

    def _reshape(self) -> Value:
        source = self._pick()
        shapes = [(-1, source.shape[-1]), (1, *source.shape), (*source.shape, 1)]
        if source.shape[-1] == 4:
            shapes += [(*source.shape[:-1], 2, 2)]
        return self.builder.op("reshape", [source], shape=shapes[int(self.random.integers(len(shapes)))])

    def _permute(self) -> Value:
        source = self._pick()
        return self.builder.op("permute", [source], order=tuple(map(int, self.random.permutation(source.rank))))

    def _slice(self) -> Value:
        source = self._pick()
        axis = int(self.random.integers(source.rank))
        if not isinstance(source.shape[axis], int) or source.shape[axis] < 2:
            return source
        return self.builder.op("slice", [source], axis=axis, start=1, stop=source.shape[axis])

    def _concat(self) -> Value:
        source = self._pick()
        return self.builder.op("concat", [source, self.builder.op("negate", [source])], axis=-1)

    def _conv(self) -> Value | None:
        images = [v for v in self.values if v.rank == 4 and all(isinstance(n, int) for n in v.shape[1:])]
        image = images[int(self.random.integers(len(images)))]
        channels = image.shape[1]
        assert isinstance(channels, int)
        if channels > 64:
            return None
        weight = self._constant(5, channels, 2, 2)
        result = self.builder.op(
            "conv", [image, weight], strides=(1, 1), padding=((0, 1), (0, 1)), dilation=(1, 1), groups=1
        )
        self.values.append(result)
        return self._batch_norm_of(result) if self.random.integers(2) else result

    def _batch_norm(self) -> Value | None:
        source = self._pick()
        return self._batch_norm_of(source) if source.rank > 2 and isinstance(source.shape[1], int) else None

    def _batch_norm_of(self, source: Value) -> Value:
        channels = source.shape[1]
        assert isinstance(channels, int)
        return self.builder.op("batch_norm", [source, *(self._constant(channels) for _ in range(4))], epsilon=1e-5)

    def _pool(self) -> Value | None:
        source = self._pick()
        op = str(self.random.choice(["max_pool", "average_pool"]))
        if source.rank != 4 or not all(isinstance(n, int) for n in source.shape[1:]):
            return None
        window = {"kernel": (2, 2), "strides": (1, 1), "padding": ((1, 0), (0, 1)), "dilation": (1, 1)}
        return self.builder.op(op, [source], **window)

    def _where(self) -> Value:
        left, right = self._pick(), self._pick()
        return self.builder.op("where", [self.builder.op("less", [left, right]), left, 0.25])

    def _iota(self) -> Value:
        source = self._pick()
        positions = self.builder.op("iota", shape=source.shape[-1:], dtype=int64)
        numbers = self.builder.op("cast", [positions], dtype=float32)
        return self.builder.op("add", [source, self.builder.op("multiply", [numbers, 0.1])])

    def _gather(self) -> Value:
        source = self._pick()
        axis = int(self.random.integers(source.rank))
        if not isinstance(source.shape[axis], int):
            return source
        indices = self.random.integers(0, source.shape[axis], (2,))
        return self.builder.op("gather", [source, self.builder.constant(indices, "indices")], axis=axis)

    def _attention(self) -> Value:
        """Decomposed attention over two heads of width 2, with a mask and a permuted key."""
        batch, sequence, _ = self.values[0].shape
        x, b = self.values[int(self.random.integers(2))], self.builder

        def split(value: Value, order: tuple[int, ...]) -> Value:
            return b.op("permute", [b.op("reshape", [value], shape=(batch, sequence, 2, 2))], order=order)

        projected = [b.op("matmul", [x, self._constant(4, 4)]) for _ in range(3)]
        scores = b.op("matmul", [split(projected[0], (0, 2, 1, 3)), split(projected[1], (0, 2, 3, 1))])
        scores = b.op("add", [b.op("divide", [scores, 1.4142135]), self.values[3]])
        if self.random.integers(2):
            rows = b.op("iota", shape=(sequence, 1), dtype=int64)
            seen = b.op("greater_equal", [rows, b.op("iota", shape=(sequence,), dtype=int64)])
            scores = b.op("where", [seen, scores, float("-inf")])
        context = b.op("matmul", [b.op("softmax", [scores], axis=-1), split(projected[2], (0, 2, 1, 3))])
        return b.op("reshape", [b.op("permute", [context], order=(0, 2, 1, 3))], shape=(batch, sequence, 4))
