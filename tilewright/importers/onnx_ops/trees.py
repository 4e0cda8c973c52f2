"""Trees of decisions: their nodes, and the leaf that each row reaches.

A node compares a column of a row with a limit.  Of a row, only its place among a column's limits matters: how many of
them are less.  So each column is searched once for its place, and a node is one number: the place of its limit, where
its children are, and the column.  (Lucchese et al., "QuickScorer", 2015, sort limits by feature for the same reason.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import int32, int64
from tilewright.graph.core import Value
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid, Unsupported

LARGEST_TABLE = 1 << 25  # numbers of all nodes of trees


@dataclass
class Trees:
    """All nodes of all trees: leaves lead to themselves, and add weights to results."""

    features: np.ndarray
    limits: np.ndarray
    modes: np.ndarray  # [nodes], of texts
    missing: np.ndarray
    when_true: np.ndarray
    when_false: np.ndarray
    roots: np.ndarray
    weighted: np.ndarray  # [weights]: the node of each weight
    targets: np.ndarray  # [weights]: the result that it is added to
    weights: np.ndarray  # [weights]
    results: int
    members: np.ndarray | None = None  # [nodes, most]: the numbers of sets, filled up with NaN
    depths: np.ndarray | None = None  # [trees], where `in_order`: the longest ways, falling

    def depth(self) -> int:
        """The longest way from a root to a leaf; raises `Invalid` for trees with a circle."""
        level, steps = self.roots, 0
        while True:
            inner = level[(self.when_true[level] != level) | (self.when_false[level] != level)]
            if not inner.size:
                return steps
            level = np.unique(np.concatenate([self.when_true[inner], self.when_false[inner]]))
            steps += 1
            if steps > len(self.features):
                raise Invalid("the nodes of a tree lead in a circle")

    def in_order(self) -> Trees:
        """The same trees one after the other, deep ones first, and in each the children of a node side by side.

        Nodes that ask whether a number is greater ask whether it is not, and nodes that no row reaches are left out.
        Trees that share nodes stay as they are.
        """
        turned = np.isin(self.modes, [*_OPPOSITES]) & ~np.isnan(self.limits.astype(np.float64))
        first = np.where(turned, self.when_false, self.when_true)
        second = np.where(turned, self.when_true, self.when_false)
        found = _breadth_first(self.roots, first, second)
        if found is None:
            return self
        owner, place, sizes, depths = found
        order = np.argsort(-depths, kind="stable")
        begins = np.zeros(len(sizes), np.int64)
        begins[order] = np.cumsum(sizes[order]) - sizes[order]
        number = np.where(owner >= 0, begins[owner] + place, -1)  # of each old node
        old = np.argsort(np.where(number < 0, len(number), number))[: int(sizes.sum())]
        used = owner[self.weighted] >= 0
        modes = np.where(turned, [_OPPOSITES.get(str(mode), "") for mode in self.modes], self.modes)
        return Trees(
            self.features[old], self.limits[old], modes[old], (self.missing != turned)[old],
            number[first[old]], number[second[old]], begins[order], number[self.weighted[used]], self.targets[used],
            self.weights[used], self.results, None if self.members is None else self.members[old], depths[order],
        )  # fmt: skip

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """The weights [nodes, results], and where there is one."""
        count = len(self.modes)
        weights, given = tree_table(count, self.results, 0.0), tree_table(count, self.results, False)
        np.add.at(weights, (self.weighted, self.targets), self.weights)
        given[self.weighted, self.targets] = True
        return weights, given

    def leaf_weights(self) -> np.ndarray:
        """The weights [nodes] where each node adds to one result."""
        weights = np.zeros(len(self.modes))
        np.add.at(weights, self.weighted, self.weights)
        return weights

    def target_of_each(self) -> np.ndarray | None:
        """The one result that each tree adds to, as in boosted trees; None where a leaf has none, or another one."""
        reached = _breadth_first(self.roots, self.when_true, self.when_false)
        if reached is None:
            return None
        owner, *_ = reached
        found = np.full(len(self.roots), -1)
        used = owner[self.weighted] != -1
        found[owner[self.weighted[used]]] = self.targets[used]
        has_weight = np.zeros(len(self.modes), np.bool_)
        has_weight[self.weighted] = True
        leaves = (self.when_true == np.arange(len(self.modes))) & (owner != -1)
        same = (found[owner[self.weighted[used]]] == self.targets[used]).all()
        return found if same and has_weight[leaves].all() else None


_COMPARISONS = {
    "BRANCH_LEQ": "less_equal",
    "BRANCH_LT": "less",
    "BRANCH_GTE": "greater_equal",
    "BRANCH_GT": "greater",
    "BRANCH_EQ": "equal",
    "BRANCH_NEQ": "not_equal",
}


_ORDERING = ("BRANCH_LEQ", "BRANCH_LT")
_OPPOSITES = {"BRANCH_GT": "BRANCH_LEQ", "BRANCH_GTE": "BRANCH_LT"}


def _breadth_first(
    roots: np.ndarray, first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Of each node its tree (-1 for none) and its place in it, level by level; of each tree the nodes and the depth.

    None for trees that share nodes, or lead in a circle.
    """
    owner, place = np.full(len(first), -1), np.zeros(len(first), np.int64)
    sizes, depths = np.zeros(len(roots), np.int64), np.zeros(len(roots), np.int64)
    level, trees, places, steps = roots, np.arange(len(roots)), np.zeros(len(roots), np.int64), 0
    while level.size:
        if (owner[level] != -1).any() or len(np.unique(level)) < level.size:
            return None
        owner[level], place[level] = trees, places
        sizes += np.bincount(trees, minlength=len(roots))
        depths[trees] = steps
        inner = (first[level] != level) | (second[level] != level)
        level, trees, steps = level[inner], trees[inner], steps + 1
        counts = np.bincount(trees, minlength=len(roots))
        before = np.arange(len(trees)) - (np.cumsum(counts) - counts)[trees]  # of the same tree in this level
        begins = sizes[trees] + 2 * before
        level = np.stack([first[level], second[level]], axis=1).reshape(-1)
        trees, places = np.repeat(trees, 2), np.stack([begins, begins + 1], axis=1).reshape(-1)
    return owner, place, sizes, depths


