"""GPUs that are none, of any width of a warp: one that runs on the CPU, a thread for each lane, and one of AMD's.

`StandIn(64)` describes a GPU, `lowered` takes a kernel through the generic code of `targets/gpu`, `run` runs what comes
of it: the lanes are threads of this process, which shuffles and barriers let wait for each other.
"""

# mypy: ignore-errors

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, replace

from tilewright.passes.pipeline import run_passes, simplify
from tilewright.passes.uniform_increments import carry_uniform_increments
from tilewright.runtime.library import load_objects
from tilewright.targets.cpu.assemble import assemble
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.gpu.conversions import RegisterConverter
from tilewright.targets.gpu.intrinsics import Intrinsics
from tilewright.targets.gpu.layouts import assign
from tilewright.targets.gpu.lowering import KernelLowering
from tilewright.targets.gpu.memory_order import ordering_barriers
from tilewright.targets.gpu.memory_plan import plan_memory
from tilewright.targets.gpu.rules import RULES
from tilewright.targets.gpu.scratch import exchanging
from tilewright.targets.llvm.builder import Module


@dataclass(frozen=True)
class StandIn:
    """A GPU whose warps have `warp_threads` threads."""

    warp_threads: int
    architecture: str = "stand-in"
    registers_per_multiprocessor: int = 65536
    shared_bytes: int = 64 << 10
    shared_bytes_per_multiprocessor: int = 64 << 10
    asynchronous_copies: bool = False
    bfloat16_arithmetic: bool = False


def lowered(function, target, intrinsics, warps):
    """The lowering of a kernel, which has been run, and its module."""
    function = run_passes(function, (simplify, carry_uniform_increments, simplify))
    assignment = assign(function, target, warps)
    memory = plan_memory(assignment, 1, target.shared_bytes)
    ordered = ordering_barriers(assignment, exchanging(assignment, memory.scratch.scratch))
    allocation = replace(memory.scratch, barriers=memory.scratch.barriers | ordered)
    module = Module(header=intrinsics.header)
    lowering = KernelLowering(assignment, target, intrinsics, module, "kernel", allocation, warps, RULES)
    lowering.run()
    return lowering, module.text


class Common(Intrinsics):
    """What both have: numbers by LLVM's own functions, no messages."""

    def converter(self, builder):
        return RegisterConverter(builder)

    def exp2(self, builder, x):
        return builder.intrinsic("exp2", [x])

    def reciprocal(self, builder, x):
        return builder.binary("fdiv", builder.constant("float", 1.0), x)

    def rsqrt(self, builder, x):
        return self.reciprocal(builder, builder.intrinsic("sqrt", [x]))

    def stop(self, builder, message, file, line, function):
        builder.unreachable()

    def print(self, builder, text, values):
        raise AssertionError("nothing is printed in these tests")


class HostIntrinsics(Common):
    """Lanes are threads of this process; what they have to ask each other for goes through Python."""

    header = "@shared = addrspace(3) global [65536 x i8] zeroinitializer, align 1024"
    linkage = ""
    scopes = dict.fromkeys(("cta", "gpu", "sys"), "")

    def __init__(self, lanes):
        self.lanes = lanes
        self.here = threading.local()
        self._kept = []
        self._address = {}
        word, none = ctypes.c_int32, None
        for name, result, arguments in (
            ("_thread", word, ()), ("_program", word, (word,)), ("_programs", word, (word,)), ("_wait", none, ()),
            ("_wait_for_warp", none, ()), ("_butterfly", word, (word, word)), ("_shuffle", word, (word, word)),
        ):  # fmt: skip
            made = ctypes.CFUNCTYPE(result, *arguments)(getattr(self, name))
            self._kept.append(made)
            self._address[name] = ctypes.cast(made, ctypes.c_void_p).value

    def kernel_attributes(self, threads, resident):
        return "nounwind"

    # Emitted: calls of the functions below by their addresses.

    def _call(self, builder, name, *arguments):
        text = f"inttoptr (i64 {self._address[name]} to ptr)({', '.join(map(str, arguments))})"
        if name.startswith("_wait"):
            builder.line(f"call void {text}")
            return None
        return builder.emit(f"call i32 {text}", "i32")

    def thread(self, builder):
        return self._call(builder, "_thread")

    def program_id(self, builder, axis):
        return self._call(builder, "_program", builder.integer(axis, "i32"))

    def num_programs(self, builder, axis):
        return self._call(builder, "_programs", builder.integer(axis, "i32"))

    def barrier(self, builder):
        self._call(builder, "_wait")

    def reconverge(self, builder):
        self._call(builder, "_wait_for_warp")

    def butterfly(self, builder, word, distance):
        return self._call(builder, "_butterfly", word, distance)

    def shuffle(self, builder, word, lane):
        return self._call(builder, "_shuffle", word, lane)

    def unknown_zero(self, builder):
        return builder.integer(0, "i32")

    # Called by the kernel.

    def _thread(self):
        return self.here.number

    def _program(self, axis):
        return self.here.program[axis]

    def _programs(self, axis):
        return self.here.grid[axis]

    def _wait(self):
        self.here.cta.wait()

    def _wait_for_warp(self):
        self.here.warp.wait()

    def _butterfly(self, word, distance):
        return self._shuffle(word, self.here.number % self.lanes ^ distance)

    def _shuffle(self, word, lane):
        here, start = self.here, self.here.number // self.lanes * self.lanes
        assert 0 <= lane < self.lanes, "a lane that the warp does not have"
        here.words[here.number] = word
        here.warp.wait()
        received = here.words[start + lane]
        here.warp.wait()
        return received


