"""Sizes and bounds that follow from sizes: rounded floats, negative bounds, numbers that are read, sizes of 0 and 1."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright
from tilewright.errors import ShapeError
from tilewright.graph import reference
from tilewright.importers import import_model

_SIZES = (1, 2, 3, 4, 5, 8, 13)


def _rounded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[0]
    return x[: round(n * 0.7)], x[int(n * 0.3) :], x.new_ones(round(n / 2) + 1)


def _root(x: torch.Tensor) -> torch.Tensor:
    root = int(math.sqrt(x.shape[0]))
    return x[: root * root].reshape(root, root)


def _resized(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    image = x.reshape(1, 1, 1, -1).expand(-1, -1, 3, -1)
    size = round(x.shape[0] * 0.45) + 1
    return nn.functional.interpolate(image, scale_factor=1.3), nn.functional.adaptive_avg_pool1d(image[0], size)


def _from_the_end(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[0]
    return x[-(n // 3) - 1 :], x[(3 - n) // 2 :], x[: 4 - n], x[n - 9 : n - 4], x[: -(-n // 4)]


def _distance(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[0]
    return x[: abs(n - 5)], x.new_ones(abs(6 - n) + 1), x[n * n - 9 :]


@pytest.mark.parametrize("function", [_rounded, _root, _resized, _from_the_end, _distance])
def test_bounds_that_follow_from_sizes(function: Any) -> None:
    graph = import_model(function, (torch.randn(5),), {"x": {0: ("n", 1, 13)}})
    for size in _SIZES:
        x = torch.randn(size)
        found = reference.run(graph, {"x": x.numpy()})
        wanted = function(x) if isinstance(function(x), tuple) else (function(x),)
        for name, other in zip(graph.output_names, wanted, strict=True):
            np.testing.assert_allclose(found[name], other.numpy(), rtol=1e-5, atol=1e-6, err_msg=f"{name} of {size}")


def test_long_ranges_round_as_python_does() -> None:
    """Halves to even numbers, and factors that a float64 does not hold: a formula, or what the run computes."""
    high = 200_000
    for part in (0.5, 0.7, 0.1, 1 / 3, 2.5):
        graph = import_model(
            lambda x, part=part: x.new_ones(round(x.shape[0] * part)), (torch.randn(6),), {"x": {0: ("n", 1, high)}}
        )
        for size in (1, 5, 15, 25, 35, 45, 1005, high - 5):
            (found,) = reference.run(graph, {"x": np.zeros(size, np.float32)}).values()
            assert found.shape == (round(size * part),)


def _read_below(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    count = int(k)
    return x[:count].sum() if x.shape[0] % 2 else (x * count).sum()


def _read_in_one_way(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return x * int(k.sum()) if x.shape[0] > 6 else x - 1


@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="PyTorch 2.11 fixes numbers that are read")
@pytest.mark.parametrize("function", [_read_below, _read_in_one_way])
def test_numbers_read_in_the_ways_of_code_are_those_of_the_call(function: Any) -> None:
    graph = import_model(function, (torch.randn(5), torch.tensor(2)), {"x": {0: ("n", 1, 13)}})
    assert all("api.py" not in remark and "numbers in tensors" not in remark for remark in graph.remarks)
    for size in _SIZES:
        x, k = torch.randn(size), torch.tensor(size // 2)
        (found,) = reference.run(graph, {"x": x.numpy(), "k": k.numpy()}).values()
        np.testing.assert_allclose(found, function(x, k).numpy(), rtol=1e-5, atol=1e-6)


def _squeezed(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 if x.shape[0] % 2 else x
    return y.squeeze(0).sum() + y.squeeze().reshape(-1).amax()


def _squeezed_in_one_way(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0) if x.shape[0] > 4 else x.squeeze(0)


def test_sizes_of_1_of_which_a_squeeze_makes_another_rank() -> None:
    graph = import_model(_squeezed, (torch.randn(6, 3),), {"x": {0: ("n", 1, 13)}})
    for size in _SIZES:
        x = torch.randn(size, 3)
        (found,) = reference.run(graph, {"x": x.numpy()}).values()
        np.testing.assert_allclose(found, _squeezed(x).numpy(), rtol=1e-5, atol=1e-6)


def test_only_sizes_whose_results_differ_in_kind_are_refused() -> None:
    graph = import_model(_squeezed_in_one_way, (torch.randn(6, 3),), {"x": {0: ("n", 1, 13)}})
    assert any("results differ in kind" in remark and "rank 2" in remark for remark in graph.remarks)
    for size in (1, 5, 13):
        x = torch.randn(size, 3)
        (found,) = reference.run(graph, {"x": x.numpy()}).values()
        np.testing.assert_allclose(found, _squeezed_in_one_way(x).numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError):
        reference.run(graph, {"x": np.zeros((3, 3), np.float32)})


def _of_nothing_too(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(0), torch.cat([x, x[1:], x[:0]]), x @ x.T, x[x > 0], x[: x.shape[0] - 3]


def test_ranges_from_0() -> None:
    engine = tilewright.compile(_of_nothing_too, (torch.randn(2, 3),), {"x": {0: ("n", 0, 9)}}, "cpu")
    for size in (0, 1, 2, 9):
        x = torch.randn(size, 3)
        for found, other in zip(engine(x), _of_nothing_too(x), strict=True):
            torch.testing.assert_close(found, other)


def test_ranges_from_0_of_a_model_that_does_not_take_it() -> None:
    with pytest.raises(ShapeError, match="the range of 'n' begins at 0, and there is no program for this size"):
        import_model(lambda x: x.amax(0), (torch.randn(2, 3),), {"x": {0: ("n", 0, 9)}})
