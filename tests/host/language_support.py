"""Helpers of the language tests: run a kernel in the interpreter, or only look at the types it computes."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright
from tilewright.launch.jit import JITFunction
from tilewright.settings import settings

# Kernels compute elementwise functions to a few units in the last place, and sum in another order.
_TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def interpret(kernel: JITFunction, grid: Any, *arguments: Any, **keywords: Any) -> None:
    """Launch a kernel in the interpreter."""
    with settings.scope(interpret=True):
        kernel[grid](*arguments, **keywords)


def launch(kernel: JITFunction, grid: Any, *arguments: Any, **keywords: Any) -> None:
    """Launch a kernel in the interpreter and compiled: both must leave the same arrays behind.

    One thread runs the compiled instances in the interpreter's order, so that atomics agree as well.
    """
    copies = [value.copy() if isinstance(value, np.ndarray) else value for value in arguments]
    interpret(kernel, grid, *copies, **keywords)
    with settings.scope(threads=1, interpret=False):
        kernel[grid](*arguments, **keywords)
    for expected, actual in zip(copies, arguments, strict=True):
        if isinstance(actual, np.ndarray):
            tolerance = _TOLERANCE.get(actual.dtype.name, 0)
            kind = np.float64 if tolerance else actual.dtype
            wide = expected.astype(kind), actual.astype(kind)
            np.testing.assert_allclose(wide[1], wide[0], rtol=tolerance, atol=tolerance)


def compile_error(kernel: JITFunction, types: dict[str, Any], **constants: Any) -> str:
    """The text of the compile error of a kernel, its file name shortened; fails when it compiles."""
    try:
        kernel.trace(types, constants)
    except tilewright.errors.CompilationError as error:
        return str(error).replace(kernel.file, "FILE")
    raise AssertionError("the kernel was compiled")


class Recorder:
    """Collects what kernels report at compile time: ``record(x.type)`` in a kernel."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.function = tilewright.constexpr_function(self._add)

    def _add(self, *values: Any) -> None:
        self.values.extend(values)
