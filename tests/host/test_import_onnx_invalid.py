"""ONNX models that break the format's rules: each is an error that names the node, the part and the reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import AttributeProto, TensorProto, helper, numpy_helper, parser  # noqa: E402

from tilewright.errors import ImportModelError, UnsupportedOperationError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Arrays = dict[str, Any]


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, Any]],
    outputs: list[str],
    constants: Arrays | None = None,
    opset: int = 20,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def single(
    operation: str,
    shape: Any = (2, 6),
    /,
    constants: Arrays | None = None,
    opset: int = 20,
    kind: int = FLOAT,
    **attrs: Any,
) -> onnx.ModelProto:
    """One node that reads x and then the constants."""
    outputs = ["y", "i"] if operation == "TopK" else ["y"]
    node = helper.make_node(operation, ["x", *(constants or {})], outputs, name="it", **attrs)
    return model_of([node], {"x": (kind, shape)}, ["y"], constants, opset)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


IMAGE = (1, 4, 6, 6)
WEIGHT = {"w": np.ones((4, 4, 3, 3), np.float32)}
CASES: dict[str, tuple[onnx.ModelProto, str]] = {
    "opset": (single("Relu", opset=9999), "imports opset 9999"),
    "opset 0": (single("Relu", opset=0), "imports opset 0"),
    "operation of a later opset": (single("Gelu", opset=13), "opset 13 has no Gelu; a later one"),
    "operation that ended": (single("Upsample", scales=[1.0, 2.0], opset=13), "no Upsample any more"),
    "k": (single("TopK", constants={"k": ints(2**40)}, axis=1), "k is 1099511627776"),
    "k of two": (single("TopK", constants={"k": ints(1, 2)}), "k has 2 elements"),
    "negative k": (single("TopK", constants={"k": ints(-1)}), "k is -1"),
    "kernel of 0": (single("MaxPool", IMAGE, kernel_shape=[0, 2]), "'kernel_shape' is .0, 2."),
    "kernel of one": (single("AveragePool", IMAGE, kernel_shape=[2]), "'kernel_shape' has 1 entries"),
    "no kernel": (single("MaxPool", IMAGE), "'kernel_shape' is missing"),
    "stride of 0": (single("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[0, 1]), "'strides' is .0, 1."),
    "negative pads": (single("MaxPool", IMAGE, kernel_shape=[2, 2], pads=[-1, 0, 0, 0]), "'pads'"),
    "pads beyond kernel": (
        single("MaxPool", IMAGE, kernel_shape=[2, 2], pads=[2, 2, 2, 2]),
        "not less than the window",
    ),
    "auto_pad": (single("MaxPool", IMAGE, kernel_shape=[2, 2], auto_pad="SOME"), "'auto_pad' is 'SOME'"),
    "pool of rank 2": (single("MaxPool", (4, 4), kernel_shape=[2]), "2 dimensions; it must have 3"),
    "window beyond image": (single("MaxPool", IMAGE, kernel_shape=[9, 9]), "negative size"),
    "groups of 0": (single("Conv", IMAGE, WEIGHT, group=0), "'group' is 0"),
    "groups": (single("Conv", IMAGE, WEIGHT, group=3), "4 channels are not groups"),
    "dilation": (single("Conv", IMAGE, WEIGHT, dilations=[1]), "'dilations' has 1 entries"),
    "kernel_shape": (single("Conv", IMAGE, WEIGHT, kernel_shape=[5, 5]), "'kernel_shape' is .5, 5., but"),
    "output_padding": (single("ConvTranspose", IMAGE, WEIGHT, output_padding=[3, 3]), "'output_padding'"),
    "axis": (single("Softmax", axis=2), "axis 2 is out of range for a tensor of 2"),
    "axis of a scalar": (single("Softmax", ()), "axis -1 is out of range for a tensor of 0"),
    "axes": (single("ReduceSum", constants={"axes": ints(0, 5)}), "axis 5 is out of range"),
    "axes twice": (single("ReduceSum", constants={"axes": ints(1, -1)}), "name one twice"),
    "axes of two dimensions": (single("ReduceSum", constants={"axes": ints(1).reshape(1, 1)}), "must be a list"),
    "perm": (single("Transpose", perm=[0, 0]), "name one twice"),
    "short perm": (single("Transpose", perm=[0]), "'perm' has 1 entries"),
    "squeeze": (single("Squeeze", constants={"axes": ints(1)}), "only dimensions of size 1"),
    "unsqueeze": (single("Unsqueeze", constants={"axes": ints(0, 0)}), "name one twice"),
    "reshape": (single("Reshape", constants={"shape": ints(5, -1)}), "reshape"),
    "two open sizes": (single("Reshape", constants={"shape": ints(-1, -1)}), "more than one -1"),
    "negative size": (single("Reshape", constants={"shape": ints(-2, 6)}), "negative number"),
    "kept size": (single("Reshape", constants={"shape": ints(2, 6, 0)}), "a 0 in the shape"),
    "expand": (single("Expand", constants={"shape": ints(3, 6)}), "do not broadcast"),
    "negative expand": (single("Expand", constants={"shape": ints(-3, 1, 1)}), "negative number"),
    "8 TiB": (single("Expand", (1,), {"shape": ints(2**40)}), "1099511627776 elements; at most"),
    "8 TiB of zeros": (single("Tile", (1,), {"counts": ints(2**40)}), "1099511627776 elements; at most"),
    "tile": (single("Tile", constants={"counts": ints(2)}), "1 counts"),
    "slice of step 0": (
        single("Slice", constants={"s": ints(0), "e": ints(1), "a": ints(0), "t": ints(0)}),
        "have a 0",
    ),
    "slice lists": (single("Slice", constants={"s": ints(0), "e": ints(1, 2)}), "different lengths"),
    "split": (single("Split", constants={"parts": ints(1)}), "are not 1 that make up 2"),
    "num_outputs": (single("Split", num_outputs=3), "'num_outputs' is 3"),
    "uneven split": (single("Split", (5,), opset=11, split=[4]), "are not 1 that make up 5"),
    "pads": (single("Pad", constants={"pads": ints(1, 1)}), "2 pads for 2 dimensions"),
    "cut too much": (single("Pad", constants={"pads": ints(-2, 0, -2, 0)}), "cut more than"),
    "pad mode": (single("Pad", constants={"pads": ints(0, 0, 1, 1)}, mode="mirror"), "'mode' is 'mirror'"),
    "gather": (single("Gather", constants={"i": ints(0, 2)}), "out of range"),
    "gather elements": (single("GatherElements", constants={"i": ints(0, 1, 0).reshape(3, 1)}, axis=1), "reach beyond"),
    "index tuples": (single("GatherND", constants={"i": ints(0, 99)}), "from 99 to 99 are out of range"),
    "gather nd": (single("GatherND", constants={"i": ints(0, 0, 0)}), "tuples of 3 numbers"),
    "scatter": (
        single("ScatterElements", constants={"i": ints(0).reshape(1, 1), "u": np.ones((2, 1), np.float32)}),
        "must have one shape",
    ),
    "one hot": (
        single("OneHot", (2,), {"d": ints(-3), "v": np.ones(2, np.float32)}),
        "the depth",
    ),
    "matmul": (single("MatMul", constants={"w": np.ones((5, 2), np.float32)}), "inner sizes differ"),
    "matmul of a scalar": (single("MatMul", constants={"w": np.float32(1)}), "0 dimensions"),
    "gemm": (single("Gemm", (2, 2, 2), {"w": np.ones((2, 2), np.float32)}), "3 dimensions; it must have 2"),
    "gemm bias": (
        single("Gemm", constants={"w": np.ones((6, 3), np.float32), "b": np.ones((4, 3), np.float32)}),
        "do not broadcast",
    ),
    "broadcast": (single("Add", constants={"b": np.ones(5, np.float32)}), "do not broadcast"),
    "old broadcast": (single("Add", constants={"b": np.ones(6, np.float32)}, opset=6), "'broadcast' is not set"),
    "two element types": (single("Add", constants={"b": np.ones(6)}), "inputs 0 and 1 must have one element type"),
    "element type": (single("Sqrt", kind=INT64), "is i64, which the operation does not take"),
    "element type of a later opset": (single("Relu", kind=INT64, opset=13), "does not take in the opset"),
    "attribute of another type": (single("Softmax", axis=1.0), "'axis' is of type FLOAT; it must be of type INT"),
    "missing attribute": (single("Concat"), "'axis' is missing"),
    "too few inputs": (single("Where"), "it has 1 inputs; it must have 3"),
    "too many inputs": (single("Relu", constants={"b": np.ones(6, np.float32)}), "it has 2 inputs; it must have 1"),
    "clip": (single("Clip", constants={"low": np.zeros(2, np.float32)}), "no single number"),
    "celu": (single("Celu", alpha=0.0), "'alpha' is 0"),
    "depth to space": (single("DepthToSpace", IMAGE, blocksize=0), "'blocksize' is 0"),
    "depth to space of channels": (single("DepthToSpace", IMAGE, blocksize=3), "reshape"),
    "groups of a norm": (
        single(
            "GroupNormalization", IMAGE, {"s": np.ones(4, np.float32), "b": np.ones(4, np.float32)}, 21, num_groups=0
        ),
        "'num_groups' is 0",
    ),
    "norm": (
        single("BatchNormalization", IMAGE, {name: np.ones(3, np.float32) for name in "sbmv"}),
        "not one number for each channel",
    ),
    "scales": (single("Resize", IMAGE, {"r": np.zeros(0, np.float32), "s": np.ones(3, np.float32)}), "3 scales for 4"),
    "scale of 0": (
        single("Resize", IMAGE, {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 0, 1], np.float32)}),
        "the scale of dimension 2 is 0.0",
    ),
    "eye": (single("EyeLike", (2, 2, 2)), "3 dimensions"),
    "trilu": (single("Trilu", (2,)), "1 dimensions"),
    "transform of a scalar": (single("DFT", (4,)), "1 dimensions; it must have 2"),
    "transform without parts": (single("DFT", (4, 3)), "no dimension of real and imaginary parts"),
    "mel weights": (
        model_of(
            [helper.make_node("MelWeightMatrix", list("abcde"), ["y"])],
            {},
            ["y"],
            {"a": np.int64(-1), "b": np.int64(8), "c": np.int64(8), "d": np.float32(0), "e": np.float32(4)},
        ),
        "number of bins is",
    ),
    "scale of a quantized tensor": (
        single("QuantizeLinear", constants={"s": np.ones((1, 6), np.float32)}),
        "the scale",
    ),
    "classes of a loss": (single("NegativeLogLikelihoodLoss", constants={"c": ints(0)}), "the classes"),
    "empty but huge": (single("Expand", (1,), {"shape": ints(0, 2**62, 2**62)}), "at most"),
    "constant empty but huge": (
        model_of([helper.make_node("ConstantOfShape", ["s"], ["y"])], {}, ["y"], {"s": ints(0, 2**62, 2**62)}),
        "at most",
    ),
    "input of a huge size": (single("Relu", (2**40,)), "dimension 0 has the size 1099511627776"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_of_onnx_is_broken(name: str) -> None:
    model, message = CASES[name]
    with pytest.raises(ImportModelError, match=message) as error:
        import_model(model)
    assert "import rule failed" not in str(error.value)


def relu(source: str = "x", target: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [target], **attributes)


def edited(*edits: str) -> onnx.ModelProto:
    """y = relu(x w) after some statements on `model` and `graph`."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="product"), relu("h", "y", name="last")]
    model = model_of(nodes, {"x": (FLOAT, ["n", 4])}, ["y"], {"w": np.ones((4, 3), np.float32)})
    for edit in edits:
        exec(edit, {"model": model, "graph": model.graph, "helper": helper, "onnx": onnx, "np": np})
    return model


