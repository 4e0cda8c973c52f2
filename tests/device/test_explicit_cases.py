"""Explicit kernels on a GPU of compute capability 9.0: instructions, layouts of tiles, synchronisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.explicit_cases import CASES, Case, check
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.launch import launcher
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.streams import LEGACY_DEFAULT
from tilewright.targets.nvidia.compile import compile_function
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.target import NvidiaTarget

pytestmark = pytest.mark.hopper


def slot(argument: Any, kind: str) -> Any:
    """What the launcher takes for an argument."""
    if not isinstance(argument, DeviceArray):
        return argument
    if not kind.startswith("tensormap"):
        return argument.address
    strides = [int(np.prod(argument.shape[axis + 1 :])) for axis in range(len(argument.shape))]
    return argument.address, argument.shape, tuple(strides)


def run_case(case: Case, gpu: Device, rng: np.random.Generator, times: int = 1) -> None:
    binary = compile_function(
        case.trace(), NvidiaTarget.named("sm_90a"), NvidiaOptions.of_launch({**case.options, "strict": True})
    )
    start = launcher(binary.program("case"), gpu)
    for _ in range(times):
        call = case.make(rng)
        there = [DeviceArray.from_numpy(a) if isinstance(a, np.ndarray) else a for a in call.arguments]
        slots = [slot(argument, kind) for argument, kind in zip(there, binary.parameters, strict=True)]
        start(*case.grid, LEGACY_DEFAULT, *slots)
        call.arguments[call.output] = there[call.output].numpy()
        check(call)


@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name: str, gpu: Device, rng: np.random.Generator) -> None:
    run_case(CASES[name], gpu, rng, times=3)
