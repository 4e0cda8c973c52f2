"""One signature of a kernel, ready to run: on the CPU, or in the interpreter.

A `PreparedLaunch` is chosen once for each signature; `run(grid, arguments, slots)` is its target's own and all that a
cached launch still has to do.  `arguments` are the caller's values, one for each parameter, and `slots` what
`arguments.classify` made of them: addresses and numbers, tuples of these for groups, None for constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tilewright.errors import ExecutionError
from tilewright.frontend.tracer import labels, leaf_names
from tilewright.frontend.values import Static, ValueGroup
from tilewright.ir.core import Function
from tilewright.launch.arguments import as_array, as_memory, is_writable, leaves, stored_array
from tilewright.launch.compiled import CompiledKernel, full_grid, read_only_error
from tilewright.launch.descriptor import DescriptorForm, TensorDescriptor
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
