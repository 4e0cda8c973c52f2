"""A GPU that is none: the driver's memory is the host's, and kernels run as machine code of this CPU.

Everything of an engine for GPUs but the GPU's own code is run so: tactics, plan, file, and the session with its
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import random
import struct
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from tilewright.build import trials
from tilewright.dtypes import BY_TEXT, DType
from tilewright.ir.core import Function, Operation
from tilewright.ir.explicit import is_explicit
from tilewright.ir.interpreter import run as interpret
from tilewright.ir.types import PointerType, TensorMapType, TensorType
from tilewright.passes.grid_axes import rename_axes
from tilewright.runtime.cuda import device as devices
from tilewright.runtime.cuda import driver as drivers
from tilewright.runtime.cuda import memory, session, staging
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.failure_record import WORDS
from tilewright.runtime.gpu_program import Program, Resources
from tilewright.runtime.launch import launch
from tilewright.runtime.library import load_objects
from tilewright.runtime.slots import slot_format
from tilewright.settings import settings
from tilewright.targets.base import Binary
from tilewright.targets.cpu.backend import CPUBackend
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.gpu.binary import GpuBinary
from tilewright.targets.nvidia.backend import NvidiaBackend
from tilewright.targets.nvidia.options import NvidiaOptions

Work = Callable[[], None]


Graph = list[tuple[Work, frozenset[int]]]  # kernels, each with the numbers of those that it comes behind


class Capture:
    """A graph that streams are captured into: `tails` are the kernels that the next one of a stream comes behind."""

    numbers = itertools.count(1)

    def __init__(self, stream: int) -> None:
        self.number = next(self.numbers)
        self.nodes: Graph = []
        self.owned: list[tuple[int, int]] = []  # user objects: what their destructors are called with, and these
        self.tails: dict[int, frozenset[int]] = {stream: frozenset()}

    def add(self, stream: int, work: Work) -> None:
        self.nodes.append((work, self.tails[stream]))
        self.tails[stream] = frozenset({len(self.nodes) - 1})

    def joined(self, stream: int) -> bool:
        """Whether all kernels are done when the stream is."""
        reached, pending = set(), list(self.tails[stream])
        while pending:
            node = pending.pop()
            if node not in reached:
                reached.add(node)
                pending += self.nodes[node][1]
        return len(reached) == len(self.nodes)


class Driver:
    """The calls of ``cuda.bindings.driver`` that sessions make; `calls` counts them by name."""

    memory: ClassVar[dict[int, Any]] = {}  # of all drivers: what a test leaves is freed when it is collected

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.captured: dict[int, Capture] = {}  # by stream
        self.marked: dict[int, tuple[Capture, frozenset[int]]] = {}  # events of a capture
        self.random = random.Random(0)  # kernels of a graph run in any order that their edges allow
        self.handles = 100
        self.updates_fail = False
        self.mode = 0  # how strict captures are about what else this thread does; 2: anything goes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU"):
            return types.SimpleNamespace(CU_STREAM_NON_BLOCKING=1, CU_EVENT_DISABLE_TIMING=2,
                                         CU_EVENT_DEFAULT=0, CU_EVENT_RECORD_EXTERNAL=1,
                                         CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1,
                                         CU_STREAM_CAPTURE_MODE_RELAXED=2,
                                         CU_STREAM_CAPTURE_STATUS_NONE=0,
                                         CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL=9)  # fmt: skip
        action = getattr(type(self), f"_{name}", type(self)._handle)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls[name] = self.calls.get(name, 0) + 1
            result = action(self, *arguments)
            return result if isinstance(result, tuple) else (0, result)

        return call

    def _handle(self, *arguments: Any) -> int:
        self.handles += 1
        return self.handles

    def _nothing(self, *arguments: Any) -> tuple[int]:
        return (0,)

    _cuInit = _cuCtxSetCurrent = _cuGraphDestroy = _cuGraphExecDestroy = _nothing
    _cuEventDestroy = _cuEventSynchronize = _cuStreamSynchronize = _nothing

    def _cuDriverGetVersion(self) -> int:
        return 13000

    def _cuCtxGetCurrent(self) -> int:
        return 1

    def _cuDevicePrimaryCtxRetain(self, handle: Any) -> int:
        return 1

    def _allocate(self, size: int) -> int:
        memory = ctypes.create_string_buffer(size + 256)
        address = -(-ctypes.addressof(memory) // 256) * 256
        self.memory[address] = memory
        ctypes.memset(address, 0x7F, size)
        return address

    def _cuMemAlloc(self, size: int, flags: int = 0) -> tuple[int, int]:
        return (900, 0) if self.captured and self.mode != 2 else (0, self._allocate(size))

    _cuMemHostAlloc = _cuMemAlloc

    def _free(self, address: int) -> tuple[int]:
        del self.memory[address]
        return (900 if self.captured and self.mode != 2 else 0,)

    def _cuThreadExchangeStreamCaptureMode(self, mode: int) -> int:
        before, self.mode = self.mode, mode
        return before

    _cuMemFree = _cuMemFreeHost = _free

    def _copy(self, target: int, source: int, size: int, stream: int = 0) -> tuple[int]:
        ctypes.memmove(int(target), int(source), size)
        return (0,)

    _cuMemcpyDtoD = _cuMemcpyHtoD = _cuMemcpyDtoH = _cuMemcpyHtoDAsync = _cuMemcpyDtoHAsync = _copy

    def _cuPointerGetAttribute(self, kind: Any, address: int) -> int:
        return 0

    def _cuStreamIsCapturing(self, stream: int) -> int:
        return int(stream in self.captured)

    def _cuStreamGetCaptureInfo(self, stream: int) -> tuple[Any, ...]:
        capture = self.captured[stream]
        return 0, 1, capture.number, capture, [], [], 0

    def _cuUserObjectCreate(self, value: int, destructor: int, references: int, flags: int) -> tuple[Any, ...]:
        assert (references, flags) == (1, 1)
        return 0, (value, destructor)

    def _cuGraphRetainUserObject(self, graph: Capture, user: tuple[int, int], count: int, flags: int) -> tuple[int]:
        assert (count, flags) == (1, 1)
        graph.owned.append(user)
        return (0,)

    def _cuStreamBeginCapture(self, stream: int, mode: Any) -> tuple[int]:
        self.captured[stream] = Capture(stream)
        return (0,)

    def _cuStreamEndCapture(self, stream: int) -> tuple[int, Graph]:
        capture = self.captured[stream]
        self.captured = {other: found for other, found in self.captured.items() if found is not capture}
        self.marked.clear()
        return (0 if capture.joined(stream) else 904), capture.nodes

    def _cuEventRecord(self, event: int, stream: int) -> tuple[int]:
        if stream in self.captured:
            capture = self.captured[stream]
            self.marked[event] = capture, capture.tails[stream]
        return (0,)

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[int]:
        if event in self.marked:  # the stream is captured from here on
            capture, tails = self.marked[event]
            self.captured[stream] = capture
            capture.tails[stream] = capture.tails.get(stream, frozenset()) | tails
        return (0,)

    def _cuGraphInstantiate(self, graph: Graph, flags: int) -> Graph:
        return list(graph)

    def _cuGraphExecUpdate(self, executable: Graph, graph: Graph) -> tuple[int, None]:
        if self.updates_fail:
            return 910, None
        executable[:] = graph
        return 0, None

    def _cuGraphLaunch(self, executable: Graph, stream: int) -> tuple[int]:
        done: set[int] = set()
        while len(done) < len(executable):
            ready = [n for n, (_, behind) in enumerate(executable) if n not in done and behind <= done]
            chosen = self.random.choice(ready)
            executable[chosen][0]()
            done.add(chosen)
        return (0,)

    def _cuEventElapsedTime(self, start: Any, end: Any) -> float:
        return 0.5

    def enqueue(self, stream: int, work: Work) -> None:
        """Run a kernel, or keep it for the graph that the stream is captured into."""
        if stream in self.captured:
            self.captured[stream].add(stream, work)
        else:
            work()


def install(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Put the stand-in in the place of driver, GPU, compiler and launcher for one test.

    Kernels are not timed, unless the test asks for it: many would be interpreted many times.
    """
    driver = Driver()
    scratch: dict[str, int] = {}
    records: dict[str, np.ndarray] = {}  # of kernels with loops without a known end
    explicit: dict[str, Function] = {}

    def compile_kernel(backend: NvidiaBackend, function: Function, options: NvidiaOptions) -> GpuBinary:
        target = backend.target
        function = rename_axes(function, options.grid_axes)
        for operation in function.walk():
            if operation.opcode == "inline_asm":
                _without_machine_text(operation)
        if any(is_explicit(operation.opcode) for operation in function.walk()):
            symbol = f"explicit_{hashlib.sha256(str(function).encode()).hexdigest()}"
            explicit[symbol] = function
            types = tuple(str(argument.type) for argument in function.region.arguments)
            return GpuBinary(
                "cuda", symbol, symbol, b"", types, 0, features=(target.architecture,), warps=4,
                warp_threads=target.warp_threads, shared_bytes=0, resources=_NONE,
            )  # fmt: skip
        binary = _for_this_cpu(function)
        scratch[binary.symbol] = binary.scratch_bytes
        if binary.records:
            records[binary.symbol] = np.zeros(WORDS, np.int64)
        return GpuBinary(
            "cuda", binary.key, binary.symbol, binary.image, binary.parameters, 0, features=(target.architecture,),
            warps=int(options.num_warps or 4), warp_threads=target.warp_threads, shared_bytes=0, resources=_NONE,
        )  # fmt: skip

    def launcher(program: Program, device: Device) -> Callable[..., None]:
        if program.symbol in explicit:
            function = explicit[program.symbol]

            def interpreted(x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
                types = [argument.type for argument in function.region.arguments]
                given = [_interpreted(type_, value) for type_, value in zip(types, arguments, strict=True)]
                driver.enqueue(stream, lambda: interpret(function, given, (x, y, z)))

            return interpreted
        library = load_objects([program.image], [program.symbol])
        address, size = library.address(program.symbol), scratch[program.symbol]
        formats = "<" + "".join(slot_format(kind) for kind in program.parameters)
        record = records[program.symbol].ctypes.data if program.symbol in records else None

        def start(x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
            slots = struct.pack(formats, *arguments)
            assert library is not None
            driver.enqueue(stream, lambda: launch(address, slots, (x, y, z), size, threads=1, record=record))

        return start

    def extern(key: str, device: Device) -> Callable[..., None]:
        _, function, text = key.split(" ", 2)
        facts = json.loads(text)
        elements = [BY_TEXT[name] for name in facts["dtypes"]]

        def start(x: int, y: int, z: int, stream: int, *operands: Any) -> None:
            arrays = [_array(address, element, shape, strides)
                      for element, (address, shape, strides) in zip(elements, operands, strict=True)]  # fmt: skip
            driver.enqueue(stream, lambda: _library(function, arrays, facts["options"]))

        return start

    gpu = Device(0, "stand-in", (9, 0), 132, 50 << 20, 1 << 37, 227 << 10, True)
    monkeypatch.setattr(NvidiaBackend, "compile", compile_kernel)
    monkeypatch.setattr(NvidiaBackend, "load", lambda backend, key: None)
    monkeypatch.setattr(session, "launcher", launcher)
    monkeypatch.setattr(trials, "launcher", launcher)
    for module in (session, trials):
        monkeypatch.setattr(module, "extern_start", extern)
    for module in (memory, staging):  # objects may outlive the test, and with it the stand-in
        monkeypatch.setattr(module, "_free", lambda address, *_: Driver.memory.pop(address, None))
    monkeypatch.setattr(settings, "tune", False)
    monkeypatch.setattr(settings, "threads", 1)  # kernels are compiled in this process
    # Modules hold the functions themselves, so that what these return is exchanged.
    for module in _modules():
        for name, replacement in (("api", lambda: driver), ("current_device", lambda: gpu), ("device", lambda n: gpu)):
            if name in vars(module):
                monkeypatch.setattr(module, name, replacement)
    for module in (devices, session):  # the real one would remember a GPU for the tests that follow
        monkeypatch.setattr(module, "primary_context", lambda ordinal: 1)
    return driver


_compiled: dict[str, Binary] = {}  # kernels by their text: many tests have the same ones


def _for_this_cpu(function: Function) -> Binary:
    """Compiled quickly, and once, for arrays that may overlap: tiles of GPUs are long texts for a CPU, and run once."""
    text = str(function)
    if text not in _compiled:
        target = CPUTarget.host().quick_variant()
        _compiled[text] = CPUBackend(target).compile(function, CPUOptions(overlap="careful"))
    return _compiled[text]


_MACHINE_TEXTS = {"tanh.approx.f32": "tanh", "div.full.f32": "divide"}


def _without_machine_text(operation: Operation) -> None:
    """Neither a CPU nor the interpreter runs a GPU's instructions: those of the library become what they compute."""
    text = str(operation.attributes)
    operation.opcode = next(opcode for start, opcode in _MACHINE_TEXTS.items() if start in text)
    operation.attributes.clear()


def _library(function: str, arrays: list[np.ndarray], options: Mapping[str, Any]) -> None:
    """What other libraries' functions compute, the last array is the result."""
    *operands, out = arrays
    wide = [operand.astype(np.float64) for operand in operands]
    bias = wide[2] if len(wide) > 2 else 0
    assert (len(wide) > 2) == options.get("bias", function == "addmm")
    if function.endswith("convolution"):
        import torch

        sizes = (options["strides"], options["padding"], options["dilation"], options["groups"])
        result = torch.nn.functional.conv2d(*map(torch.from_numpy, wide[:2]), None, *sizes).numpy() + bias
    else:
        result = wide[0] @ wide[1] + bias
    out[...] = np.maximum(result, 0) if options.get("relu") else result


def _interpreted(type_: TensorType, value: Any) -> Any:
    """An argument for the interpreter: memory that a session gave the address of, as arrays."""
    if isinstance(value, tuple):
        assert isinstance(type_.handle, TensorMapType)
        address, shape, strides, *rest = value
        assert address % 16 == 0 and strides[-1] == 1
        array = _array(address, type_.handle.element, shape, strides)
        return (
            types.SimpleNamespace(base=array, shape=shape, strides=strides, steps=rest[1]) if len(rest) > 1 else array
        )
    if isinstance(type_.element, PointerType):
        return _array(value, type_.element.element, (1 << 20,), (1,))  # more than any test's array has
    return value


def _array(address: int, element: DType, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    size = element.itemsize
    span = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1
    memory = (ctypes.c_uint8 * (span * size)).from_address(address)
    flat = np.frombuffer(memory, np.dtype(f"u{size}"))  # NumPy cannot stride over all of ml_dtypes' types
    strided = np.lib.stride_tricks.as_strided(flat, shape, [stride * size for stride in strides])
    return strided.view(element.numpy)


_NONE = Resources(0, 0, 0, 0, 0, 0)


def _modules() -> list[types.ModuleType]:
    from tilewright.runtime.cuda import branches, graph_references, graphs, streams, tables, timing

    own = [branches, graph_references, graphs, memory, session, staging, streams, tables, timing, trials]
    return [drivers, devices, *own]
