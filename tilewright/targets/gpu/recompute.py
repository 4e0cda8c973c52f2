"""Rows that fill the registers: cheap values are recomputed after a reduction instead of kept.

A row of bfloat16 takes half the registers of the float32 numbers that are computed from it.  A kernel that needs those
before and after a reduction keeps them, and with them so many registers that few CTAs fit a multiprocessor: while one
waits for its row, nothing else moves.  Where more CTAs fit without them, `recompute_after_reductions` computes such
blocks again from the numbers that were loaded:

    value = cast(x)                     value = cast(x)
    top = max(value)            ->      top = max(value)
    powers = exp(value - top)           kept = keep(x); powers = exp(cast(kept) - top)
    total = sum(powers)                 total = sum(powers)
    store(powers / total)               again = keep(kept); store(exp(cast(again) - top) / total)

The results are the same to the last bit.  `keep` is a `permute` that changes no order and has the attribute
`gpu.kept`: the numbers are combined with a zero that no compiler knows to be one, lest it make one computation of the
two again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.core import Attribute, Function, Operation, SSAValue
from tilewright.ir.ops import BROADCASTING, ELEMENTWISE, OPS, REARRANGING
from tilewright.ir.rewrite import Rebuilder
from tilewright.layout import LinearLayout
from tilewright.passes.axis_info import analyze_axes
from tilewright.targets.gpu.layouts import LAYOUT_ATTRIBUTE, Assignment
from tilewright.targets.gpu.lowering import KEPT_ATTRIBUTE, RESIDENT_ATTRIBUTE, cached_live_registers
from tilewright.targets.gpu.memory_order import undisturbed_loads
from tilewright.targets.gpu.target import SimtTarget

_REGISTERS_WITHOUT_BLOCKS = 32  # of a thread, for what is no block: addresses, partial results, what is being computed
_LEAST_WITHOUT_BLOCKS = 16  # the same at least, if ptxas is asked for a number of CTAs
_BUSY_CTAS = 4  # CTAs of a multiprocessor, of which some load while others compute
_GREATEST_COST = 20  # of what is computed again for an element, as `ir.ops` counts: two exponentials and a bit
# What kernels of rows consist of.  Loops and products have needs of their own, which are not weighed here.
_KNOWN = {*ELEMENTWISE, *REARRANGING} | frozenset(
    "constant arange program_id num_programs load store reduce assume yield return".split()
)
_FEW_WORDS = 2  # registers of a thread that may be kept without a thought


@dataclass(frozen=True)
class _Chain:
    """How a block is computed again: the blocks that it comes from, and what an element costs (`ir.ops`)."""

    roots: frozenset[SSAValue]
    cost: int


def recompute_after_reductions(assignment: Assignment, warps: int) -> Assignment:
    """The assignment with blocks computed again after reductions, if more CTAs fit a multiprocessor then.

    The function notes in `gpu.resident` for how many CTAs it was written; it is the one given where there is nothing
    to gain, and in kernels with loops or products.
    """
    if not all(operation.opcode in _KNOWN for operation in assignment.function.walk()):
        return assignment
    blocks = _Blocks(assignment)
    before, after = blocks.pressure(again=False), blocks.pressure(again=True)
    fitting = _resident(assignment.target, before + _REGISTERS_WITHOUT_BLOCKS, warps)
    possible = _resident(assignment.target, after + _LEAST_WITHOUT_BLOCKS, warps)
    if not blocks.reductions or fitting >= _BUSY_CTAS or possible <= fitting:
        return assignment
    writer = _CopyWriter(blocks)
    function = writer.run(assignment.function)
    function.attributes[RESIDENT_ATTRIBUTE] = possible
    return replace(
        assignment, function=function, layouts=writer.layouts, facts=analyze_axes(function), working=writer.working
    )


def deferred_operations(function: Function) -> frozenset[Operation]:
    """Of a kernel that was written for several CTAs: the operations whose elements are better computed one by one.

    All users of their results take the elements as they come: a vector is computed and stored before the next, so that
    no block of results has to fit in registers.  Loads are among them if nothing disturbs them, after the last
    reduction: of weights, for instance.
    """
    if RESIDENT_ATTRIBUTE not in function.attributes:
        return frozenset()
    operations = function.region.operations
    last = max(place for place, operation in enumerate(operations) if operation.opcode == "reduce")
    candidates = {operation for operation in operations if operation.opcode in ELEMENTWISE}
    candidates |= undisturbed_loads(function) & {*operations[last:]}
    takers = (*ELEMENTWISE, "reduce", "store")
    eager = {value for operation in operations if operation.opcode not in takers for value in operation.operands}
    return frozenset(
        operation
        for operation in candidates
        if operation.result.type.rank and _is_number(operation.result) and operation.result not in eager
    )


def _is_number(value: SSAValue) -> bool:
    """Whether a value is of floats, or of integers from memory: what rows consist of."""
    if value.type.is_pointer or value.type.dtype.is_bool:
        return False
    return value.type.dtype.is_float or (value.definition is not None and value.definition.opcode == "load")


def _resident(target: SimtTarget, registers: int, warps: int) -> int:
    """CTAs of a multiprocessor whose threads have so many registers."""
    threads = target.warp_threads * warps
    return min(target.registers_per_multiprocessor // registers, target.threads_per_multiprocessor) // threads


class _Blocks:
    """The blocks of a kernel without loops: how long they are used, and what they are computed from."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        operations = assignment.function.region.operations
        self.place = {operation: number for number, operation in enumerate(operations)}
        self.reductions = [
            number
            for number, operation in enumerate(operations)
            if operation.opcode == "reduce" and self.words(operation.operands[0]) > _FEW_WORDS
        ]
        self.last: dict[SSAValue, int] = {}  # of what is defined here, the place of the last use
        for number, operation in enumerate(operations):
            for value in operation.operands:
                if value.definition is not None:
                    self.last[value] = number
        self._chains: dict[SSAValue, _Chain | None] = {}
        self.again = self._recomputed()
        self.roots = {root for value in self.again for root in self._found(value).roots}

    def words(self, value: SSAValue) -> int:
        """32-bit registers of a thread that a block of numbers takes; addresses and masks take none to speak of."""
        if value.type.is_scalar or value.type.is_pointer or value.type.dtype.is_bool:
            return 0
        if value.definition is not None and value.definition.opcode == "constant":
            return 0
        layout = self.assignment.layouts[value]
        return -(-len(cached_live_registers(layout, value.type.shape)) * value.type.dtype.bits // 32)

    def source(self, value: SSAValue) -> SSAValue:
        """The block whose registers a value has."""
        while value.definition is not None and value.definition.opcode in BROADCASTING:
            value = value.definition.operands[0]
        return value

    def epoch(self, number: int) -> int:
        """How many reductions stand before an operation."""
        return sum(place < number for place in self.reductions)

    def crosses(self, value: SSAValue, place: int) -> bool:
        """Whether a block is used after an operation that comes after its definition."""
        assert value.definition is not None
        return self.place[value.definition] < place < self.last[value]

    def chain(self, value: SSAValue) -> _Chain | None:
        """How a block is computed from loads and what is at hand; None when it is not, or too dear."""
        if value not in self._chains:
            self._chains[value] = self._chain(value)
        return self._chains[value]

    def _chain(self, value: SSAValue) -> _Chain | None:
        operation, source = value.definition, self.source(value)
        if self.words(source) <= _FEW_WORDS or not _is_number(value):
            return _Chain(frozenset(), 0)
        if operation is None:
            return None
        if operation.opcode == "load":
            return _Chain(frozenset({value}), 0)
        if operation.opcode not in (*ELEMENTWISE, *BROADCASTING):
            return None
        parts = [self.chain(operand) for operand in operation.operands]
        cost = 0 if operation.opcode in BROADCASTING else OPS[operation.opcode].cost
        roots: set[SSAValue] = set()
        for part in parts:
            if part is None:
                return None
            roots |= part.roots
            cost += part.cost
        return _Chain(frozenset(roots), cost) if cost <= _GREATEST_COST else None

    def _found(self, value: SSAValue) -> _Chain:
        chain = self.chain(value)
        assert chain is not None
        return chain

    def _recomputed(self) -> set[SSAValue]:
        """The blocks that would be computed again."""
        found = set()
        for value in list(self.last):
            if value.definition is None or value.definition.opcode not in ELEMENTWISE:
                continue
            if _is_number(value) and self.words(value) > _FEW_WORDS and self.chain(value):
                if any(self.crosses(value, place) for place in self.reductions):
                    found.add(value)
        return found

    def pressure(self, again: bool) -> int:
        """The most words of blocks that a thread has at a reduction, those included that were loaded for it alone."""
        return max((self._live_words(place, again) for place in self.reductions), default=0)

    def _live_words(self, place: int, again: bool) -> int:
        live: dict[SSAValue, None] = {}
        for value in self.last:
            assert value.definition is not None
            start = self.place[value.definition]
            loaded = value.definition.opcode == "load" and start < place and self.epoch(start) == self.epoch(place)
            loaded &= again  # as things are, the assembler may load them piece by piece
            if _is_number(value) and (loaded or self.crosses(value, place)):
                if again and value in self.again:
                    live.update(dict.fromkeys(self._found(value).roots))
                else:
                    live[self.source(value)] = None
        return sum(self.words(value) for value in live)


class _CopyWriter(Rebuilder):
    """Writes the kernel again, with copies of what is computed again in front of its first use after each reduction."""

    def __init__(self, blocks: _Blocks) -> None:
        super().__init__()
        self.blocks = blocks
        self.layouts: dict[SSAValue, LinearLayout] = {}
        self.working: dict[Operation, LinearLayout] = {}
        self._epoch = 0
        self._own: dict[SSAValue, int] = {}  # the epoch in which the present copy of a block was computed

    def run(self, function: Function) -> Function:
        region = self.copy_region(function.region)
        return Function(function.name, region, list(function.parameters), dict(function.attributes))

    def copy(self, operation: Operation) -> None:
        number = self.blocks.place.get(operation)
        if number is not None:
            self._epoch = self.blocks.epoch(number)
            for value in operation.operands:
                self._renew(value)
        super().copy(operation)
        self._describe(operation, self.current.operations[-1])

    def _renew(self, value: SSAValue) -> None:
        """See to it that a block that is computed again was so since the last reduction."""
        operation = value.definition
        if operation is None:
            return
        if self._own.setdefault(value, self.blocks.epoch(self.blocks.place[operation])) == self._epoch:
            return
        chain = self.blocks.chain(value)
        if value in self.blocks.roots:
            self._own[value] = self._epoch
            self._keep(value)
        elif chain is not None and chain.roots and chain.roots <= self.blocks.roots:
            self._own[value] = self._epoch
            for operand in operation.operands:
                self._renew(operand)
            super().copy(operation)
            self._describe(operation, self.current.operations[-1])

    def _keep(self, value: SSAValue) -> None:
        operand = self.mapping[value]
        layout = self.blocks.assignment.layouts[value]
        attributes: dict[str, Attribute] = {"order": tuple(range(value.type.rank))}
        attributes |= {LAYOUT_ATTRIBUTE: str(layout), KEPT_ATTRIBUTE: True}
        self.location = value.definition.location if value.definition is not None else None
        pinned = self.create("permute", [operand], attributes).result
        self.layouts[pinned] = layout
        self.mapping[value] = pinned

    def _describe(self, old: Operation, new: Operation) -> None:
        """Layouts of a copy are those of what it was made of."""
        assignment = self.blocks.assignment
        for before, after in zip(old.results, new.results, strict=True):
            if before in assignment.layouts:
                self.layouts[after] = assignment.layouts[before]
        if old in assignment.working:
            self.working[new] = assignment.working[old]
