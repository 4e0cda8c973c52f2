"""Operations on arrays through the engines' kernels: a small graph, its groups, a candidate for each.

An estimate ranks the candidates of a group (`library.select`); those that it cannot tell apart are timed at the first
call, once, as those of `ops.matmul` are.  Sizes are those of the arrays: a prepared operation is kept for each
signature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, takewhile
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import LaunchError, UnsupportedOperationError, brief
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import FusedGraph, Group
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.launch.arguments import stored_array
from tilewright.launch.descriptor import DESCRIPTOR_ALIGNMENT, TensorDescriptor
from tilewright.launch.jit import JITFunction
from tilewright.library.activations import ACTIVATIONS
from tilewright.library.candidate import (
    Candidate,
    KernelCall,
    Operand,
    PackedConstant,
    Table,
    TensorPart,
    TiledOperand,
    labels,
)
from tilewright.library.select import candidates
from tilewright.measure.choosing import closest, ranked
from tilewright.ops import arrays
from tilewright.ops.arrays import ArrayView
from tilewright.ops.choosing import Alternatives, TrialCalls, described
from tilewright.runtime import tables
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.streams import DLPACK, DevicePlace
from tilewright.runtime.tensors import raise_versions, version_raiser
from tilewright.settings import settings
from tilewright.symbolic import Size, evaluate
from tilewright.targets.base import Target
from tilewright.targets.registry import for_kernels_of

# A graph, the candidates of each of its groups, and the tensors between these.
Divided = tuple[Graph, tuple[Sequence[Candidate], ...], tuple[Value, ...]]
Groups = Callable[[Graph, Target], Divided]
_Described = tuple[tuple[int, ...], list[Operand], dict[str, Any]]  # grid, arguments by place and by name
_MOST_PREPARED = 1024  # prepared operations
_PREPARED: dict[Hashable, Prepared] = {}
_CAPTURED: dict[int, Prepared] = {}  # whose tables graphs may read as long as the process lives, by identity


@dataclass(eq=False)
class Prepared:
    """An operation for arrays of known shapes: its graph, the candidates of each group, in order, the tensors between
    the groups, a text of the operations that take one choice, whether candidates are timed, and the tables of numbers
    that its kernels read, by name and sizes."""

    graph: Graph
    candidates: tuple[Sequence[Candidate], ...]
    between: tuple[Value, ...]
    ordinal: int | None
    alike: str = ""
    timed: bool = False
    tables: dict[tuple[str, tuple[int, ...]], Any] = field(default_factory=dict)
    alternatives: tuple[Alternatives, ...] = field(init=False)
    _known: dict[tuple[int, bool], _Described] = field(default_factory=dict)  # by the identity of a call

    def __post_init__(self) -> None:
        self.alternatives = tuple(map(self._alternatives, range(len(self.candidates))))

    def _alternatives(self, number: int) -> Alternatives:
        found = self.candidates[number]
        seconds = [candidate.cost.seconds for candidate in found]
        order, close = ranked(seconds), closest(seconds, effort=1)
        return Alternatives(self.graph.name, f"{self.alike}, {number}", self.ordinal, labels(found), order, close)

    @property
    def chosen(self) -> tuple[Candidate, ...]:
        """The candidate of each group that runs: the likeliest until times are known."""
        return tuple(found[each.index] for found, each in zip(self.candidates, self.alternatives, strict=True))

    def explain(self) -> list[str]:
        """What runs for each group, and how it was chosen: a line for each."""
        return [f"{each.labels[each.index]} ({described(each)})" for each in self.alternatives]

    def run(self, given: Mapping[str, ArrayView], out: ArrayView) -> None:
        """Launch on arrays by the names of the graph's inputs; the result goes to `out`, the view of an array."""
        if not out.contiguous:  # rows of a larger array: computed elsewhere, and copied
            whole = arrays.view(arrays.empty(out, tuple(out.base.shape), out.element), "out")
            self.run(given, whole)
            out.base[...] = whole.base
            return
        places: dict[Value, Any] = {value: given[value.name].base for value in self.graph.inputs}
        places[self.graph.outputs[0]] = out.base
        used = [*given.values(), out]
        self._add_memory(places, self.between, out)
        for number, each in enumerate(self.alternatives):
            each.choose(used, partial(self._trials, number, places, out) if self.timed else None)
        for number, candidate in enumerate(self.chosen):
            self._add_memory(places, candidate.temporaries, out)
            self._launch_all(candidate, places, number == 0)
        if self.tables:
            self._keep_for_graphs(used)

    @staticmethod
    def _add_memory(places: dict[Value, Any], values: Sequence[Value], like: ArrayView) -> None:
        for value in values:
            places[value] = arrays.empty(like, _numbers(value.shape), value.dtype)

    def _trials(self, number: int, places: Mapping[Value, Any], out: ArrayView) -> TrialCalls:
        own = dict(places)
        self._add_memory(own, self.graph.outputs, out)

        def call(index: int) -> Callable[[], Any]:
            candidate, memory = self.candidates[number][index], dict(own)
            self._add_memory(memory, candidate.temporaries, out)
            return partial(self._launch_all, candidate, memory, number == 0)

        return TrialCalls(call)

    def _launch_all(self, candidate: Candidate, places: Mapping[Value, Any], first: bool) -> None:
        """The launches of a group.  As in engines the first of an operation begins when all in front of it has ended:
        kernels that start early read what the operation is given, which others may still write."""
        for number, stage in enumerate(candidate.stages):
            self._launch(stage.call_for({}), places, first and number == 0)

    def _keep_for_graphs(self, used: Sequence[ArrayView]) -> None:
        """A graph that captures the launches reads the tables at every replay, and may outlive this entry."""
        if self.ordinal is None or id(self) in _CAPTURED:
            return
        streamed = [found for found in used if found.place is not None and found.place.library != DLPACK]
        if any(arrays.capturing(arrays.stream_of([found]), self.ordinal) for found in streamed):
            _CAPTURED[id(self)] = self

    def _launch(self, call: KernelCall, places: Mapping[Value, Any], first: bool) -> None:
        kernel = call.kernel
        assert isinstance(kernel, JITFunction)
        key = (id(call), first)
        if key not in self._known:
            self._known[key] = self._described(call, kernel, first)
        grid, operands, named = self._known[key]
        kernel[grid](*[self._argument(operand, places) for operand in operands], **named)

    def _described(self, call: KernelCall, kernel: JITFunction, first: bool) -> _Described:
        """A launch as a kernel takes it."""
        constants, operands, positional = dict(call.constants), list[Operand](), True
        for parameter in kernel.parameters:
            if parameter.kind == "variadic":
                numbered = (f"{parameter.name}_{number}" for number in count())
                operands += [call.operands[name] for name in takewhile(call.operands.__contains__, numbered)]
                positional = False
            elif parameter.name in call.operands:
                operands.append(call.operands[parameter.name])
            elif positional and parameter.name in constants and not parameter.constexpr:
                operands.append(constants.pop(parameter.name))
        target = arrays.target_at(self.ordinal)
        options = call.options_for(target) | ({"dependent_launch": False} if first and target.dependent_launch else {})
        return _numbers(call.grid), operands, {**constants, **options}

    def _argument(self, operand: Operand, places: Mapping[Value, Any]) -> Any:
        if isinstance(operand, Value):
            return places[operand]
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
        return operand if isinstance(operand, (int, float)) else evaluate(operand, {})

    def _table(self, table: Table) -> Any:
        key = (table.name, _numbers(table.sizes))
        if key not in self.tables:
            found = tables.RUN_TIME_TABLES[table.name](*key[1])
            self.tables[key] = found if self.ordinal is None else DeviceArray.from_numpy(found, self.ordinal)
        return self.tables[key]


