"""A kernel compiled for one signature: its code, its texts, and its launch."""

from __future__ import annotations

import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.errors import DeviceError, LaunchError, brief
from tilewright.forks import cached_property
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.memory import Extent
from tilewright.ir.parser import parse_function
from tilewright.ir.printer import print_function
from tilewright.ir.types import TensorMapType
from tilewright.language.function import SourceFunction
from tilewright.launch.arguments import classify, is_writable, stored_array
from tilewright.launch.driver import GPUTarget
from tilewright.runtime.tensors import raise_versions
from tilewright.targets.base import Binary, Remark, Target
from tilewright.targets.registry import backend_of

logger = logging.getLogger("tilewright.jit")


@dataclass(frozen=True)
class Interface:
    """What a launch must know of a compiled kernel besides its code: names of parameters it stores through."""

    written: frozenset[str]
    remarks: tuple[Remark, ...]


@dataclass(frozen=True)
class KernelMetadata:
    """What `compiled.metadata` has: facts about compiled code by Triton's names; CPUs ignore launch options."""

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


class CompiledKernel(ABC):
    """Machine code of one specialization of a kernel, for a target of any family (`launch.cpu`, `launch.cuda`;
    `launch.compile_only` where nothing launches it).

    `binary` holds the code, `function` its Tile IR (traced again when the code came from the cache),
    `remarks` what the compiler reports.  ``compiled[grid](*arguments)`` launches it: run-time arguments
    in the order of `function`'s parameters, or all arguments of the source, or all but its constexprs; what is a
    constant in the code is ignored.
    """

    text_names: tuple[str, ...] = ("ir", "llvm", "asm")  # what `dump` shows
    image_name: str  # what `asm` calls the machine code

    def __init__(
        self, name: str, target: Target, binary: Binary, options: Any, interface: Interface, trace: Callable[[],
        Function],
    ) -> None:  # fmt: skip
        self.name = name
        self.target = target
        self.binary = binary
        self.written = interface.written
        self.traced_remarks = interface.remarks  # what was noted while the source was read
        self.remarks = (*interface.remarks, *binary.remarks)
        self._trace = trace
        self.argument_names: tuple[str, ...] = ()  # of the source, constants too; empty when not known
        self.run_time: tuple[int, ...] = ()  # which of these are run-time arguments
        self.variable: tuple[int, ...] = ()  # which are not constexpr in the source: those that are 1 or None, too
        self.divisors: tuple[int, ...] = ()  # of the run-time arguments: the code counts on it
        self.options = options  # that it was compiled with: the target's record
        self.launch_options: Mapping[str, Any] = {}  # that it was asked for with, as host code reads them
        self.ignored_options: tuple[str, ...] = ()  # that it was asked for with, and that change nothing here
        self.source: SourceFunction | None = None  # what it was compiled from

    @cached_property
    def function(self) -> Function:
        """The kernel as Tile IR, before any pass."""
        return self._trace()

    def dump(self, stage: str = "ir") -> str:
        """The kernel's text at a stage, one of `text_names`."""
        if stage == "ir":
            return print_function(self.function)
        texts = self.binary.texts
        if stage not in texts:
            texts = backend_of(self.target).compile(self.function, replace(self.options, keep_texts=True)).texts
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

    def misfit(self, error: struct.error) -> LaunchError:
        """What to raise for values that do not fit the parameters."""
        kinds = ", ".join(self.binary.parameters)
        return LaunchError(f"kernel '{self.name}': arguments do not fit its parameters ({kinds}): {error}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Machine code and Tile IR go to the other process; the source, which stays here, does not."""
        facts = {name: getattr(self, name) for name in _PICKLED}
        interface = Interface(self.written, self.traced_remarks)
        return _restored, (
            type(self), self.name, self.target, self.binary, self.options, interface, self.dump(), facts,
        )  # fmt: skip

    @property
    def hash(self) -> str:
        """The binary's content key."""
        return self.binary.key

    @property
    def module(self) -> Any:
        """The loaded code, where the process holds it; None before the first launch or `_init_handles`."""
        return None

    @property
    @abstractmethod
    def address(self) -> int:
        """Where the kernel's code is: in this process, or the driver's handle."""

    @property
    def metadata(self) -> KernelMetadata:
        """Name, scratch memory and the like."""
        shared, given = max(1, self.binary.scratch_bytes), dict(self.launch_options)
        return KernelMetadata(self.name, self.hash, GPUTarget.of(self.target), shared, options=given)

    @property
    @abstractmethod
    def n_regs(self) -> int:
        """Registers of a thread; of a CPU's code, vector registers."""

    @property
    @abstractmethod
    def n_spills(self) -> int:
        """Bytes of registers that are stored to local memory."""

    @property
    @abstractmethod
    def n_max_threads(self) -> int:
        """Threads that can run the kernel at once, on a GPU those of a CTA."""

    @abstractmethod
    def _init_handles(self) -> None:
        """Load the code now instead of at the first launch."""

    @abstractmethod
    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        """What launches it on a grid: a function of its arguments."""

    @abstractmethod
    def run(self, grid: tuple[int, int, int], slots: Sequence[Any], extents: Sequence[Extent] = ()) -> None:
        """Launch with slot values: addresses, numbers, and on GPUs descriptions of tensors.

        `extents` are those of its pointers, for a CPU's kernel that checks bounds.
        """

    @abstractmethod
    def run_given(
        self, grid: tuple[int, int, int], slots: Sequence[Any], values: Sequence[Any], ordinal: int, stream: int
    ) -> None:
        """Launch with slot values and the run-time arguments that they were made of, on a device and a stream of it.

        A CPU has one of either.  Raises `LaunchError` for values that the code was not compiled for.
        """

    @property
    def packed_metadata(self) -> tuple[Any, ...]:
        """Warps, blocks of a cluster and shared memory, as launchers take them."""
        facts = self.metadata
        return (facts.num_warps, facts.num_ctas, facts.shared)

    def slot(self, number: int, argument: Any) -> Any:
        """The slot of a run-time argument, by its number; raises errors that name it."""
        try:
            return classify(argument)[1]
        except (LaunchError, DeviceError) as error:
            name = self.argument_names[self.run_time[number]] if self.argument_names else number
            raise type(error)(f"kernel '{self.name}', argument '{name}': {error}") from None

    def slots(self, arguments: Sequence[Any]) -> list[Any]:
        """The slots of all run-time arguments."""
        try:
            return [classify(argument)[1] for argument in arguments]
        except (LaunchError, DeviceError):
            return [self.slot(*pair) for pair in enumerate(arguments)]  # raises the same with the argument's name

    @cached_property
    def _divided(self) -> tuple[tuple[int, int], ...]:
        """The run-time arguments that the code takes for multiples of a number, by their own number, and that one."""
        return tuple((number, divisor) for number, divisor in enumerate(self.divisors) if divisor > 1)

    def check_divisors(self, slots: Sequence[Any]) -> None:
        """Raise `LaunchError` for addresses and integers that the code takes for multiples of a number they are not."""
        for number, divisor in self._divided:
            slot = slots[number]
            if isinstance(slot, int) and slot % divisor:
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

    @cached_property
    def _places(self) -> dict[int, tuple[int, ...]]:
        """Where the run-time arguments are among so many arguments: all of the source, or those but for constexprs."""
        if not self.argument_names:
            return {}
        lists = self.variable, tuple(range(len(self.argument_names)))
        return {len(given): tuple(given.index(index) for index in self.run_time) for given in lists if given}

    def run_time_arguments(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those of all arguments of the source that are run-time arguments; raises `LaunchError` for another count."""
        places = self._places.get(len(arguments))
        if places is not None:
            arguments = tuple([arguments[place] for place in places])
        if len(arguments) != len(self.binary.parameters):
            count = len(self.binary.parameters)
            raise LaunchError(f"kernel '{self.name}' takes {count} run-time arguments, got {len(arguments)}")
        return arguments

    def __repr__(self) -> str:
        return f"<compiled kernel {self.name}({', '.join(self.binary.parameters)}) for {self.target.name}>"


_PICKLED = ("argument_names", "run_time", "variable", "divisors", "launch_options")  # besides what makes a kernel


def _restored(
    kind: type[CompiledKernel],
    name: str,
    target: Target,
    binary: Binary,
    options: Any,
    interface: Interface,
    text: str,
    facts: Mapping[str, Any],
) -> CompiledKernel:
    """A compiled kernel that was pickled."""
    kernel = kind(name, target, binary, options, interface, lambda: parse_function(text))
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
