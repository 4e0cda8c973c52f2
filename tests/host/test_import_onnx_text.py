"""ONNX models of text: strings as inputs, constants and outputs, against ONNX Runtime or the standard's own words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tilewright
from tilewright.engine.engine import Engine
from tilewright.engine.plan_json import plan_from_json, plan_to_json
from tilewright.engine.staged import check_graph
from tilewright.errors import ImportModelError, InputError, InvalidIRError
from tilewright.graph import reference, serialize
from tilewright.graph.partition import is_staged, partition
from tilewright.importers.onnx import import_onnx
from tilewright.onnx import InferenceSession, OrtValue
from tilewright.runtime.plan import Plan, TensorSpec

pytestmark = pytest.mark.usefixtures("quick_engines")

WORDS = ["", "a", "bc", "Straße", "ÀÉ", "日本", "a,b,,c", " x  y ", "z" * 40, "tab\tend"]


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20, "ai.onnx.ml" : 3]> {text}')


def words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.choice(np.array(WORDS, object), shape)


def check(model: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    """Compare the graph's meaning with ONNX Runtime."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = reference.run(import_onnx(model), feeds, dtype=None)
    for entry, wanted in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        result = found[entry.name]
        assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape), entry.name
        assert result.tolist() == wanted.tolist(), entry.name


MOVED = {
    "Identity": "m (string[n, 3] x) => (string[n, 3] y) { y = Identity(x) }",
    "Reshape": "m (string[4, 3] x) => (string[2, 6] y) { s = Constant <value_ints = [2, 6]> () y = Reshape(x, s) }",
    "Transpose": "m (string[4, 3] x) => (string[3, 4] y) { y = Transpose <perm = [1, 0]> (x) }",
    "Gather": """m (string[4, 3] x) => (string[4, 2] y) {
        i = Constant <value_ints = [2, 0]> () y = Gather <axis = 1> (x, i) }""",
    "one text": """m (string[4, 3] x) => (string y) {
        i = Constant <value = int64[1, 2] {3, 0}> () t = GatherND(x, i) s = Constant <value = int64[0] {}> ()
        y = Reshape(t, s) }""",
    "Slice": """m (string[4, 3] x) => (string[2, 3] y) {
        b = Constant <value_ints = [3]> () e = Constant <value_ints = [0]> () a = Constant <value_ints = [0]> ()
        t = Constant <value_ints = [-2]> () y = Slice(x, b, e, a, t) }""",
    "Concat": """m (string[4, 3] x) => (string[4, 4] y) {
        c = Constant <value = string[4, 1] {"p", "q", "", "é"}> () y = Concat <axis = 1> (x, c) }""",
    "Split": "m (string[4, 3] x) => (string[2, 3] y, string[2, 3] z) { y, z = Split <axis = 0, num_outputs = 2> (x) }",
    "Squeeze": """m (string[4, 3] x) => (string[4, 3] y) {
        a = Constant <value_ints = [0]> () t = Unsqueeze(x, a) y = Squeeze(t, a) }""",
    "Expand": "m (string[4, 3] x) => (string[2, 4, 3] y) { s = Constant <value_ints = [2, 1, 3]> () y = Expand(x, s) }",
    "Tile": "m (string[4, 3] x) => (string[8, 3] y) { s = Constant <value_ints = [2, 1]> () y = Tile(x, s) }",
    "Flatten": "m (string[4, 3] x) => (string[4, 3] y) { y = Flatten <axis = 1> (x) }",
    "Equal": "m (string[4, 3] x) => (bool[4, 3] y) { c = Constant <value_string = \"a\"> () y = Equal(x, c) }",
    "Where": """m (string[4, 3] x) => (string[4, 3] y) {
        c = Constant <value_string = "a"> () e = Equal(x, c) y = Where(e, c, x) }""",
    "Shape": "m (string[n, 3] x) => (int64[2] y, int64 z) { y = Shape(x) z = Size(x) }",
    "Unique": "m (string[4, 3] x) => (string[k] y, int64[k] f, int64[12] i, int64[k] c) { y, f, i, c = Unique(x) }",
    "Compress": """m (string[4, 3] x) => (string[k] y) {
        c = Constant <value_string = "a"> () e = Equal(x, c) f = Not(e) n = Constant <value_ints = [-1]> ()
        r = Reshape(f, n) y = Compress(x, r) }""",
    "GatherElements": """m (string[4, 3] x) => (string[1, 3] y) {
        i = Constant <value = int64[1, 3] {3, 0, -2}> () y = GatherElements <axis = 0> (x, i) }""",
    "GatherND": """m (string[4, 3] x) => (string[2] y) {
        i = Constant <value = int64[2, 2] {3, 0, 1, 2}> () y = GatherND(x, i) }""",
    "ScatterND": """m (string[4, 3] x) => (string[4, 3] y) {
        i = Constant <value = int64[1, 1] {2}> () u = Constant <value = string[1, 3] {"p", "q", "r"}> ()
        y = ScatterND(x, i, u) }""",
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED)
def test_operations_that_only_move_or_compare(name: str, rng: np.random.Generator) -> None:
    check(parsed(MOVED[name]), {"x": words(rng, 4, 3)})


