"""The ONNX importer: files, external data, functions, branches, element types, errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper, parser  # noqa: E402

from tilewright.errors import ImportModelError, UnsupportedOperationError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.importers import import_model  # noqa: E402


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(text)


def affine(weight: np.ndarray) -> onnx.ModelProto:
    """y = x w for a stored weight [4, 3]."""
    kind = helper.np_dtype_to_tensor_dtype(weight.dtype)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "affine",
        [helper.make_tensor_value_info("x", kind, ["n", 4])],
        [helper.make_tensor_value_info("y", kind, ["n", 3])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_external_data_is_mapped(tmp_path: Path, rng: np.random.Generator) -> None:
    weight = rng.standard_normal((4, 3)).astype(np.float32)
    path = tmp_path / "model.onnx"
    onnx.save_model(affine(weight), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    graph = import_model(path)
    (data,) = graph.constants.values()
    assert not data.flags.owndata and not data.flags.writeable
    np.testing.assert_array_equal(data, weight)
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(ImportModelError, match="is (missing|too short)"):
        import_model(path)


def test_external_data_stays_in_the_folder(tmp_path: Path, rng: np.random.Generator) -> None:
    model = affine(rng.standard_normal((4, 3)).astype(np.float32))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    path = tmp_path / "inner" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ImportModelError, match="leaves the model's folder"):
        import_model(path)
    with pytest.raises(ImportModelError, match="import the model by its path"):
        import_model(model)


@pytest.mark.parametrize(("op", "given"), [("LeakyRelu", "alpha = 0.01"), ("HardSigmoid", "alpha = 0.2, beta = 0.5")])
def test_a_default_is_rounded_as_an_attribute(op: str, given: str, rng: np.random.Generator) -> None:
    """Attributes are float32, also those of an operation in float64."""
    x = rng.standard_normal(16)
    both = []
    for attributes in ("", f"<{given}>"):
        model = parsed(
            f'<ir_version: 10, opset_import: ["" : 21]> m (double[n] x) => (double[n] y) {{ y = {op}{attributes}(x) }}'
        )
        both.append(reference.run(import_model(model), {"x": x}, dtype=None)["y"])
    np.testing.assert_array_equal(*both)


def test_bfloat16_initializers(rng: np.random.Generator) -> None:
    weight = rng.standard_normal((4, 3)).astype(ml_dtypes.bfloat16)
    graph = import_model(affine(weight))
    (data,) = graph.constants.values()
    assert data.dtype == weight.dtype
    np.testing.assert_array_equal(data, weight)


def test_dimensions_are_named_limited_and_fixed(rng: np.random.Generator) -> None:
    model = affine(rng.standard_normal((4, 3)).astype(np.float32))
    assert list(import_model(model).symbols) == ["n"]
    (symbol,) = import_model(model, dynamic_shapes={"x": {0: ("rows", 2, 9)}}).symbols.values()
    assert (symbol.name, symbol.low, symbol.high) == ("rows", 2, 9)
    fixed = import_model(model, dynamic_shapes={"x": {0: 5}})
    assert fixed.inputs[0].shape == (5, 4) and not fixed.symbols
    with pytest.raises(ImportModelError, match="an input 'z' that the model does not have"):
        import_model(model, dynamic_shapes={"z": {0: 5}})


def test_functions_are_inlined() -> None:
    """A model-local function, and an operation whose standard body is made of known ones."""
    model = parsed("""
        <ir_version: 10, opset_import: ["" : 20, "local" : 1]>
        main (float[n, 4] x) => (float[n, 4] y) {
            z = local.twice(x)
            y = Softsign(z)
        }
        <opset_import: ["" : 20], domain: "local">
        twice (a) => (b) { b = Add(a, a) }
    """)
    x = np.array([[1.0, -2.0, 3.0, 0.0]], np.float32)
    (found,) = reference.run(import_model(model), {"x": x}).values()
    np.testing.assert_allclose(found, 2 * x / (1 + 2 * np.abs(x)), rtol=1e-6)


@pytest.mark.parametrize("rank", [2, 3])
def test_known_branches_are_taken(rank: int) -> None:
    shape = "n, 4" if rank == 2 else "n, 1, 4"
    model = parsed(f"""
        <ir_version: 10, opset_import: ["" : 20]>
        main (float[{shape}] x) => (float[n, 4] y) {{
            shape = Shape(x)
            rank = Size(shape)
            three = Constant<value_int: int = 3>()
            deep = Equal(rank, three)
            y = If(deep) <
                then_branch = squeeze () => (float[n, 4] a) {{
                    axes = Constant<value_ints: ints = [1]>()
                    a = Squeeze(x, axes)
                }},
                else_branch = keep () => (float[n, 4] b) {{ b = Identity(x) }}
            >
        }}
    """)
    graph = import_model(model)
    x = np.arange(8, dtype=np.float32).reshape((2, 4) if rank == 2 else (2, 1, 4))
    (found,) = reference.run(graph, {"x": x}).values()
    np.testing.assert_array_equal(found, x.reshape(2, 4))


def test_every_unsupported_operation_is_listed(golden: Callable[..., None]) -> None:
    model = parsed("""
        <ir_version: 10, opset_import: ["" : 20, "custom.ops" : 1]>
        main (float[n, 4] x, int64[k] axes) => (float[n, 4] y, float[n, 4] z) {
            [first] a = custom.ops.Magic <strength: float = 2.0> (x)
            [second] b = Relu(a)
            [third] z = custom.ops.Trick(x)
            [fourth] c = ReduceSum(x, axes)
            [fifth] y = Add(b, c)
        }
    """)
    with pytest.raises(UnsupportedOperationError) as error:
        import_model(model)
    golden(str(error.value) + "\n")


def test_attributes_that_no_rule_reads_are_refused() -> None:
    model = parsed("""
        <ir_version: 10, opset_import: ["" : 20]>
        main (float[n, 4] x) => (float[n, 4] y) { y = Relu <novel: int = 1> (x) }
    """)
    with pytest.raises(UnsupportedOperationError, match="the attributes novel"):
        import_model(model)


def test_unreadable_files(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a protobuf at all" * 3)
    with pytest.raises(ImportModelError, match="not a readable ONNX file"):
        import_model(path)
    with pytest.raises(ImportModelError, match="no such file"):
        import_model(tmp_path / "gone.onnx")
    other = tmp_path / "model.pickle"
    other.touch()
    with pytest.raises(ImportModelError, match="unknown kind of model file '.pickle'"):
        import_model(other)
    with pytest.raises(ImportModelError, match="cannot import an object of type int"):
        import_model(3)


def test_old_opsets_are_converted() -> None:
    model = parsed("""
        <ir_version: 7, opset_import: ["" : 11]>
        main (float[2, 3] x) => (float[1, 2, 3] y) { y = Unsqueeze <axes: ints = [0]> (x) }
    """)
    assert import_model(model).outputs[0].shape == (1, 2, 3)


def test_images_are_sampled_in_their_own_precision(rng: np.random.Generator) -> None:
    """ONNX lets images and places have different types."""
    model = parsed("""
        <ir_version: 9, opset_import: ["" : 20]>
        main (double[1, 1, 3, 4] x, float[1, 2, 2, 2] places) => (double[1, 1, 2, 2] y)
        { y = GridSample <mode = "nearest"> (x, places) }
    """)
    x, places = rng.standard_normal((1, 1, 3, 4)), rng.uniform(-0.6, 0.6, (1, 2, 2, 2)).astype(np.float32)
    y = reference.run(import_model(model), {"x": x, "places": places}, dtype=None)["y"]
    assert set(y.ravel()) <= set(x.ravel())


def test_empty_files_and_undefined_names_are_reported(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(ImportModelError, match="an empty file"):
        import_model(tmp_path / "empty.onnx")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "ghost"], ["y"])],
        "haunted",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    with pytest.raises(ImportModelError, match=r"node number 0 \(Add\) .* reads 'ghost', which no input"):
        import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("place", ["initializer", "branch", "constant"])
def test_sparse_constants_are_made_dense(place: str, linear: bool, rng: np.random.Generator) -> None:
    dense = np.zeros((3, 4), np.float32)
    dense[[0, 2, 2], [1, 0, 3]] = 1, 2, 3
    indices = np.array([1, 8, 11]) if linear else np.array([[0, 1], [2, 0], [2, 3]])
    values = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "s")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(indices, "places"), [3, 4])
    model = parsed("""
        <ir_version: 8, opset_import: ["" : 17]>
        m (float[3, 4] x, bool c) => (float[3, 4] y) {
            y = If (c) <then_branch = t () => (float[3, 4] u) { u = Add (x, s) },
                        else_branch = e () => (float[3, 4] v) { v = Sub (x, s) }> }
    """)
    if place == "initializer":
        model.graph.sparse_initializer.append(sparse)
    elif place == "constant":
        model.graph.node.insert(0, helper.make_node("Constant", [], ["s"], sparse_value=sparse))
    else:
        for branch in model.graph.node[0].attribute:
            branch.g.sparse_initializer.append(sparse)
    graph, x = import_model(model), rng.integers(0, 9, (3, 4)).astype(np.float32)
    for sign in (1, -1):
        found = reference.run(graph, {"x": x, "c": np.array(sign == 1)})["y"]
        np.testing.assert_array_equal(found, x + sign * dense)
