"""Conversions between all dtypes, and the values of promoted sums, on the interpreter and the CPU.

8- and 16-bit sources are tried with every code; wider ones with random numbers and the edges of every target.
A float that an integer type does not hold becomes the nearest number that it does, and NaN becomes 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import compile_error, launch
from tilewright import dtypes
from tilewright.language.semantic.promotion import promote
from tilewright.settings import settings

DTYPES = [dtype for dtype in dtypes.DTYPES if not dtype.is_bool]
FLOATS = [dtype for dtype in DTYPES if dtype.is_float]
BLOCK = 1024


def convertible(source: dtypes.DType, target: dtypes.DType) -> bool:
    """8-bit floats and integers have no direct conversion."""
    small = [dtype.is_float and dtype.bits == 8 for dtype in (source, target)]
    return not (small[0] and target.is_integer or small[1] and source.is_integer)


@tilewright.jit
def convert_to_all(x, outs, ROUNDING: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.load(x + i)
    for out in outs:
        tl.store(out + i, value.to(out.dtype.element_ty, fp_downcast_rounding=ROUNDING))


def numbers(dtype: dtypes.DType, rng: np.random.Generator) -> np.ndarray:
    """Every code of a narrow dtype; edges and random numbers of a wide one. A multiple of the block in length."""
    kind = dtype.numpy
    if dtype.bits <= 16:
        codes = np.arange(max(BLOCK, 1 << dtype.bits), dtype=np.uint32)
        return codes.astype(f"uint{dtype.bits}").view(kind)
    if dtype.is_integer:
        info = np.iinfo(kind)
        x = rng.integers(info.min, info.max, 4 * BLOCK, kind, endpoint=True)
        x >>= rng.integers(0, dtype.bits, x.size).astype(kind)
        x[:5] = [info.min, info.max, 0, 1, (1 << 24) + 1]
        # Just above the middle between two bfloat16, nearer to it than float32 can tell.
        shift = rng.integers(17, dtype.bits - 11, 256)
        x[5:261] = ((2 * rng.integers(128, 255, 256).astype(np.uint64) + 1) << shift.astype(np.uint64)).astype(kind) + 1
        return x
    x = rng.normal(size=8 * BLOCK) * 10.0 ** rng.uniform(-12, 12, 8 * BLOCK)
    edges = [_numbers_near(target, rng) for target in FLOATS] + [_limits_of_integers()]
    x = np.concatenate([[0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, -5e-324, 1e308], *edges, x])
    with np.errstate(all="ignore"):
        return x[: x.size // BLOCK * BLOCK].astype(kind)


def _numbers_near(target: dtypes.DType, rng: np.random.Generator) -> np.ndarray:
    """Numbers of a dtype, the float64 next to them, and the middles between neighbours."""
    codes = rng.integers(0, 1 << min(target.bits, 62), 256, np.uint64).astype(f"uint{target.bits}")
    with np.errstate(all="ignore"):
        exact = codes.view(target.numpy).astype(np.float64)
        step = np.spacing(exact)
        following = (codes + np.asarray(1, codes.dtype)).view(target.numpy).astype(np.float64)
        middle = (exact + following) / 2
        return np.concatenate([exact, exact + step, exact - step, middle, middle + step, middle - step])


def _limits_of_integers() -> np.ndarray:
    """Where conversions begin to saturate, the float32 and float64 on both sides, halves and units further."""
    powers = 2.0 ** np.array([7, 8, 15, 16, 31, 32, 63, 64])
    single = powers.astype(np.float32)
    near = [np.nextafter(single, np.float32(to)).astype(np.float64) for to in (0, np.inf)]
    near += [np.nextafter(powers, to) for to in (0, np.inf)] + [powers + step for step in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    limits = np.concatenate([*near, np.array([0.5, 1.0, 1.5])])
    return np.concatenate([limits, -limits])


def reference(x: np.ndarray, target: dtypes.DType, rounding: str) -> tuple[np.ndarray, np.ndarray]:
    """The converted numbers, and where they are defined."""
    kind = target.numpy
    with np.errstate(all="ignore"):
        if x.dtype == kind:
            return x, np.ones(x.shape, bool)
        if not dtypes.from_numpy(x.dtype).is_float:
            if target.is_integer or target.bits >= 32:
                return x.astype(kind), np.ones(x.shape, bool)
            exact = x.astype(np.longdouble)
            return _rounded(exact, target), np.ones(x.shape, bool)
        wide = x.astype(np.float64)
        if target.is_float:
            nearest = _rounded(wide.astype(np.longdouble), target)
            narrows = target.bits < dtypes.from_numpy(x.dtype).bits
            if rounding == "rtz" and narrows:
                beyond = np.abs(nearest.astype(np.float64)) > np.abs(wide)
                bits = nearest.view(f"uint{target.bits}")
                stepped = np.where(beyond & np.isfinite(wide), bits - np.asarray(1, bits.dtype), bits)
                if target.name in ("float8e5b16", "float8e4b8"):  # there is no -0: its code is NaN
                    stepped = np.where(beyond & (stepped == 0x80), np.asarray(0, bits.dtype), stepped)
                nearest = stepped.view(kind)
            return nearest, np.ones(x.shape, bool)
        info = np.iinfo(kind)
        inside = (wide > float(info.min) - 1) & (wide < float(info.max) + (target.bits < 64))
        saturated = np.where(wide > 0, np.asarray(info.max, kind), np.asarray(info.min, kind))
        integers = np.where(inside, np.where(inside, wide, 0).astype(kind), saturated)
        return np.where(np.isnan(wide), np.zeros((), kind), integers), np.ones(x.shape, bool)


def _rounded(exact: np.ndarray, target: dtypes.DType) -> np.ndarray:
    """Rounded once, to nearest even, by picking the nearest of neighbours; 8-bit floats saturate."""
    kind = target.numpy
    if target.bits >= 32:
        return exact.astype(kind)
    size = np.abs(exact)
    if target.bits == 8:
        size = np.where(np.isnan(size), size, np.minimum(size, _greatest(target)))
    first = size.astype(np.float32).astype(kind)
    bits = first.view(f"uint{target.bits}")
    one = np.asarray(1, bits.dtype)
    best, chosen = np.abs(first.astype(np.longdouble) - size), bits
    for other in (bits + one, np.maximum(bits, one) - one):
        number = other.view(kind).astype(np.longdouble)
        distance = np.abs(number - size)
        even = (other & one) == 0
        better = np.isfinite(number) & np.isfinite(first.astype(np.float32)) & ~np.signbit(number)
        better &= (distance < best) | (distance == best) & even
        best, chosen = np.where(better, distance, best), np.where(better, other, chosen)
    sign = np.signbit(exact).astype(bits.dtype) << (target.bits - 1)
    has_negative_zero = target.name not in ("float8e5b16", "float8e4b8")
    signed = np.where((chosen == 0) & (not has_negative_zero) | np.isnan(size), chosen, chosen | sign)
    return signed.astype(bits.dtype).view(kind)


def _greatest(target: dtypes.DType) -> float:
    codes = np.arange(256, dtype=np.uint8).view(target.numpy).astype(np.float64)
    return float(np.max(codes[np.isfinite(codes)]))


def assert_same(actual: np.ndarray, expected: np.ndarray, defined: np.ndarray, what: str) -> None:
    """Equal bits, NaNs apart, whose bits are open."""
    if dtypes.from_numpy(actual.dtype).is_float:
        with np.errstate(invalid="ignore"):
            nan = np.isnan(actual.astype(np.float64)) & np.isnan(expected.astype(np.float64))
        defined = defined & ~nan
    bits = f"uint{8 * actual.dtype.itemsize}"
    wrong = np.flatnonzero((actual.view(bits) != expected.view(bits)) & defined)
    assert not wrong.size, f"{what}: {len(wrong)} wrong, the first: {actual[wrong[0]]}, expected {expected[wrong[0]]}"


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("interpret", [False, True], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("source", DTYPES, ids=lambda dtype: dtype.name)
def test_every_conversion(source: dtypes.DType, interpret: bool, rng: np.random.Generator) -> None:
    x = numbers(source, rng)
    targets = [target for target in DTYPES if convertible(source, target)]
    outs = tuple(np.zeros(x.size, target.numpy) for target in targets)
    with settings.scope(interpret=interpret):
        convert_to_all[(x.size // BLOCK,)](x, outs, ROUNDING=None, N=BLOCK)
    for target, out in zip(targets, outs, strict=True):
        expected, defined = reference(x, target, "rtne")
        if target.bits == 8 and target.is_float:  # what has no number in them: infinities become the greatest
            defined = defined & (x == x)
        assert_same(out, expected, defined, f"{source.name} to {target.name}")


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("interpret", [False, True], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("source", [dtype for dtype in FLOATS if dtype.bits > 8], ids=lambda dtype: dtype.name)
def test_rounding_toward_zero(source: dtypes.DType, interpret: bool, rng: np.random.Generator) -> None:
    x = numbers(source, rng)
    targets = [target for target in FLOATS if target.bits < source.bits]
    outs = tuple(np.zeros(x.size, target.numpy) for target in targets)
    with settings.scope(interpret=interpret):
        convert_to_all[(x.size // BLOCK,)](x, outs, ROUNDING="rtz", N=BLOCK)
    for target, out in zip(targets, outs, strict=True):
        expected, defined = reference(x, target, "rtz")
        defined = defined & ((target.bits > 8) | (x == x))
        assert_same(out, expected, defined, f"{source.name} to {target.name}")


@tilewright.jit
def literal_to_all(outs, VALUE: tl.constexpr):
    i = tl.arange(0, 4)
    for out in outs:
        kind = out.dtype.element_ty
        tl.store(out + i, VALUE)
        tl.store(out + 4 + i, tl.full([4], VALUE, kind))
        tl.store(out + 8 + i, tl.cast(VALUE, kind))
        tl.store(out + 12 + i, tl.load(out + i, mask=i < 0, other=VALUE))
        tl.store(out + 16 + i, tl.full([4], VALUE, tl.float64).to(kind))


@pytest.mark.parametrize("value", [2.9, -2.9, 300.5, -40000.0, 3e9, -3e9, 1e30, 2.0**63, np.inf, -np.inf, np.nan])
def test_literals_become_integers_as_numbers_do(value: float) -> None:
    outs = tuple(np.ones(20, dtype.numpy) for dtype in DTYPES if dtype.is_integer)
    literal_to_all[(1,)](outs, VALUE=value)
    for out in outs:
        limits = np.iinfo(out.dtype)
        expected = 0 if np.isnan(value) else min(max(value, limits.min), limits.max)
        assert out.tolist() == [int(expected)] * 20


@tilewright.jit
def truth(x, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.int1))


@pytest.mark.parametrize("source", DTYPES, ids=lambda dtype: dtype.name)
def test_truth(source: dtypes.DType, rng: np.random.Generator) -> None:
    x = numbers(source, rng)[:BLOCK]
    out = np.zeros(x.size, np.bool_)
    launch(truth, (1,), x, out, N=BLOCK)
    np.testing.assert_array_equal(out, x.astype(np.float64) != 0)


@tilewright.jit
def sums(x, others, outs, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    for number in tl.static_range(len(others)):
        total = value + tl.load(others[number] + i)
        tl.static_assert(total.dtype == outs[number].dtype.element_ty)
        tl.store(outs[number] + i, total)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("left", DTYPES, ids=lambda dtype: dtype.name)
def test_sums_of_all_pairs(left: dtypes.DType, rng: np.random.Generator) -> None:
    """Small whole numbers, so that every dtype holds them; the stored dtype is the promoted one."""
    low = 0 if left.kind == "uint" else -3
    x = rng.integers(low, 4, 32).astype(left.numpy)
    others, outs, expected = [], [], []
    for right in DTYPES:
        if not (convertible(left, right) and convertible(right, left)):
            continue
        y = rng.integers(0 if right.kind == "uint" else -3, 4, 32).astype(right.numpy)
        common = promote(left, right)
        others.append(y)
        outs.append(np.zeros(32, common.numpy))
        if common.is_integer:
            with np.errstate(over="ignore"):
                expected.append(x.astype(common.numpy) + y.astype(common.numpy))
        else:
            expected.append((x.astype(np.float64) + y.astype(np.float64)).astype(common.numpy))
    launch_tuples(sums, x, tuple(others), tuple(outs), N=32)
    for out, wanted in zip(outs, expected, strict=True):
        np.testing.assert_array_equal(out.astype(np.float64), wanted.astype(np.float64))


def launch_tuples(kernel: Any, x: np.ndarray, others: tuple[Any, ...], outs: tuple[Any, ...], **keywords: Any) -> None:
    """Run interpreted and compiled: both must leave the same behind."""
    copies = tuple(out.copy() for out in outs)
    with settings.scope(interpret=True):
        kernel[(1,)](x, others, copies, **keywords)
    kernel[(1,)](x, others, outs, **keywords)
    for copy, out in zip(copies, outs, strict=True):
        assert copy.tobytes() == out.tobytes()


@tilewright.jit
def cast_of(x, TO: tl.constexpr, ROUNDING: tl.constexpr, BITS: tl.constexpr):
    tl.load(x).to(TO, fp_downcast_rounding=ROUNDING, bitcast=BITS)


@pytest.mark.parametrize(
    ("source", "target", "rounding", "bitcast", "message"),
    [
        ("*i32", tl.float8e5, None, False, "no direct conversion between int32 and fp8e5"),
        ("*f8e4nv", tl.int8, None, False, "no direct conversion between fp8e4nv and int8"),
        ("*f32", tl.int32, "rtz", False, "'rtz' is for a float narrowed"),
        ("*f32", tl.float64, "rtz", False, "'rtz' is for a float narrowed"),
        ("*f32", tl.float16, "up", False, "must be 'rtne' or 'rtz'"),
        ("*f32", tl.int64, None, True, "a bitcast needs equal widths"),
        ("*f32", 3, None, False, "a dtype such as tl.float32 is needed"),
    ],
)
def test_conversions_that_are_refused(source: str, target: Any, rounding: Any, bitcast: bool, message: str) -> None:
    assert message in compile_error(cast_of, {"x": source}, TO=target, ROUNDING=rounding, BITS=bitcast)
