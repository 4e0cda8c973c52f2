"""Lowers one kernel to LLVM text: walks its schedule and emits each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilewright import dtypes
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.aliasing import Hazard
from tilewright.targets.cpu.assemble import function_attributes
from tilewright.targets.cpu.attributes import integer
from tilewright.targets.cpu.dot import accumulator_extents
from tilewright.targets.cpu.dot_operands import DotEmitter, dot_scratch, dot_shape
from tilewright.targets.cpu.dot_places import shape_source
from tilewright.targets.cpu.effects import EffectEmitter
from tilewright.targets.cpu.elementwise import Elementwise
from tilewright.targets.cpu.evaluate import Evaluator
from tilewright.targets.cpu.failures import emit_stop
from tilewright.targets.cpu.nests import NestEmitter
from tilewright.targets.cpu.next_rows import NextRows
from tilewright.targets.cpu.placement import Placement, remark_at
from tilewright.targets.cpu.report import KernelReport
from tilewright.targets.cpu.scan import ScanEmitter
from tilewright.targets.cpu.schedule import KernelScheduler, ScheduleStep, TargetStorage
from tilewright.targets.cpu.signal_checks import AskEmitter, loops_without_end
from tilewright.targets.cpu.storage import Storage
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.cpu.waiting import WaitEmitter, watches_waits
from tilewright.targets.llvm.builder import Block, LLVMBuilder, LLVMValue, Module
from tilewright.targets.llvm.conversions import Converter, register_type

_GRID = ("x", "y", "z")


class _Storage(TargetStorage):
    """Buffers with the padding that products want."""

    def __init__(self, placement: Placement, target: CPUTarget) -> None:
        self.placement = placement
        self.target = target

    def block(self, value: SSAValue) -> Storage:
        if self._is_turned(value):
            return Storage.turned(value.type.element, value.type.shape)
        extents, shape = self._product_extents(value), value.type.shape
        if extents is None and max(shape) > shape[-1] == 1 and not self._is_operand(value):
            return Storage.standing(value.type.element, shape)
        rows, stride = extents if extents is not None else (0, 0)
        return Storage.for_block(value.type.element, shape, rows, stride)

    def _is_operand(self, value: SSAValue) -> bool:
        """Whether products may read a block."""
        return any(
            operation.opcode == "dot" and value in (shape_source(self.placement, each) for each in operation.operands)
            for operation in self.placement.program.operations
        )

    def _product_extents(self, value: SSAValue) -> tuple[int, int] | None:
        """Padded rows and row stride of a block that is, or may share the buffer of, an accumulator."""
        if value.type.rank < 2 or value.type.is_pointer or value.type.element not in _ACCUMULATORS:
            return None
        for operation in self.placement.program.operations:
            if operation.opcode == "dot" and operation.result.type == value.type:
                return accumulator_extents(self.target, dot_shape(operation), value.type.dtype)
        return None

    def _is_turned(self, value: SSAValue) -> bool:
        """Whether a block is the left operand of products alone, and its columns are what is read side by side."""
        load, cut_runs = value.definition, self.placement.cut_runs
        if load is None or load.opcode != "load" or value.type.rank != 2 or min(value.type.shape) < cut_runs.lanes:
            return False
        users = [each for each in self.placement.program.operations if value in each.operands]
        products = all(each.opcode == "dot" and value not in each.operands[1:] for each in users)
        return products and cut_runs.rows_lie_together(load.operands[0], self.placement.analysis)

    def dot_scratch(self, operation: Operation) -> int:
        return dot_scratch(self.placement, self.target, operation)


_ACCUMULATORS = (dtypes.float32, dtypes.float64, dtypes.int32)


class CPUKernelLowering:
    """The lowering of one function into `module`; `run` returns the scratch bytes it needs.

    `symbol` names the function of one program instance.  `fuse` lets a product and a sum become one instruction,
    which rounds once; `careful` is told in `Aliasing`.  `asks` lets loops without a known end ask for signals.
    """

    def __init__(
        self,
        function: Function,
        target: CPUTarget,
        module: Module,
        symbol: str,
        fuse: bool = True,
        careful: bool = False,
        asks: bool = True,
    ) -> None:
        self.function = function
        self.fuse = fuse
        self.target = target
        self.module = module
        self.symbol = symbol
        self.analysis = AffineAnalysis(function)
        self.placement = Placement(function, self.analysis, target, careful)
        self.scheduler = KernelScheduler(self.placement, _Storage(self.placement, target))
        self.remarks = self.placement.remarks
        self.report = KernelReport(function, self.analysis)
        self.streams = self._has_streams()
        self.asserts = any(operation.opcode == "assert" for operation in function.walk())
        self.waits = watches_waits(function)
        self.asks = asks and loops_without_end(function)

    @property
    def records(self) -> bool:
        """Whether the launcher gives the address of a record."""
        return self.asserts or self.asks

    def _has_streams(self) -> bool:
        """Whether stores go around the caches: where x86 has instructions for it, and nothing in the kernel orders its
        stores before what another instance does (such stores are in no order)."""
        operations = list(self.function.walk())
        streams = any(operation.opcode == "store" and operation.attributes["cache"] == "cs" for operation in operations)
        ordered = any(
            operation.opcode.startswith("atomic") or operation.opcode == "barrier" for operation in operations
        )
        return streams and not ordered and self.target.is_x86

    def run(self) -> int:
        """Emit the instance function."""
        steps = self.scheduler.function()
        scratch_bytes = self.scheduler.plan.assign()
        self.report.buffers(self.scheduler.storage, self.placement.remarks)
        self._emit_instance(steps)
        self.report.hazards(self.hazards)
        return scratch_bytes

    @property
    def hazards(self) -> list[Hazard]:
        """What the instance function counts on that a launch must check; known after `run`."""
        return self.placement.aliasing.hazards

    # -- The function -----------------------------------------------------------------------------

    def _parameters(self) -> list[tuple[str, str, str]]:
        parameters: list[tuple[str, str, str]] = []
        for number, (argument, parameter) in enumerate(
            zip(self.function.region.arguments, self.function.parameters, strict=True)
        ):
            attributes = []
            if argument.type.is_pointer:
                attributes += ["noalias"] if parameter.alias_free else []
                attributes += [f"align {min(parameter.divisibility, 4096)}"] if parameter.divisibility > 1 else []
            parameters.append((register_type(argument.type.element), f"p{number}", " ".join(attributes)))
        parameters.append(("ptr", "scratch", "noalias align 64"))
        parameters += [("i32", f"{kind}_{axis}", "") for kind in ("program", "count") for axis in _GRID]
        return [*parameters, ("ptr", "record", "")] if self.records else parameters

    def _emit_instance(self, steps: Sequence[ScheduleStep]) -> None:
        attributes = function_attributes(self.target)
        builder = LLVMBuilder(
            self.module,
            self.symbol,
            "void",
            self._parameters(),
            linkage="internal",
            attributes=attributes,
        )
        builder.float_flags = "contract" if self.fuse else ""
        count = len(self.function.region.arguments)
        scratch, *rest = builder.arguments[count:]
        grid, self.record = rest[:6], rest[6] if self.records else None
        self.builder = builder
        self.scalars: dict[SSAValue, LLVMValue] = dict(
            zip(self.function.region.arguments, builder.arguments[:count], strict=True)
        )
        self.grid = grid
        converter = Converter(builder)
        elementwise = Elementwise(builder, converter, self.target.vector_bits // 32, self.target.fused_multiply_add)
        elementwise.on_lanes = self.report.by_lane
        storage = self.scheduler.storage
        self.evaluator = Evaluator(builder, elementwise, self.analysis, self.scalars, storage, scratch)
        self.evaluator.on_access = self._note_access
        self.evaluator.streams = self.streams
        self.evaluator.table_lanes = self.target.table_lanes
        self.evaluator.sums_pairs = self.target.group_of_sums(dtypes.bfloat16) == 2
        self.evaluator.on_pairs = self.report.pairs
        self.evaluator.rounds_to_bytes = self.target.rounds_to_bytes
        self.nests = NestEmitter(builder, self.target, self.placement, self.scheduler, self.evaluator, self.report)
        self.dots = DotEmitter(builder, self.target, self.placement, self.evaluator, storage, self.report)
        self.waiting = None
        if self.waits:
            assert self.record is not None
            self.waiting = WaitEmitter(builder, self.record, grid[:3])
        self.asking = None
        if self.asks:
            assert self.record is not None
            self.asking = AskEmitter(builder, self.record)
        self.effects = EffectEmitter(self.evaluator, storage, grid[:3], self.record, self.waiting, self.asking)
        self.scans = ScanEmitter(self.evaluator, storage, self.target, self.placement)
        self._steps(steps)
        builder.finish()

    # -- Steps ------------------------------------------------------------------------------------

    def _steps(self, steps: Sequence[ScheduleStep]) -> None:
        for step in steps:
            if self.waiting is not None and step.writes:
                self.waiting.note(self.builder.constant("i1", True))
            if step.kind == "group":
                self.nests.group(step.roots)
            elif step.kind == "copy":
                (root,) = step.roots
                assert step.scratch is not None
                self.nests.copy(root, step.scratch)
            elif step.kind == "control":
                assert step.operation is not None
                getattr(self, f"_{step.operation.opcode}")(step.operation, step.bodies)
            elif step.kind == "scalar":
                assert step.operation is not None
                self._scalar(step.operation)
            else:
                self._whole(step)

    def _scalar(self, operation: Operation) -> None:
        if operation.opcode in ("yield", "condition", "return"):
            return
        if operation.opcode in ("program_id", "num_programs"):
            first = 0 if operation.opcode == "program_id" else 3
            self.scalars[operation.result] = self.grid[first + integer(operation, "axis")]
            return
        self.evaluator.reset()
        for result in operation.results:
            self.scalars[result] = self.evaluator.compute_scalar(result)

    def _whole(self, step: ScheduleStep) -> None:
        operation = step.operation
        assert operation is not None
        if operation.opcode == "dot":
            assert step.scratch is not None
            self.dots.emit(operation, step.scratch)
        elif operation.opcode == "scan":
            how = "in vectors" if self.scans.is_vectorised(operation) else "one combination after the other"
            self.report.note(operation, f"scan: {how} along axis {integer(operation, 'axis')}")
            self.scans.emit(operation)
        else:
            if operation.operands and operation.operands[0].type.rank:
                size = operation.operands[0].type.size
                self.report.note(operation, f"{operation.opcode}: element by element, {size} times, without vectors")
            self.effects.emit(operation)

    # -- Control flow -----------------------------------------------------------------------------

    def _for(self, operation: Operation, bodies: Sequence[Sequence[ScheduleStep]]) -> None:
        builder = self.builder
        region = operation.regions[0]
        kind = operation.operands[0].type.dtype
        # Counted in 64 bits where the type is unsigned, or so narrow that the last step may leave it.
        wide = kind.bits < 32 or (not kind.is_signed and kind.bits < 64)
        bounds = [self.scalars[value] for value in operation.operands[:3]]
        if wide:
            bounds = [self.evaluator.elementwise.converter.cast(value, kind, dtypes.int64) for value in bounds]
        lower, upper, step = bounds
        places = [index for index, value in enumerate(operation.results) if value.type.is_scalar]
        carried = [self.scalars[operation.operands[3 + place]] for place in places]
        with builder.loop(lower, upper, step, carried, hint="for") as loop:
            index = builder.cast("trunc", loop.index, register_type(kind)) if wide else loop.index
            self.scalars[region.arguments[0]] = index
            for place, value in zip(places, loop.values, strict=True):
                self.scalars[region.arguments[1 + place]] = value
            with self._fetching_next_rows(operation, step):
                self._steps(bodies[0])
            yielded = region.terminator.operands
            loop.next([self.scalars[yielded[place]] for place in places])
        for place, value in zip(places, loop.results, strict=True):
            self.scalars[operation.results[place]] = value

    @contextmanager
    def _fetching_next_rows(self, loop: Operation, step: LLVMValue) -> Iterator[None]:
        """A loop's body, which fetches what the next pass reads; rows in steps of one mostly follow each other."""
        kind = loop.operands[0].type.dtype
        if not kind.is_signed or kind.bits < 32 or step.constant == 1:
            yield
            return
        wide = self.evaluator.elementwise.converter.cast(step, kind, dtypes.int64)
        rows, before = NextRows(loop, wide, self.placement.program, self.evaluator), self.evaluator.next_row
        self.evaluator.next_row, on_nest = rows.distance, self.nests.on_nest
        self.nests.on_nest = rows.enter_nest
        yield
        self.evaluator.next_row, self.nests.on_nest = before, on_nest

    def _if(self, operation: Operation, bodies: Sequence[Sequence[ScheduleStep]]) -> None:
        builder = self.builder
        blocks = [builder.new_block("if.then"), builder.new_block("if.else")]
        after = builder.new_block("if.end")
        builder.branch_if(self.scalars[operation.operands[0]], blocks[0], blocks[1])
        places = [index for index, value in enumerate(operation.results) if value.type.is_scalar]
        incoming: list[list[tuple[LLVMValue, Block]]] = [[] for _ in places]
        for block, body, region in zip(blocks, bodies, operation.regions, strict=True):
            builder.start(block)
            self._steps(body)
            for values, place in zip(incoming, places, strict=True):
                values.append((self.scalars[region.terminator.operands[place]], builder.block))
            builder.branch(after)
        builder.start(after)
        for place, pairs in zip(places, incoming, strict=True):
            self.scalars[operation.results[place]] = builder.phi(after, pairs[0][0].type, pairs)

    def _while(self, operation: Operation, bodies: Sequence[Sequence[ScheduleStep]]) -> None:
        builder = self.builder
        before, after = operation.regions
        waits = None if self.waiting is None else self.waiting.begin(operation)
        entry, head = builder.block, builder.new_block("while.head")
        body, done = builder.new_block("while.body"), builder.new_block("while.end")
        builder.branch(head)
        builder.start(head)
        places = [index for index, value in enumerate(before.arguments) if value.type.is_scalar]
        carried = [self.scalars[operation.operands[place]] for place in places]
        headers = [builder.reserve(value.type) for value in carried]
        for place, value in zip(places, headers, strict=True):
            self.scalars[before.arguments[place]] = value
        self._steps(bodies[0])
        condition, *forwarded = before.terminator.operands
        for source, argument, result in zip(forwarded, after.arguments, operation.results, strict=True):
            if source.type.is_scalar:
                self.scalars[argument] = self.scalars[result] = self.scalars[source]
        builder.branch_if(self.scalars[condition], body, done)
        builder.start(body)
        if self.record is not None and self.asserts:
            emit_stop(builder, self.record)
        if self.asking is not None:
            self.asking.passed()
        self._steps(bodies[1])
        latch = builder.block
        following = [self.scalars[after.terminator.operands[place]] for place in places]
        builder.branch(head)
        for value, start, end in zip(headers, carried, following, strict=True):
            builder.fill_phi(head, value, [(start, entry), (end, latch)])
        builder.start(done)
        if self.waiting is not None and waits is not None:
            self.waiting.end(waits)

    # -- Remarks ----------------------------------------------------------------------------------

    def _note_access(self, operation: Operation, how: str, place: int | None, lanes: int, masked: bool) -> None:
        self.report.access(operation, how, place, lanes, masked)
        if how in ("gather", "scatter"):
            remark = remark_at(
                operation,
                f"this {operation.opcode} is a {how}: its addresses are not consecutive along the vectorised axis",
            )
            if remark not in self.remarks:
                self.remarks.append(remark)
