"""Stores of one form become a loop: the kernel is as long as the forms there are, not as the parts.

A model that splits a tensor into 1,000 parts, does something to each and joins them gives 1,000 stores, which differ
by where they read and write.  Where these places advance by equal steps from one store to the next, the code of one
store with a counter in its indices does the work of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.graph.core import Value
from tilewright.library.generated.index import Coordinate, Index
from tilewright.library.generated.trace import ElementwiseOperation, Expression, Guards, Literal, Load, walk
from tilewright.symbolic import Size, lift, simplify

SHORTEST_RUN = 16  # stores of one form that become a loop: fewer are quickly compiled and run without its counter
AXIS = -1  # of the counter, which is no axis of the loop space


@dataclass(frozen=True)
class Store:
    """An element stored, where the guards hold, or combined with what is there by a `reduction`."""

    target: Value
    index: Index
    expression: Expression
    guards: Guards = ()
    reduction: str = ""


@dataclass(frozen=True)
class Run:
    """`count` stores as one: indices of `store` have a coordinate of `AXIS`; `shared` is what none of them changes."""

    store: Store
    count: int
    shared: tuple[Expression, ...]


def find_runs(stores: Sequence[Store]) -> tuple[list[Store], list[Run]]:
    """Runs of stores, and the stores that are in none."""
    forms: dict[Any, list[tuple[Store, list[Size]]]] = {}
    single: list[Store] = []
    for store in stores:
        form = _Form()
        if store.guards or not form.add_store(store):
            single.append(store)
        else:
            forms.setdefault(tuple(form.parts), []).append((store, form.constants))
    runs: list[Run] = []
    for members in forms.values():
        for begin, end in _progressions([constants for _, constants in members]):
            if end - begin < SHORTEST_RUN:
                single += [store for store, _ in members[begin:end]]
            else:
                first, following = members[begin], members[begin + 1]
                steps = [simplify(lift(after) - before) for before, after in zip(first[1], following[1], strict=True)]
                runs.append(_Counted(end - begin, steps, following[0]).run(first[0]))
    return single, runs


class _Form:
    """What a store does, as `parts` that can be compared, and the `constants` of its indices in order of use."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.constants: list[Size] = []
        self._numbers: dict[int, int] = {}

    def add_store(self, store: Store) -> bool:
        """False if it has more than operations on elements at linear indices."""
        self.parts.append(store.target)
        return self._add_index(store.index) and self._add(store.expression)

    def _add(self, item: Expression) -> bool:
        if id(item) in self._numbers:
            self.parts.append(self._numbers[id(item)])
            return True
        self._numbers[id(item)] = len(self._numbers)
        if isinstance(item, Literal):
            self.parts.append(("number", repr(item.value), item.dtype))
            return True
        if isinstance(item, Load):
            self.parts.append(item.value)
            return not item.guards and self._add_index(item.index)
        if isinstance(item, ElementwiseOperation):
            self.parts.append((item.node.op, repr(sorted(item.node.attributes.items())), item.dtype))
            return all(map(self._add, item.operands))
        return False

    def _add_index(self, index: Index) -> bool:
        self.parts.append(index.terms)
        self.constants.append(index.constant)
        return all(isinstance(atom, Coordinate) for atom, _ in index.terms)


def _progressions(rows: Sequence[Sequence[Size]]) -> Iterator[tuple[int, int]]:
    """Where rows of numbers advance by equal steps: the longest stretches from the front on, each once."""
    begin = 0
    while begin < len(rows):
        end = begin + 1
        while end < len(rows) and (
            end == begin + 1
            or all(
                simplify(lift(third) - second) == simplify(lift(second) - first)
                for first, second, third in zip(rows[end - 2], rows[end - 1], rows[end], strict=True)
            )
        ):
            end += 1
        yield begin, end
        begin = end


class _Counted:
    """Makes the first store of a run the one for all: a counter times `steps` joins its indices, in order of use."""

    def __init__(self, count: int, steps: Sequence[Size], following: Store) -> None:
        self.counter = Coordinate(AXIS, count)
        self.steps = iter(steps)
        self.unchanged = {id(item) for item in walk(following.expression)}
        self.shared: list[Expression] = []
        self._made: dict[int, Expression] = {}

    def run(self, first: Store) -> Run:
        index = self._index(first.index)
        store = replace(first, index=index, expression=self._expression(first.expression))
        return Run(store, self.counter.extent, tuple(self.shared))  # type: ignore[arg-type]

    def _index(self, index: Index) -> Index:
        step = next(self.steps)
        return index if step == 0 else Index((*index.terms, (self.counter, step)), index.constant)

    def _expression(self, item: Expression) -> Expression:
        if id(item) not in self._made:
            self._made[id(item)] = self._counted(item)
        return self._made[id(item)]

    def _counted(self, item: Expression) -> Expression:
        made = item
        if isinstance(item, Load):
            made = replace(item, index=self._index(item.index))
        elif isinstance(item, ElementwiseOperation):
            made = ElementwiseOperation(item.node, [self._expression(operand) for operand in item.operands])
        if id(item) not in self.unchanged or isinstance(item, Literal):
            return made
        self.shared.append(item)
        return item