_HALF = 16  # bits of the number of a node where two are in one


def tree_table(nodes: int, columns: int, filled: float | bool) -> np.ndarray:
    """A row for each node of trees, of numbers or of truth values."""
    if nodes * columns > LARGEST_TABLE:
        raise Unsupported(
            f"trees of {nodes} nodes with {columns} results or members each", f"keep the product below {LARGEST_TABLE}"
        )
    return np.full((nodes, columns), filled)


def place_in(ordered: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The places of numbers in an ordered list; -1 for those that it does not have."""
    place = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.where(ordered[place] == wanted, place, -1)


def leaves_of(call: OnnxCall, x: Value, trees: Trees) -> Value:
    """The leaf [N, trees] of each tree for each row."""
    walk = _TreeWalk.of(trees, x.dtype.numpy)
    return _stepwise(call, x, trees) if walk is None else walk.leaves(call, x)


class _TreeWalk:
    """Trees `in_order` whose nodes are numbers: of the place of the limit, of the first child, of the column.

    Where searching the columns takes longer than looking up the limits, these have a table of their own.
    """

    _MOST_PARTS = 4  # of trees of like depth

    def __init__(self, trees: Trees, dtype: np.dtype) -> None:
        assert trees.depths is not None
        self._depths, self._roots = trees.depths, trees.roots
        self._parts = _like_depths(trees.depths, self._MOST_PARTS)
        own = np.arange(len(trees.modes))
        inner = trees.when_true != own
        self._columns = _TreeColumns(trees, inner, dtype)
        steps = sum(int(trees.depths[begin]) * (end - begin) for begin, end in self._parts)
        self._limits = self._columns.limits if self._columns.cost() > steps else None
        sizes = np.diff([*trees.roots, len(own)])
        child = trees.when_true - np.repeat(trees.roots, sizes)
        self._column_bits = max(1, (self._columns.count - 1).bit_length())
        self._child_bits = max(1, int(sizes.max() - 1).bit_length())
        self._shift = self._column_bits + self._child_bits
        self._nodes = child << self._column_bits | np.where(inner, self._columns.of_nodes, 0)
        self.bits = self._shift
        if self._limits is None:
            self._nodes |= np.where(inner, self._columns.places, self._columns.last).astype(np.int64) << self._shift
            self.bits += self._columns.last.bit_length()

    @classmethod
    def of(cls, trees: Trees, dtype: np.dtype) -> _TreeWalk | None:
        """None for trees that are not in order, nodes that ask for more than an order, and numbers of too many bits.

        Nor for limits before which the next number is subnormal: a caller may have its processor take these for zero.
        """
        leaves = trees.modes == "LEAF"
        least = _at_most(trees.limits.astype(dtype), trees.modes)[trees.modes == "BRANCH_LT"]
        if ((least != 0) & (np.abs(least) < np.finfo(dtype).tiny)).any():
            return None
        if trees.depths is None or not np.isin(trees.modes[~leaves], _ORDERING).all() or leaves.all():
            return None
        found = cls(trees, dtype)
        return found if found.bits < 64 else None

    def leaves(self, call: OnnxCall, x: Value) -> Value:
        """The leaf [N, trees] of each tree for each row: trees of like depth take one step at a time."""
        dtype = int32 if self.bits < 32 else int64
        nodes = call.constant(self._nodes.astype(dtype.numpy), "nodes")
        if self._limits is None:
            numbers, limits = self._columns.search(call, x), None
            numbers = call.op("shift_left", call.cast(numbers, dtype), self._shift)
        else:
            numbers, limits = self._columns.numbers(call, x), call.constant(self._limits, "limits")
        parts = [self._walk(call, numbers, nodes, limits, slice(*ends)) for ends in self._parts]
        return parts[0] if len(parts) == 1 else call.op("concat", *parts, axis=1)

    def _walk(self, call: OnnxCall, numbers: Value, nodes: Value, limits: Value | None, part: slice) -> Value:
        """The leaves of some trees."""
        roots, column_mask = self._roots[part], (1 << self._column_bits) - 1
        begins = call.constant(roots.astype(np.int32), "roots")
        reached = call.broadcast(begins, (numbers.shape[0], len(roots)))
        node = call.constant(self._nodes[roots].astype(nodes.dtype.numpy), "first")
        column = call.constant((self._nodes[roots] & column_mask).astype(np.int32), "columns")
        number = call.op("gather", numbers, column, axis=1)
        for step in range(int(self._depths[part][0])):
            if step > 0:
                node = call.op("gather", nodes, reached, axis=0)
                number = call.op("gather_elements", numbers, call.op("bitwise_and", node, column_mask), axis=1)
            # With the place of the limit in front, numbers of nodes compare as places do.
            limit = node if limits is None else call.op("gather", limits, reached, axis=0)
            beyond = call.op("greater", number, limit)
            child = call.op("shift_right", node, self._column_bits)
            child = call.cast(call.op("bitwise_and", child, (1 << self._child_bits) - 1), int32)
            reached = call.op("add", call.op("add", begins, child), call.cast(beyond, int32))
        return reached


class _TreeColumns:
    """The columns of rows with the limits that nodes compare them with; one whose NaNs lead two ways is two.

    A number is beyond a limit when it is greater.  Place 0 is before all limits, for NaNs that count as such; behind
    the places of numbers is that of NaNs that are beyond all.
    """

    def __init__(self, trees: Trees, inner: np.ndarray, dtype: np.dtype) -> None:
        first, limits = trees.missing[inner], _at_most(trees.limits[inner].astype(dtype), trees.modes[inner])
        keys = np.stack([trees.features[inner], first], axis=1).astype(np.int64)
        columns, of_inner = np.unique(keys, axis=0, return_inverse=True)
        self._features, self._first, self.count = columns[:, 0], columns[:, 1] != 0, len(columns)
        self.of_nodes = np.zeros(len(trees.modes), np.int64)
        self.of_nodes[inner] = of_inner = of_inner.reshape(-1)
        self.places = np.zeros(len(trees.modes), np.int64)
        self.places[inner] = self._sort(limits, of_inner)
        self.limits: np.ndarray | None = None  # of the nodes, where numbers tell all: NaNs count as infinities
        if not (np.isnan(limits) | (limits == np.where(first, -np.inf, np.inf))).any():
            self.limits = np.full(len(trees.modes), np.inf, dtype)
            self.limits[inner] = limits

    def _sort(self, limits: np.ndarray, of_limits: np.ndarray) -> np.ndarray:
        """Make the table of limits by column; the places of the limits, 0 for NaNs, beyond which all numbers are."""
        known = [np.unique(limits[(of_limits == column) & ~np.isnan(limits)]) for column in range(self.count)]
        self._steps = max(1, max(map(len, known)).bit_length())
        self.last = (1 << self._steps) + 1
        self._table = np.full((self.count, 1 << self._steps), np.nan, limits.dtype)  # which no number is beyond
        places = np.zeros(len(limits), np.int64)
        for column, row in enumerate(known):
            self._table[column, : len(row)] = row
            mine = (of_limits == column) & ~np.isnan(limits)
            places[mine] = 1 + np.searchsorted(row, limits[mine])
        return places

    def cost(self) -> int:
        """Of a search, in steps of one tree: how many of them take as long as the lookups of limits that it saves."""
        return 2 * self.count * (self._steps + 1)

    def numbers(self, call: OnnxCall, x: Value) -> Value:
        """The numbers [N, columns] of a row."""
        numbers = call.op("gather", x, call.constant(self._features.astype(np.int32), "features"), axis=1)
        of_nan = call.constant(np.where(self._first, -np.inf, np.inf).astype(x.dtype.numpy), "of_nan")
        return call.op("where", call.op("isnan", numbers), of_nan, numbers)

    def search(self, call: OnnxCall, x: Value) -> Value:
        """The places [N, columns] of a row's numbers, by halving."""
        numbers = call.op("gather", x, call.constant(self._features.astype(np.int32), "features"), axis=1)
        table = call.constant(self._table.reshape(-1), "limits")
        begins = call.constant((np.arange(self.count) << self._steps).astype(np.int32), "begins")
        before = call.broadcast(begins, (x.shape[0], self.count))
        for step in reversed(range(self._steps)):
            limit = call.op("gather", table, call.op("add", before, (1 << step) - 1), axis=0)
            beyond = call.op("greater", numbers, limit)
            before = call.op("where", beyond, call.op("add", before, 1 << step), before)
        places = call.op("add", call.op("subtract", before, begins), 1)
        of_nan = call.constant(np.where(self._first, 0, self.last).astype(np.int32), "of_nan")
        return call.op("where", call.op("isnan", numbers), of_nan, places)


def _at_most(limits: np.ndarray, modes: np.ndarray) -> np.ndarray:
    """The limits that numbers are at most: less than a limit is at most the number before it."""
    below = np.nextafter(limits, limits.dtype.type(-np.inf))
    below[limits == -np.inf] = np.nan
    return np.where(modes == "BRANCH_LT", below, limits)


def _like_depths(depths: np.ndarray, most: int) -> list[tuple[int, int]]:
    """Trees of falling depths in at most so many parts: those that take the fewest steps in all."""
    ends = [*(np.flatnonzero(np.diff(depths)) + 1).tolist(), len(depths)]
    begins = [0, *ends[:-1]]
    least: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}  # the steps to each end, and the ends of parts
    for _ in range(most):
        found = dict(least)
        for end in ends:
            for begin in (begin for begin in begins if begin < end and begin in least):
                steps = least[begin][0] + int(depths[begin]) * (end - begin + _PART_COST)
                if end not in found or steps < found[end][0]:
                    found[end] = (steps, (*least[begin][1], end))
        least = found
    parts = least[len(depths)][1]
    return list(zip((0, *parts[:-1]), parts, strict=True))


