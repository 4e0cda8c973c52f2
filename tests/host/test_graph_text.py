"""Graphs as text and as data: what is printed or serialised is read back the same."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.host.random_graphs import RandomGraph
from tilewright.dtypes import bfloat16, float32, int64
from tilewright.errors import InvalidIRError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.parser import parse_graph
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.graph.printer import print_fused, print_graph
from tilewright.graph.serialize import from_data, to_data
from tilewright.settings import settings as configuration


def small_graph() -> Graph:
    b = GraphBuilder("small")
    batch = b.symbol("batch", 1, 64)
    x = b.input("x", float32, (batch, 8))
    cache = b.input("cache", float32, (4, 8))
    weight = b.constant(np.arange(32, dtype=np.float32).reshape(4, 8), "fc.weight")
    y = b.op("matmul", [x, weight], source="fc", transpose_b=True)
    y = b.op("where", [b.op("less", [y, 0.0]), float("-inf"), y])
    y = b.op("cast", [b.op("reshape", [y], shape=(batch * 2, 2))], dtype=bfloat16)
    b.output(y, "y")
    slots = b.op("iota", shape=(4,), dtype=int64)
    b.mutate(cache, b.op("scatter_update", [cache, slots, weight], axis=0))
    return b.finish()


SMALL_TEXT = """graph small
symbol batch 1..64
input %x: f32[batch, 8]
input %cache: f32[4, 8]
constant %fc.weight: f32[4, 8] #0c43f2957858
constant %c_0.0: f32[] = 0.0
constant %c_-inf: f32[] = -inf
%matmul: f32[batch, 4] = matmul(%x, %fc.weight) {transpose_b=True} from "fc"
%less: i1[batch, 4] = less(%matmul, %c_0.0)
%where: f32[batch, 4] = where(%less, %c_-inf, %matmul)
%reshape: f32[2*batch, 2] = reshape(%where) {shape=([2*batch], 2)}
%cast: bf16[2*batch, 2] = cast(%reshape) {dtype=bf16}
%iota: i64[4] = iota() {shape=(4,)}
%scatter_update: f32[4, 8] = scatter_update(%cache, %iota, %fc.weight) {axis=0}
output y = %cast
mutate %cache = %scatter_update
"""


def arrays_of(graph: Graph) -> dict[str, np.ndarray]:
    return {value.name: data for value, data in graph.constants.items()}


def test_the_printed_form():
    assert print_graph(small_graph()) == SMALL_TEXT


def test_fused_graphs_show_groups_and_reasons():
    text = print_fused(fuse(optimize(small_graph())))
    assert "contraction 000-matmul" in text and "* %matmul" in text and "remarks:" in text


@settings(max_examples=40, deadline=None)
@example(seed=4429, optimized=True)  # a line of images whose permutes once moved to and fro
@given(seed=st.integers(0, 2**32 - 1), optimized=st.booleans())
def test_text_and_data_round_trip(seed, optimized):
    graph = RandomGraph(seed, 15).graph
    graph = optimize(graph) if optimized else graph
    text = print_graph(graph)
    assert print_graph(parse_graph(text, arrays_of(graph))) == text
    data, arrays = to_data(graph)
    assert print_graph(from_data(json.loads(json.dumps(data)), arrays)) == text


ODD_NAMES = [
    "sepal length (cm)",
    'a"b',
    "a\\",
    "a, %b",
    '") = %y',
    "x = %y",
    "a\nb",
    "\u2028",
    " ",
    "none",
    "{k=1} from",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_inputs_and_outputs_of_any_name_round_trip(name):
    b = GraphBuilder("odd")
    x, y = b.input(name, float32, (2,)), b.input("y", float32, (2,))
    b.output(b.op("add", [x, y], source='") from'), f"out {name}")
    b.mutate(x, b.op("multiply", [x, 2.0]))
    graph = b.finish()
    text = print_graph(graph)
    found = parse_graph(text, {value.name: data for value, data in graph.constants.items()})
    assert print_graph(found) == text and len(text.splitlines()) == 8
    assert [value.name for value in found.inputs] == [name, "y"] and found.output_names == [f"out {name}"]


def test_small_graph_round_trips():
    graph = small_graph()
    assert print_graph(parse_graph(SMALL_TEXT, arrays_of(graph))) == SMALL_TEXT
    data, arrays = to_data(graph)
    assert print_graph(from_data(json.loads(json.dumps(data)), arrays)) == SMALL_TEXT


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "%a: f32[] = add(%x)",
        "%a: f32[batch, 8] = nosuchop(%x)",
        "%a: f32[batch, 9] = relu(%x)",
        "%a: f32[batch, 8] = relu(%missing)",
        "%x: f32[batch, 8] = relu(%x)",
        "%a: f32[batch, 8] = relu(%x) {speed=3}",
        "%a: f32[other, 8] = relu(%x)",
        "%a: f32[__import__('os'), 8] = relu(%x)",
        "constant %w: f32[2] #000000000000",
        "output y = %missing",
    ],
)
def test_bad_text_is_refused_with_the_line(line):
    with pytest.raises(InvalidIRError):
        parse_graph("graph bad\nsymbol batch 1..4\ninput %x: f32[batch, 8]\n" + line)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_data_is_refused_or_valid(data):
    """Any change of one leaf or branch of the JSON gives a graph that passes the verifier, or an `InvalidIRError`."""
    graph = small_graph()
    tree, arrays = to_data(graph)
    tree = json.loads(json.dumps(tree))
    paths = list(_paths(tree))
    path = data.draw(st.sampled_from(paths))
    target = tree
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = data.draw(st.sampled_from([None, -1, 3, "batch", "add", [], {}, {"dtype": "f32"}, 2.5, True]))
    try:
        from_data(tree, arrays)
    except InvalidIRError:
        pass


def _paths(tree, prefix=()):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, item in items:
        yield (*prefix, key)
        yield from _paths(item, (*prefix, key))


def test_the_graph_after_each_pass_can_be_written_to_files(tmp_path):
    with configuration.scope(dump_directory=tmp_path / "dump"):
        optimize(small_graph())
    names = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert names[0] == "small.00-imported.txt" and all(name.startswith("small.") for name in names)
    assert (tmp_path / "dump" / names[0]).read_text() == SMALL_TEXT
