"""Attention of few queries on Hopper in the interpreter: right at odd sizes in every config, and clean in any order."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as tl
from tests.host.hopper_support import ORDERS, attention_reference, traced_decoding
from tilewright.errors import LaunchError
from tilewright.ir.interpreter import run
from tilewright.ir.verifier import verify
from tilewright.library.attention.hopper.decoding_config import DecodingConfig
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
        out = np.full((batches, rows, heads, config.D), 7, kind)  # rows of all heads beside each other
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
