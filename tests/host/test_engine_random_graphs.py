"""Random graphs through the whole path: engine against the float64 reference of the graph as drawn."""

import numpy as np
import pytest

from tests.host.random_graphs import RandomGraph
from tilewright.engine.builder import build
from tilewright.graph.reference import run


@pytest.mark.parametrize("length", [4, 8, 12, 16, 20])
def test_an_engine_of_a_random_graph_is_right_for_several_sizes(rng, length):
    drawn = RandomGraph(int(rng.integers(2**32)), length)
    engine = build(drawn.graph)
    for batch, sequence in ((1, 1), (2, 3), (5, 8)):
        inputs = {name: array.astype(np.float32) for name, array in drawn.inputs(batch, sequence).items()}
        results, wanted = engine.run(inputs), run(drawn.graph, inputs)
        rounded = run(drawn.graph, inputs, dtype=None)  # NumPy in float32 shows how much the graph magnifies rounding
        for name, exact in wanted.items():
            error = np.max(np.abs(np.asarray(results[name]) - exact))
            own = np.max(np.abs(rounded[name] - exact))
            assert error <= 30 * own + 1e-5 * (1 + np.max(np.abs(exact))), (name, error, own)
