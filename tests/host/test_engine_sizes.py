"""Numbers that a plan computes from the sizes of a call."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder
from tilewright.symbolic import Expression, floor_divide, lift, modulo, simplify


@pytest.mark.parametrize("shift", [0, 5, 20])
def test_quotients_and_remainders_round_down_as_in_python(shift: int) -> None:
    """By numbers and sizes of any sign."""
    b = GraphBuilder("quotients")
    n, m = b.symbol("n", 1, 40), b.symbol("m", 1, 40)
    b.input("x", float32, (n,))
    b.input("y", float32, (m,))
    dividend, divisor = simplify(lift(n) - 17), simplify(lift(m) - shift)
    for name, (left, right) in {"number": (dividend, -4), "size": (dividend, divisor), "of": (n, divisor)}.items():
        for kind, function in (("//", floor_divide), ("%", modulo)):
            expression = function(left, right)
            assert isinstance(expression, Expression)
            b.output(b.op("dimension", [], expression=expression), f"{name} {kind}")
    engine = build(b.finish(), "cpu")
    for x in range(1, 41, 3):
        for y in range(1, 41):
            if y == shift:
                continue
            found = engine.run({"x": np.zeros(x, np.float32), "y": np.zeros(y, np.float32)})
            expected = {
                f"{name} {kind}": function(left, right)
                for name, left, right in (("number", x - 17, -4), ("size", x - 17, y - shift), ("of", x, y - shift))
                for kind, function in (("//", operator.floordiv), ("%", operator.mod))
            }
            assert {name: int(value) for name, value in found.items()} == expected
