"""Options of sessions and runs, and what a model says about itself, as ONNX Runtime's Python interface has them.

Options that steer ONNX Runtime's own optimizer, memory, threads and log are taken and kept, and have no meaning here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

from tilewright.errors import SettingsError, brief

if TYPE_CHECKING:
    from onnx import ModelProto, TensorShapeProto

    from tilewright.onnx.binding import OrtValue


class GraphOptimizationLevel(IntEnum):
    """How much ONNX Runtime optimizes; tilewright always does all that it can."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether ONNX Runtime runs nodes at once; tilewright decides for each plan."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """In which order ONNX Runtime runs nodes; tilewright decides for each plan."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass
class SessionOptions:
    """Options of a session.

    `intra_op_num_threads`: threads of a run, 0 for those of `tilewright.settings`; `enable_profiling`: time the runs,
    and write them to a file whose name begins with `profile_file_prefix` (`InferenceSession.end_profiling`);
    `optimized_model_filepath`: write the engine there; `quick_start`: begin with an engine that is compiled in less
    time, as in `tilewright.compile`.  The others have no meaning here.
    """

    intra_op_num_threads: int = 0
    enable_profiling: bool = False
    profile_file_prefix: str = "tilewright_profile_"
    optimized_model_filepath: str = ""
    quick_start: bool = False
    dimensions: dict[str, int] = field(default_factory=dict)
    denotations: dict[str, int] = field(default_factory=dict)
    initializers: dict[str, Any] = field(default_factory=dict)
    inter_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    entries: dict[str, str] = field(default_factory=dict)
    providers: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    is_cancelled: bool = False

    def add_free_dimension_override_by_name(self, dim_name: str, dim_value: int) -> None:
        """Fix the dimensions of that name."""
        self.dimensions[dim_name] = dim_value

    def add_free_dimension_override_by_denotation(self, dim_denotation: str, dim_value: int) -> None:
        """Fix the dimensions of inputs to which the model gives that meaning, such as "DATA_BATCH"."""
        self.denotations[dim_denotation] = dim_value

    def add_initializer(self, name: str, ort_value: OrtValue) -> None:
        """Use this value in place of the model's constant of that name."""
        self.initializers[name] = ort_value

    def add_external_initializers(self, names: Sequence[str], ort_values: Sequence[OrtValue]) -> None:
        """Use these values for constants that the model keeps in other files. Raises `SettingsError` for lists of
        different lengths."""
        if len(names) != len(ort_values):
            raise SettingsError(f"there are {len(names)} names for {len(ort_values)} values")
        self.initializers.update(zip(names, ort_values, strict=True))

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Use the first bytes of `buffers` for the files of those names, in which the model keeps constants. Raises
        `SettingsError` for lists of different lengths and a buffer that is too short."""
        if not len(names) == len(buffers) == len(lengths):
            raise SettingsError(f"there are {len(names)} names for {len(buffers)} buffers and {len(lengths)} lengths")
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            try:
                data = memoryview(buffer).cast("B")[:length]
            except TypeError:
                raise SettingsError(
                    f"the file {brief(name)} needs a buffer of contiguous bytes and their number, not "
                    f"{type(buffer).__name__} and {brief(length)}"
                ) from None
            if len(data) != length:
                raise SettingsError(f"the buffer of the file {brief(name)} has {len(data)} bytes, not {brief(length)}")
            self.files[str(name)] = bytes(data)

    def add_provider(self, name: str, options: Mapping[str, str] | None = None) -> None:
        """Name a provider for the session, which counts where its argument `providers` names none."""
        self.providers.append((name, dict(options or {})))

    def has_providers(self) -> bool:
        """Whether `add_provider` named one."""
        return bool(self.providers)

    def set_load_cancellation_flag(self, is_cancelled: bool) -> None:
        """Whether the making of a session is refused."""
        self.is_cancelled = bool(is_cancelled)

    def add_provider_for_devices(self, *arguments: Any) -> NoReturn:
        """Raises `SettingsError`."""
        raise SettingsError("a device is chosen by its provider: add_provider('CUDAExecutionProvider')")

    def set_provider_selection_policy(self, *arguments: Any) -> NoReturn:
        """Raises `SettingsError`."""
        self.add_provider_for_devices()

    def set_provider_selection_policy_delegate(self, *arguments: Any) -> NoReturn:
        """Raises `SettingsError`."""
        self.add_provider_for_devices()

    def set_ep_context_data_read_func(self, *arguments: Any) -> NoReturn:
        """Raises `SettingsError`: models compiled for a provider of ONNX Runtime do not run here."""
        raise SettingsError("models that were compiled for a provider of ONNX Runtime do not run here: give others")

    def clear_ep_context_data_read_func(self) -> None:
        """Nothing: there is no such function."""

    def add_session_config_entry(self, config_key: str, config_value: str) -> None:
        """Keep an entry, which has no meaning here."""
        self.entries[config_key] = config_value

    def get_session_config_entry(self, config_key: str) -> str:
        """An entry that was added. Raises `SettingsError` for another."""
        return _entry(self.entries, config_key)

    def register_custom_ops_library(self, path: str) -> None:
        """Raises `SettingsError`: a library's operations are machine code for ONNX Runtime."""
        raise SettingsError(
            f"{path}: operations of a library for ONNX Runtime cannot run here; write them as functions of the model"
        )


