"""Shared code of this package's emitters: shared-memory addresses, and PTX that LLVM has no intrinsic for.

Addresses in shared memory are i32 byte offsets from `@shared`, the kernel's dynamic shared memory.  A constant offset
becomes part of an instruction so, and an offset that all threads of a warp agree on stays in a uniform register.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.targets.gpu.lowering import SHARED_POINTER
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue

CLUSTER_POINTER = "ptr addrspace(7)"
SYMBOL = "@shared"

_CONSTRAINTS = {"float": "f", "double": "d", "i16": "h", "i32": "r", "i64": "l", SHARED_POINTER: "r", "ptr": "l"}


def offset(builder: LLVMBuilder, base: LLVMValue, amount: LLVMValue | int) -> LLVMValue:
    """An i32 offset moved by `amount` bytes; constants are folded."""
    constant = amount if isinstance(amount, int) else amount.constant
    if constant is not None and base.constant is not None:
        return builder.integer(base.constant + constant, "i32")
    return builder.add(base, amount)


def pointer(builder: LLVMBuilder, place: LLVMValue) -> LLVMValue:
    """The pointer to a byte of shared memory."""
    return builder.emit(f"getelementptr inbounds i8, {SHARED_POINTER} {SYMBOL}, {place}", SHARED_POINTER)


def cluster_pointer(builder: LLVMBuilder, place: LLVMValue) -> LLVMValue:
    """The pointer to a byte of this CTA's shared memory as the cluster sees it."""
    return builder.cast("addrspacecast", pointer(builder, place), CLUSTER_POINTER)


def address(builder: LLVMBuilder, place: LLVMValue) -> LLVMValue:
    """The address of a byte in the shared window (i32), as descriptors and `mapa` want it."""
    base = builder.emit(f"ptrtoint {SHARED_POINTER} {SYMBOL} to i32", "i32")
    return builder.add(base, place)


def inline(
    builder: LLVMBuilder,
    text: str,
    results: Sequence[str] = (),
    inputs: Sequence[LLVMValue] = (),
    tied: Sequence[LLVMValue] = (),
) -> list[LLVMValue]:
    """PTX that has effects and orders memory, as one call.

    In `text`, ``$0`` … are the results (LLVM types in `results`); `tied` values, if any, enter in the registers of the
    results, one for each; the inputs are numbered from `first_input(results, tied)` on.
    """
    assert not tied or len(tied) == len(results)
    constraints = [f"={_CONSTRAINTS[result]}" for result in results]
    constraints += [str(number) for number in range(len(tied))]
    constraints += [_CONSTRAINTS[value.type] for value in inputs]
    constraints.append("~{memory}")
    kind = "void" if not results else results[0] if len(results) == 1 else "{" + ", ".join(results) + "}"
    arguments = ", ".join(map(str, (*tied, *inputs)))
    call = f'call {kind} asm sideeffect "{text}", "{",".join(constraints)}"({arguments}) convergent nounwind'
    if not results:
        builder.line(call)
        return []
    value = builder.emit(call, kind)
    if len(results) == 1:
        return [value]
    return [builder.emit(f"extractvalue {value}, {number}", result) for number, result in enumerate(results)]


def first_input(results: Sequence[str], tied: Sequence[LLVMValue] = ()) -> int:
    """The number of the first input in the text of `inline`."""
    return len(results) + len(tied)


def call(builder: LLVMBuilder, name: str, *arguments: LLVMValue, result: str = "void") -> LLVMValue:
    """The intrinsic ``llvm.nvvm.<name>``, not overloaded."""
    return builder.call(f"llvm.nvvm.{name}", result, arguments)


def uniform(builder: LLVMBuilder, value: LLVMValue) -> LLVMValue:
    """An i32 that is equal in all lanes, made known as such: lane 0's."""
    lane, mask, clamp = (builder.integer(number, "i32") for number in (0, -1, 31))
    return call(builder, "shfl.sync.idx.i32", mask, value, lane, clamp, result="i32")
