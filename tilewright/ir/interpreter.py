"""Runs Tile IR on NumPy arrays; with `ir.ops`, this defines the meaning of a kernel.

    run(function, [x, y, out, 1000], grid=(4,))

Program instances run one after the other, x fastest.  Blocks are arrays of the element type's NumPy dtype,
pointers int64 addresses (`ir.memory`).  An access outside its buffer, a failed `assert` or `assume`, or a step
that is not positive stops the run with an `ExecutionError` that names operation, source line and instance.
`ir.checks` looks on when it is asked to.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import ExecutionError, InvalidIRError, LaunchError
from tilewright.ir import print_lines, semantics
from tilewright.ir.asynchrony import run_explicit
from tilewright.ir.asynchrony.global_tensor import global_tensor
from tilewright.ir.checks import Checks
from tilewright.ir.core import Function, Operation, Parameter, Region, SSAValue
from tilewright.ir.diagnostics import ASSERTED, inline_asm_error, located_execution_error, step_error, waiting_error
from tilewright.ir.explicit import INTERPRETED_WARP_THREADS, is_explicit
from tilewright.ir.memory import Address, ArrayPointer, LaunchMemory
from tilewright.ir.ops import OPS, constant_value
from tilewright.ir.types import PointerType, TensorMapType, TensorType
from tilewright.ir.undefined_lanes import MASK_OPERAND
from tilewright.ir.waiting import deciding_values

Array = np.ndarray
_KNOWN = frozenset({"constant", "arange"})  # the same in every pass of every instance
_PATIENCE = 64  # passes of a `while` without a change of memory until it is asked which values matter


def run(
    function: Function,
    arguments: Sequence[Any],
    grid: Sequence[int] = (1,),
    check: bool = False,
    order: int = 0,
    names: Sequence[str] | None = None,
    warp_threads: int = INTERPRETED_WARP_THREADS,
) -> None:
    """Run all instances of a kernel over `grid` (up to three extents).

    `arguments` fit the parameters in order: for pointers, arrays (any strides; the pointer is to the first
    element, the span of the array may be reached), `ArrayPointer(array, element offset)`, `Address` or None; for
    the rest, numbers.
    With `check` the run also stops at what `ir.checks` finds.  Explicit kernels (`ir.explicit`) run in an order drawn
    from `order`, take arrays for tensor maps, and have warps of `warp_threads`.  Errors call the arguments by `names`,
    or as the parameters are.
    Raises `LaunchError` for arguments that do not fit and `ExecutionError` for what a kernel must not do.
    """
    memory = LaunchMemory()
    if len(arguments) != len(function.parameters):
        raise LaunchError(f"{function.name} takes {len(function.parameters)} arguments, not {len(arguments)}")
    described = function.parameters
    if names is not None:
        described = [replace(facts, name=name) for facts, name in zip(described, names, strict=True)]
    parameters = zip(function.region.arguments, described, arguments, strict=True)
    initial = {value: argument_value(value.type, facts, given, memory) for value, facts, given in parameters}
    # Computed once: an instance does not compute what it knows.
    initial |= {op.result: evaluate(op, ())[0] for op in function.walk() if op.opcode in _KNOWN}
    checks = Checks(memory) if check else None
    extents = full_extents(grid)
    if any(is_explicit(operation.opcode) for operation in function.walk()):
        make = partial(_Instance, memory, extents=extents, checks=checks)
        run_explicit(
            function, initial, extents, lambda index, values: make(index=index, values=values), order, warp_threads
        )
        return
    for index in instances(extents):
        instance = _Instance(memory, index, extents, dict(initial), checks)
        instance.alone = True
        instance.region(function.region)


def full_extents(grid: Sequence[int]) -> tuple[int, int, int]:
    """A grid of up to three extents as three."""
    x, y, z = (*grid, 1, 1, 1)[:3]
    return x, y, z


def instances(extents: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    """The indices of all program instances of a grid, x fastest."""
    for z, y, x in itertools.product(*(range(extent) for extent in reversed(extents))):
        yield x, y, z


def evaluate(operation: Operation, operands: Sequence[Array]) -> list[Array]:
    """The results of an operation that has a NumPy meaning in the op table, from its operands' values."""
    info = OPS[operation.opcode]
    assert info.evaluate is not None
    if info.attributes:
        results = info.evaluate(*operands, **{name: operation.attributes[name] for name in info.attributes})
    else:
        results = info.evaluate(*operands)
    return list(results) if isinstance(results, tuple) else [np.asarray(results)]


