"""The generic lowering rules for any GPU: the union of the modules' tables."""

from __future__ import annotations

from tilewright.targets.gpu import (
    atomics,
    dot_scalar,
    effects,
    elementwise,
    lowering,
    memory,
    reduce,
    scan,
    shape,
)
from tilewright.targets.gpu.lowering import Rule

RULES: dict[str, Rule] = {
    **lowering.RULES,
    **shape.RULES,
    **elementwise.RULES,
    **memory.RULES,
    **atomics.RULES,
    **reduce.RULES,
    **dot_scalar.RULES,
    **scan.RULES,
    **effects.RULES,
}
