"""The decisions of layout assignment: which layout each block gets, in program order (`layouts.py` has the whole)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.errors import CompilationError
from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.ops import ELEMENTWISE, OPS
from tilewright.layout import LinearLayout
from tilewright.passes.axis_info import AxisInfo
from tilewright.targets.gpu import transfer
from tilewright.targets.gpu.accesses import Access
from tilewright.targets.gpu.transfer import element_bits, operand_layout, result_layout

_MOVING = ("permute", "reshape", "join", "split", "cat")  # other names for the same elements
_FLEXIBLE_COST = 32  # operations that may be repeated for each layout
_OVERLAPPED = 1 / 4  # of what a conversion takes, in a kernel whose CTAs wait for memory anyway
_SECTOR_ITEM = 4  # bytes of an element of which four threads with sums of a row side by side fill a sector

Rule = Callable[["Assigner", Operation], None]


class Assigner:
    """Decides in program order.

    `home` is the layout of an anchored block, `required` what an operation needs of each operand, `working` the
    layout in which an operation does its work.
    """

    def __init__(
        self,
        lanes: int,
        warps: int,
        facts: Mapping[SSAValue, AxisInfo],
        accesses: Mapping[Operation, Access],
        rules: Mapping[str, Rule],
    ) -> None:
        self.lanes = lanes
        self.warps = warps
        self.rules = rules
        self.facts = facts
        self.accesses = accesses
        self.home: dict[SSAValue, LinearLayout] = {}
        self.required: dict[Operation, list[LinearLayout | None]] = {}
        self.working: dict[Operation, LinearLayout] = {}
        self.flexible: dict[SSAValue, int] = {}  # and what computing it again costs
        self.open: dict[SSAValue, None] = {}
        self.groups: dict[
            SSAValue, list[SSAValue]
        ] = {}  # of open blocks of loops and branches: what shares their layout
        self.flow: dict[Operation, list[SSAValue | None]] = {}  # operands that must be where another value is
        self.chained: frozenset[Operation] = frozenset()  # products that feed products
        self.lasting: frozenset[Operation] = frozenset()  # products whose first operand a loop leaves as it is
        self.combined: dict[tuple[int, ...], int] = {}  # shapes of blocks that are reduced, and along which axis
        self.scanned: dict[tuple[int, ...], int] = {}  # the same of blocks that are scanned
        self.stored: dict[Operation, Operation] = {}  # reductions whose results are only stored, and where
        self.largest = max((op.operands[0].type.size for op in accesses), default=0)
        self.direct_loads = False  # in the layout of what they are combined with, at any price
        self.direct_stores = False  # of sums of products from the threads that have them, which fill whole sectors
        self.only_moves = False  # whether time goes to accesses alone
        self.copied = False  # whether loops copy operands of products by multiply-add ahead
        self.operands: set[LinearLayout] = set()  # in which such products want them

    def region(self, region: Region) -> None:
        for operation in region.operations:
            self.operation(operation)

    def operation(self, operation: Operation) -> None:
        opcode = operation.opcode
        for operand in operation.operands:
            self.refresh(operand)
        rule = self.rules.get(opcode)
        if rule is not None:
            rule(self, operation)
        elif opcode in ELEMENTWISE:
            self._elementwise(operation)
        elif any(value.type.rank for value in (*operation.operands, *operation.results)):
            place = f"{operation.location}: " if operation.location else ""
            raise CompilationError(f"{place}no layout rule of the target knows '{opcode}'")

    def finish(self) -> None:
        """Blocks that are open still get what their neighbours have, or the layout of their shape."""
        for value in list(self.open):
            self.settle(value)

    def refresh(self, value: SSAValue) -> None:
        """An open block follows what it is computed from, or what flows into the loop that carries it, once that has
        been anchored."""
        seen, path = {value}, [value] if value in self.open else []
        while path:
            operation = path[-1].definition
            moved = operation if operation is not None and operation.opcode in (*ELEMENTWISE, *_MOVING) else None
            sources = moved.operands if moved is not None else self.groups.get(path[-1], [])
            home = next((self.home[source] for source in sources if source in self.home), None)
            if home is not None and moved is not None and moved.opcode == "split" and transfer.split(home) is None:
                home = None  # the halves get a layout of their own
            further = next((source for source in sources if source in self.open and source not in seen), None)
            if home is not None:
                self.demand(path.pop(), result_layout(moved, home) if moved is not None else home)
            elif further is None:
                path.pop()
            else:
                seen.add(further)
                path.append(further)

    # Asking and deciding -------------------------------------------------------------------------

    def default(self, value: SSAValue) -> LinearLayout:
        """The layout of a block of which nothing else is known."""
        return self.default_of(value.type.shape, value.type.element.bits)

    def default_of(self, shape: tuple[int, ...], bits: int) -> LinearLayout:
        """The layout of a block of this shape, with elements of so many bits, of which nothing else is known."""
        return transfer.default_layout(shape, bits // 8 or 1, self.warps, self.lanes)

    def settle(self, value: SSAValue) -> LinearLayout:
        """The layout of an operand that may have any: its own, or the default, which it then gets."""
        self.refresh(value)
        if value not in self.home:
            layout = self.default(value)
            self.demand(value, layout)
            return self.home.get(value, layout)
        return self.home[value]

    def anchor(self, value: SSAValue, layout: LinearLayout) -> None:
        self.home[value] = layout
        self.open.pop(value, None)

    def demand(self, value: SSAValue, layout: LinearLayout) -> None:
        """A user wants `value` in `layout`: open blocks after it take what follows from that."""
        waiting = [(value, layout)]
        while waiting:
            value, layout = waiting.pop()
            if value.type.is_scalar or value in self.home:
                continue
            operation = value.definition
            if value in self.flexible:
                assert operation is not None
                waiting += reversed(self._wanted_operands(operation, layout))
            elif value in self.open:
                waiting += reversed(self._settle_open(value, operation, layout))

    def _settle_open(
        self, value: SSAValue, operation: Operation | None, layout: LinearLayout
    ) -> list[tuple[SSAValue, LinearLayout]]:
        """An open block gets its layout; what that means for others."""
        if operation is not None and operation.opcode == "load":
            layout = self._load_layout(operation, layout)
        self.anchor(value, layout)
        if value in self.groups:
            return [(member, layout) for member in self.groups[value]]
        if operation is None:
            return []
        if operation.opcode == "split":
            for half in operation.results:
                self.anchor(half, layout)
        if operation.opcode == "load":
            self.working[operation] = layout
            self.required[operation] = [layout] * len(operation.operands)
            return [(operand, layout) for operand in operation.operands]
        self.required[operation] = [
            operand_layout(operation, number, layout) for number in range(len(operation.operands))
        ]
        return self._wanted_operands(operation, layout)

    def _wanted_operands(self, operation: Operation, layout: LinearLayout) -> list[tuple[SSAValue, LinearLayout]]:
        wanted = [(operand, operand_layout(operation, n, layout)) for n, operand in enumerate(operation.operands)]
        return [(operand, needed) for operand, needed in wanted if needed is not None]

    def require(self, operation: Operation, layouts: Sequence[LinearLayout | None]) -> None:
        """Fix what an operation needs of its operands."""
        self.required[operation] = list(layouts)
        for operand, layout in zip(operation.operands, layouts, strict=True):
            if layout is not None:
                self.demand(operand, layout)

    def moved(self, operands: Sequence[SSAValue], layout: LinearLayout) -> float:
        """The cost of bringing anchored operands into a layout."""
        return sum(
            transfer.conversion_cost(self.home[value], layout, element_bits(value))
            for value in operands
            if value in self.home
        )

    # Loops and branches --------------------------------------------------------------------------

    def link(self, own: Sequence[SSAValue], others: Sequence[SSAValue]) -> None:
        """Blocks `own` that a loop or a branch defines and `others` that flow into them: of one layout."""
        if own[0].type.is_scalar:
            return
        group = [*own, *others]
        for value in own:
            self.open[value] = None
            self.groups[value] = group

    def close(self, own: SSAValue, others: Sequence[SSAValue]) -> None:
        """More values that flow into a linked block; if it is open still, it takes the layout of one of them."""
        if own.type.is_scalar:
            return
        group = self.groups[own]
        group.extend(others)
        layout = self.home.get(own)
        if layout is None:
            for value in others:
                self.refresh(value)
            layout = next((self.home[value] for value in reversed(group) if value in self.home), None)
            if layout is not None:
                self.demand(own, layout)
            return
        for value in others:
            self.demand(value, layout)

    # Elementwise ---------------------------------------------------------------------------------

    def _elementwise(self, operation: Operation) -> None:
        result = operation.result
        if result.type.is_scalar:
            return
        blocks = [value for value in operation.operands if value.type.rank]
        homes = list(dict.fromkeys(self.home[value] for value in blocks if value in self.home))
        if homes:
            layout = homes[0] if len(homes) == 1 else min(homes, key=lambda home: self.moved(blocks, home))
            self.anchor(result, layout)
            self.require(operation, [layout if value.type.rank else None for value in operation.operands])
        else:
            self.unanchored(operation)

    def unanchored(self, operation: Operation) -> None:
        """Results without an anchored operand are flexible, or open when they hang on open ones or are dear."""
        blocks = [value for value in operation.operands if value.type.rank]
        cost = OPS[operation.opcode].cost + sum(self.flexible.get(value, 0) for value in blocks)
        for result in operation.results:
            if result.type.is_scalar:
                continue
            if all(value in self.flexible for value in blocks) and cost <= _FLEXIBLE_COST:
                self.flexible[result] = cost
            else:
                self.open[result] = None

    # Loads ---------------------------------------------------------------------------------------

    def coalesced(self, operation: Operation) -> LinearLayout:
        """The layout that a memory operation would like."""
        access = self.accesses[operation]
        shape = operation.operands[0].type.shape
        combined, scanned = (axes.get(shape) if len(shape) > 1 else None for axes in (self.combined, self.scanned))
        return transfer.blocked_layout(shape, access.axis, access.elements, self.warps, self.lanes, combined, scanned)

    def access_cost(self, operation: Operation, layout: LinearLayout) -> float:
        access = self.accesses[operation]
        return transfer.access_cost(layout, access.facts, access.itemsize, operation.opcode != "load")

    def _load_layout(self, operation: Operation, wanted: LinearLayout) -> LinearLayout:
        """An open load is done as its user wants it, unless converting afterwards is cheaper."""
        if self.direct_loads:
            return wanted
        own = self.coalesced(operation)
        bits = element_bits(operation.result)
        converted = self.access_cost(operation, own) + transfer.conversion_cost(own, wanted, bits)
        return wanted if self.access_cost(operation, wanted) <= converted else own

    def best_access(self, operation: Operation) -> LinearLayout:
        """The cheapest layout of an access, with what its anchored operands cost to convert."""
        operands = [value for value in operation.operands if value.type.rank]
        own = self.coalesced(operation)
        homes = [self.home[value] for value in operands if value in self.home]
        access = self.accesses[operation]
        gathered = [transfer.gathered(home, access.axis, min(access.elements, 16 // access.itemsize)) for home in homes]
        direct = self.direct_stores and operation.opcode == "store" and access.itemsize >= _SECTOR_ITEM and homes
        # Shuffles before exchanges: they need no shared memory.
        candidates = dict.fromkeys([*gathered, *([] if direct else [own]), *homes])
        share = _OVERLAPPED if self.only_moves and operation.opcode == "store" else 1.0
        return min(
            candidates, key=lambda layout: self.access_cost(operation, layout) + share * self.moved(operands, layout)
        )


# Reductions --------------------------------------------------------------------------------------


def stored_reductions(function: Function) -> dict[Operation, Operation]:
    """Reductions whose results (blocks) are only computed with, element by element, and stored, each with a store."""
    users: dict[SSAValue, list[Operation]] = {}
    for operation in function.walk():
        for operand in operation.operands:
            users.setdefault(operand, []).append(operation)
    found = {}
    for operation in function.walk():
        if operation.opcode != "reduce" or len(operation.results) != 1 or not operation.result.type.rank:
            continue
        reached = list(users.get(operation.result, ()))
        for user in reached:
            if user.opcode in ELEMENTWISE:
                reached += users.get(user.result, ())
        ends = [user for user in reached if user.opcode not in ELEMENTWISE]
        if ends and all(user.opcode == "store" for user in ends):
            found[operation] = ends[0]
    return found