_PART_COST = 32  # trees that take a step in the time that a kernel takes to begin


def _stepwise(call: OnnxCall, x: Value, trees: Trees) -> Value:
    """As `leaves_of`, for nodes of all kinds: all trees take one step at a time."""
    batch = x.shape[0]
    # Lookups take most of the time: numbers have 32 bits, and what one lookup can give is in one table.
    place = call.broadcast(call.constant(trees.roots.astype(np.int32), "roots"), (batch, len(trees.roots)))
    tables = {
        "feature": (2 * trees.features + trees.missing).astype(np.int32),
        "limit": trees.limits.astype(x.dtype.numpy),
        "next": (trees.when_true | trees.when_false << _HALF).astype(np.uint32),
    }
    if len(trees.modes) > 1 << _HALF:
        tables |= {"next": trees.when_true.astype(np.int32), "false": trees.when_false.astype(np.int32)}
    constants = {name: call.constant(table, name) for name, table in tables.items()}
    used = [str(mode) for mode in np.unique(trees.modes) if mode != "LEAF"]
    known = {*_COMPARISONS} if trees.members is None else {*_COMPARISONS, "BRANCH_MEMBER"}
    if not set(used) <= known:
        raise Invalid(f"the modes of nodes are {used}")
    kinds = call.constant(np.maximum(place_in(np.array(used or [""]), trees.modes), 0).astype(np.int32), "modes")
    for _ in range(trees.depth()):
        feature, limit, true, *others = (call.op("gather", constants[name], place, axis=0) for name in tables)
        number = call.op("gather_elements", x, call.op("shift_right", feature, 1), axis=1)
        answers = []
        for mode in used:
            name = _COMPARISONS.get(mode)
            answers.append(call.op(name, number, limit) if name else _is_member(call, number, place, trees))
        answer = answers[0]
        if len(used) > 1:
            kind = call.op("gather", kinds, place, axis=0)
            for index in range(1, len(used)):
                answer = call.op("where", call.op("equal", kind, index), answers[index], answer)
        if trees.missing.any():
            tracked = call.op("not_equal", call.op("bitwise_and", feature, 1), 0)
            answer = call.op("logical_or", answer, call.op("logical_and", call.op("isnan", number), tracked))
        if others:
            place = call.op("where", answer, true, others[0])
        else:
            first, second = call.op("bitwise_and", true, (1 << _HALF) - 1), call.op("shift_right", true, _HALF)
            place = call.cast(call.op("where", answer, first, second), int32)
    return place


def _is_member(call: OnnxCall, number: Value, place: Value, trees: Trees) -> Value:
    """Whether numbers [N, trees] are in the sets of the nodes where the trees are."""
    assert trees.members is not None  # `_leaves` has looked
    members = call.op("gather", call.constant(trees.members.astype(number.dtype.numpy), "members"), place, axis=0)
    hits = call.op("equal", call.unsqueeze(number, 2), members)
    return call.op("greater", call.op("reduce_max", call.cast(hits, int64), axes=(2,)), 0)
