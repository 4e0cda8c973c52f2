"""Importers: trained models -> Graph.

    import_model(module, (example,), dynamic_shapes={"x": {0: ("batch", 1, 64)}})     PyTorch
    import_model("model.pt2")        a saved torch.export program
    import_model("model.onnx")       ONNX
    import_model("checkpoint/")      a Hugging Face folder: config.json and safetensors

PyTorch and ONNX are imported only when a model of theirs comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilewright.errors import ImportModelError, MissingDependencyError, a_kind
from tilewright.graph.core import Graph
from tilewright.importers.families import import_checkpoint
from tilewright.runtime.safe_files import why_not_readable

ACCEPTED = (
    "a torch.nn.Module, a function of tensors, a torch.export.ExportedProgram, a .pt2 file, an ONNX ModelProto, "
    "a .onnx file, the contents of one as bytes, "
    "or a checkpoint folder with config.json and safetensors weights"
)


def import_model(
    model: Any,
    example_inputs: Any = None,
    dynamic_shapes: Mapping[str, Any] | Any = None,
    name: str | None = None,
    trust: bool = False,
    example_kwargs: Mapping[str, Any] | None = None,
    progress: Callable[[str, str, float], None] | None = None,
) -> Graph:
    """The graph of a model of any supported kind (see `ACCEPTED`).

    `example_inputs` (PyTorch modules and functions only): a tuple of tensors, a dict by argument name, or one tensor;
    `example_kwargs`: keyword arguments that follow positional ones.
    `dynamic_shapes`: ``{input: {axis: (name, low, high)}}`` (other forms: `importers.shapes`); for
    PyTorch modules also what `torch.export.export` takes.
    `trust` lets PyTorch read a .pt2 file, and so runs the pickles in it: only for files of people you trust.  Without
    it, files that cannot be read as data are refused.
    `progress` is called with ("import", what is being done, 0.0) while PyTorch exports a module.

    Raises `ImportModelError` (unreadable, unknown kind), `UnsupportedOperationError` (lists every
    operation without a rule) and `MissingDependencyError` (names the extra to install).
    """
    if isinstance(model, Graph):
        return model
    if not isinstance(example_kwargs, (Mapping, type(None))):
        raise ImportModelError(f"example_kwargs are given by name, as a dictionary, got {a_kind(example_kwargs)}")
    if isinstance(model, (bytes, bytearray, memoryview)):
        return onnx_importer().import_onnx(bytes(model), dynamic_shapes, name)
    if isinstance(model, (str, Path)):
        return _import_path(Path(model), dynamic_shapes, name, trust)
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(model).__mro__}
    if "torch.nn.modules.module.Module" in kinds:
        return _torch().import_module(model, example_inputs, dynamic_shapes, name, example_kwargs, progress)
    if any(kind.startswith("torch.export.") and kind.endswith("ExportedProgram") for kind in kinds):
        return _torch().import_program(model, dynamic_shapes, name or "exported")
    if any(kind.startswith("onnx.") and kind.endswith("ModelProto") for kind in kinds):
        return onnx_importer().import_onnx(model, dynamic_shapes, name)
    if callable(model) and not isinstance(model, type):
        return _torch().import_function(model, example_inputs, dynamic_shapes, name, example_kwargs, progress)
    raise ImportModelError(f"cannot import an object of type {type(model).__name__}; expected {ACCEPTED}")


def _import_path(path: Path, dynamic_shapes: Any, name: str | None, trust: bool) -> Graph:
    try:
        there = path.exists()
    except (OSError, ValueError) as error:  # too long, a NUL, letters that the file system cannot spell
        raise ImportModelError(f"{str(path)[:200]}: {str(error)[:200]}; expected {ACCEPTED}") from error
    if not there:
        if path.suffix in (".onnx", ".pt2"):
            raise ImportModelError(f"{path}: there is no such file; check the name and the folder")
        raise ImportModelError(f"{path}: no such file or folder; expected {ACCEPTED}")
    if path.is_dir():
        return import_checkpoint(path, dynamic_shapes, name)
    if path.suffix == ".onnx":
        return onnx_importer().import_onnx(path, dynamic_shapes, name)
    if path.suffix == ".pt2":
        reason = why_not_readable(path)
        if reason is not None:
            raise ImportModelError(f"{path}: cannot be read: {reason}")
        torch_export = _torch()
        program = torch_export.load_program(str(path), trust)
        return torch_export.import_program(program, dynamic_shapes, name or path.stem)
    raise ImportModelError(f"{path}: unknown kind of model file {path.suffix!r}; expected {ACCEPTED}")


def _torch() -> Any:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "importing a PyTorch model needs PyTorch, which is not installed: pip install 'tilewright[torch]'"
        ) from error
    from tilewright.importers import torch_export

    return torch_export


def onnx_importer() -> Any:
    """The module `importers.onnx`; raises `MissingDependencyError` where the onnx package is not installed."""
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "importing an ONNX model needs the onnx package, which is not installed: pip install 'tilewright[onnx]'"
        ) from error
    from tilewright.importers import onnx as onnx_importer

    return onnx_importer
