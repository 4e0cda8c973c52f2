"""Graphs that look like products whose columns are heads, and differ in a detail: none loses its meaning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.projections import projection_inputs
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import bfloat16, float32, int32, int64
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import run as run_graph
from tilewright.library.matmul import projection
from tilewright.library.matmul.hopper.projection_config import ProjectionHeads
from tilewright.symbolic import Size
from tilewright.targets.registry import get_target, graph_passes

HOPPER = "cuda:sm_90a"
HEADS, DEPTH, ENTRIES = ProjectionHeads(2, 1, 32, 32), 64, 120
HALF = HEADS.TURNED // 2
ONE_KERNEL = ("plain", "angles reshaped", "angles gathered", "slots reshaped", "slots gathered", "query turned to rows")
TWO_KERNELS = (
    "one head repeated", "one column repeated", "first rows", "angles cast", "angles computed", "slots cast",
    "slots added", "product stored", "other angles", "halves swapped", "sine negated", "value turned", "key stored",
    "query scaled", "query permuted", "fewer queries", "slots apart", "not distinct", "angles of the product",
)  # fmt: skip


class Details:
    """A graph like `tests.projections.projection_graph`, whose product is one, with a detail changed."""

    def __init__(self, detail: str, rows: Size | None) -> None:
        self.b, self.detail, rng = GraphBuilder("details"), detail, np.random.default_rng(0)
        self.rows: Size = self.b.symbol("rows", 1, 100) if rows is None else rows
        columns = HEADS.columns + (HALF if detail == "angles of the product" else 0)
        weights = rng.standard_normal((columns, DEPTH)).astype(np.float32).astype(bfloat16.numpy)
        x = self.b.input("x", bfloat16, (self.rows, DEPTH))
        self.product = self.b.op("matmul", [x, self.b.constant(weights)], transpose_b=True)
        self.slots = self.places()
        self.cosine, self.sine = self.angles("cosine"), self.angles("sine")

    def places(self) -> Value:
        b, detail = self.b, self.detail
        shape = (self.rows, 1) if detail == "slots reshaped" else (self.rows,)
        slots = b.input("slots", int64 if detail == "slots cast" else int32, shape)
        if detail == "slots reshaped":
            return b.op("reshape", [slots], shape=(self.rows,))
        if detail == "slots gathered":
            return b.op("gather", [b.input("table", int32, (ENTRIES,)), slots], axis=0)
        if detail == "slots added":
            return b.op("add", [slots, b.constant(np.array(-1, np.int32))])
        return b.op("cast", [slots], dtype=int32) if detail == "slots cast" else slots

    def angles(self, name: str) -> Value:
        b, detail, shape = self.b, self.detail, (self.rows, 1, HALF)
        if detail == "angles of the product" and name == "sine":
            return b.op("reshape", [self.part(HEADS.columns, HALF)], shape=shape)
        if detail == "angles gathered":
            places = [b.input(f"{name}s", bfloat16, (ENTRIES, HALF)), self.slots]
            return b.op("reshape", [b.op("gather", places, axis=0)], shape=shape)
        flat = detail == "angles reshaped"
        kind = float32 if detail == "angles cast" else bfloat16
        value = b.input(name, kind, (self.rows, HALF) if flat else shape)
        if flat:
            return b.op("reshape", [value], shape=shape)
        if detail == "angles computed":
            return b.op("cos", [value])
        return b.op("cast", [value], dtype=bfloat16) if detail == "angles cast" else value

    def part(self, start: int, count: int) -> Value:
        return self.b.op("slice", [self.product], axis=1, start=start, stop=start + count)

    def heads(self, first: int, count: int) -> Value:
        found = self.part(first * HEADS.WIDTH, count * HEADS.WIDTH)
        return self.b.op("reshape", [found], shape=(self.rows, count, HEADS.WIDTH))

    def turned(self, x: Value, query: bool) -> Value:
        b, detail = self.b, self.detail
        low, high = (b.op("slice", [x], axis=2, start=start, stop=start + HALF) for start in (0, HALF))
        if query and detail == "one head repeated":
            low = b.op("slice", [low], axis=1, start=0, stop=1)
        if query and detail == "one column repeated":
            high = b.op("slice", [high], axis=2, start=0, stop=1)
        if detail == "halves swapped":
            low, high = high, low
        cosine, sine = (self.sine, self.cosine) if detail == "other angles" and query else (self.cosine, self.sine)
        signs = ("add", "subtract") if detail == "sine negated" else ("subtract", "add")
        first = b.op(signs[0], [b.op("multiply", [low, cosine]), b.op("multiply", [high, sine])])
        second = b.op(signs[1], [b.op("multiply", [high, cosine]), b.op("multiply", [low, sine])])
        return b.op("concat", [first, second], axis=2)

    def query(self) -> Value:
        b, detail = self.b, self.detail
        found = self.turned(self.heads(0, 1 if detail == "fewer queries" else HEADS.QUERIES), True)
        if detail == "query scaled":
            found = b.op("multiply", [found, b.constant(np.array(0.5, bfloat16.numpy))])
        if detail == "query turned to rows":
            found = b.op("reshape", [found], shape=(self.rows, HEADS.QUERIES * HEADS.WIDTH))
        if detail == "first rows":
            found = b.op("slice", [found], axis=0, start=0, stop=1)
        return b.op("permute", [found], order=(1, 0, 2)) if detail == "query permuted" else found

    def graph(self) -> Graph:
        b, detail = self.b, self.detail
        if detail == "product stored":
            b.output(self.product, "product")
        key = self.turned(self.heads(HEADS.QUERIES, HEADS.KEYS), False)
        value = self.heads(HEADS.turned_heads, HEADS.KEYS)
        value = self.turned(value, False) if detail == "value turned" else value
        if detail == "key stored":
            b.output(key, "key")
        for name, new in (("keys", key), ("values", value)):
            slots = self.slots
            if detail == "slots apart" and name == "values":
                slots = b.input("others", int32, (self.rows,))
            pool = b.input(name, bfloat16, (ENTRIES, HEADS.KEYS, HEADS.WIDTH))
            b.mutate(pool, b.op("scatter_update", [pool, slots, new], axis=0, distinct=detail != "not distinct"))
        b.output(self.query(), "queries")
        return b.finish()


def inputs_of(graph: Graph, rows: int) -> dict[str, Any]:
    """Of each input that `projection_inputs` has, in the input's own shape and type; others are drawn."""
    rng = np.random.default_rng(1)
    known = projection_inputs(HEADS, rows, DEPTH, bfloat16, rng, ENTRIES)
    known["others"] = rng.permutation(ENTRIES)[:rows].astype(np.int32)
    known["table"] = rng.permutation(ENTRIES).astype(np.int32)
    found = {}
    for value in graph.inputs:
        shape = [size if isinstance(size, int) else rows for size in value.shape]
        array = known.get(value.name)
        array = rng.uniform(-1, 1, shape) if array is None else array.astype(array.dtype)
        found[value.name] = np.asarray(array).astype(value.dtype.numpy).reshape(shape)
    return found


