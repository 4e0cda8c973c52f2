"""Tables of the passes that graphs take for some targets only, and what of them a graph of several targets takes.

No pass is imported here: backends name the type of their table without loading what is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tilewright.graph.kernel_facts import NO_KERNELS, KernelFacts, common_facts

if TYPE_CHECKING:
    from tilewright.graph.core import Graph


@dataclass(frozen=True)
class TargetPass:
    """A pass that graphs take for some targets only; one that goes by `kernels` is called with them.

    `required`: it rewrites what the target has no kernel for, so a graph that several targets share takes it where one
    of them lists it; any other pass where all of them do.  Its kernels are what those that list it have in common.
    """

    run: Callable[..., Graph]
    kernels: KernelFacts | None = None
    required: bool = False

    def bound(self) -> tuple[str, Callable[[Graph], Graph]]:
        """Its name, and the pass as the kernels want it."""
        return self.run.__name__, self.run if self.kernels is None else partial(self.run, kernels=self.kernels)


@dataclass(frozen=True)
class TargetPasses:
    """What is done with graphs for a target, besides what is done with all: a table of each one's backend.

    Raises `ValueError` for a pass that is twice in one list.
    """

    before: Sequence[TargetPass] = ()  # the passes of all graphs, on the graph as it was imported
    after: Sequence[TargetPass] = ()
    cut: Sequence[TargetPass] = ()  # on a graph that will be cut into parts, before that
    kernels: KernelFacts = NO_KERNELS  # that the passes of all graphs go by

    def __post_init__(self) -> None:
        for passes in (self.before, self.after, self.cut):
            names = [each.run.__name__ for each in passes]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"passes of a target are twice in one list: {', '.join(twice)}")


NO_PASSES = TargetPasses()


def shared(tables: Sequence[TargetPasses]) -> TargetPasses:
    """The passes of a graph that several targets share; whether groups suit one of them is its own kernels' matter."""
    before, after, cut = ([getattr(table, name) for table in tables] for name in ("before", "after", "cut"))
    return TargetPasses(
        _shared(before), _shared(after), _shared(cut), common_facts([table.kernels for table in tables])
    )


def _shared(lists: Sequence[Sequence[TargetPass]]) -> list[TargetPass]:
    order: list[Callable[..., Graph]] = []  # that of every list
    for passes in lists:
        place = 0
        for each in passes:
            if each.run not in order:
                order.insert(place, each.run)
            place = order.index(each.run) + 1
    found = []
    for run in order:
        same = [each for passes in lists for each in passes if each.run is run]  # one of a list
        if len(same) == len(lists) or any(each.required for each in same):
            records = [each.kernels for each in same if each.kernels is not None]
            found.append(TargetPass(run, common_facts(records) if records else None))
    return found
