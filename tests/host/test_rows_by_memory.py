"""Rows that are read through permutes on GPUs: drawn orders, operations and types.

Neighbours in memory are side by side in a CTA, and the cost counts the sectors of memory that blocks touch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.host.tactics_support import check
from tilewright.dtypes import DType, bfloat16, float16, float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.launch.jit import JITFunction
from tilewright.library.candidate import Candidate
from tilewright.library.cost import expected
from tilewright.library.generated.index import Index, coordinate
from tilewright.library.generated.sectors import covered_by, times_used
from tilewright.library.rows import simt_program
from tilewright.library.select import candidates, choose
from tilewright.targets.nvidia.target import NvidiaTarget

GPU = NvidiaTarget.named("sm_90a")
TYPES = [(float32, 3e-5), (float16, 1e-2), (bfloat16, 8e-2)]
OPS = ("layer_norm", "rms_norm", "softmax", "log_softmax", "reduce_mean", "reduce_max", "reduce_log_sum_exp", "two")


def row_op(b: GraphBuilder, x: Value, op: str) -> Value:
    """A row operation over the last axis; "two": of several over the same rows."""
    last = x.rank - 1
    if op in ("layer_norm", "rms_norm"):
        return b.op(op, [x], axis=last, epsilon=1e-5)
    if op in ("softmax", "log_softmax"):
        return b.op(op, [x], axis=last)
    if op == "two":
        return b.op(
            "reduce_sum", [b.op("multiply", [b.op("softmax", [x], axis=last), x])], axes=(last,), keepdims=False
        )
    return b.op(op, [x], axes=(last,), keepdims=False)


def permuted(rng: np.random.Generator) -> tuple[Graph, dict[str, np.ndarray], float]:
    """A row operation of a tensor whose last dimension in memory is another one, perhaps cut and scaled before."""
    dtype, tolerance = TYPES[int(rng.integers(3))]
    rank = int(rng.choice([2, 3, 3, 4]))
    shape = [int(n) for n in rng.integers(1, 40, rank)]
    shape[-1] = int(rng.choice([8, 9, 16, 33, 64]))
    shape[int(rng.integers(rank - 1))] = int(rng.choice([2, 5, 31, 64, 100]))
    for axis in range(rank - 1):
        if np.prod(shape) > 30000:
            shape[axis] = min(shape[axis], 5)
    b = GraphBuilder("permuted")
    x = b.input("x", dtype, tuple(shape))
    order = [int(axis) for axis in rng.permutation(rank)]
    if order[-1] == rank - 1:
        order = [order[-1], *order[:-1]]
    value = b.op("permute", [x], order=tuple(order))
    if value.shape[-1] > 2 and rng.integers(2):
        value = b.op("slice", [value], axis=rank - 1, start=1, stop=value.shape[-1], step=1)
    if rng.integers(2):
        value = b.op("tanh", [value])
    op = str(rng.choice(OPS))
    print(dtype, shape, order, op)
    b.output(row_op(b, value, op), "y")
    return optimize(b.finish()), {"x": rng.standard_normal(shape).astype(dtype.numpy)}, tolerance


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("number", range(20))
def test_drawn_orders(number: int, small: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every form, small blocks among them: rows at once, in chunks and in parts."""
    if small:
        for name, value in {"CHUNK_ELEMENTS": 16, "_LEAST_ROWS_OF_STRIP": 3, "STRIP": 8,
                            "WHOLE_COLUMN_ELEMENTS": 1}.items():  # fmt: skip
            monkeypatch.setattr(simt_program, name, value)
    graph, inputs, tolerance = permuted(rng)
    seen: list[int] = []

    def last(found: Sequence[Candidate]) -> Candidate:
        beside = [candidate for candidate in found if candidate.reasons.get("lanes", 1) >= 8]
        seen.append(len(beside))
        return beside[int(rng.integers(len(beside)))] if beside else choose(found)

    check(graph, inputs, False, tolerance, GPU, last, True)
    assert any(seen)


def test_rows_across_memory_are_neighbours_in_a_block() -> None:
    """A norm over the width of channels-last images: no candidate that reads single elements is chosen."""
    b = GraphBuilder("width")
    x = b.op("permute", [b.input("x", float16, (16, 64, 64, 64))], order=(0, 3, 1, 2))
    b.output(b.op("layer_norm", [x], axis=3, epsilon=1e-5), "y")
    graph = optimize(b.finish())
    (group,) = fuse(graph, GPU.kernels).groups
    found = candidates(group, graph, GPU)
    best = choose(found)
    assert best.name == "rows at once" and best.reasons["lanes"] == 64
    assert max(expected(candidate.cost.bytes) for candidate in found) > 4 * expected(best.cost.bytes)


@pytest.mark.parametrize(("dtype", "threads"), [(float16, 256), (float32, 512)])
def test_blocks_across_rows(dtype: DType, threads: int) -> None:
    """Four vectors of 16 bytes to a thread, and only the last block of each part is masked."""
    b = GraphBuilder("moments")
    x = b.op("cast", [b.input("x", dtype, (4, 50001, 64))], dtype=float32)
    mean = b.op("reduce_mean", [x], axes=(1,), keepdims=True)
    difference = b.op("subtract", [x, mean])
    b.output(mean, "mean")
    b.output(b.op("reduce_mean", [b.op("multiply", [difference, difference])], axes=(1,), keepdims=True), "variance")
    graph = optimize(b.finish())
    (group,) = fuse(graph, GPU.kernels).groups
    best = choose(candidates(group, graph, GPU))
    assert best.name == "rows in parts" and best.reasons["threads"] == threads
    kernel = best.stages[0].calls[0].kernel
    assert isinstance(kernel, JITFunction)
    loops = [line for line in kernel.source.splitlines() if "for start in range" in line]
    assert [loop.split("range")[1] for loop in loops] == ["(first, whole, BLOCK):", "(whole, stop, BLOCK):"]


@pytest.mark.parametrize(
    ("steps", "extents", "itemsize", "times"),
    [
        ((64, 1), (16, 64), 2, 1.0),  # whole lines
        ((1, 64), (1, 256), 2, 16.0),  # single elements of 16 bits, each in a sector of its own
        ((1, 64), (1, 256), 4, 8.0),
        ((1, 64), (16, 256), 2, 1.0),  # a sector of each line
        ((1, 64), (8, 256), 2, 2.0),  # half of it
        ((1, 2), (1, 256), 2, 2.0),  # every other element
    ],
)
def test_sectors(steps: tuple[int, ...], extents: tuple[int, ...], itemsize: int, times: float) -> None:
    index = Index()
    for axis, step in enumerate(steps):
        index = index.plus(coordinate(axis, 1 << 20).times(step))
    assert abs(times_used(index, dict(enumerate(extents)), itemsize) - times) < 0.01


def test_blocks_cover_trailing_dimensions() -> None:
    assert covered_by((4, 5, 6), 12) == {2: 6, 1: 2, 0: 1}
