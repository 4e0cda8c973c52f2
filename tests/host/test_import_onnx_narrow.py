"""Element types below a byte, powers of two and reinterpreted bits: conversions, packed weights, engines."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import tilewright  # noqa: E402
from tests.host.test_import_onnx_runtime import check  # noqa: E402
from tilewright.errors import ImportModelError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.importers import import_model  # noqa: E402
from tilewright.importers.onnx import import_onnx  # noqa: E402

TYPES = {
    TensorProto.INT4: ml_dtypes.int4,
    TensorProto.UINT4: ml_dtypes.uint4,
    TensorProto.INT2: ml_dtypes.int2,
    TensorProto.UINT2: ml_dtypes.uint2,
    TensorProto.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
    TensorProto.FLOAT8E8M0: ml_dtypes.float8_e8m0fnu,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
}


def cast_model(kind: int, count: int) -> onnx.ModelProto:
    """There and back again: (float32 [count]) -> (the narrow type, float32)."""
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=kind), helper.make_node("Cast", ["y"], ["z"], to=1)]
    entries = [helper.make_tensor_value_info("x", 1, [count])]
    results = [helper.make_tensor_value_info("y", kind, [count]), helper.make_tensor_value_info("z", 1, [count])]
    graph = helper.make_graph(nodes, "cast", entries, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])


@pytest.mark.parametrize("kind", TYPES)
def test_every_code_and_its_neighbours(kind: int, rng: np.random.Generator) -> None:
    dtype = np.dtype(TYPES[kind])
    codes = np.arange(256, dtype=np.uint8) if dtype.name.startswith("float8") else np.arange(16, dtype=np.uint8)
    codes = codes & 3 if dtype.name.endswith("int2") else codes
    exact = codes.view(dtype).astype(np.float32)
    numbers = exact[np.isfinite(exact)]
    if dtype.name.startswith("float4"):
        numbers = np.concatenate([numbers, (numbers + 0.25), rng.uniform(-8, 8, 200).astype(np.float32)])
    graph = import_onnx(cast_model(kind, numbers.size))
    results = reference.run(graph, {"x": numbers}, dtype=None)
    wanted = numbers.astype(dtype)
    assert results["y"].dtype == dtype
    np.testing.assert_array_equal(results["y"].view(np.uint8), wanted.view(np.uint8))
    np.testing.assert_array_equal(results["z"], wanted.astype(np.float32))


@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4, TensorProto.INT2, TensorProto.UINT2])
def test_floats_are_rounded_and_wrap(kind: int, source: type, rng: np.random.Generator) -> None:
    numbers = [0.5, 1.5, 2.5, -0.5, -2.5, -2.7, 7.9, 0.49999997, -8.6, 300, 8388609, 2**31, -(2**31), 1e30]
    with np.errstate(over="ignore"):
        x = np.array([*numbers, *rng.uniform(-40, 40, 200), np.nan, np.inf, -np.inf]).astype(source)
    model = cast_model(kind, x.size)
    model.ir_version = 10
    model.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    del model.graph.output[0]  # NumPy has no such types in ONNX Runtime
    check(model, {"x": x})


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.FLOAT4E2M1, TensorProto.FLOAT8E8M0])
def test_engine_takes_and_gives_narrow_types(kind: int) -> None:
    numbers = np.array([0.5, 1, 2, 4], np.float32) if kind != TensorProto.INT4 else np.array([-8, -1, 0, 7], np.float32)
    engine = tilewright.compile(cast_model(kind, 4))
    results = engine.run({"x": numbers})
    wanted = numbers.astype(TYPES[kind])
    assert results["y"].dtype == wanted.dtype
    np.testing.assert_array_equal(results["y"].view(np.uint8), wanted.view(np.uint8))
    np.testing.assert_array_equal(results["z"], wanted.astype(np.float32))


def quantized_model(weight: TensorProto, scale: np.ndarray, zero: TensorProto, rows: int) -> onnx.ModelProto:
    """x [2, rows] times a weight that is stored in 4 bits, with a scale for each block of 16 rows."""
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    entries = [helper.make_tensor_value_info("x", 1, [2, rows])]
    results = [helper.make_tensor_value_info("y", 1, None)]
    constants = [weight, numpy_helper.from_array(scale, "s"), zero]
    graph = helper.make_graph(nodes, "quantized", entries, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
def test_weights_of_four_bits_in_blocks(dtype: type, rng: np.random.Generator, tmp_path: Path) -> None:
    low = -8 if dtype is ml_dtypes.int4 else 0
    weight = rng.integers(low, low + 16, (32, 5)).astype(dtype)  # an odd number of columns: bytes cross rows
    zero = rng.integers(low, low + 16, (2, 5)).astype(dtype)
    scale = rng.random((2, 5), dtype=np.float32)
    model = quantized_model(numpy_helper.from_array(weight, "w"), scale, numpy_helper.from_array(zero, "z"), 32)
    x = rng.standard_normal((2, 32), dtype=np.float32)
    check(model, {"x": x})
    wanted = reference.run(import_onnx(model), {"x": x})["y"]
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    path = tmp_path / "model.onnx"
    onnx.save(whole, path, save_as_external_data=True, size_threshold=0)
    np.testing.assert_array_equal(reference.run(import_model(path), {"x": x})["y"], wanted)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-1]
    with pytest.raises(ImportModelError, match=r"has 79 bytes, but its dimensions \[32, 5\] need 80"):
        import_onnx(model)


@pytest.mark.parametrize(("source", "target"), [("float16", "uint16"), ("int64", "float64"), ("bfloat16", "float16")])
def test_bits_as_another_type(source: str, target: str, rng: np.random.Generator) -> None:
    types = {"bfloat16": ml_dtypes.bfloat16}
    before, after = (np.dtype(types.get(name, name)) for name in (source, target))
    numbers = rng.standard_normal(32).astype(before)
    node = helper.make_node("BitCast", ["x"], ["y"], to=helper.np_dtype_to_tensor_dtype(after))
    entries = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(before), [32])]
    results = [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(after), [32])]
    model = helper.make_model(
        helper.make_graph([node], "bits", entries, results), opset_imports=[helper.make_opsetid("", 26)]
    )
    wanted = numbers.view(after)
    for found in (
        reference.run(import_onnx(model), {"x": numbers})["y"].astype(after),
        tilewright.compile(model).run({"x": numbers})["y"],
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
def test_engine_quantizes_to_narrow_integers_and_back(kind: int) -> None:
    """Numbers that only the run knows, beyond both ends; a second input of codes."""
    dtype = np.dtype(TYPES[kind])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "zero"], ["codes"], output_dtype=0),
        helper.make_node("DequantizeLinear", ["given", "s", "zero"], ["numbers"]),
    ]
    constants = [helper.make_tensor("s", 1, [], [0.5]), helper.make_tensor("zero", kind, [], [3])]
    entries = [helper.make_tensor_value_info("x", 1, ["n"]), helper.make_tensor_value_info("given", kind, ["n"])]
    results = [helper.make_tensor_value_info("codes", kind, ["n"]), helper.make_tensor_value_info("numbers", 1, ["n"])]
    graph = helper.make_graph(nodes, "quantize", entries, results, constants)
    engine = tilewright.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)]))
    x = np.array([-9, -3.25, -0.25, 0.75, 2, 9], np.float32)
    limits = ml_dtypes.iinfo(dtype)
    codes = np.clip(np.rint(x / 0.5) + 3, limits.min, limits.max).astype(dtype)
    found = engine.run({"x": x, "given": codes})
    np.testing.assert_array_equal(found["codes"].astype(np.int8), codes.astype(np.int8))
    np.testing.assert_array_equal(found["numbers"], (codes.astype(np.float32) - 3) * 0.5)
