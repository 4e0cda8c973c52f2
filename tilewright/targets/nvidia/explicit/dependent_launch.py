"""Programmatic dependent launch: a kernel that starts before the ones ahead of it have ended waits for them itself."""

from __future__ import annotations

from tilewright.targets.llvm.builder import LLVMBuilder
from tilewright.targets.nvidia.explicit.ptx import call


def grid_wait(builder: LLVMBuilder) -> None:
    """Wait until the kernels before this one have ended and their writes can be seen."""
    call(builder, "griddepcontrol.wait")


def launch_dependents(builder: LLVMBuilder) -> None:
    """Allow the kernels after this one to start."""
    call(builder, "griddepcontrol.launch.dependents")
