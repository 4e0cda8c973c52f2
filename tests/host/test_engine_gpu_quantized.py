"""Quantized products in engines for GPUs, on a stand-in for one: sums of 8-bit integers and floats, with scales, bias,
activation and the next quantization in the product's kernel."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.host import cuda_stand_in
from tests.quantized_layers import Case, check, drawn, expected, layer_of
from tilewright.build.builder import build
from tilewright.dtypes import DType, float8e4nv, float8e5, float16, float32, int8, int32, uint8
from tilewright.graph import reference
from tilewright.graph import semantics as compute
from tilewright.graph.build import GraphBuilder
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.merge_matmuls import merge_matmuls
from tilewright.quant.layers import quantized


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> cuda_stand_in.Driver:
    return cuda_stand_in.install(monkeypatch)


@pytest.mark.parametrize("case", drawn(20261128, 40), ids=str)
def test_drawn_layers(case: Case, driver, rng: np.random.Generator) -> None:
    layer = layer_of(case, rng)
    engine = build(layer.graph, "cuda:sm_90a")
    names = [step.evidence.get("chosen", "") for step in engine.plan.steps]
    fits = case.depth % 16 == 0 and case.columns * min(2, case.stored.itemsize) % 16 == 0
    assert any("hopper matmul" in name for name in names) == fits, names
    x = rng.standard_normal((case.rows, case.depth)).astype(case.given.numpy)
    found = engine.run({"x": x})["y"]
    check(case, found, *expected(case, layer, x), layer.out_scale)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_convolutions(seed: int, driver, rng: np.random.Generator) -> None:
    """8-bit images by int8 weights, with padding, strides, a residual in 8 bits, and the next quantization."""
    draw = np.random.default_rng(seed)

    def one(*options):
        return options[draw.integers(len(options))]

    kind, stored, size = one(uint8, int8), one(uint8, int8, float16), one(1, 3)
    channels, features = one(16, 32, 48, 20, 80), one(16, 32, 40, 96)
    zero = int(one(0, 0, 9))
    stride, pad = one(1, 2), one(0, size // 2)
    b = GraphBuilder("convolution")
    images = b.symbol("images", 1, 4) if one(True, False) else 2
    x = b.input("x", kind, (images, channels, 9, 7))
    read = b.op("dequantize", [x, b.constant(np.float32(0.02)), b.constant(np.array(zero, kind.numpy))])
    taps = draw.integers(-127, 128, (features, channels, size, size)).astype(np.int8)
    scales = draw.uniform(0.001, 0.003, (features, 1, 1, 1)).astype(np.float32)
    inputs = [read, b.op("dequantize", [b.constant(taps), b.constant(scales)])]
    if one(True, False):
        inputs.append(b.constant(draw.standard_normal(features).astype(np.float32)))
    y = b.op("conv", inputs, strides=(stride, stride), padding=((pad, pad), (pad, pad)), dilation=(1, 1))
    given = {"x": draw.integers(0, 127, (2, channels, 9, 7)).astype(kind.numpy)}
    if stored.bits == 8 and one(True, False):
        residual = b.input("r", stored, y.shape)
        y = b.op("add", [y, b.op("dequantize", [residual, b.constant(np.float32(0.05))])])
        shape = (2, *y.shape[1:])
        given["r"] = draw.integers(0, 100, shape).astype(stored.numpy)
    y = b.op("relu", [y])
    if stored.bits == 8:
        y = b.op("quantize", [y, b.constant(np.float32(0.05))], dtype=stored)
    else:
        y = b.op("cast", [y], dtype=stored)
    b.output(y, "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    names = [step.evidence.get("chosen", "") for step in engine.plan.steps]
    fits = channels % 16 == 0 and features * min(2, stored.itemsize) % 16 == 0
    assert any("hopper" in name for name in names) == fits, names
    found, exact = np.asarray(engine.run(given)["y"]), reference.run(graph, given)["y"]
    if stored.bits == 8:
        off = np.abs(found.astype(int) - exact.astype(int))
        assert off.max() <= 1 and off.mean() < 0.01 and len(np.unique(exact)) > 5
    else:
        np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2.0**-10, atol=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_drawn_convolutions_of_8_bit_floats(seed: int, driver, rng: np.random.Generator) -> None:
    """Images by taps of either type, with padding, strides, dilation, bias, a residual and the next quantization."""
    draw = np.random.default_rng(seed)

    def one(*options):
        return options[draw.integers(len(options))]

    kind, taps_kind, stored = one(float8e4nv, float8e5), one(float8e4nv, float8e5), one(float8e4nv, float8e5, float16)
    channels, features, size = one(16, 32, 48, 20, 80), one(16, 32, 40, 96), one(1, 3)
    stride, pad, dilation = one(1, 2), one(0, size // 2), one(1, size // 2 + 1)
    b = GraphBuilder("convolution")
    images = b.symbol("images", 1, 4) if one(True, False) else 2
    x = b.input("x", kind, (images, channels, 9, 7))
    read = b.op("multiply", [b.op("cast", [x], dtype=float32), b.constant(np.float32(0.02))])
    taps = draw.standard_normal((features, channels, size, size)).astype(taps_kind.numpy)
    scales = b.constant(draw.uniform(0.1, 0.3, (features, 1, 1, 1)).astype(np.float32))
    inputs = [read, b.op("multiply", [b.op("cast", [b.constant(taps)], dtype=float32), scales])]
    if one(True, False):
        inputs.append(b.constant(draw.standard_normal(features).astype(np.float32)))
    y = b.op("conv", inputs, strides=(stride, stride), padding=((pad, pad), (pad, pad)), dilation=(dilation, dilation))
    given = {"x": (8 * draw.standard_normal((2, channels, 9, 7))).astype(kind.numpy)}
    if one(True, False):
        shape = (2, *y.shape[1:])
        y = b.op("add", [y, b.op("cast", [b.input("r", float16, y.shape)], dtype=float32)])
        given["r"] = draw.standard_normal(shape).astype(np.float16)
    y = b.op("relu", [y])
    if stored.bits == 8:
        limit = float(ml_dtypes.finfo(stored.numpy).max)
        y = b.op("clip", [b.op("multiply", [y, b.constant(np.float32(50.0))])], low=-limit, high=limit)
    b.output(b.op("cast", [y], dtype=stored), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    names = [step.evidence.get("chosen", "") for step in engine.plan.steps]
    assert any("hopper" in name for name in names) == (channels % 16 == 0), names
    found, exact = np.asarray(engine.run(given)["y"]).astype(np.float64), reference.run(graph, given)["y"]
    exact = exact.astype(np.float64)
    bits = {float8e4nv: 3, float8e5: 2, float16: 10}[stored]
    steps = np.abs(found - exact) / (np.maximum(np.abs(exact), 2.0**-6) * 2.0**-bits)
    assert steps.max() <= 0.51


@pytest.mark.parametrize("scheme", ["fp8-dynamic", "int8-dynamic", "int8"])
def test_norms_quantize_what_they_give(scheme: str, driver, rng: np.random.Generator) -> None:
    """A norm that a sum reads, too, and its quantization are one kernel; the product and that sum the other."""
    b = GraphBuilder("normed")
    x = b.input("x", float16, (9, 64))
    normed = b.op("layer_norm", [x], axis=1, epsilon=1e-5)
    weights = b.constant((rng.standard_normal((48, 64)) / 8).astype(np.float16))
    y = b.op("matmul", [normed, weights], transpose_b=True)
    b.output(b.op("add", [y, b.op("slice", [normed], axis=1, start=0, stop=48)]), "y")
    plain = b.finish()
    graph = quantized(plain, {y.name}, {normed.name: (-3.5, 3.5)} if scheme == "int8" else {}, scheme, signed=True)
    engine = build(graph, "cuda:sm_90a")
    assert len(engine.plan.steps) == 2
    given = {"x": rng.standard_normal((9, 64)).astype(np.float16)}
    found, exact = (run(given)["y"].astype(np.float64) for run in (engine.run, lambda each: reference.run(plain, each)))
    assert 0 < np.linalg.norm(found - exact) < (0.05 if scheme.startswith("fp8") else 0.02) * np.linalg.norm(exact)


@pytest.mark.parametrize("seed", range(6))
def test_integer_products_of_two_computed_operands(seed: int, driver) -> None:
    """Sums in int32, exact, with zero points of either side, for batches and right operands as they come."""
    draw = np.random.default_rng(seed)

    def one(*options):
        return options[draw.integers(len(options))]

    def integers(kind, shape):
        limits = np.iinfo(kind.numpy)
        return draw.integers(limits.min, limits.max, shape, endpoint=True).astype(kind.numpy)

    lead, form = one((), (3,)), one("columns first", "turned", "depth first")
    rows, depth, columns = int(draw.integers(1, 150)), 16 * int(draw.integers(1, 9)), 16 * int(draw.integers(1, 9))
    kinds = {"x": one(int8, uint8), "w": one(int8, uint8)}
    b = GraphBuilder("integers")
    x = b.input("x", kinds["x"], (*lead, b.symbol("rows", 1, 200) if one(True, False) else rows, depth))
    w = b.input("w", kinds["w"], (*lead, *((depth, columns) if form == "depth first" else (columns, depth))))
    given = {"x": integers(kinds["x"], (*lead, rows, depth)), "w": integers(kinds["w"], w.shape)}
    if form == "turned":
        w = b.op("permute", [w], order=(*range(len(lead)), len(lead) + 1, len(lead)))
    wide = {name: b.op("cast", [value], dtype=int32) for name, value in (("x", x), ("w", w))}
    ends = (columns, 1) if form == "columns first" else (1, columns)
    for name, shape in (("x", ()), ("w", () if lead else ends)):
        if one(True, False):
            zero = b.input(f"z{name}", kinds[name], shape)
            given[zero.name] = integers(kinds[name], shape)
            wide[name] = b.op("subtract", [wide[name], b.op("cast", [zero], dtype=int32)])
    y = b.op("matmul", [wide["x"], wide["w"]], transpose_b=form == "columns first")
    b.output(b.op("add", [y, b.constant(np.arange(columns, dtype=np.int32))]), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    names = [step.evidence.get("chosen", "") for step in engine.plan.steps]
    assert any("hopper" in name for name in names) == (form != "depth first"), names
    np.testing.assert_array_equal(engine.run(given)["y"], reference.run(graph, given)["y"])


def test_rewritten_products_keep_the_type_of_their_sums(rng: np.random.Generator) -> None:
    b = GraphBuilder("types")
    x, w = b.input("x", float8e4nv, (32, 16)), b.input("w", float8e5, (32, 16))
    b.output(b.op("matmul", [x, b.op("permute", [w], order=(1, 0))], dtype=float32), "turned")
    for number, kind in enumerate((int8, int8, uint8)):
        left = b.op("bitcast", [x], of="float8e4nv", to="int8")
        weights = b.constant(rng.integers(0, 99, (48, 16)).astype(kind.numpy))
        product = b.op("matmul", [left, weights], transpose_b=True, dtype=int32)
        b.output(b.op("reshape", [product], shape=(4, 8, 48)), f"y{number}")
    found = merge_matmuls(canonicalize(b.finish()))
    assert {node.output.dtype for node in found.nodes if node.op == "matmul"} == {float32, int32}


@pytest.mark.parametrize("stored", [uint8, int8, float8e4nv, float8e5], ids=str)
@pytest.mark.parametrize("largest", [0.02, 3.0])
@pytest.mark.parametrize("op", ["gelu", "gelu_tanh", "silu", "sigmoid"])
def test_activations_of_products_of_8_bits(op: str, largest: float, stored: DType, driver, rng) -> None:
    """One function with the factor that quantizes; with an exact tanh, errors are those of a polynomial, and of one
    rounding to the stored type."""
    limits = np.iinfo(stored.numpy) if stored.is_integer else ml_dtypes.finfo(stored.numpy)
    low, high = float(limits.min), float(limits.max)
    factor, kind = np.float32(high / largest), float8e4nv if stored.is_float else int8
    scales = np.geomspace(1e-3, 0.03, 48).astype(np.float32)
    given = {"x": rng.integers(-9, 10, (70, 32)).astype(kind.numpy)}
    b = GraphBuilder(op)
    weights = rng.integers(-9, 10, (48, 32)).astype(kind.numpy)
    sums = b.op("matmul", [b.input("x", kind, (70, 32)), b.constant(weights)], transpose_b=True,
                dtype=float32 if stored.is_float else int32)  # fmt: skip
    y = b.op("multiply", [b.op("cast", [sums], dtype=float32), b.constant(scales)])
    name, _, form = op.partition("_")
    y = b.op(name, [b.op("cast", [y], dtype=float16)], **({"approximate": form} if form else {}))
    y = b.op("multiply", [b.op("cast", [y], dtype=float32), b.constant(factor)])
    y = b.op("round", [y]) if stored.is_integer else y
    b.output(b.op("cast", [b.op("clip", [y], low=low, high=high)], dtype=stored), "y")
    engine = build(b.finish(), "cuda:sm_90a")
    (step,) = engine.plan.steps
    assert step.evidence["chosen"] == "hopper matmul"
    found = np.asarray(engine.run(given)["y"]).astype(np.float64)
    x = given["x"].astype(np.float64) @ weights.astype(np.float64).T * scales
    activation = {"silu": lambda x: x / (1 + np.exp(-x)), "sigmoid": lambda x: 1 / (1 + np.exp(-x))}.get(
        name, lambda x: compute.gelu([x], {"approximate": form or "none"})
    )
    exact = np.clip(activation(x) * np.float64(factor), low, high)
    bits = 4 if stored == float8e4nv else 3
    rounding = 0.5 if stored.is_integer else np.maximum(np.abs(exact) * 2.0**-bits, float(limits.smallest_subnormal))
    allowed = 1.5e-4 * np.abs(x) if op == "gelu" else 1e-6 * np.abs(x) + 1e-6
    assert np.all(np.abs(found - exact) <= rounding + float(factor) * allowed + 1e-4)
