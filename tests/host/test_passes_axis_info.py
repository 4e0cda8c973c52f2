"""Axis facts: known cases, and soundness against the numbers that the interpreter computes."""

from __future__ import annotations

import random as random_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.dtypes import float32, int32, int64
from tilewright.ir import interpreter
from tilewright.ir.builder import Builder
from tilewright.ir.core import Function, Parameter, Region, SSAValue
from tilewright.ir.memory import LaunchMemory
from tilewright.ir.parser import parse_function
from tilewright.ir.types import PointerType, TensorType, scalar
from tilewright.ir.verifier import verify
from tilewright.passes.axis_info import LARGEST_DIVISOR, AxisInfo, analyze_axes


def facts_of(parameters: str, body: str) -> dict[str, AxisInfo]:
    function = parse_function(f"kernel k({parameters}) {{\n{body}\nreturn\n}}")
    verify(function)
    return {value.name: info for value, info in analyze_axes(function).items() if value.name}


def test_offsets_of_a_program_instance():
    facts = facts_of(
        "%x: *f32 {divisibility = 16}, %n: i32 {divisibility = 16}",
        """
        %pid = program_id {axis = 0} : i32
        %b = constant 64 : i32
        %start = multiply %pid, %b : i32
        %s = splat %start {shape = [64]} : <64xi32>
        %i = arange {start = 0, end = 64} : <64xi32>
        %offsets = add %s, %i : <64xi32>
        %ns = splat %n {shape = [64]} : <64xi32>
        %mask = compare %offsets, %ns {predicate = "lt"} : <64xi1>
        %wrong = compare %offsets, %ns {predicate = "le"} : <64xi1>
        %xs = splat %x {shape = [64]} : <64x*f32>
        %p = offset %xs, %offsets : <64x*f32>
        %odd = constant 1 : <64xi32>
        %moved = add %offsets, %odd : <64xi32>
        %rows = remainder %offsets, %ns : <64xi32>
        %q = divide %offsets, %ns : <64xi32>
        """,
    )
    assert facts["offsets"] == AxisInfo((64,), (64,), (1,))
    assert facts["mask"].constancy == (16,) and facts["wrong"].constancy == (1,)
    assert facts["p"] == AxisInfo((64,), (16,), (1,))
    assert facts["moved"] == AxisInfo((64,), (1,), (1,))
    assert facts["rows"].contiguity == (16,) and facts["rows"].divisibility == (16,)
    assert facts["q"].constancy == (16,)


def test_rows_wrap_around_in_tiles_of_grouped_programs():
    """Programs divided by a number whose sign is not known: still none below zero, as far as programs go."""
    body = """
        %four = constant 4 : i32
        %b = constant 32 : i32
        %group = minimum %rows, %four : i32
        %tile = divide {} : i32
        %start = multiply %tile, %b : i32
        %s = splat %start {{shape = [32]}} : <32xi32>
        %i = arange {{start = 0, end = 32}} : <32xi32>
        %offsets = add %s, %i : <32xi32>
        %ns = splat %n {{shape = [32]}} : <32xi32>
        %wrapped = remainder %offsets, %ns : <32xi32>
        """
    parameters = "%rows: i32, %n: i32 {divisibility = 16}"
    part = "%pid = program_id {axis = 0} : i32\n%within = remainder %pid, %rows : i32\n"
    assert facts_of(parameters, part + body.format("%within, %group"))["wrapped"].contiguity == (16,)
    assert facts_of(parameters, body.format("%rows, %group"))["wrapped"].contiguity == (1,)


def test_two_axes():
    facts = facts_of(
        "%x: *f16 {divisibility = 16}, %stride: i32 {divisibility = 8}",
        """
        %i = arange {start = 0, end = 8} : <8xi32>
        %rows = expand_dims %i {axis = 1} : <8x1xi32>
        %columns = expand_dims %i {axis = 0} : <1x8xi32>
        %st = splat %stride {shape = [8, 1]} : <8x1xi32>
        %ro = multiply %rows, %st : <8x1xi32>
        %rb = broadcast %ro {shape = [8, 8]} : <8x8xi32>
        %cb = broadcast %columns {shape = [8, 8]} : <8x8xi32>
        %o = add %rb, %cb : <8x8xi32>
        %xs = splat %x {shape = [8, 8]} : <8x8x*f16>
        %p = offset %xs, %o : <8x8x*f16>
        %t = permute %p {order = [1, 0]} : <8x8x*f16>
        """,
    )
    assert facts["o"].contiguity == (1, 8) and facts["o"].divisibility[1] == 8
    assert facts["p"].contiguity == (1, 8) and facts["p"].divisibility[1] == 16
    assert facts["t"].contiguity == (8, 1) and facts["t"].divisibility[0] == 16