def run(function, arguments, grid, target, warps):
    """Run a kernel on arrays and numbers, its programs one after the other."""
    intrinsics = HostIntrinsics(target.warp_threads)
    _, text = lowered(function, target, intrinsics, warps)
    library = load_objects([assemble(text, CPUTarget.host()).image], ["kernel"])
    kinds = [ctypes.c_int32 if isinstance(value, int) else ctypes.c_void_p for value in arguments]
    kernel = ctypes.CFUNCTYPE(None, *kinds)(library.address("kernel"))
    given = [value if isinstance(value, int) else value.ctypes.data for value in arguments]
    count = warps * target.warp_threads
    for program in ((x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])):
        cta, words, errors = threading.Barrier(count, timeout=60), [0] * count, []
        of_warps = [threading.Barrier(target.warp_threads, timeout=60) for _ in range(warps)]

        def lane(number, program=program, cta=cta, of_warps=of_warps, words=words, errors=errors):
            vars(intrinsics.here).update(
                number=number, program=program, grid=grid, cta=cta, words=words,
                warp=of_warps[number // target.warp_threads],
            )  # fmt: skip
            try:
                kernel(*given)
            except Exception as error:  # told by the thread that began it
                errors.append(error)

        threads = [threading.Thread(target=lane, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors[0]


class AmdIntrinsics(Common):
    """The names of AMD's GPUs, as far as these tests come."""

    header = 'target triple = "amdgcn-amd-amdhsa"\n@shared = external addrspace(3) global [0 x i8], align 1024'
    linkage = "amdgpu_kernel"
    scopes = {"cta": ' syncscope("workgroup")', "gpu": ' syncscope("agent")', "sys": ""}

    def kernel_attributes(self, threads, resident):
        return f'nounwind "amdgpu-flat-work-group-size"="{threads},{threads}"'

    def thread(self, builder):
        return builder.call("llvm.amdgcn.workitem.id.x", "i32", [])

    def program_id(self, builder, axis):
        return builder.call(f"llvm.amdgcn.workgroup.id.{'xyz'[axis]}", "i32", [])

    def num_programs(self, builder, axis):
        start = builder.call("llvm.amdgcn.implicitarg.ptr", "ptr addrspace(4)", [])
        place = builder.emit(f"getelementptr i32, {start}, i32 {axis}", "ptr addrspace(4)")
        return builder.load("i32", place, 4)

    def barrier(self, builder):
        builder.line('fence syncscope("workgroup") release')
        builder.call("llvm.amdgcn.s.barrier", "void", [])
        builder.line('fence syncscope("workgroup") acquire')

    def reconverge(self, builder):
        builder.call("llvm.amdgcn.wave.barrier", "void", [])

    def butterfly(self, builder, word, distance):
        lane = builder.call("llvm.amdgcn.workitem.id.x", "i32", [])
        return self.shuffle(builder, word, builder.binary("xor", lane, distance))

    def shuffle(self, builder, word, lane):
        place = builder.binary("shl", lane, builder.integer(2, "i32"))
        return builder.call("llvm.amdgcn.ds.bpermute", "i32", [place, word])

    def unknown_zero(self, builder):
        return builder.emit('call i32 asm sideeffect "v_mov_b32 $0, 0", "=v"()', "i32")
