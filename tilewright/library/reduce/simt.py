"""Reductions and cumulative operations on GPUs: tile sizes, and how the reduced dimension is split."""

from __future__ import annotations

from dataclasses import replace

from tilewright.dtypes import int32, int64
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.graph.neutral import RUNNING_KINDS, neutral_element
from tilewright.launch.jit import JITFunction
from tilewright.library.binding import divides, launch
from tilewright.library.candidate import Candidate, KernelCall, Stage
from tilewright.library.cost import expected
from tilewright.library.generated.expressions import compute_type, language_type
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.reduce import simt_kernel as kernels
from tilewright.library.reduce.problem import (
    CUMULATIVE,
    REDUCTIONS,
    Deal,
    Reduction,
    accumulator_type,
    reduce_slots,
    reduction_of,
    row_candidate,
)
from tilewright.library.reduce.simt_config import LEAST_CTA_THREADS, MOST_CTA_THREADS, sum_config
from tilewright.library.reduce.simt_parts import (
    COLUMN_ELEMENTS,
    CTAS,
    MANY_CTAS,
    MIDDLE_COLUMNS,
    are_long,
    first_of_parts,
    reduction_parts,
    rest_of_parts,
    share_of,
)
from tilewright.library.reduce.simt_tiles import MOST_REDUCED_PARTS, TILE_ELEMENTS, Tiles, running_tiles
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, upper_bound
from tilewright.targets.base import Target

_TILE_COLUMNS = 64  # of a tile along a middle dimension
_LINE_BYTES = 64  # of such a tile's rows, at least, of columns as long as
_LONG_COLUMN = 4096
ASSUMED_ELEMENTS = 1024  # elements along a tile where their number is known only at run time
LEAST_SECOND_LAUNCH = (
    8192  # elements of the reduced dimension that are worth a second launch, of all columns of a tile together
)

SHORT = 16  # elements of rows or columns that a thread each walks
SHORT_ROWS = 512  # of a CTA, or columns
FEW_COLUMNS = 16  # of a block of columns, at least: lines of 64 bytes
FEW_ELEMENTS = 2048  # of a block of a reduction over few rows
FEW_CTAS = 512  # that there are then at least
OTHER = 1.02  # the cost of the other number of parts, relative to that of the likely one


def is_short(rows: Size, columns: Size, processors: int) -> bool:
    """Whether threads walk rows (or columns) of their own: there are enough, and they are too short to be shared."""
    return isinstance(columns, int) and columns <= SHORT and expected(rows) >= 2 * processors * SHORT_ROWS


