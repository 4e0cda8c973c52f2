"""Gated products: the slots of kernels that hold both halves in a thread, and the way of all other kernels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.tactics_support import Draw, check
from tilewright.build.builder import build
from tilewright.dtypes import float32, int32
from tilewright.graph import reference
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.fuse import fuse
from tilewright.library.matmul.gate import gate_slots


def gated(
    draw: Draw, bias: bool = False, residual: bool = False, half: int = 24
) -> tuple[Graph, dict[str, np.ndarray]]:
    """gelu(p[:, :24]) * p[:, 24:] of a product p, perhaps with a bias before and a residual behind."""
    b = GraphBuilder("gated")
    batch = b.symbol("batch", 1, 64)
    x, other = b.input("x", float32, (batch, 16)), b.input("other", float32, (batch, half))
    p = b.op("matmul", [x, b.constant(draw(2 * half, 16))], transpose_b=True)
    p = b.op("add", [p, b.constant(draw(2 * half))]) if bias else p
    left, right = (b.op("slice", [p], axis=1, start=start, stop=start + half) for start in (0, half))
    y = b.op("multiply", [b.op("gelu", [b.op("multiply", [left, 0.5])]), right])
    b.output(b.op("add", [y, other]) if residual else y, "y")
    return b.finish(), {"x": draw(5, 16), "other": draw(5, half)}


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("half", [24, 32])
def test_two_products_or_one_and_what_follows(
    half: int, bias: bool, residual: bool, draw: Draw, compiled: bool
) -> None:
    """Halves of whole panels of the weights are products of their own."""
    (chosen,) = check(*gated(draw, bias, residual, half), compiled)
    assert chosen.name == ("tiled matmul" if half == 32 else "anchor alone") and len(chosen.stages) == 2


def test_slots_of_a_gate_alone(draw: Draw) -> None:
    graph, _ = gated(draw)
    (group,) = fuse(graph).groups
    slots = gate_slots(group, graph)
    assert slots is not None and slots.function.__name__ == "identity" and not slots.extra.operands
    assert slots.epilogue.gate.source.splitlines() == [
        "def fused_multiply_gelu_multiply(left, right):",
        "    v_0 = left * 0.5  # multiply",
        "    v_1 = gelu(v_0)  # gelu",
        "    v_2 = v_1 * right  # multiply",
        "    return v_2",
    ]
    rounded = slots.rounded()
    assert rounded.cost == slots.cost and (slots.cost.activations, slots.cost.gated) == (1, True)


def test_what_follows_a_gate_is_the_epilogue(draw: Draw) -> None:
    graph, _ = gated(draw, residual=True)
    (group,) = fuse(graph).groups
    slots = gate_slots(group, graph)
    assert slots is not None and slots.function.__name__ == "fused_add"
    assert [value.name for value in slots.extra.operands.values()] == ["other"]


def test_a_bias_before_the_halves_is_refused(draw: Draw) -> None:
    graph, _ = gated(draw, bias=True)
    (group,) = fuse(graph).groups
    with pytest.raises(NotImplementedError, match="before they are halved"):
        gate_slots(group, graph)


def test_other_products_have_no_gate(draw: Draw) -> None:
    b = GraphBuilder("plain")
    x = b.input("x", float32, (4, 16))
    b.output(b.op("relu", [b.op("matmul", [x, b.constant(draw(16, 8))])]))
    graph = b.finish()
    assert gate_slots(fuse(graph).groups[0], graph) is None


def test_products_of_integers_have_no_gate(rng: np.random.Generator) -> None:
    """Halves of whole panels: a product of floats would take the gate."""
    b = GraphBuilder("integers")
    x = b.input("x", int32, (4, 16))
    p = b.op("matmul", [x, b.constant(rng.integers(-5, 6, (16, 64)).astype(np.int32))])
    left, right = (
        b.op("cast", [b.op("slice", [p], axis=1, start=start, stop=start + 32)], dtype=float32) for start in (0, 32)
    )
    b.output(b.op("multiply", [b.op("sigmoid", [left]), right]), "y")
    graph, feeds = b.finish(), {"x": rng.integers(-5, 6, (4, 16)).astype(np.int32)}
    (wanted,) = reference.run(graph, feeds).values()
    np.testing.assert_allclose(build(graph, "cpu").run(feeds)["y"], wanted, rtol=1e-5, atol=1e-5)
