"""Compiles the kernels of a plan: equal calls share one binary, and each becomes a plan's `LaunchChoice`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tilewright.build.precompile import compile_ahead
from tilewright.dtypes import BY_TEXT, DType, carrier, from_numpy, int32
from tilewright.graph.core import Value
from tilewright.ir.core import Parameter
from tilewright.ir.types import PointerType, TensorMapType, TensorType, scalar
from tilewright.library import packing
from tilewright.library.candidate import (
    ExternKernel,
    KernelCall,
    Operand,
    PackedConstant,
    Table,
    TensorPart,
    TiledOperand,
)
from tilewright.library.hopper import Checked
from tilewright.passes.grid_axes import SAME_AXES, Axes
from tilewright.runtime.extern import extern_key
from tilewright.runtime.plan import Argument, BufferReference, LaunchChoice, TableReference, TiledReference
from tilewright.symbolic import Expression, Size, lift, product, simplify, upper_bound
from tilewright.targets.base import Binary, Target
from tilewright.targets.registry import backend_of

if TYPE_CHECKING:
    from tilewright.launch.compiled import CompiledKernel
    from tilewright.launch.jit import JITFunction

Place = Callable[[Operand], BufferReference]
_LARGEST_BLOCK = 1 << 17  # elements that a block may reach beyond a tensor


@dataclass(frozen=True)
class KernelEntry:
    """A binary of the engine and what people want to know of it."""

    binary: Binary
    name: str
    constants: dict[str, Any]


@dataclass
class KernelSet:
    """All binaries of an engine by key, compiled when they are first needed."""

    target: Target
    progress: Callable[[str, str, float], None]
    entries: dict[str, KernelEntry] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    _compiled: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def choice(self, call: KernelCall, place: Place) -> LaunchChoice:
        """The launch of `call`, with `place` telling where its tensors lie."""
        places = _places(call, place)
        if isinstance(call.kernel, ExternKernel):
            texts = [_tensor_type(operand) for operand in call.operands.values()]
            key, names, types = extern_key(call.kernel.function, texts, call.constants), list(call.operands), texts
        else:
            key = self._compile(call, call.kernel, places)
            names, types = _parameter_order(call, call.kernel), list(self.entries[key].binary.parameters)
        if len(names) != len(types):
            raise AssertionError(f"{call.kernel.__name__}: {names} against {types}")
        arguments = tuple(
            Argument(text, _argument(call.operands[name], places.get(name)))
            for name, text in zip(names, types, strict=True)
        )
        axes = grid_axes(call.grid, self.target.largest_grid)
        grid = (call.grid[axes[0]], call.grid[axes[1]], call.grid[axes[2]])
        if call.condition is None:
            return LaunchChoice(key, arguments, grid, planes=call.planes)
        return LaunchChoice(key, arguments, grid, *call.condition, planes=call.planes)

    def compile_ahead(self, calls: Sequence[tuple[KernelCall, Place]]) -> None:
        """Compile the kernels of calls that the object cache has not, several at once, so that `choice` finds them."""
        jobs: dict[tuple[Any, ...], Callable[[], object]] = {}
        for call, place in calls:
            kernel = call.kernel
            if isinstance(kernel, ExternKernel):
                continue
            identity, request = self._request(call, kernel, _places(call, place))
            if identity not in jobs and not kernel.is_compiled(*request):
                jobs[identity] = partial(kernel.compile, *request)
        if jobs:
            backend_of(self.target).prepare()
        total = f"of {len(jobs)} kernels"
        compile_ahead(list(jobs.values()), report=lambda ended: self.progress("compile", f"{ended} {total}", 0.0))

    def _request(
        self, call: KernelCall, kernel: JITFunction, places: Mapping[str, BufferReference]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """What tells the binary of a call from others, and the arguments of `JITFunction.compile` that make it."""
        types = _types(call, kernel)
        parameters = self._parameters(call, places)
        options = call.options_for(self.target)
        if self.target.dependent_launch:
            # Kernels of a plan follow each other: the next one starts while the last CTAs of the one ahead still run.
            options["wait_at_entry"] = True
        axes = grid_axes(call.grid, self.target.largest_grid)
        if axes != SAME_AXES:
            options["grid_axes"] = axes
        if not self.target.host_code and _is_wide(call):
            options["wide_grid"] = True
        identity = (id(kernel), *map(_hashable, (types, call.constants, parameters, options)))
        return identity, (types, call.constants, parameters, self.target, {**options, "debug": False})

    def _compile(self, call: KernelCall, kernel: JITFunction, places: Mapping[str, BufferReference]) -> str:
        """The key of the binary that serves a call."""
        identity, request = self._request(call, kernel, places)
        if identity not in self._compiled:
            name = kernel.__name__
            self.progress("compile", name, 0.0)
            started = time.perf_counter()
            for constant in call.constants.values():
                if isinstance(constant, Checked):  # some of what it forbids would never end
                    constant.check()
            compiled: CompiledKernel = kernel.compile(*request)
            seconds = time.perf_counter() - started
            binary = compiled.binary
            # A plan passes no record: neither assertions nor loops without a known end are for kernels of the library.
            assert not binary.records, f"{name} may fail or wait, which plans on CPUs do not expect"
            constants = {key: value for key, value in call.constants.items() if isinstance(value, (bool, int, float))}
            self.entries.setdefault(binary.key, KernelEntry(binary, name, constants))
            self.remarks += _warnings(name, compiled)
            self._compiled[identity] = binary.key
            self.progress("compile", name, seconds)
        return self._compiled[identity]

    def _parameters(self, call: KernelCall, places: Mapping[str, BufferReference]) -> dict[str, Parameter]:
        """A pointer is free of aliases when no other parameter points into the same tensor.

        The memory plan keeps tensors that are alive at the same time apart, and the session checks the
        caller's buffers. Every tensor, the caller's too, starts at a multiple of what the target says.
        """
        tensors = [_tensor(place) for place in places.values()]
        divisibility = self.target.tensor_alignment
        found = {
            name: Parameter(name, divisibility, alias_free=tensors.count(_tensor(place)) == 1)
            for name, place in places.items()
            if not isinstance(call.operands[name], TiledOperand)
            and (divisibility > 1 or tensors.count(_tensor(place)) == 1)
        }
        tables = [n for n, operand in call.operands.items() if isinstance(operand, Table) and not operand.columns]
        return found | {name: Parameter(name, divisibility, alias_free=True) for name in tables}


def grid_axes(grid: tuple[Size, Size, Size], largest: tuple[int, int, int]) -> Axes:
    """Which axis of a launch is which of a kernel's grid: x and one that is too long change places, where x may be
    longer.

    Where run-time sizes decide, only axes that the order of programs does not depend on do.
    """
    most = [upper_bound(extent) for extent in grid]
    long = max((1, 2), key=lambda axis: most[axis] / largest[axis])
    if most[long] <= largest[long] or most[0] > largest[long] or largest[0] <= largest[long]:
        return SAME_AXES
    if not isinstance(grid[long], int) and grid[0] != 1:
        return SAME_AXES
    return (1, 0, 2) if long == 1 else (2, 1, 0)


def _is_wide(call: KernelCall) -> bool:
    """Whether places in tensors may be beyond 32 bits, of known sizes: kernels multiply programs' numbers by blocks.

    Tiles that the hardware copies are asked for by coordinates of 32 bits, whatever a tensor's size.
    """
    if any(isinstance(operand, TiledOperand) for operand in call.operands.values()):
        return False
    # Of the constants, sizes alone are parameters in lower case.
    sizes: list[Size] = [value for name, value in call.constants.items() if name.islower() and isinstance(value, int)]
    sizes += [
        product(operand.shape) + _LARGEST_BLOCK for operand in call.operands.values() if isinstance(operand, Value)
    ]
    return any(isinstance(size, int) and size >= 2**31 for size in sizes)


def _places(call: KernelCall, place: Place) -> dict[str, BufferReference]:
    """Where the tensors among a call's operands lie."""
    return {
        name: place(operand.value if isinstance(operand, (TiledOperand, TensorPart)) else operand)
        for name, operand in call.operands.items()
        if _is_tensor(operand)
    }


