"""Reductions inside a nest: accumulators, their steps, and the fold across lanes.

A combine region that is one known operation (add, multiply, minimum, …) has a neutral element (NaN, where
NaN loses to every number), and narrow floats are accumulated in float32.  Any other region is inlined on
vectors of group values; a flag for each lane tells whether its accumulator holds anything yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ir.core import Operation, Region, SSAValue
from tilewright.ir.ops import ELEMENTWISE
from tilewright.targets.cpu.attributes import number
from tilewright.targets.cpu.demand import value_outside
from tilewright.targets.cpu.elementwise import identity_of, unsupported
from tilewright.targets.cpu.evaluate import Evaluator
from tilewright.targets.cpu.indices import Indices
from tilewright.targets.cpu.schedule import Root
from tilewright.targets.llvm.builder import LLVMValue, vector_type
from tilewright.targets.llvm.conversions import Converter, register_type

_KNOWN = {"add", "multiply", "minimum", "maximum", "and", "or", "xor"}
Accumulator = list[LLVMValue]


def known_combination(region: Region) -> str | None:
    """The opcode of a combine region that is one operation of its two arguments."""
    if len(region.arguments) != 2 or len(region.operations) != 2:
        return None
    operation = region.operations[0]
    if operation.opcode not in _KNOWN or region.terminator.operands[0] not in operation.results:
        return None
    return operation.opcode if set(operation.operands) == set(region.arguments) else None


def inline_region(evaluator: Evaluator, region: Region, arguments: Sequence[LLVMValue]) -> list[LLVMValue]:
    """The values that a region of elementwise operations and branches yields, on scalars or vectors.

    Of a branch both sides are computed and the result selected.
    """
    known: dict[SSAValue, LLVMValue] = dict(zip(region.arguments, arguments, strict=True))
    return _inline(evaluator, region, known, max(argument.lanes for argument in arguments))


def _inline(evaluator: Evaluator, region: Region, known: dict[SSAValue, LLVMValue], lanes: int) -> list[LLVMValue]:
    builder = evaluator.builder

    def operand(value: SSAValue) -> LLVMValue:
        found = known[value] if value in known else evaluator.scalars[value]
        return builder.splat(found, lanes)

    for operation in region.operations[:-1]:
        if operation.opcode == "constant":
            known[operation.result] = evaluator.number(operation.result.type.element, number(operation))
        elif operation.opcode in ELEMENTWISE:
            operands = [operand(value) for value in operation.operands]
            known[operation.result] = evaluator.elementwise.emit(operation, operands)
        elif operation.opcode == "if":
            condition = operand(operation.operands[0])
            sides = [_inline(evaluator, side, known, lanes) for side in operation.regions]
            for result, then, otherwise in zip(operation.results, *sides, strict=True):
                known[result] = builder.select(condition, then, otherwise)
        else:
            raise unsupported(operation, "a combine function may only hold arithmetic, comparisons and branches")
    return [operand(value) for value in region.terminator.operands]


class Combination:
    """The combine region of a `reduce`; `known` is its opcode when it is one known operation."""

    def __init__(self, evaluator: Evaluator, operation: Operation) -> None:
        self.evaluator = evaluator
        self.region = operation.regions[0]
        self.dtype: DType = operation.operands[0].type.dtype
        self.known = known_combination(self.region)
        self.nan = "wins" if self.region.operations[0].attributes.get("propagate_nan", False) else "loses"

    @property
    def wide(self) -> DType:
        """The type of a known combination's accumulator."""
        return dtypes.float32 if self.dtype.is_float and self.dtype.bits < 32 else self.dtype

    def widen(self, values: list[LLVMValue]) -> list[LLVMValue]:
        """Elements as `combine` takes them."""
        return [self._converter.widen(values[0], self.dtype)] if self.known is not None else values

    def narrow(self, values: list[LLVMValue]) -> list[LLVMValue]:
        """What `combine` gives, in the operands' types."""
        return [self._converter.narrow(values[0], self.dtype)] if self.known is not None else values

    def combine(self, left: list[LLVMValue], right: list[LLVMValue]) -> list[LLVMValue]:
        """The left group with the right group."""
        if self.known is None:
            return inline_region(self.evaluator, self.region, [*left, *right])
        return [self.evaluator.elementwise.combine(self.known, left[0], right[0], self.wide, self.nan)]

    @property
    def _converter(self) -> Converter:
        return self.evaluator.elementwise.converter


