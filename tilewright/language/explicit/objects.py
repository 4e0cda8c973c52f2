"""Objects of the explicit level: shared tiles, barriers, tensor maps and in-flight accumulators.

They are values of the kernel like tensors: functions take and return them, loops and branches carry them.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ir.core import Attribute
from tilewright.ir.types import BarrierType, PendingType, SharedType, TensorMapType
from tilewright.language.aggregate import Aggregate, assembled
from tilewright.language.context import LanguageError
from tilewright.language.semantic.convert import broadcast_to, cast, is_literal, to_tensor
from tilewright.language.semantic.shape import static_int
from tilewright.language.tensor import emit, emit_many, tensor, type_text
from tilewright.language.types import dtype, unwrap, wrap


class Object(Aggregate):
    """A value of a kind that only explicit kernels have; `handle` is its value in the IR."""

    __aggregate_fields__ = {"handle": tensor}
    __operand_advice__ = "barriers and tensor maps are no numbers: see docs/guide/explicit.md for what takes them"
    handle: tensor

    def __repr__(self) -> str:
        return str(self.handle.handle.type)


Kind = TypeVar("Kind", bound=Object)


def made(kind: type[Kind], opcode: str, operands: list[tensor], attributes: dict[str, Attribute] | None = None) -> Kind:
    """Emit an operation whose result is such a value."""
    result: Kind = assembled(kind, [emit(opcode, operands, attributes)])
    return result


def integer(value: Any, subject: str, element: DType = dtypes.int32) -> tensor:
    """A scalar integer; raises `LanguageError` for anything else."""
    number = to_tensor(unwrap(value))
    if number.shape or number.is_pointer or not number.number.is_integer:
        raise LanguageError(
            f"{subject} must be a scalar integer, got {type_text(number)}", "reduce a block, or cast with .to(tl.int32)"
        )
    return cast(number, element)


class shared_tile(Object):
    """A tile, or a ring of tiles, in shared memory: ``ring[stage]``, ``tile.slice(…)``, ``tile.T``, ``tile.load()``."""

    __operand_advice__ = "tile.load() gives the elements of a tile as a block"

    @property
    def kind(self) -> SharedType:
        """The type in the IR."""
        found = self.handle.handle.type.handle
        assert isinstance(found, SharedType)
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, as seen through this view."""
        return self.kind.shape

    @property
    def dtype(self) -> dtype:
        """The element type."""
        return wrap(self.kind.element)

    @property
    def bytes(self) -> int:
        """What a copy of the whole moves: the number for `barrier.expect`."""
        return self.kind.bytes

    @property
    def T(self) -> shared_tile:
        """The same tile with its last two axes swapped; nothing moves."""
        return made(shared_tile, "shared_transpose", [self.handle])

    def __getitem__(self, index: Any) -> shared_tile:
        """One tile of a ring."""
        return made(shared_tile, "shared_index", [self.handle, integer(index, "the index of a ring")])

    def slice(self, start: Any, extent: int, axis: int = 0) -> shared_tile:
        """`extent` elements along `axis`; start and extent are multiples of 8 rows, or of a row of the swizzle."""
        attributes: Any = {"axis": static_int(axis, "axis"), "extent": static_int(extent, "extent")}
        return made(shared_tile, "shared_slice", [self.handle, integer(start, "the start of a slice")], attributes)

    def remote(self, rank: Any) -> shared_tile:
        """The same tile in the shared memory of another CTA of the cluster; it can only be loaded."""
        return made(shared_tile, "shared_remote", [self.handle, integer(rank, "the rank of a CTA")])

    def load(self) -> tensor:
        """The elements as a block."""
        return emit("shared_load", [self.handle])

    def store(self, value: Any) -> None:
        """Write a block, cast to the tile's element type and broadcast to its shape."""
        block = cast(to_tensor(unwrap(value)), self.kind.element)
        emit_many("shared_store", [self.handle, broadcast_to(block, self.shape)])


