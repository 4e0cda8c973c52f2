"""Angles too large for parts of pi / 2: reduced in integers, with as many bits of 2 / pi as the exponent needs.

Payne and Hanek, "Radian reduction for trigonometric functions", 1983.
"""

from __future__ import annotations

from functools import cache

from tilewright.targets.llvm.arithmetic import Arithmetic
from tilewright.targets.llvm.builder import LLVMValue

_WORDS = {32: 7, 64: 18}  # of 2 / pi, as far as exponents reach


def quarter_turns(m: Arithmetic, x: LLVMValue) -> tuple[LLVMValue, LLVMValue]:
    """(whole, rest) of |x| / (pi / 2), for large finite x: the nearest whole number modulo 4, and what is left of it
    in units of 4 / 2^bits, which may be negative; integers of twice as many bits as x.

    Of the product of the mantissa with three words of 2 / pi the bits below 4 are kept.
    """
    builder = m.builder
    width, mantissa_bits = (64, 52) if m.double else (32, 23)
    wide, bits = f"i{2 * width}", m.bits(x)
    greatest = (1 << (width - mantissa_bits - 1)) - 1  # exponent
    exponent = builder.binary("and", builder.binary("lshr", bits, m.integer(mantissa_bits)), m.integer(greatest))
    mantissa = builder.binary("shl", bits, m.integer(width - 1 - mantissa_bits))
    mantissa = builder.binary("or", mantissa, m.integer(-(1 << (width - 1))))
    # A word of zeros in front: the first bits of small exponents lie before the point.
    table = (0, *_two_over_pi(width))
    initial = ", ".join(f"i{width} {word}" for word in table)
    pointer = builder.module.constant_array(f"[{len(table)} x i{width}] [{initial}]", "two_over_pi", width // 8)
    position = builder.subtract(exponent, (greatest + 1) // 2)
    word = builder.binary("lshr", position, m.integer(width.bit_length() - 1))
    shift = builder.binary("and", position, m.integer(width - 1))
    words = [
        builder.load(f"i{width}", builder.gep(pointer, builder.add(word, number), f"i{width}"), width // 8)
        for number in range(4)
    ]
    high, middle, low = (
        builder.call(f"llvm.fshl.i{width}", f"i{width}", [first, second, shift])
        for first, second in zip(words, words[1:], strict=False)
    )
    factor = builder.cast("zext", mantissa, wide)
    part = builder.binary("mul", factor, builder.cast("zext", low, wide))
    part = builder.binary("lshr", part, builder.integer(width, wide))
    total = builder.add(builder.binary("mul", factor, builder.cast("zext", middle, wide)), part)
    top = builder.cast("zext", builder.binary("mul", mantissa, high), wide)
    total = builder.add(total, builder.binary("shl", top, builder.integer(width, wide)))
    half, unit = builder.integer(1 << (2 * width - 3), wide), builder.integer(2 * width - 2, wide)
    whole = builder.binary("lshr", builder.add(total, half), unit)
    return whole, builder.binary("sub", total, builder.binary("shl", whole, unit))


@cache
def _two_over_pi(width: int) -> tuple[int, ...]:
    """The bits of 2 / pi after the point, `width` to a word; pi by Machin's formula."""
    count = _WORDS[width]
    bits = width * count + 64

    def inverse_tangent(divisor: int) -> int:
        total = term = (1 << bits) // divisor
        for odd in range(3, 2 * bits, 2):
            term = -term // divisor**2
            total += term // odd
        return total

    pi = 4 * (4 * inverse_tangent(5) - inverse_tangent(239))
    fraction = (2 << 2 * bits) // pi >> 64
    return tuple(fraction >> width * place & ((1 << width) - 1) for place in reversed(range(count)))
