"""Clips to the range of a narrow integer type and the cast to it: one conversion, which saturates."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.dtypes import DType, float32, float64, int8, int16, uint8, uint16
from tilewright.graph import reference
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.fuse import fuse
from tilewright.library.select import candidates, choose
from tilewright.targets.cpu.target import CPUTarget


def quantized(source: DType, target: DType, low: float, high: float) -> Graph:
    b = GraphBuilder("quantized")
    x = b.input("x", source, (b.symbol("n"),))
    b.output(b.op("cast", [b.op("clip", [x], low=low, high=high)], dtype=target), "y")
    return b.finish()


@pytest.mark.parametrize("source", [float32, float64])
@pytest.mark.parametrize("target", [uint8, int8, uint16, int16])
@pytest.mark.parametrize("within", [0, 1])
def test_all_numbers(source: DType, target: DType, within: int, rng: np.random.Generator) -> None:
    limits = np.iinfo(target.numpy)
    graph = quantized(source, target, float(limits.min + within), float(limits.max - within))
    ends = np.array([limits.min, limits.max], np.float64)
    near = np.concatenate([np.nextafter(ends, np.inf), np.nextafter(ends, -np.inf), ends - 0.5, ends + 0.5])
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 2.0**31, -(2.0**31), 2.0**63, 0.9])
    x = np.concatenate([near, ends, special, rng.uniform(2 * limits.min - 9, 2 * limits.max, 1000)])
    inputs = {"x": x.astype(source.numpy)}
    with np.errstate(invalid="ignore"):
        (wanted,) = reference.run(graph, inputs).values()
    np.testing.assert_array_equal(build(graph, "cpu").run(inputs)["y"], wanted)


@pytest.mark.parametrize(("low", "one"), [(0.0, True), (1.0, False)])
def test_which_clips_are_conversions(low: float, one: bool) -> None:
    (group,) = fuse(quantized(float32, uint8, low, 255.0)).groups
    (call,) = (
        choose(candidates(group, quantized(float32, uint8, low, 255.0), CPUTarget.named("x86-64-v4"))).stages[0].calls
    )
    assert ("# clip, cast" in call.kernel.source) == one