@pytest.mark.parametrize("delimiter", ["", ",", "b,", " "])
@pytest.mark.parametrize("most", [None, 0, 1, 2])
def test_split(delimiter: str, most: int | None, rng: np.random.Generator) -> None:
    texts = [f'delimiter = "{delimiter}"'] + ([] if most is None else [f"maxsplit = {most}"])
    model = parsed(
        f"m (string[n, 2] x) => (string[n, 2, k] y, int64[n, 2] z) {{ y, z = StringSplit <{', '.join(texts)}> (x) }}"
    )
    check(model, {"x": words(rng, 6, 2)})


def test_texts_are_joined(rng: np.random.Generator) -> None:
    model = parsed("m (string[n, 1] x, string[3] y) => (string[n, 3] z) { z = StringConcat(x, y) }")
    check(model, {"x": words(rng, 2, 1), "y": words(rng, 3)})


NUMBERS = {
    "float32": [1.5, 0.1, 1e10, 123456789, 1e-5, np.nan, np.inf, -np.inf, -0.0, 1 / 3, 16777216],
    "float64": [1.5, 0.1, 1e300, 1e-5, np.nan, -np.inf, 1 / 3], "float16": [1.5, 0.1, 65504], "int8": [1, -5],
    "uint64": [0, 2**64 - 1], "int64": [-(2**63), 2**63 - 1], "bool": [True, False],
}  # fmt: skip
ONNX_NAMES = {"float32": "float", "float64": "double"}


@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_as_text_and_back(dtype: str) -> None:
    name = ONNX_NAMES.get(dtype, dtype)
    kind = helper_type(dtype)
    x = np.array(NUMBERS[dtype], dtype)
    check(parsed(f"m ({name}[n] x) => (string[n] y) {{ y = Cast <to = 8> (x) }}"), {"x": x})
    texts = np.array([str(int(item)) if x.dtype.kind in "iub" else f"{item}" for item in x], object)
    model = parsed(f"m (string[n] x) => ({name}[n] y) {{ y = Cast <to = {kind}> (x) }}")
    np.testing.assert_array_equal(reference.run(import_onnx(model), {"x": texts}, dtype=None)["y"], x)


def helper_type(dtype: str) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def test_what_is_no_number_is_an_error() -> None:
    graph = import_onnx(parsed("m (string[n] x) => (float[n] y) { y = Cast <to = 1> (x) }"))
    with pytest.raises(InputError, match="reads the text 'abc' as a number"):
        reference.run(graph, {"x": np.array(["1", "abc"])}, dtype=None)


@pytest.mark.parametrize("shape", [(6,), (1, 6)])
def test_normalised_texts(shape: tuple[int, ...]) -> None:
    x = np.array(["Monday", "tuesday", "MONDAY", "Straße", "ǅ", "x"], object).reshape(shape)
    sizes = "6" if len(shape) == 1 else "1, 6"
    cases: list[tuple[str, list[str]]] = [
        ('stopwords = ["MONDAY"], is_case_sensitive = 0', ["tuesday", "Straße", "ǅ", "x"]),
        ('stopwords = ["MONDAY"], is_case_sensitive = 1', ["Monday", "tuesday", "Straße", "ǅ", "x"]),
        ('case_change_action = "UPPER"', ["MONDAY", "TUESDAY", "MONDAY", "STRAßE", "Ǆ", "X"]),
        ('case_change_action = "LOWER"', ["monday", "tuesday", "monday", "straße", "ǆ", "x"]),
        ('stopwords = ["monday", "tuesday", "straße", "ǆ", "x"], is_case_sensitive = 0', [""]),
    ]
    for attributes, wanted in cases:
        model = parsed(f"m (string[{sizes}] x) => (string[n] y) {{ y = StringNormalizer <{attributes}> (x) }}")
        model.graph.output[0].type.tensor_type.ClearField("shape")
        found = reference.run(import_onnx(model), {"x": x}, dtype=None)["y"]
        assert found.shape == (*shape[:-1], len(wanted)) and found.reshape(-1).tolist() == wanted, attributes


