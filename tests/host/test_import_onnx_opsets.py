"""Old opsets by the rules themselves; functions, their bounds, and long models."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, parser  # noqa: E402

from tests.host.test_import_onnx_invalid import FLOAT, Arrays, ints, model_of, single  # noqa: E402
from tilewright import importers  # noqa: E402
from tilewright.errors import ImportModelError, TilewrightError, UnsupportedOperationError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

X = np.arange(-6, 6, dtype=np.float32).reshape(2, 6) / 4
CHANNELS = np.arange(2, dtype=np.float32).reshape(2, 1)
IMAGE = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def case(
    operation: str, opset: int, want: Any, x: np.ndarray = X, constants: Arrays | None = None, **attrs: Any
) -> Any:
    name = f"{operation} {opset} {' '.join(attrs)}"
    return pytest.param(single(operation, x.shape, constants, opset, **attrs), x, want, id=name)


@pytest.mark.parametrize(
    ("model", "x", "want"),
    [
        case("Unsqueeze", 7, X[None, :, None], axes=[0, 2]),
        case("Squeeze", 7, X, X[None, :, None], axes=[0, -2]),
        case("Slice", 7, X[:, 1:-1], starts=[1], ends=[-1], axes=[1]),
        case("Slice", 9, X[1:, 2:], starts=[1, 2], ends=[9, 2**31 - 1]),
        case("Pad", 7, np.pad(X, ((1, 0), (0, 2)), constant_values=0.5), pads=[1, 0, 0, 2], value=0.5),
        case("Pad", 1, np.pad(X, ((1, 0), (0, 2))), paddings=[1, 0, 0, 2]),
        case("Clip", 6, np.clip(X, -0.5, 0.75), min=-0.5, max=0.75),
        case("Clip", 10, np.maximum(X, 0.25), min=0.25),
        case("Softmax", 12, softmax(IMAGE.reshape(1, -1)).reshape(IMAGE.shape), IMAGE),
        case("Softmax", 12, softmax(IMAGE.reshape(2, -1)).reshape(IMAGE.shape), IMAGE, axis=2),
        case("Softmax", 13, softmax(IMAGE), IMAGE),
        case("LogSoftmax", 7, np.log(softmax(X)), axis=1),
        case("Hardmax", 11, np.eye(6, dtype=np.float32)[X.argmax(1)], axis=1),
        case("ReduceSum", 11, X.sum(1, keepdims=True), axes=[1]),
        case("ReduceMean", 17, X.mean((0, 1)), axes=[0, 1], keepdims=0),
        case("ReduceMax", 7, X.max(1), axes=[1], keepdims=0),
        case("Split", 7, X[:, :6], axis=1, split=[6]),
        case("Dropout", 7, X, ratio=0.9),
        case("Dropout", 6, X, is_test=1),
        case("Reshape", 1, X.reshape(3, 4), shape=[3, -1]),
        case("Tile", 1, np.tile(X, (3, 1)), constants={"t": np.float32(3), "a": np.float32(0)}),
        case("Concat", 1, X),
        case("Cast", 1, X.astype(np.int32), to="INT32"),
        case("Add", 6, X + CHANNELS, constants={"b": CHANNELS[:, 0]}, broadcast=1, axis=0),
        case("Mul", 1, X * 3, constants={"b": np.float32(3)}, broadcast=1),
        case("Pow", 6, X**2, constants={"b": np.full((2, 6), 2, np.float32)}),
        case("PRelu", 6, np.maximum(IMAGE - 9, 0.5 * (IMAGE - 9)), IMAGE - 9, {"s": np.full(2, 0.5, np.float32)}),
        case("Gemm", 6, X @ X.T + 1, constants={"b": X, "c": np.ones(2, np.float32)}, transB=1, broadcast=1),
        case("Upsample", 7, IMAGE.repeat(2, 2).repeat(2, 3), IMAGE, scales=[1.0, 1.0, 2.0, 2.0]),
        case("Upsample", 9, IMAGE.repeat(2, 3), IMAGE, {"s": np.array([1, 1, 1, 2], np.float32)}),
        case("Upsample", 1, IMAGE.repeat(2, 3), IMAGE, height_scale=1.0, width_scale=2.0),
        case("Resize", 10, IMAGE[:, :, :, ::2], IMAGE, {"s": np.array([1, 1, 1, 0.5], np.float32)}),
        case("BatchNormalization", 6, IMAGE / np.float32(np.sqrt(1 + 1e-5)), IMAGE,
             {n: np.full(2, v, np.float32) for n, v in zip("sbmv", (1, 0, 0, 1), strict=True)}, is_test=1),
        case("BatchNormalization", 8, IMAGE / np.float32(np.sqrt(1 + 1e-5)), IMAGE,
             {n: np.full(2, v, np.float32) for n, v in zip("sbmv", (1, 0, 0, 1), strict=True)}),
    ],
)  # fmt: skip
def test_forms_of_old_opsets(model: onnx.ModelProto, x: np.ndarray, want: np.ndarray) -> None:
    (found,) = reference.run(import_model(model), {"x": x}, dtype=None).values()
    assert (found.shape, found.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_the_largest_of_old_opsets() -> None:
    node = helper.make_node("TopK", ["x"], ["v", "i"], k=2)
    graph = import_model(model_of([node], {"x": (FLOAT, [2, 6])}, ["v", "i"], opset=9))
    found = reference.run(graph, {"x": X}, dtype=None)
    np.testing.assert_array_equal(found["v"], X[:, :3:-1])
    np.testing.assert_array_equal(found["i"], [[5, 4], [5, 4]])


@pytest.mark.parametrize("operation", ["Dropout", "BatchNormalization"])
def test_training_forms_are_refused(operation: str) -> None:
    constants = {name: np.ones(2, np.float32) for name in "sbmv"} if operation == "BatchNormalization" else None
    with pytest.raises(UnsupportedOperationError, match="training mode"):
        import_model(single(operation, (1, 2, 3, 4), constants, 6))


@pytest.mark.parametrize(("saturate", "largest"), [(1, 448.0), (0, np.nan)])
def test_casts_with_and_without_saturation(saturate: int, largest: float) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT8E4M3FN, saturate=saturate),
        helper.make_node("Cast", ["h"], ["y"], to=FLOAT),
    ]
    x = np.array([1.06, -3.7, 1000.0], np.float32)
    (found,) = reference.run(import_model(model_of(nodes, {"x": (FLOAT, [3])}, ["y"])), {"x": x}, dtype=None).values()
    np.testing.assert_array_equal(found[:2], x[:2].astype(ml_dtypes.float8_e4m3fn).astype(np.float32))
    np.testing.assert_array_equal(found[2], np.float32(largest))


@pytest.mark.parametrize("extent", [32, "n"])
def test_a_sum_of_a_constant_of_a_shape(extent: Any) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["o"], value=helper.make_tensor("v", FLOAT, [1], [1.0])),
        helper.make_node("ReduceSum", ["o", "a"], ["y"], keepdims=0),
    ]
    graph = import_model(model_of(nodes, {"x": (FLOAT, [extent, 4])}, ["y"], {"a": ints(0)}))
    (found,) = reference.run(graph, {"x": np.zeros((32, 4), np.float32)}).values()
    np.testing.assert_array_equal(found, np.full(4, 32.0))


# Functions ---------------------------------------------------------------------------------------------


def with_functions(body: str, functions: str, opset: int = 20) -> onnx.ModelProto:
    return parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : {opset}, "local" : 1]>
        main (float[2, 6] x) => (float[2, 6] y) {{ {body} }}
        {functions}
    """)


