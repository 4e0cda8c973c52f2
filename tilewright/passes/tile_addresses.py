"""Cheaper addresses and bounds of tiles of strided tensors (block pointers, tensor descriptors).

The front end counts a tile's elements in 64 bits.  In a loop that moves the tile, most of that can be done by scalars:

    base + (offset + range) * stride            ->   (base + offset * stride) + range * stride
    0 <= offset + range < extent, in 64 bits    ->   offset + range < extent, unsigned and in 32 bits

What is left of an address to be computed for each element does not change in the loop.  The comparison holds for sums
from -2^31 up to 2^32, whose unsigned low words are at least 2^31, or the sum itself; extents are below 2^31.
"""

from __future__ import annotations

from tilewright import dtypes
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.rewrite import RewriteTable, RuleRewriter, constant_of, defined_by, rewrite

ADDRESS_RULES, BOUND_RULES = RewriteTable("tile addresses"), RewriteTable("tile bounds")

Range = tuple[int, int]  # the least and the greatest number

_REGISTERS_WITHOUT_SUMS = 56  # that a thread takes besides sums of products and addresses, about
_ACCESS_BYTES = 16  # of one access of a thread, for each of which a loop keeps an address


def simplify_tile_addresses(function: Function, threads: int, registers: int) -> Function:
    """`function`, to be run by CTAs of so many threads, with these rules applied; the same object where none matches.

    Addresses stay as they are where those of a loop's loads find no room besides its sums of products in the
    `registers` that a thread may have: to compute them again takes less than to keep them elsewhere.
    """
    loops = [operation for operation in function.walk() if operation.opcode == "for"]
    roomy = all(_registers(loop, threads) <= registers for loop in loops)
    return rewrite(function, ADDRESS_RULES + BOUND_RULES if roomy else BOUND_RULES)