def _tiles(anchor: Node, target: Target, stores_rows: bool) -> Tiles:
    """The tiles of a node; `stores_rows`: results are rows too, which neighbouring threads store together."""
    source, axis = anchor.inputs[0], anchor.attributes["axis"]
    assert source is not None
    outer, reduced, inner = product(source.shape[:axis]), source.shape[axis], product(source.shape[axis + 1 :])
    likely = expected(reduced) if isinstance(reduced, int) else min(upper_bound(reduced), ASSUMED_ELEMENTS)
    length, processors = next_power_of_2(max(1, likely)), target.machine().processors
    if inner == 1 and not stores_rows and is_short(outer, reduced, processors):
        across, along, tiles = SHORT_ROWS, 1, -(-expected(outer) // SHORT_ROWS)
    elif inner == 1:
        along = min(length, TILE_ELEMENTS)
        across = 1
        while 2 * across * along <= TILE_ELEMENTS // 2 and expected(outer) >= 2 * across * 4 * processors:
            across *= 2
        tiles = -(-expected(outer) // across)
    elif expected(inner) >= SHORT_ROWS and is_short(simplify(lift(outer) * inner), reduced, processors):
        across, along, tiles = SHORT_ROWS, 1, expected(outer) * -(-expected(inner) // SHORT_ROWS)
    else:
        across = min(next_power_of_2(max(1, expected(inner))), _TILE_COLUMNS)
        # Parts of long columns keep processors busy too, and leave lines of memory whole.
        least = _LINE_BYTES // source.dtype.itemsize if expected(reduced) >= _LONG_COLUMN else 8
        while across > least and expected(outer) * -(-expected(inner) // across) < 2 * processors:
            across //= 2
        along = max(1, min(length, TILE_ELEMENTS // across))
        tiles = expected(outer) * -(-expected(inner) // across)
    wanted = 4 * processors // max(1, tiles)
    parts = max(1, min(MOST_REDUCED_PARTS, wanted, expected(reduced) // max(along, LEAST_SECOND_LAUNCH // across)))
    share = share_of(reduced, parts, along)
    threads = max(LEAST_CTA_THREADS, min(256, across * along // (4 if along == 1 else 16)))
    return Tiles(outer, reduced, inner, across, along, parts, share, threads)


def extreme_candidate(group: Group, graph: Graph, target: Target) -> Candidate:
    """argmax or argmin; in two launches where single ones would leave processors idle."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    source, tiles = anchor.inputs[0], _tiles(anchor, target, stores_rows=False)
    dtype, largest = compute_type(source.dtype), anchor.op == "argmax"
    place = int32 if upper_bound(tiles.reduced) < 2**31 - 2 * TILE_ELEMENTS else int64
    initial = neutral_element("max" if largest else "min", dtype)
    shape = (tiles.outer, tiles.parts, tiles.inner)
    places, values = (
        Value(f"{anchor.output.name}.{name}", kind, shape) for name, kind in (("places", place), ("values", dtype))
    )
    split, out = tiles.parts > 1, group.outputs[-1]
    prologue, epilogue, extra = reduce_slots(group, graph, tiles.space, (tiles.outer, tiles.inner))
    constants = {**tiles.constants, "LARGEST": largest, "INITIAL": initial, "TYPE": language_type(dtype),
                 "PLACE": language_type(place), "PROLOGUE": prologue, "EPILOGUE": epilogue}  # fmt: skip
    kernel = kernels.extreme_of_rows if tiles.is_rows else kernels.extreme_of_columns
    tensors = {"out": places if split else out, "values": values if split else out}
    calls = [launch(kernel, tensors, tiles.sizes, constants, tiles.grid, extra, tiles.threads)]
    if split:
        lanes = next_power_of_2(tiles.parts)
        block = max(1, min(TILE_ELEMENTS // lanes, next_power_of_2(expected(tiles.inner))))
        constants = {"LANES": lanes, "BLOCK": block, "PARTS": tiles.parts, "LARGEST": largest, "INITIAL": initial,
                     "LAST": 2**31 - 1 if place == int32 else 2**63 - 1, "EPILOGUE": epilogue}  # fmt: skip
        grid = (simplify(lift(tiles.outer) * ceil_divide(tiles.inner, block)), 1, 1)
        tensors = {"places": places, "values": values, "out": out}
        threads = max(LEAST_CTA_THREADS, min(256, lanes * block // 16))
        calls.append(launch(kernels.extreme_of_parts, tensors, {"inner": tiles.inner}, constants, grid, extra, threads))
    candidate = row_candidate(calls, group, target)
    return replace(candidate, temporaries=(places, values)) if split else candidate


def cumulative_candidate(group: Group, graph: Graph, target: Target) -> Candidate:
    """A running sum or its kin; of few long rows or columns in two launches, the first of which sums up their parts."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    source, tiles = anchor.inputs[0], _tiles(anchor, target, stores_rows=True)
    dtype = accumulator_type(anchor.op, source.dtype, tiles.reduced)
    tiles = running_tiles(tiles, source.dtype.itemsize, dtype.itemsize, target.machine())
    prologue, epilogue, extra = reduce_slots(group, graph, tiles.space, tiles.space)
    own = {**tiles.constants, "PROLOGUE": prologue, "INITIAL": neutral_element(RUNNING_KINDS[anchor.op], dtype),
           "TYPE": language_type(dtype), "COMBINE": CUMULATIVE[anchor.op]}  # fmt: skip
    totals = Value(f"{anchor.output.name}.totals", dtype, (tiles.outer, tiles.parts, tiles.inner))
    split, calls = tiles.parts > 1, []
    if split:
        kernel = kernels.totals_of_rows if tiles.is_rows else kernels.totals_of_columns
        calls.append(launch(kernel, {"totals": totals}, tiles.sizes, own, tiles.grid, extra, tiles.threads))
    constants = {**own, "LANES": next_power_of_2(tiles.parts), "EPILOGUE": epilogue,
                 "REVERSE": anchor.attributes["reverse"]}  # fmt: skip
    kernel = kernels.cumulative_rows if tiles.is_rows else kernels.cumulative_columns
    if tiles.is_rows:
        constants["WHOLE"] = tiles.parts == 1 and upper_bound(tiles.reduced) <= tiles.along
    else:
        constants["ONE_BLOCK"] = upper_bound(tiles.share) <= tiles.along
    out = group.outputs[-1]
    tensors = {"out": out, "totals": totals if split else out}
    calls.append(launch(kernel, tensors, tiles.sizes, constants, tiles.grid, extra, tiles.threads))
    candidate = row_candidate(calls, group, target)
    return replace(candidate, temporaries=(totals,)) if split else candidate


# Sums, products, means, the least and the largest element


def gpu_reduction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor reduces axes, or runs along one."""
    anchor = group.anchor
    assert anchor is not None
    if anchor.op in REDUCTIONS:
        return [other for candidate in _reductions(group, graph, target) for other in with_threads(candidate)]
    if anchor.op in ("argmax", "argmin"):
        return [extreme_candidate(group, graph, target)]
    if anchor.op in CUMULATIVE:
        return [cumulative_candidate(group, graph, target)]
    raise UnsupportedOperationError(f"no kernel for reduction {anchor.op} (from {anchor.source or 'the graph'})")


def with_threads(candidate: Candidate) -> list[Candidate]:
    """A candidate, and the same with half, twice and four times the threads, which the estimate cannot tell apart."""
    found = [candidate]
    for factor in (2, 4, 0.5):
        stages = tuple(
            Stage(tuple(replace(call, threads=int(call.threads * factor)) for call in stage.calls))
            for stage in candidate.stages
        )
        counts = [call.threads for stage in stages for call in stage.calls]
        if min(counts) >= LEAST_CTA_THREADS and max(counts) <= MOST_CTA_THREADS:
            cost = replace(candidate.cost, seconds=candidate.cost.seconds * 1.01)
            reasons = {**candidate.reasons, "threads": ", ".join(map(str, counts))}
            found.append(replace(candidate, stages=stages, cost=cost, reasons=reasons))
    return found


def _reductions(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """A reduction; one to few numbers in two launches, the first of which does parts of what is reduced."""
    if reduction_parts(group, target) == 1:
        return [row_candidate([_reduce(group, graph, target)], group, target)]
    found: list[Candidate] = []
    few, many = (reduction_parts(group, target, ctas) for ctas in (CTAS, MANY_CTAS))
    for parts in dict.fromkeys((many, few) if are_long(group, many) else (few, many)):
        first, partial = first_of_parts(reduction_of(group, graph), parts)
        candidate = row_candidate([first, _reduce(rest_of_parts(group, partial), graph, target)], group, target)
        if found:  # the estimate cannot tell them apart
            seconds = max(candidate.cost.seconds, found[0].cost.seconds * OTHER)
            candidate = replace(candidate, cost=replace(candidate.cost, seconds=seconds))
        found.append(replace(candidate, temporaries=(partial,), reasons={**candidate.reasons, "parts": parts}))
    return found


def _reduce(group: Group, graph: Graph, target: Target) -> KernelCall:
    problem = reduction_of(group, graph)
    processors = target.machine().processors
    deal = along_rows(problem, target, kernels.reduce_rows) if problem.inner == 1 else _over_rows(problem, processors)
    return problem.call(deal, problem.constants)


def along_rows(problem: Reduction, target: Target, kernel: JITFunction) -> Deal:
    """How a reduction of rows is divided."""
    outer, reduced = problem.outer, problem.reduced
    config = sum_config(expected(outer), expected(reduced), target.machine().processors)
    mask = not (divides(config.block, reduced) and divides(config.rows, outer))
    constants = {"ROWS": config.rows, "BLOCK": config.block, "MASK": mask}
    return Deal(kernel, constants, (ceil_divide(outer, config.rows), 1, 1), config.threads)


def _columns(outer: Size, reduced: Size, inner: int, processors: int) -> int:
    """Columns of a block: more where there are few rows to sum, as long as there are CTAs for all processors, and fewer
    where there are not."""
    columns = MIDDLE_COLUMNS
    while columns > max(FEW_COLUMNS, FEW_ELEMENTS // max(1, expected(reduced))):
        if expected(outer) * -(-inner // columns) >= processors:
            break
        columns //= 2
    if isinstance(reduced, int):
        most = FEW_ELEMENTS // next_power_of_2(reduced)
        while 2 * columns <= most and expected(outer) * inner >= FEW_CTAS * 2 * columns:
            columns *= 2
    return columns


def _over_rows(problem: Reduction, processors: int) -> Deal:
    outer, reduced, inner = problem.outer, problem.reduced, problem.inner
    block = MIDDLE_COLUMNS
    if isinstance(inner, int):
        block = min(next_power_of_2(inner), _columns(outer, reduced, inner, processors))
    block_r = COLUMN_ELEMENTS // block
    block_r = min(next_power_of_2(reduced), block_r) if isinstance(reduced, int) else block_r
    constants = {"BLOCK_R": block_r, "BLOCK": block, "MASK_R": not divides(block_r, reduced),
                 "MASK": not divides(block, inner)}  # fmt: skip
    threads = max(LEAST_CTA_THREADS, min(MOST_CTA_THREADS, block * block_r // 32))
    return Deal(kernels.reduce_columns, constants, (ceil_divide(inner, block), outer, 1), threads)
