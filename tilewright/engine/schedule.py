"""The host's schedule of an engine in parts, prepared once: slots and lifetimes of values, and steps.

    schedule = Schedule(graph, parts)
    results = schedule.run(arrays, symbols, call)     # of graph.results(), in order

A schedule has the meaning of `graph.reference.run_graph`.  Everything that does not change from call to call is
computed when it is made.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from tilewright.dtypes import HOST_ONLY
from tilewright.engine.taping import CallTape, LoopTape, NotFixedError, Rounds, TapePlace, TapeWriter, is_plain
from tilewright.errors import TilewrightError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.host_ops import extent_of, without_memory
from tilewright.graph.ops import ON_HOST, kind_of
from tilewright.graph.reference import (
    PreparedNode,
    bind,
    bind_all,
    concrete,
    described,
    interpret_part,
    last_uses,
    run_time_symbols,
    stacked,
)
from tilewright.runtime.on_device import OnDevice, as_row, host, is_on_gpu, joined
from tilewright.runtime.session import Frame, PlanSession, profile_buffer
from tilewright.runtime.shapes import check_conditions
from tilewright.runtime.signals import check_ended
from tilewright.symbolic import Expression, Symbol, evaluate, free_symbols, plain_symbol

_FRAMES = 1024  # combinations of sizes that a part keeps what follows from
_TAPED_FROM = 8  # rounds that a loop of new sizes runs one by one before a tape is made for it
_SMALL = 64  # elements of what is kept for each combination of sizes
_TAPES = 64  # combinations of sizes that a loop, or nodes in a row, keep tapes of
_TAPE_BYTES = 1 << 20  # of the memory of one tape of nodes in a row; with more, what Python takes matters little


@dataclass
class RunState:
    """What belongs to one run: its threads; `times` and `sizes` take up what is asked for.

    `like` is one of the caller's tensors in a GPU's memory: values stay there between the parts.
    """

    threads: int | None = None
    times: dict[int, list[float]] | None = None
    sizes: dict[str, int] | None = None
    like: Any = None

    def __post_init__(self) -> None:
        self.is_plain = self.times is None and self.sizes is None and self.like is None


class Parts:
    """The compiled parts: sessions, the graph of each, the numbers of their steps."""

    def __init__(
        self, sessions: Sequence[PlanSession], graph_of: Callable[[int], Graph], counts: Sequence[int]
    ) -> None:
        self.sessions, self.graph_of, self.counts = sessions, graph_of, counts


class _NodeStep(Protocol):
    """Runs a node: `arrays` are those of its inputs; `names` are the sizes that it reads."""

    names: frozenset[str]

    def run(self, arrays: list[Any], symbols: dict[str, int], call: RunState) -> Sequence[np.ndarray]: ...

    def write(self, writer: TapeWriter, places: list[TapePlace | None], symbols: dict[str, int]) -> Sequence[TapePlace]:
        """Add it to a tape, for known sizes. Raises `NotFixedError`."""
        ...


class Schedule:
    """A graph's nodes in order."""

    def __init__(self, graph: Graph, parts: Parts) -> None:
        self.graph = graph
        values = [*graph.inputs, *graph.constants, *(output for node in graph.nodes for output in node.outputs)]
        places = {value: place for place, value in enumerate(values)}
        constants = [_as(data, value) for value, data in graph.constants.items()]
        self._rest: list[Any] = [*constants, *[None] * (len(values) - len(graph.inputs) - len(constants) + 1)]
        self._types = [value.dtype.numpy for value in graph.inputs]
        last = last_uses(graph)
        self._units = [_step(node, parts) for node in graph.nodes]
        known, names, later = _of_sizes(graph)
        rows = [
            _Row(
                self._units[position],
                [None if value is None else places[value] for value in node.inputs],
                [places[value] for value in node.outputs],
                [places[value] for value in last.get(position, ())],
            )
            for position, node in enumerate(graph.nodes)
            if node not in known
        ]
        of_sizes = {id(unit) for unit, node in zip(self._units, graph.nodes, strict=True) if node in later}
        none = len(values)  # the place of what is left out
        self._steps = [
            (row.unit.run, [none if place is None else place for place in row.inputs], row.outputs, row.ended)
            for row in _in_groups(rows, of_sizes)
        ]
        self.names = frozenset().union(
            *(unit.names for unit in self._units), *(_names(value.shape) for value in graph.inputs)
        )
        self._steps_of_sizes = [
            (unit.run, [places[value] for value in node.inputs if value is not None], places[node.output])
            for unit, node in zip(self._units, graph.nodes, strict=True)
            if node in known
        ]
        self._sizes = sorted(names)
        self._rests: dict[tuple[int | None, ...], list[Any]] = {}  # by the values of sizes
        self._first = len(graph.inputs)
        self._results = [places[value] for value in graph.results()]

    @property
    def is_native(self) -> bool:
        """Whether a tape holds all nodes, if their sizes allow it."""
        return all(map(_is_native, self._units)) and not any(value.dtype in HOST_ONLY for value in self.graph.inputs)

    def run(self, arrays: Sequence[Any], symbols: dict[str, int], call: RunState, typed: bool = False) -> list[Any]:
        """The results for inputs in order, each an array or `OnDevice`; `symbols` takes up those that nodes tell.

        `typed`: whether the arrays have the inputs' element types.
        """
        values = (
            [*arrays]
            if typed
            else [
                array if array.dtype == dtype else array.astype(dtype)
                for array, dtype in zip(arrays, self._types, strict=True)
            ]
        )
        values += self._rest_for(symbols, call) if self._steps_of_sizes else self._rest
        for run, inputs, outputs, ended in self._steps:
            check_ended()
            results = run([values[place] for place in inputs], symbols, call)
            if len(outputs) == 1:
                (values[outputs[0]],) = results
            else:
                for place, result in zip(outputs, results, strict=True):
                    values[place] = result
            for place in ended:
                values[place] = None
        return [values[place] for place in self._results]

    def _rest_for(self, symbols: dict[str, int], call: RunState) -> list[Any]:
        """What follows the inputs, with what depends on nothing but sizes: computed once for each of their values."""
        key = tuple([symbols.get(name) for name in self._sizes])
        found = self._rests.get(key)
        if found is None:
            values = [*[None] * self._first, *self._rest]
            for run, inputs, output in self._steps_of_sizes:
                (result,) = run([values[place] for place in inputs], symbols, call)
                values[output] = result = np.asarray(result)
                result.flags.writeable = False  # it is copied where it is a result of the engine
            found = values[self._first :]
            if len(self._rests) >= _FRAMES:
                self._rests.clear()
            self._rests[key] = found
        return found

    def write(
        self, writer: TapeWriter, places: Sequence[TapePlace], symbols: dict[str, int]
    ) -> tuple[list[TapePlace], set[int]]:
        """Add the nodes to a tape: the places of results, and the ids of those that own a buffer of a node's."""
        if any(place.dtype != dtype for place, dtype in zip(places, self._types, strict=True)):
            raise NotFixedError("other types")
        found: dict[Value, TapePlace] = dict(zip(self.graph.inputs, places, strict=True))
        own: set[int] = set()
        for value, data in self.graph.constants.items():
            found[value] = writer.constant(_as(data, value))
        for node, unit in zip(self.graph.nodes, self._units, strict=True):
            outputs = unit.write(writer, [None if item is None else found[item] for item in node.inputs], symbols)
            found.update(zip(node.outputs, outputs, strict=True))
            own.update(map(id, outputs))
        return [found[value] for value in self.graph.results()], own


