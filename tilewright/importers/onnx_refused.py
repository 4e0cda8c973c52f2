"""ONNX operations that a graph cannot express in principle: the reason, and what to do."""

from __future__ import annotations

from tilewright.importers.report import NO_RULE, NO_RULE_ADVICE, Unsupported

_RANDOM = ("random numbers", "draw them outside of the model and give them as an input")
_TRAINING_GRAPHS = ("derivatives of a graph", "export the backward pass as nodes, or train in PyTorch")
_MAPS = ("a dictionary as an input", "give its values as a tensor")
_GENERATION = ("a loop that generates text", "export one step of the decoder, and keep the loop outside of the model")
_OWN_ORDER = ("weights in the order of ONNX Runtime's own kernels", "write them as MatMulNBits has them")
_SPARSE_TENSOR = ("a sparse tensor as an input", "give a dense one, and use MatMul")

_KINDS: dict[tuple[str, str], tuple[str, ...]] = {
    _RANDOM: (
        "com.microsoft::BitmaskDropout", "com.microsoft::Sampling",
    ),
    _TRAINING_GRAPHS: ("ai.onnx.preview.training::Gradient",),
    _MAPS: ("ai.onnx.ml::CastMap", "ai.onnx.ml::DictVectorizer"),
    _OWN_ORDER: ("com.microsoft::MatMulFpQ4",),
    _SPARSE_TENSOR: ("com.microsoft::SparseToDenseMatMul",),
    _GENERATION: ("com.microsoft::BeamSearch", "com.microsoft::GreedySearch", "com.microsoft::WhisperBeamSearch"),
}  # fmt: skip
REASONS = {name: reason for reason, names in _KINDS.items() for name in names}


def without_rule(name: str) -> Unsupported:
    """What to tell of an operation that has no rule; other domains than ONNX's own are part of the name."""
    return Unsupported(*REASONS.get(name, (NO_RULE, NO_RULE_ADVICE)))
