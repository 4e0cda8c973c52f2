"""The parts of many kinds of networks: imported with dynamic shapes, compiled, and as exact as float32 allows."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.models.architectures import architectures  # noqa: E402
from tests.rounding import graph_bounds  # noqa: E402
from tilewright.build.builder import build  # noqa: E402
from tilewright.build.tuning import Tuning  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

MODELS = architectures()


@pytest.mark.slow(but_every=5)
@pytest.mark.parametrize("name", MODELS)
def test_architecture(name: str) -> None:
    module, inputs, shapes = MODELS[name]
    graph = import_model(module, inputs, shapes)
    double = copy.deepcopy(module).double()
    wide = [item.double() if item.is_floating_point() else item for item in inputs]
    with torch.no_grad():
        exact = double(*wide)
    names = [value.name for value in graph.inputs]
    given = {key: item.numpy() for key, item in zip(names, inputs, strict=True)}
    found = reference.run(graph, given)
    bounds = graph_bounds(graph, given, found)
    compiled = build(graph, tuning=Tuning(effort=0)).run(dict(zip(names, inputs, strict=True)))
    for label, want in zip(graph.output_names, _flat(exact), strict=True):
        # float32 constants of the model (a third, an epsilon) limit the reference; rounding limits the engine
        np.testing.assert_allclose(found[label], want.numpy(), rtol=1e-6, atol=1e-6, err_msg=label)
        assert np.abs(compiled[label].double().numpy() - found[label]).max() <= bounds[label], label


def _flat(result: object) -> list[torch.Tensor]:
    if isinstance(result, dict):
        return list(result.values())
    return list(result) if isinstance(result, tuple) else [result]
