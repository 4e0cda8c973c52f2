"""ONNX models of sequences and optionals that only a run knows: inputs, outputs, loops, branches, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tilewright
from tilewright.engine.engine import Engine
from tilewright.errors import ImportModelError, InputError, ShapeError, UnsupportedOperationError
from tilewright.graph import reference
from tilewright.importers.onnx import import_onnx
from tilewright.onnx import InferenceSession

pytestmark = pytest.mark.usefixtures("quick_engines")


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')


def same(found: Any, wanted: Any) -> None:
    """Compare values: lists item by item."""
    if isinstance(wanted, list):
        assert isinstance(found, list) and len(found) == len(wanted)
        for pair in zip(found, wanted, strict=True):
            same(*pair)
    elif wanted is None:
        assert found is None
    else:
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
        else:
            assert found.tolist() == wanted.tolist()


def items(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


ROWS = [(2, 3), (1, 3), (4, 3)]
MODELS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "item": (
        """m (seq(float[a, 3]) s, int64 i) => (float[b, 3] y, int64 n) {
            t = SequenceAt(s, i) y = Exp(t) n = SequenceLength(s) }""",
        [{"s": ROWS, "i": np.array(i)} for i in (0, 2, -1)],
    ),
    "insert and erase": (
        """m (seq(float[a, 3]) s, int64 i, float[2, 3] x) => (seq(float[a, 3]) y, seq(float[a, 3]) z, int64 n) {
            e = Exp(x) y = SequenceInsert(s, e, i) t = SequenceErase(y) z = SequenceErase(t, i)
            n = SequenceLength(z) }""",
        [{"s": ROWS, "i": np.array(i), "x": (2, 3)} for i in (0, 1, -2)],
    ),
    "joined": (
        "m (seq(float[a, 3]) s) => (float[b, 3] y) { t = ConcatFromSequence <axis = 0> (s) y = Relu(t) }",
        [{"s": ROWS}, {"s": ROWS[:1]}],
    ),
    "stacked": (
        """m (seq(float[2, 3]) s) => (float[2, n, 3] y) {
            t = ConcatFromSequence <axis = 1, new_axis = 1> (s) y = Relu(t) }""",
        [{"s": [(2, 3)] * n} for n in (1, 4)],
    ),
    "split by a size": (
        """m (float[n, 4] x, int64 k) => (seq(float[a, 4]) s, int64 n) {
            e = Exp(x) s = SplitToSequence <axis = 0> (e, k) n = SequenceLength(s) }""",
        [{"x": (7, 4), "k": np.array(k)} for k in (1, 3, 7, 9)],
    ),
    "split by sizes": (
        "m (float[n, 6] x, int64[3] k) => (seq(float[n, a]) s) { s = SplitToSequence <axis = 1> (x, k) }",
        [{"x": (2, 6), "k": np.array(k)} for k in ([1, 2, 3], [0, 6, 0])],
    ),
    "split into rows": (
        """m (float[n, 4] x) => (seq(float[4]) s, float[4] y) {
            s = SplitToSequence <axis = 0, keepdims = 0> (x) z = Constant <value = int64 {0}> ()
            y = SequenceAt(s, z) }""",
        [{"x": (n, 4)} for n in (1, 5)],
    ),
    "split by the size 1 into rows": (
        """m (float[n, 4] x) => (seq(float[4]) s) {
            one = Constant <value = int64 {1}> () s = SplitToSequence <axis = 0, keepdims = 0> (x, one) }""",
        [{"x": (n, 4)} for n in (1, 5)],
    ),
    "loop that grows": (
        """m (int64 n, float[2] x, seq(float[a]) s) => (seq(float[a]) y, float[b] z) {
            going = Constant <value = bool {1}> () zero = Constant <value_ints = [0]> ()
            y = Loop (n, going, s) <body = b (int64 i, bool c, seq(float[a]) t) => (bool d, seq(float[a]) u) {
                d = Identity(c) one = Constant <value_ints = [1]> () k = Reshape(i, one) e = Add(k, one)
                r = Concat <axis = 0> (e) w = Tile(x, r) u = SequenceInsert(t, w) }>
            z = ConcatFromSequence <axis = 0> (y) }""",
        [{"n": np.array(n), "x": (2,), "s": [(3,)]} for n in (0, 1, 4)],
    ),
    "loop from an empty sequence": (
        """m (int64 n, float[2, 3] x) => (float[b, 3] z, int64 k) {
            going = Constant <value = bool {1}> () s = SequenceEmpty <dtype = 1> ()
            y = Loop (n, going, s) <body = b (int64 i, bool c, seq(float[2, 3]) t) => (bool d, seq(float[2, 3]) u) {
                d = Identity(c) e = Exp(x) u = SequenceInsert(t, e) }>
            z = ConcatFromSequence <axis = 0> (y) k = SequenceLength(y) }""",
        [{"n": np.array(n), "x": (2, 3)} for n in (1, 3)],
    ),
    "loop over a sequence": (
        """m (seq(float[a, 3]) s) => (float[3] y) {
            n = SequenceLength(s) going = Constant <value = bool {1}> ()
            start = Constant <value_floats = [0.0, 0.0, 0.0]> ()
            y = Loop (n, going, start) <body = b (int64 i, bool c, float[3] v) => (bool d, float[3] w) {
                d = Identity(c) t = SequenceAt(s, i) ax = Constant <value_ints = [0]> ()
                r = ReduceSum <keepdims = 0> (t, ax) w = Add(v, r) }> }""",
        [{"s": ROWS}, {"s": []}],
    ),
    "branches": (
        """m (bool c, float[n, 3] x) => (seq(float[a, 3]) s, float[b, 3] y) {
            s = If (c) <then_branch = t () => (seq(float[a, 3]) u) { u = SequenceConstruct(x) },
                        else_branch = e () => (seq(float[a, 3]) v) { f = Exp(x) v = SequenceConstruct(f, x) }>
            z = Constant <value = int64 {0}> () y = SequenceAt(s, z) }""",
        [{"c": np.array(c), "x": (2, 3)} for c in (True, False)],
    ),
    "map": (
        """m (seq(float[a, 3]) s, float[3] x) => (seq(float[a, 3]) y) {
            y = SequenceMap <body = b (float[a, 3] u, float[3] v) => (float[a, 3] w) {
                t = Add(u, v) w = Tanh(t) }> (s, x) }""",
        [{"s": ROWS, "x": (3,)}, {"s": ROWS[:1], "x": (3,)}],
    ),
    "texts": (
        """m (seq(string[a]) s, int64 i) => (string[b] y, seq(string[a]) z) {
            y = SequenceAt(s, i) z = SequenceInsert(s, y) }""",
        [{"s": [np.array(["a", "é"], object), np.array([""], object)], "i": np.array(i)} for i in (0, 1)],
    ),
}  # fmt: skip


def fed(rng: np.random.Generator, call: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a call: shapes stand for random numbers."""

    def one(item: Any) -> Any:
        if isinstance(item, list):
            return list(map(one, item))
        return rng.standard_normal(item).astype(np.float32) if isinstance(item, tuple) else item

    return {name: one(item) for name, item in call.items()}


