"""Which masks are provably causal: key j is seen by query i exactly when j <= i + (T - S); and which of them hide what
is before a sliding window, or after so many keys of a batch.

Masks are comparisons of position lines.  A line is an integer tensor whose value depends on its row
and column in the [S, T] score matrix only: `row * i + column * j + offset`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import int32
from tilewright.graph.core import Node, Value
from tilewright.graph.inference import Shape
from tilewright.graph.passes.mask_corners import corner_of_mask, keeps_matrix
from tilewright.graph.rewrite import GraphRewriter
from tilewright.symbolic import Size, lift, simplify

_DEEPEST_POSITION = 8  # positions nested deeper are not looked at; sums of sums would take exponential time


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


def is_causal(condition: Value | None, rows: Size, keys: Size, rewriter: GraphRewriter) -> bool:
    """Whether a boolean value is provably the causal "may see" mask for [rows, keys] scores."""
    seen = _known(condition, rewriter)
    if seen is not None:
        return is_causal_array(seen, rows, keys)
    node = rewriter.producer(condition)
    if node is None or condition is None:
        return False
    if node.op in ("broadcast_to", "reshape") and keeps_matrix(node):
        return is_causal(node.inputs[0], rows, keys, rewriter)
    found = _bound(condition, rewriter)
    if found is not None:
        return found[0] == 1 and simplify(lift(found[1]) - lift(keys) + rows) == 0
    corner = corner_of_mask(condition, rows, keys, rewriter)
    return corner is not None and is_lower_triangle(corner.astype(bool))


def _known(condition: Value | None, rewriter: GraphRewriter) -> np.ndarray | None:
    """The elements of a condition that is a constant, or the opposite of one."""
    data = rewriter.constant(condition)
    if data is not None:
        return data.astype(bool)
    node = rewriter.producer(condition, "logical_not")
    opposite = None if node is None else rewriter.constant(node.inputs[0])
    return None if opposite is None else ~opposite.astype(bool)


def sliding_window(condition: Value, rows: Size, keys: Size, causal: bool, rewriter: GraphRewriter) -> int | None:
    """How many of the last keys a query sees by a condition; None for every other condition.

    `causal`: keys after a query's own are hidden anyhow. Where they are not, only an array can hide them as well.
    """
    seen = _known(condition, rewriter)
    if seen is not None:
        return band_of_array(seen, rows, keys, causal) or None
    node = rewriter.producer(condition, "broadcast_to", "reshape")
    if node is not None:
        source = node.inputs[0] if keeps_matrix(node) else None
        return None if source is None else sliding_window(source, rows, keys, causal, rewriter)
    corner = corner_of_mask(condition, rows, keys, rewriter)
    if corner is not None:
        return band_of_array(corner.astype(bool), len(corner), len(corner), causal=False) or None
    if not causal:
        return None
    found = _bound(condition, rewriter)
    if found is None or found[0] != -1:
        return None
    width = simplify(lift(found[1]) + lift(keys) - rows + 1)  # i - j <= width - 1 - (T - S)
    return width if isinstance(width, int) and width > 0 else None


def band_of_array(seen: np.ndarray, rows: Size, keys: Size, causal: bool) -> int:
    """How many of the last keys a query sees by a mask [.., rows, keys], the same for every leading position; 0 for
    other masks.  `causal`: keys after a query's own are hidden anyhow."""
    if seen.ndim < 2 or seen.shape[-2:] != (rows, keys) or not seen.size:
        return 0
    count, width = seen.shape[-2:]
    below = np.tri(count, width, width - count, dtype=bool)
    band = int((seen.reshape(-1, count, width)[0, -1] & below[-1]).sum())
    inside = below & ~np.tri(count, width, width - count - band, dtype=bool)
    return band if 0 < band < width and np.all((seen & below if causal else seen) == inside) else 0


