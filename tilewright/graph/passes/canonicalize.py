"""Canonical forms: one way to write each expression, so that later passes have fewer patterns to match.

x + 0, x * 1, x ** 2, …          -> x, x, x * x, …
full                             -> a scalar constant, broadcast where it must be
reshape/permute/slice/cast twice -> once; nothing at all where they cancel
permute of the last two axes     -> the transpose flag of the matmul that reads it
broadcast_to, leading 1s         -> dropped where the reader broadcasts anyway
reshapes that merge rows         -> below matmul and elementwise ops, where they meet their inverse
gather at iota or a constant     -> slice
flip, slice or zeros after a running sum -> in front of it
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from tilewright.dtypes import DType
from tilewright.errors import ShapeError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.inference import Shape, broadcast_shapes
from tilewright.graph.ops import OPS, infer_types
from tilewright.graph.passes.canonicalize_movement import MOVEMENT_RULES
from tilewright.graph.passes.canonicalize_running import RUNNING_RULES
from tilewright.graph.rewrite import GraphRewriter, Rule, apply_rules
from tilewright.symbolic import Size, floor_divide, lift, product, simplify

_ELEMENTWISE = [name for name, row in OPS.items() if row.kind == "elementwise"]
_BROADCASTING = [name for name in _ELEMENTWISE if OPS[name].arity[0] > 1]


def canonicalize(graph: Graph) -> Graph:
    """Apply all canonicalization rules until none fires."""
    return apply_rules(graph, RULES)


def _fits(value: Value, node: Node) -> bool:
    """Whether `value` can stand for the node's output."""
    return value.shape == node.output.shape and value.dtype == node.output.dtype


# Identities ----------------------------------------------------------------------------------------


def _neutral(position: int, number: float, commutative: bool = False) -> Rule:
    """The rule that drops operand `position` when it is `number` everywhere."""

    def rule(node: Node, rewriter: GraphRewriter) -> Value | None:
        for index in (0, 1) if commutative else (position,):
            other = node.inputs[1 - index]
            if other is not None and _fits(other, node) and rewriter.uniform(node.inputs[index]) == number:
                return other
        return None

    return rule


