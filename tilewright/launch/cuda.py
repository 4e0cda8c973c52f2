"""Kernels on a GPU: compiled kernels, and signatures ready to launch on tensors there."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

from tilewright.errors import LaunchError
from tilewright.forks import cached_property
from tilewright.frontend.values import ValueGroup
from tilewright.ir.explicit import GREATEST_CTA_THREADS
from tilewright.ir.memory import Extent
from tilewright.launch import hooks
from tilewright.launch.arguments import TENSOR_TYPES, array_of, classify, places_of
from tilewright.launch.compiled import CompiledKernel, KernelMetadata, full_grid
from tilewright.launch.cuda_driver import CudaDriver
from tilewright.launch.driver import GPUTarget
from tilewright.launch.launchers import DeviceLaunching
from tilewright.launch.launching import Grid, RunTimeArguments
from tilewright.runtime.cuda import streams
from tilewright.runtime.cuda.device import Device, current_device, device
from tilewright.runtime.cuda.launch import Start, launcher
from tilewright.runtime.cuda.program import load
from tilewright.runtime.cuda.streams import LEGACY_DEFAULT
from tilewright.runtime.cuda.tensor_map import Tensor
from tilewright.targets.base import DeviceBackend, Target
from tilewright.targets.gpu.binary import GpuBinary
from tilewright.targets.registry import backend_of, target_of_device

_TENSOR_MAP = "tensormap<"
_REGISTERS_AT_ONCE = 8  # of a thread: a multiprocessor gives a warp 256 at once


class CudaKernel(CompiledKernel):
    """Machine code of one specialization of a kernel for a GPU.

    `info` tells what the code takes and is made of; `dump` shows it as ``ir``, ``llvm``, ``ptx`` or ``sass``.
    ``compiled[grid](*arguments)`` launches it on the GPU and the stream of its arguments.
    """

    binary: GpuBinary
    text_names = ("ir", "llvm", "ptx", "sass")
    image_name = "cubin"

    @cached_property
    def info(self) -> Any:
        """Registers, spills, stack, shared memory, barriers, and the instructions by kind."""
        return self._backend.describe(self.binary)

    @property
    def _backend(self) -> DeviceBackend:
        return cast(DeviceBackend, backend_of(self.target))

    def dump(self, stage: str = "ir") -> str:
        """The kernel's text at a stage: ``ir``, ``layouts``, ``llvm``, ``ptx`` or ``sass``.

        Raises `MissingDependencyError` for ``sass`` on a machine without a disassembler.
        """
        if stage == "sass":
            return self._backend.disassemble(self.binary.image)
        if stage not in ("ir", "layouts", "llvm", "ptx"):
            raise ValueError(f"unknown stage {stage!r}: choose ir, layouts, llvm, ptx or sass")
        return super().dump(stage)

    @cached_property
    def _starts(self) -> dict[int, Start]:
        return {}

    def start(self, ordinal: int) -> Start:
        """``start(x, y, z, stream, *slots)`` on a GPU, with the code loaded there (`runtime.cuda.launch`)."""
        if ordinal not in self._starts:
            gpu = device(ordinal)
            hooks.load_start(None, None, self.name, None, self.hash)
            self._starts[ordinal] = launcher(self.binary.program(self.name), gpu)
            hooks.load_end(None, None, self.name, None, self.hash)
        return self._starts[ordinal]

    @cached_property
    def address(self) -> int:
        """The driver's handle (CUfunction) of the code on the current GPU."""
        return load(self.binary.program(self.name), current_device())

    def run(self, grid: tuple[int, int, int], slots: Sequence[Any], extents: Sequence[Extent] = ()) -> None:
        """Launch with slot values (addresses, numbers, descriptions of tensors) on the current GPU's default stream."""
        self._run(grid, slots, current_device().ordinal, LEGACY_DEFAULT)

    def _run(self, grid: tuple[int, int, int], slots: Sequence[Any], ordinal: int, stream: int) -> None:
        try:
            self.start(ordinal)(*grid, stream, *slots)
        except struct.error as error:
            raise self.misfit(error) from None

    @property
    def metadata(self) -> KernelMetadata:
        """Name, shared memory, warps and the like."""
        binary = self.binary
        x, y, z = binary.cluster
        shared = binary.shared_bytes + binary.resources.shared
        stages = self.options.num_stages or 1
        return KernelMetadata(self.name, self.hash, GPUTarget.of(self.target), shared, binary.warps, stages, x * y * z)

    @property
    def n_regs(self) -> int:
        """Registers of a thread as a multiprocessor hands them out, in eights: what host code divides its registers by
        is the number of threads that run at once."""
        return -(-max(1, self.binary.resources.registers) // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE

    @property
    def n_spills(self) -> int:
        """Bytes of a thread's registers that are stored to local memory."""
        return self.binary.resources.spill_stores

    @property
    def n_max_threads(self) -> int:
        """Threads that a CTA of this code could have: its registers come from one SM."""
        machine = self.target.machine()
        warp = machine.warp_threads
        return min(GREATEST_CTA_THREADS, machine.registers // self.n_regs // warp * warp)

    def _init_handles(self) -> None:
        self.start(current_device().ordinal)

    def run_given(
        self, grid: tuple[int, int, int], slots: Sequence[Any], values: Sequence[Any], ordinal: int, stream: int
    ) -> None:
        """See `CompiledKernel`."""
        self._run(grid, with_tensors(self.binary.parameters, slots, values), ordinal, stream)

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        extents = full_grid(grid)

        def call(*arguments: Any) -> None:
            given = self.run_time_arguments(arguments)
            classified = [classify(argument) for argument in given]
            places = ArrayPlaces(self.name, [kind for kind, _ in classified], given)
            slots = with_tensors(self.binary.parameters, [slot for _, slot in classified], given)
            self.check_divisors(slots)
            self.prepare_stores(given)
            stream = places.enter(given)
            self._run(extents, slots, places.ordinal, stream)
            places.leave(given, stream)

        return call


def tensor_slot(slot: tuple[Any, ...], value: Any) -> Tensor:
    """What a launcher wants to know of a `TensorDescriptor`, whose slot is ``(address, *extents, *strides)``."""
    rank = len(slot) // 2
    extents, strides = slot[1 : 1 + rank], slot[1 + rank :]
    if value.steps is None:
        return slot[0], extents, strides, value.round_f32_to_tf32
    return slot[0], extents, strides, value.round_f32_to_tf32, tuple(value.steps)


def with_tensors(parameters: Sequence[str], slots: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Slots of all parameters, where those of tensor maps are as `tensor_slot` makes them."""
    return [
        tensor_slot(slot, value) if kind.startswith(_TENSOR_MAP) else slot
        for kind, slot, value in zip(parameters, slots, values, strict=True)
    ]


def target_of(ordinal: int) -> Target:
    """What to compile for a GPU by its number."""
    return _target_of(device(ordinal))


@lru_cache(maxsize=64)
def _target_of(gpu: Device) -> Target:
    return target_of_device("cuda", gpu)


class ArrayPlaces:
    """Where a launch's arrays are: the one GPU, and the libraries on whose streams they are worked on.

    The launch goes to the stream of one of the libraries (`streams.LIBRARIES` tells which); the streams of others are
    waited for before, and made to wait after it.  Raises `LaunchError` for arrays of several GPUs, and of none.
    """

    def __init__(self, kernel: str, kinds: Sequence[Any], values: Sequence[Any]) -> None:
        found = [(index, place) for index, kind in enumerate(kinds) for place in places_of(kind)]
        numbers = sorted({place.ordinal for _, place in found if place is not None})
        if not numbers:
            raise LaunchError(f"kernel '{kernel}' was compiled for a GPU and got no array on one")
        if any(place is None for _, place in found):
            raise LaunchError(
                f"kernel '{kernel}' got arrays in the CPU's memory along with others on GPU {numbers[0]}: move all of "
                "them to the GPU"
            )
        if len(numbers) > 1:
            raise LaunchError(f"kernel '{kernel}' got arrays on several GPUs, {numbers}: move them to one")
        self.ordinal: int = numbers[0]
        # The first argument with an array of each library, and its class.
        self._first = {place.library: (index, kinds[index]) for index, place in reversed(found) if place is not None}
        self.libraries = [library for library in streams.LIBRARIES if library in self._first]

    @property
    def target(self) -> Target:
        """What to compile for."""
        return target_of(self.ordinal)

    def prepared(
        self, kernel: CompiledKernel, interface: RunTimeArguments, describe: Callable[..., Any] | None
    ) -> CudaLaunch:
        """See `launchers.DevicePlaces`."""
        return CudaLaunch(cast(CudaKernel, kernel), interface, self, describe)

    def enter(self, values: Sequence[Any]) -> int:
        """The stream to launch on, when others have been made to come before it."""
        stream = self._stream(self.libraries[0], values)
        for library in self.libraries[1:]:
            streams.order(self.ordinal, self._stream(library, values), stream)
        return stream

    def leave(self, values: Sequence[Any], stream: int) -> None:
        """Let other libraries go on only after the launch."""
        for library in self.libraries[1:]:
            streams.order(self.ordinal, stream, self._stream(library, values))
        if streams.DLPACK in self.libraries:
            streams.synchronize(self.ordinal, stream)

    def _stream(self, library: str, values: Sequence[Any]) -> int:
        if library == streams.DLPACK:
            return LEGACY_DEFAULT
        if library == streams.INTERFACE:
            index, kind = self._first[library]
            return streams.interface_stream(array_of(library, kind, values[index]))
        return streams.current_stream(library)(self.ordinal)


_RUN_ON_GPU = """\
def run(grid, arguments, slots):
    if type(grid) is tuple and len(grid) == 1 and type(grid[0]) is int and grid[0] >= 0:
        x = grid[0]
        y = z = 1
    else:
        x, y, z = full_grid(grid)
{stores}\
    stream = {stream}
    if entering or leaving:
        observe(x, y, z, stream, arguments)
    try:
        start(x, y, z, stream, {slots})
    except struct_error as error:
        raise misfit(error) from None
    if leaving:
        observed()
{leave}\
    return kernel
"""
_STORE_ON_GPU = """\
    if (raiser := tensor_types.get(type(arguments[{index}]))) is not None:
        raiser((arguments[{index}],))
"""


class CudaLaunch:
    """A signature whose machine code runs on a GPU, in order with what the caller's library does there.

    `run` is generated: it finds the current stream and hands exactly this signature's slots to the launcher.
    Nothing is waited for, unless an array came through DLPack alone (`streams`).
    """

    def __init__(
        self, kernel: CudaKernel, interface: RunTimeArguments, places: ArrayPlaces, describe: Callable[..., Any] | None
    ) -> None:
        self.kernel = kernel
        self.interface = interface
        self.places = places
        self._describe = describe  # the kernel's `launch_metadata`
        self._facts: hooks.LaunchFacts | None = None
        self.run: Callable[[Grid, tuple[Any, ...], Sequence[Any]], CompiledKernel | None] = self._first

    def _first(self, grid: Grid, arguments: tuple[Any, ...], slots: Sequence[Any]) -> CompiledKernel | None:
        """The first run loads the machine code."""
        self.run = self._generate()
        return self.run(grid, arguments, slots)

    def _generate(self) -> Callable[[Grid, tuple[Any, ...], Sequence[Any]], CompiledKernel | None]:
        kernel, places = self.kernel, self.places
        names: dict[str, Any] = {
            "full_grid": full_grid,
            "flat": self._flat,
            "tensor_slot": tensor_slot,
            "tensor_types": TENSOR_TYPES,
            "prepare_stores": self.interface.prepare_stores,
            "struct_error": struct.error,
            "misfit": kernel.misfit,
            "entering": hooks.launch_enter.calls,
            "leaving": hooks.launch_exit.calls,
            "observe": self._observe,
            "observed": self._observed,
            "start": kernel.start(places.ordinal),
            "kernel": kernel,
            "places": places,
        }
        stream, leave = "places.enter(arguments)", "    places.leave(arguments, stream)\n"
        if len(places.libraries) == 1 and places.libraries[0] in (streams.TORCH, streams.CUPY):
            names["current_stream"] = streams.current_stream(places.libraries[0])
            stream, leave = f"current_stream({places.ordinal})", ""
        source = _RUN_ON_GPU.format(stores=self._stores(), stream=stream, leave=leave, slots=self._slots())
        exec(compile(source, f"<run of {kernel.name}>", "exec"), names)
        run: Callable[[Grid, tuple[Any, ...], Sequence[Any]], CompiledKernel | None] = names["run"]
        return run

    def _stores(self) -> str:
        """Source of what tells PyTorch's autograd of the tensors that the kernel may store to."""
        kinds = self.interface.kinds
        if any(
            isinstance(kinds[index], ValueGroup) or str(kinds[index]).startswith(_TENSOR_MAP)
            for index, _ in self.interface.written
        ):
            return "    prepare_stores(arguments)\n"
        return "".join(_STORE_ON_GPU.format(index=index) for index, _ in self.interface.written)

    def _slots(self) -> str:
        """Source of the run-time slots, in the order of the kernel's parameters."""
        if self.interface.grouped:
            return "*flat(slots, arguments)"
        forms = ("slots[{0}]", "tensor_slot(slots[{0}], arguments[{0}])")
        kinds = self.interface.kinds.items()
        return ", ".join(forms[str(kind).startswith(_TENSOR_MAP)].format(index) for index, kind in kinds)

    def _flat(self, slots: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """The same where arguments are tuples, too."""
        flat = self.interface.flat
        if any(kind.startswith(_TENSOR_MAP) for kind in self.kernel.binary.parameters):
            return with_tensors(self.kernel.binary.parameters, flat(slots), flat(arguments))
        return flat(slots)

    def _observe(self, x: int, y: int, z: int, stream: int, arguments: tuple[Any, ...]) -> None:
        """Before a launch that somebody watches."""
        facts = hooks.LaunchFacts({"name": self.kernel.name, "function": self.kernel.address, "stream": stream})
        if self._describe is not None:
            named = dict(zip(self.interface.names, arguments, strict=True))
            facts.add(self._describe, ((x, y, z), self.kernel.metadata, named))
        self._facts = facts
        hooks.launch_enter(facts)

    def _observed(self) -> None:
        hooks.launch_exit(self._facts)


CUDA_LAUNCHING = DeviceLaunching(kernel=CudaKernel, driver=CudaDriver, places=ArrayPlaces, target_of=target_of)
