"""Other runtimes, run on the model that an engine was built from: for `run --compare` and `bench --vs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import ImportModelError, MissingDependencyError

if TYPE_CHECKING:
    from tilewright.engine import Engine

Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
NAMES = ("reference", "onnxruntime", "torch")


def load_peer(name: str, engine: Engine, model: Path | None, threads: int) -> Run:
    """A function that runs the engine's source model in another runtime.

    `name` is ``reference`` (float64 NumPy on the graph inside the engine), ``onnxruntime`` or
    ``torch``; the last two need the model's file: `model`, else where the engine was built from.
    Raises `MissingDependencyError` and `ImportModelError`.
    """
    if name == "reference":
        return _reference(engine)
    path = model or (Path(engine.source) if engine.source else None)
    if path is None or not path.exists():
        raise ImportModelError(
            f"--compare/--vs {name} needs the model that the engine was built from"
            + (f"; {path} is not there" if path else "")
            + ". Name it with --model."
        )
    return _onnxruntime(path, threads) if name == "onnxruntime" else _torch(path, threads)


def _reference(engine: Engine) -> Run:
    from tilewright.graph import reference

    graph = engine.source_graph()
    return lambda inputs: reference.run(graph, dict(inputs))


def _onnxruntime(path: Path, threads: int) -> Run:
    if path.suffix != ".onnx":
        raise ImportModelError(f"ONNX Runtime runs .onnx files, and the engine's model is {path.name}")
    try:
        import onnxruntime
    except ImportError:
        raise MissingDependencyError("ONNX Runtime is not installed: pip install onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    wanted = {entry.name for entry in session.get_inputs()}

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, {k: v for k, v in inputs.items() if k in wanted}), strict=True))

    return run


def _torch(path: Path, threads: int) -> Run:
    try:
        import torch
    except ImportError:
        raise MissingDependencyError("PyTorch is not installed: pip install 'tilewright[torch]'") from None
    torch.set_num_threads(threads)
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()
    elif path.is_dir():
        try:
            import transformers
        except ImportError:
            raise MissingDependencyError(
                "PyTorch runs a checkpoint folder through transformers: pip install transformers"
            ) from None
        module = transformers.AutoModel.from_pretrained(str(path)).eval()
    else:
        raise ImportModelError(f"PyTorch runs .pt2 files and checkpoint folders, and the engine's model is {path.name}")

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
        with torch.inference_mode():
            results = module(*tensors.values()) if path.suffix == ".pt2" else module(**tensors)
        if isinstance(results, torch.Tensor):
            results = (results,)
        pairs = results.items() if hasattr(results, "items") else enumerate(results)
        return {str(name): value.numpy() for name, value in pairs if isinstance(value, torch.Tensor)}

    return run
