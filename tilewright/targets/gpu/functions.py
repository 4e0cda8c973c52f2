"""Math functions of float32: the GPU's own for exponentials and reciprocals, polynomials for the rest.

Greatest errors, in units in the last place: exp2, rsqrt 2; exp 2 and three for every four of |x| more, because the
argument is scaled in float32, as by every compiler that uses the unit; tanh, log, log2, sin, cos, power 2 and erf 4.
Exponentials below 2^-126 are 0.  `remainder` is exact.  float64 is in `functions_double.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.ir.core import Operation
from tilewright.targets.gpu.angles import quarter_turns
from tilewright.targets.gpu.functions_double import emit_double
from tilewright.targets.gpu.intrinsics import Intrinsics
from tilewright.targets.gpu.lowering import KernelLowering
from tilewright.targets.llvm.arithmetic import Arithmetic
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue
from tilewright.targets.llvm.math import (
    LN2_HIGH,
    LOG,
    LOG2E_HIGH,
    LOG2E_LOW,
    TRIGONOMETRIC_LIMIT,
    emit_math,
    emit_trigonometric_near,
    of_quadrant,
)

# tanh x = x + x^3 TANH(x^2) on |x| <= 0.55 (tools/math_coefficients.py)
_TANH = (-0.3333328366279602, 0.13331490755081177, -0.05374349653720856, 0.02065058797597885, -0.0057170456275343895)
# erf x = x + x ERF_SMALL(x^2) below 0.92, 1 - 2^-ERF_LARGE(x) above (tools/math_coefficients.py, times log2 e)
_ERF_SMALL = (0.12837915122509003, -0.37612462043762207, 0.11281467229127884, -0.026753343641757965,
              0.004973127506673336, -0.0005886816652491689)  # fmt: skip
_ERF_LARGE = tuple(value * math.log2(math.e) for value in (
    -0.00017587367619853467, 1.1295207738876343, 0.6333346366882324, 0.10829393565654755, -0.025128616020083427,
    0.0041746399365365505, -0.0004352181567810476, 2.116183895850554e-05))  # fmt: skip
_HALF_PI_FIXED = math.pi / 2 * 2.0**-62


def emit_function(lowering: KernelLowering, operation: Operation, operands: Sequence[LLVMValue]) -> LLVMValue:
    """A math function of float32 or float64 operands."""
    opcode, builder, intrinsics = operation.opcode, lowering.builder, lowering.intrinsics
    if opcode == "remainder":
        return remainder(builder, operands[0], operands[1])
    if operands[0].type == "double":
        return emit_double(builder, opcode, operands)
    if opcode == "exp2":
        return intrinsics.exp2(builder, operands[0])
    if opcode == "exp":
        scaled = builder.binary("fmul", operands[0], builder.constant("float", math.log2(math.e)))
        return intrinsics.exp2(builder, scaled)
    if opcode == "rsqrt":
        return intrinsics.rsqrt(builder, operands[0])
    if opcode == "erf":
        return erf(intrinsics, builder, operands[0])
    if opcode == "tanh":
        return tanh(intrinsics, builder, operands[0])
    if opcode in ("sin", "cos"):
        return _trigonometric(builder, opcode, operands[0])
    if opcode in ("log", "log2"):
        return logarithm(builder, opcode, operands[0])
    return emit_math(builder, opcode, *operands)


def erf(intrinsics: Intrinsics, builder: LLVMBuilder, x: LLVMValue) -> LLVMValue:
    """A polynomial near zero, one minus a power of two elsewhere; both are computed and one is chosen."""
    m = Arithmetic(builder)
    size, square = m.absolute(x), m.multiply(x, x)
    small = m.fma(m.polynomial(square, _ERF_SMALL), x, x)
    limited = builder.intrinsic("minnum", [size, m.number(4.0)])
    large = m.subtract(1.0, intrinsics.exp2(builder, m.negate(m.polynomial(limited, _ERF_LARGE))))
    return m.select("ult", size, 0.92, small, m.with_sign_of(large, x))


def tanh(intrinsics: Intrinsics, builder: LLVMBuilder, x: LLVMValue) -> LLVMValue:
    """1 - 2 / (e^2|x| + 1) with the sign of x; near zero a polynomial."""
    m = Arithmetic(builder)
    size, square = m.absolute(x), m.multiply(x, x)
    grown = intrinsics.exp2(builder, m.multiply(size, 2 * math.log2(math.e)))
    large = m.fma(intrinsics.reciprocal(builder, m.add(grown, 1.0)), -2.0, 1.0)
    small = m.fma(m.multiply(square, m.polynomial(square, _TANH)), x, x)
    # The sign of the small one too: the fma of -0 is +0.
    return m.with_sign_of(m.select("ult", size, 0.55, small, large), x)


def logarithm(builder: LLVMBuilder, opcode: str, x: LLVMValue) -> LLVMValue:
    """`log` or `log2` of a float32, in two thirds of the instructions that a CPU's vectors take."""
    m = Arithmetic(builder)
    tiny = builder.compare("olt", x, m.number(2.0**-126))
    bits = m.bits(builder.select(tiny, m.multiply(x, 2.0**23), x))
    exponent = builder.binary("and", m.subtract(bits, m.bits_of(math.sqrt(0.5))), m.integer(-(1 << 23)))
    f = m.subtract(m.from_bits(m.subtract(bits, exponent)), m.number(1.0))
    lifted = builder.select(tiny, m.number(-23.0), m.number(0.0))
    whole = m.fma(builder.cast("sitofp", exponent, m.type), m.number(2.0**-23), lifted)
    natural = m.fma(m.multiply(f, m.polynomial(f, (-0.5, *LOG))), f, f)
    if opcode == "log":
        result = m.fma(whole, m.number(LN2_HIGH), natural)
    else:
        result = m.fma(natural, LOG2E_HIGH, m.fma(natural, LOG2E_LOW, whole))
    # Infinity stays, negative numbers are those minus infinity, which is NaN; so would -0 be.
    special = builder.compare("uge", bits, m.bits_of(math.inf))
    result = builder.select(special, m.fma(x, math.inf, m.number(math.inf)), result)
    return m.select("oeq", x, 0.0, m.number(-math.inf), result)