EDITS: dict[str, str] = {
    "model.ir_version = 0": "IR version 0",
    "model.ir_version = 999": "IR version 999",
    "del model.opset_import[:]": "imports no opset",
    "model.opset_import.add(version=19)": "versions 20 and 19 of the domain 'ai.onnx'",
    "model.opset_import.add(domain='ai.onnx', version=19)": "versions 20 and 19",
    "del graph.output[:]": "no outputs",
    "graph.output.add(name='y')": "two outputs named 'y'",
    "graph.output.add(name='ghost')": "output 'ghost'",
    "graph.input.add().CopyFrom(graph.input[0])": "defines 'x' twice",
    "graph.initializer.add().CopyFrom(graph.initializer[0])": "two initializers named 'w'",
    "graph.initializer[0].name = ''": "without a name",
    "graph.node[1].output[0] = 'h'": "defines 'h' twice",
    "graph.node[1].output[0] = 'x'": "defines 'x' twice",
    "graph.node[0].input[0] = 'y'": "nodes must have no cycles",
    "graph.node[0].input[0] = 'h'": "nodes must have no cycles",
    "graph.node[0].op_type = ''": "names no operation",
    "del graph.node[1].output[:]": "no outputs",
    "graph.node[0].input[1] = ''": "input 1 .'B'. is left out",
    "del graph.node[0].input[1:]": "it has 1 inputs; it must have 2",
    "for _ in range(2): graph.node[1].attribute.add(name='alpha', f=1.0, type=1)": "two attributes named 'alpha'",
    "graph.initializer[0].dims[0] = 5": "48 bytes, but its dimensions .5, 3. need 60",
    "graph.initializer[0].dims[0] = -4": "negative size -4",
    "graph.initializer[0].dims[0] = 2**60": "at most",
    "graph.initializer[0].dims.extend([1] * 31)": "33 dimensions",
    "t = graph.initializer[0]; t.raw_data = b''; t.dims[0] = 0; t.dims.extend([2**40, 2**40])": "at most",
    "graph.initializer[0].raw_data = b'1'": "1 bytes",
    "graph.initializer[0].data_type = 9999": "element type 9999",
    "graph.initializer[0].data_type = onnx.TensorProto.STRING": "in another place than string_data",
    "graph.initializer[0].float_data.append(1.0)": "stores its elements twice",
    "graph.initializer[0].ClearField('raw_data'); graph.initializer[0].float_data.extend([1.0] * 11)": "11 elements",
    "graph.initializer[0].ClearField('raw_data'); graph.initializer[0].double_data.extend([1.0] * 12)": "float_data",
    "t = graph.initializer[0]; t.ClearField('raw_data'); t.data_type = 3; t.int32_data.extend([300] * 12)": "300 to",
    "graph.initializer[0].segment.begin = 3": "in segments",
    "graph.initializer[0].data_type = onnx.TensorProto.DOUBLE": "48 bytes, but its dimensions",
    "s = graph.sparse_initializer.add(); s.values.name, s.values.data_type = 's', 1; s.dims.append(2); "
    "s.values.dims.append(1); s.values.float_data.append(1)": "'s' has 1 values, and indices of another number",
    "s = graph.sparse_initializer.add(); s.values.name, s.values.data_type = 's', 1; s.dims.append(2); "
    "s.values.dims.append(1); s.values.float_data.append(1); s.indices.data_type = 7; s.indices.dims.append(1); "
    "s.indices.int64_data.append(2)": "'s' has an index outside its dimensions .2.",
    "graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64": "'y' is declared as INT64, but it is f32",
    "graph.output[0].type.sequence_type.elem_type.tensor_type.elem_type = 1": "declared as sequence_type",
    "graph.value_info.append(helper.make_tensor_value_info('h', 7, None))": "'h' is declared as INT64",
    "graph.input.append(helper.make_tensor_value_info('w', 1, [4, 4]))": "the initializer 'w' is declared",
    "graph.input[0].type.tensor_type.ClearField('shape')": "declared without a number of dimensions",
    "graph.input[0].type.tensor_type.elem_type = 8": "is str, which the operation does not take",
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_rule_of_the_format_is_broken(edit: str) -> None:
    import_model(edited())
    with pytest.raises(ImportModelError, match=EDITS[edit]):
        import_model(edited(edit))


@pytest.mark.parametrize("shape", ["'n', 9", "3"])
def test_shapes_of_outputs_that_do_not_fit_are_logged(shape: str, caplog: pytest.LogCaptureFixture) -> None:
    edit = f"graph.output[0].CopyFrom(helper.make_tensor_value_info('y', 1, [{shape}]))"
    assert len(import_model(edited(edit)).nodes) == 2
    assert "output 'y' is declared with the shape" in caplog.text and "is ignored" in caplog.text


def test_shapes_inside_the_graph_that_do_not_fit_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    graph = import_model(edited("graph.value_info.append(helper.make_tensor_value_info('h', 1, [2, 9]))"))
    assert len(graph.nodes) == 2
    assert "'h' is declared with the shape [2, 9], but it has [n, 3]; the declared shape is ignored" in caplog.text


def test_a_dimension_that_the_model_fixes_stays_fixed() -> None:
    with pytest.raises(ImportModelError, match="the model fixes this dimension at 4"):
        import_model(edited(), dynamic_shapes={"x": {1: ("width", 1, 8)}})
    assert import_model(edited(), dynamic_shapes={"x": {1: 4}}).inputs[0].shape[1] == 4


def test_dimensions_keep_symbols_of_their_own() -> None:
    """Names that become one identifier stay two sizes, and -1 is a size that is not known."""
    node = helper.make_node("Concat", ["a", "b", "c"], ["y"], axis=0)
    inputs = {"a": (FLOAT, ["n-1", 2]), "b": (FLOAT, ["n_1", 2]), "c": (FLOAT, [-1, 2])}
    graph = import_model(model_of([node], inputs, ["y"]))
    assert len({value.shape[0] for value in graph.inputs}) == 3 == len(graph.symbols)


@pytest.mark.parametrize("path", ["name", "text", "domain"])
def test_names_that_are_no_text(path: str, tmp_path: Path) -> None:
    marker = "QQQQ"
    nodes = [relu("x", marker if path == "name" else "h"), helper.make_node("Gelu", ["h"], ["y"], approximate="none")]
    if path == "name":
        nodes[1].input[0] = marker
    elif path == "text":
        nodes[1].attribute[0].s = marker.encode()
    else:
        nodes[0].domain = marker
    data = model_of(nodes, {"x": (FLOAT, [2])}, ["y"]).SerializeToString()
    file = tmp_path / "model.onnx"
    file.write_bytes(data.replace(marker.encode(), b"\xff\xfe\xfd\xfc"))
    with pytest.raises(ImportModelError, match="UTF-8"):
        import_model(file)


def test_large_numbers_cost_nothing_before_they_are_refused() -> None:
    """Places of pixels, and neighbours that there are not."""
    resize = single("Resize", (1, 1, 4), {"roi": np.zeros(0, np.float32), "scales": np.zeros(0, np.float32),
                                          "sizes": ints(1, 1, 2**45)}, mode="nearest")  # fmt: skip
    with pytest.raises((ImportModelError, UnsupportedOperationError), match="35184372088832"):
        import_model(resize)
    with pytest.raises(UnsupportedOperationError, match="sums over 65537 channels"):
        import_model(single("LRN", ("n", "c", 3), size=2**16 + 1))
    graph = import_model(single("LRN", (2, 3, 4), size=2**31 - 1, alpha=2.0**31, bias=1.0))
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    wanted = x / (1 + np.square(x).sum(axis=1, keepdims=True)) ** 0.75
    np.testing.assert_allclose(reference.run(graph, {"x": x})["y"], wanted, rtol=1e-5)


@pytest.mark.parametrize("operation", ["ArgMax", "ArgMin"])
def test_the_last_position_in_a_scalar(operation: str) -> None:
    graph = import_model(single(operation, (), select_last_index=1, keepdims=0))
    assert reference.run(graph, {"x": np.float32(3)})["y"] == 0


def test_attributes_that_hold_another_value() -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], axis=1)
    node.attribute[0].ClearField("i")
    with pytest.raises(ImportModelError, match="'axis' is of type INT, but holds nothing"):
        import_model(model_of([node], {"x": (FLOAT, [2, 3])}, ["y"]))
    node.attribute[0].f = 1.0
    with pytest.raises(ImportModelError, match="'axis' is of type INT, but holds f"):
        import_model(model_of([node], {"x": (FLOAT, [2, 3])}, ["y"]))
    node.attribute[0].type = AttributeProto.UNDEFINED
    with pytest.raises(ImportModelError, match="unknown type 0"):
        import_model(model_of([node], {"x": (FLOAT, [2, 3])}, ["y"]))


