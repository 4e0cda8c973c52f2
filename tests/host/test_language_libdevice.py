"""The mathematical library against NumPy, interpreted and compiled."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import launch
from tilewright.language.extra import libdevice


@tilewright.jit
def unary(x, out, FUNCTION: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, FUNCTION(tl.load(x + i)))


@tilewright.jit
def binary(x, y, out, FUNCTION: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, FUNCTION(tl.load(x + i), tl.load(y + i)))


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
