"""Many float32 numbers divided by few, as when rows are divided by their sums: one reciprocal for each divisor."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import dtypes
from tilewright.ir.core import Operation
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue
from tilewright.targets.llvm.division import GREATEST_DIVISOR, LEAST_DIVISOR, quotient

_WORTH = 4  # divisions that pay for a reciprocal


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
    found = [quotient(builder, number, divisor, inverses[divisor.text]) for number, divisor in pairs]
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


def _is_usual(builder: LLVMBuilder, divisor: LLVMValue) -> LLVMValue:
    least, greatest = builder.constant("float", LEAST_DIVISOR), builder.constant("float", GREATEST_DIVISOR)
    return builder.binary("and", builder.compare("oge", divisor, least), builder.compare("ole", divisor, greatest))
