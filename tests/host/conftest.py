"""Fixtures of several files: both ways to run a tactic, random arrays, a stand-in for the GPU's driver."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import pytest

from tests.host.tactics_support import Draw
from tilewright.build.tuning import Tuning
from tilewright.settings import settings

if TYPE_CHECKING:
    from tests.host.cuda_stand_in import Driver

# A busy machine is no failure: how long an example takes says nothing about what it tests.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


@pytest.fixture(params=["interpreter", "machine code"])
def compiled(request: pytest.FixtureRequest) -> bool:
    """Whether kernels run as machine code."""
    return bool(request.param == "machine code")


@pytest.fixture
def quick_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are built without a word on their effort get machine code that is made in less time: for tests of
    what models mean, not of how fast or by which instructions."""
    quick = property(lambda self: self.effort in (None, 0) if self.quick is None else self.quick)
    monkeypatch.setattr(Tuning, "is_quick", quick)


@pytest.fixture
def draw(rng: np.random.Generator) -> Draw:
    """Random arrays from the test's seed."""
    return Draw(rng)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Driver]:
    """A GPU that runs kernels in the interpreter; what is compiled for it does not stay."""
    from tests.host.cuda_stand_in import install

    with settings.scope(cache_directory=tmp_path):
        driver = install(monkeypatch)
        yield driver
    if driver.memory:
        gc.collect()  # sessions that a failure holds, or a cycle, give their memory back to the stand-in


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that a test built into engines."""
    from tilewright.importers import torch_part

    graphs: list[Any] = []
    build = torch_part.build

    def record(graph: Any, *arguments: Any, **options: Any) -> Any:
        graphs.append(graph)
        return build(graph, *arguments, **options)

    monkeypatch.setattr(torch_part, "build", record)
    return graphs
