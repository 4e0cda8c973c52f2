"""The Hopper convolution on a GPU of compute capability 9.0, and convolutions in engines, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright.language as tl
from tests.convolution_cases import CASES
from tests.hopper_convolutions import prepare_convolution
from tests.host.test_engine_gpu_convolution import CASES as MODELS
from tests.host.test_engine_gpu_convolution import model, preferred_pixels, window
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.graph.core import Graph
from tilewright.graph.reference import run

pytestmark = pytest.mark.hopper


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("processors", [132, 3])
def test_configs(torch: Any, rng: np.random.Generator, name: str, processors: int) -> None:
    """On as many CTAs as there are and on few; twice the same, bit by bit."""
    case = CASES[name]
    x, w, residual = case.draw(rng)
    expected = case.expected(x, w)
    if case.config.RESIDUAL_TILES:
        expected = np.maximum(expected + residual, 0)
    kinds = {2: torch.float16, 4: torch.float32}

    def there(array: np.ndarray, kind: Any) -> Any:
        return torch.from_numpy(array.astype(np.float32)).to(kind).cuda()

    operand = torch.bfloat16 if case.config.INPUT == tl.bfloat16 else torch.float16
    arrays = there(x, operand), there(w, operand)
    second = there(residual, kinds[residual.itemsize])
    results = []
    for _ in range(2):
        out = torch.full(residual.shape, float("nan"), dtype=kinds[residual.itemsize], device="cuda")
        prepare_convolution(
            case.config, *arrays, out, second if case.config.RESIDUAL_TILES else None, processors=processors
        )()
        results.append(out.cpu().numpy())
    assert np.max(np.abs(results[0] - expected)) <= 2e-3 * np.max(np.abs(expected))
    assert np.array_equal(results[0], results[1])


def check(graph: Graph, rng: np.random.Generator, batches: tuple[int, ...]) -> None:
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    for batch in batches:
        inputs = {
            value.name: rng.standard_normal((batch, *value.shape[1:])).astype(np.float16) for value in graph.inputs
        }
        exact = run(graph, inputs)["y"]
        found = engine.run(inputs)["y"].astype(np.float64)
        assert np.max(np.abs(found - exact)) <= 2.0**-9 * np.max(np.abs(exact))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("residual", [False, True])
def test_in_engines(rng: np.random.Generator, name: str, residual: bool) -> None:
    sizes, attributes = MODELS[name]
    check(model(rng, 2, residual=residual, **sizes, **attributes), rng, (2,))


@pytest.mark.parametrize("name", ["3x3", "1x1", "few channels"])
def test_any_number_of_images(rng: np.random.Generator, name: str) -> None:
    sizes, attributes = MODELS[name]
    check(model(rng, "batch", **sizes, **attributes), rng, (1, 5, 8))


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("config", [(1, 1, 8), (1, 4, 8), (2, 4, 8), (2, 7, 4)])
def test_depthwise(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, kernel: int, stride: int, config: tuple[int, int, int]
) -> None:
    monkeypatch.setattr("tilewright.library.convolution.simt.depthwise._configs", lambda size, elements: [config])
    graph = model(rng, 2, (15, 17), 72, 72, **window(kernel, stride=stride, pad=kernel // 2, groups=72))
    check(graph, rng, (2,))


@pytest.mark.parametrize("kernel, stride", [(3, 1), (3, 2), (4, 4)])
@pytest.mark.parametrize("residual", [False, True])
def test_few_channels(rng: np.random.Generator, kernel: int, stride: int, residual: bool) -> None:
    graph = model(rng, 2, (16, 36), 3, 24, residual=residual, **window(kernel, stride=stride, pad=kernel % 2))
    check(graph, rng, (2,))


@pytest.mark.parametrize("sizes", [(16, 96), (24, 40), (32, 16)], ids=str)
@pytest.mark.parametrize("residual", [False, True])
def test_pixels_in_rows_of_products(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int], residual: bool
) -> None:
    monkeypatch.setattr("tilewright.library.convolution.simt.candidates.folded_pixels", preferred_pixels)
    check(model(rng, 2, (15, 12), *sizes, residual=residual, **window(1)), rng, (2,))
