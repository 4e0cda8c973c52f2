"""Aggregates: construction, immutability, methods, operators, inheritance, and life through control flow."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import compile_error, launch


@tilewright.aggregate
class Interval:
    """Two blocks and a compile-time flag."""

    low: tl.tensor
    high: tl.tensor
    scale: tl.constexpr = tl.constexpr(2)

    @tilewright.jit
    def width(self):
        return (self.high - self.low) * self.scale

    @tilewright.jit
    def __add__(self, other):
        return Interval(self.low + other, self.high + other, self.scale)

    @tilewright.jit
    def __radd__(self, other):
        return self + other

    @tilewright.jit
    def __getitem__(self, index):
        return self.low if index == 0 else self.high

    @tilewright.jit
    def __lt__(self, other):
        return self.high < other

    @tilewright.jit
    def __neg__(self):
        return Interval(-self.high, -self.low, self.scale)

    @staticmethod
    def of(value):
        return Interval(value, value + 1)

    @tilewright.constexpr_function
    def doubled(self):
        return self.scale * 2

    @property
    def middle(self):
        return self.low + self.high


@tilewright.aggregate
class Named(Interval):
    count: tl.constexpr = 7

    @tilewright.jit
    def total(self):
        return self.width() + self.count


@tilewright.aggregate
class Built:
    value: tl.tensor
    parts: tl.tuple

    @tilewright.jit
    def __init__(self, value, extra=3):
        self.value = value + extra
        self.parts = (value, extra)


@tilewright.aggregate
class Computed:
    size: tl.constexpr

    def __init__(self, size):
        self.size = tl.constexpr(self.squared(size))

    @tilewright.constexpr_function
    def squared(self, size):
        return size * size


@tilewright.jit
def kernel(out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    interval = Interval.of(i)
    for step in range(n):
        interval = 1 + interval + step
    if n > 2:
        interval = tl.aggregate_replace(interval, high=interval.high + 10)
    tl.static_assert(interval.scale == 2 and interval.doubled() == 4)
    named = Named(interval[0], interval[1], 5)
    tl.static_assert(named.count == 7)
    built = Built(i, extra=n)
    computed = Computed(3)
    tl.static_assert(computed.size == 9)
    negated = -interval
    result = named.total() + built.value + built.parts[0] + negated.low + interval.middle
    tl.store(out + i, tl.where(interval < 1000, result, -1))


@pytest.mark.parametrize("n", [2, 4])
def test_aggregates_live_through_control_flow(n: int) -> None:
    out = np.zeros(8, np.int32)
    launch(kernel, (1,), out, n, N=8)
    i = np.arange(8)
    low = i + n + sum(range(n))
    high = low + 1 + (10 if n > 2 else 0)
    np.testing.assert_array_equal(out, (high - low) * 5 + 7 + i + n + i - high + low + high)


def test_outside_kernels() -> None:
    computed = Computed(4)
    assert computed.size.value == 16 and computed.squared(3) == 9
    changed = tl.aggregate_replace(computed, size=5)
    assert changed.size.value == 5 and computed.size.value == 16
    with pytest.raises(AttributeError, match="immutable aggregate Computed"):
        computed.size = tl.constexpr(1)
    with pytest.raises(TypeError, match="has no field 'z'"):
        tl.aggregate_replace(computed, z=99)
    with pytest.raises(TypeError, match="expects an aggregate instance"):
        tl.aggregate_replace(42, x=1)
    with pytest.raises(TypeError, match="Aggregates can only inherit from other aggregates"):
        tilewright.aggregate(type("Child", (list,), {}))


@tilewright.jit
def reads_aggregate(pair, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, (i + pair.low) * pair.scale - pair.high)


def test_as_an_argument() -> None:
    out = np.zeros(4, np.int32)
    launch(reads_aggregate, (1,), Interval(3, 5, 7), out, N=4)
    np.testing.assert_array_equal(out, (np.arange(4) + 3) * 7 - 5)


def assigns(out):
    interval = Interval.of(tl.arange(0, 4))
    interval.low = 3


def misses(out):
    Interval(1)


def unknown_field(out):
    tl.store(out, Interval.of(1).widht())


def wrong_type(out):
    Interval("text", 1)


def run_time_constexpr(out):
    Interval(1, 2, tl.load(out))


def no_operator(out):
    tl.store(out, Interval.of(1) * 3)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (assigns, "immutable aggregate Interval"),
        (misses, "missing"),
        (unknown_field, "did you mean 'width'"),
        (wrong_type, "text"),
        (run_time_constexpr, "known at run time only"),
        (no_operator, "define __mul__ in the aggregate"),
    ],
    ids=lambda entry: getattr(entry, "__name__", ""),
)
def test_mistakes(mistake, message: str) -> None:
    text = compile_error(tilewright.jit(mistake), {"out": "*i32"})
    assert message in text and "help:" in text and "^" in text
