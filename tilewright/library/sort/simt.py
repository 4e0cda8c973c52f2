"""Sorting on GPUs: which rows are a network's, how tiles are merged or give their first elements."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.dtypes import DType, int32, uint32, uint64
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import launch
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.cost import Cost, expected
from tilewright.library.generated.elementwise import tensor_bytes, total_bytes
from tilewright.library.sort import radix_kernel as radix
from tilewright.library.sort import simt_kernel as kernels
from tilewright.library.sort.problem import Sorting, sorting_of
from tilewright.symbolic import Size, ceil_divide, lift, simplify, upper_bound
from tilewright.targets.base import Target
from tilewright.targets.library_facts import SORTED_ROW

STAGES = SORTED_ROW.bit_length() - 1  # log2 of the elements of a CTA's network, at most
NETWORK_ELEMENTS = 1024  # of the networks of short rows together
EACH = 8  # elements of a thread
SELECTED = 9  # log2 of the elements of rows from which on the first few are found without sorting all
CHUNKS = 128  # of a tile whose digits are counted
MOVE_REGISTERS = 64  # of a thread that moves elements: an SM has room for 1024 of these
COUNTS = 1024  # that a program adds up at once
MOST_BITS = 5  # of a digit: of 6 bits it takes twice as long as of 4
DIGIT_CLOCKS, NETWORK_CLOCKS, MERGE_CLOCKS = 2.55, 6.9, 3.6  # of an SM for an element: measured on an H200
LOG2_SELECTED = 9  # log2 of how many first elements of long rows are found without sorting all


def gpu_sorting(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group that sorts rows. Raises `UnsupportedOperationError` for what has no kernel."""
    sorting = sorting_of(group)
    longest, few = _log2(upper_bound(sorting.columns)), _log2(upper_bound(sorting.limit))
    candidate = partial(_candidate, sorting, group, target)
    if sorting.source.dtype.itemsize == 8:
        return [candidate("network", ([_rows(sorting, longest)], []))]
    if longest >= max(few + 3, SELECTED) and few <= min(LOG2_SELECTED, STAGES - 3):
        return [candidate("network", _selected(sorting, longest, few))]
    if isinstance(sorting.columns, int) and sorting.columns >= 2**31:
        raise UnsupportedOperationError(
            f"argsort of {sorting.source!r} on a GPU: rows of 2^31 and more elements have no kernel but for the first "
            f"{1 << LOG2_SELECTED}; sort parts of them"
        )
    if longest <= STAGES:
        return [candidate("network", ([_rows(sorting, longest)], []))]
    digits = digits_of(sorting.source.dtype)
    return [
        candidate("radix sort", _by_digits(sorting, digits, target.machine().processors), len(digits) * DIGIT_CLOCKS),
        candidate("network", _merged(sorting, longest), NETWORK_CLOCKS + (longest - STAGES) * MERGE_CLOCKS),
    ]


def _candidate(
    sorting: Sorting, group: Group, target: Target, name: str, form: tuple[list[KernelCall], list[Value]],
    each: float = 0.0,
) -> Candidate:  # fmt: skip
    """Launches and what lies between them; `each`: clocks of an SM for an element."""
    (stages, temporaries), machine = form, target.machine()
    traffic = 2 * sum(expected(tensor_bytes(value)) for value in temporaries)
    moved = simplify(lift(total_bytes(group.inputs, group.outputs)) + traffic)
    padded = lift(ceil_divide(sorting.columns, 1 << STAGES)) * (1 << STAGES) * sorting.rows
    work = each * expected(simplify(padded)) / (machine.processors * machine.clock)
    seconds = len(stages) * machine.launches.kernel + max(work, expected(moved) / machine.memory)
    reasons = {"kernels": ", ".join(dict.fromkeys(call.kernel.__name__ for call in stages)), "launches": len(stages)}
    launches = tuple(Stage((call,)) for call in stages)
    return Candidate(name, launches, Cost(moved, 0, seconds), tuple(temporaries), reasons)


def _log2(extent: int) -> int:
    """log2 of the next power of two."""
    return max(0, extent - 1).bit_length()


