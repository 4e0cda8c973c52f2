"""The way of one kernel through the NVIDIA compiler, to be read from top to bottom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import CompilationError
from tilewright.ir.core import Function, Operation
from tilewright.ir.explicit import is_explicit
from tilewright.passes.pipeline import Pass, run_passes, simplify
from tilewright.passes.uniform_increments import carry_uniform_increments
from tilewright.targets.llvm.builder import Module
from tilewright.targets.llvm.symbols import kernel_symbol
from tilewright.targets.nvidia.explicit.pipeline import cluster_of, lower_explicit, warps_of
from tilewright.targets.nvidia.layouts import Assignment, assign
from tilewright.targets.nvidia.lowered import LoweredKernel
from tilewright.targets.nvidia.lowering import HEADER, WAIT_ATTRIBUTE, KernelLowering
from tilewright.targets.nvidia.memory_order import ordering_barriers
from tilewright.targets.nvidia.pipelined_loop import pipelined_rule
from tilewright.targets.nvidia.pipelining import Pipeline, aligned, all_copied, plan_pipelines, streams_of, tile_sizes
from tilewright.targets.nvidia.recompute import deferred_operations, recompute_after_reductions
from tilewright.targets.nvidia.rules import RULES
from tilewright.targets.nvidia.scratch import exchanging, scratch_sizes
from tilewright.targets.nvidia.shared_memory import Allocation, allocate
from tilewright.targets.nvidia.target import NvidiaTarget

DEFAULT_STAGES = 3

NVIDIA_PASSES: tuple[tuple[Pass, str], ...] = (
    (simplify, "smaller kernels for all that follows, and equal masks and addresses become one value"),
    (carry_uniform_increments, "after it, because loops carry only what changes; pointers become affine in scalars"),
    (simplify, "what the pass before left over"),
)


def lower(function: Function, target: NvidiaTarget, options: Mapping[str, Any]) -> LoweredKernel:
    """LLVM text for a verified kernel.

    Of `options` (the launch's), `num_warps` decides the threads of a CTA where the kernel does not; without
    `enable_fp_fusion` products are rounded before they are added to something; with `wait_at_entry` the kernel may be
    started before those ahead of it have ended, and waits for them itself.  Raises `CompilationError` with the source
    line for what the target cannot do.
    """
    symbol = kernel_symbol(function, target.architecture, options)
    function = run_passes(function, tuple(step for step, _ in NVIDIA_PASSES))
    if options.get("wait_at_entry") and target.dependent_launch:
        if not any(operation.opcode == "grid_wait" for operation in function.walk()):
            function = replace(function, attributes={**function.attributes, WAIT_ATTRIBUTE: True})
    handles = any(argument.type.is_handle for argument in function.region.arguments)
    if handles or any(is_explicit(operation.opcode) for operation in function.walk()):
        return lower_explicit(function, target, symbol, options)
    warps = warps_of(function, options)
    if cluster_of(function, options) != (1, 1, 1):
        raise CompilationError(
            f"kernel '{function.name}' is no explicit kernel, so that its CTAs have nothing to do with each other: "
            "leave cluster= out, or use tilewright.language.explicit"
        )
    # Every block gets registers of threads; what has to change hands is written out as conversions.
    assignment = assign(function, target, warps, copied=True)
    # Rows that would fill the registers stay as narrow as they were loaded.
    if not options.get("maxnreg"):
        assignment = recompute_after_reductions(assignment, warps)
    # Scratch for what threads hand to each other, tiles of products, and loops that copy theirs ahead.
    stages = _stages(options)
    memory = plan_memory(assignment, stages, target.shared_bytes)
    if not all_copied(assignment, memory.loops):
        assignment = assign(function, target, warps)
        memory = plan_memory(assignment, stages, target.shared_bytes)
    if memory.size > target.shared_bytes:
        assignment = assign(function, target, warps, warpgroups=False)
        memory = plan_memory(assignment, stages, target.shared_bytes)
    # Stores of one thread and loads of another stay in the program's order.
    allocation = memory.scratch
    ordered = ordering_barriers(assignment.function, exchanging(assignment, allocation.scratch))
    allocation = replace(allocation, barriers=allocation.barriers | ordered)
    # One rule for each operation.
    module = Module(header=HEADER)
    fuse = bool(options.get("enable_fp_fusion", True))
    lowering = KernelLowering(assignment, target, module, symbol, allocation, warps, RULES, fuse=fuse)
    if options.get("line_info"):
        lowering.keep_lines()
    lowering.tiles = memory.tiles
    lowering.loops = {operation: pipelined_rule(plan, memory.ring) for operation, plan in memory.loops.items()}
    lowering.deferred = deferred_operations(assignment.function)
    lowering.run()
    return LoweredKernel(
        text=module.text,
        symbol=symbol,
        warps=warps,
        shared_bytes=memory.size,
        tensor_maps=tuple(lowering.tensor_maps),
        remarks=tuple(lowering.remarks),
        assigned=assignment.function,
    )


def _stages(options: Mapping[str, Any]) -> int:
    """How many iterations' tiles a loop has room for, where it does not say so itself."""
    stages = options.get("num_stages")
    if stages is not None and not (isinstance(stages, int) and stages >= 0):
        raise CompilationError(f"num_stages is 1 or more (0: the compiler's choice), not {stages!r}")
    return stages or DEFAULT_STAGES


@dataclass(frozen=True)
class SharedMemory:
    """Where everything lies: scratch, then `tiles` of products (by conversion), then the loops' stages from `ring` on.

    The stages of all loops are in one place, for none runs inside another.
    """

    scratch: Allocation
    tiles: Mapping[Operation, int]
    ring: int
    loops: Mapping[Operation, Pipeline]
    size: int


def plan_memory(assignment: Assignment, stages: int, limit: int) -> SharedMemory:
    """Shared memory of a kernel; loops copy ahead as far as `limit` bytes allow."""
    function = assignment.function
    whole = allocate(function, scratch_sizes(assignment)).size
    loops = plan_pipelines(assignment, stages, limit - whole)
    apart = sum(tile_sizes(assignment, loops).values())
    if apart:
        loops = plan_pipelines(assignment, stages, limit - whole - apart)
    scratch = allocate(function, scratch_sizes(assignment, [stream.conversion for stream in streams_of(loops)]))
    cursor, tiles = aligned(scratch.size), {}
    for operation, size in tile_sizes(assignment, loops).items():
        tiles[operation] = cursor
        cursor += size
    size = max([cursor if tiles else scratch.size, *(cursor + plan.size for plan in loops.values())])
    return SharedMemory(scratch, tiles, cursor, loops, size)