class ReductionLoop:
    """One `reduce` root; `count` LLVM values are carried for it through its loop.

    A `quick` minimum or maximum begins with an infinity and passes over NaN by one comparison; one that still is
    that infinity at the end may be of nothing but NaN, for which the elements must be looked at again (`numbers`).
    """

    def __init__(self, evaluator: Evaluator, root: Root, quick: bool = False) -> None:
        self.evaluator = evaluator
        self.builder = evaluator.builder
        self.root = root
        self.operands = root.operation.operands
        self.combination = Combination(evaluator, root.operation)
        self.known = self.combination.known
        extremum = self.known in ("minimum", "maximum") and self.combination.dtype.is_float
        self.drops_nan = extremum and self.combination.nan != "wins"  # the result is NaN only where all elements are
        self.quick = quick and self.drops_nan
        if self.quick:
            self.combination.nan = "passed over"
        self.count = 1 if self.known else len(self.operands) + 1

    def is_neutral_outside(self, compares: frozenset[SSAValue]) -> bool:
        """Whether elements outside a mask leave the result as it is."""
        if self.known is None:
            return False
        outside = value_outside(self.operands[0], compares)
        return outside is not None and outside == identity_of(self.known, self.combination.dtype)

    @property
    def identity(self) -> LLVMValue:
        """The neutral element of a known combination, of numbers, as its accumulator holds it."""
        assert self.known is not None
        return self.evaluator.number(self.combination.wide, identity_of(self.known, self.combination.dtype))

    @property
    def not_a_number(self) -> LLVMValue:
        """NaN, as the accumulator of a known combination holds it."""
        return self.evaluator.number(self.combination.wide, math.nan)

    def numbers(self, found: LLVMValue, indices: Indices) -> LLVMValue:
        """The lanes `found`, and those of the elements at `indices` that exist and are no NaN."""
        (value,) = self.combination.widen([self.evaluator.vector(self.operands[0], indices, found.lanes)])
        number = self.builder.compare("ord", value, value)
        axis = self.root.reduced_axis
        assert axis is not None
        valid = indices[axis].valid if indices[axis].lanes > 1 else None
        if valid is not None:
            number = self.builder.binary("and", number, valid)
        return self.builder.binary("or", found, number)

    def start(self, lanes: int) -> Accumulator:
        """Accumulators of `lanes` lanes that hold nothing."""
        if self.known is not None:
            neutral = self.not_a_number if self.drops_nan and not self.quick else self.identity
            return [self.builder.splat(neutral, lanes)]
        empty = [self.builder.zero(vector_type(register_type(value.type.element), lanes)) for value in self.operands]
        return [*empty, self.builder.constant(vector_type("i1", lanes), False)]

    def step(self, accumulator: Accumulator, indices: Indices) -> Accumulator:
        """The accumulators after the elements at `indices`."""
        lanes = accumulator[0].lanes
        values = [self.evaluator.vector(operand, indices, lanes) for operand in self.operands]
        axis = self.root.reduced_axis
        assert axis is not None
        valid = indices[axis].valid if indices[axis].lanes > 1 else None
        if self.known is not None:
            (value,) = self.combination.widen(values)
            if valid is not None:
                value = self.builder.select(valid, value, self.start(lanes)[0])
            return self.combination.combine(accumulator, [value])
        there = valid if valid is not None else self.builder.constant(vector_type("i1", lanes), True)
        return self._merge(accumulator, [*values, there])

    def _merge(self, left: Accumulator, right: Accumulator) -> Accumulator:
        """Two groups, each with a flag that tells whether it holds anything."""
        builder = self.builder
        has_left, has_right = left[-1], right[-1]
        combined = self.combination.combine(left[:-1], right[:-1])
        neither = [builder.select(has_left, one, other) for one, other in zip(left[:-1], right[:-1], strict=True)]
        two = builder.binary("and", has_left, has_right)
        merged = [builder.select(two, value, single) for value, single in zip(combined, neither, strict=True)]
        return [*merged, builder.binary("or", has_left, has_right)]

    def fold(self, accumulator: Accumulator, lanes: int) -> Accumulator:
        """Accumulators narrowed to `lanes` lanes by combining halves."""
        while accumulator[0].lanes > lanes:
            width = accumulator[0].lanes
            half = width // 2
            low = [self._part(value, 0, half) for value in accumulator]
            high = [self._part(value, half, half) for value in accumulator]
            accumulator = self.combination.combine(low, high) if self.known else self._merge(low, high)
        return accumulator

    def _part(self, value: LLVMValue, start: int, lanes: int) -> LLVMValue:
        if lanes == 1:
            return self.builder.extract(value, start)
        return self.builder.shuffle(value, None, range(start, start + lanes))

    def results(self, accumulator: Accumulator, some_left_out: LLVMValue | None) -> list[LLVMValue]:
        """The reduction's results, in the operands' types; the i1 tells whether neutral elements were left out."""
        if not self.known:
            return accumulator[:-1]
        (value,) = accumulator
        if some_left_out is not None and self.drops_nan:  # those are numbers
            builder = self.builder
            nothing = builder.compare("uno", value, value)
            outside = builder.binary("and", builder.splat(some_left_out, value.lanes), nothing)
            value = builder.select(outside, builder.splat(self.identity, value.lanes), value)
        return self.combination.narrow([value])
