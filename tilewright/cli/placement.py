"""Where `bench` puts inputs, and how long it waits: an engine for a GPU is timed on tensors in the GPU's memory.

What a call costs with arrays in the host's memory is mostly the way there and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from tilewright.settings import settings

if TYPE_CHECKING:
    from tilewright.engine import Engine

_EXTENDED: dict[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
}
_CARRIERS = {1: "uint8", 2: "int16"}  # by bytes: the types as which NumPy and PyTorch hand these over


@dataclass(frozen=True)
class Timed:
    """What is called again and again, and where it runs, for people. A call returns when its results are there."""

    call: Callable[[], Any]
    where: str


def timed(engine: Engine, arrays: Mapping[str, np.ndarray]) -> Timed:
    """A call of an engine on inputs that lie where its target has its memory: PyTorch's tensors if PyTorch uses the
    GPU, else arrays of our own."""
    if not engine.target.startswith("cuda"):
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
    if array.dtype.name in _EXTENDED:
        carrier = np.ascontiguousarray(array).view(np.dtype(_CARRIERS[array.dtype.itemsize]))
        return torch.from_numpy(carrier).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def numpy_array(torch: ModuleType, tensor: Any) -> np.ndarray:
    """The inverse of `torch_tensor`, from anywhere."""
    tensor = tensor.detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in _EXTENDED:
        carrier = getattr(torch, _CARRIERS[tensor.element_size()])
        return np.asarray(tensor.contiguous().view(carrier).numpy()).view(_EXTENDED[name])
    return np.asarray(tensor.numpy())
