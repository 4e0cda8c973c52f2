"""The explicit operations: shared memory, barriers, bulk copies, warpgroup products, clusters and warp roles.

They are the second family of the op table, what a schedule for sm_90a is made of; `tilewright.language.explicit`
gives them names and `ir.asynchrony` runs them, with everything that is asynchronous done in an adverse order.
Their values are handles (`ir.types`).  The shared rules:

    * Who acts.  Code outside of `warp_roles` is run by all threads of the CTA, code of a role by all threads of the
      copy, code of an elected role by one thread of it.  Copies in bulk, `barrier_expect` and `named` counts are
      the business of one thread, the *leader*, whoever runs the code; other threads do not wait for it.
    * `barrier_arrive` is an arrival of every warp (of one, in an elected role), by a thread that speaks for its warp.
    * A wait of all threads (`barrier_wait`, `wgmma_wait`) tells each warp of its own: what the threads of a group
      wrote or read is known to the others after `group_sync`.
    * Memory written by ordinary stores (`shared_store`) is read by copies and products only after `fence_async`
      and a synchronisation after it.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tilewright.dtypes import BY_NAME, DType, int1, int16, int32, uint8
from tilewright.ir.inference import Attributes, Regions, Rule, Types, check_shape, check_yield, require
from tilewright.ir.table import ALLOCATE, OBSERVE, READ, SYNCHRONIZE, AttributeInfo, OpInfo
from tilewright.ir.types import BarrierType, PendingType, SharedType, TensorMapType, TensorType, scalar

SWIZZLES = (0, 32, 64, 128)
GREATEST_CTA_THREADS = 1024  # of a CTA
INTERPRETED_WARP_THREADS = 32  # of the GPUs that explicit kernels are for; the interpreter has no target
GREATEST_RANK = 5  # of a tensor that is moved by tiles
EVICTIONS = ("", "evict_first", "evict_last")
STORE_KINDS = ("", "add", "min", "max", "and", "or", "xor")

# Element types that wgmma multiplies, by name, with that of the accumulator.
PRODUCTS = {
    ("bfloat16", "bfloat16"): "float32",
    ("float16", "float16"): "float32",
    ("float32", "float32"): "float32",
    **{(a, b): "float32" for a in ("float8e4nv", "float8e5") for b in ("float8e4nv", "float8e5")},
    **{(a, b): "int32" for a in ("int8", "uint8") for b in ("int8", "uint8")},
}


def _kind(operand: TensorType, kind: type, subject: str) -> Any:
    require(isinstance(operand.handle, kind), lambda: f"{subject} is {operand}")
    return operand.handle


def _shared(operand: TensorType, writable: bool = False) -> SharedType:
    found: SharedType = _kind(operand, SharedType, "the tile")
    advice = "read it with .load(); let the CTA that it belongs to write it"
    require(not (writable and found.remote), lambda: f"{operand} lies in another CTA and can only be loaded", advice)
    return found


def _number(operand: TensorType, dtype: DType, subject: str) -> None:
    require(operand == scalar(dtype), lambda: f"{subject} is {operand}, not {dtype}")


def _barrier(operand: TensorType) -> None:
    found: BarrierType = _kind(operand, BarrierType, "the barrier")
    require(found.count is None, lambda: f"{operand} are several: choose one with barrier_index")


# Shared memory


def shared_alloc(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    kind = _tile_type(attributes)
    for operand in operands:
        _shared(operand, writable=True)
    return [scalar(kind)]


def _tile_type(attributes: Attributes) -> SharedType:
    """The type that the attributes `shape`, `dtype` and `swizzle` describe."""
    shape, dtype, swizzle = attributes["shape"], attributes["dtype"], attributes["swizzle"]
    check_shape(shape)
    require(bool(shape), "shared memory has at least one axis", "tx.shared((1,), dtype) holds one element")
    require(
        dtype.kind != "void" and not dtype.is_bool,
        lambda: f"shared memory does not hold {dtype}",
        "keep conditions as i8",
    )
    require(swizzle in SWIZZLES, lambda: f"swizzle {swizzle} is not one of {SWIZZLES}")
    if swizzle:
        require(len(shape) >= 2, "a swizzled tile has at least two axes", "leave swizzle out for a row of its own")
        row = shape[-1] * dtype.itemsize
        advice = f"a swizzle that divides the row, or rows of a multiple of {swizzle // dtype.itemsize} elements"
        require(
            row % swizzle == 0, lambda: f"rows of {row} bytes are no multiple of the swizzle, {swizzle} bytes", advice
        )
        advice = "round the rows up: copies fill those outside of the tensor with zeros, and do not write them"
        require(shape[-2] % 8 == 0, lambda: f"a swizzled tile has a multiple of 8 rows, not {shape[-2]}", advice)
    return SharedType(shape, dtype, swizzle)


def shared_tile(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    memory, kind, offset = _shared(operands[0], writable=True), _tile_type(attributes), attributes["offset"]
    plain = len(memory.shape) == 1 and memory.element == uint8
    require(plain, lambda: f"{operands[0]} is no memory of bytes", "shared_alloc of u8 with one axis, or one of a ring")
    fits = offset >= 0 and offset + kind.bytes <= memory.shape[0]
    require(fits, lambda: f"bytes {offset} .. {offset + kind.bytes - 1} are outside {operands[0]}")
    return [scalar(kind)]


def shared_index(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    tile = _shared(operands[0])
    _number(operands[1], int32, "the index")
    least = 3 if tile.swizzle or tile.transposed else 2
    advice = "a ring has one axis more: tx.shared((stages, rows, columns), …)"
    require(len(tile.shape) >= least, lambda: f"{operands[0]} is a single tile", advice)
    return [scalar(SharedType(tile.shape[1:], tile.element, tile.swizzle, tile.transposed, tile.remote))]


def shared_slice(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    tile = _shared(operands[0])
    _number(operands[1], int32, "the start")
    axis, extent, rank = attributes["axis"], attributes["extent"], len(tile.shape)
    require(0 <= axis < rank, lambda: f"axis {axis} is outside {operands[0]}", "axes count from 0")
    fits = 0 < extent <= tile.shape[axis]
    require(fits, lambda: f"extent {extent} does not fit axis {axis} of {operands[0]}", "parts lie inside of the tile")
    unit = slice_unit(tile, axis)
    require(
        extent % unit == 0,
        lambda: f"extent {extent} is no multiple of {unit}, the unit of axis {axis} of {operands[0]}",
        "parts of a swizzled tile are whole rows of its swizzle along the axis that is contiguous, else 8 rows; a part "
        "of a block is tx.block_slice",
    )
    shape = (*tile.shape[:axis], extent, *tile.shape[axis + 1 :])
    return [scalar(SharedType(shape, tile.element, tile.swizzle, tile.transposed, tile.remote))]


def slice_unit(tile: SharedType, axis: int) -> int:
    """What start and extent of a slice along an axis are multiples of: 8 rows, or a row of the swizzle."""
    if not tile.swizzle or axis < len(tile.shape) - 2:
        return 1
    contiguous = len(tile.shape) - (2 if tile.transposed else 1)
    return tile.swizzle // tile.element.itemsize if axis == contiguous else 8


def shared_transpose(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    tile = _shared(operands[0])
    require(len(tile.shape) >= 2, lambda: f"{operands[0]} has one axis", "give tx.shared a second extent")
    shape = (*tile.shape[:-2], tile.shape[-1], tile.shape[-2])
    return [scalar(SharedType(shape, tile.element, tile.swizzle, not tile.transposed, tile.remote))]


def shared_remote(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    tile = _shared(operands[0], writable=True)
    _number(operands[1], int32, "the rank")
    return [scalar(SharedType(tile.shape, tile.element, tile.swizzle, tile.transposed, remote=True))]


def shared_load(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    tile = _shared(operands[0])
    return [TensorType(tile.shape, tile.element)]


def shared_store(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    tile = _shared(operands[0], writable=True)
    require(operands[1] == TensorType(tile.shape, tile.element), lambda: f"a {operands[1]} does not fit {operands[0]}")
    return []


# Barriers


def barrier_alloc(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    require(attributes["count"] > 0, "there is at least one barrier", "one for each stage")
    advice = "how often roles arrive in a phase: one for each warp, for an elected role, and for an expect"
    require(
        0 < attributes["arrivals"] < 1 << 20,
        lambda: f"{attributes['arrivals']} arrivals are not in 1 .. 2^20 - 1",
        advice,
    )
    return [scalar(BarrierType(attributes["count"]))]


def barrier_index(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    barriers: BarrierType = _kind(operands[0], BarrierType, "the first operand")
    require(barriers.count is not None, "one barrier has no index")
    _number(operands[1], int32, "the index")
    return [scalar(BarrierType())]


def barrier_arrive(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    _barrier(operands[0])
    for rank in operands[1:]:
        _number(rank, int32, "the rank")
    return []


def barrier_expect(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    _barrier(operands[0])
    advice = "add up tile.bytes of the copies that complete on the barrier"
    require(0 < attributes["bytes"] < 1 << 20, lambda: f"{attributes['bytes']} bytes are not in 1 .. 2^20 - 1", advice)
    return []


def barrier_wait(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    _barrier(operands[0])
    _number(operands[1], int32, "the parity")
    return []


def named(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    _number(operands[0], int32, "the barrier's number")
    threads = attributes["threads"]
    advice = "the threads of each warp of each copy that comes"
    require(
        0 < threads <= GREATEST_CTA_THREADS, lambda: f"{threads} threads, a CTA has 1 to {GREATEST_CTA_THREADS}", advice
    )
    return []


# Copies in bulk


def _tile_of_map(operands: Types, operation: str) -> tuple[int, SharedType]:
    """Rank of the map and the tile, which must agree."""
    found: TensorMapType = _kind(operands[0], TensorMapType, "the first operand")
    rank = len(found.block)
    advice = "join axes that follow each other in memory: reshape the tensor on the host"
    require(
        rank <= GREATEST_RANK, lambda: f"{operands[0]} has {rank} axes, a copy moves at most {GREATEST_RANK}", advice
    )
    require(len(operands) > rank + 1, lambda: f"{operands[0]} needs {rank} coordinates, then the tile")
    for coordinate in operands[1 : 1 + rank]:
        _number(coordinate, int32, "a coordinate")
    tile = _shared(operands[1 + rank], writable=True)
    advice = "give the tile itself, and take .T where it is used"
    require(not tile.transposed, lambda: f"{operation} moves tiles as they lie in memory, not transposed", advice)
    fits = without_ones(tile.shape) == without_ones(found.block) or _in_rows(tile, found.block)
    advice = "one tile (of a ring: ring[stage]) with the map's extents and type: tx.shared(map.block_shape, map.dtype)"
    require(
        fits and tile.element == found.element, lambda: f"{operands[1 + rank]} is not a tile of {operands[0]}", advice
    )
    return rank, tile


def _in_rows(tile: SharedType, block: tuple[int, ...]) -> bool:
    """Whether a tile of rows, each in one row of the swizzle, holds a block whose axes but the last are its rows."""
    whole = not tile.swizzle or block[-1] * tile.element.itemsize <= tile.swizzle
    return whole and tile.shape == (prod(block[:-1]), block[-1])


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its leading extents of 1."""
    return shape if len(shape) < 2 or shape[0] != 1 else without_ones(shape[1:])


