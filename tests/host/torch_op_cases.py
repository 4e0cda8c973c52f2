"""Arguments for every ATen rule: what `test_import_torch_ops.py` compares with PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import _pytree as pytree  # noqa: E402

Case = tuple[tuple[Any, ...], dict[str, Any]]
CASES: dict[str, list[Callable[[], Case]]] = {}


def add(names: str, *args: Any, **kwargs: Any) -> None:
    """Cases for operations; callables among the arguments draw tensors."""
    for name in names.split():
        CASES.setdefault(f"aten.{name}" if "." in name else f"aten.{name}.default", []).append(
            lambda: (
                pytree.tree_map(lambda item: item() if callable(item) else item, args),
                pytree.tree_map(lambda item: item() if callable(item) else item, kwargs),
            )
        )


def floats(*shape: int) -> Callable[[], Any]:
    return lambda: torch.randn(*shape, dtype=torch.float64)


def positive(*shape: int) -> Callable[[], Any]:
    return lambda: torch.rand(*shape, dtype=torch.float64) + 0.25


def ints(high: int, *shape: int, low: int = 0) -> Callable[[], Any]:
    return lambda: torch.randint(low, high, shape)


def small(*shape: int) -> Callable[[], Any]:
    """Small whole numbers in float32, whose products are exact."""
    return lambda: torch.randint(-4, 5, shape).float()


def bools(*shape: int) -> Callable[[], Any]:
    return lambda: torch.rand(*shape) < 0.5


def strange() -> Any:
    return torch.tensor([1.0, math.inf, -math.inf, math.nan, 0.0, -2.5], dtype=torch.float64)


def lone() -> Any:
    return torch.randn((), dtype=torch.float64)


def places_to_scatter() -> Any:
    return torch.tensor([[0, 2, 1, 1], [2, 2, 0, 1]])


X = floats(3, 4)
Y = floats(4)

# Elementwise
add("exp sin cos tanh erf sigmoid floor ceil round abs neg sign sgn expm1 tan sinh cosh asinh trunc frac erfc exp2", X)
add("sigmoid exp log1p sqrt", ints(5, 3))
add("log sqrt rsqrt reciprocal log2 log10 log1p square _neg_view _neg_view_copy", positive(3, 4))
add("acosh", lambda: torch.rand(5, dtype=torch.float64) + 1.5)
add("atanh", lambda: torch.rand(5, dtype=torch.float64) * 1.8 - 0.9)
add("expm1 log1p", lambda: torch.tensor([1e-12, -1e-9, 1e-5, 0.0], dtype=torch.float64))
add("floor ceil round trunc", ints(5, 3))
add("eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor maximum minimum", ints(3, 3, 4), ints(3, 4))
add("eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar", ints(3, 3, 4), 1)
add("gt.Scalar", ints(3, 3, 4), 0.5)
add("logical_and logical_or logical_xor", bools(3, 4), ints(2, 4))
add("logical_not", ints(2, 4))
add("add.Tensor sub.Tensor rsub.Tensor", X, Y, alpha=2)
add("add.Tensor mul.Tensor", bools(3, 4), bools(4))
add("add.Tensor mul.Tensor div.Tensor", ints(5, 3, 4, low=1), Y)
add("add.Scalar sub.Scalar rsub.Scalar mul.Scalar div.Scalar", X, 3)
add("add.Scalar mul.Scalar", ints(5, 3), 2.5)
add("div.Tensor", ints(9, 3), ints(5, 3, low=1))
add("true_divide.Tensor", X, positive(4))
add("div.Tensor_mode", X, positive(4), rounding_mode="floor")
add("div.Tensor_mode", ints(9, 3, low=-9), ints(5, 3, low=1), rounding_mode="trunc")
add("div.Tensor_mode", X, positive(4), rounding_mode=None)
add("div.Scalar_mode", X, 0.75, rounding_mode="trunc")
add("floor_divide", ints(9, 3, low=-9), ints(5, 3, low=1))
add("remainder.Tensor fmod.Tensor", X, positive(4))
add("remainder.Scalar fmod.Scalar", X, 0.3)
for exponent in (0, 1, 2, 3, -1, 0.5, -0.5, 2.5):
    add("pow.Tensor_Scalar", positive(3, 4), exponent)
add("pow.Tensor_Tensor", positive(3, 4), Y)
add("pow.Scalar", 2.5, X)
add("addcmul addcdiv", X, Y, positive(3, 1), value=0.5)
add("lerp.Scalar", X, Y, 0.3)
add("lerp.Tensor", X, Y, positive(3, 1))
add("bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor", bools(3, 4), bools(4))
add("__and__.Tensor __or__.Tensor __xor__.Tensor", bools(3, 4), bools(4))
add("bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar", bools(3, 4), True)
add("__and__.Scalar __or__.Scalar __xor__.Scalar", bools(3, 4), True)
add("bitwise_not", bools(3, 4))
add("bitwise_not", ints(9, 3, low=-9))
add("bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor __and__.Tensor", ints(9, 3, 4, low=-9), ints(9, 4))
add("bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar __or__.Scalar __xor__.Scalar", ints(9, 3, low=-9), 5)
add("bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor bitwise_xor.Scalar_Tensor", 5, ints(9, 3, low=-9))
add(
    "bitwise_left_shift.Tensor bitwise_right_shift.Tensor __lshift__.Tensor __rshift__.Tensor",
    ints(9, 3, low=-9),
    ints(70, 3),
)
add(
    "bitwise_left_shift.Tensor_Scalar bitwise_right_shift.Tensor_Scalar __rshift__.Scalar __lshift__.Scalar",
    ints(9, 3, low=-9),
    2,
)
add("bitwise_left_shift.Scalar_Tensor bitwise_right_shift.Scalar_Tensor", 5, ints(9, 3))
add("scatter_add", X, 0, places_to_scatter, floats(3, 4))
for reduction in ("sum", "prod", "amax", "amin"):
    add("scatter_reduce.two", X, 0, places_to_scatter, floats(3, 4), reduction)
for reduction in ("add", "multiply"):
    add("scatter.reduce", X, 0, places_to_scatter, floats(3, 4), reduce=reduction)
add("index_add", X, 1, lambda: torch.tensor([3, 1, 3]), floats(3, 3), alpha=2.0)
add("index_put", X, lambda: [torch.tensor([2, 0, 2])], floats(3, 4), True)
add("index_put", X, lambda: [torch.tensor([2, 0, 2]), torch.tensor([1, -1, 1])], floats(3), True)
add("asin acos atan erfinv lgamma", lambda: torch.rand(5, dtype=torch.float64) * 1.9 - 0.95)
add("atan2", X, Y)
add("isnan isinf isfinite nan_to_num", strange)
add("isnan isinf isfinite nan_to_num", ints(3, 4))
add("where.self", bools(3, 1), X, Y)
add("where.ScalarOther", bools(3, 4), X, 1.5)
add("where.ScalarSelf", bools(3, 4), 1.5, X)
add("where.Scalar", bools(3, 4), 1.5, 2.5)
add("masked_fill.Scalar", X, bools(4), -math.inf)
add("masked_fill.Tensor", X, bools(4), lambda: torch.tensor(2.0, dtype=torch.float64))
add("clamp", X, -0.5, 0.5)
add("clamp", ints(9, 4), None, 3)
add("hardtanh", X)
add("clamp_min clamp_max", X, 0.25)
add("clamp.Tensor", X, floats(4), None)
add("clamp_min.Tensor clamp_max.Tensor", X, Y)
add("_to_copy", X, dtype=torch.int64)
add("_to_copy", ints(3, 4), dtype=torch.bool)
add("to.dtype", ints(3, 4), torch.float64)
add("to.dtype_layout", ints(3, 4), dtype=torch.float64)
add("to.device", ints(3, 4), "cpu", torch.float64)
add("type_as", ints(3, 4), X)
add("clone alias detach contiguous lift_fresh_copy alias_copy", X)
add("dropout", X, 0.5, False)
add("native_dropout", X, 0.5, False)
add("copy", X, Y)
add("fill.Scalar", X, 3.5)
add("fill.Tensor", X, lambda: torch.tensor(2.0, dtype=torch.float64))

# Activations
add("relu relu6 gelu silu mish softplus log_sigmoid log_sigmoid_forward hardsigmoid hardswish leaky_relu elu selu", X)
add("celu", X, 0.7)
add("elu", X, 0.7, 1.1, 0.9)
add("gelu", X, approximate="tanh")
add("softplus", X, 2, 1)
add("prelu", floats(2, 4, 3), floats(4))
add("_prelu_kernel", floats(2, 4), floats(1, 4))
add("threshold", X, 0.1, 20.0)
add("glu", X, 1)

# Reductions
add("sum mean max min amax amin any all prod", positive(3, 4))
add("sum prod", ints(5, 3, 4))
for _axis in (0, -1):  # of a tensor without dimensions
    add("max.dim min.dim argmax argmin sort", lambda: torch.tensor(2.5), _axis)
    add("topk", lambda: torch.tensor(2.5), 1, _axis)
add("flip", lambda: torch.tensor(2.5), [0])
add("sum", bools(3, 4), dtype=torch.bool)
for _reduction in ("sum", "prod"):  # twice true at one place is true
    add("scatter_reduce.two", bools(4), 0, ints(2, 6), bools(6), _reduction)
add("scatter_add", bools(4), 0, ints(2, 6), bools(6))
add("index_add", bools(4), 0, ints(2, 6), bools(6))
add("any all", lambda: torch.tensor([0, 2, 3], dtype=torch.uint8))
for kind in (torch.float32, torch.uint8, torch.bool):  # of nothing
    add("any.dim all.dim", torch.zeros(2, 0, dtype=kind), 1)
for kept in (False, True):
    add("sum.dim_IntList mean.dim amax amin", floats(2, 3, 4), [0, -1], kept)
    add("prod.dim_int max.dim min.dim argmax argmin any.dim all.dim", floats(2, 3, 4), 1, kept)
    add("any.dims all.dims", bools(2, 3, 4), [0, 2], kept)
    add(
        "any.dim all.dim", lambda: torch.tensor([[0, 2, 3], [0, 0, 0]], dtype=torch.uint8), 1, kept
    )  # uint8, not boolean
    add("var.correction std.correction var_mean.correction", X, [1], correction=1, keepdim=kept)
    add("linalg_vector_norm", X, 2, [1], kept)
    add("logsumexp", X, [1], kept)
add("argmax argmin", X)
add("var.dim std.dim", X, [0], False)
add("var.correction", X, None, correction=0)
for order in (1, math.inf, -math.inf):
    add("linalg_vector_norm", X, order, [0])
add("logsumexp", lambda: torch.tensor([[-math.inf, -math.inf], [1.0, 2.0]], dtype=torch.float64), [1])
for largest in (False, True):
    add("sort", floats(2, 3, 7), 1, largest)
    add("sort.stable", ints(3, 2, 9), dim=-1, descending=largest, stable=True)
    add("topk", floats(3, 9), 2, -1, largest)
    add("topk", floats(2, 11, 3), 10, 1, largest)
    add("topk", lambda: torch.tensor([[1, -math.inf, 3], [math.inf, 2, 5]]), 3, 1, largest)
    add("topk", floats(2, 9000), 11, -1, largest)
add("sort", strange, 0)
add("topk", lambda: torch.tensor([[math.nan, 2, math.inf, -1], [math.inf, math.nan, 0, -math.inf]]), 3, 1, False)
add("topk", ints(1000, 4, 9), 1)
BAGS = lambda: torch.tensor([0, 3, 3, 7])  # noqa: E731
for _mode in (0, 1, 2):  # an empty bag; the last offset is the end
    add("_embedding_bag _embedding_bag_forward_only", floats(10, 4), ints(10, 9), BAGS, False, _mode)
    add("_embedding_bag", floats(10, 4), ints(10, 7), BAGS, False, _mode, False, None, True)
    add("_embedding_bag", floats(4, 3), lambda: torch.tensor([2, 1, 3, 2, 2, 0, 2]), BAGS, False, _mode, False, None,
        False, 2)  # fmt: skip
add("_embedding_bag", floats(10, 4), ints(10, 9), BAGS, False, 0, False, floats(9))
add("histc", floats(3, 40), 7, -1.5, 2.0)
add("histc", lambda: torch.randint(0, 6, (40,)).double(), 4, 0, 3)
add("cumsum cumprod cummax cummin", X, 1)
add("cumsum", ints(5, 3, 4), 0)
add("softmax.int log_softmax.int", X, 1)
add("_softmax _log_softmax", X, 0, False)
add("_safe_softmax", lambda: torch.tensor([[-math.inf, -math.inf], [1.0, 2.0]], dtype=torch.float64), 1)

# Products, convolutions, attention
add(
    "_int_mm", *(lambda shape=shape: torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((19, 16), (16, 8)))
)
add("mm matmul", X, floats(4, 5))
add("bmm matmul", floats(2, 3, 4), floats(2, 4, 5))
add("as_strided", floats(2, 3, 1, 1), [2, 3, 1, 1], [3, 1, 3, 3])
add("_grouped_mm", small(9, 8), small(3, 8, 4), lambda: torch.tensor([2, 2, 9]).int())
add("matmul", floats(2, 1, 3, 4), floats(5, 4, 2))
add("mv matmul", X, Y)
add("matmul", Y, floats(4, 3))
add("dot matmul", Y, Y)
add("addmm", floats(5), X, floats(4, 5), beta=0.5, alpha=2)
add("addmm", floats(5), X, floats(4, 5))
add("baddbmm", floats(2, 3, 5), floats(2, 3, 4), floats(2, 4, 5))
add("addmv", floats(3), X, Y)
add("linear", floats(2, 3, 4), floats(5, 4), floats(5))
add("linear", Y, floats(5, 4))
add("convolution", floats(2, 3, 7, 6), floats(4, 3, 3, 2), None, [2, 1], [1, 0], [1, 1], False, [0, 0], 1)
add("convolution", floats(2, 4, 5, 6), floats(4, 3, 3, 2), None, [2, 1], [1, 0], [1, 1], True, [0, 0], 1)
add("convolution", floats(1, 4, 9), floats(6, 2, 3), floats(6), [1], [2], [2], False, [0], 2)
add("convolution", floats(1, 4, 5), floats(4, 3, 3), floats(6), [3], [1], [2], True, [1], 2)
for taps, strides, pads, more in (
    ((2, 2), [2, 2], [0, 0], [0, 0]),
    ((4, 3), [2, 3], [1, 2], [1, 0]),
    ((1, 5), [3, 2], [0, 3], [2, 1]),
):
    add("convolution", floats(2, 4, 3, 5), floats(4, 3, *taps), floats(6), strides, pads, [1, 1], True, more, 2)
add("convolution", floats(2, 4, 3, 5), floats(4, 3, 4, 3), floats(3), [2, 1], [1, 2], [1, 2], True, [0, 0], 1)
for strides, steps, pads in (([5, 2], [2, 4], [1, 0]), ([4, 3], [6, 2], [3, 1]), ([2, 6], [3, 1], [2, 0])):
    add("convolution", floats(1, 4, 3, 4), floats(4, 2, 3, 2), floats(4), strides, pads, steps, True, [1, 1], 2)
add(
    "convolution",
    floats(1, 2, 4, 4, 4),
    floats(3, 2, 2, 2, 2),
    None,
    [1, 1, 1],
    [0, 0, 0],
    [1, 1, 1],
    False,
    [0] * 3,
    1,
)
HEADS = floats(2, 4, 5, 8)
KEYS = floats(2, 4, 7, 8)
add("scaled_dot_product_attention", HEADS, KEYS, KEYS)
add("scaled_dot_product_attention", HEADS, KEYS, KEYS, bools(5, 7))
add("scaled_dot_product_attention", HEADS, KEYS, KEYS, floats(2, 1, 5, 7), scale=0.3)
add("scaled_dot_product_attention", HEADS, KEYS, KEYS, is_causal=True)
add("scaled_dot_product_attention", HEADS, HEADS, HEADS, is_causal=True)
add("scaled_dot_product_attention", HEADS, floats(2, 2, 7, 8), floats(2, 2, 7, 8), enable_gqa=True)
add("scaled_dot_product_attention", floats(2, 5, 8), floats(2, 7, 8), floats(2, 7, 6), floats(2, 5, 7))
add("scaled_dot_product_attention", floats(5, 8), floats(7, 8), floats(7, 6))
add("scaled_dot_product_attention", floats(2, 3, 4, 5, 8), floats(2, 3, 4, 7, 8), floats(2, 3, 4, 7, 8))
add("_scaled_dot_product_flash_attention_for_cpu", HEADS, KEYS, KEYS, 0.0, False, attn_mask=floats(5, 7))
add("_scaled_dot_product_attention_math", HEADS, KEYS, KEYS, floats(5, 7))

SELF = floats(2, 5, 8)


def fused_attention(mask: Any) -> None:
    """PyTorch's fused self-attention: one tensor three times, weights in float64."""

    def draw() -> Case:
        x = SELF()
        weights = [item() for item in (floats(24, 8), floats(24), floats(8, 8), floats(8))]
        chosen = mask() if callable(mask) else None
        return (x, x, x, 8, 2, *weights, chosen, False), {"mask_type": None if chosen is None else 0}

    CASES.setdefault("aten._native_multi_head_attention.default", []).append(draw)


