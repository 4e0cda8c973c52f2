"""The layout rules of operations: the layouts of their operands and results."""

from __future__ import annotations

from math import prod

from tilewright.ir.core import Operation
from tilewright.layout import LinearLayout
from tilewright.targets.gpu import transfer
from tilewright.targets.gpu.assigner import Assigner, Rule
from tilewright.targets.gpu.dot_scalar_layout import multiply_add
from tilewright.targets.gpu.transfer import moves_by_registers, result_layout

_WORTH_MOVING = 4 / 3  # times faster, to pay for waiting
_SCANNED_BYTES = 16 << 10  # of a block that is moved for a scan: more of shared memory leaves fewer CTAs room

_SMALL = 8  # a load of so much less than the largest access waits for what it is combined with


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
    if assigner.direct_loads and operand in assigner.open:
        assigner.open |= dict.fromkeys(operation.results)  # as what they are combined with wants them
        return
    layout = assigner.settle(operand)
    halves = transfer.split(layout)
    if halves is None:
        half = assigner.default_of(operation.results[0].type.shape, operand.type.element.bits)
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
    each = prod(transfer.padded(result.type.shape)) // (assigner.lanes * assigner.warps)
    elements = max(1, min(access.elements, each))
    wanted = transfer.blocked_layout(result.type.shape, access.axis, elements, assigner.warps, assigner.lanes)
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
    """In place, unless another layout saves more than moving there and back takes; a layout whose bits along the axis
    are mixed with others is left first."""
    layout = _common(assigner, operation)
    axis = operation.attributes["axis"]
    assert isinstance(axis, int)
    if not transfer.separable(layout, axis):
        layout = assigner.default(operation.operands[0])
    layout = _faster_scan(assigner, operation, layout, axis)
    assigner.require(operation, [layout] * len(operation.operands))
    for result in operation.results:
        assigner.anchor(result, layout)


def _faster_scan(assigner: Assigner, operation: Operation, layout: LinearLayout, axis: int) -> LinearLayout:
    """The layout in which threads have as many neighbours along the axis as they have elements, where that is faster;
    else the given one."""
    shape, bits = layout.shape, sum(transfer.element_bits(value) for value in operation.operands)
    each = min(shape[axis], prod(shape) // (assigner.lanes * assigner.warps))
    if each < 2 or prod(shape) * bits > 8 * _SCANNED_BYTES:
        return layout
    other = transfer.blocked_layout(shape, axis, each, assigner.warps, assigner.lanes, combined=axis)
    if not transfer.separable(other, axis):
        return layout
    before, after = (transfer.scan_cost(each, axis) * len(operation.operands) for each in (layout, other))
    after += transfer.conversion_cost(layout, other, bits) + transfer.conversion_cost(other, layout, bits)
    return other if _WORTH_MOVING * after < before else layout


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


LAYOUT_RULES: dict[str, Rule] = {
    "dot": multiply_add,
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
}
