"""A plan's launches for known sizes: every argument a number, or a place in memory that a call's addresses give.

binder = Binder(starts, numbers, address, tables)
launch = binder.launch(taken(step, symbols), symbols)
launch(stream, addresses)                                  # of the caller's tensors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.cuda.launch import Start
from tilewright.runtime.cuda.tables import DeviceTables
from tilewright.runtime.plan import Argument, BufferReference, Choice, Step, TableReference, TiledReference
from tilewright.symbolic import Size, evaluate


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
class Binder:
    """Makes launches of a plan's choices: kernels by key, numbers of the caller's tensors by (kind, name), a function
    that gives the address of what lies elsewhere (arena, weights), and the tables that launches read."""

    starts: Mapping[str, Start]
    numbers: Mapping[tuple[str, str], int]
    address: Callable[[BufferReference], int]
    tables: DeviceTables

    def launch(self, choice: Choice, symbols: Mapping[str, int]) -> Launch:
        """The launch of a choice for the symbols' values."""
        x, y, z = (evaluate(extent, symbols) for extent in choice.grid)
        arguments = [self._argument(argument, symbols) for argument in choice.arguments]
        pointers = [(n, argument) for n, argument in enumerate(arguments) if isinstance(argument, Pointer)]
        return Launch(self.starts[choice.kernel], (x, y, z), tuple(arguments), tuple(pointers))

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