fused_attention(None)
fused_attention(lambda: torch.ones(5, 5, dtype=torch.bool).triu(1))
LAYER = [floats(8), floats(8), floats(8), floats(8), floats(12, 8), floats(12), floats(8, 12), floats(8)]
for first in (False, True):
    PACKED = [floats(24, 8), floats(24), floats(8, 8), floats(8)]
    add("_transformer_encoder_layer_fwd", SELF, 8, 2, *PACKED, first, first, 1e-5, *LAYER)
# Masks of queries and keys, of keys, and of both for each head; as many rows as steps leave only the type to tell.
for kind, where in enumerate([(5, 5), (5, 5), (5, 2, 5, 5)]):
    HIDDEN = (torch.arange(math.prod(where)) % 4 == 1).reshape(where)
    for mask in (HIDDEN, torch.zeros(where).masked_fill(HIDDEN, -math.inf)):
        add("_transformer_encoder_layer_fwd", floats(5, 5, 8), 8, 2, *PACKED, first, first, 1e-5, *LAYER, mask, kind)

# Norms
add("layer_norm", X, [4], Y, Y, 1e-5, False)
add("layer_norm", floats(2, 3, 4), [3, 4], None, None)
add("native_layer_norm", X, [4], Y, None, 1e-5)
add("rms_norm", X, [4], Y, 1e-6)
add("rms_norm", X, [4])
add("_fused_rms_norm", X, [4], Y, 1e-6)
add("group_norm", floats(2, 6, 5), 3, floats(6), floats(6), 1e-5)
add("native_group_norm", floats(2, 6, 5), floats(6), None, 2, 6, 5, 2, 1e-5)
add("instance_norm", floats(2, 3, 5), floats(3), floats(3), None, None, True, 0.1, 1e-5, False)
add("instance_norm", floats(2, 3, 5), None, None, floats(3), positive(3), False, 0.1, 1e-5, False)
add("_native_batch_norm_legit_no_training", floats(2, 3, 5), floats(3), floats(3), floats(3), positive(3), 0.1, 1e-5)
add("_native_batch_norm_legit.no_stats", floats(2, 3, 5), floats(3), floats(3), True, 0.1, 1e-5)
add(
    "_native_batch_norm_legit_functional",
    floats(4, 3, 5),
    floats(3),
    floats(3),
    floats(3),
    positive(3),
    True,
    0.1,
    1e-5,
)
add("_native_batch_norm_legit_functional", floats(4, 3), None, None, floats(3), positive(3), True, 0.2, 1e-5)
add("batch_norm", floats(2, 3, 5, 2), None, None, floats(3), positive(3), False, 0.1, 1e-5, False)

