"""Transcendental functions as LLVM code: float32 polynomials, for scalars and vectors.

Each function reduces its argument to a small interval, evaluates a polynomial there and undoes the
reduction, without branches; infinities, NaN, zeros, denormals and overflow come out as IEEE 754
says.  The greatest errors, measured over all exponents by `tests/host/test_cpu_math.py`, are within
2 units in the last place.  Coefficients come from `tools/math_coefficients.py`; the pieces of erf, which
AVX-512 looks up in registers, are fitted when they are first wanted.

float64 goes through the C library, lane by lane; narrower floats are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from tilewright.targets.llvm.arithmetic import ROUNDER, Arithmetic
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, literal, vector_type

# e^r = 1 + r + r^2 EXP(r) on |r| <= ln(2) / 2
_EXP = (0.4999999403953552, 0.1666651964187622, 0.041668396443128586, 0.008368796668946743, 0.0013814432313665748)
# 2^r = 1 + r EXP2(r) on |r| <= 1/2
_EXP2 = (0.6931471824645996, 0.24022647738456726, 0.055503323674201965, 0.00961843691766262, 0.0013398875016719103,
         0.00015353361959569156)  # fmt: skip
# log(1 + f) = f - f^2 / 2 + f^3 LOG(f) on sqrt(1/2) <= 1 + f <= sqrt(2)
LOG = (0.3333333134651184, -0.2500081956386566, 0.20001226663589478, -0.16623356938362122, 0.14201758801937103,
        -0.13160182535648346, 0.12761574983596802, -0.07634492963552475)  # fmt: skip
# sin r = r + r^3 SIN(r^2) and cos r = 1 - r^2 / 2 + r^4 COS(r^2) on |r| <= pi / 4
_SIN = (-0.16666655242443085, 0.008332150988280773, -0.00019513521692715585)
_COS = (0.04166664555668831, -0.0013887331588193774, 2.4434213628410362e-05)
# tanh x = x + x^3 TANH(x^2) on |x| <= 0.625
_TANH = (-0.3333328366279602, 0.13331490755081177, -0.05374349653720856, 0.02065058797597885, -0.0057170456275343895)
# erf x = x + x ERF_SMALL(x^2) below 0.92, 1 - exp(-ERF_LARGE(x)) above
_ERF_SMALL = (0.12837915122509003, -0.37612462043762207, 0.11281467229127884, -0.026753343641757965,
              0.004973127506673336, -0.0005886816652491689)  # fmt: skip
_ERF_LARGE = (-0.00017587367619853467, 1.1295207738876343, 0.6333346366882324, 0.10829393565654755,
              -0.025128616020083427, 0.0041746399365365505, -0.0004352181567810476, 2.116183895850554e-05)  # fmt: skip
# erf in pieces of 1/8 (`_erf_tables`): float32's erf is one from _ERF_ONE on
_ERF_STEP, _ERF_ONE, _ERF_DEGREE, _ERF_LANES, _ERF_POINTS = 0.125, 3.93, 5, 16, 12
# float64: log2((1 + s) / (1 - s)) = 2 / ln(2) s + s^3 LOG2_RATIO(s^2), 2^r = 1 + r EXP2_DOUBLE(r)
_LOG2_RATIO = (0.9617966940579502, 0.5770779531214361, 0.41220840983443197, 0.31993442529451677, 0.28254485909964333)
_EXP2_DOUBLE = (0.6931471805416554, 0.24022651075851745, 0.055504109625751016, 0.009618036911017279,
                0.0013333430783598348, 0.00015467110302534072, 1.531494776908469e-05)  # fmt: skip

LN2_HIGH, _LN2_REST = (
    0.693147182464599609375,
    -1.90465429995776804525e-9,
)  # their sum is ln 2; the first is a float32
LOG2E_HIGH, LOG2E_LOW = 1.44269502162933349609375, 1.925963033500011e-8
# pi / 2 in three parts of 24 bits
_HALF_PI_SINGLE = (1.57079637050628662109375, -4.371138828673793e-8, -1.7151245100058819e-15)
TRIGONOMETRIC_LIMIT = 1e5  # beyond it the three parts are too short; something else has to take over
_LIBRARY = {"exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf"}


def emit_math(builder: LLVMBuilder, opcode: str, operand: LLVMValue, *others: LLVMValue) -> LLVMValue:
    """`opcode` (exp, exp2, log, log2, sin, cos, tanh, erf, sigmoid, or power with two operands) of floats.

    Operands are scalars or vectors of one type.  Raises `KeyError` for an opcode not listed.
    """
    operands = (operand, *others)
    if operand.element == "double":
        return _by_library(builder, opcode, operands)
    if operand.element in ("half", "bfloat"):
        wide = vector_type("float", operand.lanes)
        result = emit_math(builder, opcode, *(builder.cast("fpext", value, wide) for value in operands))
        return builder.cast("fptrunc", result, operand.type)
    functions: dict[str, Callable[..., LLVMValue]] = {
        "exp": _exp, "exp2": _exp2, "log": _log, "log2": _log2, "tanh": _tanh, "erf": _erf, "sigmoid": _sigmoid,
        "sin": lambda math_, x: _trigonometric(math_, "sin", x),
        "cos": lambda math_, x: _trigonometric(math_, "cos", x),
        "power": _power,
    }  # fmt: skip
    return functions[opcode](Arithmetic(builder, operand.lanes), *operands)


def emit_trigonometric_near(builder: LLVMBuilder, opcode: str, operand: LLVMValue) -> LLVMValue:
    """Sine or cosine of float32 of up to 1e5 in size."""
    return _trigonometric_near(Arithmetic(builder, operand.lanes), opcode, operand)


def _by_library(builder: LLVMBuilder, opcode: str, operands: Sequence[LLVMValue]) -> LLVMValue:
    """float64 through the C library, one lane after the other."""
    if opcode == "sigmoid":
        one = builder.constant(operands[0].type, 1.0)
        grown = _by_library(builder, "exp", [builder.negate(operands[0])])
        return builder.binary("fdiv", one, builder.binary("fadd", one, grown))
    name = "pow" if opcode == "power" else opcode
    if name not in _LIBRARY | {"pow"}:
        raise KeyError(opcode)
    if not operands[0].is_vector:
        return builder.call(name, "double", operands)
    result = builder.poison(operands[0].type)
    for lane in range(operands[0].lanes):
        value = builder.call(name, "double", [builder.extract(operand, lane) for operand in operands])
        result = builder.insert(result, value, lane)
    return result


def _exp_reduced(m: Arithmetic, x: LLVMValue) -> tuple[LLVMValue, LLVMValue, LLVMValue]:
    """e^x as a number in [0.7, 1.5] and a power of two, given as a float and as an integer."""
    whole, exponent = m.rounded(x, LOG2E_HIGH)
    rest = m.fma(whole, -_LN2_REST, m.fma(whole, -LN2_HIGH, x))
    tail = m.fma(m.multiply(rest, rest), m.polynomial(rest, _EXP), rest)
    return m.add(tail, 1.0), whole, exponent


def _exp(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    """Reduced by multiples of ln 2; beyond the clamp the result is zero or infinite."""
    return m.scaled(*_exp_reduced(m, m.clamp(x, -104.0, 89.0)))


def _exp2(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    x = m.clamp(x, -151.0, 129.0)
    whole, exponent = m.rounded(x, 1.0)
    rest = m.subtract(x, whole)
    return m.scaled(m.fma(rest, m.polynomial(rest, _EXP2), 1.0), whole, exponent)


def _sigmoid(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    """1 / (1 + e^-x), or for negative x e^x / (1 + e^x), which keeps its digits as it falls to zero."""
    shrunk = _exp(m, m.negate(m.absolute(x)))
    one = m.number(1.0)
    return m.divide(m.select("olt", x, 0.0, shrunk, one), m.add(one, shrunk))


def _log_parts(m: Arithmetic, x: LLVMValue) -> tuple[LLVMValue, LLVMValue, LLVMValue]:
    """For positive x = (1 + f) 2^e with 1 + f around one: f, log(1 + f) - f, and e as a float."""
    f, whole = m.around_one(x)
    square = m.multiply(f, f)
    rest = m.fma(square, -0.5, m.multiply(m.multiply(f, square), m.polynomial(f, LOG)))
    return f, rest, whole


def log_special(m: Arithmetic, x: LLVMValue, result: LLVMValue) -> LLVMValue:
    """The logarithm's values at infinity, zero, negative numbers and NaN."""
    result = m.select("oeq", x, math.inf, x, result)
    result = m.select("oeq", x, 0.0, m.number(-math.inf), result)
    return m.select("ult", x, 0.0, m.number(math.nan), result)