def argument_value(type_: TensorType, facts: Parameter, given: Any, memory: LaunchMemory) -> Array:
    """The value of a parameter: a number, or the address of an array that is added to `memory`.

    Raises `LaunchError` when the argument is not of the type, or breaks what is promised of the parameter.
    """
    if isinstance(type_.handle, TensorMapType):
        return global_tensor(facts.name, type_.handle, given)  # type: ignore[return-value]
    if isinstance(type_.element, PointerType):
        return np.asarray(_address(type_.element, facts, given, memory), np.int64)
    try:
        value = constant_value(given.item() if isinstance(given, np.generic) else given, type_.dtype)
    except (InvalidIRError, TypeError, ValueError) as error:
        raise LaunchError(f"argument {facts.name}: expected a number of type {type_}: {error}") from None
    if type_.dtype.is_integer and int(value) % facts.divisibility:
        raise LaunchError(f"argument {facts.name} = {value} is not divisible by {facts.divisibility} as promised")
    return semantics.constant(value=value, dtype=type_.dtype, shape=())


def _address(element: PointerType, facts: Parameter, given: Any, memory: LaunchMemory) -> int:
    pointer = ArrayPointer(given) if isinstance(given, np.ndarray) else given
    if pointer is None:
        return 0
    if isinstance(pointer, Address):
        if pointer.number % facts.divisibility:
            raise LaunchError(
                f"argument {facts.name}: its address is not divisible by {facts.divisibility} as promised"
            )
        return pointer.number
    if not isinstance(pointer, ArrayPointer):
        raise LaunchError(f"argument {facts.name}: expected an array for {element}, got {type(given).__name__}")
    array, offset = pointer.array, pointer.offset
    if array.dtype.itemsize != element.element.itemsize:
        raise LaunchError(f"argument {facts.name}: an array of {array.dtype} cannot be seen as {element}")
    if (array.ctypes.data + offset * array.dtype.itemsize) % facts.divisibility:
        raise LaunchError(f"argument {facts.name}: its address is not divisible by {facts.divisibility} as promised")
    return memory.add(array, facts.name, offset)