def _threads(elements: int) -> int:
    return max(32, min(512, elements // EACH))


def _rows(sorting: Sorting, stages: int) -> KernelCall:
    """Whole rows in registers."""
    rows = max(1, NETWORK_ELEMENTS >> stages)
    sizes = {"rows": sorting.rows, "columns": sorting.columns, "limit": sorting.limit}
    wide = sorting.source.dtype.itemsize == 8
    kernel, keys = (kernels.sort_wide_rows, sorting.plain_keys) if wide else (kernels.sort_rows, sorting.keys)
    tensors, missing = sorting.stored(read=True)
    del missing["target"]  # one launch does it all
    constants = {"ROWS": rows, "STAGES": stages, **keys, **missing}
    grid: tuple[Size, Size, Size] = (ceil_divide(sorting.rows, rows), 1, 1)
    return launch(kernel, tensors, sizes, constants, grid, None, _threads(rows << stages))


def _merged(sorting: Sorting, longest: int) -> tuple[list[KernelCall], list[Value]]:
    """Sorted tiles, merged two by two."""
    tiles = ceil_divide(sorting.columns, 1 << STAGES)
    padded, passes, threads = simplify(lift(tiles) * (1 << STAGES)), longest - STAGES, _threads(1 << STAGES)
    buffers = [sorting.temporary(name, padded) for name in ("sorted", "merged")][: min(passes, 2)]
    grid: tuple[Size, Size, Size] = (simplify(lift(tiles) * sorting.rows), 1, 1)
    sizes = {"columns": sorting.columns, "padded": padded, "tiles": tiles}
    tensors: dict[str, Operand] = {"x": sorting.source, "keys": buffers[0]}
    calls = [launch(kernels.sort_tiles, tensors, sizes, {"STAGES": STAGES, **sorting.keys}, grid, None, threads)]
    for number in range(passes):
        target = None if number == passes - 1 else buffers[(number + 1) % 2]
        tensors, missing = sorting.stored(between=target)
        tensors["source"] = buffers[number % 2]
        constants = {"STAGES": STAGES, "STEPS": longest + 1, **sorting.packing, **missing}
        sizes = {"padded": padded, "columns": sorting.columns, "limit": sorting.limit, "tiles": tiles}
        call = launch(kernels.merge_runs, tensors, sizes, constants, grid, None, threads)
        # A parameter of the run, so that all passes are one kernel.
        operands = {**call.operands, "length": 1 << (STAGES + number)}
        calls.append(replace(call, operands=operands, types={**call.types, "length": "i64"}))
    return calls, buffers


def digits_of(dtype: DType) -> list[int]:
    """The bits of each digit of keys, from the lowest on: about equal ones, of at most `MOST_BITS`."""
    bits = 8 * dtype.itemsize
    count = -(-bits // MOST_BITS)
    return [bits // count + (number < bits % count) for number in range(count)]


def _by_digits(sorting: Sorting, digits: list[int], processors: int) -> tuple[list[KernelCall], list[Value]]:
    """A pass for each digit: tiles are counted, counts added up, elements moved."""
    rows, columns, name = sorting.rows, sorting.columns, sorting.anchor.output.name
    tiles = ceil_divide(columns, CHUNKS * int(radix.CHUNK))
    grid: tuple[Size, Size, Size] = (simplify(lift(tiles) * rows), 1, 1)
    position, left = max(1, _log2(upper_bound(columns))), sum(digits)
    most = 1 << max(digits)
    counts = Value(f"{name}.counts", int32, (rows, most, tiles))
    totals = Value(f"{name}.totals", int32, (rows, most))
    calls, buffers, source = list[KernelCall](), dict[str, Value](), sorting.source
    for number, bits in enumerate(digits):
        constants = {**sorting.plain_keys, "SHIFT": position, "CHUNKS": CHUNKS, "BITS": bits, "FIRST": number == 0}
        left -= bits
        target = None
        if number < len(digits) - 1:
            narrow = uint32 if position + left <= 32 else uint64
            between = Value(f"{name}.{narrow.name}_{number % 2}", narrow, (rows, columns))
            target = buffers.setdefault(between.name, between)
        threads = _threads(CHUNKS * int(radix.CHUNK))
        sizes = {"columns": columns, "tiles": tiles}
        calls.append(
            launch(radix.count_digits, {"source": source, "counts": counts}, sizes, constants, grid, None, threads)
        )
        calls.append(_scanned(counts, totals, simplify(lift(rows) * (1 << bits)), tiles, processors))
        tensors, missing = sorting.stored(between=target)
        tensors |= {"source": source, "counts": counts, "totals": totals}
        sizes |= {"limit": sorting.limit}
        call = launch(radix.move_by_digit, tensors, sizes, {**constants, **missing}, grid, None, threads)
        calls.append(replace(call, options={"maxnreg": MOVE_REGISTERS}))
        source = source if target is None else target
    return calls, [counts, totals, *buffers.values()]


def _scanned(counts: Value, totals: Value, lines: Size, tiles: Size, processors: int) -> KernelCall:
    """The launch that adds up the counts of each line: of short lines several at once."""
    block = min(COUNTS, 1 << _log2(upper_bound(tiles)))
    together = max(1, min(COUNTS // block, 1 << _log2(expected(lines) // (2 * processors) + 1) >> 1))
    sizes, constants = {"lines": lines, "tiles": tiles}, {"LINES": together, "BLOCK": block}
    grid: tuple[Size, Size, Size] = (ceil_divide(lines, together), 1, 1)
    tensors = {"counts": counts, "totals": totals}
    return launch(radix.scan_digits, tensors, sizes, constants, grid, None, max(32, block * together // 4))


def _selected(sorting: Sorting, longest: int, few: int) -> tuple[list[KernelCall], list[Value]]:
    """The first elements of each tile, then the first ones of these, until there is one tile."""
    calls, temporaries = list[KernelCall](), list[Value]()
    keys: Value | None = None
    columns, most = sorting.columns, longest
    while True:
        stages = min(most, STAGES)
        tiles = ceil_divide(columns, 1 << stages)
        width = simplify(lift(tiles) * (1 << few))
        between = None if most <= STAGES else sorting.temporary(f"first_{len(temporaries)}", width)
        tensors, missing = sorting.stored(between=between, read=keys is None)
        constants = {
            "FEW": few,
            "LEVELS": stages - few,
            **(sorting.keys if keys is None else sorting.packing),
            **missing,
        }
        sizes = {"columns": columns, "limit": sorting.limit, "tiles": tiles}
        if keys is not None:
            tensors["keys"] = keys
            sizes["length"] = sorting.columns
        kernel = kernels.select_first if keys is None else kernels.select_again
        grid = (simplify(lift(tiles) * sorting.rows), 1, 1)
        calls.append(launch(kernel, tensors, sizes, constants, grid, None, _threads(1 << stages)))
        if between is None:
            return calls, temporaries
        temporaries.append(between)
        columns, keys, most = width, between, most - STAGES + few