def prepared(
    key: Hashable,
    alike: Hashable,
    used: Sequence[ArrayView],
    place: DevicePlace | None,
    make: Callable[[], Graph],
    groups_of: Groups | None = None,
    timed: bool | None = None,
) -> Prepared:
    """The prepared operation of a signature for the arrays that are used at a place; `make` poses it as a graph of
    inputs with known sizes, which `groups_of` divides in another way than fusion.  Operations that are `alike` take one
    choice where the same candidates are close: the first of them is timed for all (`timed` None: as settings say).

    Tensor copies move arrays that begin at multiples of 16 bytes; where one does not, no kernel of them is chosen.
    Raises `LaunchError` for what no kernel of the library computes.
    """
    ordinal = place.ordinal if place else None
    aligned = all(found.address % DESCRIPTOR_ALIGNMENT == 0 for found in used)
    timed = bool(settings.tune) if timed is None else timed
    whole = (key, ordinal, aligned, timed)
    found = _PREPARED.get(whole)
    if found is None:
        target = arrays.target_at(ordinal)
        graph = make()
        divide = fused_groups if groups_of is None else groups_of
        try:
            parts = divide(graph, target if aligned else target.without_tensor_copies())
            found = Prepared(*parts, ordinal, f"{alike}{'' if aligned else ', unaligned'}", timed)
        except (UnsupportedOperationError, NotImplementedError) as reason:
            raise LaunchError(
                f"{graph.name}: the library has no kernel for it on {target.description}: {reason}"
            ) from reason
        while len(_PREPARED) >= _MOST_PREPARED:
            _PREPARED.pop(next(iter(_PREPARED)), None)  # the oldest
        _PREPARED[whole] = found
    return found