# Shapes
CUBE = floats(2, 3, 4)
add("view reshape _unsafe_view view_copy _reshape_copy", CUBE, [6, 4])
add("reshape", CUBE, [2, -1])
add("_reshape_alias", CUBE, [6, 4], [4, 1])
add("flatten.using_ints", CUBE, 1, 2)
add("unflatten.int", CUBE, 2, [2, 2])
add("squeeze.dim squeeze_copy.dim", floats(2, 1, 4), 1)
add("squeeze.dim", CUBE, 1)
add("squeeze.dims squeeze_copy.dims", floats(2, 1, 4, 1), [1, 3])
add("squeeze", floats(1, 2, 1))
add("unsqueeze unsqueeze_copy", X, -1)
add("permute permute_copy", CUBE, [2, 0, 1])
add("transpose.int transpose_copy.int", CUBE, 0, -1)
add("t t_copy", X)
add("movedim.int", CUBE, 0, 2)
add("movedim.intlist", CUBE, [0, 1], [2, 0])
add("expand expand_copy", floats(2, 1, 4), [5, 2, 3, -1])
add("broadcast_to", floats(2, 1, 4), [2, 3, 4])
add("expand_as", floats(2, 1, 4), CUBE)
add("slice.Tensor slice_copy.Tensor", floats(9, 2), 0, 1, 7, 2)
add("slice.Tensor", floats(9, 2), 0, -4, 2**63 - 1)
add("slice.Tensor", floats(9, 2), 0, 5, 3)
add("narrow", CUBE, 2, 1, 2)
add("select.int select_copy.int", CUBE, 1, -1)
add("cat", [X, ints(3, 2, 4), floats(0)], 0)
add("stack", [X, X], 1)
add("split_with_sizes split_with_sizes_copy", floats(7, 2), [2, 4, 1], 0)
add("split.Tensor split_copy.Tensor chunk tensor_split.sections", floats(7, 2), 3, 0)
add("unbind.int unbind_copy.int", CUBE, 1)
add("repeat", X, [2, 1, 3])
add("tile", CUBE, [2, 1])
add("repeat_interleave.self_int", CUBE, 2, 1)
add("repeat_interleave.self_int", X, 2)
add("flip", CUBE, [0, 2])
add("roll", CUBE, [1, -1], [1, 2])
add("roll", CUBE, [5])
add("constant_pad_nd", CUBE, [1, 2, -1, 0], 1.5)
add("pad", CUBE, [1, 2], "constant", None)
add("reflection_pad1d replication_pad1d", CUBE, [2, 3])
add("reflection_pad2d replication_pad2d", CUBE, [2, 3, 1, 0])
add("reflection_pad3d replication_pad3d", floats(1, 2, 3, 4, 5), [2, 3, 1, 0, 1, 2])
add("tril triu", floats(2, 4, 5), 1)
add("tril", bools(4, 4), -1)
add("diagonal diagonal_copy", CUBE, 1, 1, 2)
add("diagonal", floats(5, 4), -2)
add("diagonal_scatter", CUBE, floats(2, 3), 1, 1, 2)
add("diagonal_scatter", floats(5, 4), floats(3), -2)
add("pixel_shuffle", floats(2, 8, 3, 5), 2)
add("pixel_unshuffle", floats(2, 3, 4, 6), 2)

