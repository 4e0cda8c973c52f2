"""Sorting on GPUs: which rows are a network's, how tiles are merged or give their first elements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tilewright.language as tl
from tilewright.dtypes import DType, uint8, uint16, uint32, uint64
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate, KernelCall, Stage
from tilewright.library.cost import Cost, expected
from tilewright.library.generated.elementwise import tensor_bytes, total_bytes
from tilewright.library.rows.simt_parts import launch
from tilewright.library.sort import simt_kernel as kernels
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, upper_bound
from tilewright.targets.base import Target

STAGES = 12  # log2 of the elements of a CTA's network, at most
NETWORK_ELEMENTS = 1024  # of the networks of short rows together
EACH = 8  # elements of a thread
SELECTED = 9  # log2 of the elements of rows from which on the first few are found without sorting all
LOG2_SELECTED = 9  # log2 of how many first elements of long rows are found without sorting all
_KEYS: dict[int, DType] = {1: uint8, 2: uint16, 4: uint32}


@dataclass(frozen=True)
class Sorting:
    """An `argsort` along the last dimension: rows, columns, how many positions are wanted (`limit`)."""

    anchor: Node
    source: Value
    rows: Size
    columns: Size
    limit: Size
    pack: DType  # of an element and its position together
    shift: int  # bits of a position

    @property
    def packing(self) -> dict[str, Any]:
        """The constants of packed numbers."""
        return {"PACK": getattr(tl, self.pack.name), "SHIFT": self.shift}

    @property
    def keys(self) -> dict[str, Any]:
        """The constants of what makes them."""
        dtype = self.source.dtype
        sign = 1 << (8 * dtype.itemsize - 1) if dtype.is_float or dtype.is_signed else 0
        return {**self.packing, "KEY": getattr(tl, _KEYS[dtype.itemsize].name), "SIGN": sign, "FLOAT": dtype.is_float,
                "DESCENDING": self.anchor.attributes["descending"]}  # fmt: skip

    def temporary(self, name: str, columns: Size) -> Value:
        """Packed numbers between launches."""
        return Value(f"{self.anchor.output.name}.{name}", self.pack, (self.rows, columns))


def _sorting(group: Group) -> Sorting:
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    x = anchor.inputs[0]
    if x.dtype.itemsize not in _KEYS or anchor.attributes["axis"] != x.rank - 1:
        raise UnsupportedOperationError(f"argsort of {x!r} on a GPU: only the last axis of up to 32 bits has a kernel")
    if group.nodes != [anchor]:
        raise NotImplementedError(f"{group.name}: sorting has no slots")
    columns, bits = x.shape[-1], 8 * x.dtype.itemsize
    pack = uint32 if bits < 32 and upper_bound(columns) <= 1 << (32 - bits) else uint64
    shift = pack.bits - bits
    return Sorting(anchor, x, product(x.shape[:-1]), columns, anchor.output.shape[-1], pack, shift)


def gpu_sorting(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidate of a group that sorts rows. Raises `UnsupportedOperationError` for elements of 64 bits."""
    sorting = _sorting(group)
    longest, few = _log2(upper_bound(sorting.columns)), _log2(upper_bound(sorting.limit))
    if longest >= max(few + 3, SELECTED) and few <= min(LOG2_SELECTED, STAGES - 3):
        stages, temporaries = _selected(sorting, longest, few)
    elif longest <= STAGES:
        stages, temporaries = [_rows(sorting, longest)], []
    else:
        stages, temporaries = _merged(sorting, longest)
    moved = simplify(
        lift(total_bytes(group.inputs, group.outputs)) + 2 * sum(expected(tensor_bytes(value)) for value in temporaries)
    )
    machine = target.machine()
    seconds = len(stages) * machine.launches.kernel + expected(moved) / machine.memory
    reasons = {"kernels": ", ".join(dict.fromkeys(call.kernel.__name__ for call in stages)), "launches": len(stages)}
    cost = Cost(moved, 0, seconds)
    return [Candidate("network", tuple(Stage((call,)) for call in stages), cost, tuple(temporaries), reasons)]


