"""Warp roles: who runs what, with how many registers."""

from __future__ import annotations

from tilewright.targets.llvm.builder import LLVMBuilder
from tilewright.targets.nvidia.explicit.ptx import call


def set_registers(builder: LLVMBuilder, registers: int, increase: bool) -> None:
    """Change the registers of each thread of a warpgroup (24 to 256 in steps of 8); all four warps run it."""
    direction = "inc" if increase else "dec"
    call(builder, f"setmaxnreg.{direction}.sync.aligned.u32", builder.integer(registers, "i32"))
