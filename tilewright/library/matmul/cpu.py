"""Matrix products: which form of B, which blocks, which run-time variants.

    constant B        packed in panels of the register tile's width; all leading dimensions of A are rows
    other B           read as it lies; leading dimensions become batches (at most two after merging)

For run-time numbers of rows there is one kernel for each range of rows (`ROW_STEPS`): few rows stream
the weights once through all threads, many rows are blocked for the caches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.dtypes import DType, int32
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.ir.ops import PAIRS_FIT
from tilewright.library.binding import bind_extra, bind_sizes, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage
from tilewright.library.cost import estimate
from tilewright.library.generated.elementwise import chain_operations, tensor_bytes
from tilewright.library.generated.expressions import language_type
from tilewright.library.generated.index import flatten
from tilewright.library.generated.source import ExtraReferences, merge_axes
from tilewright.library.generated.trace import align, axes_of
from tilewright.library.matmul.cpu_blocks import MatmulBlocks, choose_blocks, row_ranges
from tilewright.library.matmul.kernel import matmul
from tilewright.library.packing import panels_recipe
from tilewright.library.rows.cpu import reduction
from tilewright.library.slots import Slots, epilogue_slots
from tilewright.library.weights import pairs_fit
from tilewright.symbolic import Size, ceil_divide, lift, lower_bound, product, simplify
from tilewright.targets.base import Target


def sum_type(dtype: DType) -> DType:
    """The type that `dot` sums products of a type in, where the graph's type is that of the operands or int32."""
    return int32 if dtype.is_integer else dtype


def norm_in_front(group: Group) -> Node | None:
    """The RMS norm that a product of few rows computes of them itself (`graph.passes.fuse_norms`)."""
    assert group.anchor is not None
    rows = group.anchor.inputs[0]
    return next((node for node in group.prologue if node.output is rows and node.op == "rms_norm"), None)


@dataclass(frozen=True)
class Problem:
    """One matrix product: sizes, where A and B lie, and how batches are walked."""

    rows: Size
    columns: Size
    depth: Size
    a: Value
    b: Operand
    a_row: Size
    a_depth: Size
    b_depth: Size
    b_column: Size
    width: int  # of B's panels; 0 when B is strided
    group: int = 1  # steps of the depth that lie beside each other in B's panels
    batches: Size = 1
    inner_batches: Size = 1
    a_batch: tuple[Size, Size] = (0, 0)  # strides of the outer and the inner batch dimension
    b_batch: tuple[Size, Size] = (0, 0)
    pairs_fit: bool = False  # of integers: sums of two neighbouring products are numbers of 16 bits


