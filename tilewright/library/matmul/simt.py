"""Matrix products on GPUs: tiles of `tl.dot`, and on Hopper the kernel of tensor copies and wgmma."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group, read_outside
from tilewright.library.binding import divides
from tilewright.library.candidate import Candidate, KernelCall, Stage
from tilewright.library.cost import Cost, expected
from tilewright.library.generated.elementwise import chain_operations, total_bytes
from tilewright.library.matmul.blocks import MatmulBlocks, RowRange, row_ranges
from tilewright.library.matmul.gate import gate_slots
from tilewright.library.matmul.hopper.bf16x6 import PlainCall, bf16x6_products
from tilewright.library.matmul.hopper.candidates import gated_products, hopper_products
from tilewright.library.matmul.launch import gemm_call
from tilewright.library.matmul.problem import GraphProduct, MatmulProblem, as_sum_of_products, describe, norm_in_front
from tilewright.library.matmul.simt_parts import in_parts, product_part
from tilewright.library.matmul.simt_tiles import SimtTile, ranked_tiles, simt_problem, varied_tiles
from tilewright.library.matmul.simt_transposed import of_transposed_operands
from tilewright.library.reduce.simt import gpu_reduction
from tilewright.library.rows.simt import gpu_rows
from tilewright.library.slots import Slots, epilogue_slots
from tilewright.library.split import split_group
from tilewright.symbolic import Size, lift, product, simplify
from tilewright.targets.base import Target

PLAIN_CONFIGS = 6  # tiles of the plain kernel that are candidates
TRANSPOSED_CONFIGS = 2  # of them with operands that are turned ahead
_MUCH_SOONER = 0.7  # of the time of other candidates: what products of 16 bits in parts must take at most
_PERHAPS_SOONER = 1.25  # of the time of other candidates, up to which the estimate does not tell which is sooner
_COPY_BYTES = 16  # of the largest copies to shared memory


def gpu_contraction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a matrix product.

    Raises `NotImplementedError` for a gated product that no kernel takes whole.
    """
    assert group.anchor is not None
    if group.anchor.output.dtype.is_integer and group.anchor.attributes["dtype"] is None:
        return gpu_reduction(as_sum_of_products(group), graph, target)
    norm = norm_in_front(group)
    if norm is not None:
        return _normed(group, norm, graph, target)
    problem = describe(group.anchor, graph, 0)
    gate = gate_slots(group, graph)
    if gate is not None:
        found = gated_products(problem, gate, group, target)
        if not found:
            raise NotImplementedError("the halves of this product do not meet in one kernel")
        return found
    found = product_candidates(problem, epilogue_slots(group, graph), group, target, graph)
    dtype = group.anchor.output.dtype
    if problem.columns == 1 and dtype.is_float and (dtype.bits == 16 or (dtype == float32 and not target.tf32)):
        # A matrix times a vector: rows are read as those of a sum are, whose terms are float32.
        sums = gpu_reduction(as_sum_of_products(group), graph, target)
        found += [replace(candidate, name=f"{candidate.name} of products") for candidate in sums]
    return found


def _normed(group: Group, norm: Node, graph: Graph, target: Target) -> list[Candidate]:
    """A product that normalises the few rows that it reads; where its kernel cannot, a norm and a product."""
    assert group.anchor is not None and norm.inputs[0] is not None
    nodes = [node for node in group.nodes if node is not norm]
    bare = Group(group.kind, nodes, read_outside(nodes), group.outputs, group.anchor, group.name)
    problem = replace(describe(group.anchor, graph, 0), a=norm.inputs[0])
    try:
        gate = gate_slots(bare, graph)
        if gate is not None:
            found = gated_products(problem, gate, group, target, norm)
        else:
            found = hopper_products(problem, epilogue_slots(bare, graph), group, target, graph, norm)
    except NotImplementedError:  # of what follows the product
        found = []
    return found or _after_norm(bare, norm, graph, target)


