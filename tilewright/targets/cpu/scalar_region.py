"""Regions of scalar operations with real branches and loops, as in `map`, emitted in place."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Operation, Region, SSAValue
from tilewright.ir.ops import ELEMENTWISE
from tilewright.targets.cpu.attributes import number
from tilewright.targets.cpu.elementwise import unsupported
from tilewright.targets.cpu.evaluate import Evaluator
from tilewright.targets.cpu.signal_checks import AskEmitter
from tilewright.targets.llvm.builder import Block, LLVMValue


class ScalarRegion:
    """Emits one region; `known` holds the LLVM value of every Tile IR value met so far, and its loops use `asking`."""

    def __init__(self, evaluator: Evaluator, asking: AskEmitter | None) -> None:
        self.evaluator = evaluator
        self.asking = asking
        self.builder = evaluator.builder
        self.known: dict[SSAValue, LLVMValue] = {}

    def emit(self, region: Region, arguments: Sequence[LLVMValue]) -> list[LLVMValue]:
        """The values that the region yields for these arguments."""
        self.known.update(zip(region.arguments, arguments, strict=True))
        for operation in region.operations[:-1]:
            self._operation(operation)
        return [self._value(value) for value in region.terminator.operands]

    def _value(self, value: SSAValue) -> LLVMValue:
        return self.known[value] if value in self.known else self.evaluator.scalars[value]

    def _operation(self, operation: Operation) -> None:
        if operation.opcode == "constant":
            element = operation.result.type.dtype
            self.known[operation.result] = self.evaluator.number(element, number(operation))
        elif operation.opcode in ELEMENTWISE:
            operands = [self._value(value) for value in operation.operands]
            self.known[operation.result] = self.evaluator.elementwise.emit(operation, operands)
        elif operation.opcode in ("if", "for", "while"):
            results = getattr(self, f"_{operation.opcode}")(operation)
            self.known.update(zip(operation.results, results, strict=True))
        elif operation.opcode != "assume":
            raise unsupported(operation, "a function mapped over elements may only compute, branch and loop")

    def _if(self, operation: Operation) -> list[LLVMValue]:
        builder = self.builder
        blocks = [builder.new_block("map.then"), builder.new_block("map.else")]
        after = builder.new_block("map.end")
        builder.branch_if(self._value(operation.operands[0]), blocks[0], blocks[1])
        incoming: list[list[tuple[LLVMValue, Block]]] = [[] for _ in operation.results]
        for block, region in zip(blocks, operation.regions, strict=True):
            builder.start(block)
            for pairs, value in zip(incoming, self.emit(region, []), strict=True):
                pairs.append((value, builder.block))
            builder.branch(after)
        builder.start(after)
        return [builder.phi(after, pairs[0][0].type, pairs) for pairs in incoming]

    def _for(self, operation: Operation) -> list[LLVMValue]:
        kind = operation.operands[0].type.dtype
        if kind.bits < 32 or (not kind.is_signed and kind.bits < 64):
            raise unsupported(operation, f"a mapped function's loop counts in int32 or int64, not in {kind}")
        lower, upper, step, *carried = (self._value(value) for value in operation.operands)
        with self.builder.loop(lower, upper, step, carried, hint="map.for") as loop:
            loop.next(self.emit(operation.regions[0], [loop.index, *loop.values]))
        return loop.results

    def _while(self, operation: Operation) -> list[LLVMValue]:
        builder = self.builder
        before, after = operation.regions
        initial = [self._value(value) for value in operation.operands]
        entry, head = builder.block, builder.new_block("map.while")
        body, done = builder.new_block("map.body"), builder.new_block("map.done")
        builder.branch(head)
        builder.start(head)
        headers = [builder.reserve(value.type) for value in initial]
        condition, *forwarded = self.emit(before, headers)
        builder.branch_if(condition, body, done)
        builder.start(body)
        if self.asking is not None:
            self.asking.passed()
        following = self.emit(after, forwarded)
        latch = builder.block
        builder.branch(head)
        for value, start, end in zip(headers, initial, following, strict=True):
            builder.fill_phi(head, value, [(start, entry), (end, latch)])
        builder.start(done)
        return forwarded
