"""NVIDIA's names for what every GPU has: PTX special registers, barriers, shuffles, accesses under a predicate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.ir.core import Operation
from tilewright.targets.gpu.intrinsics import NAMED_EVICTIONS, GlobalAccess, Intrinsics
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue
from tilewright.targets.nvidia.conversions import NvidiaConverter
from tilewright.targets.nvidia.explicit.ptx import call
from tilewright.targets.nvidia.target import NvidiaTarget

if TYPE_CHECKING:
    from tilewright.targets.gpu.lowering import KernelLowering

_AXIS_NAMES = "xyz"
_ALL_LANES = -1
# `redux.sync` by Tile IR's opcodes.
_UNSIGNED = {"add": "add", "and": "and", "or": "or", "xor": "xor", "minimum": "umin", "maximum": "umax"}
_SIGNED = {**_UNSIGNED, "minimum": "min", "maximum": "max"}
_CONSTRAINTS = {"i8": "h", "i16": "h", "i32": "r", "i64": "l"}


class NvidiaIntrinsics(Intrinsics):
    """The table of NVIDIA's GPUs."""

    header = 'target triple = "nvptx64-nvidia-cuda"\n@shared = external addrspace(3) global [0 x i8], align 1024'
    linkage = "ptx_kernel"
    scopes = {"cta": ' syncscope("block")', "gpu": ' syncscope("device")', "sys": ""}

    def __init__(self, target: NvidiaTarget) -> None:
        self.target = target

    def kernel_attributes(self, threads: int, resident: int | None) -> str:
        note = f' "nvvm.minctasm"="{resident}"' if resident else ""
        return f'nounwind "nvvm.reqntid"="{threads},1,1"{note}'

    # Threads -------------------------------------------------------------------------------------

    def thread(self, builder: LLVMBuilder) -> LLVMValue:
        return _special_register(builder, "tid.x")

    def program_id(self, builder: LLVMBuilder, axis: int) -> LLVMValue:
        return _special_register(builder, f"ctaid.{_AXIS_NAMES[axis]}")

    def num_programs(self, builder: LLVMBuilder, axis: int) -> LLVMValue:
        return _special_register(builder, f"nctaid.{_AXIS_NAMES[axis]}")

    def barrier(self, builder: LLVMBuilder) -> None:
        call(builder, "barrier.cta.sync.aligned.all", builder.integer(0, "i32"))

    def reconverge(self, builder: LLVMBuilder) -> None:
        """Without it ptxas takes everything after a one-thread region for divergent: descriptors and counters leave the
        uniform registers, without any warning."""
        call(builder, "bar.warp.sync", builder.integer(_ALL_LANES, "i32"))

    def butterfly(self, builder: LLVMBuilder, word: LLVMValue, distance: LLVMValue) -> LLVMValue:
        return self._shuffle(builder, "bfly", word, distance)

    def shuffle(self, builder: LLVMBuilder, word: LLVMValue, lane: LLVMValue) -> LLVMValue:
        return self._shuffle(builder, "idx", word, lane)

    def _shuffle(self, builder: LLVMBuilder, kind: str, word: LLVMValue, lane: LLVMValue) -> LLVMValue:
        every, last = (builder.integer(number, "i32") for number in (_ALL_LANES, self.target.warp_threads - 1))
        name = f"llvm.nvvm.shfl.sync.{kind}.i32"
        return builder.call(name, "i32", [every, word, lane, last], attributes="convergent nounwind")

    def combined(self, builder: LLVMBuilder, opcode: str, word: LLVMValue, signed: bool) -> LLVMValue | None:
        kind = (_SIGNED if signed else _UNSIGNED).get(opcode)
        if kind is None:
            return None
        every = builder.integer(_ALL_LANES, "i32")
        return builder.call(f"llvm.nvvm.redux.sync.{kind}", "i32", [word, every], attributes="convergent nounwind")

    def unknown_zero(self, builder: LLVMBuilder) -> LLVMValue:
        """The clock's highest bit, which is 0 for centuries; both compilers see through assembly that does nothing."""
        text = "{ .reg .b32 high; mov.u32 high, %clock_hi; shr.u32 $0, high, 31; }"
        return builder.emit(f'call i32 asm sideeffect "{text}", "=r"()', "i32")

    # Numbers -------------------------------------------------------------------------------------

    def converter(self, builder: LLVMBuilder) -> NvidiaConverter:
        return NvidiaConverter(builder, self.target)

    def exp2(self, builder: LLVMBuilder, x: LLVMValue) -> LLVMValue:
        """By the special function unit; 0 below -126, where it would take three more steps."""
        return call(builder, "ex2.approx.ftz.f", x, result="float")

    def reciprocal(self, builder: LLVMBuilder, x: LLVMValue) -> LLVMValue:
        return call(builder, "rcp.approx.ftz.f", x, result="float")

    def rsqrt(self, builder: LLVMBuilder, x: LLVMValue) -> LLVMValue:
        return call(builder, "rsqrt.approx.f", x, result="float")

    # Memory: under a condition one predicated instruction, without a branch ------------------------

    def load(self, lowering: KernelLowering, access: GlobalAccess, fill: Sequence[LLVMValue]) -> list[LLVMValue]:
        operation, condition = access.operation, access.condition
        note = ".volatile" if operation.attributes["volatile"] else _modifiers(lowering, operation)
        if condition is not None and not note and access.constant:
            note = ".nc"  # nobody writes it: the assembler may do it earlier
        words, word_type = len(fill), fill[0].type
        if condition is None:
            fill = [LLVMValue(word.type, "undef") for word in fill]
        start = f"@${words + 1} " if condition is not None else ""
        space = f"ld{note}.global" if note == ".volatile" else f"ld.global{note}"
        text = f"{start}{space}{_vector_suffix(words, word_type)} {operand_list(0, words)}, [${words}]"
        text = _with_policy(operation, note, text)
        constraint = _CONSTRAINTS[word_type]
        constraints = ",".join([f"={constraint}"] * words + ["l"] + (["b"] if condition is not None else []))
        arguments = [access.pointer, *([condition] if condition is not None else [])]
        if condition is not None:
            constraints += "," + ",".join(map(str, range(words)))
            arguments += [_assembly_word(lowering, word) for word in fill]
        return assembly(lowering.builder, text, constraints, arguments, [word_type] * words)

    def store(self, lowering: KernelLowering, access: GlobalAccess, words: Sequence[LLVMValue]) -> None:
        operation, condition = access.operation, access.condition
        note, word_type = _modifiers(lowering, operation), words[0].type
        start = "@$1 " if condition is not None else ""
        first = 2 if condition is not None else 1
        listed = operand_list(first, len(words))
        text = f"{start}st.global{note}{_vector_suffix(len(words), word_type)} [$0], {listed}"
        text = _with_policy(operation, note, text)
        constraints = ["l", *(["b"] if condition is not None else []), *[_CONSTRAINTS[word_type]] * len(words)]
        arguments = [access.pointer, *([condition] if condition is not None else [])]
        arguments += [_assembly_word(lowering, word) for word in words]
        assembly(lowering.builder, text, ",".join(constraints), arguments, [])

    # Messages ------------------------------------------------------------------------------------

    def stop(self, builder: LLVMBuilder, message: LLVMValue, file: LLVMValue, line: int, function: LLVMValue) -> None:
        """The driver's `__assertfail` ends the kernel, and names the place."""
        arguments = [message, file, builder.integer(line, "i32"), function, LLVMValue("i64", "1")]
        builder.call("__assertfail", "void", arguments, attributes="noreturn")
        builder.unreachable()

    def print(self, builder: LLVMBuilder, text: LLVMValue, values: Sequence[LLVMValue]) -> None:
        """One call of vprintf, whose arguments lie in a structure on the thread's stack."""
        offsets, size = [], 0
        for value in values:
            width = 4 if value.type == "i32" else 8
            size = -(-size // width) * width
            offsets.append(size)
            size += width
        area = builder.alloca("i8", -(-size // 8) * 8, 8)
        for value, offset in zip(values, offsets, strict=True):
            builder.store(value, builder.gep(area, offset, "i8"), 4 if value.type == "i32" else 8)
        builder.call("vprintf", "i32", [text, area])


def _special_register(builder: LLVMBuilder, name: str) -> LLVMValue:
    """A PTX special register such as ``ctaid.x``."""
    return call(builder, f"read.ptx.sreg.{name}", result="i32")


# Accesses ----------------------------------------------------------------------------------------


def _modifiers(lowering: KernelLowering, operation: Operation) -> str:
    """What stands between ``ld.global`` or ``st.global`` and the type."""
    cache, eviction = str(operation.attributes["cache"]), str(operation.attributes["eviction"])
    if eviction not in NAMED_EVICTIONS:
        return f".{cache}" if cache else ""
    if cache:
        lowering.note(operation, f"cache modifier '{cache}' leaves no room for an eviction policy, which is ignored")
        return f".{cache}"
    return f".L1::{eviction}.L2::cache_hint"


def _with_policy(operation: Operation, note: str, instruction: str) -> str:
    """An access without its final semicolon; when its modifiers speak of the L2 cache, the policy for it is made in
    front (a constant in the end) and given as the last operand."""
    if not note.endswith("cache_hint"):
        return f"{instruction};"
    made = f"createpolicy.fractional.L2::{operation.attributes['eviction']}.b64 policy, 1.0"
    return f"{{ .reg .b64 policy; {made}; {instruction}, policy; }}"


def _assembly_word(lowering: KernelLowering, word: LLVMValue) -> LLVMValue:
    """A word as an operand of inline assembly, which knows no 8-bit registers."""
    return lowering.builder.cast("zext", word, "i16") if word.type == "i8" else word


def _vector_suffix(words: int, word_type: str) -> str:
    """``.v4.b32``"""
    return (f".v{words}" if words > 1 else "") + f".b{word_type[1:]}"


def operand_list(first: int, count: int) -> str:
    """``{$1, $2}``: operands of inline assembly, the first one's number given."""
    listed = ", ".join(f"${first + number}" for number in range(count))
    return f"{{{listed}}}" if count > 1 else listed


def assembly(
    builder: LLVMBuilder, text: str, constraints: str, arguments: Sequence[LLVMValue], results: Sequence[str]
) -> list[LLVMValue]:
    """Inline PTX that touches memory; results of 8 bits come in 16-bit registers."""
    wide = ["i16" if type_text == "i8" else type_text for type_text in results]
    whole = "void" if not wide else wide[0] if len(wide) == 1 else "{" + ", ".join(wide) + "}"
    clobbered = f"{constraints},~{{memory}}" if constraints else "~{memory}"
    call = f'call {whole} asm sideeffect "{text}", "{clobbered}"({", ".join(map(str, arguments))})'
    if not wide:
        builder.line(call)
        return []
    value = builder.emit(call, whole)
    parts = [value]
    if len(wide) > 1:
        parts = [builder.emit(f"extractvalue {whole} {value.text}, {n}", wide[n]) for n in range(len(wide))]
    return [
        builder.cast("trunc", part, type_text) if type_text != part.type else part
        for part, type_text in zip(parts, results, strict=True)
    ]
