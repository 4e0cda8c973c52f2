"""Quantized products as sums of 8-bit integers: exact, with their zero points, in one kernel with what follows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.dtypes import DType, bfloat16, float8e4nv, float16, float32, float64, int8, int32, uint8
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.passes.fold_zero_points import fold_zero_points
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.narrow_products import narrow_products
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import run_graph
from tilewright.graph.verifier import verify
from tilewright.library import packing
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.library_facts import CPU_KERNELS

if not CPUTarget.host().kernels.narrow_types:
    pytest.skip("products of integers are computed in floats here", allow_module_level=True)


def kernels(*types: DType, zeros_around: bool = False) -> KernelFacts:
    """Those that multiply these types."""
    return replace(CPU_KERNELS, narrow_types=frozenset(types), zeros_around=zeros_around)


def number(b: GraphBuilder, value: float, dtype: DType = float32) -> Value:
    return b.constant(np.array(value, dtype.numpy))


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    limits = np.iinfo(dtype.numpy)
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype.numpy)


def results(
    graph: Graph, symbols: dict[str, int] | None = None, **inputs: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What the engine gives, and what the graph means in float32 (sums of 8 bits are exact in either)."""
    reference = run_graph(graph, [inputs[value.name] for value in graph.inputs], symbols or {})
    found = build(graph, CPUTarget.host()).run(inputs)
    return [found[name] for name in graph.output_names], [reference[value] for value in graph.outputs]


def products(graph: Graph, op: str = "matmul") -> list[str]:
    """The types of all products after the passes."""
    optimized = optimize(narrow_products(graph, kernels(uint8)))
    verify(optimized)
    return [str(node.output.dtype) for node in optimized.nodes if node.op == op]


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("activations", [uint8, int8], ids=str)
@pytest.mark.parametrize("weights", [uint8, int8], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_pairs_around_a_product(
    rows: int, activations: DType, weights: DType, transposed: bool, rng: np.random.Generator
) -> None:
    """Zero points on both sides, for each column on the right; bias, activation and the next quantization."""
    depth, columns = 68, 50
    b = GraphBuilder("pairs")
    x = b.input("x", float32, (2, rows, depth))
    scale, zero = number(b, 0.03), b.constant(np.array(integers(rng, (), activations)))
    read = b.op("dequantize", [b.op("quantize", [x, scale, zero], dtype=activations), scale, zero])
    matrix = b.constant(integers(rng, (columns, depth) if transposed else (depth, columns), weights))
    aside = (columns, 1) if transposed else (1, columns)
    scales = b.constant(rng.uniform(0.001, 0.002, aside).astype(np.float32))
    zeros = b.constant(integers(rng, aside, weights))
    product = b.op("matmul", [read, b.op("dequantize", [matrix, scales, zeros])], transpose_b=transposed)
    y = b.op("relu", [b.op("add", [product, b.constant(rng.standard_normal(columns).astype(np.float32))])])
    b.output(b.op("quantize", [y, number(b, 0.11), number(b, 3, uint8)], dtype=uint8))
    graph = b.finish()
    assert products(graph) == ["i32"]
    (found,), (expected,) = results(graph, x=rng.standard_normal((2, rows, depth)).astype(np.float32))
    # the sums are exact; scale, bias and division are rounded in another order, which moves some that lie between two
    assert found.dtype == np.uint8 and np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    assert np.mean(found != expected) < 0.04 and len(np.unique(expected)) > 9


@pytest.mark.parametrize(("rows", "depth", "columns"), [(3, 1028, 37), (33, 1028, 37), (5, 1027, 44), (33, 1025, 48)])
@pytest.mark.parametrize("zeros", ["none", "constant", "run time", "rows"])
def test_integer_products_are_exact(
    rows: int, depth: int, columns: int, zeros: str, rng: np.random.Generator
) -> None:  # fmt: skip
    """Sums of int32 as the definition has them, with the largest numbers at both ends; any depth is filled up."""
    b = GraphBuilder("sums")
    x = b.input("x", uint8, (rows, depth))
    wide, inputs = b.op("cast", [x], dtype=int32), {"x": integers(rng, (rows, depth), uint8)}
    inputs["x"][0], data = 255, integers(rng, (depth, columns), int8)
    data[:, 0], data[:, 1] = -128, 127
    if zeros == "constant":
        wide = b.op("subtract", [wide, number(b, 255, int32)])
    elif zeros != "none":
        point = b.input("point", uint8, () if zeros == "run time" else (rows, 1))
        inputs["point"] = integers(rng, point.shape, uint8)
        wide = b.op("subtract", [wide, b.op("cast", [point], dtype=int32)])
    weights = b.op("subtract", [b.op("cast", [b.constant(data)], dtype=int32), number(b, -5, int32)])
    b.output(b.op("matmul", [wide, weights]))
    graph = b.finish()
    assert products(graph) == ["i32"]
    (found,), (expected,) = results(graph, **inputs)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [float16, float32], ids=str)
