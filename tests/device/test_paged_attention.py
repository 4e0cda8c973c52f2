"""Attention over pages on a GPU: chunks of prompts and few new tokens of several sequences, in one step."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.test_paged_attention import BATCHES, bound, draw_inputs, narrowed, paged_graph, plain
from tilewright.build.builder import build
from tilewright.dtypes import bfloat16, float8e4nv, float8e5, float16, float32, int8
from tilewright.graph.reference import run

# heads, key heads, width, value width, page, window, softcap
CASES = [
    ((32, 8, 128, 128, 16, 0, 0.0), bfloat16), ((8, 1, 64, 64, 8, 0, 0.0), float16),
    ((6, 2, 128, 128, 64, 0, 0.0), float16), ((14, 2, 64, 64, 128, 7, 20.0), bfloat16),
    ((4, 2, 256, 256, 16, 0, 30.0), bfloat16), ((40, 2, 64, 64, 32, 33, 0.0), bfloat16),
    ((8, 4, 96, 96, 16, 0, 0.0), bfloat16), ((8, 2, 64, 64, 4, 0, 0.0), float16),
    ((14, 2, 64, 64, 16, 0, 0.0), float32),
]  # fmt: skip


@pytest.mark.parametrize(("form", "dtype"), CASES, ids=str)
def test_all_kinds_of_steps(form, dtype, rng):
    """Numbers of sequences for all numbers of parts; keys after a sequence's last token are NaN."""
    graph = paged_graph(form, dtype)
    engine = build(graph, "cuda")
    unit = {bfloat16: 2.0**-9, float16: 2.0**-12, float32: 2.0**-24}[dtype]
    batches = [
        *BATCHES, ([1], [2500]), ([1] * 40, rng.integers(1, 600, 40).tolist()), ([500, 1, 3], [900, 333, 700]),
        ([1, 2, 193], [1, 2, 193]), ([4, 300, 0, 1, 64], [800, 301, 0, 5000, 64]),
        (rng.integers(0, 3, 90).tolist(), rng.integers(2, 700, 90).tolist()),
    ]  # fmt: skip
    for number, batch in enumerate(batches):
        inputs = draw_inputs(rng, form, batch)
        for name in ("q", "keys", "values"):
            inputs[name] = inputs[name].astype(dtype.numpy)
        wanted = plain(inputs, form) if number < len(BATCHES) else run(graph, inputs)["y"].astype(np.float64)
        found = engine.run(inputs)["y"]
        near = bound(inputs, unit) / (8 if dtype.itemsize == 2 else 1)
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=0, atol=near + 2 * unit)
        np.testing.assert_array_equal(engine.run(inputs)["y"], found)


@pytest.mark.parametrize(("kind", "scaled"), [(float8e4nv, False), (float8e5, False), (int8, True)], ids=str)
@pytest.mark.parametrize(("form", "dtype"), [CASES[0], CASES[2], CASES[3], CASES[4], CASES[6]], ids=str)
def test_keys_and_values_of_8_bits(form, dtype, kind, scaled, rng):
    """What numbers and scales stand for, with the rounding of weights to the queries' type."""
    graph = paged_graph(form, dtype, kind, scaled)
    engine = build(graph, "cuda")
    unit = {bfloat16: 2.0**-9, float16: 2.0**-12}[dtype]
    many = [1] * 40, rng.integers(1, 600, 40).tolist()
    for batch in (BATCHES[0], ([1], [2500]), many, ([4, 300, 0], [800, 301, 0])):
        inputs, read = narrowed(draw_inputs(rng, form, batch), kind, scaled)
        inputs["q"] = read["q"] = inputs["q"].astype(dtype.numpy)
        wanted = run(paged_graph(form, float32), {**read, "q": read["q"].astype(np.float32)})["y"].astype(np.float64)
        found = engine.run(inputs)["y"]
        near = 2 * bound(inputs, unit) / 8 + 2 * unit
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=0, atol=near)
        np.testing.assert_array_equal(engine.run(inputs)["y"], found)


def test_wild_starts_and_lengths_stay_inside_of_the_tensors(rng):
    """What is not checked may give any result, and ends."""
    form = CASES[0][0]
    engine = build(paged_graph(form, bfloat16), "cuda")
    for number in range(20):
        inputs = draw_inputs(rng, form, BATCHES[0])
        for name in ("q", "keys", "values"):
            inputs[name] = inputs[name].astype(bfloat16.numpy)
        low, high = ((-(2**31), 2**31 - 1), (-5, 200))[number % 2]
        for name in ("starts", "lengths", "tables"):
            inputs[name] = rng.integers(low, high, inputs[name].shape, dtype=np.int32)
        inputs["tables"] = np.clip(inputs["tables"], 0, inputs["keys"].shape[0] // form[4] - 1)
        engine.run(inputs)