@pytest.mark.parametrize("name", MODELS)
def test_sequences_are_those_of_onnx_runtime(name: str, rng: np.random.Generator) -> None:
    text, calls = MODELS[name]
    model = parsed(text)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    graph = import_onnx(model)
    for call in calls:
        feeds = fed(rng, call)
        found = reference.run(graph, feeds, dtype=None)
        for entry, wanted in zip(session.get_outputs(), session.run(None, feeds), strict=True):
            same(found[entry.name], wanted)


@pytest.mark.parametrize("name", ["item", "loop that grows", "branches", "map", "texts"])
def test_engines_take_and_give_sequences(name: str, rng: np.random.Generator, tmp_path: Path) -> None:
    text, calls = MODELS[name]
    model = parsed(text)
    engine = tilewright.compile(model, target="cpu", effort=0)
    engine.save(tmp_path / "list.engine")
    loaded, graph = Engine.load(tmp_path / "list.engine"), import_onnx(model)
    assert [spec.dtype for spec in loaded.inputs] == [spec.dtype for spec in engine.inputs]
    for call in calls:
        feeds = fed(rng, call)
        wanted = reference.run(graph, feeds, dtype=None)
        for each in (engine, loaded):
            found = each.run(feeds)
            for key, value in wanted.items():
                same(found[key], value)


