"""Where elements of blocks are evaluated: positions along axes, and what loops know of masks there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.core import SSAValue
from tilewright.targets.llvm.builder import LLVMValue


@dataclass(frozen=True, eq=False)
class ComparisonPhase:
    """What is known of comparisons, or other masks, along an index: all true ("inside"), all false ("outside"), `mask`.

    `compares` gives for each comparison which of its axes the index must run along.
    """

    kind: str
    compares: Mapping[SSAValue, int]
    mask: LLVMValue | None = None


@dataclass(frozen=True)
class LaneIndex:
    """Positions base … base + lanes - 1 along an axis; base is a multiple of lanes.

    `valid` (a vector of i1) marks the lanes that exist at a ragged end; None: all of them.  In a run between multiples
    of divisors (`cut_runs.py`), `start` is where it starts, and base any position.
    """

    base: LLVMValue
    lanes: int = 1
    phase: ComparisonPhase | None = None
    valid: LLVMValue | None = None
    start: LaneIndex | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.base.text, self.lanes, id(self.phase))

    @property
    def first(self) -> LaneIndex:
        """The position of the first lane alone."""
        return LaneIndex(self.base, start=self.start) if self.lanes > 1 else self


ZERO = LaneIndex(LLVMValue("i64", "0"))
Indices = tuple[LaneIndex, ...]
