"""Functions of the explicit level: allocate, copy in bulk, multiply, synchronise, assign warps to roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import dtypes
from tilewright.ir.core import Attribute, Region, SSAValue
from tilewright.ir.types import scalar
from tilewright.language.context import LanguageError, active
from tilewright.language.core import builtin
from tilewright.language.explicit.objects import barrier as mbarrier
from tilewright.language.explicit.objects import (
    barrier_array,
    element_of,
    integer,
    made,
    needs,
    pending,
    shared_tile,
    tensor_map,
    truth,
)
from tilewright.language.function import SourceFunction
from tilewright.language.semantic.convert import to_tensor
from tilewright.language.semantic.shape import static_int, static_shape
from tilewright.language.tensor import emit, emit_many, tensor, type_text
from tilewright.language.types import dtype as dtype_of_language
from tilewright.language.types import unwrap

# Memory and barriers ---------------------------------------------------------------------------------


@builtin
def shared(
    shape: Sequence[int], dtype: dtype_of_language, swizzle: int = 0, over: shared_tile | None = None
) -> shared_tile:
    """Uninitialised shared memory for a tile (two axes) or a ring of tiles (three). At the top level of the kernel.

    `swizzle` (0, 32, 64, 128 bytes) is how the rows of tiles lie for copies and products.  `over` lays it over the
    memory of another: both begin at the same byte, and keeping their uses apart is up to you.
    """
    attributes: dict[str, Attribute] = {
        "shape": static_shape(shape),
        "dtype": element_of(dtype),
        "swizzle": static_int(swizzle, "swizzle"),
    }
    below = [] if unwrap(over) is None else [needs(over, shared_tile, "over").handle]
    return made(shared_tile, "shared_alloc", below, attributes)


@builtin
def barriers(count: int, arrivals: int) -> barrier_array:
    """`count` mbarriers whose phases end after `arrivals` arrivals each. At the top level of the kernel.

    A `barrier.arrive` of a role counts its warps, one in an elected role; `barrier.expect` counts one.
    """
    attributes: dict[str, Attribute] = {
        "count": static_int(count, "count"),
        "arrivals": static_int(arrivals, "arrivals"),
    }
    return made(barrier_array, "barrier_alloc", [], attributes)


@builtin
def fence_async() -> None:
    """Make what was stored to shared memory before visible to copies and products, once the threads are in step."""
    emit_many("fence_async", [])


@builtin
def group_sync() -> None:
    """Barrier among the threads of this copy of the role."""
    emit_many("group_sync", [])


def _named(opcode: str, number: Any, threads: Any) -> None:
    emit_many(opcode, [integer(number, "the barrier's number")], {"threads": static_int(threads, "threads")})


@builtin
def named_sync(number: Any, threads: int) -> None:
    """Arrive at hardware barrier `number` (1 to 7) and wait until `threads` threads have arrived."""
    _named("named_sync", number, threads)


@builtin
def named_arrive(number: Any, threads: int) -> None:
    """Arrive at hardware barrier `number` (1 to 7) and go on."""
    _named("named_arrive", number, threads)


# Copies in bulk --------------------------------------------------------------------------------------


def _coordinates(source: tensor_map, coordinates: Any) -> list[tensor]:
    entries = unwrap(coordinates)
    listed = list(entries) if isinstance(entries, (tuple, list)) else [entries]
    if len(listed) != len(source.block_shape):
        raise LanguageError(
            f"{source} needs {len(source.block_shape)} coordinates, got {len(listed)}",
            "one for each axis of the tensor: where the tile's first element lies",
        )
    return [integer(entry, "a coordinate") for entry in listed]


@builtin
def tma_load(
    source: tensor_map,
    coordinates: Any,
    tile: shared_tile,
    barrier: mbarrier,
    multicast: Any = None,
    eviction: str = "",
) -> None:
    """One thread starts copying a tile to shared memory; its bytes complete on the barrier.

    Coordinates are those of the tile's first element; what lies outside the tensor is zero.  `multicast`: a mask of
    the CTAs of the cluster which get the tile, each at the same place and on its own barrier.  `eviction`: a hint
    for the L2 cache, "evict_first" or "evict_last".
    """
    source = needs(source, tensor_map, "the source")
    operands = [source.handle, *_coordinates(source, coordinates)]
    operands += [needs(tile, shared_tile, "the tile").handle, needs(barrier, mbarrier, "the barrier").handle]
    if unwrap(multicast) is not None:
        operands.append(integer(multicast, "the multicast mask", dtypes.int16))
    emit_many("tma_load", operands, {"eviction": str(unwrap(eviction) or "")})


@builtin
def tma_prefetch(source: tensor_map, coordinates: Any, tile: shared_tile) -> None:
    """One thread asks for what a `tma_load` to the tile would read to be brought into the L2 cache.

    The tile is not written.  Nobody waits for it, and it changes no result, also where other kernels still write what
    is asked for.
    """
    source = needs(source, tensor_map, "the source")
    operands = [source.handle, *_coordinates(source, coordinates), needs(tile, shared_tile, "the tile").handle]
    emit_many("tma_prefetch", operands)


@builtin
def prefetch(address: tensor, size: Any) -> None:
    """One thread asks for `size` bytes from a pointer on to be brought into the L2 cache, for kernels that come later.

    Both are multiples of 16.  Nobody waits for it, and it changes no result.
    """
    start = unwrap(address)
    if not isinstance(start, tensor) or not start.is_pointer or start.shape:
        raise LanguageError(
            f"prefetch takes one pointer, got {type_text(start)}", "pass an array to the kernel, and add an offset"
        )
    emit_many("prefetch", [start, integer(size, "the number of bytes")])


@builtin
def tma_store(target: tensor_map, coordinates: Any, tile: shared_tile, kind: str = "") -> None:
    """One thread starts copying a tile to global memory; what lies outside the tensor is left out.

    `kind` ("add", "min", "max", "and", "or", "xor") combines it with what is there.
    """
    target = needs(target, tensor_map, "the target")
    operands = [target.handle, *_coordinates(target, coordinates), needs(tile, shared_tile, "the tile").handle]
    emit_many("tma_store", operands, {"kind": str(unwrap(kind) or "")})


@builtin
def tma_commit() -> None:
    """The stores since the last commit become one group."""
    emit_many("tma_commit", [])


@builtin
def tma_wait(outstanding: int = 0, read: bool = False) -> None:
    """The storing thread waits until at most `outstanding` groups are not done; `read`: not done with their tiles."""
    attributes: dict[str, Attribute] = {
        "outstanding": static_int(outstanding, "outstanding"),
        "read": bool(unwrap(read)),
    }
    emit_many("tma_wait", [], attributes)


# Products --------------------------------------------------------------------------------------------


@builtin
def accumulator(shape: Sequence[int], dtype: dtype_of_language) -> pending:
    """An accumulator without a value, for a loop whose first product has ``keep=False``."""
    attributes: dict[str, Attribute] = {"shape": static_shape(shape), "dtype": element_of(dtype)}
    return made(pending, "wgmma_start", [], attributes)


@builtin
def wgmma(a: Any, b: shared_tile, accumulator: Any = None, keep: Any = True) -> pending:
    """Start the group of instructions for ``a @ b + accumulator``.

    `a` is a tile or a block of 64 or more rows, `b` a tile (usually the transposed view of rows of n).  Without an
    accumulator, or where `keep` is false, it begins at zero.  The operands must stay as they are until
    `wgmma_wait` has retired the group, of which the result is the only sign.
    """
    left = unwrap(a)
    if not isinstance(left, tensor):
        left = needs(left, shared_tile, "operand a").handle
    operands = [left, needs(b, shared_tile, "operand b").handle]
    before, keeps_sums = unwrap(accumulator), truth(keep, "keep")
    if before is not None:
        before = before if isinstance(before, tensor) else needs(before, pending, "the accumulator")
    if before is not None and keeps_sums is not False:
        operands.append(before if isinstance(before, tensor) else before.handle)
        if isinstance(keeps_sums, tensor):
            operands.append(keeps_sums)
    result = made(pending, "wgmma", operands)
    if before is not None and tuple(before.shape) != result.shape:  # where its value is left out the IR does not see it
        raise LanguageError(
            f"the accumulator of shape {list(before.shape)} is not that of a product of shape {list(result.shape)}",
            f"tx.accumulator({result.shape}, dtype)",
        )
    return result


@builtin
def wgmma_wait(*accumulators: pending, outstanding: int = 0) -> Any:
    """Wait until at most `outstanding` of the latest groups are in flight.

    The accumulators given become blocks (one, or a tuple); their groups must be among those that have ended.
    """
    handles = [needs(entry, pending, "an accumulator").handle for entry in accumulators]
    blocks = emit_many("wgmma_wait", handles, {"outstanding": static_int(outstanding, "outstanding")})
    return tuple(blocks) if len(blocks) > 1 else blocks[0] if blocks else None


@builtin
def block_slice(block: tensor, axis: int, start: int, extent: int) -> tensor:
    """`extent` elements of a block along `axis` from `start` on; of products in multiples of 8 columns or 64 rows."""
    value = to_tensor(unwrap(block))
    attributes: dict[str, Attribute] = {
        "axis": static_int(axis, "axis"),
        "start": static_int(start, "start"),
        "extent": static_int(extent, "extent"),
    }
    return emit("block_slice", [value], attributes)


# Roles and clusters ----------------------------------------------------------------------------------


class Role:
    """What one kind of warps does; made by `role`."""

    def __init__(self, function: SourceFunction, arguments: tuple[Any, ...], numbers: dict[str, int]) -> None:
        self.function, self.arguments, self.numbers = function, arguments, numbers


@builtin
def role(
    function: Any, arguments: Any = (), warps: int = 4, copies: int = 1, registers: int = 0, elected: bool = False
) -> Role:
    """A role: `copies` groups of `warps` warps run ``function(copy, *arguments)``.

    `registers` is the budget of each thread (a multiple of 8; 0: as it comes).  `elected`: one thread of the group
    runs it, which is all that starting copies needs.
    """
    body = unwrap(function)
    if not isinstance(body, SourceFunction):
        raise LanguageError(
            f"a role needs a @tilewright.jit function, got {type_text(body)}",
            "its first parameter is the number of the copy: def load(copy, …)",
        )
    given = unwrap(arguments)
    numbers = {
        "warps": static_int(warps, "warps"),
        "copies": static_int(copies, "copies"),
        "registers": static_int(registers, "registers"),
        "elected": int(bool(unwrap(elected))),
    }
    return Role(body, tuple(given) if isinstance(given, (tuple, list)) else (given,), numbers)


@builtin
def warp_roles(*roles: Role) -> None:
    """Share out the warps of the CTA, in this order; after it all threads go on together. Once in a kernel."""
    tracer = active()
    regions = []
    for entry in roles:
        if not isinstance(entry, Role):
            raise LanguageError(
                f"warp_roles takes roles, got {type_text(entry)}", "make them with tx.role(function, …)"
            )
        copy = SSAValue(scalar(dtypes.int32), "copy")
        region = Region([copy])
        with tracer.builder.at(region):
            here = tracer.builder.location
            if tracer.call(entry.function, [tensor(copy), *entry.arguments], {}) is not None:
                raise LanguageError(f"the role '{entry.function.name}' returns a value", "store results instead")
            tracer.builder.location = here
            tracer.builder.create("yield")
        regions.append(region)
    attributes: dict[str, Attribute] = {
        name: tuple(entry.numbers[name] for entry in roles) for name in ("warps", "copies", "registers", "elected")
    }
    emit_many("warp_roles", [], attributes, regions)


@builtin
def cluster(shape: Sequence[int]) -> None:
    """The grid is divided into clusters of so many CTAs along each axis, which run at the same time."""
    extents = static_shape(shape)
    size = 1
    for extent in extents:
        size *= extent
    if not 1 <= len(extents) <= 3 or not 1 <= size <= 16:
        raise LanguageError(
            f"a cluster has 1 to 16 CTAs along up to three axes, got {list(extents)}",
            "8 run on every GPU with clusters: tx.cluster((2, 1, 1))",
        )
    active().builder.attributes["cluster"] = (*extents, 1, 1)[:3]


@builtin
def cluster_rank() -> tensor:
    """This CTA's number in its cluster."""
    return emit("cluster_rank", [])


@builtin
def cluster_arrive(relaxed: bool = False) -> None:
    """Arrive at the barrier of all threads of the cluster, when what was loaded from other CTAs has come.

    `relaxed` orders no other memory.
    """
    emit_many("cluster_arrive", [], {"relaxed": bool(unwrap(relaxed))})


@builtin
def cluster_wait() -> None:
    """Wait until all threads of the cluster have arrived."""
    emit_many("cluster_wait", [])


@builtin
def grid_wait() -> None:
    """Dependent launch: wait until the kernels before this one have ended and their memory is visible."""
    emit_many("grid_wait", [])


@builtin
def grid_launch_dependents() -> None:
    """Dependent launch: the next kernel may begin, up to its own `grid_wait`."""
    emit_many("grid_launch_dependents", [])


@builtin
def warp_any(condition: tensor) -> tensor:
    """True in a warp if any of its elements is; for an `if` that changes nothing where the condition is false."""
    found = unwrap(condition)
    if not isinstance(found, tensor) or found.is_pointer or not found.number.is_bool:
        raise LanguageError(f"warp_any takes a block of conditions, got {type_text(found)}", "compare: x > limit")
    return emit("warp_any", [found])
