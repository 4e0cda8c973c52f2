"""Running a plan: inputs are checked and bound, outputs allocated, and the whole plan is one native call."""

from __future__ import annotations

import ctypes
import operator
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright import dtypes
from tilewright.errors import InputError, ShapeError, brief
from tilewright.runtime import tensors
from tilewright.runtime.glue import glue
from tilewright.runtime.library import NativeLibrary
from tilewright.runtime.memory import BufferPool, array_address
from tilewright.runtime.parallel import run_parallel
from tilewright.runtime.plan import ContextLayout, IndexRange, Plan
from tilewright.runtime.repeated_calls import KnownCalls
from tilewright.runtime.shapes import Binding, Shapes, check_mapping
from tilewright.settings import settings
from tilewright.symbolic import evaluate

# A plan shorter than this on one core is run by the caller alone: bringing threads together takes longer.
_SHARE_FROM_NANOSECONDS = 20_000


@dataclass(frozen=True)
class Frame:
    """What a run of a part has for known sizes."""

    values: tuple[int, ...]  # of the plan's symbols
    binding: Binding
    input_shapes: list[tuple[int, ...]]
    input_types: list[np.dtype]
    output_types: list[np.dtype]

    def takes(self, arrays: Sequence[Any]) -> bool:
        """Whether the first inputs are of these arrays' shapes and types."""
        for array, shape, dtype in zip(arrays, self.input_shapes, self.input_types, strict=False):
            if array.shape != shape or array.dtype != dtype:
                return False
        return True


