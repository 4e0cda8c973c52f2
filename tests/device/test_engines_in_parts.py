"""Engines in parts on a GPU: tensors stay in its memory between the parts, whoever they belong to."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.on_device import OnDevice

torch = pytest.importorskip("torch")
while_loop = pytest.importorskip("torch._higher_order_ops").while_loop
pytestmark = pytest.mark.usefixtures("torch")


class Chosen(torch.nn.Module):
    """Rows whose sum is positive, and the square of all."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torch.tanh(x)[x.sum(1).gt(0).nonzero()[:, 0]]
        return torch.softmax(kept @ x.t(), 1), x * x


class Rounds(torch.nn.Module):
    def forward(self, x: torch.Tensor, count: torch.Tensor) -> Any:
        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, y: i < count, lambda i, y: (i + 1, torch.tanh(y @ y) + 0.1), (start, x * 1.0))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of elements that the host reads of the GPU."""
    found: list[int] = []
    original = OnDevice._read

    def reading(self: OnDevice) -> np.ndarray:
        found.append(int(np.prod(self.shape, dtype=int)))
        return original(self)

    monkeypatch.setattr(OnDevice, "_read", reading)
    return found


@functools.cache
def chosen() -> tilewright.Engine:
    rows = {"x": {0: torch.export.Dim("n", max=4096)}}
    return tilewright.compile(Chosen().eval(), (torch.randn(40, 256),), rows, target="cuda")


@pytest.mark.parametrize("rows", [1, 40, 3000])
def test_values_stay_on_the_gpu(read: list[int], rows: int) -> None:
    for _ in range(3):
        x = torch.randn(rows, 256, device="cuda")
        x[0].abs_()
        found, wanted = chosen()(x), Chosen()(x)
        for result, value in zip(found, wanted, strict=True):
            assert result.is_cuda
            torch.testing.assert_close(result, value, rtol=2e-3, atol=2e-3)
        memory = torch.empty(rows, 256, device="cuda")
        name = chosen().plan.outputs[1].name
        chosen().run({"x": x}, {name: memory})
        torch.testing.assert_close(memory, x * x)
    assert max(read) <= rows


def test_other_kinds_of_tensors() -> None:
    x = torch.randn(40, 256)
    wanted = [value.numpy() for value in Chosen()(x)]
    for kind, back in ((torch.Tensor.numpy, np.asarray), (torch.clone, torch.Tensor.numpy)):
        for result, value in zip(chosen().run({"x": kind(x)}).values(), wanted, strict=True):
            np.testing.assert_allclose(back(result), value, rtol=2e-3, atol=2e-3)
    for result, value in zip(chosen().run({"x": DeviceArray.from_numpy(x.numpy())}).values(), wanted, strict=True):
        assert isinstance(result, DeviceArray)
        np.testing.assert_allclose(result.numpy(), value, rtol=2e-3, atol=2e-3)


def test_loops(read: list[int]) -> None:
    x = torch.randn(64, 64) / 8
    engine = tilewright.compile(Rounds().eval(), (x, torch.tensor(3)), target="cuda")
    x = x.cuda()
    for count in (0, 1, 12):
        found, wanted = engine(x, torch.tensor(count)), Rounds()(x, torch.tensor(count, device="cuda"))
        torch.testing.assert_close(found[1], wanted[1], rtol=1e-3, atol=1e-3)
    assert max(read, default=0) <= 1
