"""Single groups end to end: graph -> fusion -> tactics -> kernels -> numbers, against the float64 reference.

Every case runs in the interpreter, the definition of meaning, and as machine code of this machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tests.host.tactics_support import Draw, check
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.reference import run
from tilewright.library.attention import simt

Case = tuple[Graph, dict[str, np.ndarray]]


def attention_case(
    draw: Draw, queries: int, keys: int, causal: bool = False, bias: str = "none", packed: bool = False, group: int = 1,
    itself: bool = False,
) -> Case:  # fmt: skip
    """Attention of 4 heads of width 8.

    `packed`: q and a joint k/v as projections give them, read through views; `itself`: as many keys as queries.
    """
    heads, width = 4, 8
    shared = heads // group
    b = GraphBuilder("attention")
    n, s = b.symbol("n", 1, 4), b.symbol("s", 1, 512)
    t = s if itself else b.symbol("t", 1, 512)
    inputs: dict[str, np.ndarray] = {}
    if packed:
        q = b.op("reshape", [b.input("q", float32, (n, s, heads * width))], shape=(n, s, heads, width))
        both = b.input("kv", float32, (n, t, 2 * shared * width))
        parts = [b.op("slice", [both], axis=2, start=i * shared * width, stop=(i + 1) * shared * width) for i in (0, 1)]
        k, v = (b.op("reshape", [part], shape=(n, t, shared, width)) for part in parts)
        q, k, v = (b.op("permute", [x], order=(0, 2, 1, 3)) for x in (q, k, v))
        inputs |= {"q": draw(2, queries, heads * width), "kv": draw(2, keys, 2 * shared * width)}
    else:
        q = b.input("q", float32, (n, heads, s, width))
        k, v = (b.input(name, float32, (n, shared, t, width)) for name in "kv")
        inputs |= {
            "q": draw(2, heads, queries, width),
            "k": draw(2, shared, keys, width),
            "v": draw(2, shared, keys, width),
        }
    added = None
    if bias != "none":
        shape = (2, 1, 1 if bias == "keys" else queries, keys)
        added = b.input("bias", float32, (n, 1, 1 if bias == "keys" else s, t))
        inputs["bias"] = np.where(draw.rng.random(shape) < 0.3, -np.inf, draw(*shape)).astype(np.float32)
        inputs["bias"][..., 0] = 0
        if bias == "least":  # hides all keys of some rows: these are means of all values
            hidden = np.where(draw.rng.random(shape) < 0.3, np.finfo(np.float32).min, 0)
            hidden[:, :, ::2] = np.finfo(np.float32).min
            inputs["bias"] = hidden.astype(np.float32)
    out = b.op("attention", [q, k, v, added], scale=0.3, causal=causal)
    if packed:
        out = b.op("reshape", [b.op("permute", [out], order=(0, 2, 1, 3))], shape=(n, s, heads * width))
    b.output(out, "out")
    return b.finish(), inputs


CASES: dict[str, dict[str, Any]] = {
    "plain": {"queries": 70, "keys": 70},
    "keys in several blocks": {"queries": 6, "keys": 300},
    "causal": {"queries": 20, "keys": 150, "causal": True},
    "causal with fewer keys": {"queries": 12, "keys": 5, "causal": True},
    "masked keys": {"queries": 9, "keys": 20, "bias": "keys"},
    "full bias": {"queries": 9, "keys": 140, "bias": "full"},
    "the least number as bias": {"queries": 9, "keys": 40, "bias": "least"},
    "one query and the least number": {"queries": 1, "keys": 40, "bias": "least"},
    "views and shared heads": {"queries": 20, "keys": 20, "packed": True, "group": 2, "bias": "keys"},
    "short": {"queries": 13, "keys": 13, "itself": True, "bias": "keys"},
    "short and causal": {"queries": 17, "keys": 17, "itself": True, "causal": True, "packed": True},
    "exactly a short block": {"queries": 32, "keys": 32, "itself": True, "bias": "full"},
    "decode": {"queries": 1, "keys": 150, "causal": True, "group": 4},
    "decode through views": {"queries": 2, "keys": 33, "packed": True, "bias": "full"},
}


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, draw: Draw, compiled: bool) -> None:
    graph, inputs = attention_case(draw, **CASES[name])
    (chosen,) = check(graph, inputs, compiled)
    assert chosen.name == "online softmax"


def test_few_short_and_many_queries_have_kernels_of_their_own(draw: Draw) -> None:
    graph, inputs = attention_case(draw, 5, 5)
    (chosen,) = check(graph, inputs)
    (stage,) = chosen.stages
    assert [call.condition and call.condition[1] for call in stage.calls] == [4, 16, 32, None]
    assert [call.constants.get("BLOCK_S") for call in stage.calls] == [None, 16, 32, 64]


@pytest.mark.parametrize(("size", "blocks"), [(24, (64, 64)), (64, (64, 32)), (72, (64, 64)), (8, None)])
@pytest.mark.parametrize("causal", [False, True])
def test_float32_on_a_gpu_in_larger_blocks(
    size: int, blocks: tuple[int, int] | None, causal: bool, driver: Driver, monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    monkeypatch.setattr(simt, "_plain_seconds", lambda call, *given: 1 / call.constants["BLOCK_S"])
    b = GraphBuilder("attention")
    n, s = b.symbol("n", 1, 4), b.symbol("s", 1, 512)
    q, k, v = (b.input(name, float32, (n, heads, s, size)) for name, heads in (("q", 4), ("k", 2), ("v", 2)))
    b.output(b.op("attention", [q, k, v], scale=0.2, causal=causal), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(0))
    (step,) = engine.plan.steps
    assert step.evidence["reasons"].get("blocks") == (blocks and f"{blocks[0]} queries x {blocks[1]} keys")
    for batch, length in ((2, 70), (1, 1), (1, 129)):
        inputs = {
            name: rng.standard_normal((batch, heads, length, size), np.float32)
            for name, heads in (("q", 4), ("k", 2), ("v", 2))
        }
        np.testing.assert_allclose(engine.run(inputs)["y"], run(graph, inputs)["y"], rtol=2e-5, atol=2e-5)
