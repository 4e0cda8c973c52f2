"""`tilewright.testing`: timing, comparing, tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright import testing


def test_do_bench_calls_and_modes() -> None:
    calls: list[int] = []
    assert testing.do_bench(lambda: calls.append(0), warmup=0.1, rep=0.2) > 0
    assert len(calls) >= 7  # once to compile, five to estimate, one at least; on a busy machine none to warm up
    for mode in ("min", "max", "mean", "median"):
        assert isinstance(testing.do_bench(lambda: None, warmup=0, rep=0.01, return_mode=mode), float)
    times = testing.do_bench(lambda: None, warmup=0, rep=0.5, return_mode="all")
    assert isinstance(times, list) and len(times) > 1
    low, high = testing.do_bench(lambda: None, warmup=0, rep=0.5, quantiles=(0.1, 0.9))
    assert low <= high
    assert isinstance(testing.do_bench(lambda: None, warmup=0, rep=0.01, quantiles=[0.5]), float)
    with pytest.raises(ValueError, match="return_mode is one of min, max"):
        testing.do_bench(lambda: None, return_mode="best")


def test_do_bench_drops_gradients() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, requires_grad=True)
    testing.do_bench(lambda: (x * 2).sum().backward(), warmup=0, rep=0.01, grad_to_none=[x])
    assert x.grad.tolist() == [2, 2, 2]


def test_assert_close() -> None:
    testing.assert_close([1.0, float("nan")], [1.005, float("nan")])
    with pytest.raises(AssertionError, match="rows differ"):
        testing.assert_close([1.0], [1.02], err_msg="rows differ")
    testing.assert_close([1.0], [1.02], rtol=0.1)
    with pytest.raises(AssertionError):
        testing.assert_close(np.ones(2, np.float32), np.full(2, 1.005, np.float32), atol={"float32": 1e-4})
    torch = pytest.importorskip("torch")
    testing.assert_close(torch.ones(2, dtype=torch.bfloat16), np.ones(2), atol=0)


def test_perf_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @testing.perf_report(
        testing.Benchmark(
            x_names=["size"], x_vals=[2, 10], line_arg="provider", line_vals=["a", "b"], line_names=["A", "B"],
            plot_name="products", args={"factor": 3}, styles=[("blue", "-"), ("red", "-")], ylabel="units",
        )
    )  # fmt: skip
    def products(size: int, provider: str, factor: int) -> object:
        value = float(size * factor)
        return value if provider == "a" else (value + 1, value, value + 2)

    products.run(print_data=True, save_path=str(tmp_path))
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert printed == [["products:"], ["size", "A", "B"], ["2", "6", "7"], ["10", "30", "31"]]
    assert (tmp_path / "products.csv").read_text().splitlines()[1] == "2,6.0,7.0"