class _Instance:
    """One program instance: its place in the grid and the values computed so far."""

    def __init__(
        self,
        memory: LaunchMemory,
        index: tuple[int, ...],
        extents: tuple[int, ...],
        values: dict[SSAValue, Array],
        checks: Checks | None = None,
    ) -> None:
        self.memory, self.index, self.extents, self.values = memory, index, extents, values
        self.checks = checks
        self.alone = False  # nobody else changes memory while it runs

    def region(self, region: Region, arguments: Sequence[Array] = ()) -> list[Array]:
        """Run a region; the operands of its terminator."""
        self.values.update(zip(region.arguments, arguments, strict=False))
        for operation in region.operations[:-1]:
            self.operation(operation)
        return [self.values[value] for value in region.terminator.operands]

    def operation(self, operation: Operation) -> None:
        if operation.opcode in _KNOWN and operation.results[0] in self.values:
            return
        operands = [self.values[value] for value in operation.operands]
        handler = _HANDLERS.get(operation.opcode)
        try:
            if self.checks is not None:
                self.checks.before(self.index, operation, operands)
            results = handler(self, operation, operands) if handler else evaluate(operation, operands)
            if self.checks is not None:
                self.checks.after(operation, operands, results)
        except ExecutionError as error:
            if error.program_id is not None:  # of an operation inside this one
                raise
            if error.lane is not None:
                error.element = lane_index(operation, operands, error.lane)
            location = error.location or operation.location
            raise located_execution_error(error, operation.opcode, location, self.index) from None
        self.values.update(zip(operation.results, results, strict=True))

    # Grid and memory

    def program_id(self, operation: Operation, operands: list[Array]) -> list[Array]:
        return [np.asarray(self.index[_axis(operation)], np.int32)]

    def num_programs(self, operation: Operation, operands: list[Array]) -> list[Array]:
        return [np.asarray(self.extents[_axis(operation)], np.int32)]

    def offset(self, operation: Operation, operands: list[Array]) -> list[Array]:
        pointer, count = operands
        return [np.asarray(pointer + count.astype(np.int64) * _pointee(operation).itemsize)]

    def load(self, operation: Operation, operands: list[Array]) -> list[Array]:
        pointer, *rest = operands
        dtype = _pointee(operation)
        if not rest:
            return [self.memory.read(pointer, dtype)]
        mask = rest[0]
        result = np.array(rest[1]) if len(rest) > 1 else np.zeros(pointer.shape, dtype.numpy)
        result[mask] = self.memory.read(pointer[mask], dtype)
        return [result]

    def store(self, operation: Operation, operands: list[Array]) -> list[Array]:
        pointer, value, *rest = operands
        mask = rest[0] if rest else None
        if mask is None:
            pointer, value = np.ravel(pointer), np.ravel(value)  # in order: of several at one place the last remains
        else:
            pointer, value = pointer[mask], value[mask]
        self.memory.write(pointer, value, _pointee(operation))
        return []

    def atomic_rmw(self, operation: Operation, operands: list[Array]) -> list[Array]:
        pointer, value, *rest = operands
        mask = rest[0] if rest else np.ones(pointer.shape, np.bool_)
        combine = _ATOMIC[str(operation.attributes["kind"])]
        return [self.one_by_one(operation, pointer, mask, lambda old, lane: combine(old, value[lane]))]

    def atomic_cas(self, operation: Operation, operands: list[Array]) -> list[Array]:
        pointer, expected, value, *rest = operands
        mask = rest[0] if rest else np.ones(pointer.shape, np.bool_)

        def exchange(old: Array, lane: tuple[int, ...]) -> Array:
            return value[lane] if old.tobytes() == expected[lane].tobytes() else old

        return [self.one_by_one(operation, pointer, mask, exchange)]

    def one_by_one(
        self, operation: Operation, pointer: Array, mask: Array, update: Callable[[Array, tuple[int, ...]], Array]
    ) -> Array:
        """Replace memory lane after lane; the old values.  Nothing is replaced when an address is wrong."""
        dtype = _pointee(operation)
        self.memory.resolve(pointer[mask], dtype)
        result = np.zeros(pointer.shape, dtype.numpy)
        for lane in np.ndindex(pointer.shape):
            if mask[lane]:
                address = np.asarray(pointer[lane])
                old = self.memory.read(address, dtype)
                result[lane] = old
                self.memory.write(address, np.asarray(update(old, lane)), dtype)
        return result

    # Reduction

    def reduce(self, operation: Operation, operands: list[Array]) -> list[Array]:
        """Neighbours are combined until one is left, so that an associative function is enough."""
        (region,), axis = operation.regions, _axis(operation)
        blocks = [self.derived(lambda whole: np.moveaxis(whole, axis, 0), block) for block in operands]
        while blocks[0].shape[0] > 1:
            paired = blocks[0].shape[0] // 2 * 2
            left, right, rest = (
                [self.derived(itemgetter(part), block) for block in blocks]
                for part in (slice(0, paired, 2), slice(1, paired, 2), slice(paired, None))
            )
            combined = self.on_each_element(region, [*left, *right])
            blocks = [
                self.derived(lambda *parts: np.concatenate(parts), *parts) for parts in zip(combined, rest, strict=True)
            ]
        return [self.derived(itemgetter(0), block) for block in blocks]

    def scan(self, operation: Operation, operands: list[Array]) -> list[Array]:
        """Every element with the combination of all before it, one after the other."""
        (region,), axis = operation.regions, _axis(operation)
        direction = slice(None, None, -1 if operation.attributes["reverse"] else 1)
        blocks = [self.derived(lambda whole: np.moveaxis(whole, axis, 0)[direction], block) for block in operands]
        rows = [[self.derived(itemgetter(0), block) for block in blocks]]
        for place in range(1, blocks[0].shape[0]):
            right = [self.derived(itemgetter(place), block) for block in blocks]
            rows.append(self.on_each_element(region, [*rows[-1], *right]))
        return [
            self.derived(lambda *parts: np.moveaxis(np.stack(parts)[direction], 0, axis), *column)
            for column in zip(*rows, strict=True)
        ]

    def map(self, operation: Operation, operands: list[Array]) -> list[Array]:
        (region,) = operation.regions
        return self.on_each_element(region, operands)

    def on_each_element(self, region: Region, blocks: list[Array]) -> list[Array]:
        """A region of scalars on each element of blocks of one shape: on all at once where that is the same."""
        shape = blocks[0].shape
        if _elementwise(region):
            results = self.region(region, blocks)
            return [self.derived(lambda whole: np.broadcast_to(whole, shape), result) for result in results]
        lanes = []
        for lane in np.ndindex(shape):
            scalars = [self.derived(itemgetter(lane), block) for block in blocks]
            lanes.append(self.region(region, scalars))
        # A function of scalars may yield a block of one.
        return [
            self.derived(lambda *parts: np.stack([part.reshape(()) for part in parts]).reshape(shape), *column)
            for column in zip(*lanes, strict=True)
        ]

    def derived(self, function: Callable[..., Array], *blocks: Array) -> Array:
        """What a function that only moves elements makes of blocks; the checks follow it."""
        result = np.asarray(function(*blocks))
        if self.checks is not None:
            self.checks.undefined.derived(result, function, blocks)
        return result

    def inline_asm(self, operation: Operation, operands: list[Array]) -> list[Array]:
        raise inline_asm_error(operation, "the interpreter")

    # Control flow

    def for_loop(self, operation: Operation, operands: list[Array]) -> list[Array]:
        lower, upper, step = (int(bound) for bound in operands[:3])
        carried = operands[3:]
        if step <= 0:
            raise step_error(step)
        for index in range(lower, upper, step):
            carried = self.region(operation.regions[0], [np.asarray(index, operands[0].dtype), *carried])
        return carried

    def while_loop(self, operation: Operation, operands: list[Array]) -> list[Array]:
        before, after = operation.regions
        proceed, *values = self.tested(operation, self.region(before, operands))
        places, quiet = list(range(len(values))), 0
        while proceed:
            changes = self.memory.changes
            proceed, *following = self.tested(operation, self.region(before, self.region(after, values)))
            if proceed and self.alone and changes == self.memory.changes:
                quiet += 1
                if quiet == _PATIENCE:
                    deciding = deciding_values(operation)
                    places = [place for place in places if after.arguments[place] in deciding]
                if all(values[place].tobytes() == following[place].tobytes() for place in places):
                    raise waiting_error()
            values = following
        return values

    def tested(self, operation: Operation, results: list[Array]) -> list[Array]:
        """The results of the region before a pass, of which the first decides; the checks look at that one."""
        if self.checks is not None:
            self.checks.undefined.decides(operation, results[0])
        return results

    def if_branch(self, operation: Operation, operands: list[Array]) -> list[Array]:
        return self.region(operation.regions[0 if operands[0] else 1])

    # Facts and effects

    def assume(self, operation: Operation, operands: list[Array]) -> list[Array]:
        if not np.all(operands[0]):
            raise _not_everywhere("the assumption does not hold", operands[0], "the compiler relies on it: correct it")
        return []

    def check(self, operation: Operation, operands: list[Array]) -> list[Array]:
        if not np.all(operands[0]):
            raise _not_everywhere(f"assertion failed: {operation.attributes['message']}", operands[0], ASSERTED)
        return []

    def print(self, operation: Operation, operands: list[Array]) -> list[Array]:
        print("".join(print_lines.lines(operation, self.index, operands)), end="")
        return []

    def barrier(self, operation: Operation, operands: list[Array]) -> list[Array]:
        return []


