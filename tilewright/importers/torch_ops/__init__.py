"""The ATen operations that are imported: one rule each, files by section."""

from __future__ import annotations

from tilewright.importers.rules import Rule, RuleTable, merge
from tilewright.importers.torch_ops import (
    activation,
    choices,
    complex_functions,
    complexes,
    contraction,
    creation,
    elementwise,
    fake_quantized,
    indexing,
    linear_algebra,
    losses,
    normalization,
    pooling,
    quantized,
    random,
    recurrent,
    reduction,
    regions,
    searching,
    segments,
    shape,
    special,
)

SECTIONS: tuple[RuleTable, ...] = (
    elementwise.TABLE,
    activation.TABLE,
    reduction.TABLE,
    contraction.TABLE,
    normalization.TABLE,
    shape.TABLE,
    indexing.TABLE,
    creation.TABLE,
    pooling.TABLE,
    recurrent.TABLE,
    searching.TABLE,
    segments.TABLE,
    linear_algebra.TABLE,
    regions.TABLE,
    special.TABLE,
    fake_quantized.TABLE,
    complexes.TABLE,
    complex_functions.TABLE,
    random.TABLE,
    choices.TABLE,
    choices.TORCHVISION,
)
# Under torch.compile PyTorch runs these: their results have sizes that depend on data, or are drawn by its generator.
LEFT_TO_PYTORCH = frozenset([*choices.TABLE.rules, *choices.TORCHVISION.rules, *random.TABLE.rules])
RULES: dict[str, Rule] = merge(SECTIONS)
# Operations that are not ATen's: those of packed sequences and of the CTC loss are ours; transformers has one where
# PyTorch's own does not take an element type; numbers that Dynamo made tensors of, because they changed from call to
# call, are cast by one of its primitives; `convert_pt2e` writes quantized tensors.
FOREIGN: dict[str, Rule] = {
    **quantized.TABLE.rules,
    "transformers.grouped_mm_fallback.default": contraction.grouped_matmul,
    "prims.convert_element_type.default": elementwise.copy_as,
    "tilewright.known_lengths.default": recurrent.known_lengths,
    "tilewright.padded_layers.default": recurrent.padded_layers,
    "tilewright.quantized_floats.default": fake_quantized.quantized_floats,
    "tilewright.ctc_losses.default": losses.ctc_losses,
}
