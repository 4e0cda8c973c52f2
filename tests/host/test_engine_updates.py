"""Scatters into an input that they replace: in its own memory, whatever else reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.dtypes import float32, int64
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Value
from tilewright.graph.reference import run

COUNT = 512
OPS: dict[str, tuple[str, dict[str, Any]]] = {
    "last": ("scatter_update", {}),
    "distinct": ("scatter_update", {"distinct": True}),
    "add": ("scatter_reduce", {"reduction": "add"}),
    "maximum": ("scatter_reduce", {"reduction": "maximum"}),
    "multiply": ("scatter_reduce", {"reduction": "multiply"}),
}


def computed(b: GraphBuilder, read: str, x: Value, places: Value) -> Value:
    """Updates that read the tensor in one of the ways."""
    given = b.input("given", float32, (COUNT,))
    if read == "itself":
        return x
    if read == "view":
        return b.op("reshape", [b.op("permute", [b.op("reshape", [x], shape=(8, 64))], order=(1, 0))], shape=(COUNT,))
    if read in ("elsewhere", "replaced"):
        others = b.input("others", int64, (COUNT,)) if read == "elsewhere" else places
        return b.op("add", [b.op("gather", [x, others], axis=0), given])
    return given


@pytest.mark.parametrize("read", ["nothing", "elsewhere", "itself", "view", "replaced", "late"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_updates_of_an_input(target, op, read, driver, rng):
    """The updates may be computed from the input that they change, and others read the old one later."""
    b = GraphBuilder("updates")
    x, twin = b.input("x", float32, (COUNT,)), b.input("twin", float32, (COUNT,))
    places = b.input("places", int64, (COUNT,))
    name, attributes = OPS[op]
    updated = b.op(name, [x, places, computed(b, read, x, places)], axis=0, **attributes)
    b.mutate(twin, updated)
    b.mutate(x, updated)
    b.output(b.op("subtract", [updated, x if read == "late" else 1.0]), "y")
    graph = b.finish()
    inputs = {
        value.name: rng.permutation(COUNT) if value.dtype == int64 else rng.integers(-9, 9, COUNT).astype(np.float32)
        for value in graph.inputs
    }
    wanted, found = run(graph, inputs), {name: array.copy() for name, array in inputs.items()}
    found |= build(graph, target).run(found)
    for name in ("x", "twin", "y"):
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


@pytest.mark.parametrize(("read", "launches"), [("others", 2), ("places", 1)])
def test_no_program_reads_what_another_replaces(read, launches, driver):
    """Updates are computed in a kernel of their own where they read other elements than they replace."""
    b = GraphBuilder("race")
    x = b.input("x", float32, (COUNT,))
    indices = {name: b.input(name, int64, (COUNT,)) for name in ("places", "others")}
    updates = b.op("add", [b.op("gather", [x, indices[read]], axis=0), 1.0])
    b.mutate(x, b.op("scatter_update", [x, indices["places"], updates], axis=0, distinct=True))
    assert len(build(b.finish(), "cuda:sm_90a").plan.steps) == launches
