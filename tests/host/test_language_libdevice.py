"""The mathematical library against NumPy, interpreted and compiled."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.elementwise_kernels import binary, unary
from tests.host.language_support import launch
from tilewright.language.extra import libdevice


@tilewright.jit
def length(x, y, out, FUNCTION: tl.constexpr, COUNT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    zero = tl.zeros([N], out.dtype.element_ty)
    first, second = tl.load(x + i), tl.load(y + i)
    if COUNT == 3:
        tl.store(out + i, FUNCTION(first, zero, second))
    else:
        tl.store(out + i, FUNCTION(first, zero, zero, second))


FUNCTIONS = [
    ("exp10", lambda x: 10.0**x),
    ("log10", lambda x: np.log10(abs(x))),
    ("log1p", np.log1p),
    ("expm1", np.expm1),
    ("tan", np.tan),
    ("sinh", np.sinh),
    ("cosh", np.cosh),
    ("cbrt", np.cbrt),
    ("atan", np.arctan),
    ("asinh", np.arcsinh),
    ("round", lambda x: np.copysign(np.floor(abs(x) + 0.5), x)),
    ("rcp", lambda x: 1 / x),
    ("isnan", np.isnan),
    ("isinf", np.isinf),
    ("finitef", np.isfinite),
    ("signbit", np.signbit),
]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "reference"), FUNCTIONS)
def test_unary(name: str, reference, dtype: str, rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(-0.9, 3, 24), [1e-6, -1e-6, 0.5, -0.5, 1.5, 2.5, 0.25, 1e-3]]).astype(dtype)
    if name == "log10":
        x = abs(x)
    out = np.zeros_like(x)
    launch(unary, (1,), x, out, FUNCTION=getattr(libdevice, name), N=32)
    tolerance = 2e-6 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(out, reference(x.astype(np.float64)), rtol=tolerance, atol=tolerance * 1e-6)


def test_special_values() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 88.0], np.float32)
    for name, expected in [
        ("isnan", np.isnan(x)),
        ("isinf", np.isinf(x)),
        ("finitef", np.isfinite(x)),
        ("log1p", [np.nan, np.inf, np.nan, -0.0, 0.0, np.log(2), -np.inf, np.log(89)]),
        ("expm1", np.expm1(x)),
        ("cbrt", [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, np.cbrt(88.0)]),
    ]:
        out = np.zeros_like(x)
        launch(unary, (1,), x, out, FUNCTION=getattr(libdevice, name), N=8)
        np.testing.assert_allclose(out, expected, rtol=3e-6, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "reference"), [
    ("asin", np.arcsin), ("acos", np.arccos), ("atanh", np.arctanh), ("acosh", np.arccosh),
    ("atan", np.arctan), ("asinh", np.arcsinh),
])  # fmt: skip
def test_inverse_functions(name: str, reference, dtype: str, rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(-1, 1, 26), [1, -1, 0, -0.0, 1e-5, np.nan]]).astype(dtype)
    x = {"acosh": x * 1000 + 1001, "asinh": x * 1e10}.get(name, x).astype(dtype)
    with np.errstate(divide="ignore"):
        expected = reference(x.astype(np.float64))
    out = np.zeros_like(x)
    launch(unary, (1,), x, out, FUNCTION=getattr(libdevice, name), N=32)
    tolerance = 2e-6 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance * 1e-3)
    assert (np.signbit(out) == np.signbit(expected))[~np.isnan(expected)].all()


def test_outside_their_domains_inverse_functions_are_nan() -> None:
    x = np.array([-1.5, 1.5, 0.5, 2.0], np.float32)
    outside = [True, True, False, True]
    for name, expected in [("asin", outside), ("acos", outside), ("atanh", outside), ("acosh", [True, False] * 2)]:
        out = np.zeros_like(x)
        launch(unary, (1,), x, out, FUNCTION=getattr(libdevice, name), N=4)
        assert np.isnan(out).tolist() == expected, name


def test_angles_of_all_signs() -> None:
    ends = np.array([0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, 3e-20, np.nan], np.float32)
    y, x = (entry.ravel().copy() for entry in np.meshgrid(ends, ends))
    out = np.zeros_like(x)
    launch(binary, (1,), y, x, out, FUNCTION=libdevice.atan2, N=64)
    expected = np.arctan2(y.astype(np.float64), x)
    np.testing.assert_allclose(out, expected, rtol=5e-7)
    assert (np.signbit(out) == np.signbit(expected))[~np.isnan(expected)].all()


@pytest.mark.parametrize(("name", "reference"), [
    ("fdim", lambda x, y: np.maximum(x - y, 0)), ("atan2", np.arctan2),
    ("copysign", np.copysign), ("hypot", np.hypot), ("fmod", np.fmod), ("fmin", np.fmin), ("fmax", np.fmax),
    ("fast_dividef", np.divide),
])  # fmt: skip
def test_binary(name: str, reference, rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(2, 32)).astype(np.float32)
    x[0], y[1] = 3e38 if name == "hypot" else 1.0, -0.0 if name == "copysign" else 2.0
    out = np.zeros_like(x)
    launch(binary, (1,), x, y, out, FUNCTION=getattr(libdevice, name), N=32)
    np.testing.assert_allclose(out, reference(x.astype(np.float64), y), rtol=1e-5, atol=1e-6)


def test_bits(rng: np.random.Generator) -> None:
    x = np.concatenate([rng.integers(-(2**31), 2**31, 28), [0, 1, -1, 2**30]]).astype(np.int32)
    texts = [format(int(value) & 0xFFFFFFFF, "032b") for value in x]
    for name, expected in [
        ("popc", [text.count("1") for text in texts]),
        ("clz", [len(text) - len(text.lstrip("0")) for text in texts]),
        ("ffs", [32 - text.rindex("1") if "1" in text else 0 for text in texts]),
    ]:
        out = np.zeros_like(x)
        launch(unary, (1,), x, out, FUNCTION=getattr(libdevice, name), N=32)
        assert out.tolist() == expected, name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "reference"), [("sinh", np.sinh), ("cosh", np.cosh)])
def test_hyperbolic_functions_up_to_their_overflow(name: str, reference, dtype: str) -> None:
    ends = {"float32": [88.8, 88.9, 89.41, 89.43], "float64": [709.7, 709.9, 710.47, 710.5]}[dtype]
    x = np.array([*ends, -ends[1], -ends[3], 1.5, 19.9, 20.1, 60.0, -30.0, -0.0, np.inf, -np.inf, np.nan, 1e-9], dtype)
    with np.errstate(over="ignore"):
        expected = reference(x.astype(np.float64)).astype(dtype)
    out = np.zeros_like(x)
    launch(unary, (1,), x, out, FUNCTION=getattr(libdevice, name), N=16)
    np.testing.assert_allclose(out, expected, rtol=2e-6 if dtype == "float32" else 1e-13)
    assert np.isfinite(out[:3]).all()
    assert np.isinf(out[3])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lengths_are_infinite_or_nan_as_in_c(dtype: str) -> None:
    values = np.array([0.0, 3.0, np.nan, np.inf, -np.inf, -4.0, 1e-30, 2.0], dtype)
    x, y = (entry.ravel().copy() for entry in np.meshgrid(values, values))
    expected = np.hypot(x.astype(np.float64), y)
    with np.errstate(divide="ignore"):
        inverse = 1.0 / expected
    for name, reference in [("hypot", expected), ("rhypot", inverse)]:
        out = np.zeros_like(x)
        launch(binary, (1,), x, y, out, FUNCTION=getattr(libdevice, name), N=64)
        np.testing.assert_allclose(out, reference, rtol=1e-6, err_msg=name)
    for form, reference in [("norm3d", expected), ("norm4d", expected), ("rnorm3d", inverse), ("rnorm4d", inverse)]:
        out = np.zeros_like(x)
        launch(length, (1,), x, y, out, FUNCTION=getattr(libdevice, form), COUNT=int(form[-2]), N=64)
        np.testing.assert_allclose(out, reference, rtol=1e-6, err_msg=form)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["sin", "tan", "tanh", "fast_tanhf", "sinh", "round", "rint", "trunc", "atan", "asin"])
def test_the_sign_of_zero_stays(name: str, dtype: str) -> None:
    x = np.array([-0.0, 0.0, -1e-40, 1e-40, -0.3, 0.3, -0.49, 0.49], dtype)
    out = np.zeros_like(x)
    launch(unary, (1,), x, out, FUNCTION=getattr(libdevice, name), N=8)
    assert np.signbit(out).tolist() == [True, False] * 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_whole_numbers_are_kept_inside_int64(dtype: str) -> None:
    x = np.array([1e30, -1e30, np.inf, -np.inf, np.nan, 2.0**63, -2.5, 2.5], dtype)
    top, bottom = 2**63 - 1, -(2**63)
    for name, halves in [("llrint", [-2, 2]), ("llround", [-3, 3])]:
        out = np.zeros(8, np.int64)
        launch(unary, (1,), x, out, FUNCTION=getattr(libdevice, name), N=8)
        assert out.tolist() == [top, bottom, top, bottom, 0, top, *halves], name
