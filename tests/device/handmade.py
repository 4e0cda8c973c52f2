"""Kernels written by hand as LLVM text, and a way to launch them: the launcher is tested without the compiler."""

from __future__ import annotations

from typing import Any

from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.launch import Start, launcher
from tilewright.runtime.gpu_program import Program
from tilewright.targets.nvidia.assemble import AssemblyOptions, assemble
from tilewright.targets.nvidia.target import NvidiaTarget

_DECLARATIONS = """
@shared = external addrspace(3) global [0 x i8], align 1024
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.cluster.ctarank()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3), i32)
declare void @llvm.nvvm.fence.mbarrier_init.release.cluster()
declare i64 @llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta(ptr addrspace(3), i32)
declare i1 @llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta(ptr addrspace(3), i32)
declare void @llvm.nvvm.cp.async.bulk.tensor.g2s.tile.2d(
  ptr addrspace(7), ptr addrspace(3), ptr, i32, i32, i16, i64, i1, i1, i32)
"""


def kernel(symbol: str, parameters: str, body: str, threads: int = 128) -> str:
    """A module with one kernel; `%thread` and `%cta` are numbers of this thread and CTA."""
    return f"""
define ptx_kernel void @{symbol}({parameters}) #0 {{
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %cta = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
{body}
}}
{_DECLARATIONS}
attributes #0 = {{ nounwind "nvvm.reqntid"="{threads}" }}
"""


# y[i] = x[i] * factor, 128 elements for a CTA
SCALE = kernel(
    "scale",
    "ptr addrspace(1) %x, ptr addrspace(1) %y, float %factor",
    """
  %base = shl i32 %cta, 7
  %index = add i32 %base, %thread
  %from = getelementptr float, ptr addrspace(1) %x, i32 %index
  %to = getelementptr float, ptr addrspace(1) %y, i32 %index
  %value = load float, ptr addrspace(1) %from
  %result = fmul float %value, %factor
  store float %result, ptr addrspace(1) %to
  ret void
""",
)
SCALE_PARAMETERS = ("*f32", "*f32", "f32")

# every number that a launch passes, in the first bytes of y: i1, i8, i16, i32, i64, half, bfloat, float, double
NUMBERS = kernel(
    "numbers",
    "ptr addrspace(1) %y, i1 %a, i8 %b, i16 %c, i32 %d, i64 %e, half %f, bfloat %g, float %h, double %i",
    """
  %first = icmp eq i32 %thread, 0
  br i1 %first, label %write, label %done
write:
"""
    + "".join(
        f"  %p{name} = getelementptr i8, ptr addrspace(1) %y, i32 {8 * number}\n"
        f"  store {kind} %{name}, ptr addrspace(1) %p{name}\n"
        for number, (name, kind) in enumerate(
            zip("abcdefghi", "i1 i8 i16 i32 i64 half bfloat float double".split(), strict=True)
        )
    )
    + "  br label %done\ndone:\n  ret void\n",
)
NUMBERS_PARAMETERS = ("*u8", "i1", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64")

# y[cta] = rank of the CTA in its cluster
RANK = kernel(
    "rank",
    "ptr addrspace(1) %y",
    """
  %rank = call i32 @llvm.nvvm.read.ptx.sreg.cluster.ctarank()
  %to = getelementptr i32, ptr addrspace(1) %y, i32 %cta
  store i32 %rank, ptr addrspace(1) %to
  ret void
""",
)

# y = the 8192 bytes of shared memory that a tile of 64 x 64 bf16 at (row, column) becomes
TILE = kernel(
    "tile",
    'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %map, i32 %row, i32 %column, ptr addrspace(1) %y',
    """
  %barrier = getelementptr i8, ptr addrspace(3) @shared, i32 8192
  %first = icmp eq i32 %thread, 0
  br i1 %first, label %load, label %ready
load:
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %barrier, i32 1)
  call void @llvm.nvvm.fence.mbarrier_init.release.cluster()
  %token = call i64 @llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta(ptr addrspace(3) %barrier, i32 8192)
  %there = addrspacecast ptr addrspace(3) @shared to ptr addrspace(7)
  call void @llvm.nvvm.cp.async.bulk.tensor.g2s.tile.2d(ptr addrspace(7) %there, ptr addrspace(3) %barrier, ptr %map,
    i32 %column, i32 %row, i16 0, i64 0, i1 0, i1 0, i32 0)
  br label %ready
ready:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  br label %wait
wait:
  %done = call i1 @llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta(ptr addrspace(3) %barrier, i32 0)
  br i1 %done, label %copy, label %wait
copy:
  %step = phi i32 [ 0, %wait ], [ %next, %copy ]
  %index = add i32 %step, %thread
  %from = getelementptr i32, ptr addrspace(3) @shared, i32 %index
  %word = load i32, ptr addrspace(3) %from
  %to = getelementptr i32, ptr addrspace(1) %y, i32 %index
  store i32 %word, ptr addrspace(1) %to
  %next = add i32 %step, 128
  %more = icmp ult i32 %next, 2048
  br i1 %more, label %copy, label %exit
exit:
  ret void
""",
)
TILE_PARAMETERS = ("tensormap<64x64xbf16>", "i32", "i32", "*i32")
TILE_SHARED = 8192 + 8


def program(text: str, symbol: str, parameters: tuple[str, ...], gpu: Device, **facts: Any) -> Program:
    """A kernel of four warps, assembled for a GPU."""
    target = NvidiaTarget.for_capability(gpu.capability)
    image = assemble(text, symbol, target, AssemblyOptions()).cubin
    known = {"architecture": target.architecture, "threads": 128, "shared_bytes": 0, "name": symbol}
    return Program(image=image, symbol=symbol, parameters=parameters, **{**known, **facts})


def start(text: str, symbol: str, parameters: tuple[str, ...], gpu: Device, **facts: Any) -> Start:
    """``start(x, y, z, stream, *slots)`` of such a kernel."""
    return launcher(program(text, symbol, parameters, gpu, **facts), gpu)
