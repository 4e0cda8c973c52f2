"""Calls of a plan with NumPy arrays whose shapes came before: what cannot differ is not looked at again.

A small model's kernels take a microsecond or two, and so does each of the checks of `runtime.session`.  Here a call
looks at each array's type, memory and shape; what follows from the shapes is that of the first call with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from tilewright import dtypes
from tilewright.runtime.plan import Plan

_MOST = 1024  # combinations of shapes that are kept

_OBJECTS = np.dtype(object)

Facts = TypeVar("Facts")
Reader = Callable[[np.ndarray], np.ndarray]


class KnownCalls(Generic[Facts]):
    """What follows from the shapes of a plan's inputs, for the calls that came before."""

    def __init__(self, plan: Plan, readers: Mapping[str, Reader] | None = None) -> None:
        """`readers` make the arrays of inputs that are no numbers, from arrays of objects."""
        self._readers = readers or {}
        known = [dtypes.BY_NAME.get(spec.dtype) for spec in plan.inputs]
        self._keeps = all(
            spec.mutates is None and (dtype is not None or spec.name in self._readers)
            for spec, dtype in zip(plan.inputs, known, strict=True)
        )
        self._inputs = [
            (spec.name, _OBJECTS if dtype is None else dtype.numpy)
            for spec, dtype in zip(plan.inputs, known, strict=True)
            if self._keeps
        ]
        self._calls: dict[tuple[tuple[int, ...], ...], Facts] = {}

    def find(self, inputs: Mapping[str, Any]) -> tuple[Facts, list[np.ndarray]] | None:
        """The facts, and the arrays in the plan's order; None where all must be looked at."""
        if type(inputs) is not dict or len(inputs) != len(self._inputs):
            return None
        arrays, shapes = [], []
        for name, dtype in self._inputs:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype:
                return None
            if dtype is _OBJECTS:
                arrays.append(self._readers[name](array))
                shapes.append(array.shape)
                continue
            flags, base = array.flags, array.base
            if not (flags.c_contiguous and flags.aligned):
                return None
            if base is not None and (type(base) is not np.ndarray or base.base is not None):
                return None  # memory of others, which may be gone
            arrays.append(array)
            shapes.append(array.shape)
        facts = self._calls.get(tuple(shapes))
        return None if facts is None else (facts, arrays)

    def add(self, shapes: Sequence[tuple[int, ...]], facts: Facts) -> None:
        """Keep what follows from the shapes of the inputs; nothing of plans that update them, or take other things."""
        if not self._keeps:
            return
        if len(self._calls) >= _MOST:
            self._calls.clear()
        self._calls[tuple(shapes)] = facts
