"""A plan's launches for known sizes: every argument a number, or a place in memory that a call's addresses give.

binder = Binder(starts, numbers, address, tables)
launch = binder.launch(taken(step, symbols), symbols)
launch(stream, addresses)                                  # of the caller's tensors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.runtime.cuda.launch import Start
from tilewright.runtime.cuda.tables import DeviceTables
from tilewright.runtime.plan import Argument, BufferReference, Choice, Step, TableReference, TiledReference
from tilewright.symbolic import Expression, Size, evaluate


@dataclass(frozen=True)
class Pointer:
    """An argument that changes with the caller's memory: number among inputs and outputs, byte offset, and for a
    tensor in tiles what a tensor map wants to know besides the address (extents, strides, …)."""

    number: int
    offset: int
    tiled: tuple[Any, ...] | None = None

    def value(self, addresses: Sequence[int]) -> Any:
        """The argument for memory at these addresses."""
        address = addresses[self.number] + self.offset
        return address if self.tiled is None else (address, *self.tiled)


@dataclass(frozen=True)
class Launch:
    """A kernel's launch for known sizes; `pointers` are the positions of arguments that the caller's memory gives."""

    start: Start
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]
    pointers: tuple[tuple[int, Pointer], ...]

    def __call__(self, stream: int, addresses: Sequence[int]) -> None:
        """Enqueue it, with the caller's memory at `addresses`."""
        arguments = list(self.arguments)
        for position, pointer in self.pointers:
            arguments[position] = pointer.value(addresses)
        self.start(*self.grid, stream, *arguments)


@dataclass(frozen=True)
class _Prepared:
    """What is known of a choice's launches before sizes are: None for a grid and arguments that depend on these."""

    choice: Choice
    start: Start
    grid: tuple[int, int, int] | None
    arguments: tuple[Any, ...]
    pointers: tuple[tuple[int, Pointer], ...]
    varying: tuple[tuple[int, Argument], ...]  # positions and what they are


@dataclass(frozen=True)
class Binder:
    """Makes launches of a plan's choices: kernels by key, numbers of the caller's tensors by (kind, name), a function
    that gives the address of what lies elsewhere (arena, weights), and the tables that launches read."""

    starts: Mapping[str, Start]
    numbers: Mapping[tuple[str, str], int]
    address: Callable[[BufferReference], int]
    tables: DeviceTables
    _prepared: dict[int, _Prepared] = field(default_factory=dict)  # by the identity of a choice, which they keep

    def launch(self, choice: Choice, symbols: Mapping[str, int]) -> Launch:
        """The launch of a choice for the symbols' values."""
        known = self._prepared.get(id(choice)) or self.prepare(choice)
        x, y, z = choice.grid
        grid = known.grid or (evaluate(x, symbols), evaluate(y, symbols), evaluate(z, symbols))
        if not known.varying:
            return Launch(known.start, grid, known.arguments, known.pointers)
        arguments, pointers = list(known.arguments), known.pointers
        for position, item in known.varying:
            argument = arguments[position] = self._argument(item, symbols)
            if isinstance(argument, Pointer):
                pointers = (*pointers, (position, argument))
        return Launch(known.start, grid, tuple(arguments), pointers)

    def prepare(self, choice: Choice) -> _Prepared:
        """Find out what no symbol changes, so that less is to do when sizes are first met."""
        varying = tuple((n, item) for n, item in enumerate(choice.arguments) if _varies(item))
        changing = {position for position, _ in varying}
        arguments = tuple(
            None if n in changing else self._argument(item, {}) for n, item in enumerate(choice.arguments)
        )
        pointers = tuple((n, argument) for n, argument in enumerate(arguments) if isinstance(argument, Pointer))
        x, y, z = choice.grid
        grid = (x, y, z) if isinstance(x, int) and isinstance(y, int) and isinstance(z, int) else None
        found = _Prepared(choice, self.starts[choice.kernel], grid, arguments, pointers, varying)
        self._prepared[id(choice)] = found
        return found

    def forget(self) -> None:
        """Ask for addresses anew: what lies elsewhere has moved."""
        self._prepared.clear()

    def _argument(self, argument: Argument, symbols: Mapping[str, int]) -> Any:
        value = argument.value
        tiled: tuple[Any, ...] | None = None
        if isinstance(value, TiledReference):
            tiled = (_sizes(value.shape, symbols), _sizes(value.strides, symbols))
            if value.steps:
                tiled = (*tiled, False, value.steps)
            value = value.place
        if isinstance(value, TableReference):
            address, columns = self.tables(value.name, _sizes(value.sizes, symbols))
            return columns if value.columns else address
        if not isinstance(value, BufferReference):
            return value if isinstance(value, float) else evaluate(value, symbols)
        offset = evaluate(value.offset, symbols)
        if (value.kind, value.name) in self.numbers:
            return Pointer(self.numbers[value.kind, value.name], offset, tiled)
        address = offset + self.address(value)
        return address if tiled is None else (address, *tiled)


def _varies(argument: Argument) -> bool:
    """Whether an argument depends on symbols."""
    value = argument.value
    if isinstance(value, TableReference):
        return True  # tables are given up from time to time
    sizes: tuple[Size, ...] = ()
    if isinstance(value, TiledReference):
        sizes, value = (*value.shape, *value.strides), value.place
    if isinstance(value, BufferReference):
        sizes = (*sizes, value.offset)
    elif not isinstance(value, float):
        sizes = (value,)
    return any(isinstance(size, Expression) for size in sizes)


def place_of(argument: Argument) -> BufferReference | None:
    """The memory that an argument points to."""
    value = argument.value
    if isinstance(value, TiledReference):
        return value.place
    return value if isinstance(value, BufferReference) else None


def taken(step: Step, symbols: Mapping[str, int]) -> Choice:
    """The choice of a step for these sizes."""
    return next(c for c in step.choices if c.at_most is None or evaluate(c.size, symbols) <= c.at_most)


def _sizes(sizes: Sequence[Size], symbols: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(size, symbols) for size in sizes)
