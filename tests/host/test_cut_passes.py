"""What is done with a graph before it is cut into parts (lookups of texts, loops); sizes and checks between parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tilewright
from tilewright.errors import InputError
from tilewright.graph.core import Graph, Node
from tilewright.graph.passes.join_text_lookups import join_text_lookups
from tilewright.graph.passes.lighten_loops import lighten_loops
from tilewright.graph.reference import run_graph
from tilewright.importers import import_model

pytestmark = pytest.mark.usefixtures("quick_engines")

Feeds = dict[str, Any]


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1]> {text}')


def agrees(model: onnx.ModelProto, feeds: Feeds) -> None:
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    found = tilewright.compile(model).run(feeds)
    for mine, other in zip(found.values(), wanted, strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


def nodes(graph: Graph, op: str) -> list[Node]:
    return [node for node in graph.nodes if node.op == op]


COLUMNS = parsed(
    """m (string[n, 3] x) => (float[n, 1, 3] y, int64[n, 2] z) {
        one = Constant <value = int64[1] {1}> () two = Constant <value = int64[2] {2, 0}> ()
        a = Gather <axis = 1> (x, one) b = Gather <axis = 1> (x, two)
        y = ai.onnx.ml.OneHotEncoder <cats_strings = ["red", "blue", "red"], zeros = 1> (a)
        z = ai.onnx.ml.LabelEncoder <classes_strings = ["blue", "left", "right"], default_int64 = 7> (b)
    }"""
)


def test_lookups_in_columns_are_one() -> None:
    graph = import_model(COLUMNS)
    (lookup,) = nodes(join_text_lookups(graph), "text_position")
    assert lookup.inputs == graph.inputs
    assert lookup.attributes["keys"] == ("red", "blue", "left", "right")
    texts = np.array([["left", "red", "right"], ["", "blue", "gone"], ["right", "green", "left"]], object)
    agrees(COLUMNS, {"x": texts})


def test_lookups_in_a_small_part_stay() -> None:
    part = 'f = Gather <axis = 1> (x, place) y = ai.onnx.ml.OneHotEncoder <cats_strings = ["a"]> (f)'
    model = parsed(
        f"m (string[n, 9] x) => (float[n, 1, 1] y) {{ place = Constant <value = int64[1] {{1}}> () {part} }}"
    )
    graph = import_model(model)
    assert join_text_lookups(graph) is graph


LOOP = """m (float[steps, batch, 4] x, int64 trips) => (float[batch, 3] last, float[s, batch, 3] all, float[4, 3] same)
    <float[4, 3] w = {0.1, 0.2, -0.3, 0.4, -0.5, 0.6, 0.7, 0.8, -0.9, 1.0, 1.1, -1.2},
     float[3, 3] u = {0.3, -0.1, 0.2, 0.5, 0.4, -0.6, 0.1, 0.2, 0.3}, int32 zero = {0}, bool on = {1}, float none = {0}>
    { shape = Shape(x) at = Constant <value = int64[1] {1}> () batch = Gather(shape, at)
      three = Constant <value = int64[1] {3}> () whole = Concat <axis = 0> (batch, three) h = Expand(none, whole)
      n, last, same, v, all = Loop(trips, on, zero, h, w, u) <body = b
        (int64 i, bool going, int32 n0, float[batch, 3] h0, float[4, 3] w0, float[3, 3] u0)
        => (bool going_on, int32 n1, float[batch, 3] h1, float[4, 3] w1, float[3, 3] u1, float[batch, 3] row) {
            one = Constant <value = int32 {1}> () n1 = Add(n0, one) row_of_x = Gather(x, n0) a = MatMul(row_of_x, w0)
            c = MatMul(h0, u0) d = Add(a, c) h1 = Tanh(d) row = Identity(h1) going_on = Identity(going)
            w1 = Identity(w0) u1 = Identity(u0) }>
    }"""


def test_a_loop_takes_the_products_of_rows_before_it() -> None:
    model = parsed(LOOP)
    graph = import_model(model)
    light = lighten_loops(graph)
    (loop,) = nodes(light, "loop")
    assert loop.attributes["carried"] == 2  # the number of the row and h: the weights are constants
    assert len(nodes(light, "matmul")) == len(nodes(graph, "matmul")) + 1
    rng = np.random.default_rng(3)
    for steps, batch, trips in ((5, 2, 5), (7, 1, 3), (4, 3, 0)):
        feeds = {"x": rng.standard_normal((steps, batch, 4)).astype(np.float32), "trips": np.array(trips)}
        symbols = {"steps": steps, "batch": batch}
        before, after = (run_graph(each, list(feeds.values()), dict(symbols)) for each in (graph, light))
        for mine, other in zip(graph.outputs, light.outputs, strict=True):
            np.testing.assert_allclose(after[other], before[mine], rtol=1e-5, atol=1e-6)
        if trips:  # of no rows ONNX Runtime gives a batch of 0
            agrees(model, feeds)


def test_a_loop_that_chooses_rows_by_their_data_stays() -> None:
    """A table of which a loop reads few rows, each found in the last round, is not multiplied as a whole."""
    model = parsed(LOOP.replace("n1 = Add(n0, one)", "m = Add(n0, one) n1 = Mod(m, one)"))
    light = lighten_loops(import_model(model))
    assert len(nodes(light, "matmul")) == 0


def test_sizes_that_broadcast_are_joined_once() -> None:
    text = "m (float[n] x, float[n] y) => (float[s] z) { p = NonZero(x) q = Cast <to = 1> (p) zero = Constant <value = "
    text += "int64[1] {0}> () r = Squeeze(q, zero) a = Add(r, y) b = Mul(a, y) c = Sub(b, r) z = Add(c, a) }"
    model = parsed(text)
    assert len(nodes(import_model(model), "broadcast_extents")) == 1
    agrees(model, {"x": np.float32([1, 2, 3]), "y": np.float32([4, 5, 6])})
    agrees(model, {"x": np.float32([1]), "y": np.float32([4])})
    agrees(model, {"x": np.float32([0, 2, 0]), "y": np.float32([4, 5, 6])})


def test_columns_of_indices_have_ranges_of_their_own() -> None:
    model = parsed(
        """m (int64[n, 2] x) => (float[n] y) <float[3] few = {1, 2, 3}, float[9] many = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
            zero = Constant <value = int64 {0}> () one = Constant <value = int64 {1}> ()
            a = Gather <axis = 1> (x, zero) b = Gather <axis = 1> (x, one)
            c = Gather(few, a) d = Gather(many, b) y = Add(c, d) }"""
    )
    agrees(model, {"x": np.array([[2, 8], [-3, -9]])})
    engine = tilewright.compile(model)
    for wrong, found in (([[8, 2]], 8), ([[0, 0], [2, 9]], 9), ([[-4, 8]], -4)):
        with pytest.raises(InputError, match=f"'x' holds {found}, an index out of range"):
            engine.run({"x": np.array(wrong)})
