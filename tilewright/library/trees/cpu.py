"""Leaves of trees on CPUs: how rows and trees are shared out, the cost."""

from __future__ import annotations

from typing import Any

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.binding import launch
from tilewright.library.candidate import Candidate, Operand, Stage
from tilewright.library.cost import estimate
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.trees.kernel import tree_leaves
from tilewright.symbolic import ceil_divide, lift, simplify, upper_bound
from tilewright.targets.base import Target

_ROWS = 256  # of a program: their inputs and leaves fit in the inner caches together with the nodes of a tree
_TREES = 128  # of a program, so that a few rows have work for several threads
_LANES = 64  # several vectors, which wait for memory together
_STEP = 6  # operations of a lane
TREE_EFFICIENCY = 0.05


def tree_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The launch of `library.trees.kernel`; raises `NotImplementedError` where the group holds other nodes."""
    anchor = group.anchor
    assert anchor is not None
    if group.nodes != [anchor]:
        raise NotImplementedError(f"{group.name}: leaves of trees have no slots")
    names = ("x", "nodes", "limits", "roots", "depths")
    tensors: dict[str, Operand] = {
        name: value for name, value in zip(names, anchor.inputs, strict=True) if value is not None
    }
    rows, trees = anchor.output.shape
    x, depths = anchor.inputs[0], anchor.inputs[4]
    assert x is not None and depths is not None
    known = graph.constants.get(depths)
    depth = 8 if known is None or not known.size else int(known.mean())
    together = min(upper_bound(trees), _TREES)
    lanes = min(_LANES, next_power_of_2(together))
    constants: dict[str, Any] = {
        "COLUMN_BITS": anchor.attributes["column_bits"], "ROWS": _ROWS, "TREES": _TREES, "ROW_LANES": _LANES,
        "TREE_LANES": lanes, "FEW": together * _LANES // (-(-together // lanes) * lanes),
    }  # fmt: skip
    grid = (ceil_divide(rows, _ROWS), ceil_divide(trees, _TREES), 1)
    sizes = {"rows": rows, "columns": x.shape[1], "trees": trees}
    call = launch(tree_leaves, {**tensors, "out": anchor.output}, sizes, constants, grid)
    flops = simplify(lift(rows) * trees * (depth * _STEP))
    programs = simplify(lift(grid[0]) * grid[1])
    cost = estimate(
        target.machine(), total_bytes(group.inputs, group.outputs), flops, programs, x.dtype, TREE_EFFICIENCY
    )
    return [Candidate("trees", (Stage((call,)),), cost, reasons={"lanes": _LANES})]
