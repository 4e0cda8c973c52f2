"""Code that takes different paths for different sizes: each path is exported, and every call takes its own.

    if x.shape[1] % 2:      # one export takes one path
        x = F.pad(x, (0, 1))

Conditions on sizes that an export took for granted say for which sizes it holds. For one of the other sizes the module
is exported again, until all sizes of the ranges have a path. A table of the paths by sizes chooses between them at each
call; a loop over a size has a path for each number of rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch.export import ExportedProgram

from tilewright.dtypes import DType, int64
from tilewright.errors import ImportModelError, UnsupportedOperationError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import normalize
from tilewright.graph.verifier import verify
from tilewright.importers.emitter import Emitter
from tilewright.importers.shapes import Axes, Dimension
from tilewright.importers.torch_data_conditions import NO_LINE, Assumption
from tilewright.importers.torch_result_kinds import Sizes, share_outputs
from tilewright.importers.torch_size_conditions import evaluated
from tilewright.symbolic import Size, evaluate, free_symbols, lift, lower_bound, simplify, substitute, symbol

_MOST_PATHS = 16
_MOST_FAILURES = 8  # exports of other sizes, which the model may not take
_MOST_WAY_SIZES = 1 << 22  # combinations of sizes
_COMPARED_SIZES = 1024  # sizes for which formulas are compared


@dataclass(frozen=True)
class CodePath:
    """A program, decomposed, and what it takes for granted of sizes; `fixed` dimensions have one size in it."""

    program: ExportedProgram
    assumed: Sequence[Assumption]
    names: Mapping[str, str]  # of inputs that have others in the program
    sizes: Sizes  # of the example
    returned: Any  # what the module itself returned, for the objects in it
    fixed: frozenset[str] = frozenset()

    def symbols(self, axes: Mapping[str, Axes]) -> dict[Any, str] | None:
        """The dimension of each symbol of the program; None where a size of an input is no dimension of its own."""
        found: dict[Any, str] = {}
        for node in self.program.graph.find_nodes(op="placeholder"):
            known = axes.get(self.names.get(node.name, node.name), {})
            for axis, extent in enumerate(getattr(node.meta.get("val"), "shape", ())):
                if not isinstance(extent, torch.SymInt):
                    continue
                entry = known.get(axis)
                if not isinstance(entry, Dimension) or entry.derived or not extent.node.expr.is_Symbol:
                    return None
                found[extent.node.expr] = entry.name
        return found


class Exports(Protocol):
    """Exports the module again."""

    def export(self, sizes: Sizes, fixed: frozenset[str]) -> CodePath:
        """The module for an example of these sizes."""

    def graph(self, exported: CodePath, checked: bool) -> Graph:
        """Its graph; `checked`: every call checks what it takes for granted."""


@dataclass
class _CodePaths:
    """The paths that are known, and the sizes that each takes."""

    axes: Mapping[str, Axes]
    ranges: Mapping[str, Dimension]
    found: list[CodePath] = field(default_factory=list)
    places: dict[str, None] = field(default_factory=dict)  # the lines that ask

    @cached_property
    def names(self) -> list[str]:
        """The dimensions that paths depend on."""
        found = {name for name, entry in self.ranges.items() if entry.low == 0}
        for path in self.found:
            symbols = path.symbols(self.axes) or {}
            found |= path.fixed
            found |= {symbols[each] for one in path.assumed for each in one.condition.free_symbols if each in symbols}
        return sorted(found)

    @cached_property
    def grid(self) -> dict[str, np.ndarray]:
        """All combinations of their sizes. Raises `ValueError` for too many."""
        if math.prod(self.ranges[name].high - self.ranges[name].low + 1 for name in self.names) > _MOST_WAY_SIZES:
            raise ValueError("too many sizes")
        choices = [np.arange(self.ranges[name].low, self.ranges[name].high + 1) for name in self.names]
        return dict(zip(self.names, np.meshgrid(*choices, indexing="ij"), strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        return next(iter(self.grid.values())).shape if self.names else ()

    def sizes_of(self, path: CodePath) -> np.ndarray:
        """The sizes that a path takes. Raises `TypeError` for a condition that cannot be told, `ValueError`."""
        symbols = path.symbols(self.axes)
        if symbols is None:
            raise ValueError("sizes that follow from others")
        values = {symbol: self.grid[name] for symbol, name in symbols.items() if name in self.grid}
        found = np.ones(self.shape, bool)
        for each in path.assumed:
            if not each.condition.free_symbols <= values.keys():
                raise ValueError("numbers in tensors")
            found = found & np.broadcast_to(evaluated(each.condition, values), self.shape)
        for name in self.names:
            if name in path.fixed:
                found = found & (self.grid[name] == path.sizes[name])
            else:
                found = found & (self.grid[name] > 0)
        return found

    def put(self, *paths: CodePath) -> None:
        """Let these be the paths."""
        self.found = list(paths)
        self.places.update((each.place, None) for path in paths for each in path.assumed)
        for name in ("names", "grid"):
            self.__dict__.pop(name, None)

    def table(self) -> np.ndarray:
        """The path of each combination of sizes; -1 where there is none."""
        table = np.full(self.shape, -1, np.int64)
        for number, path in reversed(list(enumerate(self.found))):
            table[self.sizes_of(path)] = number
        return table

    def only_sizes(self, path: CodePath) -> frozenset[str]:
        """The dimensions of which a path takes one size."""
        accepted = self.sizes_of(path)
        several = [name for name in self.names if self.ranges[name].low < self.ranges[name].high]
        return frozenset(name for name in several if (self.grid[name][accepted] == path.sizes[name]).all())


def by_code_paths(first: CodePath, axes: Mapping[str, Axes], exports: Exports) -> Graph | None:
    """The graph of all paths through the code; None where there is one, or where they cannot be told apart.

    `first` is the example's path, `axes` are the dynamic dimensions.
    """
    entries = (entry for each in axes.values() for entry in each.values())
    paths = _CodePaths(axes, {entry.name: entry for entry in entries if isinstance(entry, Dimension)})
    others: list[tuple[CodePath, Graph]] = []
    with suppress(TypeError, ValueError, OverflowError):
        paths.put(first)
        paths.put(_alone(paths, first, exports))
        _search(paths, exports)
        others = [(path, graph) for path in paths.found[1:] if (graph := _graph(path, exports)) is not None]
    if not others:
        return None
    paths.put(paths.found[0], *(path for path, _ in others))
    table = paths.table()
    example = exports.graph(paths.found[0], checked=bool((table < 0).any()))
    return _joined(paths, table, [example, *(graph for _, graph in others)])


def _graph(path: CodePath, exports: Exports) -> Graph | None:
    """The graph of a path; None where it has operations that are not supported."""
    try:
        return exports.graph(path, checked=False)
    except (ImportModelError, UnsupportedOperationError):
        return None


def _alone(paths: _CodePaths, path: CodePath, exports: Exports) -> CodePath:
    """A path whose dimensions of one size are fixed."""
    fixed = paths.only_sizes(path)
    return exports.export(path.sizes, fixed) if fixed > path.fixed else path


def _search(paths: _CodePaths, exports: Exports) -> None:
    """Find paths for the sizes that have none, the nearest to the example first."""
    tried: list[Sizes] = []
    failed = 0
    while len(paths.found) < _MOST_PATHS and failed < _MOST_FAILURES:
        table = paths.table()
        counts = np.bincount(table[table >= 0], minlength=1)
        if len(paths.found) > 1 and counts.max() * _MOST_PATHS < table.size:
            paths.put(paths.found[0])  # there are too many
            return
        sizes = _nearest(paths, table < 0, tried)
        if sizes is None:
            return
        tried.append(sizes)
        before = list(paths.found)
        fixed = frozenset(name for name in paths.names if sizes[name] < 2 or _is_counted(paths, name))
        if not any(_takes_up(paths, before, sizes, each, exports) for each in (fixed, frozenset(paths.names))):
            paths.put(*before)
            failed += 1


def _is_counted(paths: _CodePaths, name: str) -> bool:
    """Whether each path found has one size of a dimension, as those of a loop over it do."""
    return len(paths.found) > 1 and all(name in path.fixed for path in paths.found)


def _takes_up(
    paths: _CodePaths, before: Sequence[CodePath], sizes: Sizes, fixed: frozenset[str], exports: Exports
) -> bool:
    """Add the path of some sizes; whether it takes them."""
    try:
        path = exports.export(sizes, fixed)
        paths.put(*before, path)
        path = _alone(paths, path, exports)
        paths.put(*before, path)
        return bool(paths.sizes_of(path)[_place(paths, sizes)])
    except Exception:  # the model may not take these sizes
        return False


def _place(paths: _CodePaths, sizes: Sizes) -> tuple[int, ...]:
    return tuple(sizes[name] - paths.ranges[name].low for name in paths.names)


def _nearest(paths: _CodePaths, missing: np.ndarray, tried: Sequence[Sizes]) -> dict[str, int] | None:
    """Sizes without a path that were not tried, the nearest to the example."""
    missing = missing.copy()
    for sizes in tried:
        missing[_place(paths, sizes)] = False
    places = np.argwhere(missing)
    if not len(places):
        return None
    first = paths.found[0].sizes
    near = places[np.abs(places - np.array(_place(paths, first))).sum(1).argmin()]
    return {**first, **{n: int(at) + paths.ranges[n].low for n, at in zip(paths.names, near, strict=True)}}


# One graph of all ---------------------------------------------------------------------------------------------


def _joined(paths: _CodePaths, table: np.ndarray, graphs: Sequence[Graph]) -> Graph:
    """A graph that looks its sizes up, and takes their path; the example's, which refuses them, where there is none."""
    symbols = {name: symbol(name, entry.low, entry.high) for name, entry in paths.ranges.items()}
    inputs = _inputs(graphs, symbols, paths.axes)
    mutated = list(dict.fromkeys(value.name for graph in graphs for value in graph.mutations))
    accepted = [_some(paths, table == number) for number in range(len(graphs))]
    kinds = share_outputs(graphs, accepted)
    for graph in graphs:
        _as_inside(graph, inputs, mutated)
    types = _types(accepted, graphs, symbols)
    joined = _chosen(paths, table, graphs, range(len(graphs)), inputs, types)
    _facts(joined, graphs, mutated)
    if kinds is not None:
        joined.results_of = kinds
        joined.remarks.append(
            "results differ in kind between sizes: the outputs of all kinds are there, and "
            f"{joined.output_names[-1]!r} is the number of the call's kind"
        )
    joined.remarks.append(
        f"the path through the code depends on sizes: {len(graphs)} paths are in the engine, one of which a call "
        f"takes: {_places(paths)}"
    )
    verify(joined)
    return joined


