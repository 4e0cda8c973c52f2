"""A grouped product of a group: rows in groups by their `ends`, each multiplied by a matrix of its own."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.core import Value
from tilewright.graph.fusion import Group
from tilewright.library.cost import expected
from tilewright.library.generated.elementwise import chain_operations
from tilewright.library.slots import Slots
from tilewright.symbolic import Size, lift, simplify


@dataclass(frozen=True)
class GroupedProblem:
    """out[rows, columns] = epilogue(a[rows, depth] @ b[group of the row]); `transposed`: b is [groups, columns, depth],
    as graphs say it, else [groups, depth, columns]."""

    group: Group
    a: Value
    b: Value
    ends: Value  # of the groups' rows
    transposed: bool
    slots: Slots

    @property
    def rows(self) -> Size:
        return self.a.shape[0]

    @property
    def depth(self) -> Size:
        return self.a.shape[1]

    @property
    def groups(self) -> Size:
        return self.b.shape[0]

    @property
    def columns(self) -> Size:
        return self.b.shape[1] if self.transposed else self.b.shape[2]

    @property
    def sizes(self) -> dict[str, Size]:
        """The parameters of the portable kernel that say how much there is, and how far elements of `b` are apart."""
        b_depth, b_column = (1, self.depth) if self.transposed else (self.columns, 1)
        steps = {"b_group": simplify(lift(self.depth) * self.columns), "b_depth": b_depth, "b_column": b_column}
        return {"rows": self.rows, "columns": self.columns, "depth": self.depth, "groups": self.groups, **steps}

    @property
    def flops(self) -> Size:
        """Operations of the product and its epilogue."""
        return simplify(lift(self.rows) * self.columns * self.depth * 2 + chain_operations(self.group.epilogue))

    @property
    def rows_of_group(self) -> float:
        """Rows of a group, on average."""
        return expected(self.rows) / max(1, expected(self.groups))


def grouped_problem(group: Group, slots: Slots) -> GroupedProblem:
    """The grouped product that is a group's anchor."""
    assert group.anchor is not None
    a, b, ends = group.anchor.inputs
    assert a is not None and b is not None and ends is not None
    return GroupedProblem(group, a, b, ends, group.anchor.attributes["transpose_b"], slots)