class PlanSession(Protocol):
    """A loaded plan, on whatever machine."""

    plan: Plan

    @property
    def ordinal(self) -> int | None:
        """The GPU that it runs on; None for the CPU."""
        ...

    @property
    def native(self) -> Session | None:
        """The plan as a native function of arrays, where it is one: it can be called without what `run` looks at."""
        ...

    def run(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, Any] | None = None,
        threads: int | None = None,
        *,
        like: Any = None,
    ) -> dict[str, Any]:
        """Outputs by name, fresh ones of the kind of `like` where the machine has several (None: the first input's)."""
        ...

    def step_times(self, inputs: Mapping[str, Any], runs: int, threads: int | None, steps: int) -> list[list[float]]:
        """Milliseconds of every step, run by run."""
        ...

    def symbols(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """The values of all sizes for these inputs."""
        ...


class Session:
    """A loaded plan on the CPU. Several threads may call `run` at once: each call has memory of its own."""

    ordinal = None

    def __init__(self, plan: Plan, library: NativeLibrary, symbol: str, weights: int, owner: object = None) -> None:
        """`weights` is the address of the weights, in memory that lives as long as `owner`, which the session keeps."""
        self.plan = plan
        self._library = library
        self._entry = library.address(symbol)
        self._weights, self._owner = weights, owner
        self._layout = ContextLayout.of(plan)
        self._pack = struct.Struct(f"={self._layout.size}q").pack
        self._arenas = BufferPool()
        self._shapes = Shapes(plan)
        self._known: KnownCalls[tuple[tuple[int, ...], Binding]] = KnownCalls(plan)
        self._input_names = self._shapes.input_numbers
        self._output_names = [spec.name for spec in plan.outputs]
        self._output_types = [dtypes.BY_NAME[spec.dtype].numpy for spec in plan.outputs]
        self._mutated = [number for number, spec in enumerate(plan.inputs) if spec.mutates is not None]

    @property
    def native(self) -> Session:
        return self

    def run(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, Any] | None = None,
        threads: int | None = None,
        profile: ctypes.Array[ctypes.c_int64] | None = None,
        *,
        like: Any = None,
    ) -> dict[str, Any]:
        """Outputs by name. Raises `ShapeError` and `InputError`.

        `out` gives memory for some or all outputs; other outputs are fresh.  Inputs that the plan
        mutates are updated in place.  `profile` has room for one time more than there are steps.
        """
        if out is not None and type(out) is not dict:
            check_mapping(out, "out")
        if not out and profile is None:
            known = self._known.find(inputs)
            if known is not None:
                (values, binding), arrays = known
                return self._run_known(values, binding, arrays, threads)
        views = self._bind_inputs(inputs)
        values = self._shapes.symbols(views)
        binding = self._shapes.binding(values)
        if binding.index_ranges:
            check_indices(binding.index_ranges, [found.owner for found in views])
        results, addresses, owners = self._bind_outputs(inputs, views, binding, out or {})
        if self._mutated or out:
            self._check_overlaps(views, owners if out else [])
            tensors.track_updates(self._shapes.updated(inputs, out or {}))
        self._launch(binding, values, [*[view.address for view in views], *addresses], threads, profile)
        del owners
        self._known.add([view.shape for view in views], (values, binding))
        return results

    def _run_known(
        self, values: tuple[int, ...], binding: Binding, arrays: list[np.ndarray], threads: int | None
    ) -> dict[str, Any]:
        """Outputs by name, of arrays that were looked at."""
        if binding.index_ranges:
            check_indices(binding.index_ranges, arrays)
        results = list(map(np.empty, binding.output_shapes, self._output_types))
        addresses = [*map(array_address, arrays), *map(array_address, results)]
        self._launch(binding, values, addresses, threads, None)
        return dict(zip(self._output_names, results, strict=True))

    def _launch(
        self, binding: Binding, values: Sequence[int], addresses: Sequence[int], threads: int | None,
        profile: ctypes.Array[ctypes.c_int64] | None,
    ) -> None:  # fmt: skip
        """One native call; `addresses` are those of the inputs, then of the outputs."""
        share = is_shared(binding)
        workers = worker_count(threads) if share else 1
        times = 0 if profile is None else ctypes.addressof(profile)
        if not binding.arena_bytes:
            context = self._pack(0, self._weights, times, *values, *addresses)
            run_parallel(self._entry, context, self.plan.scratch_bytes, workers)
            return
        arena = self._arenas.take(binding.arena_bytes)
        try:
            context = self._pack(arena.address, self._weights, times, *values, *addresses)
            run_parallel(self._entry, context, self.plan.scratch_bytes, workers)
        finally:
            self._arenas.give(arena)

    # -- Parts ----------------------------------------------------------------------------------

    def frame(self, known: Mapping[str, int]) -> Frame | None:
        """What a part is run with when all sizes are known; None for sizes that it does not take, as `run` says why.

        Raises `ShapeError` where an operation of the model does not take them.
        """
        if any(name not in known or not s.low <= known[name] <= s.high for name, s in self.plan.symbols.items()):
            return None
        values = tuple(known[name] for name in self.plan.symbols)
        return Frame(
            values,
            self._shapes.binding(values),
            [tuple(evaluate(size, known) for size in spec.shape) for spec in self.plan.inputs],
            [dtypes.BY_NAME[spec.dtype].numpy for spec in self.plan.inputs],
            [dtypes.BY_NAME[spec.dtype].numpy for spec in self.plan.outputs],
        )

    def run_arrays(
        self, frame: Frame, arrays: Sequence[np.ndarray], threads: int | None, profile: Any = None
    ) -> list[np.ndarray]:
        """Outputs of a part in order, for arrays that fit the frame; the inputs after them are not read."""
        if frame.binding.index_ranges:
            check_indices(frame.binding.index_ranges, arrays)
        results = [
            np.empty(shape, dtype) for shape, dtype in zip(frame.binding.output_shapes, frame.output_types, strict=True)
        ]
        addresses = [array_address(array) for array in arrays]
        addresses += [0] * (len(frame.input_shapes) - len(arrays))
        addresses += [array_address(result) for result in results]
        self._launch(frame.binding, frame.values, addresses, threads, profile)
        return results

    @property
    def entry(self) -> int:
        """The address of the plan's native function."""
        return self._entry

    def context(self, frame: Frame) -> list[int]:
        """What the native function is given, but for the addresses: the arena is the first, those of the inputs and
        the outputs come after."""
        return [0, self._weights, 0, *frame.values]

    def symbols(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """The symbols' values for these inputs. Raises `ShapeError` and `InputError`."""
        return dict(zip(self.plan.symbols, self._shapes.symbols(self._bind_inputs(inputs)), strict=True))

    def step_times(self, inputs: Mapping[str, Any], runs: int, threads: int | None, steps: int) -> list[list[float]]:
        """Milliseconds of every step, run by run. Raises `RuntimeError` where native code has no clock to read."""
        times: list[list[float]] = []
        for _ in range(runs + 1):  # the first warms up
            buffer = profile_buffer(steps)
            self.run(inputs, None, threads, buffer)
            times.append([(end - begin) / 1e6 for begin, end in zip(buffer, buffer[1:], strict=False)])
        return times[1:]

    # -- Inputs ---------------------------------------------------------------------------------

    def _bind_inputs(self, inputs: Mapping[str, Any]) -> list[tensors.TensorView]:
        self._shapes.check_names(inputs)
        views = []
        for spec in self.plan.inputs:
            found = tensors.view(inputs[spec.name], spec.name, spec.dtype)
            if spec.mutates is not None:
                tensors.check_writable(found, inputs[spec.name], f"input {spec.name!r}")
            views.append(found)
        return views

    # -- Outputs --------------------------------------------------------------------------------

    def _bind_outputs(
        self,
        inputs: Mapping[str, Any],
        views: Sequence[tensors.TensorView],
        binding: Binding,
        out: Mapping[str, Any],
    ) -> tuple[dict[str, Any], list[int], list[tensors.TensorView]]:
        """Results by name, their addresses, and the memory that must stay alive during the run."""
        if out:
            self._shapes.check_out(inputs, out)
        like = next(iter(inputs.values()), None)
        results: dict[str, Any] = {}
        addresses: list[int] = []
        owners: list[tensors.TensorView] = []
        for spec, shape in zip(self.plan.outputs, binding.output_shapes, strict=True):
            if spec.mutates is not None:
                results[spec.name] = inputs[spec.mutates]
                addresses.append(views[self._input_names[spec.mutates]].address)
                continue
            given = out.get(spec.name)
            memory = tensors.allocate(like, spec.dtype, shape) if given is None else given
            found = tensors.view(memory, spec.name, spec.dtype, "out: output")
            if given is not None:
                if found.shape != shape:
                    raise ShapeError(f"out: output {spec.name!r} has shape {list(shape)}, got {list(found.shape)}")
                tensors.check_writable(found, given, f"output {spec.name!r}", is_output=True)
            results[spec.name] = tensors.finish(memory, like) if given is None else given
            addresses.append(found.address)
            owners.append(found)
        return results, addresses, owners

    def _check_overlaps(self, inputs: list[tensors.TensorView], outputs: list[tensors.TensorView]) -> None:
        """Memory that the run writes to must not be that of another input or output."""
        names = [f"input {name!r}" for name in self._input_names]
        names += [f"output {spec.name!r}" for spec in self.plan.outputs if spec.mutates is None]
        written = (*self._mutated, *range(len(inputs), len(inputs) + len(outputs)))
        tensors.check_overlaps([*inputs, *outputs], names, written)


def is_shared(binding: Binding) -> bool:
    """Whether a run is long enough for several threads."""
    return binding.nanoseconds == 0 or binding.nanoseconds >= _SHARE_FROM_NANOSECONDS


def worker_count(threads: int | None) -> int:
    """Of a run that asks for so many threads, None for as many as the settings say."""
    return max(1, settings.threads if threads is None else check_threads(threads))


def check_threads(threads: Any) -> int:
    """A number of threads; raises `InputError` for anything else."""
    try:
        number = operator.index(threads)
    except TypeError:
        number = 0
    if number < 1:
        raise InputError(f"threads is a whole number of at least 1, got {brief(threads)}")
    return number


def check_indices(ranges: Sequence[tuple[int, int, int, IndexRange]], inputs: Sequence[Any]) -> None:
    """Raise `InputError` for an input that holds an index out of its range."""
    whole: dict[int, tuple[int, int]] = {}
    for number, low, high, allowed in ranges:
        indices = np.asarray(inputs[number])
        if indices.size == 0:
            continue
        if number not in whole:
            whole[number] = _extremes(indices)
        least, most = whole[number]
        if (least < low or most > high) and allowed.column is not None:  # maybe in another column
            least, most = _extremes(indices[..., allowed.column])
        if least < low or most > high:
            raise InputError(
                f"input {allowed.input!r} holds {least if least < low else most}, an index out of range: "
                f"{allowed.operation} takes {low}..{high}"
            )


def _extremes(indices: np.ndarray) -> tuple[int, int]:
    # The reductions themselves: the methods cost several times as much for a few numbers.
    return int(np.minimum.reduce(indices, None)), int(np.maximum.reduce(indices, None))


def profile_buffer(steps: int) -> ctypes.Array[ctypes.c_int64]:
    """Room for the times of one run of so many steps; raises `RuntimeError` where native code has no clock to read."""
    if not glue().has_clock:
        raise RuntimeError("this system has no clock_gettime(): steps cannot be timed")
    return (ctypes.c_int64 * (steps + 1))()
