"""Decides which blocks are kept in buffers; all others are lazy and computed where they are used.

A block gets a buffer when it must (it is the result of a reduction, product or loop; a load whose
memory may be overwritten before a use), or when computing it again at each use costs more than
writing it once and reading it back.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.ops import ELEMENTWISE, REARRANGING
from tilewright.targets.base import Remark
from tilewright.targets.cpu.access import (
    Prefix,
    PrefixKey,
    ValueWalker,
    prefix_key,
    prefix_of,
)
from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.aliasing import Aliasing
from tilewright.targets.cpu.cut_runs import CutRuns
from tilewright.targets.cpu.dot_places import addressable, is_zero
from tilewright.targets.cpu.program import ProgramOrder
from tilewright.targets.cpu.register_tables import fits_register
from tilewright.targets.cpu.target import CPUTarget

LAZY = ELEMENTWISE | REARRANGING | {"constant", "arange", "load", "join", "split", "cat", "gather"}
WRITERS = frozenset({"store", "atomic_rmw", "atomic_cas", "barrier"})
_COSTS = {
    "exp": 8, "exp2": 8, "log": 10, "log2": 10, "sin": 12, "cos": 12, "tanh": 10, "erf": 12, "power": 40,
    "divide": 3, "remainder": 6, "sqrt": 4, "rsqrt": 5, "gather": 8, "cat": 3, "join": 8, "split": 2,
}  # fmt: skip
_LOOP_WEIGHT = 8
_BUFFER_COST = 3  # of writing a block once and reading it back, in elementwise operations


@dataclass
class Site:
    """A place that evaluates a value: the root operation's position, and how often it runs."""

    position: int
    weight: int


