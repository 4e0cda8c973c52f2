"""Start kernels: no allocation, no synchronisation, nothing that a captured graph could not hold.

start = launcher(program, device)
start(x, y, z, stream, *slots)        # grid, CUstream as an integer, addresses and numbers

A launch packs its arguments into a packet, memory whose layout is fixed for each kernel, and calls the driver with
three addresses.  Packets are reused; each belongs to one launch at a time, so that threads may launch at once.

    packet = CUlaunchConfig (56 bytes) · slots, 8 bytes each · tensor maps, 128 bytes each · addresses of all of these
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any

from tilewright.errors import DeviceError, LaunchError
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import api, check, failure
from tilewright.runtime.cuda.program import load
from tilewright.runtime.cuda.tensor_map import BYTES, TensorMaps
from tilewright.runtime.gpu_program import LARGEST_GRID, Program
from tilewright.runtime.slots import narrow_slots, narrowed, slot_format

Start = Callable[..., None]
DriverLaunch = Callable[[int, int, int, None], int]

_CONFIG = "<7I4xQQI4x"  # grid, CTA, shared bytes, stream, attributes and their number
_ATTRIBUTE = struct.Struct("<I4x3I52x")  # CUlaunchAttribute: number, value
_COOPERATIVE, _CLUSTER, _DEPENDENT = 2, 4, 6  # numbers of launch attributes
# Statuses of a thread without a context, or in that of another GPU.
_WRONG_CONTEXT = {201: "INVALID_CONTEXT", 400: "INVALID_HANDLE"}
_OUT_OF_RESOURCES = 701

_START = """\
def start(x, y, z, stream, {parameters}):
    if not x * y * z:
        return
    try:
        packet = pop()
    except IndexError:  # all are in use
        packet = make()
    memory, config, addresses, _ = packet
{prepare}\
    pack_into(memory, 0, x, y, z, {threads}, 1, 1, {shared}, stream, {attributes}, {count}, {slots})
    status = call(config, {function}, addresses, None)
    if status:
        recover(status, packet, (x, y, z), stream)
    push(packet)
"""


@functools.cache
def driver_launch() -> DriverLaunch:
    """The driver's cuLaunchKernelEx, called with addresses: configuration, function, array of parameters."""
    cuda = api()
    # The symbol's address is asked for as programs of CUDA 12.0 do, in whose version its arguments are as here.
    address, *_ = _as_tuple(check(cuda.cuGetProcAddress(b"cuLaunchKernelEx", 12000, 0), "finding cuLaunchKernelEx"))
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    return prototype(int(address))


def launcher(program: Program, device: Device) -> Start:
    """``start(x, y, z, stream, *slots)`` of a program on a GPU, with its code loaded.

    `slots` are one value for each parameter: an address, a number, or for a tensor map ``(address, extents,
    strides)`` in elements, slowest axis first.  Raises what `program.load` raises; `start` raises `LaunchError`
    and `DeviceError`, and `struct.error` for numbers that do not fit their parameters.
    """
    return build(program, load(program, device), driver_launch(), device.active)


def build(program: Program, function: int, call: DriverLaunch, active: Callable[[], Any]) -> Start:
    """The same of a loaded function; `call` starts it, `active` makes its GPU's context current."""
    layout = _Layout(program, active)
    attributes = ctypes.create_string_buffer(layout.attributes)
    packets: list[tuple[memoryview, int, int, Any]] = []

    def recover(status: int, packet: Any, grid: tuple[int, int, int], stream: int) -> None:
        if status in _WRONG_CONTEXT:
            with active():
                status = call(packet[1], function, packet[2], None)
        if status:
            raise _explained(program, status, grid, stream)

    names: dict[str, Any] = {
        "pop": packets.pop,
        "push": packets.append,
        "make": layout.packet,
        "pack_into": struct.Struct(layout.format).pack_into,
        "call": call,
        "recover": recover,
        "narrowed": narrowed,
        "refuse": functools.partial(_refuse_grid, program),
        "_attributes": attributes,  # kept alive
    }
    names.update({f"map{index}": maps for index, maps in layout.maps.items()})
    source = _START.format(
        parameters=", ".join(f"a{index}" for index in range(len(program.parameters))) or "*_",
        prepare=layout.preparation,
        threads=program.threads,
        shared=program.shared_bytes,
        attributes=ctypes.addressof(attributes) if layout.attributes else 0,
        count=len(layout.attributes) // _ATTRIBUTE.size,
        slots=", ".join(f"a{index}" for index in layout.plain),
        function=function,
    )
    exec(compile(source, f"<start of {program.name}>", "exec"), names)
    start: Start = names["start"]
    return start


