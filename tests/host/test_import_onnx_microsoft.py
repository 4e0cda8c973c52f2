"""The operations of ONNX Runtime's own domain against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime
from onnx import numpy_helper

from tests.host.test_import_onnx_runtime import check, model_of, runtime_results
from tilewright.errors import ImportModelError, UnsupportedOperationError
from tilewright.graph import reference
from tilewright.importers.onnx import import_onnx
from tilewright.onnx import InferenceSession

Inputs = list[tuple[str, np.ndarray, bool]]
NONE = ("", np.zeros(0), True)


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def few_bits(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Weights of 7 bits: without VNNI, ONNX Runtime adds two products with unsigned bytes in 16 bits that saturate."""
    return rng.integers(-64, 64, shape).astype(np.int8)


def own(operation: str, inputs: Inputs, outputs: int = 1, steps: int = 0, **attributes: Any) -> None:
    names = [f"y{index}" for index in range(outputs)]
    model, feeds = model_of(operation, inputs, names, domain="com.microsoft", **attributes)
    check(model, feeds, rtol=1e-3, steps=steps)


def given(**arrays: np.ndarray) -> Inputs:
    return [(name, data, False) for name, data in arrays.items()]


def constants(**arrays: np.ndarray) -> Inputs:
    return [(name, data, True) for name, data in arrays.items()]


@pytest.mark.parametrize("operation", ["Gelu", "FastGelu", "QuickGelu", "BiasGelu", "Inverse"])
def test_activations(operation: str, rng: np.random.Generator) -> None:
    x = floats(rng, 2, 5, 6) * 3
    if operation == "Inverse":
        own(operation, given(x=floats(rng, 2, 5, 5) + 4 * np.eye(5, dtype=np.float32)))
    elif operation == "BiasGelu":
        own(operation, given(x=x, b=floats(rng, 6)))
    elif operation == "QuickGelu":
        own(operation, given(x=x), alpha=1.3)
    else:
        own(operation, given(x=x) + (given(b=floats(rng, 6)) if operation == "FastGelu" else []))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("order", [1, 7, 40])
def test_matrices_of_all_sizes(order: int, dynamic: bool, rng: np.random.Generator) -> None:
    """Small ones of a fixed size are unrolled."""
    x = floats(rng, 3, order, order) + 8 * np.eye(order, dtype=np.float32)
    for operation, domain in (("Det", ""), ("Inverse", "com.microsoft")):
        model, feeds = model_of(operation, given(x=x), ["y"], domain=domain, dynamic=dynamic)
        check(model, feeds, rtol=1e-3)


def test_matrices_that_are_not_square(rng: np.random.Generator) -> None:
    model, _ = model_of("Det", given(x=floats(rng, 3, 4)), ["y"])
    with pytest.raises(ImportModelError, match="no square matrices"):
        import_onnx(model)


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid"])
def test_fused_layers(activation: str, rng: np.random.Generator) -> None:
    numbers = {"LeakyRelu": [0.2], "Clip": [-0.5, 0.75], "HardSigmoid": [0.3, 0.4]}.get(activation, [])
    options: dict[str, Any] = {"activation": activation} | ({"activation_params": numbers} if numbers else {})
    layer = given(x=floats(rng, 1, 4, 6, 5)) + constants(w=floats(rng, 6, 4, 3, 3), b=floats(rng, 6))
    own("FusedConv", layer, pads=[1, 1, 1, 1], **options)
    own("FusedConv", layer + given(z=floats(rng, 1, 6, 6, 5)), pads=[1, 1, 1, 1], **options)
    if activation in ("Relu", "Tanh", "LeakyRelu"):
        options = {"activation": activation} | ({"activation_alpha": 0.2} if numbers else {})
        gemm = given(a=floats(rng, 5, 3)) + constants(b=floats(rng, 7, 5), c=floats(rng, 7))
        own("FusedGemm", gemm, transA=1, transB=1, alpha=0.5, beta=2.0, **options)


def test_transposed_products(rng: np.random.Generator) -> None:
    own("FusedMatMul", given(a=floats(rng, 2, 5, 4), b=floats(rng, 2, 6, 5)), transA=1, transB=1, alpha=0.3)
    own("FusedMatMul", given(a=floats(rng, 4, 2, 5), b=floats(rng, 2, 5, 3)), transBatchA=1)
    for count in (1, 2, 9):
        ids = rng.integers(0, 3, (2, count))
        own("NGramRepeatBlock", given(ids=ids, s=floats(rng, 2, 5)), ngram_size=int(rng.integers(1, 4)))
    own("CDist", given(a=floats(rng, 5, 3), b=floats(rng, 4, 3)), metric="euclidean")


