"""Windows, numbers of keys and soft caps of attention: found as models write them, and computed by every kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, float16, float32, float64, int1, int64, uint32
from tilewright.engine.engine import Engine
from tilewright.graph import reference
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.pipeline import optimize
from tilewright.symbolic import Size


class Model:
    """softmax(mask(cap(scale q k^T))) v in its parts."""

    def __init__(
        self, dtype: DType, queries: Size, keys: Size, heads: int = 2, batch: int = 2, width: int = 16
    ) -> None:
        self.b, self.dtype, self.batch = GraphBuilder("model"), dtype, batch
        if queries == "length":
            queries = keys = self.b.symbol("length", 2, 200)
        self.queries, self.keys = queries, keys
        self.operands = [
            self.b.input(name, dtype, (batch, heads, rows, width))
            for name, rows in (("q", queries), ("k", keys), ("v", keys))
        ]

    def op(self, name: str, *inputs: Value, **attributes: Any) -> Value:
        return self.b.op(name, list(inputs), **attributes)

    def number(self, value: float, dtype: DType | None = None) -> Value:
        dtype = dtype or self.dtype
        return self.b.constant(np.asarray(value, dtype.numpy))

    def line(self, extent: Size, axis: int, start: Size = 0) -> Value:
        counted = self.op("iota", shape=(extent,), start=start, step=1, dtype=int64)
        return self.op("reshape", counted, shape=(extent, 1) if axis == 0 else (1, extent))

    def positions(self) -> tuple[Value, Value]:
        """Of queries and keys, aligned at their ends."""
        offset = self.keys - self.queries if isinstance(self.keys, int) and isinstance(self.queries, int) else 0
        return self.line(self.queries, 0, offset), self.line(self.keys, 1)

    def finish(self, condition: Value | None, cap: float = 0.0, low: float = -np.inf, scale: float = 0.25) -> Graph:
        q, k, v = self.operands
        scores = self.op("matmul", q, k, transpose_b=True)
        scores = self.op("multiply", scores, self.number(scale))
        if cap:
            scores = self.op("tanh", self.op("divide", scores, self.number(cap)))
            scores = self.op("multiply", scores, self.number(cap))
        if condition is not None:
            scores = self.op("where", condition, scores, self.number(low))
        weights = self.op("softmax", scores, axis=3)
        if condition is not None and low == -np.inf:
            weights = self.op("where", self.op("isnan", weights), self.number(0), weights)
        self.b.output(self.op("matmul", weights, v), "y")
        return self.b.finish()


def found(graph: Graph) -> Node:
    (node,) = [node for node in optimize(graph).nodes if node.op == "attention"]
    return node


def windowed(model: Model, window: int) -> Value:
    row, column = model.positions()
    causal = model.op("less_equal", column, row)
    near = model.op("greater", column, model.op("subtract", row, model.number(window, int64)))
    return model.op("logical_and", near, causal)


def counted(model: Model, dtype: DType = int64) -> Value:
    ends = model.b.input("ends", dtype, (model.batch,))
    line = model.op("cast", model.line(model.keys, 1), dtype=dtype)
    below = model.op("less", line, model.op("reshape", ends, shape=(model.batch, 1)))
    return model.op("reshape", below, shape=(model.batch, 1, 1, model.keys))


def drawn(graph: Graph, length: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    inputs = {}
    for value in graph.inputs:
        shape = tuple(size if isinstance(size, int) else length for size in value.shape)
        if value.dtype.is_float:
            inputs[value.name] = (3 * rng.standard_normal(shape)).astype(value.dtype.numpy)
        else:
            inputs[value.name] = rng.integers(0, length + 1, shape).astype(value.dtype.numpy)
    return inputs


def agree(engine: Engine, graph: Graph, length: int, rng: np.random.Generator, exact: Graph | None = None) -> None:
    """`exact` is the graph in float64."""
    inputs = drawn(graph, length, rng)
    wide = {name: data if data.dtype.kind == "i" else data.astype(np.float64) for name, data in inputs.items()}
    expected = reference.run(exact, wide) if exact is not None else reference.run(graph, inputs)
    tolerance = 2e-5 if exact is None else 1e-2
    np.testing.assert_allclose(engine.run(inputs)["y"].astype(np.float64), expected["y"], tolerance, tolerance)


CASES = [  # queries, keys, window, whether keys are counted, cap
    ("length", "length", 5, False, 0.0),
    ("length", "length", 0, True, 0.0),
    (40, 40, 7, True, 3.0),
    (3, 90, 33, False, 0.0),
    (1, 70, 16, False, 2.0),
    (130, 130, 64, False, 0.0),
    (20, 50, 0, False, 1.5),
    (17, 17, 1, False, 0.0),
]


def case(dtype: DType, queries: Any, keys: Any, window: int, counts: bool, cap: float, **sizes: int) -> Graph:
    model = Model(dtype, queries, keys, **sizes)
    parts = ([windowed(model, window)] if window else []) + ([counted(model)] if counts else [])
    condition = parts[0] if parts else None
    if len(parts) > 1:
        condition = model.op("logical_and", parts[0], parts[1])
    return model.finish(condition, cap)


@pytest.mark.parametrize("given", CASES, ids=str)
def test_limits_are_found_and_computed(given: tuple[Any, ...], rng: np.random.Generator) -> None:
    graph = case(float32, *given)
    node = found(graph)
    assert node.attributes["window"] == given[2] and node.attributes["causal"] == (given[2] > 0)
    assert (len(node.inputs) > 4) == given[3] and node.attributes["softcap"] == given[4]
    assert len(node.inputs) == 3 or node.inputs[3] is None
    engine = build(graph, "cpu", tuning=Tuning(effort=0))
    for length in (2, 7, 61, 200) if given[0] == "length" else (given[1],):
        agree(engine, graph, length, rng)


@pytest.mark.parametrize("given", CASES[:5], ids=str)
def test_gpus_compute_them_in_their_kernels(given: tuple[Any, ...], driver: Driver, rng: np.random.Generator) -> None:
    """On the stand-in for a GPU: by tensor copies, or where these cannot read operands by the plain kernel."""
    for width, name in ((16, "hopper attention"), (12, "online softmax")):
        graph = case(float16, *given, width=width)
        engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
        chosen = [step.evidence["chosen"] for step in engine.plan.steps if step.evidence["group"] == "attention"]
        assert len(chosen) == 1 and chosen[0].startswith(name), chosen
        exact = case(float64, *given, width=width)
        agree(engine, graph, 100 if given[0] == "length" else given[1], rng, exact)


def test_other_masks_stay(rng: np.random.Generator) -> None:
    """A window to the right, one without its causal half, numbers of keys that count from the end, of each row or head,
    finite numbers."""
    for kind in ("right", "both ways", "from the end", "of rows", "of heads", "finite"):
        model = Model(float32, 24, 24, batch=24 if kind == "of rows" else 2)
        row, column = model.positions()
        if kind == "right":
            condition = model.op("less", row, model.op("add", column, model.number(5, int64)))
        elif kind == "both ways":
            near = model.op("greater", column, model.op("subtract", row, model.number(5, int64)))
            condition = model.op(
                "logical_and", near, model.op("less", column, model.op("add", row, model.number(5, int64)))
            )
        elif kind == "from the end":
            ends = model.b.input("ends", int64, (2, 1, 1, 1))
            condition = model.op("greater_equal", model.line(24, 1), ends)
        elif kind.startswith("of"):
            ends = model.b.input("ends", int64, (24, 1) if kind == "of rows" else (2, 1, 1))
            condition = model.op("less", model.line(24, 1), ends)
        else:
            condition = counted(model)
        graph = model.finish(condition, low=-1e9 if kind == "finite" else -np.inf)
        node = found(graph)
        assert node.attributes["window"] == 0 and len(node.inputs) == 4 and node.inputs[3] is not None, kind
        if kind != "finite":  # -1e9 hides a key, but is rounded with large scores where it hides all keys of a row
            agree(build(graph, "cpu", tuning=Tuning(effort=0)), graph, 24, rng)


def test_masks_that_are_arrays(rng: np.random.Generator) -> None:
    for finite in (False, True):
        model = Model(float32, 30, 50)
        shift = np.arange(50)[None, :] - np.arange(30)[:, None] - 20
        mask = (shift <= 0) & (shift > -9)
        graph = model.finish(model.b.constant(mask), low=-1e9 if finite else -np.inf)
        assert found(graph).attributes["window"] == 9
        agree(build(graph, "cpu", tuning=Tuning(effort=0)), graph, 50, rng)


@pytest.mark.parametrize("dtype", [int64, uint32], ids=str)
@pytest.mark.parametrize("keys", [24, "length"])
def test_numbers_of_keys_beyond_int32(keys: Size, dtype: DType, rng: np.random.Generator) -> None:
    ends = [2**32 + 3, 2**63 - 1, -7, 5] if dtype == int64 else [2**31 + 3, 2**32 - 1, 0, 5]
    model = Model(float32, keys, keys, batch=4)
    graph = model.finish(counted(model, dtype))
    assert len(found(graph).inputs) > 4
    inputs = drawn(graph, 24, rng) | {"ends": np.array(ends, dtype.numpy)}
    result = build(graph, "cpu", tuning=Tuning(effort=0)).run(inputs)["y"]
    np.testing.assert_allclose(result, reference.run(graph, inputs)["y"], 2e-5, 2e-5)


def test_a_window_and_causal_mask_that_is_one_array(rng: np.random.Generator) -> None:
    """Combined with a padding mask from the input, as exporters write it for fixed sizes."""
    for window in (6, 0):
        model = Model(float32, 24, 24)
        row, column = np.arange(24)[:, None], np.arange(24)[None, :]
        fixed = model.b.constant(((column <= row) & (column > row - (window or 24)))[None, None])
        padding = model.b.input("padding", int1, (2, 1, 1, 24))
        graph = model.finish(model.op("logical_and", fixed, padding))
        node = found(graph)
        assert node.attributes["causal"] and node.attributes["window"] == window
        inputs = drawn(graph, 24, rng) | {"padding": rng.integers(0, 2, (2, 1, 1, 24)).astype(bool)}
        result = build(graph, "cpu", tuning=Tuning(effort=0)).run(inputs)["y"]
        np.testing.assert_allclose(result, reference.run(graph, inputs)["y"], 2e-5, 2e-5)


def test_queries_before_the_first_key_get_the_mean_of_finite_numbers(rng: np.random.Generator) -> None:
    for kind in ("array", "causal", "window"):
        model = Model(float32, 9, 5)
        row, column = model.positions()
        if kind == "array":
            condition = model.b.constant(np.tri(9, 5, -4, dtype=bool))
        else:
            condition = model.op("less_equal", column, row) if kind == "causal" else windowed(model, 2)
        graph = model.finish(condition, low=-1e20)
        assert not found(graph).attributes["causal"]
        agree(build(graph, "cpu", tuning=Tuning(effort=0)), graph, 5, rng)


def test_soft_caps_that_kernels_would_round_stay_operations(rng: np.random.Generator) -> None:
    model = Model(float32, 20, 20)
    graph = model.finish(None, cap=1e5)
    assert not [node for node in optimize(graph).nodes if node.op == "attention"]
    agree(build(graph, "cpu", tuning=Tuning(effort=0)), graph, 20, rng)
