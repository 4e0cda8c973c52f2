"""A trial of an architecture that crashes, takes too long or too much memory ends its own process, and is reported."""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tools.architectures import processes  # noqa: E402
from tools.architectures.entry import Entry  # noqa: E402


class Crashing(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        os.abort()


class Endless(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        while True:
            x = x + 1


class Large(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return bytearray(2 * processes.MEMORY)


@pytest.mark.parametrize(
    ("module", "outcome", "reason"),
    [
        (Crashing, "crash", "the process ended with -6"),
        (Endless, "timeout", "more than 1 s"),
        (Large, "setup", "MemoryError"),
        (torch.nn.ReLU, "right", ""),
    ],
)
def test_outcomes(module: Any, outcome: str, reason: str) -> None:
    name = "input" if module is torch.nn.ReLU else "x"
    entry = Entry("case", "torch", lambda: (module(), lambda batch: {name: torch.ones(batch, 3)}))
    found = processes.outcome(entry, "static", 60 if outcome == "right" else 1)
    assert found["outcome"] == outcome and reason in found.get("reason", "")
    assert found["torch"] == torch.__version__.partition("+")[0]
