"""What fusion makes of the blocks that models are built from."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.random_graphs import RandomGraph
from tests.host.test_graph_passes_random import assert_valid
from tilewright.dtypes import float16, float32, int64
from tilewright.errors import ShapeError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Node, Value
from tilewright.graph.fusion import FusedGraph
from tilewright.graph.kernel_facts import NO_KERNELS, KernelFacts
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.fuse_draft import MOST_GROUP_NODES
from tilewright.graph.pipeline import optimize
from tilewright.graph.printer import print_fused
from tilewright.graph.views import dense_view, follow, follow_all
from tilewright.symbolic import evaluate
from tilewright.targets.library_facts import GPU_KERNELS


def fused_of(b: GraphBuilder) -> FusedGraph:
    fused = fuse(optimize(b.finish()))
    assert_valid(fused)
    return fused


def shapes_of(fused: FusedGraph) -> list[tuple[str, list[str]]]:
    """Each group's kind and the ops that compute (views and index arithmetic left out)."""
    quiet = {"reshape", "permute", "slice", "broadcast_to", "iota", "concat"}
    return [(group.kind, [node.op for node in group.nodes if node.op not in quiet]) for group in fused.groups]


def weights(b: GraphBuilder, *shape: int) -> Value:
    """A constant unlike all others, so that equal subexpressions are not shared."""
    count = int(np.prod(shape))
    return b.constant((np.arange(count) / 1024 + 1 + len(b.graph.constants)).astype(np.float32).reshape(shape), "w")


def linear(b: GraphBuilder, x: Value, width: int, bias: bool = True) -> Value:
    y = b.op("matmul", [x, weights(b, width, x.shape[-1])], transpose_b=True)
    return b.op("add", [y, weights(b, width)]) if bias else y


