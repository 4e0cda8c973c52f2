"""The weights of an engine while it is built, by name: parts of a model that read the same tensor store it once."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from tilewright.dtypes import from_numpy
from tilewright.engine.weights import WeightSource
from tilewright.library import packing

_BEGINNING = 64  # elements that tell most tensors apart


class WeightStore:
    """Tensors in the order of first use, in the layouts in which kernels read them."""

    def __init__(self) -> None:
        self.sources: dict[str, WeightSource] = {}
        self._names: dict[str, str] = {}  # of weights, by part and own name
        self._tensors: dict[Hashable, list[tuple[str, str, np.ndarray]]] = {}  # part, weight, tensor

    def add(self, part: str, name: str, array: np.ndarray, recipe: packing.Recipe | None) -> str:
        """The name of a tensor's weight: `part` and `name`, or that of another part's equal tensor.

        Within a part each tensor keeps a name of its own.
        """
        own = part + name
        if own not in self._names:
            key = (array.dtype, array.shape, recipe, array.flat[:_BEGINNING].tobytes())
            alike = self._tensors.setdefault(key, [])
            self._names[own] = next((n for other, n, a in alike if other != part and _are_equal(a, array)), own)
            if self._names[own] == own:
                self.sources[own] = _source(array, recipe)
                alike.append((part, own, array))
        return self._names[own]


def _are_equal(array: np.ndarray, other: np.ndarray) -> bool:
    """Whether two tensors of a type and shape have the same bits."""
    if array.ctypes.data == other.ctypes.data and array.strides == other.strides:
        return True
    bits = np.dtype(f"u{array.itemsize}")
    return np.array_equal(array.view(bits), other.view(bits))


def _source(array: np.ndarray, recipe: packing.Recipe | None) -> WeightSource:
    if recipe is None:
        return WeightSource.of(array)
    shape = packing.packed_shape(recipe, array.shape)
    dtype = from_numpy(packing.packed_dtype(recipe, array.dtype))
    return WeightSource(dtype, shape, lambda: packing.apply(recipe, array))