def _power(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Powers with a name of their own."""
    base, exponent = node.inputs[0], rewriter.uniform(node.inputs[1])
    if base is None or not _fits(base, node):
        return None
    if exponent == 1:
        return base
    if exponent == 2:
        return rewriter.op("multiply", [base, base])
    if exponent == 3:
        return rewriter.op("multiply", [rewriter.op("multiply", [base, base]), base])
    named = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    if base.dtype.is_float and exponent in named:
        return rewriter.op(named[exponent], [base])
    return None


def _divide_by_power_of_two(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A division whose reciprocal is exact is a multiplication."""
    left, divisor = node.inputs[0], rewriter.uniform(node.inputs[1])
    if left is None or not left.dtype.is_float or not _fits(left, node) or not divisor or math.isinf(divisor):
        return None
    if abs(math.frexp(divisor)[0]) != 0.5 or not 2**-14 <= abs(divisor) <= 2**14:
        return None
    return rewriter.op("multiply", [left, rewriter.number(1 / divisor, left.dtype)])


def _reciprocal_product(node: Node, rewriter: GraphRewriter) -> Value | None:
    """a * (1/b) with b of the size of a row factor: reciprocal(sqrt(b)) is rsqrt(b)."""
    inner = rewriter.producer(node.inputs[0], "sqrt")
    return rewriter.op("rsqrt", inner.inputs) if inner is not None else None


def _reciprocal_from_divide(node: Node, rewriter: GraphRewriter) -> Value | None:
    """1 / x is reciprocal(x)."""
    right = node.inputs[1]
    if right is not None and right.dtype.is_float and _fits(right, node) and rewriter.uniform(node.inputs[0]) == 1:
        return rewriter.op("reciprocal", [right])
    return None


def _involution(node: Node, rewriter: GraphRewriter) -> Value | None:
    """negate and logical_not undo themselves."""
    inner = rewriter.producer(node.inputs[0], node.op)
    return inner.inputs[0] if inner is not None else None


def _idempotent(node: Node, rewriter: GraphRewriter) -> Value | None:
    """relu, absolute, floor, … done twice are done once."""
    return node.inputs[0] if rewriter.producer(node.inputs[0], node.op) is not None else None


def _subtract_negative(node: Node, rewriter: GraphRewriter) -> Value | None:
    """a + (-b) is a - b, and a - (-b) is a + b."""
    for index in (1, 0) if node.op == "add" else (1,):
        inner = rewriter.producer(node.inputs[index], "negate")
        if inner is not None:
            return rewriter.op("subtract" if node.op == "add" else "add", [node.inputs[1 - index], inner.inputs[0]])
    return None


def _holds(dtype: DType, other: DType) -> bool:
    """Whether `other` represents every value of `dtype`."""
    if dtype == other or dtype.is_bool:
        return True
    exact = {("float16", "float32"), ("bfloat16", "float32"), ("float32", "float64")}
    exact |= {("float16", "float64"), ("bfloat16", "float64"), ("int32", "float64")}
    if dtype.kind == other.kind and not dtype.is_float:
        return dtype.bits <= other.bits
    return (dtype.name, other.name) in exact


def _cast(node: Node, rewriter: GraphRewriter) -> Value | None:
    """No cast to the same type, and no stop at a type that holds every value."""
    source = node.inputs[0]
    if source is not None and source.dtype == node.output.dtype:
        return source
    inner = rewriter.producer(source, "cast")
    if inner is not None and inner.inputs[0] is not None and _holds(inner.inputs[0].dtype, inner.output.dtype):
        return rewriter.op("cast", inner.inputs, dtype=node.output.dtype)
    return None


def _where(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A condition that is constant, or branches that are the same."""
    condition = rewriter.uniform(node.inputs[0])
    chosen = node.inputs[1] if condition or node.inputs[1] is node.inputs[2] else node.inputs[2]
    if (condition is not None or node.inputs[1] is node.inputs[2]) and chosen is not None and _fits(chosen, node):
        return chosen
    inner = rewriter.producer(node.inputs[0], "logical_not")
    if inner is not None:
        return rewriter.op("where", [inner.inputs[0], node.inputs[2], node.inputs[1]])
    return None


def _compare_choice(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Comparing where(c, a, b), or a boolean as a number, with a number: c, not c, or always the same."""
    limit = rewriter.uniform(node.inputs[1])
    choice = rewriter.producer(node.inputs[0], "where", "cast")
    if limit is None or choice is None or choice.inputs[0] is None or not choice.inputs[0].dtype.is_bool:
        return None
    if choice.op == "cast":
        numbers: list[float | None] = [1.0, 0.0]
    else:
        numbers = [rewriter.uniform(item) for item in choice.inputs[1:]]
    if numbers[0] is None or numbers[1] is None or not _fits(choice.inputs[0], node):
        return None
    compare = _COMPARISONS[node.op]
    if_true, if_false = compare(numbers[0], limit), compare(numbers[1], limit)
    if if_true == if_false:
        return None
    return choice.inputs[0] if if_true else rewriter.op("logical_not", [choice.inputs[0]])


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip


def _clip(node: Node, rewriter: GraphRewriter) -> Value | None:
    """clip at 0 from below is relu; without limits nothing."""
    low, high = node.attributes["low"], node.attributes["high"]
    if high is not None:
        return None
    return node.inputs[0] if low is None else rewriter.op("relu", node.inputs) if low == 0 else None


def _zero_maximum(node: Node, rewriter: GraphRewriter) -> Value | None:
    """maximum(x, 0) is relu(x)."""
    for index in (0, 1):
        other = node.inputs[1 - index]
        if other is not None and _fits(other, node) and rewriter.uniform(node.inputs[index]) == 0:
            return rewriter.op("relu", [other])
    return None


def _no_axes(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A reduction over nothing, or over axes of size 1."""
    source, axes = node.inputs[0], node.attributes["axes"]
    if source is not None and all(source.shape[axis] == 1 for axis in axes):
        return rewriter.op("reshape", [source], shape=node.output.shape)
    return None


# Symbolic scalars ----------------------------------------------------------------------------------


def _dimension_arithmetic(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Arithmetic of symbolic sizes is a symbolic size."""
    if node.output.shape != () or node.output.dtype.name != "int64":
        return None
    sizes = [_scalar_size(item, rewriter) for item in node.inputs]
    left, right = sizes
    if left is None or right is None or not any(rewriter.producer(item, "dimension") for item in node.inputs):
        return None
    if node.op == "floor_divide":
        return None if right == 0 else rewriter.op("dimension", [], expression=floor_divide(left, right))
    functions = {
        "add": lambda: lift(left) + right,
        "subtract": lambda: lift(left) - right,
        "multiply": lambda: lift(left) * right,
    }
    return rewriter.op("dimension", [], expression=simplify(functions[node.op]()))


def _scalar_size(value: Value | None, rewriter: GraphRewriter) -> Size | None:
    node = rewriter.producer(value, "dimension")
    if node is not None:
        return node.attributes["expression"]
    number = rewriter.uniform(value) if rewriter.constant(value) is not None else None
    return None if number is None else int(number)


# Broadcasting --------------------------------------------------------------------------------------


def _full(node: Node, rewriter: GraphRewriter) -> Value | None:
    """`full` is a scalar constant, broadcast."""
    scalar = rewriter.number(node.attributes["value"], node.output.dtype)
    return scalar if node.output.shape == () else rewriter.op("broadcast_to", [scalar], shape=node.output.shape)


def _narrower(value: Value | None, rewriter: GraphRewriter) -> Value | None:
    """A value with fewer elements or dimensions that broadcasts to the same thing."""
    if value is None:
        return None
    node = rewriter.producer(value, "broadcast_to")
    if node is not None:
        return node.inputs[0]
    node = rewriter.producer(value, "reshape")
    if node is not None and node.inputs[0] is not None:
        source = node.inputs[0]
        lead = value.rank - source.rank
        if lead > 0 and value.shape == (1,) * lead + source.shape:
            return source
    number = rewriter.uniform(value) if value.rank and rewriter.constant(value) is not None else None
    return None if number is None else rewriter.number(number, value.dtype)


def _implicit_broadcast(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Read the narrow value where the op broadcasts it anyway."""
    for index, item in enumerate(node.inputs):
        narrow = _narrower(item, rewriter)
        if narrow is None:
            continue
        inputs = [*node.inputs[:index], narrow, *node.inputs[index + 1 :]]
        if _infers(node, inputs):
            return rewriter.op(node.op, inputs, **node.attributes)
    return None


def _infers(node: Node, inputs: Sequence[Value | None]) -> bool:
    """Whether the op on other inputs gives the same type."""
    try:
        return infer_types(node.op, inputs, node.attributes) == [(node.output.dtype, node.output.shape)]
    except ShapeError:
        return False


def _late_broadcast(node: Node, rewriter: GraphRewriter) -> Value | None:
    """An elementwise op of values that are all broadcast (constants of one number among them) is done before that."""
    sources: list[Value] = []
    for item in node.inputs:
        assert item is not None
        spread = rewriter.producer(item, "broadcast_to")
        number = rewriter.uniform(item) if rewriter.constant(item) is not None else None
        if number is not None and item.rank:
            sources.append(rewriter.number(number, item.dtype))
        else:
            sources.append(spread.inputs[0] if spread is not None and spread.inputs[0] is not None else item)
    small: Shape = broadcast_shapes(*(item.shape for item in sources))
    if small == node.output.shape or len(small) > node.output.rank:
        return None
    return rewriter.op("broadcast_to", [rewriter.op(node.op, sources, **node.attributes)], shape=node.output.shape)


# Rows ----------------------------------------------------------------------------------------------


def _merged_rows(value: Value | None, rewriter: GraphRewriter) -> Value | None:
    """x of reshape(x) where the reshape only regroups dimensions before the last."""
    node = rewriter.producer(value, "reshape")
    if node is None or node.inputs[0] is None or value is None:
        return None
    source = node.inputs[0]
    if source.rank < 2 or value.rank < 2 or source.shape[-1] != value.shape[-1] or source.rank < value.rank:
        return None
    return source


def _merged_tail(value: Value | None, rewriter: GraphRewriter) -> Value | None:
    """[a, b, …, c] of reshape(x) = [a*b*…, c], where x is [a, b, …, c1, c2, …] with c = c1*c2*…"""
    node = rewriter.producer(value, "reshape")
    if node is None or node.inputs[0] is None or value is None or value.rank != 2:
        return None
    source = node.inputs[0]
    for cut in range(2, source.rank - 1):
        if product(source.shape[cut:]) == value.shape[1]:
            return rewriter.op("reshape", [source], shape=(*source.shape[:cut], value.shape[1]))
    return None


def _matmul_of_rows(node: Node, rewriter: GraphRewriter) -> Value | None:
    """matmul(reshape(x), w) with a matrix w: multiply first, regroup rows afterwards."""
    left, right = node.inputs
    source = _merged_rows(left, rewriter) or _merged_tail(left, rewriter)
    if source is None or right is None or right.rank != 2 or left is None or source.shape == left.shape:
        return None
    return rewriter.op("reshape", [rewriter.op("matmul", [source, right], **node.attributes)], shape=node.output.shape)


def _matmul_of_batches(node: Node, rewriter: GraphRewriter) -> Value | None:
    """matmul of two reshapes that merge the same leading dimensions: multiply first, merge afterwards."""
    inner = [rewriter.producer(item, "reshape") for item in node.inputs]
    if inner[0] is None or inner[1] is None:
        return None
    sources = [reshape.inputs[0] for reshape in inner if reshape is not None]
    for source, item in zip(sources, node.inputs, strict=True):
        if source is None or item is None or source.rank <= item.rank or source.shape[-2:] != item.shape[-2:]:
            return None
    left, right = sources
    if left is None or right is None or left.shape[:-2] != right.shape[:-2] or node.output.rank < 3:
        return None
    if [extent for extent in left.shape if extent != 1] == [extent for extent in inner[0].output.shape if extent != 1]:
        return None  # a reshape that only drops 1s is no merge
    product = rewriter.op("matmul", sources, **node.attributes)
    return rewriter.op("reshape", [product], shape=node.output.shape)


def _elementwise_of_rows(node: Node, rewriter: GraphRewriter) -> Value | None:
    """The same for elementwise ops whose other operands only span the last dimension."""
    sources = [_merged_rows(item, rewriter) for item in node.inputs]
    shapes = {source.shape for source in sources if source is not None}
    if len(shapes) != 1 or node.output.rank < 2:
        return None
    inputs: list[Value | None] = []
    for item, source in zip(node.inputs, sources, strict=True):
        if source is None and (item is None or item.rank > 1):
            return None
        if source is not None and item is not None and item.shape != node.output.shape:
            return None
        inputs.append(item if source is None else source)
    return rewriter.op("reshape", [rewriter.op(node.op, inputs, **node.attributes)], shape=node.output.shape)


def _matmul_transpose(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A right operand whose last two axes are swapped: flip the flag instead."""
    left, right, *ends = node.inputs
    swap = rewriter.producer(right, "permute")
    if swap is None or right is None:
        return None
    order, rank = swap.attributes["order"], right.rank
    if order != (*range(rank - 2), rank - 1, rank - 2):
        return None
    attributes = {**node.attributes, "transpose_b": not node.attributes["transpose_b"]}
    return rewriter.op(node.op, [left, swap.inputs[0], *ends], **attributes)


def _table() -> dict[str, list[Rule]]:
    rules: dict[str, list[Rule]] = {name: [] for name in OPS}
    rules["add"] += [_neutral(1, 0, commutative=True), _subtract_negative, _dimension_arithmetic]
    rules["subtract"] += [_neutral(1, 0), _subtract_negative, _dimension_arithmetic]
    rules["multiply"] += [_neutral(1, 1, commutative=True), _dimension_arithmetic]
    rules["divide"] += [_neutral(1, 1), _reciprocal_from_divide, _divide_by_power_of_two]
    rules["floor_divide"] += [_neutral(1, 1), _dimension_arithmetic]
    rules["power"] += [_power]
    rules["logical_and"] += [_neutral(1, 1, commutative=True)]
    rules["logical_or"] += [_neutral(1, 0, commutative=True)]
    rules["reciprocal"] += [_reciprocal_product]
    rules["maximum"] += [_zero_maximum]
    rules["where"] += [_where]
    rules["clip"] += [_clip]
    rules["cast"] += [_cast]
    rules["full"] += [_full]
    for name in _COMPARISONS:
        rules[name].append(_compare_choice)
    for name in ("negate", "logical_not"):
        rules[name].append(_involution)
    for name in ("relu", "absolute", "floor", "ceil", "round", "sign"):
        rules[name].append(_idempotent)
    for name in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_product"):
        rules[name].append(_no_axes)
    for name in _ELEMENTWISE:
        rules[name] += [_late_broadcast, _elementwise_of_rows]
    for name in [*_BROADCASTING, "attention"]:
        rules[name].append(_implicit_broadcast)
    rules["grouped_matmul"] += [_matmul_transpose]
    rules["matmul"] += [_matmul_transpose, _matmul_of_rows, _matmul_of_batches, _implicit_broadcast]
    for table in (MOVEMENT_RULES, RUNNING_RULES):
        for name, extra in table.items():
            rules[name] += extra
    return {name: found for name, found in rules.items() if found}


RULES = _table()
