"""Reductions of a group along neighbouring axes: sizes, the slots of their kernels, launches, costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.dtypes import DType, float32, float64
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.graph.neutral import neutral_element
from tilewright.language.function import SourceFunction
from tilewright.launch.jit import JITFunction
from tilewright.library import functions
from tilewright.library.binding import launch
from tilewright.library.candidate import Candidate, KernelCall, Stage
from tilewright.library.cost import estimate, expected
from tilewright.library.generated.elementwise import chain_operations, total_bytes
from tilewright.library.generated.expressions import compute_type, language_type
from tilewright.library.generated.sectors import covered_by, times_used
from tilewright.library.generated.slot_functions import epilogue_function, prologue_function
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.generated.trace import ExpressionTracer, Load, axes_of, walk
from tilewright.symbolic import Size, lift, product, simplify
from tilewright.targets.base import Target

REDUCTIONS = {"reduce_sum": "sum", "reduce_mean": "mean", "reduce_max": "max", "reduce_min": "min",
               "reduce_product": "product"}  # fmt: skip

CUMULATIVE = {"cumsum": functions.total, "cumprod": functions.times, "cummax": functions.maximum,
              "cummin": functions.minimum, "cumlogsumexp": functions.log_add}  # fmt: skip
MANY_FACTORS = 4096  # products of as many are computed in float64


@dataclass(frozen=True)
class Deal:
    """How the work of a launch is divided: which kernel, which blocks, how many threads (0: not known)."""

    kernel: JITFunction
    constants: dict[str, Any]
    grid: tuple[Size, Size, Size]
    threads: int = 0


@dataclass(frozen=True)
class Reduction:
    """A reduction over neighbouring axes, its input seen as [outer, reduced, inner], with the slots of its kernel."""

    group: Group
    outer: Size
    reduced: Size
    inner: Size
    dtype: DType  # that it is done in
    prologue: JITFunction
    epilogue: SourceFunction
    extra: ExtraReferences

    @property
    def slots(self) -> dict[str, Any]:
        """The constants of any of its kernels."""
        return {"TYPE": language_type(self.dtype), "PROLOGUE": self.prologue, "EPILOGUE": self.epilogue}

    @property
    def constants(self) -> dict[str, Any]:
        """Those of kernels of sums, products, means and the least or the largest element."""
        assert self.group.anchor is not None
        kind = REDUCTIONS[self.group.anchor.op]
        return {"KIND": kind, "INITIAL": neutral_element(kind, self.dtype), **self.slots}

    def call(self, deal: Deal, constants: dict[str, Any]) -> KernelCall:
        """The launch."""
        sizes = {"rows": self.outer, "columns": self.reduced}
        if self.inner != 1:
            sizes = {"reduced": self.reduced, "inner": self.inner}
        return divided(deal, constants, self.group.outputs[-1], sizes, self.extra)


def reduction_of(group: Group, graph: Graph) -> Reduction:
    """The reduction of a group."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    outer, reduced, inner = reduced_space(anchor)
    source: tuple[Size, Size] = (outer, reduced) if inner == 1 else (simplify(lift(outer) * reduced), inner)
    slots = reduce_slots(group, graph, source, (outer, inner))
    dtype = accumulator_type(anchor.op, anchor.inputs[0].dtype, reduced)
    return Reduction(group, outer, reduced, inner, dtype, *slots)


def accumulator_type(op: str, dtype: DType, count: Size) -> DType:
    """The type in which `count` elements are reduced, or accumulated.

    Products of many floats are computed in float64: a product of two numbers near 1, one above and one below it, is
    rounded down where it should be rounded to either side, so that errors add up (to 1e-3 for 270,000 factors).
    """
    dtype = compute_type(dtype)
    is_long = op in ("reduce_product", "cumprod") and expected(count) > MANY_FACTORS
    return float64 if is_long and dtype == float32 else dtype


def reduced_space(anchor: Node) -> tuple[Size, Size, Size]:
    """The input of a reduction over neighbouring axes, seen as [outer, reduced, inner]."""
    source = anchor.inputs[0]
    assert source is not None
    axes = [axis for axis in anchor.attributes["axes"] if source.shape[axis] != 1]
    first, last = (min(axes), max(axes)) if axes else (source.rank, source.rank - 1)
    if any(axis not in axes and source.shape[axis] != 1 for axis in range(first, last + 1)):
        raise UnsupportedOperationError(
            f"{anchor.op} over axes {tuple(axes)} of {source!r}: the axes must be neighbours; permute them together"
        )
    return product(source.shape[:first]), product(source.shape[first : last + 1]), product(source.shape[last + 1 :])


