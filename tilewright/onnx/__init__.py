"""ONNX models through the interfaces that their users know.

    import tilewright.onnx as tw

    session = tw.InferenceSession("model.onnx")                 # as onnxruntime.InferenceSession
    session.run(None, {"input": x})

`tilewright.onnx.backend` is the interface of ``onnx.backend``.
"""

from __future__ import annotations

from tilewright.onnx.binding import IOBinding, OrtValue
from tilewright.onnx.session import (
    InferenceSession,
    NodeArg,
    SessionOptions,
    get_available_providers,
)

__all__ = ["IOBinding", "InferenceSession", "NodeArg", "OrtValue", "SessionOptions", "get_available_providers"]
