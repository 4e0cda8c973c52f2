"""Operations on arrays through the engines' kernels: a small graph, its groups, a candidate for each.

The candidate is the one that costs least by estimate (`library.select`); sizes are those of the arrays, so that a
prepared operation is kept for each signature.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from typing import Any

from tilewright.errors import LaunchError, UnsupportedOperationError
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.launch.descriptor import DESCRIPTOR_ALIGNMENT, TensorDescriptor
from tilewright.launch.jit import JITFunction
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Table, TensorPart, TiledOperand
from tilewright.library.select import candidates, choose
from tilewright.ops import arrays
from tilewright.ops.arrays import ArrayView
from tilewright.runtime import tables
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.streams import DLPACK, DevicePlace
from tilewright.symbolic import Size, evaluate
from tilewright.targets.nvidia.target import NvidiaTarget

_MOST = 1024  # prepared operations
_PREPARED: dict[Hashable, Prepared] = {}
_CAPTURED: dict[int, Prepared] = {}  # whose tables graphs may read as long as the process lives, by identity


@dataclass(frozen=True)
class Prepared:
    """An operation for arrays of known shapes: its graph, a candidate for each group, in order, the tensors between the
    groups, and the tables of numbers that its kernels read, by name and sizes."""

    graph: Graph
    chosen: tuple[Candidate, ...]
    between: tuple[Value, ...]
    ordinal: int | None
    tables: dict[tuple[str, tuple[int, ...]], Any] = field(default_factory=dict)

    def explain(self) -> str:
        """What runs, and why."""
        return "\n".join(
            f"{candidate.name}: {', '.join(f'{key} {value}' for key, value in candidate.reasons.items())}"
            for candidate in self.chosen
        )

    def run(self, given: Mapping[str, ArrayView], out: ArrayView) -> None:
        """Launch on arrays by the names of the graph's inputs; the result goes to `out`, contiguous."""
        places: dict[Value, Any] = {value: given[value.name].base for value in self.graph.inputs}
        places[self.graph.outputs[0]] = out.base
        for value in (*self.between, *(each for candidate in self.chosen for each in candidate.temporaries)):
            places[value] = arrays.empty(out, _numbers(value.shape), value.dtype)
        for candidate in self.chosen:
            for stage in candidate.stages:
                call = next(each for each in stage.calls if _applies(each))
                self._launch(call, places)
        if self.tables:
            self._keep_for_graphs([*given.values(), out])

    def _keep_for_graphs(self, used: Sequence[ArrayView]) -> None:
        """A graph that captures the launches reads the tables at every replay, and may outlive this entry."""
        if self.ordinal is None or id(self) in _CAPTURED:
            return
        streamed = [found for found in used if found.place is not None and found.place.library != DLPACK]
        if any(arrays.capturing(arrays.stream_of([found]), self.ordinal) for found in streamed):
            _CAPTURED[id(self)] = self

    def _launch(self, call: KernelCall, places: Mapping[Value, Any]) -> None:
        kernel = call.kernel
        assert isinstance(kernel, JITFunction)
        constants, fixed, variadic = dict(call.constants), [], []
        for parameter in kernel.parameters:
            if parameter.kind == "variadic":
                numbered = (f"{parameter.name}_{number}" for number in count())
                names = takewhile(call.operands.__contains__, numbered)
                variadic = [self._argument(call.operands[name], places) for name in names]
            elif parameter.name in call.operands:
                fixed.append(self._argument(call.operands[parameter.name], places))
            elif not variadic and parameter.name in constants and not parameter.constexpr:
                fixed.append(constants.pop(parameter.name))
        kernel[_numbers(call.grid)](*fixed, *variadic, **constants, **call.options)

    def _argument(self, operand: Operand, places: Mapping[Value, Any]) -> Any:
        if isinstance(operand, TiledOperand):
            if isinstance(operand.value, PackedConstant) or operand.offset != 0:
                raise LaunchError(f"{self.graph.name}: operations have no constants")
            shape, strides = _numbers(operand.shape), _numbers(operand.strides)
            place, steps = places[operand.value], operand.steps or None
            return TensorDescriptor(
                place, shape, strides, operand.block, round_f32_to_tf32=operand.rounded, steps=steps
            )
        if isinstance(operand, Table):
            table = self._table(operand)
            return table.shape[1] if operand.columns else table
        if isinstance(operand, (PackedConstant, TensorPart)):
            raise LaunchError(f"{self.graph.name}: operations have no constants, and no parts of tensors")
        if isinstance(operand, Value):
            return places[operand]
        return operand if isinstance(operand, float) else evaluate(operand, {})

    def _table(self, table: Table) -> Any:
        key = (table.name, _numbers(table.sizes))
        if key not in self.tables:
            found = tables.TABLES[table.name](*key[1])
            self.tables[key] = found if self.ordinal is None else DeviceArray.from_numpy(found, self.ordinal)
        return self.tables[key]


