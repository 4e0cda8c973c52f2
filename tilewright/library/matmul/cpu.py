"""Matrix products: which form of B, which blocks, which run-time variants.

    constant B        packed in panels of the register tile's width; all leading dimensions of A are rows
    other B           read as it lies; leading dimensions become batches (at most two after merging)

For run-time numbers of rows there is one kernel for each range of rows (`ROW_STEPS`): few rows stream
the weights once through all threads, many rows are blocked for the caches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.graph.core import Graph, Node
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate, KernelCall, Stage
from tilewright.library.cost import estimate
from tilewright.library.generated.elementwise import chain_operations, tensor_bytes
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.matmul.blocks import row_ranges
from tilewright.library.matmul.cpu_blocks import choose_blocks
from tilewright.library.matmul.launch import gemm_call
from tilewright.library.matmul.problem import GraphProduct, as_sum_of_products, describe
from tilewright.library.reduce.cpu import cpu_reduction
from tilewright.library.slots import Slots, epilogue_slots
from tilewright.library.weights import pairs_fit
from tilewright.symbolic import Size, lift, lower_bound, product, simplify
from tilewright.targets.base import Target


def matmul_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a matmul."""
    assert group.anchor is not None
    if group.anchor.output.dtype.is_integer and group.anchor.attributes["dtype"] is None:
        return cpu_reduction(as_sum_of_products(group), graph, target)
    problem = describe_packed(group.anchor, graph, target)
    slots = epilogue_slots(group, graph, ExtraReferences(parts=True))
    return [gemm_candidate(problem, slots, group, target)]


def describe_packed(anchor: Node, graph: Graph, target: Target) -> GraphProduct:
    """The problem of a matmul node with constants in the panels that a target takes."""
    source = anchor.inputs[0]
    assert source is not None
    rows, depth = lower_bound(product(source.shape[:-1])), simplify(source.shape[-1])
    weights, transposed = anchor.inputs[1], anchor.attributes["transpose_b"]
    assert weights is not None
    fits = weights in graph.constants and pairs_fit(graph.constants[weights], weights.rank - (1 if transposed else 2))
    group = target.panel_group(source.dtype, rows, depth, fits) if isinstance(depth, int) else 1
    return replace(describe(anchor, graph, target.microtile(source.dtype)[1], group), pairs_fit=fits)


def gemm_candidate(problem: GraphProduct, slots: Slots, group: Group, target: Target) -> Candidate:
    """The tiled kernel, with a variant for each range of rows that can occur."""
    machine = target.machine()
    calls: list[KernelCall] = []
    reasons: dict[str, Any] = {"B": _config(problem), "epilogue": slots.function.__name__}
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


def _config(problem: GraphProduct) -> str:
    """How B lies, for people."""
    if not problem.width:
        return "strided"
    return "panels" if problem.group == 1 else f"panels, {problem.group} steps of the depth beside each other"
