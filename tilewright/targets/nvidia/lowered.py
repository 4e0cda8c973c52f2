"""The result of lowering a kernel, for the assembler and, through the binary, for the launcher."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.core import Function
from tilewright.runtime.gpu_program import TensorMapUse
from tilewright.targets.base import Remark


@dataclass(frozen=True)
class LoweredKernel:
    """LLVM text of a kernel; `symbol` is its entry point, whose parameters are the Tile IR function's, in order.

    Pointers are ``ptr addrspace(1)``, numbers are of their own type (booleans ``i1``), a tensor map is
    ``ptr byval([128 x i8]) align 64`` with the attribute ``"nvvm.grid_constant"`` and has one entry in `tensor_maps`.
    A CTA has `warps` warps, which the text states too (``"nvvm.reqntid"``), and `shared_bytes` of dynamic
    shared memory.  `cluster` counts CTAs along x, y, z.  With `dependent_launch` the kernel waits by itself for
    what the kernel before it in the stream wrote; `cooperative` asks for all CTAs to be resident at once.
    `waiting` is not 0 where its products wait for loads, while only other CTAs can go on: the registers that blocks and
    products of a thread take at least.
    `resident` is the number of CTAs that shall fit a multiprocessor, where blocks are computed again for it
    (`gpu.recompute`).  `assigned` is the kernel with its layouts and conversions, for people.
    """

    text: str
    symbol: str
    warps: int
    shared_bytes: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    tensor_maps: tuple[TensorMapUse, ...] = ()
    remarks: tuple[Remark, ...] = ()
    dependent_launch: bool = False
    cooperative: bool = False
    resident: int | None = None
    waiting: int = 0
    assigned: Function | None = None


__all__ = ["LoweredKernel", "TensorMapUse"]