@dataclass
class _Row:
    """A step of a schedule: what runs it, and the places of values that it reads, gives, and reads as the last one."""

    unit: _NodeStep
    inputs: list[int | None]
    outputs: list[int]
    ended: list[int]


def _in_groups(rows: Sequence[_Row], of_sizes: set[int]) -> list[_Row]:
    """The rows, with some in a row as one: those that a tape may hold, and those `of_sizes` (ids of units) alone."""

    def group_of(row: _Row) -> type[_Nodes] | None:
        if id(row.unit) in of_sizes:
            return _NodesOfSizes
        return _Stretch if _is_native(row.unit) and None not in row.inputs else None

    found: list[_Row] = []
    for group, together in itertools.groupby(rows, group_of):
        some = list(together)
        found += some if group is None else [_as_one(some, group)]
    return found


def _is_native(unit: _NodeStep) -> bool:
    """Whether a tape holds a node, if its sizes allow it."""
    if isinstance(unit, _Branch):
        return unit.is_native
    return isinstance(unit, CompiledPart) and unit.session.native is not None


def _as_one(rows: Sequence[_Row], group: type[_Nodes]) -> _Row:
    """Some rows as one."""
    own = {place for row in rows for place in row.outputs}
    read = dict.fromkeys(place for row in rows for place in row.inputs if place is not None and place not in own)
    ended = {place for row in rows for place in row.ended}
    given = [place for row in rows for place in row.outputs if place not in ended]
    return _Row(group(rows, list(read), given), [*read], given, sorted(ended - own))