def check(graph: Graph, rows: int) -> None:
    """An engine's results are those of the graph, to the rounding of turned elements."""
    inputs = inputs_of(graph, rows)
    given = {name: array.copy() for name, array in inputs.items()}
    found = {**build(graph, HOPPER, tuning=Tuning(0)).run(given), "keys": given["keys"], "values": given["values"]}
    for name, expected in run_graph(graph, inputs).items():
        wanted, ours = expected.astype(np.float64), found[name].astype(np.float64)
        assert np.abs(ours - wanted).max() <= 2**-6 * np.abs(wanted).max(), name


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("rows", [4, None], ids=["known", "dynamic"])
@pytest.mark.parametrize("detail", [*ONE_KERNEL, *TWO_KERNELS])
def test_details(detail: str, rows: int | None, driver: Any) -> None:
    target, graph = get_target(HOPPER), Details(detail, rows).graph()
    kinds = {group.kind for group in fuse(optimize(graph, graph_passes([target])), target.kernels).groups}
    assert ("projection" in kinds) == (detail in ONE_KERNEL)
    check(graph, 4)


@pytest.mark.parametrize("rows", [1, 8, 9, 17, 64, 65, 100])
def test_each_range_of_rows(rows: int, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidate of both, taken for any number of rows."""
    together = projection._together

    def preferred(*arguments: Any) -> Any:
        found = together(*arguments)
        return replace(found, cost=replace(found.cost, seconds=found.cost.seconds / 10))

    monkeypatch.setattr(projection, "_together", preferred)
    check(Details("plain", None).graph(), rows)
