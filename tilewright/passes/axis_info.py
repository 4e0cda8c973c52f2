"""Facts about the numbers in a block, along each axis: runs of consecutive or equal values, and divisors.

    offsets = pid * 64 + arange(0, 64)          contiguity 64, divisibility 64, constancy 1
    mask    = offsets < n   (16 divides n)      constancy 16
    rows    = expand_dims(arange, 1)            contiguity (64, 1), divisibility (…), constancy (1, 1)

For an axis of extent n, cut into aligned runs of `contiguity` elements: within a run each value is the one before
plus 1 (pointers: plus one element), and the first of each run is divisible by `divisibility` (pointers: in bytes).
Cut into aligned runs of `constancy`, all values of a run are equal.  All three are powers of two; 1 says nothing.
A scalar is treated as a block of one axis of extent 1.

Integers are taken not to wrap around, as everywhere in address arithmetic; then every statement about an i32 sum
also holds for the address made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.ops import REARRANGING
from tilewright.ir.rewrite import constant_of
from tilewright.ir.types import PointerType, TensorType
from tilewright.passes.choice_rules import keeps_value

# The greatest divisor kept: of zero, which everything divides, and in general.
LARGEST_DIVISOR = 1 << 30


@dataclass(frozen=True)
class AxisInfo:
    """The facts of one value; each tuple has an entry for each axis (one for a scalar)."""

    contiguity: tuple[int, ...]
    divisibility: tuple[int, ...]
    constancy: tuple[int, ...]

    def __str__(self) -> str:
        return f"contiguity {self.contiguity}, divisibility {self.divisibility}, constancy {self.constancy}"


Columns = list[tuple[int, int, int]]  # contiguity, divisibility, constancy of each axis


def analyze_axes(function: Function) -> dict[SSAValue, AxisInfo]:
    """Facts for every value of a kernel (integers and pointers; of others the constancy only)."""
    analysis = _Analysis()
    for value, parameter in zip(function.region.arguments, function.parameters, strict=True):
        analysis.facts[value] = AxisInfo((1,), (parameter.divisibility,), (1,))
    analysis.region(function.region)
    return analysis.facts


def power_of_two(number: int) -> int:
    """The greatest power of two that divides `number`, at most `LARGEST_DIVISOR`."""
    return min(number & -number, LARGEST_DIVISOR) if number else LARGEST_DIVISOR


def unknown(type_: TensorType) -> AxisInfo:
    """Nothing is known."""
    ones = (1,) * max(1, type_.rank)
    return AxisInfo(ones, ones, ones)


def uniform(type_: TensorType, divisibility: int) -> AxisInfo:
    """All values are equal and divisible by a power of two."""
    shape = type_.shape or (1,)
    return AxisInfo((1,) * len(shape), (divisibility,) * len(shape), tuple(map(power_of_two, shape)))


def meet(left: AxisInfo, right: AxisInfo, type_: TensorType) -> AxisInfo:
    """What holds for both (all are powers of two, so the greatest common divisor is the minimum)."""
    scale = _item_size(type_)
    columns: Columns = []
    for axis in range(len(left.constancy)):
        contiguity = min(left.contiguity[axis], right.contiguity[axis])
        divisibility = min(_divisor_of_run(facts, axis, contiguity, scale) for facts in (left, right))
        columns.append((contiguity, divisibility, min(left.constancy[axis], right.constancy[axis])))
    return _from_columns(columns)


def _shape(value: SSAValue) -> tuple[int, ...]:
    return value.type.shape or (1,)


def _item_size(type_: TensorType) -> int:
    return type_.element.element.itemsize if isinstance(type_.element, PointerType) else 1


class _Analysis:
    def __init__(self) -> None:
        self.facts: dict[SSAValue, AxisInfo] = {}

    def region(self, region: Region) -> None:
        for operation in region.operations:
            self.operation(operation)

    def operation(self, operation: Operation) -> None:
        if operation.regions:
            self.structured(operation)
            return
        rule = _RULES.get(operation.opcode, _unknown)
        operands = [self.facts[value] for value in operation.operands]
        for result in operation.results:
            self.facts[result] = rule(operation, operands)

    def structured(self, operation: Operation) -> None:
        if operation.opcode == "for":
            self.loop(operation)
        elif operation.opcode == "if":
            for region in operation.regions:
                self.region(region)
            ends = [region.terminator.operands for region in operation.regions]
            for result, *values in zip(operation.results, *ends, strict=True):
                self.facts[result] = meet(self.facts[values[0]], self.facts[values[1]], result.type)
        else:
            for region in operation.regions:
                self.assume_nothing(region.arguments)
                self.region(region)
            self.assume_nothing(operation.results)

    def assume_nothing(self, values: Sequence[SSAValue]) -> None:
        for value in values:
            self.facts[value] = unknown(value.type)

    def loop(self, operation: Operation) -> None:
        """Begin with what holds on entry, and weaken it until the body keeps it (facts only get weaker)."""
        (body,) = operation.regions
        index, *carried = body.arguments
        lower, step = (self.facts[operation.operands[position]] for position in (0, 2))
        self.facts[index] = AxisInfo((1,), (min(lower.divisibility[0], step.divisibility[0]),), (1,))
        current = [self.facts[value] for value in operation.operands[3:]]
        while True:
            self.facts.update(zip(carried, current, strict=True))
            self.region(body)
            after = [self.facts[value] for value in body.terminator.operands]
            types = [value.type for value in carried]
            weaker = list(map(meet, current, after, types))
            if weaker == current:
                break
            current = weaker
        self.facts.update(zip(operation.results, current, strict=True))


# Rules: (operation, facts of the operands) -> facts of the result ----------------------------------

Rule = Callable[[Operation, Sequence[AxisInfo]], AxisInfo]


def _unknown(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    return unknown(operation.results[0].type)


def _elementwise(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    """Equal operands give equal results; nothing else."""
    ones = (1,) * len(operands[0].constancy)
    return AxisInfo(ones, ones, tuple(min(parts) for parts in zip(*(x.constancy for x in operands), strict=True)))


def _constant(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    number = operation.attributes["value"]
    return uniform(operation.result.type, power_of_two(int(number)) if isinstance(number, int) else 1)


def _arange(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    start, end = operation.attributes["start"], operation.attributes["end"]
    assert isinstance(start, int) and isinstance(end, int)
    contiguity = power_of_two(end - start)
    single = contiguity == end - start  # one run, so only its start counts
    return AxisInfo((contiguity,), (power_of_two(start) if single else min(power_of_two(start), contiguity),), (1,))


def _element_divisibility(facts: AxisInfo, axis: int) -> int:
    """What divides every value along an axis, not only the first of each run of consecutive ones."""
    return facts.divisibility[axis] if facts.contiguity[axis] == 1 else 1


def _sum(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    """add, subtract and offset: a run plus a constant is a run."""
    left, right = operands
    scale = _item_size(operation.operands[0].type)
    columns: Columns = []
    for axis in range(len(left.constancy)):
        run_left = min(left.contiguity[axis], right.constancy[axis])
        run_right = min(left.constancy[axis], right.contiguity[axis])
        contiguity = max(run_left, 1 if operation.opcode == "subtract" else run_right)
        divisibility = min(
            _divisor_of_run(left, axis, contiguity, scale), _divisor_of_run(right, axis, contiguity, 1) * scale
        )
        columns.append(
            (contiguity, min(divisibility, LARGEST_DIVISOR), min(left.constancy[axis], right.constancy[axis]))
        )
    return _from_columns(columns)


def _divisor_of_run(facts: AxisInfo, axis: int, contiguity: int, scale: int) -> int:
    """What divides the values at the starts of runs of `contiguity` elements.

    They are starts of known runs when those are not longer; else they may lie inside one, a multiple of
    `contiguity` elements of `scale` after its start.
    """
    if contiguity >= facts.contiguity[axis]:
        return facts.divisibility[axis]
    return min(facts.divisibility[axis], contiguity * scale)


def _from_columns(columns: Columns) -> AxisInfo:
    contiguity, divisibility, constancy = zip(*columns, strict=True)
    return AxisInfo(contiguity, divisibility, constancy)


def _multiply(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    """Divisors multiply; a run times one stays a run."""
    left, right = operands
    numbers = [constant_of(value) for value in operation.operands]
    if 1 in numbers:
        return operands[1 - numbers.index(1)]
    columns: Columns = []
    for axis in range(len(left.constancy)):
        divisibility = _element_divisibility(left, axis) * _element_divisibility(right, axis)
        columns.append((1, min(divisibility, LARGEST_DIVISOR), min(left.constancy[axis], right.constancy[axis])))
    return _from_columns(columns)


def _shift_left(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    count = constant_of(operation.operands[1])
    if not isinstance(count, int) or not 0 <= count < 31:
        return _elementwise(operation, operands)
    left = operands[0]
    divisors = [_element_divisibility(left, axis) << count for axis in range(len(left.constancy))]
    return _from_columns([(1, min(d, LARGEST_DIVISOR), c) for d, c in zip(divisors, left.constancy, strict=True)])


def _divide(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    """Runs that begin at multiples of 2^k and are divided by 2^k c are constant for 2^k elements.

    Not for negative numbers: these are rounded the other way.
    """
    left, right = operands
    by = constant_of(operation.operands[1])
    if by == 1:
        return left
    columns: Columns = []
    for axis in range(len(left.constancy)):
        constancy = min(left.constancy[axis], right.constancy[axis])
        run = min(left.contiguity[axis], left.divisibility[axis], right.divisibility[axis])
        if right.constancy[axis] >= run and not_negative(operation.operands[0]):
            constancy = max(constancy, run)
        divisibility = 1
        if isinstance(by, int) and by > 0 and by & (by - 1) == 0:
            divisibility = max(1, _element_divisibility(left, axis) // by)
        columns.append((1, divisibility, constancy))
    return _from_columns(columns)


def _remainder(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    """Runs that begin at multiples of 2^k stay runs of 2^k modulo a multiple of 2^k, unless negative."""
    left, right = operands
    columns: Columns = []
    for axis in range(len(left.constancy)):
        same = min(left.constancy[axis], right.constancy[axis])
        run = min(left.contiguity[axis], left.divisibility[axis], right.divisibility[axis])
        contiguity = run if right.constancy[axis] >= run and not_negative(operation.operands[0]) else 1
        divisibility = min(_divisor_of_run(facts, axis, contiguity, 1) for facts in operands)
        columns.append((contiguity, divisibility, same))
    return _from_columns(columns)


def _compare(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    """A run compared with a constant changes its answer between aligned groups, when both begin at multiples.

    With x = a, a + 1, … and a, c multiples of g: x < c and x >= c are the same in each group of g; x <= c, x > c and
    the equalities are not.  With the constant on the left it is x <= c that keeps its answer: c < x = not x <= c.
    """
    left, right = operands
    predicate = operation.attributes["predicate"]
    columns: Columns = []
    for axis in range(len(left.constancy)):
        constancy = min(left.constancy[axis], right.constancy[axis])
        for run, fixed, stable_predicates in ((left, right, ("lt", "ge")), (right, left, ("gt", "le"))):
            group = min(run.contiguity[axis], run.divisibility[axis], fixed.divisibility[axis], fixed.constancy[axis])
            if predicate in stable_predicates and _integer(operation.operands[0]):
                constancy = max(constancy, group)
        columns.append((1, 1, constancy))
    return _from_columns(columns)


def _integer(value: SSAValue) -> bool:
    return not value.type.is_pointer and value.type.dtype.is_integer


def _select(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    """One side or the other, run by run of the condition."""
    condition, *sides = operands
    merged, scale = meet(sides[0], sides[1], operation.result.type), _item_size(operation.result.type)
    columns: Columns = []
    for axis in range(len(merged.constancy)):
        switch = condition.constancy[axis]
        contiguity = min(merged.contiguity[axis], switch)
        divisibility = _divisor_of_run(merged, axis, contiguity, scale)
        columns.append((contiguity, divisibility, min(merged.constancy[axis], switch)))
    return _from_columns(columns)


def _extremum(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    """min(x, c): the run or the constant, changing between aligned groups as `_compare` has it."""
    columns: Columns = []
    for axis in range(len(operands[0].constancy)):
        divisibility = min(_element_divisibility(facts, axis) for facts in operands)
        columns.append((1, divisibility, min(facts.constancy[axis] for facts in operands)))
    return _from_columns(columns)


def _same(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    """Casts between integers, and nothing else, keep what is known."""
    (source,), result = operation.operands, operation.result
    if source.type.is_pointer or result.type.is_pointer:
        keeps = source.type.is_pointer and result.type.is_pointer and _item_size(source.type) == _item_size(result.type)
    else:
        keeps = source.type.dtype.is_integer and result.type.dtype.kind in ("int", "uint")
    return operands[0] if keeps else _elementwise(operation, operands)


def _hint(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    """The better of what is known and what is promised."""
    (known,) = operands

    def better(name: str, values: tuple[int, ...]) -> tuple[int, ...]:
        promised = operation.attributes[name]
        assert isinstance(promised, tuple)
        if not promised:
            return values
        return tuple(max(a, power_of_two(b)) for a, b in zip(values, promised, strict=True) if isinstance(b, int))

    return AxisInfo(
        better("contiguity", known.contiguity),
        better("divisibility", known.divisibility),
        better("constancy", known.constancy),
    )


# Shape -------------------------------------------------------------------------------------------


def _splat(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    return uniform(operation.result.type, operands[0].divisibility[0])


def _expand_dims(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    """Along the new axis of one element, every element begins a run."""
    (facts,), axis = operands, operation.attributes["axis"]
    assert isinstance(axis, int)
    if operation.operands[0].type.is_scalar:
        return facts
    columns = list(zip(facts.contiguity, facts.divisibility, facts.constancy, strict=True))
    columns.insert(axis, (1, common_divisor(facts), 1))
    return _from_columns(columns)


def _broadcast(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    (facts,) = operands
    old, new = _shape(operation.operands[0]), _shape(operation.result)
    constancy = [
        power_of_two(extent) if extent != before else known
        for before, extent, known in zip(old, new, facts.constancy, strict=True)
    ]
    return AxisInfo(facts.contiguity, facts.divisibility, tuple(constancy))


def _permute(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    (facts,), order = operands, operation.attributes["order"]
    assert isinstance(order, tuple)
    columns = list(zip(facts.contiguity, facts.divisibility, facts.constancy, strict=True))
    return _from_columns([columns[axis] for axis in order if isinstance(axis, int)]) if order else facts


def _reshape(operation: Operation, operands: Sequence[AxisInfo]) -> AxisInfo:
    """Axes that stay at the end of the shape keep their facts."""
    (facts,) = operands
    old, new = _shape(operation.operands[0]), _shape(operation.result)
    result = list(zip(*vars(unknown(operation.result.type)).values(), strict=True))
    for back in range(1, 1 + min(len(old), len(new))):
        if old[-back] != new[-back]:
            break
        result[-back] = (facts.contiguity[-back], facts.divisibility[-back], facts.constancy[-back])
    return _from_columns(result)


_RULES: dict[str, Rule] = {
    "constant": _constant,
    "arange": _arange,
    "add": _sum,
    "subtract": _sum,
    "offset": _sum,
    "multiply": _multiply,
    "shift_left": _shift_left,
    "divide": _divide,
    "remainder": _remainder,
    "minimum": _extremum,
    "maximum": _extremum,
    "and": _elementwise,
    "or": _elementwise,
    "xor": _elementwise,
    "not": _elementwise,
    "compare": _compare,
    "select": _select,
    "cast": _same,
    "bitcast": _same,
    "hint": _hint,
    "splat": _splat,
    "expand_dims": _expand_dims,
    "broadcast": _broadcast,
    "permute": _permute,
    "reshape": _reshape,
}


def common_divisor(facts: AxisInfo) -> int:
    """What divides every value of a block: the best that one of its axes says."""
    return max(_element_divisibility(facts, axis) for axis in range(len(facts.constancy)))


def _numbers_programs(value: SSAValue) -> bool:
    """Whether a value is the number of a program, or a part of it: a remainder or quotient."""
    operation = value.definition
    while operation is not None and operation.opcode in ("remainder", "divide"):
        operation = operation.operands[0].definition
    return operation is not None and operation.opcode == "program_id"


_KEEPS_SIGN = ("add", "multiply", "divide", "minimum", "and", "or", "xor", "shift_right", "shift_left")
_MOVES = REARRANGING | {"hint", "join", "cat"}


def not_negative(value: SSAValue, depth: int = 8) -> bool:
    """Whether no element of an integer value is below zero, as far as `depth` definitions back tell."""
    operation, number = value.definition, constant_of(value)
    if value.type.is_pointer or not value.type.dtype.is_integer:
        return False
    if number is not None or value.type.dtype.kind != "int":
        return number is None or number >= 0
    if operation is None or depth == 0:
        return False
    known = [not_negative(operand, depth - 1) for operand in operation.operands]
    if operation.opcode == "cast":
        source = operation.operands[0].type.dtype
        return source.is_integer and keeps_value(source, value.type.dtype) and (not source.is_signed or known[0])
    if operation.opcode == "arange":
        start = operation.attributes["start"]
        return isinstance(start, int) and start >= 0
    if operation.opcode == "divide" and _numbers_programs(operation.operands[0]):
        return known[0]  # programs are shared out among some; among fewer than none would make no sense
    if operation.opcode in _KEEPS_SIGN or operation.opcode in _MOVES:
        return all(known)
    if operation.opcode == "select":
        return all(known[1:])
    if operation.opcode == "maximum":
        return any(known)
    return operation.opcode in ("program_id", "num_programs") or (operation.opcode == "remainder" and known[0])
