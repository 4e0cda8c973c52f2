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
    """`fixed`: the sizes of symbols that can have no other.  `shared_names`: names that a file gives to dimensions that
    cannot all be equal, so that each has a symbol of its own.  `sizes_are_one`: what is assumed of sizes that may be 1,
    where that decides the number of dimensions: that they are 1, or that none is."""

    fixed: dict[str, int] = field(default_factory=dict)
    shared_names: set[str] = field(default_factory=set)
    sizes_are_one: bool = False
    sizes_matter: bool = False  # whether the import depends on `sizes_are_one`

    def is_one(self) -> bool:
        """What is assumed of a size that may be 1; the import depends on it from here on."""
        self.sizes_matter = True
        return self.sizes_are_one


def under_assumptions(importing: Callable[[Assumptions], Graph], at_one: bool = False) -> Graph:
    """The graph of the first import that succeeds; raises the first one's error if none does.

    With `at_one` sizes that may be 1 are 1; raises `ImportModelError` where nothing depends on that.
    """
    fixed: dict[str, int] = {}
    shared_names: set[str] = set()
    first: Exception | None = None
    for sizes_are_one in (True,) if at_one else (False, True):
        while True:
            assumptions = Assumptions(fixed, shared_names, sizes_are_one)
            try:
                graph = importing(assumptions)
                if at_one and not assumptions.sizes_matter:
                    raise ImportModelError("the number of dimensions depends on no size")
                return graph
            except SizeIsFixed as found:
                if found.name not in fixed and len(fixed) < MOST_FIXED:
                    fixed[found.name] = found.size
                elif found.name not in shared_names and len(shared_names) < MOST_FIXED:
                    shared_names.add(found.name)
                    fixed.clear()
                else:
                    raise ImportModelError(f"dimension {found.name!r} must have two sizes at once: {found}") from None
            except (ImportModelError, UnsupportedOperationError) as error:
                first = first or error
                # One name of dimensions that other operations take with other sizes.
                if not shared_names.issuperset(fixed):
                    shared_names.update(fixed)
                    fixed.clear()
                    continue
                if not assumptions.sizes_matter:
                    raise first from None
                break
    assert first is not None
    raise first
