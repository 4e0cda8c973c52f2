"""The driver's interface (the package `cuda-bindings`), loaded when a GPU is first asked for.

cuda = driver.api()
context = driver.check(cuda.cuCtxGetCurrent(), "asking for the current context")
"""

from __future__ import annotations

import functools
import os
from typing import Any

from tilewright.errors import DeviceError, MissingDependencyError, TilewrightError

_HIDDEN = ("", "-1")  # values of CUDA_VISIBLE_DEVICES without a device


def api() -> Any:
    """The module ``cuda.bindings.driver``, with the driver initialised.

    Raises `MissingDependencyError` when the package is not installed, `DeviceError` when there is no driver or
    no GPU, and in forks of a process that has started the driver: CUDA does not survive a fork.
    """
    process, found = _started()
    if isinstance(found, TilewrightError):
        raise type(found)(*found.args)
    if process != os.getpid():
        raise DeviceError(
            f"CUDA was started in process {process}, of which this one is a fork, and cannot be used here: start "
            "processes that use a GPU with multiprocessing's start method 'spawn'"
        )
    return found


@functools.cache
def _started() -> tuple[int, Any]:
    """The process that started the driver, and the driver or why it does not start.

    Once, also where it fails: a fork of a process without a GPU that tries again can end in libcuda.
    """
    try:
        return os.getpid(), _start()
    except TilewrightError as error:
        return os.getpid(), error.with_traceback(None)


def _start() -> Any:
    if os.environ.get("CUDA_VISIBLE_DEVICES") in _HIDDEN:
        raise DeviceError("CUDA_VISIBLE_DEVICES hides all GPUs")
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingDependencyError(
            f"running on a GPU needs the package cuda-bindings ({error}): pip install 'tilewright[cuda]'"
        ) from None
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # what the bindings raise when the driver's library is not there
        raise DeviceError("no NVIDIA driver was found on this machine") from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"the NVIDIA driver does not start: {_name(driver, status)}; `nvidia-smi` may tell more")
    return driver


def is_available() -> bool:
    """Whether there is a driver with at least one GPU."""
    try:
        cuda = api()
        return int(check(cuda.cuDeviceGetCount(), "counting GPUs")) > 0
    except (DeviceError, MissingDependencyError):
        return False


def version() -> int:
    """The newest CUDA that the driver serves: 13000 is 13.0."""
    return int(check(api().cuDriverGetVersion(), "asking for the driver's version"))


def check(result: tuple[Any, ...], action: str) -> Any:
    """What a driver call returned; raises `DeviceError` with the driver's words when it failed.

    `action` says what was being done: "loading a kernel".
    """
    status, *values = result
    if int(status) != 0:
        raise failure(status, action)
    return values[0] if len(values) == 1 else tuple(values)


def failure(status: Any, action: str) -> DeviceError:
    """The error of a driver call that gave this status."""
    cuda = api()
    error = DeviceError(f"{action}: {_name(cuda, status)}")
    advice = _ADVICE.get(cuda.CUresult(int(status)).name)
    return DeviceError(f"{error}; {advice}") if advice else error


# A failure inside a kernel shows at whatever call comes next, and ends the context for the whole process.
_FAULT = (
    "a kernel that ran before, not necessarily this one, did it; CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer finds "
    "which, and the process must be started again"
)
_ADVICE = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": f"memory was accessed outside of an allocation: {_FAULT}",
    "CUDA_ERROR_MISALIGNED_ADDRESS": f"an address was not a multiple of the access's size: {_FAULT}",
    "CUDA_ERROR_LAUNCH_FAILED": f"a kernel failed: {_FAULT}",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": f"a kernel met an instruction that it may not use: {_FAULT}",
    "CUDA_ERROR_ASSERT": "a device_assert failed, and the driver printed its message and place on the standard error; "
    "with arrays on the CPU and TILEWRIGHT_INTERPRET=1 the error has the values' place and the program instance; "
    f"{_FAULT}",
    "CUDA_ERROR_OUT_OF_MEMORY": "the GPU has no memory left for this; free some of what other code holds",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the code was compiled for another architecture than this GPU's",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "the driver is older than the assembler: update it, or install an older "
    "nvidia-cuda-nvcc",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": "a cooperative launch needs every CTA on the GPU at once: use a "
    "smaller grid",
}


def _name(cuda: Any, status: Any) -> str:
    _, name = cuda.cuGetErrorName(status)
    _, text = cuda.cuGetErrorString(status)
    return f"{_text(name)} ({_text(text)})"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