def _trigonometric(builder: LLVMBuilder, opcode: str, x: LLVMValue) -> LLVMValue:
    """By short parts of pi / 2 up to a limit, beyond it with as many bits of 2 / pi as the exponent asks for."""
    near = emit_trigonometric_near(builder, opcode, x)
    size = builder.intrinsic("fabs", [x])
    huge = builder.compare("ogt", size, builder.constant("float", TRIGONOMETRIC_LIMIT))
    start, far, done = builder.block, builder.new_block("far"), builder.new_block("reduced")
    builder.branch_if(huge, far, done, weights=(1, 1000))
    builder.start(far)
    slow = _trigonometric_far(builder, opcode, x)
    end = builder.block
    builder.branch(done)
    builder.start(done)
    return builder.phi(done, "float", [(near, start), (slow, end)])


def _trigonometric_far(builder: LLVMBuilder, opcode: str, x: LLVMValue) -> LLVMValue:
    """Sine or cosine of |x| by its rest after whole quarter turns, then the sign of x."""
    m = Arithmetic(builder)
    whole, rest = quarter_turns(m, x)
    radians = builder.binary("fmul", builder.cast("sitofp", rest, "double"), builder.constant("double", _HALF_PI_FIXED))
    reduced = builder.cast("fptrunc", radians, "float")
    sine, cosine = (emit_trigonometric_near(builder, name, reduced) for name in ("sin", "cos"))
    quadrant = builder.cast("trunc", whole, "i32")
    result = of_quadrant(m, builder.add(quadrant, 1) if opcode == "cos" else quadrant, sine, cosine)
    if opcode == "sin":
        negative = builder.binary("and", m.bits(x), m.integer(-(2**31)))
        result = m.from_bits(builder.binary("xor", m.bits(result), negative))
    return m.select("one", m.absolute(x), math.inf, result, m.number(math.nan))


# Remainder ---------------------------------------------------------------------------------------


def remainder(builder: LLVMBuilder, x: LLVMValue, y: LLVMValue) -> LLVMValue:
    """C's fmod, exactly: one quotient while it is small, else one bit of it after the other."""
    kind = x.type
    size, by = (builder.intrinsic("fabs", [value]) for value in (x, y))
    quotient = builder.intrinsic("trunc", [builder.binary("fdiv", size, by)])
    rest = builder.intrinsic("fma", [builder.negate(quotient), by, size])
    # A quotient that was rounded up leaves a negative rest, whose sum with y is exact.
    negative = builder.compare("olt", rest, builder.constant(kind, 0.0))
    rest = builder.select(negative, builder.binary("fadd", rest, by), rest)
    smaller = builder.compare("olt", size, by)
    quick = builder.select(smaller, size, rest)
    infinite = builder.constant(kind, math.inf)
    large = builder.compare("oge", quotient, builder.constant(kind, 2.0**22 if kind == "float" else 2.0**51))
    numbers = builder.binary(
        "and",
        builder.compare("olt", size, infinite),
        builder.compare("ogt", by, builder.constant(kind, 0.0)),
    )
    start, slow, done = builder.block, builder.new_block("remainder"), builder.new_block("remainder.end")
    builder.branch_if(builder.binary("and", large, numbers), slow, done, weights=(1, 1000))
    builder.start(slow)
    exact = _long_division(builder, size, by)
    end = builder.block
    builder.branch(done)
    builder.start(done)
    result = builder.phi(done, kind, [(quick, start), (exact, end)])
    result = builder.select(numbers, result, builder.constant(kind, math.nan))
    result = builder.select(builder.compare("uno", y, y), builder.constant(kind, math.nan), result)
    return builder.intrinsic("copysign", [result, x])


def _long_division(builder: LLVMBuilder, size: LLVMValue, by: LLVMValue) -> LLVMValue:
    """Subtracts y 2^k for falling k; every step is exact, as both numbers differ by less than a factor of two."""
    kind = size.type
    half = builder.constant(kind, 0.5)
    limit = builder.binary("fmul", size, half)
    entry, grow, shrink, done = builder.block, *(builder.new_block(name) for name in ("grow", "shrink", "divided"))
    builder.branch(grow)
    builder.start(grow)
    scaled = builder.reserve(kind)
    doubled = builder.binary("fadd", scaled, scaled)
    builder.branch_if(builder.compare("ole", scaled, limit), grow, shrink)
    builder.fill_phi(grow, scaled, [(by, entry), (doubled, grow)])
    builder.start(shrink)
    rest, part = builder.reserve(kind), builder.reserve(kind)
    fits = builder.compare("oge", rest, part)
    less = builder.select(fits, builder.binary("fsub", rest, part), rest)
    halved = builder.binary("fmul", part, half)
    builder.branch_if(builder.compare("oge", halved, by), shrink, done)
    builder.fill_phi(shrink, rest, [(size, grow), (less, shrink)])
    builder.fill_phi(shrink, part, [(scaled, grow), (halved, shrink)])
    builder.start(done)
    return less
