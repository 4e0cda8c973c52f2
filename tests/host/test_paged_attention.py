"""Attention over pages: the meaning of the op against plain attention, and the kernel against the meaning."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright.build.builder import build
from tilewright.dtypes import bfloat16, float8e4nv, float8e5, float16, float32, int8, int32
from tilewright.errors import InputError, ShapeError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.reference import run
from tilewright.library.attention.hopper.paged_config import PagedConfig
from tilewright.library.select import candidates
from tilewright.targets.nvidia.target import NvidiaTarget

# heads, key heads, width, value width, page, window, softcap
FORMS = [
    (14, 2, 64, 64, 16, 0, 0.0),
    (4, 4, 24, 16, 16, 0, 0.0),  # each head by itself
    (8, 4, 96, 96, 32, 7, 0.0),
    (6, 6, 16, 16, 8, 5, 20.0),
    (8, 2, 32, 32, 1, 0, 30.0),  # a page for each token
    (10, 2, 24, 40, 8, 20, 15.0),  # five heads of a key head, widths of their own
    (40, 2, 16, 16, 4, 33, 0.0),  # more heads of a key head than a small tile has rows
]
# New tokens and lengths of each sequence.
BATCHES = [
    ([1, 70, 1, 5, 0], [300, 90, 1, 64, 40]),
    ([37], [37]),  # a prompt from its first token on
    ([1] * 9, [1, 2, 15, 16, 17, 31, 32, 33, 90]),
    ([16, 17, 0, 3], [16, 33, 0, 4]),
]


def paged_graph(form, dtype=float32, pools=None, scaled=False):
    """The op alone, with everything dynamic that a batch decides."""
    heads, key_heads, width, value_width, page, window, softcap = form
    b = GraphBuilder("paged")
    tokens, sequences = b.symbol("tokens", 1, 4096), b.symbol("sequences", 1, 256)
    columns, slots = b.symbol("columns", 1, 4096), b.symbol("slots", 1, 1 << 20)
    inputs = [
        b.input("q", dtype, (tokens, heads, width)),
        b.input("keys", pools or dtype, (slots, key_heads, width)),
        b.input("values", pools or dtype, (slots, key_heads, value_width)),
        b.input("tables", int32, (sequences, columns)),
        b.input("starts", int32, (sequences + 1,)),
        b.input("lengths", int32, (sequences,)),
    ]
    if scaled:
        inputs += [b.input(name, float32, (slots, key_heads)) for name in ("key_scales", "value_scales")]
    b.output(b.op("paged_attention", inputs, scale=width**-0.5, page=page, window=window, softcap=softcap), "y")
    return b.finish()


def draw_inputs(rng, form, batch, contiguous=False):
    """Inputs by name: pages in a random order, NaN where no token is."""
    heads, key_heads, width, value_width, page, _, _ = form
    new, lengths = batch
    counts = [-(-length // page) for length in lengths]
    total = sum(counts) + 3
    order = np.arange(total) if contiguous else rng.permutation(total)
    tables = np.zeros((len(lengths), max(*counts, 1)), np.int32)
    keys = np.full((total * page, key_heads, width), np.nan, np.float32)
    values = np.full((total * page, key_heads, value_width), np.nan, np.float32)
    at = 0
    for number, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        tables[number, :count] = order[at : at + count]
        at += count
        slots = (tables[number, :count, None] * page + np.arange(page)).reshape(-1)[:length]
        keys[slots] = rng.standard_normal((length, key_heads, width))
        values[slots] = rng.standard_normal((length, key_heads, value_width))
    return {
        "q": rng.standard_normal((max(sum(new), 1), heads, width)).astype(np.float32),
        "keys": keys, "values": values, "tables": tables,
        "starts": np.concatenate([[0], np.cumsum(new)]).astype(np.int32), "lengths": np.array(lengths, np.int32),
    }  # fmt: skip


def plain(inputs, form):
    """The same by NumPy for one token and one head at a time, in float64."""
    heads, key_heads, width, value_width, page, window, softcap = form
    q, keys, values = (inputs[name].astype(np.float64) for name in ("q", "keys", "values"))
    result = np.zeros((q.shape[0], heads, value_width))
    for number, length in enumerate(inputs["lengths"]):
        first, end = inputs["starts"][number : number + 2]
        for token in range(first, end):
            position = length - (end - token)
            for head in range(heads):
                seen = range(max(0, position - window + 1) if window else 0, position + 1)
                slots = [inputs["tables"][number, at // page] * page + at % page for at in seen]
                scores = keys[slots, head // (heads // key_heads)] @ q[token, head] / width**0.5
                scores = softcap * np.tanh(scores / softcap) if softcap else scores
                weights = np.exp(scores - scores.max())
                result[token, head] = weights / weights.sum() @ values[slots, head // (heads // key_heads)]
    return result


def bound(inputs, epsilon=2.0**-24):
    """Rounding of products and of a softmax over the longest sequence, of numbers around 1."""
    return 64 * epsilon * (16 + inputs["q"].shape[2] + int(inputs["lengths"].max())) ** 0.5


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_meaning_and_kernel(form, rng):
    graph = paged_graph(form)
    engine = build(graph)
    for batch in BATCHES:
        inputs = draw_inputs(rng, form, batch)
        wanted = plain(inputs, form)
        np.testing.assert_allclose(run(graph, inputs)["y"], wanted, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(engine.run(inputs)["y"], wanted, rtol=0, atol=bound(inputs))


def narrowed(inputs, kind, scaled):
    """The inputs with keys and values of 8 bits, and with what these read as."""
    inputs, read = dict(inputs), dict(inputs)
    for name, scales in (("keys", "key_scales"), ("values", "value_scales")):
        pool = inputs[name]
        most = 127 if kind == int8 else float(ml_dtypes.finfo(kind.numpy).max)
        largest = np.abs(pool).max(-1)
        factor = (np.where(largest > 0, largest / most, 1) if scaled else np.ones_like(largest)).astype(np.float32)
        with np.errstate(invalid="ignore"):
            numbers = pool / factor[:, :, None]
            numbers = (np.rint(numbers) if kind == int8 else numbers).astype(kind.numpy)
        inputs[name] = numbers
        read[name] = numbers.astype(np.float32) * factor[:, :, None]
        if scaled:
            inputs[scales] = factor
    return inputs, read


@pytest.mark.parametrize(("kind", "scaled"), [(int8, True), (float8e4nv, True), (float8e4nv, False), (float8e5, False)])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_keys_and_values_of_8_bits(form, kind, scaled, rng):
    """Numbers, times the scale of their token and head; as exact as floats are, but for the rounding of the numbers."""
    graph = paged_graph(form, float32, kind, scaled)
    engine = build(graph)
    for batch in BATCHES:
        inputs, read = narrowed(draw_inputs(rng, form, batch), kind, scaled)
        wanted = plain(read, form)
        np.testing.assert_allclose(run(graph, inputs)["y"], wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(engine.run(inputs)["y"], wanted, rtol=0, atol=bound(inputs))


@pytest.mark.parametrize(
    ("kind", "scaled", "match"), [(int8, False, "those of integers have"), (int32, True, "or the last two of 8 bits")]
)
def test_pools_that_are_refused(kind, scaled, match):
    with pytest.raises(ShapeError, match=match):
        paged_graph(FORMS[0], float32, kind, scaled)


def test_bfloat16(rng):
    form = FORMS[0]
    engine = build(paged_graph(form, bfloat16))
    inputs = draw_inputs(rng, form, BATCHES[0])
    for name in ("q", "keys", "values"):
        inputs[name] = inputs[name].astype(ml_dtypes.bfloat16)
    np.testing.assert_allclose(
        engine.run(inputs)["y"].astype(np.float64), plain(inputs, form), rtol=0, atol=bound(inputs, 2.0**-9) / 8
    )


def test_scrambled_pages_change_no_bit(rng):
    form = FORMS[0]
    engine = build(paged_graph(form))
    inputs = draw_inputs(rng, form, ([90, 40], [90, 120]), contiguous=True)
    whole = engine.run(inputs)["y"]
    page, pages = form[4], inputs["keys"].shape[0] // form[4]
    order = rng.permutation(pages)
    scrambled = dict(inputs, tables=np.argsort(order)[inputs["tables"]].astype(np.int32))
    for name in ("keys", "values"):
        blocks = inputs[name].reshape(pages, page, *inputs[name].shape[1:])
        scrambled[name] = blocks[order].reshape(inputs[name].shape)
    np.testing.assert_array_equal(engine.run(scrambled)["y"], whole)


def test_pages_outside_of_the_pool_are_refused(rng):
    form = FORMS[0]
    graph = paged_graph(form)
    engine = build(graph)
    for number in (-1, 1 << 20):
        inputs = draw_inputs(rng, form, BATCHES[0])
        inputs["tables"][0, 0] = number
        with pytest.raises(InputError, match="tables"):
            engine.run(inputs)
        with pytest.raises(InputError, match="page number"):
            run(graph, inputs)


def test_wild_starts_and_lengths_stay_inside_of_the_tensors(rng):
    """What the plan does not check may give any result, and reads and writes nothing else."""
    form = FORMS[1]
    engine = build(paged_graph(form))
    for _ in range(20):
        inputs = draw_inputs(rng, form, BATCHES[0])
        for name in ("starts", "lengths"):
            inputs[name] = rng.integers(-(2**31), 2**31 - 1, inputs[name].shape, dtype=np.int32)
        out = np.zeros((inputs["q"].shape[0] + 2, form[0], form[3]), np.float32)
        engine.run(inputs, out={"y": out[1:-1]})
        assert not out[0].any() and not out[-1].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page": 0}, "page"),
        ({"window": -1}, "window"),
        ({"softcap": float("inf")}, "softcap"),
        ({"key_heads": 3}, "do not fit together"),
        ({"starts": 4}, "numbers of sequences"),
        ({"dtype": int32}, "floats of one type"),
    ],
)
def test_types_that_do_not_fit(change, message):
    b = GraphBuilder("wrong")
    key_heads, dtype = change.pop("key_heads", 2), change.pop("dtype", float32)
    starts = change.pop("starts", 5)
    inputs = [
        b.input("q", dtype, (6, 4, 8)),
        b.input("k", dtype, (32, key_heads, 8)),
        b.input("v", dtype, (32, key_heads, 8)),
        b.input("tables", int32, (4, 2)),
        b.input("starts", int32, (starts,)),
        b.input("lengths", int32, (4,)),
    ]
    with pytest.raises(ShapeError, match=message):
        b.op("paged_attention", inputs, **{"scale": 1.0, "page": 16, **change})


def test_engines_with_pages_are_saved(tmp_path, rng):
    form = FORMS[0]
    engine = build(paged_graph(form))
    engine.save(tmp_path / "paged.engine")
    inputs = draw_inputs(rng, form, BATCHES[1])
    again = tilewright.load(tmp_path / "paged.engine").run(inputs)["y"]
    np.testing.assert_array_equal(again, engine.run(inputs)["y"])


@pytest.mark.parametrize("form", FORMS[:4], ids=str)
def test_gpus(form, driver, rng):
    """Parts of keys, blocks of queries and both in one step, as a GPU computes them."""
    graph = paged_graph(form)
    engine = build(graph, "cuda:sm_90a")
    assert engine.plan.steps[0].evidence["chosen"] == "paged attention"
    for batch in (*BATCHES, ([2, 1], [600, 700])):
        inputs = draw_inputs(rng, form, batch)
        np.testing.assert_allclose(engine.run(inputs)["y"], plain(inputs, form), rtol=0, atol=bound(inputs))


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("form", [(2, 1, 128, 128, 16, 0, 0.0), (7, 1, 64, 64, 32, 7, 20.0)], ids=str)
def test_hopper(form, driver, rng):
    """Tensor copies of pages: few new tokens in clusters, and chunks of prompts; NaN after a sequence's last token."""
    engine = build(paged_graph(form, bfloat16), "cuda:sm_90a")
    assert engine.plan.steps[0].evidence["chosen"] == "hopper paged attention"
    inputs = draw_inputs(rng, form, ([1, 70, 1, 2, 0], [170, 90, 1, 64, 40]))
    for name in ("q", "keys", "values"):
        inputs[name] = inputs[name].astype(ml_dtypes.bfloat16)
    found = engine.run(inputs)["y"].astype(np.float64)
    np.testing.assert_allclose(found, plain(inputs, form), rtol=0, atol=bound(inputs, 2.0**-9) / 8)


