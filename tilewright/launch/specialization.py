"""The parts of a signature: keys of constants and captured values, rules of annotations and decorators, types.

A rule adjusts the class that an argument has by itself (`arguments.classify`) to what its parameter says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.dtypes import DTYPES, DType
from tilewright.errors import CompilationError, InvalidIRError, LaunchError, a_kind
from tilewright.frontend.scope import nearest
from tilewright.frontend.tracer import labels
from tilewright.frontend.values import Static, ValueGroup, members
from tilewright.ir.core import Parameter
from tilewright.ir.parser import parse_type
from tilewright.ir.types import PointerType, TensorType, scalar
from tilewright.language.function import SourceFunction
from tilewright.language.types import NAMES, constexpr, dtype, pointer_type, unwrap
from tilewright.launch.arguments import ArgumentClass, argument_class, retyped
from tilewright.launch.binding import MISSING, PLAIN_CLASSES


def constant_key(value: Any) -> Any:
    """A hashable stand-in for a compile-time argument that tells 1, 1.0 and True apart."""
    if type(value) in PLAIN_CLASSES:
        return value
    known = _KNOWN_KEYS.get(id(value))
    if known is not None and known[0] is value:
        return known[1]
    if value is MISSING:
        raise LaunchError("it has no value")
    value = unwrap(value)
    if type(value) in PLAIN_CLASSES:
        return value
    if isinstance(value, tuple):
        return _tuple_key(value)
    if isinstance(value, list):
        return tuple(constant_key(entry) for entry in value)
    try:
        hash(value)
    except TypeError:
        raise LaunchError(
            f"{a_kind(value)} cannot be a tl.constexpr argument: it has no hash, so that the kernel "
            "could not be found again; pass numbers, strings, dtypes, tuples or functions"
        ) from None
    key = (type(value), value)
    return _keep(value, key) if isinstance(value, (dtype, SourceFunction)) else key


# Of functions, dtypes and tuples that cannot change, by identity; each is kept alive.
_KNOWN_KEYS: dict[int, tuple[Any, Any]] = {}
_MOST_KNOWN = 1024


def _keep(value: Any, key: Any) -> Any:
    if len(_KNOWN_KEYS) >= _MOST_KNOWN:
        _KNOWN_KEYS.clear()
    _KNOWN_KEYS[id(value)] = value, key
    return key


def _tuple_key(value: tuple[Any, ...]) -> Any:
    """The stand-in for a tuple; those of a kernel's configuration, which come again and again, are remembered."""
    key = tuple(constant_key(entry) for entry in value)
    try:
        hash(value)
    except TypeError:  # something in it may change
        return key
    return _keep(value, key)


def option_key(value: Any) -> Any:
    """The same for an option, which may be a dict."""
    return tuple(sorted(value.items())) if isinstance(value, dict) else constant_key(value)


def guard(function: SourceFunction, path: tuple[str, ...], value: Any) -> tuple[Callable[[str], Any], str, Any]:
    """A look at a captured value: ``look(name) is value`` while nobody has changed it."""
    if len(path) > 1:
        owner = function.captured(path[0])
        for name in path[1:-1]:
            owner = getattr(owner, name)
        return vars(owner).get, path[-1], value
    space = function.function.__globals__
    if path[0] in space and path[0] not in function.function.__code__.co_freevars:
        return space.get, path[0], value
    return lambda name: function.captured(name, default=None), path[0], value


def generalized(kind: Any, value: Any) -> Any:
    """`do_not_specialize`: the type alone; 1 stays a run-time value."""
    if isinstance(kind, ValueGroup):
        return _each(generalized, kind, value)
    if kind.type is None and isinstance(value, int):
        return argument_class(parameter_type("i32"))
    return kind if kind.type is None else kind.adjusted(kind.type, _least(kind.type))


def _each(rule: Callable[[Any, Any], Any], kind: ValueGroup, value: Any) -> ValueGroup:
    """A rule for the entries of a tuple; a descriptor is what it is."""
    group = members(value)
    if group is None:
        return kind
    return ValueGroup(
        kind.kind, tuple(rule(entry, part) for entry, part in zip(kind.entries, group.entries, strict=True))
    )