LABELS = {
    "texts to numbers": ("string", "float", 'keys_strings = ["a", "bc"], values_floats = [1.5, 2.5], '
                         "default_float = -7.0"),
    "texts to texts": ("string", "string", 'keys_strings = ["a", "bc"], values_strings = ["A", "B"]'),
    "texts to integers": ("string", "int64", 'keys_strings = ["a", "", "日本"], values_int64s = [1, 2, 3]'),
    "numbers to texts": ("int64", "string", 'keys_int64s = [3, 1], values_strings = ["three", "one"], '
                         'default_string = "many"'),
    "texts to the first number": ("string", "int64", 'keys_strings = ["a", "bc", "a"], values_int64s = [1, 2, 3]'),
}  # fmt: skip


@pytest.mark.parametrize("name", LABELS)
def test_labels(name: str, rng: np.random.Generator) -> None:
    takes, gives, attributes = LABELS[name]
    model = parsed(f"m ({takes}[n] x) => ({gives}[n] y) {{ y = ai.onnx.ml.LabelEncoder <{attributes}> (x) }}")
    check(model, {"x": words(rng, 12) if takes == "string" else rng.integers(0, 4, 12)})


def test_labels_of_version_1(rng: np.random.Generator) -> None:
    """A list of texts, which become their last places, and places, which become their texts."""
    for takes, gives, x in (("string", "int64", words(rng, 12)), ("int64", "string", np.array([0, 3, -1, 2, 1, 9]))):
        for other in ("", ', default_int64 = -3, default_string = "?"'):
            listed = f'classes_strings = ["a", "bc", "a"]{other}'
            model = parsed(f"m ({takes}[n] x) => ({gives}[n] y) {{ y = ai.onnx.ml.LabelEncoder <{listed}> (x) }}")
            next(entry for entry in model.opset_import if entry.domain == "ai.onnx.ml").version = 1
            check(model, {"x": x})


def test_categories_and_their_numbers(rng: np.random.Generator) -> None:
    pairs = 'cats_strings = ["a", "bc", "日本"], cats_int64s = [4, 2, 9], default_string = "?", default_int64 = -3'
    check(parsed(f"m (string[n] x) => (int64[n] y) {{ y = ai.onnx.ml.CategoryMapper <{pairs}> (x) }}"),
          {"x": words(rng, 12)})  # fmt: skip
    check(parsed(f"m (int64[n] x) => (string[n] y) {{ y = ai.onnx.ml.CategoryMapper <{pairs}> (x) }}"),
          {"x": rng.integers(1, 10, 12)})  # fmt: skip
    pairs = 'cats_strings = ["a", "b", "c"], cats_int64s = [2, 3, 2]'  # the last of equal numbers
    check(parsed(f"m (int64[n] x) => (string[n] y) {{ y = ai.onnx.ml.CategoryMapper <{pairs}> (x) }}"),
          {"x": rng.integers(1, 5, 12)})  # fmt: skip
    check(
        parsed("""m (string[n] x) => (float[n, 2] y) {
        y = ai.onnx.ml.OneHotEncoder <cats_strings = ["a", "bc"], zeros = 1> (x) }"""),
        {"x": words(rng, 12)},
    )


def test_classes_that_are_texts(rng: np.random.Generator) -> None:
    model = parsed("""m (float[n, 2] x) => (string[n] y, float[n, 3] s) {
        y, s = ai.onnx.ml.LinearClassifier <classlabels_strings = ["cat", "dog", "bird"], multi_class = 0,
            coefficients = [1.0, -1.0, 0.5, 0.25, -2.0, 1.0], intercepts = [0.0, 0.5, -0.5]> (x) }""")
    check(model, {"x": rng.integers(-8, 8, (9, 2)).astype(np.float32)})


def test_sequences_of_texts_are_counted(rng: np.random.Generator) -> None:
    model = parsed("""m (string[3, 6] x) => (float[3, 5] y) {
        y = TfIdfVectorizer <max_gram_length = 2, min_gram_length = 1, max_skip_count = 1, mode = "TF",
            ngram_counts = [0, 3], ngram_indexes = [0, 1, 2, 3, 4],
            pool_strings = ["a", "bc", "日本", "a", "bc", "bc", "a"]> (x) }""")
    check(model, {"x": rng.choice(np.array(["a", "bc", "日本", "x"], object), (3, 6))})


