"""Kernels on the CPU: compiled kernels, and signatures ready to launch."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn, cast

import numpy as np

from tilewright.errors import ExecutionError
from tilewright.forks import cached_property
from tilewright.frontend.values import ValueGroup
from tilewright.ir.core import Function
from tilewright.ir.diagnostics import located_execution_error, user_place
from tilewright.ir.memory import Extent
from tilewright.ir.types import PointerType
from tilewright.launch import hooks, recompile
from tilewright.launch.arguments import TENSOR_TYPES, leaves
from tilewright.launch.bounds import extent_of
from tilewright.launch.compiled import GREATEST_EXTENT, CompiledKernel, Interface, full_grid
from tilewright.launch.driver import Driver
from tilewright.launch.launchers import Launching
from tilewright.launch.launching import Grid, RunTimeArguments
from tilewright.once import once
from tilewright.runtime import failure_record
from tilewright.runtime.faults import load_kernels
from tilewright.runtime.glue import glue
from tilewright.runtime.launch import launch, launcher
from tilewright.runtime.library import NativeLibrary
from tilewright.runtime.signals import RAISED_ADDRESS, raise_pending
from tilewright.runtime.slots import narrow_slots, narrowed, slot_format
from tilewright.settings import settings
from tilewright.targets.base import Binary, HostBackend, Target
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.registry import backend_of

_RECORD = ctypes.c_int64 * failure_record.WORDS


class CPUKernel(CompiledKernel):
    """Machine code of one specialization of a kernel for this machine's CPU; see `CompiledKernel`."""

    options: CPUOptions
    image_name = "obj"

    def __init__(
        self, name: str, target: Target, binary: Binary, options: CPUOptions, interface: Interface,
        trace: Callable[[], Function],
    ) -> None:  # fmt: skip
        super().__init__(name, target, binary, options, interface, trace)
        self._packers: dict[int, Callable[..., bytes]] = {}  # by how many integers follow the slots

    @once
    def _library(self) -> NativeLibrary:
        hooks.load_start(None, None, self.name, None, self.hash)
        library = load_kernels([self.binary.image], [self.binary.symbol])
        hooks.load_end(library, library.address(self.binary.symbol), self.name, None, self.hash)
        return library

    @property
    def module(self) -> Any:
        """The loaded code; None before the first launch or `_init_handles`."""
        return self.__dict__.get("_library")

    @cached_property
    def address(self) -> int:
        """Where the kernel's code is in this process."""
        return self._library.address(self.binary.symbol)

    def packer(self, extra: int = 0) -> Callable[..., bytes]:
        """A function from slot values, and `extra` integers after them, to the argument array of 8 bytes each."""
        if extra not in self._packers:
            self._packers[extra] = self._packer(extra)
        return self._packers[extra]

    def _packer(self, extra: int) -> Callable[..., bytes]:
        kinds = self.binary.parameters
        pack = struct.Struct("<" + "".join(slot_format(kind) for kind in kinds) + "q" * extra).pack
        narrow = narrow_slots(kinds)
        if not narrow:
            return pack

        def narrowing(*values: Any) -> bytes:
            slots = list(values)
            for index in narrow:
                slots[index] = narrowed(slots[index])
            return pack(*slots)

        return narrowing

    def run(self, grid: tuple[int, int, int], slots: Sequence[Any], extents: Sequence[Extent] = ()) -> None:
        """Launch with slot values (addresses and numbers); returns when every instance is done.

        `extents` are those of its pointers, for a kernel that `checks_bounds`; without them nothing is out of bounds.
        """
        if self.checks_bounds and not extents:
            extents = [Extent() for kind in self.binary.parameters if kind.startswith("*")]
        extra = [number for extent in extents for number in (extent.first, extent.bytes)]
        try:
            packed = self.packer(len(extra))(*slots, *extra)
        except struct.error as error:
            raise self.misfit(error) from None
        if not self.watches:
            refused = self._launch(packed, grid)
        else:
            with self.watched(extents) as record:
                refused = self._launch(packed, grid, record)
        if refused:
            self.careful.run(grid, slots, extents)

    def run_given(
        self, grid: tuple[int, int, int], slots: Sequence[Any], values: Sequence[Any], ordinal: int, stream: int
    ) -> None:
        """See `CompiledKernel`."""
        if 0 in grid:
            return
        kernel: CPUKernel = self
        for slot, divisor in zip(slots, self.divisors, strict=False):
            if divisor > 1 and isinstance(slot, int) and slot % divisor:
                kernel = self.unaligned  # generated host code on the CPU does not copy what is not aligned
                kernel.check_divisors(slots)  # of integers
                break
        kernel.run(grid, slots, kernel._reached(values))

    def _launch(self, packed: bytes, grid: tuple[int, int, int], record: int | None = None) -> bool:
        binary = self.binary
        return launch(self.address, packed, grid, binary.scratch_bytes, record=record, refuses=binary.refuses)

    @once
    def careful(self) -> CPUKernel:
        """This kernel for arrays that overlap, other than element on element: it copies first what it reads.

        Compiled when the first launch needs it.
        """
        if settings.explain_recompile:
            recompile.report_overlap(self.name)
        kernel = self._variant(self.function, replace(self.options, overlap="careful"))
        kernel.divisors = self.divisors
        return kernel

    @once
    def unaligned(self) -> CPUKernel:
        """This kernel for arrays at any address of an element: compiled when the first launch needs it."""
        known = [
            replace(parameter, divisibility=value.type.element.element.itemsize)
            if isinstance(value.type.element, PointerType)
            else parameter
            for parameter, value in zip(self.function.parameters, self.function.region.arguments, strict=True)
        ]
        kernel = self._variant(replace(self.function, parameters=known), self.options)
        kinds = self.binary.parameters
        kernel.divisors = tuple(
            1 if kind.startswith("*") else divisor for kind, divisor in zip(kinds, self.divisors, strict=False)
        )
        return kernel

    def _variant(self, function: Function, options: CPUOptions) -> CPUKernel:
        """This kernel with other options, or other facts about its parameters."""
        binary = backend_of(self.target).compile(function, options)
        interface = Interface(self.written, self.traced_remarks)
        kernel = CPUKernel(self.name, self.target, binary, options, interface, lambda: function)
        kernel.launch_options, kernel.source = self.launch_options, self.source
        kernel.argument_names, kernel.run_time, kernel.variable = self.argument_names, self.run_time, self.variable
        return kernel

    @property
    def checks_bounds(self) -> bool:
        """Whether an access out of bounds stops a launch (`TILEWRIGHT_CHECK_BOUNDS`)."""
        return self.options.check_bounds

    @property
    def watches(self) -> bool:
        """Whether a launch may leave a failure, so that it goes through `watched`."""
        return self.binary.records or self.checks_bounds

    def extents(self, arguments: Sequence[Any], names: Sequence[str]) -> list[Extent]:
        """What each pointer argument may reach, called by `names` (of all parameters); none without `checks_bounds`."""
        if not self.checks_bounds:
            return []
        described = zip(self.binary.parameters, names, arguments, strict=True)
        return [extent_of(name, argument) for kind, name, argument in described if kind.startswith("*")]

    def _reached(self, arguments: Sequence[Any]) -> list[Extent]:
        """What the pointers among run-time arguments may reach, by the source's names."""
        names = self.argument_names and [self.argument_names[place] for place in self.run_time]
        return self.extents(arguments, names or self.binary.parameters)

    @contextmanager
    def watched(self, extents: Sequence[Extent] = ()) -> Iterator[int]:
        """Around a launch of a kernel that may fail, which gets this address as its last slot.

        Raises `ExecutionError` where it did, as the interpreter does; `extents` are what its pointers may reach.
        """
        record = self._record()
        yield ctypes.addressof(record)
        if record[0]:
            self._raise(record, extents)

    def recording(self, start: Callable[..., int | None]) -> Callable[[bytes, int], int | None]:
        """`start`, which launches with packed arguments, for a kernel whose last slot is a record: it is added here.

        The same as `watched` for cached launches, without bounds.
        """
        new, fail, address, pack = self._record, self._raise, ctypes.addressof, struct.Struct("<Q").pack

        def run(packed: bytes, total: int) -> int | None:
            record = new()
            refused = start(packed + pack(address(record)), total)
            if record[0]:
                fail(record)
            return refused

        return run

    def _record(self) -> ctypes.Array[ctypes.c_int64]:
        """What a launch of a kernel that may fail writes to."""
        record = _RECORD()
        if self.binary.asks:
            clock, ask = self._functions
            limit = int(failure_record.WAITING_SECONDS * 1e9)
            record[failure_record.CLOCK : failure_record.INTERRUPTED] = [clock, limit, ask, RAISED_ADDRESS]
        return record

    @cached_property
    def _functions(self) -> tuple[int, int]:
        """Addresses of the runtime's functions that kernels call: a clock, and what asks for signals."""
        return glue().imports["tilewright_clock"], glue().ask

    def _raise(self, record: ctypes.Array[ctypes.c_int64], extents: Sequence[Extent] = ()) -> NoReturn:
        if record[failure_record.INTERRUPTED]:
            raise_pending()
        failure = failure_record.Failure.read(record)
        assert failure is not None
        backend = cast(HostBackend, backend_of(self.target))
        operation, error = backend.failed_operation(self.function, failure, extents)
        place = user_place(operation.location)
        raise located_execution_error(error, operation.opcode, place, failure.program_id) from None

    @property
    def n_regs(self) -> int:
        """Vector registers of the target: the code may use all of them."""
        return self.target.vector_registers

    @property
    def n_spills(self) -> int:
        """Not counted: 0."""
        return 0

    @property
    def n_max_threads(self) -> int:
        """Threads that can run the kernel at once."""
        return settings.threads

    def _init_handles(self) -> None:
        """Load the code now instead of at the first launch."""
        self._library  # noqa: B018

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        extents = full_grid(grid)

        def call(*arguments: Any) -> None:
            given = self.run_time_arguments(arguments)
            slots = self.slots(given)
            self.check_divisors(slots)
            self.prepare_stores(given)
            self.run(extents, slots, self._reached(given) if self.checks_bounds else ())

        return call


