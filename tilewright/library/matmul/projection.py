"""Products whose columns are heads, with what turns and stores these (`graph.projections`): as the two kernels that
they are, and for few rows as one (`matmul.hopper.projection`).

A launch for few rows stores all; the launch after it, which turns and stores the heads of more rows, is then empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group, read_outside
from tilewright.graph.projections import Projection, projection_of
from tilewright.library.candidate import Candidate, KernelCall, Stage
from tilewright.library.cost import Cost, spans
from tilewright.library.generated.elementwise import elementwise, total_bytes
from tilewright.library.makers import Maker
from tilewright.library.matmul.hopper.projection import PROJECTED_ROWS, heads_of, projection_call, ranked_configs
from tilewright.library.matmul.hopper.projection_config import MOST_ROWS
from tilewright.library.matmul.problem import describe
from tilewright.library.slots import epilogue_slots
from tilewright.symbolic import Size, evaluate, lift, plain_symbol, simplify, upper_bound
from tilewright.targets.base import Target

# Seconds that the kernel between a product and attention takes, at least (8B shape, one row: 2.3 to 3 us; H200,
# 2026-12-01).  The estimate of one kernel is not below that of two by more.
_BETWEEN = 2.3e-6


def gpu_projection(group: Group, graph: Graph, target: Target, candidates: Maker) -> list[Candidate]:
    """Each candidate of the product with the kernel that turns and stores, then the one that does it for few rows."""
    assert group.anchor is not None
    projection = projection_of(group.nodes, group.outputs, group.anchor, graph)
    product, rest = _parts(group, projection)
    (storing,) = elementwise(rest, graph, target)
    storing = _by_rows(storing, projection.result.shape[0])
    separate = [_separate(each, storing, projection) for each in candidates(product, graph, target)]
    try:
        few = _few_rows(product, projection, graph, target)
        return [*separate, _together(group, few, separate, storing)]
    except NotImplementedError as reason:
        first, *others = separate
        return [replace(first, reasons={**first.reasons, "one kernel": f"not possible: {reason}"}), *others]


def _parts(group: Group, projection: Projection) -> tuple[Group, Group]:
    """The product, and what turns and stores."""
    anchor = projection.anchor
    of_product = [node for node in group.nodes if node is anchor or node.output is projection.result]
    rest = [node for node in group.nodes if node not in of_product]
    name = f"{group.name}.product"
    return (
        Group("contraction", of_product, read_outside(of_product), [projection.result], anchor, name),
        Group("elementwise", rest, read_outside(rest), group.outputs, None, f"{group.name}.heads"),
    )


def _by_rows(candidate: Candidate, rows: Size) -> Candidate:
    """A generated candidate whose launches are for ranges of the rows, as those of the product are, not of elements."""
    symbol = plain_symbol(rows)

    def of_rows(call: KernelCall) -> KernelCall:
        if call.condition is None or symbol is None:
            return call
        elements, end = call.condition
        return replace(call, condition=(rows, end // evaluate(elements, {symbol.name: 1})))

    return replace(candidate, stages=tuple(Stage(tuple(map(of_rows, stage.calls))) for stage in candidate.stages))


def _separate(product: Candidate, storing: Candidate, projection: Projection) -> Candidate:
    """A candidate of the product, then the kernel that turns and stores."""
    first, second = product.cost, storing.cost
    moved, flops = simplify(lift(first.bytes) + second.bytes), simplify(lift(first.flops) + second.flops)
    temporaries = (projection.result, *product.temporaries, *storing.temporaries)
    reasons = {**product.reasons, "heads": "turned and stored by a kernel after the product"}
    cost = Cost(moved, flops, first.seconds + second.seconds)
    return Candidate(product.name, (*product.stages, *storing.stages), cost, temporaries, reasons)


@dataclass(frozen=True)
class _FewRows:
    """The launches for up to `MOST_ROWS` of all `rows`, in words too, and the seconds of the last one's product."""

    rows: Size
    calls: tuple[KernelCall, ...]
    reasons: dict[str, Any]
    seconds: float

    @property
    def are_all(self) -> bool:
        """Whether there are never more rows."""
        return upper_bound(self.rows) <= MOST_ROWS


def _few_rows(product: Group, projection: Projection, graph: Graph, target: Target) -> _FewRows:
    """Raises `NotImplementedError` with the reason where there are no such launches."""
    heads, problem = heads_of(projection, target), describe(projection.anchor, graph, 0)
    slots = epilogue_slots(product, graph).rounded(heads.columns)
    calls: list[KernelCall] = []
    reasons: dict[str, Any] = {"heads": f"of up to {MOST_ROWS} rows turned and stored by the product"}
    seconds = 0.0
    for example, at_most in spans(problem.rows, PROJECTED_ROWS):
        end = at_most or upper_bound(problem.rows)
        if end > MOST_ROWS:
            break
        ranked = ranked_configs(problem, example, end, slots, target.machine())
        if not ranked:
            raise NotImplementedError(f"no config has room for the heads of {end} rows")
        config, seconds = ranked[0]
        condition = None if at_most is None else (problem.rows, end)
        calls.append(projection_call(projection, problem, slots, heads, config, condition))
        reasons["tile" if at_most is None else f"rows <= {end}"] = config.described
    if not calls:
        raise NotImplementedError(f"the kernel stores heads of up to {MOST_ROWS} rows")
    return _FewRows(problem.rows, tuple(calls), reasons, seconds)


def _together(group: Group, few: _FewRows, separate: Sequence[Candidate], storing: Candidate) -> Candidate:
    """Few rows by one kernel; more of them by the likeliest two."""
    best = min(separate, key=lambda candidate: candidate.cost.seconds)
    cost = Cost(total_bytes(group.inputs, group.outputs, group.nodes), best.cost.flops, best.cost.seconds)
    if few.are_all:
        seconds = max(few.seconds, best.cost.seconds - _BETWEEN)
        return Candidate("hopper projection", (Stage(few.calls),), replace(cost, seconds=seconds), (), few.reasons)
    if len(best.stages) != 2 or len(storing.stages) != 1:
        raise NotImplementedError("of more rows, the product and what follows it are not a launch each")
    first, second = best.stages
    empty = replace(second.calls[0], grid=(0, 1, 1), condition=(few.rows, MOST_ROWS))
    stages = Stage((*few.calls, *_of_more_rows(first))), Stage((empty, *_of_more_rows(second)))
    return Candidate("hopper projection", stages, cost, best.temporaries, {**best.reasons, **few.reasons})


def _of_more_rows(stage: Stage) -> tuple[KernelCall, ...]:
    """The launches of a stage for more rows than one tile has."""
    return tuple(call for call in stage.calls if call.condition is None or call.condition[1] > MOST_ROWS)
