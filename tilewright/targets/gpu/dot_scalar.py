"""Products by multiply-add: both operands are in shared memory, and every thread loops over k for its elements.

For types without a matrix instruction, for f32 whose inputs must not be rounded, and for blocks that are smaller than
an instruction or whose extents are no powers of two.  Operands that a loop has copied to shared memory are read from
there as the product comes to them; others are stored to scratch first.

A sum of float32 errs by about the square root of the number of terms that are added one after the other: in a loop over
blocks of the depth, of the whole depth.  So each block is summed by itself and then added to the sums before it, which
leaves the square root of the length of a block, and of the number of blocks.

A multiply-add that reads three registers takes the register file two clocks: one operand should be that of the step
before, which the unit still holds. So rows and columns are walked in an order in which neighbours share one
(`_serpentine`). Vectors along the depth fill the registers of a thread with many sums; the assembler then loads rows
late and in its own order, for which pairs of rows over the steps of a vector do best (`_pairs`). On an H200, of
1024 x 8192 x 8192 in tiles of 128 x 128 by 4 warps, cuBLAS / ours row by row and so: both operands along the sums 0.93
and 0.98, one of them 0.90 and 0.95, both along the depth 0.89 and 0.91.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ir.core import Operation, SSAValue
from tilewright.targets.gpu.dot_scalar_layout import in_registers
from tilewright.targets.gpu.exchange import from_bits, load_shared
from tilewright.targets.gpu.layouts import Assignment
from tilewright.targets.gpu.lowering import KernelLowering, PartRead, Rule
from tilewright.targets.gpu.relocate import area_bytes, position, row_shape, store_areas
from tilewright.targets.gpu.transfer import element_bits
from tilewright.targets.llvm.builder import LLVMValue

_UNROLLED_LOOP = 4
_LONGEST = 64  # terms that are added one after the other
# Multiply-adds of a thread that are written one after the other (the cache of instructions is small), and those of many
# sums whose operands lie along them.
_MOST_UNROLLED_STEPS, _MOST_STEPS_ALONG = 1024, 2048
_SHORTEST = 8  # steps of a part of the depth
_MOST_TWICE = 64  # sums of a thread that find room in its registers twice: before a block, and of the block
_GAP_BYTES = 16  # after a row in scratch, so that rows below each other begin in different banks
_LOADED_DEPTH = 4  # steps of the depth that a thread loads at once
Place = tuple[int, int]
Order = Iterator[tuple[int, Place]]  # step of the depth, and the row and column of the sum
Step = Callable[[LLVMValue, Sequence[LLVMValue]], list[LLVMValue]]


def accumulation_type(dtype: DType) -> DType:
    """What sums are taken in."""
    return dtypes.float32 if dtype.is_float and dtype.bits < 32 else dtype


def scalar_dot(lowering: KernelLowering, operation: Operation) -> None:
    """The rule of a product by multiply-add."""
    product = _ScalarDot(lowering, operation)
    if _in_registers(lowering.assignment, operation):
        product.from_registers()
    else:
        product.from_scratch()


def scalar_dot_bytes(assignment: Assignment, operation: Operation) -> int:
    """Scratch for both operands, where no loop has copied them."""
    if _in_registers(assignment, operation):
        return 0
    return sum(area_bytes(value, _gap(value)) for value in operation.operands[:2])


def _in_registers(assignment: Assignment, operation: Operation) -> bool:
    a, b = operation.operands[:2]
    return in_registers(assignment.layouts[a], assignment.layouts[b], assignment.layouts[operation.result])


def _gap(value: SSAValue) -> int:
    """Elements that are left out after each row of an operand in scratch."""
    return _GAP_BYTES * 8 // element_bits(value)


class _ScalarDot:
    """One product; `apart`: its sums are taken by themselves before they are added to those of the accumulator."""

    def __init__(self, lowering: KernelLowering, operation: Operation) -> None:
        self.lowering = lowering
        self.operation = operation
        self.a, self.b, self.accumulator = operation.operands
        self.dtype = accumulation_type(self.accumulator.type.dtype)
        self.depth = self.a.type.shape[-1]
        own = self.accumulator.type.dtype
        self.sums = list(lowering.converter.cast_all(lowering.registers(self.accumulator), own, self.dtype))
        self.apart = self.dtype == dtypes.float32 and not self.crowded and self.depth > 1

    def define(self, sums: Sequence[LLVMValue]) -> None:
        result = self.operation.result
        self.lowering.define(result, self.lowering.converter.cast_all(sums, self.dtype, result.type.dtype))

    def added(self, block: Sequence[LLVMValue], sums: Sequence[LLVMValue]) -> list[LLVMValue]:
        builder = self.lowering.builder
        return [builder.binary("fadd", total, part) for total, part in zip(sums, block, strict=True)]

    # Operands in registers -----------------------------------------------------------------------

    def from_registers(self) -> None:
        """A loop over parts of the depth, whose steps are written one after the other.

        Registers of operands are loaded when the first step asks for them.
        """
        reads = [self.lowering.reads.get(value) for value in (self.a, self.b)]
        length, often = self.depth, self.apart and self.depth > _LONGEST
        while (
            None not in reads
            and length > _SHORTEST
            and (length * len(self.sums) > self.most_steps() or (often and length > _LONGEST))
        ):
            length //= 2
        i32 = self.lowering.i32
        if length == self.depth:
            self.read(reads, length, i32(0))
            block = self.steps(length, None if self.apart else self.sums)
            self.define(self.added(block, self.sums) if self.apart else block)
            return
        builder = self.lowering.builder
        fresh = self.apart and not often  # one sum for all parts
        start = [builder.constant(total.type, 0.0) for total in self.sums] if fresh else self.sums
        with builder.loop(i32(0), i32(self.depth // length), 1, start, hint="parts") as loop:
            self.read(reads, length, loop.index)
            sums = loop.values
            loop.next(self.added(self.steps(length, None), sums) if often else self.steps(length, sums))
        self.define(self.added(loop.results, self.sums) if fresh else loop.results)

    def read(self, reads: Sequence[PartRead | None], length: int, part: LLVMValue) -> None:
        """Define those operands that are in shared memory, as a part of the depth."""
        for number, read in enumerate(reads):
            if read is not None:
                read(1 - number, length, part)

    def steps(self, length: int, sums: Sequence[LLVMValue] | None) -> Sequence[LLVMValue]:
        """Steps along the depth, as many as operands are defined for; None for sums that have no terms yet."""
        lowering = self.lowering
        places = list(self.places_of(self.operation.result))
        of_a, of_b = self.places_of(self.a), self.places_of(self.b)
        left, right = lowering.registers(self.a), lowering.registers(self.b)
        rows: dict[Place, LLVMValue] = {}
        columns: dict[Place, LLVMValue] = {}

        def of_row(k: int, row: int) -> LLVMValue:
            if (row, k) not in rows:
                rows[row, k] = self.operand(self.a, left[of_a[row, k]])
            return rows[row, k]

        def of_column(k: int, column: int) -> LLVMValue:
            if (k, column) not in columns:
                columns[k, column] = self.operand(self.b, right[of_b[k, column]])
            return columns[k, column]

        found = dict(zip(places, sums, strict=True)) if sums is not None else {}
        whole = self.deep == 2 and not self.crowded  # loads between the multiply-adds would make registers spill
        own_rows, own_columns = (list(dict.fromkeys(place[axis] for place in places)) for axis in (0, 1))
        for k, (row, column) in self.order(places, length):
            if whole and (places[-1][0], k) not in rows:  # nor before they are needed: the assembler keeps the order
                for each in own_rows:
                    of_row(k, each)
                for each in own_columns:
                    of_column(k, each)
            total = [found[row, column]] if (row, column) in found else None
            (found[row, column],) = self.step([(of_row(k, row), of_column(k, column))], total)
        return [found[place] for place in places]

    def most_steps(self) -> int:
        """Multiply-adds that may be written one after the other."""
        return _MOST_STEPS_ALONG if self.crowded and not self.deep else _MOST_UNROLLED_STEPS

    @property
    def crowded(self) -> bool:
        """Whether sums leave few registers for anything else."""
        return len(self.sums) > _MOST_TWICE

    @property
    def deep(self) -> int:
        """How many of the operands have the thread's neighbours along the depth."""
        first = [self.lowering.layout(value).vectors("register")[:1] for value in (self.a, self.b)]
        return sum(bool(vectors and vectors[0][axis]) for vectors, axis in zip(first, (1, 0), strict=True))

    def order(self, places: Sequence[Place], length: int) -> Order:
        """The multiply-adds of a number of steps: each sum takes its steps in order."""
        rows, columns = (list(dict.fromkeys(place[axis] for place in places)) for axis in (0, 1))
        if self.deep and self.crowded:
            return _pairs(rows, columns, length)
        return _serpentine(rows, columns, length) if self.deep < 2 else _by_rows(rows, columns, length)

    def places_of(self, value: SSAValue) -> dict[Place, int]:
        """Positions of registers by the coordinates of their element in thread 0."""
        layout = self.lowering.layout(value)
        found: dict[Place, int] = {}
        for place, number in enumerate(self.lowering.numbers(value)):
            row, column = layout.unpack(layout.element(register=number))
            found[row, column] = place
        return found

    def operand(self, value: SSAValue, register: LLVMValue) -> LLVMValue:
        return self.lowering.converter.cast(register, value.type.dtype, self.dtype)

    # Operands in scratch -------------------------------------------------------------------------

    def from_scratch(self) -> None:
        """A loop over the depth, some steps at once."""
        lowering = self.lowering
        result = self.operation.result
        starts = store_areas(lowering, self.operation, [self.a, self.b], [_gap(self.a), _gap(self.b)])
        layout, numbers = lowering.layout(result), lowering.numbers(result)
        rank = result.type.rank
        places = [[position(lowering, layout, axis, number) for axis in range(rank)] for number in numbers]
        rows = {(*place[:-1],): self.row_start(starts[0], place) for place in places}
        columns = {(*place[:-2], place[-1]): self.column_start(starts[1], place) for place in places}

        def step(k: LLVMValue, sums: Sequence[LLVMValue]) -> list[LLVMValue]:
            left = {key: self.element(self.a, start, k, 1) for key, start in rows.items()}
            right = {key: self.element(self.b, start, k, self.row_length(self.b)) for key, start in columns.items()}
            return self.step([(left[(*place[:-1],)], right[(*place[:-2], place[-1])]) for place in places], sums)

        if not self.apart:
            self.define(self.walk(step, lowering.i32(0), self.depth, self.sums))
            return
        zeros = [lowering.builder.constant(total.type, 0.0) for total in self.sums]
        length = _LONGEST if self.depth % _LONGEST == 0 else self.depth
        if length == self.depth:
            self.define(self.added(self.walk(step, lowering.i32(0), length, zeros), self.sums))
            return
        with lowering.builder.loop(lowering.i32(0), lowering.i32(self.depth), length, self.sums, hint="blocks") as loop:
            loop.next(self.added(self.walk(step, loop.index, length, zeros), loop.values))
        self.define(loop.results)

    def walk(self, step: Step, start: LLVMValue, length: int, sums: Sequence[LLVMValue]) -> list[LLVMValue]:
        """`length` steps along the depth, the first at `start`."""
        lowering = self.lowering
        count = _UNROLLED_LOOP if length % _UNROLLED_LOOP == 0 else 1
        with lowering.builder.loop(lowering.i32(0), lowering.i32(length), count, sums, hint="dot") as loop:
            following = list(loop.values)
            first = lowering.builder.add(start, loop.index)
            for part in range(count):
                following = step(lowering.builder.add(first, part), following)
            loop.next(following)
        return list(loop.results)

    def row_length(self, value: SSAValue) -> int:
        """Elements from one row of an operand to the next."""
        return row_shape(value, _gap(value))[-1]

    def batch(self, value: SSAValue, place: list[LLVMValue]) -> LLVMValue:
        """The number of the first element of a matrix of the batch."""
        builder, total = self.lowering.builder, self.lowering.i32(0)
        shape = row_shape(value, _gap(value))
        for coordinate, extent in zip(place[:-2], shape[:-2], strict=True):
            total = builder.add(builder.multiply(total, self.lowering.i32(extent)), coordinate)
        return builder.multiply(total, self.lowering.i32(shape[-2] * shape[-1]))

    def row_start(self, start: LLVMValue, place: list[LLVMValue]) -> LLVMValue:
        """The address of a row of A."""
        builder, lowering = self.lowering.builder, self.lowering
        below = builder.multiply(place[-2], lowering.i32(self.row_length(self.a)))
        return self.address(start, self.a, builder.add(self.batch(self.a, place), below))

    def column_start(self, start: LLVMValue, place: list[LLVMValue]) -> LLVMValue:
        """The address of the first element of a column of B."""
        return self.address(start, self.b, self.lowering.builder.add(self.batch(self.b, place), place[-1]))

    def address(self, start: LLVMValue, value: SSAValue, number: LLVMValue) -> LLVMValue:
        builder = self.lowering.builder
        return builder.add(start, builder.multiply(number, self.lowering.i32(element_bits(value) // 8)))

    def element(self, value: SSAValue, start: LLVMValue, k: LLVMValue, stride: int) -> LLVMValue:
        """An element of an operand, in the type of the sum."""
        lowering, builder = self.lowering, self.lowering.builder
        bits = element_bits(value)
        distance = builder.multiply(k, lowering.i32(stride * bits // 8))
        pointer = lowering.shared_pointer(builder.add(start, distance))
        (loaded,) = load_shared(lowering, pointer, f"i{bits}", 1)
        return self.operand(value, from_bits(lowering, loaded, lowering.registers(value)[0].type))

    # Arithmetic ----------------------------------------------------------------------------------

    def step(self, factors: Sequence[tuple[LLVMValue, LLVMValue]], sums: Sequence[LLVMValue] | None) -> list[LLVMValue]:
        """One term more for every sum; None for sums that have none yet."""
        builder = self.lowering.builder
        if sums is None:
            return [builder.binary("fmul", left, right) for left, right in factors]
        return [self.multiply_add(*pair, total) for pair, total in zip(factors, sums, strict=True)]

    def multiply_add(self, left: LLVMValue, right: LLVMValue, total: LLVMValue) -> LLVMValue:
        builder = self.lowering.builder
        if self.dtype.is_float:
            return builder.intrinsic("fma", [left, right, total])
        return builder.add(total, builder.binary("mul", left, right))


def _by_rows(rows: Sequence[int], columns: Sequence[int], length: int) -> Order:
    """Step by step, row by row."""
    return ((k, (row, column)) for k in range(length) for row in rows for column in columns)


def _serpentine(rows: Sequence[int], columns: Sequence[int], length: int) -> Order:
    """Step by step, each row in the direction in which the one before it ended."""
    for k in range(length):
        for number, row in enumerate(rows):
            for column in columns if number % 2 == 0 else reversed(columns):
                yield k, (row, column)


def _pairs(rows: Sequence[int], columns: Sequence[int], length: int) -> Order:
    """Two rows at a time, over the steps of a vector, up and down along the columns."""
    for first in range(0, length, _LOADED_DEPTH):
        for pair in (rows[start : start + 2] for start in range(0, len(rows), 2)):
            for k in range(first, min(length, first + _LOADED_DEPTH)):
                for number, column in enumerate(columns):
                    for row in pair if number % 2 == 0 else reversed(pair):
                        yield k, (row, column)


RULES: dict[str, Rule] = {"dot": scalar_dot}
