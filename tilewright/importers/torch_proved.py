"""Conditions on sizes that hold for the whole of their range, though PyTorch cannot prove them: every size is tried.

``torch.chunk(x, 2)`` of 2*n rows, say, makes ``(3*n - 1)//n`` parts: 2 for every n, which PyTorch takes for a condition
that n is the example's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import IntTrueDiv, ToFloat

_MOST_SIZES = 1024  # combinations that are tried
_FLOATS = (ToFloat, IntTrueDiv)  # which make a float of a size


@contextmanager
def proving() -> Iterator[None]:
    """For the time of an export: what is the same for all sizes in their ranges is no condition."""
    known: dict[Any, Any] = {}  # what was found, by shape environment and expression
    evaluate = ShapeEnv.evaluate_expr

    def proved(self: ShapeEnv, expression: Any, *rest: Any, **named: Any) -> Any:
        key = (id(self), expression)
        if key not in known:
            known[key] = _constant(self, expression)
        found = known[key]
        return evaluate(self, expression, *rest, **named) if found is None else found

    with mock.patch.object(ShapeEnv, "evaluate_expr", proved):
        yield


@contextmanager
def watching() -> Iterator[list[Any]]:
    """For the time of an export that asserts conditions: the list of those on floats, such as ``n * 0.5 > 4.2``, that
    do not hold for all sizes. PyTorch takes them, and the ``1`` of ``int(n * 0.5)``, for granted without an assertion.
    """
    found: list[Any] = []
    evaluate = ShapeEnv.evaluate_expr

    def watched(self: ShapeEnv, expression: Any, *rest: Any, **named: Any) -> Any:
        if isinstance(expression, sympy.Basic) and (expression.has(*_FLOATS) or expression.atoms(sympy.Float)):
            if self._maybe_evaluate_static(expression) is None and _constant(self, expression) is None:
                found.append(expression)
        return evaluate(self, expression, *rest, **named)

    with mock.patch.object(ShapeEnv, "evaluate_expr", watched):
        yield found


def _constant(env: ShapeEnv, expression: Any) -> Any:
    """What an expression is for all sizes; None where it differs (mostly at the ends), or where there are too many."""
    symbols = sorted(getattr(expression, "free_symbols", ()), key=str)
    sizes = [_sizes(env, symbol) for symbol in symbols]
    if not symbols or any(choice is None for choice in sizes) or math.prod(map(len, sizes)) > _MOST_SIZES:  # type: ignore[arg-type]
        return None
    found: Any = None
    ends = zip(*((choice[-1], choice[0]) for choice in sizes), strict=True)  # type: ignore[index]
    for values in itertools.chain(ends, itertools.product(*sizes)):  # type: ignore[arg-type]
        value = expression.xreplace({symbol: sympy.Integer(size) for symbol, size in zip(symbols, values, strict=True)})
        if value.free_symbols or not (value in (sympy.true, sympy.false) or value.is_Integer):
            return None
        if found is not None and value != found:
            return None
        found = value
    return found


def _sizes(env: ShapeEnv, symbol: Any) -> range | None:
    """The values of a size of an input; 1 belongs to a range that PyTorch has begin at 2."""
    bounds = env.var_to_range.get(symbol)
    if (
        symbol not in env.backed_var_to_val
        or bounds is None
        or not (bounds.lower.is_Integer and bounds.upper.is_Integer)
    ):
        return None
    low, high = int(bounds.lower), int(bounds.upper)
    return range(1 if low == 2 else low, high + 1) if high - low < _MOST_SIZES else None
