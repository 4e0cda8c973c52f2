"""The allowed JSON of a torch.export archive, checked before PyTorch reads it.

PyTorch's reader trusts that text.  Names become source code that is executed (FX generates Python), sizes are
evaluated by SymPy, operators are looked up below `torch` by attribute, and guards are statements.  So each field is
checked by its type in PyTorch's own schema, and each text by what it stands for:

- names of values are identifiers, and names of parameters hold no quotes,
- operators are functions of tensors that the dispatcher knows, or arithmetic on sizes,
- sizes are sums, products and the like, of bounded length and power, of symbols and integers,
- trees of inputs and outputs are made of tuples, lists and dicts,
- guards, extra metadata, examples and custom objects are left out or refused.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import json
import re
import types
import typing
from collections.abc import Callable
from typing import Any

import torch
from torch._export.serde import schema

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,999}")
_PATH = re.compile(r"[\w.:/ -]{0,999}", re.ASCII)  # of a parameter: no quote, no bracket, no end of a line
_SYMBOL = re.compile(r"[A-Za-z_]{1,100}(\d{0,5})", re.ASCII)  # PyTorch counts up to the number
_TEXT = 100_000  # characters of a text that only becomes a value
_DEEPEST_VALUE = 60  # nested values
_EXPRESSION = 4000  # characters of a size
_NUMBER = 2**63

# Arithmetic on sizes: PyTorch's `_SYM_OPS` by their names in a file.
ON_SIZES = frozenset(
    "_operator.eq _operator.ne _operator.le _operator.ge _operator.lt _operator.gt _operator.neg _operator.pos "
    "_operator.mul _operator.add _operator.sub _operator.floordiv _operator.mod _operator.pow _operator.truediv "
    "_operator.and_ _operator.or_ _operator.lshift _operator.rshift _operator.getitem math.trunc math.ceil math.floor "
    "torch.sym_not torch.sym_int torch.sym_float torch.sym_ite torch.sym_max torch.sym_min torch.sym_sqrt "
    "torch._sym_sqrt".split()
)
_HIGHER_ORDER = frozenset(
    f"torch.ops.higher_order.{name}" for name in ("cond", "wrap_with_set_grad_enabled", "wrap_with_autocast")
)
_NAMESPACES = ("aten", "prims", "transformers")
_FUNCTIONS = frozenset(
    "Symbol Integer Float Rational Add Mul Pow Mod Max Min Abs floor ceiling Eq Ne Lt Le Gt Ge Equality Unequality "
    "StrictLessThan LessThan StrictGreaterThan GreaterThan And Or Not Where Piecewise ExprCondPair FloorDiv "
    "ModularIndexing PythonMod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift PowByNatural FloatPow FloatTrueDiv "
    "IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat Identity "
    "true false".split()
)
_POWER_NAMES = ("Pow", "PowByNatural", "FloatPow", "LShift", "RShift")
_MOST_POWERS, LARGEST_POWER = 4, 8
_CONTAINERS = ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")
_DEVICE = re.compile(r"[a-z]{1,20}")


class ValueRefused(ValueError):
    """A value that this reader does not hand on to PyTorch; the message says where and what."""


def checked(kind: Any, data: Any, where: str = "", depth: int = 0) -> Any:
    """The JSON `data` as a value of one of the schema's types (`schema.ExportedProgram`); raises `ValueRefused`."""
    if depth > _DEEPEST_VALUE:
        raise ValueRefused(f"{where[:200]}: values are nested more than {_DEEPEST_VALUE} deep")
    kind = _resolved(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if data is None else checked(arguments[0], data, where, depth + 1)
    if origin is list:
        return [checked(arguments[0], item, where, depth + 1) for item in _of(list, data, where)]
    if origin is dict:
        entries = _of(dict, data, where).items()
        return {_key(where, key): checked(arguments[1], value, f"{where}.{key}", depth + 1) for key, value in entries}
    if dataclasses.is_dataclass(kind):
        return _structure(kind, _of(dict, data, where), depth)
    if isinstance(kind, type) and issubclass(kind, enum.IntEnum):
        try:
            return kind(_of(int, data, where))
        except ValueError as error:
            raise ValueRefused(f"{where}: {error}") from None
    if kind is str:
        return _text(where, _of(str, data, where))
    if kind is float:
        if data in ("Infinity", "-Infinity", "NaN"):
            return float(data)
        return float(data) if isinstance(data, int) and abs(data) < _NUMBER else _of(float, data, where)
    if kind is int and not -_NUMBER <= _of(int, data, where) < 2 * _NUMBER:
        raise ValueRefused(f"{where}: {data} is no 64-bit number")
    return _of(kind, data, where)


def _resolved(kind: Any) -> Any:
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if isinstance(kind, typing.ForwardRef):
        kind = kind.__forward_arg__
    return getattr(schema, kind) if isinstance(kind, str) else kind


def _of(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, kind) or (kind in (int, float) and isinstance(data, bool)):
        raise ValueRefused(f"{where}: expected {kind.__name__}, and found {type(data).__name__}")
    return data


def _structure(kind: Any, data: dict[str, Any], depth: int) -> Any:
    """A structure of the schema; one of several alternatives has one key."""
    name = kind.__name__
    if name == "ModuleCallEntry":
        data = {**data, "fqn": data.get("fqn") or ""}
    data = {**data, **_LEFT_OUT.get(name, {})}
    hints = typing.get_type_hints(kind, globalns=vars(schema))
    if hasattr(kind, "create"):
        if len(data) != 1 or (field := next(iter(data))) not in hints:
            raise ValueRefused(f"{name}: expected one of its alternatives, and found {list(data)[:5]}")
        if field in ("as_custom_obj", "custom_obj"):
            raise ValueRefused(f"{name}: an object of a class of the program's own (a pickle or TorchScript)")
        return kind.create(**{field: checked(hints[field], data[field], f"{name}.{field}", depth + 1)})
    values = {
        field.name: checked(hints[field.name], data[field.name], f"{name}.{field.name}", depth + 1)
        for field in dataclasses.fields(kind)
        if field.name in data
    }
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueRefused(f"{name}: {error}") from None


# What PyTorch would evaluate, import or look up, and an import has no use for.
_LEFT_OUT: dict[str, dict[str, Any]] = {
    "ExportedProgram": {"guards_code": []},
    "GraphModule": {"metadata": {}, "treespec_namedtuple_fields": {}},
}
_METADATA = ("stack_trace", "nn_module_stack")  # of a node; the others are looked up in modules


def without_metadata(program: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a program with what an import needs: of a node's metadata where it came from, of the calls of
    submodules the outermost."""
    module = program.get("graph_module")
    if isinstance(module, dict):
        _reduce(module.get("graph"), 0)
        calls = module.get("module_call_graph")
        module["module_call_graph"] = calls[:1] if isinstance(calls, list) else []
    return program


def _reduce(graph: Any, depth: int) -> None:
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    for node in nodes if isinstance(nodes, list) and depth < _DEEPEST_VALUE else []:
        if not isinstance(node, dict):
            continue
        metadata = node.get("metadata")
        fields = metadata if isinstance(metadata, dict) else {}
        node["metadata"] = {name: str(fields[name])[:_TEXT] for name in _METADATA if name in fields}
        if str(node["metadata"].get("nn_module_stack", "")).count(",") % 2:
            del node["metadata"]["nn_module_stack"]
        inputs = node.get("inputs")
        for entry in inputs if isinstance(inputs, list) else []:
            argument = entry.get("arg") if isinstance(entry, dict) else None
            if isinstance(argument, dict) and isinstance(argument.get("as_graph"), dict):
                _reduce(argument["as_graph"].get("graph"), depth + 1)


def _key(where: str, key: str) -> str:
    if where == "ExportedProgram.range_constraints":
        return _expression(where, key)
    pattern = _PATH if where == "PayloadConfig.config" else _IDENTIFIER
    if not pattern.fullmatch(key):
        raise ValueRefused(f"{where}: {key[:100]!r} is no name")
    return key


def _text(where: str, text: str) -> str:
    check = _TEXTS.get(where)
    if check is not None:
        return check(where, text)
    if where.startswith("Node.metadata."):
        return text
    if not _IDENTIFIER.fullmatch(text):
        raise ValueRefused(f"{where}: {text[:100]!r} is no name")
    return text


def _value(where: str, text: str) -> str:
    if len(text) > _TEXT:
        raise ValueRefused(f"{where}: a text of {len(text)} characters, more than {_TEXT}")
    return text


def _path(where: str, text: str) -> str:
    if not _PATH.fullmatch(text):
        raise ValueRefused(f"{where}: {text[:100]!r} is no name of a parameter, buffer or module")
    return text


def _optional_name(where: str, text: str) -> str:
    return text if not text else _text("", text)


def _device(where: str, text: str) -> str:
    if not _DEVICE.fullmatch(text):
        raise ValueRefused(f"{where}: {text[:100]!r} is no kind of device")
    return text


def _operator(where: str, text: str) -> str:
    """An operator that computes: on sizes, or on tensors by a kernel of the dispatcher.

    What only TorchScript knows is not in the dispatcher; `aten::save` of that kind writes a file.
    """
    if text in ON_SIZES or text in _HIGHER_ORDER:
        return text
    parts = text.split(".")
    if text.startswith("torch.ops.") and len(parts) == 5 and parts[2] in _NAMESPACES:
        namespace, name, overload = parts[2:]
        packet = getattr(getattr(torch.ops, namespace), name, None) if _IDENTIFIER.fullmatch(name) else None
        if isinstance(packet, torch._ops.OpOverloadPacket) and overload in packet.overloads():
            operation = getattr(packet, overload)
            files = any(argument.name in ("filename", "file", "path") for argument in operation._schema.arguments)
            if not files and torch._C._dispatch_has_kernel(operation.name()):
                return text
    raise ValueRefused(f"{where}: {text[:200]!r} is no operation on tensors or sizes that an import takes")


def _tree(where: str, text: str) -> str:
    """The structure of inputs or outputs: tuples, lists and dicts; other classes would be imported by name."""
    try:
        protocol, tree = json.loads(text) if len(text) <= 10 * _TEXT else (None, None)
    except (ValueError, TypeError, RecursionError):
        raise ValueRefused(f"{where}: no structure of inputs or outputs") from None
    if protocol != 1:
        raise ValueRefused(f"{where}: no structure of inputs or outputs that this version knows")
    _check_tree(where, tree, 0)
    return text


def _check_tree(where: str, tree: Any, depth: int) -> None:
    if depth > _DEEPEST_VALUE or not isinstance(tree, dict) or tree.keys() != {"type", "context", "children_spec"}:
        raise ValueRefused(f"{where}: no structure of inputs or outputs")
    children, context = tree["children_spec"], tree["context"]
    if not isinstance(children, list):
        raise ValueRefused(f"{where}: no structure of inputs or outputs")
    if tree["type"] is None:
        if context is not None or children:
            raise ValueRefused(f"{where}: a leaf of inputs or outputs that holds something")
        return
    if tree["type"] not in _CONTAINERS:
        raise ValueRefused(
            f"{where}: inputs or outputs in a {str(tree['type'])[:100]}; tuples, lists and dicts are read without "
            "running anything"
        )
    try:
        keys = json.loads(context) if isinstance(context, str) and len(context) <= 10 * _TEXT else 0
    except (ValueError, RecursionError):
        keys = 0
    names = keys if isinstance(keys, list) else []
    if not (keys is None or names == keys) or not all(isinstance(key, str) and _PATH.fullmatch(key) for key in names):
        raise ValueRefused(f"{where}: keys of inputs or outputs that are no names")
    for child in children:
        _check_tree(where, child, depth + 1)


def _expression(where: str, text: str) -> str:
    """A size: PyTorch gives this text to SymPy, which evaluates it as Python."""
    if len(text) > _EXPRESSION:
        raise ValueRefused(f"{where}: a size of {len(text)} characters, more than {_EXPRESSION}")
    try:
        tree = ast.parse(text, mode="eval")
        powers = sum(map(_check_expression, ast.walk(tree)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueRefused(f"{where}: {text[:100]!r} is no size ({error})") from None
    if powers > _MOST_POWERS:
        raise ValueRefused(f"{where}: {text[:100]!r} has more than {_MOST_POWERS} powers")
    return text


_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd, ast.Load, ast.Expression)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.UnaryOp, ast.Compare, ast.BinOp, ast.keyword)


def _check_expression(node: ast.AST) -> bool:
    """Check one node of a size; says whether it is a power."""
    if isinstance(node, (*_ARITHMETIC, *_COMPARISONS)):
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift, ast.RShift))):
            return False
        if not _is_small(node.right):
            raise ValueError(f"a power that is no number up to {LARGEST_POWER}")
        return True
    if isinstance(node, (ast.Pow, ast.LShift, ast.RShift)):
        return False
    if isinstance(node, ast.Name):
        if node.id not in _FUNCTIONS and not _SYMBOL.fullmatch(node.id):
            raise ValueError(f"{node.id[:50]!r} is no symbol")
        return False
    if isinstance(node, ast.Call):
        function = node.func
        if not (isinstance(function, ast.Name) and function.id in _FUNCTIONS):
            raise ValueError("a call of something else than arithmetic")
        if function.id in _POWER_NAMES and not (len(node.args) == 2 and _is_small(node.args[1])):
            raise ValueError(f"a power that is no number up to {LARGEST_POWER}")
        texts = [argument for argument in node.args if isinstance(getattr(argument, "value", None), str)]
        if texts and function.id not in ("Symbol", "Float"):
            raise ValueError("a text")
        return function.id in _POWER_NAMES
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, str) and (_SYMBOL.fullmatch(value) or re.fullmatch(r"[-+.\de]{1,40}", value)):
            return False
        if isinstance(value, (bool, int, float)) and abs(value) <= 2 * _NUMBER:
            return False
    raise ValueError(f"{type(node).__name__} is no arithmetic on sizes")


def _is_small(node: ast.AST) -> bool:
    """Whether a node is a whole number that may be a power: ``2``, ``-1``, ``Integer(2)``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Integer" and node.args:
        node = node.args[0]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) <= LARGEST_POWER


_TEXTS: dict[str, Callable[[str, str], str]] = {
    "Node.target": _operator,
    "Argument.as_operator": _operator,
    "SymExpr.expr_str": _expression,
    "Argument.as_string": _value,
    "Argument.as_strings": _value,
    "ConstantValue.as_string": _value,
    "ModuleCallSignature.in_spec": _tree,
    "ModuleCallSignature.out_spec": _tree,
    "Device.type": _device,
    "ExportedProgram.torch_version": _value,
    "NamedArgument.name": _optional_name,
    "ModuleCallEntry.fqn": _path,
    "InputToParameterSpec.parameter_name": _path,
    "InputToBufferSpec.buffer_name": _path,
    "InputToTensorConstantSpec.tensor_constant_name": _path,
    "BufferMutationSpec.buffer_name": _path,
    "ParameterMutationSpec.parameter_name": _path,
    "GradientToParameterSpec.parameter_name": _path,
}