def _is_tensor(operand: Operand) -> bool:
    return isinstance(operand, (Value, PackedConstant, TiledOperand, TensorPart))


def _argument(operand: Operand, place: BufferReference | None) -> Any:
    """A kernel's argument as a plan has it."""
    if isinstance(operand, TiledOperand):
        assert place is not None
        start = simplify(lift(place.offset) + lift(operand.offset) * _element(operand).itemsize)
        place = replace(place, offset=start)
        return TiledReference(place, operand.shape, operand.strides, operand.steps, operand.rounded)
    if isinstance(operand, TensorPart):
        assert place is not None
        return replace(place, offset=simplify(lift(place.offset) + operand.offset * operand.value.dtype.itemsize))
    if isinstance(operand, Table):
        return TableReference(operand.name, operand.sizes, operand.columns)
    return _number(operand) if place is None else place


def _tensor_type(operand: Operand) -> str:
    """The element type of a library function's operand, as IR text."""
    assert isinstance(operand, TiledOperand)
    return _element(operand).text


def _element(operand: TiledOperand) -> DType:
    if isinstance(operand.value, PackedConstant):
        return from_numpy(packing.packed_dtype(operand.value.recipe, operand.value.value.dtype.numpy))
    return operand.value.dtype


def _number(operand: Operand) -> Any:
    """A size or a float as a plan's argument."""
    assert isinstance(operand, (int, float, Expression))
    return operand


