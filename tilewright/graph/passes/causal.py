"""Which masks are provably causal: key j is seen by query i exactly when j <= i + (T - S).

Masks are comparisons of position lines.  A line is an integer tensor whose value depends on its row
and column in the [S, T] score matrix only: `row * i + column * j + offset`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.graph.core import Node, Value
from tilewright.graph.rewrite import Rewriter
from tilewright.symbolic import Size, lift, simplify

_DEEPEST = 8  # positions nested deeper are not looked at; sums of sums would take exponential time


@dataclass(frozen=True)
class Line:
    """`row * i + column * j + offset` at row i and column j (the last two dimensions)."""

    row: int
    column: int
    offset: Size

    def plus(self, other: Line, sign: int = 1) -> Line:
        """The sum, or the difference for `sign` -1."""
        offset = simplify(lift(self.offset) + lift(other.offset) * sign)
        return Line(self.row + sign * other.row, self.column + sign * other.column, offset)


def is_causal(condition: Value | None, rows: Size, keys: Size, rewriter: Rewriter) -> bool:
    """Whether a boolean value is provably the causal "may see" mask for [rows, keys] scores."""
    data = rewriter.constant(condition)
    if data is not None:
        return is_causal_array(data.astype(bool), rows, keys)
    node = rewriter.producer(condition)
    if node is None or condition is None:
        return False
    if node.op in ("broadcast_to", "reshape") and _keeps_matrix(node):
        return is_causal(node.inputs[0], rows, keys, rewriter)
    if node.op == "logical_not":
        return _compares(rewriter.producer(node.inputs[0]), rows, keys, True, rewriter)
    return _compares(node, rows, keys, False, rewriter)


def is_causal_array(seen: np.ndarray, rows: Size, keys: Size) -> bool:
    """Whether a boolean array [.., rows, keys] is the causal mask, for every leading position."""
    if seen.ndim < 2 or seen.shape[-2:] != (rows, keys):
        return False
    count, width = seen.shape[-2:]
    return bool(np.all(seen == np.tri(count, width, width - count, dtype=bool)))


def _keeps_matrix(node: Node) -> bool:
    """A broadcast or reshape that only adds leading dimensions."""
    source = node.inputs[0]
    return source is not None and source.rank >= 2 and node.output.shape[-2:] == source.shape[-2:]


_FLIPPED = {"less_equal": "greater", "less": "greater_equal", "greater": "less_equal", "greater_equal": "less"}


def _compares(node: Node | None, rows: Size, keys: Size, negated: bool, rewriter: Rewriter) -> bool:
    """Whether a comparison of two lines says j - i <= T - S, in any arrangement."""
    if node is None or node.op not in _FLIPPED:
        return False
    left, right = (_line(item, rewriter) for item in node.inputs)
    if left is None or right is None:
        return False
    op = _FLIPPED[node.op] if negated else node.op
    if op in ("greater", "greater_equal"):
        left, right, op = right, left, "less" if op == "greater" else "less_equal"
    difference = left.plus(right, -1)  # difference <= 0, or < 0
    bound = simplify(-1 * lift(difference.offset) - (1 if op == "less" else 0))  # j - i <= bound
    return (difference.row, difference.column) == (-1, 1) and simplify(lift(bound) - lift(keys) + rows) == 0


def _line(value: Value | None, rewriter: Rewriter, depth: int = _DEEPEST) -> Line | None:
    """The line that a value is."""
    if value is None:
        return None
    number = rewriter.uniform(value)
    if number is not None:
        return Line(0, 0, int(number)) if number == int(number) else None
    data = rewriter.constant(value)
    if data is not None:
        return _constant_line(data)
    node = rewriter.producer(value)
    if node is None or depth == 0:
        return None
    if node.op == "dimension":
        return Line(0, 0, node.attributes["expression"])
    if node.op == "iota" and value.rank == 1:
        return Line(0, node.attributes["step"], node.attributes["start"])
    if node.op in ("add", "subtract"):
        left, right = (_line(item, rewriter, depth - 1) for item in node.inputs)
        return None if left is None or right is None else left.plus(right, 1 if node.op == "add" else -1)
    if node.op in ("cast", "broadcast_to"):
        return _line(node.inputs[0], rewriter, depth - 1)
    if node.op == "reshape":
        return _reshaped(node, rewriter, depth - 1)
    return None


def _reshaped(node: Node, rewriter: Rewriter, depth: int) -> Line | None:
    """A reshape that moves the one long dimension to the last place (columns) or the one before (rows)."""
    source = node.inputs[0]
    inner = _line(source, rewriter, depth)
    if inner is None or source is None:
        return None
    place = _long_dimension(node.output)
    was = _long_dimension(source)
    if place is None or was is None or (inner.row and inner.column):
        return None
    step = inner.column if was == -1 else inner.row
    return Line(step, 0, inner.offset) if place == -2 else Line(0, step, inner.offset)


def _long_dimension(value: Value) -> int | None:
    """-1 or -2 when only that dimension is not 1."""
    long = [index - value.rank for index, extent in enumerate(value.shape) if extent != 1]
    return long[0] if len(long) == 1 and long[0] >= -2 else None


def _constant_line(data: np.ndarray) -> Line | None:
    """An integer constant that counts evenly along its last or second last dimension."""
    if data.dtype.kind not in "iu" or data.size < 2 or data.size != max(data.shape):
        return None
    axis = int(np.argmax(data.shape)) - data.ndim
    line = data.reshape(-1).astype(np.int64)
    step = int(line[1] - line[0])
    if axis < -2 or not np.array_equal(line, line[0] + step * np.arange(line.size)):
        return None
    return Line(step, 0, int(line[0])) if axis == -2 else Line(0, step, int(line[0]))
