"""Attention in engines on a GPU: packed operands, masks of keys, grouped heads, sizes known at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.host.test_attention_limits import CASES as LIMITED
from tests.host.test_attention_limits import agree, case
from tests.host.test_engine_gpu_attention import appended, appending, decoding, packed
from tests.quantized_attention import CASES, check, quantizing
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import bfloat16, float16, float64
from tilewright.graph.core import Graph
from tilewright.graph.reference import run

pytestmark = pytest.mark.capability(9)

GRAPHS = {
    "full": packed(4, 4, 64),
    "causal, grouped": packed(8, 2, 128, causal=True),
    "mask of keys": packed(4, 4, 64, "keys", dtype=float16),
    "full bias": packed(4, 2, 64, "full", dtype=float16),
    "wide heads": packed(2, 2, 256, causal=True),
}


def inputs_of(graph: Graph, batch: int, length: int, rng: np.random.Generator) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    for value in graph.inputs:
        sizes = {"batch": batch, "length": length}
        shape = tuple(size if isinstance(size, int) else sizes[str(size)] for size in value.shape)
        numbers = rng.standard_normal(shape)
        if value.name == "mask":
            numbers = np.where(rng.random(shape) < 0.3, -6e4, numbers)
        inputs[value.name] = numbers.astype(value.dtype.numpy)
    return inputs


@pytest.mark.parametrize("name", GRAPHS)
def test_packed_attention(name: str, torch: Any, rng: np.random.Generator) -> None:
    graph = GRAPHS[name]
    engine = build(graph, "cuda")
    assert engine.plan.steps[-1].evidence["chosen"].startswith("hopper attention")
    unit = {bfloat16: 2.0**-8, float16: 2.0**-11}[graph.inputs[0].dtype]
    for batch, length in ((1, 1), (2, 64), (3, 65), (4, 160), (1, 130), (3, 65)):
        inputs = inputs_of(graph, batch, length, rng)
        exact = run(graph, inputs)["y"]
        found = engine.run(inputs)["y"].astype(np.float64)
        assert np.max(np.abs(found - exact)) <= 2 * unit * np.max(np.abs(inputs["x"].astype(np.float64)))
        again = engine.run(inputs)["y"].astype(np.float64)
        np.testing.assert_array_equal(found, again)


@pytest.mark.parametrize(
    ("heads", "key_heads", "keys", "masked", "size"),
    [
        (32, 8, 2048, True, 128), (8, 2, 1990, True, 64), (3, 3, 2048, False, 64), (4, 1, 90, True, 256),
        (4, 4, 1, False, 128), (16, 1, 100, False, 128), (12, 1, 2049, True, 128), (8, 1, 8192, True, 64),
        (8, 2, 8192, False, 128), (4, 2, 700, True, 96), (64, 1, 300, False, 128), (2, 2, 2049, False, 256),
    ],
)  # fmt: skip
def test_one_query_reads_a_cache(
    heads: int, key_heads: int, keys: int, masked: bool, size: int, torch: Any, rng: np.random.Generator
) -> None:
    graph = decoding(heads, key_heads, keys, masked, size)
    engine = build(graph, "cuda")
    for batch in (1, 3):
        shapes = {
            "q": (batch, 1, heads * size),
            "k": (batch, key_heads, keys, size),
            "v": (batch, key_heads, keys, size),
        }
        inputs = {name: rng.standard_normal(shape).astype(bfloat16.numpy) for name, shape in shapes.items()}
        if masked:
            seen = np.arange(keys) < keys - keys // 3
            inputs["mask"] = np.where(seen, 0, -np.inf).astype(bfloat16.numpy).reshape(1, 1, 1, keys)
        exact = run(graph, inputs)["y"]
        found = engine.run(inputs)["y"].astype(np.float64)
        assert np.max(np.abs(found - exact)) <= 2.0**-6 * np.max(np.abs(exact))
        np.testing.assert_array_equal(found, engine.run(inputs)["y"].astype(np.float64))


@pytest.mark.parametrize(
    ("heads", "key_heads", "keys", "size"),
    [(32, 8, 2048, 128), (8, 2, 300, 64), (2, 2, 1000, 256), (16, 1, 5000, 128), (4, 4, 1, 64)],
)
def test_a_cache_is_read_before_its_last_row(
    heads: int, key_heads: int, keys: int, size: int, torch: Any, rng: np.random.Generator
) -> None:
    """The written row counts in every call, wherever it is, counted from either end; calls follow each other without a
    pause."""
    graph = appending(heads, key_heads, keys, size)
    engine = build(graph, "cuda")
    for batch, calls in ((1, 6), (2, 2)):
        inputs = appended(graph, batch, [0], rng)
        given = {name: torch.from_numpy(array.view(np.int16) if array.dtype != np.int64 else array).cuda()
                 for name, array in inputs.items()}  # fmt: skip
        given = {name: array if name == "place" else array.view(torch.bfloat16) for name, array in given.items()}
        places = [int(place) for place in rng.integers(-keys, keys, calls)]
        found = []
        for place in places:
            given["place"].fill_(place)
            found.append(engine.run(given)["y"].float().clone())
        for place, result in zip(places, found, strict=True):
            inputs["place"] = np.asarray([place])
            wanted = run(graph, inputs)
            exact = wanted["y"]
            error = np.max(np.abs(result.cpu().numpy().astype(np.float64) - exact))
            assert error <= 2.0**-6 * np.max(np.abs(exact)), place
            for target in graph.mutations:
                inputs[target.name] = wanted[target.name].astype(inputs[target.name].dtype)


@pytest.mark.parametrize("name", CASES)
def test_results_are_stored_quantized(name: str, rng: np.random.Generator) -> None:
    graph = quantizing(CASES[name])
    check(CASES[name], graph, build(graph, "cuda", tuning=Tuning(0)), rng)


@pytest.mark.parametrize("given", LIMITED, ids=str)
def test_windows_soft_caps_and_numbers_of_keys(given: tuple[Any, ...], rng: np.random.Generator) -> None:
    for width, name in ((16, "hopper attention"), (12, "online softmax")):
        graph = case(float16, *given, width=width)
        engine = build(graph, "cuda", tuning=Tuning(0))
        assert any(str(step.evidence["chosen"]).startswith(name) for step in engine.plan.steps)
        exact = case(float64, *given, width=width)
        for length in (2, 33, 100) if given[0] == "length" else (given[1],):
            agree(engine, graph, length, rng, exact)
