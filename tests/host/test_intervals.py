"""Between which numbers expressions of whole numbers lie, and that kernels check no place that lies in its tensor."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float32, int32, uint8
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.reference import run
from tilewright.library.generated.elementwise import elementwise
from tilewright.library.generated.intervals import interval
from tilewright.library.generated.trace import ExpressionTracer, axes_of
from tilewright.targets.nvidia.target import NvidiaTarget


def of(graph: Graph, value: Value) -> tuple[float, float]:
    return interval(ExpressionTracer(graph.nodes, graph.constants).trace(value, axes_of(value.shape)))


def test_operations_move_and_limit_intervals() -> None:
    b = GraphBuilder("places")
    x, small = b.input("x", int32, (7,)), b.input("small", uint8, (7,))
    two = b.op("where", [b.op("less", [x, 3]), b.number(4, int32), b.number(9, int32)])
    whole = (-(2**31), 2**31 - 1)
    cases = {
        "an input may be anything": (x, whole),
        "a choice": (two, (4, 9)),
        "sums": (b.op("add", [two, two]), (8, 18)),
        "differences": (b.op("subtract", [two, b.number(5, int32)]), (-1, 4)),
        "clipped": (b.op("clip", [x], low=0, high=6), (0, 6)),
        "one limit": (b.op("clip", [x], low=2), (2, whole[1])),
        "both limits": (b.op("minimum", [b.op("maximum", [x, 0]), b.number(6, int32)]), (0, 6)),
        "remainders": (b.op("remainder", [x, b.number(5, int32)]), (0, 4)),
        "truth": (b.op("cast", [b.op("less", [x, 3])], dtype=int32), (0, 1)),
        "products": (b.op("multiply", [two, b.number(-5, int32)]), (-45, -20)),
        "beyond the type": (b.op("multiply", [x, two]), whole),
        "wraps": (b.op("add", [b.op("cast", [two], dtype=uint8), b.op("where", [b.op("less", [x, 3]), b.number(
            250, uint8), b.number(1, uint8)])]), (0, 255)),
        "small": (small, (0, 255)),
    }  # fmt: skip
    for number, (value, _) in enumerate(cases.values()):
        b.output(value, f"y_{number}")
    graph = b.finish()
    for name, (value, expected) in cases.items():
        found = of(graph, value)
        assert found == expected, (name, found)


def test_draws_lie_in_their_intervals(rng: np.random.Generator) -> None:
    for _ in range(60):
        b = GraphBuilder("drawn")
        x = b.input("x", int32, (64,))
        values = [b.op("clip", [x], low=int(rng.integers(-9, 0)), high=int(rng.integers(0, 9)))]
        for _ in range(int(rng.integers(1, 7))):
            left, right = (values[int(rng.integers(len(values)))] for _ in range(2))
            op = str(rng.choice(["add", "subtract", "maximum", "minimum", "where", "remainder"]))
            operands = [b.op("less", [x, 3]), left, right] if op == "where" else [left, right]
            if op == "remainder":
                operands[1] = b.number(int(rng.integers(1, 9)), int32)
            values.append(b.op(op, operands))
        b.output(values[-1], "y")
        graph = b.finish()
        low, high = of(graph, values[-1])
        found = run(graph, {"x": rng.integers(-100, 100, 64).astype(np.int32)})["y"]
        assert low <= found.min() and found.max() <= high


def test_places_that_lie_in_a_tensor_are_not_checked() -> None:
    b = GraphBuilder("looked up")
    x, place = b.input("x", float32, (40,)), b.input("place", int32, (9,))
    for name, low in (("inside", 0), ("from the end", -40)):
        b.output(b.op("gather", [x, b.op("clip", [place], low=low, high=39)], axis=0), name)
    graph = b.finish()
    target = NvidiaTarget.named("sm_90a")
    sources = [elementwise(group, graph, target)[0].stages[0].calls[0].kernel.source for group in fuse(graph).groups]
    text = "\n".join(sources)
    assert text.count("tl.where(i_") == 1 and text.count("nothing else is ever read") == 1
