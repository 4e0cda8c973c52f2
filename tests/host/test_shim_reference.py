"""What programs for Triton rely on beside the documented language: decorators, annotations, queries and messages."""

from __future__ import annotations

import subprocess
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright import testing
from tilewright.errors import CompilationError, DeviceError
from tilewright.settings import settings


@tl.constexpr
def rows_of(count):
    return (count + 3) // 4


@tilewright.jit
def by_function(out, COUNT: tl.constexpr):
    ROWS: tl.constexpr = rows_of(COUNT)
    tl.store(out + tl.arange(0, 4), tl.full((4,), ROWS, tl.int32))


@tilewright.jit
def annotated(out, count):
    doubled: tl.constexpr = count * 2
    tl.store(out + tl.arange(0, 4), tl.arange(0, 4) + doubled)


@pytest.mark.parametrize("interpret", [False, True, "eager"])
def test_constants_as_triton_takes_them(interpret: Any) -> None:
    out = np.zeros(4, np.int32)
    with settings.scope(interpret=interpret):
        by_function[(1,)](out, 9)
        assert out.tolist() == [3] * 4 and rows_of(9) == 3
        annotated[(1,)](out, 5)
    assert out.tolist() == [10, 11, 12, 13]


@tilewright.jit
def permuted(out, ORDER: tl.constexpr):
    tl.store(out, tl.sum(tl.permute(tl.zeros((4, 8), tl.float32), ORDER)))


@pytest.mark.parametrize("order", [(0, 0), (2, 0), (0, 1, 2), (-3, 0), (1,), (-1, 1)])
def test_orders_that_are_no_permutation(order: tuple[int, ...]) -> None:
    with pytest.raises(CompilationError) as caught:
        permuted[(1,)](np.zeros(1, np.float32), order)
    assert f"{list(order)} is not a permutation of the 2 axes" in str(caught.value)


def test_a_file_that_is_no_path() -> None:
    for path in (7, "none", "\0"):
        with pytest.raises(CompilationError, match="cannot read ir_override"):
            by_function[(1,)](np.zeros(4, np.int32), 9, ir_override=path)


def test_what_nvidia_smi_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(command: list[str], **options: Any) -> Any:
        assert "--query-gpu=clocks.max.sm,power.limit" in command
        return subprocess.CompletedProcess(command, 0, "1980, 700.00\n")

    monkeypatch.setattr(subprocess, "run", answer)
    assert testing.nvsmi(["clocks.max.sm", "power.limit"]) == [1980, 700]
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, "[N/A]"))
    with pytest.raises(DeviceError, match="nvidia-smi does not tell power"):
        testing.nvsmi(["power"])
