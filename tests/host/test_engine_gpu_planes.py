"""Float32 convolutions in engines for GPUs, which stay channels-first: drawn windows, groups, ranks and epilogues."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tests.rounding import graph_bounds
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, float16, float32
from tilewright.engine.engine import Engine
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.planes import convolutions_of_planes
from tilewright.graph.reference import run
from tilewright.library.convolution.simt.few_planes import FewProblem, ranked_forms
from tilewright.settings import settings
from tilewright.targets.library_facts import GPU_KERNELS
from tilewright.targets.nvidia.target import NvidiaTarget

Sizes = tuple[int, ...]


class Case:
    """A convolution of [images, groups * channels, *image] that is drawn."""

    def __init__(self, rng: np.random.Generator) -> None:
        rank = int(rng.choice([1, 2, 2, 3]))
        self.groups = int(rng.choice([1, 1, 1, 2, 4]))
        self.channels, self.columns = (int(rng.choice(choice)) for choice in ([1, 3, 5, 16, 32], [1, 4, 6, 16, 40]))
        self.kernel: Sizes = tuple(int(n) for n in rng.integers(1, 4, rank))
        self.image: Sizes = tuple(int(n) for n in rng.integers(8, {1: 60, 2: 16, 3: 10}[rank], rank))
        self.strides, self.dilation = (tuple(int(n) for n in rng.integers(1, 3, rank)) for _ in range(2))
        self.padding = tuple((int(low), int(high)) for low, high in rng.integers(0, 3, (rank, 2)))
        self.images = int(rng.integers(1, 4))
        self.bias, self.residual, self.late = (bool(rng.integers(2)) for _ in range(3))
        self.depth = self.channels * math.prod(self.kernel)
        self.rng = rng
        print(self)

    def __str__(self) -> str:
        return f"{self.images}x{self.groups}x{self.channels}x{self.image}, {self.columns} of {self.kernel}"

    def graph(self, dynamic: bool = False) -> Graph:
        b = GraphBuilder("planes")
        images = b.symbol("images", 1, 8) if dynamic else self.images
        x = b.input("x", float32, (images, self.groups * self.channels, *self.image))
        features = self.groups * self.columns
        w = self.rng.standard_normal((features, self.channels, *self.kernel)).astype(np.float32)
        inputs = [x, b.constant(w)]
        if self.bias:
            inputs.append(b.constant(self.rng.standard_normal(features).astype(np.float32)))
        y = b.op("conv", inputs, strides=self.strides, padding=self.padding, dilation=self.dilation, groups=self.groups)
        if self.residual:
            y = b.op("add", [y, b.input("r", float32, y.shape)])
        y = b.op("tanh", [y])
        if self.late:
            scale = self.rng.standard_normal((features, *(1,) * len(self.image))).astype(np.float32)
            y = b.op("multiply", [y, b.constant(scale)])
        b.output(y, "y")
        return b.finish()


def check(graph: Graph, engine: Engine, rng: np.random.Generator, images: int, depth: int) -> None:
    """The result is as near to float64's as sums of so many products allow."""
    inputs: dict[str, Any] = {}
    for value in graph.inputs:
        shape = tuple(extent if isinstance(extent, int) else images for extent in value.shape)
        inputs[value.name] = rng.standard_normal(shape).astype(np.float32)
    found, exact = engine.run(inputs)["y"], run(graph, inputs)["y"]
    assert np.max(np.abs(found - exact)) <= 2.0**-22 * (depth + 8) * max(1.0, float(np.max(np.abs(exact))))


def steps(engine: Engine) -> list[Any]:
    return [step.evidence.get("chosen") for step in engine.plan.steps]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("number", range(12))
def test_drawn_convolutions_stay_channels_first(driver: Driver, rng: np.random.Generator, number: int) -> None:
    case = Case(rng)
    graph = case.graph()
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    assert len(steps(engine)) <= 2, (str(case), steps(engine))  # in parts of the depth, two kernels
    check(graph, engine, case.rng, case.images, case.depth)


@pytest.mark.parametrize("number", range(3))
def test_the_number_of_images_may_be_dynamic(driver: Driver, rng: np.random.Generator, number: int) -> None:
    case = Case(rng)
    graph = case.graph(dynamic=True)
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    for images in (1, 5):
        check(graph, engine, case.rng, images, case.depth)


