"""tilewright: from a trained model, or one kernel, to machine code, with every decision shown.

    engine = tilewright.compile(model, example_inputs)       # or a path: .onnx, .pt2, a checkpoint folder
    engine.save("model.engine")
    engine = tilewright.load("model.engine")                 # needs no compiler
    outputs = engine(x)

Names are imported when they are first used: loading an engine imports the runtime alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.engine.engine import Engine as Engine
    from tilewright.engine.engine import load as load
    from tilewright.frontend.jit import JITFunction as JITFunction
    from tilewright.frontend.jit import jit as jit
    from tilewright.frontend.sizes import cdiv as cdiv
    from tilewright.frontend.sizes import next_power_of_2 as next_power_of_2
    from tilewright.language.function import constexpr_function as constexpr_function

__version__ = "0.1.0"

_EXPORTS = {
    "Engine": "tilewright.engine.engine",
    "load": "tilewright.engine.engine",
    "jit": "tilewright.frontend.jit",
    "JITFunction": "tilewright.frontend.jit",
    "constexpr_function": "tilewright.language.function",
    "cdiv": "tilewright.frontend.sizes",
    "next_power_of_2": "tilewright.frontend.sizes",
}
__all__ = [
    "Engine", "JITFunction", "cdiv", "compile", "constexpr_function", "jit", "language", "load", "next_power_of_2",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = getattr(importlib.import_module(_EXPORTS[name]), name)
        globals()[name] = value
        return value
    if name == "language":  # after `import tilewright` alone; the import binds the name
        return importlib.import_module("tilewright.language")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def compile(
    model: Any,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    target: str = "auto",
    progress: Callable[[str, str, float], None] | None = None,
) -> Engine:
    """Build an engine from a model.

    `model` is a PyTorch module or `ExportedProgram`, or the path of an .onnx file, a .pt2 file or a
    Hugging Face checkpoint folder.  A module needs `example_inputs`; `dynamic_shapes` says which of
    their dimensions vary, as for `torch.export.export`.  `target` is ``auto`` (this machine) or a
    target's name.  `progress` is called with (stage, item, seconds).

    Raises `UnsupportedOperationError` listing every operation that no rule knows, `ImportModelError`
    when the model cannot be read, and `MissingDependencyError` when reading it needs a package.
    """
    from tilewright.engine.builder import build
    from tilewright.importers import import_model

    graph = import_model(model, example_inputs, dynamic_shapes)
    return build(graph, target=target, progress=progress)
