"""Each fusion by itself: what groups a graph becomes, and what they compute on the CPU and on a stand-in for a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fusion_cases import CASES, KERNELS, Case, case, groups_of
from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.dtypes import DType, bfloat16, float16
from tilewright.graph.pipeline import own_passes
from tilewright.graph.printer import print_graph
from tilewright.graph.reference import run


def compare(found: Case, target: str, rng: np.random.Generator) -> None:
    """An engine's outputs and updated inputs against the unfused graph in float64."""
    inputs = found.inputs(rng)
    exact = run(found.graph, inputs)
    results = {**inputs, **build(found.graph, target).run(inputs)}  # mutated inputs hold their new values
    for name, wanted in exact.items():
        np.testing.assert_allclose(results[name], wanted, rtol=1e-5, atol=1e-5 * (1 + np.abs(wanted).max()))


@pytest.mark.parametrize("name", CASES)
def test_groups(name: str, rng: np.random.Generator) -> None:
    found = case(name, rng)
    assert groups_of(found.fused()) == found.groups


def test_every_pass_of_the_pipeline_changes_a_case(rng: np.random.Generator) -> None:
    """So that `tests/device/test_fusions.py` runs what each of them does on a GPU."""
    passes = own_passes(KERNELS)
    idle = dict.fromkeys(name for name, _ in passes)
    for name in CASES:
        graph = case(name, rng, float16).graph
        for transform_name, transform in passes:
            result = transform(graph)
            if print_graph(result) != print_graph(graph):
                idle.pop(transform_name, None)
            graph = result
    assert not idle


def test_sums_of_a_stream_are_rounded_half_as_often(rng: np.random.Generator) -> None:
    """Rounding every sum to 16 bits, as the graph says, would be nearly all of the error."""
    found = case("residual_stream", rng, float16)
    assert groups_of(found.fused()) == found.groups
    inputs = found.inputs(rng)
    exact, rounded = run(found.graph, inputs)["y"], run(found.graph, inputs, dtype=None)["y"]
    result = build(found.graph, "cpu").run(inputs)["y"]
    error, own = (np.linalg.norm(np.asarray(item, np.float64) - exact) for item in (result, rounded))
    assert error < 0.85 * own


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_reference_rounds_as_the_graph_says(name: str, dtype: DType, rng: np.random.Generator) -> None:
    """Op by op in the graph's own types: what the tests on a GPU measure errors by."""
    found = case(name, rng, dtype)
    inputs = found.inputs(rng)
    exact, rounded = run(found.graph, inputs), run(found.graph, inputs, dtype=None)
    for key, wanted in exact.items():
        error = np.abs(np.asarray(rounded[key], np.float64) - wanted).max()
        assert error <= 0.2 * (1 + np.abs(wanted).max()), (key, error)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", CASES)
def test_on_the_cpu(name: str, rng: np.random.Generator) -> None:
    compare(case(name, rng), "cpu", rng)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", CASES)
def test_kernels_for_gpus(driver: Driver, name: str, rng: np.random.Generator) -> None:
    compare(case(name, rng), "cuda:sm_90a", rng)