def test_zero_points_are_part_of_the_bias(dtype: DType, rng: np.random.Generator) -> None:
    for depth, subtractions in ((64, 0), (70000, 1)):  # the sums of the second may wrap, their differences do not
        b = GraphBuilder("shifted")
        read = b.op("dequantize", [b.input("x", uint8, (5, depth)), number(b, 0.05), number(b, 131, uint8)])
        scales = b.constant(rng.uniform(0.001, 0.002, (1, 24)).astype(np.float32))
        weights = b.op("dequantize", [b.constant(integers(rng, (depth, 24), int8)), scales])
        read, weights = (b.op("cast", [item], dtype=dtype) if dtype != float32 else item for item in (read, weights))
        bias = b.constant(rng.standard_normal(24).astype(dtype.numpy))
        b.output(b.op("add", [b.op("matmul", [read, weights]), bias]))
        graph = b.finish()
        folded = optimize(fold_zero_points(narrow_products(graph, kernels(uint8))))
        verify(folded)
        assert [node.op for node in folded.nodes].count("subtract") == subtractions
        x = integers(rng, (5, depth), uint8)
        graphs = (folded, optimize(narrow_products(graph, kernels(uint8))))
        (found,), (expected,) = (run_graph(each, [x], {}).values() for each in graphs)
        eps = float(np.finfo(dtype.numpy).eps)
        np.testing.assert_allclose(found, expected, rtol=0, atol=4 * eps * float(np.abs(expected).max()))


@pytest.mark.parametrize(("depth", "lowest", "spread"), [(70000, 126, 6), (4096, 50, 3), (1024, 100, 3), (500, 100, 3)])
def test_zero_points_stay_where_float32_has_not_all_sums(
    depth: int, lowest: int, spread: int, rng: np.random.Generator
) -> None:
    """The sums of 70000 wrap; those of 4096 and 1024 would lose the steps that are left of them."""
    b = GraphBuilder("direct")
    data, zero = rng.integers(lowest, 128, (depth, 4)).astype(np.int8), 131 if depth < 70000 else 252
    sums = b.op("matmul", [b.input("x", uint8, (5, depth)), b.constant(data)], dtype=int32)
    share = b.constant((zero * data.sum(0, dtype=np.int64)).astype(np.int32))
    scaled = b.op("multiply", [b.op("cast", [b.op("subtract", [sums, share])], dtype=float32), number(b, 0.001)])
    b.output(b.op("add", [scaled, b.constant(rng.standard_normal(4).astype(np.float32))]))
    graph = b.finish()
    folded = optimize(fold_zero_points(graph))
    assert [node.op for node in folded.nodes].count("subtract") == (depth > 500)
    x = rng.integers(zero - spread // 2, zero + spread // 2 + 1, (5, depth)).astype(np.uint8)
    (found,), (expected,) = (run_graph(each, [x], {}).values() for each in (folded, graph))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.002)  # two steps of the sums


