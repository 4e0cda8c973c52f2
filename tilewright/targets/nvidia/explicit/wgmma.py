"""Products of tiles by warpgroups (wgmma): the instructions of one group as one piece of PTX.

A group is fence, all instructions, commit, in a single call, so that nothing can come between.  Accumulators are scalar
values that the call ties in and out; after it they are in flight, and only a `wait` that retires the group, which ties
the same values, makes them numbers.  Registers that the group reads as operand A are inputs of that wait as well: they
have to stay where they are until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue
from tilewright.targets.nvidia.explicit.ptx import address, first_input, inline

_NAMES = {
    dtypes.bfloat16: "bf16",
    dtypes.float16: "f16",
    dtypes.float32: "tf32",
    dtypes.float8e4nv: "e4m3",
    dtypes.float8e5: "e5m2",
    dtypes.int8: "s8",
    dtypes.uint8: "u8",
}
_STEP_BYTES = 32  # of k, in one instruction


@dataclass(frozen=True)
class WgmmaInstruction:
    """One instruction: 64 x `columns` += 64 x k times k x `columns`, k being 32 bytes of elements."""

    a: DType
    b: DType
    columns: int

    @property
    def depth(self) -> int:
        """Elements of k."""
        return _STEP_BYTES // self.a.itemsize

    @property
    def accumulator(self) -> str:
        """The LLVM type of an accumulator's register."""
        return "i32" if self.a.is_integer else "float"

    @property
    def registers(self) -> int:
        """Registers of the accumulator in one thread."""
        return self.columns // 2

    @property
    def mnemonic(self) -> str:
        result = "s32" if self.a.is_integer else "f32"
        shape = f"m64n{self.columns}k{self.depth}"
        return f"wgmma.mma_async.sync.aligned.{shape}.{result}.{_NAMES[self.a]}.{_NAMES[self.b]}"

    def modifiers(self, transpose_a: bool | None, transpose_b: bool) -> str:
        """What follows the operand that scales D: signs of A and B, and which operands lie along m or n.

        `transpose_a` is None for an A in registers.
        """
        if self.a.is_integer:
            return ""
        if self.a.bits != 16:
            return ", 1, 1"
        a = "" if transpose_a is None else f", {int(transpose_a)}"
        return f", 1, 1{a}, {int(transpose_b)}"


@dataclass(frozen=True)
class SharedOperand:
    """An operand in shared memory: the words of the descriptor of its start, and what the instructions add to it.

    Only the low word (i32) is computed.  `steps[s][k]` is the distance, in units of 16 bytes, of slice s of 64 rows
    (one slice for B) at the k-th step.
    """

    low: LLVMValue
    high: int
    steps: tuple[tuple[int, ...], ...]
    transposed: bool


@dataclass(frozen=True)
class RegisterOperand:
    """Operand A in registers: `words[s][k]` are the four 32-bit registers of slice s at the k-th step."""

    words: tuple[tuple[tuple[LLVMValue, ...], ...], ...]

    @property
    def pinned(self) -> list[LLVMValue]:
        """All registers, which must live until the group has retired."""
        return [word for slice_words in self.words for step in slice_words for word in step]


def descriptor(builder: LLVMBuilder, place: LLVMValue, bits: int) -> tuple[LLVMValue, int]:
    """The low word (i32) of the descriptor of a tile at `place`, and the high one, which is constant.

    `bits` are the constant fields (`layout.matrix.Descriptor.bits`).
    """
    low = builder.binary("lshr", address(builder, place), builder.integer(4, "i32"))
    low = builder.binary("and", low, builder.integer(0x3FFF, "i32"))
    leading = bits & 0xFFFFFFFF
    return builder.binary("or", low, builder.integer(leading, "i32")) if leading else low, bits >> 32


def multiply(
    builder: LLVMBuilder,
    instruction: WgmmaInstruction,
    a: SharedOperand | RegisterOperand,
    b: SharedOperand,
    accumulator: Sequence[LLVMValue] | None,
    keep: LLVMValue | None = None,
) -> list[LLVMValue]:
    """One group; returns its results, in flight.

    `accumulator` are the registers to add to, slice by slice; None starts at zero.  With `keep` (i1) false they are
    ignored too.
    """
    slices = len(a.words if isinstance(a, RegisterOperand) else a.steps)
    depth = len(b.steps[0])
    results = [instruction.accumulator] * (instruction.registers * slices)
    tied = list(accumulator or ())
    number = first_input(results, tied)
    inputs: list[LLVMValue] = a.pinned if isinstance(a, RegisterOperand) else [a.low]
    b_number = number + len(inputs)
    inputs = [*inputs, b.low]
    text = ["{ .reg .b32 la, lb; .reg .b64 da, db;"]
    if keep is not None:
        text.append(f".reg .pred keep; setp.ne.b32 keep, ${number + len(inputs)}, 0;")
        inputs.append(builder.cast("zext", keep, "i32"))
    text.append("wgmma.fence.sync.aligned;")
    for k in range(depth):
        text.append(f"add.s32 lb, ${b_number}, {b.steps[0][k]}; mov.b64 db, {{lb, {b.high}}};")
        scale = "1" if k else "0" if accumulator is None else "1" if keep is None else "keep"
        for part in range(slices):
            first = part * instruction.registers
            registers = ", ".join(f"${first + i}" for i in range(instruction.registers))
            if isinstance(a, RegisterOperand):
                words = number + 4 * (part * depth + k)
                left = "{" + ", ".join(f"${words + i}" for i in range(4)) + "}"
                modifiers = instruction.modifiers(None, b.transposed)
            else:
                text.append(f"add.s32 la, ${number}, {a.steps[part][k]}; mov.b64 da, {{la, {a.high}}};")
                left, modifiers = "da", instruction.modifiers(a.transposed, b.transposed)
            text.append(f"{instruction.mnemonic} {{{registers}}}, {left}, db, {scale}{modifiers};")
    text.append("wgmma.commit_group.sync.aligned; }")
    return inline(builder, " ".join(text), results, inputs, tied)


def wait(
    builder: LLVMBuilder, outstanding: int, values: Sequence[LLVMValue] = (), pinned: Sequence[LLVMValue] = ()
) -> list[LLVMValue]:
    """Wait until at most `outstanding` newer groups are in flight.

    `values` are the accumulators of the groups that this retires, which are returned as numbers; `pinned` the registers
    that those groups read.
    """
    text = f"wgmma.wait_group.sync.aligned {outstanding};"
    return inline(builder, text, [value.type for value in values], pinned, values)
