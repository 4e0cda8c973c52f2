"""Norms over channels-last images in engines for GPUs: drawn images, groups and types; pixels are read as they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, bfloat16, float16, float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.stage_reductions import stage_reductions
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import run
from tilewright.targets.library_facts import GPU_KERNELS
from tilewright.targets.registry import get_target, graph_passes

STEP = {float16: 2.0**-11, bfloat16: 2.0**-8, float32: 2.0**-20}


def batch_norm(b: GraphBuilder, x: Value) -> Value:
    """With statistics of the batch, as models in training mode have it."""
    images, channels = x.shape[:2]
    wide = b.op("cast", [x], dtype=float32)
    rows = b.op("reshape", [wide], shape=(images, channels, -1))

    def mean(value: Value, axis: int) -> Value:
        return b.op("reduce_mean", [value], axes=(axis,), keepdims=True)

    def square(value: Value) -> Value:
        return b.op("multiply", [value, value])

    means = mean(rows, 2)
    variances = mean(square(b.op("subtract", [rows, means])), 2)
    means, variances = (b.op("reshape", [item], shape=(images, channels)) for item in (means, variances))
    centre = mean(means, 0)
    variance = mean(b.op("add", [variances, square(b.op("subtract", [means, centre]))]), 0)
    scale = b.op("rsqrt", [b.op("add", [variance, b.number(1e-5, float32)])])
    centre, scale = (b.op("reshape", [item], shape=(channels, *[1] * (x.rank - 2))) for item in (centre, scale))
    return b.op("cast", [b.op("multiply", [b.op("subtract", [wide, centre]), scale])], dtype=x.dtype)


def normed(kind: str, dtype: DType, shape: tuple[int, ...], groups: int, rng: np.random.Generator) -> Graph:
    """A convolution of the input, its norm, and what follows it."""
    b = GraphBuilder("norms")
    channels, rank = shape[1], len(shape) - 2
    w = (rng.standard_normal((channels, channels, *[2] * rank)) / (channels * 2**rank) ** 0.5).astype(dtype.numpy)
    plain: dict[str, Any] = {"strides": (1,) * rank, "dilation": (1,) * rank, "padding": ((0, 1),) * rank}
    x = b.op("conv", [b.input("x", dtype, shape), b.constant(w)], groups=1, **plain)
    if kind == "batch":
        y = batch_norm(b, x)
    else:
        scale, bias = (b.constant(rng.uniform(0.5, 2, channels).astype(dtype.numpy)) for _ in range(2))
        y = b.op("group_norm", [x, scale, bias], groups=groups, epsilon=1e-5)
    b.output(b.op("relu", [y]), "y")
    return b.finish()


def drawn(rng: np.random.Generator) -> tuple[str, DType, tuple[int, ...], int]:
    kind = str(rng.choice(["batch", "group", "instance"]))
    dtype = [float16, bfloat16, float32][int(rng.integers(3))]
    groups, width = (int(rng.choice(choice)) for choice in ([1, 2, 3, 8], [1, 2, 4, 5, 8, 17]))
    channels = groups * width
    images, rank = int(rng.integers(1, 4)), int(rng.choice([2, 2, 3]))
    image = tuple(int(n) for n in rng.integers(2, {2: 14, 3: 6}[rank], rank))
    return kind, dtype, (images, channels, *image), channels if kind == "instance" else groups


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("number", range(24))
def test_drawn_norms(driver: Driver, rng: np.random.Generator, number: int) -> None:
    kind, dtype, shape, groups = drawn(rng)
    print(kind, dtype, shape, groups)
    graph = normed(kind, dtype, shape, groups, rng)
    inputs = {"x": (rng.standard_normal(shape) + rng.choice([0.0, 3.0])).astype(dtype.numpy)}
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    found, exact = engine.run(inputs)["y"].astype(np.float64), run(graph, inputs)["y"].astype(np.float64)
    rounded = run(graph, inputs, dtype=None)["y"].astype(np.float64)
    bound = 2 * np.abs(rounded - exact).max() + 8 * STEP[dtype] * max(1.0, np.abs(exact).max())
    assert np.abs(found - exact).max() <= bound


def groups_of(graph: Graph) -> list[Group]:
    target = get_target("cuda:sm_90a")
    return fuse(stage_reductions(optimize(graph, graph_passes([target]))), target.kernels).groups


@pytest.mark.parametrize(("kind", "groups"), [("batch", 1), ("group", 8), ("instance", 32)])
def test_images_are_read_as_they_lie(kind: str, groups: int, rng: np.random.Generator) -> None:
    """Once for the moments, once for the result (by one kernel where rows are the channels of an image); nothing wider
    than 16 bits has the elements of the image, and none that reads it permutes it first."""
    graph = normed(kind, float16, (4, 32, 128, 130), groups, rng)
    found = groups_of(graph)
    whole = 4 * 32 * 128 * 130
    after = next(n for n, group in enumerate(found) if group.kind == "contraction")
    image = found[after].outputs[0]
    assert image.dtype == float16
    reading = [group for group in found[after + 1 :] if image in group.inputs]
    assert [group.kind for group in reading] == ["rows", "elementwise"][: 1 if kind == "instance" else 2]
    large = [value for group in found for value in group.outputs if np.prod(value.shape) == whole]
    assert all(value.dtype == float16 for value in large) and len(large) == (4 if kind == "instance" else 3), large
    assert not any(node.op == "permute" for node in reading[0].nodes)


def test_rows_that_registers_hold_stay_whole(rng: np.random.Generator) -> None:
    """Few pixels, of whose channels each group has a sector of memory: one kernel has a row."""
    graph = normed("group", float16, (4, 64, 8, 9), 4, rng)
    assert any(node.op == "layer_norm" for group in groups_of(graph) for node in group.nodes)
    assert GPU_KERNELS.rows_side_by_side
