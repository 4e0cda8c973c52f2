"""Warp roles: the warps of each role, and their register budgets."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.core import Operation
from tilewright.targets.llvm.builder import LLVMBuilder
from tilewright.targets.nvidia.explicit.ptx import call
from tilewright.targets.nvidia.target import NvidiaTarget


@dataclass(frozen=True)
class RoleCopies:
    """Copies of a role of `warps` warps each, the first warp being `first`; `registers` 0: as they come."""

    number: int
    first: int
    warps: int
    copies: int
    registers: int
    elected: bool

    @property
    def end(self) -> int:
        """The first warp after the role."""
        return self.first + self.warps * self.copies


def table(operation: Operation) -> list[RoleCopies]:
    """The roles of a `warp_roles`, in the order of their warps."""
    names = ("warps", "copies", "registers", "elected")
    columns = [operation.attributes[name] for name in names]
    found: list[RoleCopies] = []
    for number, (warps, copies, registers, elected) in enumerate(zip(*columns, strict=True)):
        found.append(RoleCopies(number, found[-1].end if found else 0, warps, copies, registers, bool(elected)))
    return found


def registers_at_entry(warps: int, target: NvidiaTarget) -> int:
    """Registers of each thread of a CTA that has an SM alone."""
    threads = target.warp_threads * warps
    return min(target.registers_per_thread, target.registers_per_multiprocessor // threads // 8 * 8)


def set_registers(builder: LLVMBuilder, role: RoleCopies, warps: int, target: NvidiaTarget) -> None:
    """Change the registers of each thread of a role in a CTA of `warps`; all warps of a warpgroup run it.

    Where every thread may have all that an instruction can name, there is nothing to hand over.
    """
    entry = registers_at_entry(warps, target)
    if not role.registers or role.registers == entry or entry == target.registers_per_thread:
        return
    direction = "inc" if role.registers > entry else "dec"
    call(builder, f"setmaxnreg.{direction}.sync.aligned.u32", builder.integer(role.registers, "i32"))
