"""Masks that are one number for a whole vector loop: where it is false, the loop has no passes.

    mask = (row < rows) & (column < columns)          # row: one number
    tl.store(out + column, tl.load(x + column, mask=mask), mask=mask)

    count = columns if row < rows else 0
    for column in 0 … count: …                        no mask but for the last vector

So it is where nobody needs the elements that such a mask leaves out.  `row_masks.py` does the same for masks that
change from row to row of a loop, and `nests.py` for those that hold for the first elements of a loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.ir.core import SSAValue
from tilewright.ir.ops import BROADCASTING
from tilewright.targets.cpu.access import PrefixKey, operand_axes, still_compare, still_key
from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.program import ProgramOrder
from tilewright.targets.cpu.schedule import Root

_SHAPES = ("broadcast", "expand_dims", "permute")


@dataclass(frozen=True)
class StillMask:
    """A mask that does not change along its axis `axis`, and the keys of the parts whose conjunction it is."""

    value: SSAValue
    axis: int
    keys: frozenset[PrefixKey]


def still_masks(root: Root, axis: int, program: ProgramOrder, analysis: AffineAnalysis) -> Iterator[StillMask]:
    """The parts of the masks of a root that are one number for all of its domain, as blocks along `axis`."""
    masks = [
        (load.operands[1], mapping)
        for load, mapping in root.reads.loads
        if len(load.operands) > 1 and load.operands[1].type.rank
    ]
    if root.kind == "store" and len(root.operation.operands) > 2:
        masks.append((root.operation.operands[2], tuple(range(len(root.domain)))))
    for mask, mapping in masks:
        if axis in mapping:
            for found in _parts(mask, mapping.index(axis), analysis):
                if all(_outside_of_loops(key[1], program) for key in found.keys):
                    yield found


def _parts(mask: SSAValue, axis: int, analysis: AffineAnalysis) -> Iterator[StillMask]:
    if mask.type.shape[axis] == 1:
        return
    keys = _keys(mask, analysis)
    if keys is not None:
        yield StillMask(mask, axis, keys)
        return
    operation = mask.definition
    if operation is None or operation.opcode not in ("and", *_SHAPES):
        return
    for operand, axes in operand_axes(operation, mask, tuple(range(mask.type.rank))):
        if axis in axes:
            yield from _parts(operand, axes.index(axis), analysis)


def _keys(mask: SSAValue, analysis: AffineAnalysis) -> frozenset[PrefixKey] | None:
    """The keys of all parts of a mask that is one number; None for others."""
    operation = mask.definition
    if operation is not None and not mask.type.is_scalar:
        if operation.opcode == "and" or operation.opcode in _SHAPES:
            parts = [_keys(operand, analysis) for operand in operation.operands]
            known = [keys for keys in parts if keys is not None]
            return frozenset[PrefixKey]().union(*known) if len(known) == len(parts) else None
    single = all(extent == 1 for extent in mask.type.shape)
    repeated = operation is not None and operation.opcode in BROADCASTING
    if single or (repeated and operation is not None and operation.operands[0].type.is_scalar):
        return frozenset([still_key(mask)])
    return frozenset([still_key(mask)]) if still_compare(mask, analysis) else None


def _outside_of_loops(value: SSAValue, program: ProgramOrder) -> bool:
    """Whether a value is one number for a whole program instance."""
    parent = program.definition_parent(value)
    while parent is not None:
        if parent.opcode in ("for", "while"):
            return False
        parent = program.parent[parent]
    return True
