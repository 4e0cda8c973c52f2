"""tilewright compiles a trained model, or one kernel, to machine code, and shows every decision.

    engine = tilewright.compile(model, example_inputs)       # or a path: .onnx, .pt2, a checkpoint folder
    engine.save("model.engine")
    engine = tilewright.load("model.engine")                 # needs no compiler
    outputs = engine(x)

An engine is a program: load those of people you trust, or use ``expect_sha256``, ``trusted_keys`` or
``rebuild="always"`` (`tilewright.load`).

Names are imported when they are first used: loading an engine imports the runtime alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.api import compile as compile
    from tilewright.engine.engine import Engine as Engine
    from tilewright.language.aggregate import aggregate as aggregate
    from tilewright.language.types import constexpr_function as constexpr_function
    from tilewright.launch.autotune import Config as Config
    from tilewright.launch.autotune import autotune as autotune
    from tilewright.launch.background import AsyncCompileMode as AsyncCompileMode
    from tilewright.launch.descriptor import TensorDescriptor as TensorDescriptor
    from tilewright.launch.heuristics import heuristics as heuristics
    from tilewright.launch.jit import JITFunction as JITFunction
    from tilewright.launch.jit import jit as jit
    from tilewright.launch.sizes import cdiv as cdiv
    from tilewright.launch.sizes import next_power_of_2 as next_power_of_2
    from tilewright.launch.wrappers import MockTensor as MockTensor
    from tilewright.launch.wrappers import pointer as pointer
    from tilewright.launch.wrappers import reinterpret as reinterpret
    from tilewright.loading import load as load
    from tilewright.quant.quantize import quantize as quantize
    from tilewright.quant.search import search_precision as search_precision

__version__ = "0.1.0"

_EXPORTS = {
    "Engine": "tilewright.engine.engine",
    "compile": "tilewright.api",
    "load": "tilewright.loading",
    "quantize": "tilewright.quant.quantize",
    "search_precision": "tilewright.quant.search",
    "jit": "tilewright.launch.jit",
    "JITFunction": "tilewright.launch.jit",
    "Config": "tilewright.launch.autotune",
    "autotune": "tilewright.launch.autotune",
    "heuristics": "tilewright.launch.heuristics",
    "aggregate": "tilewright.language.aggregate",
    "AsyncCompileMode": "tilewright.launch.background",
    "MockTensor": "tilewright.launch.wrappers",
    "pointer": "tilewright.launch.wrappers",
    "reinterpret": "tilewright.launch.wrappers",
    "constexpr_function": "tilewright.language.types",
    "TensorDescriptor": "tilewright.launch.descriptor",
    "cdiv": "tilewright.launch.sizes",
    "next_power_of_2": "tilewright.launch.sizes",
}
__all__ = [
    "AsyncCompileMode", "Config", "Engine", "JITFunction", "MockTensor", "TensorDescriptor", "aggregate",
    "autotune", "cdiv", "compile", "constexpr_function", "errors", "heuristics", "jit", "language", "load",
    "next_power_of_2", "onnx", "pointer", "quantize", "reinterpret", "search_precision", "testing",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = getattr(importlib.import_module(_EXPORTS[name]), name)
        globals()[name] = value
        return value
    if name in ("errors", "language", "onnx", "testing"):  # after `import tilewright` alone; the import binds the name
        return importlib.import_module(f"tilewright.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
