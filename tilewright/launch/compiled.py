"""A kernel compiled for one signature: its code, its texts, and its launch."""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, cast

import numpy as np

from tilewright import dtypes
from tilewright.errors import DeviceError, LaunchError, brief
from tilewright.forks import cached_property
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.diagnostics import located_execution_error, user_place
from tilewright.ir.memory import Extent
from tilewright.ir.parser import parse_function
from tilewright.ir.printer import print_function
from tilewright.ir.types import PointerType, TensorMapType
from tilewright.language.function import SourceFunction
from tilewright.launch import hooks, recompile
from tilewright.launch.arguments import classify, is_writable, stored_array
from tilewright.launch.bounds import extent_of
from tilewright.launch.driver import GPUTarget
from tilewright.once import once
from tilewright.runtime import failure_record
from tilewright.runtime.faults import load_kernels
from tilewright.runtime.glue import glue
from tilewright.runtime.launch import launch
from tilewright.runtime.library import NativeLibrary
from tilewright.runtime.signals import RAISED_ADDRESS, raise_pending
from tilewright.runtime.slots import narrow_slots, narrowed, slot_format
from tilewright.runtime.tensors import raise_versions
from tilewright.settings import settings
from tilewright.targets.base import Binary, HostBackend, Remark, Target
from tilewright.targets.registry import backend_of

logger = logging.getLogger("tilewright.jit")


@dataclass(frozen=True)
class Interface:
    """What a launch must know of a compiled kernel besides its code: names of parameters it stores through."""

    written: frozenset[str]
    remarks: tuple[Remark, ...]


@dataclass(frozen=True)
class KernelMetadata:
    """Facts about compiled code under the names that host code reads; launch options have no effect on the CPU."""

    name: str
    hash: str
    target: GPUTarget
    shared: int  # bytes of scratch memory for a worker, at least 1: occupancy formulas divide by it
    num_warps: int = 1
    num_stages: int = 1
    num_ctas: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["options"][name]
        except KeyError:
            raise AttributeError(f"the metadata of kernel {self.__dict__.get('name')!r} has no {name!r}") from None

    def _asdict(self) -> dict[str, Any]:
        """All facts by name."""
        return {**{name: value for name, value in vars(self).items() if name != "options"}, **self.options}


class KernelStages(Mapping[str, Any]):
    """The texts of a kernel by stage, and its machine code: made when asked for.

    ``ir`` (also ``ttir``) is the Tile IR, ``llvm`` (``llir``) what LLVM gets, and on the CPU ``asm`` (``cpu_asm``) the
    assembly and ``obj`` the object file; on GPUs ``ptx``, ``sass`` and ``cubin``.  ``source`` is the kernel's text.
    """

    _OTHER_NAMES = {"ttir": "ir", "llir": "llvm", "cpu_asm": "asm"}

    def __init__(self, kernel: CompiledKernel) -> None:
        self._kernel = kernel

    def __getitem__(self, stage: str) -> Any:
        own = self._OTHER_NAMES.get(stage, stage)
        if own == self._kernel.image_name:
            return self._kernel.binary.image
        if own == "source" and self._kernel.source is not None:
            return self._kernel.source.source
        if own not in self._kernel.text_names:
            raise KeyError(stage)
        return self._kernel.dump(own)

    def __iter__(self) -> Iterator[str]:
        kernel = self._kernel
        own = [*(["source"] if kernel.source is not None else []), *kernel.text_names, kernel.image_name]
        return iter([*own, *(name for name, stage in self._OTHER_NAMES.items() if stage in own)])

    def __len__(self) -> int:
        return len(list(iter(self)))