def test_nothing_is_permuted_between_convolutions_and_pools(driver: Driver, rng: np.random.Generator) -> None:
    b = GraphBuilder("network")
    x = b.input("x", float32, (2, 3, 20, 20))
    for channels, groups in ((16, 1), (16, 16), (24, 1)):
        w = rng.standard_normal((channels, x.shape[1] // groups, 3, 3)).astype(np.float32)
        window = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}
        x = b.op("relu", [b.op("conv", [x, b.constant(w)], groups=groups, **window)])
    x = b.op("max_pool", [x], kernel=(2, 2), strides=(2, 2), padding=((0, 0), (0, 0)), dilation=(1, 1))
    b.output(x, "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    assert len(steps(engine)) == 4, steps(engine)
    check(graph, engine, rng, 2, 9 * 16)


@pytest.mark.parametrize(("channels", "kernel"), [(3, (4, 3, 3)), (8, (2, 2, 2)), (1, (5, 7))])
def test_few_pixels_of_groups_share_their_channels(
    driver: Driver, rng: np.random.Generator, channels: int, kernel: Sizes
) -> None:
    case = Case(rng)
    case.groups, case.channels, case.columns, case.kernel, case.images = 3, channels, 5, kernel, 1
    case.image, case.strides, case.dilation = (6, 7, 8)[-len(kernel) :], (1,) * len(kernel), (1,) * len(kernel)
    case.padding = ((2, 1),) * len(kernel)
    graph = case.graph()
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    form = engine.plan.steps[-1].evidence["reasons"]["form"]
    assert ("parts" in form) == (channels > 1), form
    check(graph, engine, case.rng, case.images, channels * math.prod(kernel))


def test_many_pixels_share_the_weights_that_a_thread_loads() -> None:
    machine = NvidiaTarget.named("sm_90a").machine()
    few, many = (ranked_forms(FewProblem(8, 8, 27, pixels, 3, 4), machine)[0][0] for pixels in (1000, 1000000))
    assert few.parts > 1 and few.block * few.parts == few.threads
    assert many.parts == 1 and many.block == 4 * many.threads


def test_pixels_of_pointwise_convolutions_are_read_in_vectors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "dump_directory", tmp_path)
    monkeypatch.setattr(settings, "cache_directory", tmp_path / "cache")
    b = GraphBuilder("pointwise")
    x = b.input("x", float32, (2, 64, 28, 28))
    w = b.constant(np.ones((64, 64, 1, 1), np.float32))
    b.output(b.op("conv", [x, w], strides=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), groups=1), "y")
    build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    (text,) = [path.read_text() for path in tmp_path.glob("tw_planes_*.ptx")]
    assert "cp.async.cg" in text and "cp.async.ca" not in text  # 16 bytes, and not fewer


@pytest.mark.parametrize(("convolutions", "groups", "first"), [(8, 1, False), (8, 16, True), (3, 1, True)])
def test_networks_of_many_whole_convolutions_are_channels_last(convolutions: int, groups: int, first: bool) -> None:
    b = GraphBuilder("network")
    x = b.input("x", float32, (1, 16, 12, 12))
    for number in range(convolutions):
        parts = groups if number == 1 else 1
        w = b.constant(np.ones((16, 16 // parts, 3, 3), np.float32))
        window = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}
        x = b.op("relu", [b.op("conv", [x, w], groups=parts, **window)])
    b.output(x, "y")
    layouts = {
        node.attributes["layout"] for node in convolutions_of_planes(b.finish(), GPU_KERNELS).nodes if node.op == "conv"
    }
    assert layouts == {"planes" if first else "NCHW"}


@pytest.mark.parametrize("dtype", [float32, float16])
def test_large_windows_of_few_columns_stay_channels_first(
    dtype: DType, driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder("large")
    x, w = b.input("x", dtype, (2, 6, 19, 23)), b.input("w", dtype, (6, 2, 13, 13))
    b.output(b.op("conv", [x, w], strides=(2, 2), padding=((6, 6),) * 2, dilation=(1, 1), groups=3), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    assert engine.kernel_name(engine.plan.steps[-1].choices[-1].kernel) == "few_planes"
    inputs = {
        "x": rng.standard_normal(x.shape).astype(dtype.numpy),
        "w": rng.standard_normal(w.shape).astype(dtype.numpy),
    }
    exact, bound = run(graph, inputs)["y"], graph_bounds(graph, inputs)["y"]
    assert (np.abs(engine.run(inputs)["y"] - exact) <= bound).all()