MODEL = """m (string[n] x, float[n, 4] f) => (string[k] found, float[n, 4] e, int64[n] code, string[n] longer) {
    none = Constant <value_string = ""> () s = Equal(x, none) t = Not(s) found = Compress(x, t) e = Exp(f)
    code = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "bc"], values_int64s = [1, 2]> (x)
    mark = Constant <value_strings = ["!"]> () longer = StringConcat(x, mark) }"""


def test_engines_take_and_give_text(rng: np.random.Generator, tmp_path: Path) -> None:
    model = parsed(MODEL)
    engine = tilewright.compile(model, target="cpu")
    engine.save(tmp_path / "text.engine")
    feeds = {"x": words(rng, 7), "f": rng.standard_normal((7, 4)).astype(np.float32)}
    wanted = reference.run(import_onnx(model), feeds, dtype=None)
    for each in (engine, Engine.load(tmp_path / "text.engine")):
        assert [spec.dtype for spec in each.inputs] == ["string", "float32"]
        found = each.run(feeds)
        np.testing.assert_allclose(found["e"], wanted["e"], rtol=1e-5)
        for name in ("found", "code", "longer"):
            assert found[name].dtype == wanted[name].dtype and found[name].tolist() == wanted[name].tolist(), name
    assert any("works on text" in remark for remark in engine.remarks)
    as_unicode = engine.run({**feeds, "x": feeds["x"].astype(str)})
    as_bytes = engine.run({**feeds, "x": np.array([item.encode() for item in feeds["x"]], object)})
    assert as_unicode["longer"].tolist() == as_bytes["longer"].tolist() == wanted["longer"].tolist()
    with pytest.raises(InputError, match="'x' is a tensor of text, given as one of float32"):
        engine.run({**feeds, "x": feeds["f"][:, 0]})
    with pytest.raises(InputError, match="'x': element 1 is an int, and must be a string"):
        engine.run({**feeds, "x": np.array(["a", 1, *"bcdef"], object)})
    with pytest.raises(InputError, match="'longer' is string, for which no memory can be given"):
        engine.run(feeds, out={"longer": np.empty(7, object)})


def test_sessions_say_the_types_of_text() -> None:
    session = InferenceSession(parsed(MODEL))
    assert [entry.type for entry in session.get_inputs()] == ["tensor(string)", "tensor(float)"]
    assert [entry.type for entry in session.get_outputs()][::3] == ["tensor(string)", "tensor(string)"]
    found, _, code, _ = session.run(None, {"x": ["bc", "", "q"], "f": np.zeros((3, 4), np.float32)})
    assert found.tolist() == ["bc", "q"] and code.tolist() == [2, -1, -1]


def test_text_that_is_no_utf8_is_refused() -> None:
    model = parsed('m () => (string[1] y) { y = Constant <value_strings = ["a"]> () }')
    tensor = onnx.TensorProto(name="c", data_type=onnx.TensorProto.STRING, dims=[1], string_data=[b"\xff"])
    model.graph.initializer.append(tensor)
    with pytest.raises(ImportModelError, match="no UTF-8 text"):
        import_onnx(model)


def test_files_cannot_mix_text_with_memory() -> None:
    """Types of a plan, a graph and its ops are checked when a file is read: what is compiled never sees objects."""
    graph = partition(import_onnx(parsed(MODEL)))
    data, arrays = serialize.to_data(graph)
    again = serialize.from_data(data, arrays)
    plan = Plan({}, [TensorSpec("x", "string", (3,))], [TensorSpec("y", "float32", (3,))], [], 0, 0)
    assert plan_from_json(plan_to_json(plan), in_parts=True) == plan
    with pytest.raises(ValueError, match="unknown element type 'string'"):
        plan_from_json(plan_to_json(plan))
    with pytest.raises(ValueError, match="the plan is of another graph"):
        check_graph(again, plan, [])
    for op, change in (("label", {"op": "exp", "attributes": {}}), ("part", {"types": [[{"dtype": "str"}, [3]]]})):
        forged = json.loads(json.dumps(data))
        if op == "part":
            (node,) = [node for node in forged["nodes"] if node["op"] == "part"]
            node["attributes"] |= change
            node["outputs"][0][1:] = ["str", [3]]
        else:
            node = next(node for node in forged["nodes"] if node["op"] == "text_position")
            node.update(change)
            node["outputs"][0][1] = "str"
        with pytest.raises(InvalidIRError, match="works on numbers, not on str|floating-point"):
            serialize.from_data(forged, arrays)