class CompiledKernel:
    """Machine code of one specialization of a kernel.

    `binary` holds the code, `function` its Tile IR (traced again when the code came from the cache),
    `remarks` what the compiler reports.  ``compiled[grid](*arguments)`` launches it: run-time arguments
    in the order of `function`'s parameters, or all arguments of the source, whose constants are ignored.
    """

    text_names: tuple[str, ...] = ("ir", "llvm", "asm")  # what `dump` shows
    image_name = "obj"  # what `asm` calls the machine code

    def __init__(
        self, name: str, target: Target, binary: Binary, interface: Interface, trace: Callable[[], Function]
    ) -> None:
        self.name = name
        self.target = target
        self.binary = binary
        self.written = interface.written
        self.traced_remarks = interface.remarks  # what was noted while the source was read
        self.remarks = (*interface.remarks, *binary.remarks)
        self._trace = trace
        self._packers: dict[int, Callable[..., bytes]] = {}  # by how many integers follow the slots
        self.argument_names: tuple[str, ...] = ()  # of the source, constants too; empty when not known
        self.run_time: tuple[int, ...] = ()  # which of these are run-time arguments
        self.divisors: tuple[int, ...] = ()  # of these arguments: the code counts on it
        self.options: Mapping[str, Any] = {}  # that it was compiled with
        self.ignored_options: tuple[str, ...] = ()  # that it was asked for with, and that change nothing here
        self.source: SourceFunction | None = None  # what it was compiled from

    @cached_property
    def function(self) -> Function:
        """The kernel as Tile IR, before any pass."""
        return self._trace()

    def dump(self, stage: str = "ir") -> str:
        """The kernel's text at a stage: ``ir``, ``llvm`` or ``asm``."""
        if stage == "ir":
            return print_function(self.function)
        texts = self.binary.texts
        if stage not in texts:
            texts = backend_of(self.target).compile(self.function, {**self.options, "keep_texts": True}).texts
        if stage not in texts:
            raise ValueError(f"unknown stage {stage!r}: choose ir, {', '.join(sorted(set(texts) - {'ir'}))}")
        return texts[stage]

    @property
    def explanation(self) -> str:
        """What the compiler made of the kernel, line by line of its source: vectors, loops, memory, products."""
        if not self.ignored_options:
            return self._explained
        return f"{self._explained.rstrip(chr(10))}\n\n{self._without_effect(self.ignored_options)}\n"

    @cached_property
    def _explained(self) -> str:
        text = backend_of(self.target).explain(self.function, self.options)
        notes = [f"{remark.file}:{remark.line}: {remark.message}" for remark in self.traced_remarks]
        return "\n".join([text.rstrip("\n"), "", "noted while the source was read:", *notes]) if notes else text

    def ignore(self, names: Iterable[str]) -> None:
        """Report launch options that change nothing on this target: in the log once, and in `explanation`."""
        news = sorted(set(names) - set(self.ignored_options))
        if news:
            self.ignored_options = tuple(sorted((*self.ignored_options, *news)))
            logger.info("kernel '%s': %s", self.name, self._without_effect(news))

    def _without_effect(self, names: Iterable[str]) -> str:
        return f"launch options that change nothing on {self.target.name}: {', '.join(names)}"

    def explain(self) -> None:
        """Print `explanation`."""
        print(self.explanation)

    @cached_property
    def asm(self) -> Mapping[str, Any]:
        """The kernel's texts by stage and its machine code; see `KernelStages`."""
        return KernelStages(self)

    @property
    def src(self) -> Any:
        """What the kernel was compiled from: `fn` is the function, `name` its name."""
        return self.source

    @property
    def module(self) -> Any:
        """The loaded code; None before the first launch or `_init_handles`."""
        return self.__dict__.get("_library")

    @once
    def _library(self) -> NativeLibrary:
        hooks.load_start(None, None, self.name, None, self.hash)
        library = load_kernels([self.binary.image], [self.binary.symbol])
        hooks.load_end(library, library.address(self.binary.symbol), self.name, None, self.hash)
        return library

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

    def misfit(self, error: struct.error) -> LaunchError:
        """What to raise for values that do not fit the parameters."""
        kinds = ", ".join(self.binary.parameters)
        return LaunchError(f"kernel '{self.name}': arguments do not fit its parameters ({kinds}): {error}")

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
        """Launch with slot values and the run-time arguments that they were made of, on a device and a stream of it.

        A CPU has one of either.  Raises `LaunchError` for values that the code was not compiled for.
        """
        if 0 in grid:
            return
        kernel: CompiledKernel = self
        for slot, divisor in zip(slots, self.divisors, strict=False):
            if divisor > 1 and isinstance(slot, int) and slot % divisor:
                kernel = self.unaligned  # generated host code on the CPU does not copy what is not aligned
                kernel.check_divisors(slots)  # of integers
                break
        names = kernel.argument_names and [kernel.argument_names[place] for place in kernel.run_time]
        kernel.run(grid, slots, kernel.extents(values, names or kernel.binary.parameters))

    def _launch(self, packed: bytes, grid: tuple[int, int, int], record: int | None = None) -> bool:
        binary = self.binary
        return launch(self.address, packed, grid, binary.scratch_bytes, record=record, refuses=binary.refuses)

    @once
    def careful(self) -> CompiledKernel:
        """This kernel for arrays that overlap, other than element on element: it copies first what it reads.

        Compiled when the first launch needs it.
        """
        if settings.explain_recompile:
            recompile.report_overlap(self.name)
        kernel = self._variant(self.function, {**self.options, "overlap": "careful"})
        kernel.divisors = self.divisors
        return kernel

    @once
    def unaligned(self) -> CompiledKernel:
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

    def _variant(self, function: Function, options: Mapping[str, Any]) -> CompiledKernel:
        """This kernel with other options, or other facts about its parameters."""
        binary = backend_of(self.target).compile(function, options)
        kernel = type(self)(
            self.name, self.target, binary, Interface(self.written, self.traced_remarks), lambda: function
        )
        kernel.options, kernel.source = options, self.source
        kernel.argument_names, kernel.run_time = self.argument_names, self.run_time
        return kernel

    def __reduce__(self) -> tuple[Any, ...]:
        """Machine code and Tile IR go to the other process; the source, which stays here, does not."""
        facts = {name: getattr(self, name) for name in ("argument_names", "run_time", "divisors", "options")}
        interface = Interface(self.written, self.traced_remarks)
        return _restored, (type(self), self.name, self.target, self.binary, interface, self.dump(), facts)

    @property
    def checks_bounds(self) -> bool:
        """Whether an access out of bounds stops a launch (`TILEWRIGHT_CHECK_BOUNDS`)."""
        return bool(self.options.get("check_bounds"))

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
    def hash(self) -> str:
        """The binary's content key."""
        return self.binary.key

    @property
    def metadata(self) -> KernelMetadata:
        """Name, scratch memory and the like."""
        shared = max(1, self.binary.scratch_bytes)
        return KernelMetadata(self.name, self.hash, GPUTarget.of(self.target), shared, options=dict(self.options))

    @property
    def packed_metadata(self) -> tuple[Any, ...]:
        """Warps, blocks of a cluster and shared memory, as launchers take them."""
        facts = self.metadata
        return (facts.num_warps, facts.num_ctas, facts.shared)

    @property
    def n_regs(self) -> int:
        """Vector registers of the target: a CPU's code may use all of them."""
        return self.target.vector_registers

    @property
    def n_spills(self) -> int:
        """Bytes of registers that are stored to local memory: not counted for a CPU's code, 0."""
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
            slots = [self._slot(*pair) for pair in enumerate(given)]
            self.check_divisors(slots)
            self.prepare_stores(given)
            names = self.argument_names and [self.argument_names[place] for place in self.run_time]
            self.run(extents, slots, self.extents(given, names or self.binary.parameters))

        return call

    def _slot(self, number: int, argument: Any) -> Any:
        try:
            return classify(argument)[1]
        except (LaunchError, DeviceError) as error:
            name = self.argument_names[self.run_time[number]] if self.argument_names else number
            raise type(error)(f"kernel '{self.name}', argument '{name}': {error}") from None

    def check_divisors(self, slots: Sequence[Any]) -> None:
        """Raise `LaunchError` for addresses and integers that the code takes for multiples of a number they are not."""
        for number, (slot, divisor) in enumerate(zip(slots, self.divisors, strict=False)):
            if divisor > 1 and isinstance(slot, int) and slot % divisor:
                name = self.argument_names[self.run_time[number]]
                slot_text = f"address {slot:#x}" if self.binary.parameters[number].startswith("*") else f"value {slot}"
                raise LaunchError(
                    f"kernel '{self.name}', argument '{name}': it was compiled for multiples of {divisor}, and the "
                    f"{slot_text} is none; launch the kernel itself, {self.name}[grid](...), which chooses the code "
                    "by its arguments"
                )

    @cached_property
    def _stored(self) -> tuple[int, ...]:
        """Which of the run-time arguments it may store through."""
        if not self.written:
            return ()
        return tuple(n for n, value in enumerate(self.function.region.arguments) if value.name in self.written)

    def prepare_stores(self, arguments: Sequence[Any]) -> None:
        """Before a launch with these run-time arguments: what `launching.RunTimeArguments` does with the same name."""
        stored = [stored_array(arguments[number]) for number in self._stored]
        for number, array in zip(self._stored, stored, strict=True):
            if not is_writable(array):
                raise read_only_error(self.name, self.function.region.arguments[number].name)
        raise_versions(stored)

    def run_time_arguments(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those of all arguments of the source that are run-time arguments; raises `LaunchError` for another count."""
        if self.argument_names and len(arguments) == len(self.argument_names):
            arguments = tuple(arguments[index] for index in self.run_time)
        if len(arguments) != len(self.binary.parameters):
            count = len(self.binary.parameters)
            raise LaunchError(f"kernel '{self.name}' takes {count} run-time arguments, got {len(arguments)}")
        return arguments

    def __repr__(self) -> str:
        return f"<compiled kernel {self.name}({', '.join(self.binary.parameters)}) for {self.target.name}>"


_RECORD = ctypes.c_int64 * failure_record.WORDS


def _restored(
    kind: type[CompiledKernel],
    name: str,
    target: Target,
    binary: Binary,
    interface: Interface,
    text: str,
    facts: Mapping[str, Any],
) -> CompiledKernel:
    """A compiled kernel that was pickled."""
    kernel = kind(name, target, binary, interface, lambda: parse_function(text))
    vars(kernel).update(facts)
    return kernel


def read_only_error(kernel: str, argument: str) -> LaunchError:
    """What to raise for a read-only array that a kernel may store to."""
    return LaunchError(f"kernel '{kernel}' writes to argument '{argument}', a read-only array; pass a writable copy")


GREATEST_EXTENT = 2**31 - 1


def full_grid(grid: Any) -> tuple[int, int, int]:
    """A grid of one to three extents as three; raises `LaunchError` for anything else."""
    if type(grid) is tuple and len(grid) == 3 and type(grid[0]) is type(grid[1]) is type(grid[2]) is int:
        if 0 <= grid[0] <= GREATEST_EXTENT and 0 <= grid[1] <= GREATEST_EXTENT and 0 <= grid[2] <= GREATEST_EXTENT:
            return grid
    extents = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    if not 1 <= len(extents) <= 3:
        raise LaunchError(f"a grid has one to three extents, got {brief(grid)}")
    numbers = []
    for extent in extents:
        if not isinstance(extent, (int, np.integer)) or isinstance(extent, bool) or extent < 0:
            raise LaunchError(f"a grid's extents are whole numbers of at least 0, got {brief(grid)}")
        if extent > GREATEST_EXTENT:
            raise LaunchError(
                f"an extent of a grid is at most {GREATEST_EXTENT}, because program ids are int32; got {brief(grid)}: "
                "let each program instance do more, or use another axis"
            )
        numbers.append(int(extent))
    return (*numbers, 1, 1)[:3]  # type: ignore[return-value]


@dataclass(frozen=True)
class Accesses:
    """Names of pointer parameters that a kernel may load through, and that it may store through."""

    read: frozenset[str]
    written: frozenset[str]


def written_parameters(function: Function) -> frozenset[str]:
    """Names of pointer parameters that a kernel may store through."""
    return accesses(function).written


def _follow(edges: Sequence[tuple[SSAValue, SSAValue]], sources: dict[SSAValue, set[str]]) -> None:
    """Take the parameters that pointers come from along the edges."""
    changed = True
    while changed:  # loops carry pointers, so that facts may have to travel round
        changed = False
        for source, target in edges:
            known = sources.setdefault(target, set())
            missing = sources.get(source, set()) - known
            known |= missing
            changed = changed or bool(missing)


def accesses(function: Function) -> Accesses:
    """What a kernel does with its pointer parameters, following pointers through every operation."""
    sources: dict[SSAValue, set[str]] = {
        value: {value.name} if _is_memory(value) else set() for value in function.region.arguments
    }
    _follow([edge for operation in function.walk() for edge in _pointer_flow(operation)], sources)

    def reached(*opcodes: str) -> frozenset[str]:
        through = [entry.operands[0] for entry in function.walk() if entry.opcode in opcodes]
        return frozenset(name for pointer in through for name in sources.get(pointer, set()))

    return Accesses(reached("load", "tma_load", *_ATOMICS), reached("store", "tma_store", *_ATOMICS))


_ATOMICS = ("atomic_rmw", "atomic_cas")


def _is_memory(value: SSAValue) -> bool:
    """Whether a value tells where an argument's memory is: a pointer, or a tensor map."""
    return value.type.is_pointer or isinstance(value.type.handle, TensorMapType)


def _may_lead_to_memory(value: SSAValue) -> bool:
    """The same, and the 64-bit numbers that pointers are cast to and from."""
    return _is_memory(value) or value.type.element in (dtypes.int64, dtypes.uint64)


def _pointer_flow(operation: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    """Pairs (from, to) of values between which an operation passes pointers on."""
    if operation.opcode == "for":
        (body,) = operation.regions
        carried = operation.operands[3:]
        groups = [(carried, body.arguments[1:]), (body.terminator.operands, body.arguments[1:])]
        groups += [(carried, operation.results), (body.terminator.operands, operation.results)]
    elif operation.opcode == "while":
        before, after = operation.regions
        forwarded = before.terminator.operands[1:]
        groups = [(operation.operands, before.arguments), (after.terminator.operands, before.arguments)]
        groups += [(forwarded, after.arguments), (forwarded, operation.results)]
    elif operation.opcode == "if":
        groups = [(region.terminator.operands, operation.results) for region in operation.regions]
    elif operation.opcode == "load":
        groups = []
    else:
        groups = [([operand] * len(operation.results), operation.results) for operand in operation.operands]
    for sources, targets in groups:
        for source, target in zip(sources, targets, strict=True):
            if _may_lead_to_memory(source) and _may_lead_to_memory(target):
                yield source, target