@pytest.mark.parametrize(("target", "width"), [("cpu", 32), ("cuda:sm_90a", 32), ("cuda:sm_90a", 64)])
@pytest.mark.parametrize("size", [3e-7, 3e-6, 1.0, 1.5e4])
def test_values_of_any_size_in_float16_and_8_bits(target, width, size, driver, rng):
    """Scales of small values times weights are no zeros, nor those of large ones infinite."""
    form = (2, 1, width, width, 16, 0, 0.0)
    graph = paged_graph(form, float16, int8, scaled=True)
    engine = build(graph, target)
    inputs = draw_inputs(rng, form, ([1, 20, 1, 2], [170, 20, 1, 64]))
    inputs["q"], inputs["values"] = inputs["q"].astype(float16.numpy), inputs["values"] * np.float32(size)
    inputs, read = narrowed(inputs, int8, True)
    unit = max(2.0**-11 * 4 * size, 2.0**-22)
    np.testing.assert_allclose(engine.run(inputs)["y"].astype(np.float64), plain(read, form), rtol=0, atol=unit)


@pytest.mark.parametrize(
    ("pools", "ahead"),
    [("given", True), ("updated", True), ("copied", False), ("computed", False), ("written after", False)],
)
def test_keys_are_loaded_ahead_where_they_are_there(pools, ahead):
    """Where the pool is an input that at most the new tokens are written into, in place, before it is read."""
    b = GraphBuilder("paged")
    tokens, slots = b.symbol("tokens", 1, 64), b.symbol("slots", 1, 1 << 20)
    sequences, columns = b.symbol("sequences", 1, 8), b.symbol("columns", 1, 64)
    q = b.input("q", bfloat16, (tokens, 2, 64))
    new, places = b.input("new", bfloat16, (tokens, 1, 64)), b.input("places", int32, (tokens,))
    given = [b.input(name, bfloat16, (slots, 1, 64)) for name in ("keys", "values")]
    read = given
    if pools != "given":
        changed = [b.op("scatter_update", [pool, places, new], axis=0, distinct=True) for pool in given]
        for pool, value in zip(given, changed, strict=True):
            if pools in ("updated", "written after"):
                b.mutate(pool, value)
            else:
                b.output(value, f"{pool.name} after")
        read = given if pools == "written after" else changed
    if pools == "computed":
        read = [b.op("negate", [pool]) for pool in given]
    shapes = {"tables": (sequences, columns), "starts": (sequences + 1,), "lengths": (sequences,)}
    indices = [b.input(name, int32, shape) for name, shape in shapes.items()]
    b.output(b.op("paged_attention", [q, *read, *indices], scale=0.125, page=16, window=0, softcap=0.0), "y")
    graph = b.finish()
    (group,) = [group for group in fuse(graph).groups if group.anchor and group.anchor.op == "paged_attention"]
    first = candidates(group, graph, NvidiaTarget.named("sm_90a"))[0]
    configs = [call.constants["CONFIG"] for stage in first.stages for call in stage.calls]
    assert {config.AHEAD for config in configs if isinstance(config, PagedConfig)} == {ahead}


def test_lengths_below_the_new_tokens_stay_inside_of_the_tables(driver, rng):
    """A table's row has no pages for tokens that its length does not count: none after it are read."""
    form = (4, 2, 16, 16, 8, 0, 0.0)
    inputs = draw_inputs(rng, form, ([20, 1], [16, 16]))
    inputs["keys"][:], inputs["values"][:] = 0.0, 1.0
    inputs["values"].reshape(-1, 8, 2, 16)[inputs["tables"][1]] = 100.0
    for engine in (build(paged_graph(form)), build(paged_graph(form), "cuda:sm_90a")):
        assert engine.run(inputs)["y"][:20].max() <= 1.0
