"""Kernels that are started before those ahead of them have ended wait at their entry, and LLVM reads nothing before."""

from __future__ import annotations

import pytest

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.settings import settings
from tilewright.targets.gpu.binary import GpuBinary


@tilewright.jit
def doubled(x, out, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + index, tl.load(x + index, mask=index < n) * 2, mask=index < n)


@tilewright.jit
def waiting(x, out):
    tx.grid_launch_dependents()
    tx.grid_wait()
    tl.store(out + tl.arange(0, 128), tl.load(x + tl.arange(0, 128)))


def compiled(kernel, constants: dict[str, int], target: str, early: bool) -> GpuBinary:
    types = {"x": "*f32", "out": "*f32", "n": "i32"}
    used = {parameter.name: types[parameter.name] for parameter in kernel.parameters if parameter.name in types}
    options = {"wait_at_entry": True} if early else {}
    with settings.scope(always_compile=True):  # binaries that are found on disk have no texts
        binary = kernel.compile(used, constants, target=target, options={**options, "keep_texts": True}).binary
    assert isinstance(binary, GpuBinary)
    return binary


def test_a_wait_comes_before_everything_that_is_read() -> None:
    binary = compiled(doubled, {"BLOCK": 256}, "cuda:sm_90a", True)
    text = binary.texts["ptx"]
    assert binary.dependent_launch
    assert text.index("griddepcontrol.launch_dependents") < text.index("griddepcontrol.wait") < text.index("ld.global")
    assert "noalias" not in binary.texts["llvm"]


@pytest.mark.parametrize(("target", "early"), [("cuda:sm_90a", False), ("cuda:sm_80", True)])
def test_other_kernels_do_not_wait(target: str, early: bool) -> None:
    binary = compiled(doubled, {"BLOCK": 256}, target, early)
    assert not binary.dependent_launch and "griddepcontrol" not in binary.texts["ptx"]


def test_kernels_that_wait_may_start_late() -> None:
    types = {"x": "*f32", "out": "*f32"}
    binary = waiting.compile(types, {}, target="cuda:sm_90a", options={"dependent_launch": False}).binary
    assert not binary.dependent_launch


def test_kernels_that_wait_by_themselves_are_left_alone() -> None:
    binary = compiled(waiting, {}, "cuda:sm_90a", True)
    assert binary.dependent_launch and binary.texts["ptx"].count("griddepcontrol.wait") == 1
