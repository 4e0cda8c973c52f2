"""Integer products and convolutions as exact ones of floats: the same integers, and which types are taken."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.build.builder import build
from tilewright.dtypes import float32, float64, int8, int32, uint8
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.exact_products import exact_products
from tilewright.graph.pipeline import optimize


def product(data: np.ndarray | None, depth: int, columns: int, zero: int, transposed: bool = False) -> Graph:
    """uint8 less a zero point times weights, or times an input of int8."""
    b = GraphBuilder("product")
    x = b.op("cast", [b.input("x", uint8, (5, depth))], dtype=int32)
    x = b.op("subtract", [x, b.constant(np.array(zero, np.int32))])
    shape = (columns, depth) if transposed else (depth, columns)
    w = b.op("cast", [b.input("w", int8, shape)], dtype=int32) if data is None else b.constant(data.astype(np.int32))
    b.output(b.op("matmul", [x, w], transpose_b=transposed), "y")
    return b.finish()


def types(graph: Graph, op: str = "matmul") -> list[str]:
    return [node.output.dtype.name for node in graph.nodes if node.op == op]


@pytest.mark.parametrize(
    ("depth", "least", "wanted"),
    [(64, -128, ["float32"]), (2000, -8, ["float32"]), (600, -128, ["float32"] * 2), (9000, -128, ["float64"])],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_are_exact(
    rng: np.random.Generator, depth: int, least: int, wanted: list[str], transposed: bool
) -> None:
    """The first column and row have the largest sum that there can be, for which float32 may have no odd numbers."""
    w = rng.integers(least, -least, (depth, 7), dtype=np.int64)
    w[:, 0] = least
    x = rng.integers(0, 256, (5, depth), dtype=np.int64)
    x[0] = 255
    x[1, : depth // 2] = 254
    w = np.ascontiguousarray(w.T) if transposed else w
    graph = product(w, depth, 7, 0, transposed)
    assert types(exact_products(graph)) == wanted
    found = build(optimize(graph), "cpu").run({"x": x.astype(np.uint8)})["y"]
    np.testing.assert_array_equal(found, x @ (w.T if transposed else w))


def test_products_of_two_inputs(rng: np.random.Generator) -> None:
    graph = product(None, 300, 11, 131)
    assert types(exact_products(graph)) == ["float32"]
    x, w = rng.integers(0, 256, (5, 300), dtype=np.uint8), rng.integers(-128, 128, (300, 11), dtype=np.int8)
    found = build(optimize(graph), "cpu").run({"x": x, "w": w})["y"]
    np.testing.assert_array_equal(found, (x.astype(np.int64) - 131) @ w.astype(np.int64))


def test_a_product_of_no_depth_is_zero() -> None:
    graph = product(np.zeros((0, 4), np.int8), 0, 4, 0)
    found = build(optimize(graph), "cpu").run({"x": np.zeros((5, 0), np.uint8)})["y"]
    np.testing.assert_array_equal(found, np.zeros((5, 4), np.int32))


def test_integers_of_any_size_stay(rng: np.random.Generator) -> None:
    b = GraphBuilder("wide")
    x = b.input("x", int32, (3, 8))
    b.output(b.op("matmul", [x, b.constant(np.ones((8, 4), np.int32))]), "y")
    graph = b.finish()
    assert types(exact_products(graph)) == ["int32"]
    numbers = rng.integers(-(2**31), 2**31, (3, 8), dtype=np.int64).astype(np.int32)
    with np.errstate(over="ignore"):
        wanted = numbers @ np.ones((8, 4), np.int32)
    np.testing.assert_array_equal(build(optimize(graph), "cpu").run({"x": numbers})["y"], wanted)


def convolution(weights: np.ndarray, zeros: tuple[int, int], shape: tuple[int, ...]) -> bytes:
    pads = [1] * (2 * (len(shape) - 2)) if weights.shape[-1] == 3 else [0] * (2 * (len(shape) - 2))
    node = helper.make_node("ConvInteger", ["x", "w", "x_zero", "w_zero"], ["y"], pads=pads)
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array(zeros[0], np.uint8), "x_zero"),
                 numpy_helper.from_array(np.array(zeros[1], weights.dtype), "w_zero")]  # fmt: skip
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.UINT8, shape)],
                              [helper.make_tensor_value_info("y", TensorProto.INT32, None)], constants)  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(model.SerializeToString())


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize(
    ("shape", "features", "window", "spread"),
    [((1, 64, 12, 17), 40, (3, 3), 100), ((2, 300, 9, 8), 33, (1, 1), 90), ((1, 512, 7, 7), 20, (3, 3), 128),
     ((1, 20, 6, 7, 8), 24, (3, 3, 3), 60)],
)  # fmt: skip
def test_convolutions_are_exact(
    rng: np.random.Generator, shape: tuple[int, ...], features: int, window: tuple[int, ...], spread: int
) -> None:
    weights = (128 + rng.integers(-spread, spread, (features, shape[1], *window))).astype(np.uint8)
    check(rng.integers(0, 256, shape, dtype=np.uint8), weights, (120, 128))


def test_sums_near_the_limit_are_exact(rng: np.random.Generator) -> None:
    """3x3 windows have a faster way, which would round quarters of such sums."""
    weights = rng.integers(-12, -9, (40, 512, 3, 3), dtype=np.int8)
    check(rng.integers(254, 256, (1, 512, 14, 14), dtype=np.uint8), weights, (0, 0))


def check(x: np.ndarray, weights: np.ndarray, zeros: tuple[int, int]) -> None:
    window = weights.shape[2:]
    ends = [(0, 0), (0, 0)] + [(extent // 2, extent // 2) for extent in window]
    padded = np.pad(x.astype(np.float64) - zeros[0], ends)
    windows = np.lib.stride_tricks.sliding_window_view(padded, window, tuple(range(2, x.ndim)))
    axes = list(range(x.ndim, x.ndim + len(window)))
    wanted = np.tensordot(windows, weights.astype(np.float64) - zeros[1], ([1, *axes], [1, *range(2, x.ndim)]))
    engine = tilewright.compile(onnx.load_from_string(convolution(weights, zeros, x.shape)))
    np.testing.assert_array_equal(engine.run({"x": x})["y"], np.moveaxis(wanted, -1, 1))


def test_convolutions_take_the_type_that_has_their_sums(rng: np.random.Generator) -> None:
    for least, wanted in ((-10, "float32"), (-128, "float64")):
        b = GraphBuilder("conv")
        x = b.op("cast", [b.op("cast", [b.input("x", uint8, (1, 512, 6, 6))], dtype=int32)], dtype=float64)
        w = b.constant(rng.integers(least, least + 2, (8, 512, 3, 3)).astype(np.float64))
        options = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "exact": True}
        b.output(b.op("conv", [x, w], **options), "y")
        graph = exact_products(b.finish())
        assert types(graph, "conv") == [wanted]
        assert graph.outputs[0].dtype == float64 != float32
