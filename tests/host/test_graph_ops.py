"""The graph op table: inference and meaning of each op, and what the builder and the verifier refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.dtypes import bfloat16, float32, int1, int32, int64
from tilewright.errors import InvalidIRError, ShapeError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Node, Value
from tilewright.graph.ops import OPS, REQUIRED
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import run
from tilewright.graph.verifier import verify
from tilewright.symbolic import symbol

torch = pytest.importorskip("torch")
functional = torch.nn.functional

KINDS = {
    "recurrent",
    "transform",
    "sorting",
    "choice",
    "trees",
    "elementwise",
    "contraction",
    "attention",
    "paged",
    "reduction",
    "movement",
    "view",
    "source",
    "pool",
    "composite",
    "host",
    "part",
    "control",
}


def compute(op, arrays, **attributes):
    """The op's result on arrays through a graph of one node, in float64."""
    b = GraphBuilder("one")
    values = []
    for index, array in enumerate(arrays):
        data = np.asarray(array)
        dtype = float32 if data.dtype.kind == "f" else int1 if data.dtype.kind == "b" else int64
        values.append(b.input(f"x{index}", dtype, data.shape))
    b.output(b.op(op, values, **attributes), "y")
    return run(b.finish(), {f"x{index}": array for index, array in enumerate(arrays)})["y"]


def close(actual, wanted):
    """Equal up to the rounding of a few hundred float64 operations on numbers around 1."""
    np.testing.assert_allclose(np.asarray(actual), np.asarray(wanted), rtol=1e-11, atol=1e-13)


def test_every_row_is_complete():
    for name, row in OPS.items():
        assert name == row.name and row.kind in KINDS and row.summary and row.arity[0] >= 0
        assert all(key.isidentifier() for key in row.attributes)


UNARY = {
    "negate": torch.neg, "absolute": torch.abs, "sign": torch.sign, "exp": torch.exp, "exp2": torch.exp2,
    "sin": torch.sin,
    "cos": torch.cos, "tanh": torch.tanh, "erf": torch.erf, "sigmoid": torch.sigmoid, "floor": torch.floor,
    "ceil": torch.ceil, "round": torch.round, "isnan": torch.isnan, "relu": torch.relu,
    "silu": functional.silu, "gelu": functional.gelu, "atan": torch.atan, "lgamma": torch.lgamma, "erfc": torch.erfc,
}  # fmt: skip
POSITIVE = {"log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal}
BINARY = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "remainder": torch.remainder, "floor_divide": torch.floor_divide, "equal": torch.eq,
    "not_equal": torch.ne, "less": torch.lt, "less_equal": torch.le, "greater": torch.gt, "greater_equal": torch.ge,
    "atan2": torch.atan2,
}  # fmt: skip


@pytest.mark.parametrize("op", sorted({**UNARY, **POSITIVE}))
def test_unary(op, rng):
    x = rng.standard_normal((3, 5)) * 3
    x = np.abs(x) + 0.1 if op in POSITIVE else np.append(x, [[0.0, 0.5, 1.5, -2.5, 9.0]], axis=0)
    wanted = {**UNARY, **POSITIVE}[op](torch.from_numpy(x)).numpy()
    close(compute(op, [x]), wanted)


@pytest.mark.parametrize("op", ["asin", "acos", "erfinv"])
def test_functions_of_a_range(op, rng):
    x = np.append(rng.uniform(-1, 1, 50), [-1.0, 0.0, 1e-12, 1.0, 0.9999999, 1.5, math.nan])
    with np.errstate(invalid="ignore"):
        close(compute(op, [x]), getattr(torch, op)(torch.from_numpy(x)).numpy())


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8])
def test_bits(dtype, rng):
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, 64, dtype, endpoint=True)
    y = np.arange(64).astype(dtype) % (limits.bits + 3)
    pairs = {"shift_left": "bitwise_left_shift", "shift_right": "bitwise_right_shift"}
    for op in ("bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"):
        wanted = getattr(torch, pairs.get(op, op))(torch.from_numpy(x), torch.from_numpy(y)).numpy()
        graph_value = OPS[op].compute([x, y], {})
        np.testing.assert_array_equal(graph_value, wanted, err_msg=op)
    np.testing.assert_array_equal(OPS["bitwise_not"].compute([x], {}), ~x)


@pytest.mark.parametrize("op", sorted(BINARY))
def test_binary_broadcasts(op, rng):
    x, y = rng.standard_normal((4, 1, 3)), rng.standard_normal((5, 1))
    x[0], y[0] = 0.5, 0.5
    wanted = BINARY[op](torch.from_numpy(x), torch.from_numpy(y)).numpy()
    close(compute(op, [x, y]), wanted)


