"""Plain kernels on the GPU and in the interpreter, on the same arguments."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import from_numpy
from tilewright.ir.core import Function, Parameter
from tilewright.ir.interpreter import run
from tilewright.runtime.cuda.device import device
from tilewright.runtime.cuda.launch import launcher
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.streams import LEGACY_DEFAULT
from tilewright.targets.nvidia.compile import compile_function
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.target import NvidiaTarget


def type_text(argument: Any) -> str:
    """The IR type of a kernel parameter for an array (a pointer), an int or a float."""
    if isinstance(argument, np.ndarray):
        return f"*{from_numpy(argument.dtype).text}"
    return "f32" if isinstance(argument, float) else "i32"


def traced(kernel: Any, arguments: Mapping[str, Any], constants: Mapping[str, Any]) -> Function:
    """The Tile IR of a kernel for arguments by name; arrays are aligned."""
    types = {name: type_text(argument) for name, argument in arguments.items()}
    aligned = {name: Parameter(name, 16) for name, argument in arguments.items() if isinstance(argument, np.ndarray)}
    return kernel.trace(types, constants, aligned)


def run_on_gpu(function: Function, arguments: Sequence[Any], grid: Sequence[int] = (1,), warps: int = 4) -> list[Any]:
    """The arguments after a launch: arrays are copies."""
    binary = compile_function(function, NvidiaTarget.host(), NvidiaOptions.of_launch({"num_warps": warps}))
    there = [
        DeviceArray.from_numpy(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments
    ]
    slots = [argument.address if isinstance(argument, DeviceArray) else argument for argument in there]
    launcher(binary.program(function.name), device(0))(*(*grid, 1, 1, 1)[:3], LEGACY_DEFAULT, *slots)
    return [argument.numpy() if isinstance(argument, DeviceArray) else argument for argument in there]


def run_both(
    kernel: Any,
    arguments: Mapping[str, Any],
    constants: Mapping[str, Any] | None = None,
    grid: Sequence[int] = (1,),
    warps: int = 4,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a kernel leaves in its arguments: by the interpreter, and on the GPU."""
    function = traced(kernel, arguments, constants or {})
    expected = [np.array(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments.values()]
    run(function, expected, grid)
    found = run_on_gpu(function, list(arguments.values()), grid, warps)
    return dict(zip(arguments, expected, strict=True)), dict(zip(arguments, found, strict=True))


def same_bits(expected: np.ndarray, found: np.ndarray) -> None:
    """Equal bit for bit, all NaNs being one."""
    nan = np.isnan(expected.astype(np.float64))
    assert np.array_equal(nan, np.isnan(found.astype(np.float64)))
    kind = np.dtype(f"u{expected.dtype.itemsize}")
    different = np.flatnonzero((expected.view(kind) != found.view(kind)) & ~nan)
    if len(different):
        place = different[:4]
        raise AssertionError(
            f"at {place}: {expected.ravel()[place]}, not {found.ravel()[place]}; {len(different)} differ"
        )


def ulps(expected: np.ndarray, found: np.ndarray) -> float:
    """The greatest error of `found` in units in the last place of its type; `expected` is float64."""
    import ml_dtypes

    info = ml_dtypes.finfo(found.dtype)
    wide = found.astype(np.float64)
    good = np.isfinite(expected) & (np.abs(expected) < float(info.max))
    special = ~good
    assert np.array_equal(np.isnan(expected[special]), np.isnan(wide[special]))
    unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(expected[good]), float(info.tiny))))) * float(info.eps)
    return float(np.max(np.abs(wide[good] - expected[good]) / unit, initial=0.0))
