"""Mixtures of experts as ONNX Runtime has them, with weights of floats or of a few bits."""

from __future__ import annotations

import math

from tilewright.dtypes import float32
from tilewright.graph.core import Value
from tilewright.importers import sorting
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.onnx_ops.microsoft_packed import unpacked
from tilewright.importers.onnx_ops.microsoft_states import whole
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable

TABLE = RuleTable("ONNX Runtime: experts", "com.microsoft::")
rule = TABLE.rule

_EXPERTS_REMARK = "each token goes through all {} experts, of which {} count, with weights in float32"


@rule("MoE")
def mixture_of_experts(call: OnnxCall) -> Value:
    """Inputs: tokens, the router's scores [T, E], and weight and bias of each layer: FC1, FC2 and, perhaps, FC3."""
    layers = [(call.optional(index), call.optional(index + 1)) for index in (2, 4, 6)]
    return _mixed(call, layers, None)


@rule("QMoE")
def mixture_of_packed_experts(call: OnnxCall) -> Value:
    """As MoE; weights are bytes with a scale, and perhaps a zero point, for each row or each block of it."""
    if call.attribute("quant_type", "int") != "int" or any(call.has(index) for index in range(15, 21)):
        raise Unsupported("experts of floats of a few bits", "quantize them to integers")
    if call.attribute("weights_prepacked", -1) == 1:
        raise Unsupported("weights in an order of one kind of processor", "write them with weights_prepacked = 0")
    call.attribute("accuracy_level")  # how precise the products are at least
    bits, block = call.attribute("expert_weight_bits", 4), call.attribute("block_size", 0)
    layers = []
    for number, index in enumerate((2, 5, 8)):
        own = call.attribute(f"fc{number + 1}_expert_weight_bits", bits)
        weight = _restored(call, index, 11 + number, own, block) if call.has(index) else None
        layers.append((weight, call.optional(index + 2)))
    return _mixed(call, layers, call.optional(14))


@rule("MoEGroupRouter")
def router_of_groups(call: OnnxCall) -> tuple[Value | None, ...]:
    """The logarithm of the sigmoid of each chosen expert's score [T, E], and a low number for the others.

    Chosen are the experts with the largest sigmoids, each with its bias, of the groups with the largest sums of these;
    or no experts are chosen, and the sigmoids with and without the bias are results.
    """
    scores, bias = call.cast(call[0], float32), call[1]
    if call.has(2):
        scores = call.op("matmul", scores, call.cast(call[2], float32), transpose_b=True)
    sigmoids = call.op("sigmoid", call.reshape(scores, (-1, scores.shape[-1])))
    ranked = call.op("add", sigmoids, bias)
    chosen = _of_best_groups(call, ranked)
    low = call.builder.number(float(call.attribute("router_sentinel", -10000.0)), float32)
    logarithms = call.op("log", call.op("maximum", sigmoids, 1e-20))
    found = call.cast(call.op("where", chosen, logarithms, low), call[0].dtype)
    return found, ranked, sigmoids


