"""The ONNX operations that are imported: one rule each, files by section."""

from __future__ import annotations

from tilewright.importers.onnx_ops import (
    attention,
    classical,
    early,
    elementwise,
    geometry,
    indexing,
    losses,
    microsoft,
    microsoft_attention,
    microsoft_packed,
    microsoft_quantized,
    network,
    quantized,
    random,
    recurrent,
    reduction,
    resize,
    run_time,
    shape,
    signal,
    text,
    training,
    windows,
)
from tilewright.importers.rules import Rule, RuleTable, merge

SECTIONS: tuple[RuleTable, ...] = (
    elementwise.TABLE,
    reduction.TABLE,
    network.TABLE,
    windows.TABLE,
    resize.TABLE,
    geometry.TABLE,
    attention.TABLE,
    recurrent.TABLE,
    shape.TABLE,
    indexing.TABLE,
    losses.TABLE,
    quantized.TABLE,
    signal.TABLE,
    run_time.TABLE,
    text.TABLE,
    random.TABLE,
    training.TABLE,
    classical.TABLE,
    early.TABLE,
    microsoft.TABLE,
    microsoft_attention.TABLE,
    microsoft_packed.TABLE,
    microsoft_quantized.TABLE,
    text.RUNTIME,
)
RULES: dict[str, Rule] = merge(SECTIONS)