def test_one_kernel_for_product_bias_residual_and_quantization(rng: np.random.Generator) -> None:
    b = GraphBuilder("layer")
    rows = b.symbol("rows", 1, 200)
    x, residual = b.input("x", uint8, (rows, 64)), b.input("r", uint8, (rows, 48))
    read = b.op("dequantize", [x, number(b, 0.05), number(b, 7, uint8)])
    weights = b.op("dequantize", [b.constant(integers(rng, (64, 48), int8)), number(b, 0.01)])
    y = b.op("add", [b.op("matmul", [read, weights]), b.constant(rng.standard_normal(48).astype(np.float32))])
    y = b.op("gelu", [b.op("add", [y, b.op("dequantize", [residual, number(b, 0.1), number(b, 128, uint8)])])])
    b.output(b.op("quantize", [y, number(b, 0.2), number(b, 4, uint8)], dtype=uint8))
    graph = b.finish()
    groups = [group for group in fuse(optimize(narrow_products(graph, kernels(uint8)))).groups if group.kind != "view"]
    assert [group.kind for group in groups] == ["contraction"]
    for count in (1, 150):
        inputs = {"x": integers(rng, (count, 64), uint8), "r": integers(rng, (count, 48), uint8)}
        (found,), (expected,) = results(graph, {"rows": count}, **inputs)
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1 and np.mean(found != expected) < 0.04


