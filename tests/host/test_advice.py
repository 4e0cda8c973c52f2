"""Advice: what is slower than it could be, why, and what to change, from the passes to the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.host.cli_support import tilewright
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, float16, float32, uint8
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Advice, Graph, Value
from tilewright.graph.passes.align_products import align_products
from tilewright.graph.passes.narrow_products import narrow_products
from tilewright.graph.passes.narrow_recurrent import narrow_recurrent
from tilewright.graph.passes.native_shapes import native_shapes
from tilewright.insight.page import page
from tilewright.insight.report import report
from tilewright.quant.layers import layers_of, with_reasons
from tilewright.quant.quantize import quantize
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.library_facts import GPU_KERNELS
from tilewright.targets.registry import get_target


def advice_of(graph: Graph) -> list[str]:
    return [text for text in graph.remarks if isinstance(text, Advice)]


def product(rows: int, depth: int, columns: int, dtype: DType, transposed: bool = False) -> Graph:
    b = GraphBuilder("product")
    x = b.input("x", dtype, (rows, depth))
    shape = (columns, depth) if transposed else (depth, columns)
    b.output(b.op("matmul", [x, b.constant(np.ones(shape, dtype.numpy))], transpose_b=transposed))
    return b.finish()


@pytest.mark.parametrize(
    ("graph", "nearest"),
    [
        (product(100, 100, 100, float16), "104 and 104"),
        (product(64, 1001, 64, float16), "1008 and 64"),
        (product(64, 128, 77, float16), "128 and 80"),
        (product(64, 128, 77, float16, transposed=True), ""),  # rows of the weights run along the depth
        (product(64, 128, 80, float16), ""),
        (product(1, 100, 100, float16), ""),  # too little work to be worth a line
    ],
)
def test_the_nearest_native_sizes_are_named(graph: Graph, nearest: str) -> None:
    found = advice_of(native_shapes(graph, GPU_KERNELS))
    assert len(found) == bool(nearest) and all(nearest in text for text in found)
    assert not nearest or "%matmul" in found[0]


def test_sizes_that_are_filled_up_are_named_once() -> None:
    (text,) = advice_of(native_shapes(align_products(product(512, 500, 300, float16), GPU_KERNELS), GPU_KERNELS))
    assert "are filled up" in text and "504 and 304 in the model itself" in text


def test_products_without_tensor_cores_are_one_line() -> None:
    b = GraphBuilder("several")
    x = b.input("x", float32, (64, 64))
    for _ in range(5):
        x = b.op("matmul", [x, b.constant(np.ones((64, 64), np.float32))])
    b.output(x)
    graph = b.finish()
    (text,) = advice_of(native_shapes(graph, GPU_KERNELS))
    assert text.startswith("5 products and convolutions in float32 (%matmul, ") and "and 2 more" in text
    assert "tf32" in text and not advice_of(native_shapes(graph, replace(GPU_KERNELS, exact=False)))


def convolution(channels: int, outputs: int, groups: int, size: int = 3) -> Graph:
    b = GraphBuilder("image")
    x = b.input("x", float16, (2, channels, 32, 32))
    w = b.constant(np.ones((outputs, channels // groups, size, size), np.float16))
    attributes = {"strides": (1, 1), "dilation": (1, 1), "padding": ((1, 1), (1, 1)), "groups": groups}
    b.output(b.op("conv", [x, w], **attributes))
    return b.finish()


@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "expected"),
    [(3, 64, 1, "of 3 channels in f16"), (7, 16, 1, "of 7 channels in f16"), (8, 64, 1, ""), (64, 64, 1, ""),
     (64, 64, 64, "1 convolution of groups with at most 8"), (64, 64, 8, "1 convolution of groups"), (64, 64, 2, "")],
)  # fmt: skip
def test_convolutions_without_tensor_cores(channels: int, outputs: int, groups: int, expected: str) -> None:
    found = advice_of(native_shapes(convolution(channels, outputs, groups), GPU_KERNELS))
    assert (expected in found[0] and "16" in found[0]) if expected else not found


def quantized(b: GraphBuilder, x: Value, scale: float) -> Value:
    number = b.constant(np.array(scale, np.float32))
    return b.op("dequantize", [b.op("quantize", [x, number], dtype=uint8), number])


def partly_quantized(rng: np.random.Generator) -> Graph:
    """Layers of integers, of a depth that these do not take, that only reads a quantized tensor, and in floats."""
    b = GraphBuilder("partly")
    x = b.input("x", float32, (5, 64))

    def weights(rows: int, columns: int, narrow: bool) -> Value:
        if not narrow:
            return b.constant(rng.standard_normal((rows, columns)).astype(np.float32))
        codes = b.constant(rng.integers(-128, 128, (rows, columns)).astype(np.int8))
        return b.op("dequantize", [codes, b.constant(np.array(0.01, np.float32))])

    x = b.op("matmul", [quantized(b, x, 0.03), weights(64, 14, True)])
    x = b.op("matmul", [quantized(b, x, 0.03), weights(14, 48, True)])
    x = b.op("matmul", [quantized(b, x, 0.03), weights(48, 40, False)])
    b.output(b.op("matmul", [b.op("relu", [x]), weights(40, 8, False)]))
    return b.finish()


def test_pairs_that_integers_do_not_take_are_named_with_what_to_change(rng: np.random.Generator) -> None:
    found = advice_of(narrow_products(partly_quantized(rng), get_target("cuda:sm_80").kernels))
    assert [text.rsplit(": ", 1)[1] for text in found] == [
        "its depth 14 is no multiple of 4; make it 16 with zeros",
        "its other operand is not quantized; quantize that, too",
        "neither of its operands is quantized; quantize both if the results allow it",
    ]
    assert [text.split(" ", 1)[0] for text in found] == ["quantized", "quantized", "matmul"]
    assert "matmul %matmul_2:" in found[1] and "matmul %matmul_3 in f32" in found[2]


def test_layers_whose_quantized_weights_become_floats_are_advice() -> None:
    b = GraphBuilder("recurrent")
    codes, scale = b.constant(np.full((1, 8, 32), 200, np.uint8)), b.constant(np.full((1, 1, 32), 0.01, np.float32))
    rows = [b.input(name, float32, shape) for name, shape in (("x", (3, 1, 2, 32)), ("states", (1, 2, 24)))]
    inputs = [rows[0], b.op("dequantize", [codes, scale]), rows[1]]
    functions = ("sigmoid", "tanh", "tanh")
    b.output(b.op("recurrent", inputs, cell="lstm_8bit", functions=functions, reverse=(False,)))
    (text,) = advice_of(narrow_recurrent(b.finish()))
    assert text.endswith("quantize weights symmetrically")


def test_layers_that_a_scheme_leaves_in_floats_are_advice(rng: np.random.Generator) -> None:
    b = GraphBuilder("net")
    x = b.input("x", float32, (4, 10))
    x = b.op("matmul", [x, b.constant(rng.standard_normal((10, 64)).astype(np.float32))])
    x = b.op("matmul", [b.op("relu", [x]), b.constant(rng.standard_normal((64, 14)).astype(np.float32))])
    b.output(b.op("matmul", [b.op("relu", [x]), b.constant(rng.standard_normal((14, 8)).astype(np.float32))]), "y")
    graph, kernels = b.finish(), replace(CPUTarget.host().kernels, narrow_depth=4)
    narrow = [layer for layer in layers_of(graph, "int8", kernels)]
    found = advice_of(with_reasons(graph, narrow, {"matmul"}, "int8", kernels))
    assert [layer.name for layer in narrow] == ["matmul_1"] and len(found) == 1
    assert "stays in floats: its depth is 14, which is no multiple of 4" in found[0]


def test_what_lowers_precision_is_a_remark_of_the_engine() -> None:
    b = GraphBuilder("net")
    x = b.input("x", float32, (4, 64))
    b.output(b.op("matmul", [x, b.constant(np.ones((64, 64), np.float32))]), "y")
    found = quantize(b.finish(), scheme="fp8-dynamic")
    assert len(found.remarks) == 2 and set(found.remarks) <= {*found.engine.remarks}


def test_advice_goes_through_build_and_inspect_to_the_page(rng: np.random.Generator, tmp_path: Path) -> None:
    if not CPUTarget.host().kernels.narrow_types:
        pytest.skip("products of integers are computed in floats here")
    engine = build(partly_quantized(rng), CPUTarget.host(), tuning=Tuning(0))
    assert len(engine.advice) == 3 and not set(engine.advice) & {*engine.remarks, *engine.fusion}
    path = tmp_path / "partly.engine"
    engine.save(path)
    shown = tilewright("inspect", str(path)).stdout
    assert shown.count("advice: ") == 3
    assert json.loads(tilewright("inspect", str(path), "--json").stdout)["advice"] == list(engine.advice)
    text = page(report(engine, {}))
    assert "make it 16 with zeros" in text and "What you can change" in text