def prefix_lengths(condition: Value, shape: Shape, rewriter: GraphRewriter) -> Value | None:
    """The numbers of keys, int32 [batch], by which a condition `j < lengths[b]` of a shape [batch, 1, 1, keys] decides.

    With fewer dimensions, the first one of a condition is that of heads or of rows.
    """
    batch, keys = shape[0], shape[-1]
    if (1,) * (len(shape) - condition.rank) + condition.shape != shape:
        return None
    node, flipped = _below_not(condition, rewriter)
    while node is not None and node.op in ("reshape", "broadcast_to") and _is_row_of_each(node, batch, keys):
        node = rewriter.producer(node.inputs[0])
    op = None if node is None else _FLIPPED[node.op] if flipped and node.op in _FLIPPED else node.op
    if node is None or op not in ("less", "greater") or node.output.shape[-1] != keys:
        return None
    line, ends = node.inputs if op == "less" else node.inputs[::-1]
    if line is None or ends is None or _line(line, rewriter) != Line(0, 1, 0) or line.shape[-1] != keys:
        return None
    if ends.shape[-1:] != (1,) or not ends.dtype.is_integer or ends.shape[0] != batch or len(_long(ends.shape[1:])):
        return None
    if node.output.rank not in (2, 4) or len(_long(node.output.shape[1:-1])):
        return None
    return _limited(rewriter.op("reshape", [ends], shape=(batch,)), keys, rewriter)


def _limited(ends: Value, keys: Size, rewriter: GraphRewriter) -> Value | None:
    """Numbers of keys as int32, none below 0 or above all keys; None where their own type does not hold those."""
    if ends.dtype.bits < 32:
        return None
    if isinstance(keys, int):
        limit = rewriter.number(keys, ends.dtype)
    else:
        limit = rewriter.cast(rewriter.op("dimension", [], expression=keys), ends.dtype)
    ends = rewriter.op("maximum", [ends, rewriter.number(0, ends.dtype)])
    return rewriter.cast(rewriter.op("minimum", [ends, limit]), int32)


def _below_not(condition: Value | None, rewriter: GraphRewriter) -> tuple[Node | None, bool]:
    """What computes a condition, or its opposite: then true."""
    node = rewriter.producer(condition)
    if node is None or node.op != "logical_not":
        return node, False
    return rewriter.producer(node.inputs[0]), True


def _is_row_of_each(node: Node, batch: Size, keys: Size) -> bool:
    """Whether a reshape or broadcast only puts dimensions of 1 between batch and keys."""
    shapes = [node.output.shape, node.inputs[0].shape if node.inputs[0] is not None else ()]
    return all(len(s) >= 2 and (s[0], s[-1]) == (batch, keys) and not _long(s[1:-1]) for s in shapes)


def _long(shape: Sequence[Size]) -> list[Size]:
    return [extent for extent in shape if extent != 1]


def is_causal_array(seen: np.ndarray, rows: Size, keys: Size) -> bool:
    """Whether a boolean array [.., rows, keys] is the causal mask, for every leading position."""
    if seen.ndim < 2 or seen.shape[-2:] != (rows, keys):
        return False
    count, width = seen.shape[-2:]
    return bool(np.all(seen == np.tri(count, width, width - count, dtype=bool)))


def is_lower_triangle(seen: np.ndarray) -> bool:
    """Whether the corners of a matrix are causal masks: element (i, j) is true where j <= i."""
    rows, columns = seen.shape
    return bool(np.all(seen == np.tri(rows, columns, dtype=bool)))


_FLIPPED = {"less_equal": "greater", "less": "greater_equal", "greater": "less_equal", "greater_equal": "less"}


def _bound(condition: Value | None, rewriter: GraphRewriter) -> tuple[int, Size] | None:
    """(1, bound) of a comparison of two lines that says j - i <= bound, (-1, bound) of i - j <= bound."""
    node, negated = _below_not(condition, rewriter)
    if node is None or node.op not in _FLIPPED:
        return None
    left, right = (_line(item, rewriter) for item in node.inputs)
    if left is None or right is None:
        return None
    op = _FLIPPED[node.op] if negated else node.op
    if op in ("greater", "greater_equal"):
        left, right, op = right, left, "less" if op == "greater" else "less_equal"
    difference = left.plus(right, -1)  # difference <= 0, or < 0
    bound = simplify(-1 * lift(difference.offset) - (1 if op == "less" else 0))
    if (difference.row, difference.column) not in ((-1, 1), (1, -1)):
        return None
    return difference.column, bound


def _line(value: Value | None, rewriter: GraphRewriter, depth: int = _DEEPEST_POSITION) -> Line | None:
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


def _reshaped(node: Node, rewriter: GraphRewriter, depth: int) -> Line | None:
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
