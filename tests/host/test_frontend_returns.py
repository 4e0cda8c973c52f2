"""Returns inside loops, and run-time conditions that leave unrolled loops."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import launch


@tilewright.jit
def first_match(x, n, wanted):
    """The index of a value and ten times the value; the first negative number ends the search."""
    for i in range(n):
        value = tl.load(x + i)
        if value == wanted:
            return i, value * 10
        if value < 0:
            return -1, 0
    return n, 7


@tilewright.jit
def sum_above(x, n, limit):
    """Two loops, one inside the other, left at once."""
    total = 0
    for i in range(n):
        j = 0
        while j < n:
            total += tl.load(x + j)
            if total > limit:
                return total
            j += 1
        if i == 5:
            break
    return -total


@tilewright.jit
def unrolled(x, wanted):
    found = 100
    for i in tl.static_range(6):
        value = tl.load(x + i)
        if value == wanted:
            return i
        if value == 3:
            found = i
            break
        if value == 4:
            continue
        found += value
    return found + 1000


@tilewright.jit
def compile_time(x, PLACE: tl.constexpr):
    for i in tl.static_range(8):
        if i == PLACE:
            return tl.load(x + i) + tl.zeros((4,), tl.int32)
    return tl.full((4,), -1, tl.int32)


@tilewright.jit
def forever(x, n):
    place = 0
    while True:
        if place >= n or tl.load(x + place) > 5:
            return place
        place += 1


@tilewright.jit
def kernel(x, out, n, wanted, limit):
    first, value = first_match(x, n, wanted)
    tl.store(out, first)
    tl.store(out + 1, value)
    tl.store(out + 2, sum_above(x, n, limit))
    tl.store(out + 3, unrolled(x, wanted))
    tl.store(out + 4, tl.sum(compile_time(x, 3) + compile_time(x, 9)))
    tl.store(out + 5, forever(x, n))
    for i in range(n):
        tl.store(out + 6, i)
        if tl.load(x + i) == wanted:
            return
    tl.store(out + 7, 1)


def expected(x: np.ndarray, n: int, wanted: int, limit: int) -> list[int]:
    """The same functions, run by Python."""
    names = {"load": lambda place: int(x[place]), "static_range": range, "constexpr": None}
    scope: dict[str, object] = {"tl": type("tl", (), names), "tilewright": type("t", (), {"jit": lambda f: f})}
    for function in (first_match, sum_above, unrolled, forever):
        exec(function.source, scope)
    first, value = scope["first_match"](0, n, wanted)
    out = [first, value, scope["sum_above"](0, n, limit), scope["unrolled"](0, wanted), 4 * (int(x[3]) - 1)]
    out += [scope["forever"](0, n), 0, 0]
    for i in range(n):
        out[6] = i
        if x[i] == wanted:
            return out
    out[7] = 1
    return out


@pytest.mark.parametrize("repeat", range(12))
def test_returns_in_loops(repeat: int, rng: np.random.Generator) -> None:
    x = rng.integers(-1, 9, 8).astype(np.int32)
    n, wanted, limit = int(rng.integers(0, 8)), int(rng.integers(0, 9)), int(rng.integers(0, 300))
    out = np.zeros(8, np.int32)
    launch(kernel, (1,), x, out, n, wanted, limit)
    assert out.tolist() == expected(x, n, wanted, limit)


@tilewright.jit
def returns_inside_constants(x, out, n, EARLY: tl.constexpr, PAIRS: tl.constexpr):
    """What is known at compile time must not hide what follows a return that depends on a number."""
    for i in range(n):
        if PAIRS:
            if i % 2 == 1:
                continue
            if i > 5:
                break
        tl.atomic_add(out + 1, tl.load(x + i))
    if EARLY:
        if tl.load(x) > 0:
            tl.store(out, 1)
            return
        tl.store(out + 2, 5)
    elif n < 0:
        return
    tl.store(out, 2)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_returns_below_compile_time_conditions(early: bool, pairs: bool, first: int) -> None:
    x, out = np.arange(8, dtype=np.int32), np.zeros(3, np.int32)
    x[0] = first
    launch(returns_inside_constants, (1,), x, out, 8, EARLY=early, PAIRS=pairs)
    total = first + (6 if pairs else 28)
    assert out.tolist() == [1 if early and first else 2, total, 5 if early and not first else 0]
