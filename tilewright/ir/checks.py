"""The checks of a checked run, in addition to bounds checks, which every run of the interpreter makes.

unwritten memory   a load, or an atomic that uses the old value, of memory that nobody has written (`ir.unwritten`)
overflow           an i32 sum or product that wrapped and reached the address of an access
races              two program instances use one address, and no atomic orders them: at least one by a plain store
                   that changes it, or one by an atomic that changes it and the other by a plain load (which is not
                   volatile); lanes of one store that give one address different values
undefined lanes    a store, an address, a mask or a branch that depends on lanes which a load masked off and gave no
                   `other` (`ir.undefined_lanes`)

Every check looks at values of this one run: what it reports did happen.  Instances run one after the other; their
order is not taken as given.  It is given by atomics on a single address, as in locks and counters: what an instance
did before a release comes before what another does after an acquire that reads the same address.  Ordering is kept
as vector clocks (Flanagan and Freund, "FastTrack: efficient and precise dynamic race detection", 2009), with the last
two readers of an element instead of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import ExecutionError
from tilewright.ir import unwritten
from tilewright.ir.core import Location, Operation
from tilewright.ir.memory import Buffer, LaunchMemory
from tilewright.ir.ops import OPS
from tilewright.ir.types import PointerType
from tilewright.ir.undefined_lanes import MASK_OPERAND, UndefinedLanes

Array = np.ndarray
_WRAPPING = frozenset(("add", "subtract", "multiply", "negate", "shift_left"))
_FORWARDING = frozenset(
    "splat expand_dims broadcast reshape permute join split cat gather select minimum maximum hint".split()
)
_SYMBOLS = {"add": "+", "subtract": "-", "multiply": "*", "shift_left": "<<"}
_USES = ("writer", "atomic", "reader", "earlier_reader")
_GRAIN = np.dtype([(name, np.int32) for name in (*_USES, "changer")])  # the last atomic that changed something
_OVERLAP_ADVICE = "let every instance store to elements of its own, or use atomics (tl.atomic_add, …)"
_READ = "read it with an atomic (tl.atomic_add of 0, …); or with volatile=True, if any value will do"


@dataclass(frozen=True)
class _RecordedAccess:
    """Who used memory: the instance, at which point of its own time, by which operation."""

    index: tuple[int, ...]
    time: int
    opcode: str
    location: Location | None
    volatile: bool = False

    def __str__(self) -> str:
        place = f" at {self.location}" if self.location is not None else ""
        return f"{self.opcode} in program instance {self.index}{place}"


@dataclass
class _Exchange:
    """An atomic before it is carried out: where, the bytes there, and who used them."""

    shadow: _Shadow
    buffer: Buffer
    offsets: Array
    touched: Array  # [lanes, bytes of an element], places in the buffer
    before: Array
    grains: Array


@dataclass
class _Wide:
    """The values that an array would have had in 64 bits, and the operation that wrapped first."""

    array: Array  # kept so that its identity stays its own
    values: Array
    origin: Operation
    text: str  # "65536 * 65536 = 4294967296"


class _Shadow:
    """What is known of the bytes of one stretch of memory, in grains that accesses share out among them."""

    def __init__(self, flat: Array) -> None:
        self.start = flat.ctypes.data
        self.bytes = flat
        self.grain = 0
        self.used = np.zeros(0, _GRAIN)
        self.pending = unwritten.pending(flat)  # a mask over bytes, shared with later launches, or None

    def grains(self, begin: int, offsets: Array, size: int) -> Array:
        """Numbers of the grains that accesses of `size` bytes touch, [accesses, grains]; offsets count from `begin`."""
        finer = min(size, begin & -begin or size)
        if not self.used.size:
            self.grain = finer
            self.used = np.zeros(-(-self.bytes.size // finer), _GRAIN)
        elif finer < self.grain:
            self.used, self.grain = np.repeat(self.used, self.grain // finer), finer
        return ((begin + offsets) // self.grain)[:, None] + np.arange(size // self.grain)


class Checks:
    """Looks at every operation of a launch, before and after it is carried out; raises `ExecutionError`."""

    def __init__(self, memory: LaunchMemory) -> None:
        self.memory = memory
        self.index: tuple[int, ...] = ()
        self.present = -1  # the number of the present instance: so many have begun before it
        self.begun: dict[tuple[int, ...], int] = {}
        self.clocks: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}  # how far each instance knows each other
        self.time: dict[tuple[int, ...], int] = {}  # the present instance's clock
        self.released: dict[int, dict[tuple[int, ...], int]] = {}  # clocks left at addresses by atomics
        self.accesses: list[_RecordedAccess | None] = [None]
        self.numbers: dict[_RecordedAccess, int] = {}
        self.instances = np.full(64, -1)  # of each access, by its number: that of its instance, -1 for none
        self.shadows: dict[int, tuple[_Shadow, int]] = {}  # of a buffer: where it begins in its stretch of memory
        self.wide: dict[int, _Wide] = {}
        self.exchanges: list[_Exchange] = []  # of the atomic that is being carried out
        self.undefined = UndefinedLanes()

    def before(self, index: tuple[int, ...], operation: Operation, operands: list[Array]) -> None:
        """Check an access; called for every operation with the values of its operands."""
        if index != self.index:
            if index not in self.clocks:
                self.clocks[index] = {index: 0}
                self.wide.clear()
            self.index, self.time = index, self.clocks[index]
            self.present = self.begun.setdefault(index, len(self.begun))
        self.undefined.before(operation, operands)
        if operation.opcode not in ("load", "store", "atomic_rmw", "atomic_cas"):
            return
        pointer = operands[0]
        position = MASK_OPERAND.get(operation.opcode)
        masked = position is not None and len(operands) > position
        mask = operands[position] if masked else np.asarray(True)  # type: ignore[index]
        addresses = pointer[mask] if masked else np.ravel(pointer)
        self._check_overflow(operation, pointer, mask)
        element = operation.operands[0].type.element
        assert isinstance(element, PointerType)
        values = None
        if operation.opcode == "store":
            values = operands[1][mask] if masked else np.ravel(operands[1])
        if values is not None:
            _check_duplicates(self.memory, addresses, values, element.element)
        for buffer, offsets, lanes in self.memory.resolve(addresses, element.element):
            chosen = None if values is None else values[lanes]
            try:
                self._access(operation, buffer, offsets, chosen, element.element)
            except ExecutionError as error:
                if not isinstance(lanes, EllipsisType):
                    error.lane = int(np.flatnonzero(lanes)[error.lane or 0])
                raise
        self.undefined.stored(operation, operands)
        if operation.opcode.startswith("atomic") and addresses.size == 1:
            self._synchronize(int(addresses.flat[0]), str(operation.attributes["semantics"]))

    # Races and unwritten memory

    def _shadow(self, buffer: Buffer) -> tuple[_Shadow, int]:
        if not self.shadows:
            self._lay_out()
        if id(buffer) not in self.shadows:  # memory of no argument, which was met later
            self._share([buffer])
        return self.shadows[id(buffer)]

    def _lay_out(self) -> None:
        """One shadow for each stretch of memory: arguments may be views of one array."""
        group: list[Buffer] = []
        end = -1
        for buffer in [*sorted(self.memory.buffers, key=lambda entry: entry.bytes.ctypes.data), None]:
            if buffer is None or buffer.bytes.ctypes.data >= end:
                if group:
                    self._share(group)
                group = []
            if buffer is not None:
                group.append(buffer)
                end = max(end, buffer.bytes.ctypes.data + buffer.bytes.size)

    def _share(self, group: list[Buffer]) -> None:
        first = group[0].bytes
        start = first.ctypes.data
        size = max(buffer.bytes.ctypes.data + buffer.bytes.size for buffer in group) - start
        whole = np.lib.stride_tricks.as_strided(first, (size,), (1,), writeable=False) if size else first
        shadow = _Shadow(whole)
        for buffer in group:
            self.shadows[id(buffer)] = shadow, buffer.bytes.ctypes.data - start

    def _access(
        self, operation: Operation, buffer: Buffer, offsets: Array, values: Array | None, element: DType
    ) -> None:
        shadow, begin = self._shadow(buffer)
        offsets = np.ravel(offsets)
        places, size, opcode = begin + offsets, element.itemsize, operation.opcode
        if shadow.pending is not None:
            self._check_written(operation, shadow.pending, buffer, offsets, places, size)
        grains = shadow.grains(begin, offsets, size)
        number = self._number(operation)
        used = shadow.used[grains]
        if opcode == "load":
            self._check_order(used["writer"], buffer, offsets, size)
            if not operation.attributes["volatile"]:
                self._check_order(used["changer"], buffer, offsets, size, _READ)
            replaced = self.instances[used["reader"]] != self.instances[number]
            if replaced.any():
                shadow.used["earlier_reader"][grains] = np.where(replaced, used["reader"], used["earlier_reader"])
            shadow.used["reader"][grains] = number
        elif opcode == "store":
            assert values is not None
            old = buffer.bytes[offsets[:, None] + np.arange(size)]
            stored = np.ascontiguousarray(np.ravel(values).astype(_stored(element), copy=False))
            changed = np.any(old != stored.view(np.uint8).reshape(-1, size), axis=1)
            for name in _USES:
                others = used[name]
                if name == "writer" and others.any():
                    others = np.where(changed[:, None], others, 0)
                self._check_order(others, buffer, offsets, size)
            shadow.used["writer"][grains] = number
        else:
            self._check_order(used["writer"], buffer, offsets, size)
            shadow.used["atomic"][grains] = number
            touched = offsets[:, None] + np.arange(size)
            self.exchanges.append(_Exchange(shadow, buffer, offsets, touched, buffer.bytes[touched], grains))

    def _check_written(
        self, operation: Operation, pending: Array, buffer: Buffer, offsets: Array, places: Array, size: int
    ) -> None:
        touched = places[:, None] + np.arange(size)
        unread = operation.opcode == "store" or operation.attributes.get("kind") == "exchange"
        wrong = np.flatnonzero(pending[touched].any(axis=1))
        if wrong.size and not unread:
            lane = int(wrong[0])
            address = buffer.place(int(offsets[lane]), size)
            name = buffer.name or "it"
            error = ExecutionError(
                f"read of memory that nobody has written: {address}",
                f"write {name} before, on the host (np.zeros) or in an earlier kernel; or mask off these lanes",
                (f"{wrong.size} of {len(offsets)} lanes read unwritten memory",) if len(offsets) > 1 else (),
                address=address,
            )
            error.lane = lane
            raise error
        if operation.opcode != "load":
            pending[touched] = False

    def _number(self, operation: Operation) -> int:
        volatile = bool(operation.attributes.get("volatile"))
        access = _RecordedAccess(self.index, self.time[self.index], operation.opcode, operation.location, volatile)
        number = self.numbers.setdefault(access, len(self.accesses))
        if number == len(self.accesses):
            self.accesses.append(access)
            if number == len(self.instances):
                self.instances = np.append(self.instances, np.full(number, -1))
            self.instances[number] = self.present
        return number

    def _check_exchange(self, operation: Operation, exchange: _Exchange) -> None:
        """Raise where an atomic has changed what another instance loads, and nothing orders them."""
        buffer, offsets, grains = exchange.buffer, exchange.offsets, exchange.grains
        changed = np.any(buffer.bytes[exchange.touched] != exchange.before, axis=1)
        used = exchange.shadow.used[grains]
        plain = np.asarray([access is not None and not access.volatile for access in self.accesses])
        for name in ("reader", "earlier_reader"):
            others = np.where(changed[:, None] & plain[used[name]], used[name], 0)
            self._check_order(others, buffer, offsets, exchange.touched.shape[1], _READ)
        exchange.shadow.used["changer"][grains[changed]] = self._number(operation)

    def _check_order(
        self, others: Array, buffer: Buffer, offsets: Array, size: int, advice: str = _OVERLAP_ADVICE
    ) -> None:
        """Raise unless everything that these earlier accesses did comes before the present operation."""
        if not others.any():
            return
        instances = self.instances[others]
        foreign = (instances != self.present) & (instances >= 0)
        if not foreign.any():
            return
        for number in np.unique(others[foreign]):
            other = self.accesses[int(number)]
            if other is None or other.time <= self.time.get(other.index, -1):
                continue
            lane = int(np.flatnonzero((others == number).any(axis=1))[0])
            address = buffer.place(int(offsets[lane]), size)
            error = ExecutionError(
                f"race between program instances: both use {address}, and nothing orders them",
                advice,
                (f"the other access: {other}",),
                address=address,
            )
            error.lane = lane
            raise error

    def _synchronize(self, address: int, semantics: str) -> None:
        clock = self.released.setdefault(address, {})
        if semantics in ("acquire", "acq_rel"):
            for index, time in clock.items():
                if index != self.index:
                    self.time[index] = max(time, self.time.get(index, -1))
        if semantics in ("release", "acq_rel"):
            for index, time in self.time.items():
                clock[index] = max(time, clock.get(index, -1))
            self.time[self.index] += 1

    # Overflow in address arithmetic

    def after(self, operation: Operation, operands: list[Array], results: list[Array]) -> None:
        """Follow undefined lanes, and what i32 arithmetic would have given in 64 bits; called with all values."""
        opcode = operation.opcode
        self.undefined.after(operation, operands, results)
        for exchange in self.exchanges:
            self._check_exchange(operation, exchange)
        self.exchanges.clear()
        if not self.wide and opcode not in _WRAPPING:
            return
        known = [self.wide.get(id(operand)) for operand in operands]
        if opcode in _WRAPPING:
            element = operation.results[0].type.element
            if element == dtypes.int32 or (element == dtypes.int64 and any(known)):
                self._follow(operation, operands, known, results)
        elif any(known):
            if opcode == "offset":
                self._follow_pointer(operation, operands, known, results[0])
            elif opcode in _FORWARDING or (opcode == "cast" and results[0].dtype.itemsize == 8):
                self._follow(operation, operands, known, results)

    def _follow(
        self, operation: Operation, operands: list[Array], known: list[_Wide | None], results: list[Array]
    ) -> None:
        wide = [
            entry.values if entry is not None else operand.astype(np.int64) if operand.dtype == np.int32 else operand
            for entry, operand in zip(known, operands, strict=True)
        ]
        info = OPS[operation.opcode]
        assert info.evaluate is not None
        if operation.opcode == "cast":
            found: Array | tuple[Array, ...] = wide[0]
        else:
            found = info.evaluate(*wide, **{name: operation.attributes[name] for name in info.attributes})
        for result, values in zip(results, found if isinstance(found, tuple) else (found,), strict=True):
            self._note(operation, wide, known, result, np.asarray(values))

    def _note(
        self, operation: Operation, operands: list[Array], known: list[_Wide | None], result: Array, values: Array
    ) -> None:
        wrong = result.astype(np.int64, copy=False) != values
        if not wrong.any():
            return
        before = next((entry for entry in known if entry is not None), None)
        if before is not None:
            self.wide[id(result)] = _Wide(result, values, before.origin, before.text)
            return
        lane = tuple(int(part) for part in np.argwhere(wrong)[0])
        numbers = [int(operand[lane]) for operand in operands]
        symbol = _SYMBOLS.get(operation.opcode)
        text = f"{numbers[0]} {symbol} {numbers[1]}" if symbol else f"-({numbers[0]})"
        text = f"{text} = {int(values[lane])}, which int32 holds as {int(result[lane])}"
        self.wide[id(result)] = _Wide(result, values, operation, text)

    def _follow_pointer(
        self, operation: Operation, operands: list[Array], known: list[_Wide | None], result: Array
    ) -> None:
        element = operation.operands[0].type.element
        assert isinstance(element, PointerType)
        pointer, count = (
            entry.values if entry is not None else operand.astype(np.int64)
            for entry, operand in zip(known, operands, strict=True)
        )
        self._note(operation, operands, known, result, pointer + count * element.element.itemsize)

    def _check_overflow(self, operation: Operation, pointer: Array, mask: Array) -> None:
        wide = self.wide.get(id(pointer))
        if wide is None:
            return
        wrong = mask & (wide.values != pointer)
        if not np.any(wrong):
            return
        lane = tuple(int(part) for part in np.argwhere(wrong)[0])
        element = operation.operands[0].type.element
        assert isinstance(element, PointerType)
        size = element.element.itemsize
        address = self.memory.describe(int(pointer[lane]), size)
        error = ExecutionError(
            f"int32 overflow in an address: {wide.text}",
            "compute the offset in 64 bits: tl.program_id(0).to(tl.int64), or stride.to(tl.int64)",
            (
                f"{operation.opcode} at {operation.location} would use "
                f"{self.memory.describe(int(wide.values[lane]), size)}, and gets {address}",
            ),
            element=lane,
            address=address,
        )
        error.location = wide.origin.location
        raise error


def _stored(element: DType) -> np.dtype:
    return np.dtype(np.uint8) if element.is_bool else element.numpy


def _check_duplicates(memory: LaunchMemory, addresses: Array, values: Array, element: DType) -> None:
    """Raise when lanes of one store give one address different values: which one remains is left open."""
    flat = np.ravel(addresses)
    if (flat[1:] > flat[:-1]).all():
        return
    order = np.argsort(flat, kind="stable")
    bits = np.ascontiguousarray(np.ravel(values).astype(_stored(element), copy=False))
    bits = bits.view(np.uint8).reshape(-1, element.itemsize)[order]
    again = (flat[order][1:] == flat[order][:-1]) & np.any(bits[1:] != bits[:-1], axis=1)
    if not np.any(again):
        return
    place = int(np.flatnonzero(again)[0])
    address = memory.describe(int(flat[order][place]), element.itemsize)
    first, second = (np.ravel(values)[order[place + step]] for step in (0, 1))
    error = ExecutionError(
        f"race between lanes of one store: {address} gets {first} and {second}",
        "give every lane an address of its own, combine the values first (tl.sum, tl.max), or use tl.atomic_add",
        address=address,
    )
    error.lane = int(order[place + 1])
    raise error