class barrier(Object):
    """One mbarrier. Its phases end, in turn with parity 0 and 1, when all arrivals and all expected bytes are there."""

    def wait(self, parity: Any) -> None:
        """Wait until the phase of this parity has ended. On a fresh barrier parity 1 counts as ended."""
        emit_many("barrier_wait", [self.handle, integer(parity, "the parity")])

    def expect(self, bytes: int) -> None:
        """One arrival, by one thread; the phase also waits for so many bytes that copies bring."""
        emit_many("barrier_expect", [self.handle], {"bytes": static_int(bytes, "the number of bytes")})

    def arrive(self, rank: Any = None) -> None:
        """An arrival of every warp (in an elected role of its one thread); `rank`: at the CTA of the cluster."""
        ranks = [] if unwrap(rank) is None else [integer(rank, "the rank of a CTA")]
        emit_many("barrier_arrive", [self.handle, *ranks])


class barrier_array(Object):
    """Several mbarriers: ``full[stage].wait(parity)``."""

    @property
    def count(self) -> int:
        """How many they are."""
        found = self.handle.handle.type.handle
        assert isinstance(found, BarrierType) and found.count is not None
        return found.count

    def __getitem__(self, index: Any) -> barrier:
        """One of them."""
        return made(barrier, "barrier_index", [self.handle, integer(index, "the index of a barrier")])


class tensor_map(Object):
    """A tensor in global memory that is moved by tiles: a parameter annotated ``x: tx.tensor_map``.

    The host passes a `tilewright.TensorDescriptor`.
    """

    @property
    def kind(self) -> TensorMapType:
        """The type in the IR."""
        found = self.handle.handle.type.handle
        assert isinstance(found, TensorMapType)
        return found

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Extents of a tile."""
        return self.kind.block

    @property
    def dtype(self) -> dtype:
        """The element type."""
        return wrap(self.kind.element)


class pending(Object):
    """An accumulator of products in flight; only `wgmma` and `wgmma_wait` take it."""

    __operand_advice__ = "the product is in flight: block = tx.wgmma_wait(accumulator) waits for it"

    @property
    def kind(self) -> PendingType:
        """The type in the IR."""
        found = self.handle.handle.type.handle
        assert isinstance(found, PendingType)
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the block that it becomes."""
        return self.kind.shape

    @property
    def dtype(self) -> dtype:
        """The element type of the block that it becomes."""
        return wrap(self.kind.element)


def element_of(value: Any) -> DType:
    """The element type that a `tl` dtype stands for."""
    found = unwrap(value)
    if not isinstance(found, dtype) or not isinstance(found.element, DType):
        raise LanguageError(
            f"a dtype such as tl.bfloat16 is needed here, got {type_text(found)}",
            "a tile or tensor map has one: a.dtype",
        )
    return found.element


_WHERE_FROM = {
    shared_tile: "tx.shared(shape, dtype, swizzle=128) makes tiles",
    barrier: "tx.barriers(count, arrivals)[number] is one",
    tensor_map: "a parameter annotated with tx.tensor_map, for which the host passes a TensorDescriptor",
    pending: "tx.accumulator(shape, dtype) begins a sum, tx.wgmma adds to it",
}


def needs(value: Any, kind: type[Object], subject: str) -> Any:
    """A value of one of the classes above; raises `LanguageError` for another."""
    found = unwrap(value)
    if not isinstance(found, kind):
        advice = _WHERE_FROM[kind]
        if isinstance(found, pending):
            advice = "wait for it first: tx.wgmma_wait"
        elif kind is barrier and isinstance(found, barrier_array):
            advice = "choose one of them: full[stage]"
        described = found if isinstance(found, Object) else type_text(found)
        raise LanguageError(f"{subject} must be a tx.{kind.__name__}, got {described}", advice)
    return found


def truth(value: Any, subject: str) -> tensor | bool:
    """A condition: a bool that is known now, or an int1 scalar."""
    found = unwrap(value)
    if is_literal(found):
        return bool(found)
    number = to_tensor(found)
    if number.constant is not None:
        return bool(number.constant)
    if number.shape or number.is_pointer or not number.number.is_bool:
        raise LanguageError(f"{subject} must be a condition, got {type_text(number)}", "compare: k > 0")
    return number
