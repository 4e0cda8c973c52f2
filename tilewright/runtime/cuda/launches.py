"""A plan's launches for known sizes: every argument a number, or a place in memory that a call's addresses give.

binder = Binder(starts, numbers, address, tables)
first, *others = binder.launches([chosen_launch(step, symbols) for step in plan.steps], symbols)
first(stream, addresses)                                   # of the caller's tensors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from tilewright.runtime.cuda.launch import Start
from tilewright.runtime.cuda.tables import DeviceTables
from tilewright.runtime.plan import Argument, BufferReference, LaunchChoice, PlanStep, TableReference, TiledReference
from tilewright.symbolic import Expression, Size, evaluate


@dataclass(frozen=True)
class PointerArgument:
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
    pointers: tuple[tuple[int, PointerArgument], ...]

    def __call__(self, stream: int, addresses: Sequence[int]) -> None:
        """Enqueue it, with the caller's memory at `addresses`."""
        arguments = list(self.arguments)
        for position, pointer in self.pointers:
            arguments[position] = pointer.value(addresses)
        self.start(*self.grid, stream, *arguments)


# An argument from the numbers that the sizes of a plan have for a shape (`Binder`).
Recipe = Callable[[Sequence[int]], Any]


@dataclass(frozen=True)
class _Prepared:
    """What is known of a choice's launches before sizes are: None for arguments that depend on these."""

    choice: LaunchChoice
    start: Start
    grid: Callable[[Sequence[int]], tuple[int, int, int]]
    arguments: tuple[Any, ...]
    pointers: tuple[tuple[int, PointerArgument], ...]
    varying: tuple[tuple[int, Recipe], ...]  # by position


@dataclass(frozen=True)
class Binder:
    """Makes launches of a plan's choices: kernels by key, numbers of the caller's tensors by (kind, name), a function
    that gives the address of what lies elsewhere (arena, weights), and the tables that launches read.

    Layers ask for the same sizes: each is worked out once for a shape, and has a place in a list of numbers.
    """

    starts: Mapping[str, Start]
    numbers: Mapping[tuple[str, str], int]
    address: Callable[[BufferReference], int]
    tables: DeviceTables
    _places: dict[Size, int] = field(default_factory=dict)
    _fixed: list[int] = field(default_factory=list)  # the sizes in their places, 0 for those that symbols change
    _prepared: dict[int, _Prepared] = field(default_factory=dict)  # by the identity of a choice, which they keep

    def launches(self, choices: Sequence[LaunchChoice], symbols: Mapping[str, int]) -> list[Launch]:
        """The launches of choices for the symbols' values."""
        known = [self._prepared.get(id(choice)) or self.prepare(choice) for choice in choices]
        numbers = [evaluate(size, symbols) for size in self._places]
        return [_launch(each, numbers) for each in known]

    def prepare(self, choice: LaunchChoice) -> _Prepared:
        """Find out what no symbol changes, so that less is to do when sizes are first met."""
        recipes = [self._recipe(argument) for argument in choice.arguments]
        grid = self._sizes(choice.grid)
        changing = {n for n, argument in enumerate(choice.arguments) if _varies(argument)}
        arguments = tuple(None if n in changing else recipe(self._fixed) for n, recipe in enumerate(recipes))
        pointers = tuple((n, argument) for n, argument in enumerate(arguments) if isinstance(argument, PointerArgument))
        varying = tuple((n, recipes[n]) for n in sorted(changing))
        found = _Prepared(choice, self.starts[choice.kernel], grid, arguments, pointers, varying)
        self._prepared[id(choice)] = found
        return found

    def forget(self) -> None:
        """Ask for addresses anew: what lies elsewhere has moved."""
        self._prepared.clear()

    def _recipe(self, argument: Argument) -> Recipe:
        value = argument.value
        if isinstance(value, TiledReference):
            shape, strides = self._sizes(value.shape), self._sizes(value.strides)
            rest = (value.rounded, value.steps) if value.steps else (True,) if value.rounded else ()
            return self._pointer(value.place, lambda numbers: (shape(numbers), strides(numbers), *rest))
        if isinstance(value, TableReference):
            name, sizes, part = value.name, self._sizes(value.sizes), int(value.columns)  # address, or columns of a row
            return lambda numbers: self.tables(name, sizes(numbers))[part]
        if isinstance(value, BufferReference):
            return self._pointer(value, None)
        if isinstance(value, float):
            return lambda numbers: value
        return itemgetter(self._place(value))

    def _pointer(self, place: BufferReference, tiled: Callable[[Sequence[int]], tuple[Any, ...]] | None) -> Recipe:
        offset = itemgetter(self._place(place.offset))
        number = self.numbers.get((place.kind, place.name))
        if number is not None:
            return lambda numbers: PointerArgument(number, offset(numbers), None if tiled is None else tiled(numbers))
        base = self.address(place)
        if tiled is None:
            return lambda numbers: base + offset(numbers)
        return lambda numbers: (base + offset(numbers), *tiled(numbers))

    def _place(self, size: Size) -> int:
        """Where the numbers of a shape have this size."""
        found = self._places.setdefault(size, len(self._places))
        if found == len(self._fixed):
            self._fixed.append(size if isinstance(size, int) else 0)
        return found

    def _sizes(self, sizes: Sequence[Size]) -> Callable[[Sequence[int]], Any]:
        """A function that takes a tuple of sizes from the numbers of a shape."""
        places = [self._place(size) for size in sizes]
        return itemgetter(*places) if len(places) > 1 else lambda numbers: tuple(numbers[place] for place in places)


def _launch(known: _Prepared, numbers: Sequence[int]) -> Launch:
    grid = known.grid(numbers)
    if not known.varying:
        return Launch(known.start, grid, known.arguments, known.pointers)
    arguments, pointers = list(known.arguments), known.pointers
    for position, recipe in known.varying:
        argument = arguments[position] = recipe(numbers)
        if isinstance(argument, PointerArgument):
            pointers = (*pointers, (position, argument))
    return Launch(known.start, grid, tuple(arguments), pointers)


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


def chosen_launch(step: PlanStep, symbols: Mapping[str, int]) -> LaunchChoice:
    """The choice of a step for these sizes."""
    return next(c for c in step.choices if c.at_most is None or evaluate(c.size, symbols) <= c.at_most)
