"""Many float32 numbers divided by one, as when a row is divided by its sum.

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
    """Whether an operation divides several float32 registers by the same one."""
    if operation.opcode != "divide" or operation.result.type.dtype != dtypes.float32:
        return False
    divisors = {register.text for register in columns[1]}
    return len(divisors) == 1 and len(columns[0]) >= _WORTH


def divide_by_one(builder: LLVMBuilder, numbers: Sequence[LLVMValue], divisor: LLVMValue) -> list[LLVMValue]:
    """The quotients of float32 registers and one divisor."""
    size = builder.intrinsic("fabs", [divisor])
    usual = builder.binary(
        "and",
        builder.compare("oge", size, builder.constant("float", _LEAST)),
        builder.compare("ole", size, builder.constant("float", _GREATEST)),
    )
    quick, slow, done = (builder.new_block(f"divide.{name}") for name in ("quick", "slow", "done"))
    builder.branch_if(usual, quick, slow, weights=(1000, 1))
    builder.start(quick)
    inverse = builder.binary("fdiv", builder.constant("float", 1.0), divisor, flags="contract")
    found = [_quotient(builder, number, divisor, inverse) for number in numbers]
    quick_end = builder.block
    builder.branch(done)
    builder.start(slow)
    ordinary = [builder.binary("fdiv", number, divisor) for number in numbers]
    slow_end = builder.block
    builder.branch(done)
    builder.start(done)
    return [
        builder.phi(done, "float", [(one, quick_end), (other, slow_end)])
        for one, other in zip(found, ordinary, strict=True)
    ]


def _quotient(builder: LLVMBuilder, number: LLVMValue, divisor: LLVMValue, inverse: LLVMValue) -> LLVMValue:
    product = builder.emit(f"fmul {number}, {inverse.text}", "float")  # must not be contracted
    rest = builder.intrinsic("fma", [builder.negate(product), divisor, number])
    limited = builder.intrinsic("minnum", [rest, builder.constant("float", _LARGE)])
    return builder.intrinsic("fma", [limited, inverse, product])
