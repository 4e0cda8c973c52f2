"""Expressions: syntax node -> compile-time value or tensor."""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tilewright.errors import a_kind
from tilewright.frontend.builtins import constant_of
from tilewright.frontend.compile_time import compute, member
from tilewright.frontend.scope import FunctionState, is_compile_time, nearest
from tilewright.frontend.values import check_same, put_together, take_apart
from tilewright.ir.core import Region, SSAValue
from tilewright.language.aggregate import Aggregate
from tilewright.language.atomics import METHODS as ATOMIC_METHODS
from tilewright.language.context import LanguageError
from tilewright.language.core import BUILTIN
from tilewright.language.function import SourceFunction
from tilewright.language.records import is_users
from tilewright.language.removed import REMOVED
from tilewright.language.semantic import arithmetic, product
from tilewright.language.semantic.convert import is_literal, to_tensor
from tilewright.language.semantic.shape import item
from tilewright.language.sorting import METHODS as SORTING_METHODS
from tilewright.language.standard import METHODS as STANDARD_METHODS
from tilewright.language.tensor import tensor, type_text
from tilewright.language.types import block_type, dtype, unwrap

METHODS = {**STANDARD_METHODS, **SORTING_METHODS, **ATOMIC_METHODS}
_METHOD_OF = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "&": "and", "|": "or",
    "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any], Callable[[Any, Any], tensor]]] = {
    ast.Add: ("+", operator.add, arithmetic.add),
    ast.Sub: ("-", operator.sub, arithmetic.subtract),
    ast.Mult: ("*", operator.mul, arithmetic.multiply),
    ast.Div: ("/", operator.truediv, arithmetic.true_divide),
    ast.FloorDiv: ("//", operator.floordiv, arithmetic.floor_divide),
    ast.Mod: ("%", operator.mod, arithmetic.remainder),
    ast.BitAnd: ("&", operator.and_, lambda x, y: arithmetic.bitwise("and", x, y)),
    ast.BitOr: ("|", operator.or_, lambda x, y: arithmetic.bitwise("or", x, y)),
    ast.BitXor: ("^", operator.xor, lambda x, y: arithmetic.bitwise("xor", x, y)),
    ast.LShift: ("<<", operator.lshift, lambda x, y: arithmetic.shift("shift_left", x, y)),
    ast.RShift: (">>", operator.rshift, lambda x, y: arithmetic.shift("shift_right", x, y)),
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
_UNARY_SYMBOLS: dict[type[ast.unaryop], str] = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not"}
_SYMBOLS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("eq", operator.eq),
    ast.NotEq: ("ne", operator.ne),
    ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le),
    ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge),
}
_REJECTED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lambda: ("lambda", "write a @tilewright.jit function"),
    ast.Dict: ("a dict", "use a tuple or separate parameters"),
    ast.Set: ("a set", "use a tuple"),
    ast.DictComp: ("a dict comprehension", "use a tuple"),
    ast.SetComp: ("a set comprehension", "use a tuple"),
    ast.GeneratorExp: ("a generator", "use a list comprehension over a tuple"),
    ast.Await: ("await", "kernels are not asynchronous"),
    ast.Yield: ("yield", "store results through a pointer"),
    ast.YieldFrom: ("yield from", "store results through a pointer"),
}


class BoundMethod:
    """A function of the language with its first argument: ``x.sum``."""

    def __init__(self, function: Any, instance: Any, static: bool = False) -> None:
        self.function = function
        self.first = [] if static else [instance]  # a static method of an aggregate takes no instance