# Indexing
add("embedding", floats(9, 4), ints(9, 2, 3))
for _order in (1.0, 2.0, 3.0):
    add("embedding_renorm", floats(9, 4), ints(9, 2, 3), 1.5, _order)
add("index_select", CUBE, 1, ints(3, 5))
add("gather", CUBE, 2, ints(4, 2, 3, 6))
add("take_along_dim", CUBE, ints(4, 2, 3, 6), 2)
add("take_along_dim", X, ints(12, 5))
add("index.Tensor _unsafe_index.Tensor", CUBE, [None, ints(3, 2, 2, low=-3)])
add("index.Tensor", CUBE, [ints(2, 5, 1), ints(3, 4)])
add("index.Tensor", CUBE, [ints(2, 5), None, ints(4, 5, low=-4)])
add("index_put _unsafe_index_put", CUBE, [None, lambda: torch.tensor([2, 0])], floats(2, 2, 4))
add("index_put", CUBE, [lambda: torch.tensor([[0], [1]]), lambda: torch.tensor([0, 2])], floats(4))
add("index_put", CUBE, [lambda: torch.tensor([0, 1]), None, lambda: torch.tensor([-1, 2])], floats(2, 3))
add("index_put", CUBE, [bools(2, 3)], lambda: torch.tensor(1.5, dtype=torch.float64))
# Values that are the same for all true elements, which the rule takes without knowing how many there are.
add("index_put", CUBE, [None, bools(3)], floats(2, 1, 4))
add("index_put", CUBE, [None, bools(3, 4)], floats(2, 1))
add("index_put", CUBE, [None, bools(3)], floats(4), True)
add("index_put", bools(3, 4), [bools(3, 4)], lambda: torch.tensor(True), True)
add("index_put", floats(2, 3, 4, 2), [bools(2)], floats(4, 2))
add("index_put", CUBE, [bools(2)], floats(3, 4), True)
add("index_put_", CUBE, [lambda: torch.tensor([1])], floats(4))
add("index_copy", CUBE, 1, lambda: torch.tensor([2, 0]), floats(2, 2, 4))
add("index_fill.int_Scalar", CUBE, 1, lambda: torch.tensor([-1, 0]), 2.5)
add("index_fill.int_Tensor", CUBE, 1, lambda: torch.tensor([1]), lambda: torch.tensor(2.0, dtype=torch.float64))
add("slice_scatter", floats(8, 3), floats(3, 3), 0, 1, 6, 2)
add("slice_scatter", floats(8, 3), floats(8, 3))
add("select_scatter", CUBE, floats(2, 4), 1, -1)
add("scatter.src", CUBE, 1, lambda: torch.tensor([[[0, 2]], [[1, 1]]]), floats(2, 3, 4))
add("scatter.value", CUBE, 2, lambda: torch.tensor([[[0, 2]], [[1, 1]]]), 3.5)
add("scatter.value", lone, 0, lambda: torch.tensor([0]), 3.5)
add("scatter.value", CUBE, 0, ints(1, 0, 3), 3.5)
add("one_hot", ints(5, 2, 3), 5)

# Creation
add("arange", 5)
add("arange.start", 2, 7)
add("arange.start_step", 1, 8, 3)
add("arange.start_step", 0.0, 1.0, 0.25, dtype=torch.float64)
add("linspace", 0.0, 1.0, 5, dtype=torch.float64)
add("full", [2, 3], 1.5, dtype=torch.float64)
add("full_like", X, 2)
add("new_full", X, [2], 7.0)
add("zeros ones", [2, 3], dtype=torch.float64)
add("zeros_like ones_like", ints(3, 4))
add("new_zeros new_ones", X, [2])
add("scalar_tensor", 2.5, dtype=torch.float64)
add("eye", 3)
add("eye.m", 2, 4)

