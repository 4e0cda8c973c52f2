"""Small graphs, one for each fusion, with the groups that they must become; run on every target.

A case is a graph, the shapes of its float inputs (drawn at random), its other inputs, and the expected groups as
(kind, ops of the graph that compute).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.dtypes import DType, float32, int32, int64, uint8
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.fourier import roots_of_unity
from tilewright.graph.fusion import FusedGraph
from tilewright.graph.kernel_facts import common_facts
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.graph.target_passes import TargetPasses
from tilewright.targets.library_facts import CPU_KERNELS, GPU_KERNELS

# Every target has these kernels; groups of several reductions are tested elsewhere.
KERNELS = replace(common_facts([GPU_KERNELS, CPU_KERNELS]), row_programs=False)
QUIET = {"reshape", "permute", "slice", "broadcast_to", "iota", "concat", "pad"}
Groups = list[tuple[str, list[str]]]


@dataclass
class Case:
    """See the module. `draws` are inputs that are not drawn from the normal distribution."""

    graph: Graph
    groups: Groups
    draws: dict[str, np.ndarray] = field(default_factory=dict)

    def inputs(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Arrays for the graph's inputs, whose shapes are all fixed."""
        found: dict[str, np.ndarray] = {}
        for value in self.graph.inputs:
            shape = [int(str(extent)) for extent in value.shape]
            array = self.draws.get(value.name)
            found[value.name] = rng.standard_normal(shape).astype(value.dtype.numpy) if array is None else array.copy()
        return found

    def fused(self) -> FusedGraph:
        return fuse(optimize(self.graph, TargetPasses(kernels=KERNELS)), KERNELS)


def groups_of(fused: FusedGraph) -> Groups:
    """Each group's kind and its ops, movement left out."""
    return [
        (group.kind, [node.op for node in group.nodes if node.op not in QUIET])
        for group in fused.groups
        if group.kind != "view"
    ]