OPTIONAL = """m (optional(float[n, 3]) o, float[2, 3] x) => (float[a, 3] y, bool h, optional(float[n, 3]) p) {
    h = OptionalHasElement(o) p = Identity(o)
    y = If (h) <then_branch = t () => (float[a, 3] u) { g = OptionalGetElement(o) u = Exp(g) },
                else_branch = e () => (float[a, 3] v) { v = Neg(x) }> }"""


def test_optionals_hold_something_or_nothing(rng: np.random.Generator) -> None:
    session = InferenceSession(parsed(OPTIONAL))
    assert session.get_inputs()[0].type == "optional(tensor(float))" and session.get_inputs()[0].shape == ["n", 3]
    o, x = items(rng, (4, 3), (2, 3))
    y, h, p = session.run(None, {"o": o, "x": x})
    np.testing.assert_allclose(y, np.exp(o), rtol=1e-5)
    assert h.item() is True and np.array_equal(p, o)
    y, h, p = session.run(None, {"o": None, "x": x})
    np.testing.assert_array_equal(y, -x)
    assert h.item() is False and p is None


def test_an_optional_of_a_branch(rng: np.random.Generator) -> None:
    model = parsed("""m (bool c, float[2] x) => (optional(seq(float[2])) y) {
        y = If (c) <then_branch = t () => (optional(seq(float[2])) u) { s = SequenceConstruct(x, x) u = Optional(s) },
                    else_branch = e () => (optional(seq(float[2])) v) { v = Optional() }> }""")
    empty = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
    branch = next(item.g for item in model.graph.node[0].attribute if item.name == "else_branch")
    branch.node[0].attribute.append(onnx.helper.make_attribute("type", onnx.helper.make_sequence_type_proto(empty)))
    graph, (x,) = import_onnx(model), items(rng, (2,))
    same(reference.run(graph, {"c": np.array(True), "x": x}, dtype=None)["y"], [x, x])
    assert reference.run(graph, {"c": np.array(False), "x": x}, dtype=None)["y"] is None


def test_errors_say_what_lists_must_be(rng: np.random.Generator) -> None:
    model = parsed("m (seq(float[a, 3]) s, int64 i) => (float[b, 3] y) { y = SequenceAt(s, i) }")
    engine, zero = tilewright.compile(model, target="cpu"), np.array(0)
    with pytest.raises(InputError, match="input 's' is a sequence, given as .*: pass a list of tensors"):
        engine.run({"s": items(rng, (2, 3))[0], "i": zero})
    with pytest.raises(InputError, match=r"input 's\[1\]' is a tensor of float64, and must be one of float32"):
        engine.run({"s": [*items(rng, (2, 3)), np.zeros((2, 3))], "i": zero})
    with pytest.raises(ShapeError, match=r"input 1 \('i'\) is 2, and the sequence has 1 items"):
        engine.run({"s": items(rng, (2, 3)), "i": np.array(2)})
    with pytest.raises(ShapeError, match="gave 1 dimensions"):
        engine.run({"s": items(rng, (3,)), "i": zero})
    with pytest.raises(ShapeError, match="dimension 1 is 4, and the model needs 3"):
        engine.run({"s": items(rng, (2, 4)), "i": zero})


def test_what_is_not_known_of_items_is_refused() -> None:
    unknown = "m (seq(float[n]) s, int64 i) => (float[b] y) { y = SequenceAt(s, i) }"
    model = parsed(unknown)
    model.graph.input[0].type.sequence_type.elem_type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedOperationError, match="whose number of dimensions is not known"):
        import_onnx(model)
    with pytest.raises(ImportModelError, match="output 'y' is declared as sequence_f32"):
        import_onnx(parsed("m (seq(int64[n]) s) => (seq(float[n]) y) { y = Identity(s) }"))


@pytest.mark.parametrize("split", ["x", "x, one"])
def test_a_split_into_very_many_parts_is_left_to_the_run(split: str) -> None:
    """As one node: a list of 2^30 of them would take all memory."""
    model = parsed(
        f"""m (float[2, 1073741824] x) => (int64 n) {{
            one = Constant <value = int64 {{1}}> ()
            s = SplitToSequence <axis = 1> ({split})
            n = SequenceLength(s) }}"""
    )
    assert len(import_onnx(model).nodes) < 10
