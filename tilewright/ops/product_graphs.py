"""Products on arrays as small graphs, for the kernels that engines have: what tensor copies and wgmma cannot compute.

The product reads its arrays by their strides; what follows it are nodes, which are fused as those of a model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.dtypes import float32, int32
from tilewright.errors import LaunchError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.quantization import SCALE_BLOCK
from tilewright.library.candidate import Candidate
from tilewright.library.epilogue_parts import EpilogueParts, activated, append_parts
from tilewright.library.matmul.problem import GraphProduct, MatmulProblem, describe
from tilewright.library.matmul.simt import float32_on_tensor_cores, product_candidates
from tilewright.library.select import candidates
from tilewright.library.slots import epilogue_slots
from tilewright.library.split import split_group
from tilewright.ops import calls
from tilewright.ops.arrays import ArrayView
from tilewright.precision import IEEE, TF32
from tilewright.runtime.cuda.streams import DevicePlace
from tilewright.targets.base import Target

_GATE_COLUMNS = 8  # of either half that are adjacent (`ops.interleave_gate`)


def prepare_strided(
    problem: MatmulProblem, parts: EpilogueParts, given: dict[str, ArrayView], residual_stride: int, inverse: float,
    used: list[ArrayView], place: DevicePlace | None, timed: bool,
) -> calls.Prepared:  # fmt: skip
    """The product of "a" [batches, rows, depth] and "b" [batches, depth, columns] of the arrays that are `given`, the
    others being those that `parts` names, for arrays like these.

    `inverse` is that of the scale of results of 8 bits.  Raises `LaunchError`.
    """
    strides = (given["a"].strides, given["b"].strides)
    scales = tuple(given[name].strides for name in ("scale_a", "scale_b") if name in given)
    whole = parts.in_blocks or problem.depth == 0

    def graph() -> Graph:
        return _Writer(problem, parts, given, residual_stride, inverse).graph()

    def divided(graph: Graph, target: Target) -> calls.Divided:
        target = target.with_precision(IEEE if problem.exact or whole else TF32)
        return _divided(graph, target, None if whole else (problem.batches, *strides))

    key = ("matmul", problem, parts, strides, scales, residual_stride, inverse)
    return calls.prepared(key, problem.shape_class.key, used, place, graph, divided, timed)


class _Writer:
    """The graph of a product: what its inputs are, and what follows its sums."""

    def __init__(
        self, problem: MatmulProblem, parts: EpilogueParts, given: dict[str, ArrayView], residual_stride: int,
        inverse: float,
    ) -> None:  # fmt: skip
        self.problem, self.parts, self.given = problem, parts, given
        self.residual_stride, self.inverse = residual_stride, inverse
        self.b = GraphBuilder("matmul")
        self.lead = (problem.batches,) if problem.batches > 1 else ()

    def graph(self) -> Graph:
        problem, parts, b = self.problem, self.parts, self.b
        values = {name: b.input(name, found.element, self._shape(name, found)) for name, found in self.given.items()}
        y = self._sums(values)
        if (parts.follows or parts.gate or problem.output != int32) and y.dtype != float32:
            y = b.op("cast", [y], dtype=float32)
        y = self._gated(y) if parts.gate else y
        inverse = b.constant(np.asarray(self.inverse, np.float32)) if parts.quantizes else None
        y = append_parts(b, y, parts, values, inverse)
        b.output(b.op("cast", [y], dtype=problem.output) if y.dtype != problem.output else y)
        return b.finish()

    def _gated(self, y: Value) -> Value:
        """The left halves of pairs of columns, activated, times the right ones."""
        b, columns = self.b, self.problem.columns // 2
        pairs = (*y.shape[:-1], columns // _GATE_COLUMNS, 2, _GATE_COLUMNS)
        halves, axis = b.op("reshape", [y], shape=pairs), len(pairs) - 2
        left, right = (
            b.op("reshape", [b.op("slice", [halves], axis=axis, start=half, stop=half + 1, step=1)],
                 shape=(*y.shape[:-1], columns))
            for half in (0, 1)
        )  # fmt: skip
        return b.op("multiply", [activated(b, left, self.parts.gate), right])

    def _shape(self, name: str, found: ArrayView) -> tuple[int, ...]:
        """The shape of an input: of operands that are read by their strides, whatever they are."""
        problem = self.problem
        if name == "residual":
            return (problem.rows * problem.batches, self.residual_stride)
        if name == "b" and self.parts.in_blocks and problem.columns and found.strides[2] != 1:
            return (problem.columns, problem.depth)
        if name in ("scale_a", "scale_b") and self.parts.in_blocks:
            return _rows_of_blocks(found)
        return (*self.lead, *found.shape[1:]) if name in ("a", "b") else found.shape

    def _sums(self, values: dict[str, Value]) -> Value:
        problem, b = self.problem, self.b
        shape = (*self.lead, problem.rows, problem.columns)
        integers = problem.input.is_integer
        if not problem.depth:
            return b.op("full", [], shape=shape, value=0, dtype=int32 if integers else float32)
        if self.parts.in_blocks:
            return self._sums_of_blocks(values)
        dtype = int32 if integers else float32 if problem.input.bits == 8 else None
        return b.op("matmul", [values["a"], values["b"]], dtype=dtype)

    def _sums_of_blocks(self, values: dict[str, Value]) -> Value:
        """Sums of floats: both operands times their scales, which are read where they lie."""
        problem, given = self.problem, self.given
        for name in ("a", "b"):
            found = given[name]
            turned = found.changed((*found.shape[:1], *found.shape[:0:-1]), (found.strides[0], *found.strides[:0:-1]))
            if not (found.contiguous or (name == "b" and turned.contiguous)):
                raise LaunchError(f"{name} with scales of blocks must be contiguous matrices, got {found.described}")
        transposed = values["b"].shape[0] == problem.columns and given["b"].strides[2] != 1
        left = self._scaled(values["a"], self._scales(values, "scale_a"), 1, SCALE_BLOCK)
        sizes = (SCALE_BLOCK, SCALE_BLOCK)
        scale = self._scales(values, "scale_b")
        scale = scale if transposed else self.b.op("permute", [scale], order=(1, 0))
        return self.b.op("matmul", [left, self._scaled(values["b"], scale, *sizes)], transpose_b=transposed)

    def _scales(self, values: dict[str, Value], name: str) -> Value:
        """The scales of blocks of an operand, without what lies between their rows; one row may stand for all."""
        scale, shape = values[name], self.given[name].shape
        if scale.shape[1] != shape[1]:
            scale = self.b.op("slice", [scale], axis=1, start=0, stop=shape[1], step=1)
        return scale if scale.shape == shape else self.b.op("broadcast_to", [scale], shape=shape)

    def _scaled(self, x: Value, scale: Value, rows: int, columns: int) -> Value:
        """x times a scale for each block of so many rows and columns, the last of which may be smaller."""
        b = self.b
        for axis, size in enumerate((rows, columns)):
            if size == 1:
                continue
            shape = [*scale.shape[: axis + 1], 1, *scale.shape[axis + 1 :]]
            wide = [*scale.shape[: axis + 1], size, *scale.shape[axis + 1 :]]
            scale = b.op("broadcast_to", [b.op("reshape", [scale], shape=tuple(shape))], shape=tuple(wide))
            joined = [*wide[:axis], wide[axis] * wide[axis + 1], *wide[axis + 2 :]]
            scale = b.op("reshape", [scale], shape=tuple(joined))
            scale = b.op("slice", [scale], axis=axis, start=0, stop=x.shape[axis], step=1)
        return b.op("multiply", [b.op("cast", [x], dtype=float32), scale])


def _rows_of_blocks(found: ArrayView) -> tuple[int, int]:
    """The shape of scales of blocks in memory: rows as long as they are apart, or one row that is repeated."""
    rows, blocks = found.shape
    if rows == 1 or found.strides[0] == 0:
        return (1, blocks)
    return (rows, found.strides[0])


def _divided(graph: Graph, target: Target, strides: tuple[Any, ...] | None) -> calls.Divided:
    """The groups of a graph, its product read by strides: (batches, those of a, those of b); None: as it says.

    Tensor copies move no array as it is given, but what float32 is split into.
    """
    whole, target = target, target.without_tensor_copies()

    def strided(group: Group, graph: Graph, target: Target) -> list[Candidate]:
        assert group.anchor is not None and strides is not None
        product = _by_strides(describe(group.anchor, graph, 0), *strides)
        slots = epilogue_slots(group, graph)
        found = product_candidates(product, slots, group, target)
        return [*found, *float32_on_tensor_cores(product, slots, group, whole, None, found)]

    def found(group: Group, graph: Graph) -> list[Candidate]:
        if strides is None or group.anchor is None or group.anchor.op != "matmul":
            return candidates(group, graph, target)
        try:
            return strided(group, graph, target)
        except NotImplementedError as reason:
            return split_group(group, graph, target, strided, str(reason))

    if strides is None:
        return calls.fused_groups(graph, target)
    fused = fuse(graph, target.kernels)
    return graph, tuple(found(group, graph) for group in fused.groups), calls.between(fused)


def _by_strides(product: GraphProduct, batches: int, a: tuple[int, ...], b: tuple[int, ...]) -> GraphProduct:
    return replace(
        product, a_row=a[1], a_depth=a[2], b_depth=b[1], b_column=b[2], batches=batches, inner_batches=batches,
        a_batch=(0, a[0]) if batches > 1 else (0, 0), b_batch=(0, b[0]) if batches > 1 else (0, 0),
    )  # fmt: skip