def _type(name: str, call: KernelCall) -> TensorType:
    operand = call.operands[name]
    if isinstance(operand, TiledOperand):
        return scalar(TensorMapType(operand.block, _element(operand)))
    if isinstance(operand, Table) and not operand.columns:
        return scalar(PointerType(int32))
    if isinstance(operand, (PackedConstant, TensorPart)):
        return scalar(PointerType(carrier(operand.value.dtype)))
    if isinstance(operand, Value):
        return scalar(PointerType(carrier(operand.dtype)))
    return scalar(BY_TEXT[call.types[name]])


def _types(call: KernelCall, kernel: JITFunction) -> dict[str, TensorType | tuple[TensorType, ...]]:
    """Types by parameter name; a variadic parameter's operands ``extra_0`` … make a tuple."""
    types: dict[str, TensorType | tuple[TensorType, ...]] = {}
    for parameter in kernel.parameters:
        if parameter.kind == "variadic":
            types[parameter.name] = tuple(_type(name, call) for name in _variadic(parameter.name, call))
        elif parameter.name in call.operands:
            types[parameter.name] = _type(parameter.name, call)
    return types


def _parameter_order(call: KernelCall, kernel: JITFunction) -> list[str]:
    """The operands' names in the order of the binary's parameters."""
    names: list[str] = []
    for parameter in kernel.parameters:
        if parameter.kind == "variadic":
            names += _variadic(parameter.name, call)
        elif parameter.name in call.operands:
            names.append(parameter.name)
    if len(names) != len(call.operands):
        raise AssertionError(f"{kernel.__name__} has no parameters for {set(call.operands) - set(names)}")
    return names


def _variadic(name: str, call: KernelCall) -> list[str]:
    count = 0
    while f"{name}_{count}" in call.operands:
        count += 1
    return [f"{name}_{number}" for number in range(count)]


def _tensor(place: BufferReference) -> tuple[Any, ...]:
    return (place.kind, place.name, place.offset if place.kind == "arena" else 0)


def _hashable(entries: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(entries.items(), key=lambda entry: entry[0]))


def _warnings(name: str, compiled: CompiledKernel) -> list[str]:
    """What the compiler warns of in a kernel, with the places."""
    return [
        f"{name}: {remark.message} ({os.path.basename(remark.file)}:{remark.line})"
        for remark in compiled.remarks
        if remark.severity == "warning"
    ]
