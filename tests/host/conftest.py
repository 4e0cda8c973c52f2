"""Fixtures of the tests of tactics: every case runs in the interpreter and as machine code."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.tactics_support import Draw


@pytest.fixture(params=["interpreter", "machine code"])
def compiled(request: pytest.FixtureRequest) -> bool:
    """Whether kernels run as machine code."""
    return bool(request.param == "machine code")


@pytest.fixture
def draw(rng: np.random.Generator) -> Draw:
    """Random arrays from the test's seed."""
    return Draw(rng)
