"""float32 convolutions of three bfloat16 parts a number: engines on the stand-in, the Hopper kernel interpreted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import float32
from tilewright.engine.engine import Engine
from tilewright.graph.build import GraphBuilder
from tilewright.library.convolution.hopper import bf16x6
from tilewright.library.packing import apply, invert, parts_recipe, windows_recipe


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any size is expected to be fastest in parts, and splitting takes no time."""
    ranked = bf16x6.ranked_configs
    monkeypatch.setattr(bf16x6, "ranked_configs", lambda *given: tuple((config, 1e-9) for config, _ in ranked(*given)))
    monkeypatch.setattr(bf16x6, "split_seconds", lambda *given: 1e-9)


def window(count: int, **given: Any) -> dict[str, Any]:
    """The attributes of a convolution of planes, each given for one dimension or for all."""
    neutral: dict[str, Any] = {"strides": 1, "padding": (0, 0), "dilation": 1}
    found = {name: given.get(name, value) for name, value in neutral.items()}
    return {name: value if isinstance(value, list) else [value] * count for name, value in found.items()}


def engine_of(x: tuple[int, ...], w: np.ndarray, attributes: dict[str, Any], constant: bool) -> Engine:
    """conv, bias and ReLU."""
    b = GraphBuilder("convolution")
    weights = b.constant(w) if constant else b.input("w", float32, w.shape)
    bias = b.constant(np.linspace(-2, 2, w.shape[0], dtype=np.float32))
    tuples = {name: tuple(value) for name, value in attributes.items()}
    y = b.op("conv", [b.input("x", float32, x), weights, bias], layout="NCHW", groups=1, **tuples)
    b.output(b.op("relu", [y]), "y")
    return build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))


def sums(x: np.ndarray, w: np.ndarray, attributes: dict[str, Any]) -> np.ndarray:
    """The convolution in float64."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    x = np.pad(x, [(0, 0), (0, 0), *attributes["padding"]])
    kernel, strides, dilation = w.shape[2:], attributes["strides"], attributes["dilation"]
    out = [
        (size - apart * (taps - 1) - 1) // step + 1
        for size, taps, step, apart in zip(x.shape[2:], kernel, strides, dilation, strict=True)
    ]
    found = np.zeros((x.shape[0], w.shape[0], *out))
    for tap in np.ndindex(*kernel):
        begins = [place * apart for place, apart in zip(tap, dilation, strict=True)]
        seen = tuple(
            slice(begin, begin + step * (size - 1) + 1, step)
            for begin, step, size in zip(begins, strides, out, strict=True)
        )
        found += np.einsum("nc...,oc->no...", x[(slice(None), slice(None), *seen)], w[(slice(None), slice(None), *tap)])
    return found


def check(x: np.ndarray, w: np.ndarray, attributes: dict[str, Any], constant: bool) -> None:
    engine = engine_of(x.shape, w, attributes, constant)
    assert "convolution bf16x6" in {step.evidence["chosen"] for step in engine.plan.steps}
    bias = np.linspace(-2, 2, w.shape[0]).reshape(-1, *[1] * (x.ndim - 2))
    exact = np.maximum(sums(x, w, attributes) + bias, 0)
    scale = sums(np.abs(x), np.abs(w), attributes) + np.abs(bias)
    found = engine.run({"x": x} if constant else {"x": x, "w": w})["y"]
    assert found.shape == exact.shape
    assert np.all(np.abs(found - exact) <= 2.0**-22 * scale)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("image", "filters", "attributes"),
    [
        ((1, 64, 12, 17), (20, 64, 3, 3), window(2)),
        ((2, 8, 9, 11), (33, 8, 3, 2), window(2, padding=[(1, 0), (2, 3)])),
        ((2, 5, 13, 10), (7, 5, 3, 3), window(2, strides=[2, 3], padding=(1, 1))),
        ((2, 24, 30), (17, 24, 4), window(1, dilation=3, padding=(4, 0))),
        ((2, 3, 4, 6, 7), (16, 3, 2, 3, 3), window(3, dilation=[1, 2, 1])),
        ((1, 40, 3, 5, 6), (65, 40, 3, 3, 3), window(3, strides=[1, 2, 1], padding=(1, 1))),
    ],
)
def test_engines(
    image: tuple[int, ...], filters: tuple[int, ...], attributes: dict[str, Any], constant: bool, preferred: None,
    driver: Driver, rng: np.random.Generator,
) -> None:  # fmt: skip
    """Lines, images and volumes, with borders, steps and gaps, of channels that fill no copy."""
    x, w = rng.standard_normal(image).astype(np.float32), rng.standard_normal(filters).astype(np.float32)
    check(x, w, attributes, constant)


@pytest.mark.parametrize("padding", [(0, 0), (1, 1)])
def test_images_by_themselves(
    padding: tuple[int, int], preferred: None, driver: Driver, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Tiles of large images are of one image; without a border planes are the image's own pixels."""
    monkeypatch.setattr(bf16x6, "_FEW_PIXELS", 0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 13, 12, 13), (18, 13, 3, 3)))
    check(x, w, window(2, padding=padding), False)


