"""Runs an engine of several parts: the host's work between them, and the sizes that it determines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright import dtypes, forks
from tilewright.dtypes import int1, string
from tilewright.engine.schedule import Parts, RunState, Schedule
from tilewright.errors import EngineError, InputError, ShapeError, TilewrightError
from tilewright.graph.core import Graph, Value
from tilewright.graph.host_values import host_array, returned, returning
from tilewright.graph.ops import kind_of
from tilewright.runtime import tensors
from tilewright.runtime.on_device import OnDevice, host, is_on_gpu, on_device, viewed
from tilewright.runtime.plan import Plan, TensorSpec
from tilewright.runtime.repeated_calls import KnownCalls
from tilewright.runtime.session import PlanSession
from tilewright.runtime.shapes import Shapes, check_mapping
from tilewright.runtime.tensors import TensorView
from tilewright.symbolic import free_symbols


class StagedSession:
    """A loaded engine of parts. Several threads may call `run` at once."""

    def __init__(
        self,
        plan: Plan,
        graph: Graph,
        sessions: Sequence[PlanSession],
        part: Callable[[int], Graph],
        counts: Sequence[int],
    ) -> None:
        """`plan` says what the engine takes and gives, `graph` what the host runs; `sessions` are those of the parts,
        `part` gives the graph of one, `counts` are their numbers of steps."""
        self.plan = plan
        self._graph = graph
        self._sessions = sessions
        self._part = part
        self._counts = counts
        self._schedule = Schedule(graph, Parts(sessions, self._graph_of, counts))
        of_inputs = {symbol.name for spec in plan.inputs for size in spec.shape for symbol in free_symbols(size)}
        symbols = {name: symbol for name, symbol in plan.symbols.items() if name in of_inputs}
        self._shapes = Shapes(dataclasses.replace(plan, symbols=symbols))
        self._symbols = tuple(symbols)
        known = [dtypes.ANY_BY_NAME[spec.dtype] for spec in plan.inputs]
        self._host_only = [dtype if dtype in dtypes.HOST_ONLY else None for dtype in known]
        self._ordinal = next((session.ordinal for session in sessions if session.ordinal is not None), None)
        readers = {
            spec.name: partial(host_array, dtype=string, name=spec.name)
            for spec in plan.inputs
            if spec.dtype == string.name
        }
        self._known: KnownCalls[dict[str, int]] = KnownCalls(plan, readers)
        places = {value: place for place, value in enumerate(graph.results())}
        self._results = [
            (spec.name, places[value], None if spec.dtype in dtypes.BY_NAME else _as_given(value, graph))
            for spec, value in zip(plan.outputs, graph.outputs, strict=True)
        ]
        self._states: dict[int | None, RunState] = {}  # of runs that ask for nothing more, by their threads
        self._mutated = [number for number, spec in enumerate(plan.inputs) if spec.mutates is not None]
        self._graphs: dict[int, Graph] = {}
        self._lock = forks.lock()

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, threads: int | None = None
    ) -> dict[str, Any]:
        """Outputs by name, as `runtime.session.Session.run`."""
        known = None if out else self._known.find(inputs)
        if known is not None:
            symbols, arrays = known
            return self._run_known(dict(symbols), arrays, threads)
        return self._run(inputs, out, threads, None, None)

    def symbols(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """The values of all sizes for these inputs, of those too that only a run knows."""
        found: dict[str, int] = {}
        self._run(inputs, None, None, None, found)
        return found

    def step_times(self, inputs: Mapping[str, Any], runs: int, threads: int | None, steps: int) -> list[list[float]]:
        """Milliseconds of every step, those of all parts one after the other, run by run."""
        if any(session.native is None for session in self._sessions):
            raise EngineError("steps of an engine in parts are timed on a CPU only: build it for target='cpu'")
        times = []
        for _ in range(runs + 1):  # the first warms up
            found: dict[int, list[float]] = {}
            self._run(inputs, None, threads, found, None)
            row = [found.get(number, [0.0] * count) for number, count in enumerate(self._counts)]
            times.append([milliseconds for part in row for milliseconds in part])
        return times[1:]

    def _run(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, Any] | None,
        threads: int | None,
        times: dict[int, list[float]] | None,
        sizes: dict[str, int] | None,
    ) -> dict[str, Any]:
        """One run; `times` and `sizes` take up what is asked for."""
        if out is not None and type(out) is not dict:
            check_mapping(out, "out")
        out = out or {}
        if out:
            self._shapes.check_out(inputs, out)
        arrays, places = self._views(inputs)
        symbols = dict(zip(self._symbols, self._shapes.symbols(arrays), strict=True))
        of_call = dict(symbols)
        given = self._given(places, out)
        like = next((array.tensor for array in arrays if isinstance(array, OnDevice)), None)
        found = self._executed(arrays, symbols, RunState(threads, times, sizes, like))
        if like is None:
            self._known.add([array.shape for array in arrays], of_call)
        if sizes is not None:
            sizes.update(symbols)
        # What is written below must not change what is still to be read: views of updated inputs become copies.
        written = [arrays[number] for number in self._mutated]
        values = {value: _apart(array, written) for value, array in zip(self._graph.results(), found, strict=True)}
        self._check_results(given, [values[value].shape for value in self._graph.outputs])
        tensors.track_updates(self._shapes.updated(inputs, out))
        for target, value in self._graph.mutations.items():
            number = self._graph.inputs.index(target)
            _fill(arrays[number], values[value])
        return self._outputs(inputs, arrays, [values[value] for value in self._graph.outputs], given, out)

    def _run_known(self, symbols: dict[str, int], arrays: list[np.ndarray], threads: int | None) -> dict[str, Any]:
        """Outputs by name, of arrays that were looked at; `symbols` are those of their shapes."""
        state = self._states.get(threads) or self._states.setdefault(threads, RunState(threads))
        found = self._executed(arrays, symbols, state, typed=True)
        in_use = set(map(id, arrays))
        return {
            name: _owned(found[place], in_use) if as_given is None else as_given(found[place])
            for name, place, as_given in self._results
        }

    def _executed(
        self, arrays: Sequence[Any], symbols: dict[str, int], call: RunState, typed: bool = False
    ) -> list[Any]:
        """What the schedule gives; errors of host operations say that the inputs do not fit."""
        try:
            return self._schedule.run(arrays, symbols, call, typed)
        except TilewrightError:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise InputError(
                f"the model does not take these inputs: {type(error).__name__}: {str(error)[:300]}"
            ) from error

    def _views(self, inputs: Mapping[str, Any]) -> tuple[list[Any], list[TensorView | None]]:
        """The inputs, checked: arrays, `OnDevice`, and arrays of what is no number; and where tensors lie."""
        self._shapes.check_names(inputs)
        arrays: list[Any] = []
        places: list[TensorView | None] = []
        for spec, dtype in zip(self.plan.inputs, self._host_only, strict=True):
            value = inputs[spec.name]
            if dtype is not None:
                arrays.append(host_array(value, dtype, spec.name))
                places.append(None)
                continue
            array, place = self._view(value, spec, "input")
            if spec.mutates is not None:
                tensors.check_writable(place, value, f"input {spec.name!r}")
            arrays.append(array)
            places.append(place)
        return arrays, places

    def _view(self, value: Any, spec: TensorSpec, role: str) -> tuple[np.ndarray | OnDevice, TensorView]:
        """A caller's tensor, and where it lies."""
        if is_on_gpu(value) and (self._ordinal is not None or not self._sessions):
            return viewed(value, spec.name, spec.dtype, self._ordinal, role)
        place = tensors.view(value, spec.name, spec.dtype, role)
        return tensors.as_array(place), place

    def _given(self, places: Sequence[TensorView | None], out: Mapping[str, Any]) -> dict[str, np.ndarray | OnDevice]:
        """The memory for outputs, which shares none with inputs, as the updated inputs do not."""
        given, owned = {}, []
        for spec in self.plan.outputs:
            memory = None if spec.mutates is not None else out.get(spec.name)
            if memory is not None:
                if spec.dtype not in dtypes.BY_NAME:
                    raise InputError(f"out: output {spec.name!r} is {spec.dtype}, for which no memory can be given")
                given[spec.name], place = self._view(memory, spec, "out: output")
                tensors.check_writable(place, memory, f"output {spec.name!r}", is_output=True)
                owned.append(place)
        if given or self._mutated:
            known = {number: place for number, place in enumerate(places) if place is not None}
            written = [*map(list(known).index, self._mutated), *range(len(known), len(known) + len(given))]
            names = [f"input {self.plan.inputs[number].name!r}" for number in known]
            names += [f"output {name!r}" for name in given]
            tensors.check_overlaps([*known.values(), *owned], names, written)
        return given

    def _check_results(self, given: Mapping[str, np.ndarray | OnDevice], shapes: Sequence[tuple[int, ...]]) -> None:
        """Raise `ShapeError`, before anything is written, for memory of another shape than the result's."""
        for spec, shape in zip(self.plan.outputs, shapes, strict=True):
            if spec.name in given and given[spec.name].shape != shape:
                raise ShapeError(
                    f"out: output {spec.name!r} has shape {list(shape)}, got {list(given[spec.name].shape)}"
                )

    def _graph_of(self, number: int) -> Graph:
        with self._lock:
            if number not in self._graphs:
                self._graphs[number] = self._part(number)
            return self._graphs[number]

    def _outputs(
        self,
        inputs: Mapping[str, Any],
        arrays: Sequence[Any],
        results: Sequence[Any],
        given: Mapping[str, np.ndarray | OnDevice],
        out: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Results by name, in memory of their own or in that of the caller."""
        like = next(iter(inputs.values()), None)
        in_use = {id(array) for array in arrays}
        found: dict[str, Any] = {}
        for spec, result in zip(self.plan.outputs, results, strict=True):
            if spec.mutates is not None:
                found[spec.name] = inputs[spec.mutates]
            elif spec.dtype not in dtypes.BY_NAME:
                found[spec.name] = returned(result, dtypes.ANY_BY_NAME[spec.dtype])
            elif spec.name in given:
                _fill(given[spec.name], result)
                found[spec.name] = out[spec.name]
            elif is_on_gpu(like):
                own = result if isinstance(result, OnDevice) else on_device(result, spec.dtype, like)
                found[spec.name] = (own.copy() if id(own) in in_use else own).tensor
                in_use.add(id(own))
            elif tensors.is_torch(like):
                memory = tensors.allocate(like, spec.dtype, result.shape)
                tensors.as_array(tensors.view(memory, spec.name, spec.dtype))[...] = host(result)
                found[spec.name] = memory
            else:
                found[spec.name] = tensors.finish(_owned(result, in_use), like)
        return found


def _as_given(value: Value, graph: Graph) -> Callable[[Any], Any]:
    """What makes of a result that is no tensor of numbers what callers get: dictionaries that the run made for one
    result alone are given as they are."""
    maker = next((node for node in graph.nodes if value in node.outputs), None)
    alone = graph.outputs.count(value) == 1 and not any(value in node.inputs for node in graph.nodes)
    return np.ndarray.tolist if maker is not None and maker.op == "zip_map" and alone else returning(value.dtype)


_OWN = 0x0405  # flags of arrays: contiguous in the order of C, with memory of its own, writeable


def _owned(result: Any, in_use: set[int]) -> np.ndarray:
    """A result as an array with memory of its own, which joins those `in_use`, by their ids."""
    array = result if type(result) is np.ndarray else host(result)
    if array.flags.num & _OWN != _OWN or id(array) in in_use:
        array = np.array(array, order="C")
    in_use.add(id(array))
    return array


def _apart(value: Any, written: Sequence[Any]) -> Any:
    """The value, or a copy where it may be a view of what is written."""
    if isinstance(value, OnDevice):
        return value.copy() if any(value is other for other in written) else value
    arrays = [other for other in written if isinstance(other, np.ndarray)]
    return value.copy() if any(np.may_share_memory(value, other) for other in arrays) else value


def _fill(memory: np.ndarray | OnDevice, values: Any) -> None:
    """Write to a caller's tensor."""
    if isinstance(memory, OnDevice):
        memory.fill(values)
    else:
        memory[...] = host(values)


def check_graph(graph: Graph, plan: Plan, parts: Sequence[Plan]) -> None:
    """Raise `ValueError` unless the graph takes and gives what `plan` says, and its `part` nodes fit the parts."""
    inputs = [(value.name, value.dtype.name, value.shape, value in graph.mutations) for value in graph.inputs]
    outputs = [
        (name, value.dtype.name, value.shape) for name, value in zip(graph.output_names, graph.outputs, strict=True)
    ]
    same = inputs == [(spec.name, spec.dtype, spec.shape, spec.mutates is not None) for spec in plan.inputs]
    if not same or outputs != [(spec.name, spec.dtype, spec.shape) for spec in plan.outputs]:
        raise ValueError("the plan is of another graph")
    updated = {target.name: value for target, value in graph.mutations.items()}
    for spec, value in zip(plan.outputs, graph.outputs, strict=True):
        if spec.mutates is not None and updated.get(spec.mutates) is not value:
            raise ValueError(f"the output {spec.name[:80]!r} is not the updated input that the plan says")
    _check_parts(graph, parts)


def _check_parts(graph: Graph, parts: Sequence[Plan]) -> None:
    for node in graph.nodes:
        if kind_of(node.op) == "part":
            number = node.attributes["number"]
            if type(number) is not int or not 0 <= number < len(parts):
                raise ValueError(f"there is no part {str(number)[:80]}")
            plan, read = parts[number], [value.dtype.name for value in node.inputs if value is not None]
            carriers = plan.inputs[len(read) :]
            fits = len(node.inputs) == len(read) and read == [spec.dtype for spec in plan.inputs[: len(read)]]
            fits &= all(spec.dtype == int1.name and len(spec.shape) == 1 for spec in carriers)
            fits &= all(spec.mutates is None for spec in plan.inputs)
            if not fits or [value.dtype.name for value in node.outputs] != [spec.dtype for spec in plan.outputs]:
                raise ValueError(f"part {number} takes and gives other tensors than its node")
        for item in node.attributes.values():
            if isinstance(item, Graph):
                _check_parts(item, parts)