def heads_of(b: GraphBuilder, x: Value, heads: int) -> Value:
    batch, sequence, width = x.shape
    split = b.op("reshape", [x], shape=(batch, sequence, heads, width // heads))
    return b.op("permute", [split], order=(0, 2, 1, 3))


def test_an_encoder_layer_is_seven_kernels(golden):
    b = GraphBuilder("encoder_layer")
    batch, sequence = b.symbol("batch", 1, 8), b.symbol("sequence", 1, 64)
    x = b.input("x", float32, (batch, sequence, 16))
    query, key, value = (heads_of(b, linear(b, x, 16), 4) for _ in range(3))
    scores = b.op("softmax", [b.op("multiply", [b.op("matmul", [query, key], transpose_b=True), 0.5])], axis=-1)
    context = b.op("permute", [b.op("matmul", [scores, value])], order=(0, 2, 1, 3))
    context = b.op("reshape", [context], shape=(batch, sequence, 16))
    h = b.op(
        "layer_norm", [b.op("add", [linear(b, context, 16), x]), weights(b, 16), weights(b, 16)], axis=-1, epsilon=1e-5
    )
    wide = b.op("gelu", [linear(b, h, 32)])
    h = b.op("layer_norm", [b.op("add", [linear(b, wide, 16), h]), weights(b, 16)], axis=-1, epsilon=1e-5)
    b.output(h, "y")
    fused = fused_of(b)
    assert shapes_of(fused) == [
        ("contraction", ["matmul", "add"]),
        ("attention", ["attention"]),
        ("contraction", ["matmul", "add", "add"]),
        ("reduction", ["layer_norm"]),
        ("contraction", ["matmul", "add", "gelu"]),
        ("contraction", ["matmul", "add", "add"]),
        ("reduction", ["layer_norm"]),
    ]
    golden(print_fused(fused))


def rotary(b: GraphBuilder, x: Value, cos: Value, sin: Value) -> Value:
    half = x.shape[-1] // 2
    low = b.op("slice", [x], axis=-1, start=0, stop=half)
    high = b.op("slice", [x], axis=-1, start=half, stop=2 * half)
    turned = b.op("concat", [b.op("negate", [high]), low], axis=-1)
    return b.op("add", [b.op("multiply", [x, cos]), b.op("multiply", [turned, sin])])


def test_a_decoder_layer_is_eight_kernels(golden):
    b = GraphBuilder("decoder_layer")
    batch, sequence = b.symbol("batch", 1, 8), b.symbol("sequence", 1, 64)
    x = b.input("x", float32, (batch, sequence, 16))
    cos, sin = (b.input(name, float32, (sequence, 4)) for name in ("cos", "sin"))
    h = b.op("rms_norm", [x, weights(b, 16)], axis=-1, epsilon=1e-5)
    query = rotary(b, heads_of(b, linear(b, h, 16, bias=False), 4), cos, sin)
    key = rotary(b, heads_of(b, linear(b, h, 8, bias=False), 2), cos, sin)
    value = heads_of(b, linear(b, h, 8, bias=False), 2)
    context = b.op("attention", [query, key, value], scale=0.5, causal=True)
    context = b.op("reshape", [b.op("permute", [context], order=(0, 2, 1, 3))], shape=(batch, sequence, 16))
    h = b.op("add", [x, linear(b, context, 16, bias=False)])
    normal = b.op("rms_norm", [h, weights(b, 16)], axis=-1, epsilon=1e-5)
    gate, up = (linear(b, normal, 32, bias=False) for _ in range(2))
    h = b.op("add", [h, linear(b, b.op("multiply", [b.op("silu", [gate]), up]), 16, bias=False)])
    b.output(h, "y")
    fused = fused_of(b)
    assert shapes_of(fused) == [
        ("reduction", ["rms_norm"]),
        ("contraction", ["matmul"]),
        ("elementwise", ["negate", "multiply", "multiply", "add"] * 2),
        ("attention", ["attention"]),
        ("contraction", ["matmul", "add"]),
        ("reduction", ["rms_norm"]),
        ("contraction", ["matmul", "silu", "multiply"]),
        ("contraction", ["matmul", "add"]),
    ]
    golden(print_fused(fused))


def decode_step(b: GraphBuilder, count: int = 1) -> None:
    """Queries, keys and values of new tokens out of one product, the keys and values stored in the caller's caches."""
    x, place = b.input("x", float32, (2, count, 16)), b.input("place", int64, (count,))
    cos, sin = (b.input(name, float32, (count, 4)) for name in ("cos", "sin"))
    caches = [b.input(name, float32, (2, 2, 12, 4)) for name in ("keys", "values")]
    query = rotary(b, heads_of(b, linear(b, x, 16), 4), cos, sin)
    key = rotary(b, heads_of(b, linear(b, x, 8), 2), cos, sin)
    new = (key, heads_of(b, linear(b, x, 8), 2))
    stored = [b.op("scatter_update", [cache, place, part], axis=2) for cache, part in zip(caches, new, strict=True)]
    for cache, value in zip(caches, stored, strict=True):
        b.mutate(cache, value)
    b.output(b.op("attention", [query, *stored], scale=0.5), "y")


def test_rotary_positions_and_caches_are_one_kernel():
    b = GraphBuilder("decode")
    decode_step(b)
    fused = fused_of(b)
    assert shapes_of(fused) == [
        ("contraction", ["matmul", "add"]),
        ("elementwise", ["negate", "multiply", "multiply", "add"] * 2 + ["scatter_update"] * 2),
        ("attention", ["attention"]),
    ]
    assert [value.shape for value in fused.groups[1].outputs] == [(2, 4, 1, 4), (2, 2, 12, 4), (2, 2, 12, 4)]


def test_updates_of_several_places_stay_apart():
    """Their places may be equal, and then the last must win."""
    b = GraphBuilder("prompt")
    decode_step(b, 3)
    kinds = [group.kind for group in fused_of(b).groups]
    assert kinds.count("movement") >= 2 and kinds.count("elementwise") == 1


def test_a_group_that_reads_another_cache_updates_none():
    """Each update reads the other's old value: as one group each, they would wait for each other."""
    b = GraphBuilder("crossed")
    place = b.input("place", int64, (1,))
    first, second = (b.input(name, float32, (4, 8)) for name in ("first", "second"))
    for cache, other in ((first, second), (second, first)):
        row = b.op("exp", [b.op("slice", [other], axis=0, start=1, stop=2)])
        b.mutate(cache, b.op("scatter_update", [cache, place, row], axis=0))
    b.output(b.op("cast", [place], dtype=float32), "y")
    fused = fused_of(b)
    assert not any(
        {"exp", "scatter_update"} <= {node.op for node in group.nodes} for group in fused.groups if group.inputs
    )


def test_independent_loops_over_one_tensor_share_a_launch():
    b = GraphBuilder("loops")
    x = b.input("x", float32, (4, 6, 8))
    y = b.op("softmax", [x], axis=-1)
    b.output(b.op("exp", [b.op("slice", [y], axis=1, start=0, stop=2)]), "a")
    b.output(b.op("tanh", [b.op("slice", [y], axis=2, start=1, stop=4)]), "b")
    assert shapes_of(fused_of(b)) == [("reduction", ["softmax"]), ("elementwise", ["exp", "tanh"])]


def test_results_are_stored_by_who_computes_them():
    """A cheap sum that a convolution reads through a permute, and that is a result, is a group of its own."""
    b = GraphBuilder("image")
    x, y = b.input("x", float32, (2, 3, 6, 6)), b.input("y", float32, (6,))
    total = b.op("add", [x, y])
    same = {"strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}
    b.output(b.op("conv", [total, weights(b, 5, 3, 2, 2)], **same), "out")
    b.output(total, "total")
    fused = fused_of(b)
    assert fused.groups[0].kind == "elementwise" and fused.groups[0].outputs == [fused.graph.outputs[1]]


def test_an_epilogue_stops_where_two_tensors_would_leave():
    b = GraphBuilder("two_uses")
    x = b.input("x", float32, (4, 8))
    y = b.op("relu", [linear(b, x, 8)])
    b.output(b.op("exp", [y]), "a")
    b.output(b.op("tanh", [y]), "b")
    fused = fused_of(b)
    assert shapes_of(fused) == [("contraction", ["matmul", "add", "relu"]), ("elementwise", ["exp", "tanh"])]
    assert len(fused.groups[1].outputs) == 2


def test_an_epilogue_takes_diamonds():
    b = GraphBuilder("diamond")
    x = b.input("x", float32, (4, 8))
    y = linear(b, x, 8)
    b.output(b.op("multiply", [b.op("add", [b.op("tanh", [y]), 1.0]), b.op("exp", [y])]), "y")
    assert shapes_of(fused_of(b)) == [("contraction", ["matmul", "add", "tanh", "add", "exp", "multiply"])]


def test_a_merge_that_would_wait_for_itself_is_not_made():
    """relu(x w) feeds another product whose result is added to it: the add cannot join the first product."""
    b = GraphBuilder("cycle")
    x = b.input("x", float32, (4, 8))
    first = b.op("relu", [linear(b, x, 8)])
    second = linear(b, first, 8, bias=False)
    b.output(b.op("add", [first, second]), "y")
    fused = fused_of(b)
    assert shapes_of(fused) == [("contraction", ["matmul", "add", "relu"]), ("contraction", ["matmul", "add"])]


def test_nobody_reads_inside_a_group_that_has_joined_a_view():
    b = GraphBuilder("joined_view")
    q = b.input("q", float32, (2, 2, 5, 4))
    context = b.op("permute", [b.op("attention", [q, q, q], scale=1.0)], order=(0, 2, 1, 3))
    joined = b.op("reshape", [context], shape=(2, 5, 8))
    b.output(b.op("reduce_max", [joined], axes=(0,)), "largest")
    b.output(b.op("relu", [joined]), "positive")
    fused = fused_of(b)
    assert [len(group.outputs) for group in fused.groups] == [1, 1, 1]


def test_reductions_take_both_sides():
    b = GraphBuilder("reduction")
    x, y = b.input("x", float32, (4, 8)), b.input("y", float32, (4, 8))
    product = b.op("multiply", [x, y])
    b.output(b.op("sqrt", [b.op("reduce_sum", [product], axes=(-1,))]), "y")
    assert shapes_of(fused_of(b)) == [("reduction", ["multiply", "reduce_sum", "sqrt"])]


def test_embeddings_are_read_inside_the_norm():
    b = GraphBuilder("embeddings")
    ids = b.input("ids", int64, (2, 5))
    words = b.op("gather", [weights(b, 20, 8), ids], axis=0)
    places = b.op("gather", [weights(b, 9, 8), b.op("iota", shape=(5,), dtype=int64)], axis=0)
    b.output(b.op("layer_norm", [b.op("add", [words, places])], axis=-1, epsilon=1e-5), "y")
    assert shapes_of(fused_of(b)) == [("reduction", ["gather", "add", "layer_norm"])]


def test_a_chain_of_lookups_is_one_kernel() -> None:
    """Positions are computed from what was looked up before; a group does not look up what it computes itself."""
    b = GraphBuilder("lookups")
    table, first = b.input("table", int64, (200,)), b.input("first", int64, (50, 33))
    place = first
    for step in range(3):
        place = b.op("remainder", [b.op("add", [b.op("gather", [table, place], axis=0), step + 1]), 200])
    b.output(place)
    computed = b.op("exp", [b.input("x", float32, (50, 33))])
    looked_up = b.op("gather_elements", [computed, b.op("minimum", [b.input("i", int64, (50, 33)), 32])], axis=1)
    b.output(b.op("add", [computed, looked_up]))
    assert sorted(shapes_of(fused_of(b))) == [
        ("elementwise", ["exp"]),
        ("elementwise", ["gather", "add", "remainder"] * 3),
        ("elementwise", ["minimum", "gather_elements", "add"]),
    ]


def test_masks_are_computed_where_they_are_read():
    b = GraphBuilder("mask")
    n = b.symbol("n", 1, 64)
    x, y = b.input("x", float32, (3, n, n)), b.input("y", float32, (n, n))
    rows = b.op("iota", shape=(n, 1), dtype=int64)
    seen = b.op("less_equal", [b.op("iota", shape=(n,), dtype=int64), rows])
    b.output(b.op("where", [seen, x, 0.0]), "a")
    b.output(b.op("softmax", [b.op("where", [seen, y, -1.0])], axis=-1), "b")
    kinds = shapes_of(fused_of(b))
    assert kinds == [("elementwise", ["less_equal", "where"]), ("reduction", ["less_equal", "where", "softmax"])]


def test_readers_of_a_cache_run_before_it_is_overwritten():
    b = GraphBuilder("cache")
    cache, new = b.input("cache", float32, (8, 4)), b.input("new", float32, (1, 4))
    updated = b.op("scatter_update", [cache, b.input("slot", int64, (1,)), new], axis=0)
    b.mutate(cache, updated)
    b.output(b.op("relu", [cache]), "before")
    b.output(b.op("tanh", [updated]), "after")
    kinds = [group.nodes[-1].op for group in fused_of(b).groups]
    assert kinds.index("relu") < kinds.index("scatter_update") < kinds.index("tanh")


def test_views_are_strides(rng):
    b = GraphBuilder("views")
    batch = b.symbol("batch", 1, 4)
    x = b.input("x", float32, (batch, 5, 24))
    middle = b.op("slice", [x], axis=2, start=8, stop=16)
    b.output(heads_of(b, middle, 2), "y")
    graph = b.finish()
    view = follow_all(dense_view(x.shape), graph.nodes)
    assert view is not None and view.shape == (batch, 2, 5, 4)
    data = rng.standard_normal(3 * 5 * 24)
    symbols = {"batch": 3}
    strides = [evaluate(stride, symbols) * data.itemsize for stride in view.strides]
    shape = tuple(evaluate(extent, symbols) for extent in view.shape)
    seen = np.lib.stride_tricks.as_strided(data[evaluate(view.offset, symbols) :], shape, strides)
    wanted = data.reshape(3, 5, 24)[:, :, 8:16].reshape(3, 5, 2, 4).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(seen, wanted)
    mixed = Node("reshape", [graph.nodes[-1].output], [Value("mixed", float32, (batch, 10, 4))], {})
    assert follow(view, mixed) is None  # heads and rows do not lie in one line


@pytest.mark.parametrize("seed", range(3))
def test_fusing_twice_gives_the_same_groups(seed):
    graph = optimize(RandomGraph(seed, 20).graph)
    assert print_fused(fuse(graph)) == print_fused(fuse(graph))


@pytest.mark.parametrize("movement", [False, True])
def test_a_group_has_a_greatest_length(movement: bool) -> None:
    """A chain of thousands of nodes becomes many kernels of bounded length, not one that nothing can compile."""
    b = GraphBuilder("chain")
    value = b.input("x", float32, (4, 6))
    for number in range(1500):
        value = b.op("sin" if number % 2 else "absolute", [value])
        if movement and number % 3 == 0:
            value = b.op("permute", [value], order=(1, 0))
    b.output(value, "y")
    fused = fused_of(b)
    assert max(len(group.nodes) for group in fused.groups) <= 3 * MOST_GROUP_NODES // 2
    assert len(fused.groups) >= 1500 // MOST_GROUP_NODES


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "message"),
    [
        ("broadcast_to", (1,), {"shape": (2**39,)}, "at most 274877906944 are supported"),
        ("reshape", (1,), {"shape": (1,) * 33}, "33 dimensions; at most 32"),
        ("pad", (3,), {"pads": [(-2, -2)]}, "negative size -1"),
        ("max_pool", (1, 1, 4), {"kernel": [0], "strides": [1], "padding": [(0, 0)], "dilation": [1]}, "kernel"),
        ("max_pool", (1, 1, 4), {"kernel": [2], "strides": [0], "padding": [(0, 0)], "dilation": [1]}, "strides"),
        ("max_pool", (1, 1, 4), {"kernel": [2], "strides": [1], "padding": [(0, 0)], "dilation": [0]}, "dilation"),
        ("max_pool", (1, 1, 4), {"kernel": [2], "strides": [1], "padding": [(-1, 0)], "dilation": [1]}, "padding"),
        ("max_pool", (1, 1, 4), {"kernel": [7], "strides": [1], "padding": [(0, 0)], "dilation": [1]}, "size -2"),
        ("max_pool", (4,), {"kernel": [], "strides": [], "padding": [], "dilation": []}, "rank 3 or more"),
        ("group_norm", (1, 4, 2), {"groups": 0, "epsilon": 1e-5}, "0 groups"),
    ],
)
def test_shapes_that_no_tensor_can_have(op: str, shape: tuple[int, ...], attributes: dict, message: str) -> None:
    b = GraphBuilder("shapes")
    with pytest.raises(ShapeError, match=message):
        b.op(op, [b.input("x", float32, shape)], **attributes)


def test_many_values_of_one_name() -> None:
    """Names are made unique in time that does not grow with their number."""
    b = GraphBuilder("names")
    x = b.input("relu", float32, (2,))
    values = [b.op("relu", [x]) for _ in range(30_000)]
    assert len({value.name for value in values}) == len(values) and values[1].name == "relu_2"


def test_chains_that_read_both_parts_of_a_concat_are_cut() -> None:
    """A node that is read at two indices is computed twice: 40 of these in one kernel would be 2^40."""
    b = GraphBuilder("doubled")
    x = b.input("x", float32, (b.symbol("n", 1, 8), 4))
    for _ in range(40):
        both = b.op("concat", [x, b.op("relu", [x])], axis=1)
        x = b.op("slice", [both], axis=1, start=1, stop=5, step=1)
    b.output(x, "y")
    groups = fused_of(b).groups
    assert 2 < len(groups) <= 20
    assert all(sum(node.op == "concat" for node in group.nodes) <= 9 for group in groups)


def test_casts_to_wider_types_are_computed_where_they_are_read() -> None:
    """Two kernels load the narrow numbers; nobody stores the wide ones."""
    b = GraphBuilder("wider")
    x = b.input("x", float16, (2, 64))
    wide = b.op("cast", [x], dtype=float32)
    parts = [b.op("slice", [wide], axis=0, start=row, stop=row + 1, step=1) for row in range(2)]
    total = b.op("reduce_sum", [parts[0]], axes=(1,), keepdims=True)
    b.output(b.op("multiply", [parts[1], total]), "y")
    groups = fused_of(b).groups
    assert [group.inputs[0].name for group in groups] == ["x", "x"]


def test_short_independent_loops_share_a_launch_on_gpus() -> None:
    """Two pads of different tensors; neither long ones nor one that waits for the other."""

    def groups_of(columns: int, chained: bool) -> int:
        b = GraphBuilder("pads")
        x, y = b.input("x", float32, (3, columns)), b.input("y", float32, (5, 9))
        padded = b.op("pad", [x], pads=[(0, 1), (0, 3)])
        total = b.op("reduce_sum", [padded], axes=(0, 1), keepdims=True)
        other = b.op("pad", [b.op("multiply", [y, total]) if chained else y], pads=[(2, 0), (0, 0)])
        b.output(padded, "p")
        b.output(other, "q")
        b.output(total, "r")
        return len(fuse(optimize(b.finish()), GPU_KERNELS).groups)

    assert [groups_of(40, False), groups_of(40, True), groups_of(1 << 20, False)] == [2, 3, 3]


def test_many_short_loops_are_few_launches() -> None:
    """The counters of 20 batch norms: eight outputs a launch."""
    b = GraphBuilder("counters")
    for number in range(20):
        b.output(b.op("add", [b.input(f"count {number}", int64, ()), b.number(1, int64)]))
    groups = fuse(b.finish(), GPU_KERNELS).groups
    assert sorted(len(group.outputs) for group in groups) == [4, 8, 8]


@pytest.mark.parametrize(("taps", "columns", "kernels", "count"), [
    (2, 64, NO_KERNELS, 1), (4, 64, NO_KERNELS, 2), (4, 64, GPU_KERNELS, 1), (4, 1 << 18, GPU_KERNELS, 2),
])  # fmt: skip
def test_what_a_loop_looks_up_more_than_twice_is_stored(
    taps: int, columns: int, kernels: KernelFacts, count: int
) -> None:
    """Images resampled along both axes; short loops on GPUs save a launch."""
    b = GraphBuilder("resampled")

    def along(x: Value, axis: int) -> Value:
        extent = x.shape[axis]
        parts = []
        for tap in range(taps):
            places = b.constant((np.arange(extent) * 7 + tap) % extent, f"places_{axis}_{tap}")
            parts.append(b.op("multiply", [b.op("gather", [x, places], axis=axis), 0.1 + tap]))
        total = parts[0]
        for part in parts[1:]:
            total = b.op("add", [total, part])
        return total

    b.output(along(along(b.input("x", float32, (8, columns)), 0), 1), "y")
    assert len(fuse(optimize(b.finish()), kernels).groups) == count
