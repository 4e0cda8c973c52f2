"""float32 products on the tensor cores of Hopper: as accurate as PyTorch's, at odd sizes, of what is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import ops
from tilewright.library.convolution.hopper import bf16x6
from tilewright.settings import settings

pytestmark = pytest.mark.capability(9)
UNIT = 2.0**-24


@pytest.fixture(autouse=True)
def exact(torch: Any, cache: Any) -> Any:
    """Nothing is timed, and PyTorch multiplies float32 as it is."""
    allowed, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
    with settings.scope(tune=False):
        yield
    torch.backends.cuda.matmul.allow_tf32 = allowed


@pytest.fixture
def seed(torch: Any, rng: np.random.Generator) -> int:
    """Of PyTorch's generators."""
    number = int(rng.integers(1 << 30))
    torch.manual_seed(number)
    return number


def numbers(torch: Any, kind: str, rows: int, depth: int) -> Any:
    """Random numbers: normal ones, positive ones, of all magnitudes, or such that sums cancel."""
    x = torch.randn(rows, depth, device="cuda")
    if kind == "positive":
        return x.abs()
    if kind == "scaled":
        return x * 10.0 ** (torch.rand(rows, depth, device="cuda") * 36 - 18)
    if kind == "cancelling":
        x[:, 1::2] = x[:, ::2] * (1 + 2.0**-12 * x[:, 1::2])
        x[::2, 1::2] *= -1
    return x


def error(found: Any, a: Any, b: Any) -> Any:
    """Errors in units of rounding the sum of the products' magnitudes."""
    exact, scale = a.double() @ b.double().T, a.double().abs() @ b.double().abs().T
    return (found.double() - exact).abs() / scale / UNIT


@pytest.mark.parametrize("kind", ["normal", "positive", "scaled", "cancelling"])
@pytest.mark.parametrize("depth", [64, 1024, 16384])
def test_accuracy(torch: Any, kind: str, depth: int, seed: int) -> None:
    rows = 4096 if depth == 64 else 2048
    a, b = (numbers(torch, kind, rows, depth) for _ in range(2))
    plan = ops.plan_matmul(a, b.T, precision="ieee", effort=0)
    ours = error(plan(a, b.T, precision="ieee"), a, b)
    assert "bf16x6" in plan.explain()
    peer = error(a @ b.T, a, b)
    # Tensor cores truncate the sums of 64 steps: that counts where one of few products is the sum.
    assert ours.mean() <= 1.2 * peer.mean() + 0.4
    assert ours.max() <= 2 * peer.max() + 2


@pytest.mark.parametrize("sizes", [(1031, 1033, 1029), (4096, 520, 1000)])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_any_size_and_order(torch: Any, sizes: tuple[int, int, int], turned: tuple[bool, bool], seed: int) -> None:
    M, N, K = sizes
    a = torch.randn(K, M, device="cuda").T if turned[0] else torch.randn(M, K, device="cuda")
    b = torch.randn(N, K, device="cuda").T if turned[1] else torch.randn(K, N, device="cuda")
    bias = torch.randn(N, device="cuda")
    found = ops.matmul(a, b, bias=bias, activation="relu", precision="ieee", effort=0)
    exact = (a.double() @ b.double() + bias.double()).relu()
    assert (found.double() - exact).abs().max() <= 1e-3


def test_what_is_not_finite(torch: Any, seed: int) -> None:
    """Infinities, NaNs and overflow are where float32 has them."""
    a, b = torch.randn(1500, 1024, device="cuda"), torch.randn(1300, 1024, device="cuda")
    a[3, 5], a[700, 7], a[900, 11] = float("inf"), float("nan"), 3.4e38
    b[40, 9], b[50, 11], b[7] = -float("inf"), 3.4e38, 0.0
    a[3, 11] = b[40, 11] = 0.0  # no infinity meets an overflow, whose sum depends on the order
    plan = ops.plan_matmul(a, b.T, precision="ieee", effort=0)
    found, expected = plan(a, b.T, precision="ieee"), a @ b.T
    assert "bf16x6" in plan.explain()
    assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(found.isinf(), expected.isinf())
    finite = expected.isfinite()
    assert torch.allclose(found[finite], expected[finite], rtol=1e-4, atol=1e-3)


def test_engines(torch: Any, seed: int) -> None:
    """Constants are split in the build; an engine names the kernel."""
    layer, x = torch.nn.Linear(1024, 1536).eval(), torch.randn(2048, 1024)
    engine = tilewright.compile(layer, (x,), target="cuda")
    assert any("bf16x6" in str(step.evidence) for step in engine.plan.steps)
    exact = x.double() @ layer.weight.double().T + layer.bias.double()
    assert (engine(x.cuda()).cpu().double() - exact).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("image", "filters", "options"),
    [
        ((4, 64, 70, 75), (96, 64, 3, 3), {"padding": 1}),
        ((8, 128, 41, 33), (128, 128, 3, 5), {"stride": 2, "padding": (1, 2)}),
        ((2, 64, 9, 30, 31), (64, 64, 3, 3, 3), {"dilation": (1, 2, 1)}),
        ((8, 40, 3000), (130, 40, 7), {"padding": 3}),
    ],
)
def test_convolutions(torch: Any, image: Any, filters: Any, options: Any, seed: int, monkeypatch: Any) -> None:
    """Lines, images and volumes of any size; infinities and NaNs are where float32 has them."""
    ranked = bf16x6.ranked_configs
    monkeypatch.setattr(bf16x6, "ranked_configs", lambda *given: tuple((config, 1e-9) for config, _ in ranked(*given)))
    kind = [torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d][len(image) - 3]
    layer, x = kind(filters[1], filters[0], filters[2:], **options).eval(), torch.randn(image)
    engine = tilewright.compile(layer, (x,), target="cuda")
    assert any("bf16x6" in str(step.evidence["chosen"]) for step in engine.plan.steps)
    exact = layer.double()(x.double())
    assert (engine(x.cuda()).cpu().double() - exact).norm() <= 2.0**-22 * exact.norm()
    x[0, 3].flatten()[100], x[-1, 5].flatten()[200] = float("inf"), float("nan")
    found, exact = engine(x.cuda()).cpu(), layer(x.double())
    assert torch.equal(found.isnan(), exact.isnan()) and torch.equal(found.isinf(), exact.isinf())