class _Layout:
    """Where a kernel's packet holds what."""

    def __init__(self, program: Program, active: Callable[[], Any]) -> None:
        kinds = program.parameters
        self.maps = {
            use.parameter: TensorMaps(use, f"parameter {use.parameter}", active) for use in program.tensor_maps
        }
        self.plain = [index for index in range(len(kinds)) if index not in self.maps]
        self.format = _CONFIG + "".join(slot_format(kinds[index]) for index in self.plain)
        first = struct.calcsize(_CONFIG)
        self._places = {index: first + 8 * number for number, index in enumerate(self.plain)}
        end = _round_up(struct.calcsize(self.format), 64)
        for index in self.maps:
            self._places[index] = end
            end += BYTES
        self._table = end  # of addresses
        self._size = end + 8 * len(kinds)
        self.attributes = b"".join(_attributes(program))
        narrow = set(narrow_slots([kinds[index] for index in self.plain]))
        lines = [f"a{index} = narrowed(a{index})" for number, index in enumerate(self.plain) if number in narrow]
        lines += [
            f"memory[{self._places[index]}:{self._places[index] + BYTES}] = map{index}(a{index})" for index in self.maps
        ]
        if program.cluster != (1, 1, 1):
            cluster = zip("xyz", program.cluster, strict=True)
            uneven = " or ".join(f"{axis} % {extent}" for axis, extent in cluster if extent > 1)
            lines.insert(0, f"if {uneven}:\n        refuse((x, y, z))")
        self.preparation = "".join(f"    {line}\n" for line in lines)

    def packet(self) -> tuple[memoryview, int, int, Any]:
        """Fresh memory: as a buffer, its address, the address of the table of addresses, and its owner."""
        owner = ctypes.create_string_buffer(self._size + 64)
        base = _round_up(ctypes.addressof(owner), 64)
        memory = memoryview((ctypes.c_char * self._size).from_address(base)).cast("B")
        addresses = (base + self._places[index] for index in range(len(self._places)))
        struct.pack_into(f"<{len(self._places)}Q", memory, self._table, *addresses)
        return memory, base, base + self._table, owner


def _attributes(program: Program) -> list[bytes]:
    result = []
    if program.cooperative:
        result.append(_ATTRIBUTE.pack(_COOPERATIVE, 1, 0, 0))
    if program.cluster != (1, 1, 1):
        result.append(_ATTRIBUTE.pack(_CLUSTER, *program.cluster))
    if program.dependent_launch:
        result.append(_ATTRIBUTE.pack(_DEPENDENT, 1, 0, 0))
    return result


def _refuse_grid(program: Program, grid: tuple[int, int, int]) -> None:
    raise LaunchError(
        f"kernel '{program.name}' runs in clusters of {_product(program.cluster)} CTAs, and its grid {grid} is no "
        f"multiple of {program.cluster}"
    )


def _explained(program: Program, status: int, grid: tuple[int, int, int], stream: int) -> Exception:
    """The error of a launch that the driver refused."""
    if any(extent > largest for extent, largest in zip(grid, LARGEST_GRID, strict=True)):
        return LaunchError(f"kernel '{program.name}': a grid has at most {LARGEST_GRID} CTAs, got {grid}")
    if status == _OUT_OF_RESOURCES:
        return LaunchError(
            f"kernel '{program.name}' does not fit on a multiprocessor: {program.threads} threads with "
            f"{program.shared_bytes} bytes of shared memory take more registers or memory than there are; launch it "
            "with fewer warps, or with maxnreg"
        )
    error = failure(status, f"launching kernel '{program.name}' over {grid} on stream {stream:#x}")
    return DeviceError(str(error))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _product(values: tuple[int, ...]) -> int:
    x, y, z = values
    return x * y * z