def _chosen(
    paths: _CodePaths,
    table: np.ndarray,
    graphs: Sequence[Graph],
    numbers: range,
    inputs: Sequence[Value],
    types: Sequence[tuple[DType, tuple[Size | None, ...]]],
) -> Graph:
    """A graph of some paths, by number, that halves them until one is left."""
    if len(numbers) == 1:
        return graphs[numbers[0]]
    middle = len(numbers) // 2
    before, others = (
        _chosen(paths, table, graphs, part, inputs, types) for part in (numbers[:middle], numbers[middle:])
    )
    builder = GraphBuilder(graphs[0].name)
    emit = Emitter(builder)
    emit.source = _places(paths)
    for name, entry in paths.ranges.items():
        builder.symbol(name, entry.low, entry.high)
    given = [builder.input(value.name, value.dtype, value.shape) for value in inputs]
    own = tuple(
        (dtype, tuple(builder.run_time_symbol(f"way_{numbers[middle]}") if size is None else size for size in shape))
        for dtype, shape in types
    )
    is_before = emit.op("less", emit.cast(_looked_up(emit, paths, table), int64), numbers[middle])
    made = builder.node("if", [is_before, *given], source=emit.source, then=before, otherwise=others, types=own)
    for value, name in zip(made.outputs, graphs[0].output_names, strict=True):
        builder.output(value, name)
    return builder.graph