def _after_norm(group: Group, norm: Node, graph: Graph, target: Target) -> list[Candidate]:
    """A norm by a kernel of its own, then each candidate of the product that reads it."""
    inputs = [value for value in norm.inputs if value is not None]
    first, *_ = gpu_rows(Group("reduction", [norm], inputs, [norm.output], norm, group.name), graph, target)
    try:
        products = gpu_contraction(group, graph, target)
    except NotImplementedError as reason:
        products = split_group(group, graph, target, gpu_contraction, str(reason))
    reasons = {"norm": "by a kernel of its own: none of products takes it"}
    return [
        Candidate(
            f"norm and {found.name}",
            (*first.stages, *found.stages),
            replace(found.cost, seconds=first.cost.seconds + found.cost.seconds),
            (norm.output, *found.temporaries),
            {**found.reasons, **reasons},
        )
        for found in products
    ]


def product_candidates(
    problem: GraphProduct, slots: Slots, group: Group, target: Target, graph: Graph | None = None
) -> list[Candidate]:
    """Ways to compute a product, several of each kernel, in the order of their estimates; `graph` tells which operands
    are constants."""
    plain = _plain(problem, slots, group, target)
    if graph is not None:
        tiles = partial(_tiled, slots=slots, group=group, target=target, most=TRANSPOSED_CONFIGS)
        plain += of_transposed_operands(problem, graph, target, tiles)
    found = [*plain, *hopper_products(problem, slots, group, target, graph)]
    found += float32_on_tensor_cores(problem, slots, group, target, graph, found)
    if problem.a.dtype.is_float and problem.a.dtype.bits == 16:
        # Clusters divide a depth among two CTAs at most.
        limit = _MUCH_SOONER * min(candidate.cost.seconds for candidate in found)
        parts = _in_parts(problem, slots, group, target)
        found += [candidate for candidate in parts if candidate.cost.seconds <= limit]
    return found


def float32_on_tensor_cores(
    problem: GraphProduct, slots: Slots, group: Group, target: Target, graph: Graph | None, others: Sequence[Candidate]
) -> list[Candidate]:
    """A float32 product on tensor cores that take 16 bits (`hopper.bf16x6`), where it may be sooner than the others."""
    if problem.a.dtype != float32 or not target.wgmma:
        return []
    seconds = _epilogue_seconds(problem, slots, target)
    cost = product_cost(group, problem.rows, problem.columns, problem.depth, problem.batches, seconds)
    found = bf16x6_products(problem, slots, target, graph, _quickest_calls(problem, slots, target), cost)
    return perhaps_sooner(found, others)


