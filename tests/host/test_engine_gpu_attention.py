"""Attention in engines for GPUs: which kernel is chosen, and that it reads operands where they lie."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.dtypes import bfloat16, float16, float32, int64
from tilewright.engine.plan_json import plan_from_json, plan_to_json
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.reference import run
from tilewright.library.attention.simt import gpu_attention
from tilewright.runtime.plan import TableReference, TiledReference
from tilewright.symbolic import evaluate
from tilewright.targets.registry import get_targets


def packed(
    heads: int, key_heads: int, size: int, mask: str = "", causal: bool = False, dtype=bfloat16, most: int = 160
) -> Graph:
    """Attention on queries, keys and values that lie side by side in one tensor [batch, sequence, columns]."""
    b = GraphBuilder("packed")
    batch, length = b.symbol("batch", 1, 4 if most == 160 else most), b.symbol("length", 1, most)
    x = b.input("x", dtype, (batch, length, (heads + 2 * key_heads) * size))
    operands: list[Value] = []
    start = 0
    for count in (heads, key_heads, key_heads):
        piece = b.op("slice", [x], axis=2, start=start, stop=start + count * size, step=1)
        operands.append(
            b.op("permute", [b.op("reshape", [piece], shape=(batch, length, count, size))], order=(0, 2, 1, 3))
        )
        start += count * size
    if mask:
        operands.append(b.input("mask", dtype, (batch, 1, 1 if mask == "keys" else length, length)))
    y = b.op("attention", operands, scale=size**-0.5, causal=causal)
    b.output(b.op("reshape", [b.op("permute", [y], order=(0, 2, 1, 3))], shape=(batch, length, heads * size)), "y")
    return b.finish()


@pytest.mark.parametrize(
    ("graph", "mask"),
    [
        (packed(2, 2, 64), ""),
        (packed(4, 2, 32, causal=True, dtype=float16), ""),
        (packed(2, 1, 64, "keys", dtype=float16), "keys"),
        (packed(2, 2, 64, "full"), "full"),
    ],
    ids=["plain", "grouped and causal", "mask of keys", "full bias"],
)
def test_attention_reads_packed_operands(graph: Graph, mask: str, driver: Driver, rng: np.random.Generator) -> None:
    engine = build(graph, "cuda:sm_90a")
    (step,) = engine.plan.steps
    assert step.evidence["chosen"].startswith("hopper attention")
    arguments = [argument.value for choice in step.choices for argument in choice.arguments]
    assert any(isinstance(value, TableReference) for value in arguments)
    data = json.loads(json.dumps(plan_to_json(engine.plan)))
    assert plan_from_json(data) == engine.plan
    unknown = json.loads(json.dumps(data).replace('"table": "attention"', '"table": "other"'))
    with pytest.raises(ValueError, match="no table 'other'"):
        plan_from_json(unknown)
    assert {value.place.kind for value in arguments if isinstance(value, TiledReference)} == {"input", "output"}
    dtype = graph.inputs[0].dtype.numpy
    width = int(graph.inputs[0].shape[2])
    for batch, length in ((2, 40), (1, 64 if mask == "full" else 130), (2, 40)):
        inputs = {"x": rng.standard_normal((batch, length, width)).astype(dtype)}
        if mask:
            shape = (batch, 1, 1 if mask == "keys" else length, length)
            inputs["mask"] = np.where(rng.random(shape) < 0.3, -1e4, rng.standard_normal(shape)).astype(dtype)
        found = engine.run(inputs)["y"].astype(np.float64)
        exact = run(graph, inputs)["y"]
        unit = 2.0**-8 if graph.inputs[0].dtype == bfloat16 else 2.0**-11
        assert np.max(np.abs(found - exact)) <= 2 * unit * np.max(np.abs(inputs["x"].astype(np.float64)))


def test_sizes_beyond_a_schedule_take_the_plain_kernel(driver: Driver, rng: np.random.Generator) -> None:
    graph = packed(2, 2, 64, most=1 << 24)
    engine = build(graph, "cuda:sm_90a")
    (step,) = engine.plan.steps
    assert step.evidence["chosen"].startswith("hopper attention") and len(step.choices) == 3

    def taken(batch: int, length: int) -> int:
        symbols = {"batch": batch, "length": length}
        fits = (c.at_most is None or evaluate(c.size, symbols) <= c.at_most for c in step.choices)
        return next(number for number, fit in enumerate(fits) if fit)

    assert [taken(1, 64), taken(16383, 64), taken(1, 65), taken(1, 2097088), taken(16383, 65)] == [0, 0, 1, 1, 1]
    assert [taken(16384, 1), taken(1, 2097089)] == [2, 2]
    for length in (5, 100):
        x = rng.standard_normal((2, length, 384)).astype(bfloat16.numpy)
        exact = run(graph, {"x": x})["y"]
        assert np.max(np.abs(engine(x).astype(np.float64) - exact)) <= 2.0**-7 * np.max(np.abs(x.astype(np.float64)))


@pytest.mark.parametrize(("size", "dtype"), [(64, float32), (36, bfloat16)])
def test_other_attention_takes_the_plain_kernel(size: int, dtype, driver: Driver, rng: np.random.Generator) -> None:
    graph = packed(2, 2, size, dtype=dtype)
    engine = build(graph, "cuda:sm_90a")
    assert engine.plan.steps[-1].evidence["chosen"] == "online softmax"
    x = rng.standard_normal((2, 30, 6 * size)).astype(dtype.numpy)
    exact = run(graph, {"x": x})["y"]
    np.testing.assert_allclose(engine(x).astype(np.float64), exact, rtol=0, atol=2e-2 if dtype == bfloat16 else 1e-4)


@pytest.mark.parametrize(
    ("width", "value_width", "causal"), [(72, 72, False), (40, 64, True), (136, 8, False)], ids=str
)
def test_hopper_fills_up_heads_of_other_widths(
    width: int, value_width: int, causal: bool, driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder("widths")
    operands: list[Value] = [b.input("q", float16, (1, 4, 33, width)), b.input("k", float16, (1, 2, 90, width))]
    operands.append(b.input("v", float16, (1, 2, 90, value_width)))
    b.output(b.op("attention", operands, scale=width**-0.5, causal=causal), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    (step,) = engine.plan.steps
    assert step.evidence["chosen"].startswith("hopper attention")
    inputs = {value.name: rng.standard_normal(value.shape).astype(np.float16) for value in operands}  # type: ignore[arg-type]
    exact = run(graph, inputs)["y"]
    assert np.abs(engine.run(inputs)["y"].astype(np.float64) - exact).max() <= 2.0**-9 * np.abs(inputs["v"]).max()


def test_the_plain_kernel_is_expected_to_take_long_for_wide_heads() -> None:
    """32 x 32 heads of 1,024 float16 numbers took 36.6 ms (H200, 2026-12-01)."""
    b = GraphBuilder("wide")
    b.output(b.op("attention", [b.input(name, float16, (32, 32, 512, 1024)) for name in "qkv"], scale=1 / 32), "y")
    graph, (target,) = b.finish(), get_targets(["cuda:sm_90a"])
    (group,) = fuse(graph, target.kernels).groups
    assert 0.8 < gpu_attention(group, graph, target)[-1].cost.seconds / 36.6e-3 < 1.25


def decoding(heads: int, key_heads: int, keys: int, masked: bool, size: int = 64) -> Graph:
    """One query for each head against a cache [batch, key heads, keys, size]."""
    b = GraphBuilder("decoding")
    batch = b.symbol("batch", 1, 3)
    q = b.op("reshape", [b.input("q", bfloat16, (batch, 1, heads * size))], shape=(batch, 1, heads, size))
    caches = [b.input(name, bfloat16, (batch, key_heads, keys, size)) for name in ("k", "v")]
    bias = [b.input("mask", bfloat16, (1, 1, 1, keys))] if masked else []
    y = b.op("attention", [b.op("permute", [q], order=(0, 2, 1, 3)), *caches, *bias], scale=size**-0.5, causal=False)
    b.output(b.op("reshape", [b.op("permute", [y], order=(0, 2, 1, 3))], shape=(batch, 1, heads * size)), "y")
    return b.finish()


@pytest.mark.parametrize(
    ("heads", "key_heads", "keys", "masked", "size", "launches"),
    [
        (4, 1, 1990, True, 64, 1), (3, 3, 2048, False, 64, 1), (4, 2, 90, True, 64, 1),
        (12, 1, 130, True, 128, 1), (2, 2, 1, False, 64, 1), (4, 2, 700, False, 96, 2),
    ],
)  # fmt: skip
def test_one_query_reads_a_cache_in_parts(
    heads: int, key_heads: int, keys: int, masked: bool, size: int, launches: int, driver: Driver,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    graph = decoding(heads, key_heads, keys, masked, size)
    engine = build(graph, "cuda:sm_90a")
    name = "hopper decoding in clusters" if launches == 1 else "hopper decoding"
    assert [step.evidence["chosen"] for step in engine.plan.steps] == [name] * launches
    for batch in (1, 3):
        cache = (batch, key_heads, keys, size)
        shapes = {"q": (batch, 1, heads * size), "k": cache, "v": cache}
        inputs = {name: rng.standard_normal(shape).astype(bfloat16.numpy) for name, shape in shapes.items()}
        if masked:
            seen = np.arange(keys) < keys - keys // 3
            inputs["mask"] = np.where(seen, 0, -np.inf).astype(bfloat16.numpy).reshape(1, 1, 1, keys)
        found = engine.run(inputs)["y"].astype(np.float64)
        exact = run(graph, inputs)["y"]
        assert np.max(np.abs(found - exact)) <= 2.0**-6 * np.max(np.abs(exact))


def appending(
    heads: int, key_heads: int, keys: int, size: int, dtype=bfloat16, rows: int = 1, twice: bool = False
) -> Graph:
    """As `decoding`, with new keys and values written to places of the cache in front of it."""
    b = GraphBuilder("appending")
    batch = b.symbol("batch", 1, 3)
    q = b.op("reshape", [b.input("q", dtype, (batch, 1, heads * size))], shape=(batch, 1, heads, size))
    place = b.input("place", int64, (rows,))
    caches = [b.input(name, dtype, (batch, key_heads, keys, size)) for name in ("k", "v")]
    added = []
    for name, cache in zip(("k", "v"), caches, strict=True):
        update = b.input(f"{name}_added", dtype, (batch, key_heads, rows, size))
        new = b.op("scatter_update", [cache, place, b.op("add", [update, update])], axis=2)
        if twice:
            new = b.op("scatter_update", [new, b.input(f"{name}_place", int64, (1,)), update], axis=2)
        b.mutate(cache, new)
        added.append(new)
    y = b.op("attention", [b.op("permute", [q], order=(0, 2, 1, 3)), *added], scale=size**-0.5, causal=False)
    b.output(b.op("reshape", [b.op("permute", [y], order=(0, 2, 1, 3))], shape=(batch, 1, heads * size)), "y")
    return b.finish()


def appended(graph: Graph, batch: int, place: Sequence[int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Inputs in which the written rows matter: their keys are those of the queries, more or less."""
    inputs = {}
    for value in graph.inputs:
        shape = tuple(evaluate(extent, {"batch": batch}) for extent in value.shape)
        if value.dtype == int64:
            inputs[value.name] = np.asarray(place[: shape[0]])
        else:
            scale = 2.0 if value.name.endswith("added") else 1.0
            inputs[value.name] = (scale * rng.standard_normal(shape)).astype(value.dtype.numpy)
    return inputs


