"""All rules of the lowering: the union of the modules' tables."""

from __future__ import annotations

from tilewright.targets.nvidia import elementwise, lowering, memory, reduce, shape
from tilewright.targets.nvidia.lowering import Rule

RULES: dict[str, Rule] = {**lowering.RULES, **shape.RULES, **elementwise.RULES, **memory.RULES, **reduce.RULES}