def test_a_number_of_images_that_is_known_at_run_time(
    preferred: None, driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder("images")
    w = rng.standard_normal((9, 4, 3, 3)).astype(np.float32)
    x = rng.standard_normal((5, 4, 12, 13)).astype(np.float32)
    attributes = {"layout": "NCHW", "strides": (1, 1), "padding": ((1, 1),) * 2, "dilation": (1, 1), "groups": 1}
    b.output(
        b.op("conv", [b.input("x", float32, (b.symbol("images", 1, 64), 4, 12, 13)), b.constant(w)], **attributes), "y"
    )
    engine = build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    assert "convolution bf16x6" in {step.evidence["chosen"] for step in engine.plan.steps}
    for count in (5, 1, 3):
        exact = sums(x[:count], w, window(2, padding=(1, 1)))
        assert np.abs(engine.run({"x": x[:count]})["y"] - exact).max() <= 1e-4


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_what_is_not_finite(
    small: int, preferred: None, driver: Driver, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Infinities, NaNs and overflow are where float32 has them."""
    monkeypatch.setattr(bf16x6, "_FEW_PIXELS", small)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 9, 12, 13), (18, 9, 3, 3)))
    x[:, 1] *= 0.05  # so that overflows meet no infinities
    x[0, 3, 4, 5], x[1, 2, 7, 8], x[1, 8, 0, 0], x[1, 1, 11, 12] = np.inf, np.nan, -np.inf, 3.4e38
    w[5, 1], w[6] = 0, 0
    w[5, 1, 0, 0] = 3.4e38  # one product of a sum overflows: of several the order would tell
    attributes = window(2, padding=(1, 2), strides=[2, 1])
    engine = engine_of(x.shape, w, attributes, True)
    with np.errstate(all="ignore"):
        exact = np.maximum(sums(x, w, attributes).astype(np.float32) + np.linspace(-2, 2, 18)[:, None, None], 0)
        scale = sums(np.abs(x), np.abs(w), attributes)
        found = engine.run({"x": x})["y"]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(exact))
    finite = np.isfinite(scale) & (scale < 1e37)
    assert np.isnan(found).any() and np.isinf(found).any() and finite.any()
    assert np.all(np.abs(found - exact)[finite] <= 2.0**-21 * (scale[finite] + 2))


@pytest.mark.parametrize(("taps", "length"), [(4, 64), (1, 8)])
def test_weights_come_back(taps: int, length: int, rng: np.random.Generator) -> None:
    w = rng.standard_normal((5, 3, 2, 4)).astype(np.float32)
    recipe, runs = windows_recipe(8, taps, length), 8 // taps
    for each in (recipe, parts_recipe(5, runs * length, 512, recipe)):
        np.testing.assert_array_equal(invert(each, apply(each, w), w.shape), w)
    matrix = apply(recipe, w).reshape(5, runs, length)
    assert not matrix[..., 8 * taps :].any()
    matrix = matrix[..., : 8 * taps].reshape(5, 2, 4, 8)
    np.testing.assert_array_equal(matrix[..., :3], np.moveaxis(w, 1, -1))
    assert not matrix[..., 3:].any()


@pytest.mark.parametrize("seed", range(3))
def test_all_configs_can_be_built(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few columns and many: consumers that begin further apart than there are stages would wait for ever."""
    rng, ranked, seen = np.random.default_rng(seed), bf16x6.ranked_configs, set()

    def watched(*given: Any) -> Any:
        seen.update(config for config, _ in ranked(*given))
        return ranked(*given)

    monkeypatch.setattr(bf16x6, "ranked_configs", watched)
    monkeypatch.setattr(bf16x6, "perhaps_sooner", lambda found, others: [])
    for _ in range(8):
        images, channels, columns = int(rng.choice([1, 8, 128])), int(rng.integers(8, 130)), int(rng.integers(1, 200))
        w = np.zeros((columns, channels, *rng.integers(1, 6, 2)), np.float32)
        engine_of((images, channels, *map(int, rng.integers(20, 260, 2))), w, window(2, padding=(2, 2)), True)
    assert len(seen) > 20 and {config.LAG for config in seen} == {0, 1}
    for config in seen:
        config.check()