@pytest.mark.parametrize(
    ("graph", "ahead"),
    [
        (appending(4, 1, 300, 64), True), (appending(2, 2, 200, 128, float16), True),
        (appending(4, 1, 200, 64, rows=2), False), (appending(4, 1, 200, 64, twice=True), False),
    ],
    ids=["one row", "fp16", "two rows", "twice"],
)  # fmt: skip
def test_a_cache_is_read_before_its_last_row(
    graph: Graph, ahead: bool, driver: Driver, rng: np.random.Generator
) -> None:
    """Where one row of a cache is written in place, the rest of it is there before; else nothing is read early."""
    engine = build(graph, "cuda:sm_90a")
    step = engine.plan.steps[-1]
    assert step.evidence["chosen"] == "hopper decoding in clusters"
    assert ("loaded ahead" in step.evidence["candidates"][0]["label"]) == ahead
    keys = int(graph.inputs[2].shape[2])
    for batch, place in ((1, keys - 1), (3, 0), (2, 64), (1, 63)):
        inputs = appended(graph, batch, [place, (place + 70) % keys], rng)
        exact = run(graph, inputs)["y"]
        found = engine.run({name: array.copy() for name, array in inputs.items()})["y"].astype(np.float64)
        assert np.max(np.abs(found - exact)) <= 2.0**-6 * np.max(np.abs(exact))
