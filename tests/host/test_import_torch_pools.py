"""Pools that tell where they found what they give, and images resampled to sizes that only a call tells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from tilewright.graph import reference  # noqa: E402
from tilewright.importers import import_model  # noqa: E402


def compare(function: Any, example: Any, calls: list[Any], dynamic_shapes: Any = None) -> None:
    """PyTorch's results, and those of the graph in NumPy."""
    graph = import_model(function, (example,), dynamic_shapes)
    names = graph.output_names
    for x in calls:
        found = reference.run(graph, {graph.inputs[0].name: x.numpy()})
        wanted = function(x)
        assert len(wanted) == len(names)
        for name, want in zip(names, wanted, strict=True):
            assert found[name].shape == tuple(want.shape), (name, x.shape)
            np.testing.assert_allclose(found[name], want.numpy(), rtol=1e-5, atol=1e-6)


def test_places_of_the_largest_elements() -> None:
    """Of equal ones the first; in windows that overlap, are dilated or reach beyond the image."""

    def pools(x: Any) -> Any:
        values, places = F.max_pool2d(x, 2, ceil_mode=True, return_indices=True)
        return (
            F.max_unpool2d(values, places, 2, output_size=x.shape[-2:]),
            *F.max_pool2d(x, 3, 2, 1, dilation=2, return_indices=True),
            *F.max_pool1d(x[0], 3, return_indices=True),
            *F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
            *F.adaptive_max_pool2d(x, (1, None), return_indices=True),
            *F.adaptive_max_pool1d(x[:, 0], 1, return_indices=True),
        )

    torch.manual_seed(0)
    images = [torch.randn(2, 3, 7, 9), torch.randint(0, 3, (2, 3, 7, 9)).float()]
    compare(pools, images[0], images)


def test_places_of_nans_and_in_large_windows() -> None:
    """Of several NaNs the last one, and a window of 48 x 40 is found without a step for each of its elements."""

    def pools(x: Any) -> Any:
        return (
            *F.max_pool2d(x, (3, 5), (2, 3), 1, return_indices=True),
            *F.adaptive_max_pool2d(x, (1, 4), return_indices=True),
            *F.max_pool2d(x, (48, 40), 7, return_indices=True),
        )

    torch.manual_seed(0)
    images = [torch.randint(0, 3, (2, 2, 60, 50)).float() for _ in range(2)]
    images[1][torch.rand(images[1].shape) < 0.2] = torch.nan
    compare(pools, images[0], images)
    assert len(import_model(pools, (images[0],)).nodes) < 400


def test_the_largest_of_parts_of_images_of_any_size() -> None:
    def pools(x: Any) -> Any:
        return (
            *F.adaptive_max_pool2d(x, (2, 3), return_indices=True),
            *F.adaptive_max_pool2d(x, (1, 4), return_indices=True),
            F.adaptive_max_pool2d(x, (3, 1)),
            F.adaptive_max_pool1d(x[:, 0], 5),
        )

    torch.manual_seed(0)
    calls = [torch.randint(0, 4, (1, 2, *sizes)).float() for sizes in ((7, 9), (1, 4), (12, 1), (5, 20))]
    calls[3][torch.rand(calls[3].shape) < 0.2] = torch.nan
    compare(pools, calls[0], calls, {"x": {2: ("rows", 1, 20), 3: ("columns", 1, 20)}})


def test_images_of_any_size() -> None:
    """Averages of parts, and linear interpolation by sizes and by factors that are not whole."""

    def sampled(x: Any) -> Any:
        return (
            F.adaptive_avg_pool2d(x, (2, 3)),
            F.interpolate(x[..., ::2], size=x.shape[-2:], mode="bilinear", align_corners=True),
            F.interpolate(x, size=(5, 6), mode="bilinear"),
            F.interpolate(x, scale_factor=1.5, mode="bilinear"),
            F.interpolate(x[:, 0], scale_factor=0.5, mode="linear", align_corners=True),
        )

    torch.manual_seed(0)
    calls = [torch.randn(1, 2, *sizes) for sizes in ((7, 9), (2, 4), (12, 5))]
    compare(sampled, calls[0], calls, {"x": {2: ("rows", 2, 20), 3: ("columns", 4, 20)}})


@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear"])
def test_scales_that_leave_a_size_as_it_is(mode: str) -> None:
    """PyTorch then copies, on CPUs."""
    rank = {"linear": 1, "bilinear": 2, "trilinear": 3}[mode]

    def sampled(x: Any) -> Any:
        return (F.interpolate(x, scale_factor=1.3, mode=mode),)

    torch.manual_seed(0)
    calls = [torch.randn(1, 2, *[size] * rank) for size in (5, 3, 2)]
    compare(sampled, calls[1], calls[1:2], None)
    compare(sampled, calls[0], calls, {"x": {2 + axis: ("size", 2, 9) for axis in range(rank)}})


@pytest.mark.parametrize("mode", ["bilinear", "antialias", "corners", "area"])
def test_infinities_stay_where_they_are(mode: str) -> None:
    """What has no weight in a result is not read: 0 times an infinity would be NaN."""
    settings = {"antialias": {"mode": "bilinear", "antialias": True},
                "corners": {"mode": "bilinear", "align_corners": True}}.get(mode, {"mode": mode})  # fmt: skip

    def resized(x: Any) -> Any:
        return tuple(F.interpolate(x, size=size, **settings) for size in ((7, 13), (3, 2), (9, 6)))

    x = torch.randn(1, 2, 9, 6)
    x[0, 0, 4, 2], x[0, 1, 0, 5] = torch.inf, -torch.inf
    graph = import_model(resized, (x,), None)
    found = reference.run(graph, {graph.inputs[0].name: x.numpy()})
    for name, want in zip(graph.output_names, resized(x), strict=True):
        assert not np.isnan(found[name]).any()
        known = ~want.isnan().numpy()  # PyTorch reads the next pixel with a weight of 0, too
        np.testing.assert_allclose(found[name][known], want.numpy()[known], rtol=1e-5, atol=1e-6)


def test_long_lines_are_resampled_without_large_constants() -> None:
    def resized(x: Any) -> Any:
        return (
            F.interpolate(x, scale_factor=2.0, mode="linear"),
            F.interpolate(x[..., None, :], size=(1, 1777), mode="bilinear", antialias=True),
            F.interpolate(x, size=(997,), mode="area"),
        )

    x = torch.randn(1, 2, 5000, dtype=torch.float64)
    compare(resized, x, [x])
    graph = import_model(resized, (x,), None)
    assert sum(data.nbytes for data in graph.constants.values()) < 1 << 20


def test_maxima_of_even_parts_are_pools() -> None:
    def pooled(x: Any) -> Any:
        return (
            F.adaptive_max_pool2d(x, (4, 2)), F.adaptive_max_pool2d(x[0], (8, 1)), F.adaptive_max_pool1d(x[0], 3),
            F.adaptive_max_pool3d(x[None], (1, 2, 6)),
        )  # fmt: skip

    x = torch.randn(2, 3, 8, 6)
    compare(pooled, x, [x])
    assert [node.op for node in import_model(pooled, (x,), None).nodes].count("max_pool") == 4
