"""The op `choose`: its meaning against the sampler's choice, and its kernels against the meaning."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.dtypes import float32, int32
from tilewright.errors import ShapeError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.choices import IN_PROMPT, _changed, _that_count
from tilewright.graph.reference import run
from tilewright.llm import SamplingParameters
from tilewright.llm.sampling import Sampler

ORDER = ("logits", "temperatures", "shares", "floors", "portions", "counts", "histories", "presences", "frequencies",
         "repetitions", "seen", "biases")  # fmt: skip


def choosing(columns):
    b = GraphBuilder("choosing")
    rows = b.symbol("rows", 1, 64)
    numbers = [b.input(name, float32, (rows,)) for name in ("temperatures", "shares", "floors", "portions")]
    numbers += [b.input(name, int32, (rows,)) for name in ("counts", "histories")]
    numbers += [b.input(name, float32, (rows,)) for name in ("presences", "frequencies", "repetitions")]
    numbers += [b.input("seen", int32, (3 * columns,)), b.input("biases", float32, (3 * columns,))]
    b.output(b.op("choose", [b.input("logits", float32, (rows, columns)), *numbers]), "y")
    return b.finish()


def draw_inputs(rng, rows, columns):
    logits = (3 * rng.standard_normal((rows, columns))).astype(np.float32)
    logits[rng.random(logits.shape) < 0.1] = -np.inf
    logits[:, -1] = 0.0
    return {
        "logits": logits, "temperatures": rng.choice([0.0, 0.3, 1.0, 3.0], rows).astype(np.float32),
        "shares": rng.choice([0.0, 0.3, 0.999999, 1.0 - 2.0**-24], rows).astype(np.float32),
        "floors": rng.choice([0.0, 0.0, 0.3], rows).astype(np.float32),
        "portions": rng.choice([1.0, 1.0, 0.9, 0.2, 1e-6], rows).astype(np.float32),
        "counts": rng.choice([0, 0, 1, 7, columns - 1, columns + 1], rows).astype(np.int32),
        "histories": rng.choice([0, 0, 1, 2], rows).astype(np.int32),
        "presences": rng.choice([0.0, 0.5, -1.0], rows).astype(np.float32),
        "frequencies": rng.choice([0.0, 0.25], rows).astype(np.float32),
        "repetitions": rng.choice([1.0, 1.5, 0.5], rows).astype(np.float32),
        "seen": rng.choice([0, 0, 1, 3, IN_PROMPT, IN_PROMPT + 2], 3 * columns).astype(np.int32),
        "biases": rng.choice([0.0, 0.0, 2.5, -100.0], 3 * columns).astype(np.float32),
    }  # fmt: skip


@pytest.mark.parametrize("columns", [1, 96, 20011])
@pytest.mark.parametrize("target", [None, "cuda:sm_90a"])
def test_meaning_and_kernels(columns, target, rng, request):
    if target is not None:
        request.getfixturevalue("driver")
    graph = choosing(columns)
    engine = build(graph, target) if target else build(graph)
    for rows in (1, 5) if target else (1, 33):
        inputs = draw_inputs(rng, rows, columns)
        wanted, found = run(graph, inputs)["y"], engine.run(inputs)["y"]
        changed = _changed([inputs[name] for name in ORDER])
        for row in np.flatnonzero(found != wanted):  # sums in float32 pass a share a little earlier or later
            logits, temperature = changed[row], float(inputs["temperatures"][row])
            assert temperature > 0
            powers = np.exp((logits - logits.max()) / temperature)
            powers[~_that_count(logits, powers, inputs["portions"][row], inputs["counts"][row])] = 0.0
            powers[powers < inputs["floors"][row]] = 0.0
            first, last = sorted((int(found[row]), int(wanted[row])))
            between = slice(first + 1, last)
            assert powers[between].sum() <= 2.0**-23 * 64 * powers.sum() and powers[found[row]] > 0


def test_rows_that_are_no_numbers(rng):
    engine = build(choosing(50))
    inputs = draw_inputs(rng, 6, 50)
    inputs["temperatures"][:] = [0, 1, 0, 1, 0, 0]
    inputs["histories"][:] = [0, 0, 1, 1, 1, 0]
    inputs["logits"][0, 7] = inputs["logits"][1, 49] = np.nan
    inputs["logits"][2, 3], inputs["logits"][3, 0] = np.inf, np.inf
    inputs["logits"][4] = -np.inf
    inputs["logits"][5, [11, 30]] = 99.0
    assert engine.run(inputs)["y"].tolist() == [-1, -1, -1, -1, -1, 11]
    assert run(choosing(50), inputs)["y"].tolist() == [-1, -1, -1, -1, -1, 11]


def test_it_is_the_choice_of_samplers(rng):
    rows = 64
    logits = (2 * rng.standard_normal((rows, 300))).astype(np.float32).round(1)  # with equal ones
    samplers = []
    for seed in range(rows):
        wanted = {
            "temperature": float(rng.choice([0.0, 0.7, 1.5])), "min_p": float(rng.choice([0.0, 0.2])),
            "top_p": float(rng.choice([1.0, 0.9, 0.3])), "top_k": int(rng.choice([0, 1, 5, 20, 300])),
            "presence_penalty": float(rng.choice([0.0, 0.5])), "frequency_penalty": float(rng.choice([0.0, -0.25])),
            "repetition_penalty": float(rng.choice([1.0, 1.25])), "logit_bias": [{}, {7: 2.0, 299: -5.0}][seed % 2],
        }  # fmt: skip
        samplers.append(Sampler(SamplingParameters(**wanted), seed, 0, (5, 8, 13)))
        for _ in range(seed % 4):
            samplers[-1].choose(logits[seed - 1])
    draws = [sampler.draw() for sampler in samplers]
    names = [*ORDER[1:6], *ORDER[7:10]]
    numbers = zip(*(draw[:5] + sampler.penalties for draw, sampler in zip(draws, samplers, strict=True)), strict=True)
    inputs = {name: np.array(values, np.float32) for name, values in zip(names, numbers, strict=True)}
    inputs |= {"logits": logits, "counts": inputs["counts"].astype(np.int32)}
    found = np.empty(rows, np.int32)
    for row, (sampler, draw) in enumerate(zip(samplers, draws, strict=True)):
        seen, biases = (np.concatenate([table * 0, table, table * 0]) for table in sampler.tables(300))
        one = {name: values[row : row + 1] for name, values in inputs.items()}
        history = np.array([int(draw.history is not None)], np.int32)
        found[row] = run(choosing(300), {**one, "histories": history, "seen": seen, "biases": biases})["y"][0]
    assert found.tolist() == [sampler.choose(row).token for sampler, row in zip(samplers, logits, strict=True)]


def test_types_that_do_not_fit():
    b = GraphBuilder("wrong")
    numbers = [b.input(name, int32 if name in ("counts", "histories", "seen") else float32, (4,)) for name in ORDER[1:]]
    with pytest.raises(ShapeError, match="rows"):
        b.op("choose", [b.input("x", float32, (3, 5)), *numbers])
    with pytest.raises(ShapeError, match="float32"):
        b.op("choose", [b.input("i", int32, (4, 5)), *numbers])