_RUN_ON_CPU = """\
def run(grid, arguments, slots):
    if type(grid) is tuple and len(grid) == 1 and type(grid[0]) is int and 0 <= grid[0] <= {greatest}:
        x = total = grid[0]
        y = z = 1
    else:
        x, y, z = full_grid(grid)
        total = x * y * z
{stores}\
    try:
        packed = pack({slots}x, y, z)
    except struct_error as error:
        raise misfit(error) from None
    if entering or leaving:
        observe(packed, (x, y, z), arguments)
    elif total > 0 and start(packed, total):
        start_careful(packed, total)
    return kernel
"""
# Stores to PyTorch's tensors and to NumPy's writable arrays are prepared here, others by `RunTimeArguments`.
_STORE_ON_CPU = """\
    raiser = tensor_types.get(type(arguments[{index}]))
    if raiser is not None:
        raiser((arguments[{index}],))
    elif type(arguments[{index}]) is not array or not arguments[{index}].flags.writeable:
        prepare_stores(arguments)
"""


def _starter(kernel: CPUKernel) -> Callable[[bytes, int], int | None]:
    """What starts a kernel with packed arguments: its native launcher, and around it what reads its failures."""
    start = launcher(kernel.address, kernel.binary.scratch_bytes, kernel.binary.refuses)
    return kernel.recording(start) if kernel.binary.records and not kernel.checks_bounds else start


