"""Random graphs through the whole path: engine against the float64 reference of the graph as drawn."""

import numpy as np
import pytest

from tests.host.random_graphs import RandomGraph
from tests.rounding import graph_bounds
from tilewright.build.builder import build
from tilewright.graph.reference import run


@pytest.mark.parametrize("length", [4, 8, 12, 16, 20])
def test_an_engine_of_a_random_graph_is_right_for_several_sizes(rng, length):
    drawn = RandomGraph(int(rng.integers(2**32)), length)
    engine = build(drawn.graph)
    for batch, sequence in ((1, 1), (2, 3), (5, 8)):
        inputs = {name: array.astype(np.float32) for name, array in drawn.inputs(batch, sequence).items()}
        results, wanted = engine.run(inputs), run(drawn.graph, inputs)
        bounds = graph_bounds(drawn.graph, inputs, wanted)
        for name, exact in wanted.items():
            error = np.max(np.abs(np.asarray(results[name]) - exact))
            assert error <= bounds[name], (name, error, bounds[name])
