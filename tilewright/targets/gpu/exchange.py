"""Lowers conversion plans (`layout.plan_conversion`): register renaming, shuffles, shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Operation
from tilewright.layout import Plan, RegisterMoves, SharedExchange, Shuffles
from tilewright.layout.exchange import ExchangeAccess
from tilewright.targets.gpu.lowering import KernelLowering
from tilewright.targets.llvm.builder import LLVMValue


def convert(lowering: KernelLowering, operation: Operation, plan: Plan) -> None:
    """Define the result of a conversion."""
    (operand,), result = operation.operands, operation.result
    given = dict(zip(lowering.numbers(operand), lowering.registers(operand), strict=True))
    source = lowering.layout(operand)
    some = lowering.registers(operand)[0]
    # Registers outside the real block hold nothing; what is moved of them does not matter.
    every = [
        to_bits(lowering, given.get(number, LLVMValue(some.type, "undef"))) for number in range(source.size("register"))
    ]
    if isinstance(plan, RegisterMoves):
        moved = [every[number] for number in plan.registers]
    elif isinstance(plan, Shuffles):
        moved = _shuffle(lowering, plan, every)
    else:
        moved = _through_memory(lowering, plan, every, lowering.allocation.scratch[operation])
    wanted = [moved[number] for number in lowering.numbers(result)]
    lowering.define(result, [from_bits(lowering, register, some.type) for register in wanted])


# Registers as bits -------------------------------------------------------------------------------


def width_of(type_text: str) -> int:
    """Bits that a register takes in memory or on its way between lanes."""
    widths = {"half": 16, "bfloat": 16, "float": 32, "double": 64, "i1": 8}
    return 64 if type_text.startswith("ptr") else widths.get(type_text) or int(type_text[1:])


def to_bits(lowering: KernelLowering, register: LLVMValue) -> LLVMValue:
    """A register as an integer of 8, 16, 32 or 64 bits."""
    wanted = f"i{width_of(register.type)}"
    if not _is_real(register):
        return LLVMValue(wanted, "undef")
    if register.type == "i1":
        return lowering.builder.cast("zext", register, "i8")
    if register.type.startswith("ptr"):
        return lowering.builder.cast("ptrtoint", register, wanted)
    return lowering.builder.cast("bitcast", register, wanted)


def from_bits(lowering: KernelLowering, bits: LLVMValue, type_text: str) -> LLVMValue:
    """The register of a type whose `to_bits` is `bits`."""
    if type_text == "i1":
        return lowering.builder.cast("trunc", bits, "i1")
    if type_text.startswith("ptr"):
        return lowering.builder.cast("inttoptr", bits, type_text)
    return lowering.builder.cast("bitcast", bits, type_text)


def pack(lowering: KernelLowering, parts: Sequence[LLVMValue], width: int) -> LLVMValue:
    """Integers side by side in one of `width` bits, the first lowest."""
    builder, total = lowering.builder, None
    if len(parts) == 1:
        return builder.cast("zext", parts[0], f"i{width}")
    for number, part in enumerate(parts):
        wide = builder.cast("zext", part, f"i{width}")
        moved = builder.binary("shl", wide, LLVMValue(wide.type, str(number * int(part.type[1:])))) if number else wide
        total = moved if total is None else builder.emit(f"or disjoint {total}, {moved.text}", moved.type)
    assert total is not None
    return total


def unpack(lowering: KernelLowering, word: LLVMValue, count: int, bits: int) -> list[LLVMValue]:
    """`count` integers of `bits` bits out of one, the lowest first."""
    builder, parts = lowering.builder, []
    for number in range(count):
        moved = builder.binary("lshr", word, LLVMValue(word.type, str(number * bits))) if number else word
        parts.append(builder.cast("trunc", moved, f"i{bits}"))
    return parts


def butterfly(lowering: KernelLowering, register: LLVMValue, distance: LLVMValue) -> LLVMValue:
    """A register of any type of the lane whose number differs by XOR."""
    bits = to_bits(lowering, register)
    width = int(bits.type[1:])
    builder, word_of = lowering.builder, lowering.intrinsics.butterfly
    if width == 64:
        words = [word_of(builder, word, distance) for word in unpack(lowering, bits, 2, 32)]
        return from_bits(lowering, pack(lowering, words, 64), register.type)
    moved = word_of(builder, builder.cast("zext", bits, "i32"), distance)
    return from_bits(lowering, lowering.builder.cast("trunc", moved, bits.type), register.type)


# Shuffles ----------------------------------------------------------------------------------------


def _thread_number(lowering: KernelLowering, numbers: Sequence[int], lane_bits: int) -> LLVMValue:
    """The XOR of one number for each set bit of the thread's lane, then warp."""
    return lowering.combine_bits(
        [(lowering.group.lane, numbers[:lane_bits]), (lowering.group.warp, numbers[lane_bits:])]
    )


def _chosen(
    lowering: KernelLowering, units: Sequence[list[LLVMValue]], number: int, bits: Sequence[int], lane_bits: int
) -> list[LLVMValue]:
    """Unit `number` ^ (what the thread's bits say), by one select for each bit that can change."""
    builder = lowering.builder
    changing = 0
    for value in bits:
        changing |= value
    candidates = {number: units[number]}
    order = [bit for bit in range(changing.bit_length()) if changing >> bit & 1]
    # All units that differ from `number` in the bits that can change, then halved bit by bit.
    for bit in order:
        candidates = {**candidates, **{key ^ 1 << bit: units[key ^ 1 << bit] for key in candidates}}
    for bit in order:
        which = [value >> bit & 1 for value in bits]

        def emit(which: list[int] = which) -> LLVMValue:
            parity = _parity(lowering, which, lane_bits)
            return builder.compare("ne", parity, 0)

        flag = lowering.once(("choice", tuple(which)), emit)
        halved = [key for key in candidates if not (key ^ number) >> bit & 1]
        candidates = {
            key: [
                builder.select(flag, other, own)
                for own, other in zip(candidates[key], candidates[key ^ 1 << bit], strict=True)
            ]
            for key in halved
        }
    return candidates[number]