def without_alignment(kind: Any, value: Any) -> Any:
    if isinstance(kind, ValueGroup):
        return _each(without_alignment, kind, value)
    return kind if kind.type is None else kind.adjusted(kind.type, _least(kind.type))


def _least(kind: TensorType) -> int:
    return kind.element.element.itemsize if isinstance(kind.element, PointerType) else 1


def read_only(kind: Any, value: Any) -> Any:
    if isinstance(kind, ValueGroup):
        return _each(read_only, kind, value)
    if kind.type is None or not isinstance(kind.type.element, PointerType):
        return kind
    return kind.adjusted(scalar(PointerType(kind.type.element.element, const=True)), kind.divisibility)


def fixing_rule(annotated: dtype) -> Callable[[Any, Any], ArgumentClass]:
    return lambda kind, value: retyped(kind, value, annotated._number)


def address_rule(annotated: pointer_type) -> Callable[[Any, Any], Any]:
    """A number becomes a pointer to the annotated type; an array stays one of its own dtype."""
    constant = scalar(PointerType(annotated.element_ty._number, True))
    plain = scalar(PointerType(annotated.element_ty._number))
    size = annotated.element_ty._number.itemsize

    def rule(kind: Any, value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            return read_only(kind, value) if annotated.const else kind
        if value < 0 or value % size:
            raise LaunchError(f"{value:#x} is no address of a {annotated.element_ty}")
        return argument_class(constant if annotated.const else plain, 16 if value % 16 == 0 else size)

    return rule


def leaf(kind: ArgumentClass, name: str, described: dict[str, Parameter]) -> TensorType:
    """The type of one run-time parameter, whose facts are added to `described`."""
    assert kind.type is not None
    described[name] = Parameter(name, divisibility=kind.divisibility)
    return kind.type


def group_type(kind: ValueGroup, name: str, described: dict[str, Parameter]) -> ValueGroup:
    """The types of a group's entries: a tensor type, a constant, or a group again."""
    entries: list[Any] = []
    for label, entry in zip(labels(kind), kind.entries, strict=True):
        if isinstance(entry, ValueGroup):
            entries.append(group_type(entry, f"{name}_{label}", described))
        else:
            constant = entry.type is None
            entries.append(Static(entry.constant) if constant else leaf(entry, f"{name}_{label}", described))
    return ValueGroup(kind.kind, tuple(entries))


def parameter_type(kind: Any) -> Any:
    """A parameter's type from a `TensorType`, text, a tl dtype or pointer type.

    Text is that of the IR (``*f32``); the language's names of element types (``*fp32``, ``*fp8e4nv``) do as well.
    Tuples and NamedTuples of these, entry by entry, with `tl.constexpr` values among them.
    """
    if isinstance(kind, (TensorType, ValueGroup)):
        return kind
    if isinstance(kind, constexpr):
        return Static(kind.value)
    if isinstance(kind, str):
        return _type_of_text(kind)
    if isinstance(kind, dtype):
        return scalar(kind.element)
    if isinstance(kind, (tuple, list)):
        group = members(kind)
        assert group is not None
        return ValueGroup(group.kind, tuple(parameter_type(entry) for entry in group.entries))
    raise TypeError(f"a parameter's type is a TensorType, IR text such as '*f32', or a tl dtype, not {kind!r}")


def _type_of_text(text: str) -> Any:
    """The type that a text names; raises `CompilationError` where it names none."""
    name = text.lstrip("*")
    known = NAMES[name].element if name in NAMES else None
    try:
        return parse_type(text[: len(text) - len(name)] + known.text if isinstance(known, DType) else text)
    except InvalidIRError:
        names = [element.text for element in DTYPES]
        advice = nearest(name, names, f"write one of {', '.join(names)}, with * in front for an array of it")
        raise CompilationError(f"a parameter cannot have the type '{text}'; {advice}") from None
