"""Trees of decisions: their nodes, and the leaf that each row reaches.

A node compares a column of a row with a limit; a number of its own has where its children are, and the column.  Of a
row, only its place among a column's limits matters: how many of them are less.  Where limits or NaNs forbid to compare
the numbers themselves, each column is searched once for that place.  (Lucchese et al., "QuickScorer", 2015, sort limits
by feature.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.dtypes import int32, int64
from tilewright.graph.core import Value
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid, Unsupported

LARGEST_TABLE = 1 << 25  # numbers of all nodes of trees
# What nodes ask of a number and their limit, in the order of `nodes_modes` of TreeEnsemble; leaves ask nothing.
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
_LEQ, _LT, _GTE, _GT, *_, MEMBER, LEAF = range(len(MODES))


@dataclass
class Trees:
    """All nodes of all trees: leaves lead to themselves, and add weights to results."""

    features: np.ndarray
    limits: np.ndarray
    modes: np.ndarray  # [nodes], of places in `MODES`
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
        turned = ((self.modes == _GT) | (self.modes == _GTE)) & ~np.isnan(self.limits.astype(np.float64))
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
        reached = np.flatnonzero(number >= 0)
        old = np.empty(int(sizes.sum()), np.int64)
        old[number[reached]] = reached
        used = owner[self.weighted] >= 0
        modes = np.where(turned, np.where(self.modes == _GT, _LEQ, _LT), self.modes)
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
        return np.bincount(self.weighted, self.weights, len(self.modes))

    @cached_property
    def target_of_each(self) -> np.ndarray | None:
        """The one result that each tree adds to, as in boosted trees; None where a leaf has none, or another one."""
        if self.depths is None:
            return None
        owner = np.repeat(np.arange(len(self.roots)), np.diff([*self.roots, len(self.modes)]))  # they are in order
        found = np.full(len(self.roots), -1)
        found[owner[self.weighted]] = self.targets
        has_weight = np.zeros(len(self.modes), np.bool_)
        has_weight[self.weighted] = True
        leaves = self.when_true == np.arange(len(self.modes))
        same = (found[owner[self.weighted]] == self.targets).all()
        return found if same and has_weight[leaves].all() else None


_COMPARISONS = ("less_equal", "less", "greater_equal", "greater", "equal", "not_equal")  # by the first of `MODES`


def mode_codes(modes: list[str]) -> np.ndarray:
    """Texts as places in `MODES`; raises `Invalid` for others."""
    places = {mode: place for place, mode in enumerate(MODES)}
    try:
        return np.fromiter((places[mode] for mode in modes), np.int8, len(modes))
    except KeyError as error:
        raise Invalid(f"a node has the mode {error.args[0]!r}; they are {', '.join(MODES)}") from None


def _breadth_first(
    roots: np.ndarray, first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Of each node its tree (-1 for none) and its place in it, level by level; of each tree the nodes and the depth.

    None for trees that share nodes, or lead in a circle.
    """
    owner, place = np.full(len(first), -1), np.zeros(len(first), np.int64)
    sizes, depths = np.zeros(len(roots), np.int64), np.zeros(len(roots), np.int64)
    level, trees, places, steps = roots, np.arange(len(roots)), np.zeros(len(roots), np.int64), 0
    order = np.empty(len(first), np.int64)
    while level.size:
        if (owner[level] != -1).any():
            return None
        order[level] = np.arange(level.size)
        if (order[level] != np.arange(level.size)).any():  # a node is twice in one level
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
    """Trees `in_order` for the graph op `tree_leaves`.

    Rows give their numbers; where these do not tell all (`_TreeColumns.limits`), places among the limits of a column.
    """

    def __init__(self, trees: Trees, dtype: np.dtype) -> None:
        assert trees.depths is not None
        self._depths, self._roots = trees.depths, trees.roots
        own = np.arange(len(trees.modes))
        inner = trees.when_true != own
        self._columns = _TreeColumns(trees, inner, dtype)
        sizes = np.diff([*trees.roots, len(own)])
        child = trees.when_true - np.repeat(trees.roots, sizes)
        self._column_bits = max(1, (self._columns.count - 1).bit_length())
        self._nodes = child << self._column_bits | np.where(inner, self._columns.of_nodes, 0)
        self.bits = self._column_bits + max(1, int(sizes.max() - 1).bit_length())

    @classmethod
    def of(cls, trees: Trees, dtype: np.dtype) -> _TreeWalk | None:
        """None for trees that are not in order, nodes that ask for more than an order, and numbers of too many bits.

        Nor for limits before which the next number is subnormal: a caller may have its processor take these for zero.
        """
        leaves = trees.modes == LEAF
        least = _at_most(trees.limits.astype(dtype), trees.modes)[trees.modes == _LT]
        if ((least != 0) & (np.abs(least) < np.finfo(dtype).tiny)).any():
            return None
        if trees.depths is None or not (leaves | (trees.modes <= _LT)).all() or leaves.all():
            return None
        found = cls(trees, dtype)
        return found if found.bits < 64 else None

    def leaves(self, call: OnnxCall, x: Value) -> Value:
        """The leaf [N, trees] of each tree for each row."""
        limits, columns = self._columns.limits, self._columns
        numbers = columns.search(call, x) if limits is None else columns.numbers(call, x)
        nodes = call.constant(self._nodes.astype(np.int32 if self.bits < 32 else np.int64), "nodes")
        return call.op(
            "tree_leaves",
            numbers,
            nodes,
            call.constant(columns.limits_as_places() if limits is None else limits, "limits"),
            call.constant(self._roots.astype(np.int32), "roots"),
            call.constant(self._depths.astype(np.int32), "depths"),
            column_bits=self._column_bits,
        )


