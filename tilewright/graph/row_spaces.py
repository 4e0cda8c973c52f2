"""The spaces of row operations: which dimensions are reduced, which are kept."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.core import Node
from tilewright.symbolic import Size, product

ROW_REDUCTIONS = frozenset({"reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_product"})
# Operations that are reductions and elementwise ops along rows.
ROW_OPS = ROW_REDUCTIONS | {"softmax", "log_softmax", "layer_norm", "rms_norm", "reduce_log_sum_exp"}


@dataclass(frozen=True)
class RowSpace:
    """A shape and the axes of it that are reduced, those of one element aside.

    `rows` counts what is kept, `columns` what is reduced for each of them.
    """

    shape: tuple[Size, ...]
    axes: tuple[int, ...]

    @property
    def rows(self) -> Size:
        return product([extent for axis, extent in enumerate(self.shape) if axis not in self.axes])

    @property
    def columns(self) -> Size:
        return product([self.shape[axis] for axis in self.axes])

    @property
    def runs(self) -> tuple[tuple[bool, Size], ...]:
        """Neighbouring axes of a kind as one: (reduced?, extent).  Spaces with equal runs have the same elements in the
        same order."""
        found: list[tuple[bool, Size]] = []
        for axis, extent in enumerate(self.shape):
            reduced = axis in self.axes
            if extent == 1:
                continue
            if found and found[-1][0] == reduced:
                extent = product([found.pop()[1], extent])
            found.append((reduced, extent))
        return tuple(found)


def space_of(node: Node) -> RowSpace | None:
    """The space of a row operation; None of any other op, and where nothing is reduced."""
    source = node.inputs[0] if node.inputs else None
    if node.op not in ROW_OPS or source is None:
        return None
    if node.op in ROW_REDUCTIONS or node.op == "reduce_log_sum_exp":
        axes = tuple(node.attributes["axes"])
    elif node.op in ("layer_norm", "rms_norm"):
        axes = tuple(range(node.attributes["axis"], source.rank))
    else:
        axes = (node.attributes["axis"],)
    axes = tuple(sorted(axis for axis in axes if source.shape[axis] != 1))
    return RowSpace(source.shape, axes) if axes else None
