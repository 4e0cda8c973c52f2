"""The NVIDIA compiler's steps for one kernel, in order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.errors import CompilationError
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.explicit import is_explicit
from tilewright.passes.grid_axes import rename_axes
from tilewright.passes.pipeline import Pass, run_passes, simplify
from tilewright.passes.tile_addresses import simplify_tile_addresses
from tilewright.passes.uniform_increments import carry_uniform_increments
from tilewright.targets.gpu.early_loads import load_early
from tilewright.targets.gpu.layouts import Assignment, assign
from tilewright.targets.gpu.lowering import cached_live_registers, resident_of
from tilewright.targets.gpu.memory_order import ordering_barriers
from tilewright.targets.gpu.memory_plan import SharedMemory, plan_memory
from tilewright.targets.gpu.pipelining import all_copied
from tilewright.targets.gpu.recompute import deferred_operations, recompute_after_reductions
from tilewright.targets.gpu.scratch import exchanging
from tilewright.targets.llvm.builder import Module
from tilewright.targets.llvm.symbols import kernel_symbol
from tilewright.targets.nvidia.copies import filled_tile
from tilewright.targets.nvidia.dot import scratch_rules
from tilewright.targets.nvidia.explicit.pipeline import cluster_of, lower_explicit, warps_of
from tilewright.targets.nvidia.intrinsics import NvidiaIntrinsics
from tilewright.targets.nvidia.layout_rules import layout_rules
from tilewright.targets.nvidia.lowered import LoweredKernel
from tilewright.targets.nvidia.lowering import WAIT_ATTRIBUTE, NvidiaLowering
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.product_writer import write_products
from tilewright.targets.nvidia.rules import RULES
from tilewright.targets.nvidia.target import NvidiaTarget
from tilewright.targets.nvidia.warpgroup_layout import WGMMA_REGISTERS

DEFAULT_STAGES = 3


def nvidia_passes(target: NvidiaTarget, warps: int) -> tuple[Pass, ...]:
    """The passes for kernels of so many warps, in order."""

    def simplify_tiles(function: Function) -> Function:
        return simplify_tile_addresses(function, warps * target.warp_threads, target.registers_per_thread)

    return (
        simplify,  # smaller kernels for all that follows, and equal masks and addresses become one value
        simplify_tiles,  # after it, so that scalars count what moves in a loop, and what does not can leave it
        carry_uniform_increments,  # after both: loops carry only what changes; pointers become affine in scalars
        simplify,  # what the passes before left over
        load_early,  # last, because it only changes the order of operations
    )


def lower(
    function: Function, target: NvidiaTarget, options: NvidiaOptions, text: str = "", recompute: bool = True
) -> LoweredKernel:
    """LLVM text for a verified kernel; `text` is its own as `print_function` has it, where it is at hand.

    `recompute` lets wide rows be computed again after reductions, so that more CTAs fit a multiprocessor.
    Raises `CompilationError` with the source line for what the target cannot do.
    """
    symbol = kernel_symbol(function, target.architecture, options.key, text)
    warps = warps_of(function, options)
    function = rename_axes(run_passes(function, nvidia_passes(target, warps)), options.grid_axes)
    if options.wait_at_entry and target.dependent_launch:
        if not any(operation.opcode == "grid_wait" for operation in function.walk()):
            function = replace(function, attributes={**function.attributes, WAIT_ATTRIBUTE: True})
    handles = any(argument.type.is_handle for argument in function.region.arguments)
    if handles or any(is_explicit(operation.opcode) for operation in function.walk()):
        return lower_explicit(function, target, symbol, options)
    if cluster_of(function, options) != (1, 1, 1):
        raise CompilationError(
            f"kernel '{function.name}' is no explicit kernel, so that its CTAs have nothing to do with each other: "
            "leave cluster= out, or use tilewright.language.explicit"
        )
    assignment, memory = _planned(function, target, options, warps, recompute)
    # Stores of one thread and loads of another stay in the program's order.
    ordered = ordering_barriers(assignment, exchanging(assignment, memory.scratch.scratch))
    scratch = replace(memory.scratch, barriers=memory.scratch.barriers | ordered)
    # Copies ahead, products by warpgroups, and the waits for both, are operations from here on.
    written, allocation = write_products(assignment, replace(memory, scratch=scratch), warps)
    # One rule for each operation.
    module = Module(header=NvidiaIntrinsics.header)
    lowering = NvidiaLowering(written, target, module, symbol, allocation, warps, RULES, fuse=options.fuse)
    if options.assembly.line_info:
        lowering.keep_lines()
    copies = (operation for operation in written.function.walk() if operation.opcode == "copy_async")
    lowering.filled = frozenset(map(filled_tile, copies))
    lowering.deferred = deferred_operations(written.function)
    for plan in memory.loops.values():
        for stream in plan.streams:
            message = f"{stream.load.result.type} is copied {plan.stages - 1} iterations ahead"
            lowering.note(stream.load, message)
    lowering.run()
    return LoweredKernel(
        text=module.text,
        symbol=symbol,
        warps=warps,
        shared_bytes=memory.size,
        tensor_maps=tuple(lowering.tensor_maps),
        remarks=tuple(lowering.remarks),
        resident=resident_of(assignment.function),
        waiting=_waiting(assignment, memory.loops, "wgmma.mma_async" in module.text),
        assigned=written.function,
    )


def _planned(
    function: Function, target: NvidiaTarget, options: NvidiaOptions, warps: int, recompute: bool
) -> tuple[Assignment, SharedMemory]:
    """Layouts, and what is in shared memory where."""
    # Every block gets registers of threads; what has to change hands is written out as conversions.
    assignment = assign(function, target, warps, layout_rules(target), copied=True)
    # Rows that would fill the registers stay as narrow as they were loaded.
    if recompute and not options.assembly.maxnreg:
        assignment = recompute_after_reductions(assignment, warps)
    # Scratch for what threads hand to each other, tiles of products, and loops that copy theirs ahead.
    stages, sizes = options.num_stages or DEFAULT_STAGES, scratch_rules(target)
    memory = plan_memory(assignment, stages, target.shared_bytes, sizes)
    if not all_copied(assignment, memory.loops):
        assignment = assign(function, target, warps, layout_rules(target))
        memory = plan_memory(assignment, stages, target.shared_bytes, sizes)
    if memory.size > target.shared_bytes:
        assignment = assign(function, target, warps, layout_rules(target, warpgroups=False))
        memory = plan_memory(assignment, stages, target.shared_bytes, sizes)
    return assignment, memory


def _waiting(assignment: Assignment, pipelined: Collection[Operation], wgmma: bool) -> int:
    """`LoweredKernel.waiting`: for loops with products that load what they work on without copying anything ahead."""
    least = 0
    for loop in assignment.function.walk():
        if loop.opcode not in ("for", "while"):
            continue
        inside = list(loop.walk())
        opcodes = {operation.opcode for operation in inside}
        if {"dot", "load"} <= opcodes and not any(operation in pipelined for operation in inside):
            products = [_words(operation.result, assignment) for operation in inside if operation.opcode == "dot"]
            carried = sum(_words(value, assignment) for value in loop.results)
            least = max(least, carried, *products)
    return least + WGMMA_REGISTERS if least and wgmma else least


def _words(value: SSAValue, assignment: Assignment) -> int:
    """32-bit registers of a thread that a block takes; numbers, addresses and masks take few."""
    if value.type.is_scalar or value.type.is_pointer or value.type.dtype.is_bool:
        return 0
    registers = cached_live_registers(assignment.layouts[value], value.type.shape)
    return -(-len(registers) * value.type.dtype.bits // 32)
