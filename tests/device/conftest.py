"""What tests on a GPU share: the GPU itself, or the reason why there is none.

python -m pytest tests/device          on a machine with a GPU; elsewhere every test is skipped and says why
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import DeviceError, MissingDependencyError
from tilewright.runtime.cuda.device import Device, device
from tilewright.settings import settings


@functools.cache
def _found() -> Device | str:
    try:
        return device(0)
    except (DeviceError, MissingDependencyError) as error:
        return str(error)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "capability(major, minor=0): the GPU's compute capability is at least this")
    config.addinivalue_line("markers", "hopper: the GPU runs code for sm_90a")


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest) -> Device:
    """The first GPU; tests are skipped without one, and where it lacks what a mark asks for."""
    found = _found()
    if isinstance(found, str):
        pytest.skip(f"no CUDA device: {found}")
    for mark in request.node.iter_markers("capability"):
        wanted = (*mark.args, 0)[:2]
        if found.capability < wanted:
            pytest.skip(f"{found.name} has compute capability {found.capability}, the test needs {wanted}")
    if request.node.get_closest_marker("hopper") is not None and found.capability != (9, 0):
        pytest.skip(f"{found.name} does not run code for sm_90a")
    return found


@pytest.fixture(autouse=True)
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Every test compiles afresh, unless a folder is named that is kept."""
    with settings.scope(cache_directory=request.config.getoption("--kept-cache") or tmp_path / "cache"):
        yield


@pytest.fixture
def torch() -> Any:
    """PyTorch, where it can use the GPU."""
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("this PyTorch does not use the GPU")
    return found