def prepared(
    key: Hashable,
    used: Sequence[ArrayView],
    place: DevicePlace | None,
    make: Callable[[], Graph],
    together: bool = False,
) -> Prepared:
    """The prepared operation of a signature for the arrays that are used at a place; `make` poses it as a graph of
    inputs with known sizes, whose last node is the anchor of a group of all where they are `together`.

    Tensor copies move arrays that begin at multiples of 16 bytes; where one does not, no kernel of them is chosen, and
    the group of all, which only they compute, is divided.  Raises `LaunchError` for what no kernel of the library
    computes.
    """
    ordinal = place.ordinal if place else None
    aligned = all(found.address % DESCRIPTOR_ALIGNMENT == 0 for found in used)
    whole = (key, ordinal, aligned)
    found = _PREPARED.get(whole)
    if found is None:
        target = arrays.target_at(ordinal)
        graph = make()
        try:
            found = _prepare(graph, ordinal, target if aligned else _without_copies(target), together and aligned)
        except (UnsupportedOperationError, NotImplementedError) as reason:
            raise LaunchError(
                f"{graph.name}: the library has no kernel for it on {target.description}: {reason}"
            ) from reason
        while len(_PREPARED) >= _MOST:
            _PREPARED.pop(next(iter(_PREPARED)), None)  # the oldest
        _PREPARED[whole] = found
    return found


def _without_copies(target: NvidiaTarget) -> NvidiaTarget:
    """The target as the library sees it where tensor copies cannot move the operands: its kernels of tensor copies are
    those of an architecture's own instructions."""
    return replace(target, suffix="")


def _prepare(graph: Graph, ordinal: int | None, target: NvidiaTarget, together: bool) -> Prepared:
    if together:
        anchor = graph.nodes[-1]
        group = Group("contraction", graph.nodes, graph.inputs, graph.outputs, anchor, graph.name)
        return Prepared(graph, (choose(candidates(group, graph, target)),), (), ordinal)
    fused = fuse(optimize(graph), attention_quantizes=True)
    for group in fused.groups:
        if group.kind == "view":
            raise UnsupportedOperationError(f"group {group.name} is only another view of its input")
    chosen = tuple(choose(candidates(group, fused.graph, target)) for group in fused.groups)
    made = [value for group in fused.groups for value in group.outputs]
    between = tuple(value for value in made if value not in fused.graph.outputs)
    return Prepared(fused.graph, chosen, between, ordinal)


def _applies(call: KernelCall) -> bool:
    return call.condition is None or evaluate(call.condition[0], {}) <= call.condition[1]


def _numbers(sizes: Sequence[Size]) -> tuple[int, ...]:
    return tuple(evaluate(size, {}) for size in sizes)


def result_like(first: ArrayView, shape: Sequence[int], element: Any, out: Any) -> ArrayView:
    """`out`, or a new array of this shape; raises `LaunchError` where it is not contiguous or of another shape."""
    target = arrays.view(arrays.empty(first, shape, element) if out is None else out, "out")
    if target.shape != tuple(shape) or target.element != element or not target.contiguous:
        raise LaunchError(f"out must be contiguous {element.name} of shape {list(shape)}, got {target.described}")
    return target
