"""Whole models through every importer, against PyTorch in float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.host.model_support import (  # noqa: E402
    NAMES,
    SIZES,
    arrays,
    onnx_graph,
    specification,
    torch_graph,
)
from tilewright.graph import reference  # noqa: E402
from tilewright.graph.core import Graph  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

# Both sides compute in float64, but constants that PyTorch stores in float32 (1e-5, a third) enter as such.
TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}


def check(name: str, graph: Graph, mutations: bool) -> None:
    spec = specification(name)
    for seed, sizes in enumerate(SIZES[name]):
        inputs = spec.make_inputs(**sizes, seed=seed)
        expected = spec.run(inputs, torch.float64)
        found = reference.run(graph, arrays(inputs))
        names = [*graph.output_names, *(spec.mutated if mutations else ())]
        for label, want in zip(names, expected, strict=False):
            np.testing.assert_allclose(found[label], want.numpy(), **TOLERANCE, err_msg=f"{name} {sizes} {label}")


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", NAMES)
def test_torch_export(name: str) -> None:
    check(name, torch_graph(name), mutations=True)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", NAMES)
def test_onnx(name: str) -> None:
    check(name, onnx_graph(name), mutations=False)


def test_trained_model_three_ways() -> None:
    """The Hugging Face folder, torch.export and ONNX give the same numbers for the trained encoder."""
    from tests.models.bert import checkpoint_folder

    spec = specification("minilm")
    inputs = spec.make_inputs(batch=2, sequence=9)
    expected = spec.run(inputs, torch.float64)
    for graph in (import_model(checkpoint_folder()), torch_graph("minilm"), onnx_graph("minilm")):
        found = reference.run(graph, arrays(inputs))
        for label, want in zip(graph.output_names, expected, strict=True):
            np.testing.assert_allclose(found[label], want.numpy(), **TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_dynamic_dimensions_are_named_symbols(name: str) -> None:
    spec = specification(name)
    wanted = {entry for axes in spec.dynamic_shapes.values() for entry in axes.values()}
    for graph in (torch_graph(name), onnx_graph(name)):
        assert {(symbol.name, symbol.low, symbol.high) for symbol in graph.symbols.values()} == wanted
        for value in graph.inputs:
            for axis, (label, _, _) in spec.dynamic_shapes.get(value.name, {}).items():
                assert str(value.shape[axis]) == label


def test_cache_updates_are_mutations() -> None:
    graph = torch_graph("decode")
    assert [value.name for value in graph.mutations] == list(specification("decode").mutated)
    updates = {node.output for node in graph.nodes if node.op == "scatter_update"}
    assert set(graph.mutations.values()) == updates


def test_parameters_are_views_of_the_model() -> None:
    graph = torch_graph("bert")
    module = specification("bert").module
    by_name = {value.name: data for value, data in graph.constants.items()}
    for name, parameter in module.named_parameters():
        assert np.shares_memory(by_name[name], parameter.detach().numpy()), name


def test_nodes_know_where_they_come_from() -> None:
    (source,) = {node.source for node in torch_graph("bert").nodes if node.op == "tanh"}
    assert source.startswith("model (Bert), bert.py:")
    assert any(node.source.startswith("encoder.layer.1.") for node in torch_graph("bert").nodes)
    assert any(node.source.startswith("encoder.layer.1.") for node in onnx_graph("bert").nodes)


def test_composites_stay_whole() -> None:
    """Attention, norms and activations arrive as one op each, not as their parts."""
    ops = [node.op for node in torch_graph("bert").nodes]
    assert (ops.count("attention"), ops.count("layer_norm"), ops.count("gelu")) == (2, 5, 2)
    assert "softmax" not in ops
    assert [node.op for node in torch_graph("decode").nodes].count("attention") == 2
