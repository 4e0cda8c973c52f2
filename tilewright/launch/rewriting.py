"""A kernel's Python function, rewritten so that Python itself can run it with the language's meaning.

Every expression and statement whose meaning in the language is not Python's becomes a call of a method of
`launch.eager.EagerFunction`, which gets the number of the syntax node and the values of its parts:

    y = x * 2 + n            y = __eager.assigned(3, __eager.evaluate(2, __eager.evaluate(1, x, 2), n))

Names, order of evaluation, control flow and line numbers stay as they are: the function has ordinary frames that a
debugger shows with the user's source lines and variables.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from tilewright.language.function import SourceFunction

EAGER = "__eager"
_EVALUATED = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Attribute, ast.Subscript, ast.Tuple, ast.List)
_STRUCTURE = (ast.Starred, ast.keyword, ast.Slice)  # parts of expressions that have no value of their own


class Evaluated(ast.expr):
    """An expression whose value is known already."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class EvaluatedCall(ast.Call):
    """A call whose value is known already; the rule for ``acc + tl.dot(a, b)`` asks whether an operand is a call."""

    def __init__(self, value: Any) -> None:
        super().__init__(ast.Constant(None), [], [])
        self.value = value


def evaluated(node: ast.AST, value: Any) -> ast.expr:
    """A stand-in for `node`, at its place, with its value."""
    stand_in = EvaluatedCall(value) if isinstance(node, ast.Call) else Evaluated(value)
    return ast.copy_location(stand_in, node)


def _structural(node: ast.AST) -> bool:
    if isinstance(node, ast.Tuple):  # inside a subscript: x[:, None]
        return any(isinstance(entry, ast.Slice) for entry in node.elts)
    return isinstance(node, _STRUCTURE)


def parts(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions whose values a node is computed from, in the order in which Python evaluates them."""
    for _, value in ast.iter_fields(node):
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, (ast.expr, ast.keyword)):
                if _structural(entry):
                    yield from parts(entry)
                else:
                    assert isinstance(entry, ast.expr)
                    yield entry


def filled(node: Any, values: Iterator[Any]) -> Any:
    """A copy of a node in which `parts` are replaced by their values."""
    clone = copy.copy(node)

    def replaced(entry: Any) -> Any:
        if not isinstance(entry, (ast.expr, ast.keyword)):
            return entry
        return filled(entry, values) if _structural(entry) else evaluated(entry, next(values))

    for field, value in ast.iter_fields(node):
        setattr(clone, field, [replaced(entry) for entry in value] if isinstance(value, list) else replaced(value))
    return clone


def is_breakpoint(node: ast.AST) -> bool:
    """``breakpoint()`` or ``pdb.set_trace()``."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    return (isinstance(function, ast.Name) and function.id == "breakpoint") or (
        isinstance(function, ast.Attribute) and function.attr == "set_trace"
    )