def _parity(lowering: KernelLowering, which: Sequence[int], lane_bits: int) -> LLVMValue:
    """The XOR of some bits of the thread's number, as an i32 that is 0 or not."""
    return lowering.combine_bits([(lowering.group.lane, which[:lane_bits]), (lowering.group.warp, which[lane_bits:])])


def _shuffle(lowering: KernelLowering, plan: Shuffles, registers: Sequence[LLVMValue]) -> list[LLVMValue]:
    builder, intrinsics = lowering.builder, lowering.intrinsics
    bits = plan.element_bits
    width = max(32, plan.unit * bits)
    packed = [
        pack(lowering, registers[start : start + plan.unit], width) for start in range(0, len(registers), plan.unit)
    ]
    words = [unpack(lowering, value, width // 32, 32) if width > 32 else [value] for value in packed]
    read = _thread_number(lowering, plan.read, plan.lane_bits)
    received = []
    for round_ in plan.rounds:
        sent = _chosen(lowering, words, round_.register, plan.send, plan.lane_bits)
        if plan.butterfly:
            distance = lowering.i32(round_.lane)
            moved = [intrinsics.butterfly(builder, word, distance) for word in sent] if round_.lane else sent
        else:
            lane = builder.binary("xor", read, lowering.i32(round_.lane)) if round_.lane else read
            moved = [intrinsics.shuffle(builder, word, lane) for word in sent]
        received.append(moved)
    results: dict[int, list[LLVMValue]] = {}
    for unit in sorted({unit for unit, _ in plan.registers}):
        chosen = _chosen(lowering, received, unit, plan.place, plan.lane_bits)
        whole = pack(lowering, chosen, width) if width > 32 else chosen[0]
        results[unit] = unpack(lowering, whole, plan.unit, bits)
    return [results[unit][member] for unit, member in plan.registers]


# Shared memory -----------------------------------------------------------------------------------


def exchange_bytes(plan: SharedExchange, bits: int) -> int:
    """Scratch that a conversion takes."""
    return plan.size * bits // 8


def _through_memory(
    lowering: KernelLowering, plan: SharedExchange, registers: Sequence[LLVMValue], scratch: int
) -> list[LLVMValue]:
    size = int(registers[0].type[1:]) // 8
    starts = [
        lowering.builder.multiply(_thread_number(lowering, side.threads, lowering.lane_bits), lowering.i32(size))
        for side in (plan.store, plan.load)
    ]
    base = lowering.builder.add(lowering.group.scratch, lowering.i32(scratch))
    loaded: dict[int, LLVMValue] = {}
    for step in range(plan.steps):
        if step:
            lowering.synchronize()
        for access in plan.store.accesses:
            if access.step == step:
                values = [registers[number] for number in access.registers]
                if any(_is_real(value) for value in values):
                    # Threads with copies write to one place: all of them the same, also outside the real block.
                    written = [value if _is_real(value) else LLVMValue(value.type, "0") for value in values]
                    store_shared(lowering, _place(lowering, base, starts[0], access, size), written)
        if plan.scope == "warp":
            lowering.reconverge()
        else:
            lowering.synchronize()
        for access in plan.load.accesses:
            if access.step == step:
                pointer = _place(lowering, base, starts[1], access, size)
                values = load_shared(lowering, pointer, f"i{8 * size}", len(access.registers))
                loaded.update(zip(access.registers, values, strict=True))
    return [loaded[number] for number in plan.registers]


def _is_real(register: LLVMValue) -> bool:
    """Whether a register is of the real block."""
    return register.text != "undef"


def _place(lowering: KernelLowering, base: LLVMValue, start: LLVMValue, access: ExchangeAccess, size: int) -> LLVMValue:
    offset = lowering.builder.binary("xor", start, lowering.i32(access.offset * size)) if access.offset else start
    return lowering.shared_pointer(lowering.builder.add(base, offset))


def store_shared(lowering: KernelLowering, pointer: LLVMValue, values: Sequence[LLVMValue]) -> None:
    """Integers at neighbouring places by one instruction; the place is aligned to all of them."""
    builder, bits = lowering.builder, int(values[0].type[1:])
    total = bits * len(values)
    if len(values) == 1:
        builder.store(values[0], pointer, bits // 8)
        return
    unit = 32 if total >= 32 else total
    if bits < unit:
        per = unit // bits
        values = [pack(lowering, values[start : start + per], unit) for start in range(0, len(values), per)]
    if len(values) == 1:
        builder.store(values[0], pointer, total // 8)
        return
    vector: LLVMValue = builder.poison(f"<{len(values)} x {values[0].type}>")
    for lane, value in enumerate(values):
        vector = builder.insert(vector, value, lane)
    builder.store(vector, pointer, total // 8)


def load_shared(lowering: KernelLowering, pointer: LLVMValue, type_text: str, count: int) -> list[LLVMValue]:
    """Integers from neighbouring places by one instruction."""
    builder, bits = lowering.builder, int(type_text[1:])
    total = bits * count
    if count == 1:
        return [builder.load(type_text, pointer, bits // 8)]
    unit = 32 if total >= 32 and bits < 32 else max(bits, min(total, 32))
    pieces = builder.load_each(f"i{unit}", total // unit, pointer, total // 8)
    return [part for piece in pieces for part in unpack(lowering, piece, unit // bits, bits)]