def tma_load(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    rank, _ = _tile_of_map(operands, "tma_load")
    require(
        len(operands) in (rank + 3, rank + 4), lambda: f"takes a map, {rank} coordinates, a tile, a barrier[, a mask]"
    )
    _barrier(operands[rank + 2])
    for mask in operands[rank + 3 :]:
        _number(mask, int16, "the multicast mask")
    return []


def tma_store(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    rank, tile = _tile_of_map(operands, "tma_store")
    require(len(operands) == rank + 2, lambda: f"takes a map, {rank} coordinates and a tile")
    if attributes["kind"] in ("and", "or", "xor"):
        advice = "add, min or max combine floats"
        require(tile.element.is_integer, lambda: f"{attributes['kind']} is for integers, not {tile.element}", advice)
    return []


def tma_prefetch(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    rank, _ = _tile_of_map(operands, "tma_prefetch")
    require(len(operands) == rank + 2, lambda: f"takes a map, {rank} coordinates and a tile")
    return []


def prefetch(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    require(operands[0].is_pointer and not operands[0].shape, lambda: f"the address is {operands[0]}, not one pointer")
    _number(operands[1], int32, "the number of bytes")
    return []


def tma_wait(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    requirement = "the number of groups that may be outstanding is not negative"
    require(attributes["outstanding"] >= 0, requirement, "0 waits for all of them")
    return []


# Copies by threads


def copy_async(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    pointer, tile, condition, *masks = operands
    require(pointer.is_pointer and pointer.rank > 0, lambda: f"{pointer} is no block of pointers")
    element: Any = pointer.element
    found = _shared(tile, writable=True)
    fits = (found.shape, found.element) == (pointer.shape, element.element)
    require(fits, lambda: f"what {pointer} point to does not fit {tile}")
    _number(condition, int1, "the condition")
    fits = list(masks) in ([], [TensorType(pointer.shape, int1)])
    require(fits, lambda: f"the mask is {masks[0]}, not one for {pointer}")
    return []


def copy_wait(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    requirement = "the number of groups that may be outstanding is not negative"
    require(attributes["outstanding"] >= 0, requirement, "0 waits for all of them")
    return []


# Warpgroup products


def wgmma_start(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    shape, dtype = attributes["shape"], attributes["dtype"]
    valued = list(operands) in ([], [TensorType(shape, dtype)])
    require(valued, lambda: f"the value is {operands[0]}, not {dtype} of shape {list(shape)}")
    advice = "two axes, of tl.float32 for floats and tl.int32 for int8"
    fits = len(shape) == 2 and dtype.name in PRODUCTS.values()
    require(fits, lambda: f"{dtype} of shape {list(shape)} is no accumulator", advice)
    return [scalar(PendingType(shape, dtype))]


def wgmma(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    a, b = operands[0], _shared(operands[1], writable=True)
    if a.is_handle:
        left = _shared(a, writable=True)
        shape, element, transposed = left.shape, left.element, left.transposed
    else:
        shape, element, transposed = a.shape, a.dtype, False
    require(len(shape) == len(b.shape) == 2, "the operands are tiles of two axes", "one tile of a ring is ring[stage]")
    for tile in (a.handle, b):
        advice = "tx.shared(…, swizzle=128) (or 64, 32), the swizzle that divides its rows"
        require(not isinstance(tile, SharedType) or tile.swizzle > 0, "wgmma reads swizzled tiles", advice)
    accumulator = PRODUCTS.get((element.name, b.element.name))
    advice = "f16, bf16 or f32 (as tf32) with their like, fp8 of either format, 8-bit integers"
    require(accumulator is not None, lambda: f"wgmma does not multiply {element} and {b.element}", advice)
    (rows, depth), (other, columns) = shape, b.shape
    advice = "a is [M, K] and b [K, N]: the transposed view, .T, of a tile of N rows"
    require(depth == other, lambda: f"the inner extents {depth} and {other} differ", advice)
    small = a.is_handle and rows < 64 and rows % 8 == 0
    text = f"operand A has a multiple of 64 rows (or fewer, in shared memory, a multiple of 8), not {rows}"
    require(rows % 64 == 0 or small, text, "round the rows up: copies fill those outside of the tensor with zeros")
    step = 16 if element.kind in ("int", "uint") and columns > 24 else 8
    share = attributes["columns"] or columns  # of a warpgroup
    text = f"{share} columns are not a multiple of {step} up to 256"
    require(share % step == 0 and share <= 256, text, "divide the columns between several products: tile.slice")
    require(columns % share == 0, lambda: f"warpgroups of {share} columns do not divide {columns}")
    depth_step = 32 // element.itemsize
    advice = "round the depth up: what a copy reads outside of the tensor is zero"
    require(depth % depth_step == 0, lambda: f"the inner extent {depth} is no multiple of {depth_step}", advice)
    if element.itemsize != 2:
        text = f"operands of {element} are contiguous along the inner axis, of 16-bit types alone along the other too"
        advice = (
            "a tile of [M, K], and for b the transposed view of a tile of [N, K]; a block may come from tile.T.load()"
        )
        require(not transposed and b.transposed, text, advice)
    assert accumulator is not None
    result = PendingType((max(64, rows), columns), BY_NAME[accumulator])
    for value in operands[2:3]:
        fits = value in (scalar(result), result.block)
        advice = "tx.accumulator with the extents of the product, as float32 (int32 for integers)"
        require(fits, f"the accumulator is {value}, not {result} or {result.block}", advice)
    for keep in operands[3:]:
        _number(keep, int1, "keep")
    return [scalar(result)]


def wgmma_wait(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    require(0 <= attributes["outstanding"] < 8, "at most 7 groups may be outstanding", "wait for more of them")
    return [_kind(operand, PendingType, "the operand").block for operand in operands]


def block_slice(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    (block,), axis = operands, attributes["axis"]
    require(not block.is_handle, lambda: f"{block} is no block")
    require(0 <= axis < block.rank, lambda: f"axis {axis} is outside {block}", "axes count from 0")
    start, extent = attributes["start"], attributes["extent"]
    fits = start >= 0 and extent > 0 and start + extent <= block.shape[axis]
    require(
        fits,
        lambda: f"{start} .. {start + extent - 1} is outside axis {axis} of {block}",
        "parts lie inside of the block",
    )
    return [block.with_shape((*block.shape[:axis], extent, *block.shape[axis + 1 :]))]


def _slice_of(block: Any, *, axis: int, start: int, extent: int) -> Any:
    return block[(slice(None),) * axis + (slice(start, start + extent),)]


# Roles and clusters


def warp_roles(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    count = len(regions)
    require(count > 0, "there is at least one role")
    for name in ("warps", "copies", "registers", "elected"):
        require(len(attributes[name]) == count, f"'{name}' has {len(attributes[name])} entries for {count} roles")
    for warps, copies, registers in zip(
        attributes["warps"], attributes["copies"], attributes["registers"], strict=True
    ):
        require(warps > 0 and copies > 0, "a role has at least one copy of one warp", "leave out roles that nobody has")
        fits = registers == 0 or (24 <= registers <= 256 and registers % 8 == 0)
        text = f"{registers} registers are not a multiple of 8 in 24 .. 256"
        require(fits, text, f"{min(max(24, -(-registers // 8) * 8), 256)}, or 0 for what there is")
        advice = "warps=4, or no register budget"
        require(registers == 0 or warps % 4 == 0, "a role with a register budget has whole warpgroups", advice)
    require(all(flag in (0, 1) for flag in attributes["elected"]), "'elected' holds 0 and 1")
    for region in regions:
        arguments = [value.type for value in region.arguments]
        require(arguments == [scalar(int32)], "a role takes the number of its copy, an i32")
        check_yield(region, [], "a role")
    return []


def cluster_rank(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    return [scalar(int32)]


def warp_any(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    require(operands[0].element == int1, lambda: f"{operands[0]} is not a block of i1")
    return [scalar(int1)]


def nothing(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    return []


_INT = AttributeInfo("int")
_INTS = AttributeInfo("ints")
_FALSE = AttributeInfo("bool", False)


def _row(opcode: str, operands: tuple[int, int | None], infer: Rule, summary: str, **row: Any) -> OpInfo:
    return OpInfo(opcode, summary, operands, infer, **row)


def _pure(opcode: str, operands: int, infer: Rule, summary: str, **attributes: AttributeInfo) -> OpInfo:
    return _row(opcode, (operands, operands), infer, summary, attributes=attributes, speculatable=False)


def _act(
    opcode: str, operands: tuple[int, int | None], infer: Rule, summary: str, **attributes: AttributeInfo
) -> OpInfo:
    return _row(opcode, operands, infer, summary, attributes=attributes, effects=SYNCHRONIZE)


# fmt: off
EXPLICIT_SECTIONS: dict[str, tuple[OpInfo, ...]] = {
    "shared memory": (
        # At the top level of the kernel. With an operand: in the memory of that one, from its start.
        _row("shared_alloc", (0, 1), shared_alloc, "a tile, or a ring of tiles, of uninitialised shared memory",
             attributes={"shape": _INTS, "dtype": AttributeInfo("dtype"), "swizzle": AttributeInfo("int", 0, SWIZZLES)},
             effects=ALLOCATE),
        _pure("shared_index", 2, shared_index, "one tile of a ring: the first axis goes"),
        _pure("shared_slice", 2, shared_slice, "`extent` elements along `axis` from a start on",
              axis=_INT, extent=_INT),
        _pure("shared_transpose", 1, shared_transpose, "the same tile with its last two axes swapped"),
        _pure("shared_tile", 1, shared_tile, "a tile in memory of bytes, from `offset` on",
              offset=_INT, shape=_INTS, dtype=AttributeInfo("dtype"), swizzle=AttributeInfo("int", 0, SWIZZLES)),
        _pure("shared_remote", 2, shared_remote, "the same tile in the shared memory of another CTA of the cluster"),
        _row("shared_load", (1, 1), shared_load, "the elements of a tile as a block", effects=READ),
        _act("shared_store", (2, 2), shared_store, "a block written to a tile"),
        # Nothing else waits for loads: an arrival overtakes them.  `passes.load_waits` places it.
        _row("shared_wait", (0, 0), nothing, "the loads before it in its region have ended; remote: from other CTAs",
             attributes={"remote": _FALSE}, effects=OBSERVE),
    ),
    "asynchronous barriers": (
        _row("barrier_alloc", (0, 0), barrier_alloc, "mbarriers whose phases end after so many arrivals and all bytes",
             attributes={"count": _INT, "arrivals": _INT}, effects=ALLOCATE),
        _pure("barrier_index", 2, barrier_index, "one of several barriers"),
        _act("barrier_arrive", (1, 2), barrier_arrive, "an arrival of every warp, here or in another CTA"),
        _act("barrier_expect", (1, 1), barrier_expect, "one arrival, and the phase waits for so many bytes",
             bytes=_INT),
        _act("barrier_wait", (2, 2), barrier_wait, "wait until the phase of this parity has ended"),
        _act("fence_async", (0, 0), nothing, "what was stored before is seen by copies and products"),
        _act("group_sync", (0, 0), nothing, "barrier among the threads of this role's copy (or the CTA)"),
        _act("named_sync", (1, 1), named, "arrive at a numbered hardware barrier and wait for so many threads",
             threads=_INT),
        _act("named_arrive", (1, 1), named, "arrive at a numbered hardware barrier", threads=_INT),
    ),
    "copies in bulk": (
        # What lies outside the tensor is read as zero (or NaN, as the host's descriptor says) and not written.
        _act("tma_load", (4, None), tma_load, "tma_load(map, coordinates…, tile, barrier[, mask]), completes on it",
             eviction=AttributeInfo("str", "", EVICTIONS)),
        _act("tma_store", (3, None), tma_store, "tma_store(map, coordinates…, tile): kind combines it with memory",
             kind=AttributeInfo("str", "", STORE_KINDS)),
        _act("tma_commit", (0, 0), nothing, "the stores of this thread since the last commit become a group"),
        _act("tma_prefetch", (3, None), tma_prefetch, "what tma_load(map, coordinates…, tile) reads comes to L2"),
        _act("prefetch", (2, 2), prefetch, "so many bytes (a multiple of 16) from an address on come to the L2 cache"),
        _act("tma_wait", (0, 0), tma_wait, "wait until so many groups are outstanding; read: only until tiles are read",
             outstanding=AttributeInfo("int", 0), read=_FALSE),
    ),
    "copies by threads": (
        # Each thread copies its own elements, waits for its own copies, and knows of others' after group_sync.
        _row("copy_async", (3, 4), copy_async, "copy_async(pointer, tile, condition[, mask]): zeros where one is false",
             effects=READ | OBSERVE),
        _act("copy_commit", (0, 0), nothing, "the copies of this thread since the last commit become a group"),
        _act("copy_wait", (0, 0), copy_wait, "wait until so many groups are outstanding; all: and no other copies",
             outstanding=AttributeInfo("int", 0), all=_FALSE),
    ),
    "warpgroup products": (
        _row("wgmma_start", (0, 1), wgmma_start, "an accumulator with a block's value, or without one (see keep)",
             attributes={"shape": _INTS, "dtype": AttributeInfo("dtype")}, speculatable=False),
        # a [M,K] a tile or a block, b [K,N] a tile. All instructions of one wgmma are one group.
        # Warpgroups share out the rows; those of `columns` columns stand side by side.
        _act("wgmma", (2, 4), wgmma, "wgmma(a, b[, accumulator[, keep]]): a group computes a @ b + accumulator",
             columns=AttributeInfo("int", 0)),
        # In the registers of each thread: parts of a product along an axis in multiples of 8 columns or 64 rows.
        _row("block_slice", (1, 1), block_slice, "`extent` elements of a block along `axis`, from `start` on",
             evaluate=_slice_of, attributes={"axis": _INT, "start": _INT, "extent": _INT}),
        _act("wgmma_wait", (0, None), wgmma_wait, "wait until so many groups are in flight; retired operands as blocks",
             outstanding=AttributeInfo("int", 0)),
    ),
    "roles and clusters": (
        _row("warp_roles", (0, 0), warp_roles, "the CTA's warps run different regions, given the copy's number",
             attributes={"warps": _INTS, "copies": _INTS, "registers": _INTS, "elected": _INTS},
             effects=SYNCHRONIZE, regions=None),
        _pure("cluster_rank", 0, cluster_rank, "this CTA's number in its cluster"),
        _act("cluster_arrive", (0, 0), nothing, "arrive at the barrier of all threads of the cluster", relaxed=_FALSE),
        _act("cluster_wait", (0, 0), nothing, "wait for all threads of the cluster to have arrived"),
        _act("grid_wait", (0, 0), nothing, "wait until the kernels before this one have ended (dependent launch)"),
        _act("grid_launch_dependents", (0, 0), nothing, "the kernel after this one may be launched"),
        _pure("warp_any", 1, warp_any, "true for a warp if any of its elements is; for ifs without synchronisation"),
    ),
}
# fmt: on
OPCODES = frozenset(row.opcode for rows in EXPLICIT_SECTIONS.values() for row in rows)


def is_explicit(opcode: str) -> bool:
    """Whether an operation belongs to this family."""
    return opcode in OPCODES


def tile_bytes(tile: SharedType) -> int:
    """Bytes that a copy of the tile moves."""
    return prod(tile.shape) * tile.element.itemsize