# Pools and resampling
IMAGE = floats(2, 3, 8, 9)
add("max_pool2d max_pool2d_with_indices", IMAGE, [3, 2], [2, 1], [1, 0], 1, True)
add("max_pool2d", IMAGE, [3])
add("max_pool1d", floats(2, 3, 9), [3], [2])
add("max_pool3d max_pool3d_with_indices", floats(1, 2, 4, 4, 4), [2])
add("max_pool2d", floats(3, 8, 9), [2, 2])
add("avg_pool2d", IMAGE, [3, 2], [2, 1], [1, 1], False, False)
add("avg_pool2d", IMAGE, [3, 3], [2, 2], [1, 1], True, True)
add("avg_pool1d", floats(2, 3, 9), [3], [2], [1])
add("avg_pool3d", floats(1, 2, 4, 4, 4), [2, 2, 2])
add("adaptive_avg_pool1d", floats(2, 3, 8), [4])
add("adaptive_avg_pool2d _adaptive_avg_pool2d", IMAGE, [1, 1])
add("unfold", floats(2, 11, 4), 1, 5, 2)
add("unfold", floats(2, 11, 4), -1, 2, 1)
add("unfold", lambda: torch.tensor(1.5), 0, 1, 1)
for _taps, _dilation, _padding, _step in (
    ([3, 3], [1, 1], [1, 1], [1, 1]),
    ([4, 2], [1, 1], [0, 1], [2, 3]),
    ([2, 3], [3, 2], [2, 0], [1, 1]),
    ([3, 2], [2, 3], [1, 2], [2, 2]),
    ([2, 1], [1, 1], [0, 0], [3, 2]),
):
    _counts = [
        (size + 2 * _padding[i] - _dilation[i] * (_taps[i] - 1) - 1) // _step[i] + 1 for i, size in enumerate((9, 11))
    ]
    _columns = (3 * _taps[0] * _taps[1], _counts[0] * _counts[1])
    add("im2col", floats(2, 3, 9, 11), _taps, _dilation, _padding, _step)
    add("im2col", floats(3, 9, 11), _taps, _dilation, _padding, _step)
    add("col2im", floats(2, *_columns), [9, 11], _taps, _dilation, _padding, _step)
    add("col2im", floats(*_columns), [9, 11], _taps, _dilation, _padding, _step)
add("adaptive_avg_pool2d", IMAGE, [4, 3])
add("adaptive_avg_pool2d", IMAGE, [3, 4])
add("adaptive_avg_pool2d", IMAGE, [11, 1])
add("adaptive_avg_pool1d", floats(2, 3, 17), [5])
add("adaptive_avg_pool3d _adaptive_avg_pool3d", floats(1, 2, 4, 4, 4), [2, 1, 4])
add("adaptive_max_pool2d", IMAGE, [1, 1])
add("adaptive_max_pool3d", floats(1, 2, 4, 4, 4), [1, 1, 1])
add("adaptive_max_pool1d", floats(2, 3, 8), [1])
add("adaptive_max_pool2d", IMAGE, [3, 4])
add("adaptive_max_pool2d", IMAGE, [8, 1])
add("adaptive_max_pool1d", floats(2, 3, 8), [5])
add("upsample_nearest1d.vec", floats(2, 3, 4), None, [2.0])
add("upsample_nearest2d.vec", IMAGE, [16, 12], None)
add("upsample_nearest3d.vec", floats(1, 2, 2, 2, 2), None, [2.0, 1.0, 3.0])
add("upsample_nearest1d", floats(2, 3, 4), [8])
add("upsample_nearest1d.vec", floats(2, 3, 4), None, [1.7])  # the factor decides, not 6 / 4
add("upsample_nearest1d.vec", floats(2, 3, 2), None, [2.49])
add("upsample_nearest2d.vec", floats(1, 2, 5, 7), None, [0.7, 2.9])
add("upsample_nearest2d.vec", floats(1, 2, 3, 5), None, [1.3, 1.3])  # the size decides for 3, not the factor
add("upsample_nearest2d.vec", floats(1, 2, 3, 5), None, [2.3, 1.9])  # and for 6
add("upsample_nearest1d", floats(1, 1, 2), [82])  # where float32 and float64 disagree
add("upsample_nearest2d", IMAGE, [16, 27])
add("upsample_nearest3d", floats(1, 2, 2, 2, 2), [4, 2, 6])
add("upsample_bilinear2d.vec", IMAGE, None, False, [2.0, 1.5])
for places in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)]:  # mode; zeros, border, reflection
    for align in (False, True):
        grid = lambda: torch.rand(2, 4, 5, 2, dtype=torch.float64) * 5 - 2.5  # noqa: E731
        add("grid_sampler_2d", floats(2, 3, 5, 6), grid, *places, align)
add("upsample_bilinear2d.vec", IMAGE, [5, 12], True, None)
add("upsample_bilinear2d", IMAGE, [5, 12], False)
add("upsample_linear1d.vec", floats(2, 3, 4), [7], False, None)
add("upsample_linear1d", floats(2, 3, 4), [7], True)
add("upsample_trilinear3d.vec", floats(1, 2, 3, 4, 2), None, False, [1.3, 2.0, 1.5])
add("upsample_trilinear3d", floats(1, 2, 3, 4, 2), [5, 2, 2], True)

add("_is_all_true _is_any_true", bools(3, 4))
add("_is_all_true", lambda: torch.ones(3, dtype=torch.bool))
for _kind in ("bilinear", "bicubic"):
    for _align in (False, True):
        add(f"_upsample_{_kind}2d_aa", IMAGE, [5, 12], _align)
        add(f"_upsample_{_kind}2d_aa", IMAGE, [3, 2], _align)
    add(f"_upsample_{_kind}2d_aa.vec", IMAGE, None, False, [0.5, 1.5])

# Searches
SORTED = lambda: torch.rand(2, 5, dtype=torch.float64).sort(-1).values  # noqa: E731
LINE = lambda: torch.linspace(-2, 2, 701, dtype=torch.float64)  # noqa: E731
EDGES = lambda: torch.tensor([-1.0, 0.0, 0.0, 1.5], dtype=torch.float64)  # noqa: E731
add("searchsorted.Tensor", SORTED, positive(2, 4))
add("searchsorted.Tensor", EDGES, strange, right=True)
add("searchsorted.Tensor", EDGES, strange, out_int32=True)
add("searchsorted.Tensor", EDGES, floats(2, 3), side="right")
add("searchsorted.Scalar", EDGES, 0.0)
add("bucketize.Tensor", strange, EDGES)
add("bucketize.Tensor", ints(3, 2, 4), EDGES, right=True)
add("bucketize.Scalar", 0.0, EDGES, right=True)
add("bucketize.Tensor", strange, LINE, right=True)
add("searchsorted.Tensor", LINE, floats(2, 3))
for _edges in ([1.0, 2, 3, math.nan, math.nan], [0.5] + [math.nan] * 8, [-1.0, 0.5, 2] + [math.nan] * 18):
    for _right in (False, True):
        add("searchsorted.Tensor", lambda edges=_edges: torch.tensor(edges), strange, right=_right)
        add("bucketize.Tensor", floats(9), lambda edges=_edges: torch.tensor(edges, dtype=torch.float64), right=_right)

