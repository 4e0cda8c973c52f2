"""Attention of few queries on Hopper in the interpreter: right at odd sizes in every config, and clean in any order."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tilewright.language as tl
from tests.host.hopper_support import ORDERS, attention_reference, traced_chunks, traced_decoding, traced_pages
from tests.host.test_paged_attention import draw_inputs, plain
from tilewright.errors import LaunchError
from tilewright.ir.asynchrony import operations
from tilewright.ir.interpreter import run
from tilewright.ir.verifier import verify
from tilewright.library.attention.hopper.config import AttentionConfig
from tilewright.library.attention.hopper.decoding_config import DecodingConfig
from tilewright.library.attention.hopper.paged_config import PagedConfig
from tilewright.passes.pipeline import simplify

CONFIG = DecodingConfig(D=64, BN=64, SPLITS=4)
FRESH = CONFIG._replace(AHEAD=True, FRESH=True)


def unwritten(rows: np.ndarray, config: DecodingConfig, fresh: int) -> np.ndarray:
    """Keys or values without one that is written late, if it is among those that are read early."""
    keys = rows.shape[2]
    length = -(-keys // (config.SPLITS * config.BN)) * config.BN  # of a part
    rows, place = rows.copy(), fresh + keys if fresh < 0 else fresh
    if 0 <= place < keys and place % length < config.STAGES * config.BN:
        rows[:, :, place] = np.nan
    return rows


def decode(
    config: DecodingConfig, sizes: tuple[int, ...], rng: np.random.Generator, orders: int = 2, fresh: int = 0,
    hidden: float = 0.3, growth: float = 0.0,
) -> None:  # fmt: skip
    """Against float64; what a bias of minus infinity hides is drawn. Key number `fresh` is not there yet when keys and
    values are read early."""
    batches, heads, rows, keys = sizes
    function = simplify(traced_decoding(config))
    verify(function)
    kind = config.TYPE.element.numpy
    q = rng.standard_normal((batches, heads, rows, config.D)).astype(kind)
    k, v = (rng.standard_normal((batches, heads, keys, config.D)).astype(kind) for _ in range(2))
    k = (k.astype(np.float32) * (1 + growth * np.linspace(0, 1, keys)[:, None])).astype(kind)
    bias = rng.standard_normal((batches, heads, 1, keys)).astype(kind)
    bias[rng.random(bias.shape) < hidden] = -np.inf
    ends = np.full((batches, 2), (rows, keys), np.int32)
    expected, _ = attention_reference(q, k, v, ends, False, 0, bias.astype(np.float64) if config.BIAS else 0.0)
    extra = [bias.reshape(-1), heads * keys, keys, np.sqrt(config.D)] if config.BIAS else []
    scale = np.log2(np.e) / np.sqrt(config.D)
    unit = 2.0**-8 if config.TYPE == tl.bfloat16 else 2.0**-11
    early = [unwritten(x, config, fresh) if config.FRESH else x for x in (k, v)]
    for order in range(orders):
        out = np.full((batches, rows, heads, config.D), 7, kind)  # rows of all heads, adjacent
        strides = [rows * heads * config.D, config.D, heads * config.D]
        arguments = [q, *early, k, v, np.array([fresh]), out.reshape(-1), *strides, rows, keys, heads, scale, *extra]
        run(function, arguments, (batches * heads * config.SPLITS,), order=order)
        found = out.astype(np.float64).swapaxes(1, 2)
        assert np.abs(found - expected).max() <= 2 * unit * np.abs(v.astype(np.float64)).max()


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (CONFIG, (2, 3, 4, 200)),
        (CONFIG, (1, 2, 1, 40)),
        (CONFIG._replace(BIAS=True, TYPE=tl.float16), (2, 1, 8, 130)),
        (CONFIG._replace(SPLITS=8), (1, 1, 8, 1)),
        (CONFIG._replace(SPLITS=8, BIAS=True), (1, 2, 3, 1400)),
        (CONFIG._replace(SPLITS=2, BN=128, STAGES=1, ROWS=16), (1, 1, 12, 600)),
        (CONFIG._replace(SPLITS=1, STAGES=3, BIAS=True), (3, 1, 4, 250)),
        (CONFIG._replace(ROWS=64, D=128), (1, 1, 40, 300)),
        (CONFIG._replace(D=256, SPLITS=8), (1, 1, 4, 300)),
        (CONFIG._replace(AHEAD=True, SPLITS=2), (1, 1, 4, 300)),
        (CONFIG._replace(D=128, BN=256, STAGES=1, BIAS=True), (1, 1, 4, 900)),
        (CONFIG._replace(AHEAD=True, BN=256, STAGES=1, SPLITS=2), (1, 1, 4, 900)),
    ],
    ids=str,
)
def test_attention_of_few_queries(config: DecodingConfig, sizes: tuple[int, ...], rng: np.random.Generator) -> None:
    decode(config, sizes, rng)


@pytest.mark.parametrize("fresh", [-351, -350, -100, -1, 0, 63, 64, 200, 333, 349, 350])
def test_one_key_is_read_late(fresh: int, rng: np.random.Generator) -> None:
    """In blocks that are read early and in others, at the ends of both; negative numbers count from the end."""
    decode(FRESH._replace(SPLITS=2, BIAS=fresh % 2 > 0), (1, 1, 4, 350), rng, fresh=fresh)


CLEAN = [CONFIG._replace(BIAS=True), FRESH, FRESH._replace(D=128, BN=128)]


@pytest.mark.parametrize("config", CLEAN, ids=str)
def test_it_is_clean_in_any_order(config: DecodingConfig, rng: np.random.Generator) -> None:
    decode(config, (1, 1, 4, 400), rng, orders=ORDERS, fresh=70)


@pytest.mark.parametrize(
    ("config", "new", "lengths"),
    [
        (PagedConfig(D=64, GROUP=2, SPLITS=4, EARLY=True), (1, 3, 9), (200, 17, 9)),
        (PagedConfig(D=64, GROUP=2, SPLITS=2, EARLY=True, AHEAD=True), (1, 3, 9), (330, 70, 9)),
        (PagedConfig(D=64, GROUP=5, PAGE=8, WINDOW=40, SOFTCAP=9.0), (2, 0, 1), (130, 0, 64)),
        (PagedConfig(D=64, GROUP=4, TILES=3, WEIGHTS=1), (1, 2, 4), (290, 64, 130)),
        (AttentionConfig(D=64, BN=96, CONSUMERS=3, CAUSAL=True, FLAT=False, PAGE=16), (3, 70, 5), (3, 170, 5)),
    ],
    ids=str,
)  # fmt: skip
def test_pages_in_any_order(
    config: Any, new: tuple[int, ...], lengths: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Sequences of the other kind are left alone; NaN after a sequence's last token."""
    is_few = isinstance(config, PagedConfig)
    few, group = (config.ROWS // config.GROUP, config.GROUP) if is_few else (4, 2)
    window, softcap = (config.WINDOW, config.SOFTCAP) if is_few else (0, 0.0)
    problem = (group, 1, config.D, config.D, config.PAGE, window, softcap)
    given = draw_inputs(rng, problem, (new, lengths))
    wanted, kind = plain(given, problem), config.TYPE.element.numpy
    q, keys, values = (given[name].astype(kind) for name in ("q", "keys", "values"))
    function = simplify(traced_pages(config) if is_few else traced_chunks(config, few))
    verify(function)
    numbers = len(q) // config.BM + min(len(new), len(q) // (few + 1)) if not is_few else 0
    scale, indices = np.log2(np.e) / np.sqrt(config.D), [given["tables"].reshape(-1), given["starts"], given["lengths"]]
    sizes = [len(q), len(keys), given["tables"].shape[1]]
    for order in range(ORDERS if is_few else 4):
        out = np.full((len(q), group, config.D), 7, kind)
        pools = [pool.swapaxes(0, 1) for pool in (keys, values)]
        if is_few:
            arguments = [q.reshape(-1), *pools, *indices, out.reshape(-1), *sizes, group, 1, scale]
            run(function, arguments, (len(new) * config.SPLITS,), order=order)
        else:
            maps = [array.swapaxes(0, 1)[None] for array in (q, keys, values, out)]
            arguments = [*maps, out.reshape(-1), *indices, *sizes, len(new), numbers, group, group, scale]
            run(function, arguments, (2,), order=order)
        for first, end in itertools.pairwise(given["starts"]):
            mine = (0 < end - first <= few) == is_few
            expected = wanted[first:end] if mine else 7.0
            assert np.abs(out[first:end].astype(np.float64) - expected).max(initial=0) <= 2.0**-5


@pytest.mark.parametrize("splits", [1, 4])
def test_new_tokens_are_read_late(splits: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels in front have written them when they have been waited for; the others are loaded before."""
    config = PagedConfig(D=64, GROUP=2, SPLITS=splits, EARLY=True, AHEAD=True)
    problem, new, lengths = (2, 1, 64, 64, config.PAGE, 0, 0.0), (1, 5, 2, 1, 3), (200, 66, 129, 64, 3)
    given = draw_inputs(rng, problem, (new, lengths))
    wanted, kind = plain(given, problem), config.TYPE.element.numpy
    q, keys, values = (given[name].astype(kind) for name in ("q", "keys", "values"))
    pools = [np.ascontiguousarray(pool.swapaxes(0, 1)) for pool in (keys, values)]
    whole = [pool.copy() for pool in pools]
    late = [
        given["tables"][number, place // config.PAGE] * config.PAGE + place % config.PAGE
        for number, (count, length) in enumerate(zip(new, lengths, strict=True))
        for place in range(length - count, length)
    ]

    def wait(agent: Any, operation: Any, operands: list[Any]) -> list[Any]:
        for pool, full in zip(pools, whole, strict=True):
            pool[:, late] = full[:, late]
        return []

    monkeypatch.setitem(operations.HANDLERS, "grid_wait", wait)
    function, scale = simplify(traced_pages(config)), np.log2(np.e) / 8
    verify(function)
    for order in range(ORDERS):
        for pool in pools:
            pool[:, late] = np.nan
        out = np.full((len(q), 2, 64), 7, kind)
        indices = [given["tables"].reshape(-1), given["starts"], given["lengths"]]
        sizes = [len(q), len(keys), given["tables"].shape[1], 2, 1]
        run(
            function,
            [q.reshape(-1), *pools, *indices, out.reshape(-1), *sizes, scale],
            (len(new) * splits,),
            order=order,
        )
        assert np.abs(out.astype(np.float64) - wanted).max() <= 2.0**-5


def test_growing_maxima_and_hidden_keys(rng: np.random.Generator) -> None:
    decode(CONFIG._replace(SPLITS=2), (1, 1, 4, 600), rng, growth=20.0)
    decode(CONFIG._replace(BIAS=True), (2, 2, 4, 200), rng, hidden=0.99)
    decode(CONFIG._replace(BIAS=True), (1, 1, 4, 100), rng, hidden=2.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"D": 96}, "D is 64"), ({"BN": 32}, "BN is 64"), ({"SPLITS": 3}, "make a cluster"),
        ({"FRESH": True}, "written late"), ({"STAGES": 20}, "shared memory"), ({"ROWS": 12}, "queries are counted"),
        ({"TYPE": tl.float32}, "16 bits"), ({"D": 256, "BN": 256, "ROWS": 64}, "fit the registers"),
    ],
)  # fmt: skip
def test_configs_that_cannot_be(change: dict, reason: str) -> None:
    with pytest.raises(LaunchError, match=reason):
        CONFIG._replace(**change).check()
