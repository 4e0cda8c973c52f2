"""`tilewright.compile`: from a model of any supported kind to an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tilewright.engine.builder import build
from tilewright.engine.engine import Engine
from tilewright.importers import import_model


def compile(
    model: Any,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    target: str | Sequence[str] = "auto",
    progress: Callable[[str, str, float], None] | None = None,
) -> Engine:
    """Build an engine from a model.

    `model` is a PyTorch module or `ExportedProgram`, an ONNX `ModelProto`, or the path of an .onnx file,
    a .pt2 file or a Hugging Face checkpoint folder.  A module needs `example_inputs`; `dynamic_shapes`
    says which dimensions vary (see `importers.import_model`).  `target` is ``auto`` (this machine's CPU) or a
    target's name: ``cuda`` (this machine's GPU), ``cuda:sm_90a`` (on any machine); several make one engine for all.
    `progress` is called with (stage, item, seconds).

    Raises `UnsupportedOperationError` listing every operation that no rule knows, `ImportModelError`
    when the model cannot be read, and `MissingDependencyError` when reading it needs a package.
    """
    source = str(Path(model).resolve()) if isinstance(model, (str, Path)) else type(model).__qualname__
    graph = import_model(model, example_inputs, dynamic_shapes)
    return build(graph, target=target, progress=progress, source=source)
