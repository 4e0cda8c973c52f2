"""Canonicalizes a kernel: the rule tables of this folder, applied until none matches."""

from __future__ import annotations

from tilewright.ir.core import Function
from tilewright.ir.rewrite import rewrite
from tilewright.passes.arithmetic_rules import ARITHMETIC_RULES
from tilewright.passes.choice_rules import CHOICE_RULES
from tilewright.passes.constant_rules import CONSTANT_RULES
from tilewright.passes.control_flow_rules import CONTROL_FLOW_RULES
from tilewright.passes.memory_rules import MEMORY_RULES
from tilewright.passes.rounding_rules import ROUNDING_RULES
from tilewright.passes.shape_rules import SHAPE_RULES

# Constants first: the other tables expect them folded, and on the right of commutative operations.
CANONICAL_RULES = CONSTANT_RULES + ARITHMETIC_RULES + CHOICE_RULES + ROUNDING_RULES + SHAPE_RULES
CANONICAL_RULES += MEMORY_RULES + CONTROL_FLOW_RULES


def canonicalize(function: Function) -> Function:
    """`function` in canonical form; the same object when it already is."""
    return rewrite(function, CANONICAL_RULES)
