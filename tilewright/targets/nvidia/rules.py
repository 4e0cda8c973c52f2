"""All rules of the lowering: the union of the modules' tables."""

from __future__ import annotations

from tilewright.targets.nvidia import (
    atomics,
    dot,
    effects,
    elements,
    elementwise,
    lowering,
    memory,
    reduce,
    scan,
    shape,
)
from tilewright.targets.nvidia.lowering import Rule

RULES: dict[str, Rule] = {
    **lowering.RULES,
    **shape.RULES,
    **elementwise.RULES,
    **memory.RULES,
    **atomics.RULES,
    **reduce.RULES,
    **dot.RULES,
    **scan.RULES,
    **elements.RULES,
    **effects.RULES,
}
