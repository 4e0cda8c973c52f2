"""Rules of tiles in shared memory: views, loads and stores of blocks, and copies in bulk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.types import SharedType, TensorMapType
from tilewright.targets.gpu.conversions import register_type
from tilewright.targets.gpu.lowering import unsupported
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.nvidia.explicit import matrix_moves, tma
from tilewright.targets.nvidia.explicit.lowering import ExplicitLowering, ExplicitRule
from tilewright.targets.nvidia.explicit.ptx import offset
from tilewright.targets.nvidia.explicit.views import SharedView, tile_bytes, whole
from tilewright.targets.nvidia.lowered import TensorMapUse

_GREATEST_BOX = 256  # elements of a box along one axis
_L2_PROMOTION = 256
_WORD_BYTES = 4  # bytes
_ROW = 16  # bytes, of which rows of boxes are multiples


# Views -------------------------------------------------------------------------------------------


def _alloc(lowering: ExplicitLowering, operation: Operation) -> None:
    kind = operation.result.type.handle
    assert isinstance(kind, SharedType)
    start = lowering.i32(lowering.places.tiles[operation])
    lowering.define_view(operation.result, whole(start, kind.shape, kind.element, kind.swizzle))


def _index(lowering: ExplicitLowering, operation: Operation) -> None:
    tile, number = operation.operands
    view = lowering.view(tile).index(lowering.builder, lowering.scalar(number))
    lowering.define_view(operation.result, view)


def _slice(lowering: ExplicitLowering, operation: Operation) -> None:
    tile, first = operation.operands
    axis, extent = operation.attributes["axis"], operation.attributes["extent"]
    assert isinstance(axis, int) and isinstance(extent, int)
    view = lowering.view(tile).slice(lowering.builder, lowering.scalar(first), axis, extent)
    lowering.define_view(operation.result, view)


def _transpose(lowering: ExplicitLowering, operation: Operation) -> None:
    lowering.define_view(operation.result, lowering.view(operation.operands[0]).transpose())


def _remote(lowering: ExplicitLowering, operation: Operation) -> None:
    tile, rank = operation.operands
    lowering.define_view(operation.result, replace(lowering.view(tile), peer=lowering.scalar(rank)))


# Blocks ------------------------------------------------------------------------------------------


def _planned(
    lowering: ExplicitLowering, operation: Operation, block: SSAValue, view: SharedView, stored: bool
) -> matrix_moves.AccessPlan:
    """How a block moves to or from a tile."""
    shape = block.type.shape
    if len(shape) > 2 and (view.transposed or any(extent & (extent - 1) for extent in shape[1:-1])):
        reason = "of a tile of more axes than two all but the first and the last are powers of two, and none is swapped"
        raise unsupported(lowering, operation, reason)
    return matrix_moves.plan(lowering.layout(block), shape, view, stored)


def _load(lowering: ExplicitLowering, operation: Operation) -> None:
    """Registers that repeat another's element are loaded like all others: neighbours share one instruction."""
    result, view = operation.result, lowering.view(operation.operands[0])
    chosen = _planned(lowering, operation, result, view, stored=False)
    if view.peer is not None and len(chosen.moves[0].registers) * view.element.itemsize < _WORD_BYTES:
        raise unsupported(
            lowering, operation, "threads read other CTAs' memory in words of 4 bytes, and want single elements"
        )
    element = register_type(result.type.element)
    loading = lowering.loading[view.peer is not None]
    values = matrix_moves.load(lowering.builder, chosen, view, lowering.threads, element, loading)
    lowering.define(result, [values[number] for number in lowering.numbers(result)])


def _store(lowering: ExplicitLowering, operation: Operation) -> None:
    tile, block = operation.operands
    view = lowering.view(tile)
    chosen = _planned(lowering, operation, block, view, stored=True)
    values = dict(zip(lowering.numbers(block), lowering.registers(block), strict=True))
    matrix_moves.store(lowering.builder, chosen, view, lowering.threads, values)


def _shared_wait(lowering: ExplicitLowering, operation: Operation) -> None:
    loading = lowering.loading[bool(operation.attributes["remote"])]
    if loading:
        matrix_moves.await_words(lowering.builder, loading)
        loading.clear()


# Copies in bulk ----------------------------------------------------------------------------------