class Expressions(FunctionState):
    """Evaluates expression nodes."""

    def evaluate(self, node: ast.expr) -> Any:
        """The value of an expression; errors in it point at it."""
        method = getattr(self, f"visit_{type(node).__name__}", None)
        if method is None:
            construct, advice = _REJECTED.get(
                type(node), (f"'{type(node).__name__}'", "write it with operators and calls")
            )
            raise self.error(node, f"{construct} is not part of the tile language", advice)
        return self.guarded(node, method, node)

    def visit_Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, (bytes, complex)):
            raise LanguageError(
                f"{a_kind(node.value)} constant is not part of the tile language",
                "use numbers, strings and tuples",
            )
        return node.value

    def visit_Name(self, node: ast.Name) -> Any:
        return self.lookup(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        value = self.evaluate(node.value)
        self.bind(node.target.id, value)
        return value

    def visit_Tuple(self, node: ast.Tuple | ast.List) -> tuple[Any, ...]:
        return tuple(self._spread(node.elts))

    visit_List = visit_Tuple

    def _spread(self, nodes: list[ast.expr]) -> list[Any]:
        values: list[Any] = []
        for entry in nodes:
            if isinstance(entry, ast.Starred):
                spread = self.evaluate(entry.value)
                if not isinstance(spread, (tuple, list)):
                    raise self.error(
                        entry,
                        f"only a tuple can be unpacked with *, got {type_text(spread)}",
                        "pass the values one by one",
                    )
                values.extend(spread)
            else:
                values.append(self.evaluate(entry))
        return values

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        fused = self.accumulated(node.op, node.right, left, right)
        return self.binary(node, node.op, left, right) if fused is None else fused

    @staticmethod
    def accumulated(kind: ast.operator, node: ast.expr, left: Any, right: Any) -> tensor | None:
        """``acc + tl.dot(a, b)``: the call's value has no other use, so that the product may accumulate."""
        return product.accumulate(left, right) if isinstance(kind, ast.Add) and isinstance(node, ast.Call) else None

    def binary(self, node: ast.AST, kind: ast.operator, left: Any, right: Any) -> Any:
        """Apply a binary operator: Python's on compile-time values, the language's on tensors."""
        if isinstance(left, Aggregate) or isinstance(right, Aggregate):
            return self._overloaded(node, kind, left, right)
        run_time = isinstance(left, tensor) or isinstance(right, tensor)
        if isinstance(kind, ast.Pow) and not run_time:
            return compute("**", operator.pow, left, right)
        if type(kind) not in _BINARY:
            name = {ast.Pow: "'**' on tensors", ast.MatMult: "'@'"}.get(type(kind), "this operator")
            advice = {ast.Pow: "use tl.math.pow, or multiply", ast.MatMult: "use tl.dot"}.get(type(kind), "")
            raise LanguageError(f"{name} is not part of the tile language", advice)
        symbol, on_constants, on_tensors = _BINARY[type(kind)]
        if run_time:
            self.mark(node)
            return on_tensors(left, right)
        return compute(symbol, on_constants, left, right)

    def _overloaded(self, node: ast.AST, kind: ast.operator, left: Any, right: Any) -> Any:
        """An operator of an aggregate: ``__add__`` of the left operand, or ``__radd__`` of the right one."""
        symbol = _BINARY[type(kind)][0] if type(kind) in _BINARY else {ast.Pow: "**", ast.MatMult: "@"}[type(kind)]
        name = _METHOD_OF.get(symbol) or {"**": "pow", "@": "matmul"}[symbol]
        for instance, other, method in ((left, right, f"__{name}__"), (right, left, f"__r{name}__")):
            if isinstance(instance, Aggregate) and hasattr(type(instance), method):
                return self.call(node, self.member_of(instance, method), [other], {})
        raise LanguageError(
            f"'{symbol}' is not defined for {type_text(left)} and {type_text(right)}",
            _operand_advice(left, right) or f"define __{name}__ in the aggregate",
        )

    def _operator_method(self, node: ast.AST, instance: Any, name: str, arguments: list[Any]) -> Any:
        if not hasattr(type(instance), name):
            advice = _operand_advice(instance) or f"define {name} in the aggregate"
            raise LanguageError(f"{type_text(instance)} has no {name}", advice)
        return self.call(node, self.member_of(instance, name), arguments, {})

    def member_of(self, instance: Any, name: str) -> Any:
        """A field or method of an aggregate; methods are bound to it."""
        if name in instance.__aggregate_fields__:
            if name not in instance.__dict__:
                raise LanguageError(f"the field '{name}' has no value yet", "assign it first in __init__")
            return unwrap(instance.__dict__[name])
        member = inspect.getattr_static(type(instance), name, None)
        if isinstance(member, (staticmethod, classmethod)):
            return BoundMethod(member.__func__, type(instance), static=isinstance(member, staticmethod))
        if isinstance(member, property):
            return self.call(self.definition, BoundMethod(member.fget, instance), [], {})
        if member is None or (name.startswith("_") and not name.startswith("__")):
            known = [
                *instance.__aggregate_fields__,
                *(entry for entry in dir(type(instance)) if not entry.startswith("_")),
            ]
            raise LanguageError(f"'{type(instance).__name__}' has no field or method '{name}'", nearest(name, known))
        return BoundMethod(member, instance)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.evaluate(node.operand)
        if isinstance(value, Aggregate) and not isinstance(node.op, ast.Not):
            name = {ast.USub: "__neg__", ast.UAdd: "__pos__", ast.Invert: "__invert__"}[type(node.op)]
            return self._operator_method(node, value, name, [])
        if not isinstance(value, tensor):
            return compute(_UNARY_SYMBOLS[type(node.op)], _UNARY[type(node.op)], value)
        self.mark(node)
        if isinstance(node.op, ast.Not):
            return not value.constant if value.constant is not None else arithmetic.logical_not(value)
        if isinstance(node.op, ast.UAdd):
            return value
        return arithmetic.negate(value) if isinstance(node.op, ast.USub) else arithmetic.invert(value)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """``and`` / ``or``: short-circuit on compile-time values, elementwise on int1 tensors."""
        conjunction = isinstance(node.op, ast.And)
        result: Any = self.evaluate(node.values[0])
        for entry in node.values[1:]:
            known = self.known(result)
            if known is not None:
                if bool(known[0]) != conjunction:
                    return result
                result = self.evaluate(entry)
                continue
            other = self.evaluate(entry)
            self.mark(node)
            result = self._logical(conjunction, result, other)
        return result

    @staticmethod
    def _logical(conjunction: bool, left: Any, right: Any) -> Any:
        if not isinstance(right, tensor) and not isinstance(right, bool):
            right = bool(right)
        return arithmetic.logical("and" if conjunction else "or", left, right)

    @staticmethod
    def known(value: Any) -> tuple[Any] | None:
        """The compile-time value in a one-tuple, or None for a run-time value."""
        if isinstance(value, tensor):
            return None if value.constant is None else (value.constant,)
        return (value,)

    def visit_Compare(self, node: ast.Compare) -> Any:
        left = self.evaluate(node.left)
        result: Any = None
        for kind, entry in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(entry)
            self.mark(node)
            step = self._compare(node, kind, left, right)
            if result is None:
                result = step
            elif isinstance(result, tensor) or isinstance(step, tensor):
                result = arithmetic.logical("and", result, step)
            else:
                result = result and step
            left = right
        return result

    def _compare(self, node: ast.AST, kind: ast.cmpop, left: Any, right: Any) -> Any:
        if isinstance(kind, (ast.Is, ast.IsNot)):
            same = left is right or (is_literal(left) and is_literal(right) and left == right)
            return same if isinstance(kind, ast.Is) else not same
        if (isinstance(left, Aggregate) or isinstance(right, Aggregate)) and type(kind) in _COMPARE:
            return self._overloaded_comparison(node, _COMPARE[type(kind)][0], left, right)
        run_time = isinstance(left, tensor) or isinstance(right, tensor)
        if isinstance(kind, (ast.In, ast.NotIn)):
            if run_time:
                raise LanguageError("'in' is for compile-time values", "compare with == and reduce")
            return bool(compute("in", member, left, right)) == isinstance(kind, ast.In)
        name, on_constants = _COMPARE[type(kind)]
        if not run_time:
            return compute(_SYMBOLS[name], on_constants, _with_known_numbers(left), _with_known_numbers(right))
        for value in (left, right):
            if not isinstance(value, tensor) and not is_literal(value):
                pointer = value is None and name in ("eq", "ne")
                if not pointer or not (left if value is right else right).is_pointer:
                    return {"eq": False, "ne": True}[name] if name in ("eq", "ne") else self._not_comparable(value)
        return arithmetic.compare(name, left, right)

    def _overloaded_comparison(self, node: ast.AST, name: str, left: Any, right: Any) -> Any:
        for instance, other, method in ((left, right, name), (right, left, _SWAPPED[name])):
            if isinstance(instance, Aggregate) and getattr(type(instance), f"__{method}__") is not getattr(
                Aggregate, f"__{method}__"
            ):
                return self.call(node, self.member_of(instance, f"__{method}__"), [other], {})
        if name in ("eq", "ne"):
            return (left is right) == (name == "eq")
        raise LanguageError(
            f"{type_text(left)} and {type_text(right)} cannot be compared",
            _operand_advice(left, right) or f"define __{name}__ in the aggregate",
        )

    @staticmethod
    def _not_comparable(value: Any) -> Any:
        raise LanguageError(f"a tensor cannot be compared with {type_text(value)}", "compare with numbers and tensors")

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        condition = self.evaluate(node.test)
        known = self.known(condition)
        if known is not None:
            return self.evaluate(node.body if known[0] else node.orelse)
        condition = self.branch_condition(node.test, condition)
        regions, values = [], []
        for branch in (node.body, node.orelse):
            region = Region()
            with self.session.builder.at(region):
                values.append(self.evaluate(branch))
            regions.append(region)
        self.mark(node)
        return self.merge_branches(condition, regions, [{"the value": value} for value in values])["the value"]

    def branch_condition(self, node: ast.expr, condition: Any) -> tensor:
        """A run-time condition as an int1 scalar; of a block of one element, that element."""
        if isinstance(condition, tensor) and condition.shape and condition.numel == 1:
            self.mark(node)
            condition = item(condition)
        if not isinstance(condition, tensor) or condition.shape:
            raise self.error(
                node,
                f"a condition must be a scalar, got {type_text(condition)}",
                "reduce the block first (tl.sum, tl.max, tl.reduce_or), or choose elementwise with tl.where",
            )
        if condition.is_pointer or not condition.number.is_bool:
            self.mark(node)
            condition = arithmetic.logical_not(arithmetic.logical_not(condition))
        return condition

    def merge_branches(self, condition: tensor, regions: list[Region], values: list[dict[str, Any]]) -> dict[str, Any]:
        """Close two traced regions with yields of the same names, and build the `if`; gives the merged values."""
        builder = self.session.builder
        here = builder.location
        shapes: dict[str, Any] = {}
        for name in values[0]:
            check_same(name, values[0][name], values[1][name], ("in one branch", "in the other"))
        for region, bound in zip(regions, values, strict=True):
            with builder.at(region):
                handles: list[SSAValue] = []
                for name, value in bound.items():
                    shapes[name], leaves = take_apart(value)
                    handles.extend(leaf.handle for leaf in leaves)
                builder.create("yield", handles)
        builder.location = here
        results = iter(builder.create("if", [condition.handle], None, regions).results)
        return {name: put_together(shape, results) for name, shape in shapes.items()}

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        return self.attribute(self.evaluate(node.value), node.attr)

    def attribute(self, value: Any, name: str) -> Any:
        """``value.name`` for the kinds of values that have attributes in the language."""
        if isinstance(value, tensor):
            return self._tensor_attribute(value, name)
        if isinstance(value, Aggregate):
            return self.member_of(value, name)
        if isinstance(value, type) and issubclass(value, Aggregate):
            return self._class_member(value, name)
        if is_literal(value):
            return value if name == "value" else self._tensor_attribute(value, name)
        if name == "value" and (value is None or isinstance(value, (str, dtype, tuple))):
            return value
        if isinstance(value, ModuleType):
            if not hasattr(value, name):
                advice = REMOVED.get(name) or nearest(name, dir(value))
                raise LanguageError(f"module '{value.__name__}' has no '{name}'", advice)
            return self._admit(f"{value.__name__}.{name}", getattr(value, name))
        if isinstance(value, (dtype, block_type, tuple, list, str, type)) or is_compile_time(value):
            if name.startswith("__") or not hasattr(value, name):
                raise LanguageError(f"{type_text(value)} has no attribute '{name}'", nearest(name, dir(value)))
            return getattr(value, name)
        if is_users(value) and not name.startswith("__"):
            return self._object_attribute(value, name)
        raise LanguageError(
            f"{type_text(value)} has no attributes in a kernel",
            "kernels use tensors, tuples, dtypes, aggregates and modules",
        )

    @staticmethod
    def _object_attribute(value: Any, name: str) -> Any:
        """What a dataclass, or another compile-time object of the user's, holds."""
        if not hasattr(value, name):
            raise LanguageError(f"{type(value).__name__} has no attribute '{name}'", nearest(name, dir(value)))
        return unwrap(getattr(value, name))

    @staticmethod
    def _class_member(kind: type[Aggregate], name: str) -> Any:
        """``Class.method``, static or not; ``Class.__name__`` and defaults are plain values."""
        member = inspect.getattr_static(kind, name, None)
        if member is None or name in kind.__aggregate_fields__ and name not in kind.__aggregate_defaults__:
            raise LanguageError(f"'{kind.__name__}' has no '{name}'", nearest(name, dir(kind)))
        if isinstance(member, staticmethod):
            return BoundMethod(member.__func__, None, static=True)
        if isinstance(member, classmethod):
            return BoundMethod(member.__func__, kind)
        return unwrap(member)

    def _tensor_attribute(self, value: Any, name: str) -> Any:
        """Properties and methods of tensors; numbers (an argument equal to 1, say) answer them too."""
        if name in METHODS:
            return BoundMethod(METHODS[name], value if isinstance(value, tensor) else to_tensor(value))
        member = getattr(tensor, name, None) if not name.startswith("_") else None
        if member is None:
            raise LanguageError(f"a tensor has no attribute '{name}'", nearest(name, [*dir(tensor), *METHODS]))
        if getattr(member, BUILTIN, False):
            return BoundMethod(member, value)
        if isinstance(member, SourceFunction):  # of a program that adds methods
            return BoundMethod(member, value if isinstance(value, tensor) else to_tensor(value))
        instance = value if isinstance(value, tensor) else to_tensor(value)
        return unwrap(getattr(instance, name))

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        value, index = self.evaluate(node.value), self._index(node.slice)
        if isinstance(value, tensor):
            self.mark(node)
            return value[index]  # type: ignore[index]
        if isinstance(value, Aggregate):
            return self._operator_method(node, value, "__getitem__", [index])
        if isinstance(index, slice):
            index = slice(*(None if part is None else constant_of(part, "a slice") for part in (
                index.start, index.stop, index.step)))  # fmt: skip
        else:
            index = constant_of(index, "an index")
        if not isinstance(value, (tuple, list, str)):
            raise LanguageError(f"{type_text(value)} cannot be indexed", "blocks, tuples and strings can be")
        try:
            return value[index]
        except (IndexError, TypeError, ValueError) as error:
            raise LanguageError(
                f"{error} (a tuple of {len(value)} indexed with {index!r})",
                "index with a compile-time integer inside the tuple",
            ) from None

    def _index(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Slice):
            parts = [None if part is None else self.evaluate(part) for part in (node.lower, node.upper, node.step)]
            return slice(*parts)
        if isinstance(node, ast.Tuple):
            return tuple(self._index(entry) for entry in node.elts)
        return self.evaluate(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> str:
        return "".join(str(self.evaluate(part)) for part in node.values)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> str:
        known = self.known(self.evaluate(node.value))
        if known is None:
            raise LanguageError("an f-string holds compile-time values only", "use tl.device_print for run-time values")
        (value,) = known
        conversions: dict[int, Callable[[Any], Any]] = {114: repr, 115: str, 97: ascii}
        if node.conversion in conversions:
            value = conversions[node.conversion](value)
        return format(value, self.evaluate(node.format_spec) if node.format_spec is not None else "")

    def visit_ListComp(self, node: ast.ListComp) -> tuple[Any, ...]:
        if len(node.generators) != 1:
            raise LanguageError("a comprehension has one `for` here", "nest functions, or write a loop")
        (generator,) = node.generators
        items = self.static_items(generator.iter, self.evaluate(generator.iter))
        saved = dict(self.names)
        results = []
        for entry in items:
            self.assign(generator.target, entry, keep=True)
            if all(constant_of(self.evaluate(test), "the filter of a comprehension") for test in generator.ifs):
                results.append(self.evaluate(node.elt))
        self.names = saved
        return tuple(results)

    # Provided by the other parts of the tracer.

    def call(self, node: ast.AST, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        raise NotImplementedError

    def static_items(self, node: ast.expr, value: Any) -> list[Any]:
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Any, keep: bool = False) -> None:
        raise NotImplementedError


def _with_known_numbers(value: Any) -> Any:
    """A tuple whose scalars of known value are these numbers, so that it can be compared."""
    if isinstance(value, (tuple, list)):
        return tuple(_with_known_numbers(entry) for entry in value)
    return value.constant if isinstance(value, tensor) and value.constant is not None else value


def _operand_advice(*values: Any) -> str:
    """What to do where one of them is an object of the language's own that is no number; empty otherwise."""
    return next((advice for value in values if (advice := getattr(value, "__operand_advice__", ""))), "")