def test_loops_keep_what_every_iteration_keeps():
    facts = facts_of(
        "%x: *f32 {divisibility = 64}, %n: i32, %s: i32 {divisibility = 4}",
        """
        %zero = constant 0 : i32
        %step = constant 32 : i32
        %p, %q = for %zero, %n, %step, %x, %x : *f32, *f32 {(%i: i32, %a: *f32, %b: *f32)
          %a1 = offset %a, %s : *f32
          %b1 = offset %b, %n : *f32
          yield %a1, %b1
        }
        """,
    )
    assert facts["i"].divisibility == (32,)
    assert facts["p"].divisibility == facts["a"].divisibility == (16,)
    assert facts["q"].divisibility == (4,)


def test_hints_are_believed():
    facts = facts_of(
        "%n: i32",
        """
        %m = hint %n {divisibility = [16]} : i32
        %s = splat %n {shape = [8]} : <8xi32>
        %h = hint %s {contiguity = [8], divisibility = [8]} : <8xi32>
        """,
    )
    assert facts["m"].divisibility == (16,)
    assert facts["h"].contiguity == (8,) and facts["h"].divisibility == (8,)


# Soundness ---------------------------------------------------------------------------------------

SHAPES = [(), (8,), (12,), (4, 8), (8, 1), (1, 8)]


