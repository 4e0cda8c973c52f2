"""tilewright: from a trained model, or one kernel, to machine code, with every decision shown.

    engine = tilewright.compile(model, example_inputs)       # or a path: .onnx, .pt2, a checkpoint folder
    engine.save("model.engine")
    engine = tilewright.load("model.engine")                 # needs no compiler
    outputs = engine(x)

An engine is a program: load those of people you trust, or use ``expect_sha256``, ``trusted_keys`` or
``rebuild="always"`` (`Engine.load`).

Names are imported when they are first used: loading an engine imports the runtime alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.api import compile as compile
    from tilewright.engine.engine import Engine as Engine
    from tilewright.engine.engine import load as load
    from tilewright.frontend.autotune import Config as Config
    from tilewright.frontend.autotune import autotune as autotune
    from tilewright.frontend.background import AsyncCompileMode as AsyncCompileMode
    from tilewright.frontend.descriptor import TensorDescriptor as TensorDescriptor
    from tilewright.frontend.heuristics import heuristics as heuristics
    from tilewright.frontend.jit import JITFunction as JITFunction
    from tilewright.frontend.jit import jit as jit
    from tilewright.frontend.sizes import cdiv as cdiv
    from tilewright.frontend.sizes import next_power_of_2 as next_power_of_2
    from tilewright.frontend.wrappers import MockTensor as MockTensor
    from tilewright.frontend.wrappers import pointer as pointer
    from tilewright.frontend.wrappers import reinterpret as reinterpret
    from tilewright.language.aggregate import aggregate as aggregate
    from tilewright.language.function import constexpr_function as constexpr_function

__version__ = "0.1.0"

_EXPORTS = {
    "Engine": "tilewright.engine.engine",
    "compile": "tilewright.api",
    "load": "tilewright.engine.engine",
    "jit": "tilewright.frontend.jit",
    "JITFunction": "tilewright.frontend.jit",
    "Config": "tilewright.frontend.autotune",
    "autotune": "tilewright.frontend.autotune",
    "heuristics": "tilewright.frontend.heuristics",
    "aggregate": "tilewright.language.aggregate",
    "AsyncCompileMode": "tilewright.frontend.background",
    "MockTensor": "tilewright.frontend.wrappers",
    "pointer": "tilewright.frontend.wrappers",
    "reinterpret": "tilewright.frontend.wrappers",
    "constexpr_function": "tilewright.language.function",
    "TensorDescriptor": "tilewright.frontend.descriptor",
    "cdiv": "tilewright.frontend.sizes",
    "next_power_of_2": "tilewright.frontend.sizes",
}
__all__ = [
    "AsyncCompileMode", "Config", "Engine", "JITFunction", "MockTensor", "TensorDescriptor", "aggregate",
    "autotune", "cdiv", "compile", "constexpr_function", "errors", "heuristics", "jit", "language", "load",
    "next_power_of_2", "onnx", "pointer", "reinterpret", "testing",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = getattr(importlib.import_module(_EXPORTS[name]), name)
        globals()[name] = value
        return value
    if name in ("errors", "language", "onnx", "testing"):  # after `import tilewright` alone; the import binds the name
        return importlib.import_module(f"tilewright.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