# Models that ended the process of others, in the checker, in shape inference or in the converter of the onnx package.
PUBLISHED = {
    "weight of a convolution without dimensions": (
        '<ir_version: 9, opset_import: ["" : 11]> '
        "graph (float[7,6,1,5] a, float b, float[7,2,3,2,1] c) => (float[1] y) { y = Conv <group = 1> (a, b, c) }",
        "0 dimensions; it must have 4",
    ),
    "product with a scalar": (
        '<ir_version: 10, opset_import: ["" : 6]> graph (double[2,1] a, double b, double[2] c) => (double[1] y) '
        "{ y = Gemm <alpha: float = 1, beta: float = -693.7, broadcast: int = -436, transB: int = 823> (a, b, c) }",
        "0 dimensions; it must have 2",
    ),
    "einsum of another rank": (
        '<ir_version: 9, opset_import: ["" : 13]> graph (float[2,3] a, float[3] b) => (float[2] y) '
        '{ y = Einsum <equation = "abc,cd->abd"> (a, b) }',
        "einsum",
    ),
    "einsum of no operand": (
        '<ir_version: 9, opset_import: ["" : 13]> graph (float[2,3] a) => (float[2] y) '
        '{ y = Einsum <equation = ",,->"> (a) }',
        "einsum",
    ),
    "reshape to another dtype": (
        '<ir_version: 9, opset_import: ["" : 13]> graph (float[2,3] a, float[2] b) => (float[6] y) '
        "{ y = Reshape (a, b) }",
        "does not take",
    ),
    "branch without its graph": (
        '<ir_version: 9, opset_import: ["" : 13]> graph (float[2] a, bool b) => (float[2] y) { y = If (b) }',
        "_branch' is missing",
    ),
    "split of nothing": (
        '<ir_version: 9, opset_import: ["" : 11]> graph (float a) => (float y) { y = Split <axis = 0> (a) }',
        "axis 0 is out of range",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_crash_cases(name: str) -> None:
    text, message = PUBLISHED[name]
    with pytest.raises((ImportModelError, UnsupportedOperationError), match=message) as error:
        import_model(parser.parse_model(text))
    assert "import rule failed" not in str(error.value)


def test_external_data_has_no_say_in_other_things(tmp_path: Path) -> None:
    """Keys that are none of the format's are ignored; some readers set them as attributes."""
    (tmp_path / "data.bin").write_bytes(bytes(64))
    path = external(tmp_path, location="data.bin", basepath="/", __class__="x", checksum="0")
    assert len(import_model(path).constants) == 1


# External data -----------------------------------------------------------------------------------------


def external(folder: Path, **entries: str) -> Path:
    model = edited()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../secret.bin"}, "leaves the model's folder"),
        ({"location": "inner/../../secret.bin"}, "leaves the model's folder"),
        ({"location": "/etc/hostname"}, "leaves the model's folder"),
        ({"location": "link.bin"}, "leaves the model's folder"),
        ({"location": "linked/secret.bin"}, "leaves the model's folder"),
        ({"location": "loop.bin"}, "cannot be found|missing"),
        ({"location": "inner"}, "no regular file"),
        ({"location": "pipe"}, "no regular file"),
        ({"location": "gone.bin"}, "is (missing|too short)"),
        ({"location": ""}, "no name of a data file"),
        ({}, "no name of a data file"),
        ({"location": "data\0.bin"}, "no name of a data file"),
        ({"location": "x" * 5000}, "missing|cannot be found"),
        ({"location": "data.bin", "offset": "17"}, "bytes 17 to 65 are needed"),
        ({"location": "data.bin", "offset": "-1"}, "'-1' is no number of bytes"),
        ({"location": "data.bin", "offset": "1e3"}, "no number of bytes"),
        ({"location": "data.bin", "offset": "9" * 40}, "no number of bytes"),
        ({"location": "data.bin", "length": "64"}, "has 64 bytes, but its dimensions"),
        ({"location": "data.bin", "length": "no"}, "no number of bytes"),
    ],
)
def test_external_data(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (folder / "data.bin").write_bytes(bytes(64))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "loop.bin").symlink_to(folder / "loop.bin")
    os.mkfifo(folder / "pipe")
    assert len(import_model(external(folder, location="data.bin", offset="16")).constants) == 1
    with pytest.raises(ImportModelError, match=message):
        import_model(external(folder, **entries))


