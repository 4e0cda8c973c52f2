"""Weights in few bits from models in floats: rounding methods against their definitions, engines, the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import tilewright
from tilewright.cli.main import application
from tilewright.errors import InputError
from tilewright.importers.quantized_weights import nearest
from tilewright.quant.rounding import ROUNDING_METHODS, Moments, awq, gptq, loss, rounded, smoothing


def correlated(rng: np.random.Generator, rows: int, depth: int) -> np.ndarray:
    """Inputs whose elements depend on each other and are of different sizes, as those of real layers."""
    mixed = rng.standard_normal((rows, depth // 4)) @ rng.standard_normal((depth // 4, depth))
    return (mixed * np.exp(rng.standard_normal(depth))).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x [rows, 128] -> relu(x W + b) V."""
    rng = np.random.default_rng(1)
    arrays = {"w": (128, 256), "b": (256,), "v": (256, 128)}
    constants = [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
                 for name, shape in arrays.items()]  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Add", ["xw", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]), helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "net", [value("x", TensorProto.FLOAT, [4, 128])],
                              [value("y", TensorProto.FLOAT, [4, 128])], constants)  # fmt: skip
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


def test_gptq_is_its_definition(rng: np.random.Generator) -> None:
    """Column by column, with the inverse of what is left computed anew; and better than rounding each alone."""
    columns, depth, group = 5, 48, 16
    weights, x = rng.standard_normal((columns, depth)).astype(np.float32), correlated(rng, 200, depth)
    products = (x.astype(np.float64).T @ x) / len(x)
    found = gptq(weights, products, 4, group)
    damped = products + np.eye(depth) * 0.01 * np.mean(np.diag(products))
    left, inverse = weights.astype(np.float64), np.linalg.inv(damped)
    numbers = np.empty_like(left)
    for step in range(depth):
        if step % group == 0:
            scale = np.abs(left[:, step : step + group]).max(axis=1) / 7
        numbers[:, step] = np.clip(np.rint(left[:, step] / scale), -7, 7) * scale
        error = (left[:, step] - numbers[:, step]) / inverse[step, step]
        left[:, step:] -= np.outer(error, inverse[step, step:])
        inverse -= np.outer(inverse[:, step], inverse[step]) / inverse[step, step]
    np.testing.assert_allclose(found.numbers(), numbers, rtol=1e-4, atol=1e-5)
    assert loss(weights, found.numbers(), products) < loss(weights, nearest(weights, 4, group).numbers(), products)


def test_factors_are_exact_before_rounding(rng: np.random.Generator) -> None:
    weights, x = rng.standard_normal((96, 64)).astype(np.float32), correlated(rng, 300, 64)
    moments = Moments.of(64, True)
    for part in np.split(x, 3):
        moments.add(part)
    assert moments.count == 300 and np.allclose(moments.mean, x.mean(axis=0), atol=1e-4)
    found = awq(weights, moments, 4, 32)
    assert found.factors is not None
    plain = loss(weights, nearest(weights, 4, 32).numbers(), moments.products)
    assert loss(weights, found.numbers(), moments.products) < plain
    for factors in (found.factors, smoothing(weights, moments.largest)):
        np.testing.assert_allclose((x / factors) @ (weights * factors).T, x @ weights.T, rtol=1e-3, atol=1e-2)
    heights = np.abs(x / smoothing(weights, moments.largest)).max(axis=0)
    assert heights.max() / heights.min() < np.abs(x).max(axis=0).max() / np.abs(x).max(axis=0).min()


def test_constant_and_absent_inputs(rng: np.random.Generator) -> None:
    """Inputs that are always zero, and data without rows, do not make numbers that are none."""
    weights = rng.standard_normal((16, 32)).astype(np.float32)
    moments = Moments.of(32, True)
    for count in (0, 8):
        moments.add(np.where(np.arange(32) % 2, rng.standard_normal((count, 32)), 0))
        for method in ROUNDING_METHODS:
            assert np.isfinite(rounded(weights, 4, 32, method, moments).numbers()).all()


@pytest.mark.parametrize(("scheme", "options"), [
    ("int8-weights", {}), ("int4-weights", {"group": 32}), ("int4-weights", {"method": "gptq"}),
    ("int4-weights", {"method": "awq", "correct_bias": True}), ("int4-weights", {"group": 48}),
    ("int8", {"method": "smooth", "correct_bias": True}),
], ids=str)  # fmt: skip
def test_engines(model: Path, scheme: str, options: dict[str, Any], rng: np.random.Generator) -> None:
    data = list(correlated(rng, 16, 128).reshape(4, 4, 128))
    found = tilewright.quantize(model, data, scheme, **options)
    (error,) = found.errors.values()
    assert [layer.reason for layer in found.layers] == [None, None] and found.remarks == ()
    assert 0 < error < (0.02 if "int8" in scheme else 0.2)
    wanted = tilewright.compile(model).run({"x": data[0]})["y"]
    difference = np.sqrt(((found.engine.run({"x": data[0]})["y"] - wanted) ** 2).mean() / (wanted**2).mean())
    assert difference < 2 * error + 0.01
    bits = 4 if "int4" in scheme else 8
    assert found.engine.weight_bytes < 2 * 128 * 256 * (bits + 1.5) / 8 + 4096


def test_layers_that_gptq_leaves_to_the_nearest_are_named(model: Path, rng: np.random.Generator) -> None:
    found = tilewright.quantize(model, [correlated(rng, 4, 128)], "int4-weights", method="gptq", group=48)
    (remark,) = found.remarks
    assert "not by gptq" in remark and any(layer.name in remark for layer in found.layers), remark


def test_what_does_not_go_together(model: Path, tmp_path: Path) -> None:
    refused = {
        "the method gptq is for int8-weights and int4-weights": {"scheme": "int8", "method": "gptq"},
        "the method smooth is for the scheme int8": {"scheme": "int4-weights", "method": "smooth"},
        "unknown method 'best'": {"method": "best"},
        "the method awq needs calibration data": {"scheme": "int4-weights", "method": "awq"},
        "correct_bias needs calibration data": {"scheme": "int4-weights", "correct_bias": True},
        "group is 3": {"scheme": "int4-weights", "group": 3},
        "group is 64": {"scheme": "int8-dynamic", "group": 64},
    }
    for message, options in refused.items():
        with pytest.raises(InputError, match=message):
            tilewright.quantize(model, **options)
    engine = tmp_path / "net.engine"
    done = CliRunner().invoke(application(), ["quantize", str(model), "--scheme", "int4-weights", "--group", "32",
                                              "-o", str(engine)])  # fmt: skip
    assert done.exit_code == 0 and "lowered to int4-weights without data" in done.output.replace("\n", " ")
    assert engine.exists()
