"""Many float32 numbers divided by few, as when rows are divided by their sums.

The reciprocal r is rounded once; then for each x

    q = x r,   e = x - q y (exactly, by fma),   q + e r

is the correctly rounded quotient (Markstein, "Computation of elementary functions on the IBM RISC System/6000
processor", 1990) unless e falls below the least number: quotients of |x| < 2^-100 may be one unit off.  An infinite q
makes e a NaN, for which a minimum puts a number that does not change q.  Divisors too large or too small for this take
the ordinary division.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import dtypes
from tilewright.ir.core import Operation
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue

_WORTH = 4  # divisions that pay for a reciprocal
_LEAST, _GREATEST = 2.0**-20, 2.0**60  # divisors; their reciprocals times _LARGE are numbers
_LARGE = 2.0**107  # above every e that is a number


def is_common_division(operation: Operation, columns: Sequence[Sequence[LLVMValue]]) -> bool:
    """Whether an operation divides float32 registers by so few different ones that reciprocals pay."""
    if operation.opcode != "divide" or operation.result.type.dtype != dtypes.float32:
        return False
    divisors = {register.text for register in columns[1]}
    return len(columns[0]) >= _WORTH * len(divisors)


def divide(builder: LLVMBuilder, numbers: Sequence[LLVMValue], divisors: Sequence[LLVMValue]) -> list[LLVMValue]:
    """The quotients of float32 registers and divisors of which many are the same."""
    distinct = {divisor.text: divisor for divisor in divisors}
    usual: LLVMValue | None = None
    for divisor in distinct.values():
        fits = _is_usual(builder, divisor)
        usual = fits if usual is None else builder.binary("and", usual, fits)
    assert usual is not None
    quick, slow, done = (builder.new_block(f"divide.{name}") for name in ("quick", "slow", "done"))
    builder.branch_if(usual, quick, slow, weights=(1000, 1))
    builder.start(quick)
    one = builder.constant("float", 1.0)
    inverses = {text: builder.binary("fdiv", one, divisor) for text, divisor in distinct.items()}
    pairs = list(zip(numbers, divisors, strict=True))
    found = [_quotient(builder, number, divisor, inverses[divisor.text]) for number, divisor in pairs]
    quick_end = builder.block
    builder.branch(done)
    builder.start(slow)
    ordinary = [builder.binary("fdiv", number, divisor) for number, divisor in pairs]
    slow_end = builder.block
    builder.branch(done)
    builder.start(done)
    return [
        builder.phi(done, "float", [(quotient, quick_end), (other, slow_end)])
        for quotient, other in zip(found, ordinary, strict=True)
    ]


def _is_usual(builder: LLVMBuilder, divisor: LLVMValue) -> LLVMValue:
    size = builder.intrinsic("fabs", [divisor])
    least, greatest = builder.constant("float", _LEAST), builder.constant("float", _GREATEST)
    return builder.binary("and", builder.compare("oge", size, least), builder.compare("ole", size, greatest))


def _quotient(builder: LLVMBuilder, number: LLVMValue, divisor: LLVMValue, inverse: LLVMValue) -> LLVMValue:
    product = builder.emit(f"fmul {number}, {inverse.text}", "float")  # must not be contracted
    rest = builder.intrinsic("fma", [builder.negate(product), divisor, number])
    limited = builder.intrinsic("minnum", [rest, builder.constant("float", _LARGE)])
    return builder.intrinsic("fma", [limited, inverse, product])
