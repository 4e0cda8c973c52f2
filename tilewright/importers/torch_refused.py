"""Operations of PyTorch that a graph cannot express in principle: the reason, and what to do."""

from __future__ import annotations

from tilewright.importers.report import NO_RULE, NO_RULE_ADVICE, Unsupported

_RANDOM = ("random numbers", "draw them outside of the model and give them as an input")
_TRAINING_MODE = ("batch normalisation in training mode", "call model.eval() first")
_POSITIONS = (
    "positions that depend on the data are found by PyTorch",
    "nothing: the operations around it are compiled",
)
_SIZE_OF_DATA = ("the result's size depends on the data", "keep all elements, and use torch.where on a mask")
_LOOPS = ("a loop that depends on data", "repeat a fixed number of times, or keep the loop outside of the model")
_COMPLEX = ("complex numbers in this operation", "compute with real and imaginary parts as tensors of their own")
_SPARSE = ("tensors with a sparse layout", "call .to_dense() before this operation")

_KINDS: dict[tuple[str, str], tuple[str, ...]] = {
    _RANDOM: (
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "normal_functional",
        "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "randperm",
        "uniform",
    ),
    _TRAINING_MODE: ("_native_batch_norm_legit", "native_batch_norm"),
    _POSITIONS: ("nms", "nonzero_static", "repeat_interleave"),
    _SIZE_OF_DATA: ("_unique2", "bincount", "masked_select", "nonzero", "unique_consecutive", "unique_dim"),
    _LOOPS: ("associative_scan", "map_impl", "scan", "while_loop"),
}  # fmt: skip
_REASONS = {name: reason for reason, names in _KINDS.items() for name in names}


def without_rule(operation: str, complex_numbers: bool = False) -> Unsupported:
    """What to tell of an operation that has no rule; `operation` as in ``aten.nonzero.default`` or ``cond``.

    `complex_numbers`: that it has none for them.
    """
    if complex_numbers:
        return Unsupported(*_COMPLEX)
    parts = operation.split(".")
    if "sparse" in operation:
        return Unsupported(*_SPARSE)
    return Unsupported(*_REASONS.get(parts[1] if len(parts) > 1 else parts[0], (NO_RULE, NO_RULE_ADVICE)))
