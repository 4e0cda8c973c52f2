"""`@tilewright.jit`: kernels that are traced, compiled for what they are called with, cached and launched.

@tilewright.jit
def add(x, y, out, n, BLOCK: tl.constexpr): ...

add[(tilewright.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)      # NumPy arrays or CPU torch tensors
add.trace({"x": "*f32", …, "n": "i32"}, {"BLOCK": 1024})         # its Tile IR
add.compile({"x": "*f32", …, "n": "i32"}, {"BLOCK": 1024})       # its machine code
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import FunctionType
from typing import Any, overload

from tilewright.errors import CompilationError, LaunchError
from tilewright.frontend import binaries, recompile
from tilewright.frontend.arguments import (
    ArgumentClass,
    argument_class,
    as_array,
    classify,
    handler_of,
    is_writable,
    retyped,
)
from tilewright.frontend.compiled import CompiledKernel, full_grid, written_parameters
from tilewright.frontend.tracer import Trace, trace_kernel
from tilewright.ir.core import Function, Parameter
from tilewright.ir.parser import parse_type
from tilewright.ir.types import PointerType, TensorType, scalar
from tilewright.language.function import ParameterInfo, SourceFunction
from tilewright.language.types import dtype, unwrap
from tilewright.settings import settings
from tilewright.targets.base import Target
from tilewright.targets.registry import get_target

# Keywords that other back ends tune by; the CPU has no use for them. `debug` turns device_assert on.
LAUNCH_OPTIONS = frozenset(
    "num_warps num_stages num_ctas maxnreg debug enable_fp_fusion launch_cooperative_grid launch_pdl sanitize_overflow "
    "arch extern_libs waves_per_eu matrix_instr_nonkdim kpack".split()
)
Types = Mapping[str, Any]


class JITFunction(SourceFunction):
    """A kernel. ``kernel[grid](*arguments, **keywords)`` launches it; see `jit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        do_not_specialize: Sequence[str | int] = (),
        do_not_specialize_on_alignment: Sequence[str | int] = (),
        debug: bool = False,
    ) -> None:
        super().__init__(function)
        self._fixed = list(do_not_specialize or ())
        self._unaligned = list(do_not_specialize_on_alignment or ())
        self.debug = bool(debug)
        self._launches: dict[Any, _Launch] = {}
        self._watched: list[tuple[SourceFunction, tuple[str, ...], Any]] = []
        self._pre_run_hooks: list[Callable[..., Any]] = []

    @classmethod
    def from_source(cls, source: str, name: str, namespace: Mapping[str, Any]) -> JITFunction:
        """The kernel `name` defined by generated source text; `namespace` holds the names that it uses.

        Errors show the generated lines.  Raises `CompilationError` when the source has no such function.
        """
        file = f"<tilewright:{name}:{abs(hash(source)):x}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        names = {**namespace, "__name__": f"tilewright.generated.{name}"}
        try:
            exec(compile(source, file, "exec"), names)
        except SyntaxError as error:
            raise CompilationError(f"the generated source of '{name}' is not Python: {error}\n{source}") from error
        found = names.get(name)
        if isinstance(found, cls):
            return found
        if not isinstance(found, FunctionType):
            raise CompilationError(f"the generated source defines no function named '{name}'")
        return cls(found)

    # Compiling

    def trace(
        self, types: Types, constants: Mapping[str, Any], parameters: Mapping[str, Parameter] | None = None
    ) -> Function:
        """The kernel's Tile IR for parameter types (`TensorType`, IR text such as ``*f32``, or tl dtypes)
        and compile-time constants. Raises `CompilationError`."""
        return self._trace(types, constants, parameters, self.debug).function

    def _trace(
        self, types: Types, constants: Mapping[str, Any], parameters: Mapping[str, Parameter] | None, debug: bool
    ) -> Trace:
        typed = {name: parameter_type(kind) for name, kind in types.items()}
        try:
            return trace_kernel(self, typed, constants, parameters, debug)
        except CompilationError as error:
            raise error.with_traceback(None) from None  # the message says where; our own frames do not help

    def compile(
        self,
        types: Types,
        constants: Mapping[str, Any],
        parameters: Mapping[str, Parameter] | None = None,
        target: str | Target = "auto",
        options: Mapping[str, Any] | None = None,
    ) -> CompiledKernel:
        """Machine code for parameter types and constants; no example arguments are needed.

        `parameters` adds what is known (divisibility, no aliases), `target` names the machine (`get_target`),
        `options` go to the target.  Raises `CompilationError`.
        """
        chosen = get_target(target)
        typed = {name: parameter_type(kind) for name, kind in types.items()}
        given = dict(options or {})
        debug = bool(given.pop("debug", self.debug))
        request = binaries.Request(self, typed, dict(constants), dict(parameters or {}), given, debug)
        return binaries.compiled_kernel(request, chosen, lambda: self._trace(typed, constants, parameters, debug))

    # Launching

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        raise TypeError(f"kernel '{self.name}' needs a grid: {self.name}[grid](...); or call it inside a kernel")

    def __getitem__(self, grid: Any) -> Callable[..., CompiledKernel | None]:
        return lambda *arguments, **keywords: self.run(grid, arguments, keywords)

    def run(self, grid: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> CompiledKernel | None:
        """Bind, specialise, compile if this signature is new, and launch over `grid`."""
        for hook in self._pre_run_hooks:
            hook(*arguments, **keywords)
        launch, arguments, slots = self._find(arguments, keywords)
        if callable(grid):
            grid = grid(dict(zip(self.argument_names, arguments, strict=True)))
        return launch.run(full_grid(grid), arguments, slots)

    def _find(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[_Launch, tuple[Any, ...], list[Any]]:
        """The launch for these arguments (made if the signature is new), all arguments, and their slots."""
        debug = self.debug
        if keywords or len(arguments) != len(self._rules):
            arguments, debug = self._bind(arguments, keywords)
        key, slots = self._signature(arguments, debug)
        launch = self._launches.get(key)
        if launch is None or (self._watched and self._changed()):
            launch = self._prepare(key, arguments, debug)
        return launch, arguments, slots

    def add_pre_run_hook(self, hook: Callable[..., Any]) -> None:
        """Call ``hook(*arguments, **keywords)`` before each launch."""
        self._pre_run_hooks.append(hook)

    def warmup(self, *arguments: Any, grid: Any = None, **keywords: Any) -> CompiledKernel | None:
        """Compile for these arguments without running."""
        return self._find(arguments, keywords)[0].kernel

    def _bind(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], bool]:
        """One value for each parameter, and whether to keep device assertions."""
        bound: list[Any] = []
        rest, left = list(arguments), dict(keywords)
        for parameter in self.parameters:
            if parameter.kind == "variadic":
                bound.append(tuple(rest))
                rest = []
            elif parameter.kind == "plain" and rest:
                if parameter.name in left:
                    raise LaunchError(f"kernel '{self.name}' got two values for '{parameter.name}'")
                bound.append(rest.pop(0))
            elif parameter.name in left:
                bound.append(left.pop(parameter.name))
            elif parameter.has_default:
                bound.append(parameter.default)
            else:
                raise LaunchError(f"kernel '{self.name}' needs a value for '{parameter.name}'")
        unknown = [name for name in left if name not in LAUNCH_OPTIONS]
        if rest or unknown:
            what = f"{len(rest)} more positional arguments" if rest else ", ".join(map(repr, unknown))
            raise LaunchError(
                f"kernel '{self.name}' does not take {what}; its parameters are {', '.join(self.argument_names)}, "
                f"and the launch options {', '.join(sorted(LAUNCH_OPTIONS))}"
            )
        return tuple(bound), self.debug or bool(left.get("debug", False))

    def _signature(self, arguments: tuple[Any, ...], debug: bool) -> tuple[tuple[Any, ...], list[Any]]:
        """The specialization key and the slot values of all arguments. Every launch pays for this loop."""
        key: list[Any] = [debug, settings.interpret]
        slots: list[Any] = []
        try:
            for rule, value in zip(self._rules, arguments, strict=True):
                if rule is _CONSTANT:
                    kind, slot = (type(value), value) if type(value) in _PLAIN else _constant_key(value), None
                else:
                    kind, slot = handler_of(value)(value)
                    if rule is not None:
                        kind = rule(kind, value)
                key.append(kind)
                slots.append(slot)
        except LaunchError as error:
            raise LaunchError(f"kernel '{self.name}', argument '{self.argument_names[len(slots)]}': {error}") from None
        return tuple(key), slots

    @cached_property
    def _rules(self) -> tuple[Any, ...]:
        """For each parameter: `_CONSTANT`, None (the class as it is), or a function that adjusts the class."""
        fixed = {self.argument_names[entry] if isinstance(entry, int) else entry for entry in self._fixed}
        unaligned = {self.argument_names[entry] if isinstance(entry, int) else entry for entry in self._unaligned}

        def rule(parameter: ParameterInfo) -> Any:
            if parameter.constexpr:
                return _CONSTANT
            if parameter.dtype is not None:
                return _fixing_rule(parameter.dtype)
            if parameter.name in fixed:
                return _generalized
            if parameter.name in unaligned:
                return _without_alignment
            return _read_only if parameter.const else None

        return tuple(rule(parameter) for parameter in self.parameters)

    def _changed(self) -> bool:
        """Whether something that a traced kernel captured has another value now; forgets what was compiled."""
        for function, path, value in self._watched:
            current = function.captured(path[0], default=None)
            for name in path[1:]:
                current = getattr(current, name, None)
            if current is not value and unwrap(current) != unwrap(value):
                if settings.explain_recompile:
                    recompile.report_captured(self.name, path, value, current)
                self._watched.clear()
                self._launches.clear()
                return True
        return False

    def _prepare(self, key: Any, arguments: tuple[Any, ...], debug: bool) -> _Launch:
        """Trace or compile for a signature that is new."""
        if settings.explain_recompile and self._launches:
            recompile.report(self.name, self.parameters, key, self._launches)
        types: dict[str, Any] = {}
        constants: dict[str, Any] = {}
        described: dict[str, Parameter] = {}
        for parameter, kind, value in zip(self.parameters, key[2:], arguments, strict=True):
            name = parameter.name
            if parameter.constexpr:
                constants[name] = unwrap(value)
            elif isinstance(kind, tuple):
                types[name] = tuple(_leaf(entry, f"{name}_{number}", described) for number, entry in enumerate(kind))
            elif kind.type is None:
                constants[name] = kind.constant
            else:
                types[name] = _leaf(kind, name, described)
        known = {(id(function), path) for function, path, _ in self._watched}
        for entry in binaries.watched(self, constants):
            if (id(entry[0]), entry[1]) not in known:
                self._watched.append(entry)
        launch = _Launch(self, types, constants, described, debug)
        self._launches[key] = launch
        return launch

    def __repr__(self) -> str:
        return f"<tile kernel {self.__module__}.{self.__qualname__}>"


class _Launch:
    """One signature of a kernel, ready to run."""

    def __init__(
        self, owner: JITFunction, types: Types, constants: dict[str, Any], described: dict[str, Parameter], debug: bool
    ) -> None:
        self.owner = owner
        names = owner.argument_names
        self.positions = [(index, isinstance(types[name], tuple)) for index, name in enumerate(names) if name in types]
        self.grouped = any(grouped for _, grouped in self.positions)
        self.indices = [index for index, _ in self.positions]
        self.kernel: CompiledKernel | None = None
        self.function: Function | None = None
        if settings.interpret:
            self.function = owner._trace(types, constants, described, debug).function
            written = written_parameters(self.function)
        else:
            self.kernel = owner.compile(types, constants, described, options={"debug": debug})
            written = self.kernel.written
        self.written = [
            (index, number if grouped else None)
            for index, grouped in self.positions
            for number, name in enumerate(_flat_names(names[index], types[names[index]]))
            if name in written
        ]

    def run(self, grid: tuple[int, int, int], arguments: tuple[Any, ...], slots: list[Any]) -> CompiledKernel | None:
        for index, number in self.written:
            if not is_writable(arguments[index] if number is None else arguments[index][number]):
                raise LaunchError(
                    f"kernel '{self.owner.name}' writes to argument '{self.owner.argument_names[index]}', "
                    "a read-only array; pass a writable copy"
                )
        if self.kernel is not None:
            self.kernel.run(grid, self._flat(slots) if self.grouped else [slots[index] for index in self.indices])
            return self.kernel
        assert self.function is not None
        self._interpret(grid, arguments)
        return None

    def _flat(self, values: Sequence[Any]) -> list[Any]:
        result: list[Any] = []
        for index, grouped in self.positions:
            result.extend(values[index]) if grouped else result.append(values[index])
        return result

    def _interpret(self, grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> None:
        from tilewright.ir.interpreter import run

        assert self.function is not None
        flat = self._flat(arguments)
        types = [value.type for value in self.function.region.arguments]
        run(
            self.function,
            [as_array(value) if kind.is_pointer else value for kind, value in zip(types, flat, strict=True)],
            grid,
        )


def _flat_names(name: str, kind: Any) -> list[str]:
    """Names of the IR parameters that one parameter becomes: a tuple becomes one for each entry."""
    return [f"{name}_{number}" for number in range(len(kind))] if isinstance(kind, tuple) else [name]


_CONSTANT = object()
_PLAIN = frozenset((int, bool, float, str))


def _constant_key(value: Any) -> Any:
    """A hashable stand-in for a compile-time argument that tells 1, 1.0 and True apart."""
    value = unwrap(value)
    if isinstance(value, (tuple, list)):
        return tuple(_constant_key(entry) for entry in value)
    try:
        hash(value)
    except TypeError:
        raise LaunchError(
            f"a {type(value).__name__} cannot be a tl.constexpr argument: it has no hash, so that the kernel "
            "could not be found again; pass numbers, strings, dtypes, tuples or functions"
        ) from None
    return (type(value), value)


def _generalized(kind: Any, value: Any) -> Any:
    """`do_not_specialize`: the type alone; 1 stays a run-time value."""
    if kind.type is None and isinstance(value, int):
        return argument_class(parameter_type("i32"))
    return kind if kind.type is None else argument_class(kind.type, _least(kind.type))


def _without_alignment(kind: Any, value: Any) -> Any:
    return kind if kind.type is None else argument_class(kind.type, _least(kind.type))


def _least(kind: TensorType) -> int:
    return kind.element.element.itemsize if isinstance(kind.element, PointerType) else 1


def _read_only(kind: Any, value: Any) -> Any:
    if kind.type is None or not isinstance(kind.type.element, PointerType):
        return kind
    return argument_class(scalar(PointerType(kind.type.element.element, const=True)), kind.divisibility)


def _fixing_rule(annotated: dtype) -> Callable[[Any, Any], ArgumentClass]:
    return lambda kind, value: retyped(kind, value, annotated._number)


def _leaf(kind: ArgumentClass, name: str, described: dict[str, Parameter]) -> TensorType:
    """The type of one run-time parameter, whose facts are added to `described`."""
    if kind.type is None:
        kind = classify(kind.constant)[0] if kind.constant is None else argument_class(parameter_type("i32"))
    if kind.type is None:
        raise LaunchError(f"'{name}' is None inside a tuple; leave it out, or pass the tuple as tl.constexpr")
    described[name] = Parameter(name, divisibility=kind.divisibility)
    return kind.type


def parameter_type(kind: Any) -> Any:
    """A parameter's type from a `TensorType`, IR text, a tl dtype or pointer type; tuples entry by entry."""
    if isinstance(kind, TensorType):
        return kind
    if isinstance(kind, str):
        return parse_type(kind)
    if isinstance(kind, dtype):
        return scalar(kind.element)
    if isinstance(kind, (tuple, list)):
        return tuple(parameter_type(entry) for entry in kind)
    raise TypeError(f"a parameter's type is a TensorType, IR text such as '*f32', or a tl dtype, not {kind!r}")


@overload
def jit(function: Callable[..., Any]) -> JITFunction: ...
@overload
def jit(**options: Any) -> Callable[[Callable[..., Any]], JITFunction]: ...


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator: make a function a kernel. Bare, or with options:

    `do_not_specialize`, `do_not_specialize_on_alignment`: parameters (names or positions) that are taken as
    they come; `debug`: keep device assertions.  `version`, `repr`, `launch_metadata` and `noinline` are accepted.
    """
    known = {"do_not_specialize", "do_not_specialize_on_alignment", "debug"}
    accepted = {"version", "repr", "launch_metadata", "noinline"}
    unknown = set(options) - known - accepted
    if unknown:
        raise TypeError(f"jit does not take {', '.join(sorted(unknown))}")

    settings_given = {name: value for name, value in options.items() if name in known}

    def decorate(target: Callable[..., Any]) -> JITFunction:
        return JITFunction(target, **settings_given)

    return decorate if function is None else decorate(function)


__all__ = ["CompiledKernel", "JITFunction", "jit"]