class _TreeColumns:
    """The columns of rows with the limits that nodes compare them with; one whose NaNs lead two ways is two.

    A number is beyond a limit when it is greater.  Place 0 is before all limits, for NaNs that count as such; behind
    the places of numbers is that of NaNs that are beyond all.
    """

    def __init__(self, trees: Trees, inner: np.ndarray, dtype: np.dtype) -> None:
        first, limits = trees.missing[inner], _at_most(trees.limits[inner].astype(dtype), trees.modes[inner])
        columns, of_inner = np.unique(2 * trees.features[inner] + first, return_inverse=True)
        self._features, self._first, self.count = columns // 2, columns % 2 != 0, len(columns)
        self.of_nodes = np.zeros(len(trees.modes), np.int64)
        self.of_nodes[inner] = of_inner
        self._inner, self.places = inner, np.zeros(len(trees.modes), np.int64)
        self.limits: np.ndarray | None = None  # of the nodes, where numbers tell all: NaNs count as infinities
        if not (np.isnan(limits) | (limits == np.where(first, -np.inf, np.inf))).any():
            self.limits = np.full(len(trees.modes), np.inf, dtype)
            self.limits[inner] = limits
        else:
            self.places[inner] = self._sort(limits, of_inner)

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

    def limits_as_places(self) -> np.ndarray:
        """The places of the limits of nodes; of leaves one that no number is beyond."""
        return np.where(self._inner, self.places, self.last).astype(np.int32)

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
    return np.where(modes == _LT, below, limits)


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
    used = [int(mode) for mode in np.unique(trees.modes) if mode != LEAF]
    if MEMBER in used and trees.members is None:
        raise Invalid(f"a node has the mode {MODES[MEMBER]!r}, which TreeEnsemble alone has")
    kinds = call.constant(np.maximum(place_in(np.array(used or [LEAF]), trees.modes), 0).astype(np.int32), "modes")
    for _ in range(trees.depth()):
        feature, limit, true, *others = (call.op("gather", constants[name], place, axis=0) for name in tables)
        number = call.op("gather_elements", x, call.op("shift_right", feature, 1), axis=1)
        answers = []
        for mode in used:
            is_member = mode == MEMBER
            answers.append(
                _is_member(call, number, place, trees) if is_member else call.op(_COMPARISONS[mode], number, limit)
            )
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