# Segments
for _how in ("sum", "mean", "max", "min", "prod"):
    for _first in ({}, {"initial": 0.5}):
        add("segment_reduce", floats(6, 2), _how, lengths=lambda: torch.tensor([2, 0, 3, 1]), **_first)
        add("segment_reduce", floats(2, 5), _how, lengths=lambda: torch.tensor([[2, 3], [5, 0]]), axis=1, **_first)
    add("segment_reduce", floats(7, 2, 2), _how, offsets=lambda: torch.tensor([0, 3, 3, 7]), unsafe=True)
add("segment_reduce", lambda: torch.tensor([1.0, math.nan, 2.0, 3.0]), "max", lengths=lambda: torch.tensor([2, 2]))
add("median.dim", CUBE, 1)
add("median.dim", floats(3, 5), 1, True)
add("median.dim", lambda: torch.stack([strange(), strange().nan_to_num(2.0, 3.0, -3.0)]), 1)
add("median", X)
add("median", ints(9, 3, 5))
add("kthvalue", CUBE, 3, 2)
add("kthvalue", floats(5), 1, 0, True)
add("cummax cummin", lambda: torch.stack([strange(), torch.tensor([2.0, 1, 2, 3, 3, 0], dtype=torch.float64)]), 1)
add("tril_indices", 3, 5, 1)
add("tril_indices triu_indices", 4, 4, -1)
add("as_strided as_strided_copy", floats(4, 3), [3, 4], [2, 1], 1)
add("as_strided", floats(4, 3), [4, 3], [3, 1])
add("as_strided_scatter", floats(4, 3), floats(3), [3], [4])
add("as_strided_scatter", floats(4, 3), floats(2, 2), [2, 2], [1, 5], 2)
add("digamma special_digamma", lambda: torch.tensor([0.1, 1.46, 3.0, -0.5, -2.3, 30.0, 1e5], dtype=torch.float64))
BESSEL = torch.tensor(
    [0.0, 1e-30, 1e-5, 0.3, 1.7, 7.5, 29.5, 30.5, 80.0, 700.0, math.inf, math.nan], dtype=torch.float64
)
add("i0 special_i0e special_i1 special_i1e", lambda: torch.cat([BESSEL, -BESSEL]))
add("special_modified_bessel_i0 special_modified_bessel_i1", lambda: BESSEL[:-3].float())
add("special_modified_bessel_k0 special_modified_bessel_k1", lambda: BESSEL[:-1].float())
add("special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1", lambda: BESSEL[:-1].float())
add(
    "special_erfcx special_log_ndtr", lambda: torch.tensor([-30.0, -5, -1.1, -0.9, 0, 0.4, 3, 9.9, 10.1, 1e3, math.nan])
)
PARTS_OF_ONE = [0, 1e-300, 1e-20, 1e-3, 0.019, 0.021, 0.3, 0.5, 0.7, 0.999, 1, 1.1, -1, math.nan]
add("special_ndtri", lambda: torch.tensor(PARTS_OF_ONE, dtype=torch.float64))
add("digamma", lambda: torch.tensor([0.0, -0.0, -1.0, -7.0, math.nan, math.inf], dtype=torch.float64))
for _reduce in ("sum", "prod", "mean", "amax", "amin"):
    for _include in (False, True):
        add("scatter_reduce.two", CUBE, 1, ints(3, 2, 5, 4), floats(2, 5, 4), _reduce, include_self=_include)
add("scatter_reduce.two", ints(9, 4), 0, ints(3, 5), ints(9, 5), "mean", include_self=False)
add("scatter_reduce.two", ints(9, 4), 0, ints(3, 5), ints(9, 5), "amin", include_self=False)
for _reduce in ("prod", "mean", "amax", "amin"):
    add("index_reduce", CUBE, 1, lambda: torch.tensor([2, 0, 2]), floats(2, 3, 4), _reduce, include_self=False)

# Linear algebra


def regular(*shape: int) -> Callable[[], Any]:
    """Matrices that are far from singular, whose elimination needs other rows than the first."""
    return lambda: (torch.rand(*shape, dtype=torch.float64) + 3 * torch.eye(shape[-1], dtype=torch.float64)).flip(-2)


def definite(*shape: int) -> Callable[[], Any]:
    def draw() -> Any:
        half = torch.randn(*shape, dtype=torch.float64)
        return half @ half.mT + torch.eye(shape[-1], dtype=torch.float64)

    return draw


def triangular(upper: bool, *shape: int) -> Callable[[], Any]:
    return lambda: (torch.triu if upper else torch.tril)(definite(*shape)())


add("linalg_inv_ex inverse linalg_inv", regular(2, 4, 4))
add("linalg_inv_ex", regular(1, 1))
add("_linalg_solve_ex", regular(2, 4, 4), floats(2, 4, 3))
add("_linalg_solve_ex", regular(2, 4, 4), floats(2, 4))
add("_linalg_solve_ex", regular(4, 4), floats(4))
add("_linalg_solve_ex", regular(4, 4), floats(3, 4), left=False)
add("_linalg_det linalg_det _linalg_slogdet", regular(3, 4, 4))
add("_linalg_det _linalg_slogdet", lambda: torch.zeros(2, 2, dtype=torch.float64))
add("linalg_cholesky_ex cholesky linalg_cholesky", definite(2, 5, 5))
add("linalg_cholesky_ex", definite(3, 3), upper=True)
add("cholesky_solve", floats(4, 2), triangular(False, 4, 4))
add("cholesky_solve", floats(2, 4, 2), triangular(True, 2, 4, 4), True)
for _upper in (False, True):
    add("cholesky_inverse", triangular(_upper, 2, 4, 4), _upper)
    for _unit in (False, True):
        right, left = floats(2, 4, 3), floats(2, 3, 4)
        add("linalg_solve_triangular", triangular(_upper, 2, 4, 4), right, upper=_upper, unitriangular=_unit)
        add("linalg_solve_triangular", triangular(_upper, 2, 4, 4), left, upper=_upper, left=False)
    add("triangular_solve", floats(4, 2), triangular(_upper, 4, 4), _upper, True)
for _order in (0.0, 1.0, 2.0, 3.0, math.inf):
    add("_cdist_forward", floats(2, 5, 3), floats(2, 4, 3), _order, None)
    add("_pdist_forward", floats(5, 3), _order)
