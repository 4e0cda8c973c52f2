"""The ONNX operations that are imported: one rule each, files by section."""

from __future__ import annotations

from tilewright.importers.onnx_ops import elementwise, indexing, network, recurrent, reduction, shape
from tilewright.importers.rules import Rule, RuleTable, merge

SECTIONS: tuple[RuleTable, ...] = (
    elementwise.TABLE,
    reduction.TABLE,
    network.TABLE,
    recurrent.TABLE,
    shape.TABLE,
    indexing.TABLE,
)
RULES: dict[str, Rule] = merge(SECTIONS)