def matmul_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a matmul."""
    assert group.anchor is not None
    if group.anchor.output.dtype.is_integer and group.anchor.attributes["dtype"] is None:
        return reduction(as_sum_of_products(group), graph, target)
    problem = describe_packed(group.anchor, graph, target)
    slots = epilogue_slots(group, graph, ExtraReferences(parts=True))
    return [gemm_candidate(problem, slots, group, target)]


def describe_packed(anchor: Node, graph: Graph, target: Target) -> Problem:
    """The problem of a matmul node with constants in the panels that a target takes."""
    source = anchor.inputs[0]
    assert source is not None
    rows, depth = lower_bound(product(source.shape[:-1])), simplify(source.shape[-1])
    weights, transposed = anchor.inputs[1], anchor.attributes["transpose_b"]
    assert weights is not None
    fits = weights in graph.constants and pairs_fit(graph.constants[weights], weights.rank - (1 if transposed else 2))
    beside = target.panel_group(source.dtype, rows, depth, fits) if isinstance(depth, int) else 1
    return replace(describe(anchor, graph, target.microtile(source.dtype)[1], beside), pairs_fit=fits)


def as_sum_of_products(group: Group) -> Group:
    """An integer product as a reduction: the sum over the depth of a[..., M, 1, K] * b[..., 1, N, K]."""
    anchor = group.anchor
    assert anchor is not None
    a, b = anchor.inputs
    assert a is not None and b is not None
    nodes: list[Node] = []

    def step(op: str, inputs: list[Value | None], result_shape: tuple[Size, ...], **attributes: Any) -> Value:
        result = Value(f"{anchor.output.name}.step{len(nodes)}", anchor.output.dtype, result_shape)
        nodes.append(Node(op, inputs, [result], attributes, anchor.source))
        return result

    def turned(operand: Value) -> Value:
        order = (*range(operand.rank - 2), operand.rank - 1, operand.rank - 2)
        return step("permute", [operand], tuple(operand.shape[axis] for axis in order), order=order)

    if anchor.attributes["transpose_a"]:
        a = turned(a)
    if not anchor.attributes["transpose_b"]:
        b = turned(b)
    left_shape, right_shape = (*a.shape[:-1], 1, a.shape[-1]), (*b.shape[:-2], 1, *b.shape[-2:])
    left = step("reshape", [a], left_shape, shape=left_shape)
    right = step("reshape", [b], right_shape, shape=right_shape)
    products = step("multiply", [left, right], (*anchor.output.shape, a.shape[-1]))
    attributes = {"axes": (anchor.output.rank,), "keepdims": False}
    total = Node("reduce_sum", [products], [anchor.output], attributes, anchor.source)
    return Group("reduction", [*group.prologue, *nodes, total, *group.epilogue], group.inputs, group.outputs, total,
                 group.name)  # fmt: skip


def describe(node: Node, graph: Graph, width: int, beside: int = 1) -> Problem:
    """The problem that a matmul node poses.

    Constants are packed in panels of `width` columns (0: not at all), with `beside` steps of the depth beside
    each other.
    """
    a, b = node.inputs
    assert a is not None and b is not None
    transposed = node.attributes["transpose_b"]
    height, depth = node.output.shape[-2], a.shape[-2 if node.attributes["transpose_a"] else -1]
    columns = b.shape[-2] if transposed else b.shape[-1]
    a_row, a_depth = (1, height) if node.attributes["transpose_a"] else (depth, 1)
    b_depth, b_column = (1, depth) if transposed else (columns, 1)
    if all(extent == 1 for extent in b.shape[:-2]):
        rows = product((*a.shape[:-2], height))
        if width and b in graph.constants and b.rank == 2:
            packed = PackedConstant(b, panels_recipe(width, transposed, beside))
            return Problem(rows, columns, depth, a, packed, a_row, a_depth, 0, 0, width, beside)
        return Problem(rows, columns, depth, a, b, a_row, a_depth, b_depth, b_column, 0)
    batch = node.output.shape[:-2]
    coordinates = axes_of(batch)
    indices = [flatten(align(coordinates, x.shape[:-2]), x.shape[:-2]) for x in (a, b)]
    indices.append(flatten(coordinates, batch))
    variables = merge_axes(batch, indices)
    if len(variables) > 2:
        raise UnsupportedOperationError(
            f"matmul of {a!r} and {b!r}: batch dimensions are broadcast in an alternating pattern; "
            "expand one operand (torch.Tensor.expand(...).contiguous()) before the product"
        )
    steps = {0: product(a.shape[-2:]), 1: product(b.shape[-2:])}
    strides = [
        tuple(simplify(lift(index.coefficient(v.axes[-1])) * steps[which]) for v in variables)
        for which, index in enumerate(indices[:2])
    ]
    a_batch, b_batch = ((*([0] * (2 - len(item))), *item) for item in strides)
    inner = variables[-1].extent if variables else 1
    return Problem(
        height, columns, depth, a, b, a_row, a_depth, b_depth, b_column, 0, 1, product(batch), inner,
        (a_batch[0], a_batch[1]), (b_batch[0], b_batch[1]),
    )  # fmt: skip


def gemm_candidate(problem: Problem, slots: Slots, group: Group, target: Target) -> Candidate:
    """The tiled kernel, with a variant for each range of rows that can occur."""
    machine = target.machine()
    calls: list[KernelCall] = []
    reasons: dict[str, Any] = {"B": _form(problem), "epilogue": slots.function.__name__}
    for span in row_ranges(problem.rows):
        at_most = span.at_most
        blocks = choose_blocks(
            span.examples,
            problem.columns,
            problem.depth,
            problem.batches,
            problem.a.dtype,
            target,
            machine,
            problem.width,
            problem.group,
        )
        condition = None if at_most is None else (problem.rows, at_most)
        calls.append(gemm_call(problem, slots, blocks, condition))
        reasons["rows" if at_most is None else f"rows <= {at_most}"] = str(blocks)
    elements = simplify(lift(product([problem.batches, problem.rows])) * problem.columns)
    flops = simplify(lift(elements) * problem.depth * 2 + chain_operations(group.epilogue))
    moved: Size = 0
    for value in (*group.inputs, *group.outputs):
        moved = simplify(lift(moved) + tensor_bytes(value))
    cost = estimate(machine, moved, flops, product(calls[-1].grid), problem.a.dtype, 0.85)
    return Candidate("tiled matmul", (Stage(tuple(calls)),), cost, (), reasons)


def _form(problem: Problem) -> str:
    """How B lies, for people."""
    if not problem.width:
        return "strided"
    return "panels" if problem.group == 1 else f"panels, {problem.group} steps of the depth beside each other"


def gemm_call(problem: Problem, slots: Slots, blocks: MatmulBlocks, condition: tuple[Size, int] | None) -> KernelCall:
    """One launch of `library.matmul.kernel`."""
    block_m, block_n, block_k = blocks.rows, blocks.columns, blocks.depth
    batched = problem.batches != 1
    sizes: dict[str, Size] = {
        "rows": problem.rows, "columns": problem.columns, "depth": problem.depth, "a_row": problem.a_row,
        "a_depth": problem.a_depth, "b_depth": problem.b_depth, "b_column": problem.b_column,
        "c_row": problem.columns,
    }  # fmt: skip
    if batched:
        sizes |= {
            "a_outer": problem.a_batch[0], "a_batch": problem.a_batch[1], "b_outer": problem.b_batch[0],
            "b_batch": problem.b_batch[1], "inner_batches": problem.inner_batches,
        }  # fmt: skip
    panels = ceil_divide(problem.columns, problem.width) if problem.width else 0
    constants: dict[str, Any] = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "WIDTH": problem.width, "BATCHED": batched,
        "WHOLE_K": problem.depth == block_k, "MASK_M": not divides(block_m, problem.rows),
        "MASK_N": not divides(block_n, problem.columns), "MASK_K": not divides(block_k, problem.depth),
        "MASK_PANEL": bool(problem.width) and not divides(block_n // problem.width, panels), "GROUP": problem.group,
        "TYPE": language_type(sum_type(problem.a.dtype)), "PRECISION": PAIRS_FIT if problem.pairs_fit else "ieee",
        "EPILOGUE": slots.function,
    }  # fmt: skip
    operands: dict[str, Operand] = {"a": problem.a, "b": problem.b, "c": slots.stored}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    grid = (ceil_divide(problem.rows, block_m), ceil_divide(problem.columns, block_n), problem.batches)
    return KernelCall(matmul, operands, types, constants, grid, condition)