@pytest.mark.parametrize(("depth", "block"), [(64, 32), (48, 16), (40, 32)])
def test_products_of_packed_weights(depth: int, block: int, rng: np.random.Generator) -> None:
    columns, blocks = 6, -(-depth // block)
    packed = rng.integers(0, 256, (columns, blocks, block // 2), dtype=np.uint8)
    scales = rng.random(columns * blocks, dtype=np.float32)
    zeros = rng.integers(0, 256, columns * -(-blocks // 2), dtype=np.uint8)
    x = given(x=floats(rng, 2, 3, depth))
    options = {"K": depth, "N": columns, "bits": 4, "block_size": block}
    own("MatMulNBits", x + constants(w=packed, s=scales), weight_prepacked=0, **options)  # as ONNX Runtime saves it
    own("MatMulNBits", x + constants(w=packed, s=scales, z=zeros), **options)
    own("MatMulNBits", x + constants(w=packed, s=scales, z=zeros), accuracy_level=4, **options)  # x as bytes
    whole = np.arange(blocks * block, dtype=np.int32) // block
    anywhere, skewed = rng.integers(0, blocks, depth), np.where(rng.random(depth) < 0.9, 0, blocks - 1)
    # ONNX Runtime leaves out zero points that come with `g_idx`.
    for places in (whole, whole[:depth], rng.permutation(whole), anywhere, skewed):
        own("MatMulNBits", x + constants(w=packed, s=scales) + [NONE] + constants(g=places.astype(np.int32)), **options)


def test_norms_after_sums(rng: np.random.Generator) -> None:
    x, skip, scale, bias = floats(rng, 2, 3, 8), floats(rng, 2, 3, 8), floats(rng, 8), floats(rng, 8)
    parts = given(x=x, skip=skip) + constants(scale=scale, beta=bias, bias=floats(rng, 8))
    model, feeds = model_of("SkipLayerNormalization", parts, ["y", "", "", "sum"], domain="com.microsoft", epsilon=1e-5)
    check(model, feeds, rtol=1e-3)
    parts = given(x=x, skip=skip) + constants(scale=scale, bias=bias)
    model, feeds = model_of("SkipSimplifiedLayerNormalization", parts, ["y", "", "", "sum"], domain="com.microsoft")
    check(model, feeds, rtol=1e-3)
    check(*model_of("SimplifiedLayerNormalization", given(x=x) + constants(s=scale), ["y"], axis=-1, epsilon=1e-5))


@pytest.mark.parametrize("simplified", ["", "Simplified"])
def test_statistics_of_norms(simplified: str, rng: np.random.Generator) -> None:
    parts = given(x=floats(rng, 2, 3, 8), skip=floats(rng, 2, 3, 8)) + constants(scale=floats(rng, 8))
    own(f"Skip{simplified}LayerNormalization", parts, 4, epsilon=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_means_of_bytes_are_rounded_after_the_zero_point(dtype: type, rng: np.random.Generator) -> None:
    x = given(x=rng.integers(0, 99, (2, 3, 8, 8)).astype(dtype))
    numbers = constants(s=np.float32(0.5), z=dtype(3), t=np.float32(0.5), y=dtype(5))
    own("QLinearAveragePool", x + numbers, kernel_shape=[2, 2], strides=[2, 2])
    own("QLinearGlobalAveragePool", x + numbers)
    other = given(b=rng.integers(0, 99, (2, 3, 8, 8)).astype(dtype))
    numbers = other + constants(t=np.float32(0.25), u=dtype(1), r=np.float32(0.5), y=dtype(5))
    for operation in ("QLinearAdd", "QLinearMul"):
        own(operation, x + constants(s=np.float32(0.25), z=dtype(3)) + numbers)


def test_embeddings(rng: np.random.Generator) -> None:
    tables = {"words": floats(rng, 9, 8), "places": floats(rng, 6, 8), "segments": floats(rng, 2, 8)}
    tables |= {"scale": floats(rng, 8), "bias": floats(rng, 8)}
    ids, kinds = rng.integers(0, 9, (2, 5)).astype(np.int32), rng.integers(0, 2, (2, 5)).astype(np.int32)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    own("EmbedLayerNormalization", given(ids=ids, kinds=kinds) + constants(**tables) + given(mask=mask), 2)


# Attention -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["", "keys", "lengths", "pairs", "rows"])
@pytest.mark.parametrize("past", [0, 3])
def test_attention_of_packed_projections(mask: str, past: int, rng: np.random.Generator) -> None:
    heads, width, rows = 2, 8, 4
    keys = past + rows
    inputs = given(x=floats(rng, 2, rows, 6)) + constants(w=floats(rng, 6, 24), b=floats(rng, 24))
    masks = {
        "keys": np.array([[1] * keys, [1] * (keys - 2) + [0] * 2], np.int32),
        "lengths": np.array([keys, keys - 1], np.int32),
        "pairs": np.array([keys, keys - 1, 0, 1], np.int32),
        "rows": (rng.random((2, rows, keys)) < 0.7).astype(np.int32),
    }
    if mask == "rows":
        masks["rows"][:, :, 0] = 1  # each row sees a key
    inputs.append(("mask", masks[mask], False) if mask else NONE)
    if past:
        inputs.append(("past", floats(rng, 2, 2, heads, past, width // heads), False))
    causal = int(rng.integers(0, 2)) if mask in ("", "keys") else 0
    own("Attention", inputs, 2, num_heads=heads, unidirectional=causal)


@pytest.mark.parametrize("form", ["plain", "bias", "cross", "past", "packed"])
def test_attention_of_many_heads(form: str, rng: np.random.Generator) -> None:
    heads, width, rows, keys = 2, 8, 4, 5
    if form == "packed":  # ONNX Runtime has it on GPUs only
        packed = floats(rng, 2, rows, heads, 3, 4)
        apart = {name: packed[:, :, :, index].reshape(2, rows, width) for index, name in enumerate("qkv")}
        results = []
        for feeds in ({"q": packed}, apart):
            model, _ = model_of("MultiHeadAttention", given(**feeds), ["y"], domain="com.microsoft", num_heads=heads)
            results.append(reference.run(import_onnx(model), feeds)["y"])
        np.testing.assert_allclose(*results, rtol=1e-12)
        return
    shape = (2, heads, keys, 4) if form == "cross" else (2, keys, width)
    inputs = given(q=floats(rng, 2, rows, width), k=floats(rng, *shape), v=floats(rng, *shape))
    inputs.append(("bias", floats(rng, 3 * width), True) if form == "bias" else NONE)
    if form in ("plain", "bias"):
        inputs.append(("mask", np.array([[1] * keys, [1, 1, 1, 0, 0]], np.int32), False))
        inputs.append(("added", floats(rng, 1, heads, rows, keys), False))
    if form == "past":
        inputs += [NONE, NONE] + given(pk=floats(rng, 2, heads, 3, 4), pv=floats(rng, 2, heads, 3, 4))
    own("MultiHeadAttention", inputs, 3 if form == "past" else 1, num_heads=heads)


@pytest.mark.parametrize("case", ["prompt", "next", "padded", "window", "packed", "softcap", "sinks", "smooth"])
def test_attention_of_grouped_heads(case: str, rng: np.random.Generator) -> None:
    heads, groups, width = 4, 2, 16
    past, rows = (0, 5) if case in ("prompt", "window", "packed") else (6, 1)
    total = past + rows
    counts = np.array([total - 1, total - (3 if case == "padded" else 1)], np.int32)
    if case == "packed":
        inputs = [*given(q=floats(rng, 2, rows, (heads + 2 * groups) * width)), NONE, NONE]
    else:
        sizes = {"q": heads, "k": groups, "v": groups}
        inputs = given(**{name: floats(rng, 2, rows, count * width) for name, count in sizes.items()})
    inputs += given(pk=floats(rng, 2, groups, past, width), pv=floats(rng, 2, groups, past, width))
    inputs += [("counts", counts, False), ("total", np.array([total], np.int32), True)]
    inputs += constants(cos=floats(rng, 16, width // 2), sin=floats(rng, 16, width // 2))
    options = {"local_window_size": 3} if case == "window" else {"softcap": 2.0} if case == "softcap" else {}
    options |= {"smooth_softmax": 1} if case == "smooth" else {}
    if case == "sinks":
        inputs += [NONE, NONE, *constants(sinks=floats(rng, heads))]
    names = ["y", "pk2", "pv2"]
    heads_of = {"num_heads": heads, "kv_num_heads": groups, "do_rotary": 1}
    model, feeds = model_of("GroupQueryAttention", inputs, names, domain="com.microsoft", **heads_of, **options)
    check(model, feeds, rtol=1e-3)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_positions(interleaved: int, rng: np.random.Generator) -> None:
    tables = constants(cos=floats(rng, 10, 3), sin=floats(rng, 10, 3))
    places = rng.integers(0, 10, (2, 4))
    own("RotaryEmbedding", given(x=floats(rng, 2, 4, 18), p=places) + tables, interleaved=interleaved)
    one = np.array([2], np.int64)
    own("RotaryEmbedding", given(x=floats(rng, 2, 3, 4, 6), p=one) + tables, interleaved=interleaved)


# Quantized -------------------------------------------------------------------------------------------


def scale(number: float) -> np.ndarray:
    return np.array(number, np.float32)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantized_arithmetic(dtype: type, rng: np.random.Generator) -> None:
    limits = np.iinfo(dtype)
    zero = np.array(int(limits.min) + 120, dtype)

    def integers(*shape: int) -> np.ndarray:
        return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)

    x, y = integers(2, 3, 4, 4), integers(2, 3, 4, 4)
    first = [("x", x, False), ("xs", scale(0.05), True), ("xz", zero, True)]
    second = [("y", y, False), ("ys", scale(0.03), True), ("yz", zero, True)]
    result = [("zs", scale(0.08), True), ("zz", zero, True)]
    own("QLinearAdd", first + second + result, steps=1)
    own("QLinearMul", first + second + result, steps=1)
    own("QLinearConcat", [*result, *first, *second], steps=1, axis=1)
    own("QLinearLeakyRelu", first + result, steps=1, alpha=0.1)
    own("QLinearSigmoid", [*first, ("zs", scale(1 / 256), True), ("zz", zero, True)], steps=1)
    own("QLinearGlobalAveragePool", first + result, steps=1)
    own("QLinearGlobalAveragePool", first + result, steps=1, channels_last=1)
    own("QLinearAveragePool", first + result, steps=1, kernel_shape=[2, 3], strides=[2, 1])
    own("NhwcMaxPool", [("x", x, False)], kernel_shape=[2, 2], strides=[1, 2])


def test_quantized_products(rng: np.random.Generator) -> None:
    a, b = rng.integers(0, 256, (5, 8), dtype=np.uint8), few_bits(rng, 8, 6)
    columns = rng.random(6, dtype=np.float32)
    zeros = [("az", np.array(130, np.uint8), True), ("bz", np.array(3, np.int8), True)]
    rest = [("c", floats(rng, 6), True)]
    scales = [("as", scale(0.02), True), ("bs", scale(0.05), True)]
    own("MatMulIntegerToFloat", [("a", a, False), ("b", b, True), *scales, *zeros, *rest])
    own("MatMulIntegerToFloat", [("a", a, False), ("b", b, True), scales[0], ("bs", columns, True), zeros[0]])
    x = ("x", floats(rng, 3, 8), False)
    own("DynamicQuantizeMatMul", [x, ("b", b, True), ("bs", scale(0.05), True), zeros[1], *rest])
    own("DynamicQuantizeMatMul", [x, ("b", b, True), ("bs", columns, True)])
    left, right = [("a", a, False), scales[0], zeros[0]], [("b", b, True), scales[1], zeros[1]]
    bias = ("c", rng.integers(-500, 500, 6).astype(np.int32), True)
    own("QGemm", [*left, *right, bias])
    result = [("ys", scale(0.4), True), ("yz", np.array(100, np.uint8), True)]
    own("QGemm", [*left, *right, bias, *result], steps=1, alpha=0.5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_zero_points_of_columns(dtype: type, rng: np.random.Generator) -> None:
    """What the quantiser writes with a scale for each channel."""
    a, b = rng.integers(0, 256, (2, 5, 8), dtype=np.uint8), np.abs(few_bits(rng, 8, 6)).astype(dtype)
    zeros, columns = np.zeros(6, dtype), rng.uniform(0.01, 0.02, 6).astype(np.float32)
    left, right = ("az", np.array(130, np.uint8), True), ("bz", zeros, True)
    given_ = [("a", a, False), ("b", b, True)]
    check(*model_of("MatMulInteger", [*given_, left, right], ["y"]))
    inputs = [given_[0], ("as", scale(0.02), True), left, given_[1], ("bs", columns, True), right]
    inputs += [("ys", scale(0.1), True), ("yz", np.array(100, np.uint8), True)]
    check(*model_of("QLinearMatMul", inputs, ["y"]), steps=1)


def test_quantized_convolution_with_channels_last(rng: np.random.Generator) -> None:
    x, w = rng.integers(0, 256, (1, 5, 6, 4), dtype=np.uint8), few_bits(rng, 8, 4, 3, 3)
    inputs = [("x", x, False), ("xs", scale(0.02), True), ("xz", np.array(120, np.uint8), True)]
    inputs += [("w", w, True), ("ws", scale(0.03), True), ("wz", np.array(0, np.int8), True)]
    inputs += [("ys", scale(0.5), True), ("yz", np.array(99, np.uint8), True)]
    own("QLinearConv", inputs, steps=1, channels_last=1, pads=[1, 1, 1, 1])


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("columns", [False, True])
def test_quantized_attention(past: int, columns: bool, rng: np.random.Generator) -> None:
    heads, width, rows, keys = 2, 8, 4, 4 + past
    x, w = rng.integers(0, 256, (2, rows, 6), dtype=np.uint8), few_bits(rng, 6, 24)
    inputs = [("x", x, False), ("w", w, True), ("b", floats(rng, 24), True), ("xs", scale(0.02), True)]
    inputs.append(("ws", rng.uniform(0.01, 0.02, 24 if columns else 1).astype(np.float32), True))
    inputs.append(("mask", np.array([[1] * keys, [1] * (keys - 2) + [0] * 2], np.int32), False))
    zeros = np.zeros(24, np.int8) if columns else np.array([3], np.int8)
    inputs += [("xz", np.array(120, np.uint8), True), ("wz", zeros, True)]
    if past:
        inputs.append(("past", floats(rng, 2, 2, heads, past, width // heads), False))
    own("QAttention", inputs, 2, num_heads=heads, unidirectional=int(rng.integers(0, 2)))


def test_quantized_embeddings(rng: np.random.Generator) -> None:
    ids, kinds = rng.integers(0, 9, (2, 5)).astype(np.int32), rng.integers(0, 2, (2, 5)).astype(np.int32)
    names = {"words": (9, 8), "places": (6, 8), "segments": (2, 8), "scale": (8,), "bias": (8,)}
    tables = constants(**{name: rng.integers(0, 256, shape, dtype=np.uint8) for name, shape in names.items()})
    mask = ("mask", np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32), False)
    scales = constants(**{f"{name}_s": scale(rng.uniform(0.01, 0.03)) for name in names})
    zeros = constants(**{f"{name}_z": np.array(rng.integers(110, 140), np.uint8) for name in names})
    own("QEmbedLayerNormalization", [*given(ids=ids, kinds=kinds), *tables, mask, *scales, *zeros], 2)


def test_quantized_choice_and_products_of_16_bits(rng: np.random.Generator) -> None:
    x, y = (rng.integers(0, 256, (3, 4), dtype=np.uint8) for _ in range(2))
    inputs = [("c", rng.random((3, 4)) < 0.5, False), ("x", x, False), ("xs", scale(0.05), True)]
    inputs += [("xz", np.array(100, np.uint8), True), ("y", y, False), ("ys", scale(0.03), True)]
    inputs += [("yz", np.array(90, np.uint8), True), ("zs", scale(0.08), True), ("zz", np.array(95, np.uint8), True)]
    own("QLinearWhere", inputs, steps=1)
    a, b = (rng.integers(-3000, 3000, shape).astype(np.int16) for shape in ((2, 3, 5), (5, 4)))
    own("MatMulInteger16", given(a=a, b=b))


@pytest.mark.parametrize("kind", [0, 1])
def test_products_of_weights_by_table(kind: int, rng: np.random.Generator) -> None:
    depth, columns, block = 32, 6, 16
    packed = rng.integers(0, 256, depth * columns // 2, dtype=np.uint8)
    scales = rng.random(depth * columns // block, dtype=np.float32)
    inputs = given(x=floats(rng, 2, 3, depth)) + constants(w=packed, s=scales)
    own("MatMulBnb4", inputs, K=depth, N=columns, block_size=block, quant_type=kind)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", [False, True])
def test_slices_of_packed_tables(bits: int, zero: bool, rng: np.random.Generator) -> None:
    blocks, block = 3, 16
    data = rng.integers(0, 256, (9, blocks * block * bits // 8), dtype=np.uint8)
    inputs = [("w", data, True), ("i", rng.integers(-9, 9, (2, 5)), False), ("s", floats(rng, 9, blocks), True)]
    if zero:
        inputs.append(("z", rng.integers(0, 256, (9, -(-blocks * bits // 8)), dtype=np.uint8), True))
    own("GatherBlockQuantized", inputs, bits=bits, block_size=block, quantize_axis=1, gather_axis=0)


@pytest.mark.parametrize("known", [False, True])
def test_transposed_convolution_of_computed_padding(known: bool, rng: np.random.Generator) -> None:
    inputs = given(x=floats(rng, 1, 3, 4, 5)) + constants(w=floats(rng, 3, 2, 3, 3))
    inputs += [("pads", np.array([1, 0, 1, 2]), known), ("b", floats(rng, 2), True)]
    own("ConvTransposeWithDynamicPads", inputs, strides=[2, 2], output_padding=[1, 0])


def test_group_norm_of_a_sum(rng: np.random.Generator) -> None:
    """ONNX Runtime has it on GPUs only: as the operations that it stands for."""
    x, skip, bias = floats(rng, 2, 3, 3, 8), floats(rng, 2, 8), floats(rng, 8)
    table = {"scale": floats(rng, 8), "shift": floats(rng, 8)}
    options = {"domain": "com.microsoft", "groups": 2, "activation": 1}
    inputs = given(x=x) + constants(**table) + given(skip=skip, bias=bias)
    model, feeds = model_of("SkipGroupNorm", inputs, ["y", "s"], **options)
    found = reference.run(import_onnx(model), feeds)
    total = x + skip[:, None, None] + bias
    whole, _ = model_of("GroupNorm", given(x=total) + constants(**table), ["y"], **options)
    np.testing.assert_allclose(found["s"], total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["y"], reference.run(import_onnx(whole), {"x": total})["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
@pytest.mark.parametrize("normalized", [0, 1])
def test_experts(activation: str, normalized: int, rng: np.random.Generator) -> None:
    halves = 2 if activation == "swiglu" else 1
    inputs = given(x=floats(rng, 5, 8), scores=3 * floats(rng, 5, 4))
    inputs += constants(w1=floats(rng, 4, 6 * halves, 8), b1=floats(rng, 4, 6 * halves), w2=floats(rng, 4, 8, 6))
    options = {"activation_type": activation, "k": 2, "normalize_routing_weights": normalized}
    if activation == "swiglu":
        options |= {"swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 0.7}
    own("MoE", inputs, **options)


def test_sizes_that_the_file_leaves_open_follow_from_others(rng: np.random.Generator) -> None:
    inputs = given(x=floats(rng, 5, 8), scores=floats(rng, 5, 4))
    inputs += constants(w1=floats(rng, 4, 6, 8), b1=floats(rng, 4, 6), w2=floats(rng, 4, 8, 6))
    experts = model_of("MoE", inputs, ["y"], domain="com.microsoft", activation_type="relu", k=2)
    inputs = given(q=floats(rng, 2, 3, 64), k=floats(rng, 2, 3, 32), v=floats(rng, 2, 3, 32)) + [NONE, NONE]
    inputs += [("counts", np.array([2, 2], np.int32), True), ("total", np.array([3], np.int32), True)]
    heads = {"num_heads": 4, "kv_num_heads": 2}
    grouped = model_of("GroupQueryAttention", inputs, ["y", "a", "b"], domain="com.microsoft", **heads)
    grouped[0].graph.input[2].type.tensor_type.shape.dim[2].dim_param = "width"
    experts[0].graph.input[1].type.tensor_type.shape.dim[1].dim_param = "experts"
    for model, feeds in (experts, grouped):
        check(model, feeds, rtol=1e-3)
    inputs = given(q=floats(rng, 2, 3, 8), k=floats(rng, 2, 3, 8), v=floats(rng, 2, 3, 4))
    model, feeds = model_of("MultiHeadAttention", inputs, ["y"], domain="com.microsoft", num_heads=2)
    model.graph.input[2].type.tensor_type.shape.dim[2].dim_param = "width"
    with pytest.raises(UnsupportedOperationError, match="heads of the dynamic width"):
        import_onnx(model)
    (found,) = InferenceSession(model).run(None, feeds)  # an engine for the sizes of the call
    np.testing.assert_allclose(found, runtime_results(model, feeds)[0], rtol=1e-4, atol=1e-5)


def test_of_equal_scores_the_last_expert_is_taken(rng: np.random.Generator) -> None:
    inputs = given(x=floats(rng, 2, 8), scores=np.array([[1, 2, 2, 0], [3, 3, 3, 3]], np.float32))
    inputs += constants(w1=floats(rng, 4, 6, 8), b1=floats(rng, 4, 6), w2=floats(rng, 4, 8, 6))
    own("MoE", inputs, activation_type="relu", k=1, normalize_routing_weights=1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("zero", [False, True])
def test_experts_of_packed_weights(bits: int, block: int, zero: bool, rng: np.random.Generator) -> None:
    experts, width, hidden, packed = 4, 32, 32, 8 // bits
    inputs, zeros = given(x=floats(rng, 5, width), scores=3 * floats(rng, 5, experts)), []
    for name, rows, columns in (("1", hidden, width), ("2", width, hidden)):
        weight = rng.integers(0, 256, (experts, rows, columns // packed), dtype=np.uint8)
        groups = (columns // block,) if block else ()
        scales = rng.uniform(0.01, 0.02, (experts, rows, *groups)).astype(np.float32) * 16 / 2**bits
        inputs += [*constants(**{"w" + name: weight, "s" + name: scales}), NONE]
        bytes_ = (experts, rows, -(-groups[0] // packed)) if block else (experts, rows // packed)
        zeros += constants(**{"z" + name: rng.integers(0, 256, bytes_, dtype=np.uint8)})
    options = {"k": 2, "activation_type": "silu", "expert_weight_bits": bits, "normalize_routing_weights": 1}
    options |= {"block_size": block} if block else {}
    model, feeds = model_of(
        "QMoE", [*inputs, *[NONE] * 3, *(zeros if zero else [])], ["y"], domain="com.microsoft", **options
    )
    rounded = bits == 8 and block  # tokens become 8 bits in ONNX Runtime, twice
    check(model, feeds, rtol=0.1 if rounded else 1e-3)


def test_lists(rng: np.random.Generator) -> None:
    numbers = rng.integers(0, 5, 12)
    own("Unique", given(x=numbers.astype(np.float32)), 3)
    own("Range", constants(start=np.array(1.5, np.float32), limit=np.array(6, np.float32)))
    own("Range", given(start=np.array(1, np.int32), limit=np.array(9, np.int32), delta=np.array(3, np.int32)))
    own("GatherND", given(x=floats(rng, 3, 4, 2), places=rng.integers(0, 3, (5, 2))))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("columns", "batch"), [(False, 1), (True, 1), (False, 3)])
def test_quantized_recurrent_layer(direction: str, columns: bool, batch: int, rng: np.random.Generator) -> None:
    """The rows of a step, which ONNX Runtime quantizes by one range, as every build does."""
    hidden, width, steps, sides = 16, 8, 6, 1 + (direction == "bidirectional")
    inputs = given(x=floats(rng, steps, batch, width) * np.linspace(0.2, 1, batch, dtype=np.float32)[:, None])
    for name, depth in (("w", width), ("r", hidden)):
        inputs.append((name, few_bits(rng, sides, depth, 4 * hidden), True))
    inputs += [("b", floats(rng, sides, 8 * hidden), True), NONE]
    inputs += [*given(h=floats(rng, sides, batch, hidden), c=floats(rng, sides, batch, hidden)), NONE]
    count = (sides, 4 * hidden) if columns else (sides,)
    for name in ("w", "r"):
        inputs.append((f"{name}s", rng.uniform(0.5, 1, count).astype(np.float32) / 400, True))
        inputs.append((f"{name}z", np.zeros(count, np.int8), True))
    model, feeds = model_of(
        "DynamicQuantizeLSTM", inputs, ["y", "y_h", "y_c"], domain="com.microsoft", hidden_size=hidden,
        direction=direction,
    )  # fmt: skip
    # A number that lies between two levels may be rounded to either: the weights of one state, 0.3 at most, move by a
    # level, 2 / 255 at most, and the cell keeps that.
    check(model, feeds, rtol=2e-3, atol=0.3 * 2 / 255 * 2)


BLOCKED = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    m (float[n, 3, h, w] x, float[16, 3, 3, 3] w0, float[16, 1, 3, 3] w1, float[24, 16, 1, 1] w2, float[24] b2,
       float[24, 24, 3, 3] w3) => (float[n, 24, a, b] y, float[n, 24, 1, 1] z) {
        c0 = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w0) r0 = Relu(c0)
        c1 = Conv <group = 16, pads = [1, 1, 1, 1]> (r0, w1) r1 = HardSigmoid(c1)
        p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1) a1 = AveragePool <kernel_shape = [2, 2]> (p1)
        c2 = Conv(a1, w2, b2) s = Sigmoid(c2) t = Mul(c2, s) c3 = Conv <auto_pad = "SAME_UPPER"> (t, w3) u = Add(c3, t)
        k = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> ()
        y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (u, , k)
        g = GlobalAveragePool(u) z = Relu(g) }""")


def blocked(rng: np.random.Generator, place: Path) -> onnx.ModelProto:
    """A network with its channels in blocks, as ONNX Runtime saves it."""
    model = onnx.ModelProto()
    model.CopyFrom(BLOCKED)
    for entry in list(model.graph.input)[1:]:
        shape = [dim.dim_value for dim in entry.type.tensor_type.shape.dim]
        model.graph.initializer.append(numpy_helper.from_array(floats(rng, *shape), entry.name))
    del model.graph.input[1:]
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(place), 4
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(place)


def test_channels_in_blocks(rng: np.random.Generator, tmp_path: Path) -> None:
    saved = blocked(rng, tmp_path / "saved.onnx")
    found = {node.op_type for node in saved.graph.node if node.domain == "com.microsoft.nchwc"}
    assert {"Conv", "MaxPool", "ReorderOutput", "Upsample"} <= found
    check(saved, {"x": floats(rng, 2, 3, 22, 26)}, rtol=1e-3)
    assert any("in blocks of" in remark for remark in import_onnx(saved).remarks)


def test_channels_that_make_up_no_blocks_are_refused(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = blocked(rng, tmp_path / "saved.onnx")
    monkeypatch.setattr("tilewright.importers.onnx_ops.microsoft_blocked.block_of_host", lambda: 64)
    with pytest.raises(UnsupportedOperationError, match=r"blocks of 64.*\n.*ORT_ENABLE_EXTENDED"):
        import_onnx(saved)


X = np.linspace(-3, 5, 120, dtype=np.float32).reshape(2, 3, 4, 5) ** 2 - 4
ONLY_RUNTIME = (  # operation, its constants, attributes
    ("Affine", [], {"alpha": 2.0, "beta": 0.3}),
    ("Affine", [], {}),
    ("Crop", [], {"border": [1, 0, 2, 1]}),
    ("Crop", [], {"border": [1, 1, 1, 1], "scale": [2, 3]}),
    ("DynamicSlice", [np.array([1, 0]), np.array([3, 1]), np.array([3, 0])], {}),
    ("ImageScaler", [], {"scale": 0.5, "bias": [0.1, 0.2, 0.3]}),
    ("LayerNormalization", [X[0, 0, 0], X[0, 0, 1]], {"epsilon": 1e-5}),
    ("MeanVarianceNormalization", [], {}),
    ("MeanVarianceNormalization", [], {"across_channels": 1}),
    ("MeanVarianceNormalization", [], {"normalize_variance": 0}),
    ("ParametricSoftplus", [], {"alpha": 2.0, "beta": 0.3}),
    ("Scale", [], {"scale": 2.0}),
    ("ScaledTanh", [], {"alpha": 2.0, "beta": 0.3}),
    ("ThresholdedRelu", [], {"alpha": 0.3}),
)


@pytest.mark.parametrize("number", range(len(ONLY_RUNTIME)), ids=lambda number: f"{number} {ONLY_RUNTIME[number][0]}")
def test_operations_of_the_runtime_in_early_opsets(number: int) -> None:
    operation, parts, attributes = ONLY_RUNTIME[number]
    inputs = given(x=X) + constants(**{f"c{place}": part for place, part in enumerate(parts)})
    check(*model_of(operation, inputs, ["y"], opset=7, **attributes))


def test_layer_normalization_that_the_runtimes_optimiser_writes() -> None:
    for opset in (11, 16):
        parts = given(x=X) + constants(s=X[0, 0, 0], b=X[0, 0, 1])
        check(*model_of("LayerNormalization", parts, ["y", "mean", "spread"], opset=opset, epsilon=1e-5, axis=-1))
    with pytest.raises(UnsupportedOperationError, match="no operation of this name is in any opset"):
        import_onnx(model_of("ImageScaler", given(x=X), ["y"], opset=10, bias=[0.1, 0.2, 0.3])[0])


@pytest.mark.parametrize("size", [(4, 3), (1, 5), (2, 1)])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_boxes_of_pictures(mode: str, size: tuple[int, int], rng: np.random.Generator) -> None:
    boxes = rng.uniform(-0.2, 1.2, (6, 4)).astype(np.float32)
    parts = given(x=floats(rng, 2, 3, 7, 9), boxes=boxes, picture=rng.integers(0, 2, 6).astype(np.int32))
    parts += constants(size=np.array(size, np.int32))
    own("CropAndResize", parts, mode=mode, extrapolation_value=0.5)


@pytest.mark.parametrize("case", range(12))
def test_pools_of_what_a_mask_shows(case: int) -> None:
    """Of one dimension to three; masks of one channel, and of all of them as ONNX Runtime reads these."""
    rng = np.random.default_rng(case)
    count = 1 + case % 3
    extents, kernel = rng.integers(3, 7, count).tolist(), rng.integers(1, 4, count).tolist()
    shape, channels = (2, 3, *extents), [(1, 1), (2, 3), (1, 3)][int(rng.integers(0, 3))]
    mask = (rng.random((*channels, *extents)) < 0.8).astype(np.int32)
    pads = [int(rng.integers(0, size)) for size in kernel] * 2
    options = {"kernel_shape": kernel, "strides": rng.integers(1, 3, count).tolist(), "pads": pads}
    own("MaxpoolWithMask", given(x=floats(rng, *shape), mask=mask), **options)


@pytest.mark.parametrize("form", ["across", "cache", "masked", "biased"])
def test_attention_of_one_query(form: str, rng: np.random.Generator) -> None:
    batch, heads, size, longest, past = 2, 3, 4, 7, 5
    hidden, options = heads * size, {"num_heads": heads}
    rows = {"query": floats(rng, batch, 1, hidden)}
    bias = constants(bias=floats(rng, 3 * hidden)) if form == "biased" else [NONE]
    if form == "across":
        caches = given(key=floats(rng, batch, heads, 6, size), value=floats(rng, batch, heads, 6, size))
        mask = (rng.random((batch, 6)) < 0.7).astype(np.int32)
        own("DecoderMaskedMultiHeadAttention", given(**rows) + caches + given(mask=mask), **options)
        return
    rows |= {"key": floats(rng, batch, 1, hidden), "value": floats(rng, batch, 1, hidden)}
    mask = np.array([[1, 1, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]], np.int32)
    inputs = given(**rows) + (given(mask=mask) if form == "masked" else [NONE])
    inputs += given(added=floats(rng, 1, heads, 1, past + 1)) if form == "biased" else [NONE]
    caches = {name: floats(rng, batch, heads, longest, size) for name in ("keys", "values")}
    inputs += given(**caches, past=np.array([past], np.int32)) + [NONE, NONE] + bias
    own("DecoderMaskedMultiHeadAttention", inputs, 3, **options, past_present_share_buffer=1)


@pytest.mark.parametrize(("rows", "total", "packed"), [(32, 32, False), (1, 40, False), (3, 40, True), (48, 48, True)])
def test_attention_of_blocks(rows: int, total: int, packed: bool, rng: np.random.Generator) -> None:
    """ONNX Runtime writes the new keys to the cache that it is given."""
    batch, heads, groups, size, longest = 2, 4, 2, 16, 64
    begins = np.array([[0, 1, 2, 4, 6], [0, 1, 3, 6, 10]], np.int32)
    columns = np.array([[0, 1, 1, 2, 0, 3, -1, -1, -1, -1], [0, 0, 1, 0, 1, 2, 0, 1, 2, 3]], np.int32)
    widths = [heads + 2 * groups] if packed else [heads, groups, groups]
    inputs = given(**{f"x{place}": floats(rng, batch, rows, width * size) for place, width in enumerate(widths)})
    inputs += [NONE] * (3 - len(widths))
    caches = {name: floats(rng, batch, groups, longest, size) for name in ("keys", "values")}
    ends = np.array([total] * 2, np.int32)  # of other lengths ONNX Runtime reads weights of other rows
    inputs += given(**caches) + constants(begins=begins, columns=columns)
    inputs += given(total=np.array([total], np.int32), ends=ends) + constants(
        c=floats(rng, longest, 8), s=floats(rng, longest, 8)
    )
    options = {"num_heads": heads, "kv_num_heads": groups, "sparse_block_size": 16, "do_rotary": 1}
    made, feeds = model_of("SparseAttention", inputs, ["y", "k", "v"], domain="com.microsoft", **options)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    binding, held = session.io_binding(), {n: onnxruntime.OrtValue.ortvalue_from_numpy(x) for n, x in feeds.items()}
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y")
    binding.bind_ortvalue_output("k", held["keys"])
    binding.bind_ortvalue_output("v", held["values"])
    found = InferenceSession(made).run(None, feeds)
    session.run_with_iobinding(binding)
    for left, right in zip(found, binding.copy_outputs_to_cpu(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-4)