class IndexMaker:
    """A kernel of index arithmetic in i64, with numbers too small to wrap."""

    def __init__(self, random: random_module.Random) -> None:
        self.random = random
        names = [Parameter("x", 16), Parameter("y", 4), Parameter("n", 8), Parameter("m", 1)]
        types = [scalar(PointerType(float32)), scalar(PointerType(float32)), scalar(int64), scalar(int64)]
        values = [SSAValue(type_, parameter.name) for type_, parameter in zip(types, names, strict=True)]
        self.function = Function("k", Region(list(values)), names)
        self.build = Builder(self.function)
        self.pool = values[2:]
        self.pointers = values[:2]

    def make(self, length: int) -> Function:
        self.steps(length)
        self.build.create("return")
        return self.function

    def steps(self, length: int) -> None:
        makers = [self.arithmetic] * 6 + [self.source, self.source, self.shape, self.shape, self.choose,
                  self.compare, self.pointer, self.loop]  # fmt: skip
        for _ in range(length):
            self.random.choice(makers)()

    def value(self, shape: tuple[int, ...]) -> SSAValue:
        found = [value for value in self.pool if value.type == TensorType(shape, int64)]
        if found and self.random.random() < 0.8:
            return self.random.choice(found)
        if shape and self.random.random() < 0.5:
            return self.build.emit("splat", self.value(()), shape=shape)
        return self.build.constant(self.random.choice([-16, -3, 0, 1, 2, 8, 12, 16, 48]), int64, shape)

    def any_value(self) -> SSAValue:
        return self.random.choice([value for value in self.pool if value.type.element == int64])

    def arithmetic(self) -> None:
        left, opcode = (
            self.any_value(),
            self.random.choice(
                ["add", "add", "subtract", "multiply", "divide", "remainder", "minimum", "maximum", "shift_left"]
            ),
        )
        right = self.value(left.type.shape)
        if opcode in ("multiply", "shift_left") or self.random.random() < 0.3:
            numbers = [1, 2, 3] if opcode == "shift_left" else [1, 2, 4, 8, 12]
            right = self.build.constant(self.random.choice(numbers), int64, left.type.shape)
        operands = [right, left] if opcode in ("add", "subtract") and self.random.random() < 0.5 else [left, right]
        result = self.build.emit(opcode, *operands)
        # Back into a small range, in a way that the analysis knows nothing about.
        if opcode in ("multiply", "shift_left") and self.random.random() < 0.8:
            return self.pool.append(result) if self.depth_of(result) < 4 else None
        self.pool.append(result)

    def depth_of(self, value: SSAValue) -> int:
        """How many products lie behind a value."""
        if value.definition is None:
            return 0
        own = value.definition.opcode in ("multiply", "shift_left")
        return own + max((self.depth_of(operand) for operand in value.definition.operands), default=0)

    def source(self) -> None:
        start = self.random.choice([-8, 0, 4, 16])
        index = self.build.emit("arange", start=start, end=start + self.random.choice([8, 12]))
        scalar_id = self.build.emit("program_id", axis=0)
        for value in (index, scalar_id):
            self.pool.append(self.build.emit("cast", value, dtype=int64))

    def shape(self) -> None:
        value, emit = self.any_value(), self.build.emit
        if value.type.rank == 1:
            value = emit("expand_dims", value, axis=self.random.randrange(2))
            self.pool.append(value)
        if value.type.rank == 2:
            shape = tuple(self.random.choice([4, 8]) if extent == 1 else extent for extent in value.type.shape)
            self.pool.append(emit("broadcast", value, shape=shape))
            self.pool.append(emit("permute", self.pool[-1], order=(1, 0)))
            self.pool.append(emit("reshape", self.pool[-2], shape=(1, *shape)))

    def compare(self) -> None:
        left = self.any_value()
        predicate = self.random.choice(["eq", "ne", "lt", "le", "gt", "ge"])
        self.pool.append(self.build.emit("compare", left, self.value(left.type.shape), predicate=predicate))

    def choose(self) -> None:
        masks = [value for value in self.pool if value.type.element.text == "i1"]
        if masks:
            shape = (mask := self.random.choice(masks)).type.shape
            self.pool.append(self.build.emit("select", mask, self.value(shape), self.value(shape)))

    def pointer(self) -> None:
        count, pointer = self.any_value(), self.random.choice(self.pointers)
        if count.type.shape:
            pointer = self.build.emit("splat", pointer, shape=count.type.shape)
        moved = self.build.emit("offset", pointer, count)
        self.build.emit("offset", moved, self.value(count.type.shape))

    def loop(self) -> None:
        bounds = [self.build.constant(number, int64) for number in (self.random.choice([0, 4]), 9, 4)]
        initial = [self.any_value(), self.any_value()]

        def body(index: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
            outside = list(self.pool)
            self.pool += [index, *carried]
            for _ in range(3):
                self.random.choice([self.compare, self.choose, self.shape, self.source])()
            step = self.build.constant(self.random.choice([1, 4, 8]), int64, carried[0].type.shape)
            results = [self.build.emit("add", carried[0], step), self.value(carried[1].type.shape)]
            self.pool = outside
            return results

        results = self.build.for_loop(*bounds, initial, body)
        self.pool += results


def check(value: SSAValue, numbers: np.ndarray, facts: AxisInfo) -> None:
    scale = 4 if value.type.is_pointer else 1
    block = numbers.astype(np.int64).reshape(value.type.shape or (1,))
    for axis, extent in enumerate(block.shape):
        rows = np.moveaxis(block, axis, -1)
        contiguity, divisibility, constancy = (
            facts.contiguity[axis], facts.divisibility[axis], facts.constancy[axis]
        )  # fmt: skip
        assert extent % contiguity == 0 and extent % constancy == 0
        runs = rows.reshape(*rows.shape[:-1], extent // contiguity, contiguity)
        assert np.all(np.diff(runs, axis=-1) == scale), f"{value.definition} is not contiguous: {facts}\n{block}"
        assert np.all(runs[..., 0] % divisibility == 0), f"{value.definition} is not divisible: {facts}\n{block}"
        runs = rows.reshape(*rows.shape[:-1], extent // constancy, constancy)
        assert np.all(runs == runs[..., :1]), f"{value.definition} is not constant: {facts}\n{block}"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**64))
def test_facts_are_true_of_what_is_computed(seed: int):
    function = IndexMaker(random_module.Random(seed)).make(14)
    verify(function)
    facts = analyze_axes(function)
    memory = LaunchMemory()

    class Checked(interpreter._Instance):
        def operation(self, operation) -> None:
            super().operation(operation)
            for result in operation.results:
                check(result, self.values[result], facts[result])

    for program in range(2):
        for n, m in ((8, 7), (24, -5), (0, 16), (-8, 1)):
            values = dict(
                zip(
                    function.region.arguments,
                    [  # fmt: skip
                        np.asarray(memory.add(np.zeros(1, np.float32), "x")),
                        np.asarray(memory.add(np.zeros(9, np.float32), "y", offset=3)),
                        np.asarray(n),
                        np.asarray(m),
                    ],
                    strict=True,
                )
            )
            Checked(memory, (program, 0, 0), (2, 1, 1), values).region(function.region)


@pytest.mark.parametrize(("number", "divisor"), [(0, LARGEST_DIVISOR), (12, 4), (-16, 16), (1, 1)])
def test_constants_know_their_divisors(number: int, divisor: int):
    function = Function("k", Region(), [])
    value = Builder(function).constant(number, int32, (8,))
    assert analyze_axes(function)[value] == AxisInfo((1,), (divisor,), (8,))