def _log(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    f, rest, whole = _log_parts(m, x)
    mantissa = m.add(f, m.fma(whole, _LN2_REST, rest))
    return log_special(m, x, m.fma(whole, LN2_HIGH, mantissa))


def _log2(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    f, rest, whole = _log_parts(m, x)
    natural = m.add(f, rest)
    return log_special(m, x, m.fma(natural, LOG2E_HIGH, m.fma(natural, LOG2E_LOW, whole)))


def _tanh(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    """A polynomial near zero; 1 - 2 / (e^2x + 1) elsewhere, one beyond 10."""
    size = m.absolute(x)
    square = m.multiply(x, x)
    small = m.fma(m.multiply(square, m.polynomial(square, _TANH)), x, x)
    doubled = m.clamp(m.add(size, size), 0.0, 20.0)
    grown = m.scaled(*_exp_reduced(m, doubled), normal=True)
    large = m.subtract(1.0, m.divide(2.0, m.add(grown, 1.0)))
    result = m.select("olt", size, 0.625, small, large)
    return m.with_sign_of(result, x)  # of the small one too: the fma of -0 is +0


def _erf(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    if m.lanes <= _ERF_LANES and "avx512f" in m.builder.module.features:
        return _erf_in_pieces(m, x)
    size = m.absolute(x)
    square = m.multiply(x, x)
    small = m.fma(m.polynomial(square, _ERF_SMALL), x, x)
    decay = m.negate(m.polynomial(m.clamp(size, 0.0, 4.0), _ERF_LARGE))
    large = m.subtract(1.0, m.scaled(*_exp_reduced(m, decay), normal=True))
    return m.select("olt", size, 0.92, small, m.with_sign_of(large, x))


def _erf_in_pieces(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    """A polynomial around the nearest multiple of 1/8, its coefficients looked up in registers: half the instructions.

    Fewer lanes are computed in a whole register too, so that an element's result does not depend on its place.
    """
    builder, wide = m.builder, Arithmetic(m.builder, _ERF_LANES)
    x = builder.with_lanes(x, _ERF_LANES)
    size = wide.absolute(x)
    size = wide.select("ogt", size, _ERF_ONE, wide.number(_ERF_ONE), size)
    shifted = wide.fma(size, 1 / _ERF_STEP, ROUNDER)
    rest = wide.fma(wide.subtract(shifted, wide.number(ROUNDER)), -_ERF_STEP, size)
    piece = wide.bits(shifted)  # the instruction looks at the lowest five bits
    powers = [_looked_up(wide, piece, table) for table in _erf_tables()]
    slope = powers[-1]
    for power in reversed(powers[1:-1]):
        slope = wide.fma(slope, rest, power)
    start = wide.select("oeq", shifted, ROUNDER, rest, powers[0])  # around zero r + (c - 1) r, rounded once
    return builder.with_lanes(wide.with_sign_of(wide.fma(slope, rest, start), x), m.lanes)


def _looked_up(m: Arithmetic, piece: LLVMValue, table: Sequence[float]) -> LLVMValue:
    """Each lane's number of a table of two registers."""
    halves = [
        LLVMValue(m.type, "<" + ", ".join(f"float {literal('float', number)}" for number in part) + ">")
        for part in (table[: m.lanes], table[m.lanes :])
    ]
    return m.builder.call("llvm.x86.avx512.vpermi2var.ps.512", m.type, [halves[0], piece, halves[1]])


@cache
def _erf_tables() -> list[list[float]]:
    """For each power of r the coefficients of erf(k / 8 + r), |r| <= 1/16, k = 0 … 31, fitted at Chebyshev's points.

    For k = 0 it is erf(r) - r.
    """
    points = np.cos(np.pi * (np.arange(_ERF_POINTS) + 0.5) / _ERF_POINTS) * _ERF_STEP / 2
    rows = []
    for piece in range(2 * _ERF_LANES):
        values = np.array([math.erf(piece * _ERF_STEP + point) for point in points])
        if piece:
            rows.append(np.polynomial.polynomial.polyfit(points, values, _ERF_DEGREE))
        else:  # odd, so that small arguments keep all their digits
            even = np.polynomial.polynomial.polyfit(points**2, values / points - 1, _ERF_DEGREE // 2)
            rows.append(np.column_stack([np.zeros_like(even), even]).ravel())
    rows[-1][0] = 1.0  # so that the last piece ends in one: x (1 + erf(x)) must vanish for large -x
    return [[float(np.float32(row[power])) for row in rows] for power in range(_ERF_DEGREE + 1)]


def _trigonometric(m: Arithmetic, opcode: str, x: LLVMValue) -> LLVMValue:
    """Reduced by multiples of pi / 2; huge arguments go to the C library, the other lanes do not."""
    builder = m.builder
    if builder.block.terminator is None:
        return _trigonometric_branch(m, opcode, x)
    # Moved out of a loop, to the end of a block that is closed: no branch fits there, but a call does.
    name = f"{opcode}.of.{m.lanes}"
    if name not in builder.module.defined:
        function = LLVMBuilder(builder.module, name, m.type, [(m.type, "x", "")], linkage="internal",
                               attributes=builder.attributes + " alwaysinline")  # fmt: skip
        function.float_flags = builder.float_flags
        function.ret(_trigonometric_branch(Arithmetic(function, m.lanes), opcode, function.arguments[0]))
        function.finish()
    return builder.call(name, m.type, [x])


def _trigonometric_branch(m: Arithmetic, opcode: str, x: LLVMValue) -> LLVMValue:
    builder = m.builder
    quick = _trigonometric_near(m, opcode, x)
    huge = builder.compare("ogt", m.absolute(x), m.number(TRIGONOMETRIC_LIMIT))
    any_huge = huge if m.lanes == 1 else builder.call(f"llvm.vector.reduce.or.v{m.lanes}i1", "i1", [huge])
    far, done = builder.new_block("far"), builder.new_block("reduced")
    near_end = builder.block
    builder.branch_if(any_huge, far, done, weights=(1, 1000))
    builder.start(far)
    slow = builder.select(huge, builder.intrinsic(opcode, [x]), quick)
    far_end = builder.block
    builder.branch(done)
    builder.start(done)
    return builder.phi(done, m.type, [(quick, near_end), (slow, far_end)])


def _trigonometric_near(m: Arithmetic, opcode: str, x: LLVMValue) -> LLVMValue:
    """Sine or cosine up to the limit."""
    whole, quadrant = m.rounded(x, 2 / math.pi)
    rest = x
    for part in _HALF_PI_SINGLE:
        rest = m.fma(whole, -part, rest)
    square = m.multiply(rest, rest)
    sine = m.fma(m.multiply(square, m.polynomial(square, _SIN)), rest, rest)
    cosine = m.fma(m.multiply(square, square), m.polynomial(square, _COS), m.fma(square, -0.5, 1.0))
    if opcode == "cos":
        quadrant = m.add(quadrant, m.integer(1))
    result = of_quadrant(m, quadrant, sine, cosine)
    return m.select("oeq", x, 0.0, x, result) if opcode == "sin" else result  # the reduction loses the sign of -0


def of_quadrant(m: Arithmetic, quadrant: LLVMValue, sine: LLVMValue, cosine: LLVMValue) -> LLVMValue:
    """The sine of quadrant * pi / 2 + r, by sine and cosine of r: quadrant n has sin, cos, -sin, -cos."""
    builder = m.builder
    odd = builder.compare("ne", builder.binary("and", quadrant, m.integer(1)), m.integer(0))
    top = m.integer(62 if m.double else 30)
    sign = builder.binary("shl", builder.binary("and", quadrant, m.integer(2)), top)
    return m.from_bits(builder.binary("xor", m.bits(builder.select(odd, cosine, sine)), sign))


def _power(m: Arithmetic, x: LLVMValue, y: LLVMValue) -> LLVMValue:
    """2^(y log2 |x|) in float64, whose spare digits make the float32 result right; then C's special cases."""
    builder = m.builder
    size = m.absolute(x)
    wide = Arithmetic(builder, m.lanes, "double")
    logarithm = _wide_log2(wide, builder.cast("fpext", size, wide.type))
    for special, value in ((0.0, -math.inf), (math.inf, math.inf)):
        at = builder.compare("oeq", size, m.number(special))
        logarithm = builder.select(at, wide.number(value), logarithm)
    logarithm = builder.select(builder.compare("uno", x, x), wide.number(math.nan), logarithm)
    exponent = wide.clamp(wide.multiply(builder.cast("fpext", y, wide.type), logarithm), -200.0, 200.0)
    result = builder.cast("fptrunc", _wide_exp2(wide, exponent), m.type)
    return power_special(m, x, y, result)


def power_special(m: Arithmetic, x: LLVMValue, y: LLVMValue, result: LLVMValue) -> LLVMValue:
    """C's special cases of x^y, of which `result` is right for |x|: ones; for a negative base the sign of an odd whole
    exponent, NaN for a fraction."""
    builder, one = m.builder, m.number(1.0)
    result = m.select("oeq", m.absolute(x), 1.0, one, result)
    half = m.multiply(y, 0.5)
    fraction = builder.compare("une", builder.intrinsic("trunc", [y]), y)
    odd = builder.binary(
        "and", builder.compare("une", builder.intrinsic("trunc", [half]), half), builder.inverse(fraction)
    )
    result = builder.select(odd, m.with_sign_of(result, x), result)
    negative = builder.compare("olt", x, m.number(0.0))
    finite = builder.compare("one", x, m.number(-math.inf))
    undefined = builder.binary("and", builder.binary("and", negative, finite), fraction)
    result = builder.select(undefined, m.number(math.nan), result)
    result = m.select("oeq", x, 1.0, one, result)
    return m.select("oeq", y, 0.0, one, result)


def _wide_log2(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    """log2 of positive normal float64 values, to about 43 bits."""
    builder = m.builder
    bits = m.bits(x)
    exponent = builder.binary("ashr", m.subtract(bits, m.bits_of(math.sqrt(0.5))), m.integer(52))
    mantissa = m.from_bits(m.subtract(bits, builder.binary("shl", exponent, m.integer(52))))
    one = m.number(1.0)
    ratio = m.divide(m.subtract(mantissa, one), m.add(mantissa, one))
    square = m.multiply(ratio, ratio)
    tail = m.multiply(m.multiply(square, ratio), m.polynomial(square, _LOG2_RATIO))
    whole = builder.cast("sitofp", exponent, m.type)
    return m.add(whole, m.fma(ratio, 2 / math.log(2), tail))


def _wide_exp2(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    """2^x for |x| <= 200 in float64, to about 34 bits."""
    whole, exponent = m.rounded(x, 1.0)
    rest = m.subtract(x, whole)
    return m.multiply(m.fma(rest, m.polynomial(rest, _EXP2_DOUBLE), 1.0), m.power_of_two(exponent))
