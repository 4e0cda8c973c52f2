"""Bounds that a launch computes for the integers of a kernel hold every value that the interpreter sees."""

# mypy: ignore-errors

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
import tilewright.language as tl
from tilewright.dtypes import int32, int64
from tilewright.ir import interpreter
from tilewright.ir.builder import Builder
from tilewright.ir.core import Function, Parameter, Region, SSAValue
from tilewright.ir.types import PointerType, scalar
from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.ranges import Ranges

GRID = (3, 2, 1)
LANES = 8


def number(term, arguments):
    """What a term of a launch is."""
    if isinstance(term, int):
        return term
    if term.operator == "argument":
        return arguments[term.operands[0].name]
    if term.operator == "count":
        return GRID[term.operands[0]]
    left, right = (number(operand, arguments) for operand in term.operands)
    return {
        "add": lambda: left + right,
        "multiply": lambda: left * right,
        "minimum": lambda: min(left, right),
        "maximum": lambda: max(left, right),
        "divide": lambda: int(np.trunc(left / right)),
    }[term.operator]()


class Maker:
    """A kernel that stores random integer expressions, each in a block of its own for every program instance."""

    def __init__(self, drawn):
        self.random = drawn
        parameters = [Parameter("n"), Parameter("m"), Parameter("out")]
        kinds = [scalar(int32), scalar(int64), scalar(PointerType(int64))]
        values = [SSAValue(kind, entry.name) for kind, entry in zip(kinds, parameters, strict=True)]
        self.function = Function("bounded", Region(values), parameters)
        self.build = Builder(self.function)
        self.out = values[2]
        self.lanes = self.build.emit("arange", start=0, end=LANES)
        self.pool = [self.spread(self.build.emit("cast", value, dtype=int32)) for value in values[:2]]
        self.pool += [self.lanes, self.build.emit("arange", start=-3, end=LANES - 3)]
        for opcode in ("program_id", "num_programs"):
            self.pool += [self.spread(self.build.emit(opcode, axis=axis)) for axis in (0, 1)]
        self.stored = []

    def spread(self, value):
        return self.build.emit("splat", value, shape=(LANES,))

    def constant(self, *choices):
        return self.build.constant(self.random.choice(choices), int32, (LANES,))

    def small(self):
        """One in reach, taken to be below 1000 in magnitude so that nothing overflows."""
        value = self.random.choice(self.pool)
        return self.build.emit("remainder", value, self.constant(1000)) if self.random.random() < 0.8 else value

    def expression(self):
        emit, kind = self.build.emit, self.random.choice(["binary"] * 3 + ["constant"] * 3 + ["select", "loop", "if"])
        left, right = self.small(), self.small()
        if kind == "binary":
            return emit(self.random.choice(["add", "subtract", "multiply", "minimum", "maximum", "and"]), left, right)
        if kind == "constant":
            opcode = self.random.choice(["divide", "remainder", "and", "shift_left", "multiply", "negate"])
            return emit(opcode, left) if opcode == "negate" else emit(opcode, left, self.constant(1, 2, 3, 7))
        if kind == "select":
            return emit("select", emit("compare", left, right, predicate="lt"), right, self.small())
        scalars = [emit("program_id", axis=0), emit("num_programs", axis=1), self.build.constant(2)]
        if kind == "if":
            condition = emit("compare", scalars[0], scalars[2], predicate="lt")
            (result,) = self.build.if_branch(condition, lambda: [left], lambda: [right])
            return result

        def body(index, carried):
            added = self.random.choice([right, self.spread(scalars[0])])
            if self.random.random() < 0.3:
                return [emit("maximum", self.spread(index), left)]
            return [emit("add", carried[0], added)]

        step = self.build.constant(self.random.choice([1, 3]))
        (result,) = self.build.for_loop(self.random.choice(scalars), self.build.constant(7), step, [left], body)
        return result

    def kernel(self, length):
        for _ in range(length):
            value = self.expression()
            if self.random.random() < 0.3:
                value = self.build.emit("cast", self.build.emit("cast", value, dtype=int64), dtype=int32)
            self.pool.append(value)
            self.store(value)
        self.build.create("return")
        return self.function

    def store(self, value):
        emit = self.build.emit
        place = emit("program_id", axis=0)
        for extent, axis in ((GRID[1], 1), (1 << 6, None)):
            other = emit("program_id", axis=axis) if axis else self.build.constant(len(self.stored))
            place = emit("add", emit("multiply", place, self.build.constant(extent)), other)
        place = emit("multiply", place, self.build.constant(LANES))
        block = emit("offset", self.spread(self.out), emit("add", self.spread(place), self.lanes))
        self.build.create("store", [block, emit("cast", value, dtype=int64)])
        self.stored.append(value)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**64), st.integers(1, 12), st.integers(-20, 20), st.integers(0, 9))
def test_bounds_hold_what_is_computed(seed, length, n, m):
    maker = Maker(random.Random(seed))
    function = maker.kernel(length)
    out = np.zeros((GRID[0] * GRID[1], 64, LANES), np.int64)
    interpreter.run(function, [n, m, out], GRID)
    ranges = Ranges(function, AffineAnalysis(function))
    for place, value in enumerate(maker.stored):
        found = ranges.of(value)
        if found is not None:
            low, high = (number(end, {"n": n, "m": m}) for end in (found.low, found.high))
            values = out[:, place]
            assert low <= values.min() and values.max() <= high, (place, low, high)


@tilewright.jit
def places(x, n, m, N: tl.constexpr):
    for start in range(tl.program_id(0) * N, n, tl.num_programs(0) * N):
        one = start + tl.arange(0, N)
        tl.store(x + one, 0, mask=(one < n) & (one >= m))
    block = x + tl.arange(0, N)
    for _ in range(0, n, 4):
        tl.store(block, 1)
        block += 2 * N
    pair = tl.program_id(1) * N + (tl.arange(0, N) + m) % 7
    tl.store(x + pair // 2, 2)
    tl.store(x + tl.load(x).to(tl.int32) + tl.arange(0, N), 3)
    lane = tl.arange(0, N)
    tl.store(x + lane[:, None] * 100 + lane[None, :], 4, mask=lane[None, :] < m)
    tl.store((x + lane)[None, :] + lane[:, None] * 100, 5, mask=lane[:, None] < m)
    tl.store(x + lane // (n // m), 6, mask=lane < n)


def test_bounds_are_tight():
    from tilewright.passes.pipeline import run_passes
    from tilewright.targets.cpu.pipeline import CPU_PASSES

    traced = places.trace({"x": "*i32", "n": "i32", "m": "i32"}, {"N": 16})
    function = run_passes(traced, tuple(step for step, _ in CPU_PASSES))
    analysis = AffineAnalysis(function)
    found = []
    for store in (operation for operation in function.walk() if operation.opcode == "store"):
        mask = store.operands[2] if len(store.operands) > 2 else None
        ranges = Ranges(function, analysis)
        ends = (ranges if mask is None else ranges.within(mask)).distance(store.operands[0])
        found.append(ends and tuple(number(end, {"n": 50, "m": 5}) // 4 for end in (ends.low, ends.high)))
    assert found == [(5, 49), (0, 15 + 13 * 32), (-3, 11), None, (0, 1504), (0, 415), (0, 1)]