class Placement:
    """The decisions for one function: `stored` values have a buffer.  `careful` is told in `Aliasing`."""

    def __init__(self, function: Function, analysis: AffineAnalysis, target: CPUTarget, careful: bool = False) -> None:
        self.program = ProgramOrder(function)
        self.target = target
        self.analysis = analysis
        self.cut_runs = CutRuns(function, target.vector_bits // 32)
        self._in_runs = set() if target.quick else self.cut_runs.known_in_runs(function, analysis)
        self.aliasing = Aliasing(function, analysis, careful)
        self.stored: set[SSAValue] = set()
        self.remarks: list[Remark] = []
        self.walker = ValueWalker(lambda value: value in self.stored)
        self._sites: dict[SSAValue, list[Site]] = {}
        self._costs: dict[SSAValue, float] = {}
        self._writers = [op for op in self.program.operations if op.opcode in WRITERS or op.attributes.get("volatile")]
        self.prefixes = self._find_prefixes()
        self._decide()

    def _find_prefixes(self) -> list[tuple[PrefixKey, Prefix]]:
        """The prefix comparisons of the function, one for each key."""
        found: dict[PrefixKey, Prefix] = {}
        for operation in self.program.operations:
            if operation.opcode == "compare" and operation.result.type.rank:
                key, prefix = prefix_key(operation.result), prefix_of(operation.result, self.analysis)
                if key is not None and prefix is not None:
                    found.setdefault(key, prefix)
        return list(found.items())

    def sites(self, value: SSAValue) -> list[Site]:
        """Where a lazy or stored value is evaluated or read, through lazy operations."""
        if value not in self._sites:
            found: dict[int, Site] = {}
            for user in self.program.uses.get(value, ()):
                for site in self._sites_through(value, user):
                    known = found.get(site.position)
                    if known is None or known.weight < site.weight:
                        found[site.position] = site
            self._sites[value] = list(found.values())
        return self._sites[value]

    def _sites_through(self, value: SSAValue, user: Operation) -> list[Site]:
        if user.opcode == "assume":
            return []
        lazy = user.opcode in LAZY and user.results[0].type.rank > 0
        results = [result for result in user.results if result not in self.stored] if lazy else []
        stretch = _stretch(user)
        if not results:
            loops = self.program.enclosing_loops(user, self.program.definition_parent(value))
            return [Site(self.program.position[user], _LOOP_WEIGHT ** len(loops) * stretch)]
        return [Site(site.position, site.weight * stretch) for result in results for site in self.sites(result)]

    # -- Decisions --------------------------------------------------------------------------------

    def _decide(self) -> None:
        for argument in self._block_arguments():
            self.stored.add(argument)
        for operation in self.program.operations:  # in program order, so that no cost recurses deeply
            for result in operation.results:
                if operation.opcode in LAZY:
                    self.cost(result)
        for operation in reversed(self.program.operations):
            if operation.opcode == "dot":
                self._store_operands(operation)
                if not is_zero(operation.operands[2]):
                    self._store_operand(operation.operands[2])
            elif operation.opcode == "gather":
                self._store_operand(operation.operands[0])
            for result in operation.results:
                if result.type.rank and (operation.opcode not in LAZY or self._wants_buffer(operation, result)):
                    self.stored.add(result)
        products = [operation for operation in self.program.operations if operation.opcode == "dot"]
        while any([self._store_operands(product) for product in products]):  # a buffer for what one lay in moves it
            pass

    def _store_operands(self, product: Operation) -> bool:
        """Give a buffer to each operand of a `dot` that is not used where it lies; whether there was one."""
        found = False
        for side, operand in zip(("left", "right"), product.operands, strict=False):
            if not addressable(self, product, operand, side):
                self._store_operand(operand)
                self._remark(product, f"the {side} operand is written to a buffer before the product: it is computed, "
                             "or copied first, or its addresses or its mask are not regular")  # fmt: skip
                found = True
        return found

    def _block_arguments(self) -> list[SSAValue]:
        return [argument for argument in self.program.owner if argument.type.rank]

    def _store_operand(self, operand: SSAValue) -> None:
        self.stored.add(operand)

    def _wants_buffer(self, operation: Operation, value: SSAValue) -> bool:
        if value in self.stored:
            return True
        sites = self.sites(value)
        if not sites:
            return False
        if operation.opcode == "load":
            writer = self.overwritten(operation, sites)
            if writer is not None:
                self._remark(operation, f"this load is copied first: the {writer.opcode} at line {_line(writer)} may "
                             "write to the same memory before its value is used")  # fmt: skip
                return True
        if operation.opcode == "constant":
            return False
        uses = sum(site.weight for site in sites)
        if (self.cost(value) - 1) * (uses - 1) <= _BUFFER_COST:
            return False
        again = f"again at each of its {len(sites)} uses" if len(sites) > 1 else "each time that its use comes to it"
        self._remark(operation, f"the result of {operation.opcode} is kept in a buffer: computing it {again} would "
                     "cost more")  # fmt: skip
        return True

    def overwritten(self, load: Operation, sites: list[Site]) -> Operation | None:
        """A write between a load and one of its uses that may change what the use reads.

        A write before a use counts when it may touch any of the load's elements.  One that is itself the use (an
        update in place) reads each element right before it writes it: it counts when it may touch another lane's.
        """
        start = self.program.position[load]
        harmful: list[Operation] = []
        for writer in self._writers:
            where = self.program.position[writer]
            if where <= start or not self._may_overwrite(load, writer):
                continue
            ends = [(site.position, self._end_of_use(load, site)) for site in sites]
            if any(where < position or position < where <= end for position, end in ends):
                harmful.append(writer)
            elif any(where == position for position, _ in ends):
                repeated = any(where == position and end > where for position, end in ends)
                if repeated or self._disturbs(load, writer):
                    harmful.append(writer)
        if not harmful or not load.attributes.get("volatile") and self.aliasing.trust_apart(load, harmful):
            return None
        return harmful[0]

    def _end_of_use(self, load: Operation, site: Site) -> int:
        """The site's position, or the end of the outermost loop around it that does not contain the load."""
        end = site.position
        operation = self.program.operations[site.position]
        for loop in self.program.enclosing_loops(operation, self.program.parent[load]):
            end = max(end, self.program.last[loop])
        return end

    def _may_overwrite(self, load: Operation, writer: Operation) -> bool:
        if writer.opcode == "barrier" or load.attributes.get("volatile"):
            return True
        if not self.aliasing.overlap(load.operands[0], writer.operands[0]):
            return False
        return writer.opcode != "store" or not self.aliasing.never_meet(load, writer)

    def _disturbs(self, load: Operation, writer: Operation) -> bool:
        """Whether `writer`, which evaluates `load` itself, may write what it has yet to read for another lane."""
        if load.attributes.get("volatile") or self.aliasing.conflict(load, writer):
            return True
        start = self.program.position[load]  # what comes before the load cannot read it, and is not decided yet
        walker = ValueWalker(
            lambda value: (
                value in self.stored or value.definition is None or self.program.position[value.definition] < start
            )
        )
        reads = walker.reads([(operand, identity_axes(operand)) for operand in writer.operands])
        return any(
            axis != place
            for found, axes in reads.loads
            if found is load
            for place, (axis, extent) in enumerate(zip(axes, load.result.type.shape, strict=True))
            if extent > 1
        )

    def cost(self, value: SSAValue) -> float:
        """Rough number of vector operations to compute one vector of a lazy value."""
        if value.type.is_scalar or value in self.stored:
            return 1.0 if value.type.rank else 0.0
        if value not in self._costs:
            self._costs[value] = self.computation_cost(value)
        return self._costs[value]

    def computation_cost(self, value: SSAValue) -> float:
        """`cost` of computing a lazy value, though it may have a buffer."""
        operation = value.definition
        assert operation is not None
        opcode = operation.opcode
        if opcode in ("constant", "arange", "splat"):
            return 0.0
        facts = self.analysis.all_axes(value)
        if value.type.is_pointer or (value.type.dtype.is_integer and not value.type.dtype.is_bool):
            if opcode != "load" and all(fact.uniform for fact in facts):
                return 0.0
        if opcode == "load":
            step = self.analysis.along(operation.operands[0], value.type.rank - 1).step
            return (1.0 if step in (0, 1) else 8.0) + sum(self.cost(operand) for operand in operation.operands[1:]) / 4
        inner = sum(self.cost(operand) for operand in dict.fromkeys(operation.operands))
        if opcode in REARRANGING or opcode in ("hint", "bitcast"):
            if opcode in ("broadcast",) and operation.operands[0].type.shape[-1] == 1:
                return inner / 4  # computed once for a row
            return inner
        own = _COSTS.get(opcode, 1)
        if opcode in ("divide", "remainder") and not value.type.dtype.is_float:
            own = 4
        if value in self._in_runs:
            own = 0  # for each run, not for each element
        if opcode == "gather" and fits_register(operation.operands[0].type, self.target.table_lanes):
            own = 1
        return inner + own

    def _remark(self, operation: Operation, message: str) -> None:
        self.remarks.append(remark_at(operation, message))


def remark_at(operation: Operation, message: str) -> Remark:
    """A remark with the operation's source line."""
    location = operation.location
    return Remark("note", message, location.file if location else "", location.line if location else 0)


def _line(operation: Operation) -> int:
    return operation.location.line if operation.location else 0


def _stretch(user: Operation) -> int:
    """How often a broadcast along outer axes repeats the evaluation of its operand."""
    if user.opcode != "broadcast":
        return 1
    pairs = list(zip(user.operands[0].type.shape, user.results[0].type.shape, strict=True))
    times = 1
    for old, new in pairs[:-1]:
        times *= new if old == 1 else 1
    return min(times, 8)


def identity_axes(value: SSAValue) -> tuple[int, ...]:
    return tuple(range(value.type.rank))