def _of_best_groups(call: OnnxCall, ranked: Value) -> Value:
    """Whether each expert is one of the best of the best groups; of equal ones the first are."""
    groups, wanted, summed = (call.positive(name, default) for name, default in
                              (("n_group", 1), ("topk_group", 1), ("group_topk", 2)))  # fmt: skip
    count, experts = call.positive("top_k"), whole(ranked.shape[1], "experts")
    if experts % groups or wanted > groups or count > experts // groups * wanted:
        raise Invalid(f"the best {count} of {experts} experts, in {wanted} of {groups} groups")
    if wanted < groups:
        parts = call.reshape(ranked, (-1, groups, experts // groups))
        best, _ = sorting.top(call, parts, min(summed, experts // groups), 2, True)
        seen = _among_best(call, call.op("reduce_sum", best, axes=(2,)), wanted)
        low = call.builder.number(-math.inf, float32)
        ranked = call.reshape(call.op("where", call.unsqueeze(seen, 2), parts, low), ranked.shape)
    return _among_best(call, ranked, count)


def _among_best(call: OnnxCall, x: Value, count: int) -> Value:
    """Whether each element of a row is one of its largest."""
    _, places = sorting.top(call, x, count, 1, True)
    hits = call.op("equal", call.unsqueeze(places, 2), call.reshape(call.iota(x.shape[1]), (1, 1, -1)))
    return call.op("reduce_max", hits, axes=(1,))


def _restored(call: OnnxCall, index: int, zero_index: int, bits: int, block: int) -> Value:
    """The weights [E, N, K] of input `index`, in float32; their scales are the next input."""
    if bits not in (2, 4, 8):
        raise Unsupported(f"experts of {bits} bits", "use 2, 4 or 8 bits")
    codes, scale = call.cast(unpacked(call, call[index], bits), float32), call.cast(call[index + 1], float32)
    experts, rows, depth = codes.shape
    blocks = scale.shape[2] if scale.rank == 3 else 1
    if (
        not isinstance(depth, int)
        or not isinstance(blocks, int)
        or depth % blocks
        or (block and depth != block * blocks)
    ):
        raise Invalid(f"the scales {scale!r} do not belong to weights of {depth} columns in blocks of {block}")
    zero: Value | float = float(1 << (bits - 1))
    if call.has(zero_index):
        points = unpacked(call, call[zero_index], bits)
        if points.rank == 2:  # one for each row
            points = call.unsqueeze(call.slice(points, 1, 0, rows), 2)
        zero = call.reshape(call.cast(call.slice(points, 2, 0, blocks), float32), (experts, rows, blocks, 1))
    centred = call.op("subtract", call.reshape(codes, (experts, rows, blocks, -1)), zero)
    scaled = call.op("multiply", centred, call.reshape(scale, (experts, rows, blocks, 1)))
    return call.reshape(scaled, (experts, rows, depth))


def _mixed(call: OnnxCall, layers: list[tuple[Value | None, Value | None]], mixing: Value | None) -> Value:
    """The experts' results for each token, by the weights of the best of them."""
    x, count = call[0], call.positive("k", 1)
    first, second, third = layers
    if first[0] is None or second[0] is None:
        raise Invalid("the weights of FC1 and FC2 must be there")
    if call.attribute("use_sparse_mixer", 0):
        raise Unsupported("the sparse mixer", "route by the largest scores")
    experts = first[0].shape[0]
    tokens = call.cast(call.reshape(x, (1, -1, x.shape[-1])), float32)
    call.builder.graph.remarks.append(_EXPERTS_REMARK.format(experts, count))
    hidden = _activated(call, _linear(call, tokens, first), _linear(call, tokens, third) if third[0] else None)
    results = _linear(call, hidden, second)  # [E, T, H]
    router = must_be(call, call[1], (call[1].shape[0], experts))
    shares = call.unsqueeze(call.transpose(_shares(call, router, count, mixing), 0, 1), 2)
    total = call.op("reduce_sum", call.op("multiply", results, shares), axes=(0,))
    return call.reshape(call.cast(total, x.dtype), x.shape)


def _linear(call: OnnxCall, x: Value, layer: tuple[Value | None, Value | None]) -> Value:
    """[1 or E, T, K] by weights [E, N, K], and a bias [E, N]."""
    weight, bias = layer
    assert weight is not None
    product = call.op("matmul", x, call.cast(weight, float32), transpose_b=True)
    return product if bias is None else call.op("add", product, call.unsqueeze(call.cast(bias, float32), 1))


def _shares(call: OnnxCall, router: Value, count: int, mixing: Value | None) -> Value:
    """What each expert counts for each token [T, E]: nothing but for the best, the last of equal ones."""
    scores = call.cast(router, float32)
    if not isinstance(scores.shape[1], int) or count > scores.shape[1]:
        raise Invalid(f"the router's scores {scores!r} are not of {count} experts or more")
    chosen = call.flip(_among_best(call, call.flip(scores, 1), count), 1)
    nothing = call.builder.number(0.0, float32)
    normalized = bool(call.attribute("normalize_routing_weights", 0))
    if mixing is not None:
        shares = call.op("where", chosen, call.cast(mixing, float32), nothing)
        total = call.op("reduce_sum", shares, axes=(1,), keepdims=True)
        return call.op("divide", shares, total) if normalized else shares
    if normalized:
        low = call.builder.number(-math.inf, float32)
        return call.op("softmax", call.op("where", chosen, scores, low), axis=1)
    return call.op("where", chosen, call.op("softmax", scores, axis=1), nothing)


def _activated(call: OnnxCall, x: Value, other: Value | None) -> Value:
    """The hidden layer; a gated one has two halves, or comes with FC3's result."""
    kind = call.attribute("activation_type", "relu")
    alpha, beta = (
        float(call.attribute(f"activation_{name}", default)) for name, default in (("alpha", 1.0), ("beta", 0.0))
    )
    fusion, limit = call.attribute("swiglu_fusion", 0), call.attribute("swiglu_limit")
    if call.attribute("swiglu_limit_after_activation", 0):
        raise Unsupported("a limit after the activation", "limit what the activation gets")
    if kind != "swiglu":
        if kind not in ("relu", "gelu", "silu", "identity"):
            raise Unsupported(f"the activation {kind!r}", "use relu, gelu, silu, swiglu or identity")
        found = x if kind == "identity" else call.op(kind, x)
        return found if other is None else call.op("multiply", found, other)
    if fusion == 0:
        if other is None:
            raise Invalid("swiglu without fusion needs FC3")
        gate, line = x, other
    else:
        width = x.shape[2]
        assert isinstance(width, int)
        shape = (*x.shape[:2], width // 2, 2) if fusion == 1 else (*x.shape[:2], 2, width // 2)
        pairs = call.reshape(x, shape)
        gate, line = (call.select(pairs, 3 if fusion == 1 else 2, place) for place in (0, 1))
    if limit is not None:
        gate = call.op("minimum", gate, float(limit))
        line = call.op("clip", line, low=-float(limit), high=float(limit))
    turned = call.op("multiply", gate, call.op("sigmoid", call.op("multiply", gate, alpha)))
    return call.op("multiply", turned, call.op("add", line, beta))
