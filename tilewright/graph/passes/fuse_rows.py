"""Fuses several row operations over one space, and the ops between them, into one group.

A reduction, what it is of, and what is made of the same rows with its result: `x / sqrt(sum(x * x))`, a softmax and the
sum of what follows it, a mean and a variance, a norm written out.  A kernel that has a row does all of that without
writing it, or reading it again.  Groups join when they share a tensor with the elements of the space, and where the
space is small also when one reads numbers of rows that the other makes: a launch would take longer than both.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.core import Value
from tilewright.graph.ops import kind_of
from tilewright.graph.passes.fuse_draft import Draft, Drafts
from tilewright.graph.row_spaces import RowSpace, space_of
from tilewright.symbolic import Size, lower_bound, product, upper_bound

_MOST_TENSORS = 6  # with the elements of the space that a group reads or stores
_QUICK_SPACE = 1 << 16  # elements of a space that are read in less time than a launch takes


def join_rows(drafts: Drafts, remarks: list[str]) -> None:
    """Make groups of the class "rows" of reductions with others over the same space, and of elementwise ops there."""
    spaces = {draft: space for draft in drafts.all() if (space := _space(drafts, draft)) is not None}
    for draft, space in spaces.items():
        if drafts.owner[draft.first] is not draft:
            continue
        joined = _Joined(drafts, draft, spaces)
        joined.grow()
        if joined.count > 1:
            draft.kind, draft.anchor = "rows", None
            ops = ", ".join(drafts.nodes[index].op for index in sorted(draft.nodes))
            remarks.append(f"{ops} are one group over rows of {space.columns}")


def _space(drafts: Drafts, draft: Draft) -> RowSpace | None:
    """The space of a reduction's group."""
    if draft.kind != "reduction" or draft.anchor is None:
        return None
    return space_of(drafts.nodes[draft.anchor])


class _Joined:
    """A group over a space that takes others."""

    def __init__(self, drafts: Drafts, draft: Draft, spaces: Mapping[Draft, RowSpace]) -> None:
        self.drafts, self.draft, self.spaces, self.space = drafts, draft, spaces, spaces[draft]
        self.whole: Size = product(self.space.shape)
        self.count = 1

    def grow(self) -> None:
        """Take neighbours as long as there are any to take."""
        grown = True
        while grown:
            grown = False
            for other in self._neighbours():
                if self._fits(other) and self._take(other):
                    self.count += 1
                    grown = True
                    break

    def _take(self, other: Draft) -> bool:
        """Merge another group, and the reshapes between this one and it; whether that was possible.

        A reshape that others read as well is copied.
        """
        drafts, before, copies = self.drafts, self.drafts.snapshot(self.draft), set(other.copies)
        for index in self._views(other):
            value = drafts.nodes[index].output
            if value not in drafts.results and set(drafts.readers[value]) <= other.nodes:
                drafts.merge(self.draft, drafts.owner[index])
            else:
                other.copies.add(index)
        if drafts.may_merge(self.draft, other):
            drafts.merge(self.draft, other)
            return True
        drafts.restore(self.draft, before)
        other.copies = copies
        return False

    def _views(self, other: Draft) -> list[int]:
        """The reshapes of what this group makes that another one reads."""
        drafts, found = self.drafts, list[int]()
        for value in drafts.inputs(other):
            index = drafts.producer(value)
            if index is None or drafts.nodes[index].op != "reshape" or len(drafts.owner[index].nodes) > 1:
                continue
            source = drafts.producer(drafts.nodes[index].inputs[0])
            if source is not None and drafts.owner[source] is self.draft:
                found.append(index)
        return found

    def _neighbours(self) -> list[Draft]:
        """Groups that read what this one makes, or read the same tensors."""
        drafts, found = self.drafts, dict[int, Draft]()
        for index in drafts.readers_of(self.draft):
            found.setdefault(id(drafts.owner[index]), drafts.owner[index])
            if drafts.nodes[index].op == "reshape":
                for reader in drafts.readers.get(drafts.nodes[index].output, ()):
                    found.setdefault(id(drafts.owner[reader]), drafts.owner[reader])
        for value in drafts.inputs(self.draft):
            source = drafts.producer(value)
            if source is not None:
                found.setdefault(id(drafts.owner[source]), drafts.owner[source])
            if self._is_full(value):
                for index in drafts.readers[value]:
                    found.setdefault(id(drafts.owner[index]), drafts.owner[index])
        found.pop(id(self.draft), None)
        return list(found.values())

    def _fits(self, other: Draft) -> bool:
        """Whether another group works on the same rows, and is better done with them."""
        if other.kind in ("reduction", "rows"):
            space = self.spaces.get(other)
            if space is None or space.runs != self.space.runs:
                return False
        elif other.kind != "elementwise":
            return False
        if not all(self._is_on_rows(self.drafts.nodes[index].output) for index in other.nodes):
            return False
        full = self._full_tensors(self.draft) | self._full_tensors(other)
        return self._shares(other) and len(full) <= _MOST_TENSORS

    def _shares(self, other: Draft) -> bool:
        """Whether a tensor of the space need not be read again, or only numbers of rows are computed."""
        made = {
            item for index in self.draft.nodes.union(self._views(other)) for item in self.drafts.nodes[index].outputs
        }
        own = self._full_tensors(self.draft) | {value for value in made if self._is_full(value)}
        if own & self._full_tensors(other):
            return True
        if made.isdisjoint(self.drafts.inputs(other)):
            return False
        rows_only = all(self._is_of_rows(self.drafts.nodes[index].output) for index in other.nodes)
        joins = rows_only or self._is_repeated_for_more(other)
        return (other.kind == "elementwise" and joins) or self._is_quick()

    def _is_quick(self) -> bool:
        return isinstance(self.whole, int) and self.whole <= min(_QUICK_SPACE, self.drafts.kernels.short_loop)

    def _is_repeated_for_more(self, other: Draft) -> bool:
        """Whether a group repeats numbers of rows for their elements, of which larger tensors then read one for each of
        a line: a number for each group of channels would cut that into groups."""
        (index, *more) = other.nodes
        node = self.drafts.nodes[index]
        if more or node.op != "broadcast_to":
            return False
        waiting, larger = [node.output], False
        while waiting:
            for reader in self.drafts.readers.get(waiting.pop(), ()):
                found = self.drafts.nodes[reader]
                if found.op == "reshape":
                    waiting.append(found.output)
                    continue
                more_elements = lower_bound(product(found.output.shape)) > upper_bound(self.whole)
                if kind_of(found.op) != "elementwise" or not more_elements:
                    return False
                larger = True
        return larger

    def _full_tensors(self, draft: Draft) -> set[Value]:
        """The tensors with the elements of the space that a group reads or stores."""
        tensors = [*self.drafts.inputs(draft), *self.drafts.outputs(draft)]
        return {value for value in tensors if self._is_full(value)}

    def _is_full(self, value: Value) -> bool:
        return product(value.shape) == self.whole

    def _is_of_rows(self, value: Value) -> bool:
        return product(value.shape) == self.space.rows

    def _is_on_rows(self, value: Value) -> bool:
        """Whether a value has the elements of the space, in its order, or one for each row."""
        return self._is_of_rows(value) or self._is_full(value)
