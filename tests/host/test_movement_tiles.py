"""Generated kernels for GPUs that permute, pad, slice and join: what their tiles have at either end, and numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.host.tactics_support import Draw, Memory, check, run_call
from tilewright.dtypes import DType, bfloat16, float16, float32, int8
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.passes.fuse import fuse
from tilewright.library.candidate import KernelCall
from tilewright.library.generated.generate import Result, elementwise_call
from tilewright.library.select import candidates, choose
from tilewright.symbolic import Size
from tilewright.targets.nvidia.target import NvidiaTarget

GPU = NvidiaTarget.named("sm_90a")
SIZES = (1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 16, 17)


def call_of(graph: Graph) -> KernelCall:
    """The kernel of a graph with one output."""
    (y,) = graph.outputs
    return elementwise_call(graph.nodes, [Result(y, y)], graph.constants, GPU)


def stacked(b: GraphBuilder, x: Value, axis: int, count: int, step: int, place: int) -> Value:
    """`count` slices of a dimension, each `step` further than the one before, as a dimension at `place`."""
    extent = x.shape[axis]
    assert isinstance(extent, int)
    parts = []
    for number in range(count):
        stop = extent - (count - 1 - number) * step
        part = b.op("slice", [x], axis=axis, start=number * step, stop=stop)
        parts.append(b.op("reshape", [part], shape=(*part.shape[:place], 1, *part.shape[place:])))
    return b.op("concat", parts, axis=place)


def drawn(rng: np.random.Generator, dtype: DType) -> tuple[Graph, dict[str, np.ndarray]]:
    """A chain of permutes with pads, slices, stacks of slices and sums between them; one size may be of run time."""
    b = GraphBuilder("drawn")
    shape = [int(size) for size in rng.choice(SIZES, int(rng.integers(2, 6)))]
    given: list[Size] = list(shape)
    if rng.random() < 0.25:
        given[int(rng.integers(len(shape)))] = b.symbol("n", 1, 64)
    y, inputs = b.input("x", dtype, tuple(given)), {"x": shape}
    for _ in range(int(rng.integers(1, 4))):
        y = b.op("permute", [y], order=tuple(int(axis) for axis in rng.permutation(y.rank)))
        axis, kind = int(rng.integers(y.rank)), int(rng.integers(4))
        extent = y.shape[axis]
        if kind == 0 and isinstance(extent, int):
            pads = [(0, 0)] * y.rank
            pads[axis] = (int(rng.integers(3)), int(rng.integers(3)))
            y = b.op("pad", [y], pads=tuple(pads), value=0)
        elif kind == 1 and isinstance(extent, int) and extent > 4 and y.rank < 6:
            y = stacked(b, y, axis, int(rng.integers(2, 4)), int(rng.integers(1, 3)), int(rng.integers(y.rank + 1)))
        elif kind == 2 and all(isinstance(size, int) for size in y.shape):
            other = b.input(f"z{len(inputs)}", dtype, tuple(y.shape))
            inputs[other.name] = [int(size) for size in y.shape if isinstance(size, int)]
            y = b.op("add", [y, other])
    b.output(b.op("permute", [y], order=tuple(int(axis) for axis in rng.permutation(y.rank))), "y")
    return b.finish(), {name: rng.integers(-20, 20, size).astype(dtype.numpy) for name, size in inputs.items()}


@pytest.mark.parametrize("dtype", [float16, bfloat16, int8, float32], ids=str)
def test_drawn_movement(draw: Draw, dtype: DType) -> None:
    for _ in range(6):
        graph, inputs = drawn(draw.rng, dtype)
        check(graph, inputs, target=GPU, tolerance=0.0)  # type: ignore[arg-type]


def permuted(shape: Sequence[Size], order: Sequence[int], dtype: DType = float16) -> Graph:
    b = GraphBuilder("permuted")
    b.output(b.op("permute", [b.input("x", dtype, tuple(shape))], order=tuple(order)), "y")
    return b.finish()


@pytest.mark.parametrize("inner", [2, 3, 4, 5])
def test_short_runs_are_moved_with_their_neighbours(draw: Draw, inner: int) -> None:
    """Runs that stay together go to a place far from that of the run next to them: a tile has many runs of both."""
    graph = permuted((2, 12, 40, inner), (0, 2, 1, 3))
    call = call_of(graph)
    assert call.constants["TILE_ROWS"] == 32 and call.constants["TILE_COLUMNS"] == 32
    memory = Memory(graph, {"x": draw(2, 12, 40, inner).astype(np.float16)})
    run_call(call, memory, False)
    np.testing.assert_array_equal(memory.array(graph.outputs[0]), memory.array(graph.inputs[0]).swapaxes(1, 2))


def test_fast_dimensions_are_joined_at_either_end() -> None:
    """Three taps of a channel are written with those of the next; so are three numbers of a pixel read."""
    b = GraphBuilder("taps")
    x = b.op("permute", [b.input("x", float16, (2, 32, 9, 4096))], order=(0, 2, 3, 1))
    y = stacked(b, x, 1, 3, 1, 4)
    b.output(y, "y")
    call = call_of(b.finish())
    assert call.kernel.source.count("tl.load") == 1 and "(column < 96)" in call.kernel.source  # type: ignore[union-attr]
    call = call_of(permuted((64, 40, 3), (2, 1, 0)))
    assert "(row < 120) & (column < 64)" in call.kernel.source  # type: ignore[union-attr]


def test_costs_have_the_sectors_that_blocks_touch() -> None:
    """Whole sectors cost what they hold; ends within sectors, and elements a few apart, cost more."""
    even, odd, apart = (call_of(permuted(shape, (0, 2, 1))) for shape in ((8, 4096, 64), (8, 4097, 64), (8, 4096, 3)))
    assert even.sectors == 1.0
    assert 1.1 < odd.sectors < 1.6
    assert apart.sectors > 1.5
    seconds = []
    for rows in (4096, 4097):
        graph = permuted((512, rows, 64), (0, 2, 1))
        (group,) = fuse(graph, GPU.kernels).groups
        seconds.append(choose(candidates(group, graph, GPU)).cost.seconds)
    assert seconds[1] > 1.05 * seconds[0]


def test_phases_side_by_side_are_read_along_their_channels(draw: Draw) -> None:
    """Where places are quotients of the fastest variable, as of the phases of a transposed convolution that is cut at
    its border, rows of a tile are what is read without a gap."""
    b = GraphBuilder("phases")
    phases = b.op("permute", [b.input("x", float16, (2, 40, 192))], order=(0, 2, 1))
    split = b.op("permute", [b.op("reshape", [phases], shape=(2, 2, 2, 48, 40))], order=(0, 1, 3, 4, 2))
    whole = b.op("reshape", [split], shape=(2, 2, 48, 80))
    b.output(b.op("slice", [whole], axis=3, start=1, stop=80), "y")
    graph = b.finish()
    assert "TILE_ROWS" in call_of(graph).constants
    check(graph, {"x": draw(2, 40, 192).astype(np.float16)}, target=GPU, tolerance=0.0)  # type: ignore[arg-type]
