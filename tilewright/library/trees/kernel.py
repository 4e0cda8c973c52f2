"""The leaves that rows reach in trees of decisions (`graph.trees`), on CPUs.

A step waits for the number that the step before chose, so that one row in one tree leaves most of a core idle.  The
lanes of a block take their steps together: those of many rows in one tree after the other, whose nodes stay in the
innermost cache, or, of a few rows, those of many trees.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl


@tilewright.jit
def steps(numbers, nodes, limits, root, depth, place, COLUMN_BITS: tl.constexpr):
    """The leaves that are reached from nodes at `place` of their trees; `numbers`: where the rows of the lanes are."""
    for _ in range(depth):
        node = tl.load(nodes + (root + place))
        limit = tl.load(limits + (root + place))
        number = tl.load(numbers + (node & ((1 << COLUMN_BITS) - 1)).to(tl.int32))
        place = (node >> COLUMN_BITS).to(tl.int32) + (number > limit).to(tl.int32)
    return root + place


@tilewright.jit
def tree_leaves(x, nodes, limits, roots, depths, out, rows, columns, trees, COLUMN_BITS: tl.constexpr,
                ROWS: tl.constexpr, TREES: tl.constexpr, ROW_LANES: tl.constexpr, TREE_LANES: tl.constexpr,
                FEW: tl.constexpr):  # fmt: skip
    """out[row, tree] for `ROWS` rows and `TREES` trees, of which fewer than `FEW` rows are taken one by one: they would
    leave more lanes idle. Grid: blocks of rows, of trees."""
    first_row, first_tree = tl.program_id(0) * ROWS, tl.program_id(1) * TREES
    count, until = tl.minimum(rows - first_row, ROWS), tl.minimum(first_tree + TREES, trees)
    x += first_row.to(tl.int64) * columns
    out += first_row.to(tl.int64) * trees
    if count < FEW:
        lane = tl.arange(0, TREE_LANES)
        for row in range(count):
            for first in range(first_tree, until, TREE_LANES):
                tree = tl.minimum(first + lane, until - 1)
                root, start = tl.load(roots + tree), tl.zeros((TREE_LANES,), tl.int32)
                leaf = steps(x + row * columns, nodes, limits, root, tl.load(depths + first), start, COLUMN_BITS)
                tl.store(out + row * trees + first + lane, leaf, mask=first + lane < until)
    else:
        lane = tl.arange(0, ROW_LANES)
        for tree in range(first_tree, until):
            root, depth = tl.load(roots + tree), tl.load(depths + tree)
            for first in range(0, count, ROW_LANES):
                row, start = tl.minimum(first + lane, count - 1), tl.zeros((ROW_LANES,), tl.int32)
                leaf = steps(x + row * columns, nodes, limits, root, depth, start, COLUMN_BITS)
                tl.store(out + row * trees + tree, leaf, mask=first + lane < count)
