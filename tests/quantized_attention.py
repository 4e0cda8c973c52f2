"""Attention whose results are stored quantized, in each kernel, before and behind the movement that follows: graphs in
parts, and how far an engine of them may be off."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tilewright.dtypes import DType, bfloat16, float8e4nv, float16, float32, int8, uint8
from tilewright.engine.engine import Engine
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.reference import run

FACTOR = 60.0  # of what is rounded


class Case(NamedTuple):
    queries: int
    keys: int
    size: int
    stored: DType
    dtype: DType = float16
    heads: int = 4
    key_heads: int = 2
    mask: str = ""
    causal: bool = False
    first: bool = False  # quantized before heads are put side by side
    smooth: bool = False  # divided by a factor for each column first
    read: bool = False  # in floats, too

    def __str__(self) -> str:
        return "-".join(str(part) for part in self)


CASES = {
    "tiles": Case(130, 130, 64, float8e4nv),
    "tiles, factors of columns": Case(70, 140, 32, int8, bfloat16, smooth=True),
    "tiles, causal, before the permute": Case(130, 130, 48, uint8, causal=True, first=True),
    "tiles, a bias": Case(66, 129, 128, float8e4nv, mask="full", smooth=True),
    "wide heads over queries": Case(130, 200, 256, int8, key_heads=4),
    "a block": Case(40, 60, 32, int8, smooth=True),
    "a block, before the permute": Case(40, 60, 32, float8e4nv, mask="full", first=True),
    "one query, a cluster": Case(1, 300, 64, int8, mask="keys", smooth=True),
    "one query, two launches": Case(1, 700, 48, float8e4nv, smooth=True),
    "plain": Case(70, 90, 40, int8, float32, smooth=True),
    "read in floats, too": Case(70, 90, 64, int8, read=True),
}


def quantizing(case: Case) -> Graph:
    """Attention of [batch, length, heads, size], and its results side by side in 8 bits."""
    b = GraphBuilder("quantizing")
    batch = b.symbol("batch", 1, 3)
    shapes = {"q": (case.queries, case.heads), "k": (case.keys, case.key_heads), "v": (case.keys, case.key_heads)}
    inputs: list[Value] = []
    for name, (length, heads) in shapes.items():
        given = b.input(name, case.dtype, (batch, length, heads, case.size))
        inputs.append(b.op("permute", [given], order=(0, 2, 1, 3)))
    if case.mask:
        shape = (batch, 1, 1 if case.mask == "keys" else case.queries, case.keys)
        inputs.append(b.input("mask", case.dtype, shape))
    y = b.op("attention", inputs, scale=case.size**-0.5, causal=case.causal)
    if case.read:
        b.output(y, "floats")
    y = b.op("cast", [y], dtype=float32)
    columns = case.heads * case.size

    def narrow(y: Value) -> Value:
        if case.smooth:
            factors = np.linspace(0.5, 2.0, y.shape[-1], dtype=np.float32)
            y = b.op("divide", [y, b.constant(factors)])
        y = b.op("multiply", [y, b.constant(np.float32(FACTOR))])
        if case.stored.is_float:
            return b.op("cast", [b.op("clip", [y], low=-448.0, high=448.0)], dtype=case.stored)
        if case.stored == uint8:
            y = b.op("add", [y, b.constant(np.float32(128.0))])
        low, high = (0.0, 255.0) if case.stored == uint8 else (-128.0, 127.0)
        return b.op("cast", [b.op("clip", [b.op("round", [y])], low=low, high=high)], dtype=case.stored)

    y = narrow(y) if case.first else y
    y = b.op("reshape", [b.op("permute", [y], order=(0, 2, 1, 3))], shape=(batch, case.queries, columns))
    b.output(y if case.first else narrow(y), "y")
    return b.finish()


def check(case: Case, graph: Graph, engine: Engine, rng: np.random.Generator) -> None:
    """One step off where the attention before it is rounded otherwise, and seldom."""
    groups = {step.name.partition(".")[0] for step in engine.plan.steps}
    assert (len(groups) == 1) != case.read, groups
    given = {
        value.name: rng.standard_normal([extent if isinstance(extent, int) else 2 for extent in value.shape])
        .astype(value.dtype.numpy)
        for value in graph.inputs
    }  # fmt: skip
    found, exact = (np.asarray(each["y"]).astype(np.float64) for each in (engine.run(given), run(graph, given)))
    assert len(np.unique(exact)) > 20
    unit = {bfloat16: 2.0**-8, float16: 2.0**-11, float32: 2.0**-20}[case.dtype]
    step = np.maximum(2.0**-3 * np.abs(exact), 2.0**-9) if case.stored.is_float else 1.0
    assert np.all(np.abs(found - exact) <= step + FACTOR / 0.5 * 16 * unit)
    centred = exact - (128 if case.stored == uint8 else 0)
    assert np.linalg.norm(found - exact) < (0.02 + 8 * unit) * np.linalg.norm(centred)
