"""Engines in parts whose parts take tensors of a GPU: a stand-in for one, whose memory is PyTorch's on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.engine import schedule, staged
from tilewright.runtime import on_device, tensors
from tilewright.runtime.on_device import OnDevice

torch = pytest.importorskip("torch")
while_loop = pytest.importorskip("torch._higher_order_ops").while_loop


class StandIn:
    """A part's session as one of a GPU, which refuses arrays that are more than sizes and indices."""

    def __init__(self, session: Any, like: list[Any]) -> None:
        self.session, self.plan, self.like = session, session.plan, like
        self.ordinal, self.native = 0, None

    def run(
        self, inputs: Mapping[str, Any], out: Any = None, threads: int | None = None, *, like: Any = None
    ) -> dict[str, Any]:
        for value in inputs.values():
            assert isinstance(value, torch.Tensor) or value.size <= 40
        self.like.append(like)
        found = self.session.run(dict(inputs))
        return {name: torch.as_tensor(result) for name, result in found.items()}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what the host reads of the GPU; all of PyTorch's tensors count as a GPU's."""
    found: list[tuple[int, ...]] = []
    original = OnDevice._read

    def reading(self: OnDevice) -> np.ndarray:
        found.append(self.shape)
        return original(self)

    def viewed(value: Any, name: str, element: str, ordinal: int | None, role: str) -> Any:
        place = tensors.view(value, name, element, role)
        return OnDevice(place.owner, element, place.shape), place

    monkeypatch.setattr(OnDevice, "_read", reading)
    for module in (on_device, schedule, staged):
        monkeypatch.setattr(module, "is_on_gpu", tensors.is_torch)
    monkeypatch.setattr(staged, "viewed", viewed)
    return found


def with_stand_ins(engine: tilewright.Engine, like: list[Any]) -> staged.StagedSession:
    """The engine's session with stand-ins in place of its parts' sessions."""
    before = engine._session
    assert isinstance(before, staged.StagedSession)
    sessions: list[Any] = [StandIn(session, like) for session in before._sessions]
    return staged.StagedSession(before.plan, before._graph, sessions, before._part, before._counts)


class Chosen(torch.nn.Module):
    """Rows whose sum is positive, and the square of all."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torch.tanh(x)[x.sum(1).gt(0).nonzero()[:, 0]]
        return torch.softmax(kept @ x.t(), 1), x * x


def test_only_what_the_host_computes_is_read(read: list[tuple[int, ...]]) -> None:
    x, like = torch.randn(40, 256), []
    session = with_stand_ins(tilewright.compile(Chosen().eval(), (x,)), like)
    found = session.run({"x": x})
    for result, wanted in zip(found.values(), Chosen()(x), strict=True):
        assert isinstance(result, torch.Tensor)
        torch.testing.assert_close(result, wanted)
    assert read and all(np.prod(shape) <= 40 for shape in read) and all(value is x for value in like)
    read.clear()
    memory = torch.empty(40, 256)
    session.run({"x": x}, {list(found)[1]: memory})
    torch.testing.assert_close(memory, x * x)
    assert all(np.prod(shape) <= 40 for shape in read)


class Rounds(torch.nn.Module):
    def forward(self, x: torch.Tensor, count: torch.Tensor) -> Any:
        start = torch.zeros((), dtype=torch.int64)
        return while_loop(lambda i, y: i < count, lambda i, y: (i + 1, torch.tanh(y @ y) + 0.1), (start, x * 1.0))


def test_loops_keep_their_values_there(read: list[tuple[int, ...]]) -> None:
    x = torch.randn(20, 20) / 8
    engine = tilewright.compile(Rounds().eval(), (x, torch.tensor(3)))
    session = with_stand_ins(engine, [])
    for count in (0, 1, 12):
        inputs = dict(zip([spec.name for spec in engine.plan.inputs], (x, torch.tensor(count)), strict=True))
        found, wanted = list(session.run(inputs).values()), Rounds()(x, torch.tensor(count))
        torch.testing.assert_close(found[1], wanted[1])
        assert found[1].data_ptr() != x.data_ptr()
    assert all(np.prod(shape, dtype=int) <= 1 for shape in read)
