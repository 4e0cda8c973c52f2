"""The demo's checkpoint in PyTorch eager and ONNX Runtime, where they are installed."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def installed(*names: str) -> bool:
    """Whether all these packages can be imported."""
    return all(importlib.util.find_spec(name) is not None for name in names)


def torch_run(folder: Path, inputs: dict[str, np.ndarray]) -> Callable[[], Any] | None:
    """A call of the PyTorch module with these weights, or None without PyTorch."""
    if not installed("torch"):
        return None
    import torch

    from tests.models import bert
    from tilewright.settings import settings

    torch.set_num_threads(settings.threads)
    module = bert.load(folder)
    tensors = [torch.from_numpy(array) for array in inputs.values()]

    def run() -> Any:
        with torch.inference_mode():
            return module(*tensors)

    return run


def onnxruntime_run(folder: Path, inputs: dict[str, np.ndarray]) -> Callable[[], Any] | None:
    """A call of ONNX Runtime on the exported module, or None without what that needs."""
    if not installed("torch", "onnx", "onnxscript", "onnxruntime"):
        return None
    import onnxruntime

    from tests.models import bert
    from tests.models.specification import export_onnx
    from tilewright.settings import settings

    with tempfile.TemporaryDirectory() as temporary:
        path = export_onnx(bert.specification(bert.load(folder)), Path(temporary) / "minilm.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = settings.threads
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)
