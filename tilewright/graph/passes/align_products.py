"""Products of odd sizes as products that tensor copies can read.

A GPU's tensor copies read rows of 16-bit numbers that begin at multiples of 16 bytes.  Where the depth or the columns
are no multiple of 8, a kernel reads element by element, up to five times as slowly: operands are copied into rows of
zeros first, constants once in the build, and what is beyond the columns is cut off.
"""

from __future__ import annotations

from math import prod

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.rewrite import Rewriter, apply_rules
from tilewright.symbolic import upper_bound

_ALIGNED = 8  # elements
_LEAST_WORK = 1 << 25  # multiply-adds that are worth the copies


def align_products(graph: Graph) -> Graph:
    """The graph with such products; the same graph when there are none."""
    result = apply_rules(graph, {"matmul": [_aligned]})
    return fold_constants(result) if result is not graph else graph


def _aligned(node: Node, rewriter: Rewriter) -> Value | None:
    a, b = node.inputs
    assert a is not None and b is not None
    transposed = node.attributes["transpose_b"]
    depth, columns = a.shape[-1], node.output.shape[-1]
    if not a.dtype.is_float or a.dtype.bits != 16 or b.dtype != a.dtype or min(a.rank, b.rank) < 2:
        return None
    if not isinstance(depth, int) or not isinstance(columns, int) or not (depth % _ALIGNED or columns % _ALIGNED):
        return None
    rows = prod(upper_bound(extent) for extent in node.output.shape[:-1])
    if rows * depth * columns < _LEAST_WORK or rows < _ALIGNED:
        return None
    more, wider = -depth % _ALIGNED, -columns % _ALIGNED
    a = _padded(a, 0, more, rewriter)
    b = _padded(b, *((wider, more) if transposed else (more, wider)), rewriter)
    result = rewriter.op("matmul", [a, b], transpose_b=transposed)
    rewriter.remark(
        f"matmul %{node.output.name}: depth {depth} and columns {columns} are filled up to multiples of {_ALIGNED}"
    )
    return rewriter.op("slice", [result], axis=result.rank - 1, start=0, stop=columns) if wider else result


def _padded(value: Value, rows: int, columns: int, rewriter: Rewriter) -> Value:
    """A matrix with rows and columns of zeros after its own."""
    if not rows and not columns:
        return value
    return rewriter.op("pad", [value], pads=((0, 0),) * (value.rank - 2) + ((0, rows), (0, columns)), value=0)