def _registers(loop: Operation, threads: int) -> int:
    """What a thread takes for a loop, about: its sums of products, and 64-bit addresses of its loads."""
    sums = addresses = 0
    for operation in loop.walk():
        if operation.opcode == "dot":
            sums += operation.result.type.size // threads
        elif operation.opcode == "load" and operation.result.type.rank:
            size = operation.result.type.size * operation.result.type.element.bits // 8
            addresses += 2 * -(-size // (_ACCESS_BYTES * threads))
    return _REGISTERS_WITHOUT_SUMS + sums + addresses


# Addresses ---------------------------------------------------------------------------------------


@ADDRESS_RULES.on("multiply")
def distribute(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """(splat(s) + x) * splat(t) = splat(s * t) + x * splat(t), for 64-bit blocks."""
    left, right = operation.operands
    factor = _scalar(right)
    if not left.type.rank or left.type.dtype != dtypes.int64 or factor is None or _scalar(left) is not None:
        return None
    parts = _parts(left, build)
    if parts is None:
        return None
    number, rest = parts
    moved = build.emit("splat", build.emit("multiply", number, factor), shape=left.type.shape)
    return build.emit("add", moved, build.emit("multiply", rest, right))


@ADDRESS_RULES.on("offset")
def move_scalar(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """splat(p) + (splat(s) + x) = splat(p + s) + x."""
    pointers, distance = operation.operands
    base = _scalar(pointers)
    if base is None or distance.type.dtype != dtypes.int64:
        return None
    own = _scalar(distance)
    if own is not None:
        return build.emit("splat", build.emit("offset", base, own), shape=pointers.type.shape)
    parts = _parts(distance, build)
    if parts is None:
        return None
    number, rest = parts
    moved = build.emit("splat", build.emit("offset", base, number), shape=pointers.type.shape)
    return build.emit("offset", moved, rest)


@ADDRESS_RULES.on("offset")
def gather_distances(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """broadcast(splat(p) + x) + y = splat(p) + (broadcast(x) + y): what is added to a scalar is one block."""
    pointers, distance = operation.operands
    shape = pointers.type.shape
    inner, widened = pointers.definition, False
    if inner is not None and inner.opcode == "broadcast":
        inner, widened = inner.operands[0].definition, True
    if inner is None or inner.opcode != "offset":
        return None
    base, first = _scalar(inner.operands[0]), inner.operands[1]
    if base is None or first.type.dtype != dtypes.int64 or _scalar(first) is not None:
        return None
    if widened:
        first = build.emit("broadcast", first, shape=shape)
    second = distance if distance.type.dtype == dtypes.int64 else build.emit("cast", distance, dtype=dtypes.int64)
    return build.emit("offset", build.emit("splat", base, shape=shape), build.emit("add", first, second))


def _scalar(block: SSAValue) -> SSAValue | None:
    """The scalar that a block repeats."""
    definition = defined_by(block, "splat")
    return None if definition is None else definition.operands[0]


def _parts(block: SSAValue, build: RuleRewriter) -> tuple[SSAValue, SSAValue] | None:
    """A scalar and a block whose sum a block is; None where there is no such scalar."""
    definition = block.definition
    if definition is None:
        return None
    if definition.opcode == "add":
        for one, other in (definition.operands, definition.operands[::-1]):
            number = _scalar(one)
            if number is not None:
                return number, other
    if definition.opcode in ("expand_dims", "broadcast"):
        parts = _parts(definition.operands[0], build)
        if parts is not None:
            return parts[0], build.create(definition.opcode, [parts[1]], definition.attributes).result
    return None


# Bounds ------------------------------------------------------------------------------------------


@BOUND_RULES.on("and")
def one_comparison(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """0 <= x & x < n in 64 bits is one unsigned comparison of the low words."""
    least, greatest = (operand.definition for operand in operation.operands)
    if least is None or greatest is None or least.opcode != "compare" or greatest.opcode != "compare":
        return None
    if (least.attributes["predicate"], greatest.attributes["predicate"]) != ("ge", "lt"):
        return None
    number, limit = greatest.operands
    if least.operands[0] is not number or constant_of(least.operands[1]) != 0:
        return None
    if not number.type.rank or number.type.dtype != dtypes.int64:
        return None
    inside, most = _range(number), _range(limit)
    if inside is None or most is None or not (-(2**31) <= inside[0] and inside[1] < 2**32):
        return None
    if not (-(2**31) <= most[0] and most[1] < 2**31):
        return None
    low, bound = _low_word(number, build), _low_word(limit, build)
    if low is None or bound is None:
        return None
    if most[0] < 0:
        bound = build.emit("maximum", bound, build.like(bound, 0))
    words = [build.emit("cast", value, dtype=dtypes.uint32) for value in (low, bound)]
    return build.emit("compare", *words, predicate="lt")


def _range(value: SSAValue) -> Range | None:
    """Bounds of a 64-bit number that hold whatever the kernel is given."""
    number = constant_of(value)
    if number is not None:
        return int(number), int(number)
    definition = value.definition
    if definition is None:
        return None
    if definition.opcode in ("splat", "expand_dims", "broadcast"):
        return _range(definition.operands[0])
    if definition.opcode == "arange":
        start, end = (definition.attributes[name] for name in ("start", "end"))
        assert isinstance(start, int) and isinstance(end, int)
        return start, end - 1
    if definition.opcode == "cast" and definition.operands[0].type.dtype == dtypes.int32:
        return _range(definition.operands[0]) or (-(2**31), 2**31 - 1)
    if definition.opcode == "add" and value.type.dtype == dtypes.int64:
        left, right = (_range(operand) for operand in definition.operands)
        return None if left is None or right is None else (left[0] + right[0], left[1] + right[1])
    return None


def _low_word(value: SSAValue, build: RuleRewriter) -> SSAValue | None:
    """A 64-bit number modulo 2^32, as an int32."""
    definition = value.definition
    number = constant_of(value)
    if number is not None:
        wrapped = (int(number) + 2**31) % 2**32 - 2**31
        return build.constant(wrapped, dtypes.int32, value.type.shape)
    if definition is None:
        return None
    if definition.opcode == "cast" and definition.operands[0].type.dtype == dtypes.int32:
        return definition.operands[0]
    if definition.opcode in ("splat", "expand_dims", "broadcast"):
        inner = _low_word(definition.operands[0], build)
        return None if inner is None else build.create(definition.opcode, [inner], definition.attributes).result
    if definition.opcode == "add":
        left, right = (_low_word(operand, build) for operand in definition.operands)
        return None if left is None or right is None else build.emit("add", left, right)
    return None
