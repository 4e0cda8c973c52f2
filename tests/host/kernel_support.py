"""Compile Tile IR for this machine's CPU, run it, and compare with the interpreter."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.host.cpu_support import guarded
from tilewright.ir import interpreter
from tilewright.ir.core import Function
from tilewright.ir.memory import ArrayPointer
from tilewright.ir.parser import parse_function
from tilewright.ir.verifier import verify
from tilewright.runtime.failure_record import WORDS, Failure
from tilewright.runtime.launch import launch
from tilewright.runtime.library import load_objects
from tilewright.targets.cpu.assemble import assemble
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.cpu.pipeline import LoweredCPUKernel, lower
from tilewright.targets.cpu.target import CPUTarget


def lowered(function: Function, target: CPUTarget | None = None) -> LoweredCPUKernel:
    """The LLVM text of a kernel for this machine or another."""
    verify(function)
    return lower(function, target or CPUTarget.host(), CPUOptions())


def slot(type_text: str, value: Any) -> bytes:
    """One 8-byte argument slot."""
    if type_text.startswith("*"):
        pointer = value if isinstance(value, ArrayPointer) else ArrayPointer(value)
        address = pointer.array.ctypes.data + pointer.offset * pointer.array.dtype.itemsize
        return struct.pack("<Q", address)
    if type_text == "f32":
        return struct.pack("<f4x", value)
    if type_text == "f64":
        return struct.pack("<d", value)
    return struct.pack("<q", int(value))


def run_compiled(function: Function, arguments: Sequence[Any], grid: Sequence[int] = (1,), threads: int = 1) -> None:
    """Compile and run a kernel; arrays are changed in place."""
    kernel = lowered(function)
    code = assemble(kernel.text, CPUTarget.host())
    library = load_objects([code.image], [kernel.symbol])
    types = [str(argument.type) for argument in function.region.arguments]
    slots = b"".join(slot(text, value) for text, value in zip(types, arguments, strict=True))
    record = (ctypes.c_int64 * WORDS)()
    watch = ctypes.addressof(record) if kernel.records else None
    launch(library.address(kernel.symbol), slots, (*grid, 1, 1, 1)[:3], kernel.scratch_bytes, threads, watch)
    assert Failure.read(record) is None


def check(
    source: str | Function, arguments: Sequence[Any], grid: Sequence[int] = (1,), tolerance: float = 2e-6
) -> list[Any]:
    """Run a kernel compiled and interpreted on copies of `arguments`, compare all arrays, return the compiled ones.

    The compiled kernel's arrays end where memory ends that it may touch.
    """
    function = parse_function(source) if isinstance(source, str) else source
    verify(function)
    expected = [value.copy() if isinstance(value, np.ndarray) else value for value in arguments]
    found = [guarded(value) if isinstance(value, np.ndarray) else value for value in arguments]
    interpreter.run(function, expected, grid)
    run_compiled(function, found, grid)
    for number, (left, right) in enumerate(zip(found, expected, strict=True)):
        if isinstance(left, np.ndarray):
            compare(left, right, tolerance, f"argument {number}")
    return found


def compare(found: np.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
    """Equal, up to `tolerance` relative to the largest magnitude for floats."""
    if found.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    left, right = found.astype(np.float64), expected.astype(np.float64)
    finite = right[np.isfinite(right)]
    scale = max(1.0, float(np.abs(finite).max())) if finite.size else 1.0
    np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance * scale, err_msg=what)