def _places(paths: _CodePaths) -> str:
    places = [place for place in paths.places if place != NO_LINE] or [NO_LINE]
    return "; ".join(places[:3]) + ("; …" if len(places) > 3 else "")


def _inputs(graphs: Sequence[Graph], symbols: Mapping[str, Size], axes: Mapping[str, Axes]) -> list[Value]:
    """The inputs of all graphs, in order, with sizes of whole ranges."""
    found: dict[str, Value] = {}
    seeds = {graph.seed for graph in graphs}
    for graph in graphs:
        for value in graph.inputs:
            shape: list[Size] = list(value.shape)
            for axis, entry in axes.get(value.name, {}).items():
                if isinstance(entry, Dimension):
                    shape[axis % len(shape)] = symbols[entry.name]
            found.setdefault(value.name, Value(value.name, value.dtype, tuple(shape)))
    return sorted(found.values(), key=lambda value: value.name in seeds)  # the seed is the last


def _as_inside(graph: Graph, inputs: Sequence[Value], mutated: Sequence[str]) -> None:
    """Give a graph all inputs, and what it writes to them as further outputs."""
    own = {value.name: value for value in graph.inputs}
    written = {target.name: value for target, value in graph.mutations.items()}
    for value in inputs:
        if value.name not in own:
            own[value.name] = Value(value.name, value.dtype, value.shape)
            for each in (each for size in value.shape for each in free_symbols(size)):
                graph.symbols.setdefault(each.name, each)
    graph.inputs = [own[value.name] for value in inputs]
    graph.mutations = {}
    for name in mutated:
        value = written.get(name, own[name])
        if value in graph.inputs or value in graph.outputs or value in graph.constants:
            copied = Value(f"{name}_kept", value.dtype, value.shape)
            graph.nodes.append(Node("copy", [value], [copied], normalize("copy", [value], {})))
            value = copied
        graph.outputs.append(value)
        graph.output_names.append(f"{name}_after")


