"""Masks `index < limit` as numbers: how many leading elements they let through."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.core import SSAValue
from tilewright.targets.cpu.access import PrefixKey
from tilewright.targets.cpu.evaluate import Evaluator
from tilewright.targets.cpu.indices import ZERO
from tilewright.targets.llvm.builder import LLVMValue


@dataclass(frozen=True)
class PrefixMask:
    """`compares`, all of one key, which hold for leading elements of an axis."""

    key: PrefixKey
    compares: dict[SSAValue, int]


@dataclass(frozen=True)
class Limit(PrefixMask):
    """A prefix mask, and the run-time count of elements for which it holds."""

    count: LLVMValue


def count_of_prefix(evaluator: Evaluator, index: SSAValue, limit: SSAValue, inclusive: bool, extent: int) -> LLVMValue:
    """How many leading elements satisfy `index < limit`: an i64 between 0 and the extent."""
    builder = evaluator.builder
    key = ("prefix", index, limit, inclusive, extent)
    known = evaluator.shared(key)
    if known is not None:
        return known
    first = evaluator.wide(index, tuple(ZERO for _ in index.type.shape))
    end = evaluator.wide(limit, tuple(ZERO for _ in limit.type.shape))

    def emit() -> LLVMValue:
        count = builder.add(builder.subtract(end, first), int(inclusive))
        return builder.maximum(builder.minimum(count, extent), 0)

    return evaluator.share(key, evaluator.emit_at([first, end], emit))
