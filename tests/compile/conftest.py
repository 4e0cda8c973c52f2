"""What tests that compile for GPUs need: an assembler, which exists for Linux and Windows."""

from __future__ import annotations

import pytest

from tilewright.errors import MissingDependencyError
from tilewright.targets.nvidia.assemble import find_assembler


@pytest.fixture(autouse=True)
def assembler(request: pytest.FixtureRequest) -> None:
    """Tests of files named test_nvidia_* are skipped where there is none, and say so."""
    if request.path.name.startswith("test_nvidia_"):
        try:
            find_assembler()
        except MissingDependencyError as error:
            pytest.skip(f"no assembler: {error}")