def reduce_slots(
    group: Group, graph: Graph, source_space: tuple[Size, Size], result_space: tuple[Size, Size]
) -> tuple[JITFunction, SourceFunction, ExtraReferences]:
    """Slots of a reduction, whose result is seen as [outer, inner]."""
    anchor = group.anchor
    assert anchor is not None
    flat = Value(f"{anchor.output.name}.reduced", anchor.output.dtype, result_space)
    shaped = Node("reshape", [flat], [anchor.output], {"shape": anchor.output.shape})
    return anchor_slots(group, graph, source_space, flat, [shaped])


def anchor_slots(
    group: Group, graph: Graph, source_space: Sequence[Size], result: Value, applied: Sequence[Node]
) -> tuple[JITFunction, SourceFunction, ExtraReferences]:
    """Prologue, epilogue and their operands of a kernel that computes `result`, of which the nodes `applied` make the
    anchor's output."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    extra = ExtraReferences(parts=True)
    nodes = [node for node in group.nodes if node is not anchor]
    leading = [value for value in group.outputs if value in {out for node in group.prologue for out in node.outputs}]
    prologue = prologue_function(nodes, anchor.inputs[0], graph.constants, extra, leading, source_space)
    following = [value for value in group.outputs if value not in leading]
    epilogue = epilogue_function([*applied, *nodes], result, following[-1], graph.constants, extra, following[:-1])
    return prologue, epilogue, extra


def divided(
    deal: Deal, constants: dict[str, Any], out: Value, sizes: dict[str, Size], extra: ExtraReferences
) -> KernelCall:
    """The launch of a kernel with slots; `sizes` are its parameters that say how much there is."""
    return launch(deal.kernel, {"out": out}, sizes, {**constants, **deal.constants}, deal.grid, extra, deal.threads)


def _unused_bytes(group: Group, call: KernelCall) -> int:
    """What is read of sectors that blocks of a kernel use in part, where it reads its rows through permutes."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    source = anchor.inputs[0]
    if not any(node.op == "permute" for node in group.prologue):
        return 0
    block, rows = call.constants.get("BLOCK", 1), call.constants.get("ROWS", 1)
    covered = covered_by(source.shape, block * rows)
    if "BLOCK_R" in call.constants:
        after = max(anchor.attributes["axes"]) + 1
        inner = covered_by(source.shape[after:], block)
        covered = {after + place: extent for place, extent in inner.items()}
        covered |= covered_by(source.shape[:after], call.constants["BLOCK_R"])
    elements, unused = expected(product(source.shape)), 0.0
    for item in walk(ExpressionTracer(group.prologue, {}).trace(source, axes_of(source.shape))):
        if isinstance(item, Load) and expected(product(item.value.shape)) >= elements:
            times = times_used(item.index, covered, item.value.dtype.itemsize)
            unused += (times - 1) * elements * item.value.dtype.itemsize
    return int(unused)


def row_candidate(calls: Sequence[KernelCall], group: Group, target: Target) -> Candidate:
    """The candidate of launches that follow each other; the one with the most programs does most of the work."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    flops = simplify(lift(product(anchor.inputs[0].shape)) * 8 + chain_operations(group.nodes))
    moved = total_bytes(group.inputs, group.outputs, group.nodes)
    main = max(calls, key=lambda call: expected(product(call.grid)))
    if target.warp_threads > 1:  # on CPUs caches have what neighbouring rows share
        moved = simplify(lift(moved) + _unused_bytes(group, main))
    cost = estimate(target.machine(), moved, flops, product(main.grid), efficiency=0.25)
    further = (len(calls) - 1) * target.machine().launches.kernel
    cost = replace(cost, seconds=cost.seconds + further)
    reasons = {"kernel": calls[-1].kernel.__name__, "grid": str(calls[-1].grid)}
    return Candidate("row kernel", tuple(Stage((call,)) for call in calls), cost, (), reasons)