HEAD = '<opset_import: ["" : 20, "local" : 1], domain: "local">'


def test_optional_inputs_of_functions_may_be_left_out() -> None:
    functions = f"{HEAD} limit (a, low, high) => (b) {{ b = Clip(a, low, high) }}"
    model = with_functions("half = Constant <value_float: float = 0.5> ()  y = local.limit(x, , half)", functions)
    (found,) = reference.run(import_model(model), {"x": X}).values()
    np.testing.assert_array_equal(found, np.minimum(X, 0.5))
    model = with_functions("y = local.limit(x)", functions)
    (found,) = reference.run(import_model(model), {"x": X}).values()
    np.testing.assert_array_equal(found, X)


def test_functions_have_opsets_and_attributes_of_their_own() -> None:
    functions = (
        '<opset_import: ["" : 11], domain: "local"> total <axis> (a) => (b) '
        "{ b = ReduceSum <axes: ints = @axis, keepdims = 1> (a) }"
    )
    model = with_functions("s = local.total <axis: ints = [1]> (x)  y = Add(x, s)", functions)
    (found,) = reference.run(import_model(model), {"x": X}).values()
    np.testing.assert_allclose(found, X + X.sum(1, keepdims=True), rtol=1e-6)


def doubling(times: int) -> onnx.ModelProto:
    bodies = [f"{HEAD} f0 (a) => (b) {{ b = Neg(a) }}"]
    bodies += [
        f"{HEAD} f{n} (a) => (b) {{ c = local.f{n - 1}(a)  b = local.f{n - 1}(c) }}" for n in range(1, times + 1)
    ]
    return with_functions(f"y = local.f{times}(x)", "\n".join(bodies))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (doubling(16), "65536 are supported"),
        (doubling(31), "65536 are supported"),
        (doubling(40), "more than 32 deep"),
        (with_functions("y = local.f(x)", f"{HEAD} f (a) => (b) {{ b = local.f(a) }}"), "in a circle: f -> f"),
        (
            with_functions(
                "y = local.f(x)",
                f"{HEAD} f (a) => (b) {{ b = local.g(a) }} {HEAD} g (a) => (b) {{ b = local.f(a) }}",
            ),
            "in a circle: f -> g -> f",
        ),
        (with_functions("y = local.f(x, x)", f"{HEAD} f (a) => (b) {{ b = Neg(a) }}"), "1 inputs and 1 outputs"),
        (with_functions("y = local.f(x)", f"{HEAD} f (a) => (b) {{ b = Neg(z) }}"), "reads 'z', which no input"),
        (with_functions("y = local.f(x)", f"{HEAD} f (a) => (c) {{ b = Neg(a) }}"), "an output 'c'"),
    ],
)
def test_functions_that_break_rules(model: onnx.ModelProto, message: str) -> None:
    started = time.monotonic()
    with pytest.raises(ImportModelError, match=message):
        import_model(model)
    assert time.monotonic() - started < 5


