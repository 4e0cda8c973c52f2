"""Sessions of models that say little about the sizes of their inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

import tilewright.onnx as tw
from tilewright.errors import ShapeError

pytestmark = pytest.mark.usefixtures("quick_engines")

# A node, the ranks of its inputs (f float32, i int64, j int32, u uint8 before them), and the sizes of some calls.
NODES: dict[str, Any] = {
    "y = Add (a, b)": (("f2", "f2"), [((3, 4), (3, 4)), ((0, 4), (1, 4)), ((1, 1), (5, 2))]),
    "y = PRelu (a, b)": (("f3", "f2"), [((2, 3, 4), (3, 1)), ((0, 3, 2), (3, 1)), ((0, 3, 2), (3, 2))]),
    "y = GatherND <batch_dims = 1> (a, i)": (("f4", "i3"), [((2, 5, 5, 2), (2, 3, 2)), ((0, 5, 5, 2), (0, 3, 2))]),
    "y = Reshape (a, i)": (("f3", "i1"), [((2, 3, 4), [[6, 4]]), ((2, 3, 4), [[-1]]), ((0, 3, 4), [[0, 6, 2]])]),
    "y = AffineGrid (a, i)": (("f3", "i1"), [((2, 2, 3), [[2, 3, 4, 5]]), ((1, 3, 4), [[1, 3, 2, 2, 3]])]),
    "y = Col2Im (a, i, j)": (("f3", "i1", "i1"), [((1, 12, 12), [[5, 4]], [[2, 2]]), ((1, 4, 3), [[4]], [[2]])]),
    "y = CropAndResize (a, b, j, k)": (
        ("f4", "f2", "j1", "j1"), [((1, 8, 8, 2), (3, 4), [[0] * 3], [[3, 1]]), ((2, 4, 6, 1), (1, 4), [[1]], [[2, 5]])]
    ),
    "y = OneHot (i, j, a)": (("i1", "i0", "f1"), [([[1, 2, -1]], [4], (2,)), ([[]], [3], (2,))]),
    "y = MelWeightMatrix (i, j, k, a, b)": (
        ("i0", "i0", "i0", "f0", "f0"), [([8], [16], [8000], [0.0], [4000.0]), ([5], [32], [8000], [20.0], [3000.0])]
    ),
    "y = DFT (a)": (("f4",), [((2, 6, 3, 1),), ((1, 5, 2, 2),)]),
    "y = MatMulInteger (u, v)": (("u2", "u2"), [((3, 5), (5, 2)), ((0, 5), (5, 2)), ((1, 7), (7, 7))]),
    "y = ai.onnx.ml.LinearRegressor <coefficients = [0.5, -1.0, 2.0]> (a)": (("f2",), [((4, 3),), ((1, 3),)]),
    "y = GRU <hidden_size = 2, linear_before_reset = 1> (a, b, c)": (
        ("f3", "f3", "f3"), [((3, 2, 4), (1, 6, 4), (1, 6, 2)), ((1, 1, 3), (1, 6, 3), (1, 6, 2))]
    ),
}  # fmt: skip
ELEMENTS = {
    "f": (TensorProto.FLOAT, np.float32), "i": (TensorProto.INT64, np.int64), "j": (TensorProto.INT32, np.int32),
    "u": (TensorProto.UINT8, np.uint8),
}  # fmt: skip
UNKNOWN: dict[str, Any] = {
    "no name": None,
    "a question mark": "?",
    "one name": "n",
    "negative": -1,
    "zero": 0,
    "no rank": (),
}


def of_one_node(text: str, ranks: tuple[str, ...], size: Any) -> onnx.ModelProto:
    """A model whose inputs have dimensions of this size or name, or (`()`) no number of them."""
    domain = "com.microsoft." if "CropAndResize" in text else ""
    text = text.replace("= ", f"= {domain}", 1)
    graph = parser.parse_graph(f"g (float a) => (float y) {{ {text} }}")
    names = [name for name in graph.node[0].input if name]
    del graph.input[:]
    for name, kind in zip(names, ranks, strict=True):
        shape = None if size == () else [None if size in (0, -1) else size] * int(kind[1:])
        entry = helper.make_tensor_value_info(name, ELEMENTS[kind[0]][0], shape)
        for dim in entry.type.tensor_type.shape.dim if size in (0, -1) else ():
            dim.dim_value = size
        graph.input.append(entry)
    element = TensorProto.INT32 if "Integer" in text else TensorProto.FLOAT
    graph.output[0].CopyFrom(helper.make_tensor_value_info("y", element, None))
    opsets = [
        helper.make_opsetid("", 20),
        helper.make_opsetid("ai.onnx.ml", 3),
        helper.make_opsetid("com.microsoft", 1),
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("unknown", UNKNOWN)
@pytest.mark.parametrize("node", NODES)
def test_unknown_sizes(node: str, unknown: str, rng: np.random.Generator) -> None:
    ranks, calls = NODES[node]
    session = tw.InferenceSession(of_one_node(node, ranks, UNKNOWN[unknown]).SerializeToString())
    peer = onnxruntime.InferenceSession(of_one_node(node, ranks, ()).SerializeToString())
    for call in calls:
        feeds = {}
        for entry, kind, given in zip(session.get_inputs(), ranks, call, strict=True):
            dtype = ELEMENTS[kind[0]][1]
            if isinstance(given, list):  # the values
                feeds[entry.name] = np.array(given[0], dtype)
            else:
                feeds[entry.name] = (rng.random(given) * (9 if kind[0] == "u" else 1)).astype(dtype)
        (mine,), (theirs,) = session.run(None, feeds), peer.run(None, feeds)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6, strict=True)


def test_a_recurrent_layer_without_steps(rng: np.random.Generator) -> None:
    """With which ONNX Runtime's GRU ends the process."""
    for opening in ("GRU <hidden_size = 2>", "GRU <hidden_size = 2, linear_before_reset = 1>"):
        node = f"y = {opening} (a, b, c)"
        session = tw.InferenceSession(of_one_node(node, ("f3", "f3", "f3"), None).SerializeToString())
        shapes = {"a": (0, 2, 4), "b": (1, 6, 4), "c": (1, 6, 2)}
        feeds = {name: rng.random(shape, np.float32) for name, shape in shapes.items()}
        assert session.run(None, feeds)[0].shape == (0, 1, 2, 2)


