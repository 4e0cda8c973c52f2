"""Random numbers without state: Philox-4x32 and 4x64, the same integers on every target.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
A number is a function of a 64-bit seed (the key) and an offset (the counter): give every element its own.
"""

# Their bodies are tile language, which Python's type rules do not describe.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disable-error-code="assignment,attr-defined,operator"
from __future__ import annotations

from tilewright.language import core
from tilewright.language import math as tl_math
from tilewright.language.function import language_function
from tilewright.language.types import constexpr, constexpr_function, float32, int32, int64, uint32, uint64

# Key steps and multipliers of Philox-4x32 and Philox-4x64.
PHILOX_32 = (0x9E3779B9, 0xBB67AE85, 0xD2511F53, 0xCD9E8D57)
PHILOX_64 = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B, 0xD2E7470EE14C6C93, 0xCA5A826395121157)
PHILOX_ROUNDS = 10
UNIT_STEP = 4.6566127342e-10  # 2**31 of these stay below 1
WIDE_UNIT_STEP = 1.0842020432385337e-19  # 2**63 of these do
LEAST_UNIFORM = 1.0e-7  # the logarithm of 0 is avoided
TWO_PI = 6.283185307179586


@constexpr_function
def _constants(dtype):
    """Key steps and multipliers for counters of 32 or 64 bits."""
    return PHILOX_32 if dtype.primitive_bitwidth == 32 else PHILOX_64


@language_function
def philox_impl(c0, c1, c2, c3, k0, k1, n_rounds: constexpr = PHILOX_ROUNDS):
    """`n_rounds` rounds of Philox on four counters and two keys, all uint32 or all uint64."""
    core.static_assert(c0.dtype == uint32 or c0.dtype == uint64, "the counters of philox_impl are uint32 or uint64")
    constants: constexpr = _constants(c0.dtype)
    for _ in core.static_range(n_rounds):
        first, second = c0, c2
        c0 = tl_math.umulhi(second, constants[3]) ^ c1 ^ k0
        c2 = tl_math.umulhi(first, constants[2]) ^ c3 ^ k1
        c1 = second * constants[3]
        c3 = first * constants[2]
        k0 = k0 + constants[0]
        k1 = k1 + constants[1]
    return c0, c1, c2, c3


@language_function
def philox(seed, c0, c1, c2, c3, n_rounds: constexpr = PHILOX_ROUNDS):
    """Four blocks of random integers from a 64-bit seed and four counters, uint32 or (from 64-bit ones) uint64."""
    key = core.to_tensor(seed).to(uint64)
    first = core.to_tensor(c0)
    word: constexpr = uint64 if first.dtype.primitive_bitwidth == 64 else uint32
    c0 = first.to(word)
    c1 = core.to_tensor(c1).to(word)
    c2 = core.to_tensor(c2).to(word)
    c3 = core.to_tensor(c3).to(word)
    if word == uint64:
        return philox_impl(c0, c1, c2, c3, key, core.full((), 0, uint64), n_rounds)
    else:
        return philox_impl(c0, c1, c2, c3, key.to(uint32), (key >> 32).to(uint32), n_rounds)


@language_function
def randint4x(seed, offset, n_rounds: constexpr = PHILOX_ROUNDS):
    """Four blocks of uniform uint32 numbers, one of each for every offset."""
    low = core.to_tensor(offset)
    if low.dtype.primitive_bitwidth > 32:
        return philox(seed, low.to(uint32), (low >> 32).to(uint32), 0, 0, n_rounds)
    else:
        return philox(seed, low, 0, 0, 0, n_rounds)


@language_function
def randint(seed, offset, n_rounds: constexpr = PHILOX_ROUNDS):
    """A block of uniform uint32 numbers, one for every offset."""
    first, _, _, _ = randint4x(seed, offset, n_rounds)
    return first


@language_function
def uint_to_uniform_float(x):
    """A block of integers of 32 or 64 bits as fp32 numbers in [0, 1)."""
    wide: constexpr = x.dtype.primitive_bitwidth == 64
    signed = x.to(int64 if wide else int32, bitcast=True)
    step: constexpr = WIDE_UNIT_STEP if wide else UNIT_STEP
    return core.where(signed < 0, -signed - 1, signed).to(float32) * step


@language_function
def rand(seed, offset, n_rounds: constexpr = PHILOX_ROUNDS):
    """A block of fp32 numbers uniform in [0, 1), one for every offset."""
    return uint_to_uniform_float(randint(seed, offset, n_rounds))


@language_function
def rand4x(seed, offsets, n_rounds: constexpr = PHILOX_ROUNDS):
    """Four blocks of fp32 numbers uniform in [0, 1)."""
    a, b, c, d = randint4x(seed, offsets, n_rounds)
    return uint_to_uniform_float(a), uint_to_uniform_float(b), uint_to_uniform_float(c), uint_to_uniform_float(d)


@language_function
def pair_uniform_to_normal(u1, u2):
    """Two independent standard normal blocks from two uniform ones (Box and Muller, 1958)."""
    radius = tl_math.sqrt(-2.0 * tl_math.log(core.maximum(u1, LEAST_UNIFORM)))
    angle = TWO_PI * u2
    return radius * tl_math.cos(angle), radius * tl_math.sin(angle)


@language_function
def randn(seed, offset, n_rounds: constexpr = PHILOX_ROUNDS):
    """A block of standard normal fp32 numbers, one for every offset."""
    a, b, _, _ = randint4x(seed, offset, n_rounds)
    normal, _ = pair_uniform_to_normal(uint_to_uniform_float(a), uint_to_uniform_float(b))
    return normal


@language_function
def randn4x(seed, offset, n_rounds: constexpr = PHILOX_ROUNDS):
    """Four blocks of standard normal fp32 numbers."""
    a, b, c, d = rand4x(seed, offset, n_rounds)
    n1, n2 = pair_uniform_to_normal(a, b)
    n3, n4 = pair_uniform_to_normal(c, d)
    return n1, n2, n3, n4


N_ROUNDS_DEFAULT = constexpr(PHILOX_ROUNDS)
uint32_to_uniform_float = uint_to_uniform_float  # the name it had