def _log2(extent: int) -> int:
    """log2 of the next power of two."""
    return max(0, extent - 1).bit_length()


def _warps(elements: int) -> int:
    return max(1, min(16, elements // (32 * EACH)))


def _rows(sorting: Sorting, stages: int) -> KernelCall:
    """Whole rows in registers."""
    rows = max(1, NETWORK_ELEMENTS >> stages)
    sizes = {"rows": sorting.rows, "columns": sorting.columns, "limit": sorting.limit}
    constants = {"ROWS": rows, "STAGES": stages, **sorting.keys}
    tensors = {"x": sorting.source, "out": sorting.anchor.output}
    grid: tuple[Size, Size, Size] = (ceil_divide(sorting.rows, rows), 1, 1)
    return launch(kernels.sort_rows, tensors, sizes, constants, grid, None, _warps(rows << stages))


def _merged(sorting: Sorting, longest: int) -> tuple[list[KernelCall], list[Value]]:
    """Sorted tiles, merged two by two."""
    tiles = ceil_divide(sorting.columns, 1 << STAGES)
    padded, passes, warps = simplify(lift(tiles) * (1 << STAGES)), longest - STAGES, _warps(1 << STAGES)
    buffers = [sorting.temporary(name, padded) for name in ("sorted", "merged")][: min(passes, 2)]
    grid: tuple[Size, Size, Size] = (simplify(lift(tiles) * sorting.rows), 1, 1)
    sizes = {"columns": sorting.columns, "padded": padded, "tiles": tiles}
    tensors = {"x": sorting.source, "keys": buffers[0]}
    calls = [launch(kernels.sort_tiles, tensors, sizes, {"STAGES": STAGES, **sorting.keys}, grid, None, warps)]
    for number in range(passes):
        last = number == passes - 1
        target = sorting.anchor.output if last else buffers[(number + 1) % 2]
        tensors = {"source": buffers[number % 2], "target": target}
        constants = {"STAGES": STAGES, "STEPS": longest + 1, "LAST": last, **sorting.packing}
        sizes = {"padded": padded, "limit": sorting.limit, "tiles": tiles}
        call = launch(kernels.merge_runs, tensors, sizes, constants, grid, None, warps)
        # A parameter of the run, so that all passes are one kernel.
        operands = {**call.operands, "length": 1 << (STAGES + number)}
        calls.append(replace(call, operands=operands, types={**call.types, "length": "i64"}))
    return calls, buffers


def _selected(sorting: Sorting, longest: int, few: int) -> tuple[list[KernelCall], list[Value]]:
    """The first elements of each tile, then the first ones of these, until there is one tile."""
    calls, temporaries = list[KernelCall](), list[Value]()
    columns, source, most = sorting.columns, sorting.source, longest
    while True:
        stages = min(most, STAGES)
        last = most <= STAGES
        tiles = ceil_divide(columns, 1 << stages)
        width = simplify(lift(tiles) * (1 << few))
        out = sorting.anchor.output if last else sorting.temporary(f"first_{len(temporaries)}", width)
        constants = {"FEW": few, "LEVELS": stages - few, "LAST": last}
        constants |= sorting.packing if calls else sorting.keys
        kernel = kernels.select_again if calls else kernels.select_first
        tensors = {"keys" if calls else "x": source, "out": out}
        sizes = {"columns": columns, "limit": sorting.limit, "tiles": tiles}
        grid = (simplify(lift(tiles) * sorting.rows), 1, 1)
        calls.append(launch(kernel, tensors, sizes, constants, grid, None, _warps(1 << stages)))
        if last:
            return calls, temporaries
        temporaries.append(out)
        columns, source, most = width, out, most - STAGES + few
