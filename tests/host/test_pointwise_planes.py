"""16-bit convolutions of single pixels as products of channels-first images, where their region has no other order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tests.rounding import graph_bounds
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, bfloat16, float16
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.passes.planes import convolutions_of_planes
from tilewright.graph.reference import run
from tilewright.library.convolution.simt import planes
from tilewright.library.matmul.hopper.choice import candidate_configs
from tilewright.library.matmul.problem import MatmulProblem
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")
KERNELS: KernelFacts = TARGET.kernels


def conv(b: GraphBuilder, x: Value, columns: int, kernel: int = 1, pad: int = 0, groups: int = 1, bias: Any = None,
         w: Value | None = None) -> Value:  # fmt: skip
    rank = x.rank - 2
    if w is None:
        w = b.constant(np.ones((columns, x.shape[1] // groups, *(kernel,) * rank), x.dtype.numpy))  # type: ignore[operator]
    window = {"strides": (1,) * rank, "padding": ((pad, pad),) * rank, "dilation": (1,) * rank}
    return b.op("conv", [x, w, *([] if bias is None else [bias])], groups=groups, **window)


IMAGES = [(64,), (1000,), (8, 6), (5, 24), (14, 16), (2, 3, 8), (4, 6, 10)]


@pytest.mark.slow(but_every=5)
@pytest.mark.parametrize("number", range(30))
def test_drawn_products(driver: Driver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(planes, "_tiled", lambda *given: [])  # of tiles of `tl.dot`
    image = IMAGES[rng.integers(len(IMAGES))]
    dtype: DType = [float16, bfloat16][number % 2]
    images, channels, columns = (int(rng.choice(choice)) for choice in ([1, 2, 3], [8, 24, 64, 136], [3, 16, 72, 136]))
    dynamic, constant, bias, residual = (bool(rng.integers(2)) for _ in range(4))
    print(images, channels, image, columns, dtype, dynamic, constant, bias, residual)
    b = GraphBuilder("pointwise")
    x = b.input("x", dtype, (b.symbol("images", 1, 8) if dynamic else images, channels, *image))

    def weights(name: str, shape: tuple[int, ...]) -> Value:
        return b.constant(rng.standard_normal(shape).astype(dtype.numpy)) if constant else b.input(name, dtype, shape)

    w = weights("w", (columns, channels, *(1,) * len(image)))
    y = conv(b, x, columns, w=w, bias=weights("b", (columns,)) if bias else None)
    if residual:
        y = b.op("add", [y, b.input("r", dtype, y.shape)])
    b.output(b.op("relu", [y]), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    (step,) = engine.plan.steps
    assert str(step.evidence["chosen"]).startswith("pointwise convolution as hopper")
    inputs = {
        value.name: rng.standard_normal(
            tuple(extent if isinstance(extent, int) else images for extent in value.shape)
        ).astype(dtype.numpy)
        for value in graph.inputs
    }
    exact, bound = run(graph, inputs)["y"], graph_bounds(graph, inputs)["y"]
    found = engine.run(inputs)["y"]
    assert found.shape == exact.shape == (images, columns, *image)
    assert (np.abs(found.astype(np.float64) - exact) <= bound).all()


def layouts(graph: Graph, kernels: KernelFacts = KERNELS) -> list[str]:
    nodes = convolutions_of_planes(graph, kernels).nodes
    return [str(node.attributes["layout"]) for node in nodes if node.op == "conv"]


def network(kernels: Sequence[int], extent: int = 16, dtype: DType = float16) -> Graph:
    b = GraphBuilder("network")
    x = b.input("x", dtype, (2, 16, extent, extent))
    for kernel in kernels:
        x = b.op("relu", [conv(b, x, 16, kernel, kernel // 2)])
    b.output(x, "y")
    return b.finish()


def test_regions_of_single_pixels_stay_channels_first() -> None:
    assert layouts(network([1, 1, 1])) == ["planes"] * 3
    assert layouts(network([1, 3, 1])) == ["NCHW"] * 3
    assert layouts(network([1], extent=7)) == ["NCHW"], "rows of 49 numbers begin anywhere"
    assert layouts(network([1]), replace(KERNELS, plane_types=frozenset())) == ["NCHW"]


def test_a_few_depthwise_convolutions_may_be_among_them() -> None:
    for count, found in ((1, "planes"), (4, "NCHW")):
        b = GraphBuilder("separable")
        x = b.input("x", float16, (2, 16, 16, 16))
        for _ in range(count):
            x = conv(b, conv(b, x, 16, 3, 1, groups=16), 16)
        b.output(x, "y")
        assert layouts(b.finish()) == [found] * (2 * count)


def test_regions_are_decided_one_by_one() -> None:
    b = GraphBuilder("two")
    x, z = (b.input(name, float16, (2, 16, 16, 16)) for name in "xz")
    b.output(conv(b, x, 32), "y")
    b.output(conv(b, z, 32, 3, 1), "u")
    assert sorted(layouts(b.finish())) == ["NCHW", "planes"]


@pytest.mark.parametrize("flat", [False, True])
def test_images_that_are_read_as_rows_of_channels_are_channels_last(flat: bool) -> None:
    b = GraphBuilder("tokens")
    x = b.input("x", float16, (2, 16, 16, 16))
    y = conv(b, x, 64)
    if flat:
        y = b.op("permute", [b.op("reshape", [y], shape=(2, 64, 256))], order=(0, 2, 1))
    else:
        y = b.op("permute", [y], order=(0, 2, 3, 1))
    b.output(y, "y")
    assert layouts(b.finish()) == ["NCHW"]


def test_gates_of_whole_images_are_of_the_region() -> None:
    b = GraphBuilder("gate")
    x = b.input("x", float16, (2, 16, 16, 16))
    y = conv(b, x, 16)
    gate = b.op("sigmoid", [conv(b, b.op("reduce_mean", [y], axes=(2, 3), keepdims=True), 16)])
    b.output(b.op("multiply", [y, gate]), "y")
    assert layouts(b.finish()) == ["NCHW"] * 2


def test_few_filters_of_many_images_are_many_tiles() -> None:
    """CTAs stay for several tiles, and warpgroups may alternate on them."""
    problem = MatmulProblem(128, 1 << 16, 64, 16, input=float16, output=float16, right_transposed=True, one_left=True)
    configs = candidate_configs(problem, TARGET.machine())
    assert any(config.PING_PONG for config in configs) and not any(config.single for config in configs)
    assert all(config.ONE_A and len(config.left_block) == 2 for config in configs)
    assert problem.bytes == 2 * (128 * 64 + 16 * (1 << 16) * (64 + 128))
    assert math.isclose(problem.input_bytes, replace(problem, one_left=False).input_bytes, rel_tol=1e-2)