class RewrittenFunction:
    """A function of the language as Python code; `nodes` are the syntax nodes that the calls number."""

    def __init__(self, function: SourceFunction) -> None:
        self.source = function
        self.nodes: list[Any] = []
        self._local = set(_bound_names(function.definition))
        self._make = self._compile()

    def bound_to(self, eager: Any) -> FunctionType:
        """The function, its calls going to `eager`; takes all parameters by position."""
        captured = [self.source.captured(name, default=None) for name in self._free]
        made: FunctionType = self._make(eager, *captured)
        return made

    def _compile(self) -> Callable[..., FunctionType]:
        definition = self.source.definition
        self._free = self.source.function.__code__.co_freevars
        names = [argument.arg for argument in _all_arguments(definition.args)]
        inner = ast.FunctionDef(
            name=definition.name,
            args=_positional(names),
            body=[line for statement in definition.body for line in self._statement(statement)],
            decorator_list=[],
            returns=None,
            type_comment=None,
        )
        outer = ast.FunctionDef(
            name="__make",
            args=_positional([EAGER, *self._free]),
            body=[ast.copy_location(inner, definition), ast.Return(ast.Name(definition.name, ast.Load()))],
            decorator_list=[],
            returns=None,
            type_comment=None,
        )
        module = ast.Module([ast.copy_location(outer, definition)], [])
        ast.fix_missing_locations(module)
        code = compile(module, self.source.file, "exec")
        (make,) = (entry for entry in code.co_consts if isinstance(entry, CodeType))
        # The function around it is ours: a debugger must not show it as a place in the user's file.
        return FunctionType(make.replace(co_filename=__file__), self.source.function.__globals__)

    def _hook(self, method: str, node: ast.AST, *values: ast.expr) -> ast.expr:
        self.nodes.append(node)
        number = ast.Constant(len(self.nodes) - 1)
        call = ast.Call(ast.Attribute(ast.Name(EAGER, ast.Load()), method, ast.Load()), [number, *values], [])
        return _placed(call, node)

    # Expressions

    def _expression(self, node: ast.expr) -> ast.expr:
        method = getattr(self, f"_rewrite_{type(node).__name__}", None)
        if method is not None:
            rewritten: ast.expr = method(node)
            return rewritten
        if isinstance(node, _EVALUATED):
            return self._hook("evaluate_parts", node, *map(self._expression, parts(node)))
        return self._hook("refuse", node)

    def _rewrite_Constant(self, node: ast.Constant) -> ast.expr:
        return self._hook("refuse", node) if isinstance(node.value, (bytes, complex)) else node

    def _rewrite_Name(self, node: ast.Name) -> ast.expr:
        return node if node.id in self._local else self._hook("outer", node)

    def _rewrite_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        return ast.copy_location(ast.NamedExpr(node.target, self._expression(node.value)), node)

    def _rewrite_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        return ast.copy_location(ast.JoinedStr([self._expression(entry) for entry in node.values]), node)

    def _rewrite_FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        spec = None if node.format_spec is None else self._expression(node.format_spec)
        return ast.copy_location(ast.FormattedValue(self._expression(node.value), node.conversion, spec), node)

    def _rewrite_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        result = self._expression(node.values[0])
        for entry in node.values[1:]:
            stops = self._hook("decides", node, result)
            joined = self._hook("logical", node, self._expression(entry))
            result = _placed(ast.IfExp(stops, self._hook("decided", node), joined), node)
        return result

    def _rewrite_IfExp(self, node: ast.IfExp) -> ast.expr:
        test = self._hook("chooses", node, self._expression(node.test))
        choice = _placed(ast.IfExp(test, self._expression(node.body), self._expression(node.orelse)), node)
        return self._hook("chosen", node, choice)

    def _rewrite_ListComp(self, node: ast.ListComp) -> ast.expr:
        if len(node.generators) != 1:
            return self._hook("refuse", node)
        (generator,) = node.generators
        items = self._hook("items", generator.iter, self._expression(generator.iter))
        tests = [self._hook("holds", test, self._expression(test)) for test in generator.ifs]
        element = self._expression(node.elt)
        comprehension = ast.comprehension(generator.target, items, tests, 0)
        values = _placed(ast.ListComp(element, [comprehension]), node)
        return _placed(ast.Call(self._hook("tuple_of", node), [values], []), node)

    def _rewrite_Call(self, node: ast.Call) -> ast.expr:
        native = isinstance(node.func, ast.Name) and node.func.id == "print" and "print" not in self._local
        if is_breakpoint(node) or native:
            arguments = [
                ast.copy_location(ast.Starred(self._expression(entry.value), ast.Load()), entry)
                if isinstance(entry, ast.Starred)
                else self._expression(entry)
                for entry in node.args
            ]
            keywords = [ast.keyword(entry.arg, self._expression(entry.value)) for entry in node.keywords]
            return _placed(ast.Call(node.func, arguments, keywords), node)
        return self._hook("evaluate_parts", node, *map(self._expression, parts(node)))

    # Statements

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        method = getattr(self, f"_rewrite_{type(node).__name__}", None)
        if method is None:
            return [self._call(node, "run_statement")]
        lines: list[ast.stmt] = method(node)
        return lines

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [line for statement in statements for line in self._statement(statement)]

    def _call(self, node: ast.stmt, method: str, *values: ast.expr) -> ast.stmt:
        return ast.copy_location(ast.Expr(self._hook(method, node, *values)), node)

    def _same(self, node: ast.stmt) -> list[ast.stmt]:
        return [node]

    _rewrite_Pass = _rewrite_Break = _rewrite_Continue = _same

    def _rewrite_Expr(self, node: ast.Expr) -> list[ast.stmt]:
        return [ast.copy_location(ast.Expr(self._expression(node.value)), node)]

    def _rewrite_Return(self, node: ast.Return) -> list[ast.stmt]:
        value = None if node.value is None else self._expression(node.value)
        return [ast.copy_location(ast.Return(value), node)]

    def _rewrite_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        message = ast.Constant(ast.unparse(node.test)) if node.msg is None else self._expression(node.msg)
        return [self._call(node, "check_assertion", self._expression(node.test), message)]

    def _rewrite_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        if len(node.targets) != 1:
            return [self._call(node, "run_statement")]
        (target,) = node.targets
        value = self._expression(node.value)
        if isinstance(target, ast.Attribute):
            return [self._call(node, "assign_attribute", self._expression(target.value), value)]
        assigned = self._hook("assigned", node, value)
        if not _plain(target):
            return [ast.copy_location(ast.Expr(assigned), node)]
        return [ast.copy_location(ast.Assign([target], assigned), node)]

    def _rewrite_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        if not isinstance(node.target, ast.Name) or node.value is None:
            return [self._call(node, "run_statement")]
        assigned = self._hook("declared", node, self._expression(node.value))
        return [ast.copy_location(ast.Assign([node.target], assigned), node)]

    def _rewrite_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        if not isinstance(node.target, ast.Name):
            return [self._call(node, "run_statement")]
        present = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        assigned = self._hook("augmented", node, present, self._expression(node.value))
        return [ast.copy_location(ast.Assign([node.target], assigned), node)]

    def _rewrite_If(self, node: ast.If) -> list[ast.stmt]:
        test = self._hook("holds", node.test, self._expression(node.test))
        return [ast.copy_location(ast.If(test, self._block(node.body), self._block(node.orelse)), node)]

    def _rewrite_While(self, node: ast.While) -> list[ast.stmt]:
        if node.orelse:
            return [self._call(node, "run_statement")]
        test = self._hook("proceeds", node, self._expression(node.test))
        loop = ast.copy_location(ast.While(test, self._block(node.body), []), node)
        return [self._call(node, "begins"), loop]

    def _rewrite_For(self, node: ast.For) -> list[ast.stmt]:
        if node.orelse:
            return [self._call(node, "run_statement")]
        items = self._hook("passes", node, self._expression(node.iter))
        return [ast.copy_location(ast.For(node.target, items, self._block(node.body), []), node)]


def _bound_names(definition: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _plain(target: ast.expr) -> bool:
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(map(_plain, target.elts))
    return isinstance(target, ast.Name)


def _placed(node: Any, like: ast.AST) -> Any:
    """A node at the place of another; what it is made of too, where that has no place yet."""
    ast.copy_location(node, like)
    for child in ast.walk(node):
        if isinstance(child, (ast.expr, ast.keyword)) and not hasattr(child, "lineno"):
            ast.copy_location(child, like)
    return node


def _all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    """Parameters in the order of the signature."""
    variadic = [] if arguments.vararg is None else [arguments.vararg]
    return [*arguments.posonlyargs, *arguments.args, *variadic, *arguments.kwonlyargs]


def _positional(names: list[str]) -> ast.arguments:
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])
