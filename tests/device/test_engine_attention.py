"""Attention in engines on a GPU: packed operands, masks of keys, grouped heads, sizes known at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.host.test_engine_gpu_attention import decoding, packed
from tilewright.dtypes import bfloat16, float16
from tilewright.engine.builder import build
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
    [(32, 8, 2048, True, 128), (8, 2, 1990, True, 64), (3, 3, 2048, False, 64), (4, 1, 90, True, 256)],
)
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
            seen = np.arange(keys) < keys - 37
            inputs["mask"] = np.where(seen, 0, -np.inf).astype(bfloat16.numpy).reshape(1, 1, 1, keys)
        exact = run(graph, inputs)["y"]
        found = engine.run(inputs)["y"].astype(np.float64)
        assert np.max(np.abs(found - exact)) <= 2.0**-6 * np.max(np.abs(exact))
        np.testing.assert_array_equal(found, engine.run(inputs)["y"].astype(np.float64))
