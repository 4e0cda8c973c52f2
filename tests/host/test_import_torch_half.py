"""Numbers beside 16-bit tensors: PyTorch computes with them in float32 and rounds the result once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import tilewright  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.graph.pipeline import optimize  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

SINGLE = torch.tensor(0.1)
# Functions of x and y with one rounding behind them; with float64 tensors the exact result.
EXACT: dict[str, Callable[..., Any]] = {
    "mul": lambda x, y: x * 0.1,
    "div": lambda x, y: x / 0.3,
    "tensor without dimensions": lambda x, y: x * SINGLE,
    "divided by such a tensor": lambda x, y: x / SINGLE.double(),
    "floor": lambda x, y: torch.floor_divide(x, 0.3),
    "trunc": lambda x, y: torch.div(x, 0.3, rounding_mode="trunc"),
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.1),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y.abs() + 1, value=0.1),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "leaky": lambda x, y: F.leaky_relu(x, 0.3),
    "softplus": lambda x, y: F.softplus(x, 2.3),
}
# PyTorch's kernels for CPUs round the number first.
ROUNDED: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + 0.1,
    "rsub": lambda x, y: 0.3 - x,
    "alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "pow": lambda x, y: x.abs() ** 0.3,
    "less": lambda x, y: torch.full_like(x, 0.1) < 0.1,
    "equal": lambda x, y: torch.full_like(x, 0.1) == 0.1,
    "fmod": lambda x, y: torch.fmod(x, 0.3),
    "clamp": lambda x, y: x.clamp(-0.1, 0.3),
    "where": lambda x, y: torch.where(x > 0, x, 0.1),
}


def as_module(function: Callable[..., Any]) -> torch.nn.Module:
    class Module(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return function(x, y)

    return Module().eval()


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
def test_as_pytorch_computes(name: str, dtype: Any) -> None:
    module = as_module({**EXACT, **ROUNDED}[name])
    x, y = torch.randn(33, 67).to(dtype), torch.randn(33, 67).to(dtype)
    wanted = module(x, y)
    found = tilewright.compile(module, (x, y), target="cpu", effort=0)(x, y)
    # Halfway between two numbers the order of operations decides; a rounded number moves more (lerp: 8 %).
    # What PyTorch rounds between two operations, a kernel does not.
    assert float((found != wanted).double().mean()) < (0.03 if name in ("addcdiv", "softplus") else 0.005)
    if name in EXACT:
        exact = module(x.double(), y.double())
        error = (found.double() - exact).abs() / exact.abs().clamp(min=1e-2)
        # A quotient that is nearly a whole number may become the next one.
        assert float((error > 0.51 * torch.finfo(dtype).eps).double().mean()) < 0.01


def test_the_graph_has_them_in_float32() -> None:
    """Numbers that 16 bits hold stay in 16 bits."""
    module = as_module(lambda x, y: x * 0.1 / 3.0 + y * 0.5)
    x, y = torch.randn(5, 7).half(), torch.randn(5, 7).half()
    graph = import_model(module, (x, y))
    assert sorted(value.dtype.text for value in graph.constants if value.rank == 0) == ["f16", "f16", "f32"]
    (found,) = reference.run(graph, {"x": x.numpy(), "y": y.numpy()}).values()
    np.testing.assert_allclose(found, module(x, y).numpy(), rtol=2e-3, atol=1e-3)


MANY = 70001  # rows, which is above what float16 holds
LABELS = torch.arange(MANY) % 3
# Functions of x [MANY, 3] and of y, smaller and with squares that float16 does not hold; their results it does.
COUNTED: dict[str, Callable[..., Any]] = {
    "var": lambda x, y: x.var(0),
    "deviation": lambda x, y: y.std(1),
    "batch norm": lambda x, y: F.batch_norm(y, None, None, training=True),
    "norm": lambda x, y: torch.linalg.vector_norm(y, 3, 1),
    "sum by count": lambda x, y: x.abs().sum(0) / x.shape[0],
    "cross entropy": lambda x, y: F.cross_entropy(x, LABELS, torch.tensor([0.5, 1.0, 2.0]).to(x)),
    "divergence": lambda x, y: F.kl_div(x.log_softmax(-1), x.flip(0).softmax(-1), reduction="batchmean"),
    "bag": lambda x, y: F.embedding_bag(LABELS[None].expand(2, -1) % 2, y, mode="mean"),
    "bag of others": lambda x, y: F.embedding_bag(LABELS[None], y, mode="mean", padding_idx=1),
    "mean by index": lambda x, y: y[:3].index_reduce(0, LABELS, x[:, :1].expand(-1, y.shape[1]), "mean"),
}


@pytest.mark.parametrize("name", COUNTED)
def test_counts_and_squares_that_float16_does_not_hold(name: str) -> None:
    module = as_module(COUNTED[name])
    x, y = torch.randn(MANY, 3).half(), (600 * torch.randn(5, 11)).half()
    graph = optimize(import_model(module, (x, y)))
    (found,) = reference.run(graph, {"x": x.numpy(), "y": y.numpy()}).values()
    exact = module(x.double(), y.double())
    torch.testing.assert_close(torch.from_numpy(found).double(), exact, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tracked", [True, False])
def test_batch_norms_in_float32(tracked: bool, dtype: Any) -> None:
    """As under autocast: statistics and factors that 16 bits do not hold, or hold with few digits."""
    norm = torch.nn.BatchNorm2d(4, eps=1e-12, track_running_stats=tracked).eval()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 0.5, 2.0, 1.0]))
        norm.bias.copy_(torch.tensor([0.0, 1e-9, -1.0, 2.0]))
        if tracked:
            norm.running_mean.copy_(torch.tensor([1000.3, 1.0003, 0.0, -5.0]))
            norm.running_var.copy_(torch.tensor([9e4, 9e-8, 1.0, 7e4]))
    x = torch.randn(3, 4, 5, 6) * torch.tensor([300, 3e-4, 1, 250]).view(4, 1, 1)
    x = (x + torch.tensor([1000, 1, 0, -5]).view(4, 1, 1)).to(dtype)
    expected = norm(x)
    found = tilewright.compile(norm, (x,), target="cpu", effort=0)(x)
    assert found.dtype == expected.dtype == dtype
    torch.testing.assert_close(found.double(), expected.double(), rtol=2 * torch.finfo(dtype).eps, atol=2e-3)
