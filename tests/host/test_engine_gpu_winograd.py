"""Float32 convolutions of GPUs by Winograd's F(m, r): drawn engines in both memory orders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes import fold_pixels
from tilewright.graph.reference import run
from tilewright.library.convolution.simt import candidates, winograd
from tilewright.library.convolution.simt import planes as plane_candidates
from tilewright.targets.library_facts import GPU_KERNELS
from tilewright.targets.nvidia import target as nvidia

ERROR = 1e-5  # of a result, by 8 points in one direction: 10 times what 64 channels were seen to take


def none(*given: Any) -> list[Any]:
    """No candidates."""
    return []


def drawn(rng: np.random.Generator, taps: tuple[int, ...]) -> Graph:
    """A convolution of few channels with some of a bias, a residual and an activation."""
    rank = len(taps)
    images, channels, features = (int(count) for count in rng.integers(1, [4, 12, 12]))
    b = GraphBuilder("convolution")
    x = b.input("x", float32, (images, channels, *(int(extent) for extent in rng.integers(8, 18, rank))))
    inputs = [x, b.constant(rng.standard_normal((features, channels, *taps)).astype(np.float32))]
    if rng.integers(2):
        inputs.append(b.constant(rng.standard_normal(features).astype(np.float32)))
    pads = tuple((int(low), int(high)) for low, high in rng.integers(0, 4, (rank, 2)))
    ones = (1,) * rank
    y = b.op("conv", inputs, strides=ones, padding=pads, dilation=ones, groups=1)
    if rng.integers(2):
        y = b.op("add", [y, b.input("r", float32, y.shape)])
    if rng.integers(2):
        b.output(y, "sums")
        y = b.op("tanh", [y])
    b.output(y, "y")
    return b.finish()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions of any size take this form."""
    monkeypatch.setattr(winograd, "_FEWEST_CHANNELS", 1)
    monkeypatch.setattr(winograd, "_LEAST_SAVED", 0.0)
    monkeypatch.setattr(fold_pixels, "_GAIN", float("inf"))
    monkeypatch.setattr(plane_candidates, "_FEWEST_ROWS", 0)
    for name in ("_tiled", "bf16x6_convolutions"):
        monkeypatch.setattr(plane_candidates, name, none)
    for name in ("_implicit", "few_channels"):
        monkeypatch.setattr(candidates, name, none)


def channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of any number of convolutions are channels-last, in parts of one image each."""
    monkeypatch.setattr(nvidia, "GPU_KERNELS", replace(GPU_KERNELS, channels_last_convolutions=0))
    monkeypatch.setattr(winograd, "_divisors", lambda count: iter([1]))


def check(graph: Graph, rng: np.random.Generator) -> int:
    """Run an engine, and count its launches of this form."""
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    inputs = {value.name: rng.standard_normal(value.shape).astype(np.float32) for value in graph.inputs}
    found = engine.run(inputs)
    for name, exact in run(graph, inputs).items():
        assert np.linalg.norm(found[name] - exact) <= ERROR * np.linalg.norm(exact)
    return [step.evidence.get("chosen") for step in engine.plan.steps].count("Winograd")


@pytest.mark.parametrize("taps", [(7,), (5, 5), (2, 4)])  # of 1 x 8, 6 x 8 and 4 x 6 points
def test_planes(driver: Driver, small: None, rng: np.random.Generator, taps: tuple[int, ...]) -> None:
    assert check(drawn(rng, taps), rng) == 3


@pytest.mark.parametrize("number", range(8))
def test_no_other_form_competes_for_planes(driver: Driver, small: None, rng: np.random.Generator, number: int) -> None:
    taps = (int(rng.integers(1, 4)), int(rng.integers(2, 4)))  # the fewer, the sooner are products of them
    assert check(drawn(rng, taps), rng) == 3


def test_channels_last_in_parts_of_the_images(
    driver: Driver, small: None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels_last(monkeypatch)
    graph = drawn(rng, (3, 3))
    assert check(graph, rng) >= 3 * graph.inputs[0].shape[0]  # and a copy in front
