"""Masks that are one number for a whole row of stores: a row is skipped, or stored without that mask.

    for each row:
        if rows[row] >= 0 and rows[row] < limit:      whatever of the mask does not change along the row
            for each vector of the row: …             the rest of the mask

A prefix mask of rows ends their loop instead (`nests.py`); this is for all others, and for those that do not end it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce

from tilewright.ir.core import SSAValue
from tilewright.targets.cpu.access import Axes, operand_axes
from tilewright.targets.cpu.evaluate import Evaluator
from tilewright.targets.cpu.indices import ZERO, ComparisonPhase, LaneIndex
from tilewright.targets.cpu.schedule import Root
from tilewright.targets.llvm.builder import LLVMValue

Bound = dict[Root, dict[int, LaneIndex]]
_CONJUNCTIONS = ("and", "broadcast", "expand_dims", "permute")


@contextmanager
def only_unmasked_rows(evaluator: Evaluator, roots: Sequence[Root], bound: Bound) -> Iterator[Bound]:
    """Code for the row at `bound` that runs only if a part of the masks that all `roots` share is true there; the
    indices of that row, for which it is known to be."""
    masks = _shared_masks(roots, bound)
    conditions = [_condition(evaluator, mask, axes, bound[roots[0]]) for mask, axes in masks.items()]
    conditions = [condition for condition in conditions if condition.text != "true"]
    if not conditions:
        yield bound
        return
    builder = evaluator.builder
    condition = reduce(lambda left, right: evaluator.all_of([left, right], 1), conditions)
    indices = {id(index): index for index in bound[roots[0]].values()}
    inside = {key: _inside(index, bound[roots[0]], masks) for key, index in indices.items()}
    before = builder.block
    with builder.when(condition, hint="row"):
        with evaluator.scope(before, *(index.base for index in indices.values() if index.base.constant is None)):
            yield {root: {axis: inside.get(id(index), index) for axis, index in bound[root].items()} for root in roots}


def _shared_masks(roots: Sequence[Root], bound: Bound) -> dict[SSAValue, Axes]:
    """The parts that the masks of all roots have and that change along no axis but those of `bound`."""
    if any(root.kind != "store" or len(root.operation.operands) < 3 for root in roots):
        return {}
    if any(index.phase is not None and index.phase.kind != "inside" for index in bound[roots[0]].values()):
        return {}
    found = [_still_parts(root.operation.operands[2], tuple(range(len(root.domain))), bound[root]) for root in roots]
    return {mask: axes for mask, axes in found[0].items() if all(mask in others for others in found[1:])}


def _still_parts(mask: SSAValue, axes: Axes, bound: Mapping[int, LaneIndex]) -> dict[SSAValue, Axes]:
    moving = [axis for axis, extent in zip(axes, mask.type.shape, strict=True) if extent > 1]
    if moving and all(axis in bound and bound[axis].lanes == 1 for axis in moving):
        return {mask: axes}
    operation = mask.definition
    if operation is None or operation.opcode not in _CONJUNCTIONS:
        return {}
    parts: dict[SSAValue, Axes] = {}
    for operand, inner in operand_axes(operation, mask, axes):
        parts |= _still_parts(operand, inner, bound)
    return parts


def _condition(evaluator: Evaluator, mask: SSAValue, axes: Axes, bound: Mapping[int, LaneIndex]) -> LLVMValue:
    indices = tuple(bound[axis] if extent > 1 else ZERO for axis, extent in zip(axes, mask.type.shape, strict=True))
    return evaluator.evaluate(mask, indices)


def _inside(index: LaneIndex, bound: Mapping[int, LaneIndex], masks: Mapping[SSAValue, Axes]) -> LaneIndex:
    """The same index, with the masks known that change along it."""
    known = dict(index.phase.compares) if index.phase is not None else {}
    for mask, axes in masks.items():
        for place, (axis, extent) in enumerate(zip(axes, mask.type.shape, strict=True)):
            if extent > 1 and bound[axis] is index:
                known[mask] = place
    return LaneIndex(index.base, index.lanes, ComparisonPhase("inside", known), index.valid)
