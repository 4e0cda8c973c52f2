"""Traces a function's source to Tile IR: the tracer assembled from its parts, and the entry `trace_kernel`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import Any

from tilewright.errors import CompilationError
from tilewright.frontend.loops import Loops
from tilewright.frontend.session import TraceSession
from tilewright.frontend.statements import Returned
from tilewright.frontend.values import Static, ValueGroup
from tilewright.ir.builder import Builder
from tilewright.ir.core import Function, Location, Parameter, Region, SSAValue
from tilewright.ir.types import TensorType
from tilewright.language.aggregate import assembled
from tilewright.language.context import LanguageError, activate
from tilewright.language.explicit.objects import tensor_map
from tilewright.language.function import SourceFunction
from tilewright.language.records import field_names
from tilewright.language.tensor import tensor
from tilewright.language.types import unwrap
from tilewright.passes.load_waits import place_load_waits
from tilewright.targets.base import Remark


class FunctionTracer(Loops):
    """One function being traced."""

    def run(self) -> Any:
        """Trace the whole body; gives the returned value."""
        outcome = self.execute(self.definition.body)
        return outcome.value if isinstance(outcome, Returned) else None


def bind_call(function: SourceFunction, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Values of all parameters for a call; raises `LanguageError` as Python would a `TypeError`."""
    bound: dict[str, Any] = {}
    rest, left = list(arguments), dict(keywords)
    for parameter in function.parameters:
        if parameter.kind == "variadic":
            bound[parameter.name], rest = tuple(rest), []
        elif parameter.kind == "plain" and rest:
            if parameter.name in left:
                raise _call_error(function, f"got two values for '{parameter.name}'")
            bound[parameter.name] = rest.pop(0)
        elif parameter.name in left:
            bound[parameter.name] = left.pop(parameter.name)
        elif parameter.has_default:
            bound[parameter.name] = unwrap(parameter.default)
        else:
            raise _call_error(function, f"no value for '{parameter.name}'")
        if parameter.constexpr:
            bound[parameter.name] = _as_constant(bound[parameter.name])
    if rest:
        raise _call_error(function, f"{len(arguments)} positional arguments are too many")
    if left:
        raise _call_error(function, f"no parameter is named {', '.join(map(repr, left))}")
    return bound


def _as_constant(value: Any) -> Any:
    """What a `tl.constexpr` parameter of an inlined function holds: a run-time value stays one, as in Triton."""
    if isinstance(value, tensor):
        return value if value.constant is None else value.constant
    return unwrap(value)


def _call_error(function: SourceFunction, message: str) -> LanguageError:
    names = ", ".join(function.argument_names)
    return LanguageError(f"call of '{function.name}': {message}", f"its parameters are: {names}")


def labels(group: ValueGroup) -> tuple[str, ...]:
    """What the names of a group's entries end in: fields of NamedTuples and aggregates, parts, or numbers."""
    for attribute in ("labels", "_fields", "__aggregate_fields__"):
        if hasattr(group.kind, attribute):
            return tuple(getattr(group.kind, attribute))
    if isinstance(group.kind, type) and is_dataclass(group.kind):
        return field_names(group.kind)
    return tuple(map(str, range(len(group.entries))))


def leaf_types(name: str, kind: Any) -> list[tuple[str, TensorType]]:
    """Names and types of the IR parameters that one parameter becomes: ``pair_0, pair_1``; constants become none."""
    if isinstance(kind, Static):
        return []
    if not isinstance(kind, ValueGroup):
        return [(name, kind)]
    named = zip(labels(kind), kind.entries, strict=True)
    return [leaf for label, entry in named for leaf in leaf_types(f"{name}_{label}", entry)]


def leaf_names(name: str, kind: Any) -> list[str]:
    """The names alone."""
    return [leaf for leaf, _ in leaf_types(name, kind)]


@dataclass(frozen=True)
class Trace:
    """A traced kernel and what the front end has to say about it."""

    function: Function
    remarks: tuple[Remark, ...]


def trace_kernel(
    kernel: SourceFunction,
    types: Mapping[str, TensorType | ValueGroup],
    constants: Mapping[str, Any],
    parameters: Mapping[str, Parameter] | None = None,
    debug: bool = False,
    sanitize: bool = True,
    wide_grid: bool = False,
) -> Trace:
    """Tile IR of a kernel for parameter types and compile-time constants.

    Every parameter is in `types` or in `constants` (or has a default).  A parameter of several values (a tuple,
    a variadic one) has a `ValueGroup` of types: each of its entries becomes a parameter, named as `leaf_names` says.
    With `wide_grid` its places in the grid are numbers of 64 bits.  Raises `CompilationError`.
    """
    known = parameters or {}
    region = Region()
    described: list[Parameter] = []

    def add(name: str, kind: TensorType) -> Any:
        value = SSAValue(kind, name)
        region.arguments.append(value)
        described.append(known.get(name, Parameter(name)))
        return assembled(tensor_map, [tensor(value)]) if kind.is_handle else tensor(value)

    unknown = (set(types) | set(constants)) - set(kernel.argument_names)
    if unknown:
        raise CompilationError(
            f"kernel '{kernel.name}' has no parameter named {', '.join(map(repr, sorted(unknown)))}\n"
            f"  help: its parameters are: {', '.join(kernel.argument_names)}"
        )
    bind = partial(bind_parameters, kernel, types, constants, add)
    function = Function(kernel.name, region, described)
    session = TraceSession(Builder(function), run_called, debug, sanitize, wide_grid)
    return Trace(_traced(kernel, function, bind, session), tuple(session.remarks.values()))


def bind_parameters(
    kernel: SourceFunction,
    types: Mapping[str, TensorType | ValueGroup],
    constants: Mapping[str, Any],
    add: Callable[[str, TensorType], Any],
) -> dict[str, Any]:
    """Values of all parameters of a kernel; `add` makes that of a run-time one from its name and type."""

    def build(name: str, kind: Any) -> Any:
        if isinstance(kind, Static):
            return kind.value
        if isinstance(kind, ValueGroup):
            named = zip(labels(kind), kind.entries, strict=True)
            return kind.build([build(f"{name}_{label}", entry) for label, entry in named])
        return add(name, kind)

    bindings: dict[str, Any] = {}
    for parameter in kernel.parameters:
        name = parameter.name
        if name in types:
            bindings[name] = build(name, types[name])
        elif name in constants:
            bindings[name] = unwrap(constants[name])
        elif parameter.has_default:
            bindings[name] = unwrap(parameter.default)
        elif parameter.kind == "variadic":
            bindings[name] = ()
        else:
            raise CompilationError(f"kernel '{kernel.name}': no type and no constant for parameter '{name}'")
    return bindings


def run_called(
    session: TraceSession,
    function: SourceFunction,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    caller: Location | None,
) -> Any:
    """Trace the body of a function that another one calls."""
    return FunctionTracer(session, function, bind_call(function, arguments, keywords), caller).run()


def _traced(
    kernel: SourceFunction, function: Function, bind: Callable[[], dict[str, Any]], session: TraceSession
) -> Function:
    builder = session.builder
    with activate(session):
        builder.location = Location(kernel.file, kernel.first_line, 0, kernel.name)
        tracer = FunctionTracer(session, kernel, bind(), None)
        value = tracer.run()
        if value is not None:
            raise tracer.error(
                kernel.definition, "a kernel returns nothing", "store results through a pointer argument with tl.store"
            )
        builder.location = Location(kernel.file, kernel.definition.end_lineno or kernel.first_line, 0, kernel.name)
        builder.create("return")
    place_load_waits(function)
    return function
