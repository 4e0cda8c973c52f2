"""All rules of the lowering: the union of the modules' tables."""

from __future__ import annotations

from tilewright.targets.nvidia import atomics, effects, elementwise, lowering, memory, reduce, scan, shape
from tilewright.targets.nvidia.lowering import Rule

RULES: dict[str, Rule] = {
    **lowering.RULES,
    **shape.RULES,
    **elementwise.RULES,
    **memory.RULES,
    **atomics.RULES,
    **reduce.RULES,
    **scan.RULES,
    **effects.RULES,
}
