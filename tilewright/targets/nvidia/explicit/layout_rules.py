"""Layout rules of the explicit operations: those of products, and those that follow for the roles' warps."""

from __future__ import annotations

from math import prod

from tilewright.errors import CompilationError
from tilewright.ir.core import Operation
from tilewright.ir.types import PendingType, SharedType
from tilewright.layout import LinearLayout, wgmma_accumulator, wgmma_operand
from tilewright.layout.distributed import next_power_of_two
from tilewright.targets.gpu.assigner import Assigner, Rule
from tilewright.targets.gpu.transfer import blocked_layout
from tilewright.targets.nvidia.explicit import roles

_WIDEST_LOAD_BYTES = 16  # bytes of the widest load


def accumulator_layout(kind: PendingType, warps: int) -> LinearLayout:
    """Where the threads of `warps` warps hold an accumulator."""
    rows, columns = kind.shape
    return wgmma_accumulator((rows, next_power_of_two(columns)), columns, (warps // 4, 1))


def _multiply(assigner: Assigner, operation: Operation) -> None:
    """Operand A and the accumulator, where they are blocks, have to be where the instruction reads them."""
    kind = operation.result.type.handle
    assert isinstance(kind, PendingType)
    _check_group(assigner, operation, kind)
    wanted: list[LinearLayout | None] = [None] * len(operation.operands)
    a = operation.operands[0]
    if not a.type.is_handle:
        shape = (a.type.shape[0], next_power_of_two(a.type.shape[1]))
        wanted[0] = wgmma_operand(shape, max(1, 4 // a.type.dtype.itemsize), (assigner.warps // 4, 1))
    if len(wanted) > 2 and not operation.operands[2].type.is_handle:
        wanted[2] = accumulator_layout(kind, assigner.warps)
    assigner.require(operation, wanted)


def _check_group(assigner: Assigner, operation: Operation, kind: PendingType) -> None:
    groups = assigner.warps // 4
    if assigner.warps % 4 or groups & (groups - 1) or kind.shape[0] % (64 * groups):
        place = f"{operation.location}: " if operation.location else ""
        raise CompilationError(
            f"{place}a product of {kind.shape[0]} rows by {assigner.warps} warps: wgmma is run by one warpgroup of 4 "
            "warps, or by 2 or 4 of them with 64 rows (or a multiple) each. Change the role's warps or the rows"
        )


def _wait(assigner: Assigner, operation: Operation) -> None:
    for result, operand in zip(operation.results, operation.operands, strict=True):
        kind = operand.type.handle
        assert isinstance(kind, PendingType)
        assigner.anchor(result, accumulator_layout(kind, assigner.warps))


def _load(assigner: Assigner, operation: Operation) -> None:
    """In the layout of what it is combined with; from another CTA, which takes long, in the fewest instructions."""
    tile, result = operation.operands[0].type.handle, operation.result
    assert isinstance(tile, SharedType)
    shape, each = result.type.shape, prod(result.type.shape) // (assigner.lanes * assigner.warps)
    if tile.remote and len(shape) == 2 and each and all(extent & (extent - 1) == 0 for extent in shape):
        vector = min(each, shape[1], _WIDEST_LOAD_BYTES // result.type.element.itemsize)
        assigner.anchor(result, blocked_layout(shape, 1, vector, assigner.warps, assigner.lanes))
    else:
        assigner.open[result] = None


def _take(assigner: Assigner, operation: Operation) -> None:
    """Blocks are taken as they are."""
    wanted = [assigner.settle(value) if value.type.rank else None for value in operation.operands]
    assigner.require(operation, wanted)


def _slice(assigner: Assigner, operation: Operation) -> None:
    """A part stays where it is: the same threads hold it, in some of their registers."""
    (block,) = operation.operands
    axis, start, extent = (operation.attributes[name] for name in ("axis", "start", "extent"))
    assert isinstance(axis, int) and isinstance(start, int) and isinstance(extent, int)
    layout = assigner.settle(block)
    unit = 1 << max(
        (vector[axis].bit_length() for name in ("lane", "warp") for vector in layout.vectors(name)), default=0
    )
    if start % unit or extent % unit:
        place = f"{operation.location}: " if operation.location else ""
        raise CompilationError(
            f"{place}elements {start} to {start + extent - 1} along axis {axis} are not a part that each thread has in "
            f"its own registers: there start and extent are multiples of {unit}"
        )
    assigner.require(operation, [layout])
    assigner.anchor(operation.result, sliced_layout(layout, axis, extent))


def sliced_layout(layout: LinearLayout, axis: int, extent: int) -> LinearLayout:
    """The layout of a part of so many elements: without the registers that lead out of it."""
    whole = next_power_of_two(extent)
    shape = [whole if position == axis else own for position, own in enumerate(layout.shape)]
    bases = {name: [v for v in layout.vectors(name) if v[axis] < whole] for name in layout.input_names}
    return LinearLayout.make(bases, shape)


def _roles(assigner: Assigner, operation: Operation) -> None:
    """Every role has its own number of warps."""
    assigner.finish()  # what stands before them belongs to all warps
    all_warps = assigner.warps
    assigner.direct_loads = True  # tiles leave no memory to convert what an epilogue reads or stores
    for role, region in zip(roles.table(operation), operation.regions, strict=True):
        assigner.warps = role.warps
        assigner.direct_stores = any(inner.opcode == "wgmma" for each in region.operations for inner in each.walk())
        assigner.region(region)
        assigner.finish()
    assigner.warps = all_warps
    assigner.direct_loads = assigner.direct_stores = False


RULES: dict[str, Rule] = {
    "wgmma": _multiply,
    "wgmma_wait": _wait,
    "shared_load": _load,
    "shared_store": _take,
    "warp_any": _take,
    "block_slice": _slice,
    "warp_roles": _roles,
}