def test_moves_do_not_stand_between(rng: np.random.Generator) -> None:
    """Ops that only move elements move integers, so that the products after them take integers."""
    b = GraphBuilder("moves")
    x = b.input("x", float32, (2, 8, 6, 4))
    scale, zero = number(b, 0.02), number(b, -3, int8)
    read = b.op("dequantize", [b.op("quantize", [x, scale, zero], dtype=int8), scale, zero])
    rows = b.op("reshape", [b.op("permute", [read], order=(0, 2, 1, 3))], shape=(12, 32))
    scales = b.constant(rng.uniform(0.01, 0.02, (20, 1)).astype(np.float32))
    weights = b.op("dequantize", [b.constant(integers(rng, (20, 32), int8)), scales])
    b.output(b.op("matmul", [rows, b.op("permute", [weights], order=(1, 0))]))
    graph = b.finish()
    assert products(graph) == ["i32"]
    (found,), (expected,) = results(graph, x=rng.standard_normal((2, 8, 6, 4)).astype(np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("zero", ["constant", "run time", "none"])
@pytest.mark.parametrize(
    ("kernel", "strides", "padding", "dilation"),
    [
        ((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
        ((1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
        ((1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1)),
        ((3, 2), (2, 1), ((2, 0), (0, 3)), (1, 2)),
        ((5,), (1,), ((2, 2),), (1,)),
    ],
    ids=str,
)
def test_convolutions(
    zero: str, kernel: tuple[int, ...], strides: tuple[int, ...], padding: object, dilation: tuple[int, ...],
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Padding stands for zero, whatever the zero point; scales for each channel, a bias, the next quantization."""
    channels, features, extents = 20, 35, (9, 11)[: len(kernel)]
    b = GraphBuilder("convolution")
    batch = b.symbol("batch", 1, 8)
    x = b.input("x", float32, (batch, channels, *extents))
    scale, inputs = number(b, 0.02), {"x": rng.standard_normal((2, channels, *extents)).astype(np.float32)}
    point = None
    if zero == "constant":
        point = number(b, -30, int8)
    elif zero == "run time":
        point, inputs["point"] = b.input("point", int8, ()), np.array(77, np.int8)
    read = b.op("dequantize", [b.op("quantize", [x, scale, point], dtype=int8), scale, point])
    taps = b.constant(integers(rng, (features, channels, *kernel), int8))
    scales = b.constant(rng.uniform(0.001, 0.003, (features, *[1] * (1 + len(kernel)))).astype(np.float32))
    bias = b.op("dequantize", [b.constant(rng.integers(-9999, 9999, features, dtype=np.int32)), number(b, 0.00004)])
    y = b.op("conv", [read, b.op("dequantize", [taps, scales]), bias], strides=strides, padding=padding,
             dilation=dilation)  # fmt: skip
    b.output(b.op("quantize", [b.op("relu", [y]), number(b, 0.09), number(b, 0, uint8)], dtype=uint8))
    graph = b.finish()
    assert products(graph, "conv") == ["i32"]
    (found,), (expected,) = results(graph, {"batch": 2}, **inputs)
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    assert np.mean(found != expected) < 0.01 and len(np.unique(expected)) > 20


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("zero", [0, 37])
@pytest.mark.parametrize("batch", [1, 3, None])
@pytest.mark.parametrize(
    ("channels", "features", "extents", "kernel", "padding", "dilation"),
    [
        (64, 35, (9, 11), (3, 3), ((1, 1), (1, 1)), (1, 1)),
        (64, 96, (14, 14), (3, 3), ((1, 1), (1, 1)), (1, 1)),
        (128, 64, (7, 7), (3, 3), ((1, 1), (1, 1)), (1, 1)),
        (64, 40, (12, 10), (2, 5), ((0, 1), (3, 0)), (3, 1)),
        (64, 20, (8, 40), (3, 3), ((0, 0), (0, 0)), (1, 1)),
        (64, 33, (5, 6), (1, 3), ((0, 0), (1, 1)), (1, 1)),
    ],
    ids=str,
)
def test_windows_in_place(
    zero: int, batch: int | None, channels: int, features: int, extents: tuple[int, int], kernel: tuple[int, int],
    padding: object, dilation: tuple[int, int], rng: np.random.Generator,
) -> None:  # fmt: skip
    """Whole lines of the cache for each pixel: windows that tile registers read where they lie, with what follows."""
    b = GraphBuilder("windows")
    images = batch or b.symbol("batch", 1, 8)
    x = b.input("x", uint8, (images, channels, *extents))
    taps = b.constant(integers(rng, (features, channels, *kernel), int8))
    bias = b.constant(rng.uniform(-99, 99, features).astype(np.float32))
    point = [number(b, zero, uint8)] if zero else []
    read = [b.op("dequantize", [x, number(b, 0.02), *point]), b.op("dequantize", [taps, number(b, 0.01)])]
    y = b.op("conv", [*read, bias], strides=(1, 1), padding=padding, dilation=dilation)
    residual = b.input("residual", float32, (images, *y.shape[1:]))
    b.output(b.op("quantize", [b.op("relu", [b.op("add", [y, residual])]), number(b, 0.9), number(b, 3, uint8)],
                  dtype=uint8))  # fmt: skip
    graph = b.finish()
    assert products(graph, "conv") == ["i32"]
    count = batch or 2
    added = rng.normal(0, 30, (count, *(int(size) for size in y.shape[1:])))
    inputs = {"x": integers(rng, (count, channels, *extents), uint8), "residual": added.astype(np.float32)}
    (found,), (expected,) = results(graph, {} if batch else {"batch": count}, **inputs)
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    assert np.mean(found != expected) < 0.01 and len(np.unique(expected)) > 20


@pytest.mark.parametrize(("channels", "taps"), [(22, 1), (3, 9), (8, 1)])
def test_small_windows_are_integers_where_vectors_sum_groups(channels: int, taps: int) -> None:
    """Pointwise convolutions of an odd number of channels, and first ones of 3 x 3."""
    wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
    plain, vnni, tiles = (
        CPUTarget.from_features("x86_64-unknown-linux-gnu", "", frozenset(wide | more), 1 << 15, 1 << 20).kernels
        for more in (set(), {"avx512vnni"}, {"avx512vnni", "amx-int8"})
    )
    assert vnni.takes_narrow(channels, taps)
    assert not plain.takes_narrow(channels, taps) and not tiles.takes_narrow(channels, taps)


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_few_channels_of_large_windows(strides: tuple[int, int], rng: np.random.Generator) -> None:
    """First convolutions of images are sums of integers, too: their windows are rows with zeros at the end."""
    b = GraphBuilder("first")
    x = b.input("x", uint8, (2, 3, 23, 30))
    taps = b.constant(integers(rng, (24, 3, 7, 7), int8))
    read = [b.op("dequantize", [x, number(b, 0.02), number(b, 9, uint8)]), b.op("dequantize", [taps, number(b, 0.01)])]
    b.output(b.op("conv", read, strides=strides, padding=((3, 3), (3, 3)), dilation=(1, 1)))
    graph = b.finish()
    assert products(graph, "conv") == ["i32"]
    (found,), (expected,) = results(graph, x=integers(rng, (2, 3, 23, 30), uint8))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize("zero", [0, 37])
@pytest.mark.parametrize("batch", [2, None])
@pytest.mark.parametrize(
    ("groups", "channels", "features", "kernel", "strides", "padding", "dilation"),
    [
        (3, 8, 8, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
        (2, 21, 35, (3, 2), (2, 1), ((2, 0), (0, 3)), (1, 2)),
        (4, 16, 48, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
        (2, 9, 16, (5,), (2,), ((2, 2),), (1,)),
    ],
    ids=str,
)
def test_groups_of_channels(
    zero: int, batch: int | None, groups: int, channels: int, features: int, kernel: tuple[int, ...],
    strides: tuple[int, ...], padding: object, dilation: tuple[int, ...], rng: np.random.Generator,
) -> None:  # fmt: skip
    """Each group of a convolution is a product of its own, of integers, with what follows."""
    extents = (9, 11)[: len(kernel)]
    b = GraphBuilder("groups")
    images = batch or b.symbol("batch", 1, 8)
    x = b.input("x", uint8, (images, groups * channels, *extents))
    taps = b.constant(integers(rng, (groups * features, channels, *kernel), int8))
    bias = b.constant(rng.uniform(-99, 99, groups * features).astype(np.float32))
    image = b.op("dequantize", [x, number(b, 0.02), number(b, zero, uint8)])
    inputs = [image, b.op("dequantize", [taps, number(b, 0.01)]), bias]
    y = b.op("conv", inputs, strides=strides, padding=padding, dilation=dilation, groups=groups)
    b.output(b.op("quantize", [b.op("relu", [y]), number(b, 0.9), number(b, 3, uint8)], dtype=uint8))
    graph = b.finish()
    assert products(graph, "conv") == ["i32"]
    given = integers(rng, (batch or 2, groups * channels, *extents), uint8)
    (found,), (expected,) = results(graph, {} if batch else {"batch": 2}, x=given)
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    assert np.mean(found != expected) < 0.01 and len(np.unique(expected)) > 20


def test_convolutions_of_integers_are_exact(rng: np.random.Generator) -> None:
    """As ONNX's QLinearConv and ConvInteger are read: integers less their zero points, as floats that have all sums."""
    b = GraphBuilder("sums")
    x = b.input("x", uint8, (1, 24, 8, 7))
    image = b.op("subtract", [b.op("cast", [x], dtype=int32), number(b, 131, int32)])
    data = integers(rng, (16, 24, 3, 3), uint8) // 2
    taps = b.op("subtract", [b.op("cast", [b.constant(data)], dtype=int32), number(b, 60, int32)])
    y = b.op("conv", [b.op("cast", [image], dtype=float32), b.op("cast", [taps], dtype=float32)], strides=(1, 1),
             padding=((1, 1), (1, 1)), dilation=(1, 1), exact=True)  # fmt: skip
    b.output(b.op("cast", [y], dtype=int32))
    graph = b.finish()
    assert products(graph, "conv") == ["i32"]
    (found,), (expected,) = results(graph, x=integers(rng, (1, 24, 8, 7), uint8))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("scaled", ["image", "taps"])
def test_a_convolution_may_have_one_scale(scaled: str, rng: np.random.Generator) -> None:
    """The other operand is whole numbers in floats, whose scale is 1."""
    b = GraphBuilder("one_scale")
    image, taps = b.input("x", uint8, (1, 24, 8, 7)), b.constant(integers(rng, (16, 24, 3, 3), int8))
    whole = [b.op("cast", [b.op("cast", [item], dtype=int32)], dtype=float32) for item in (image, taps)]
    inputs = [b.op("dequantize", [image, number(b, 0.02)]), whole[1]]
    if scaled == "taps":
        scales = rng.uniform(0.001, 0.003, (16, 1, 1, 1)).astype(np.float32)
        inputs = [whole[0], b.op("dequantize", [taps, b.constant(scales)])]
    b.output(b.op("conv", inputs, strides=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1)))
    graph = b.finish()
    assert products(graph, "conv") == ["i32"]
    (found,), (expected,) = results(graph, x=integers(rng, (1, 24, 8, 7), uint8))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))


def test_grouped_taps_are_unpacked_again(rng: np.random.Generator) -> None:
    taps = integers(rng, (21, 12, 3, 2), int8)
    for group in (1, 2, 4):
        recipe = packing.taps_recipe(16, group=group)
        packed = packing.apply(recipe, taps)
        assert packed.shape == packing.packed_shape(recipe, taps.shape) and packed.size == 32 * 72
        np.testing.assert_array_equal(packing.invert(recipe, packed, taps.shape), taps)


def test_what_stays_in_floats_is_named_with_the_reason(rng: np.random.Generator) -> None:
    def graph_of(depth: int, scale: np.ndarray, quantized: bool = True) -> Graph:
        b = GraphBuilder("stays")
        x, s = b.input("x", float32, (4, depth)), b.constant(scale)
        read = b.op("dequantize", [b.op("quantize", [x, s], dtype=uint8), s])
        weights = b.constant(integers(rng, (depth, 8), int8))
        right = b.op("dequantize", [weights, number(b, 0.1)]) if quantized else b.input("w", float32, (depth, 8))
        b.output(b.op("matmul", [read, right]))
        return b.finish()

    one = np.array(0.1, np.float32)
    cases = [
        (graph_of(6, one), "depth 6 is no multiple of 4"),
        (graph_of(8, np.linspace(0.1, 0.2, 8, dtype=np.float32)), "differs along the depth"),
        (graph_of(8, one, quantized=False), "other operand is not quantized"),
    ]
    for graph, reason in cases:
        (remark,) = [text for text in narrow_products(graph, kernels(uint8)).remarks if "is read as floats" in text]
        assert reason in remark and "uint8" in remark and "a scale for each" in remark
        assert "i32" not in products(graph) and not graph.remarks

    b = GraphBuilder("moved")  # and what moves, or comes from outside
    scale, weights = number(b, 0.1), b.op("dequantize", [b.constant(integers(rng, (6, 8), int8)), number(b, 0.1)])
    made = b.op("quantize", [b.input("x", float32, (2, 2, 6)), scale], dtype=int8)
    for item in (made, b.input("given", uint8, (6, 4))):
        read = b.op("dequantize", [item, scale])
        rows = b.op("reshape", [read], shape=(4, 6)) if item is made else b.op("permute", [read], order=(1, 0))
        b.output(b.op("matmul", [rows, weights]))
    named = [
        text for text in narrow_products(b.finish(), kernels(uint8)).remarks if "depth 6 is no multiple of 4" in text
    ]
    assert len(named) == 2 and "%quantize" in named[0] and "%given" in named[1]
    assert not [text for text in narrow_products(graph_of(8, one), kernels(uint8)).remarks if "read as floats" in text]


def test_weights_that_the_run_chooses_are_no_constants(rng: np.random.Generator) -> None:
    b = GraphBuilder("chosen")
    rows = b.symbol("rows", 1, 8)
    table = b.constant(integers(rng, (32, 8), int8))
    weights = b.op("dequantize", [b.op("slice", [table], axis=0, start=rows, stop=rows + 16), number(b, 0.1)])
    read = b.op("dequantize", [b.input("x", uint8, (rows, 16)), number(b, 0.1)])
    b.output(b.op("matmul", [read, weights]))
    assert [node.op for node in narrow_products(b.finish(), kernels(uint8)).nodes][-1] == "matmul"


def test_weights_stay_8_bits_in_the_engine(rng: np.random.Generator) -> None:
    b = GraphBuilder("weights")
    x = b.input("x", uint8, (1, 512))
    weights = b.op("dequantize", [b.constant(integers(rng, (512, 1024), int8)), number(b, 0.01)])
    b.output(b.op("matmul", [b.op("dequantize", [x, number(b, 0.1), number(b, 7, uint8)]), weights]))
    graph = b.finish()
    assert build(graph, CPUTarget.host()).weight_bytes < 512 * 1024 * 1.1


@pytest.mark.parametrize("dtype", [float32, float16], ids=str)
def test_a_sum_of_two_convolutions_reads_integers(rng: np.random.Generator, dtype: DType) -> None:
    """What one kernel makes of its own integers is made by the kernel that reads them: these are stored."""
    b = GraphBuilder("residual")
    x = b.input("x", uint8, (1, 32, 6, 5))
    image = b.op("dequantize", [x, number(b, 0.02)])
    sums = []
    for _ in range(2):
        taps = b.op("dequantize", [b.constant(integers(rng, (16, 32, 1, 1), int8)), number(b, 0.01)])
        image, taps = (b.op("cast", [item], dtype=dtype) for item in (image, taps))
        sums.append(b.op("conv", [image, taps], strides=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1)))
    scale, zero = number(b, 0.5), number(b, 128, uint8)
    wide = b.op("cast", [sums[1]], dtype=float32)
    read = b.op("dequantize", [b.op("quantize", [wide, scale, zero], dtype=uint8), scale, zero])
    total = b.op("relu", [b.op("add", [sums[0], b.op("cast", [read], dtype=dtype)])])
    b.output(b.op("quantize", [b.op("cast", [total], dtype=float32), scale], dtype=uint8))
    graph = b.finish()
    groups = [
        group
        for group in fuse(optimize(narrow_products(graph, kernels(uint8, int8, zeros_around=True)))).groups
        if group.kind != "view"
    ]
    stored = [value.dtype for group in groups for value in group.outputs if group.kind == "contraction"]
    assert stored == [uint8, uint8]
    (found,), (expected,) = results(graph, x=integers(rng, (1, 32, 6, 5), uint8))
    most = 1 if dtype == float32 else 2  # a step of what is stored between, and one of the sum in 16 bits
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= most and np.mean(found != expected) < 0.04


def test_sums_beyond_float32_are_exact() -> None:
    """As ConvInteger of a depth above 256 is read: floats of 64 bits, whose sums float32 does not hold."""
    b = GraphBuilder("deep_sums")
    x, taps = b.input("x", uint8, (1, 64, 3, 3)), b.constant(np.full((4, 64, 3, 3), 127, np.int8))
    image, weights = (b.op("cast", [b.op("cast", [item], dtype=int32)], dtype=float64) for item in (x, taps))
    y = b.op("conv", [image, weights], strides=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), exact=True)
    b.output(b.op("cast", [y], dtype=int32))
    graph = b.finish()
    assert products(graph, "conv") == ["i32"]
    data = np.full((1, 64, 3, 3), 255, np.uint8)
    data[0, 0, 0, 0] = 0
    (found,), _ = results(graph, x=data)
    assert found.ravel().tolist() == [127 * 255 * 575] * 4


def test_a_cast_to_8_bit_floats_rounds(rng: np.random.Generator) -> None:
    """It stays where integers are multiplied, and makes a product of 8-bit floats where these are."""
    b = GraphBuilder("rounded")
    x, scale = b.input("x", int8, (4, 32)), number(b, 0.3)
    read = b.op("cast", [b.op("cast", [b.op("dequantize", [x, scale])], dtype=float8e4nv)], dtype=float32)
    weights = b.constant(integers(rng, (32, 16), int8))
    b.output(b.op("matmul", [read, b.op("dequantize", [weights, scale])]))
    graph = b.finish()
    assert "i32" not in products(graph)
    inputs = [integers(rng, (4, 32), int8)]
    passed = narrow_products(graph, kernels(uint8))
    found, expected = (run_graph(item, inputs, {})[item.outputs[0]] for item in (passed, graph))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)

    b = GraphBuilder("floats")
    rounded = b.op("cast", [b.op("cast", [b.input("x", float32, (4, 32))], dtype=float8e4nv)], dtype=bfloat16)
    w = b.op("cast", [b.input("w", float8e4nv, (16, 32))], dtype=bfloat16)
    b.output(b.op("matmul", [rounded, w], transpose_b=True))
    (product,) = [node for node in narrow_products(b.finish(), kernels(float8e4nv)).nodes if node.op == "matmul"]
    assert [item.dtype for item in product.inputs if item is not None] == [float8e4nv] * 2


def test_padding_of_8_bit_floats_is_no_nan(rng: np.random.Generator) -> None:
    """float8e4nv has no infinity to stand around an image: the largest of a window are found of floats."""
    b = GraphBuilder("pooled")
    x = b.input("x", float8e4nv, (1, 2, 4, 4))
    read = b.op("dequantize", [x, number(b, 0.5)])
    b.output(b.op("max_pool", [read], kernel=(3, 3), strides=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1)))
    graph = b.finish()
    data = rng.standard_normal((1, 2, 4, 4)).astype(float8e4nv.numpy)
    passed = narrow_products(graph, kernels(uint8, float8e4nv))
    found, expected = (run_graph(item, [data], {})[item.outputs[0]] for item in (passed, graph))
    np.testing.assert_array_equal(found, expected)
    assert np.isfinite(expected).all()


