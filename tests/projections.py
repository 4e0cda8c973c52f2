"""Graphs of products whose columns are heads, turned by angles of their tokens, and stored in pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.dtypes import DType, int32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.library.matmul.hopper.projection_config import ProjectionHeads
from tilewright.symbolic import Size

Change = Callable[[GraphBuilder, Value], Value]  # of queries, before they are turned


def _turned(b: GraphBuilder, x: Value, cosine: Value, sine: Value, turned: int) -> Value:
    half, width = turned // 2, x.shape[2]
    low, high = (b.op("slice", [x], axis=2, start=start, stop=start + half) for start in (0, half))
    first = b.op("subtract", [b.op("multiply", [low, cosine]), b.op("multiply", [high, sine])])
    second = b.op("add", [b.op("multiply", [high, cosine]), b.op("multiply", [low, sine])])
    rest = [b.op("slice", [x], axis=2, start=turned, stop=width)] if turned < width else []
    return b.op("concat", [first, second, *rest], axis=2)


def projection_graph(
    heads: ProjectionHeads, rows: Size | None, depth: int, dtype: DType, bias: bool, rng: np.random.Generator,
    change: Change | None = None,
) -> Graph:  # fmt: skip
    """Queries of `rows` (None: 1 to 512, known when it runs), whose keys and values go to two pools."""
    b = GraphBuilder("projection")
    count: Size = b.symbol("rows", 1, 512) if rows is None else rows
    x, slots = b.input("x", dtype, (count, depth)), b.input("slots", int32, (count,))
    entries = b.symbol("entries", 1, 1 << 20)
    angles: list[Value] = []
    if heads.TURNED:
        angles = [b.input(name, dtype, (count, 1, heads.TURNED // 2)) for name in ("cosine", "sine")]

    def constant(*shape: int) -> Value:
        return b.constant(rng.standard_normal(shape).astype(dtype.numpy))

    def project(number: int) -> Value:
        product = b.op("matmul", [x, constant(number * heads.WIDTH, depth)], transpose_b=True)
        product = b.op("add", [product, constant(number * heads.WIDTH)]) if bias else product
        return b.op("reshape", [product], shape=(count, number, heads.WIDTH))

    query, key, value = (project(number) for number in (heads.QUERIES, heads.KEYS, heads.KEYS))
    query = query if change is None else change(b, query)
    if heads.TURNED:
        query, key = (_turned(b, item, angles[0], angles[1], heads.TURNED) for item in (query, key))
    for name, new in (("keys", key), ("values", value)):
        pool = b.input(name, dtype, (entries, heads.KEYS, heads.WIDTH))
        b.mutate(pool, b.op("scatter_update", [pool, slots, new], axis=0, distinct=True))
    b.output(query, "queries")
    return b.finish()


def projection_inputs(
    heads: ProjectionHeads, rows: int, depth: int, dtype: DType, rng: np.random.Generator, entries: int = 80
) -> dict[str, Any]:
    """Inputs of such a graph by name; each row has a slot of its own."""
    pool = (entries, heads.KEYS, heads.WIDTH)
    angles = rng.uniform(0, 7, (rows, 1, heads.TURNED // 2))
    found = {
        "x": rng.standard_normal((rows, depth)), "keys": np.full(pool, 3.0), "values": np.full(pool, 5.0),
        **({"cosine": np.cos(angles), "sine": np.sin(angles)} if heads.TURNED else {}),
    }  # fmt: skip
    kinds = {name: array.astype(np.float32).astype(dtype.numpy) for name, array in found.items()}
    return {**kinds, "slots": rng.permutation(entries)[:rows].astype(np.int32)}
