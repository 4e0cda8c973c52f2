"""The text form: prints, parses back to the same, and says what is wrong with a text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.host.random_kernels import random_kernel
from tilewright.dtypes import DTYPES
from tilewright.errors import InvalidIRError
from tilewright.ir.core import Function, Operation, Region
from tilewright.ir.ops import attribute_key
from tilewright.ir.parser import parse_function, parse_type
from tilewright.ir.printer import print_function, print_operation

SOFTMAX = """
kernel softmax(%x: *k f32 {divisibility = 16}, %y: *f32 {alias_free = true}, %n: i32) {num_warps = 4} {
  %0 = program_id {axis = 0} : i32
  %row = multiply %0, %n : i32
  %columns = arange {start = 0, end = 8} : <8xi32>
  %1 = splat %n {shape = [8]} : <8xi32>
  %mask = compare %columns, %1 {predicate = "lt"} : <8xi1>
  %2 = offset %x, %row : *k f32
  %3 = splat %2 {shape = [8]} : <8x*k f32>
  %4 = offset %3, %columns : <8x*k f32>
  %low = constant -inf : <8xf32>
  %5 = load %4, %mask, %low {eviction = "evict_first"} : <8xf32>
  %6 = reduce %5 {axis = 0} : f32 {(%left: f32, %right: f32)
    %7 = maximum %left, %right : f32
    yield %7
  }
  %8 = splat %6 {shape = [8]} : <8xf32>
  %9 = subtract %5, %8 : <8xf32>
  %10 = exp %9 : <8xf32> loc("softmax.py":12:4 in "softmax" from "model.py":3:0)
  %11 = reduce %10 {axis = 0} : f32 {(%left_1: f32, %right_1: f32)
    %12 = add %left_1, %right_1 : f32
    yield %12
  }
  %13 = splat %11 {shape = [8]} : <8xf32>
  %14 = divide %10, %13 : <8xf32>
  %15 = offset %y, %row : *f32
  %16 = splat %15 {shape = [8]} : <8x*f32>
  %17 = offset %16, %columns : <8x*f32>
  store %17, %14, %mask
  return
}
"""


def same(left: Region, right: Region) -> bool:
    """Structural equality: everything but the names of values."""
    numbers = ({}, {})

    def describe(region: Region, side: int) -> list[object]:
        for value in region.arguments:
            numbers[side][value] = len(numbers[side])
        return [value.type for value in region.arguments] + [one(operation, side) for operation in region.operations]

    def one(operation: Operation, side: int) -> tuple[object, ...]:
        operands = [numbers[side][value] for value in operation.operands]
        regions = [describe(region, side) for region in operation.regions]
        for value in operation.results:
            numbers[side][value] = len(numbers[side])
        attributes = {name: attribute_key(value) for name, value in operation.attributes.items()}
        return operation.opcode, operands, operation.result_types, attributes, regions, operation.location

    return describe(left, 0) == describe(right, 1)


def test_text_of_a_kernel_round_trips():
    function = parse_function(SOFTMAX)
    assert print_function(function, locations=True) == SOFTMAX.lstrip()
    assert "loc(" not in print_function(function)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**64))
def test_random_kernels_round_trip(seed: int):
    function = random_kernel(random.Random(seed))
    text = print_function(function, locations=True)
    again = parse_function(text)
    assert same(function.region, again.region)
    assert (again.name, again.parameters) == (function.name, function.parameters)
    assert again.attributes == function.attributes
    assert print_function(again, locations=True) == text


@given(st.floats(), st.sampled_from([dtype for dtype in DTYPES if dtype.is_float]))
def test_float_constants_round_trip(value: float, dtype):
    function = Function("f", Region(), [])
    from tilewright.ir.builder import Builder

    Builder(function).constant(value, dtype)
    (constant,) = parse_function(print_function(function)).region.operations
    assert attribute_key(constant.attributes["value"]) == attribute_key(
        function.region.operations[0].attributes["value"]
    )


def test_attributes_of_every_kind_round_trip():
    text = 'kernel f() {a.b = [1.5, nan, -inf, -0.0, 3, true, false, "x", f32, *k f16, [], [[1], 2]]} {\n  return\n}\n'
    assert print_function(parse_function(text)) == text


@pytest.mark.parametrize("text", ["f32", "*f32", "*k bf16", "<128x64xf32>", "<8x*k i8>", "i1"])
def test_types_round_trip(text: str):
    assert str(parse_type(text)) == text


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("kernel f( {", "line 1: expected value"),
        ("kernel f() { return", "expected word"),
        ("kernel f() { %0 = frobnicate return }", "unknown opcode 'frobnicate'"),
        ("kernel f() { %0 = constant 300 : i8 }", "300 does not fit i8"),
        ("kernel f() { %0 = constant 1.5 : i32 }", "1.5 is not a whole number"),
        ("kernel f() { %0 = constant 1 : <4x*f32> }", "not a pointer"),
        ("kernel f() {\n %0 = negate %1 : f32 }", "line 2: %1 is not defined here"),
        ("kernel f(%x: f32) {\n\n %0 = negate %x : f64 }", "line 3: negate: the result types are f32"),
        ("kernel f(%x: f32) { %x = negate %x : f32 }", "%x is defined twice"),
        ("kernel f(%x: f32) { %a, %b = negate %x : f32 }", "has 1 results, not 2"),
        ("kernel f(%x: f33) { return }", "unknown element type 'f33'"),
        ("kernel f(%x: f32 {divisor = 3}) { return }", "attributes divisibility and alias_free"),
        ('kernel f() { assert {message = "\\q"} }', "malformed string"),
        ("kernel f() { ? }", "unexpected character '?'"),
        ("kernel f() { return } more", "expected end"),
        ("kernel f() { %0 = program_id {axis = 3} : i32 }", "axis 3 is not 0, 1 or 2"),
        ("kernel f() { %0 = program_id : i32 }", "attribute 'axis' is missing"),
        ('kernel f() { barrier {kind = "x"} }', "unknown attribute 'kind'"),
    ],
)
def test_parser_says_what_is_wrong(broken: str, message: str):
    with pytest.raises(InvalidIRError) as caught:
        parse_function(broken)
    assert message in str(caught.value)


def test_one_operation_prints():
    function = parse_function(SOFTMAX)
    reduce = next(operation for operation in function.walk() if operation.opcode == "reduce")
    assert print_operation(reduce).split("\n")[0] == "%1 = reduce %0 {axis = 0} : f32 {(%left: f32, %right: f32)"
