"""Running a plan on a GPU: one static arena, weights uploaded once, and one CUDA graph for each shape.

Work goes to the stream on which the caller works (PyTorch's or CuPy's current one, the one that an array names), in
order with it, and the call returns before it is done.  Tensors in the host's memory go through page-locked buffers;
then the call waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilewright.errors import InputError, ShapeError
from tilewright.runtime.cuda import streams
from tilewright.runtime.cuda.branches import Branches
from tilewright.runtime.cuda.device import Device, primary_context
from tilewright.runtime.cuda.driver import api, check
from tilewright.runtime.cuda.extern import extern_start
from tilewright.runtime.cuda.graph_references import retain
from tilewright.runtime.cuda.graphs import GraphCache, is_capturing
from tilewright.runtime.cuda.launch import launcher
from tilewright.runtime.cuda.launches import Binder, Launch, chosen_launch, place_of
from tilewright.runtime.cuda.repeated_calls import Repeat, Repeats, Signature
from tilewright.runtime.cuda.staging import DeviceBuffer, PinnedBuffer, copy_host, upload
from tilewright.runtime.cuda.tables import DeviceTables
from tilewright.runtime.cuda.tensors import DeviceView, allocate, view
from tilewright.runtime.cuda.timing import graph_times
from tilewright.runtime.extern import is_extern
from tilewright.runtime.gpu_program import Program
from tilewright.runtime.plan import BufferReference, Plan, TensorSpec
from tilewright.runtime.session import check_indices
from tilewright.runtime.shapes import Binding, Shapes, check_mapping
from tilewright.runtime.tensors import TensorView, check_writable, finish, track_updates
from tilewright.symbolic import evaluate

_TENSOR_ALIGNMENT = 256  # of weights and staged tensors in the GPU's memory
_SHAPES = 256  # shapes whose launches are kept
_RESERVED = 128  # the part of the GPU's memory that an arena may take before sizes are known that need it


class CudaSession:
    """A loaded plan. Several threads may call `run` at once; the GPU runs their calls one after the other."""

    native = None

    def __init__(
        self, plan: Plan, programs: Mapping[str, Program], weights: Mapping[str, tuple[int, int]], device: Device
    ) -> None:
        """`programs` are by their keys in the plan; `weights` are addresses and bytes in the host's memory by name,
        of which those that the plan reads are copied to the GPU. Raises `DeviceError`, and `MissingDependencyError`
        where the plan calls a library that is not there."""
        self.plan = plan
        self.device = device
        self.graphs = GraphCache()
        self._shapes = Shapes(plan)
        self._mutated = [number for number, spec in enumerate(plan.inputs) if spec.mutates is not None]
        numbers = {("input", spec.name): number for number, spec in enumerate(plan.inputs)}
        numbers |= {("output", spec.name): len(plan.inputs) + n for n, spec in enumerate(plan.outputs)}
        self._arena = DeviceBuffer(device)
        self._staging = DeviceBuffer(device)
        self._pinned = PinnedBuffer(device)
        self._launches: dict[tuple[int, ...], list[Launch]] = {}
        self._lock = threading.Lock()
        self._last_stream: int | None = None
        self._branches = Branches(plan)
        self._repeats = Repeats(plan, device.ordinal)
        self._context = int(primary_context(device.ordinal))
        self._torch_stream: Callable[[int], int] = int  # PyTorch's, once it is known to be there
        with device.active():
            starts = {key: launcher(program, device) for key, program in programs.items()}
            others = {choice.kernel for step in plan.steps for choice in step.choices if is_extern(choice.kernel)}
            starts |= {key: extern_start(key, device) for key in others}
            # A call begins when all in front of it has ended: no kernel that starts early meets those of earlier calls.
            first = {choice.kernel for number in self._branches.first for choice in plan.steps[number].choices} - others
            self._behind_all = {
                key: launcher(replace(programs[key], dependent_launch=False), device)
                for key in first if programs[key].dependent_launch
            }  # fmt: skip
            self._tables = DeviceTables(device)
            self._weight_memory, places = self._upload(weights)
            # Nothing here refers to the session, so that its memory goes back to the GPU when the last user lets it go.
            self._binder = Binder(starts, numbers, partial(_address, self._arena, places), self._tables)
            most = evaluate(plan.arena_bytes, {name: symbol.high for name, symbol in plan.symbols.items()})
            if most <= device.memory_bytes // _RESERVED:  # else it grows, which takes the driver milliseconds
                self._arena.reserve(most)
                for choice in (choice for step in plan.steps for choice in step.choices):
                    self._binder.prepare(choice)
            cuda = api()
            flags = cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING
            self._done = check(cuda.cuEventCreate(flags), "making an event")
            self._own_stream = streams.new_stream()

    def _upload(self, weights: Mapping[str, tuple[int, int]]) -> tuple[DeviceBuffer, dict[str, int]]:
        """The weights that the plan reads, in the GPU's memory, and their addresses."""
        names = dict.fromkeys(
            place.name for step in self.plan.steps for choice in step.choices for argument in choice.arguments
            if (place := place_of(argument)) is not None and place.kind == "weight"
        )  # fmt: skip
        offsets: dict[str, int] = {}
        end = 0
        for name in names:
            offsets[name] = end
            end += -(-weights[name][1] // _TENSOR_ALIGNMENT) * _TENSOR_ALIGNMENT
        memory = DeviceBuffer(self.device)
        memory.reserve(end)
        upload(memory.address, [(offsets[name], *weights[name]) for name in names])
        return memory, {name: memory.address + offset for name, offset in offsets.items()}

    @property
    def ordinal(self) -> int:
        """The GPU that it runs on."""
        return self.device.ordinal

    # -- Calls --------------------------------------------------------------------------------------------------------

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, threads: int | None = None, *,
        like: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Outputs by name, as `runtime.session.Session.run`; `threads` is for CPUs and has no effect.

        Fresh outputs are of the kind of `like`, None for the first input.
        """
        if type(inputs) is not dict:
            check_mapping(inputs, "inputs")
        if out is not None and type(out) is not dict:
            check_mapping(out, "out")
        if like is None:
            like = next(iter(inputs.values()), None)
        with self._lock:
            key, repeat = self._repeats.find(inputs, out or {})
            results = None if repeat is None else self._run_again(repeat, inputs, out or {})
            return self._run(inputs, out or {}, key, like) if results is None else results

    def _run_again(self, repeat: Repeat, inputs: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any] | None:
        """A call on tensors that were seen before; None where it is not that simple."""
        cuda = api()
        if int(check(cuda.cuCtxGetCurrent(), "asking for the current context")) != self._context:
            return None
        stream = self._torch_stream(self.device.ordinal)
        launches = self._launches.get(repeat.values)
        if launches is None or is_capturing(stream):
            return None
        if self._mutated or out:
            changed = self._shapes.updated(inputs, out)
            if any(tensor.requires_grad for tensor in changed):
                return None
            self._repeats.track_updates(changed)
        results, fresh = self._repeats.results(repeat, inputs, out)
        if self._last_stream not in (None, stream):
            check(cuda.cuStreamWaitEvent(stream, self._done, 0), "ordering two runs")
        graph = repeat.graphs.get(fresh)
        if graph is None or not self.graphs.again(graph, stream):
            addresses = repeat.placed(fresh)
            graph = self.graphs.launch(
                repeat.values, addresses, stream, lambda capture: self._enqueue(launches, capture, addresses)
            )
            if graph is not None:
                repeat.keep(fresh, graph)
        check(cuda.cuEventRecord(self._done, stream), "marking the end of a run")
        self._last_stream = stream
        return results

    def _run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any], key: Signature | None, like: Any
    ) -> dict[str, Any]:
        """A call from its beginning; `key` is what it will be known by."""
        with self.device.active():
            call = self._bind(inputs, out, like)
            launches = self._launches_for(call)
            if key is not None and not any(item.copied for item in call.owners):
                self._torch_stream = streams.current_stream(streams.TORCH)
                self._repeats.remember(key, call.values, call.binding.output_shapes)
            if self._mutated or out:
                track_updates(self._shapes.updated(inputs, out))
            with _Ordered(self, call):
                self._copy_in(call)
                self._launch(call, launches)
                self._copy_out(call)
            return call.results

    def prepare(self, inputs: Mapping[str, Any], out: Mapping[str, Any]) -> Callable[[], None]:
        """A call on memory of the GPU that stays where it is, checked here once: each call of the result runs it.

        Its work joins the stream of the memory's library; the result returns before it is done.  Raises `InputError`
        for tensors of the host, and as `run`.
        """
        with self._lock, self.device.active():
            call = self._bind(inputs, out, next(iter(inputs.values()), None))
        if call.staged:
            raise InputError("a call that is prepared takes tensors in the GPU's memory, and writes to such tensors")
        return partial(self._run_prepared, call)

    def _run_prepared(self, call: _Call) -> None:
        with self._lock, self.device.active():
            launches = self._launches_for(call)
            with _Ordered(self, call):
                self._launch(call, launches)

    def step_times(self, inputs: Mapping[str, Any], runs: int, threads: int | None, steps: int) -> list[list[float]]:
        """Milliseconds of every step, run by run, by events between the kernels of the plan's graph."""
        with self._lock, self.device.active():
            call = self._bind(inputs, {}, next(iter(inputs.values()), None))
            launches = self._launches_for(call)
            pieces = [partial(launch, addresses=call.addresses) for launch in launches]
            with _Ordered(self, call):
                self._copy_in(call)
                times = graph_times(pieces, call.stream, runs + 1)  # the first warms up
                self._copy_out(call)
        return times[1:]

    def symbols(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """The symbols' values for these inputs. Raises `ShapeError` and `InputError`."""
        return dict(zip(self.plan.symbols, self._shapes.symbols(self._bind_inputs(inputs)), strict=True))

    def _launch(self, call: _Call, launches: Sequence[Launch]) -> None:
        """Run a call on its stream, as a graph, or as part of the one that its stream is captured into."""
        if is_capturing(call.stream):
            self._enqueue(launches, call.stream, call.addresses)
            retain(call.stream, (self._binder, self._weight_memory, *self._arena.memory, *self._tables.memory))
            return
        self.graphs.launch(
            call.values, tuple(call.addresses), call.stream,
            lambda capture: self._enqueue(launches, capture, call.addresses),
        )  # fmt: skip

    def _enqueue(self, launches: Sequence[Launch], stream: int, addresses: Sequence[int]) -> None:
        self._branches.enqueue(launches, stream, addresses)

    # -- Inputs and outputs -------------------------------------------------------------------------------------------

    def _bind(self, inputs: Mapping[str, Any], out: Mapping[str, Any], like: Any) -> _Call:
        views = self._bind_inputs(inputs)
        values = self._shapes.symbols(views)
        binding = self._shapes.binding(values)
        self._check_indices(binding, views)
        results, outputs = self._bind_outputs(inputs, views, binding, out, like)
        if self._mutated or out:
            self._check_overlaps(views, outputs if out else [])
        return _Call.of(self, values, binding, views, outputs, results)

    def _bind_inputs(self, inputs: Mapping[str, Any]) -> list[DeviceView]:
        self._shapes.check_names(inputs)
        views = []
        for spec in self.plan.inputs:
            found = view(inputs[spec.name], spec.name, spec.dtype, self.device.ordinal)
            if spec.mutates is not None:
                _check_writable(found, inputs[spec.name], f"input {spec.name!r}")
            views.append(found)
        return views

    def _check_indices(self, binding: Binding, views: Sequence[DeviceView]) -> None:
        """Indices in the host's memory are checked; kernels clamp those that only the GPU can see."""
        ranges = [entry for entry in binding.index_ranges if views[entry[0]].on_host]
        if ranges:
            check_indices(ranges, [found.owner for found in views])

    def _bind_outputs(
        self, inputs: Mapping[str, Any], views: Sequence[DeviceView], binding: Binding, out: Mapping[str, Any],
        like: Any,
    ) -> tuple[dict[str, Any], list[DeviceView]]:  # fmt: skip
        """Results by name, and the memory of all outputs."""
        if out:
            self._shapes.check_out(inputs, out)
        results: dict[str, Any] = {}
        found: list[DeviceView] = []
        for spec, shape in zip(self.plan.outputs, binding.output_shapes, strict=True):
            if spec.mutates is not None:
                results[spec.name] = inputs[spec.mutates]
                found.append(views[self._shapes.input_numbers[spec.mutates]])
                continue
            result, place = self._output(spec, shape, like, out.get(spec.name))
            results[spec.name] = result
            found.append(place)
        return results, found

    def _output(self, spec: TensorSpec, shape: tuple[int, ...], like: Any, given: Any) -> tuple[Any, DeviceView]:
        memory = allocate(like, spec.dtype, shape, self.device.ordinal) if given is None else given
        place = view(memory, spec.name, spec.dtype, self.device.ordinal, "out: output")
        if given is None:
            return (finish(memory, like) if place.on_host else memory), place
        if place.shape != shape:
            raise ShapeError(f"out: output {spec.name!r} has shape {list(shape)}, got {list(place.shape)}")
        _check_writable(place, given, f"output {spec.name!r}", is_output=True)
        return given, place

    def _check_overlaps(self, inputs: Sequence[DeviceView], outputs: Sequence[DeviceView]) -> None:
        """Memory that the run writes to must not be that of another input or output."""
        fresh = [(spec, place) for spec, place in zip(self.plan.outputs, outputs, strict=False) if spec.mutates is None]
        views = [*inputs, *(place for _, place in fresh)]
        names = [f"input {spec.name!r}" for spec in self.plan.inputs] + [f"output {spec.name!r}" for spec, _ in fresh]
        written = {*self._mutated, *range(len(inputs), len(views))}
        reaching: list[tuple[bool, int, int]] = []  # kind of memory, end and number of those that begin before
        places = sorted((v.on_host, v.address, v.end, n) for n, v in enumerate(views) if v.bytes)
        for on_host, begin, end, number in places:
            reaching = [item for item in reaching if item[0] == on_host and item[1] > begin]
            for _, _, other in reaching:
                if number in written or other in written:
                    first, second = (number, other) if number in written else (other, number)
                    raise InputError(
                        f"{names[first]} is written in place and shares memory with {names[second]}: pass a copy"
                    )
            reaching.append((on_host, end, number))

    def reserve_staging(self, size: int) -> tuple[int, int]:
        """Addresses of so many bytes in the GPU's memory and in locked memory, for tensors of the host."""
        if size > min(self._staging.bytes, self._pinned.bytes):
            self._wait()
            self._staging.reserve(size)
            self._pinned.reserve(size)
        return self._staging.address, self._pinned.address

    def _copy_in(self, call: _Call) -> None:
        cuda = api()
        for staged in call.staged[: call.staged_inputs]:
            copy_host(staged.locked, staged.view.address, staged.view.bytes)
            check(
                cuda.cuMemcpyHtoDAsync(staged.address, staged.locked, staged.view.bytes, call.stream),
                "copying an input to the GPU",
            )

    def _copy_out(self, call: _Call) -> None:
        cuda = api()
        written = [staged for staged in call.staged if staged.written]
        for staged in written:
            check(
                cuda.cuMemcpyDtoHAsync(staged.locked, staged.address, staged.view.bytes, call.stream),
                "copying an output from the GPU",
            )
        if call.waits:
            check(cuda.cuStreamSynchronize(call.stream), "waiting for a plan")
        for staged in written:
            copy_host(staged.view.address, staged.locked, staged.view.bytes)

    # -- Launches -----------------------------------------------------------------------------------------------------

    def _launches_for(self, call: _Call) -> list[Launch]:
        """The plan's launches for the call's sizes."""
        if call.binding.arena_bytes > self._arena.bytes:
            self._wait()
            self.graphs.clear()
            self._launches.clear()
            self._binder.forget()
            self._arena.reserve(max(call.binding.arena_bytes, self._arena.bytes + self._arena.bytes // 2))
        found = self._launches.get(call.values)
        if found is None:
            symbols = dict(zip(self.plan.symbols, call.values, strict=True))
            if len(self._launches) >= _SHAPES:
                self._wait()
                self.graphs.clear()
                self._launches.clear()
                self._tables.clear()
            choices = [chosen_launch(step, symbols) for step in self.plan.steps]
            found = self._binder.launches(choices, symbols)
            for number in self._branches.first:
                if choices[number].kernel in self._behind_all:
                    found[number] = replace(found[number], start=self._behind_all[choices[number].kernel])
            self._launches[call.values] = found
        return found

    # -- Order --------------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Until the last run is done."""
        if self._last_stream is not None:
            check(api().cuEventSynchronize(self._done), "waiting for a plan")

    def begin(self, call: _Call) -> None:
        """Let the call's stream wait for what it depends on: the last run, whose arena it takes, and other streams."""
        if self._last_stream not in (None, call.stream) and not is_capturing(call.stream):
            check(api().cuStreamWaitEvent(call.stream, self._done, 0), "ordering two runs")
        for other in call.other_streams:
            streams.order(self.device.ordinal, other, call.stream)

    def end(self, call: _Call) -> None:
        """Let others wait for the call."""
        for other in call.other_streams:
            streams.order(self.device.ordinal, call.stream, other)
        if not is_capturing(call.stream):
            check(api().cuEventRecord(self._done, call.stream), "marking the end of a run")
            self._last_stream = call.stream

    @property
    def own_stream(self) -> int:
        """The stream for calls whose tensors are all in the host's memory."""
        return self._own_stream


def _address(arena: DeviceBuffer, weights: Mapping[str, int], place: BufferReference) -> int:
    """Where the arena, or a weight, begins."""
    return arena.address if place.kind == "arena" else weights[place.name]


class _Ordered:
    """What is done inside comes after what the call depends on."""

    def __init__(self, session: CudaSession, call: _Call) -> None:
        self.session, self.call = session, call

    def __enter__(self) -> None:
        self.session.begin(self.call)

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.session.end(self.call)


@dataclass(frozen=True)
class _Staged:
    """A tensor of the host: where it lies in the GPU's memory and in locked memory during a call."""

    view: DeviceView
    address: int
    locked: int
    written: bool


@dataclass(frozen=True)
class _Call:
    """One run: sizes, addresses of inputs and outputs for the GPU, and what must be copied."""

    values: tuple[int, ...]
    binding: Binding
    addresses: list[int]
    results: dict[str, Any]
    staged: list[_Staged]
    staged_inputs: int  # the first ones of `staged`
    stream: int
    other_streams: tuple[int, ...]
    waits: bool  # for the GPU before it returns
    owners: list[DeviceView]

    @classmethod
    def of(
        cls, session: CudaSession, values: tuple[int, ...], binding: Binding, inputs: list[DeviceView],
        outputs: list[DeviceView], results: dict[str, Any],
    ) -> _Call:  # fmt: skip
        """Choose streams, and places for the tensors of the host."""
        plan = session.plan
        fresh = [spec.mutates is None for spec in plan.outputs]
        views = [*inputs, *(place for place, is_fresh in zip(outputs, fresh, strict=True) if is_fresh)]
        places: dict[int, int] = {}
        end = 0
        for number, item in enumerate(views):
            if item.on_host:
                places[number] = end
                end += -(-item.bytes // _TENSOR_ALIGNMENT) * _TENSOR_ALIGNMENT
        device, locked = session.reserve_staging(end) if end else (0, 0)
        staged = [
            _Staged(
                views[number],
                device + place,
                locked + place,
                number >= len(inputs) or plan.inputs[number].mutates is not None,
            )
            for number, place in places.items()
        ]
        on_device = [device + places[n] if n in places else item.address for n, item in enumerate(views)]
        following = iter(on_device[len(inputs) :])
        numbers = {spec.name: n for n, spec in enumerate(plan.inputs)}
        addresses = on_device[: len(inputs)] + [
            next(following) if spec.mutates is None else on_device[numbers[spec.mutates]] for spec in plan.outputs
        ]
        stream, others, joined = _streams(views, session)
        count = sum(number < len(inputs) for number in places)
        return cls(
            values, binding, addresses, results, staged, count, stream, others, bool(staged) or not joined, views
        )


def _streams(views: Sequence[DeviceView], session: CudaSession) -> tuple[int, tuple[int, ...], bool]:
    """The stream to work on, the callers' other streams, and whether the caller's own work is ordered with it."""
    ordinal = session.device.ordinal
    found: dict[int, None] = {}
    for library in streams.LIBRARIES:
        for item in views:
            if item.library == library:
                own = library in (streams.TORCH, streams.CUPY)
                found[streams.current_stream(library)(ordinal) if own else item.stream] = None
    if not found:
        return session.own_stream, (), False
    first, *others = found
    return first, tuple(others), all(item.library != streams.DLPACK for item in views)


def _check_writable(found: DeviceView, value: Any, role: str, is_output: bool = False) -> None:
    if not found.on_host and found.copied:
        raise ShapeError(
            f"{role} is written in place and must be contiguous from a multiple of 16 bytes on: pass such a copy "
            "and keep it"
        )
    host = TensorView(found.address, found.dtype, found.shape, found.owner, found.copied)
    check_writable(host, value, role, is_output)