@dataclass
class RunOptions:
    """Options of a run; only `terminate` has a meaning here.

    `terminate`: another thread sets it to end the run early, which then raises `RunEndedError`: within about a second
    on the CPU, on a GPU between two parts of an engine. Runs with it do so until it is False again.
    """

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    entries: dict[str, str] = field(default_factory=dict)

    def add_run_config_entry(self, config_key: str, config_value: str) -> None:
        """Keep an entry, which has no meaning here."""
        self.entries[config_key] = config_value

    def get_run_config_entry(self, config_key: str) -> str:
        """An entry that was added. Raises `SettingsError` for another."""
        return _entry(self.entries, config_key)

    def add_active_adapter(self, adapter: Any) -> NoReturn:
        """Raises `SettingsError`."""
        raise SettingsError("adapters of ONNX Runtime are not supported: give their tensors as inputs of the run")


def _entry(entries: dict[str, str], key: str) -> str:
    if key not in entries:
        raise SettingsError(f"there is no entry {brief(key)}; there are: {', '.join(entries) or 'none'}")
    return entries[key]


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says about itself."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(model: ModelProto) -> ModelMetadata:
        """That of an ONNX model."""
        return ModelMetadata(
            model.producer_name,
            model.graph.name,
            model.domain,
            model.doc_string,
            model.graph.doc_string,
            model.model_version,
            {entry.key: entry.value for entry in model.metadata_props},
        )


@dataclass(frozen=True)
class NodeArg:
    """An input or output: its name, type ("tensor(float)", "seq(tensor(string))") and shape (numbers, names of dynamic
    sizes, None for those without a name; of an optional those of its tensor; nothing for sequences)."""

    name: str
    type: str
    shape: list[int | str | None]


def fixed_size(dimension: TensorShapeProto.Dimension, options: object) -> int | None:
    """The size that options fix for a dimension of a model, by its name or its meaning."""
    sizes: Mapping[str, int] = getattr(options, "dimensions", {})
    meanings: Mapping[str, int] = getattr(options, "denotations", {})
    if dimension.HasField("dim_value") and dimension.dim_value >= 0:
        return None
    return sizes.get(dimension.dim_param, meanings.get(dimension.denotation))


def declared_shapes(model: ModelProto, options: object) -> dict[str, list[int | str | None]]:
    """The shapes of inputs and outputs that have one in the model, with the sizes that options of a session fix."""
    found: dict[str, list[int | str | None]] = {}
    for entry in (*model.graph.input, *model.graph.output):
        optional = entry.type.HasField("optional_type")
        tensor = (entry.type.optional_type.elem_type if optional else entry.type).tensor_type
        if tensor.HasField("shape"):
            found[entry.name] = [
                dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0
                else dim.dim_param or None if (size := fixed_size(dim, options)) is None else size
                for dim in tensor.shape.dim
            ]  # fmt: skip
    return found