class _Nodes:
    """Nodes in a row, none of which has an input that is left out."""

    def __init__(self, rows: Sequence[_Row], inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self._rows, self._inputs, self._outputs = rows, inputs, outputs
        self.names = frozenset[str]().union(*(row.unit.names for row in rows))
        self._names = sorted(self.names)

    def run(self, arrays: list[Any], symbols: dict[str, int], call: RunState) -> Sequence[np.ndarray]:
        """The nodes one by one."""
        values = dict(zip(self._inputs, arrays, strict=True))
        for row in self._rows:
            results = row.unit.run([values[place] for place in row.inputs if place is not None], symbols, call)
            values.update(zip(row.outputs, results, strict=True))
        return [values[place] for place in self._outputs]

    def write(self, writer: TapeWriter, places: list[TapePlace | None], symbols: dict[str, int]) -> Sequence[TapePlace]:
        return self._written(symbols, writer, _present(places))[0]

    def _written(
        self, symbols: dict[str, int], writer: TapeWriter, places: list[TapePlace]
    ) -> tuple[list[TapePlace], set[int]]:
        values, own = dict(zip(self._inputs, places, strict=True)), set[int]()
        for row in self._rows:
            results = row.unit.write(writer, [None if item is None else values[item] for item in row.inputs], symbols)
            values.update(zip(row.outputs, results, strict=True))
            own.update(map(id, results))
        return [values[place] for place in self._outputs], own


class _NodesOfSizes(_Nodes):
    """Nodes of the host that compute with sizes alone: once for each of their values."""

    def __init__(self, rows: Sequence[_Row], inputs: Sequence[int], outputs: Sequence[int]) -> None:
        super().__init__(rows, inputs, outputs)
        self._found: dict[tuple[int | None, ...], Sequence[np.ndarray]] = {}

    def run(self, arrays: list[Any], symbols: dict[str, int], call: RunState) -> Sequence[np.ndarray]:
        key = tuple([symbols.get(name) for name in self._names])
        results = self._found.get(key)
        if results is None:
            results = list(map(np.asarray, super().run(arrays, symbols, call)))
            for result in results:
                result.flags.writeable = False
            if len(self._found) >= _FRAMES:
                self._found.clear()
            self._found[key] = results
        return results


class _Stretch(_Nodes):
    """Compiled parts and branches: with sizes that came before they are one native call."""

    def __init__(self, rows: Sequence[_Row], inputs: Sequence[int], outputs: Sequence[int]) -> None:
        super().__init__(rows, inputs, outputs)
        self._counts: dict[Hashable, int] = {}  # of runs with the same sizes, before there is a tape
        self._tapes: dict[Hashable, _Tapes | None] = {}

    def run(self, arrays: list[Any], symbols: dict[str, int], call: RunState) -> Sequence[np.ndarray]:
        if not call.is_plain:
            return super().run(arrays, symbols, call)
        key = tuple([symbols.get(name) for name in self._names]) if self._names else ()
        try:
            tapes = self._tapes[key]
        except KeyError:  # another thread may empty the table at any time
            tapes = self._new_tapes(key, arrays, symbols)
        results = None if tapes is None else self._natively(tapes, arrays, symbols, call)
        if tapes is None or results is None:
            return super().run(arrays, symbols, call)  # which says what is wrong, if anything is
        if tapes.sizes:
            symbols.update(tapes.sizes)
        return results

    def _natively(
        self, tapes: _Tapes, arrays: list[Any], symbols: Mapping[str, int], call: RunState
    ) -> list[np.ndarray] | None:
        """The results by a tape; None where none can be had, and where an index is wrong."""
        try:
            tape: CallTape | None = tapes.idle.pop()
        except IndexError:  # other threads run them
            tape = self._tape(arrays, dict(symbols))
        if tape is None:
            return None
        results = tape.run(arrays, call.threads)
        tapes.idle.append(tape)
        return results

    def _new_tapes(self, key: Hashable, arrays: Sequence[Any], symbols: Mapping[str, int]) -> _Tapes | None:
        """A tape for sizes that came often enough; None where there is none (yet)."""
        count = self._counts.pop(key, 0) + 1
        if count < _TAPED_FROM:
            if len(self._counts) >= _FRAMES:
                self._counts.clear()
            self._counts[key] = count
            return None
        known, found = dict(symbols), None
        tape = self._tape(arrays, known)
        if tape is not None and tape.bytes <= _TAPE_BYTES:
            found = _Tapes(deque([tape]), {name: known[name] for name in known.keys() - symbols.keys()})
        if len(self._tapes) >= _TAPES:
            self._tapes.clear()
        self._tapes[key] = found
        return found

    def _tape(self, arrays: Sequence[Any], symbols: dict[str, int]) -> CallTape | None:
        try:
            return CallTape(partial(self._written, symbols), arrays)
        except (NotFixedError, TilewrightError, LookupError, AttributeError):
            return None  # the nodes themselves raise what is an error


@dataclass
class _Tapes:
    """Those for the same sizes that no thread runs, and the sizes that their nodes give values."""

    idle: deque[CallTape]
    sizes: dict[str, int]


def _of_sizes(graph: Graph) -> tuple[dict[Node, None], set[str], set[Node]]:
    """The nodes that give a few numbers which follow from sizes that are known before the graph runs, and the names
    of those sizes; and the nodes whose numbers follow from sizes that the run itself finds."""
    run_time = run_time_symbols(graph)
    found: dict[Node, None] = {}
    later: set[Node] = set()
    names: set[str] = set()
    at_first, known = set(graph.constants), set(graph.constants)
    for node in graph.nodes:
        if node.op == "text":  # a constant
            found[node] = None
            continue
        if kind_of(node.op) in ON_HOST or not all(value in known for value in node.inputs):
            continue
        if not all(map(_is_small, node.outputs)):
            continue
        used = _names_of(node)
        known.add(node.output)
        if used & run_time or not all(value in at_first for value in node.inputs):
            later.add(node)
        else:
            found[node] = None
            at_first.add(node.output)
            names |= used
    return found, names, later


def _is_small(value: Value) -> bool:
    extents = [size for size in value.shape if isinstance(size, int)]
    return len(extents) == value.rank and math.prod(extents) <= _SMALL and value.dtype not in HOST_ONLY


def _names(item: Any) -> frozenset[str]:
    """The names of the sizes in an attribute or a shape."""
    return frozenset(each.name for each in _symbols(item))


def _names_of(node: Node) -> frozenset[str]:
    """The names of the sizes in a node's attributes and shapes."""
    shapes = [value.shape for value in (*node.inputs, *node.outputs) if value is not None]
    return _names((*node.attributes.values(), *shapes))


def _symbols(item: Any) -> set[Symbol]:
    """The sizes in an attribute or a shape."""
    if isinstance(item, tuple):
        return {each for part in item for each in _symbols(part)}
    return set(free_symbols(item)) if isinstance(item, Expression) else set()


def _as(data: Any, value: Value) -> np.ndarray:
    return np.asarray(data).astype(value.dtype.numpy, copy=False)


def _step(node: Node, parts: Parts) -> _NodeStep:
    kind = kind_of(node.op)
    if kind == "part":
        return CompiledPart(node, parts)
    if kind == "control":
        return _Branch(node, parts) if node.op == "if" else _LoopNode(node, parts)
    return _Extent(node) if node.op == "extent" else _Host(node)


class _Host:
    """An op that NumPy runs."""

    def __init__(self, node: Node) -> None:
        self._node, self.names = PreparedNode(node), _names_of(node)
        # An op of the host that reads something tells by `shape` what shape its result has, and does not read it.
        unread = ("shape",) if kind_of(node.op) == "host" and node.inputs else ()
        self._fixed = {key: item for key, item in node.attributes.items() if key in unread or not _has_sizes(item)}
        self._sizes = [(key, item) for key, item in node.attributes.items() if key not in self._fixed]

    def run(self, arrays: list[Any], symbols: dict[str, int], call: RunState) -> Sequence[np.ndarray]:
        attributes = self._fixed
        if self._sizes:
            attributes = attributes | {key: concrete(item, symbols, None) for key, item in self._sizes}
        given = arrays if call.like is None else list(map(host, arrays))
        return [self._node.run(given, attributes, symbols)]

    def write(self, writer: TapeWriter, places: list[TapePlace | None], symbols: dict[str, int]) -> Sequence[TapePlace]:
        raise NotFixedError(self._node.node.op)


class _Extent(_Host):
    """A size that an element tells."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._attributes, self._size = node.attributes, plain_symbol(node.attributes["size"])

    def run(self, arrays: list[Any], symbols: dict[str, int], call: RunState) -> Sequence[np.ndarray]:
        size = self._size
        if size is not None and size.name not in symbols:
            number = extent_of(host(arrays[0]), self._attributes)
            if size.low <= number <= size.high:
                symbols[size.name] = number
                return [without_memory(number)]
        return super().run(arrays, symbols, call)  # which says what is wrong


def _has_sizes(item: Any) -> bool:
    return isinstance(item, Expression) or (isinstance(item, tuple) and any(map(_has_sizes, item)))


# Compiled parts --------------------------------------------------------------------------------------


class CompiledPart:
    """A compiled part; with a size of 0 there is next to nothing to compute, and NumPy runs its graph."""

    def __init__(self, node: Node, parts: Parts) -> None:
        self.node, self.number = node, node.attributes["number"]
        self.session = parts.sessions[self.number]
        self._parts = parts
        self.names = _names_of(node) | set(self.session.plan.symbols)
        self._names = sorted(self.names)
        self._frames: dict[tuple[int | None, ...], Frame | bool] = {}

    def run(self, arrays: list[Any], symbols: dict[str, int], call: RunState) -> Sequence[np.ndarray]:
        if call.sizes is not None:
            call.sizes.update(symbols)
        frame = self.frame(arrays, symbols)
        if frame is False:
            return interpret_part(self._parts.graph_of(self.number), list(map(host, arrays)), symbols)
        if frame is True or not frame.takes(arrays):
            return self._checked(arrays, symbols, call)
        native = self.session.native
        assert native is not None
        plain = [array if is_plain(array) else np.array(array, order="C") for array in arrays]
        if call.times is None:
            return native.run_arrays(frame, plain, call.threads)
        buffer = profile_buffer(self._parts.counts[self.number])
        results = native.run_arrays(frame, plain, call.threads, buffer)
        spent = [(end - begin) / 1e6 for begin, end in zip(buffer, buffer[1:], strict=False)]
        before = call.times.get(self.number, [0.0] * len(spent))  # of earlier runs in a loop
        call.times[self.number] = [a + b for a, b in zip(before, spent, strict=True)]
        return results

    def write(self, writer: TapeWriter, places: list[TapePlace | None], symbols: dict[str, int]) -> Sequence[TapePlace]:
        frame = self.frame(places, symbols)
        given = [place for place in places if place is not None]
        if not isinstance(frame, Frame) or len(given) < len(places) or not frame.takes(given):
            raise NotFixedError("sizes that are checked at every call")
        assert self.session.native is not None
        return writer.call(self.session.native, frame, given)

    def frame(self, arrays: Sequence[Any], symbols: Mapping[str, int]) -> Frame | bool:
        """What follows from the sizes; False where there is nothing to compute, True where the session must look."""
        key = tuple([symbols.get(name) for name in self._names])
        found = self._frames.get(key)
        if found is None:
            found = self._new_frame(arrays, symbols)
            if len(self._frames) >= _FRAMES:
                self._frames.clear()
            self._frames[key] = found
        return found

    def _new_frame(self, arrays: Sequence[Any], symbols: Mapping[str, int]) -> Frame | bool:
        plan = self.session.plan
        carried = [evaluate(spec.shape[0], symbols) for spec in plan.inputs[len(arrays) :]]
        given = [evaluate(size, symbols) for value in self.node.outputs for size in value.shape]
        if 0 in carried or 0 in given or any(0 in array.shape for array in arrays):
            check_conditions(plan, symbols)
            return False
        native = self.session.native
        return (native is not None and native.frame(symbols)) or True

    def _checked(self, arrays: Sequence[Any], symbols: Mapping[str, int], call: RunState) -> list[Any]:
        """A run by name: of a GPU, and of inputs that do not fit, for the session's error."""
        specs = self.session.plan.inputs
        feeds = {
            spec.name: array.tensor if isinstance(array, OnDevice) else array
            for spec, array in zip(specs, arrays, strict=False)
        }
        for spec in specs[len(arrays) :]:  # that tell a size; nothing reads them
            feeds[spec.name] = np.empty(evaluate(spec.shape[0], symbols), np.bool_)
        results = self.session.run(feeds, None, call.threads, like=call.like)
        return [
            OnDevice(result, spec.dtype, tuple(result.shape)) if is_on_gpu(result) else result
            for spec, result in zip(self.session.plan.outputs, results.values(), strict=True)
        ]


# Graphs inside ---------------------------------------------------------------------------------------


class _InnerGraph:
    """A graph inside: it sees the symbols outside, and has those of its inputs' dimensions anew."""

    def __init__(self, graph: Graph, parts: Parts) -> None:
        self.graph, self._schedule = graph, Schedule(graph, parts)
        self.names, self.is_native = self._schedule.names, self._schedule.is_native
        sizes = [plain_symbol(size) for value in graph.inputs for size in value.shape]
        self._own = {size.name for size in sizes if size is not None}
        self._shapes = [value.shape for value in graph.inputs]
        self._described = [partial("%{} of {}".format, value.name, graph.name) for value in graph.inputs]

    def symbols(self, arrays: Sequence[np.ndarray | TapePlace], symbols: Mapping[str, int]) -> dict[str, int]:
        """The symbols inside, for inputs in order."""
        inner = dict(symbols)
        for name in self._own:
            inner.pop(name, None)
        bind_all(self._shapes, [array.shape for array in arrays], inner, self._described)
        return inner

    def run(self, arrays: Sequence[np.ndarray], symbols: Mapping[str, int], call: RunState) -> list[np.ndarray]:
        return self._schedule.run(arrays, self.symbols(arrays, symbols), call)

    def write(
        self, writer: TapeWriter, places: Sequence[TapePlace], symbols: Mapping[str, int]
    ) -> tuple[list[TapePlace], set[int]]:
        """As `Schedule.write`."""
        return self._schedule.write(writer, places, self.symbols(places, symbols))


class _Branch:
    """An `if`."""

    def __init__(self, node: Node, parts: Parts) -> None:
        self._node = node
        self._bodies = [_InnerGraph(node.attributes[name], parts) for name in ("otherwise", "then")]
        self.names = _names_of(node).union(*(body.names for body in self._bodies))
        self.is_native = all(body.is_native for body in self._bodies)

    def run(self, arrays: list[Any], symbols: dict[str, int], call: RunState) -> Sequence[np.ndarray]:
        results = self._bodies[bool(host(arrays[0]).reshape(-1)[0])].run(arrays[1:], symbols, call)
        return _bound(self._node, results, symbols)

    def write(self, writer: TapeWriter, places: list[TapePlace | None], symbols: dict[str, int]) -> Sequence[TapePlace]:
        condition, *given = _present(places)
        if condition.dtype != np.bool_:
            raise NotFixedError("a condition of another type")
        otherwise, then = self._bodies
        found = writer.choose(
            condition,
            lambda: then.write(writer, given, symbols),
            lambda: otherwise.write(writer, given, symbols),
        )
        return _bound(self._node, found, symbols)


class _LoopNode:
    """A `loop`: rounds of known sizes run on a tape, natively, others one by one."""

    def __init__(self, node: Node, parts: Parts) -> None:
        self._node, self._carried = node, node.attributes["carried"]
        self._body = _InnerGraph(node.attributes["body"], parts)
        self.names = _names_of(node) | self._body.names
        self._tapes: dict[Hashable, deque[LoopTape] | None] = {}

    def run(self, arrays: list[Any], symbols: dict[str, int], call: RunState) -> Sequence[np.ndarray]:
        node, carried = self._node, self._carried
        count, condition = map(host, arrays[:2])
        trips = None if count is None else int(count.reshape(-1)[0])
        going = condition is None or bool(condition.reshape(-1)[0])
        values, captured = arrays[2 : 2 + carried], arrays[2 + carried :]
        rows: list[list[np.ndarray]] = [[] for _ in node.outputs[carried:]]  # of any number of rounds
        iteration, true = 0, np.array(True)
        taped = call.is_plain
        while going and (trips is None or iteration < trips):
            found = self._natively(values, captured, iteration, trips, symbols, call) if taped else None
            if found is None:
                given = [np.array(iteration, np.int64), true, *values, *captured]
                following, *results = self._body.run(given, symbols, call)
                values, fresh = results[:carried], list(map(as_row, results[carried:]))
                going, iteration = bool(host(following).reshape(-1)[0]), iteration + 1
                taped &= iteration <= _TAPED_FROM
            else:
                values, fresh, going, iteration = found.values, found.rows, found.going, found.next
                taped = not found.refused
            for row, result in zip(rows, fresh, strict=True):
                row.append(result)
        stacks = [
            joined(row) or stacked(list(map(host, row)), output, symbols)
            for row, output in zip(rows, node.outputs[carried:], strict=True)
        ]
        return _bound(node, [*values, *stacks], symbols)

    def _natively(
        self,
        values: list[np.ndarray],
        captured: list[np.ndarray],
        first: int,
        trips: int | None,
        symbols: Mapping[str, int],
        call: RunState,
    ) -> Rounds | None:
        """Rounds from number `first` on a tape; None where there is none for these sizes (yet)."""
        shapes = [None if array is None else (array.shape, array.dtype) for array in (*values, *captured)]
        key = (*shapes, frozenset(symbols.items()))
        if key not in self._tapes:
            if first < _TAPED_FROM:
                return None
            if len(self._tapes) >= _TAPES:
                self._tapes.clear()
            made = self._tape(values, captured, symbols)
            self._tapes[key] = None if made is None else deque([made])
        idle = self._tapes.get(key)
        if idle is None:
            return None
        try:
            tape: LoopTape | None = idle.pop()
        except IndexError:  # other threads run them
            tape = self._tape(values, captured, symbols)
        if tape is None:
            return None
        found = tape.run(values, captured, first, trips, call.threads)
        idle.append(tape)
        return found

    def _tape(
        self, values: list[np.ndarray], captured: list[np.ndarray], symbols: Mapping[str, int]
    ) -> LoopTape | None:
        try:
            return LoopTape(partial(_written, self._body, symbols), values, captured)
        except (NotFixedError, TilewrightError, LookupError, AttributeError):
            return None  # the rounds themselves raise what is an error

    def write(self, writer: TapeWriter, places: list[TapePlace | None], symbols: dict[str, int]) -> Sequence[TapePlace]:
        """A loop in another one."""
        count, condition, *given = places
        values, captured = given[: self._carried], _present(given[self._carried :])
        if len(self._node.outputs) > self._carried or (count is not None and count.dtype != np.int64):
            raise NotFixedError("rows of a loop in another one")
        carried = writer.start(_present(values))
        body = partial(_written, self._body, symbols)
        writer.loop(body, count, carried, captured, condition)
        return _bound(self._node, carried, symbols)


def _written(
    body: _InnerGraph, symbols: Mapping[str, int], writer: TapeWriter, places: list[TapePlace]
) -> tuple[list[TapePlace], set[int]]:
    return body.write(writer, places, symbols)


def _present(places: Sequence[TapePlace | None]) -> list[TapePlace]:
    found = [place for place in places if place is not None]
    if len(found) < len(places):
        raise NotFixedError("optional inputs")
    return found


_Shaped = TypeVar("_Shaped", np.ndarray, TapePlace)


def _bound(node: Node, results: list[_Shaped], symbols: dict[str, int]) -> list[_Shaped]:
    """The results of a node with graphs inside, whose sizes are told to the graph outside."""
    for output, result in zip(node.outputs, results, strict=True):
        bind(output.shape, result.shape, symbols, partial(described, node, output))
    return results
