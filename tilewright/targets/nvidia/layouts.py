"""Layout assignment: which registers of which threads hold each block, and where blocks have to change hands.

    assignment = assign(function, target, warps=4)
    assignment.layouts[value]           a `LinearLayout` for every block
    assignment.function                 the kernel with its conversions written out

Blocks fall into three kinds.

    anchored    loads, results of products and reductions, and what is computed from them: their layout is decided
                where they are defined, by what the access wants or by the operand that is dearest to convert
    flexible    ranges, splats, broadcasts and cheap arithmetic on those (addresses, masks): computed again in every
                layout that some user wants, because that is cheaper than moving them
    open        carried by a loop or a branch, or dear to compute again, and not tied to an anchored block yet: the
                first user that wants a layout decides

Decisions are made in program order (`_Assigner`), then wishes are collected backwards (`_Wishes`), then the kernel is
written again with a copy of every flexible block for each layout that is wanted of it, and with a conversion, a
`permute` that changes no order but has the attribute `nvidia.conversion`, for every other block that is wanted
elsewhere (`_Writer`).  The layouts are also written on the operations (`nvidia.layout`), so that the printed kernel
shows them and runs in the interpreter like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.errors import CompilationError
from tilewright.ir.core import Attribute, Function, Operation, Region, Value
from tilewright.ir.ops import ELEMENTWISE, OPS
from tilewright.ir.rewrite import Rebuilder
from tilewright.layout import LinearLayout
from tilewright.passes.axis_info import AxisInfo, analyze_axes
from tilewright.targets.nvidia import dot_layout, transfer, warpgroup_layout
from tilewright.targets.nvidia.accesses import Access, combined_axes, plan_accesses
from tilewright.targets.nvidia.dot_layout import instruction_of
from tilewright.targets.nvidia.dot_scalar_layout import multiply_add
from tilewright.targets.nvidia.explicit import layout_rules as explicit_rules
from tilewright.targets.nvidia.target import NvidiaTarget
from tilewright.targets.nvidia.transfer import conversion_plan, element_bits, operand_layout, result_layout

LAYOUT_ATTRIBUTE = "nvidia.layout"
CONVERSION_ATTRIBUTE = "nvidia.conversion"
_COPIED = "copied ahead for multiply-adds"  # conversions that are reads of what a loop has copied, and nothing else

SCALAR_REGIONS = ("reduce", "scan", "map")  # whose regions are of scalars, run for many elements
_MOVING = ("permute", "reshape", "join", "split", "cat")  # other names for the same elements
_SPREADING = ("expand_dims", "broadcast")
_SMALL = 8  # a load of so much less than the largest access waits for what it is combined with
_FLEXIBLE_COST = 32  # operations that may be repeated for each layout
_SECTOR_ITEM = 4  # bytes of an element of which four threads with sums of a row beside each other fill a sector


@dataclass(frozen=True)
class Assignment:
    """The kernel with its conversions, the layout of every block of it, and what is known of its numbers."""

    function: Function
    layouts: Mapping[Value, LinearLayout]
    facts: Mapping[Value, AxisInfo]
    working: Mapping[Operation, LinearLayout]  # of operations that have a layout of their own: accesses, scans …
    target: NvidiaTarget


def assign(
    function: Function, target: NvidiaTarget, warps: int, warpgroups: bool = True, copied: bool = False
) -> Assignment:
    """Layouts for a kernel run by `warps` warps (roles of explicit kernels: as many as the role has).

    Without `warpgroups` products are done warp by warp, also where the target could do otherwise.  With `copied`,
    products by multiply-add are laid out for operands that their loops copy ahead.
    Raises `CompilationError` at the user's line for an operation that no layout rule knows.
    """
    facts = analyze_axes(function)
    assigner = Assigner(target, warps, facts, plan_accesses(function, facts))
    assigner.chained = dot_layout.chained_products(function)
    assigner.combined = combined_axes(function)
    assigner.stored = stored_reductions(function)
    assigner.warpgroups &= warpgroups
    assigner.copied = copied
    assigner.region(function.region)
    assigner.finish()
    wishes = _Wishes(assigner)
    wishes.region(function.region)
    writer = _Writer(assigner, wishes.wanted)
    written = writer.run(function)
    return Assignment(written, writer.layouts, analyze_axes(written), writer.working, target)


def is_copied(operation: Operation) -> bool:
    """Whether an operation is a conversion that a loop has to copy ahead for, since nothing else does it."""
    return operation.attributes.get(CONVERSION_ATTRIBUTE) == _COPIED


# Reductions --------------------------------------------------------------------------------------


def stored_reductions(function: Function) -> dict[Operation, Operation]:
    """Reductions whose results (blocks) are only computed with, element by element, and stored, each with a store."""
    users: dict[Value, list[Operation]] = {}
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


# Decisions ---------------------------------------------------------------------------------------


Rule = Callable[["Assigner", Operation], None]


class Assigner:
    """Decides in program order.

    `home` is the layout of an anchored block, `required` what an operation needs of each operand, `working` the
    layout in which an operation does its work.
    """

    def __init__(
        self, target: NvidiaTarget, warps: int, facts: Mapping[Value, AxisInfo], accesses: Mapping[Operation, Access]
    ) -> None:
        self.target = target
        self.warps = warps
        self.facts = facts
        self.accesses = accesses
        self.home: dict[Value, LinearLayout] = {}
        self.required: dict[Operation, list[LinearLayout | None]] = {}
        self.working: dict[Operation, LinearLayout] = {}
        self.flexible: dict[Value, int] = {}  # and what computing it again costs
        self.open: dict[Value, None] = {}
        self.groups: dict[Value, list[Value]] = {}  # of open blocks of loops and branches: what shares their layout
        self.flow: dict[Operation, list[Value | None]] = {}  # operands that must be where another value is
        self.chained: frozenset[Operation] = frozenset()  # products that feed products
        self.combined: dict[tuple[int, ...], int] = {}  # shapes of blocks that are reduced, and along which axis
        self.stored: dict[Operation, Operation] = {}  # reductions whose results are only stored, and where
        self.largest = max((op.operands[0].type.size for op in accesses), default=0)
        self.direct_loads = False  # in the layout of what they are combined with, at any price
        self.direct_stores = False  # of sums of products from the threads that have them, which fill whole sectors
        self.warpgroups = target.wgmma  # whether products may be warpgroups'
        self.copied = False  # whether loops copy operands of products by multiply-add ahead
        self.operands: set[LinearLayout] = set()  # in which such products want them

    def region(self, region: Region) -> None:
        for operation in region.operations:
            self.operation(operation)

    def operation(self, operation: Operation) -> None:
        opcode = operation.opcode
        for operand in operation.operands:
            self.refresh(operand)
        rule = LAYOUT_RULES.get(opcode)
        if rule is not None:
            rule(self, operation)
        elif opcode in ELEMENTWISE:
            self._elementwise(operation)
        elif any(value.type.rank for value in (*operation.operands, *operation.results)):
            place = f"{operation.location}: " if operation.location else ""
            raise CompilationError(f"{place}no layout rule of the NVIDIA target knows '{opcode}'")

    def finish(self) -> None:
        """Blocks that are open still get what their neighbours have, or the layout of their shape."""
        for value in list(self.open):
            self.settle(value)

    def refresh(self, value: Value) -> None:
        """An open block follows what it is computed from, or what flows into the loop that carries it, once that has
        been anchored."""
        seen, path = {value}, [value] if value in self.open else []
        while path:
            operation = path[-1].definition
            moved = operation if operation is not None and operation.opcode in (*ELEMENTWISE, *_MOVING) else None
            sources = moved.operands if moved is not None else self.groups.get(path[-1], [])
            home = next((self.home[source] for source in sources if source in self.home), None)
            further = next((source for source in sources if source in self.open and source not in seen), None)
            if home is not None:
                self.demand(path.pop(), result_layout(moved, home) if moved is not None else home)
            elif further is None:
                path.pop()
            else:
                seen.add(further)
                path.append(further)

    # Asking and deciding -------------------------------------------------------------------------

    def default(self, value: Value) -> LinearLayout:
        """The layout of a block of which nothing else is known."""
        return transfer.default_layout(value.type.shape, value.type.element.bits // 8 or 1, self.warps)

    def settle(self, value: Value) -> LinearLayout:
        """The layout of an operand that may have any: its own, or the default, which it then gets."""
        self.refresh(value)
        if value not in self.home:
            layout = self.default(value)
            self.demand(value, layout)
            return self.home.get(value, layout)
        return self.home[value]

    def anchor(self, value: Value, layout: LinearLayout) -> None:
        self.home[value] = layout
        self.open.pop(value, None)

    def demand(self, value: Value, layout: LinearLayout) -> None:
        """A user wants `value` in `layout`: open blocks behind it take what follows from that."""
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
        self, value: Value, operation: Operation | None, layout: LinearLayout
    ) -> list[tuple[Value, LinearLayout]]:
        """An open block gets its layout; what that means for others."""
        if operation is not None and operation.opcode == "load":
            layout = self._load_layout(operation, layout)
        self.anchor(value, layout)
        if value in self.groups:
            return [(member, layout) for member in self.groups[value]]
        if operation is None:
            return []
        if operation.opcode == "load":
            self.working[operation] = layout
            self.required[operation] = [layout] * len(operation.operands)
            return [(operand, layout) for operand in operation.operands]
        self.required[operation] = [
            operand_layout(operation, number, layout) for number in range(len(operation.operands))
        ]
        return self._wanted_operands(operation, layout)

    def _wanted_operands(self, operation: Operation, layout: LinearLayout) -> list[tuple[Value, LinearLayout]]:
        wanted = [(operand, operand_layout(operation, n, layout)) for n, operand in enumerate(operation.operands)]
        return [(operand, needed) for operand, needed in wanted if needed is not None]

    def require(self, operation: Operation, layouts: Sequence[LinearLayout | None]) -> None:
        """Fix what an operation needs of its operands."""
        self.required[operation] = list(layouts)
        for operand, layout in zip(operation.operands, layouts, strict=True):
            if layout is not None:
                self.demand(operand, layout)

    def moved(self, operands: Sequence[Value], layout: LinearLayout) -> float:
        """The cost of bringing anchored operands into a layout."""
        return sum(
            transfer.conversion_cost(self.home[value], layout, element_bits(value))
            for value in operands
            if value in self.home
        )

    # Loops and branches --------------------------------------------------------------------------

    def link(self, own: Sequence[Value], others: Sequence[Value]) -> None:
        """Blocks `own` that a loop or a branch defines and `others` that flow into them: of one layout."""
        if own[0].type.is_scalar:
            return
        group = [*own, *others]
        for value in own:
            self.open[value] = None
            self.groups[value] = group

    def close(self, own: Value, others: Sequence[Value]) -> None:
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
        combined = self.combined.get(shape) if len(shape) > 1 else None
        return transfer.blocked_layout(shape, access.axis, access.elements, self.warps, combined)

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
        return min(candidates, key=lambda layout: self.access_cost(operation, layout) + self.moved(operands, layout))


# Rules -------------------------------------------------------------------------------------------


def _flexible(assigner: Assigner, operation: Operation) -> None:
    for result in operation.results:
        if result.type.rank:
            assigner.flexible[result] = 1


def _no_layout(assigner: Assigner, operation: Operation) -> None:
    """Operations on scalars alone, or that take blocks as they are."""
    assigner.require(operation, [assigner.settle(value) if value.type.rank else None for value in operation.operands])


def _spread(assigner: Assigner, operation: Operation) -> None:
    """Broadcasts are made again wherever they are wanted, out of their small operand."""
    (operand,) = operation.operands
    if operation.result.type.rank:
        assigner.flexible[operation.result] = 1 + assigner.flexible.get(operand, 0)


def _move(assigner: Assigner, operation: Operation) -> None:
    """permute, reshape, join, cat: the layout follows the operand, so that nothing moves."""
    blocks = [value for value in operation.operands if value.type.rank]
    if not moves_by_registers(operation):
        _through_memory(assigner, operation)
        return
    home = next((assigner.home[value] for value in blocks if value in assigner.home), None)
    if home is None and operation.opcode in ("join", "cat"):
        home = assigner.settle(blocks[0])
    if home is None:
        assigner.unanchored(operation)
        return
    if operation.result.type.rank:
        assigner.anchor(operation.result, result_layout(operation, home))
    assigner.require(operation, [home if value.type.rank else None for value in operation.operands])


def moves_by_registers(operation: Operation) -> bool:
    """Whether a shape operation only gives other names to registers."""
    shapes = [value.type.shape for value in (*operation.operands, *operation.results)]
    if operation.opcode == "reshape":
        return transfer.reshapes_bits(shapes[0], shapes[1])
    if operation.opcode == "join":
        return bool(operation.operands[0].type.rank)
    if operation.opcode == "split":
        return operation.operands[0].type.rank > 1
    if operation.opcode == "cat":
        equal = len({value.type.shape for value in operation.operands}) == 1
        return equal and transfer.is_padded(shapes[0]) and transfer.is_padded(shapes[-1])
    return True


def _through_memory(assigner: Assigner, operation: Operation) -> None:
    """Shape operations that renumber elements in no linear way: operands as they are, the result by default."""
    _no_layout(assigner, operation)
    for result in operation.results:
        if result.type.rank:
            assigner.anchor(result, assigner.default(result))


def _split(assigner: Assigner, operation: Operation) -> None:
    """The halves stay in their threads if the operand is laid out so; else it is made so first."""
    (operand,) = operation.operands
    if operand.type.rank == 1:
        _no_layout(assigner, operation)
        return
    layout = assigner.settle(operand)
    halves = transfer.split(layout)
    if halves is None:
        half = transfer.default_layout(
            operation.results[0].type.shape, operand.type.element.bits // 8 or 1, assigner.warps
        )
        layout, halves = transfer.joined(half), (half, 0)
    assigner.require(operation, [layout])
    for result in operation.results:
        assigner.anchor(result, halves[0])


def _load(assigner: Assigner, operation: Operation) -> None:
    if operation.result.type.is_scalar:
        return
    anchored = any(value in assigner.home for value in operation.operands)
    small = operation.result.type.size * _SMALL <= assigner.largest or _is_spread(operation, assigner)
    if (small or assigner.direct_loads) and not anchored:
        assigner.open[operation.result] = None  # small: in the layout of what it is combined with
        return
    _access(assigner, operation)


def _is_spread(operation: Operation, assigner: Assigner) -> bool:
    """Whether a load is of one row, or so, of the blocks that others access: what all their rows are combined with."""
    shape = operation.operands[0].type.shape
    others = (other.operands[0].type.shape for other in assigner.accesses)
    return 1 in shape and any(
        len(other) == len(shape)
        and other != shape
        and all(own in (1, extent) for own, extent in zip(shape, other, strict=True))
        for other in others
    )


def _access(assigner: Assigner, operation: Operation) -> None:
    """Done in the cheapest layout, in which results stay."""
    if operation.operands[0].type.is_scalar:
        return
    layout = assigner.best_access(operation)
    assigner.working[operation] = layout
    assigner.require(operation, [layout] * len(operation.operands))
    for result in operation.results:
        assigner.anchor(result, layout)


def _for(assigner: Assigner, operation: Operation) -> None:
    body = operation.regions[0]
    carried, initial = body.arguments[1:], operation.operands[3:]
    for argument, result, start in zip(carried, operation.results, initial, strict=True):
        assigner.link([argument, result], [start])
    assigner.region(body)
    for argument, end in zip(carried, body.terminator.operands, strict=True):
        assigner.close(argument, [end])
    assigner.flow[operation] = [None, None, None, *carried]
    assigner.flow[body.terminator] = list(carried)


def _while(assigner: Assigner, operation: Operation) -> None:
    before, after = operation.regions
    for argument, start in zip(before.arguments, operation.operands, strict=True):
        assigner.link([argument], [start])
    assigner.region(before)
    forwarded = before.terminator.operands[1:]
    for argument, result, source in zip(after.arguments, operation.results, forwarded, strict=True):
        assigner.link([argument, result], [])
        assigner.close(argument, [source])
    assigner.region(after)
    for argument, end in zip(before.arguments, after.terminator.operands, strict=True):
        assigner.close(argument, [end])
    assigner.flow[operation] = list(before.arguments)
    assigner.flow[before.terminator] = [None, *after.arguments]
    assigner.flow[after.terminator] = list(before.arguments)


def _if(assigner: Assigner, operation: Operation) -> None:
    for region in operation.regions:
        assigner.region(region)
        assigner.flow[region.terminator] = list(operation.results)
    ends = [region.terminator.operands for region in operation.regions]
    for result, then, otherwise in zip(operation.results, *ends, strict=True):
        assigner.link([result], [])
        assigner.close(result, [then, otherwise])


def _end(assigner: Assigner, operation: Operation) -> None:
    """Terminators: what they need stands in `flow`."""


def _reduce(assigner: Assigner, operation: Operation) -> None:
    """All operands as the dearest of them; the results are slices of that."""
    layout = _common(assigner, operation)
    axis = operation.attributes["axis"]
    assert isinstance(axis, int)
    if not transfer.separable(layout, axis):
        layout = assigner.default(operation.operands[0])
    assigner.working[operation] = layout
    assigner.require(operation, [layout] * len(operation.operands))
    for result in operation.results:
        if result.type.rank:
            assigner.anchor(result, _handed_over(assigner, operation, layout, axis) or transfer.reduced(layout, axis))


def _handed_over(assigner: Assigner, operation: Operation, layout: LinearLayout, axis: int) -> LinearLayout | None:
    """Where a store would like a result that warps exchange anyway, when each thread has less to combine there.

    A slice of the operand is the same in all these warps: each would combine all that its threads have in common.
    """
    store, result = assigner.stored.get(operation), operation.results[0]
    if store is None or layout.shape[axis] != operation.operands[0].type.shape[axis]:
        return None
    access = assigner.accesses[store]
    elements = max(
        1, min(access.elements, prod(transfer.padded(result.type.shape)) // (transfer.LANES * assigner.warps))
    )
    wanted = transfer.blocked_layout(result.type.shape, access.axis, elements, assigner.warps)
    along = any(vector[axis] for vector in layout.vectors("warp"))
    fewer = wanted.size("register") < transfer.reduced(layout, axis).size("register")
    return wanted if along and fewer else None


def _common(assigner: Assigner, operation: Operation) -> LinearLayout:
    """One layout for blocks of one shape: of those there are, the cheapest for all."""
    homes = list(dict.fromkeys(assigner.home[value] for value in operation.operands if value in assigner.home))
    if not homes:
        return assigner.settle(operation.operands[0])
    return min(homes, key=lambda home: assigner.moved(operation.operands, home))


def _scan(assigner: Assigner, operation: Operation) -> None:
    """In place; a layout whose bits along the axis are mixed with others is left first."""
    layout = _common(assigner, operation)
    axis = operation.attributes["axis"]
    assert isinstance(axis, int)
    if not transfer.separable(layout, axis):
        layout = assigner.default(operation.operands[0])
    assigner.require(operation, [layout] * len(operation.operands))
    for result in operation.results:
        assigner.anchor(result, layout)


def _map(assigner: Assigner, operation: Operation) -> None:
    """A function of each element: everything in one layout."""
    if not operation.operands or operation.operands[0].type.is_scalar:
        return
    layout = _common(assigner, operation)
    assigner.require(operation, [layout] * len(operation.operands))
    for result in operation.results:
        assigner.anchor(result, layout)


def _gather(assigner: Assigner, operation: Operation) -> None:
    """The source goes through memory, from where it is; the result is where the indices are."""
    source, index = operation.operands
    layout = assigner.settle(index)
    assigner.require(operation, [assigner.settle(source), layout])
    assigner.anchor(operation.result, layout)


def _dot(assigner: Assigner, operation: Operation) -> None:
    """As the instruction wants it; of several widths the one that is cheapest for what the operands come from."""
    if assigner.warpgroups and _warpgroup_dot(assigner, operation):
        return
    instruction = instruction_of(operation, assigner.target)
    accumulator = operation.operands[2]
    if instruction is None:
        multiply_add(assigner, operation)
        return
    rows, columns = accumulator.type.shape
    grid = dot_layout.warp_grid(rows, columns, assigner.warps, operation in assigner.chained)
    streamed = all(map(dot_layout.loaded, operation.operands[:2]))
    choices = [
        dot_layout.product_layouts(operation, instruction, grid, width)
        for width in dot_layout.widths(operation, instruction, streamed=streamed)
    ]

    def cost(layouts: dot_layout.ProductLayouts) -> float:
        pairs = zip(operation.operands, (layouts.a, layouts.b), strict=False)
        return sum(assigner.moved([value], layout) for value, layout in pairs)

    chosen = min(choices, key=cost)
    assigner.require(operation, [chosen.a, chosen.b, chosen.accumulator])
    assigner.anchor(operation.result, chosen.accumulator)


def _warpgroup_dot(assigner: Assigner, operation: Operation) -> bool:
    """Lay a product out for wgmma, if it is one; operands in shared memory are wanted in the layout of a tile."""
    chained = operation in assigner.chained
    product = warpgroup_layout.warpgroup_product(operation, assigner.target, assigner.warps, chained)
    operands = operation.operands[:2]
    if product is None or any(value in assigner.flexible for value in operands):
        return False
    for load in map(dot_layout.load_of, operands):
        if load and load.result in assigner.open:  # tiles are copied as memory has them, small ones too
            assigner.demand(load.result, assigner.coalesced(load))
    homes = [assigner.settle(value) for value in operands]
    layouts = warpgroup_layout.operand_layouts(operation, product, homes, dot_layout.loaded(operands[0]))
    if layouts is not None:
        assigner.require(operation, [*layouts, product.accumulator()])
        assigner.anchor(operation.result, product.accumulator())
    return layouts is not None


LAYOUT_RULES: dict[str, Rule] = {
    "dot": _dot,
    "constant": _flexible,
    "arange": _flexible,
    "splat": _flexible,
    "program_id": _flexible,
    "num_programs": _flexible,
    "expand_dims": _spread,
    "broadcast": _spread,
    "reshape": _move,
    "permute": _move,
    "join": _move,
    "cat": _move,
    "split": _split,
    "gather": _gather,
    "load": _load,
    "store": _access,
    "atomic_rmw": _access,
    "atomic_cas": _access,
    "reduce": _reduce,
    "scan": _scan,
    "map": _map,
    "inline_asm": _map,
    "for": _for,
    "while": _while,
    "if": _if,
    "yield": _end,
    "condition": _end,
    "return": _end,
    "assume": _no_layout,
    "assert": _no_layout,
    "print": _no_layout,
    "barrier": _no_layout,
    **explicit_rules.RULES,
}


# Wishes ------------------------------------------------------------------------------------------


class _Wishes:
    """Walks backwards: `wanted` gets, for every block, the layouts that its users need it in."""

    def __init__(self, assigner: Assigner) -> None:
        self.assigner = assigner
        self.wanted: dict[Value, dict[LinearLayout, None]] = {}

    def region(self, region: Region) -> None:
        for operation in reversed(region.operations):
            self.operation(operation)

    def operation(self, operation: Operation) -> None:
        if operation.opcode not in SCALAR_REGIONS:
            for region in reversed(operation.regions):
                self.region(region)
        if any(result in self.assigner.flexible for result in operation.results):
            for layout in self.wanted.get(operation.result, ()):
                for number, operand in enumerate(operation.operands):
                    self.wish(operand, operand_layout(operation, number, layout))
            return
        for operand, need in zip(operation.operands, needs_of(self.assigner, operation), strict=True):
            self.wish(operand, need)

    def wish(self, value: Value, layout: LinearLayout | None) -> None:
        if layout is not None and value.type.rank:
            self.wanted.setdefault(value, {})[layout] = None


def needs_of(assigner: Assigner, operation: Operation) -> list[LinearLayout | None]:
    """The layouts in which an operation that is not flexible needs its operands."""
    if operation in assigner.flow:
        return [assigner.home.get(value) if value is not None else None for value in assigner.flow[operation]]
    return assigner.required.get(operation, [None] * len(operation.operands))


# Writing -----------------------------------------------------------------------------------------


class _Writer(Rebuilder):
    """Writes the kernel again, every block in each layout that is wanted of it."""

    def __init__(self, assigner: Assigner, wanted: Mapping[Value, Mapping[LinearLayout, None]]) -> None:
        super().__init__()
        self.assigner = assigner
        self.wanted = wanted
        self.layouts: dict[Value, LinearLayout] = {}
        self.working: dict[Operation, LinearLayout] = {}
        self.written: dict[tuple[Value, LinearLayout], Value] = {}

    def run(self, function: Function) -> Function:
        region = self.copy_region(function.region)
        return Function(function.name, region, list(function.parameters), dict(function.attributes))

    def copy_region(self, region: Region) -> Region:
        copy = self.region([value.type for value in region.arguments], [value.name for value in region.arguments])
        with self.at(copy):
            for old, new in zip(region.arguments, copy.arguments, strict=True):
                self.defined(old, new, self.assigner.home.get(old), None)
            for operation in region.operations:
                self.copy(operation)
        return copy

    def copy(self, operation: Operation) -> None:
        self.location = operation.location
        if any(result in self.assigner.flexible for result in operation.results):
            for layout in self.wanted.get(operation.result, ()):
                needs: list[LinearLayout | None] = [
                    operand_layout(operation, number, layout) for number in range(len(operation.operands))
                ]
                (result,) = self.append(operation, needs, [layout]).results
                self.written[operation.result, layout] = result
                self.layouts[result] = layout
            return
        homes: list[LinearLayout | None] = [self.assigner.home.get(result) for result in operation.results]
        copy = self.append(operation, needs_of(self.assigner, operation), homes)
        if operation in self.assigner.working:
            self.working[copy] = self.assigner.working[operation]
        for old, new, home in zip(operation.results, copy.results, homes, strict=True):
            self.defined(old, new, home, operation)

    def append(
        self, operation: Operation, needs: Sequence[LinearLayout | None], homes: Sequence[LinearLayout | None]
    ) -> Operation:
        """A copy of an operation on operands in the layouts that it needs."""
        operands = [self.operand(value, layout) for value, layout in zip(operation.operands, needs, strict=True)]
        regions = [self.copy_region(region) for region in operation.regions]
        attributes: dict[str, Attribute] = dict(operation.attributes)
        texts = tuple(str(home) if home is not None else "" for home in homes)
        if any(texts):
            attributes[LAYOUT_ATTRIBUTE] = texts[0] if len(texts) == 1 else texts
        copy = Operation(
            operation.opcode, operands, list(operation.result_types), attributes, regions, operation.location
        )
        for old, new in zip(operation.results, copy.results, strict=True):
            new.name = old.name
        self.current.operations.append(copy)
        return copy

    def operand(self, value: Value, layout: LinearLayout | None) -> Value:
        if layout is None:
            return self.mapping.get(value, value)
        return self.written[value, layout]

    def defined(self, old: Value, new: Value, home: LinearLayout | None, operation: Operation | None) -> None:
        """A value that stands where it stands; conversions follow for the other layouts that are wanted of it."""
        self.mapping[old] = new
        if home is None:
            return
        self.layouts[new] = home
        self.written[old, home] = new
        for layout in self.wanted.get(old, ()):
            if layout != home:
                self.written[old, layout] = self.convert(new, home, layout)

    def convert(self, value: Value, home: LinearLayout, layout: LinearLayout) -> Value:
        if layout in self.assigner.operands:
            plan = _COPIED
        elif warpgroup_layout.is_tile(layout):
            plan = "a tile in shared memory"
        else:
            plan = str(conversion_plan(home, layout, element_bits(value)))
        attributes: dict[str, Attribute] = {"order": tuple(range(value.type.rank))}
        attributes |= {LAYOUT_ATTRIBUTE: str(layout), CONVERSION_ATTRIBUTE: plan}
        converted = self.create("permute", [value], attributes).result
        self.layouts[converted] = layout
        return converted
