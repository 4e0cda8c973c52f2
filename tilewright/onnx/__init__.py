"""ONNX models through the interfaces of ONNX Runtime and ONNX.

    import tilewright.onnx as tw

    session = tw.InferenceSession("model.onnx")                 # as onnxruntime.InferenceSession
    session.run(None, {"input": x})

`tilewright.onnx.backend` is the interface of ``onnx.backend``.
"""

from __future__ import annotations

from tilewright import __version__
from tilewright.onnx.binding import IOBinding, OrtDevice, OrtValue, SparseTensor
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
    "OrtDevice",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "SparseTensor",
    "__version__",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "set_default_logger_severity",
    "set_seed",
]