@pytest.mark.parametrize(
    ("form", "moved"), [("op", "u8"), ("chain", "u8"), ("any numbers", "f32"), ("read twice", "f32")]
)
def test_pools_move_what_is_quantized(rng: np.random.Generator, form: str, moved: str) -> None:
    b = GraphBuilder("pooled")
    x = b.op("relu", [b.input("x", float32, (2, 3, 7, 8))])
    pooled = b.op("max_pool", [x], kernel=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)), dilation=(1, 1))
    if form == "op":
        b.output(b.op("quantize", [pooled, number(b, 0.02), number(b, 7, uint8)], dtype=uint8))
    else:
        rounded = b.op("round", [b.op("multiply", [pooled, number(b, 50.0)])])
        # Numbers outside the range come round: the largest of a window may become the least.
        clipped = rounded if form == "any numbers" else b.op("clip", [rounded], low=0, high=255)
        b.output(b.op("cast", [clipped], dtype=uint8))
    if form == "read twice":
        b.output(pooled)
    graph = b.finish()
    data = rng.standard_normal((2, 3, 7, 8)).astype(np.float32)
    passed = narrow_products(graph, kernels(uint8))
    assert [str(node.output.dtype) for node in passed.nodes if node.op == "max_pool"] == [moved]
    said = [text for text in passed.remarks if "a NaN counts as the integer that it becomes" in text]
    assert [f"max_pool %{pooled.name}:" in text for text in said] == [True] * (moved == "u8")
    for found, expected in zip(passed.outputs, graph.outputs, strict=True):
        np.testing.assert_array_equal(run_graph(passed, [data], {})[found], run_graph(graph, [data], {})[expected])
