"""Attention of wide heads as products and a softmax: the same numbers, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, float16, float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.wide_heads import separate_wide_heads
from tilewright.graph.reference import run


def attention(
    size: int, dtype: DType = float32, causal: bool = False, bias: bool = False, groups: int = 2, rows: int | str = 5
) -> Graph:
    b = GraphBuilder("attention")
    queries = b.symbol(rows, 1, 64) if isinstance(rows, str) else rows
    operands = [b.input("q", dtype, (2, 4, queries, size))]
    operands += [b.input(name, dtype, (2, groups, 7, size)) for name in "kv"]
    if bias:
        operands.append(b.input("bias", dtype, (2, 1, queries, 7)))
    b.output(b.op("attention", operands, scale=size**-0.5, causal=causal), "y")
    return b.finish()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [5, 9, "rows"])
def test_wide_heads_are_products(rows: int | str, bias: bool, causal: bool, rng: np.random.Generator) -> None:
    graph = attention(130, causal=causal, bias=bias, rows=rows)
    separated = separate_wide_heads(graph)
    assert any(node.op == "attention" for node in separated.nodes) == (causal and rows == "rows")
    count = 5 if rows == "rows" else rows
    inputs = {
        value.name: rng.standard_normal([count if not isinstance(n, int) else n for n in value.shape], np.float32)
        for value in graph.inputs
    }
    if bias:
        inputs["bias"][:, :, 2] = -np.inf  # a query that sees no key
    exact = run(graph, inputs)["y"]
    np.testing.assert_allclose(run(separated, inputs)["y"], exact, rtol=1e-5, atol=1e-5)


def test_other_heads_stay() -> None:
    for graph in (attention(128), attention(512, float16)):
        assert separate_wide_heads(graph) is graph


def test_heads_that_fit_no_kernel_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.graph.passes.wide_heads._LARGEST", 0)
    engine = build(attention(2048, rows=200), "cuda:sm_90a", tuning=Tuning(effort=0))
    assert any("8192 bytes do not fit shared memory" in remark for remark in engine.remarks)
