"""Running sums, products and logarithms of sums along long rows on CPUs: errors do not add up with the length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

from onnx import helper  # noqa: E402

import tilewright  # noqa: E402

Running = Callable[[torch.Tensor], torch.Tensor]
LENGTH = 3_000_000
FORMS: dict[str, Running] = {
    "sum": lambda x: x.cumsum(-1),
    "sum from the end": lambda x: x.flip(-1).cumsum(-1).flip(-1),
    "sum of columns": lambda x: x.reshape(-1, 3).cumsum(0),
    "product": lambda x: x.cumprod(-1),
    "logarithm": lambda x: x.logcumsumexp(-1),
    "logarithm of columns": lambda x: x.reshape(-1, 3).logcumsumexp(0),
}


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest relative error."""
    return float(((found.double() - exact).abs() / exact.abs()).max())


@pytest.mark.parametrize("form", FORMS)
def test_long_rows_are_rounded_once(form: str) -> None:
    x = torch.rand(LENGTH, generator=torch.Generator().manual_seed(0))
    x = 1 + (x - 0.5) * 1e-3 if form == "product" else x
    exact = FORMS[form](x.double())
    found = torch.compile(FORMS[form], backend="tilewright")(x)
    assert found.dtype == torch.float32
    assert _error(found, exact) < 3e-7


def test_counts_beyond_the_whole_numbers_of_float32() -> None:
    found = torch.compile(lambda x: x.cumsum(0), backend="tilewright")(torch.ones(20_000_000))
    assert found[-1] == 20_000_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logarithms_of_rising_falling_and_infinite_numbers(dtype: torch.dtype) -> None:
    """The sum is scaled by an element that rises by steps, and of infinite ones there may be several."""
    inf, nan = torch.inf, torch.nan
    special = torch.tensor([-inf, -inf, 0.0, -20.0, -inf, 3e38, inf, 1.0, inf, -inf, nan, 2.0, -3e38], dtype=dtype)
    rising = torch.arange(100_000, dtype=dtype) * 1e-4
    compiled = torch.compile(lambda x: x.logcumsumexp(-1), backend="tilewright", dynamic=True)
    for x in (
        special,
        special[:10],
        special.flip(0)[3:],
        rising,
        -rising,
        rising * 100,
        torch.full((50_000,), -9.5, dtype=dtype),
    ):
        for rows in (x, torch.stack([x, x], 1).T.contiguous()):
            wanted = rows.double().logcumsumexp(-1)
            torch.testing.assert_close(
                compiled(rows).double(), wanted.to(dtype).double(), rtol=3e-7, atol=1e-6, equal_nan=True
            )


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_sums_of_onnx(reverse: int, exclusive: int) -> None:
    node = helper.make_node("CumSum", ["x", "axis"], ["y"], reverse=reverse, exclusive=exclusive)
    entries = [helper.make_tensor_value_info("x", 1, [1, LENGTH])]
    results = [helper.make_tensor_value_info("y", 1, [1, LENGTH])]
    axis = helper.make_tensor("axis", onnx.TensorProto.INT64, [], [1])
    graph = helper.make_graph([node], "running", entries, results, [axis])
    x = np.random.default_rng(0).random((1, LENGTH), np.float32)
    found = tilewright.compile(helper.make_model(graph, ir_version=10)).run({"x": x})["y"]
    exact = (x[:, ::-1] if reverse else x).astype(np.float64).cumsum(1)
    exact = exact - (x[:, ::-1] if reverse else x) if exclusive else exact
    exact = exact[:, ::-1] if reverse else exact
    np.testing.assert_allclose(found, exact, rtol=1e-7, atol=1e-9)