def _types(
    accepted: Sequence[Sequence[Sizes]], graphs: Sequence[Graph], symbols: Mapping[str, Size]
) -> list[tuple[DType, tuple[Size | None, ...]]]:
    """The types of results; None for a size that no formula tells for all paths; `accepted` are sizes of each."""
    return [
        (
            values[0].dtype,
            tuple(_formula(sizes, accepted, symbols) for sizes in zip(*(v.shape for v in values), strict=True)),
        )
        for values in zip(*(graph.outputs for graph in graphs), strict=True)
    ]


def _some(paths: _CodePaths, chosen: np.ndarray) -> list[dict[str, int]]:
    """Some of the sizes in a part of the table, with random ones of dimensions on which no path depends."""
    places = np.argwhere(chosen)
    generator = np.random.default_rng(0)
    if len(places) > _COMPARED_SIZES:  # at random, as remainders of sizes would be the same at regular distances
        places = places[generator.choice(len(places), _COMPARED_SIZES, replace=False)]
    found = []
    for at in places:
        sizes = {n: int(generator.integers(each.low, each.high, endpoint=True)) for n, each in paths.ranges.items()}
        found.append({**sizes, **{n: int(p) + paths.ranges[n].low for n, p in zip(paths.names, at, strict=True)}})
    return found


def _formula(sizes: Sequence[Size], accepted: Sequence[Sequence[Sizes]], symbols: Mapping[str, Size]) -> Size | None:
    """A formula for a size of a result that holds for all paths; `sizes` are those of the paths."""
    if any(each.name not in symbols for size in sizes for each in free_symbols(size)):
        return None
    outside = [substitute(size, symbols) for size in sizes]
    for formula in dict.fromkeys(outside):
        with suppress(ZeroDivisionError):  # a formula for other sizes
            if lower_bound(formula) < 0:
                continue
            if all(simplify(lift(other) - formula) == 0 for other in outside):
                return formula
            pairs = ((size, at) for size, known in zip(outside, accepted, strict=True) for at in known)
            if all(evaluate(size, at) == evaluate(formula, at) for size, at in pairs):
                return formula
    return None


def _looked_up(emit: Emitter, paths: _CodePaths, table: np.ndarray) -> Value:
    """The path of a call's sizes."""
    place: Size = 0
    for axis, name in enumerate(paths.names):
        entry, first = paths.ranges[name], np.take(table, [0], axis)
        if (table == first).all():
            table = first  # the dimension makes no difference
        else:
            place = simplify(lift(place) * table.shape[axis] + symbol(name, entry.low, entry.high) - entry.low)
    numbers = emit.constant(table.reshape(-1).astype(np.int8), "paths")
    return emit.op("gather", numbers, emit.value(place, int64), axis=0)


def _facts(joined: Graph, graphs: Sequence[Graph], mutated: Sequence[str]) -> None:
    """Give the graph of all paths what is known of each: what it writes, remarks, fixed arguments, results."""
    first = graphs[0]
    values = {value.name: value for value in joined.inputs}
    count = len(joined.outputs) - len(mutated)
    joined.mutations = {values[name]: value for name, value in zip(mutated, joined.outputs[count:], strict=True)}
    joined.outputs, joined.output_names = joined.outputs[:count], joined.output_names[:count]
    joined.seed = next((graph.seed for graph in graphs if graph.seed), None)
    joined.fixed, joined.results_of = first.fixed, first.results_of
    joined.remarks = list(dict.fromkeys(remark for graph in graphs for remark in graph.remarks))
