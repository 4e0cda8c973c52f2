"""Several float32 numbers divided at once: reciprocals of the special function unit, and one check for all of them.

A correctly rounded division takes a call for numbers of unusual sizes, which splits the code of every quotient from
that of the next and needs registers.  Here one branch decides for all numbers of a thread, and reciprocals need none.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import dtypes
from tilewright.ir.core import Operation
from tilewright.targets.gpu.intrinsics import Intrinsics
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue

_WORTH = 4  # divisions that pay for a check
_GROUP = 16  # numbers with one check: all of them are in registers when it is made, and calls are to find room
# Sizes of divisors and numbers: quotients, and the errors of these, are normal numbers.
_DIVISORS = 2.0**-20, 2.0**60
_NUMBERS = 2.0**65  # for the sizes of all numbers of a group together
_RECIPROCALS = 2.0**-126, 2.0**126  # normal numbers whose reciprocals are normal, too


def are_divided_together(operation: Operation, columns: Sequence[Sequence[LLVMValue]]) -> bool:
    """Whether an operation divides so many float32 registers that one check for all pays."""
    divides = operation.opcode == "divide" and operation.result.type.dtype == dtypes.float32
    return divides and len(columns[0]) >= _WORTH


def divide_in_groups(
    intrinsics: Intrinsics, builder: LLVMBuilder, numbers: Sequence[LLVMValue], divisors: Sequence[LLVMValue]
) -> list[LLVMValue]:
    """`divide` for any number of registers."""
    found: list[LLVMValue] = []
    for first in range(0, len(numbers), _GROUP):
        group = slice(first, first + _GROUP)
        found += divide(intrinsics, builder, numbers[group], divisors[group])
    return found


def divide(
    intrinsics: Intrinsics, builder: LLVMBuilder, numbers: Sequence[LLVMValue], divisors: Sequence[LLVMValue]
) -> list[LLVMValue]:
    """The quotients of float32 registers, rounded to nearest.

    With y' = y (2 - d y) of an approximate reciprocal y (the correctly rounded one, unless all bits of d are set),

        q = n y',   e = q d - n (exactly, by fma),   q - e y'

    is the correctly rounded quotient (Markstein, "Computation of elementary functions on the IBM RISC System/6000
    processor", 1990) unless e falls below the least number: quotients of |n| < 2^-100 may be one unit off.  So may
    reciprocals of numbers that are subnormal, or whose reciprocals are.

    A zero has the right sign if d is positive, for then e y' is +0, which changes no zero when it is subtracted.  One
    divisor of all numbers (a sum, a count) is checked for that; else the sign is copied from q.
    """
    if all(number.float_constant == 1.0 for number in numbers):
        return [_reciprocal(builder, divisor) for divisor in divisors]
    positive = len({divisor.text for divisor in divisors}) == 1 and not (divisors[0].float_constant or 0.0) < 0
    quick, slow, done = (builder.new_block(f"divide.{name}") for name in ("quick", "slow", "done"))
    builder.branch_if(_are_usual(builder, numbers, divisors, positive), quick, slow, weights=(1000, 1))
    builder.start(quick)
    inverses: dict[str, LLVMValue] = {}
    for divisor in divisors:
        if divisor.text not in inverses:
            inverses[divisor.text] = _improved(builder, divisor, intrinsics.reciprocal(builder, divisor))
    pairs = list(zip(numbers, divisors, strict=True))
    found = [_quotient(builder, number, divisor, inverses[divisor.text], positive) for number, divisor in pairs]
    quick_end = builder.block
    builder.branch(done)
    builder.start(slow)
    ordinary = [builder.binary("fdiv", number, divisor) for number, divisor in pairs]
    slow_end = builder.block
    builder.branch(done)
    builder.start(done)
    return [
        builder.phi(done, "float", [(quick_found, quick_end), (other, slow_end)])
        for quick_found, other in zip(found, ordinary, strict=True)
    ]


def _are_usual(
    builder: LLVMBuilder, numbers: Sequence[LLVMValue], divisors: Sequence[LLVMValue], positive: bool
) -> LLVMValue:
    """Whether all sizes are such that no step of a quotient leaves the normal numbers; `positive`: divisors are."""
    usual = _are_small(builder, list({x.text: x for x in numbers}.values()))
    for divisor in {x.text: x for x in divisors}.values():
        usual = builder.binary("and", usual, _is_within(builder, divisor, *_DIVISORS, positive))
    return usual


def _are_small(builder: LLVMBuilder, numbers: Sequence[LLVMValue]) -> LLVMValue:
    """Whether the sizes of all numbers are below a limit in sum, and so each is: no sum is rounded below its parts.

    Sums are twice as fast as maxima and take sizes for nothing; numbers that are none, and infinities, stay in them.
    """
    sizes = [builder.intrinsic("fabs", [number]) for number in numbers]
    while len(sizes) > 1:  # by halves, so that few additions wait for each other
        pairs = zip(sizes[0::2], sizes[1::2], strict=False)
        sizes = [builder.binary("fadd", *pair) for pair in pairs] + sizes[len(sizes) & ~1 :]
    return builder.compare("olt", sizes[0], builder.constant("float", _NUMBERS))


def _is_within(
    builder: LLVMBuilder, number: LLVMValue, least: float, greatest: float, positive: bool = False
) -> LLVMValue:
    size = number if positive else builder.intrinsic("fabs", [number])
    above = builder.compare("oge", size, builder.constant("float", least))
    return builder.binary("and", above, builder.compare("ole", size, builder.constant("float", greatest)))


def _reciprocal(builder: LLVMBuilder, divisor: LLVMValue) -> LLVMValue:
    start = builder.emit(f"fdiv afn {builder.constant('float', 1.0)}, {divisor.text}", "float")
    usual = _is_within(builder, divisor, *_RECIPROCALS)
    return builder.select(usual, _improved(builder, divisor, start), start)


def _improved(builder: LLVMBuilder, divisor: LLVMValue, inverse: LLVMValue) -> LLVMValue:
    error = builder.intrinsic("fma", [builder.negate(divisor), inverse, builder.constant("float", 1.0)])
    return builder.intrinsic("fma", [error, inverse, inverse])


def _quotient(
    builder: LLVMBuilder, number: LLVMValue, divisor: LLVMValue, inverse: LLVMValue, positive: bool
) -> LLVMValue:
    product = builder.emit(f"fmul {number}, {inverse.text}", number.type)  # must not be contracted
    error = builder.intrinsic("fma", [product, divisor, builder.negate(number)])
    rounded = builder.intrinsic("fma", [builder.negate(error), inverse, product])
    return rounded if positive else builder.intrinsic("copysign", [rounded, product])
