"""ONNX models through the interfaces of ONNX Runtime and ONNX.

    import tilewright.onnx as tw

    session = tw.InferenceSession("model.onnx")                 # as onnxruntime.InferenceSession
    session.run(None, {"input": x})

`tilewright.onnx.backend` is the interface of ``onnx.backend``.
"""

from __future__ import annotations

from typing import NoReturn

from tilewright import __version__
from tilewright.onnx.binding import IOBinding, OrtValue, SparseTensor, copy_tensors
from tilewright.onnx.devices import (
    OrtAllocatorType,
    OrtDevice,
    OrtDeviceMemoryType,
    OrtMemoryInfo,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from tilewright.onnx.environment import (
    ABSENT_FEATURES,
    disable_telemetry_events,
    enable_telemetry_events,
    get_build_info,
    get_version_string,
    has_collective_ops,
    preload_dlls,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
)
from tilewright.onnx.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    ModelMetadata,
    NodeArg,
    RunOptions,
    SessionOptions,
)
from tilewright.onnx.session import (
    InferenceSession,
    get_all_providers,
    get_available_providers,
    get_device,
    set_default_logger_severity,
)
from tilewright.runtime.seeds import set_seed

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "SparseTensor",
    "__version__",
    "copy_tensors",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
]


def __getattr__(name: str) -> NoReturn:
    why = ABSENT_FEATURES.get(name)
    raise AttributeError(f"tilewright.onnx has no {name!r}{'' if why is None else f', as onnxruntime has: {why}'}")