add("linalg_matrix_exp", floats(3, 4, 4))
add("linalg_pinv.atol_rtol_tensor", floats(2, 5, 3))
add("linalg_pinv.atol_rtol_tensor", floats(1, 3, 5), atol=positive(1), rtol=positive(1))
add("linalg_pinv.atol_rtol_tensor", floats(4, 4), hermitian=True)
for _least in (0.0, 1e-3):  # rank 1 but for rounding
    columns = lambda: torch.outer(torch.arange(1.0, 5.0), torch.tensor([0.1, 0.7, 0.3])).double()  # noqa: E731
    add("linalg_pinv.atol_rtol_tensor", columns, atol=lambda _least=_least: torch.tensor(_least, dtype=torch.float64))
add("linalg_qr", floats(2, 5, 3))
add("linalg_qr", floats(3, 5), "complete")
add("_euclidean_dist", floats(5, 3), floats(4, 3))

for name, gates in (("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
    weights = [floats(3 * gates, 5), floats(3 * gates, 3), floats(3 * gates), floats(3 * gates)]
    add(f"{name}.input", floats(4, 2, 5), floats(1, 2, 3), weights, True, 1, 0.0, False, False, False)
state = [floats(2, 4, 3), floats(2, 4, 3)]
weights = [floats(12, 5), floats(12, 3)] * 2
add("lstm.input", floats(4, 2, 5), state, weights, False, 1, 0.0, False, True, True)

_SIGNS = torch.tensor([1.5, -2.0, 0.0, -0.0, math.inf, -math.inf, math.nan])
for _dtype in (torch.float32, torch.float64, torch.float16):
    add("signbit.default", lambda dtype=_dtype: _SIGNS.to(dtype))
add("signbit.default", lambda: torch.tensor([3, -4, 0]))
add("signbit.default", lambda: torch.tensor([3, 200], dtype=torch.uint8))
add("copysign.Tensor", lambda: _SIGNS[:, None], lambda: _SIGNS[:6])
add("copysign.Tensor", lambda: torch.tensor([3, -4, 0]), lambda: torch.tensor([-1, 1, -1]))
add("copysign.Scalar", lambda: _SIGNS, -0.0)
add("round.decimals", floats(3, 4), decimals=2)
add("round.decimals", lambda: torch.randn(3, 4, dtype=torch.float64) * 1e4, decimals=-2)
add("round.decimals", floats(3, 4), decimals=400)
add("gcd lcm", ints(90, 5, 1, low=-90), ints(90, 9, low=-90))
add("gcd", ints(2**62, 7, low=-(2**62)), lambda: torch.tensor([0, 1, 6, 2**40, 7540113804746346429, 360, -15]))
add(
    "gcd", lambda: torch.tensor([1836311903, 0], dtype=torch.int32), lambda: torch.tensor(1134903170, dtype=torch.int32)
)
add("gcd", lambda: torch.tensor(12, dtype=torch.uint8), lambda: torch.tensor(18, dtype=torch.uint8))
add("put", floats(3, 4), ints(12, 5, low=-12), floats(5), True)
add("put", floats(3, 4), lambda: torch.tensor([0, -1, 5]), floats(3))
add("nanmedian", strange)
add("nanmedian.dim", strange, 0, True)

# Results without a defined value, or none at all: checked below, not compared.
SHAPE_ONLY = {
    "aten.empty.memory_format": ([2, 3],),
    "aten.empty_like.default": (X,),
    "aten.new_empty.default": (X, [2]),
    "aten.empty_strided.default": ([2, 3], [3, 1]),
    "aten.new_empty_strided.default": (X, [2, 3], [3, 1]),
    "aten.empty_permuted.default": ([2, 3], [0, 1]),
}

for pair in (strange, floats(6)), (floats(3, 4), floats(4)), (strange, lambda: strange().flip(0)):
    add("fmax fmin hypot", *pair)
    add("nextafter", *pair)
add("nextafter", lambda: torch.zeros(2, dtype=torch.float64), lambda: torch.tensor([1.0, -1.0], dtype=torch.float64))
add("angle", strange)
add("angle", ints(5, 4, low=-4))
add("remainder.Scalar_Tensor", 7.5, floats(5))
add("frexp.Tensor", strange)
add("frexp.Tensor", lambda: torch.tensor([5e-324, -3e-310, 2.0**-1022, 1.7e308, -0.0], dtype=torch.float64))
add("ldexp.Tensor", floats(3, 4), ints(9, 4, low=-9))
add("view.dtype view_copy.dtype", ints(99, 3, 4, low=-99), torch.int32)
add("view.dtype view_copy.dtype", floats(3, 4), torch.uint8)
add("view.dtype", lambda: torch.randint(0, 256, (3, 16), dtype=torch.uint8), torch.int32)
add("view.dtype", floats(3, 4), torch.int64)
add("view.dtype", bools(5), torch.uint8)
for order in (0, 0.5, 2.5, -1.5, 3):
    add("linalg_vector_norm", floats(3, 4), order)
    add("linalg_vector_norm", floats(3, 4), order, [1], True)
    add("dist", floats(3, 4), floats(4), order)
add("linalg__powsum", floats(3, 4), 3, [1])
add("logcumsumexp", lambda: torch.randn(3, 11, dtype=torch.float64) * 300, 1)
add("logcumsumexp", strange, 0)
add("logcumsumexp", lambda: torch.full((5,), -math.inf, dtype=torch.float64), 0)
add("mode", ints(4, 3, 9))
add("mode", ints(4, 3, 9), 0, True)
add("mode", floats(7))
add("histc", floats(50), 7, 0, 0)
add("histc", lambda: torch.full((5,), 2.0, dtype=torch.float64), 4, 0, 0)
add("histc", lambda: torch.linspace(0, 1, 41, dtype=torch.float64), 20, 0, 1)
add("histogram.bin_ct", floats(50), 6)
add("histogram.bin_ct", floats(5, 10), 6, range=[-1.0, 1.5], weight=positive(5, 10), density=True)
add("histogram.bin_ct", lone, 2)
add("histogram.bin_ct", floats(4), 6, weight=lambda: torch.tensor([1.0, math.inf, 2.0, 0.5], dtype=torch.float64))
add("histogram.bins_tensor", floats(50), lambda: torch.tensor([-1.0, 0.0, 0.25, 2.0], dtype=torch.float64))
add("addbmm", floats(3, 5), floats(2, 3, 4), floats(2, 4, 5), beta=0.5, alpha=2)
add("_trilinear", floats(3, 4), floats(6, 4, 5), floats(3, 5), [1, 3], [0], [1, 2], [2, 3])
add("conv_tbc", floats(7, 2, 3), floats(3, 3, 4), floats(4), 1)
add(
    "grid_sampler_3d",
    floats(2, 3, 4, 5, 6),
    lambda: torch.rand(2, 3, 2, 4, 3, dtype=torch.float64) * 2.4 - 1.2,
    0,
    1,
    False,
)
add("fractional_max_pool2d", floats(2, 3, 7, 9), [2, 3], [3, 4], positive(2, 3, 2))
add("fractional_max_pool3d", floats(2, 7, 6, 8), [2, 2, 3], [3, 1, 4], lambda: torch.rand(1, 2, 3, dtype=torch.float64))
for shape in ((4, 4), (2, 5, 3), (3, 5)):
    add("linalg_lu_factor_ex linalg_lu", floats(*shape))


add("special_spherical_bessel_j0", strange)
POLYNOMIALS = " ".join(
    [f"special_{shifted}chebyshev_polynomial_{kind}.n_scalar" for shifted in ("", "shifted_") for kind in "tuvw"]
    + [f"special_{family}.n_scalar" for family in (
        "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p")]
)  # fmt: skip
for order in (-1, 0, 1, 2, 3, 4.9, 11):
    add(POLYNOMIALS, lambda: torch.tensor([-1.5, -1.0, -0.3, 0.0, 0.6, 1.0, 2.5, 7.0], dtype=torch.float64), order)
OF_TENSORS = POLYNOMIALS.replace(".n_scalar", "")
add(OF_TENSORS, floats(5, 1), lambda: torch.tensor([0, 1, 5, -1, 3, 2]))
add(OF_TENSORS, positive(4), lambda: torch.tensor([2.9, 0.0, 7.2, -3.0], dtype=torch.float64))
add(OF_TENSORS, lone, lambda: torch.tensor(3))
add(POLYNOMIALS.replace("n_scalar", "x_scalar"), 0.6, lambda: torch.tensor([0, 12, 4, -1, 3], dtype=torch.float64))
for n in (0, 1, 2, 5):
    add("polygamma", n, lambda: torch.tensor([0.1, 0.9, 2.5, 30.0, 1e3, -0.3, -2.7], dtype=torch.float64))
add("special_zeta", lambda: torch.linspace(0.5, 40, 80, dtype=torch.float64)[:, None], positive(5))
add(
    "special_zeta",
    lambda: torch.tensor([2.0, 3.0, 2.5, 1.0, 4.0], dtype=torch.float64)[:, None],
    lambda: torch.tensor([-1.0, -2.5, 0.0, 7.5, math.nan], dtype=torch.float64),
)
add("special_zeta", lambda: torch.tensor([2.0, 3.0, 2.0, 7.0], dtype=torch.float64), lambda: torch.tensor(
    [-1000001.5, -2000000.25, -0.1, -1234.625], dtype=torch.float64))  # fmt: skip
add("special_zeta.other_scalar", positive(5), 2.0)
add("special_zeta.self_scalar", 3.0, positive(5))
for size in (0.5, 3.0, 40.0):
    add(
        "igamma igammac",
        lambda: torch.tensor([0.2, 1.0, 2.5, 17.0, 60.0], dtype=torch.float64)[:, None],
        lambda size=size: positive(5)() * size,
    )
add(
    "igamma igammac",
    lambda: torch.tensor([0.0, 1.0, 2.0, math.inf, -1.0, 0.0, 3.0], dtype=torch.float64),
    lambda: torch.tensor([1.0, 0.0, math.inf, 1.0, 1.0, 0.0, math.nan], dtype=torch.float64),
)
add("narrow_copy", floats(3, 4), 1, 1, 2)
add("avg_pool2d", floats(1, 3, 7, 6), [3, 2], [2, 1], [1, 1], False, False, 5)
add("avg_pool2d", floats(1, 3, 8, 6), [3], [2], [1], True, False, 2)
add("avg_pool3d", floats(1, 3, 5, 6, 4), [2], [2], [0], False, True, 3)
add("index_select", lone, 0, lambda: torch.tensor([0]))
add("index_copy", lone, 0, lambda: torch.tensor([0]), lone)
add("index_reduce", lone, 0, lambda: torch.tensor([0]), lone, "mean")
add("scatter.value_reduce", floats(3, 4), 1, places_to_scatter, 2.5, reduce="multiply")
add("scatter.value_reduce", floats(3, 4), 0, places_to_scatter, 2.5, reduce="add")
add("roll", lambda: torch.zeros(0, 3), [1], [0])


add("ldexp.Tensor", lambda: torch.tensor([1e-20, 1e20, math.inf, 0.0, 1.5, 1e-40]), lambda: torch.tensor(
    [150, -150, -2000, 2000, -126, 200]))  # fmt: skip
add("ldexp.Tensor", lambda: torch.tensor([2.0**-1074, 1e300, 0.0, -math.inf, 1.5], dtype=torch.float64), lambda: (
    torch.tensor([2097, -2000, 5000, -5000, -1022])))  # fmt: skip
add("igamma igammac", lambda: torch.tensor([1e6, 1e8, 1e12, 199.0, 2e4, 300.0, 1e-3], dtype=torch.float64)[:, None],
    lambda: torch.tensor([1e6, 1e8, 1e12 + 1e6, 210.0, 2.1e4, 500.0, 1e-9], dtype=torch.float64)[:, None])  # fmt: skip
SINGULAR = torch.tensor([[[1.0, 2], [2, 4]], [[0, 0], [0, 0]], [[4, 1], [1, 3]]], dtype=torch.float64)
add("linalg_lu_factor_ex", lambda: SINGULAR)


def packed_factors() -> Any:
    return torch.linalg.lu_factor(torch.from_numpy(np.random.default_rng(0).standard_normal((2, 4, 4))))


add("lu_unpack", lambda: packed_factors()[0], lambda: packed_factors()[1])
for left in (True, False):
    for adjoint in (True, False):
        add("linalg_lu_solve", lambda: packed_factors()[0], lambda: packed_factors()[1], floats(2, 4, 4), left=left,
            adjoint=adjoint)  # fmt: skip
add("nonzero", bools(3, 4))
add("nonzero_static", bools(3, 4), size=5)
add("nonzero_static", ints(2, 9), size=9, fill_value=7)
add("masked_select", floats(3, 4), bools(3, 4))
add("masked_select", floats(3, 4), bools(4))
add("masked_scatter", floats(3, 4), bools(3, 4), floats(12))
add("masked_scatter", floats(4), bools(3, 4), floats(12))
add("rrelu_with_noise_functional", floats(3, 4), floats(3, 4), 0.1, 0.4)
add("_unique2", ints(5, 3, 4), True, True, True)
add("unique_dim", ints(2, 6, 2), 0, True, True, True)
add("unique_dim", torch.zeros(5, 0, 5), 1, True, True, True)  # no slices to compare
add("unique_consecutive", ints(2, 9), True, True)
add("unique_consecutive", ints(2, 3, 4), True, True, 1)
add("repeat_interleave.Tensor", ints(4, 5))
add("bincount", ints(6, 9), None, 2)
add("bincount", ints(6, 9), floats(9))