def one_group(graph: Graph, target: Target) -> Divided:
    """All of a graph as one group, whose anchor is the last node, where there are kernels of tensor copies."""
    if not target.wgmma:
        return fused_groups(graph, target)
    group = Group("contraction", graph.nodes, graph.inputs, graph.outputs, graph.nodes[-1], graph.name)
    return graph, (candidates(group, graph, target),), ()


def fused_groups(graph: Graph, target: Target) -> Divided:
    """The groups of a graph that fusion finds, as in engines."""
    fused = fuse(optimize(graph, for_kernels_of([target])), target.kernels)
    for group in fused.groups:
        if group.kind == "view":
            raise UnsupportedOperationError(f"group {group.name} is only another view of its input")
    return fused.graph, tuple(candidates(group, fused.graph, target) for group in fused.groups), between(fused)


def between(fused: FusedGraph) -> tuple[Value, ...]:
    """The tensors between the groups of a graph."""
    made = [value for group in fused.groups for value in group.outputs]
    return tuple(value for value in made if value not in fused.graph.outputs)


def bound(
    start: Callable[..., None], grid: Sequence[int], slots: Sequence[Any], views: Sequence[ArrayView],
    stored: Sequence[Any], before: Callable[[int], None] | None = None,
) -> Callable[[], Any]:  # fmt: skip
    """A launch with everything but the stream fixed, on the arrays `views`, which it keeps alive; it stores to those of
    `stored`.  `before` is called with the stream."""
    place, written = views[0].place, tuple(map(stored_array, stored))
    if before is not None or place is None or len({found.place for found in views}) > 1 or place.library != "torch":

        def run_ordered() -> None:
            raise_versions(written)
            stream = arrays.stream_of(views)
            if before is not None:
                before(stream)
            start(*grid, stream, *slots)

        return run_ordered
    current, ordinal, raise_version = arrays.torch_stream(), place.ordinal, version_raiser()

    def run() -> None:
        raise_version(written)
        start(*grid, current(ordinal), *slots)

    run.operands = views  # type: ignore[attr-defined]
    return run


def strided_input(b: GraphBuilder, name: str, found: ArrayView) -> Value:
    """The elements of an array with any strides that do not overlap: an input as large as what they are a part of, its
    slices, and a permute.  Raises `LaunchError` for others."""
    axes = sorted(range(len(found.shape)), key=lambda axis: (found.shape[axis] == 1, -found.strides[axis]))
    shape, outer = [], None
    for axis in axes:
        extent, stride = found.shape[axis], found.strides[axis]
        if extent > 1 and (stride < 1 or (outer is not None and (outer % stride or outer // stride < extent))):
            raise LaunchError(f"{name} has rows that lie over each other, or are not evenly apart: make it contiguous")
        shape.append(extent if extent == 1 or outer is None else outer // stride)
        outer = stride if extent > 1 else outer
    if outer is not None and outer != 1:
        raise LaunchError(f"the last axis of {name} must be contiguous: make it contiguous")
    value = b.input(name, found.element, shape)
    for place, axis in enumerate(axes):
        if shape[place] != found.shape[axis]:
            value = b.op("slice", [value], axis=place, start=0, stop=found.shape[axis], step=1)
    order = tuple(axes.index(axis) for axis in range(len(axes)))
    return value if order == tuple(range(len(axes))) else b.op("permute", [value], order=order)


def checked_activation(name: str | None, argument: str = "activation") -> str:
    """The name of an activation, or nothing; raises `LaunchError` for others."""
    if name and name not in ACTIVATIONS:
        raise LaunchError(f"{argument}={brief(name)}: there are {', '.join(ACTIVATIONS)}")
    return name or ""


def scale_of_results(stored: DType, wide: bool, scale: float | None) -> tuple[float, ...]:
    """The inverse of the scale of results of 8 bits; nothing of `wide` ones.  Raises `LaunchError`."""
    if wide:
        if scale is not None:
            raise LaunchError(f"out_scale needs 8-bit results: pass out_dtype; {stored.name} is not scaled")
        return ()
    number = 1.0 if scale is None else float(scale)
    if not (math.isfinite(number) and number > 0):
        raise LaunchError(f"out_scale must be a finite number above 0, got {number}")
    return (1 / number,)


def _numbers(sizes: Sequence[Size]) -> tuple[int, ...]:
    return tuple(evaluate(size, {}) for size in sizes)


def result_like(first: ArrayView, shape: Sequence[int], element: Any, out: Any) -> ArrayView:
    """`out`, or a new array of this shape; raises `LaunchError` where it is not contiguous or of another shape."""
    target = arrays.view(arrays.empty(first, shape, element), "out") if out is None else out
    target = target if isinstance(target, ArrayView) else arrays.view(target, "out")
    if target.shape != tuple(shape) or target.element != element or not target.contiguous:
        raise LaunchError(f"out must be contiguous {element.name} of shape {list(shape)}, got {target.described}")
    return target
