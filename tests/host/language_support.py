"""Helpers of the language tests: run a kernel in the interpreter, or only look at the types it computes."""

from __future__ import annotations

from typing import Any

import tilewright
import tilewright.language as tl
from tilewright.frontend.jit import JITFunction
from tilewright.settings import settings


def interpret(kernel: JITFunction, grid: Any, *arguments: Any, **keywords: Any) -> None:
    """Launch a kernel in the interpreter."""
    with settings.scope(interpret=True):
        JITFunction(kernel.function)[grid](*arguments, **keywords)


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


def tl_dtype(name: str) -> tl.dtype:
    return getattr(tl, name)