def test_integers_divide_as_the_table_says():
    left, right = np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])
    assert compute("divide", [left, right]).tolist() == [3, -3, -3, 3]
    assert compute("floor_divide", [left, right]).tolist() == [3, -4, -4, 3]
    assert compute("remainder", [left, right]).tolist() == [1, 1, -1, -1]


def test_gelu_tanh_clip_cast_where(rng):
    x = rng.standard_normal((3, 4))
    wanted = functional.gelu(torch.from_numpy(x), approximate="tanh").numpy()
    close(compute("gelu", [x], approximate="tanh"), wanted)
    np.testing.assert_array_equal(compute("clip", [x], low=-0.5, high=0.25), np.clip(x, -0.5, 0.25))
    np.testing.assert_array_equal(compute("cast", [x * 3], dtype=int32), (x * 3).astype(np.int32))
    np.testing.assert_array_equal(compute("where", [x > 0, x, -x]), np.abs(x))


def test_erf_is_accurate():
    x = np.linspace(-7, 7, 4001)
    wanted = np.array([math.erf(value) for value in x])
    np.testing.assert_allclose(compute("erf", [x]), wanted, rtol=4e-16, atol=2e-16)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_conv(groups, layout, rng):
    x, w, bias = rng.standard_normal((2, 4, 9, 8)), rng.standard_normal((6, 4 // groups, 3, 2)), rng.standard_normal(6)
    tensors = [torch.from_numpy(item) for item in (x, w, bias)]
    wanted = functional.conv2d(*tensors, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=groups).numpy()
    given = x if layout == "NCHW" else np.moveaxis(x, 1, -1)
    attributes = {"strides": (2, 1), "padding": ((1, 1), (2, 2)), "dilation": (1, 2), "groups": groups}
    result = compute("conv", [given, w, bias], layout=layout, **attributes)
    result = result if layout == "NCHW" else np.moveaxis(result, -1, 1)
    np.testing.assert_allclose(result, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("op", ["max_pool", "average_pool", "average_pool_with_padding"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_pools(op, ceil_mode, layout, rng):
    x = rng.standard_normal((2, 3, 10, 11))
    attributes = {"kernel": (3, 3), "strides": (2, 2), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}
    tensor = torch.from_numpy(x)
    if op == "max_pool":
        wanted = functional.max_pool2d(tensor, 3, 2, 1, ceil_mode=ceil_mode)
    else:
        counted = op.endswith("padding")
        wanted = functional.avg_pool2d(tensor, 3, 2, 1, ceil_mode=ceil_mode, count_include_pad=counted)
        attributes["count_include_pad"] = counted
    given = x if layout == "NCHW" else np.moveaxis(x, 1, -1)
    result = compute(op.removesuffix("_with_padding"), [given], ceil_mode=ceil_mode, layout=layout, **attributes)
    result = result if layout == "NCHW" else np.moveaxis(result, -1, 1)
    close(result, wanted.numpy())


def test_matmul_broadcasts_batches(rng):
    a, b = rng.standard_normal((2, 1, 3, 4)), rng.standard_normal((5, 6, 4))
    close(compute("matmul", [a, b], transpose_b=True), a @ np.swapaxes(b, -1, -2))


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal, rng):
    q, k, v = (rng.standard_normal((2, heads, length, 8)) for heads, length in ((4, 5), (2, 7), (2, 7)))
    bias = rng.standard_normal((2, 1, 1, 7))
    result = compute("attention", [q, k, v, bias], scale=0.3, causal=causal)
    mask = torch.from_numpy(np.broadcast_to(bias, (2, 4, 5, 7)).copy())
    if causal:
        mask = mask.masked_fill(~torch.tril(torch.ones(5, 7, dtype=torch.bool), diagonal=2), float("-inf"))
    tensors = [torch.from_numpy(item) for item in (q, k, v)]
    wanted = functional.scaled_dot_product_attention(*tensors, attn_mask=mask, scale=0.3, enable_gqa=True)
    close(result, wanted.numpy())


def test_attention_rows_without_a_key_give_zeros(rng):
    q, k, v = (rng.standard_normal((1, 1, length, 4)) for length in (3, 2, 2))
    result = compute("attention", [q, k, v], scale=1.0, causal=True)  # the first query may see no key
    assert np.all(result[0, 0, 0] == 0) and np.all(np.isfinite(result))


def test_norms_and_row_ops(rng):
    x, scale, bias = rng.standard_normal((2, 6, 5, 4)), rng.standard_normal((5, 4)), rng.standard_normal((5, 4))
    tensor = torch.from_numpy(x)
    wanted = functional.layer_norm(tensor, (5, 4), torch.from_numpy(scale), torch.from_numpy(bias), 1e-5)
    close(compute("layer_norm", [x, scale, bias], axis=2, epsilon=1e-5), wanted)
    wanted = functional.rms_norm(tensor, (5, 4), torch.from_numpy(scale), 1e-5)
    close(compute("rms_norm", [x, scale], axis=2, epsilon=1e-5), wanted)
    parameters = [np.abs(rng.standard_normal(6)) + 0.5 for _ in range(4)]
    weight, shift, mean, variance = map(torch.from_numpy, parameters)
    wanted = functional.batch_norm(tensor, mean, variance, weight, shift, eps=1e-5)
    close(compute("batch_norm", [x, *parameters], epsilon=1e-5), wanted)
    wanted = functional.group_norm(tensor, 3, weight, shift, 1e-5)
    close(compute("group_norm", [x, *parameters[:2]], groups=3, epsilon=1e-5), wanted)
    close(compute("softmax", [x], axis=1), functional.softmax(tensor, 1))
    close(compute("log_softmax", [x], axis=1), functional.log_softmax(tensor, 1))
    close(compute("cumsum", [x], axis=2), np.cumsum(x, 2))
    close(compute("reduce_product", [x], axes=(0, -1)), x.prod(axis=(0, 3)))
    assert compute("argmax", [x], axis=1, keepdims=True).tolist() == np.argmax(x, 1, keepdims=True).tolist()


def test_movement(rng):
    x = rng.standard_normal((4, 6, 3))
    np.testing.assert_array_equal(compute("slice", [x], axis=1, start=-1, stop=-1 - 6, step=1), x[:, -1:0])
    np.testing.assert_array_equal(compute("slice", [x], axis=1, start=5, stop=-1, step=-2), x[:, ::-2])
    np.testing.assert_array_equal(compute("slice", [x], axis=1, start=1, stop=99, step=2), x[:, 1::2])
    np.testing.assert_array_equal(compute("gather", [x, np.array([[0, -1]])], axis=1), x[:, [[0, -1]]])
    indices = rng.integers(0, 4, (2, 6, 3))
    np.testing.assert_array_equal(compute("gather_elements", [x, indices], axis=0), np.take_along_axis(x, indices, 0))
    wanted = x.copy()
    updates = rng.standard_normal((4, 2, 3))
    wanted[:, [5, 2]] = updates
    np.testing.assert_array_equal(compute("scatter_update", [x, np.array([5, 2]), updates], axis=1), wanted)
    wanted = x.copy()
    wanted[:, 5] += updates[:, 0] + updates[:, 1]
    added = compute("scatter_reduce", [x, np.array([5, -1]), updates], axis=1, reduction="add")
    np.testing.assert_allclose(added, wanted, rtol=1e-15, atol=1e-15)
    pads = ((1, 0), (0, 2), (0, 0))
    np.testing.assert_array_equal(compute("pad", [x], pads=pads, value=7.0), np.pad(x, pads, constant_values=7.0))
    np.testing.assert_array_equal(compute("concat", [x, x], axis=-1), np.concatenate([x, x], -1))
    np.testing.assert_array_equal(compute("permute", [x], order=(2, -3, 1)), x.transpose(2, 0, 1))


def test_sources_follow_symbols():
    b = GraphBuilder("sources")
    n = b.symbol("n", 1, 9)
    b.input("x", float32, (n, 2))
    b.output(b.op("iota", shape=(2, n), axis=1, dtype=int64, start=5, step=-1), "line")
    b.output(b.op("full", shape=(n,), value=2.5, dtype=float32), "full")
    b.output(b.op("dimension", expression=n * 2 + 1), "size")
    results = run(b.finish(), {"x": np.zeros((3, 2))})
    assert results["line"].tolist() == [[5, 4, 3]] * 2
    assert results["full"].tolist() == [2.5] * 3 and results["size"] == 7


def test_the_reference_keeps_formats_on_request():
    b = GraphBuilder("formats")
    x = b.input("x", float32, (2,))
    b.output(b.op("cast", [b.op("cast", [x], dtype=bfloat16)], dtype=float32), "y")
    graph, inputs = b.finish(), {"x": np.array([1.001, 2.0], np.float32)}
    assert run(graph, inputs, dtype=None)["y"].tolist() == [1.0, 2.0]
    assert run(graph, inputs)["y"][0] == np.float64(np.float32(1.001))


def test_mutated_inputs_are_returned():
    b = GraphBuilder("cache")
    cache, new = b.input("cache", float32, (4, 2)), b.input("new", float32, (1, 2))
    updated = b.op("scatter_update", [cache, b.constant(np.array([2]), "slot"), new], axis=0)
    b.mutate(cache, updated)
    b.output(b.op("reduce_sum", [updated], axes=(0, 1)), "sum")
    results = run(b.finish(), {"cache": np.zeros((4, 2)), "new": np.ones((1, 2))})
    assert results["sum"] == 2 and results["cache"][2].tolist() == [1, 1]


N = symbol("n", 1, 8)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "message"),
    [
        ("add", [(2, 3), (4,)], {}, "do not broadcast"),
        ("add", [(2, N), (2, 3)], {}, "do not broadcast"),
        ("matmul", [(2, 3), (4, 5)], {}, "inner sizes differ"),
        ("matmul", [(3,), (3, 4)], {}, "rank 2"),
        ("reshape", [(2, 3)], {"shape": (7,)}, "has not the elements"),
        ("reshape", [(2, 3)], {"shape": (-1, -1)}, "cannot resolve"),
        ("permute", [(2, 3)], {"order": (0, 0)}, "does not fit"),
        ("softmax", [(2, 3)], {"axis": 2}, "out of range"),
        ("softmax", [(2, 3)], {}, "missing attributes"),
        ("relu", [(2,)], {"speed": 1}, "unknown attributes"),
        ("relu", [(2,), (2,)], {}, "takes 1 inputs"),
        ("concat", [(2, 3), (3, 3)], {"axis": 1}, "differ outside axis"),
        ("where", [(2,), (2,), (2,)], {}, "not boolean"),
        ("gather", [(2,), (2,)], {"axis": 0}, "not integers"),
        ("slice", [(4,)], {"axis": 0, "stop": 2, "step": 0}, "step is 0"),
        ("layer_norm", [(4, 3), (4,)], {"axis": 1, "epsilon": 1e-5}, "does not cover"),
        ("attention", [(1, 3, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)], {"scale": 1.0}, "do not divide"),
        ("conv", [(1, 3, 8, 8), (4, 2, 3, 3)],
         {"strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}, "channels"),
    ],
)  # fmt: skip
def test_the_builder_names_the_op_and_the_source(op, shapes, attributes, message):
    b = GraphBuilder("bad")
    b.symbol("n", 1, 8)
    values = [b.input(f"x{index}", float32, shape) for index, shape in enumerate(shapes)]
    with pytest.raises(ShapeError, match=message) as caught:
        b.op(op, values, source="layer.3", **attributes)
    assert op in str(caught.value) and "layer.3" in str(caught.value)


def test_element_types_must_agree():
    b = GraphBuilder("types")
    x, y = b.input("x", float32, (2,)), b.input("y", int64, (2,))
    with pytest.raises(ShapeError, match="insert a cast"):
        b.op("add", [x, y])
    with pytest.raises(ShapeError, match="floating-point"):
        b.op("exp", [y])


def test_the_reference_refuses_wrong_inputs():
    b = GraphBuilder("inputs")
    n = b.symbol("n", 1, 8)
    x, y = b.input("x", float32, (n, 2)), b.input("y", float32, (n, 2))
    b.output(b.op("add", [x, y]), "z")
    graph = b.finish()
    one, two, nine, flat = np.zeros((1, 2)), np.zeros((2, 2)), np.zeros((9, 2)), np.zeros(2)
    for inputs in ({"x": one}, {"x": one, "y": two}, {"x": nine, "y": nine}, {"x": flat, "y": one}):
        with pytest.raises(ShapeError):
            run(graph, inputs)


def test_the_verifier_finds_broken_graphs():
    def graph():
        b = GraphBuilder("broken")
        x = b.input("x", float32, (2,))
        b.output(b.op("relu", [b.op("negate", [x])]), "y")
        return b.finish()

    def swap(g):
        g.nodes.reverse()

    def rename(g):
        g.nodes[0].output.name = "x"

    def retype(g):
        g.nodes[1].output.dtype = int64

    def unknown(g):
        g.nodes[1].op = "nosuchop"

    def stray_size(g):
        g.inputs[0].shape = (symbol("other", 1, 2),)

    def stray_output(g):
        g.outputs[0] = Value("stray", float32, (2,))

    def extra(g):
        g.nodes.append(Node("relu", [], [Value("z", float32, ())], {}))

    for damage in (swap, rename, retype, unknown, stray_size, stray_output, extra):
        broken = graph()
        damage(broken)
        with pytest.raises(InvalidIRError):
            verify(broken)


def test_required_attributes_are_marked():
    assert OPS["softmax"].attributes["axis"] is REQUIRED


def test_an_empty_tensor_of_a_dynamic_size_is_reshaped() -> None:
    """Sizes of 0 divide nothing: there is no view to find."""
    b = GraphBuilder("empty")
    x = b.input("x", float32, (b.symbol("n", 1, 9), 0))
    b.output(b.op("permute", [b.op("reshape", [x], shape=(0, 5))], order=(1, 0)), "y")
    graph = b.finish()
    assert optimize(graph).outputs[0].shape == (5, 0)
