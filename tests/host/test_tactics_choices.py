"""Choices: block sizes, ranges of rows, cost estimates, and errors that name what has no kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.dtypes import float32, int64
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.passes.fuse import fuse
from tilewright.library.candidate import Candidate
from tilewright.library.cost import Cost, balance, estimate, expected
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.matmul.blocks import row_ranges
from tilewright.library.matmul.cpu_blocks import choose_blocks, depth_block
from tilewright.library.select import candidates, choose
from tilewright.symbolic import symbol
from tilewright.targets.cpu.target import CPUTarget

TARGET = CPUTarget.named("x86-64-v4")
SHAPES = [(1, 32, 16), (1, 32000, 1024), (49, 512, 2048), (128, 384, 384), (2048, 1536, 384), (3136, 64, 64), (7, 5, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["x86-64-v4", "x86-64-v3", "aarch64"])
def test_blocks_are_whole_panels_and_cover_the_depth(shape: tuple[int, int, int], name: str) -> None:
    target = CPUTarget.named(name)
    rows, columns, depth = shape
    width = target.microtile(float32)[1]
    blocks = choose_blocks((rows,), columns, depth, 1, float32, target, target.machine(), width)
    assert 0 < blocks.rows <= rows
    assert blocks.columns % width == 0 and blocks.columns < columns + width
    assert 0 < blocks.depth <= depth


def test_depth_is_whole_or_a_divisor() -> None:
    assert depth_block(384) == 384
    assert 1536 % depth_block(1536) == 0
    assert depth_block(1031) * 3 >= 1031  # a prime depth: three masked steps


def test_row_ranges_follow_the_symbols() -> None:
    assert [span.at_most for span in row_ranges(128)] == [None]
    rows = symbol("rows", 1, 4096)
    assert [span.at_most for span in row_ranges(rows)] == [16, 96, None]
    assert [span.at_most for span in row_ranges(symbol("few", 1, 8))] == [None]
    assert [span.at_most for span in row_ranges(symbol("many", 100, 4096))] == [None]
    less = symbol("n", 1, 4096) - 30  # as bounds go; no call has fewer rows than 0
    assert [span.examples[-1] for span in row_ranges(less)] == [1, 17, 97]
    for span in row_ranges(rows):
        assert span.at_most is None or max(span.examples) == span.at_most


def test_balance_of_equal_programs() -> None:
    assert balance(4, 2) == 1.0
    assert balance(3, 2) == 0.75
    assert balance(1, 2) == 0.5


def test_estimates_grow_with_the_work() -> None:
    machine = TARGET.machine()
    size = symbol("n", 1, 100)
    small, large = (estimate(machine, 100, size * flops, 4) for flops in (10**6, 10**7))
    assert small.seconds < large.seconds
    assert expected(size) == 64 and expected(symbol("m", 200, 300)) == 200


def test_the_cheapest_candidate_is_chosen() -> None:
    slow, fast = (Candidate(name, (), Cost(0, 0, seconds)) for name, seconds in (("slow", 2.0), ("fast", 1.0)))
    assert choose([slow, fast]) is fast


def test_three_dimensional_convolution_is_refused() -> None:
    b = GraphBuilder("volume")
    x, w = b.input("x", float32, (1, 2, 5, 5, 5)), b.constant(np.ones((4, 2, 3, 3, 3), np.float32))
    y = b.op("conv", [x, w], strides=(1, 1, 1), padding=((1, 1),) * 3, dilation=(1, 1, 1), source="model.volume")
    b.output(y)
    graph = b.finish()
    with pytest.raises(UnsupportedOperationError, match="model.volume.*one and two spatial"):
        for group in fuse(graph).groups:
            candidates(group, graph, TARGET)


def test_alternating_broadcast_is_refused() -> None:
    b = GraphBuilder("alternating")
    x, y = b.input("x", float32, (2, 1, 3, 1, 4, 5)), b.input("y", float32, (1, 2, 1, 3, 5, 6))
    b.output(b.op("matmul", [x, y]))
    graph = b.finish()
    with pytest.raises(UnsupportedOperationError, match="alternating"):
        candidates(fuse(graph).groups[0], graph, TARGET)


def test_tables_count_as_what_is_taken_of_them() -> None:
    b = GraphBuilder("lookup")
    index = b.input("index", int64, (4,))
    table = b.input("table", float32, (1000, 8))
    taken = b.op("gather", [table, index], axis=0)
    b.output(b.op("relu", [taken]))
    graph = b.finish()
    taken_bytes, index_bytes = 4 * 8 * 4, 4 * 8
    assert total_bytes(graph.inputs, graph.outputs, graph.nodes) == index_bytes + 2 * taken_bytes
    assert total_bytes(graph.inputs, graph.outputs) == index_bytes + 1000 * 8 * 4 + taken_bytes
