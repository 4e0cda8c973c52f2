"""Attention, norms and activations are found in the forms in which exporters decompose them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.dtypes import bfloat16, float16, float32, int64
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.graph.printer import print_graph
from tilewright.graph.reference import run
from tilewright.graph.verifier import verify
from tilewright.targets.library_facts import CPU_KERNELS


def ops_of(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def check(graph: Graph, shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> Graph:
    """The optimised graph, after a comparison with the original on random inputs."""
    inputs = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    result = optimize(graph)
    verify(result)
    before, after = run(graph, inputs), run(result, inputs)
    for name, wanted in before.items():
        np.testing.assert_allclose(after[name], wanted, rtol=2e-6, atol=2e-6, err_msg=name)
    return result


class Attention:
    """Decomposed attention over q [b, 4, s, 8] and k, v [b, heads, t, 8], in many spellings."""

    def __init__(self, key_heads: int = 4, keys: str = "s") -> None:
        self.b = b = GraphBuilder("attention")
        self.batch, self.rows = b.symbol("b", 1, 8), b.symbol("s", 1, 16)
        self.keys = b.symbol("t", 1, 16) if keys == "t" else self.rows + (4 if keys == "s + 4" else 0)
        self.q = b.input("q", float32, (self.batch, 4, self.rows, 8))
        self.k = b.input("k", float32, (self.batch, key_heads, self.keys, 8))
        self.v = b.input("v", float32, (self.batch, key_heads, self.keys, 8))
        self.padding = b.input("padding", float32, (self.batch, 1, 1, self.keys))

    def transposed(self, key: Value) -> Value:
        return self.b.op("permute", [key], order=(0, 1, 3, 2))

    def context(self, scores: Value, value: Value | None = None) -> None:
        weights = self.b.op("softmax", [scores], axis=-1)
        self.b.output(self.b.op("matmul", [weights, value or self.v]), "out")

    def positions(self, count, axis_shape) -> Value:
        return self.b.op("reshape", [self.b.op("iota", shape=(count,), dtype=int64)], shape=axis_shape)

    def causal(self) -> Value:
        """True where key j <= query i + (keys - rows)."""
        rows = self.positions(self.rows, (self.rows, 1))
        shift = self.b.op("dimension", expression=self.keys - self.rows)
        return self.b.op("less_equal", [self.positions(self.keys, (self.keys,)), self.b.op("add", [rows, shift])])

    def finish(self, rng: np.random.Generator, key_heads: int = 4, keys: int = 5) -> Graph:
        shapes = {"q": (2, 4, 5, 8), "k": (2, key_heads, keys, 8), "v": (2, key_heads, keys, 8)}
        shapes["padding"] = (2, 1, 1, keys)
        return check(self.b.finish(), shapes, rng)


def assert_only_attention(graph: Graph, causal: bool = False, bias: bool = False, scale: float | None = None) -> None:
    (node,) = [node for node in graph.nodes if node.op == "attention"]
    assert "softmax" not in ops_of(graph) and "matmul" not in ops_of(graph)
    assert node.attributes["causal"] is causal and (len(node.inputs) == 4) is bias
    if scale is not None:
        assert math.isclose(node.attributes["scale"], scale, rel_tol=1e-6)


def test_scale_after_the_product(rng, golden):
    a = Attention()
    scores = a.b.op("divide", [a.b.op("matmul", [a.q, a.transposed(a.k)]), math.sqrt(8)])
    a.context(a.b.op("add", [scores, a.padding]))
    graph = a.finish(rng)
    assert_only_attention(graph, bias=True, scale=8**-0.5)
    assert ops_of(graph) == ["attention"]
    golden(print_graph(graph))


def test_scale_on_queries_and_keys_separately(rng):
    a = Attention()
    query = a.b.op("multiply", [a.q, 8**-0.25])
    key = a.b.op("multiply", [a.transposed(a.k), 8**-0.25])
    a.context(a.b.op("matmul", [query, key]))
    graph = a.finish(rng)
    assert_only_attention(graph, scale=8**-0.5)
    assert ops_of(graph) == ["attention"]


def test_scale_below_merged_heads_as_exporters_write_it(rng):
    a = Attention()
    key = a.b.op("reshape", [a.k], shape=(a.batch * 4, a.keys, 8))
    key = a.b.op("reshape", [a.b.op("permute", [key], order=(0, 2, 1))], shape=(a.batch, 4, 8, a.keys))
    key = a.b.op("multiply", [key, 8**-0.25])
    a.context(a.b.op("matmul", [a.b.op("multiply", [a.q, 8**-0.25]), key]))
    graph = a.finish(rng)
    assert_only_attention(graph, scale=8**-0.5)
    assert ops_of(graph) == ["attention"]


def test_batched_products_of_rank_three(rng):
    a = Attention()
    flat = [a.b.op("reshape", [x], shape=(a.batch * 4, x.shape[2], 8)) for x in (a.q, a.k, a.v)]
    scores = a.b.op("matmul", [flat[0], a.b.op("permute", [flat[1]], order=(0, 2, 1))])
    scores = a.b.op("multiply", [a.b.op("reshape", [scores], shape=(a.batch, 4, a.rows, a.keys)), 0.25])
    weights = a.b.op("softmax", [a.b.op("add", [scores, a.padding])], axis=-1)
    weights = a.b.op("reshape", [weights], shape=(a.batch * 4, a.rows, a.keys))
    out = a.b.op("matmul", [weights, flat[2]])
    a.b.output(a.b.op("reshape", [out], shape=(a.batch, 4, a.rows, 8)), "out")
    assert_only_attention(a.finish(rng), bias=True, scale=0.25)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("mask", ["none", "narrow", "widened", "where", "fill", "constant"])
def test_softmax_in_single_precision_of_halves(rng, dtype, mask):
    b = GraphBuilder("halves")
    q, k, v = (b.input(name, dtype, (2, 4, 5, 8)) for name in "qkv")
    padding, seen = b.input("padding", dtype, (2, 1, 1, 5)), b.op("greater", [b.input("s", float32, (5, 5)), -9.0])
    low, zero = (b.constant(np.array(x, np.float32)) for x in (np.finfo(np.float32).min, 0.0))
    scores = b.op("multiply", [b.op("matmul", [q, b.op("permute", [k], order=(0, 1, 3, 2))]), 0.25])
    if mask == "narrow":
        scores = b.op("add", [scores, padding])
    scores = b.op("cast", [scores], dtype=float32)
    if mask == "widened":
        scores = b.op("add", [scores, b.op("cast", [padding], dtype=float32)])
    if mask == "where":
        scores = b.op("add", [scores, b.op("where", [seen, zero, low])])
    if mask == "fill":
        scores = b.op("where", [seen, scores, low])
    if mask == "constant":
        scores = b.op("add", [scores, b.constant(np.array([[0.5, -1.25, 0, -3e38, -np.inf]], np.float32))])
    weights = b.op("cast", [b.op("softmax", [scores], axis=-1)], dtype=dtype)
    b.output(b.op("matmul", [weights, v]), "out")
    shapes = {**dict.fromkeys("qkv", (2, 4, 5, 8)), "padding": (2, 1, 1, 5), "s": (5, 5)}
    graph = check(b.finish(), shapes, rng)
    assert_only_attention(graph, bias=mask != "none", scale=0.25)
    assert all(np.isfinite(data).all() for data in graph.constants.values()) or mask == "constant"


@pytest.mark.parametrize("bias", ["input", "constant"])
def test_biases_that_halves_do_not_hold_stay_single(rng, bias):
    b = GraphBuilder("single")
    q, k, v = (b.input(name, bfloat16, (2, 4, 5, 8)) for name in "qkv")
    extra = (
        b.input("extra", float32, (5,)) if bias == "input" else b.constant(np.array([0, 1, 2, 3, 1.001], np.float32))
    )
    scores = b.op("cast", [b.op("matmul", [q, b.op("permute", [k], order=(0, 1, 3, 2))])], dtype=float32)
    weights = b.op("cast", [b.op("softmax", [b.op("add", [scores, extra])], axis=-1)], dtype=bfloat16)
    b.output(b.op("matmul", [weights, v]), "out")
    shapes = {**dict.fromkeys("qkv", (2, 4, 5, 8)), "extra": (5,)}
    assert "softmax" in ops_of(check(b.finish(), shapes, rng))


def test_guard_against_rows_without_a_key(rng):
    a = Attention()
    scores = a.b.op("matmul", [a.q, a.k], transpose_b=True)
    weights = a.b.op("softmax", [a.b.op("add", [scores, a.padding])], axis=-1)
    guarded = a.b.op("where", [a.b.op("isnan", [weights]), 0.0, weights])
    a.b.output(a.b.op("matmul", [guarded, a.v]), "out")
    assert_only_attention(a.finish(rng), bias=True, scale=1.0)


@pytest.mark.parametrize("least", [0.0, 99.0], ids=["some", "no"])
@pytest.mark.parametrize("additive", [False, True])
def test_rows_that_see_no_key_are_nan_without_a_guard(rng, additive, least):
    a = Attention()
    scores, seen = a.b.op("matmul", [a.q, a.k], transpose_b=True), a.b.op("greater", [a.padding, least])
    if additive:
        scores = a.b.op("add", [scores, a.b.op("where", [seen, a.b.number(0.0, float32), float("-inf")])])
    else:
        scores = a.b.op("where", [seen, scores, float("-inf")])
    a.context(scores)
    assert_only_attention(a.finish(rng), bias=True)


def test_two_masks_that_hide_all_keys_together_give_nan(rng):
    a = Attention()
    scores, seen = a.b.op("matmul", [a.q, a.k], transpose_b=True), a.b.op("greater", [a.padding, 0.0])
    scores = a.b.op("where", [seen, scores, float("-inf")])
    hidden = a.b.op("where", [seen, a.b.number(float("-inf"), float32), 0.0])
    a.context(a.b.op("add", [scores, hidden]))
    assert_only_attention(a.finish(rng), bias=True)


def test_guard_that_looks_for_rows_of_minus_infinity(rng):
    a = Attention()
    scores = a.b.op("add", [a.b.op("matmul", [a.q, a.k], transpose_b=True), a.padding])
    hidden = a.b.op("cast", [a.b.op("not_equal", [scores, float("-inf")])], dtype=int64)
    seen = a.b.op("reduce_max", [hidden], axes=(-1,), keepdims=True)
    blind = a.b.op("equal", [seen, 0])
    weights = a.b.op("softmax", [scores], axis=-1)
    a.b.output(a.b.op("matmul", [a.b.op("where", [blind, 0.0, weights]), a.v]), "out")
    assert_only_attention(a.finish(rng), bias=True)


@pytest.mark.parametrize("keys", ["s", "s + 4", "t"])
@pytest.mark.parametrize("fill", [float("-inf"), -3.4028234663852886e38, -1e9])
def test_causal_masks_from_positions(rng, keys, fill):
    a = Attention(keys=keys)
    scores = a.b.op("matmul", [a.q, a.k], transpose_b=True)
    a.context(a.b.op("where", [a.causal(), scores, fill]))
    graph = a.finish(rng, keys=5 if keys == "s" else 9)
    flag = keys != "t" or fill == float("-inf")  # t may be less than s: rows without a key are then the mean of values
    assert_only_attention(graph, causal=flag, bias=not flag)
    assert not flag or ops_of(graph) == ["attention"]


@pytest.mark.parametrize("form", ["greater_equal", "not_greater", "less", "additive", "through_numbers"])
def test_causal_masks_in_other_words(rng, form):
    a = Attention()
    b, rows, columns = a.b, a.positions(a.rows, (a.rows, 1)), a.positions(a.rows, (1, a.rows))
    scores = b.op("matmul", [a.q, a.k], transpose_b=True)
    if form == "greater_equal":
        seen = b.op("greater_equal", [rows, columns])
    elif form == "not_greater":
        seen = b.op("logical_not", [b.op("greater", [columns, rows])])
    else:
        seen = b.op("less", [columns, b.op("add", [rows, 1])])
    if form in ("additive", "through_numbers"):
        if form == "through_numbers":
            triangle = b.op("where", [seen, b.number(1.0, float32), 0.0])
            bias = b.op("where", [b.op("equal", [triangle, 0.0]), b.number(float("-inf"), float32), 0.0])
        else:
            bias = b.op("where", [seen, b.number(0.0, float32), float("-inf")])
        scores = b.op("add", [scores, b.op("broadcast_to", [bias], shape=(a.batch, 4, a.rows, a.rows))])
    else:
        scores = b.op("where", [seen, scores, float("-inf")])
    a.context(scores)
    graph = a.finish(rng)
    assert_only_attention(graph, causal=True)
    assert ops_of(graph) == ["attention"]


def test_causal_and_padding_together(rng):
    a = Attention()
    real = a.b.op("greater", [a.padding, -1.0])
    seen = a.b.op("logical_and", [a.causal(), real])
    bias = a.b.op("where", [seen, a.b.number(0.0, float32), float("-inf")])
    a.context(a.b.op("add", [a.b.op("matmul", [a.q, a.k], transpose_b=True), bias]))
    b = a.b.finish()
    assert_only_attention(optimize(b), causal=True, bias=True)


def test_a_mask_that_is_not_causal_stays_a_bias(rng):
    a = Attention()
    rows, columns = a.positions(a.rows, (a.rows, 1)), a.positions(a.rows, (a.rows,))
    near = a.b.op("less_equal", [columns, a.b.op("add", [rows, 2])])
    a.context(a.b.op("where", [near, a.b.op("matmul", [a.q, a.k], transpose_b=True), float("-inf")]))
    assert_only_attention(a.finish(rng), causal=False, bias=True)


def test_a_constant_triangle_is_causal(rng):
    b = GraphBuilder("constant_mask")
    q, k, v = (b.input(name, float32, (2, 4, 5, 8)) for name in "qkv")
    triangle = b.constant(np.where(np.tri(5, dtype=bool), 0, -np.inf).astype(np.float32), "mask")
    scores = b.op("add", [b.op("matmul", [q, k], transpose_b=True), triangle])
    b.output(b.op("matmul", [b.op("softmax", [scores], axis=-1), v]), "out")
    graph = check(b.finish(), {name: (2, 4, 5, 8) for name in "qkv"}, rng)
    assert_only_attention(graph, causal=True)


@pytest.mark.parametrize("repeat", ["expand", "gather"])
def test_grouped_heads_are_read_once(rng, repeat):
    a = Attention(key_heads=2)

    def spread(x: Value) -> Value:
        if repeat == "gather":
            return a.b.op("gather", [x, a.b.constant(np.array([0, 0, 1, 1]), "heads")], axis=1)
        wide = a.b.op("reshape", [x], shape=(a.batch, 2, 1, a.keys, 8))
        wide = a.b.op("broadcast_to", [wide], shape=(a.batch, 2, 2, a.keys, 8))
        return a.b.op("reshape", [wide], shape=(a.batch, 4, a.keys, 8))

    scores = a.b.op("matmul", [a.q, a.transposed(spread(a.k))])
    a.context(scores, spread(a.v))
    graph = a.finish(rng, key_heads=2)
    assert ops_of(graph) == ["attention"]
    assert graph.nodes[0].inputs[1].shape[1] == 2


def test_a_scaled_bias_is_left_alone(rng):
    a = Attention()
    scores = a.b.op("add", [a.b.op("matmul", [a.q, a.k], transpose_b=True), a.padding])
    a.context(a.b.op("multiply", [scores, 0.3]))
    assert "softmax" in ops_of(a.finish(rng))


# Norms ---------------------------------------------------------------------------------------------


def norm_graph(form: str) -> Graph:
    b = GraphBuilder("norm")
    rows = b.symbol("n", 1, 8)
    x = b.input("x", float32, (rows, 3, 16))
    scale = b.constant(np.linspace(0.5, 1.5, 16, dtype=np.float32), "scale")
    bias = b.constant(np.linspace(-1, 1, 16, dtype=np.float32), "bias")

    def mean(value: Value) -> Value:
        return b.op("reduce_mean", [value], axes=(-1,), keepdims=True)

    centred = b.op("subtract", [x, mean(x)]) if form.startswith("layer") else x
    power = mean(b.op("power", [centred, 2.0]))
    root = b.op("sqrt", [b.op("add", [power, 1e-5])])
    if form.endswith("reciprocal"):
        normal = b.op("multiply", [centred, b.op("reciprocal", [root])])
    elif form.endswith("rsqrt"):
        normal = b.op("multiply", [b.op("rsqrt", [b.op("add", [1e-5, power])]), centred])
    else:
        normal = b.op("divide", [centred, root])
    y = b.op("multiply", [scale, normal])
    b.output(b.op("add", [y, bias]) if form.startswith("layer") else y, "y")
    return b.finish()


@pytest.mark.parametrize("form", ["layer-divide", "layer-reciprocal", "layer-rsqrt", "rms-divide", "rms-reciprocal"])
def test_norms(rng, form, golden):
    graph = check(norm_graph(form), {"x": (2, 3, 16)}, rng)
    assert ops_of(graph) == ["layer_norm" if form.startswith("layer") else "rms_norm"]
    if form in ("layer-divide", "rms-divide"):
        golden(print_graph(graph))


def test_group_norm_is_decomposed(rng):
    b = GraphBuilder("composite")
    x = b.input("x", float32, (2, 6, 5))
    scale, bias = (b.constant(np.linspace(low, 2, 6, dtype=np.float32), "p") for low in (1, 0))
    y = b.op("group_norm", [x, scale, bias], groups=3, epsilon=1e-5)
    b.output(b.op("log_softmax", [y], axis=1), "y")
    graph = check(b.finish(), {"x": (2, 6, 5)}, rng)
    assert "group_norm" not in ops_of(graph) and ops_of(graph)[-1] == "log_softmax"


@pytest.mark.parametrize("groups", [1, 3])
def test_convolutions_over_volumes_are_convolutions_over_images(rng, groups):
    b = GraphBuilder("volumes")
    batch = b.symbol("b", 1, 8)
    x = b.input("x", float32, (batch, 6, 7, 9, 8))
    w, bias = (b.constant(rng.standard_normal(s).astype(np.float32)) for s in ((12, 6 // groups, 3, 2, 3), (12,)))
    windows = {"strides": (2, 1, 2), "padding": ((1, 2), (0, 1), (1, 1)), "dilation": (2, 1, 2), "groups": groups}
    y = b.op("conv", [x, w, bias], **windows)
    points = b.constant(rng.standard_normal((5, 12, 1, 1, 1)).astype(np.float32))
    b.output(b.op("conv", [y, points], strides=(1, 1, 1), padding=((0, 0),) * 3, dilation=(1, 1, 1)))
    graph = check(b.finish(), {"x": (2, 6, 7, 9, 8)}, rng)
    assert all(node.inputs[0].rank == 4 for node in graph.nodes if node.op == "conv")


@pytest.mark.parametrize("kernel", [(2, 3, 2), (3, 1, 1), (1, 2, 2)])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("options", [None, {"count_include_pad": False}, {"count_include_pad": True}])
def test_pools_of_volumes_are_pools_of_images(rng, kernel, ceil_mode, options):
    b = GraphBuilder("volumes")
    x = b.input("x", float32, (2, 3, 7, 8, 9))
    windows = {"strides": (2, 2, 1), "padding": tuple((size // 2, 0) for size in kernel), "dilation": (1, 1, 1)}
    op = "max_pool" if options is None else "average_pool"
    b.output(b.op(op, [x], kernel=kernel, ceil_mode=ceil_mode, **windows, **(options or {})))
    graph = check(b.finish(), {"x": (2, 3, 7, 8, 9)}, rng)
    assert all(node.inputs[0].rank == 4 for node in graph.nodes if node.op == op)


def test_a_log_softmax_that_is_read_elsewhere_stays_whole(rng):
    b = GraphBuilder("loss")
    x, index = b.input("x", float32, (4, 9)), b.constant(np.array([[3], [0], [8], [1]]), "index")
    logarithm = b.op("log_softmax", [x], axis=1)
    b.output(b.op("gather_elements", [logarithm, index], axis=1), "chosen")
    b.output(logarithm, "all")
    assert "log_softmax" in ops_of(check(b.finish(), {"x": (4, 9)}, rng))


def test_norms_of_groups_of_channels_read_channels_last(rng):
    """Between convolutions nothing but the groups is permuted: by the kernels that compute and read the norm."""
    b = GraphBuilder("groups")
    x = b.input("x", float32, (2, 6, 5, 4))
    for name in ("first", "second"):
        weight, scale, bias = (
            b.constant(rng.standard_normal(shape).astype(np.float32), name) for shape in ((6, 6, 3, 3), (6,), (6,))
        )
        options = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}
        x = b.op("conv", [x, weight], **options)
        x = b.op("silu", [b.op("group_norm", [x, scale, bias], groups=3, epsilon=1e-5)])
    b.output(x, "y")
    graph = check(b.finish(), {"x": (2, 6, 5, 4)}, rng)
    orders = [node.attributes["order"] for node in graph.nodes if node.op == "permute"]
    assert orders == [(0, 2, 3, 1), *[(0, 2, 1, 3)] * 4, (0, 3, 1, 2)]
    kinds = [group.kind for group in fuse(graph, CPU_KERNELS).groups if group.kind != "view"]
    assert kinds == ["contraction", "reduction", "elementwise"] * 2


# Activations ---------------------------------------------------------------------------------------


def erf_gelu(b: GraphBuilder, x: Value, form: int) -> Value:
    inner = b.op("erf", [b.op("divide", [x, math.sqrt(2)]) if form else b.op("multiply", [x, math.sqrt(0.5)])])
    one = b.op("add", [inner, 1.0])
    if form == 0:
        return b.op("multiply", [b.op("multiply", [x, one]), 0.5])
    if form == 1:
        return b.op("multiply", [b.op("multiply", [x, 0.5]), one])
    return b.op("multiply", [x, b.op("multiply", [0.5, one])])


def tanh_gelu(b: GraphBuilder, x: Value, form: int) -> Value:
    if form == 0:
        cube = b.op("multiply", [b.op("power", [x, 3.0]), 0.044715])
        argument = b.op("multiply", [b.op("add", [x, cube]), 0.7978845608])
    else:
        square = b.op("multiply", [b.op("multiply", [x, x]), 0.044715])
        scaled = b.op("multiply", [x, 0.7978845608])
        argument = b.op("multiply", [scaled, b.op("add", [square, 1.0])])
    return b.op("multiply", [b.op("multiply", [x, 0.5]), b.op("add", [1.0, b.op("tanh", [argument])])])


@pytest.mark.parametrize(
    ("make", "form", "approximate"),
    [
        (erf_gelu, 0, "none"),
        (erf_gelu, 1, "none"),
        (erf_gelu, 2, "none"),
        (tanh_gelu, 0, "tanh"),
        (tanh_gelu, 1, "tanh"),
    ],
)
def test_gelu(rng, make, form, approximate):
    b = GraphBuilder("gelu")
    x = b.input("x", float32, (4, 8))
    b.output(make(b, x, form), "y")
    graph = check(b.finish(), {"x": (4, 8)}, rng)
    assert ops_of(graph) == ["gelu"] and graph.nodes[0].attributes["approximate"] == approximate


@pytest.mark.parametrize("make", [erf_gelu, tanh_gelu])
@pytest.mark.parametrize("form", [0, 1])
def test_gelu_of_bfloat16(make, form):
    """The numbers of the formula are rounded to 8 bits."""
    b = GraphBuilder("gelu")
    b.output(make(b, b.input("x", bfloat16, (4, 8)), form), "y")
    assert ops_of(optimize(b.finish())) == ["gelu"]


@pytest.mark.parametrize("form", ["product", "quotient", "written_out"])
def test_silu(rng, form):
    b = GraphBuilder("silu")
    x = b.input("x", float32, (4, 8))
    denominator = b.op("add", [b.op("exp", [b.op("negate", [x])]), 1.0])
    if form == "product":
        y = b.op("multiply", [x, b.op("sigmoid", [x])])
    elif form == "quotient":
        y = b.op("divide", [x, denominator])
    else:
        y = b.op("multiply", [b.op("divide", [b.number(1.0, float32), denominator]), x])
    b.output(y, "y")
    assert ops_of(check(b.finish(), {"x": (4, 8)}, rng)) == ["silu"]


def test_softmax(rng):
    b = GraphBuilder("softmax")
    x = b.input("x", float32, (4, 8))
    shifted = b.op("subtract", [x, b.op("reduce_max", [x], axes=(-1,), keepdims=True)])
    exponential = b.op("exp", [shifted])
    total = b.op("reduce_sum", [exponential], axes=(-1,), keepdims=True)
    b.output(b.op("divide", [exponential, total]), "y")
    assert ops_of(check(b.finish(), {"x": (4, 8)}, rng)) == ["softmax"]


# Layout, folding, merging ----------------------------------------------------------------------------


def test_a_residual_block_is_channels_last_with_its_norms_folded(rng):
    b = GraphBuilder("block")
    batch = b.symbol("batch", 1, 8)
    x = b.input("x", float32, (batch, 4, 6, 6))

    def conv(value: Value, kernel: int) -> Value:
        weight = b.constant(rng.standard_normal((4, 4, kernel, kernel)).astype(np.float32) * 0.2, "weight")
        pads = ((kernel // 2, kernel // 2),) * 2
        y = b.op("conv", [value, weight], strides=(1, 1), padding=pads, dilation=(1, 1))
        parameters = [b.constant(rng.uniform(0.5, 1.5, 4).astype(np.float32), "norm") for _ in range(4)]
        return b.op("batch_norm", [y, *parameters], epsilon=1e-5)

    y = b.op("relu", [conv(x, 3)])
    y = b.op("relu", [b.op("add", [conv(y, 1), x])])
    b.output(b.op("reduce_mean", [y], axes=(2, 3)), "pooled")
    graph = check(b.finish(), {"x": (2, 4, 6, 6)}, rng)
    assert ops_of(graph) == ["permute", "conv", "relu", "conv", "add", "relu", "reduce_mean"]
    assert all(node.attributes["layout"] == "NHWC" for node in graph.nodes if node.op == "conv")


@pytest.mark.parametrize("columns_first", [False, True])
def test_channels_that_become_pixels_stay_channels_last(rng, columns_first):
    """The shuffle behind a convolution moves once: nothing is turned to channels-first and back around it."""
    b = GraphBuilder("shuffle")
    batch = b.symbol("batch", 1, 8)
    x = b.input("x", float32, (batch, 8, 5, 6))
    windows = {"strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}
    y = b.op("conv", [x, b.constant(rng.standard_normal((24, 8, 1, 1)).astype(np.float32))], **windows)
    split, order = ((2, 2, 6), (0, 3, 4, 1, 5, 2)) if columns_first else ((6, 2, 2), (0, 1, 4, 2, 5, 3))
    y = b.op("permute", [b.op("reshape", [y], shape=(batch, *split, 5, 6))], order=order)
    y = b.op("reshape", [y], shape=(batch, 6, 10, 12))
    y = b.op("conv", [y, b.constant(rng.standard_normal((4, 6, 1, 1)).astype(np.float32))], **windows)
    b.output(b.op("reduce_mean", [y], axes=(2, 3)), "pooled")
    graph = check(b.finish(), {"x": (2, 8, 5, 6)}, rng)
    assert ops_of(graph) == ["permute", "conv", "reshape", "permute", "reshape", "conv", "reduce_mean"]


@pytest.mark.parametrize("width", [1, 4], ids=["channels alike", "channels apart"])
def test_norms_after_half_convolutions_are_rounded_once(rng, width):
    b = GraphBuilder("half")
    x = b.input("x", float16, (2, 4, 6, 6))
    weight = rng.standard_normal((4, 4, 1, 1)).astype(np.float16)
    draws = (rng.uniform(0.5, 1.5, width).astype(np.float16) for _ in range(4))
    scale, bias, mean, variance = (np.broadcast_to(draw, 4).copy() for draw in draws)
    y = b.op("conv", [x, b.constant(weight)], strides=(1, 1), padding=((0, 0),) * 2, dilation=(1, 1))
    b.output(b.op("batch_norm", [y, *map(b.constant, (scale, bias, mean, variance))], epsilon=1e-5), "y")
    graph = optimize(b.finish())
    (conv,) = [node for node in graph.nodes if node.op == "conv"]
    assert not any(node.op in ("cast", "multiply", "add") for node in graph.nodes)
    factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + 1e-5)
    exact = weight.astype(np.float64) * factor[:, None, None, None], bias - mean * factor
    for value, wanted, rounding in zip(conv.inputs[1:], exact, (2**-11, 2**-24), strict=True):
        found = graph.constants[value].astype(np.float64).reshape(wanted.shape)
        assert np.all(np.abs(found - wanted) <= (rounding + 2**-20) * np.abs(wanted) + 2**-20)


@pytest.mark.parametrize(("dtype", "groups"), [(float16, 4), (bfloat16, 1)])
def test_norms_after_depthwise_or_bfloat16_convolutions_round_no_weights(dtype, groups, rng):
    b = GraphBuilder("half")
    x = b.input("x", dtype, (2, 4, 6, 6))
    weight = rng.standard_normal((4, 4 // groups, 3, 3)).astype(dtype.numpy)
    window = {"strides": (1, 1), "padding": ((1, 1),) * 2, "dilation": (1, 1), "groups": groups}
    y = b.op("conv", [x, b.constant(weight)], **window)
    parameters = (rng.uniform(0.5, 1.5, 4).astype(dtype.numpy) for _ in range(4))
    b.output(b.op("batch_norm", [y, *map(b.constant, parameters)], epsilon=1e-5), "y")
    graph = check(b.finish(), {"x": (2, 4, 6, 6)}, rng)
    (conv,) = [node for node in graph.nodes if node.op == "conv"]
    np.testing.assert_array_equal(graph.constants[conv.inputs[1]], weight)


def test_convolutions_along_a_line_are_rows_of_images(rng):
    b = GraphBuilder("line")
    x = b.input("x", float32, (2, 4, 33))
    window = {"strides": (2,), "padding": ((1, 0),), "dilation": (1,)}
    y = b.op("conv", [x, b.constant(rng.standard_normal((6, 4, 3)).astype(np.float32), "weight")], **window)
    y = b.op("max_pool", [b.op("relu", [y])], kernel=(2,), **window)
    b.output(b.op("average_pool", [y], kernel=(2,), **window), "y")
    graph = check(b.finish(), {"x": (2, 4, 33)}, rng)
    assert all(len(node.attributes["strides"]) == 2 for node in graph.nodes if "strides" in node.attributes)
    assert ops_of(graph) == ["permute", "reshape", "conv", "relu", "max_pool", "average_pool", "reshape", "permute"]


@pytest.mark.parametrize("biased", [True, False])
def test_projections_of_one_input_are_one_product(rng, biased):
    b = GraphBuilder("projections")
    batch = b.symbol("batch", 1, 8)
    x = b.input("x", float32, (batch, 5, 8))
    for index, width in enumerate((8, 4, 4)):
        weight = b.constant(rng.standard_normal((width, 8)).astype(np.float32), "weight")
        y = b.op("matmul", [x, weight], transpose_b=True)
        if biased:
            y = b.op("add", [y, b.constant(rng.standard_normal(width).astype(np.float32), "bias")])
        y = b.op("permute", [b.op("reshape", [y], shape=(batch, 5, width // 4, 4))], order=(0, 2, 1, 3))
        b.output(y, f"y{index}")
    graph = check(b.finish(), {"x": (2, 5, 8)}, rng)
    assert ops_of(graph).count("matmul") == 1 and ops_of(graph).count("slice") == 3


def test_rows_of_a_sequence_first_attention_stay_where_they_are(rng):
    """The permutes of torch.nn.MultiheadAttention(batch_first=True) become strides of the heads."""
    b = GraphBuilder("sequence_first")
    batch = b.symbol("batch", 1, 8)
    x = b.input("x", float32, (batch, 5, 8))
    weights = [
        b.constant(rng.standard_normal(shape).astype(np.float32), "weight") for shape in ((8, 24), (24,), (8, 8))
    ]
    rows = b.op("permute", [x], order=(1, 0, 2))
    projected = b.op("add", [b.op("matmul", [rows, weights[0]]), weights[1]])
    heads = []
    for part in range(3):
        piece = b.op("slice", [projected], axis=2, start=8 * part, stop=8 * part + 8)
        piece = b.op("permute", [b.op("reshape", [piece], shape=(5, batch * 2, 4))], order=(1, 0, 2))
        heads.append(b.op("reshape", [piece], shape=(batch, 2, 5, 4)))
    context = b.op("permute", [b.op("attention", heads, scale=0.5)], order=(2, 0, 1, 3))
    out = b.op("matmul", [b.op("reshape", [context], shape=(batch * 5, 8)), weights[2]])
    out = b.op("permute", [b.op("reshape", [out], shape=(5, batch, 8))], order=(1, 0, 2))
    b.output(b.op("add", [out, x]), "y")
    graph = check(b.finish(), {"x": (3, 5, 8)}, rng)
    assert [group.kind for group in fuse(graph).groups] == ["contraction", "attention", "contraction"]


def gated(rng, bias: bool, formula, widths=(24, 24)) -> Graph:
    """formula(gate, up) of two projections of one input, and a product of what it gives."""
    b = GraphBuilder("gated")
    x = b.input("x", float32, (4, 8))

    def linear(source, width):
        weight = b.constant(rng.standard_normal((width, source.shape[-1])).astype(np.float32), "weight")
        y = b.op("matmul", [source, weight], transpose_b=True)
        return b.op("add", [y, b.constant(rng.standard_normal(width).astype(np.float32), "bias")]) if bias else y

    y = formula(b, linear(x, widths[0]), linear(x, widths[1]))
    b.output(linear(y, 8), "y")
    return b.finish()


@pytest.mark.parametrize("bias", [False, True])
def test_gate_and_up_projections_become_one_product(bias, rng):
    graph = gated(rng, bias, lambda b, gate, up: b.op("multiply", [b.op("silu", [gate]), up]))
    graph = check(graph, {"x": (4, 8)}, rng)
    assert ops_of(graph).count("matmul") == 2 and ops_of(graph).count("slice") == 2
    fused = fuse(graph)
    assert [group.kind for group in fused.groups] == ["contraction", "contraction"]
    assert [node.op for node in fused.groups[0].nodes][-4:] == ["slice", "slice", "silu", "multiply"]
    assert [value.shape for value in fused.groups[0].outputs] == [(4, 24)]


def test_projections_that_are_no_gate_stay_apart(rng):
    """Halves of different widths, and a result that something else reads too."""
    padded = gated(rng, False, lambda b, gate, up: b.op("concat", [b.op("silu", [gate]), up], axis=1), (24, 8))
    assert ops_of(check(padded, {"x": (4, 8)}, rng)).count("matmul") == 3

    def twice(b, gate, up):
        b.output(gate, "gate")
        return b.op("multiply", [b.op("silu", [gate]), up])

    assert ops_of(check(gated(rng, False, twice), {"x": (4, 8)}, rng)).count("matmul") == 3


def test_folding_does_not_store_more_than_it_saves():
    b = GraphBuilder("fold")
    x = b.input("x", float32, (1024, 1024))
    line = np.arange(1024, dtype=np.float32)
    wide = b.op("add", [b.constant(line.reshape(1024, 1), "column"), b.constant(line, "row")])
    b.output(b.op("add", [x, wide]), "y")
    graph = optimize(b.finish())
    assert ops_of(graph) == ["add", "add"]
    assert sum(data.nbytes for data in graph.constants.values()) < 20000


def test_the_least_half_hides_a_key():
    """Masks of models in float16 are filled with -65504."""
    b = GraphBuilder("half")
    q, k, v = (b.input(name, float16, (2, 2, 9, 16)) for name in "qkv")
    hidden = b.constant(np.where(np.tri(9, dtype=bool), 0, np.finfo(np.float16).min).astype(np.float16), "mask")
    b.output(b.op("attention", [q, k, v, hidden], scale=0.25), "y")
    (node,) = optimize(b.finish()).nodes
    assert node.attributes["causal"] and len(node.inputs) == 3


@pytest.mark.parametrize("form", ["where", "constant", "full"])
def test_numbers_that_hide_keys_can_be_scaled(rng, form):
    """Kernels multiply a bias by numbers such as 1 / scale: the least float32 would become minus infinity."""
    b = GraphBuilder("low")
    q, k, v = (b.input(name, float32, (2, 2, 9, 16)) for name in "qkv")
    low = np.float32(np.finfo(np.float32).min)
    if form == "constant":
        hidden = b.constant(np.where(np.eye(9, dtype=bool), low, np.float32(0)), "mask")
    else:
        seen = b.op("greater", [b.input("s", float32, (2, 1, 9, 9)), 0.5])
        fill = b.op("full", shape=(2, 1, 9, 9), value=float(low), dtype=float32) if form == "full" else b.constant(low)
        hidden = b.op("where", [seen, b.constant(np.float32(0)), fill])
    b.output(b.op("attention", [q, k, v, hidden], scale=0.25), "y")
    graph = check(b.finish(), {**dict.fromkeys("qkv", (2, 2, 9, 16)), "s": (2, 1, 9, 9)}, rng)
    numbers = [float(data.min()) for data in graph.constants.values() if data.dtype == np.float32]
    numbers += [node.attributes["value"] for node in graph.nodes if node.op == "full"]
    assert min(numbers) == np.float32(-1e30)


def test_one_number_for_all_scores_is_no_bias(rng):
    b = GraphBuilder("even")
    q, k, v = (b.input(name, float32, (2, 2, 5, 8)) for name in "qkv")
    b.output(b.op("attention", [q, k, v, b.constant(np.full((1, 5), -3, np.float32), "even")], scale=0.3), "y")
    (node,) = check(b.finish(), dict.fromkeys("qkv", (2, 2, 5, 8)), rng).nodes
    assert len(node.inputs) == 3


def test_masks_of_packed_sequences_are_folded_away(rng):
    """As transformers writes them: neighbours whose positions do not follow each other begin a new sequence."""
    b = GraphBuilder("packed")
    q, k, v = (b.input(name, float32, (3, 2, 5, 8)) for name in "qkv")
    line = b.op("broadcast_to", [b.op("iota", shape=(1, 5), axis=1, dtype=int64)], shape=(3, 5))
    first, rest = (b.op("slice", [line], axis=1, start=start, stop=stop) for start, stop in ((0, 1), (0, 5)))
    before = b.op("slice", [b.op("concat", [b.op("subtract", [first, 1]), rest], axis=1)], axis=1, start=0, stop=5)
    jumps = b.op("cast", [b.op("not_equal", [b.op("subtract", [line, before]), 1])], dtype=int64)
    number = b.op("cumsum", [jumps], axis=1)
    same = b.op("equal", [*(b.op("reshape", [number], shape=shape) for shape in ((3, 1, 5, 1), (3, 1, 1, 5)))])
    rows, columns = (b.op("reshape", [b.op("iota", shape=(5,), dtype=int64)], shape=shape) for shape in ((5, 1), (5,)))
    seen = b.op("logical_and", [same, b.op("less_equal", [columns, rows])])
    zero, low = (b.constant(np.array(number, np.float32), "number") for number in (0, -1e9))
    b.output(b.op("attention", [q, k, v, b.op("where", [seen, zero, low])], scale=0.3), "y")
    graph = check(b.finish(), dict.fromkeys("qkv", (3, 2, 5, 8)), rng)
    (node,) = graph.nodes
    assert node.op == "attention" and node.attributes["causal"] and len(node.inputs) == 3


def test_masks_written_window_by_window_are_folded(rng):
    """As torchvision's shifted windows number their parts."""
    b = GraphBuilder("windows")
    x = b.input("x", float32, (2, 6, 6))
    board = b.op("broadcast_to", [b.constant(np.zeros((), np.float32), "zero")], shape=(6, 6))
    for number, (start, stop) in enumerate(((0, 2), (2, 5), (5, 6))):
        places = b.constant(np.arange(start, stop), "places")
        part = b.op("broadcast_to", [b.constant(np.array(number, np.float32), "number")], shape=(stop - start, 6))
        board = b.op("scatter_update", [board, places, part], axis=0)
    b.output(b.op("add", [x, board]), "y")
    assert ops_of(check(b.finish(), {"x": (2, 6, 6)}, rng)) == ["add"]


def test_outputs_are_separate_tensors():
    b = GraphBuilder("outputs")
    x = b.input("x", float32, (4,))
    constant = b.constant(np.ones(4, np.float32), "one")
    y = b.op("relu", [x])
    for index, value in enumerate((x, constant, y, y)):
        b.output(value, f"y{index}")
    graph = optimize(b.finish())
    assert ops_of(graph) == ["relu", "copy", "copy", "copy"]
    assert len(set(graph.outputs)) == 4


@pytest.mark.parametrize("op", ["add", "multiply"])
def test_recognisers_take_no_exponential_time(op):
    """Sixty doublings: whoever follows both operands of each never returns."""
    b = GraphBuilder("doublings")
    x = b.input("x", float32, (1, 4, 4))
    value = x
    for _ in range(60):
        value = b.op(op, [value, value])
    weights = b.op("softmax", [value], axis=-1)
    b.output(b.op("matmul", [weights, x]), "y")
    assert "matmul" in ops_of(optimize(b.finish()))
