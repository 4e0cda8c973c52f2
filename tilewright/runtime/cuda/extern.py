"""Steps of a plan that another library computes: products of cuBLASLt (`cublaslt.py`), convolutions of cuDNN
(`cudnn.py`), and PyTorch's, which has both libraries behind it.

    start = extern_start("extern mm {…}", device)         # as a kernel's launcher
    start(1, 1, 1, stream, (address, shape, strides), …)  # operands in order, the result last

The library works on the plan's memory and on the plan's stream, which may be captured into a graph: what it takes
besides, from a pool of PyTorch's or as workspaces, lives as long as the step.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.dtypes import BY_TEXT
from tilewright.errors import LaunchError, MissingDependencyError, TilewrightError
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.extern import extern_name, parts

Operand = tuple[int, tuple[int, ...], tuple[int, ...]]  # address, extents, strides in elements
_TYPES = {1: "<i1", 2: "<i2", 4: "<i4", 8: "<i8"}  # memory of a size, to be seen as another type
_CACHED_TENSORS = 4096  # tensors of a step that are kept by address and shape


def extern_start(key: str, device: Device) -> Callable[..., None]:
    """What starts a step, like `runtime.cuda.launch.launcher`; it raises `LaunchError` for what the library refuses.

    Raises `MissingDependencyError` where the library cannot use the GPU, and `ValueError` for a key that is malformed.
    """
    function, dtypes, options = parts(key)
    if function in _BINDINGS:
        module, name = _BINDINGS[function]
        step: Callable[..., Callable[..., None]] = getattr(importlib.import_module(module), name)
        return _with_our_errors(key, step(dtypes, options, device))
    if function not in _FUNCTIONS:
        raise ValueError(f"unknown library function {function!r}")
    return _with_our_errors(key, _ExternStep(function, dtypes, options, _torch(key), device))


def unusable(library: str, needs: str, install: str, error: Exception) -> MissingDependencyError:
    """What is told where a library's Python package, or what it finds by itself, keeps the library from being used."""
    return MissingDependencyError(
        f"the engine was built with calls of {library} and needs {needs} ({type(error).__name__}: {error}): "
        f"pip install {install}, or build the engine with --vendor never"
    )


def _with_our_errors(key: str, step: Callable[..., None]) -> Callable[..., None]:
    """A step whose library's errors, which are of many classes, are ours, and say what was to be computed."""

    def start(x: int, y: int, z: int, stream: int, *operands: Operand) -> None:
        try:
            step(x, y, z, stream, *operands)
        except TilewrightError:
            raise
        except Exception as error:
            shapes = ", ".join(str(list(operand[1])) for operand in operands)
            raise LaunchError(
                f"{extern_name(key)} failed for tensors of {shapes}: {type(error).__name__}: {error}. Without calls "
                "of other libraries: build the engine with --vendor never"
            ) from error

    return start


def _torch(key: str) -> Any:
    try:
        torch = importlib.import_module("torch")
        usable = torch.cuda.is_available()
    except ImportError:
        usable = False
    if not usable:
        raise MissingDependencyError(
            f"the engine was built with library calls ({extern_name(key)}) and needs a PyTorch that uses the GPU: "
            "install one, or build the engine with --vendor never"
        )
    return torch


class _ExternStep:
    """A call of a library's function on memory that is known by address."""

    def __init__(
        self, function: str, dtypes: Sequence[str], options: Mapping[str, Any], torch: Any, device: Device
    ) -> None:
        self._run = _FUNCTIONS[function]
        self._dtypes = [BY_TEXT[text] for text in dtypes]
        self._options = options
        self._torch = torch
        self._place = torch.device("cuda", device.ordinal)
        self._pool = torch.cuda.MemPool()
        self._tensors: dict[Any, Any] = {}
        self._streams: dict[int, Any] = {}
        with torch.cuda.device(self._place):  # handles cannot be made while a stream is captured
            torch.cuda.current_blas_handle()
            if function == "convolution":
                image = torch.zeros((1, 8, 4, 4), dtype=torch.float16, device=self._place)
                torch.nn.functional.conv2d(image, torch.zeros_like(image)[:, :, :1, :1])

    def __call__(self, x: int, y: int, z: int, stream: int, *operands: Any) -> None:
        torch = self._torch
        with torch.no_grad(), torch.cuda.device(self._place), torch.cuda.use_mem_pool(self._pool):
            tensors = [self._tensor(number, operand) for number, operand in enumerate(operands)]
            if stream not in self._streams:
                # PyTorch takes the address 0, which is the default stream's, for a wish for a fresh stream.
                default = torch.cuda.default_stream(self._place)
                self._streams[stream] = torch.cuda.ExternalStream(stream, device=self._place) if stream else default
            with torch.cuda.stream(self._streams[stream]):
                self._run(torch, tensors, self._options)

    def _tensor(self, number: int, operand: Operand) -> Any:
        """A tensor of PyTorch on the plan's memory: address, extents and strides in elements."""
        key = (number, operand)
        if key not in self._tensors:
            if len(self._tensors) >= _CACHED_TENSORS:
                self._tensors.clear()
            dtype = self._dtypes[number]
            memory = _ExternMemory(*operand, dtype.itemsize)
            seen = self._torch.as_tensor(memory, device=self._place)
            self._tensors[key] = seen.view(getattr(self._torch, dtype.name))
        return self._tensors[key]


class _ExternMemory:
    """Memory of the GPU as other libraries are told of it."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "strides": tuple(stride * itemsize for stride in strides),
            "typestr": _TYPES[itemsize],
            "version": 3,
            "stream": None,  # the plan's stream orders what happens
        }


def _mm(torch: Any, tensors: Sequence[Any], options: Mapping[str, Any]) -> None:
    a, b, out = tensors
    (torch.mm if a.dim() == 2 else torch.bmm)(a, b, out=out)


def _addmm(torch: Any, tensors: Sequence[Any], options: Mapping[str, Any]) -> None:
    a, b, bias, out = tensors
    torch.addmm(bias, a, b, out=out)


def _convolution(torch: Any, tensors: Sequence[Any], options: Mapping[str, Any]) -> None:
    x, weights, out = tensors
    sizes = (options["padding"], options["strides"], options["dilation"])
    flags = {"benchmark": False, "deterministic": False, "allow_tf32": False}
    torch.ops.aten.cudnn_convolution.out(x, weights, *sizes, options["groups"], *flags.values(), out=out)


_FUNCTIONS: dict[str, Callable[[Any, Sequence[Any], Mapping[str, Any]], None]] = {
    "mm": _mm,
    "addmm": _addmm,
    "convolution": _convolution,
}
_BINDINGS = {  # modules that are imported where a plan wants them
    "cublaslt.product": ("tilewright.runtime.cuda.cublaslt", "ProductStep"),
    "cudnn.convolution": ("tilewright.runtime.cuda.cudnn", "ConvolutionStep"),
}
