"""Random Tile IR kernels over the whole op table, for the property tests.

`random_kernel(random)` draws a valid kernel from a `random.Random`; `run_kernel` runs it on fixed inputs and
returns all bytes it wrote.  Every value is kept small in number, not in kind: all dtypes, ranks 0 to 3, nested
control flow, every memory operation.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Sequence

import numpy as np

from tilewright.dtypes import DTYPES, DType, bfloat16, float16, float32, int1, int8, int32, int64
from tilewright.ir import inference
from tilewright.ir.builder import Builder
from tilewright.ir.core import Function, Location, Parameter, Region, SSAValue
from tilewright.ir.interpreter import run
from tilewright.ir.ops import OPS, PREDICATES
from tilewright.ir.types import PointerType, TensorType, scalar

SHAPES = ((), (), (4,), (8,), (3,), (2, 4), (1, 4), (4, 1), (2, 2, 2))
STORED = (float32, int32, float16, int64)
ELEMENTS = 128  # of each buffer
GRID = (2, 1, 2)


class KernelMaker:
    """Builds one kernel; `pool` holds the values in reach."""

    def __init__(
        self, random: random_module.Random, exact: bool = False, rewrites: bool = False, overlapping: bool = False
    ) -> None:
        self.random = random
        self.exact = exact
        parameters = [Parameter("n", divisibility=4)]
        values = [SSAValue(scalar(int32), "n")]
        for dtype in STORED:
            for name, const in (("in", True), ("out", False)):
                facts = (dtype.itemsize, False) if overlapping else (16, const)
                parameters.append(Parameter(f"{name}_{dtype.text}", *facts))
                values.append(SSAValue(scalar(PointerType(dtype, const)), parameters[-1].name))
        self.function = Function(
            "random_kernel", Region(list(values)), parameters, {"num_warps": 4, "note": 'a "b"\n', "scale": 0.5}
        )
        self.pointers = {parameter.name: value for parameter, value in zip(parameters, values, strict=True)}
        self.build = Builder(self.function)
        self.pool: list[SSAValue] = [values[0]]
        self.stored = dict.fromkeys(STORED, 0)
        self.makers: list[Callable[[], None]] = [
            self.elementwise, self.elementwise, self.elementwise, self.compare_select, self.convert, self.shape,
            self.shape, self.load, self.store, self.atomic, self.reduce, self.dot, self.gather, self.branch,
            self.for_loop, self.while_loop, self.facts, self.index, self.indirect_load, self.rows, self.loaded_dot,
            self.pointer_walk, self.map,
        ]  # fmt: skip
        if rewrites:
            self.makers += [self.rewritten] * 8
        self.overlapping = overlapping
        if overlapping:  # then numbers that are read may be large, and float sums depend on their order
            self.makers = [maker for maker in self.makers if maker != self.loaded_dot]
            self.makers += [self.streamed] * 16 + [self.advanced] * 3

    def kernel(self, length: int) -> Function:
        self.steps(length)
        for value in list(self.pool)[-4:]:
            self.store_value(value)
        self.build.create("return")
        return self.function

    def steps(self, length: int, depth: int = 0) -> None:
        self.depth = depth
        for _ in range(length):
            self.build.location = self.place()
            self.random.choice(self.makers)()
            self.depth = depth

    def place(self) -> Location | None:
        location = None
        for _ in range(self.random.randrange(3)):
            file = self.random.choice(["a.py", 'dir with space/"b".py', "c\\d.py"])
            function = self.random.choice(["", "kernel", "<lambda>"])
            location = Location(file, self.random.randrange(1000), self.random.randrange(80), function, location)
        return location

    # Values

    def add(self, values: SSAValue | Sequence[SSAValue]) -> None:
        for value in [values] if isinstance(values, SSAValue) else values:
            if self.random.random() < 0.3:
                value.name = self.random.choice(["x", "acc", "mask", "x_1", "π", "7"])
            self.pool.append(value)

    def number(self, dtype: DType) -> bool | int | float:
        if dtype.is_bool:
            return self.random.random() < 0.5
        if dtype.is_float:
            special = [0.0, -0.0, 1.0, 2.0, 0.5, -3.25, float("inf"), float("-inf"), float("nan"), 0.1, 1e30, 1e-30]
            return self.random.choice(special)
        low = -(2 ** (dtype.bits - 1)) if dtype.is_signed else 0
        return self.random.choice([0, 1, 2, 3, 8, low, low + 2**dtype.bits - 1, 100])

    def dtype(self, kind: str) -> DType:
        return self.random.choice([dtype for dtype in DTYPES if inference.KINDS[kind](scalar(dtype))])

    def type(self, kind: str) -> TensorType:
        return TensorType(self.random.choice(SHAPES), self.dtype(kind))

    def value(self, type_: TensorType) -> SSAValue:
        """A value of this type: one in reach, or a new one."""
        found = [value for value in self.pool if value.type == type_]
        choice = self.random.random()
        if found and choice < 0.7:
            return self.random.choice(found)
        same_shape = [value for value in self.pool if value.type.shape == type_.shape]
        if self.exact and not type_.dtype.is_float:
            same_shape = [value for value in same_shape if not value.type.dtype.is_float]
        if same_shape and choice < 0.85:
            return self.build.emit("cast", self.random.choice(same_shape), dtype=type_.dtype)
        if type_.shape and choice < 0.95:
            return self.build.emit("splat", self.value(scalar(type_.element)), shape=type_.shape)
        return self.build.constant(self.number(type_.dtype), type_.dtype, type_.shape)

    def any_value(self, kind: str = "ordered") -> SSAValue:
        found = [value for value in self.pool if inference.KINDS[kind](value.type)]
        return self.random.choice(found) if found and self.random.random() < 0.8 else self.value(self.type(kind))

    # Operations

    def elementwise(self) -> None:
        opcode = self.random.choice([opcode for opcode in KIND_OF if not self.exact or opcode not in INEXACT])
        operand = self.any_value(KIND_OF[opcode])
        if self.exact and self.leaves_open(opcode, operand.type.dtype):
            return
        count = OPS[opcode].operands[0]
        attributes = {}
        if opcode in ("minimum", "maximum"):
            attributes["propagate_nan"] = self.random.random() < 0.5
        operands = [operand, *(self.value(operand.type) for _ in range(count - 1))]
        self.random.shuffle(operands)
        self.add(self.build.emit(opcode, *operands, **attributes))

    def leaves_open(self, opcode: str, dtype: DType) -> bool:
        """Whether the table does not fix every bit of the result for all operands of this type."""
        if dtype.is_float:
            return opcode in ("minimum", "maximum", "fma") or (opcode == "remainder" and dtype != float32)
        return opcode in ("divide", "remainder", "shift_left", "shift_right")

    def compare_select(self) -> None:
        left = self.any_value()
        right = self.value(left.type)
        condition = self.build.emit("compare", left, right, predicate=self.random.choice(PREDICATES))
        self.add(condition)
        self.add(self.build.emit("select", self.value(condition.type), left, right))

    def convert(self) -> None:
        value, dtype = self.any_value(), self.random.choice(DTYPES)
        source = value.type.dtype
        if self.exact and source.is_float and not (dtype.is_float or dtype.is_bool):
            dtype = source  # a float that does not fit gives an unspecified integer
        narrower = source.is_float and dtype.is_float and dtype.bits < source.bits
        rounding = "rtz" if narrower and self.random.random() < 0.5 else "rtne"
        self.add(self.build.emit("cast", value, dtype=dtype, rounding=rounding))
        whole = self.any_value("integer")
        same = [dtype for dtype in DTYPES if dtype.bits == whole.type.dtype.bits]
        self.add(self.build.emit("bitcast", whole, element=self.random.choice(same)))

    def index(self) -> None:
        self.add(self.build.emit(self.random.choice(["program_id", "num_programs"]), axis=self.random.randrange(3)))
        start = self.random.choice([-8, 0, 1, 16])
        self.add(self.build.emit("arange", start=start, end=start + self.random.choice([3, 4, 8])))

    def shape(self) -> None:
        value, emit = self.any_value(), self.build.emit
        shape = value.type.shape
        self.add(emit("expand_dims", value, axis=self.random.randint(0, len(shape))))
        self.add(emit("reshape", value, shape=self.random.choice([(value.type.size,), (1, *shape), shape])))
        order = list(range(len(shape)))
        self.random.shuffle(order)
        self.add(emit("permute", value, order=tuple(order)))
        stretched = tuple(self.random.choice([1, 3]) if extent == 1 else extent for extent in shape)
        self.add(emit("broadcast", value, shape=stretched))
        joined = emit("join", value, self.value(value.type))
        self.add(joined)
        self.add(self.build.create("split", [joined]).results)
        if shape:
            parts = [value] + [self.value(value.type) for _ in range(self.random.randint(1, 2))]
            self.add(emit("cat", *parts, axis=self.random.randrange(len(shape))))
        self.pool = [value for value in self.pool if value.type.size <= 32]

    def gather(self) -> None:
        source, axis = self.value(TensorType((2, 4), self.dtype("ordered"))), self.random.randrange(2)
        index = self.build.emit("and", self.value(TensorType((2, 4), int32)), self.build.constant(1, int32, (2, 4)))
        self.add(self.build.emit("gather", source, index, axis=axis))

    def lanes(self, pointer: SSAValue, shape: tuple[int, ...], start: int) -> SSAValue:
        """Pointers to different elements of a buffer, from element `start`."""
        size = int(np.prod(shape))
        if not shape:
            return self.build.emit("offset", pointer, self.build.constant(start, int32))
        index = self.build.emit("reshape", self.build.emit("arange", start=start, end=start + size), shape=shape)
        return self.build.emit("offset", self.build.emit("splat", pointer, shape=shape), index)

    def meeting_lanes(self, pointer: SSAValue, shape: tuple[int, ...], start: int) -> SSAValue:
        """Pointers to elements of a buffer, of which some are the same: by remainder, quotient, stride or data."""
        emit = self.build.emit
        lanes = emit("arange", start=0, end=int(np.prod(shape)))
        kind = self.random.choice(["remainder", "divide", "and", "rows"])
        if not shape:
            index = self.limit()
        elif kind == "rows":
            index = self.build.constant(0, int32, shape)
            for axis, extent in enumerate(shape):
                along = emit("arange", start=0, end=extent)
                stride = emit("and", self.limit(), self.build.constant(7 if extent <= 8 else 1))
                stride = self.random.choice([stride, self.build.constant(self.random.choice([0, 1, 2]))])
                along = emit("multiply", along, emit("splat", stride, shape=(extent,)))
                for place in range(len(shape)):
                    along = along if place == axis else emit("expand_dims", along, axis=place)
                index = emit("add", index, emit("broadcast", along, shape=shape))
        elif kind == "and":
            index = emit("and", self.value(TensorType(shape, int32)), self.build.constant(7, int32, shape))
        else:
            divisor = self.build.constant(self.random.choice([2, 3, 4]), int32, lanes.type.shape)
            index = emit("reshape", emit(kind, lanes, divisor), shape=shape)
        base = emit("offset", pointer, self.build.constant(start, int32))
        return emit("offset", emit("splat", base, shape=shape) if shape else base, index)

    def load(self) -> None:
        dtype, shape = self.random.choice(STORED), self.random.choice(SHAPES)
        pointers = self.lanes(self.pointers[f"in_{dtype.text}"], shape, self.random.randrange(32))
        extra: list[SSAValue] = []
        if self.random.random() < 0.6:
            extra.append(self.value(TensorType(shape, int1)))
            if self.random.random() < 0.6:
                extra.append(self.value(TensorType(shape, dtype)))
        cache = self.random.choice(["", "ca", "cg"])
        self.add(self.build.emit("load", pointers, *extra, cache=cache, volatile=self.random.random() < 0.2))

    def indirect_load(self) -> None:
        """At addresses that depend on data."""
        dtype, shape = self.random.choice(STORED), self.random.choice(SHAPES)
        index = self.build.emit("and", self.value(TensorType(shape, int32)), self.build.constant(31, int32, shape))
        pointer = self.pointers[f"in_{dtype.text}"]
        if shape:
            pointer = self.build.emit("splat", pointer, shape=shape)
        self.add(self.build.emit("load", self.build.emit("offset", pointer, index)))

    def limit(self) -> SSAValue:
        """A scalar in 0 … 7 that is known at run time."""
        return self.build.emit("and", self.value(scalar(int32)), self.build.constant(7))

    def block(self, dtype: DType, rows: int, columns: int, masked: bool = True) -> tuple[SSAValue, SSAValue | None]:
        """[rows, columns] of an input read by row and column pointers, and its mask `row < m and column < n`."""
        emit = self.build.emit
        row = emit("expand_dims", emit("arange", start=0, end=rows), axis=1)
        column = emit("expand_dims", emit("arange", start=0, end=columns), axis=0)
        step = self.build.constant(self.random.choice([1, columns]), int32, (rows, 1))
        base = emit("splat", self.pointers[f"in_{dtype.text}"], shape=(rows, 1))
        base = emit("broadcast", emit("offset", base, emit("multiply", row, step)), shape=(rows, columns))
        pointers = emit("offset", base, emit("broadcast", column, shape=(rows, columns)))
        masks = []
        for index in (row, column):
            if masked and self.random.random() < 0.6:
                bound = emit("splat", self.limit(), shape=index.type.shape)
                inside = emit("compare", index, bound, predicate="lt")
                masks.append(emit("broadcast", inside, shape=(rows, columns)))
        if not masks:
            return emit("load", pointers), None
        mask = emit("and", *masks) if len(masks) == 2 else masks[0]
        extra = [mask]
        if self.random.random() < 0.4:
            extra.append(self.build.constant(self.random.choice([0, 7]), dtype, (rows, columns)))
        return emit("load", pointers, *extra), mask

    def rows(self) -> None:
        """A masked block, something elementwise, reduced along an axis: the shape of most kernels."""
        dtype = int32 if self.overlapping else self.random.choice((float32, int32))
        block, mask = self.block(dtype, self.random.choice([2, 4, 8]), self.random.choice([4, 7, 8]))
        double = self.build.emit("add", block, block)
        if mask is not None and self.random.random() < 0.5:
            double = self.build.emit("select", mask, double, self.build.constant(0, dtype, double.type.shape))
        axis, opcode = self.random.randrange(2), self.random.choice(["add", "maximum"])  # sums of small whole numbers
        (total,) = self.build.reduce([double], axis, lambda left, right: [self.build.emit(opcode, *left, *right)])
        whole = self.build.emit("broadcast", self.build.emit("expand_dims", total, axis=axis), shape=double.type.shape)
        self.add([total, self.build.emit("subtract", double, whole)])

    def loaded_dot(self) -> None:
        """Of whole numbers, so that every order of the sum is exact; the operands masked, the result too."""
        rows, depth, columns = (self.random.choice([2, 4, 8]) for _ in range(3))
        dtype = self.random.choice((float32, float16))
        a, _ = self.block(dtype, rows, depth)
        b, _ = self.block(dtype, depth, columns)
        if self.random.random() < 0.3:
            transposed, _ = self.block(dtype, columns, depth)
            b = self.build.emit("permute", transposed, order=(1, 0))
        start = self.build.constant(self.random.choice([0, 1]), float32, (rows, columns))
        product = self.build.emit("dot", a, b, start)
        if self.random.random() < 0.5:
            product = self.build.emit("dot", a, b, product)
        self.add(product)

    def pointer_walk(self) -> None:
        """A loop that carries a block of pointers and a sum."""
        dtype, shape = self.random.choice((float32, int32)), self.random.choice([(4,), (2, 4)])
        start = self.lanes(self.pointers[f"in_{dtype.text}"], shape, 0)
        step = self.build.constant(self.random.choice([1, 4]), int32, shape)

        def body(index: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
            bound = self.build.emit("splat", index, shape=shape)
            mask = self.build.emit("compare", self.build.constant(2, int32, shape), bound, predicate="ge")
            loaded = self.build.emit("load", carried[0], mask)
            return [self.build.emit("offset", carried[0], step), self.build.emit("add", carried[1], loaded)]

        zero, one = self.build.constant(0), self.build.constant(1)
        results = self.build.for_loop(zero, self.limit(), one, [start, self.build.constant(0, dtype, shape)], body)
        self.add(results[1])

    def store(self) -> None:
        self.store_value(self.any_value())

    def store_value(self, value: SSAValue) -> None:
        """To memory that no other operation writes; converted when there is no buffer of its type."""
        dtype = value.type.dtype
        if dtype not in STORED:
            dtype = float32 if dtype.is_float else int32
            value = self.build.emit("cast", value, dtype=dtype)
        start = self.stored[dtype] % 32
        self.stored[dtype] += value.type.size
        mask = [self.value(value.type.with_element(int1))] if self.random.random() < 0.5 else []
        pointers = self.lanes(self.pointers[f"out_{dtype.text}"], value.type.shape, start)
        self.build.create("store", [pointers, value, *mask])

    def atomic(self) -> None:
        dtype, shape = self.random.choice((int32, int64)), self.random.choice(SHAPES)
        pointers = self.lanes(self.pointers[f"out_{dtype.text}"], shape, 32 + self.random.randrange(24))
        kind = self.random.choice(["add", "max", "min", "and", "or", "xor", "exchange"])
        type_ = TensorType(shape, dtype)
        mask = [self.value(type_.with_element(int1))] if self.random.random() < 0.5 else []
        operands = [pointers, self.value(type_), *mask]
        self.add(self.build.create("atomic_rmw", operands, {"kind": kind, "scope": "cta"}).results)
        mask = [self.value(type_.with_element(int1))] if self.random.random() < 0.5 else []
        operands = [pointers, self.value(type_), self.value(type_), *mask]
        self.add(self.build.create("atomic_cas", operands, {"semantics": "relaxed"}).results)

    def rewritten(self) -> None:
        """What lies in an output, loaded, and the same memory or some of it written before later uses."""
        dtype, shape = self.random.choice((float32, int32, int64)), self.random.choice((*SHAPES, (32,), (32,), (3, 8)))
        start, type_ = self.random.randrange(64), TensorType(shape, dtype)
        some = self.meeting_lanes if self.random.random() < 0.4 else self.lanes
        pointers = some(self.pointers[f"out_{dtype.text}"], shape, start)
        loaded = self.build.emit("load", pointers)
        self.add(loaded)
        if self.random.random() < 0.3:
            pointers = self.lanes(self.pointers[f"out_{dtype.text}"], shape, start + self.random.choice([0, 1, 3]))
        one = self.build.constant(1, dtype, shape)
        changed = [self.build.emit("add", loaded, other) for other in (one, self.value(type_))]
        value = self.random.choice([loaded, self.value(type_), *changed])
        if len(set(shape)) < len(shape):
            value = self.build.emit("permute", value, order=tuple(reversed(range(len(shape)))))
        mask = [self.value(type_.with_element(int1))] if self.random.random() < 0.3 else []

        def write() -> None:
            if dtype != float32 and self.random.random() < 0.4:
                kind = self.random.choice(["add", "exchange"])
                self.build.create("atomic_rmw", [pointers, value, *mask], {"kind": kind, "scope": "cta"})
            else:
                self.build.create("store", [pointers, value, *mask])

        if self.random.random() < 0.3:

            def body(index: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
                write()
                return [self.build.emit("add", carried[0], loaded)]

            bounds = [self.build.constant(number) for number in (0, 3, 1)]
            self.add(self.build.for_loop(*bounds, [self.random.choice([loaded, self.value(type_)])], body))
        else:
            write()
        use = self.random.choice(["store", "scan", "turn", "later"])
        if use == "scan" and shape:
            combine = lambda left, right: [self.build.emit("add", *left, *right)]  # noqa: E731
            self.add(self.build.scan([self.exact_term(loaded)], len(shape) - 1, combine))
            self.store_value(self.pool[-1])
        elif use == "turn":
            self.store_value(self.build.emit("permute", loaded, order=tuple(reversed(range(len(shape))))))
        elif use == "store":
            self.store_value(loaded)

    def exact_term(self, block: SSAValue) -> SSAValue:
        """A block whose sums are the same in any order, where the results are to be exact: of floats, one for each that
        is positive."""
        if not self.exact or not block.type.dtype.is_float:
            return block
        zero, one = (self.build.constant(number, block.type.dtype, block.type.shape) for number in (0.0, 1.0))
        return self.build.emit("select", self.build.emit("compare", block, zero, predicate="gt"), one, zero)

    def streamed(self) -> None:
        """An input at some places, changed and written to an output at the same places."""
        source = self.random.choice(STORED)
        target = source if self.random.random() < 0.6 else self.random.choice(STORED)
        if source.is_float and not target.is_float:
            source = target  # a float that does not fit gives an unspecified integer
        shape = self.random.choice([(4,), (32,), (64,), (2, 4), (8, 8), (3, 16)])
        emit, type_ = self.build.emit, TensorType(shape, source)
        bases = [self.pointers[f"in_{source.text}"], self.pointers[f"out_{target.text}"]]
        if self.random.random() < 0.3:
            axis = emit("program_id", axis=self.random.choice([0, 2]))
            start = emit("multiply", axis, self.build.constant(self.random.choice([1, 4, 32])))
            bases = [emit("offset", base, start) for base in bases]
        blocks = [emit("splat", base, shape=shape) for base in bases]
        index = self.places(shape)
        places, targets = (emit("offset", block, index) for block in blocks)
        extra = []
        if self.random.random() < 0.5:
            bound = self.build.constant(self.random.choice([5, 20, 31]))
            bound = emit("splat", self.random.choice([bound, self.limit()]), shape=shape)
            extra = [emit("compare", self.random.choice([index, *self.indices(shape)]), bound, predicate="lt")]
        loaded = emit("load", places, *extra)
        self.add(loaded)
        value = self.random.choice([loaded, emit("add", loaded, self.build.constant(1, source, shape))])
        if self.random.random() < 0.3:
            (total,) = self.build.reduce(
                [value], len(shape) - 1, lambda left, right: [emit("maximum", *left, *right, propagate_nan=True)]
            )
            if total.type.rank:
                total = emit("broadcast", emit("expand_dims", total, axis=len(shape) - 1), shape=shape)
            else:
                total = emit("splat", total, shape=shape)
            value = emit("subtract", value, total)
        if self.random.random() < 0.2:
            value = emit("add", value, emit("load", self.lanes(bases[0], shape, self.random.randrange(8))))
        if target != source:
            value = emit("cast", value, dtype=target)
        if not target.is_float and self.random.random() < 0.25:
            self.build.create("atomic_rmw", [targets, value, *extra], {"kind": "add", "scope": "cta"})
        else:
            self.build.create("store", [targets, value, *extra])
        if self.random.random() < 0.3:
            self.store_value(emit("add", loaded, emit("load", places)))
        elif self.random.random() < 0.3:
            self.store_value(emit("permute", self.value(type_), order=tuple(reversed(range(len(shape))))))

    def advanced(self) -> None:
        """A loop that moves a pointer to read and one to write on, by equal distances or not."""
        dtype, shape = self.random.choice(STORED), self.random.choice([(4,), (32,), (2, 4), (3, 16)])
        emit, index = self.build.emit, self.places(shape)
        steps = [self.random.choice([self.limit(), self.build.constant(4)])] * 2
        if self.random.random() < 0.3:
            steps[1] = self.build.constant(self.random.choice([1, 8]))

        def body(_: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
            source, target = (emit("offset", emit("splat", place, shape=shape), index) for place in carried[:2])
            loaded = emit("load", source)
            value = emit("add", loaded, self.build.constant(1, dtype, shape))
            self.build.create("store", [target, value])
            total = emit("add", carried[2], self.random.choice([loaded, emit("load", source), value]))
            return [*(emit("offset", place, step) for place, step in zip(carried[:2], steps, strict=True)), total]

        starts = [self.pointers[f"{name}_{dtype.text}"] for name in ("in", "out")]
        starts[0] = emit("offset", starts[0], self.build.constant(self.random.choice([0, 1, 8])))
        bounds = [self.build.constant(number) for number in (0, 3, 1)]
        results = self.build.for_loop(*bounds, [*starts, self.build.constant(0, dtype, shape)], body)
        self.add(results[2])

    def indices(self, shape: tuple[int, ...]) -> list[SSAValue]:
        """The index along each axis of a block."""
        found = []
        for axis, extent in enumerate(shape):
            index = self.build.emit("arange", start=0, end=extent)
            for place in range(len(shape)):
                index = index if place == axis else self.build.emit("expand_dims", index, axis=place)
            found.append(self.build.emit("broadcast", index, shape=shape))
        return found

    def places(self, shape: tuple[int, ...]) -> SSAValue:
        """Offsets of a block: consecutive, in rows a distance apart that is known now or at run time, or shared."""
        emit = self.build.emit
        kind = self.random.choice(["plain", "plain", "plain", "strided", "rows", "rows", "shared"])
        lanes = emit("arange", start=0, end=int(np.prod(shape)))
        if kind == "strided":
            stride = self.random.choice([self.build.constant(2), self.limit()])
            lanes = emit("and", emit("multiply", lanes, emit("splat", stride, shape=lanes.type.shape)),
                         self.build.constant(63, int32, lanes.type.shape))  # fmt: skip
            lanes = self.random.choice([lanes, emit("arange", start=0, end=int(np.prod(shape)))])
        if kind == "shared":
            lanes = emit("remainder", lanes, self.build.constant(self.random.choice([4, 16]), int32, lanes.type.shape))
        if kind != "rows" or len(shape) != 2:
            return emit("reshape", lanes, shape=shape)
        row, column = self.indices(shape)
        distance = emit("add", self.limit(), self.build.constant(self.random.choice([0, shape[1]])))
        return emit("add", emit("multiply", row, emit("splat", distance, shape=shape)), column)

    def reduce(self) -> None:
        shape = self.random.choice([shape for shape in SHAPES if shape])
        axis = self.random.randrange(len(shape))
        elements = [self.dtype("integer" if self.exact else "number"), self.random.choice([int32, int64])]
        operands = [self.value(TensorType(shape, element)) for element in elements]
        opcodes = [self.random.choice(["add", "maximum", "minimum", "multiply"]) for _ in operands]

        def combine(left: list[SSAValue], right: list[SSAValue]) -> list[SSAValue]:
            emitted = zip(opcodes, left, right, strict=True)
            return [self.build.emit(opcode, one, other) for opcode, one, other in emitted]

        self.add(self.build.reduce(operands, axis, combine))
        self.add(self.build.scan(operands, axis, combine, reverse=self.random.random() < 0.5))

    def map(self) -> None:
        """Halved until small, with a branch in the loop; the length differs from element to element."""
        shape = self.random.choice(SHAPES)
        operands = [self.value(TensorType(shape, int32)), self.value(TensorType(shape, self.dtype("number")))]
        region = self.build.region([operand.type.with_shape(()) for operand in operands])
        with self.build.at(region):
            number, other = region.arguments
            zero, two, limit = (self.build.constant(value) for value in (0, 2, 40))

            def before(values: list[SSAValue]) -> tuple[SSAValue, list[SSAValue]]:
                magnitude = self.build.emit("absolute", values[0])
                return self.build.emit("compare", magnitude, limit, predicate="gt"), values

            def after(values: list[SSAValue]) -> list[SSAValue]:
                positive = self.build.emit("compare", values[0], zero, predicate="gt")
                half = self.build.emit("divide", values[0], two)
                return self.build.if_branch(
                    positive, lambda: [half, values[1]], lambda: [self.build.emit("negate", half), other]
                )

            # The least number has no absolute value that is positive.
            start = self.build.emit("divide", number, two)
            changed = self.build.emit("negate", other)
            self.build.create("yield", self.build.while_loop([start, changed], before, after))
        self.add(self.build.create("map", operands, None, [region]).results)

    def dot(self) -> None:
        a, b, c = self.random.choice([(float16, float16, float32), (bfloat16, bfloat16, float32),
                                      (float32, float32, float32), (int8, int8, int32)])  # fmt: skip
        if self.exact:
            a, b, c = int8, int8, int32  # the order of a float sum is open
        batch = self.random.choice([(), (2,)])
        types = [TensorType((*batch, *shape), e) for shape, e in (((2, 4), a), ((4, 2), b), ((2, 2), c))]
        self.add(self.build.emit("dot", *map(self.value, types), input_precision="tf32"))

    def facts(self) -> None:
        always = self.build.constant(True, int1, self.random.choice(SHAPES))
        self.build.create("assume", [always])
        self.build.create("assert", [always], {"message": 'line\n"quoted" ü'})
        self.build.create("barrier")
        value = self.any_value("integer")
        self.add(self.build.emit("hint", value, divisibility=(1,) * max(1, value.type.rank)))
        if self.random.random() < 0.15:
            self.build.create("print", [value], {"prefix": "value: "})

    # Control flow

    def nested(self, yields: Sequence[TensorType], arguments: Sequence[SSAValue] = ()) -> list[SSAValue]:
        """A few operations and the values that a body yields; what it made goes out of reach."""
        outside, depth = list(self.pool), self.depth
        self.pool += arguments
        if depth < 2:
            self.steps(self.random.randint(0, 3), depth + 1)
        values = [self.value(type_) for type_ in yields]
        self.pool, self.depth = outside, depth
        return values

    def results(self) -> list[TensorType]:
        return [self.type("ordered") for _ in range(self.random.randint(0, 3))]

    def branch(self) -> None:
        types = self.results()
        condition = self.value(scalar(int1))
        self.add(self.build.if_branch(condition, lambda: self.nested(types), lambda: self.nested(types)))

    def for_loop(self) -> None:
        dtype = self.random.choice([int32, int64, int8])
        lower, upper, step = (self.random.choice(numbers) for numbers in ([-3, 0], [-5, 1, 4], [1, 2, 5]))
        bounds = [self.build.constant(number, dtype) for number in (lower, upper, step)]
        if dtype == int32 and self.random.random() < 0.5:
            bounds[1] = self.limit()
        initial = [self.value(type_) for type_ in self.results()]
        types = [value.type for value in initial]
        attributes = {"num_stages": self.random.choice([0, 3])}
        body = lambda index, carried: self.nested(types, [index, *carried])  # noqa: E731
        self.add(self.build.for_loop(*bounds, initial, body, attributes))

    def while_loop(self) -> None:
        """Counts down from a small number, with other values beside the counter."""
        counter = scalar(int32)
        first = self.build.constant(self.random.randint(0, 3), int32)
        initial = [first, *(self.value(type_) for type_ in self.results())]
        forwarded = [counter, *self.results()]

        def before(values: list[SSAValue]) -> tuple[SSAValue, list[SSAValue]]:
            go_on = self.build.emit("compare", values[0], self.build.constant(0), predicate="gt")
            return go_on, [values[0], *self.nested(forwarded[1:], values)]

        def after(values: list[SSAValue]) -> list[SSAValue]:
            rest = self.nested([value.type for value in initial[1:]], values)
            return [self.build.emit("subtract", values[0], self.build.constant(1)), *rest]

        self.add(self.build.while_loop(initial, before, after))


# Operations whose results targets may approximate.
INEXACT = ("exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "rsqrt", "power")


def _kinds() -> dict[str, str]:
    """Opcode -> operand kind of the elementwise operations."""
    kinds = {}
    for info in OPS.values():
        if info.section in ("arithmetic", "bits", "math"):
            assert info.infer.__closure__ is not None
            kinds[info.opcode] = info.infer.__closure__[0].cell_contents
    return kinds


KIND_OF = _kinds()


def random_kernel(
    random: random_module.Random,
    length: int = 12,
    exact: bool = False,
    rewrites: bool = False,
    overlapping: bool = False,
) -> Function:
    """A valid kernel of about `length` top-level steps; if `exact`, one whose every result the table fixes.

    With `rewrites`, it loads what it writes too, so that its instances must run one after the other; `overlapping` if
    its arrays may share memory.
    """
    return KernelMaker(random, exact, rewrites, overlapping).kernel(length)


def arguments_of(seed: int = 0) -> list[object]:
    """The arguments of a random kernel: a number, then input and output buffers."""
    generator = np.random.default_rng(seed)
    arguments: list[object] = [12]
    for dtype in STORED:
        arguments += [generator.integers(-100, 100, ELEMENTS).astype(dtype.numpy), np.zeros(ELEMENTS, dtype.numpy)]
    return arguments


def overlapping_arguments(random: random_module.Random) -> tuple[list[object], list[np.ndarray]]:
    """Arguments whose arrays share memory at random distances, and the arrays that hold all of it.

    Arrays of floats share memory with those of their own type only: the bits of a NaN are not specified.
    """
    generator = np.random.default_rng(random.getrandbits(32))
    whole = generator.integers(-100, 100, 4 * ELEMENTS)
    memories = [whole]
    arguments: list[object] = [12]
    for dtype in STORED:
        if dtype.is_float:
            memories.append(generator.integers(-100, 100, 3 * ELEMENTS).astype(dtype.numpy))
        memory = memories[-1] if dtype.is_float else whole.view(dtype.numpy)
        for _ in range(2):
            start = random.choice([0, 0, 1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 63, 64, 130])
            arguments.append(memory[start : start + ELEMENTS])
    return arguments, memories


def run_kernel(function: Function, seed: int = 0) -> dict[str, np.ndarray]:
    """What the kernel left in its output buffers, NaNs made equal."""
    arguments = arguments_of(seed)
    run(function, arguments, GRID)
    return outputs_of(arguments)


def outputs_of(arguments: Sequence[object]) -> dict[str, np.ndarray]:
    """The output buffers by element type, NaNs made equal."""
    outputs = {dtype.text: np.asarray(output) for dtype, output in zip(STORED, arguments[2::2], strict=True)}
    return {name: np.where(np.isnan(output), np.nan, output) for name, output in outputs.items()}