def test_text_that_nothing_reads_costs_no_parts() -> None:
    model = parsed('m (float[3] x) => (float[3] y) { c = Constant <value_strings = ["a", "b"]> () y = Exp(x) }')
    assert not is_staged(import_onnx(model))
    engine = tilewright.compile(model, target="cpu")
    np.testing.assert_allclose(engine.run({"x": np.ones(3, np.float32)})["y"], np.exp(np.ones(3)), rtol=1e-6)
    given = tilewright.compile(
        parsed('m () => (string[1] y) { y = Constant <value_strings = ["a"]> () }'), target="cpu"
    )
    assert given.run({})["y"].tolist() == ["a"]


def test_bound_text_is_given_back() -> None:
    session = InferenceSession(parsed("m (string[n] x, seq(string[n]) s) => (string[n] y, seq(string[n]) z) {"
                                      "y = Identity(x) z = SequenceInsert(s, x) }"))  # fmt: skip
    binding, x = session.io_binding(), np.array(["a", "b"], object)
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_input("s", OrtValue([x]))
    session.run_with_iobinding(binding)
    y, z = binding.copy_outputs_to_cpu()
    assert y.tolist() == ["a", "b"] and [item.tolist() for item in z] == [["a", "b"]] * 2
    first, second = binding.get_outputs()
    assert (first.data_type(), second.data_type()) == ("tensor(string)", "seq(tensor(string))")
    assert first.is_tensor() and not second.is_tensor()


TOKENS = {
    "matches": 'tokenexp = "b|bc|bca|\\\\w\\\\w+", mincharnum = 2, mark = 1, pad_value = "#"',
    "empty matches": 'tokenexp = "a*|é.", mincharnum = 1, mark = 0, pad_value = ""',
    "separators": 'separators = ["[,. ]+", "a"], mincharnum = 1, mark = 0, pad_value = "#"',
    "empty separators": 'separators = ["\\\\b"], mincharnum = 2, mark = 1, pad_value = ""',
    "letters": 'separators = [""], mincharnum = 1, mark = 0, pad_value = "#"',
}


@pytest.mark.parametrize("name", TOKENS)
def test_tokens(name: str) -> None:
    model = parsed(f"m (string[n, 2] x) => (string[n, 2, k] y) {{ y = com.microsoft.Tokenizer <{TOKENS[name]}> (x) }}")
    model.opset_import.add(domain="com.microsoft", version=1)
    check(model, {"x": np.array([["abc, bca.", ""], ["é1 __ é.", "a,b  a"]], object)})


def test_hashes() -> None:
    for kind, x in {"string": words(np.random.default_rng(0), 12), "int64": np.arange(5) << 30}.items():
        model = parsed(f"""m ({kind}[n] x) => (int32[n] y, uint32[n] z) {{
            y = com.microsoft.MurmurHash3 <positive = 0, seed = 7> (x) z = com.microsoft.MurmurHash3 (x) }}""")
        model.opset_import.add(domain="com.microsoft", version=1)
        check(model, {"x": x})


@pytest.mark.parametrize("mode", ["TF", "TFIDF"])
def test_sequences_of_tokens_in_rows_of_any_length(mode: str) -> None:
    model = parsed(f"""m (string[n, k] x) => (float[n, 5] y) {{ y = TfIdfVectorizer <mode = "{mode}",
        min_gram_length = 1, max_gram_length = 2, max_skip_count = 1,
        ngram_counts = [0, 2], ngram_indexes = [4, 0, 1, 3],
        pool_strings = ["a", "b", "a", "a", "b", "c"], weights = [1.0, 2.0, 3.0, 4.0]> (x) }}""")
    check(model, {"x": np.array([["a", "b", "a", "c", "a", "b"], ["b", "c", "b", "c", "z", "a"]], object)})
    check(model, {"x": np.array([["a"]], object)})


@pytest.mark.parametrize("labels", ['classlabels_strings = ["yes", "no"]', "classlabels_int64s = [3, 1]"])
def test_dictionaries_of_classes(labels: str, tmp_path: Path) -> None:
    kind = onnx.TensorProto.STRING if "strings" in labels else onnx.TensorProto.INT64
    model = parsed(f"m (float[n, 2] x) => (float[n] y) {{ y = ai.onnx.ml.ZipMap <{labels}> (x) }}")
    held = onnx.helper.make_map_type_proto(kind, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, []))
    model.graph.output[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(held))
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    engine = tilewright.compile(model)
    engine.save(tmp_path / "m.engine")
    session = InferenceSession(tmp_path / "m.engine")
    found, wanted = session.run(None, {"x": x}), peer.run(None, {"x": x})
    assert [[*row.items()] for row in found[0]] == [[*row.items()] for row in wanted[0]]  # in their order
    assert session.get_outputs()[0].type == peer.get_outputs()[0].type
