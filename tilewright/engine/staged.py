"""Running an engine of several parts: what the host computes between them, and the sizes that it tells."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import dtypes
from tilewright.errors import EngineError, InputError, ShapeError, TilewrightError
from tilewright.graph.core import Graph, Node
from tilewright.graph.ops import kind_of
from tilewright.graph.reference import interpret_part, run_graph
from tilewright.runtime import tensors
from tilewright.runtime.plan import Plan
from tilewright.runtime.session import profile_buffer
from tilewright.runtime.shapes import Shapes, check_mapping
from tilewright.symbolic import evaluate, free_symbols

if TYPE_CHECKING:
    from tilewright.runtime.cuda.session import CudaSession
    from tilewright.runtime.session import Session


class StagedSession:
    """A loaded engine of parts. Several threads may call `run` at once."""

    def __init__(
        self,
        plan: Plan,
        graph: Graph,
        sessions: Sequence[Session | CudaSession],
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
        told = {symbol.name for spec in plan.inputs for size in spec.shape for symbol in free_symbols(size)}
        symbols = {name: symbol for name, symbol in plan.symbols.items() if name in told}
        self._shapes = Shapes(dataclasses.replace(plan, symbols=symbols, outputs=[]))
        self._symbols = tuple(symbols)
        self._graphs: dict[int, Graph] = {}
        self._lock = threading.Lock()

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, threads: int | None = None
    ) -> dict[str, Any]:
        """Outputs by name, as `runtime.session.Session.run`."""
        return self._run(inputs, out, threads, None, {})

    def symbols(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """The values of all sizes for these inputs, of those too that only a run knows."""
        found: dict[str, int] = {}
        self._run(inputs, None, None, None, found)
        return found

    def step_times(self, inputs: Mapping[str, Any], runs: int, threads: int | None, steps: int) -> list[list[float]]:
        """Milliseconds of every step, those of all parts one after the other, run by run."""
        if not all(hasattr(session, "_entry") for session in self._sessions):
            raise EngineError("steps of an engine in parts are timed on a CPU only: build it for target='cpu'")
        times = []
        for _ in range(runs + 1):  # the first warms up
            found: dict[int, list[float]] = {}
            self._run(inputs, None, threads, found, {})
            row = [found.get(number, [0.0] * count) for number, count in enumerate(self._counts)]
            times.append([milliseconds for part in row for milliseconds in part])
        return times[1:]

    def _run(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, Any] | None,
        threads: int | None,
        times: dict[int, list[float]] | None,
        sizes: dict[str, int],
    ) -> dict[str, Any]:
        """One run; `times` and `sizes` take up what is asked for."""
        if out is not None and type(out) is not dict:
            check_mapping(out, "out")
        self._shapes.check_names(inputs)
        views = []
        for spec in self.plan.inputs:
            found = tensors.view(_on_host(inputs[spec.name]), spec.name, spec.dtype)
            if spec.mutates is not None:
                tensors.check_writable(found, inputs[spec.name], f"input {spec.name!r}")
            views.append(found)
        symbols = dict(zip(self._symbols, self._shapes.symbols(views), strict=True))
        arrays = [_array(found) for found in views]

        def run_part(node: Node, given: Sequence[Any], known: Mapping[str, int]) -> list[np.ndarray]:
            sizes.update(known)
            return self._run_part(node, given, known, threads, times)

        try:
            results = run_graph(self._graph, arrays, symbols, None, run_part)
        except TilewrightError:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise InputError(
                f"the model does not take these inputs: {type(error).__name__}: {str(error)[:300]}"
            ) from error
        sizes.update(symbols)
        for target, value in self._graph.mutations.items():
            number = self._graph.inputs.index(target)
            arrays[number][...] = results[value]
        tensors.track_updates(self._shapes.updated(inputs, {}))
        return self._outputs(inputs, arrays, [results[value] for value in self._graph.outputs], out or {})

    def _run_part(
        self,
        node: Node,
        given: Sequence[Any],
        known: Mapping[str, int],
        threads: int | None,
        times: dict[int, list[float]] | None,
    ) -> list[np.ndarray]:
        """A compiled part; with a size of 0 there is next to nothing to compute, and the host runs its graph."""
        number = node.attributes["number"]
        session = self._sessions[number]
        specs = session.plan.inputs
        carried = {spec.name: _carrier(spec.shape[0], known) for spec in specs[len(given) :]}
        feeds = {spec.name: array for spec, array in zip(specs, given, strict=False)} | carried
        if any(0 in array.shape for array in feeds.values()) or self._gives_nothing(node, known):
            return interpret_part(self._graph_of(number), given, known)
        if times is None:
            return list(session.run(feeds, None, threads).values())
        buffer = profile_buffer(self._counts[number])
        results = session.run(feeds, None, threads, buffer)  # a CPU's
        spent = [(end - begin) / 1e6 for begin, end in zip(buffer, buffer[1:], strict=False)]
        before = times.get(number, [0.0] * len(spent))  # of earlier runs in a loop
        times[number] = [a + b for a, b in zip(before, spent, strict=True)]
        return list(results.values())

    def _gives_nothing(self, node: Node, known: Mapping[str, int]) -> bool:
        """Whether an output has no elements."""
        return any(
            not isinstance(size, int) and evaluate(size, known) == 0 for value in node.outputs for size in value.shape
        )

    def _graph_of(self, number: int) -> Graph:
        with self._lock:
            if number not in self._graphs:
                self._graphs[number] = self._part(number)
            return self._graphs[number]

    def _outputs(
        self,
        inputs: Mapping[str, Any],
        arrays: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        out: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Results by name, in memory of their own or in that of the caller."""
        names = [spec.name for spec in self.plan.outputs]
        for name in out:
            if name not in names:
                raise InputError(f"out: unknown output {name!r}; the engine gives {', '.join(names)}")
        like = next(iter(inputs.values()), None)
        taken = {id(array) for array in arrays}
        found: dict[str, Any] = {}
        for spec, result in zip(self.plan.outputs, results, strict=True):
            given = out.get(spec.name)
            if given is None and not _is_foreign(like):
                own = result.flags.owndata and result.flags.c_contiguous and result.flags.writeable
                memory = result if own and id(result) not in taken else np.array(result, order="C")
                taken.add(id(memory))
                found[spec.name] = tensors.finish(memory, like)
                continue
            memory = tensors.allocate(like, spec.dtype, result.shape) if given is None else given
            view = tensors.view(memory, spec.name, spec.dtype, "out: output")
            if view.shape != result.shape:
                raise ShapeError(f"out: output {spec.name!r} has shape {list(result.shape)}, got {list(view.shape)}")
            if given is not None:
                tensors.check_writable(view, given, f"output {spec.name!r}", is_output=True)
            _array(view)[...] = result
            found[spec.name] = _on_device_of(like, memory) if given is None else given
        return found