class CPULaunch:
    """A signature whose machine code runs on this machine's CPU.

    `run` is generated: it packs exactly this signature's slots and hands them to the native launcher.
    """

    def __init__(self, kernel: CPUKernel, interface: RunTimeArguments, describe: Callable[..., Any] | None) -> None:
        self.kernel = kernel
        self.interface = interface
        self._describe = describe  # the kernel's `launch_metadata`
        self._start: Callable[[bytes, int], int | None] | None = None
        self.run: Callable[[Grid, tuple[Any, ...], Sequence[Any]], CPUKernel | None] = self._first

    def _first(self, grid: Grid, arguments: tuple[Any, ...], slots: Sequence[Any]) -> CPUKernel:
        """The first run loads the machine code."""
        self._start = _starter(self.kernel)
        self.run = self._watched if self.kernel.checks_bounds else self._second
        return (self._watched if self.kernel.checks_bounds else self._once)(grid, arguments, slots)

    def _watched(self, grid: Grid, arguments: tuple[Any, ...], slots: Sequence[Any]) -> CPUKernel:
        """A run of a kernel that checks its accesses: the first failure is raised."""
        try:
            extents = self.kernel.extents(self.interface.flat(arguments), self.interface.flat_names)
            with self.kernel.watched(extents) as record:
                return self._once(grid, arguments, slots, extents, record)
        except ExecutionError as error:
            raise error.with_traceback(None) from None  # the message says where; our own frames do not help

    def _once(
        self,
        grid: Grid,
        arguments: tuple[Any, ...],
        slots: Sequence[Any],
        reached: Sequence[Extent] = (),
        *last: int,
    ) -> CPUKernel:
        """A run whose steps nobody has written out; the slots of what pointers reach come before the grid's, `last`
        after them."""
        self.interface.prepare_stores(arguments)
        extents = full_grid(grid)
        extra = [*(number for entry in reached for number in (entry.first, entry.bytes)), *extents, *last]
        try:
            packed = self.kernel.packer(len(extra))(*self.interface.flat(slots), *extra)
        except struct.error as error:
            raise self.kernel.misfit(error) from None
        self._observe(packed, extents, arguments)
        return self.kernel

    def _second(self, grid: Grid, arguments: tuple[Any, ...], slots: Sequence[Any]) -> CPUKernel | None:
        """There is a second run, so there may be many: generate the function."""
        self.run = self._generate()
        return self.run(grid, arguments, slots)

    def _generate(self) -> Callable[[Grid, tuple[Any, ...], Sequence[Any]], CPUKernel | None]:
        interface, kernel = self.interface, self.kernel
        groups = {index: kind for index, kind in interface.kinds.items() if isinstance(kind, ValueGroup)}
        if any(index in groups for index, _ in interface.written):
            stores = "    prepare_stores(arguments)\n"
        else:
            stores = "".join(_STORE_ON_CPU.format(index=index) for index, _ in interface.written)
        names: dict[str, Any] = {
            **{f"leaves{index}": functools.partial(leaves, kind) for index, kind in groups.items()},
            "full_grid": full_grid,
            "tensor_types": TENSOR_TYPES,
            "array": np.ndarray,
            "prepare_stores": interface.prepare_stores,
            "pack": kernel.packer(3),
            "struct_error": struct.error,
            "misfit": kernel.misfit,
            "entering": hooks.launch_enter.calls,
            "leaving": hooks.launch_exit.calls,
            "observe": self._observe,
            "start": self._start,
            "start_careful": self._start_careful,
            "kernel": kernel,
        }
        slots = "".join(
            f"*leaves{index}(slots[{index}]), " if index in groups else f"slots[{index}], " for index in interface.kinds
        )
        text = _RUN_ON_CPU.format(stores=stores, slots=slots, greatest=GREATEST_EXTENT)
        exec(compile(text, f"<run of {kernel.name}>", "exec"), names)
        run: Callable[[Grid, tuple[Any, ...], Sequence[Any]], CPUKernel | None] = names["run"]
        return run

    def _observe(self, packed: bytes, grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> None:
        """A launch that somebody may watch."""
        if not (hooks.launch_enter.calls or hooks.launch_exit.calls):
            self._start_all(packed, grid)
            return
        facts = hooks.LaunchFacts({"name": self.kernel.name, "function": self.kernel.address, "stream": 0})
        if self._describe is not None:
            named = dict(zip(self.interface.names, arguments, strict=True))
            facts.add(self._describe, (grid, self.kernel.metadata, named))
        hooks.launch_enter(facts)
        self._start_all(packed, grid)
        hooks.launch_exit(facts)

    def _start_all(self, packed: bytes, grid: tuple[int, int, int]) -> None:
        total = grid[0] * grid[1] * grid[2]
        if total > 0:
            assert self._start is not None
            if self._start(packed, total):
                self._start_careful(packed, total)

    def _start_careful(self, packed: bytes, total: int) -> None:
        """A launch of arrays that overlap in a way that the kernel's loops do not bear."""
        self._careful(packed, total)

    @cached_property
    def _careful(self) -> Callable[..., int | None]:
        return _starter(self.kernel.careful)


CPU_LAUNCHING = Launching(kernel=CPUKernel, driver=Driver)
