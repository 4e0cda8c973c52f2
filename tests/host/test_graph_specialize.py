"""`restrict_shapes` narrows sizes everywhere in a graph and refuses what the model cannot do."""

import pytest

from tilewright import symbolic
from tilewright.dtypes import float32
from tilewright.errors import ShapeError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.specialize import restrict_shapes


def make_graph() -> Graph:
    batch = symbolic.symbol("batch", 1, 64)
    x = Value("x", float32, (batch, 8))
    y = Value("y", float32, (batch * 8,))
    node = Node("reshape", [x], [y], {"shape": (batch * 8,)})
    symbols = {"batch": symbolic.Symbol("batch", 1, 64)}
    return Graph("g", symbols, inputs=[x], outputs=[y], output_names=["y"], nodes=[node])


def test_a_size_becomes_a_number_everywhere() -> None:
    graph = restrict_shapes(make_graph(), {"x": [(4, 4), (8, 8)]})
    assert graph.inputs[0].shape == (4, 8)
    assert graph.outputs[0].shape == (32,)
    assert graph.nodes[0].attributes["shape"] == (32,)
    assert graph.symbols == {}


def test_a_range_is_narrowed() -> None:
    graph = restrict_shapes(make_graph(), {"x": [(2, 16), (8, 8)]})
    assert graph.symbols == {"batch": symbolic.Symbol("batch", 2, 16)}
    assert symbolic.upper_bound(graph.outputs[0].shape[0]) == 128


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"y": [(1, 1)]}, "no input 'y'"),
        ({"x": [(1, 1)]}, "rank 2: give 2 sizes, not 1"),
        ({"x": [(1, 128), (8, 8)]}, "1..64 in the model and cannot be 1..128"),
        ({"x": [(1, 64), (9, 9)]}, "is 8 in the model and cannot be 9"),
    ],
)
def test_what_the_model_cannot_do_is_refused(ranges: dict, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        restrict_shapes(make_graph(), ranges)
