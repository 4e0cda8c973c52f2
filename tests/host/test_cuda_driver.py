"""The driver is started once in a process, and never in its forks."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from tilewright.errors import DeviceError
from tilewright.runtime.cuda import driver

Install = Callable[[int], list[int]]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a module in the place of the bindings, whose cuInit gives this status; the processes that called it."""

    def put(status: int) -> list[int]:
        calls: list[int] = []

        def start(_: int) -> tuple[int]:
            calls.append(os.getpid())
            return (status,)

        module = types.ModuleType("cuda.bindings.driver")
        named = lambda number: (0, f"status {number}")  # noqa: E731
        vars(module).update(cuInit=start, cuGetErrorName=named, cuGetErrorString=named)
        vars(module).update(CUresult=types.SimpleNamespace(CUDA_SUCCESS=0), cuDeviceGetCount=lambda: (0, 1))
        parent = types.ModuleType("cuda.bindings")
        vars(parent).update(driver=module)
        for name, entry in (("cuda", types.ModuleType("cuda")), ("cuda.bindings", parent), (module.__name__, module)):
            monkeypatch.setitem(sys.modules, name, entry)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        driver._started.cache_clear()
        return calls

    yield put
    driver._started.cache_clear()


def test_a_driver_that_does_not_start_is_tried_once(install: Install) -> None:
    """A fork that asked again would end in libcuda: so did the workers of TorchInductor."""
    calls = install(100)
    for _ in range(2):
        with pytest.raises(DeviceError, match="status 100"):
            driver.api()
    assert not driver.is_available() and calls == [os.getpid()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_does_not_use_the_driver(install: Install) -> None:
    calls = install(0)
    assert driver.is_available() and calls == [os.getpid()]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            driver.api()
        except DeviceError as error:
            os.write(write, f"{driver.is_available()} {error}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    told = os.read(read, 1000).decode()
    os.close(read)
    os.close(write)
    assert told.startswith("False") and f"started in process {os.getpid()}" in told and "'spawn'" in told


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpus(value: str, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES"):
        driver.api()
    assert not calls
