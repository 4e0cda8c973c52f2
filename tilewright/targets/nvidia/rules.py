"""All rules of the lowering: the generic ones, and NVIDIA's replacements."""

from __future__ import annotations

from typing import cast

from tilewright.targets.gpu.lowering import Rule
from tilewright.targets.gpu.rules import RULES as GPU_RULES
from tilewright.targets.nvidia import copies, dot, inline_assembly, reductions, warpgroup

# Only `NvidiaLowering` runs those of this package.
_OWN = {**warpgroup.RULES, **copies.RULES, **reductions.RULES, **dot.RULES, **inline_assembly.RULES}
RULES: dict[str, Rule] = {**GPU_RULES, **cast(dict[str, Rule], _OWN)}
