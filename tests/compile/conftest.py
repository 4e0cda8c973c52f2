"""What tests that compile for GPUs need: an assembler, which exists for Linux and Windows."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def assembler_of_gpu_files(request: pytest.FixtureRequest) -> None:
    """Tests of files named test_nvidia_* are skipped where there is none, and say so."""
    if request.path.name.startswith("test_nvidia_"):
        request.getfixturevalue("assembler")
