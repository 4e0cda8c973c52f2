"""Attention of wide heads as products and a softmax: the same numbers, and what stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, float16, float32, int32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.passes.wide_heads import separate_wide_heads
from tilewright.graph.reference import run
from tilewright.targets.library_facts import GPU_KERNELS

WIDEST_HEAD = GPU_KERNELS.widest_head


def attention(
    size: int, dtype: DType = float32, causal: bool = False, bias: bool = False, groups: int = 2, rows: int | str = 5,
    keys: int = 7, counted: bool = False, **attributes: float,
) -> Graph:  # fmt: skip
    b = GraphBuilder("attention")
    queries = b.symbol(rows, 1, 64) if isinstance(rows, str) else rows
    operands: list[Value | None] = [b.input("q", dtype, (2, 4, queries, size))]
    operands += [b.input(name, dtype, (2, groups, keys, size)) for name in "kv"]
    if bias or counted:
        operands.append(b.input("bias", dtype, (2, 1, queries, keys)) if bias else None)
    if counted:
        operands.append(b.input("lengths", int32, (2,)))
    b.output(b.op("attention", operands, scale=size**-0.5, causal=causal, **attributes), "y")
    return b.finish()


def drawn(graph: Graph, rng: np.random.Generator, count: int = 5) -> dict[str, np.ndarray]:
    """Inputs in which one query sees no key."""
    inputs = {
        value.name: rng.standard_normal([n if isinstance(n, int) else count for n in value.shape]).astype(
            value.dtype.numpy
        )
        for value in graph.inputs
    }
    if "bias" in inputs:
        inputs["bias"][:, :, 2] = -np.inf
    if "lengths" in inputs:
        inputs["lengths"][:] = 3, 0
    return inputs


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [5, 9, "rows"])
def test_wide_heads_are_products(rows: int | str, bias: bool, causal: bool, rng: np.random.Generator) -> None:
    graph = attention(130, causal=causal, bias=bias, rows=rows)
    separated = separate_wide_heads(graph, GPU_KERNELS)
    assert not any(node.op == "attention" for node in separated.nodes)
    inputs = drawn(graph, rng, rows if isinstance(rows, int) else 5)
    exact = run(graph, inputs)["y"]
    np.testing.assert_allclose(run(separated, inputs)["y"], exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_heads_without_a_kernel_are_products_in_any_case(bias: bool, rng: np.random.Generator) -> None:
    """Floats of 16 bits too, with windows, caps and numbers of keys: none has another way to be computed."""
    form: dict[str, Any] = {"causal": True, "bias": bias, "rows": "rows", "window": 3, "softcap": 2.0, "counted": True}
    graph = attention(2056, float16, **form)
    separated = separate_wide_heads(graph, GPU_KERNELS)
    assert not any(node.op == "attention" for node in separated.nodes)
    exact = attention(2056, float32, **form)
    inputs = drawn(graph, rng)
    found, expected = run(separated, inputs)["y"], run(exact, {**inputs, **{
        name: array.astype(np.float32) for name, array in inputs.items() if name != "lengths"
    }})["y"]  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=2**-11, atol=2**-11 * np.abs(expected).max())
    (remark,) = separated.remarks
    assert (
        f"heads of 2056 numbers are two products and a softmax, whose scores take up to {2 * 4 * 64 * 7 * 4} bytes"
        in remark
    )
    if not bias:
        engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
        assert not any("do not fit" in remark for remark in engine.remarks)


def test_other_heads_stay() -> None:
    for graph in (
        attention(128), attention(512, float16), attention(2048, float16), attention(512, causal=True, window=3),
        attention(256, rows=8192, keys=16384),  # scores of 4 GiB
        attention(130, rows=1, keys=64, groups=4, dtype=float16),
    ):  # fmt: skip
        assert separate_wide_heads(graph, GPU_KERNELS) is graph


def test_scores_are_few_next_to_operands() -> None:
    for rows, stays in ((200, False), (3000, True)):
        graph = attention(130, rows=rows, keys=3000, groups=1)
        assert (separate_wide_heads(graph, GPU_KERNELS) is graph) == stays
