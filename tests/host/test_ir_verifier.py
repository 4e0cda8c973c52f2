"""The verifier accepts what the builder makes and finds planted errors."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.host.random_kernels import random_kernel
from tilewright.dtypes import float32, int32
from tilewright.errors import InvalidIRError
from tilewright.ir.builder import Builder
from tilewright.ir.core import Function, Location, Operation, Parameter, Region, SSAValue
from tilewright.ir.parser import parse_function
from tilewright.ir.types import TensorType, scalar
from tilewright.ir.verifier import verify

TEXT = """
kernel f(%n: i32, %x: f32) {
  %zero = constant 0 : i32
  %one = constant 1 : i32
  %sum = for %zero, %n, %one, %x : f32 {(%i: i32, %acc: f32)
    %next = add %acc, %x : f32
    yield %next
  }
  %block = splat %sum {shape = [8]} : <8xf32>
  %total = reduce %block {axis = 0} : f32 {(%left: f32, %right: f32)
    %both = add %left, %right : f32
    yield %both
  }
  %flag = compare %total, %x {predicate = "lt"} : i1
  assert %flag {message = "small"}
  return
}
"""


def find(function: Function, opcode: str) -> Operation:
    return next(operation for operation in function.walk() if operation.opcode == opcode)


def wrong_result_type(function: Function) -> None:
    add = find(function, "add")
    add.result_types[0] = add.results[0].type = scalar(int32)


def result_without_definition(function: Function) -> None:
    find(function, "splat").results[0].definition = None


def operand_from_nowhere(function: Function) -> None:
    find(function, "splat").operands[0] = SSAValue(scalar(float32))


def operand_out_of_region(function: Function) -> None:
    find(function, "splat").operands[0] = find(function, "add").result


def use_before_definition(function: Function) -> None:
    operations = function.region.operations
    operations.insert(0, operations.pop(operations.index(find(function, "splat"))))


def unknown_opcode(function: Function) -> None:
    find(function, "splat").opcode = "spalt"


def missing_terminator(function: Function) -> None:
    function.region.operations.pop()


def return_in_a_loop(function: Function) -> None:
    find(function, "for").regions[0].operations[-1] = Operation("return", [], [])


def code_after_return(function: Function) -> None:
    Builder(function).constant(1)


def missing_yield_value(function: Function) -> None:
    find(function, "for").regions[0].terminator.operands.pop()


def missing_attribute(function: Function) -> None:
    del find(function, "compare").attributes["predicate"]


def wrong_attribute_kind(function: Function) -> None:
    find(function, "reduce").attributes["axis"] = "0"


def wrong_axis(function: Function) -> None:
    find(function, "reduce").attributes["axis"] = 1


def unrounded_constant(function: Function) -> None:
    builder = Builder(Region())
    constant = builder.constant(0.1, float32).definition
    assert constant is not None
    constant.attributes["value"] = 0.1
    function.region.operations.insert(0, constant)


def operation_twice(function: Function) -> None:
    function.region.operations.insert(1, function.region.operations[0])


def region_twice(function: Function) -> None:
    reduce = find(function, "reduce")
    builder = Builder(Region())
    other = builder.create("reduce", reduce.operands, reduce.attributes, reduce.regions)
    function.region.operations.insert(-1, other)


def effect_in_combine(function: Function) -> None:
    find(function, "reduce").regions[0].operations.insert(0, Operation("barrier", [], []))


def block_in_combine(function: Function) -> None:
    builder = Builder(Region())
    builder.constant(1.0, float32, (4,))
    find(function, "reduce").regions[0].operations[:0] = builder.current.operations


def parameter_is_a_block(function: Function) -> None:
    function.region.arguments.append(SSAValue(TensorType((4,), int32)))
    function.parameters.append(Parameter("block"))


def parameter_not_described(function: Function) -> None:
    function.parameters.pop()


def parameters_of_one_name(function: Function) -> None:
    function.parameters[1] = Parameter("n")


def odd_divisibility(function: Function) -> None:
    function.parameters[0] = Parameter("n", divisibility=12)


def too_many_operands(function: Function) -> None:
    find(function, "splat").operands.append(function.region.arguments[1])


def too_many_regions(function: Function) -> None:
    find(function, "splat").regions.append(Region())


PLANTED: list[tuple[Callable[[Function], None], str]] = [
    (wrong_result_type, "result types should be f32"),
    (result_without_definition, "a result does not belong to its operation"),
    (operand_from_nowhere, "not defined before its use"),
    (operand_out_of_region, "not defined before its use, or not in reach"),
    (use_before_definition, "not defined before its use"),
    (unknown_opcode, "unknown opcode 'spalt'"),
    (missing_terminator, "a region does not end in return"),
    (return_in_a_loop, "a region does not end in yield"),
    (code_after_return, "a region does not end in return"),
    (missing_yield_value, "loop body yields (), not (f32)"),
    (missing_attribute, "attribute 'predicate' is missing"),
    (wrong_attribute_kind, "attribute 'axis' = '0' is not of kind 'int'"),
    (wrong_axis, "axis 1 is outside <8xf32>"),
    (unrounded_constant, "attribute 'value' should be 0.10000000149011612"),
    (operation_twice, "the same operation occurs twice"),
    (region_twice, "the same region occurs twice"),
    (effect_in_combine, "only pure scalar operations"),
    (block_in_combine, "only pure scalar operations"),
    (parameter_is_a_block, "parameter block is a block"),
    (parameter_not_described, "2 arguments but 1 parameter descriptions"),
    (parameters_of_one_name, "not distinct identifiers: n, n"),
    (odd_divisibility, "divisibility 12 of n is no power of two"),
    (too_many_operands, "takes 1 operands, not 2"),
    (too_many_regions, "takes 0 regions, not 1"),
]


@pytest.mark.parametrize(("plant", "message"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_finds_planted_errors(plant: Callable[[Function], None], message: str):
    function = parse_function(TEXT)
    verify(function)
    plant(function)
    with pytest.raises(InvalidIRError) as caught:
        verify(function)
    assert message in str(caught.value)
    assert "kernel f" in str(caught.value)


def test_error_names_operation_and_source_line():
    function = parse_function(TEXT)
    find(function, "splat").location = Location("kernels.py", 12, 4)
    operand_from_nowhere(function)
    with pytest.raises(InvalidIRError, match=r"splat at kernels\.py:12:4: .*\n  %\w+ = splat"):
        verify(function)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**64))
def test_accepts_random_kernels(seed: int):
    verify(random_kernel(random.Random(seed)))


def test_builder_refuses_what_the_table_does():
    builder = Builder(Region(), Location("k.py", 7))
    left, right = builder.constant(1.0, float32), builder.constant(1, int32)
    with pytest.raises(InvalidIRError, match=r"k\.py:7:0: add: operand types differ: f32, i32"):
        builder.emit("add", left, right)
    with pytest.raises(InvalidIRError, match="exp: operand of type i32 is not of kind 'float'"):
        builder.emit("exp", right)