def _boxes(block: Sequence[int], view: SharedView) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], int]]]:
    """The box of one instruction, and for each instruction its place in the block and its byte offset in the tile.

    A box is at most a panel wide and has extents up to 256; leading axes are in it where it is a whole tile.
    """
    rows, columns = (block[-2] if len(block) > 1 else 1), block[-1]
    width = _part(min(columns, view.panel_columns), _ROW // view.element.itemsize)
    height = _part(rows, 1) if width == view.panel_columns else 1  # parts of rows come row by row
    single = view.panels == 1 and (height, width) == (rows, columns)
    leading = tuple(block[:-2])
    inner = leading if single else (1,) * len(leading)
    box = (*inner, height, width)[-len(block) :]
    size = tile_bytes((rows, columns), view.element, view.swizzle)
    places = []
    for outer in product(*(range(0, extent, step) for extent, step in zip(leading, inner, strict=True))):
        number = 0
        for position, extent in zip(outer, leading, strict=True):
            number = number * extent + position
        for column, row in product(range(0, columns, width), range(0, rows, height)):
            panel, within = divmod(column, view.panel_columns)
            start = number * size + panel * view.panel_bytes + row * view.pitch + within * view.element.itemsize
            places.append(((*outer, row, column)[-len(block) :], start))
    return box, places


def _part(extent: int, unit: int) -> int:
    """The greatest multiple of a unit that a box may have along an axis and that divides the extent (or the extent)."""
    parts = range(min(extent, _GREATEST_BOX) // unit * unit, 0, -unit)
    return next((part for part in parts if extent % part == 0), extent)


def _copies(lowering: ExplicitLowering, operation: Operation) -> Iterator[tuple[LLVMValue, list[LLVMValue], LLVMValue]]:
    """The map, the coordinates and the place in shared memory of each instruction."""
    tensor_map = operation.operands[0]
    kind = tensor_map.type.handle
    assert isinstance(kind, TensorMapType)
    rank = len(kind.block)
    coordinates = [lowering.scalar(value) for value in operation.operands[1 : 1 + rank]]
    view = lowering.view(operation.operands[1 + rank])
    box, places = _boxes(kind.block, view)
    _use_map(lowering, operation, tensor_map, box, view)
    for position, start in places:
        moved = [offset(lowering.builder, own, step) for own, step in zip(coordinates, position, strict=True)]
        yield lowering.scalar(tensor_map), moved, offset(lowering.builder, view.start, start)


def _use_map(
    lowering: ExplicitLowering, operation: Operation, tensor_map: SSAValue, box: tuple[int, ...], view: SharedView
) -> None:
    """Note how a parameter is used; all uses of one must agree, for it is one map."""
    parameter = lowering.function.region.arguments.index(tensor_map)
    use = TensorMapUse(parameter, box, view.element, view.swizzle, _L2_PROMOTION)
    known = next((other for other in lowering.tensor_maps if other.parameter == parameter), None)
    if known is None:
        lowering.tensor_maps.append(use)
    elif known != use:
        name = lowering.function.parameters[parameter].name
        raise unsupported(
            lowering,
            operation,
            f"the descriptor '{name}' is used with tiles that lie differently in memory (boxes of {known.box} with "
            f"swizzle {known.swizzle}, and of {use.box} with {use.swizzle}); pass the tensor twice, as two descriptors",
        )


def _tma_load(lowering: ExplicitLowering, operation: Operation) -> None:
    kind = operation.operands[0].type.handle
    assert isinstance(kind, TensorMapType)
    barrier, *mask = operation.operands[2 + len(kind.block) :]
    multicast = lowering.scalar(mask[0]) if mask else None
    eviction = str(operation.attributes["eviction"])
    with lowering.leader(operation):
        for tensor_map, coordinates, place in _copies(lowering, operation):
            tma.load(lowering.builder, tensor_map, coordinates, place, lowering.scalar(barrier), multicast, eviction)


def _tma_store(lowering: ExplicitLowering, operation: Operation) -> None:
    kind = str(operation.attributes["kind"])
    with lowering.leader(operation):
        for tensor_map, coordinates, place in _copies(lowering, operation):
            tma.store(lowering.builder, tensor_map, coordinates, place, kind)


def _tma_commit(lowering: ExplicitLowering, operation: Operation) -> None:
    with lowering.leader(operation):
        tma.commit(lowering.builder)


def _prefetch(lowering: ExplicitLowering, operation: Operation) -> None:
    with lowering.leader(operation):
        tma.prefetch(lowering.builder, *map(lowering.scalar, operation.operands))


def _tma_prefetch(lowering: ExplicitLowering, operation: Operation) -> None:
    with lowering.leader(operation):
        for tensor_map, coordinates, _ in _copies(lowering, operation):
            tma.prefetch_box(lowering.builder, tensor_map, coordinates)


def _tma_wait(lowering: ExplicitLowering, operation: Operation) -> None:
    outstanding = operation.attributes["outstanding"]
    assert isinstance(outstanding, int)
    with lowering.leader(operation):
        tma.wait(lowering.builder, outstanding, bool(operation.attributes["read"]))


RULES: dict[str, ExplicitRule] = {
    "shared_alloc": _alloc,
    "shared_index": _index,
    "shared_slice": _slice,
    "shared_transpose": _transpose,
    "shared_remote": _remote,
    "shared_load": _load,
    "shared_store": _store,
    "shared_wait": _shared_wait,
    "tma_load": _tma_load,
    "tma_store": _tma_store,
    "tma_commit": _tma_commit,
    "prefetch": _prefetch,
    "tma_prefetch": _tma_prefetch,
    "tma_wait": _tma_wait,
}
