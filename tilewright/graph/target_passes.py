"""Tables of the passes that graphs take for some targets only, and what of them a graph of several targets takes.

No pass is imported here: backends name the type of their table without loading what is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import and_
from typing import TYPE_CHECKING, Any

from tilewright.graph.kernel_facts import NO_KERNELS, KernelFacts, common_facts

if TYPE_CHECKING:
    from tilewright.graph.core import Graph


def _concatenated(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*left, *(each for each in right if each not in left))


# How the options of several targets become one, by name.
JOINED: Mapping[str, Callable[[Any, Any], Any]] = {
    "types": and_,  # a set of types that all multiply
    "zeros_around": and_,  # a flag, of what all have
    "computed": and_,
    "exact": and_,
    "rows": min,  # numbers of `KernelFacts`: what the kernels of all take
    "widest": min,
    "in_registers": min,
    "columns": min,
    "taps": min,
    "shared_taps": min,
    "row_bytes": max,  # a multiple of both
    "limits": _concatenated,  # functions that say what a target cannot take: what one of them cannot, none gets
}


@dataclass(frozen=True)
class TargetPass:
    """A pass that graphs take for some targets only, called with `options`.

    `required`: it rewrites what the target has no kernel for, so a graph that several targets share takes it where one
    of them lists it; any other pass where all of them do. All that list a pass give the same options, which are joined
    as `JOINED` says.
    """

    run: Callable[..., Graph]
    options: Mapping[str, Any] = field(default_factory=dict)
    required: bool = False

    def bound(self) -> tuple[str, Callable[[Graph], Graph]]:
        """Its name, and the pass with its options."""
        return self.run.__name__, partial(self.run, **self.options)


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
            found.append(TargetPass(run, _joined([each.options for each in same])))
    return found


def _joined(options: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    joined = dict(options[0])
    for other in options[1:]:
        assert other.keys() == joined.keys(), "targets give a pass different options"
        joined = {name: JOINED[name](value, other[name]) for name, value in joined.items()}
    return joined