def _carrier(size: Any, known: Mapping[str, int]) -> np.ndarray:
    """An input that tells a part a size; nothing reads it."""
    return np.empty(evaluate(size, known), np.bool_)


def _array(view: tensors.TensorView) -> np.ndarray:
    """The memory of a view as an array, which keeps it alive."""
    if isinstance(view.owner, np.ndarray):
        return view.owner
    dtype = dtypes.BY_NAME[view.dtype].numpy
    if not view.bytes:
        return np.empty(view.shape, dtype)
    memory = (ctypes.c_char * view.bytes).from_address(view.address)
    memory.owner = view.owner  # type: ignore[attr-defined]
    return np.frombuffer(memoryview(memory), dtype).reshape(view.shape)


def _is_foreign(like: Any) -> bool:
    """Whether results must be tensors of PyTorch."""
    return tensors.is_torch(like)


def _on_host(value: Any) -> Any:
    """A tensor of a GPU as one of the host, with one copy; others as they are."""
    return value.cpu() if tensors.is_torch(value) and value.is_cuda else value


def _on_device_of(like: Any, memory: Any) -> Any:
    """A result where the caller's first tensor is."""
    return memory.to(like.device) if tensors.is_torch(like) and like.is_cuda else memory


def check_numbers(graph: Graph, parts: int) -> None:
    """Raise `ValueError` unless the `part` nodes of a graph are of parts that are there."""
    for node in graph.nodes:
        if kind_of(node.op) == "part":
            number = node.attributes["number"]
            if type(number) is not int or not 0 <= number < parts:
                raise ValueError(f"there is no part {str(number)[:80]}")
        for item in node.attributes.values():
            if isinstance(item, Graph):
                check_numbers(item, parts)