def _not_everywhere(message: str, condition: Array, advice: str = "") -> ExecutionError:
    wrong = np.argwhere(~condition)
    details = (f"it is false in {len(wrong)} of {condition.size} elements",) if condition.size > 1 else ()
    return ExecutionError(message, advice, details, tuple(int(part) for part in wrong[0]))


def lane_index(operation: Operation, operands: Sequence[Array], lane: int) -> tuple[int, ...]:
    """Where in the block the given one of the accessed lanes of a memory operation is."""
    position = MASK_OPERAND.get(operation.opcode)
    flat = lane
    if position is not None and len(operands) > position:
        flat = int(np.flatnonzero(operands[position])[lane])
    return tuple(int(part) for part in np.unravel_index(flat, operands[0].shape))


def _elementwise(region: Region) -> bool:
    """Whether a region of scalars can be computed on blocks as it stands: no control flow, no blocks of its own."""
    return not any(
        operation.regions or any(not value.type.is_scalar for value in operation.results)
        for operation in region.operations
    )


def _axis(operation: Operation) -> int:
    axis = operation.attributes["axis"]
    assert isinstance(axis, int)
    return axis


def _pointee(operation: Operation) -> DType:
    element = operation.operands[0].type.element
    assert isinstance(element, PointerType)
    return element.element


_ATOMIC: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda old, value: semantics.add(old, np.asarray(value)),
    "max": lambda old, value: semantics.maximum(old, np.asarray(value), propagate_nan=False),
    "min": lambda old, value: semantics.minimum(old, np.asarray(value), propagate_nan=False),
    "and": lambda old, value: old & value,
    "or": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "exchange": lambda old, value: value,
}

_HANDLERS: dict[str, Callable[[_Instance, Operation, list[Array]], list[Array]]] = {
    "program_id": _Instance.program_id,
    "num_programs": _Instance.num_programs,
    "offset": _Instance.offset,
    "load": _Instance.load,
    "store": _Instance.store,
    "atomic_rmw": _Instance.atomic_rmw,
    "atomic_cas": _Instance.atomic_cas,
    "reduce": _Instance.reduce,
    "scan": _Instance.scan,
    "map": _Instance.map,
    "inline_asm": _Instance.inline_asm,
    "for": _Instance.for_loop,
    "while": _Instance.while_loop,
    "if": _Instance.if_branch,
    "assume": _Instance.assume,
    "assert": _Instance.check,
    "print": _Instance.print,
    "barrier": _Instance.barrier,
}
