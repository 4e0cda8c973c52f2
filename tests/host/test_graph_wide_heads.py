"""Attention of wide heads as products and a softmax: the same numbers, and what stays as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, bfloat16, float16, float32, int32
from tilewright.graph import semantics
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


def in_float64(graph: Graph, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The attention of a graph, without rounding."""
    (node,) = graph.nodes
    exact = [value if value is None else inputs[value.name] for value in node.inputs]
    wide = [each if each is None or each.dtype == np.int32 else each.astype(np.float64) for each in exact]
    return semantics.attention(wide, node.attributes)


@pytest.mark.parametrize("dtype", [float16, bfloat16])
@pytest.mark.parametrize("form", [{}, {"causal": True}, {"bias": True}, {"causal": True, "window": 130, "softcap": 30}])
def test_scores_of_16_bits_are_not_rounded(form: dict[str, Any], dtype: DType, rng: np.random.Generator) -> None:
    """Sums beyond the largest float16, and weights below its smallest, count."""
    graph = attention(32, dtype, rows=9, keys=520, **form)
    separated = separate_wide_heads(graph, replace(GPU_KERNELS, widest_head=0))
    assert [node.op for node in separated.nodes].count("matmul") == 2
    inputs = drawn(graph, rng)
    if dtype == float16:
        inputs["q"], inputs["k"] = inputs["q"] * np.float16(90), np.round(inputs["k"]) * np.float16(90)
        inputs["k"][..., :17] = 20
        assert (
            np.abs(
                inputs["q"].astype(np.float64) @ np.swapaxes(inputs["k"].astype(np.float64), 2, 3).repeat(2, 1)
            ).max()
            > 65504
        )
    exact = in_float64(graph, inputs)
    found = run(separated, inputs)["y"].astype(np.float64)
    epsilon = 2.0**-11 if dtype == float16 else 2.0**-8
    np.testing.assert_allclose(found, exact, rtol=2 * epsilon, atol=epsilon * np.abs(exact).max())


def test_small_weights_keep_their_digits() -> None:
    """100,000 equal weights of float16 are below its normal numbers."""
    graph = attention(16, float16, rows=1, keys=100_000, groups=1)
    inputs = {value.name: np.ones(value.shape, np.float16) for value in graph.inputs}
    separated = separate_wide_heads(graph, replace(GPU_KERNELS, widest_head=0))
    np.testing.assert_allclose(run(separated, inputs)["y"], 1.0, rtol=2**-11)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("form", [
    {}, {"causal": True, "window": 200}, {"bias": True, "causal": True}, {"bias": True, "counted": True},
])  # fmt: skip
def test_many_scores_are_computed_in_parts(form: dict[str, Any], axis: int, rng: np.random.Generator) -> None:
    rows, keys = (300, 400) if axis == 2 else (5, 400)
    b = GraphBuilder("parts")
    batch, groups = ((6, 3), (1, 6), (1, 1))[axis]
    operands: list[Value | None] = [b.input("q", float32, (batch, 2 * groups, rows, 16))]
    operands += [b.input(name, float32, (batch, groups, keys, 16)) for name in "kv"]
    operands.append(b.input("bias", float32, (2 * groups, rows, keys)) if form.get("bias") else None)
    operands.append(b.input("lengths", int32, (batch,)) if form.get("counted") else None)
    attributes = {name: value for name, value in form.items() if name not in ("bias", "counted")}
    while operands[-1] is None:
        operands.pop()
    b.output(b.op("attention", operands, scale=16**-0.5, **attributes), "y")
    graph = b.finish()
    inputs = {v.name: rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}  # type: ignore[arg-type]
    if "lengths" in inputs:
        inputs["lengths"] = rng.integers(1, keys, batch).astype(np.int32)
    few = replace(GPU_KERNELS, widest_head=0, score_bytes=batch * groups * 2 * rows * keys * 4 // 3 + 1)
    separated = separate_wide_heads(graph, few)
    parts = [node for node in separated.nodes if node.op == "softmax"]
    assert len(parts) == 3 and not any(node.op == "attention" for node in separated.nodes)
    assert any("in 3 parts" in remark for remark in separated.remarks)
    if axis == 2 and form.get("causal"):
        assert parts[0].output.shape[3] < keys  # what no query of the part sees is not computed
    np.testing.assert_allclose(run(separated, inputs)["y"], in_float64(graph, inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [320, 1024])
def test_engines_for_hopper_have_wide_heads_as_products(size: int) -> None:
    b = GraphBuilder("wide")
    operands: list[Value | None] = [b.input(name, float16, (4, 8, 512, size)) for name in "qkv"]
    b.output(b.op("attention", operands, scale=size**-0.5), "y")
    engine = build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    chosen = [step.evidence["chosen"] for step in engine.plan.steps]
    assert chosen == ["hopper batched matmul", "row kernel", "hopper batched matmul"]
    assert not any("spill" in remark for remark in engine.remarks)


def test_engines_store_scores_of_16_bits_as_float32(driver: Driver, rng: np.random.Generator) -> None:
    graph = attention(264, float16, rows=33, keys=520)
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    assert [step.evidence["chosen"] for step in engine.plan.steps].count("hopper batched matmul") == 2
    inputs = drawn(graph, rng)
    inputs["q"] *= np.float16(30)
    exact = in_float64(graph, inputs)
    assert np.abs(engine.run(inputs)["y"].astype(np.float64) - exact).max() <= 2.0**-10 * np.abs(exact).max()