def test_a_size_that_the_file_fixes_stays_fixed(rng: np.random.Generator) -> None:
    model = of_one_node("y = Add (a, b)", ("f2", "f2"), "n")
    for dim in (entry.type.tensor_type.shape.dim[1] for entry in model.graph.input):
        dim.dim_value = 4
    session = tw.InferenceSession(model.SerializeToString())
    session.run(None, {"a": rng.random((3, 4), np.float32), "b": rng.random((1, 4), np.float32)})
    with pytest.raises(ShapeError, match="dimension 1 is 5"):
        session.run(None, {"a": rng.random((3, 5), np.float32), "b": rng.random((3, 5), np.float32)})


def test_a_condition_and_its_branch_draw_the_same_numbers() -> None:
    """Of branches with other numbers of dimensions, which are engines of their own; a draw before them counts."""
    graph = parser.parse_graph("""g (float[2, 2] x) => (float[2, 2] o, float[2, 2] u, float y) {
        o = RandomNormalLike (x) u = RandomUniformLike (x) s = ReduceSum <keepdims = 0> (u)
        l = Constant <value_float = 2.0> () c = Greater (s, l)
        y = If (c) <then_branch = t () => (float a) { a = Identity (u) },
            else_branch = e () => (float b) { k = Constant <value_ints = [4]> () b = Reshape (u, k) }> }""")
    graph.output[2].type.tensor_type.ClearField("shape")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = tw.InferenceSession(model.SerializeToString())
    ranks = set()
    for _ in range(12):
        _, drawn, chosen = session.run(None, {"x": np.zeros((2, 2), np.float32)})
        assert chosen.ndim == (2 if drawn.sum() > 2 else 1)
        np.testing.assert_array_equal(chosen.reshape(2, 2), drawn)
        ranks.add(chosen.ndim)
    assert ranks == {1, 2}


@pytest.mark.parametrize("shape", [["n", 3], [None, 3], [2, 3]])
def test_the_shape_of_an_optional_is_that_of_its_tensor(shape: list[int | str | None]) -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, shape))
    node = helper.make_node("OptionalHasElement", ["x"], ["b"])
    result = helper.make_tensor_value_info("b", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "g", [helper.make_value_info("x", kind)], [result])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    found = [module.InferenceSession(data).get_inputs()[0] for module in (tw, onnxruntime)]
    assert [(entry.name, entry.type, entry.shape) for entry in found] == [("x", "optional(tensor(float))", shape)] * 2


def test_a_call_of_nothing_is_reported_once_without_advice(caplog: pytest.LogCaptureFixture) -> None:
    session = tw.InferenceSession(of_one_node("y = Add (a, b)", ("f2", "f2"), None).SerializeToString())
    for rows, columns in ((0, 4), (3, 0), (2, 0)):
        x = np.ones((rows, columns), np.float32)
        np.testing.assert_array_equal(session.run(None, {"a": x, "b": x})[0], x + x)
    assert caplog.messages == ["an engine is compiled with a[0] = 0, b[0] = 0"]


COUNTED = {
    "NonZero": "p = NonZero (x)",
    "Unique": "p = Unique (x)",
    "Compress": "m = Greater (x, zero) c = Compress <axis = 0> (x, m) i = Constant <value_ints = [0]> () "
    "p = Unsqueeze (c, i)",
    "TopK": "k = Cast <to = 7> (last) v, p = TopK (x, k)",
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_squeeze_without_axes_drops_a_size_that_a_run_finds(name: str, rng: np.random.Generator) -> None:
    text = (
        "g (float[n] x, float[1] last) => (y) { zero = Constant <value_float = 0.0> () "
        f"{COUNTED[name]} s = Squeeze (p) f = Cast <to = 1> (s) y = Mul (f, f) z = Shape (s) }}"
    ).replace("=> (y)", "=> (float y, int64[r] z)")
    graph = parser.parse_graph(text)
    graph.output[0].type.tensor_type.ClearField("shape")
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    ours, theirs = (module.InferenceSession(data) for module in (tw, onnxruntime))
    for _ in range(12):
        size = int(rng.integers(1, 5))
        feeds = {"x": rng.choice([0.0, 0.0, 2.0, 3.0], size).astype(np.float32)}
        feeds["last"] = np.array([rng.integers(1, size + 1)], np.float32)
        for found, wanted in zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_array_equal(found, wanted)


def test_types_of_outputs_that_the_file_does_not_tell(tmp_path: Path) -> None:
    """They follow from the operations, though the number of dimensions is unknown."""
    nodes = [helper.make_node("ArgMax", ["x"], ["places"], axis=0), helper.make_node("Shape", ["x"], ["sizes"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "types", [x], [onnx.ValueInfoProto(name=name) for name in ("places", "sizes")])
    path = tmp_path / "types.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    assert [entry.type for entry in tw.InferenceSession(str(path)).get_outputs()] == ["tensor(int64)", "tensor(int64)"]
