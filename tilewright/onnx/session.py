"""`InferenceSession`: an engine with the interface of ONNX Runtime's class of that name.

Names and meanings are those of ONNX Runtime's public Python interface, so that a program changes one import.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilewright.api import compile as compile_model
from tilewright.dtypes import ANY_BY_NAME
from tilewright.engine.engine import Engine
from tilewright.errors import (
    ImportModelError,
    InputError,
    RunEndedError,
    SettingsError,
    ShapeError,
    TilewrightError,
    UnknownRankError,
    UnsupportedOperationError,
    a_kind,
    brief,
)
from tilewright.importers.shapes import symbol_name
from tilewright.onnx.binding import IOBinding, OrtValue, as_numpy, type_text
from tilewright.onnx.devices import OrtDevice, OrtMemoryInfo
from tilewright.onnx.options import ModelMetadata, NodeArg, SessionOptions, declared_shapes, fixed_size
from tilewright.onnx.recent import RecentlyUsed
from tilewright.onnx.source import Source
from tilewright.runtime.cuda import device as devices
from tilewright.runtime.plan import TensorSpec
from tilewright.runtime.session import check_threads
from tilewright.runtime.shapes import check_mapping
from tilewright.runtime.signals import ended_by

if TYPE_CHECKING:
    from onnx import ModelProto

    from tilewright.onnx.specialized import (
        EnginesOfBranches,
        EnginesOfCalls,
        EnginesOfRanks,
        EnginesOfSizes,
        SpecializedEngine,
    )

    _Engines = Engine | SpecializedEngine | EnginesOfRanks | EnginesOfCalls | EnginesOfBranches

_DEFAULT = ("CPUExecutionProvider",)
PROVIDER_TARGETS = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}


logger = logging.getLogger("tilewright")


def get_available_providers() -> list[str]:
    """What `InferenceSession` takes as `providers` on this machine, the GPU first."""
    return [name for name, target in reversed(PROVIDER_TARGETS.items()) if target == "cpu" or has_gpu()]


def get_all_providers() -> list[str]:
    """What `InferenceSession` knows as `providers`, the GPU first."""
    return list(reversed(PROVIDER_TARGETS))


def get_device() -> str:
    """ "GPU" where an NVIDIA GPU runs engines, else "CPU"."""
    return "GPU" if has_gpu() else "CPU"


def set_default_logger_severity(severity: int) -> None:
    """What the logger ``tilewright`` tells: 0 and 1 everything, 2 warnings, 3 errors, 4 fatal errors."""
    if not isinstance(severity, int) or not 0 <= severity <= 4:
        raise SettingsError(f"the severity is {brief(severity)}: expected a number from 0 to 4")
    logger.setLevel((logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)[severity])


def has_gpu() -> bool:
    """Whether engines for an NVIDIA GPU run here."""
    try:
        devices.device(0)
    except TilewrightError:
        return False
    return True


_ARRAYS = frozenset({np.ndarray})  # the types of feeds that are as the engine takes them
_TEXTS = frozenset({str})


class InferenceSession:
    """A model, compiled when the session is created.

        session = InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
        logits, = session.run(["logits"], {"input_ids": ids})

    If the structure of a model depends on the values of small inputs (the step of a window), an engine is compiled for
    each new set of values.  The same holds for numbers of dimensions that the model does not declare, and for sizes
    that do not fit the engine of all sizes (a 1 that is broadcast).  A warning is logged.  Several threads may call
    `run` at once.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | ModelProto,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Any]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        enable_fallback: int = 1,
        disabled_optimizers: Sequence[str] | None = None,
    ) -> None:
        """`path_or_bytes`: an .onnx file, its contents, a `ModelProto`, or an engine file.

        `providers` names where to run, "CPUExecutionProvider" (the default) or "CUDAExecutionProvider"; the first
        that is known and has its device here counts, with a warning where another came first.  The arguments after it
        are accepted, and have no meaning here.  Raises as `tilewright.compile` and `Engine.load` do, and
        `SettingsError` for providers of which none is known.
        """
        self.engine: _Engines
        self._sizes: EnginesOfSizes | None = None
        self._options = sess_options if sess_options is not None else SessionOptions()
        if not hasattr(self._options, "intra_op_num_threads"):
            raise SettingsError(f"sess_options are a SessionOptions, not {a_kind(sess_options)}")
        path = Path(path_or_bytes) if isinstance(path_or_bytes, (str, os.PathLike)) else None
        self._file = path if path is not None and path.suffix == ".engine" else None
        if getattr(self._options, "is_cancelled", False):
            raise RunEndedError("the options say that no session is to be made: set_load_cancellation_flag(False)")
        self._source = None if self._file else Source(_model(path_or_bytes) if path is None else path)
        if self._source is not None and getattr(self._options, "files", {}):
            self._source = self._source.with_files(self._options.files)
        if self._source is not None and getattr(self._options, "initializers", {}):
            self._source = self._source.with_initializers(self._options.initializers)
        self._declared: dict[str, list[int | str | None]] = {}
        self._meta, self._overridable = ModelMetadata(), dict[str, NodeArg]()
        if self._source is not None:
            model = self._source.read()
            self._meta = ModelMetadata.of(model)
            self._declared = declared_shapes(model, self._options)
            self._overridable = _overridable(model)
        self._with_constants: RecentlyUsed[frozenset[str], InferenceSession] = RecentlyUsed()
        self.set_providers(providers or getattr(self._options, "providers", None))
        threads = self._options.intra_op_num_threads
        self._threads = check_threads(threads) if threads else None
        if self._options.optimized_model_filepath:
            self.engine.save(self._options.optimized_model_filepath)
        self._events: list[dict[str, Any]] = []
        self._began = time.perf_counter_ns()
        self._last: dict[str, Any] | None = None
        self._pool: ThreadPoolExecutor | None = None
        if self._source is not None:
            self._source.forget()

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Any]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Compile or load the model for another provider. Raises as the making of a session."""
        provider = _provider(providers)
        if provider == getattr(self, "_provider", None):
            return
        target = PROVIDER_TARGETS[provider]
        if self._source is None:
            assert self._file is not None
            self.engine = Engine.load(self._file, target=target)
        else:
            shapes = self._overrides(self._source)
            quick_start = bool(getattr(self._options, "quick_start", False))
            self.engine = _compiled(self._source, shapes, target, quick_start)
            self._sizes = _engines_of_sizes(self.engine, self._source, shapes, target)
        self._provider = provider
        self._names = frozenset(spec.name for spec in self.engine.outputs)
        self._with_constants.clear()

    def _overrides(self, source: Source) -> dict[str, dict[int, int | str]] | None:
        """The dimensions that the options fix, by input and axis, and those of size 0, which exporters write for one
        that is not known."""
        fixed = [getattr(self._options, name, {}) for name in ("dimensions", "denotations")]
        model = source.read()
        stored = {tensor.name for tensor in model.graph.initializer}
        found: dict[str, dict[int, int | str]] = {}
        for name, size in (item for sizes in fixed for item in sizes.items()):
            if type(size) is not int or size < 0:
                raise SettingsError(
                    f"the dimension {brief(name)} is fixed to {brief(size)}: expected a whole number of at least 0"
                )
        for entry in (entry for entry in model.graph.input if entry.name not in stored):
            for axis, dimension in enumerate(entry.type.tensor_type.shape.dim):
                size = fixed_size(dimension, self._options)
                if size is not None:
                    found.setdefault(entry.name, {})[axis] = size
                elif dimension.HasField("dim_value") and not dimension.dim_value:
                    found.setdefault(entry.name, {})[axis] = symbol_name(f"open_{entry.name}_{axis}")
        return found or None

    # -- What it takes and gives ----------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """The inputs of the model, in order."""
        seed = getattr(self.engine, "seed", None)
        return [_node_arg(spec, self._declared) for spec in self.engine.inputs if spec.name != seed]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in order."""
        return [_node_arg(spec, self._declared) for spec in self.engine.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The constants that are inputs of the model as well: a run may give others, for which it is compiled again
        when they first come."""
        return list(self._overridable.values())

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says about itself; nothing for an engine file."""
        return self._meta

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """The memory that each input is expected in; others are copied."""
        return [OrtMemoryInfo.of(self._device)] * len(self.get_inputs())

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """The memory that each output is in, of runs whose inputs are there."""
        return [OrtMemoryInfo.of(self._device)] * len(self.get_outputs())

    @property
    def _device(self) -> OrtDevice:
        return OrtDevice(PROVIDER_TARGETS[self._provider])

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """As `OrtValue.ortvalue_from_shape_and_type`; sessions have no memory of their own for it."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)

    def get_tuning_results(self) -> list[Any]:
        """None: what is measured is in the engine, and in the timing cache (`tilewright.compile`)."""
        return []

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Nothing for no results. Raises `SettingsError` for those of ONNX Runtime's kernels."""
        if results:
            raise SettingsError("times of ONNX Runtime's kernels say nothing of tilewright's: leave them out")

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Nothing: an engine's CUDA graphs end with it."""

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Nothing: no provider here has such options."""

    def get_input_epdevices(self) -> NoReturn:
        """Raises `SettingsError`."""
        raise SettingsError("devices are described by get_input_memory_infos(); there are no plug-in providers")

    def get_provider_graph_assignment_info(self) -> NoReturn:
        """Raises `SettingsError`."""
        raise SettingsError(
            "one provider runs the whole model, the one of get_providers(); `tilewright inspect` shows its kernels"
        )

    def get_providers(self) -> list[str]:
        """The provider that runs the model."""
        return [self._provider]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """No options, of the provider that runs the model."""
        return {self._provider: {}}

    def enable_fallback(self) -> None:
        """Nothing: a session runs on the provider that it was made for."""

    def disable_fallback(self) -> None:
        """Nothing: a session runs on the provider that it was made for."""

    def get_session_options(self) -> SessionOptions:
        """The options given to the session."""
        return self._options

    # -- Runs -----------------------------------------------------------------------------------

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """The named outputs, or all, as NumPy arrays; sequences as lists of them, optionals as such or None.

        `input_feed` has arrays (or what `numpy.asarray` takes, or `OrtValue`) by name; of `run_options` only
        `terminate` has a meaning (`RunOptions`).  Raises `InputError`, `ShapeError` and `RunEndedError`.
        """
        results: Iterable[Any]
        if run_options is None and self._is_plain(input_feed) and self._are_known(output_names):
            found = self._called(input_feed, None)
            results = [found[name] for name in output_names] if output_names else found.values()
        else:
            results = self._run(output_names, input_feed, None, run_options)
        return [value if type(value) is np.ndarray else as_numpy(value) for value in results]

    def _is_plain(self, feed: Mapping[str, Any]) -> bool:
        """Whether a call is one of the engine with these feeds and nothing more: they are arrays in a dictionary."""
        plain = type(feed) is dict and _ARRAYS.issuperset(map(type, feed.values()))
        return plain and not self._overridable and not self._options.enable_profiling

    def _are_known(self, names: Sequence[str] | None) -> bool:
        """Whether outputs are asked for by a list of their names, or all are."""
        if names is None:
            return True
        return type(names) is list and _TEXTS.issuperset(map(type, names)) and self._names.issuperset(names)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, OrtValue], run_options: Any = None
    ) -> list[OrtValue]:
        """`run` on `OrtValue`s, whose outputs stay where the engine left them."""
        return [OrtValue(value) for value in self._run(output_names, input_dict_ort_values, None, run_options)]

    def run_with_ortvaluevector(
        self,
        run_options: Any,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: list[OrtValue],
        fetch_devices: Sequence[OrtDevice],
    ) -> None:
        """`run_with_ort_values` on lists; the results are put into the list `fetches`, where the engine left them."""
        if len(feed_names) != len(feeds):
            raise InputError(f"there are {len(feed_names)} names for {len(feeds)} values")
        fetches[:] = self.run_with_ort_values(fetch_names, dict(zip(feed_names, feeds, strict=True)), run_options)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[np.ndarray], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """`run` in a thread of the session, which then calls `callback(results, user_data, error)`.

        `error` is the message of what was raised, or empty.  Runs of one session start in the order of the calls.
        """
        if not callable(callback):
            raise InputError(f"callback is {a_kind(callback)}: expected a function of results, user data and an error")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "tilewright-session")

        def work() -> None:
            try:
                results, message = self.run(output_names, input_feed, run_options), ""
            except Exception as error:
                results, message = [], str(error) or type(error).__name__
            try:
                callback(results, user_data, message)
            except Exception:  # nobody waits for this thread
                logger.exception("the callback of InferenceSession.run_async failed")

        self._pool.submit(work)

    def io_binding(self) -> IOBinding:
        """An empty binding of this session's inputs and outputs to memory."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run on the bound inputs; the results are written to bound memory, or found by `IOBinding.get_outputs`."""
        if not isinstance(iobinding, IOBinding):
            raise InputError(f"expected the IOBinding that io_binding() gives, got {a_kind(iobinding)}")
        names, out = iobinding.outputs()
        iobinding.results = dict(zip(names, self._run(names, iobinding.inputs, out, run_options), strict=True))

    def _run(
        self,
        output_names: Sequence[str] | None,
        feed: Mapping[str, Any],
        out: Mapping[str, Any] | None = None,
        run_options: Any = None,
    ) -> list[Any]:
        if run_options is None:
            return self._results(output_names, feed, out)
        if not hasattr(run_options, "terminate"):
            raise InputError(f"run_options are a RunOptions, not {a_kind(run_options)}")
        with ended_by(lambda: bool(run_options.terminate)):
            return self._results(output_names, feed, out)

    def _results(
        self, output_names: Sequence[str] | None, feed: Mapping[str, Any], out: Mapping[str, Any] | None
    ) -> list[Any]:
        names = None if output_names is None else self._output_names(output_names)
        inputs = self._inputs(feed)
        if self._overridable:
            others = frozenset(inputs.keys() & self._overridable.keys())
            if others:
                return self._with_inputs(others)._results(names, inputs, out)
        began = time.perf_counter_ns() if self._options.enable_profiling else 0
        results = self._called(inputs, out or None)
        if self._options.enable_profiling:
            self._record("model_run", "Session", began, time.perf_counter_ns() - began)
            self._last = inputs
        return [results[name] for name in names] if names else list(results.values())

    def _called(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None) -> dict[str, Any]:
        """What the engine gives, or one that is compiled for sizes that it does not take."""
        engine = self.engine
        if self._sizes is None or not isinstance(engine, Engine):
            return engine.run(inputs, out, self._threads)
        return self._sizes.run(engine, inputs, out, self._threads)

    def _with_inputs(self, names: frozenset[str]) -> InferenceSession:
        """The session of the model in which some constants are inputs."""
        return self._with_constants.get(names, partial(self._made_with_inputs, names))

    def _made_with_inputs(self, names: frozenset[str]) -> InferenceSession:
        assert self._source is not None  # an engine has no such constants
        whole = self._source.whole()
        model = type(whole)()
        model.CopyFrom(whole)
        initializers = [tensor for tensor in whole.graph.initializer if tensor.name not in names]
        del model.graph.initializer[:]
        model.graph.initializer.extend(initializers)
        logger.warning("an engine is compiled that takes %s as inputs", ", ".join(sorted(names)))
        options = SessionOptions(
            self._options.intra_op_num_threads,
            quick_start=bool(getattr(self._options, "quick_start", False)),
            dimensions=dict(getattr(self._options, "dimensions", {})),
            denotations=dict(getattr(self._options, "denotations", {})),
        )
        return InferenceSession(model, options, [self._provider])

    def _output_names(self, names: Sequence[str] | None) -> list[str]:
        """The names of outputs that are asked for; all of them for none."""
        known = [spec.name for spec in self.engine.outputs]
        if isinstance(names, (str, bytes)) or not isinstance(names, (Sequence, type(None))):
            raise InputError(f"output_names are a list of names, or None for all, got {a_kind(names)}")
        for name in names or ():
            if name not in known:
                raise InputError(f"there is no output {brief(name)}: this model gives {', '.join(known)}")
        return list(names or known)

    def _inputs(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """The feeds as the engine takes them."""
        check_mapping(feed, "inputs")
        found: dict[str, Any] = {}
        for name, value in feed.items():
            if type(value) is np.ndarray:
                found[name] = value
                continue
            value = value.value if isinstance(value, OrtValue) else value
            # A number of NumPy's, as a number of Python's, becomes what the engine takes where it keeps its value.
            found[name] = value.item() if isinstance(value, np.generic) else value
        return found

    # -- Profiling ------------------------------------------------------------------------------

    def _record(self, name: str, category: str, began: int, nanoseconds: int, **facts: Any) -> None:
        """One event in the format of Chrome's traces, which ONNX Runtime's profiles have too."""
        start = (began - self._began) // 1000
        self._events.append(
            {"cat": category, "pid": os.getpid(), "tid": 0, "ts": start, "dur": nanoseconds // 1000, "ph": "X",
             "name": name, "args": facts}
        )  # fmt: skip

    def get_profiling_start_time_ns(self) -> int:
        """The time at which the session was made, of `time.perf_counter_ns`."""
        return self._began

    def end_profiling(self) -> str:
        """Write the profile, a JSON file in the format of Chrome's traces, and return its name.

        It has the runs of the session, then one run of each step of the plan: the median time of ten runs on the last
        inputs.  Without `SessionOptions.enable_profiling` nothing is written, and the name is empty.
        """
        if not self._options.enable_profiling:
            return ""
        if self._last is not None:
            place = time.perf_counter_ns()
            for row in self.engine.profile(self._last, threads=self._threads):
                duration = int(row["milliseconds"] * 1e6)
                facts = {key: row[key] for key in ("kernel", "bytes", "flops")}
                self._record(row["name"], "Node", place, duration, **facts)
                place += duration
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        path = Path(f"{self._options.profile_file_prefix}_{stamp}.json")
        try:
            path.write_text(json.dumps(self._events), encoding="utf-8")
        except (OSError, ValueError) as error:
            raise SettingsError(f"the profile {path} cannot be written: {error}") from error
        self._events, self._last = [], None
        return str(path)


def _engines_of_sizes(
    engine: _Engines,
    source: Source,
    shapes: Mapping[str, Any] | None,
    target: str,
) -> EnginesOfSizes | None:
    """What compiles a model for the sizes of a call; None for a model without dynamic sizes."""
    if not isinstance(engine, Engine):
        return None
    from tilewright.onnx.specialized import EnginesOfSizes, has_free_sizes, inputs_of

    if not has_free_sizes(engine.inputs) and not has_free_sizes(inputs_of(source.read())):
        return None
    return EnginesOfSizes(source, target, shapes)


def _compiled(source: Source, dynamic_shapes: Mapping[str, Any] | None, target: str, quick_start: bool) -> _Engines:
    """The engine of a model, or what compiles one for each set of values of its small inputs, or of ranks."""
    try:
        return compile_model(source.get(), None, dynamic_shapes, target, quick_start=quick_start)
    except UnknownRankError:
        from tilewright.onnx.specialized import EnginesOfRanks

        return EnginesOfRanks(source, target, dynamic_shapes, quick_start)
    except (UnsupportedOperationError, ShapeError) as error:
        from tilewright.onnx.specialized import instead

        return instead(source, target, dynamic_shapes, error, quick_start)


def _provider(providers: Sequence[str | tuple[str, Any]] | None) -> str:
    if isinstance(providers, str) or not isinstance(providers, (Sequence, type(None))):
        raise SettingsError(f"providers are a list of names, got {a_kind(providers)}")
    entries = [entry[0] if isinstance(entry, tuple) and entry else entry for entry in providers or _DEFAULT]
    names = [str(name) for name in entries]
    known = [name for name in names if name in PROVIDER_TARGETS]
    if not known:
        raise SettingsError(
            f"none of the providers {', '.join(names)} is known: expected {' or '.join(PROVIDER_TARGETS)}"
        )
    found = next((name for name in known if PROVIDER_TARGETS[name] == "cpu" or has_gpu()), known[0])
    if found != names[0]:
        logger.warning("%s is not available here: the model runs on %s", names[0], found)
    return found


def _model(given: Any) -> ModelProto | bytes:
    """The contents of a file as bytes, or a model as it is; raises `ImportModelError`."""
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    if not hasattr(given, "graph"):
        raise ImportModelError(f"a session is made of a file, bytes or a ModelProto, not of {type(given).__name__}")
    model: ModelProto = given
    return model


def _node_arg(spec: TensorSpec, declared: Mapping[str, list[int | str | None]]) -> NodeArg:
    """A tensor as the model declares it; what it does not tell is as in the engine."""
    dtype = ANY_BY_NAME[spec.dtype]
    sizes = () if dtype.kind in ("sequence", "optional") else spec.shape
    shape: list[int | str | None] = [size if isinstance(size, int) else str(size) for size in sizes]
    return NodeArg(spec.name, type_text(dtype), declared.get(spec.name, shape) if dtype.kind != "sequence" else [])


def _overridable(model: ModelProto) -> dict[str, NodeArg]:
    """The constants of a model that are inputs as well; up to IR version 3 all constants are, and none is meant."""
    from tilewright.importers.onnx_tensors import ONNX_DTYPES

    if model.ir_version < 4:
        return {}
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    entries = [stored[entry.name] for entry in model.graph.input if entry.name in stored]
    return {
        tensor.name: NodeArg(tensor.name, type_text(ONNX_DTYPES[tensor.data_type]), list(tensor.dims))
        for tensor in entries
        if tensor.data_type in ONNX_DTYPES
    }
