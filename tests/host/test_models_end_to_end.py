"""Whole models as engines: as near to PyTorch's float64 as PyTorch's own float32, from one dynamic engine.

The bound of two times PyTorch's own error is the product's promise; a small floor (in units of the
largest output) keeps a lucky rounding of PyTorch from deciding.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.host.model_support import onnx_graph, specification, torch_graph  # noqa: E402
from tilewright.engine.builder import build  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

LENGTHS = (5, 32, 48)
SIZES: dict[str, list[dict[str, int]]] = {
    "minilm": [{"batch": batch, "sequence": length} for batch, length in ((1, 5), (3, 32), (16, 128))],
    "resnet50": [{"batch": batch} for batch in (1, 3, 16)],
    "prefill": [{"batch": batch, "sequence": length} for batch in (1, 3, 16) for length in LENGTHS],
    "decode": [{"batch": batch, "past": past} for batch in (1, 3, 16) for past in (0, 20, 47)],
}
DRAWS = {1: 8, 3: 6, 16: 1}  # by batch: the largest of few errors is a matter of luck, so small inputs are drawn often


@functools.cache
def engine(name: str, importer: str = "torch") -> Any:
    return build(torch_graph(name) if importer == "torch" else onnx_graph(name))


def error(found: Any, exact: Any) -> float:
    return float(np.max(np.abs(np.asarray(found, np.float64) - exact.numpy()), initial=0.0))


def check(name: str, model: Any, sizes: dict[str, int], mutated: tuple[str, ...]) -> None:
    """The largest error over a few draws, output by output."""
    spec = specification(name)
    ours: dict[int, float] = {}
    theirs: dict[int, float] = {}
    for seed in range(DRAWS[sizes["batch"]]):
        inputs = spec.make_inputs(**sizes, seed=seed)
        exact, single = spec.run(inputs, torch.float64), spec.run(inputs)
        given = {key: tensor.clone() for key, tensor in inputs.items()}
        outputs = model.run(given)
        found = [outputs[output.name] for output in model.outputs] + [given[item] for item in mutated]
        for index, (got, want, own) in enumerate(zip(found, exact, single, strict=False)):
            floor = 2 * np.finfo(np.float32).eps * float(want.abs().max())
            ours[index] = max(ours.get(index, 0.0), error(got, want))
            theirs[index] = max(theirs.get(index, 0.0), error(own, want), floor)
    assert all(ours[index] <= 2 * theirs[index] for index in ours), (name, sizes, ours, theirs)


@pytest.mark.parametrize(
    ("name", "sizes"), [(name, sizes) for name, entries in SIZES.items() for sizes in entries], ids=str
)
def test_as_exact_as_pytorch(name: str, sizes: dict[str, int]) -> None:
    check(name, engine(name), sizes, specification(name).mutated)


@pytest.mark.parametrize("sizes", SIZES["minilm"], ids=str)
def test_through_onnx(sizes: dict[str, int]) -> None:
    check("minilm", engine("minilm", "onnx"), sizes, ())


def test_through_the_checkpoint(tmp_path: Path) -> None:
    """The folder alone, saved and loaded."""
    from tests.models.bert import checkpoint_folder
    from tilewright import Engine

    specification("minilm")  # skips without the trained checkpoint
    path = tmp_path / "minilm.engine"
    build(import_model(checkpoint_folder())).save(path)
    check("minilm", Engine.load(path), SIZES["minilm"][1], ())
