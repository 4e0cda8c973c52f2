"""Products by quantized weights: stored in their bits, widened by the kernels; and the ways that weights come in."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.build.rebuild import read_graph
from tilewright.dtypes import BY_NAME, DType, bfloat16, float8e4nv, float32, int4, int8, uint4, uint8
from tilewright.engine.file import read_source
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.weight_products import weight_products, without_weight_products
from tilewright.graph.pipeline import optimize
from tilewright.graph.quantization import scheme_of
from tilewright.graph.reference import run_graph
from tilewright.importers.emitter import Emitter
from tilewright.importers.quantized_weights import QuantizedMatrix, in_groups, multiply
from tilewright.library import packing
from tilewright.library.candidate import PackedConstant
from tilewright.library.matmul.dequantized import MOST_LINES, lines_of
from tilewright.library.select import candidates, choose
from tilewright.settings import settings
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.library_facts import CPU_KERNELS


def random_matrix(
    rng: np.random.Generator, dtype: DType, columns: int, depth: int, group: int, zeros: bool = False
) -> QuantizedMatrix:
    codes = rng.integers(0, 1 << dtype.bits, (columns, depth)).astype(np.uint8)
    if dtype == float8e4nv:
        codes %= 0x7F  # no NaN
    else:
        codes = codes.view(np.int8) if dtype.is_signed and dtype.bits == 8 else codes
    codes = codes.view(dtype.numpy) if dtype.bits == 8 else codes.astype(np.uint8).view(dtype.numpy)
    scales = rng.uniform(0.001, 0.01, (columns, depth // group)).astype(np.float32)
    points = rng.integers(0, 16, scales.shape).astype(np.uint8) if zeros else None
    return QuantizedMatrix(codes, scales, points)


def product_of(matrix: QuantizedMatrix, dtype: DType, rows: int | None = None) -> Graph:
    """relu(x W + bias); without a number of rows for 1 to 64 of them."""
    b = GraphBuilder("product")
    x = b.input("x", dtype, (b.symbol("rows", 1, 64) if rows is None else rows, matrix.depth or matrix.codes.shape[1]))
    result = multiply(Emitter(b), x, matrix, "w")
    bias = b.constant(np.linspace(-1, 1, len(matrix.codes)).astype(dtype.numpy), "bias")
    b.output(b.op("relu", [b.op("add", [result, bias])]), "y")
    return b.finish()


CASES = [
    (int4, 32, False, float32), (uint4, 64, True, bfloat16), (int8, 192, False, float32), (uint8, 96, True, float32),
    (float8e4nv, 64, False, bfloat16), (int8, 192, False, bfloat16), (uint8, 192, True, bfloat16),
    (int4, 32, False, bfloat16), (uint4, 32, True, float32), (int4, 12, False, float32),
    (uint4, 64, False, float32),
]  # fmt: skip


def test_lines_that_are_widened_at_once() -> None:
    """They fill the depth, and are parts of a group or whole groups."""
    for depth, group, bits in ((192, 32, 4), (192, 64, 4), (512, 64, 4), (4096, 4096, 8), (96, 96, 8), (30, 10, 4)):
        lines = lines_of(depth, group, bits)
        assert lines is not None and lines <= MOST_LINES and depth % (lines * 8 // bits) == 0
        assert group % lines == 0 or lines % group == 0
    assert (lines_of(192, 32, 4), lines_of(512, 64, 4), lines_of(14, 7, 4)) == (96, 128, 7)
    assert lines_of(21, 7, 4) is None


@pytest.mark.parametrize(("dtype", "group", "zeros", "rows_dtype"), CASES, ids=str)
def test_few_and_many_rows(
    dtype: DType, group: int, zeros: bool, rows_dtype: DType, rng: np.random.Generator, tmp_path: Path
) -> None:
    """All kernels of one engine, with bias and activation; weights in the file as small as they are."""
    columns, depth = 133, 192
    matrix = random_matrix(rng, dtype, columns, depth, group, zeros)
    graph = product_of(matrix, rows_dtype)
    engine = build(graph, "cpu")
    assert {step.name.split(".")[0] for step in engine.plan.steps} == {"000-dequantized_matmul-add-relu"}
    weights, bias = matrix.numbers().astype(np.float64), np.linspace(-1, 1, columns).astype(rows_dtype.numpy)
    for rows in (1, 2, 7, 16, 40):
        x = rng.standard_normal((rows, depth)).astype(rows_dtype.numpy)
        expected = np.maximum(x.astype(np.float64) @ weights.T + bias.astype(np.float64), 0)
        tolerance = 1e-5 if rows_dtype == float32 else 2e-2
        found = engine.run({"x": x})["y"].astype(np.float64)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())
    engine.save(tmp_path / "w.engine")
    kept = max(read_source(tmp_path / "w.engine").weights.entries.values(), key=lambda entry: entry.bytes)
    assert kept.bytes <= 160 * depth * dtype.bits // 8  # whole panels of 16 or 32 columns
    again = read_graph(tmp_path / "w.engine")[0]
    for value, array in again.constants.items():
        (own,) = [data for other, data in engine_constants(graph).items() if other == value.name]
        assert array.dtype == own.dtype and array.tobytes() == own.tobytes()


@pytest.mark.parametrize(("dtype", "zeros"), [(int4, False), (uint4, True)], ids=str)
def test_large_rows_infinity_and_nan(dtype: DType, zeros: bool, rng: np.random.Generator) -> None:
    """Rows of 1e30 have finite products; what is not a number or infinite stays in its row."""
    matrix = random_matrix(rng, dtype, 133, 192, 32, zeros)
    engine = build(product_of(matrix, float32), "cpu")
    for rows in (1, 3, 40):
        x = rng.standard_normal((rows, 192)).astype(np.float32)
        x[0] *= 1e30
        expected = np.maximum(x.astype(np.float64) @ matrix.numbers().astype(np.float64).T + np.linspace(-1, 1, 133), 0)
        found = engine.run({"x": x})["y"]
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5 * expected[0].max())
        for special in (np.nan, np.inf):
            x[-1, 5] = special
            again = engine.run({"x": x})["y"]
            np.testing.assert_array_equal(again[:-1], found[:-1])
            assert not np.isfinite(again[-1]).all()


@pytest.mark.parametrize(
    ("name", "depth", "group", "in_pairs"),
    [("znver4", 192, 64, True), ("znver4", 195, 195, False), ("x86-64-v4", 192, 64, False)],
)
def test_many_rows_are_summed_in_pairs_where_the_cpu_has_that(
    name: str, depth: int, group: int, in_pairs: bool, rng: np.random.Generator
) -> None:
    """Numbers that are widened for many rows lie in pairs, in bfloat16."""
    graph = optimize(
        weight_products(product_of(random_matrix(rng, int8, 200, depth, group), bfloat16, rows=80), CPU_KERNELS)
    )
    found = choose(candidates(fuse(graph).groups[0], graph, CPUTarget.named(name)))
    *first, (call,) = [stage.calls for stage in found.stages]
    assert bool(first) != in_pairs  # rows are widened once
    numbers = call.operands["numbers"]
    assert call.constants["PAIRS"] == in_pairs
    assert isinstance(numbers, Value) and numbers.dtype == (bfloat16 if in_pairs else float32)


@pytest.mark.parametrize(
    ("name", "group", "kernel", "width"),
    [
        ("x86-64-v4", 32, "few_rows_of_words", 32), ("znver4", 64, "few_rows_of_words", 32),
        ("x86-64-v4", 12, "few_rows", 32), ("x86-64-v3", 32, "few_rows_of_words", 16),
        ("x86-64-v2", 32, "few_rows", 8), ("neoverse-n1", 32, "few_rows", 12),
    ],
)  # fmt: skip
def test_4_bits_lie_in_words_where_vectors_have_256_bits(
    name: str, group: int, kernel: str, width: int, rng: np.random.Generator
) -> None:
    """Eight steps of the depth to a word, if groups are whole words."""
    matrix = random_matrix(rng, int4, 200, 192, group)
    graph = optimize(weight_products(product_of(matrix, float32, rows=3), CPU_KERNELS))
    found = choose(candidates(fuse(graph).groups[0], graph, CPUTarget.named(name)))
    ((call,),) = [stage.calls for stage in found.stages]
    assert call.kernel.__name__ == kernel
    codes = call.operands["w"]
    assert isinstance(codes, PackedConstant)
    stored = packing.apply(codes.recipe, matrix.codes)
    assert stored.dtype == packing.packed_dtype(codes.recipe, matrix.codes.dtype)
    assert stored.shape == packing.packed_shape(codes.recipe, matrix.codes.shape)
    assert stored.nbytes == -(-200 // width) * width * 192 // 2
    again = packing.invert(codes.recipe, stored, matrix.codes.shape)
    np.testing.assert_array_equal(again.view(np.uint8), matrix.codes.view(np.uint8))


@pytest.mark.parametrize(
    ("dtype", "rows_dtype", "rows"),
    [(int4, float32, 1), (int8, float32, 3), (int4, bfloat16, 4), (int8, bfloat16, 2)],
    ids=str,
)
def test_numbers_of_few_rows_are_operands_of_products(
    dtype: DType, rows_dtype: DType, rows: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    """Where a broadcast takes a shuffle, which a weight that is widened takes as well."""
    matrix = random_matrix(rng, dtype, 128, 256, 64)
    with settings.scope(dump_directory=tmp_path, always_compile=True):
        build(product_of(matrix, rows_dtype, rows), CPUTarget.named("znver4"))
    (assembly,) = [path.read_text() for path in tmp_path.glob("tw_few_rows*.s")]
    instruction = "vdpbf16ps" if rows_dtype == bfloat16 else "vfmadd"
    assert re.search(instruction + r".*\{1to16\}", assembly) and "vbroadcastss" not in assembly


def engine_constants(graph: Graph) -> dict[str, np.ndarray]:
    return {value.name: data for value, data in optimize(weight_products(graph, CPU_KERNELS)).constants.items()}


def test_floats_again(rng: np.random.Generator) -> None:
    """Targets without such kernels multiply floats; the meaning is the same."""
    matrix = random_matrix(rng, uint4, 256, 64, 32, zeros=True)
    graph = product_of(matrix, float32, rows=3)
    taken = weight_products(graph, CPU_KERNELS)
    (node,) = [node for node in taken.nodes if node.op == "dequantized_matmul"]
    assert str(scheme_of(node)) == "uint4, a zero point and a scale for each block of 1 x 32"
    x = rng.standard_normal((3, 64)).astype(np.float32)
    plain = optimize(without_weight_products(taken))
    assert [node.op for node in plain.nodes if node.op.endswith("matmul")] == ["matmul"]
    results = [run_graph(each, [x], {})[each.outputs[0]] for each in (graph, taken, plain)]
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(results[2], results[0], rtol=1e-5, atol=1e-5)


def test_weights_that_become_floats_are_named(rng: np.random.Generator) -> None:
    b = GraphBuilder("rows")
    x = b.input("x", float32, (2, 128))
    scale = b.constant(rng.uniform(1, 2, (1, 128)).astype(np.float32))
    w = b.op("dequantize", [b.constant(rng.integers(-9, 9, (256, 128)).astype(np.int8)), scale])
    b.output(b.op("matmul", [x, w], transpose_b=True), "y")
    (remark,) = weight_products(b.finish(), CPU_KERNELS).remarks
    assert "become floats: their scales or zero points differ from step to step" in remark

    b = GraphBuilder("forms")
    x = b.input("x", float32, (2, 4, 128))
    w = b.op("dequantize", [b.constant(rng.integers(-9, 9, (2, 128, 128)).astype(np.int8)), b.constant(np.float32(2))])
    b.output(b.op("matmul", [x, w]))
    flat = b.op("reshape", [w], shape=(256, 128))
    part = b.op("slice", [flat], axis=0, stop=128)
    for item in (part, b.op("concat", [flat, part], axis=0)):
        b.output(b.op("matmul", [x, item], transpose_b=True))
    remarks = [text.split("become floats: ")[1] for text in weight_products(b.finish(), CPU_KERNELS).remarks]
    parts = [f"{op} is between them and the product" for op in ("slice", "concat")]
    assert remarks == ["they have 3 dimensions", *parts]


def test_operands_without_inputs_are_no_weights() -> None:
    b = GraphBuilder("counted")
    x = b.input("x", float32, (3, 256))
    counted = b.op("iota", [], shape=(256 * 128,), dtype=float32)
    b.output(b.op("matmul", [x, b.op("reshape", [counted], shape=(256, 128))]), "y")
    graph = b.finish()
    assert weight_products(graph, CPU_KERNELS) is graph


def test_depth_that_groups_do_not_divide_and_other_orders(rng: np.random.Generator) -> None:
    places = rng.permutation(np.repeat(np.arange(4), 32))
    matrix = random_matrix(rng, int4, 130, 128, 32)
    ordered = in_groups(matrix, places)
    assert ordered is not None and ordered.order is not None
    scales = matrix.scales[:, places]
    np.testing.assert_allclose(ordered.numbers(), matrix.codes.astype(np.float32) * scales, rtol=1e-6)
    short = QuantizedMatrix(matrix.codes, matrix.scales, depth=120)
    for each in (ordered, short):
        x = rng.standard_normal((2, each.depth or 128)).astype(np.float32)
        found = build(product_of(each, float32, rows=2), "cpu").run({"x": x})["y"]
        expected = np.maximum(x @ each.numbers().T + np.linspace(-1, 1, 130), 0)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_narrow_constants_in_files(rng: np.random.Generator) -> None:
    """Packed where no kernel reads them, a byte each where one does."""
    for dtype in (int4, uint4, BY_NAME["int2"], BY_NAME["float4e2"]):
        array = rng.integers(0, 1 << dtype.bits, (3, 5)).astype(np.uint8).view(dtype.numpy)
        for recipe, size in (
            (packing.dense_recipe(dtype), -(-15 * dtype.bits // 8)),
            (packing.bytes_recipe(dtype), 15),
        ):
            assert recipe is not None
            stored = packing.apply(recipe, array)
            assert stored.dtype == packing.packed_dtype(recipe, array.dtype) == np.uint8 and stored.nbytes == size
            again = packing.invert(recipe, stored, array.shape)
            assert again.dtype == array.dtype and again.tobytes() == array.tobytes()
