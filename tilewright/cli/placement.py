"""Where `bench` puts inputs, and how it waits: a GPU engine is timed on tensors in the GPU's memory.

What a call costs with arrays in the host's memory is mostly the way there and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import dtypes
from tilewright.runtime.tensors import torch_dtype
from tilewright.settings import settings

if TYPE_CHECKING:
    from tilewright.engine.engine import Engine


@dataclass(frozen=True)
class Timed:
    """What is called again and again, and where it runs, for people. A call returns when its results are there."""

    call: Callable[[], Any]
    where: str


def timed(engine: Engine, arrays: Mapping[str, np.ndarray]) -> Timed:
    """A call of an engine on inputs that lie where its target has its memory: PyTorch's tensors if PyTorch uses the
    GPU, else arrays of our own."""
    if not engine.is_for_gpu:
        return Timed(lambda: engine.run(arrays), f"{settings.threads} threads")
    from tilewright.runtime.cuda.device import current_device
    from tilewright.runtime.cuda.memory import DeviceArray
    from tilewright.runtime.cuda.streams import synchronize

    gpu = current_device()
    torch = torch_with_gpu()
    given: dict[str, Any]
    if torch is None:
        given = {name: DeviceArray.from_numpy(array) for name, array in arrays.items()}
        where, wait = "tensors in its memory (no PyTorch)", partial(synchronize, gpu.ordinal)
    else:
        given = {name: torch_tensor(torch, array).cuda() for name, array in arrays.items()}
        where, wait = "PyTorch's tensors in its memory", torch.cuda.synchronize

    def call() -> None:
        engine.run(given)
        wait()

    return Timed(call, f"{gpu.name}, {where}")


def torch_with_gpu() -> ModuleType | None:
    """PyTorch, if it is installed and sees a GPU."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def torch_tensor(torch: ModuleType, array: np.ndarray) -> Any:
    """An array as PyTorch's tensor in the host's memory, of NumPy's types and of bfloat16 and fp8."""
    try:
        return torch.from_numpy(array)
    except TypeError:  # bfloat16 and fp8, which NumPy has by extension only
        carrier = {1: np.uint8, 2: np.int16}[array.itemsize]
        bits = torch.from_numpy(np.asarray(array, order="C").view(carrier))
        return bits.view(torch_dtype(dtypes.from_numpy(array.dtype).name))
