"""The models of engines in other runtimes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright.cli import peers

torch = pytest.importorskip("torch")


class Noisy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(4)


def test_pytorch_runs_a_model_that_draws_without_the_seed_of_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "noisy.pt2"
    torch.export.save(torch.export.export(Noisy(), (torch.zeros(4),)), path)
    engine = tilewright.compile(str(path))
    assert engine.seed is not None
    arrays = {"x": np.ones(4, np.float32), engine.seed: np.array(3, np.int64)}
    (result,) = peers.load_peer("torch", engine, path, 1)(arrays).values()
    assert ((result >= 1) & (result < 2)).all()
    timed = peers.timed_peer("torch", engine, path, 1, arrays)()
    assert timed[0].shape == (4,) if isinstance(timed, tuple) else timed.shape == (4,)
