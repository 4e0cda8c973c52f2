"""Sizes in ONNX models that only a call tells: shape arithmetic through casts and fractions, and sizes that must be
equal but are spelled differently."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import parser  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import tilewright  # noqa: E402
from tilewright.errors import InputError, ShapeError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.graph.parser import parse_graph  # noqa: E402
from tilewright.graph.printer import print_graph  # noqa: E402
from tilewright.importers import import_model  # noqa: E402


def model(text: str, opset: int = 20) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}')


def run(graph: tilewright.Graph, *arrays: np.ndarray) -> np.ndarray:
    feeds = {value.name: array for value, array in zip(graph.inputs, arrays, strict=True)}
    (found,) = reference.run(graph, feeds).values()
    return found


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_sizes_keep_their_meaning_as_int32() -> None:
    graph = import_model(
        model("""main (float[n, 6, 1] x) => (float[n, k] y) {
            shape = Shape(x)
            narrow = Cast<to = 6>(shape)
            zero = Constant<value_ints: ints = [0]>()
            one = Constant<value_ints: ints = [1]>()
            first = Slice(narrow, zero, one)
            wide = Cast<to = 7>(first)
            rest = Constant<value_ints: ints = [-1]>()
            target = Concat<axis = 0>(wide, rest)
            y = Reshape(x, target)
        }""")
    )
    assert graph.outputs[0].shape[1] == 6
    np.testing.assert_array_equal(run(graph, numbers(5, 6, 1)), numbers(5, 6))


@pytest.mark.parametrize(("rounding", "wanted"), [("Floor", 4), ("Ceil", 5)])
def test_sizes_pass_through_fractions(rounding: str, wanted: int) -> None:
    """height * 0.5, rounded, back as a size."""
    graph = import_model(
        model(f"""main (float[1, height] x) => (float[a, b] y) {{
            shape = Shape(x)
            one = Constant<value_ints: ints = [1]>()
            two = Constant<value_ints: ints = [2]>()
            height_size = Slice(shape, one, two)
            number = Cast<to = 1>(height_size)
            factor = Constant<value_floats: floats = [0.5]>()
            part = Mul(number, factor)
            whole = {rounding}(part)
            size = Cast<to = 7>(whole)
            zero = Constant<value_ints: ints = [0]>()
            y = Slice(x, zero, size, one)
        }}""")
    )
    assert run(graph, numbers(1, 9)).shape == (1, wanted)


def test_a_float_range_up_to_a_size() -> None:
    graph = import_model(
        model("""main (float[n] x) => (float[n] y) {
            shape = Shape(x)
            number = Cast<to = 1>(shape)
            axis = Constant<value_ints: ints = [0]>()
            limit = Squeeze(number, axis)
            start = Constant<value_float: float = 0.0>()
            step = Constant<value_float: float = 1.0>()
            line = Range(start, limit, step)
            y = Add(x, line)
        }""")
    )
    np.testing.assert_array_equal(run(graph, numbers(7)), 2 * numbers(7))


def test_sizes_of_two_inputs_must_agree_when_the_model_is_called() -> None:
    engine = tilewright.compile(model("main (float[a, 4] x, float[b, 4] y) => (float[c, 4] z) { z = Add(x, y) }"))
    x = numbers(3, 4)
    np.testing.assert_array_equal(engine(x, x), x + x)
    with pytest.raises(ShapeError, match=r"a = 3, b = 2: dimension 0 of %.*must be .*: \d, not \d"):
        engine(x, x[:2])


def test_as_many_lengths_as_sequences() -> None:
    for lengths, constant in (("", "int64[2] l = {3, 5}"), (", int64[m] l", "")):
        engine = tilewright.compile(
            model(f"""main (float[n, 5] x{lengths}) => (float[n, 5] y) <{constant}> {{
                y = ReverseSequence<batch_axis = 0, time_axis = 1>(x, l)
            }}""")
        )
        given = {"l": np.array([3, 5])} if lengths else {}
        (found,) = engine.run({"x": numbers(2, 5), **given}).values()
        np.testing.assert_array_equal(found, [[2, 1, 0, 3, 4], [9, 8, 7, 6, 5]])
        with pytest.raises((InputError, ShapeError)):
            engine.run({"x": numbers(3, 5), **given})


def test_a_symmetric_window_of_one_element() -> None:
    """It divides 0 by 0, as in ONNX Runtime and the reference implementation."""
    graph = import_model(
        model("""main (float[1] x) => (float[1] y) <int64 n = {1}> {
            window = HannWindow<periodic = 0>(n)
            y = Add(x, window)
        }""")
    )
    assert np.isnan(run(graph, numbers(1))).all()


def test_a_size_with_a_bound_equals_itself_without_it() -> None:
    """max(0, n - 3) from a Range beside n - 3 from a Slice: equal for all but tiny n."""
    text = """main (float[1, n] x) => (float[1, k] y) {
        three = Constant<value_ints: ints = [3]>()
        large = Constant<value_ints: ints = [9223372036854775807]>()
        axis = Constant<value_ints: ints = [1]>()
        rest = Slice(x, three, large, axis)
        shape = Shape(x)
        index = Constant<value_int: int = 1>()
        n_size = Gather(shape, index)
        begin = Constant<value_int: int = 3>()
        step = Constant<value_int: int = 1>()
        places = Range(begin, n_size, step)
        line = Cast<to = 1>(places)
        y = Mul(rest, line)
    }"""
    graph = import_model(model(text))
    np.testing.assert_array_equal(run(graph, numbers(1, 8)), (numbers(1, 8) ** 2)[:, 3:])


def test_a_tensor_is_stretched_to_a_size_that_is_spelled_differently() -> None:
    graph = import_model(
        model("""m (float[batch, sequence] x) => (float[batch, sequence] y) {
            table = Constant <value = float[1, 4] {1.0, 2.0, 3.0, 4.0}> ()
            sizes = Shape(x) begin = Constant <value_ints = [0]> () length = Shape <start = 1> (x)
            axis = Constant <value_ints = [1]> () ids = Slice(table, begin, length, axis)
            all = Expand(ids, sizes) y = Add(all, x) }""")
    )
    x = numbers(2, 3)
    np.testing.assert_array_equal(run(graph, x), x + np.arange(1, 4, dtype=np.float32))
    engine = tilewright.compile(graph)
    np.testing.assert_array_equal(engine.run({"x": x})["y"], x + np.arange(1, 4, dtype=np.float32))
    with pytest.raises(ShapeError):
        engine.run({"x": numbers(2, 5)})


def test_what_is_added_to_scores_has_a_spelling_of_its_own(rng: np.random.Generator) -> None:
    """Masks over all keys, those of the past and the new ones."""
    text = """<ir_version: 10, opset_import: ["" : 23]>
    m (float[B,2,S,4] q, float[B,2,S,4] k, float[B,2,S,4] v, float[1,1,S,T] mask, float[B,2,P,4] pk,
       float[B,2,P,4] pv) => (float[B,2,S,4] y, float[B,2,T,4] nk, float[B,2,T,4] nv) {
       y, nk, nv = Attention(q, k, v, mask, pk, pv) }"""
    parsed = parser.parse_model(text)
    shapes = dict.fromkeys("qkv", (2, 2, 3, 4)) | dict.fromkeys(("pk", "pv"), (2, 2, 5, 4)) | {"mask": (1, 1, 3, 8)}
    feeds = {name: rng.random(shape, np.float32) for name, shape in shapes.items()}
    wanted = ReferenceEvaluator(parsed).run(None, feeds)
    found = reference.run(import_model(parsed), feeds)
    np.testing.assert_allclose(found["y"], wanted[0], rtol=1e-4)


def test_joined_parts_and_products_agree() -> None:
    text = """main (float[a, 4] x, float[b, 6] y, float[6, c] w) => (float[d, c] z) {
        both = Concat<axis = 1>(x, y)
        one = Constant<value_ints: ints = [4]>()
        large = Constant<value_ints: ints = [99]>()
        axis = Constant<value_ints: ints = [1]>()
        part = Slice(both, one, large, axis)
        z = MatMul(part, w)
    }"""
    graph = import_model(model(text))
    x, y, w = numbers(3, 4), numbers(3, 6), numbers(6, 2)
    np.testing.assert_array_equal(run(graph, x, y, w), y @ w)


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_pads_of_dynamic_dimensions(mode: str) -> None:
    """Reflection needs more elements than it pads, which the call checks."""
    attributes = f'mode = "{mode}"'
    engine = tilewright.compile(
        model(f"""main (float[1, n] x) => (float[1, k] y) {{
            pads = Constant<value_ints: ints = [0, 3, 0, 3]>()
            y = Pad<{attributes}>(x, pads)
        }}""")
    )
    x = numbers(1, 6)
    np.testing.assert_array_equal(engine(x), np.pad(x, ((0, 0), (3, 3)), mode=mode))  # type: ignore[call-overload]
    if mode == "reflect":
        with pytest.raises(ShapeError, match=r"n = 3: dimension 1 of %x.* must be .*max\(.*: 3, not 4"):
            engine(x[:, :3])


@pytest.mark.parametrize("extent", [3, 8, 11])
def test_pads_up_to_a_fixed_length(extent: int) -> None:
    """8 - n elements behind n, which cut a longer input."""
    graph = import_model(
        model("""main (float[2, n] x) => (float[2, k] y) {
            shape = Shape(x)
            one = Constant<value_ints: ints = [1]>()
            two = Constant<value_ints: ints = [2]>()
            n_size = Slice(shape, one, two)
            length = Constant<value_ints: ints = [8]>()
            missing = Sub(length, n_size)
            zeros = Constant<value_ints: ints = [0, 0, 0]>()
            pads = Concat<axis = 0>(zeros, missing)
            y = Pad(x, pads)
        }""")
    )
    wanted = np.zeros((2, 8), np.float32)
    x = numbers(2, extent)
    wanted[:, : min(8, extent)] = x[:, :8]
    assert graph.outputs[0].shape == (2, 8)
    np.testing.assert_array_equal(run(graph, x), wanted)


def test_a_signal_of_two_dimensions() -> None:
    text = """main (float[batch, n] x) => (float[batch, frames, bins, 2] y) {
        step = Constant<value_int: int = 4>()
        length = Constant<value_int: int = 8>()
        y = STFT(x, step, , length)
    }"""
    graph = import_model(model(text))
    x = np.random.default_rng(0).standard_normal((2, 40)).astype(np.float32)
    frames = np.stack([x[:, start : start + 8] for start in range(0, 33, 4)], axis=1).astype(np.float64)
    wanted = np.fft.rfft(frames)
    bound = 8 * np.finfo(np.float32).eps * np.abs(x).sum()
    np.testing.assert_allclose(run(graph, x), np.stack([wanted.real, wanted.imag], -1), rtol=0, atol=bound)


def recurrent(kind: str, steps: str, direction: str, lengths: bool, first: int) -> onnx.ModelProto:
    """A layer of width 3 with 4 hidden numbers; `first` is linear_before_reset of a GRU."""
    gates, sides = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind], 2 if direction == "bidirectional" else 1
    shapes = {"w": (sides, 4 * gates, 3), "r": (sides, 4 * gates, 4), "b": (sides, 8 * gates)}
    rng = np.random.default_rng(1)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    states = ["h", "c"] if kind == "LSTM" else ["h"]
    more = {"linear_before_reset": first} if kind == "GRU" else {}
    names = ["x", "w", "r", "b", "lengths" if lengths else "", *states]
    outputs = ["y", *(f"{name}_last" for name in states)]
    node = onnx.helper.make_node(kind, names, outputs, hidden_size=4, direction=direction, **more)
    extent = int(steps) if steps.isdigit() else steps
    values = [("x", 1, [extent, 2, 3]), *((name, 1, [sides, 2, 4]) for name in states)]
    values += [("lengths", 6, [2])] if lengths else []
    inputs = [onnx.helper.make_tensor_value_info(*value) for value in values]
    results = [onnx.helper.make_tensor_value_info(name, 1, None) for name in outputs]
    graph = onnx.helper.make_graph([node], "layer", inputs, results, weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "first"), [("RNN", 0), ("GRU", 0), ("GRU", 1), ("LSTM", 0)])
def test_recurrent_layers_of_any_length(kind: str, first: int, direction: str, lengths: bool) -> None:
    """A walked sequence gives what an unrolled one gives, and is one node however long it is."""
    graphs = {}
    for steps in ("6", "n", "3000"):
        graphs[steps] = import_model(recurrent(kind, steps, direction, lengths, first))
    assert [node.op for node in graphs["n"].nodes].count("recurrent") == 1
    assert len(graphs["3000"].nodes) == len(graphs["n"].nodes) and "recurrent" not in {n.op for n in graphs["6"].nodes}
    rng = np.random.default_rng(2)
    feeds = {value.name: rng.standard_normal(value.shape).astype(np.float32) for value in graphs["6"].inputs}  # type: ignore[arg-type]
    if lengths:
        feeds["lengths"] = np.array([6, 2], np.int32)
    wanted, found = (reference.run(graphs[steps], feeds) for steps in ("6", "n"))
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5, err_msg=name)


def test_a_dimension_that_one_state_fixes_is_fixed() -> None:
    """The batch of a layer whose initial state is a constant of one row: the engine takes that batch only."""
    layer = recurrent("LSTM", "n", "forward", False, 0)
    layer.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "batch"
    for value in layer.graph.input[1:]:
        value.type.tensor_type.shape.dim[1].dim_value = 1
    graph = import_model(layer)
    assert graph.inputs[0].shape[1:] == (1, 3) and list(graph.symbols) == ["n"]


@pytest.mark.parametrize(("after", "rows"), [("MatMul(z, w)", 1), ("Identity(z)", 3)])
def test_a_branch_that_drops_a_dimension(after: str, rows: int) -> None:
    """PyTorch's squeeze(0): one branch where the size is 1, another where it is not.  What follows says which is meant,
    else the one for any other size; the call checks it."""
    text = f"""main (float[n, 4, 4] x, float[4, 4] w) => (y) {{
        shape = Shape(x)
        zero = Constant<value_int: int = 0>()
        one = Constant<value_int: int = 1>()
        n_size = Gather(shape, zero)
        single = Equal(n_size, one)
        z = If(single) <
            then_branch = dropped () => (dropped) {{
                axis = Constant<value_ints: ints = [0]>()
                dropped = Squeeze(x, axis)
            }},
            else_branch = kept () => (kept) {{ kept = Identity(x) }}
        >
        y = {after}
    }}"""
    if "MatMul" in after:  # a product that only a matrix can be an operand of
        text = text.replace("y = MatMul(z, w)", "y = Gemm(z, w)")
    engine = tilewright.compile(model(text))
    x, w = numbers(rows, 4, 4), np.eye(4, dtype=np.float32)
    found = engine.run({"x": x, "w": w} if len(engine.inputs) == 2 else {"x": x})["y"]
    np.testing.assert_array_equal(found, x[0] if rows == 1 else x)
    other = numbers(4 - rows, 4, 4)
    with pytest.raises(ShapeError):
        engine.run({"x": other, "w": w})


def test_a_squeeze_without_axes_keeps_what_is_not_one() -> None:
    engine = tilewright.compile(model("main (float[n, 1, 4] x) => (y) { z = Squeeze(x)\n y = Neg(z) }"))
    np.testing.assert_array_equal(engine(numbers(3, 1, 4)), -numbers(3, 4))
    with pytest.raises(ShapeError, match="does not take the sizes n = 1"):
        engine(numbers(1, 1, 4))


def test_conditions_hold_in_engines_of_parts() -> None:
    """A reflection beside an operation whose result has a size that only the run knows."""
    engine = tilewright.compile(
        model("""main (float[1, n] x) => (float[1, k] y, int64[2, m] z) {
            pads = Constant<value_ints: ints = [0, 3, 0, 3]>()
            y = Pad<mode = "reflect">(x, pads)
            z = NonZero(x)
        }""")
    )
    assert engine.run({"x": numbers(1, 4)})["z"].shape == (2, 3)
    with pytest.raises(ShapeError, match=r"n = 3|must be"):
        engine.run({"x": numbers(1, 3)})


@pytest.mark.parametrize("name", ["serving_default:0", "a/b:0", "x@1;y", "größe"])
def test_inputs_have_the_names_of_the_file(name: str, tmp_path: Path) -> None:
    found = model("main (float[n, 4] x) => (float[n, 4] y) { y = Exp(x) }")
    found.graph.input[0].name = found.graph.node[0].input[0] = name
    found.graph.output[0].name = found.graph.node[0].output[0] = f"{name}/out"
    engine = tilewright.compile(found)
    engine.save(tmp_path / "named.engine")
    for each in (engine, tilewright.Engine.load(tmp_path / "named.engine")):
        assert [spec.name for spec in each.inputs] == [name]
        np.testing.assert_allclose(each.run({name: numbers(2, 4)})[f"{name}/out"], np.exp(numbers(2, 4)), rtol=1e-5)
        with pytest.raises(InputError, match=re.escape(name)):
            each.run({"x_0": numbers(2, 4)})
    graph = import_model(found)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)


SAME_SIZES = {  # operations on tensors whose sizes have names of their own, and sizes that fit
    "GridSample(x0, x1)": [(2, 3, 4, 5), (2, 3, 3, 2)],
    "AffineGrid<align_corners = 1>(x0, sizes)": [(2, 2, 3)],
    "Col2Im<dilations = [1, 2]>(x0, image, block)": [(1, 4, 9)],
    "DequantizeLinear<axis = 1>(x0, x1, x2)": [(2, 3), (3,), (3,)],
    "LSTM<hidden_size = 4>(x0, x1, x2, x3)": [(5, 2, 3), (1, 16, 3), (1, 16, 4), (1, 32)],
    "GRU<hidden_size = 4>(x0, x1, x2)": [(5, 2, 3), (1, 12, 3), (1, 12, 4)],
    "RotaryEmbedding(x0, x1, x2)": [(1, 2, 3, 8), (1, 3, 4), (1, 3, 4)],
    "MaxUnpool<kernel_shape = [2], strides = [2]>(x0, x1)": [(1, 1, 4), (1, 1, 4)],
    "SoftmaxCrossEntropyLoss(x0, x1)": [(3, 4), (3,)],
}


@pytest.mark.parametrize("call", SAME_SIZES)
def test_names_of_equal_sizes_become_conditions(call: str, rng: np.random.Generator) -> None:
    shapes, operation = SAME_SIZES[call], call.split("<")[0].split("(")[0]
    kinds = ["float"] * len(shapes)
    if operation in ("MaxUnpool", "SoftmaxCrossEntropyLoss"):
        kinds[1] = "int64"
    elif operation == "DequantizeLinear":
        kinds[0] = kinds[2] = "uint8"
    inputs = []
    for place, (kind, shape) in enumerate(zip(kinds, shapes, strict=True)):
        names = ", ".join(f"size_{place}_{axis}" for axis in range(len(shape)))
        inputs.append(f"{kind}[{names}] x{place}")
    source = model(
        f"""main ({", ".join(inputs)}) => (float y) {{
            sizes = Constant<value_ints: ints = [2, 3, 4, 5]>()
            image = Constant<value_ints: ints = [4, 5]>()
            block = Constant<value_ints: ints = [2, 2]>()
            {"z, y" if operation in ("LSTM", "GRU") else "y"} = {call}
        }}""",
        23 if operation == "RotaryEmbedding" else 20,
    )
    source.graph.output[0].type.Clear()
    types = {"float": np.float32, "uint8": np.uint8, "int64": np.int64}
    arrays = [
        rng.standard_normal(shape).astype(np.float32)
        if kind == "float"
        else np.arange(np.prod(shape)).reshape(shape).astype(types[kind])
        for kind, shape in zip(kinds, shapes, strict=True)
    ]
    graph = import_model(source)
    feeds = {f"x{place}": array for place, array in enumerate(arrays)}
    (wanted,) = ReferenceEvaluator(source).run(None, feeds)
    np.testing.assert_allclose(run(graph, *arrays), wanted, rtol=1e-4, atol=1e-5)


def test_sizes_that_must_be_equal_and_are_not_are_refused_at_the_call() -> None:
    inputs = "float[n, 1, h, w] x, float[m, a, b, two] places"
    graph = import_model(model(f"main ({inputs}) => (float[n, 1, a, b] y) {{ y = GridSample(x, places) }}"))
    engine = tilewright.compile(graph)
    with pytest.raises((InputError, ShapeError)):
        engine.run({"x": numbers(2, 1, 4, 4), "places": numbers(3, 2, 2, 2)})


def test_group_normalization_of_opset_18_has_a_scale_for_each_group() -> None:
    source = model(
        "main (float[n, 4, k] x, float[2] s, float[2] b) => (float[n, 4, k] y) "
        "{ y = GroupNormalization<num_groups = 2>(x, s, b) }",
        18,
    )
    x, scale, bias = numbers(1, 4, 3), np.array([2.0, -1.0], np.float32), np.array([0.5, 3.0], np.float32)
    centred = x.reshape(2, 6) - x.reshape(2, 6).mean(1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(run(import_model(source), x, scale, bias), wanted.reshape(1, 4, 3), rtol=1e-5)