def test_functions_that_double_a_little() -> None:
    (found,) = reference.run(import_model(doubling(6)), {"x": X}).values()
    np.testing.assert_array_equal(found, X)


# Size --------------------------------------------------------------------------------------------------


def test_long_chains_are_imported() -> None:
    nodes = [helper.make_node("Relu", [f"v{number}"], [f"v{number + 1}"]) for number in range(20_000)]
    model = model_of(nodes, {"v0": (FLOAT, [4])}, ["v20000"])
    assert len(import_model(model).nodes) == 20_000


@pytest.mark.parametrize(
    ("operation", "count"), [("Mul", 40), ("Add", 70), ("Concat", 40), ("Max", 40), ("Div", 40), ("Expand", 70)]
)
def test_shape_arithmetic_cannot_grow_forever(operation: str, count: int) -> None:
    """Products, sums and lists of sizes that double again and again."""
    nodes = [helper.make_node("Shape", ["x"], ["v0"])]
    for number in range(count):
        last = other = f"v{number}"
        if operation in ("Max", "Div"):
            nodes.append(helper.make_node("Add", [last, "one"], [f"w{number}"]))
            other = f"w{number}"
        extra = {"axis": 0} if operation == "Concat" else {}
        nodes.append(helper.make_node(operation, [last, other], [f"v{number + 1}"], **extra))
    nodes.append(helper.make_node("ConstantOfShape", [f"v{count}"], ["y"]))
    started = time.monotonic()
    try:
        import_model(model_of(nodes, {"x": (FLOAT, ["n", "m"])}, ["y"], {"one": ints(1)}))
    except TilewrightError as error:
        assert "import rule failed" not in str(error)
    assert time.monotonic() - started < 8


def test_branches_inside_each_other() -> None:
    model = model_of([], {"x": (FLOAT, [2])}, ["y"], {"yes": np.array(True)})
    graph, name = model.graph, "y"
    for level in range(40):
        node = graph.node.add(op_type="If", input=["yes"], output=[name])
        name = f"z{level}"
        graph = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
        graph.output.add(name=name)
    graph.node.add(op_type="Relu", input=["x"], output=[name])
    with pytest.raises(ImportModelError, match="nested more than 32 deep"):
        import_model(model)


def test_conversion_and_inlining_are_our_own() -> None:
    """The converter and the inliner of the onnx package end the process or raise for models of the field."""
    folder = Path(importers.__file__).parent
    text = "".join(path.read_text() for path in folder.rglob("*.py"))
    for name in ("version_converter", "onnx.inliner", "shape_inference", "onnx.checker", "onnx.compose"):
        assert name not in text.replace("with onnx.checker", "").replace("with onnx.shape_inference", ""), name
