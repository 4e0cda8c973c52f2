"""Python numbers in exported programs: sizes, results of `.item()`, and arithmetic on both.

A number that PyTorch knows to be no less than 0 becomes a size: a symbol, whose value an `extent` node finds when it is
read from a tensor.  Every other number is a tensor without dimensions, and its arithmetic becomes nodes of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import sympy
import torch
from torch import fx

from tilewright.dtypes import DType, float64, int1, int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported
from tilewright.importers.torch_symbols import SymbolTable
from tilewright.symbolic import Expression, Size, lift, maximum, simplify

Numeric = (torch.SymInt, torch.SymFloat, torch.SymBool)
_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "sym_max": "maximum", "sym_min": "minimum",
}  # fmt: skip
_COMPARISONS = {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}  # fmt: skip
_LOGIC = {"and_": "logical_and", "or_": "logical_or"}
_UNARY = {"neg": "negate", "floor": "floor", "ceil": "ceil", "round": "round", "abs": "absolute", "_sym_sqrt": "sqrt"}


def is_read(name: str) -> bool:
    """Whether an operation reads a number from a tensor."""
    return name.startswith(("aten._local_scalar_dense", "aten.item"))


def read(emit: Emitter, symbols: SymbolTable, known: Any, x: Value) -> Value | Size:
    """The only element of a tensor as a number: a size where it cannot be negative."""
    if isinstance(known, torch.SymInt):
        try:
            size = symbols.size(known)
        except Unsupported:
            number = emit.cast(emit.reshape(x, ()), int64)
            symbols.numbers[str(known.node.expr)] = number
            return number
        emit.op("extent", emit.cast(x, int64), element=0, size=size, what="the number that .item() gives")
        return size
    if isinstance(known, torch.SymFloat):
        return emit.cast(emit.reshape(x, ()), float64)
    truth = emit.cast(emit.reshape(x, ()), int1)
    condition = known.node.expr
    if isinstance(condition, sympy.Eq) and condition.lhs.is_Symbol and condition.rhs == 1:
        symbols.truths[str(condition.lhs)] = truth
    return truth


def computed(emit: Emitter, known: Any, name: str, operands: list[Any]) -> Value | None:
    """What an operation on numbers gives; None where its operands have no value here, or it is not known."""
    if name == "round" and operands[1:] == [None]:  # no number of digits
        operands = operands[:1]
    if not all(isinstance(item, (Value, Expression, int, float)) for item in operands):
        return None
    result = _dtype_of(known)
    if name in _COMPARISONS:
        wide = float64 if any(_is_float(item) for item in operands) else int64
        return emit.op(_COMPARISONS[name], *(emit.value(item, wide) for item in operands))
    if name in _LOGIC:
        return emit.op(_LOGIC[name], *(emit.value(item, int1) for item in operands))
    if name == "sym_not":
        return emit.op("logical_not", emit.value(operands[0], int1))
    if name == "sym_ite":
        condition, *choices = operands
        return emit.op("where", emit.value(condition, int1), *(emit.value(item, result) for item in choices))
    if name in ("sym_float", "sym_int", "trunc"):
        return emit.cast(emit.value(operands[0], _own_type(operands[0])), result)
    inner = float64 if name in ("truediv", *_UNARY) and any(map(_is_float, operands)) else result
    if name in _UNARY:
        return emit.cast(emit.op(_UNARY[name], emit.value(operands[0], inner)), result)
    return emit.op(_BINARY[name], *(emit.value(item, inner) for item in operands)) if name in _BINARY else None


def truth(emit: Emitter, values: Mapping[fx.Node, Any], condition: fx.Node) -> Value:
    """A condition as a boolean without dimensions, computed anew from what tensors hold and sizes are.

    `values` are the tensors and sizes of the nodes before it. Raises `Unsupported` for what cannot be computed.
    """
    return emit.value(_computed_anew(emit, values, condition), int1)


def _computed_anew(emit: Emitter, values: Mapping[fx.Node, Any], item: Any) -> Any:
    if not isinstance(item, fx.Node):
        return item
    name = (
        getattr(item.target, "__name__", "") if not isinstance(item.target, torch._ops.OpOverload) else str(item.target)
    )
    if is_read(name):
        x = emit.reshape(values[item.all_input_nodes[0]], ())
        return x if x.dtype.is_bool else emit.cast(x, float64 if x.dtype.is_float else int64)
    if name.startswith("aten.sym_") or isinstance(values.get(item), (Value, Expression)):
        return values[item]
    operands = [_computed_anew(emit, values, argument) for argument in item.args]
    found = computed(emit, item.meta["val"], name, operands)
    if found is None:
        raise Unsupported(f"a condition on numbers in tensors that is computed by {name}")
    return found


def _dtype_of(known: Any) -> DType:
    if isinstance(known, (torch.SymBool, bool)):
        return int1
    return float64 if isinstance(known, (torch.SymFloat, float)) else int64


def _own_type(item: Any) -> DType:
    if isinstance(item, Value):
        return item.dtype
    return float64 if isinstance(item, float) else int64


def _is_float(item: Any) -> bool:
    return _own_type(item).is_float


def require(emit: Emitter, symbols: SymbolTable, condition: Any) -> None:
    """Make an assertion on numbers read from tensors a condition of every call, as far as it is one on sizes.

    A comparison with a number alone is not needed: it is the range of the symbol.  One on a boolean that was read
    (``torch._check_tensor_all``) is that it is true, or false.
    """
    names = [str(symbol) for symbol in condition.free_symbols]
    if len(names) == 1 and names[0] in symbols.truths:
        _require_truth(emit, symbols, condition, names[0])
        return
    if not isinstance(condition, sympy.core.relational.Relational) or symbols.always(condition):
        return
    left, right = _both_sides(condition)
    if len(condition.free_symbols) == 1 and (left.is_Number or right.is_Number) and condition.rel_op != "==":
        return
    with suppress(Unsupported):
        require_of_sizes(emit, symbols, condition)


def require_of_sizes(emit: Emitter, symbols: SymbolTable, condition: Any) -> None:
    """Make a relation of sizes, or several, a condition of every call. Raises `Unsupported` for others."""
    if isinstance(condition, sympy.And):
        for part in condition.args:
            require_of_sizes(emit, symbols, part)
        return
    if not isinstance(condition, sympy.core.relational.Relational):
        raise Unsupported(f"the condition {condition}")
    sides = _both_sides(condition)
    if not any(side.is_Number and side > 0 for side in sides):  # a tensor of 0 elements could be left out
        sides = sides[0] + 1, sides[1] + 1
    sizes = symbols.size(sides[0]), symbols.size(sides[1])
    if condition.rel_op == "==":
        emit.require_equal(*sizes)
    elif condition.rel_op == "!=":
        emit.require_different(*sizes)
    else:
        more, less = sizes if condition.rel_op in (">=", ">") else sizes[::-1]
        least = simplify(lift(less) + 1) if condition.rel_op in (">", "<") else less
        emit.require_equal(maximum(more, least), more)


def _require_truth(emit: Emitter, symbols: SymbolTable, condition: Any, name: str) -> None:
    (symbol,) = condition.free_symbols
    of_false, of_true = (condition.subs(symbol, value) == sympy.true for value in (0, 1))
    if of_false == of_true or name in symbols.required:
        return
    symbols.required.add(name)
    truth = symbols.truths[name] if of_true else emit.op("logical_not", symbols.truths[name])
    emit.op("condition", truth, what="a check that the model makes of its tensors fails there")


def _both_sides(condition: Any) -> tuple[Any, Any]:
    """The sides of a relation with terms moved so that none is subtracted."""
    terms = sympy.Add.make_args(sympy.expand(condition.lhs - condition.rhs))
    negative = [term for term in terms if term.could_extract_minus_sign()]
    positive = [term for term in terms if not term.could_extract_minus_sign()]
    return sympy.Add(*positive), -sympy.Add(*negative)
