"""Pads products of odd sizes so that tensor copies can read them.

A GPU's copies to shared memory read rows that begin at multiples of 16 bytes.  Where the depth or the columns are no
multiple of so many numbers, a kernel reads element by element, of 16 bits up to five times as slowly: operands are
copied into rows of zeros first, constants once in the build, and what is beyond the columns is cut off. Where there is
little to multiply for what would be copied, as in products of few rows, it is read element by element. Large products
of float32 are filled up as tf32, in columns only where rows of the right operand run along them; otherwise they are
split into parts, whose rows begin where copies can read them (`library.matmul.hopper.bf16x6`). Left operands that are
read transposed, as they lie (`transposed_products`), have no rows along the depth: it counts where the right operand
has, and nothing is copied where they are read element by element.
"""

from __future__ import annotations

from functools import partial
from math import prod

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.transposed_products import has_whole_rows, read_in_place
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import upper_bound


def align_products(graph: Graph, kernels: KernelFacts) -> Graph:
    """The graph with such products, whose rows begin at multiples of `row_bytes`; the same graph when it has none."""
    result = apply_rules(graph, {"matmul": [partial(_aligned, kernels=kernels)]})
    return fold_constants(result) if result is not graph else graph


def _aligned(node: Node, rewriter: GraphRewriter, kernels: KernelFacts) -> Value | None:
    a, b = node.inputs
    assert a is not None and b is not None
    transposed = node.attributes["transpose_b"]
    depth, columns = a.shape[-1], node.output.shape[-1]
    if not a.dtype.is_float or a.dtype.bits not in (16, 32) or b.dtype != a.dtype or min(a.rank, b.rank) < 2:
        return None
    if not isinstance(depth, int) or not isinstance(columns, int):
        return None
    row_bytes, single = kernels.row_bytes, a.dtype == float32
    aligned = row_bytes // a.dtype.itemsize
    more, wider = -depth % aligned, -columns % aligned
    turned = read_in_place(node, rewriter, kernels) if not single else None
    if turned is not None and not has_whole_rows(turned, row_bytes):
        return None
    if turned is not None and not transposed:
        more = 0
    rows = prod(upper_bound(extent) for extent in node.output.shape[:-1])
    if single:
        wider = 0 if transposed else wider
        if kernels.exact or b.rank > 2 or min(rows, columns) < kernels.padded_side:
            return None
    by_pairs = b.shape[-1] * b.dtype.itemsize % kernels.pair_bytes == 0 and not single
    if by_pairs and rows <= kernels.paired_rows and rewriter.constant(b) is None:
        return None
    least = kernels.padded_work_single if single else kernels.padded_work
    if not (more or wider) or rows * depth * columns < least or rows < aligned:
        return None
    if not single and rows * columns < kernels.padded_use * _copied(node, (rows, columns), more, wider, rewriter):
        return None
    a = _padded(a, 0, more, rewriter)
    b = _padded(b, *((wider, more) if transposed else (more, wider)), rewriter)
    result = rewriter.op("matmul", [a, b], transpose_b=transposed, dtype=node.attributes["dtype"])
    rewriter.advise(
        f"matmul %{node.output.name}: depth {depth} and columns {columns} are filled up to multiples of {aligned}; "
        f"{depth + more} and {columns + wider} in the model itself need no copies"
    )
    return rewriter.op("slice", [result], axis=result.rank - 1, start=0, stop=columns) if wider else result


def _copied(node: Node, sides: tuple[int, int], more: int, wider: int, rewriter: GraphRewriter) -> int:
    """Numbers that are copied in each call, for one step of the depth."""
    a, b = node.inputs
    left = sides[0] if more and rewriter.constant(a) is None else 0
    return left + (sides[1] if (more or wider) and rewriter.constant(b) is None else 0)


def _padded(value: Value, rows: int, columns: int, rewriter: GraphRewriter) -> Value:
    """A matrix with rows and columns of zeros after its own."""
    if not rows and not columns:
        return value
    return rewriter.op("pad", [value], pads=((0, 0),) * (value.rank - 2) + ((0, rows), (0, columns)), value=0)
