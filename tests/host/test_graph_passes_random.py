"""Every pass keeps the meaning of random graphs, and fusion gives a valid partition."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.host.random_graphs import RandomGraph
from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import FusedGraph
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import PASSES, optimize
from tilewright.graph.reference import bind_symbols, run, run_node
from tilewright.graph.verifier import verify

SLOW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def assert_same(before: dict, after: dict) -> None:
    assert before.keys() == after.keys()
    for name, wanted in before.items():
        scale = 1 + np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0)
        # float32 constants that were folded are rounded once: that is the tolerance, not float64's.
        np.testing.assert_allclose(after[name], wanted, rtol=1e-5, atol=2e-5 * scale, err_msg=name)


@SLOW
@given(st.integers(0, 2**32 - 1), st.integers(1, 25), st.integers(1, 4), st.integers(1, 5))
def test_optimize_keeps_the_meaning(seed, length, batch, sequence):
    drawn = RandomGraph(seed, length)
    inputs = drawn.inputs(batch, sequence)
    wanted = run(drawn.graph, inputs)
    graph = drawn.graph
    for transform in PASSES:
        graph = transform(graph)
        verify(graph)
    assert_same(wanted, run(graph, inputs))


@SLOW
@given(st.integers(0, 2**32 - 1), st.integers(1, 25))
def test_fusion_is_a_valid_partition(seed, length):
    drawn = RandomGraph(seed, length)
    inputs = drawn.inputs(2, 3)
    fused = fuse(optimize(drawn.graph))
    assert_valid(fused)
    assert_same(run(fused.graph, inputs), run_groups(fused, inputs))


def assert_valid(fused: FusedGraph) -> None:
    """Each group reads what is there, and every node is computed by some group."""
    available = {*fused.graph.inputs, *fused.graph.constants}
    computed = set()
    for group in fused.groups:
        inside = set(group.inputs)
        assert inside <= available
        for node in group.nodes:
            assert all(item is None or item in inside for item in node.inputs), group.name
            inside.update(node.outputs)
            computed.add(id(node))
        assert group.outputs and set(group.outputs) <= inside - set(group.inputs)
        assert group.anchor is None or group.anchor in group.nodes
        assert group.kind != "attention" or len(group.outputs) == 1, group.name
        assert group.kind != "view" or (len(group.nodes) == len(group.inputs) == 1), group.name
        available |= set(group.outputs)
    assert set(fused.graph.results()) <= available
    assert computed == {id(node) for node in fused.graph.nodes}
    assert len({group.name for group in fused.groups}) == len(fused.groups)


def run_groups(fused: FusedGraph, inputs: dict) -> dict:
    """The outputs, computed group by group and only from what groups store."""
    from tilewright.dtypes import float64

    graph: Graph = fused.graph
    symbols = bind_symbols(graph, inputs)
    stored = {value: np.asarray(inputs[value.name]) for value in graph.inputs}
    stored |= {v: d.astype(np.float64) if v.dtype.is_float else d for v, d in graph.constants.items()}
    for group in fused.groups:
        local = {value: stored[value] for value in group.inputs}
        for node in group.nodes:
            arrays = [None if item is None else local[item] for item in node.inputs]
            local[node.output] = run_node(node, arrays, symbols, float64)
        stored |= {value: local[value] for value in group.outputs}
    return {name: stored[value] for name, value in zip(graph.output_names, graph.outputs, strict=True)}


@pytest.mark.parametrize("transform", PASSES, ids=lambda transform: transform.__name__)
def test_a_pass_with_nothing_to_do_returns_the_same_graph(transform):
    graph = optimize(RandomGraph(3, 12).graph)
    once = transform(graph)
    assert transform(once) is once


def test_concats_of_concats_become_one_while_it_is_short() -> None:
    """Three of 100 parts each, one after the other, are 300 parts, not 10^6."""
    for parts, wanted in ((4, [64]), (100, [100, 100, 100])):
        b = GraphBuilder("repeated")
        x = b.input("x", float32, (1, 2))
        for _ in range(3):
            x = b.op("concat", [x] * parts, axis=1)
        b.output(b.op("reduce_max", [x], axes=(1,)), "y")
        assert [len(node.inputs) for node in optimize(b.finish()).nodes if node.op == "concat"] == wanted


def test_a_concat_of_many_parts_becomes_concats_of_few() -> None:
    b = GraphBuilder("many")
    x = b.input("x", float32, (1000, 2))
    parts = [b.op("slice", [x], axis=0, start=row, stop=row + 1) for row in reversed(range(1000))]
    b.output(b.op("concat", parts, axis=0), "y")
    graph = b.finish()
    found = optimize(graph)
    assert max(len(node.inputs) for node in found.nodes if node.op == "concat") <= 128
    rows = np.arange(2000, dtype=np.float32).reshape(1000, 2)
    assert np.array_equal(run(found, {"x": rows})["y"], rows[::-1])


def test_movement_is_repeated_for_running_sums_only_where_their_kernels_read_through_it() -> None:
    """Kernels that do not would each be preceded by a copy of their own."""
    b = GraphBuilder("running")
    turned = b.op("slice", [b.input("x", float32, (9, 5))], axis=0, start=8, stop=-1, step=-1)
    for op in ("cumsum", "cummax"):
        b.output(b.op("negate", [b.op(op, [turned], axis=0)]), op)
    graph = b.finish()
    assert [len(group.nodes) for group in fuse(graph).groups] == [1, 2, 2]
    assert [len(group.nodes) for group in fuse(graph, KernelFacts(generates_running=True)).groups] == [3, 3]


def test_what_is_done_after_a_running_sum_is_done_before_it() -> None:
    """Exclusive, reversed and shortened sums are one kernel: the sum of what is shifted, turned and cut."""
    b = GraphBuilder("running")
    x = b.input("x", float32, (3, 9))

    def flipped(value: Value) -> Value:
        return b.op("slice", [value], axis=1, start=value.shape[1] - 1, stop=-1, step=-1)

    total = b.op("cumsum", [b.op("slice", [x], axis=1, start=0, stop=8)], axis=1)
    b.output(b.op("concat", [b.op("full", [], shape=(3, 1), value=0, dtype=float32), total], axis=1), "exclusive")
    b.output(flipped(b.op("cumsum", [flipped(x)], axis=1)), "reversed")
    behind = b.op("pad", [b.op("cumprod", [x], axis=1, reverse=True)], pads=((0, 0), (0, 2)), value=1)
    b.output(b.op("slice", [behind], axis=1, start=5, stop=11), "products")
    b.output(b.op("pad", [b.op("cumsum", [x], axis=1)], pads=((0, 0), (0, 2)), value=0), "zeros behind it")
    graph = b.finish()
    found = optimize(graph)
    assert [len(group.nodes) for group in fuse(found, KernelFacts(generates_running=True)).groups] == [3, 1, 3, 1, 1]
    rows = np.random.default_rng(5).standard_normal((3, 9)).astype(np.float32)
    expected = run(graph, {"x": rows})
    for name, result in run(found, {"x": rows}).items():
        np.testing.assert_allclose(result, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
