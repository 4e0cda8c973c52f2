"""Rules that combine shape operations and move them."""

from __future__ import annotations

from tilewright.dtypes import int32
from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.ops import REARRANGING
from tilewright.ir.rewrite import RewriteTable, RuleRewriter, constant_of, defined_by

SHAPE_RULES = RewriteTable("shape")
on = SHAPE_RULES.on


@on("arange")
def range_of_one(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """A range of one number is that number."""
    start, shape = operation.attributes["start"], operation.result.type.shape
    assert isinstance(start, int)
    return build.constant(start, int32, shape) if shape == (1,) else None


@on(*REARRANGING, "hint")
def of_constant(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """A constant block of the new shape."""
    number = constant_of(operation.operands[0])
    type_ = operation.result.type
    return None if number is None else build.constant(number, type_.dtype, type_.shape)


@on(*REARRANGING)
def of_splat(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """A splat of the new shape (a scalar for rank 0)."""
    splat = defined_by(operation.operands[0], "splat")
    if splat is None:
        return None
    shape = operation.result.type.shape
    return build.emit("splat", splat.operands[0], shape=shape) if shape else splat.operands[0]


@on("splat", "broadcast", "reshape")
def to_same_shape(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """Nothing to do."""
    (source,) = operation.operands
    return source if source.type == operation.result.type else None


@on("broadcast")
def broadcast_of_broadcast(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """Both stretch axes of extent 1: one step does."""
    inner = defined_by(operation.operands[0], "broadcast")
    return None if inner is None else build.emit("broadcast", inner.operands[0], **operation.attributes)


@on("reshape")
def reshape_of_reshape(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """reshape(reshape(x)) and reshape(expand_dims(x)) keep the row-major order of x."""
    inner = operation.operands[0].definition
    if inner is None or inner.opcode not in ("reshape", "expand_dims"):
        return None
    return build.emit("reshape", inner.operands[0], **operation.attributes)


@on("reshape")
def reshape_as_expand(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """A reshape that inserts one axis of extent 1 is expand_dims, which is easier to see through."""
    (source,) = operation.operands
    old, new = source.type.shape, operation.result.type.shape
    if len(new) != len(old) + 1:
        return None
    for axis, extent in enumerate(new):
        if extent == 1 and new[:axis] + new[axis + 1 :] == old:
            return build.emit("expand_dims", source, axis=axis)
    return None


@on("permute")
def permute_nothing(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """The order 0, 1, 2, …"""
    order = operation.attributes["order"]
    return operation.operands[0] if order == tuple(range(operation.result.type.rank)) else None


@on("permute")
def permute_of_permute(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """Axis i of the result is axis inner[outer[i]] of the first source."""
    inner = defined_by(operation.operands[0], "permute")
    if inner is None:
        return None
    outer_order, inner_order = operation.attributes["order"], inner.attributes["order"]
    assert isinstance(outer_order, tuple) and isinstance(inner_order, tuple)
    return build.emit("permute", inner.operands[0], order=tuple(inner_order[axis] for axis in outer_order))  # type: ignore[index]


@on("split")
def split_of_join(operation: Operation, build: RuleRewriter) -> list[SSAValue] | None:
    """split(join(x, y)) = x, y."""
    inner = defined_by(operation.operands[0], "join")
    return None if inner is None else list(inner.operands)


@on("join")
def join_of_split(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """join(split(x)) = x."""
    left, right = operation.operands
    split = defined_by(left, "split")
    return split.operands[0] if split is not None and split.results == [left, right] else None


@on("reduce")
def reduce_single(operation: Operation, build: RuleRewriter) -> list[SSAValue] | None:
    """A reduction of one element is that element."""
    axis = operation.attributes["axis"]
    assert isinstance(axis, int)
    if operation.operands[0].type.shape[axis] != 1:
        return None
    shapes = [value.type.shape for value in operation.results]
    return [build.emit("reshape", value, shape=shape) for value, shape in zip(operation.operands, shapes, strict=True)]


@on("scan")
def scan_single(operation: Operation, build: RuleRewriter) -> list[SSAValue] | None:
    """A scan of one element is that element."""
    axis = operation.attributes["axis"]
    assert isinstance(axis, int)
    return list(operation.operands) if operation.operands[0].type.shape[axis] == 1 else None