class Builder(GraphBuilder):
    """With the layers that models are made of, in one element type."""

    def __init__(self, name: str, rng: np.random.Generator, dtype: DType) -> None:
        super().__init__(name)
        self.rng, self.dtype = rng, dtype

    def x(self, *shape: int, name: str = "x") -> Value:
        return self.input(name, self.dtype, shape)

    def weights(self, *shape: int, scale: float = 1.0) -> Value:
        return self.constant((self.rng.standard_normal(shape) * scale).astype(self.dtype.numpy), "w")

    def number(self, value: float) -> Value:
        return self.constant(np.array(value, self.dtype.numpy), "number")

    def linear(self, x: Value, width: int, bias: bool = False) -> Value:
        depth = int(str(x.shape[-1]))
        y = self.op("matmul", [x, self.weights(width, depth, scale=depth**-0.5)], transpose_b=True)
        return self.op("add", [y, self.weights(width)]) if bias else y

    def heads(self, x: Value, heads: int) -> Value:
        batch, sequence, width = (int(str(extent)) for extent in x.shape)
        split = self.op("reshape", [x], shape=(batch, sequence, heads, width // heads))
        return self.op("permute", [split], order=(0, 2, 1, 3))

    def rotary(self, x: Value, cos: Value, sin: Value) -> Value:
        half = int(str(x.shape[-1])) // 2
        low, high = (self.op("slice", [x], axis=-1, start=s, stop=s + half) for s in (0, half))
        turned = self.op("concat", [self.op("negate", [high]), low], axis=-1)
        return self.op("add", [self.op("multiply", [x, cos]), self.op("multiply", [turned, sin])])


def projections(b: Builder) -> Groups:
    """Queries of four heads, keys and values of two, some with biases."""
    x = b.x(2, 7, 32)
    q, k, v = b.heads(b.linear(x, 64, True), 4), b.heads(b.linear(x, 32), 2), b.heads(b.linear(x, 32, True), 2)
    context = b.op("permute", [b.op("attention", [q, k, v], scale=0.25, causal=True)], order=(0, 2, 1, 3))
    b.output(b.op("add", [b.linear(b.op("reshape", [context], shape=(2, 7, 64)), 32, True), x]), "y")
    return [("contraction", ["matmul", "add"]), ("attention", ["attention"]), ("contraction", ["matmul", "add", "add"])]


def gate(b: Builder) -> Groups:
    x = b.x(6, 32)
    y = b.op("multiply", [b.op("silu", [b.linear(x, 48)]), b.linear(x, 48)])
    b.output(b.op("add", [b.linear(y, 32), x]), "y")
    return [("contraction", ["matmul", "silu", "multiply"]), ("contraction", ["matmul", "add"])]


def gate_of_halves(b: Builder) -> Groups:
    """One product whose columns a model halves itself, with a bias."""
    p = b.linear(b.x(6, 32), 96, True)
    left, right = (b.op("slice", [p], axis=1, start=s, stop=s + 48) for s in (0, 48))
    b.output(b.op("multiply", [left, b.op("gelu", [right])]), "y")
    return [("contraction", ["matmul", "add", "gelu", "multiply"])]


def rotary_positions(b: Builder) -> Groups:
    x, cos, sin = b.x(2, 7, 32), b.x(7, 16, name="cos"), b.x(7, 16, name="sin")
    q, k = (b.rotary(b.heads(b.linear(x, 16 * heads), heads), cos, sin) for heads in (4, 2))
    b.output(b.op("attention", [q, k, b.heads(b.linear(x, 32), 2)], scale=0.25, causal=True), "y")
    turn = ["negate", "multiply", "multiply", "add"]
    return [("contraction", ["matmul"]), ("elementwise", turn * 2), ("attention", ["attention"])]


def decode_step(b: Builder) -> Groups:
    """One token against caches that are updated in place."""
    x, cos, sin = b.x(2, 1, 32), b.x(1, 16, name="cos"), b.x(1, 16, name="sin")
    place = b.input("place", int64, (1,))
    caches = [b.x(2, 2, 12, 16, name=name) for name in ("keys", "values")]
    q, k = (b.rotary(b.heads(b.linear(x, 16 * heads), heads), cos, sin) for heads in (4, 2))
    new = (k, b.heads(b.linear(x, 32), 2))
    stored = [b.op("scatter_update", [cache, place, part], axis=2) for cache, part in zip(caches, new, strict=True)]
    for cache, value in zip(caches, stored, strict=True):
        b.mutate(cache, value)
    b.output(b.op("attention", [q, *stored], scale=0.25), "y")
    turn = ["negate", "multiply", "multiply", "add"]
    return [
        ("contraction", ["matmul"]),
        ("elementwise", turn * 2 + ["scatter_update"] * 2),
        ("attention", ["attention"]),
    ]


def partial_rotary(b: Builder) -> Groups:
    """Only the first half of a head is turned; the rest goes beside it."""
    x, cos, sin = b.x(2, 7, 32), b.x(7, 8, name="cos"), b.x(7, 8, name="sin")
    qkv = b.heads(b.linear(x, 96), 2)
    q, k, v = (b.op("slice", [qkv], axis=3, start=s, stop=s + 16) for s in (0, 16, 32))
    parts = []
    for part in (q, k):
        low, high = (b.op("slice", [part], axis=3, start=s, stop=s + 8) for s in (0, 8))
        parts.append(b.op("concat", [b.rotary(low, cos, sin), high], axis=3))
    b.output(b.op("attention", [*parts, v], scale=0.25, causal=True), "y")
    turn = ["negate", "multiply", "multiply", "add"]
    return [("contraction", ["matmul"]), ("elementwise", turn * 2), ("attention", ["attention"])]


def residual_norm(b: Builder) -> Groups:
    """The sum is stored by the norm that reads it."""
    x, r, scale = b.x(6, 40), b.x(6, 40, name="r"), b.weights(40)
    total = b.op("add", [b.op("relu", [x]), r])
    b.output(b.op("rms_norm", [total, scale], axis=-1, epsilon=1e-5), "normal")
    b.output(total, "total")
    return [("reduction", ["relu", "add", "rms_norm"])]


def residual_stream(b: Builder) -> Groups:
    """Twelve layers of two small branches; in 16 bits the norms add, and each second sum is computed by two of them."""
    h, layers = b.x(48, 64), 12
    for _ in range(2 * layers):
        wide = b.op("relu", [b.linear(b.op("rms_norm", [h, b.weights(64)], axis=-1, epsilon=1e-5), 64)])
        h = b.op("add", [h, b.op("matmul", [wide, b.weights(64, 64, scale=0.01)])])
    b.output(b.op("rms_norm", [h, b.weights(64)], axis=-1, epsilon=1e-5), "y")
    wide, branch, norm = ("contraction", ["matmul", "relu"]), ("contraction", ["matmul"]), ("reduction", ["rms_norm"])
    if b.dtype == float32:
        return [norm, *[wide, ("contraction", ["matmul", "add"]), norm] * 2 * layers]
    once, twice = (("reduction", ["add"] * count + ["rms_norm"]) for count in (1, 2))
    return [norm, *[wide, branch, once, wide, branch, twice] * layers]


def embedding_norm(b: Builder) -> Groups:
    """Looked up and normalised by one kernel, which keeps the sum for the residual."""
    ids = b.input("ids", int64, (2, 5))
    words = b.op("gather", [b.weights(11, 24), ids], axis=0)
    h = b.op("add", [words, b.weights(5, 24)])
    normal = b.op("layer_norm", [h, b.weights(24), b.weights(24)], axis=-1, epsilon=1e-5)
    b.output(b.op("add", [b.linear(normal, 24), h]), "y")
    return [("reduction", ["gather", "add", "layer_norm"]), ("contraction", ["matmul", "add"])]


def decomposed_attention(b: Builder) -> Groups:
    """Scaled queries, a causal mask from positions, padded keys, a guard against rows without a key."""
    q, k, v = (b.x(2, 2, 9, 16, name=name) for name in "qkv")
    padding = b.x(2, 1, 1, 9, name="padding")
    rows, columns = (
        b.op("reshape", [b.op("iota", shape=(9,), dtype=int64)], shape=shape) for shape in ((9, 1), (1, 9))
    )
    scores = b.op("matmul", [b.op("multiply", [q, b.number(0.25)]), k], transpose_b=True)
    scores = b.op("where", [b.op("less_equal", [columns, rows]), scores, b.number(-np.inf)])
    weights = b.op("softmax", [b.op("add", [scores, padding])], axis=-1)
    weights = b.op("where", [b.op("isnan", [weights]), b.number(0.0), weights])
    context = b.op("permute", [b.op("matmul", [weights, v])], order=(0, 2, 1, 3))
    b.output(b.op("reshape", [context], shape=(2, 9, 32)), "y")
    return [("attention", ["attention"])]


def single_softmax(b: Builder) -> Groups:
    """Attention in 16 bits whose mask and softmax are in float32, as language models write it."""
    q, k, v = (b.x(2, 2, 9, 16, name=name) for name in "qkv")
    rows, columns = (
        b.op("reshape", [b.op("iota", shape=(9,), dtype=int64)], shape=shape) for shape in ((9, 1), (1, 9))
    )
    zero, low = (b.constant(np.array(number, np.float32)) for number in (0.0, -3e38))
    scores = b.op("cast", [b.op("multiply", [b.op("matmul", [q, k], transpose_b=True), b.number(0.25)])], dtype=float32)
    scores = b.op("add", [scores, b.op("where", [b.op("less_equal", [columns, rows]), zero, low])])
    weights = b.op("cast", [b.op("softmax", [scores], axis=-1)], dtype=b.dtype)
    context = b.op("permute", [b.op("matmul", [weights, v])], order=(0, 2, 1, 3))
    b.output(b.op("reshape", [context], shape=(2, 9, 32)), "y")
    return [("attention", ["attention"])]


def sequence_first_attention(b: Builder) -> Groups:
    """torch.nn.MultiheadAttention with the batch first: packed heads are columns, rows are permuted."""
    x = b.x(3, 5, 16)
    rows = b.op("permute", [x], order=(1, 0, 2))
    packed, heads = b.linear(rows, 48, bias=True), []
    for part in range(3):
        piece = b.op("slice", [packed], axis=2, start=16 * part, stop=16 * part + 16)
        piece = b.op("permute", [b.op("reshape", [piece], shape=(5, 6, 8))], order=(1, 0, 2))
        heads.append(b.op("reshape", [piece], shape=(3, 2, 5, 8)))
    context = b.op("permute", [b.op("attention", heads, scale=0.35)], order=(2, 0, 1, 3))
    out = b.op("reshape", [b.linear(b.op("reshape", [context], shape=(15, 16)), 16)], shape=(5, 3, 16))
    b.output(b.op("add", [b.op("permute", [out], order=(1, 0, 2)), x]), "y")
    return [("contraction", ["matmul", "add"]), ("attention", ["attention"]), ("contraction", ["matmul", "add"])]


def window_attention(b: Builder) -> Groups:
    """Swin: a window shifted over padded images, heads with a bias of their own, the window put back."""
    x = b.x(2, 6, 6, 16)
    padded = b.op("pad", [x], pads=((0, 0), (0, 3), (0, 3), (0, 0)))
    rolled = padded
    for axis in (1, 2):
        parts = [b.op("slice", [rolled], axis=axis, start=s, stop=e) for s, e in ((2, 9), (0, 2))]
        rolled = b.op("concat", parts, axis=axis)
    split = b.op("reshape", [rolled], shape=(2, 3, 3, 3, 3, 16))
    rows = b.op("reshape", [b.op("permute", [split], order=(0, 1, 3, 2, 4, 5))], shape=(18, 9, 16))
    heads = b.op("reshape", [b.linear(rows, 48)], shape=(18, 9, 3, 2, 8))
    heads = b.op("permute", [heads], order=(2, 0, 3, 1, 4))
    pieces = [b.op("slice", [heads], axis=0, start=index, stop=index + 1) for index in range(3)]
    q, k, v = (b.op("reshape", [piece], shape=(18, 2, 9, 8)) for piece in pieces)
    scores = b.op("matmul", [b.op("multiply", [q, b.number(0.35)]), k], transpose_b=True)
    scores = b.op("add", [scores, b.weights(1, 2, 9, 9)])
    windows = b.op("reshape", [scores], shape=(2, 9, 2, 9, 9))
    hidden = b.constant(np.where(b.rng.random((1, 9, 1, 9, 9)) < 0.3, -100, 0).astype(b.dtype.numpy), "hidden")
    scores = b.op("reshape", [b.op("add", [windows, hidden])], shape=(18, 2, 9, 9))
    context = b.op("permute", [b.op("matmul", [b.op("softmax", [scores], axis=-1), v])], order=(0, 2, 1, 3))
    b.output(b.linear(b.op("reshape", [context], shape=(18, 9, 16)), 16), "y")
    return [
        ("movement", []),
        ("contraction", ["matmul"]),
        ("attention", ["attention"]),
        ("contraction", ["matmul"]),
    ]


def excitation(b: Builder) -> Groups:
    """Squeeze and excitation of an image of 17 x 16 pixels."""
    x = b.x(3, 17, 16, 24)
    window = {"strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1, "layout": "NHWC"}
    y = b.op("exp", [x])
    mean = b.op("reduce_mean", [y], axes=(1, 2), keepdims=True)
    hidden = b.op("silu", [b.op("conv", [mean, b.weights(6, 24, 1, 1, scale=0.2), b.weights(6)], **window)])
    gate = b.op("sigmoid", [b.op("conv", [hidden, b.weights(24, 6, 1, 1, scale=0.4), b.weights(24)], **window)])
    b.output(b.op("multiply", [y, gate]), "y")
    return [
        ("elementwise", ["exp"]),
        ("excitation", ["reduce_mean", "conv", "silu", "conv", "sigmoid"]),
        ("elementwise", ["multiply"]),
    ]


def several_loops(b: Builder) -> Groups:
    """What reads one tensor in several ways, parts of a concat and a transposed result."""
    y = b.op("softmax", [b.x(4, 6, 40)], axis=-1)
    first = b.op("exp", [b.op("slice", [y], axis=1, start=0, stop=2)])
    second = b.op("tanh", [b.op("slice", [y], axis=1, start=2, stop=5)])
    b.output(b.op("concat", [first, second], axis=1), "joined")
    b.output(b.op("permute", [b.op("sigmoid", [y])], order=(0, 2, 1)), "turned")
    return [("reduction", ["softmax"]), ("elementwise", ["exp", "tanh", "sigmoid"])]


def cross_entropy(b: Builder) -> Groups:
    """As PyTorch decomposes it: in float32, with targets that count for nothing."""
    x, target = b.x(6, 300), b.input("target", int64, (6,))
    counted = b.op("not_equal", [target, b.constant(np.array(-100), "ignored")])
    index = b.op("where", [counted, target, b.constant(np.array(0), "zero")])
    logarithm = b.op("log_softmax", [b.op("cast", [x], dtype=float32)], axis=1)
    chosen = b.op("gather_elements", [logarithm, b.op("reshape", [index], shape=(6, 1))], axis=1)
    loss = b.op("negate", [b.op("reshape", [chosen], shape=(6,))])
    loss = b.op("where", [counted, loss, b.constant(np.array(0, np.float32), "nothing")])
    b.output(b.op("reduce_sum", [loss], axes=(0,)), "y")
    return [
        ("elementwise", ["not_equal", "where"]),
        ("reduction", ["reduce_log_sum_exp", "gather_elements", "subtract"]),
        ("reduction", ["negate", "where", "reduce_sum"]),
    ]


def experts(b: Builder) -> Groups:
    """Rows in the order of their experts, a gated product of each group with its expert, and back."""
    x, expert = b.x(40, 32), b.input("expert", int64, (40,))
    order = b.input("order", int64, (40,))  # sorts the rows by expert
    line = b.op("iota", shape=(5, 1), axis=0, dtype=int64)
    count = b.op("reduce_sum", [b.op("cast", [b.op("equal", [expert, line])], dtype=int64)], axes=(1,))
    ends = b.op("cumsum", [count], axis=0)
    h = b.op("grouped_matmul", [b.op("gather", [x, order], axis=0), b.weights(5, 32, 48, scale=0.2), ends])
    left, right = (b.op("slice", [h], axis=1, start=s, stop=s + 24) for s in (0, 24))
    h = b.op("multiply", [b.op("silu", [left]), right])
    h = b.op("grouped_matmul", [h, b.weights(5, 32, 24, scale=0.2), ends], transpose_b=True)
    h = b.op("relu", [h])
    back = b.op(
        "scatter_update", [b.input("zeros", int64, (40,)), order, b.op("iota", shape=(40,), dtype=int64)], axis=0
    )
    b.output(b.op("gather", [h, back], axis=0), "y")
    return [
        ("reduction", ["equal", "cast", "reduce_sum"]),
        ("reduction", ["cumsum"]),
        ("movement", ["gather"]),
        ("contraction", ["grouped_matmul"]),
        ("elementwise", ["silu", "multiply"]),
        ("contraction", ["grouped_matmul", "relu"]),
        ("movement", ["scatter_update"]),
        ("movement", ["gather"]),
    ]


def chain(b: Builder) -> Groups:
    """A deep chain before and behind a reduction."""
    x, r = b.x(5, 33), b.x(5, 33, name="r")
    y = x
    ops = ("tanh", "exp", "sigmoid", "relu", "absolute", "sin")
    for op in ops:
        y = b.op("add", [b.op(op, [y]), r])
    total = b.op("reduce_sum", [y], axes=(1,), keepdims=True)
    b.output(b.op("multiply", [b.op("rsqrt", [b.op("absolute", [total])]), total]), "y")
    before = [name for op in ops for name in (op, "add")]
    return [("reduction", [*before, "reduce_sum", "absolute", "rsqrt", "multiply"])]


def residual_convolution(b: Builder) -> Groups:
    """A convolution with batch norm, a residual and an activation, in whatever order the images lie."""
    x = b.x(2, 8, 6, 5)
    windows = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}
    norm = [b.weights(8) for _ in range(3)] + [b.constant(np.full(8, 0.7, b.dtype.numpy), "variance")]
    y = b.op("batch_norm", [b.op("conv", [x, b.weights(8, 8, 3, 3, scale=0.1)], **windows), *norm], epsilon=1e-5)
    y = b.op("relu", [b.op("add", [y, x])])
    b.output(b.op("reduce_mean", [y], axes=(2, 3)), "y")
    return [("movement", []), ("contraction", ["conv", "add", "relu"]), ("reduction", ["reduce_mean"])]


def written_out(b: Builder) -> Groups:
    """Activations as their formulas: GELU of both forms, SiLU of both, and a softmax; one branch that nobody reads."""
    x = b.x(6, 48)
    half, one, two = (b.number(value) for value in (0.5, 1.0, 2.0**0.5))
    y = b.op("multiply", [b.op("multiply", [x, half]), b.op("add", [b.op("erf", [b.op("divide", [x, two])]), one])])
    cube = b.op("multiply", [b.op("multiply", [y, y]), y])
    inner = b.op("multiply", [b.op("add", [y, b.op("multiply", [cube, b.number(0.044715)])]), b.number(0.7978845608)])
    y = b.op("multiply", [b.op("multiply", [y, half]), b.op("add", [b.op("tanh", [inner]), one])])
    b.op("cos", [y])
    y = b.op("multiply", [y, b.op("sigmoid", [y])])
    y = b.op("divide", [y, b.op("add", [b.op("exp", [b.op("negate", [y])]), one])])
    powers = b.op("exp", [b.op("subtract", [y, b.op("reduce_max", [y], axes=(1,), keepdims=True)])])
    b.output(b.op("divide", [powers, b.op("reduce_sum", [powers], axes=(1,), keepdims=True)]), "y")
    return [("reduction", ["gelu", "gelu", "silu", "silu", "softmax"])]


def norms_written_out(b: Builder) -> Groups:
    """A layer norm and an RMS norm from means, products and roots."""
    x, epsilon = b.x(6, 40), b.number(1e-2)
    centred = b.op("subtract", [x, b.op("reduce_mean", [x], axes=(1,), keepdims=True)])
    spread = b.op("reduce_mean", [b.op("multiply", [centred, centred])], axes=(1,), keepdims=True)
    y = b.op("divide", [centred, b.op("sqrt", [b.op("add", [spread, epsilon])])])
    y = b.op("add", [b.op("multiply", [y, b.weights(40)]), b.weights(40)])
    y = b.linear(y, 40)
    square = b.op("reduce_mean", [b.op("multiply", [y, y])], axes=(1,), keepdims=True)
    y = b.op("multiply", [y, b.op("rsqrt", [b.op("add", [square, epsilon])])])
    b.output(b.op("multiply", [y, b.weights(40)]), "y")
    return [("reduction", ["layer_norm"]), ("contraction", ["matmul"]), ("reduction", ["rms_norm"])]


def position_bias(b: Builder) -> Groups:
    """Attention with a large bias that follows from positions alone: in a model that is 32 times as large it is
    computed once, when the engine is built."""
    q, k, v = (b.x(1, 1, 182, 16, name=name) for name in "qkv")
    rows, columns = (b.op("iota", shape=(1, 1, 182, 182), axis=axis, dtype=int32) for axis in (2, 3))
    distance = b.op("cast", [b.op("absolute", [b.op("subtract", [rows, columns])])], dtype=b.dtype)
    context = b.op("attention", [q, k, v, b.op("multiply", [distance, b.number(-0.0625)])], scale=0.25)
    b.output(b.linear(b.linear(b.op("reshape", [context], shape=(182, 16)), 2048), 1024), "y")
    return [("attention", ["attention"]), ("contraction", ["matmul"]), ("contraction", ["matmul"])]


def many_outputs(b: Builder) -> Groups:
    """A result twice, an input as a result, a constant, and one subexpression written twice."""
    x = b.x(5, 24)
    first, second = (b.op("exp", [b.op("multiply", [x, b.number(0.5)])]) for _ in range(2))
    y = b.op("reduce_sum", [b.op("add", [first, second])], axes=(1,))
    for name, value in (("y", y), ("again", y), ("same", x), ("fixed", b.weights(7))):
        b.output(value, name)
    return [("reduction", ["multiply", "exp", "add", "reduce_sum"]), *[("movement", ["copy"])] * 3]


def pooled(b: Builder) -> Groups:
    """Pools with what follows them: a residual and an activation, a difference, one that keeps the image's size."""
    x, r = b.x(2, 9, 8, 16), b.x(2, 5, 4, 16, name="r")
    window = {"kernel": (3, 3), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "layout": "NHWC"}
    mixed = b.op("subtract", [b.op("average_pool", [x], strides=(1, 1), **window), x])
    largest = b.op("max_pool", [mixed], strides=(2, 2), **window)
    b.output(b.op("relu", [b.op("add", [b.op("multiply", [largest, b.weights(16)]), r])]), "y")
    return [("pool", ["average_pool", "subtract"]), ("pool", ["max_pool", "multiply", "add", "relu"])]


def power_spectrum(b: Builder) -> Groups:
    """The squared lengths of the numbers of a transform, moved to where frames come last."""
    length = 240
    rows = b.op("cast", [b.x(3, 5, length)], dtype=float32)
    found = b.op("fourier", [rows, b.constant(roots_of_unity(length, float32))], form="half")
    count = length // 2 + 1
    parts = [
        b.op("permute", [b.op("slice", [found], axis=2, start=start, stop=start + count, step=1)], order=(0, 2, 1))
        for start in (0, count)
    ]
    b.output(b.op("add", [b.op("multiply", [part, part]) for part in parts]), "y")
    return [("transform", ["fourier", "multiply", "multiply", "add"]), ("movement", [])]


def codes_and_samples(b: Builder) -> Groups:
    """A product of 8-bit integers less their zero point, as a quantized model has it; a filter of one channel."""
    codes = b.op("cast", [b.input("codes", uint8, (5, 24))], dtype=int32)
    weight = b.constant(b.rng.integers(-127, 128, (24, 9)).astype(np.int32))
    found = b.op("matmul", [b.op("subtract", [codes, b.constant(np.array(131, np.int32))]), weight])
    b.output(b.op("multiply", [b.op("cast", [found], dtype=float32), b.constant(np.float32(1e-4))]), "y")
    options = {"strides": (1, 2), "padding": ((0, 0), (3, 4)), "dilation": (1, 1)}
    b.output(b.op("conv", [b.x(2, 1, 1, 200, name="samples"), b.weights(1, 1, 1, 28)], **options), "z")
    return [
        ("elementwise", ["cast", "subtract", "cast"]),
        ("contraction", ["matmul", "cast", "cast", "multiply"]),
        ("contraction", ["conv"]),
        ("movement", []),
    ]


CASES: dict[str, Callable[[Builder], Groups]] = {
    function.__name__: function
    for function in (
        projections, gate, gate_of_halves, rotary_positions, decode_step, partial_rotary, residual_norm,
        residual_stream, embedding_norm, decomposed_attention, single_softmax, sequence_first_attention,
        window_attention, excitation, several_loops, cross_entropy, experts, chain, residual_convolution,
        written_out, norms_written_out, position_bias, many_outputs, pooled, power_spectrum,
        codes_and_samples,
    )
}  # fmt: skip


def case(name: str, rng: np.random.Generator, dtype: DType = float32) -> Case:
    """A case with random weights."""
    builder = Builder(name, rng, dtype)
    groups = CASES[name](builder)
    draws = {"place": np.array([7]), "ids": rng.integers(0, 11, (2, 5))}
    draws["codes"] = rng.integers(0, 256, (5, 24), dtype=np.uint8)
    draws["expert"] = rng.integers(0, 6, 40)  # 5 is nobody's
    draws["order"], draws["zeros"] = np.argsort(draws["expert"], kind="stable"), np.zeros(40, np.int64)
    draws["target"] = np.array([5, -100, 299, 0, 17, -100])
    return Case(builder.finish(), groups, {key: array for key, array in draws.items()})