def perhaps_sooner(found: Sequence[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
    """Those candidates that may be sooner than others, as far as estimates tell."""
    limit = _PERHAPS_SOONER * min(candidate.cost.seconds for candidate in others)
    return [candidate for candidate in found if candidate.cost.seconds <= limit]


def product_cost(group: Group, rows: Size, columns: Size, depth: Size, batches: Size, seconds: float) -> Cost:
    elements = simplify(lift(product([batches, rows])) * columns)
    flops = simplify(lift(elements) * depth * 2 + chain_operations(group.epilogue))
    return Cost(total_bytes(group.inputs, group.outputs), flops, seconds)


# -- Plain products ---------------------------------------------------------------------------------------------------


def _plain(problem: GraphProduct, slots: Slots, group: Group, target: Target) -> list[Candidate]:
    """`library.matmul.kernel` in tiles, and with its depth in parts."""
    parts = _in_parts(problem, slots, group, target) if problem.a.dtype == float32 else []
    return [*_tiled(problem, slots, group, target), *parts]


def _epilogue_seconds(problem: GraphProduct, slots: Slots, target: Target) -> float:
    """The seconds of what follows a product."""
    return epilogue_seconds(product([problem.batches, problem.rows, problem.columns]), slots, target)


def epilogue_seconds(elements: Size, slots: Slots, target: Target) -> float:
    """The seconds of an epilogue of so many elements."""
    machine = target.machine()
    return expected(elements) * slots.cost.exact_instructions / (machine.processors * machine.lanes * machine.clock)


def _tiled(
    problem: GraphProduct, slots: Slots, group: Group, target: Target, most: int = PLAIN_CONFIGS
) -> list[Candidate]:
    """`library.matmul.kernel` in tiles for a GPU, with a variant for each range of rows that can occur.

    The first candidate has the best tile for each range, the second the second best, and so on.
    """
    spans = row_ranges(problem.rows)
    ranked = [ranked_tiles(_in_numbers(problem, span.examples, target), target.machine()) for span in spans]
    found, epilogue = [], _epilogue_seconds(problem, slots, target)
    tf32 = tf32_constants(problem.a, target)
    for tiles in zip(*(varied_tiles(each, most) for each in ranked), strict=True):
        calls: list[KernelCall] = []
        reasons: dict[str, Any] = {"epilogue": slots.function.__name__, **({"precision": "tf32"} if tf32 else {})}
        for span, (tile, _) in zip(spans, tiles, strict=True):
            calls.append(_tile_call(problem, slots, tile, span, target))
            reasons["rows" if span.at_most is None else f"rows <= {span.at_most}"] = str(tile)
        seconds = tiles[-1][1] + epilogue
        cost = product_cost(group, problem.rows, problem.columns, problem.depth, problem.batches, seconds)
        found.append(Candidate("tiled matmul", (Stage(tuple(calls)),), cost, (), reasons))
    return found


def _tile_call(problem: GraphProduct, slots: Slots, tile: SimtTile, span: RowRange, target: Target) -> KernelCall:
    """The launch of a tile for a range of rows."""
    condition = None if span.at_most is None else (problem.rows, span.at_most)
    call = gemm_call(problem, slots, MatmulBlocks(tile.rows, tile.columns, tile.depth), condition)
    constants = {**call.constants, **tf32_constants(problem.a, target)}
    return replace(call, constants=constants, threads=tile.threads, evenly=True)


def _quickest_calls(problem: GraphProduct, slots: Slots, target: Target) -> list[PlainCall]:
    """The launch of the best tile for each range of rows but the last, with its seconds."""
    found = []
    for span in row_ranges(problem.rows)[:-1]:
        tile, seconds = ranked_tiles(_in_numbers(problem, span.examples, target), target.machine())[0]
        found.append((_tile_call(problem, slots, tile, span, target), seconds))
    return found


def _in_numbers(problem: GraphProduct, rows: tuple[int, ...], target: Target) -> tuple[MatmulProblem, ...]:
    """A product for each of some numbers of rows, as the plain kernel computes it on a target."""
    facts = {"output": problem.a.dtype, "exact": not target.tf32, "singly": _singly(problem)}
    return tuple(problem.at(count, **facts) for count in rows)


def _singly(problem: GraphProduct) -> tuple[bool, bool]:
    """Whether rows of the operands begin anywhere, so that no more than an element is copied at once."""
    vector = _COPY_BYTES // problem.a.dtype.itemsize
    a, b = (
        first if simplify(lift(second) - 1) == 0 else second
        for first, second in ((problem.a_row, problem.a_depth), (problem.b_depth, problem.b_column))
    )
    return not divides(vector, a), problem.width == 0 and not divides(vector, b)


def _in_parts(problem: GraphProduct, slots: Slots, group: Group, target: Target) -> list[Candidate]:
    """The product with its depth divided among CTAs, where sizes are known and tiles are few."""
    sizes = (problem.rows, problem.columns, problem.depth)
    if problem.batches != 1 or not all(isinstance(size, int) for size in sizes):
        return []
    constants = tf32_constants(problem.a, target)
    (numbers,) = _in_numbers(problem, (expected(problem.rows),), target)
    return in_parts(
        numbers, slots, group, target,
        product_cost(group, *sizes, 1, _epilogue_seconds(problem, slots, target)),
        lambda tile, parts, sums: product_part(problem, tile, parts, sums, constants), ragged=True,
    )  # fmt: skip


def tf32_constants(operand: Value, target: Target) -> dict[str, Any]:
    """The constant by which plain kernels multiply float32 as tf32, where the target says so."""
    return {"PRECISION": "tf32"} if operand.dtype == float32 and target.tf32 else {}


def plain_tiles(
    rows: tuple[int, ...], sizes: tuple[Size, Size, Size], operand: Value, target: Target
) -> tuple[tuple[SimtTile, float], ...]:
    """Tiles for examples of a number of rows, the best by the model first: columns, depth and batches are `sizes`."""
    columns, depth, batches = map(expected, sizes)
    products = tuple(simt_problem((count, columns, depth, batches), operand.dtype, target) for count in rows)
    return ranked_tiles(products, target.machine())


def plain_tile(
    rows: tuple[int, ...], sizes: tuple[Size, Size, Size], operand: Value, target: Target
) -> tuple[SimtTile, float]:
    """The first of `plain_tiles`."""
    return plain_tiles(rows, sizes, operand, target)[0]
