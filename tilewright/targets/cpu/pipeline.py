"""The CPU compiler's steps for one kernel, in order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tilewright import forks
from tilewright.ir.core import Function
from tilewright.ir.diagnostics import explicit_error, inline_asm_error
from tilewright.ir.explicit import is_explicit
from tilewright.passes.pipeline import Pass, run_passes, simplify
from tilewright.passes.uniform_increments import carry_uniform_increments
from tilewright.targets.base import Remark
from tilewright.targets.cpu.entry import Entry, emit_entry
from tilewright.targets.cpu.failures import assertions, number_assertions
from tilewright.targets.cpu.lowering import CPUKernelLowering
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.cpu.passes.check_bounds import check_bounds
from tilewright.targets.cpu.passes.deepen_products import deepen_products
from tilewright.targets.cpu.passes.known_bounds import drop_known_bounds
from tilewright.targets.cpu.passes.sum_in_loops import sum_in_loops
from tilewright.targets.cpu.passes.unwrap_indices import unwrap_indices
from tilewright.targets.cpu.passes.widen_products import widen_products
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.cpu.waiting import watch_waits
from tilewright.targets.llvm.builder import Module
from tilewright.targets.llvm.symbols import kernel_symbol


@dataclass(frozen=True)
class LoweredCPUKernel:
    """LLVM text of a kernel; `symbol` is its entry point (`Binary` in targets/base.py tells how it is called)."""

    text: str
    symbol: str
    scratch_bytes: int
    records: bool = False
    waits: bool = False
    asks: bool = False
    refuses: bool = False
    remarks: tuple[Remark, ...] = ()
    explanation: Callable[[], str] = field(default=str, compare=False)  # the decisions, line by line of the source


_RECURSION_LIMIT = 100_000

CPU_PASSES: tuple[tuple[Pass, str], ...] = (
    (number_assertions, "first, in the order of the traced kernel, which a failure is told from"),
    (watch_waits, "next to it, for the same reason"),
    (
        widen_products,
        "product kernels know no 8-bit floats and sum in float32; before simplify, which sees equal casts",
    ),
    (simplify, "smaller kernels for all that follows, and equal masks and addresses become one value"),
    (carry_uniform_increments, "after it, because loops carry only what changes; pointers become affine in scalars"),
    (
        drop_known_bounds,
        "next, with all indices that they have; masks lose what the lower bounds of block pointers are",
    ),
    (unwrap_indices, "next to it: addresses are expressions now, of which copies can be made"),
    (deepen_products, "after both: operands are regular now, and loops carry scalars that grow"),
    (sum_in_loops, "before blocks are placed: a carried block would have a buffer"),
    (simplify, "what the passes before left over"),
)


def lower(function: Function, target: CPUTarget, options: CPUOptions, text: str = "") -> LoweredCPUKernel:
    """LLVM text for a verified kernel; `text` is its own as `print_function` has it, where it is at hand.

    Raises `CompilationError` with the source line for what the CPU cannot do.
    """
    symbol = kernel_symbol(function, target.key, options.key, text)
    with _deep_recursion:
        return _lower(function, target, symbol, options)


def _lower(function: Function, target: CPUTarget, symbol: str, options: CPUOptions) -> LoweredCPUKernel:
    for operation in function.walk():
        if operation.opcode == "inline_asm":
            raise inline_asm_error(operation, "a CPU")
        if is_explicit(operation.opcode):
            raise explicit_error(operation, "a CPU")

    def sum_by_vectors(function: Function) -> Function:
        return sum_in_loops(function, target.vector_bits // 32)

    passes = tuple(sum_by_vectors if step is sum_in_loops else step for step, _ in CPU_PASSES)
    if not options.watches:
        passes = tuple(step for step in passes if step is not watch_waits)
    if options.check_bounds:
        first = len(list(assertions(function)))

        def checks(function: Function) -> Function:
            return check_bounds(function, first)

        place = passes.index(widen_products)
        passes = (*passes[:place], carry_uniform_increments, checks, *passes[place:])
    function = run_passes(function, passes)
    module = Module(features=frozenset(target.features))
    fuse, overlap = options.fuse, options.overlap
    instance, careful = f"{symbol}.instance", f"{symbol}.careful"
    asks = options.watches
    lowering = CPUKernelLowering(function, target, module, instance, fuse, overlap == "careful", asks)
    scratch_bytes = lowering.run()
    two_versions = bool(lowering.hazards) and overlap != "refuse"
    needed = CPUKernelLowering(function, target, module, careful, fuse, True, asks).run() if two_versions else 0
    entry = Entry(
        symbol,
        instance,
        careful if two_versions else None,
        lowering.hazards,
        lowering.records,
        lowering.waits,
        lowering.streams,
    )
    emit_entry(entry, function, target, module)
    title = f"kernel {function.name} on the CPU, with vectors of {target.vector_bits} bits"
    return LoweredCPUKernel(
        text=module.text,
        symbol=symbol,
        scratch_bytes=max(scratch_bytes, needed),
        records=lowering.records,
        waits=lowering.waits,
        asks=lowering.asks,
        refuses=entry.refuses,
        remarks=tuple(lowering.remarks),
        explanation=partial(lowering.report.text, title, scratch_bytes),
    )


class _DeepRecursion:
    """Room for expressions of thousands of operations, which are evaluated from their end.

    The limit belongs to the whole process: the last of several threads to leave puts it back.
    """

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._inside = 0
        self._usual = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._usual = sys.getrecursionlimit()
                sys.setrecursionlimit(max(self._usual, _RECURSION_LIMIT))
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                sys.setrecursionlimit(self._usual)


_deep_recursion = _DeepRecursion()
