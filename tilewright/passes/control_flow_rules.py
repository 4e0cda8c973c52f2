"""Rules for branches whose condition is known and loops whose number of iterations is."""

from __future__ import annotations

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.rewrite import RewriteTable, RuleRewriter, constant_of

CONTROL_FLOW_RULES = RewriteTable("control flow")
on = CONTROL_FLOW_RULES.on


@on("if")
def if_constant(operation: Operation, build: RuleRewriter) -> list[SSAValue] | None:
    """The branch that is taken."""
    known = constant_of(operation.operands[0])
    return None if known is None else build.inline(operation.regions[0 if known else 1], [])


@on("if")
def if_empty(operation: Operation, build: RuleRewriter) -> list[SSAValue] | None:
    """Branches that do nothing but yield: selects (no value: nothing)."""
    if any(len(region.operations) > 1 for region in operation.regions):
        return None
    then, otherwise = (region.terminator.operands for region in operation.regions)
    results = []
    for left, right in zip(then, otherwise, strict=True):
        condition = operation.operands[0]
        if left.type.shape:
            condition = build.emit("splat", condition, shape=left.type.shape)
        results.append(left if left is right else build.emit("select", condition, left, right))
    return results


@on("for")
def loop_trips(operation: Operation, build: RuleRewriter) -> list[SSAValue] | None:
    """No iteration: the initial values. One iteration: the body."""
    lower, upper, step = (constant_of(value) for value in operation.operands[:3])
    if lower is None or upper is None:
        return None
    if lower >= upper:
        return list(operation.operands[3:])
    if step is None or step <= 0 or lower + step < upper:
        return None
    return build.inline(operation.regions[0], [operation.operands[0], *operation.operands[3:]])


@on("for")
def loop_carries_the_same(operation: Operation, build: RuleRewriter) -> list[SSAValue] | None:
    """A carried value that every iteration hands on as it is (or as it began) needs not be carried."""
    (body,) = operation.regions
    initial, carried = operation.operands[3:], body.arguments[1:]
    yielded = body.terminator.operands
    same = [new in (old, first) for old, first, new in zip(carried, initial, yielded, strict=True)]
    if not any(same):
        return None
    still_carried = [position for position, unchanged in enumerate(same) if not unchanged]
    region = build.region([body.arguments[0].type, *(carried[position].type for position in still_carried)])
    for new, old in zip(
        region.arguments, [body.arguments[0], *(carried[position] for position in still_carried)], strict=True
    ):
        new.name = old.name
    arguments = iter(region.arguments[1:])
    bound = [first if unchanged else next(arguments) for first, unchanged in zip(initial, same, strict=True)]
    with build.at(region):
        values = build.inline(body, [region.arguments[0], *bound])
        build.create("yield", [values[position] for position in still_carried])
    operands = [*operation.operands[:3], *(initial[position] for position in still_carried)]
    results = iter(build.emit_all("for", operands, operation.attributes, [region]))
    return [first if unchanged else next(results) for first, unchanged in zip(initial, same, strict=True)]


@on("while")
def while_false(operation: Operation, build: RuleRewriter) -> list[SSAValue] | None:
    """A condition that is never true: the first region runs once."""
    before = operation.regions[0]
    if constant_of(before.terminator.operands[0]) is not False:
        return None
    return build.inline(before, operation.operands)[1:]