@pytest.mark.parametrize("version", [2**31, 2**62])
def test_opsets_of_other_domains_that_there_are_not(version: int) -> None:
    node = helper.make_node("Adam", ["x"], ["y"], domain="ai.onnx.preview.training")
    model = model_of([node], {"x": (FLOAT, [2])}, ["y"])
    model.opset_import.append(helper.make_opsetid("ai.onnx.preview.training", version))
    with pytest.raises(ImportModelError, match=f"the model imports opset {version}"):
        import_model(model)


def test_a_sequence_where_a_tensor_is_needed() -> None:
    nodes = [helper.make_node("SequenceConstruct", ["x"], ["s"]), helper.make_node("NoSuchOperation", ["s"], ["y"])]
    with pytest.raises((ImportModelError, UnsupportedOperationError)):
        import_model(model_of(nodes, {"x": (FLOAT, [2])}, ["y"]))


def test_nodes_in_another_order_than_they_can_run() -> None:
    """As ONNX Runtime's converter to float16 leaves them; what a branch takes from outside counts too."""
    text = """m (float[3] x, bool c) => (float[3] y) {
        y = If (c) <then_branch = t () => (float[3] a) { a = Relu(h) }, else_branch = e () => (float[3] b) {
            b = Identity(d) d = Neg(g) }>
        g = Add(x, h) h = Abs(x) }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    x = np.array([-1, 2, -3], np.float32)
    for choice, wanted in ((True, [1, 2, 3]), (False, [0, -4, 0])):
        found = reference.run(import_model(model), {"x": x, "c": np.array(choice)}, dtype=None)["y"]
        assert found.tolist() == wanted
