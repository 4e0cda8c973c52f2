"""One signature of a kernel, ready to run: on the CPU, or in the interpreter.

A `PreparedLaunch` is chosen once for each signature; `run(grid, arguments, slots)` is its target's own and all that a
cached launch still has to do.  `arguments` are the caller's values, one for each parameter, and `slots` what
`arguments.classify` made of them: addresses and numbers, tuples of these for groups, None for constants.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from tilewright.errors import ExecutionError
from tilewright.forks import cached_property
from tilewright.frontend.tracer import labels, leaf_names
from tilewright.frontend.values import Static, ValueGroup
from tilewright.ir.core import Function
from tilewright.ir.memory import Extent
from tilewright.launch import hooks
from tilewright.launch.arguments import TENSOR_TYPES, as_array, as_memory, is_writable, leaves, stored_array
from tilewright.launch.compiled import GREATEST_EXTENT, CompiledKernel, full_grid, read_only_error
from tilewright.launch.descriptor import DescriptorForm, TensorDescriptor
from tilewright.runtime.launch import launcher
from tilewright.runtime.tensors import raise_versions
from tilewright.settings import settings

Grid = Any  # one to three extents; `full_grid` says what else


class PreparedLaunch(Protocol):
    """A signature that is ready to run."""

    @property
    def kernel(self) -> CompiledKernel | None:
        """The machine code; None in the interpreter, and for what a hook left uncompiled."""

    def run(self, grid: Grid, arguments: tuple[Any, ...], slots: Sequence[Any]) -> CompiledKernel | None:
        """Run over `grid`; returns the compiled kernel.  Raises `LaunchError`."""
        ...


class RunTimeArguments:
    """Which arguments of a kernel are run-time parameters, and which of these it writes."""

    def __init__(self, kernel: str, names: Sequence[str], types: Mapping[str, Any], written: frozenset[str]) -> None:
        self.kernel = kernel
        self.names = names
        self.kinds = {index: types[name] for index, name in enumerate(names) if name in types}
        self.grouped = any(isinstance(kind, ValueGroup) for kind in self.kinds.values())
        self.flat_names = [leaf for index, kind in self.kinds.items() for leaf in _spelled_names(names[index], kind)]
        self.written = [
            (index, number)
            for index, kind in self.kinds.items()
            for number, name in enumerate(leaf_names(names[index], kind))
            if name in written
        ]

    def flat(self, values: Sequence[Any]) -> list[Any]:
        """The run-time entries of arguments or slots, in the order of the kernel's parameters."""
        return [leaf for index, kind in self.kinds.items() for leaf in leaves(kind, values[index])]

    def prepare_stores(self, arguments: Sequence[Any]) -> None:
        """Before a launch: tell PyTorch's autograd of the tensors that the kernel may store to.

        Raises `LaunchError` for a read-only array among them.
        """
        stored = []
        for index, number in self.written:
            value = list(leaves(self.kinds[index], arguments[index]))[number] if self.grouped else arguments[index]
            stored.append(stored_array(value))
            if not is_writable(stored[-1]):
                raise read_only_error(self.kernel, self.names[index])
        raise_versions(stored)


def _spelled_names(name: str, kind: Any) -> list[str]:
    """The same parameters as the user would write them: ``pair[0]``, ``affine.bias``; a descriptor is its memory."""
    if isinstance(kind, Static):
        return []
    if not isinstance(kind, ValueGroup):
        return [name]
    if kind.kind is tuple:
        names = [f"{name}[{number}]" for number in range(len(kind.entries))]
    else:
        names = [f"{name}.{label}" for label in labels(kind)]
    if isinstance(kind.kind, DescriptorForm):
        names[0] = name
    return [leaf for own, entry in zip(names, kind.entries, strict=True) for leaf in _spelled_names(own, entry)]


class InterpretedLaunch:
    """A signature that runs in the NumPy interpreter."""

    kernel = None

    def __init__(self, function: Function, interface: RunTimeArguments) -> None:
        self.function = function
        self.interface = interface
        self._pointers = [value.type.is_pointer for value in function.region.arguments]

    def run(self, grid: Grid, arguments: tuple[Any, ...], slots: Sequence[Any]) -> None:
        from tilewright.ir.interpreter import run

        self.interface.prepare_stores(arguments)
        flat = self.interface.flat(arguments)
        values = [self._seen(array, value) for array, value in zip(self._pointers, flat, strict=True)]
        try:
            check, order = settings.interpret == "check", settings.interpret_order
            run(self.function, values, full_grid(grid), check, order, self.interface.flat_names)
        except ExecutionError as error:
            raise error.with_traceback(None) from None  # the message says where; our own frames do not help

    @staticmethod
    def _seen(array: bool, value: Any) -> Any:
        """An argument as the interpreter wants it: arrays are NumPy's."""
        if isinstance(value, TensorDescriptor):
            return replace(value, base=as_array(value.base))
        return as_memory(value) if array else value


class SkippedLaunch:
    """A signature that a hook wanted left uncompiled: nothing runs."""

    kernel = None

    def run(self, grid: Grid, arguments: tuple[Any, ...], slots: Sequence[Any]) -> None:
        return None


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


def _starter(kernel: CompiledKernel) -> Callable[[bytes, int], int | None]:
    """What starts a kernel with packed arguments: its native launcher, and around it what reads its failures."""
    start = launcher(kernel.address, kernel.binary.scratch_bytes, kernel.binary.refuses)
    return kernel.recording(start) if kernel.binary.records and not kernel.checks_bounds else start


class CPULaunch:
    """A signature whose machine code runs on this machine's CPU.

    `run` is generated: it packs exactly this signature's slots and hands them to the native launcher.
    """

    def __init__(
        self, kernel: CompiledKernel, interface: RunTimeArguments, describe: Callable[..., Any] | None
    ) -> None:
        self.kernel = kernel
        self.interface = interface
        self._describe = describe  # the kernel's `launch_metadata`
        self._start: Callable[[bytes, int], int | None] | None = None
        self.run: Callable[[Grid, tuple[Any, ...], Sequence[Any]], CompiledKernel | None] = self._first

    def _first(self, grid: Grid, arguments: tuple[Any, ...], slots: Sequence[Any]) -> CompiledKernel:
        """The first run loads the machine code."""
        self._start = _starter(self.kernel)
        self.run = self._watched if self.kernel.checks_bounds else self._second
        return (self._watched if self.kernel.checks_bounds else self._once)(grid, arguments, slots)

    def _watched(self, grid: Grid, arguments: tuple[Any, ...], slots: Sequence[Any]) -> CompiledKernel:
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
    ) -> CompiledKernel:
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

    def _second(self, grid: Grid, arguments: tuple[Any, ...], slots: Sequence[Any]) -> CompiledKernel | None:
        """There is a second run, so there may be many: generate the function."""
        self.run = self._generate()
        return self.run(grid, arguments, slots)

    def _generate(self) -> Callable[[Grid, tuple[Any, ...], Sequence[Any]], CompiledKernel | None]:
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
        run: Callable[[Grid, tuple[Any, ...], Sequence[Any]], CompiledKernel | None] = names["run"]
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
