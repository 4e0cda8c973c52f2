"""Lowers one kernel, whose layouts are assigned, to LLVM text: one rule for each operation.

`KernelLowering` walks the kernel and keeps, for every value, the LLVM values that a thread holds of it.  A rule reads
those of the operands, emits code through `builder`, and defines those of the results:

    def negate(lowering: KernelLowering, operation: Operation) -> None:
        registers = [lowering.builder.negate(x) for x in lowering.registers(operation.operands[0])]
        lowering.define(operation.result, registers)

Blocks are never in memory of their own: registers are plain SSA values, and loops carry them as phis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from tilewright import dtypes
from tilewright.errors import CompilationError
from tilewright.forks import cached_property
from tilewright.ir.core import Function, Operation, Parameter, Region, SSAValue
from tilewright.ir.diagnostics import unsupported_error
from tilewright.ir.ops import Effect, effects_of
from tilewright.ir.types import Element, PointerType
from tilewright.layout import LinearLayout, live_registers
from tilewright.targets.base import Remark
from tilewright.targets.gpu.conversions import register_type
from tilewright.targets.gpu.intrinsics import Intrinsics
from tilewright.targets.gpu.layouts import Assignment
from tilewright.targets.gpu.memory_order import PointerRoots
from tilewright.targets.gpu.shared_memory import Allocation
from tilewright.targets.gpu.target import SimtTarget, lane_bits
from tilewright.targets.llvm.builder import Block, LLVMBuilder, LLVMValue, Module
from tilewright.targets.llvm.debug import DebugLines

SHARED_POINTER = "ptr addrspace(3)"
GLOBAL = "ptr addrspace(1)"
_HALF_WORDS = ("half", "bfloat", "i16")
KEPT_ATTRIBUTE = "gpu.kept"  # of a permute or sum: what is computed from it is not joined with what its operand gave
PIPELINED_ATTRIBUTE = "gpu.pipelined"  # of a for: its copies run ahead, and it carries every register as it is
RESIDENT_ATTRIBUTE = "gpu.resident"  # of a function: CTAs that shall fit a multiprocessor

Rule = Callable[["KernelLowering", Operation], None]
PartRead = Callable[[int, int, LLVMValue], None]  # axis, length, number: defines the block's registers as that part's


def resident_of(function: Function) -> int | None:
    """For how many CTAs of a multiprocessor a kernel was written; None where nobody said."""
    resident = function.attributes.get(RESIDENT_ATTRIBUTE)
    assert resident is None or isinstance(resident, int)
    return resident


class _LaterRegisters(list[LLVMValue]):
    """Registers that are made by their first reader."""

    def __init__(self, register: Callable[[int], LLVMValue], count: int) -> None:
        super().__init__([LLVMValue("void", "")] * count)
        self._register = register
        self._made: dict[int, LLVMValue] = {}

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        if place not in self._made:
            self._made[place] = self._register(place)
        return self._made[place]

    def __iter__(self) -> Iterator[LLVMValue]:
        return (self[place] for place in range(len(self)))


cached_live_registers = lru_cache(maxsize=4096)(live_registers)


@dataclass(frozen=True)
class ThreadGroup:
    """The threads that run a piece of code together: a whole CTA, or one copy of a role.

    `thread`, `lane` and `warp` are i32 values that count from the group's first thread; `barrier` (i32) is the hardware
    barrier that is its own, where it is a part of a CTA; `elected` groups are one thread only.  `scratch` (i32) is
    added to the offsets of scratch memory.  Values that depend on the thread alone are emitted at the end of `block`.
    """

    warps: int
    thread: LLVMValue
    lane: LLVMValue
    warp: LLVMValue
    barrier: LLVMValue | None
    elected: bool
    scratch: LLVMValue
    block: Block
    coordinates: dict[tuple[LinearLayout, int], LLVMValue] = field(default_factory=dict)


class KernelLowering:
    """The lowering of one function into `module`; `run` emits it.

    `affine` remembers of i32, i64 and pointer registers which are another register plus a number (pointers: bytes).
    """

    def __init__(
        self,
        assignment: Assignment,
        target: SimtTarget,
        intrinsics: Intrinsics,
        module: Module,
        symbol: str,
        allocation: Allocation,
        warps: int,
        rules: Mapping[str, Rule],
        *,
        fuse: bool = True,
    ) -> None:
        self.function: Function = assignment.function
        self.assignment = assignment
        self.target = target
        self.intrinsics = intrinsics
        self.lane_bits = lane_bits(target)
        self.module = module
        self.symbol = symbol
        self.allocation = allocation
        self.warps = warps
        self.rules = rules
        self.fuse = fuse  # products into the sums that they are terms of
        self.remarks: list[Remark] = []
        self.affine: dict[str, tuple[LLVMValue, int]] = {}
        self.used = {value for operation in self.function.walk() for value in operation.operands}
        self.reads: dict[SSAValue, PartRead] = {}  # blocks in shared memory of which products take parts
        self.deferred: frozenset[Operation] = frozenset()  # whose registers are computed when they are asked for
        self._values: dict[SSAValue, list[LLVMValue]] = {}
        self._memo: dict[tuple[object, ...], LLVMValue] = {}
        self._declare()

    def _declare(self) -> None:
        parameters: list[tuple[str, str, str]] = []
        for argument, parameter in zip(self.function.region.arguments, self.function.parameters, strict=True):
            kind, notes = self.parameter(argument, parameter)
            parameters.append((kind, f"p{len(parameters)}", notes))
        self.builder = LLVMBuilder(
            self.module, self.symbol, "void", parameters, linkage=self.intrinsics.linkage, attributes=self.attributes()
        )
        self.builder.float_flags = "contract" if self.fuse else ""
        self.converter = self.intrinsics.converter(self.builder)
        self._values.update(
            (argument, [register])
            for argument, register in zip(self.function.region.arguments, self.builder.arguments, strict=True)
        )

    def parameter(self, argument: SSAValue, parameter: Parameter) -> tuple[str, str]:
        """The LLVM type of a parameter of the kernel, and its attributes."""
        notes = []
        if argument.type.is_pointer:
            alone = parameter.alias_free and not self.starts_early and not {argument, None} & self.written
            notes += ["noalias"] if alone else []
            notes += [f"align {min(parameter.divisibility, 4096)}"] if parameter.divisibility > 1 else []
        return parameter_type(argument.type.element), " ".join(notes)

    @cached_property
    def written(self) -> set[SSAValue | None]:
        """The parameters that the kernel writes through, None for one that is not known.

        Other threads write to their memory, too, which LLVM would take to be one thread's if it had no aliases: it
        would carry loads across barriers.
        """
        roots = PointerRoots(self.function)
        inner = (operation for operation in self.function.walk() if not operation.regions)
        writes = [operation for operation in inner if Effect.WRITE in effects_of(operation)]
        return {roots.root(operand) for write in writes for operand in write.operands if operand.type.is_pointer}

    @property
    def starts_early(self) -> bool:
        """Whether the kernel may run before those ahead of it have ended: what it reads may change until it waits, and
        LLVM would take memory without aliases that it only reads for constant, and read it before."""
        return False

    def attributes(self) -> str:
        """The LLVM attributes of the kernel."""
        return self.intrinsics.kernel_attributes(self.warps << self.lane_bits, resident_of(self.function))

    def run(self) -> None:
        """Emit the kernel."""
        thread = self.intrinsics.thread(self.builder)
        lane = self.builder.binary("and", thread, self.i32((1 << self.lane_bits) - 1))
        warp = self.builder.binary("lshr", thread, self.i32(self.lane_bits))
        self.group = ThreadGroup(self.warps, thread, lane, warp, None, False, self.i32(0), self.builder.block)
        self.enter()
        self.body()
        self.builder.finish()

    def enter(self) -> None:
        """What a GPU's kernels do before all else: nothing here."""

    def body(self) -> None:
        """Emit what all threads of a CTA run."""
        self.operations(self.function.region.operations)

    # Values --------------------------------------------------------------------------------------

    def registers(self, value: SSAValue) -> list[LLVMValue]:
        """What a thread holds of a value: the live registers of its layout in their order; of a scalar, one."""
        return self._values[value]

    def scalar(self, value: SSAValue) -> LLVMValue:
        """The one register of a scalar."""
        (register,) = self._values[value]
        return register

    def define(self, value: SSAValue, registers: Sequence[LLVMValue]) -> None:
        self._values[value] = list(registers)

    def define_later(self, value: SSAValue, register: Callable[[int], LLVMValue], count: int) -> None:
        """A value whose registers are emitted when they are asked for, each once; all uses are in this basic block."""
        self._values[value] = _LaterRegisters(register, count)

    def layout(self, value: SSAValue) -> LinearLayout:
        """The layout of a block; extents that are no powers of two are rounded up in it."""
        return self.assignment.layouts[value]

    def numbers(self, value: SSAValue) -> tuple[int, ...]:
        """The register numbers of a block's layout that exist, in the order of `registers`."""
        return self.live(self.layout(value), value.type.shape)

    def live(self, layout: LinearLayout, shape: tuple[int, ...]) -> tuple[int, ...]:
        if layout.shape == shape:
            return tuple(range(layout.size("register")))
        return cached_live_registers(layout, shape)

    # Small pieces of code ------------------------------------------------------------------------

    def i32(self, number: int) -> LLVMValue:
        return LLVMValue("i32", str(number))

    def once(self, key: tuple[object, ...], emit: Callable[[], LLVMValue]) -> LLVMValue:
        """The value that `emit` gave for an equal key in the same basic block, or what it gives now."""
        place = (self.builder.block.label, *key)
        if place not in self._memo:
            self._memo[place] = emit()
        return self._memo[place]

    def plus(self, register: LLVMValue, number: int) -> LLVMValue:
        """An integer register plus a number, remembered as that."""
        base, known = self.affine.get(register.text, (register, 0))
        if base.constant is not None:
            return LLVMValue(register.type, str(wrapped(base.constant + known + number, register.type)))
        total = known + number
        if not total:
            return base

        def emit() -> LLVMValue:
            value = self.builder.emit(f"add {base}, {total}", base.type)
            self.affine[value.text] = base, total
            return value

        return self.once(("plus", base.text, total), emit)

    def coordinate(self, layout: LinearLayout, axis: int) -> LLVMValue:
        """The coordinate along an axis of the element in the thread's register 0 (i32)."""
        key = (layout, axis)
        if key not in self.group.coordinates:
            bits = {name: [vector[axis] for vector in layout.vectors(name)] for name in ("lane", "warp")}
            with self.builder.at(self.group.block):
                self.group.coordinates[key] = self.combine_bits(
                    [(self.group.lane, bits["lane"]), (self.group.warp, bits["warp"])]
                )
        return self.group.coordinates[key]

    def combine_bits(self, parts: Sequence[tuple[LLVMValue, Sequence[int]]]) -> LLVMValue:
        """The XOR, over the set bits of some i32 values, of one number for each bit.

        Neighbouring bits with numbers that double move by one shift.
        """
        total: LLVMValue | None = None
        used = 0
        for source, numbers in parts:
            bit = 0
            while bit < len(numbers):
                if not numbers[bit]:
                    bit += 1
                    continue
                end = bit + 1
                simple = not numbers[bit] & (numbers[bit] - 1)
                while simple and end < len(numbers) and numbers[end] == numbers[bit] << (end - bit):
                    end += 1
                piece = self._bit_run(source, bit, end - bit, numbers[bit])
                covered = 0
                for position in range(bit, end):
                    covered |= numbers[position]
                joined = "or disjoint" if not covered & used else "xor"
                total = piece if total is None else self.builder.emit(f"{joined} {total}, {piece.text}", "i32")
                used |= covered
                bit = end
        return self.i32(0) if total is None else total

    def _bit_run(self, source: LLVMValue, bit: int, count: int, number: int) -> LLVMValue:
        """Bits `bit` … of `source` as a multiple of `number`."""
        masked = self.builder.binary("and", source, self.i32(((1 << count) - 1) << bit))
        if number & (number - 1):  # one bit that stands for several
            shifted = self.builder.binary("lshr", masked, self.i32(bit)) if bit else masked
            return self.builder.multiply(shifted, self.i32(number))
        move = number.bit_length() - 1 - bit
        if not move:
            return masked
        return self.builder.binary("shl" if move > 0 else "lshr", masked, self.i32(abs(move)))

    def inside(self, layout: LinearLayout, shape: tuple[int, ...], number: int) -> LLVMValue | None:
        """Whether register `number` of this thread holds an element of the real block; None when it always does."""
        result: LLVMValue | None = None
        for axis, (extent, whole) in enumerate(zip(shape, layout.shape, strict=True)):
            if extent == whole:
                continue
            bits = [vector[axis] for name in ("lane", "warp") for vector in layout.vectors(name)]
            own = layout.unpack(layout.element(register=number))[axis]
            if sum(bits) + own < extent:  # bits of one axis are different powers of two
                continue
            place = self.builder.binary("xor", self.coordinate(layout, axis), self.i32(own))
            below = self.builder.compare("ult", place, self.i32(extent))
            result = below if result is None else self.builder.binary("and", result, below)
        return result

    def first_holder(self, layout: LinearLayout | None) -> LLVMValue | None:
        """Whether this thread is the one, of those with copies, that acts for all (None when there are no copies)."""
        if layout is None:
            return self.builder.compare("eq", self.group.thread, self.i32(0))
        free = layout.free_variables()
        mask = free["lane"] | free["warp"] << self.lane_bits
        if not mask:
            return None
        masked = self.builder.binary("and", self.group.thread, self.i32(mask))
        return self.builder.compare("eq", masked, self.i32(0))

    def conjunction(self, left: LLVMValue | None, right: LLVMValue | None) -> LLVMValue | None:
        """The conjunction of two conditions, of which None holds always."""
        if left is None or right is None:
            return right if left is None else left
        return self.builder.binary("and", left, right)

    def shared_pointer(self, offset: LLVMValue | int) -> LLVMValue:
        """A pointer into the CTA's shared memory, by bytes from its start."""
        index = self.i32(offset) if isinstance(offset, int) else offset
        return self.builder.emit(f"getelementptr i8, {SHARED_POINTER} @shared, {index}", SHARED_POINTER)

    def synchronize(self) -> None:
        """A barrier among the threads of the group, after which they see each other's memory accesses."""
        if self.group.elected:
            return
        if self.group.warps == 1:
            self.reconverge()
        else:
            self.intrinsics.barrier(self.builder)

    def reconverge(self) -> None:
        """Join the lanes of a warp, after code that only some ran."""
        self.intrinsics.reconverge(self.builder)

    @contextmanager
    def in_group(self, group: ThreadGroup) -> Iterator[None]:
        """Emit code that `group` runs."""
        saved, self.group = self.group, group
        try:
            yield
        finally:
            self.group = saved

    # Walking -------------------------------------------------------------------------------------

    def operations(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            self.operation(operation)

    def keep_lines(self) -> None:
        """Note the source line of every instruction, for profilers; call it before `run`."""
        places = (operation.location for operation in self.function.walk())
        first = next((place for place in places if place is not None), None)
        if first is not None:
            self.builder.debug = DebugLines(self.module, self.function.name, self.symbol, first)

    def operation(self, operation: Operation) -> None:
        """Emit one operation by its rule."""
        rule = self.rules.get(operation.opcode)
        if rule is None:
            raise unsupported(self, operation, "there is no rule for it")
        self.builder.locate(operation.location)
        if operation in self.allocation.barriers:
            self.synchronize()
        rule(self, operation)

    def region(self, region: Region, arguments: Sequence[Sequence[LLVMValue]]) -> list[list[LLVMValue]]:
        """Emit a region with its arguments bound to registers; the registers of what its terminator yields."""
        for value, registers in zip(region.arguments, arguments, strict=True):
            self.define(value, registers)
        self.operations(region.operations[:-1])
        return [self.registers(value) for value in region.terminator.operands]

    def note(self, operation: Operation, message: str, severity: str = "note") -> None:
        """A remark with the operation's source line."""
        place = operation.location
        self.remarks.append(Remark(severity, message, place.file if place else "", place.line if place else 0))


def wrapped(number: int, type_text: str) -> int:
    """An integer as the two's complement of a type's width has it."""
    bits = int(type_text[1:])
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def parameter_type(element: Element) -> str:
    """The LLVM type of a kernel parameter."""
    if isinstance(element, PointerType):
        return GLOBAL
    return register_type(element)


def unsupported(lowering: KernelLowering, operation: Operation, reason: str) -> CompilationError:
    """The error for an operation that the target cannot lower, at the user's line."""
    return unsupported_error(operation, f"the target {lowering.target.architecture}", reason)


# Control flow ------------------------------------------------------------------------------------


def _for(lowering: KernelLowering, operation: Operation) -> None:
    builder, region = lowering.builder, operation.regions[0]
    kind = operation.operands[0].type.dtype
    # Counted in 64 bits where the type is unsigned, or so narrow that the last step may leave it.
    wide = kind.bits < 32 or (not kind.is_signed and kind.bits < 64)
    bounds = [lowering.scalar(value) for value in operation.operands[:3]]
    if wide:
        bounds = [lowering.converter.cast(value, kind, dtypes.int64) for value in bounds]
    initial = [lowering.registers(value) for value in operation.operands[3:]]
    pipelined = PIPELINED_ATTRIBUTE in operation.attributes
    joined: Callable[[list[LLVMValue]], list[LLVMValue]] = list if pipelined else partial(in_words, builder)
    carried = [joined(registers) for registers in initial]
    flat = [word for words in carried for word in words]
    hint, metadata = "pipeline" if pipelined else "for", _unrolling(lowering, operation)
    with builder.loop(bounds[0], bounds[1], bounds[2], flat, hint=hint, metadata=metadata) as loop:
        index = builder.cast("trunc", loop.index, register_type(kind)) if wide else loop.index
        given = [out_of_words(builder, words) for words in grouped(loop.values, carried)]
        following = lowering.region(region, [[index], *given])
        loop.next([word for registers in following for word in joined(registers)])
    for value, words in zip(operation.results, grouped(loop.results, carried), strict=True):
        lowering.define(value, out_of_words(builder, words))


def _unrolling(lowering: KernelLowering, operation: Operation) -> str:
    """Loop metadata for the unrolling that the author asked for."""
    factor = operation.attributes["unroll"]
    if not isinstance(factor, int) or factor < 2:
        return ""
    count = lowering.module.metadata(f'!{{!"llvm.loop.unroll.count", i32 {factor}}}')
    return lowering.module.distinct_metadata("!{{self}, " + count + "}")


def in_words(builder: LLVMBuilder, registers: Sequence[LLVMValue]) -> list[LLVMValue]:
    """Registers as control flow merges them: neighbours of 16 bits as one word, for each would take one alone."""
    if not registers or len(registers) % 2 or registers[0].type not in _HALF_WORDS:
        return list(registers)
    pairs = zip(registers[::2], registers[1::2], strict=True)
    empty = builder.poison(f"<2 x {registers[0].type}>")
    return [builder.insert(builder.insert(empty, low, 0), high, 1) for low, high in pairs]


def out_of_words(builder: LLVMBuilder, words: Sequence[LLVMValue]) -> list[LLVMValue]:
    """The registers that `in_words` had."""
    if not words or not words[0].is_vector:
        return list(words)
    return [builder.extract(word, lane) for word in words for lane in range(word.lanes)]


def grouped(flat: Sequence[LLVMValue], like: Sequence[Sequence[LLVMValue]]) -> list[list[LLVMValue]]:
    """A flat list cut into lists as long as those of `like`."""
    parts, used = [], 0
    for registers in like:
        parts.append(list(flat[used : used + len(registers)]))
        used += len(registers)
    return parts


def _if(lowering: KernelLowering, operation: Operation) -> None:
    builder = lowering.builder
    blocks = [builder.new_block("if.then"), builder.new_block("if.else")]
    after = builder.new_block("if.end")
    builder.branch_if(lowering.scalar(operation.operands[0]), blocks[0], blocks[1])
    yielded: list[list[list[LLVMValue]]] = []
    ends = []
    for block, region in zip(blocks, operation.regions, strict=True):
        builder.start(block)
        results = lowering.region(region, [])
        yielded.append([in_words(builder, registers) for registers in results])
        ends.append(builder.block)
        builder.branch(after)
    builder.start(after)
    for result, then, otherwise in zip(operation.results, *yielded, strict=True):
        pairs = zip(then, otherwise, strict=True)
        words = [builder.phi(after, left.type, [(left, ends[0]), (right, ends[1])]) for left, right in pairs]
        lowering.define(result, out_of_words(builder, words))


def _while(lowering: KernelLowering, operation: Operation) -> None:
    builder = lowering.builder
    before, after = operation.regions
    entry, head = builder.block, builder.new_block("while.head")
    body, done = builder.new_block("while.body"), builder.new_block("while.end")
    initial = [lowering.registers(value) for value in operation.operands]
    carried = [[builder.reserve(register.type) for register in registers] for registers in initial]
    builder.branch(head)
    builder.start(head)
    condition, *forwarded = lowering.region(before, carried)
    for result, registers in zip(operation.results, forwarded, strict=True):
        lowering.define(result, registers)
    builder.branch_if(condition[0], body, done)
    builder.start(body)
    following = lowering.region(after, forwarded)
    latch = builder.block
    builder.branch(head)
    for reserved, starts, ends in zip(carried, initial, following, strict=True):
        for value, start, end in zip(reserved, starts, ends, strict=True):
            builder.fill_phi(head, value, [(start, entry), (end, latch)])
    builder.start(done)


def _return(lowering: KernelLowering, operation: Operation) -> None:
    """Nothing: the kernel ends after its last operation."""


RULES: dict[str, Rule] = {"for": _for, "while": _while, "if": _if, "return": _return}
