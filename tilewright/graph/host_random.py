"""The op of the host that draws random numbers: with a seed those of NumPy's `RandomState`, as in ONNX's reference."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import BY_NAME
from tilewright.errors import ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types
from tilewright.graph.semantics import Array, Arrays

DISTRIBUTIONS = ("uniform", "normal")


def random_type(inputs: Inputs, attributes: Attributes) -> Types:
    """Numbers of the floating-point type whose name `of` is."""
    dtype, seed = BY_NAME.get(attributes["of"]), attributes["seed"]
    if dtype is None or not dtype.is_float or attributes["distribution"] not in DISTRIBUTIONS:
        raise ShapeError(f"random numbers of the type {str(attributes['of'])[:80]!r}, {attributes['distribution']!r}")
    if seed is not None and not (type(seed) is int and 0 <= seed < 2**32):
        raise ShapeError(f"the seed {str(seed)[:80]} is no number of 32 bits")
    return [(dtype, attributes["shape"])]


def random(inputs: Arrays, attributes: Attributes) -> Array:
    """Uniform from 0 up to 1, or normal of mean 0 and variance 1."""
    state, shape = np.random.RandomState(attributes["seed"]), attributes["shape"]
    found = state.uniform(size=shape) if attributes["distribution"] == "uniform" else state.normal(size=shape)
    return np.asarray(found).astype(BY_NAME[attributes["of"]].numpy)
