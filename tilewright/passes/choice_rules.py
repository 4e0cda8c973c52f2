"""Rules for comparisons, selects and conversions."""

from __future__ import annotations

from tilewright.dtypes import DType, int1
from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.rewrite import RewriteTable, RuleRewriter, constant_of, defined_by

CHOICE_RULES = RewriteTable("choice and conversion")
on = CHOICE_RULES.on

_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def _predicate(operation: Operation) -> str:
    return str(operation.attributes["predicate"])


@on("compare")
def constant_on_the_right(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """c < x = x > c."""
    left, right = operation.operands
    if constant_of(left) is None or constant_of(right) is not None:
        return None
    return build.emit("compare", right, left, predicate=_MIRRORED[_predicate(operation)])


@on("compare")
def compare_with_itself(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """x <= x is true and x < x false; a float may be NaN, where only x < x and x > x are known."""
    left, right = operation.operands
    predicate = _predicate(operation)
    if left is not right or (not left.type.is_pointer and left.type.dtype.is_float and predicate not in ("lt", "gt")):
        return None
    return build.constant(predicate in ("eq", "le", "ge"), int1, left.type.shape)


@on("compare")
def compare_truth_value(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """For i1: (x != false) = (x == true) = x, and the opposites are not x."""
    left, right = operation.operands
    number, predicate = constant_of(right), _predicate(operation)
    if left.type.element != int1 or number is None or predicate not in ("eq", "ne"):
        return None
    return left if (predicate == "eq") == bool(number) else build.emit("not", left)


@on("not")
def not_compare(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """not (x < y) = x >= y; of floats, which may be unordered, only == and !=."""
    compare = defined_by(operation.operands[0], "compare")
    if compare is None:
        return None
    left, right = compare.operands
    predicate = _predicate(compare)
    if not left.type.is_pointer and left.type.dtype.is_float and predicate not in ("eq", "ne"):
        return None
    return build.emit("compare", left, right, predicate=_NEGATED[predicate])


@on("select")
def decided(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """A constant condition, or the same value on both sides."""
    condition, left, right = operation.operands
    known = constant_of(condition)
    if left is right or known is not None:
        return right if known is False else left
    return None


@on("select")
def select_not(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """select(not c, x, y) = select(c, y, x)."""
    condition, left, right = operation.operands
    inner = defined_by(condition, "not")
    return None if inner is None else build.emit("select", inner.operands[0], right, left)


@on("select")
def select_truth_values(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """For i1: select(c, true, false) = c, select(c, x, false) = c & x, select(c, true, y) = c | y."""
    condition, left, right = operation.operands
    if left.type.element != int1:
        return None
    if constant_of(right) is False:
        return build.emit("and", condition, left)
    return build.emit("or", condition, right) if constant_of(left) is True else None


@on("select")
def nested_select(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """select(c, select(c, x, y), z) = select(c, x, z), and so on the other side."""
    condition, left, right = operation.operands
    inner_left, inner_right = defined_by(left, "select"), defined_by(right, "select")
    if inner_left is not None and inner_left.operands[0] is condition:
        return build.emit("select", condition, inner_left.operands[1], right)
    if inner_right is not None and inner_right.operands[0] is condition:
        return build.emit("select", condition, left, inner_right.operands[2])
    return None


_DIGITS = {"float8e5": 3, "float8e4nv": 4, "float8e5b16": 3, "float8e4b8": 4,
           "float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}  # fmt: skip
_EXPONENT = {"float8e5": 15, "float8e4nv": 8, "float8e5b16": 15, "float8e4b8": 7,
             "float16": 15, "bfloat16": 127, "float32": 127, "float64": 1023}  # fmt: skip
_SUBNORMAL = {"float8e5": 16, "float8e4nv": 9, "float8e5b16": 17, "float8e4b8": 10,
              "float16": 24, "bfloat16": 133, "float32": 149, "float64": 1074}  # fmt: skip
_WITHOUT_INFINITY = ("float8e4nv", "float8e5b16", "float8e4b8")


def keeps_value(source: DType, target: DType) -> bool:
    """Whether every value of `source` is one of `target` (what has no infinity, or no -0, keeps nothing)."""
    if source == target or source.is_bool:
        return True
    if target.is_bool:
        return False
    if source.is_float:
        fits = target.is_float and target.name not in _WITHOUT_INFINITY
        tables = (_DIGITS, _EXPONENT, _SUBNORMAL)
        return fits and all(table[source.name] <= table[target.name] for table in tables)
    if target.is_float:
        return source.bits - source.is_signed <= min(_DIGITS[target.name], _EXPONENT[target.name])
    return source.bits - source.is_signed <= target.bits - target.is_signed and (
        not source.is_signed or target.is_signed
    )


@on("cast")
def cast_of_cast(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """cast(cast(x, A), B) = cast(x, B), when A keeps x, or when integers only get narrower (they wrap)."""
    inner = defined_by(operation.operands[0], "cast")
    if inner is None:
        return None
    source = inner.operands[0]
    first, middle, last = source.type.dtype, inner.result.type.dtype, operation.result.type.dtype
    integers = not any(dtype.is_float or dtype.is_bool for dtype in (first, middle, last))
    if not keeps_value(first, middle) and not (integers and last.bits <= middle.bits):
        return None
    if middle.is_float and not last.is_float and not keeps_value(first, last):
        return None  # a float outside the integer's range is not an integer that wraps
    rounding = operation.attributes["rounding"]
    if rounding != "rtne" and first != last and not (first.is_float and last.bits < first.bits):
        return None  # rounding toward zero is only defined for narrowing floats
    return build.emit("cast", source, dtype=last, rounding="rtne" if first == last else rounding)


@on("cast")
def cast_to_same(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """A cast to the type that the operand has."""
    (source,) = operation.operands
    return source if source.type == operation.result.type else None


@on("bitcast")
def bitcast_of_bitcast(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """bitcast(bitcast(x)) = bitcast(x), and x when the types meet again."""
    (source,) = operation.operands
    if source.type == operation.result.type:
        return source
    inner = defined_by(source, "bitcast")
    return None if inner is None else build.emit("bitcast", inner.operands[0], **operation.attributes)


@on("hint")
def empty_hint(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """A hint that says nothing."""
    return operation.operands[0] if not any(operation.attributes.values()) else None
