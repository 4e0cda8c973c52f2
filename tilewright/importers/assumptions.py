"""What an import takes for granted about sizes, where a model's meaning depends on them: every assumption becomes a
condition of each call, and an import that one leads nowhere is tried with the others.

    graph = under_assumptions(lambda assumptions: …)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.errors import ImportModelError, UnsupportedOperationError
from tilewright.graph.core import Graph

MOST_FIXED = 64  # dimensions that turn out to have one size only


class SizeIsFixed(Exception):
    """An operation takes one size only of a dimension of an input that the file leaves open."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(f"{name} can only be {size}")
        self.name, self.size = name, size


@dataclass
class Assumptions:
    """`fixed`: the sizes of symbols that can have no other.  `apart`: names that a file gives to dimensions that cannot
    all be equal, so that each has a symbol of its own.  `one`: whether sizes that may be 1 are taken to be 1 where that
    decides about the number of dimensions; else they are taken to differ from it."""

    fixed: dict[str, int] = field(default_factory=dict)
    apart: set[str] = field(default_factory=set)
    one: bool = False
    asked: bool = False  # whether `one` was of importance

    def takes_one(self) -> bool:
        """`one`, remembered as having been of importance."""
        self.asked = True
        return self.one


def under_assumptions(importing: Callable[[Assumptions], Graph]) -> Graph:
    """The graph of the first import that succeeds; raises the first one's error if none does."""
    fixed: dict[str, int] = {}
    apart: set[str] = set()
    first: Exception | None = None
    for one in (False, True):
        while True:
            assumptions = Assumptions(fixed, apart, one)
            try:
                return importing(assumptions)
            except SizeIsFixed as found:
                if found.name not in fixed and len(fixed) < MOST_FIXED:
                    fixed[found.name] = found.size
                elif found.name not in apart and len(apart) < MOST_FIXED:
                    apart.add(found.name)
                    fixed.clear()
                else:
                    raise ImportModelError(f"dimension {found.name!r} must have two sizes at once: {found}") from None
            except (ImportModelError, UnsupportedOperationError) as error:
                first = first or error
                if not apart.issuperset(fixed):  # one name of dimensions that other operations take with other sizes
                    apart.update(fixed)
                    fixed.clear()
                    continue
                if not assumptions.asked:
                    raise first from None
                break
    assert first is not None
    raise first
