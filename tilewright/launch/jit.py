"""`@tilewright.jit`: kernels that are traced, compiled for their arguments, cached and launched.

@tilewright.jit
def add(x, y, out, n, BLOCK: tl.constexpr): ...

add[(tilewright.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)      # NumPy arrays or CPU torch tensors
add.trace({"x": "*f32", …, "n": "i32"}, {"BLOCK": 1024})         # its Tile IR
add.compile({"x": "*f32", …, "n": "i32"}, {"BLOCK": 1024})       # its machine code
"""

from __future__ import annotations

import hashlib
import linecache
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, cast, overload

from tilewright import forks
from tilewright.errors import CompilationError, DeviceError, LaunchError, a_kind, user_errors
from tilewright.forks import cached_property
from tilewright.frontend.diagnostics import located_error
from tilewright.frontend.scope import nearest
from tilewright.frontend.tracer import Trace, trace_kernel
from tilewright.frontend.values import ValueGroup
from tilewright.ir.core import Function, Location, Parameter
from tilewright.ir.printer import print_function
from tilewright.language.explicit.objects import tensor_map
from tilewright.language.function import ParameterInfo, SourceFunction
from tilewright.language.target_info import compiling_for
from tilewright.language.types import unwrap
from tilewright.launch import binaries, hooks, recompile
from tilewright.launch.allocations import watch_allocations
from tilewright.launch.arguments import (
    as_tensor_map,
    classify,
    gpu_family,
)
from tilewright.launch.background import PendingLaunch, active_mode
from tilewright.launch.binding import MISSING, generate, mode_now
from tilewright.launch.compiled import CompiledKernel, written_parameters
from tilewright.launch.cpu import CPUKernel, CPULaunch
from tilewright.launch.kernel_info import (
    KERNELS,
    Compiled,
    DeviceCaches,
    KernelParam,
    KernelSource,
    Specialization,
    announce,
    from_text,
    read_override,
)
from tilewright.launch.launchers import device_launching
from tilewright.launch.launching import InterpretedLaunch, PreparedLaunch, RunTimeArguments, SkippedLaunch
from tilewright.launch.specialization import (
    address_rule,
    constant_key,
    fixing_rule,
    generalized,
    group_type,
    guard,
    leaf,
    option_key,
    parameter_type,
    read_only,
    without_alignment,
)
from tilewright.launch.wrappers import MockTensor
from tilewright.settings import settings
from tilewright.targets.base import Target
from tilewright.targets.registry import TARGETS, backend_of, get_target

FRONT_END_OPTIONS = frozenset(("debug", "ir_override"))  # which concern any target: `debug` keeps device_assert
# Those of any target (docs/internals/nvidia-target.md has a GPU's), and keywords that other back ends tune by: they are
# accepted, and ignored where they have no meaning.
LAUNCH_OPTIONS = FRONT_END_OPTIONS.union(*(family.option_names for family in TARGETS.values())) | frozenset(
    "sanitize_overflow arch extern_libs ptx_version ptx_options sched4reg enable_reflect_ftz clc min_shared_mem "
    "waves_per_eu matrix_instr_nonkdim kpack allow_flush_denorm schedule_hint llvm_fn_attrs wgp_cu_mode "
    "num_ctas".split()
)
# `keep_texts` keeps every stage's text in the binary; `targets.cpu.pipeline` describes `overlap` and
# `check_bounds`, `passes.grid_axes` what `grid_axes` are.  With `wide_grid`
# places in the grid are numbers of 64 bits.
_INTERNAL_OPTIONS = frozenset(("keep_texts", "overlap", "check_bounds", "grid_axes", "wide_grid"))
Types = Mapping[str, Any]


class _Warming(threading.local):
    """Whether the thread is in a call of `warmup`."""

    value = False


class JITFunction(KernelSource):
    """A kernel. ``kernel[grid](*arguments, **keywords)`` launches it; see `jit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        do_not_specialize: Sequence[str | int] = (),
        do_not_specialize_on_alignment: Sequence[str | int] = (),
        debug: bool | None = None,
        repr: Callable[[Specialization], str] | None = None,
        launch_metadata: Callable[..., Mapping[str, Any]] | None = None,
        noinline: bool = False,
        version: Any = None,
    ) -> None:
        super().__init__(function)
        self.do_not_specialize = list(do_not_specialize or ())
        self.do_not_specialize_on_alignment = list(do_not_specialize_on_alignment or ())
        self.debug = settings.debug if debug is None else bool(debug)
        self._repr = repr
        self.launch_metadata = launch_metadata
        self.noinline = bool(noinline)
        self.version = version
        self._launches: dict[Any, PreparedLaunch] = {}
        self._guards: list[tuple[Callable[[str], Any], str, Any]] = []  # `_watched` in a form that is quick to check
        self._watched: list[tuple[SourceFunction, tuple[str, ...], Any]] = []
        self._option_keys: dict[Any, tuple[Any, ...]] = {}
        self.pre_run_hooks: list[Callable[..., Any]] = []
        self._lock = forks.lock()
        self._warming = _Warming()
        KERNELS.add(self)
        self._entry: Callable[..., CompiledKernel | None] = self._run_first  # what ``kernel[grid]`` calls
        if settings.interpret == "check":
            watch_allocations()

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

    def _unsafe_update_src(self, text: str) -> None:
        super()._unsafe_update_src(text)
        for kernel in list(KERNELS):  # others may call this one, or get it as an argument
            kernel._forget()
        self._entry = self._run_first

    def _forget(self) -> None:
        with self._lock:
            self._watched.clear()
            self._guards.clear()
            self._launches.clear()

    # Compiling

    def trace(
        self, types: Types, constants: Mapping[str, Any], parameters: Mapping[str, Parameter] | None = None
    ) -> Function:
        """The kernel's Tile IR for parameter types (`TensorType`, IR text such as ``*f32``, or tl dtypes)
        and compile-time constants. Raises `CompilationError`."""
        with user_errors:
            return self._trace(types, constants, parameters, self.debug).function

    def _trace(
        self,
        types: Types,
        constants: Mapping[str, Any],
        parameters: Mapping[str, Parameter] | None,
        debug: bool,
        sanitize: bool = True,
        wide_grid: bool = False,
    ) -> Trace:
        typed = {name: parameter_type(kind) for name, kind in types.items()}
        try:
            return trace_kernel(self, typed, constants, parameters, debug, sanitize, wide_grid)
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
        `options` go to the target, but for `ir_override`: a file with Tile IR to compile in place of the source.
        Raises `CompilationError`, for an option that there is not, too.
        """
        chosen = get_target(target)
        request, trace = self._requested(types, constants, parameters, chosen, options)
        with user_errors:
            kernel = binaries.compiled_kernel(request, chosen, compiling_for(chosen)(trace))
        _report_ignored(kernel, request.launch_options)
        return kernel

    def is_compiled(
        self,
        types: Types,
        constants: Mapping[str, Any],
        parameters: Mapping[str, Parameter] | None,
        target: Target,
        options: Mapping[str, Any] | None = None,
    ) -> bool:
        """Whether the object cache has what `compile` would give."""
        return binaries.is_cached(self._requested(types, constants, parameters, target, options)[0], target)

    def _requested(
        self,
        types: Types,
        constants: Mapping[str, Any],
        parameters: Mapping[str, Parameter] | None,
        target: Target,
        options: Mapping[str, Any] | None,
    ) -> tuple[binaries.Request, Callable[[], Trace]]:
        """What `compile` is asked for, and how it is traced."""
        self._check_constants()
        typed = {name: parameter_type(kind) for name, kind in types.items()}
        given = dict(options or {})
        for name in given.keys() - LAUNCH_OPTIONS - _INTERNAL_OPTIONS:
            advice = nearest(name, LAUNCH_OPTIONS, f"there are {', '.join(sorted(LAUNCH_OPTIONS))}")
            raise CompilationError(f"kernel '{self.name}' has no option '{name}'; {advice}")
        debug = bool(given.pop("debug", self.debug))
        sanitize = given.pop("sanitize_overflow", None) is not False
        wide = bool(given.pop("wide_grid", False))
        trace: Callable[[], Trace] = partial(self._trace, typed, constants, parameters, debug, sanitize, wide)
        override, digest = given.pop("ir_override", None), ""
        if override is not None:
            function = read_override(override, self.name)
            digest = hashlib.sha256(print_function(function).encode()).hexdigest()
            trace = partial(Trace, function, ())
        record = backend_of(target).options(given)
        known = dict(constants), dict(parameters or {})
        return binaries.Request(self, typed, *known, record, given, debug, sanitize, wide, digest), trace

    # Launching

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        raise TypeError(f"kernel '{self.name}' needs a grid: {self.name}[grid](...); or call it inside a kernel")

    def __getitem__(self, grid: Any) -> Callable[..., CompiledKernel | None]:
        if self.pre_run_hooks:
            return partial(self._run_hooked, grid)
        return partial(self._entry, grid)

    def run(self, *arguments: Any, grid: Any, warmup: bool = False, **keywords: Any) -> CompiledKernel | None:
        """Launch over `grid` like ``kernel[grid](...)``; `warmup` only compiles."""
        if warmup:
            return self.warmup(*arguments, grid=grid, **keywords)
        return self[grid](*arguments, **keywords)

    def _run_hooked(self, grid: Any, /, *arguments: Any, **keywords: Any) -> CompiledKernel | None:
        for hook in self.pre_run_hooks:
            hook(*arguments, **keywords)
        return self._entry(grid, *arguments, **keywords)

    def _run_first(self, grid: Any, /, *arguments: Any, **keywords: Any) -> CompiledKernel | None:
        """The first launch takes the steps one by one; the next ones go through a function generated for them.

        `kernel[grid]` may have been taken before that, and kept: it finds what has become of the entry.
        """
        if self._entry != self._run_first:
            return self._entry(grid, *arguments, **keywords)
        with user_errors:
            launch, values, slots = self._find(arguments, keywords)
            self._entry = self._run_second
            if callable(grid):
                grid = grid(dict(zip(self.argument_names, values, strict=True)))
            return launch.run(grid, values, slots)

    def _run_second(self, grid: Any, /, *arguments: Any, **keywords: Any) -> CompiledKernel | None:
        """There is a second launch, so there may be many: generate the function."""
        if self._entry == self._run_second:
            self._entry = generate(self, self._names())
        return self._entry(grid, *arguments, **keywords)

    def _find(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[PreparedLaunch, tuple[Any, ...], list[Any]]:
        """The launch for these arguments (made if the signature is new), one value for each parameter, their slots.

        This is what a generated function does; `launch.binding` shows one.
        """
        values, rest, options = self._bind(arguments, keywords)
        key: list[Any] = [self._options_key(options, rest), mode_now()]
        slots: list[Any] = []
        try:
            for parameter, rule, value in zip(self.parameters, self.rules, values, strict=True):
                kind, slot = (constant_key(value), None) if parameter.constexpr else classify(value)
                key.append(kind if rule is None else rule(kind, value))
                slots.append(slot)
        except Exception as error:
            raise self._argument_error(values, options, rest, error) from None
        found = self._launches.get(tuple(key))
        if found is None or (self._watched and self._changed()):
            found = self._prepare(tuple(key), values, options)
        return found, values, slots

    def _bind(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]]:
        """One value for each parameter (`MISSING` where there is none), what is left over, and the options."""
        values: list[Any] = []
        rest, left = arguments, dict(keywords)
        for parameter in self.parameters:
            if parameter.kind == "variadic":
                values.append(rest)
                rest = ()
            elif parameter.kind == "plain" and rest:
                if parameter.name in left:
                    raise TypeError(f"{self.name}() got multiple values for argument '{parameter.name}'")
                values.append(rest[0])
                rest = rest[1:]
            else:
                default = parameter.default if parameter.has_default else MISSING
                values.append(left.pop(parameter.name, default))
        return tuple(values), rest, left

    def add_pre_run_hook(self, hook: Callable[..., Any]) -> None:
        """Call ``hook(*arguments, **keywords)`` before each launch."""
        self.pre_run_hooks.append(hook)

    def warmup(self, *arguments: Any, grid: Any = None, **keywords: Any) -> CompiledKernel | None:
        """Compile for these arguments without running.

        A dtype stands for an array of it, aligned to 16 bytes; so does `MockTensor`.  Inside an `AsyncCompileMode`
        the result is a `FutureKernel`.
        """
        wrapped = [MockTensor.wrap_dtype(value) for value in arguments]
        constants = {parameter.name for parameter in self.parameters if parameter.constexpr}
        for index, parameter in enumerate(self.parameters[: len(wrapped)]):
            if parameter.constexpr:
                wrapped[index] = arguments[index]
        named = {name: value if name in constants else MockTensor.wrap_dtype(value) for name, value in keywords.items()}
        self._warming.value = True
        try:
            with user_errors:
                return self._find(tuple(wrapped), named)[0].kernel
        finally:
            self._warming.value = False

    def preload(self, specialization_data: str) -> CompiledKernel | None:
        """Compile a signature from its text, which compilation hooks get; raises `LaunchError` for another kernel's."""
        kinds, arguments, options = from_text(self, specialization_data)
        keyed = (
            constant_key(kind) if entry.constexpr else kind for entry, kind in zip(self.parameters, kinds, strict=True)
        )
        key = (self._options_key(options, ()), mode_now(), *keyed)
        return self._prepare(key, tuple(arguments), options).kernel

    @property
    def device_caches(self) -> DeviceCaches:
        """What is compiled: ``device_caches[0][0]`` are the kernels by key."""
        return DeviceCaches(self._launches)

    @property
    def cache(self) -> dict[int, Compiled]:
        """The compiled kernels by key, for each device."""
        return {0: Compiled(self._launches)}

    @cached_property
    def params(self) -> list[KernelParam]:
        """The parameters, with what their annotations and the decorator say."""
        fixed = self._named(self.do_not_specialize)
        unaligned = self._named(self.do_not_specialize_on_alignment)
        texts = [entry.annotation for entry in self.signature.parameters.values()]
        return [
            KernelParam(
                number, entry, text if isinstance(text, str) else "", entry.name in fixed, entry.name in unaligned
            )
            for number, (entry, text) in enumerate(zip(self.parameters, texts, strict=True))
        ]

    @property
    def constexprs(self) -> list[int]:
        """Positions of the compile-time parameters."""
        return [number for number, entry in enumerate(self.parameters) if entry.constexpr]

    def name_of(self, types: Types, constants: Mapping[str, Any]) -> str:
        """The name of a compiled signature."""
        return self.repr(Specialization({name: str(kind) for name, kind in types.items()}, constants))

    def repr(self, specialization: Specialization) -> str:
        """The name of one compiled signature: what the decorator's `repr` says, else the function's name."""
        return self.name if self._repr is None else str(self._repr(specialization))

    def _names(self) -> dict[str, Any]:
        return {
            "launches": self._launches,
            "watched": self._watched,
            "changed": self._changed,
            "constant_key": constant_key,
            "options_key": self._options_key,
            "default_options": self._options_key({}, ()),
        }

    def _check_constants(self) -> None:
        """Raise `CompilationError` where the decorator does not specialize on what must be a constant."""
        fixed = self._named(self.do_not_specialize)
        for parameter in self.parameters if fixed else ():
            if parameter.constexpr and parameter.name in fixed:
                raise located_error(
                    f"{parameter.name} marked as constexpr and listed in do_not_specialize: one of them must go",
                    Location(self.file, self.definition.lineno, self.indentation, self.name),
                    self.definition,
                    "a compile-time value is always specialized on: take it off the list, or drop tl.constexpr",
                )

    def _named(self, entries: Sequence[str | int]) -> set[str]:
        return {self.argument_names[entry] if isinstance(entry, int) else entry for entry in entries}

    @cached_property
    def rules(self) -> tuple[Any, ...]:
        """For each parameter: None (its class as it is), or a function that adjusts the class."""
        fixed = self._named(self.do_not_specialize)
        unaligned = self._named(self.do_not_specialize_on_alignment)

        def rule(parameter: ParameterInfo) -> Any:
            if parameter.dtype is not None:
                return fixing_rule(parameter.dtype)
            if parameter.pointer is not None:
                return address_rule(parameter.pointer)
            if parameter.aggregate is tensor_map:
                return as_tensor_map
            if parameter.name in fixed:
                return generalized
            if parameter.name in unaligned:
                return without_alignment
            return read_only if parameter.const else None

        return tuple(None if parameter.constexpr else rule(parameter) for parameter in self.parameters)

    def _options_key(self, options: dict[str, Any], rest: tuple[Any, ...]) -> tuple[Any, ...]:
        """The launch options as part of a key; raises `LaunchError` for what is neither option nor parameter."""
        try:
            given = tuple(options.items())
            if not rest and given in self._option_keys:
                return self._option_keys[given]
        except TypeError:  # a value without a hash
            return self._checked_options(options, rest)
        return self._option_keys.setdefault(given, self._checked_options(options, rest))

    def _checked_options(self, options: dict[str, Any], rest: tuple[Any, ...]) -> tuple[Any, ...]:
        unknown = [name for name in options if name not in LAUNCH_OPTIONS]
        if rest or unknown:
            refused = f"{len(rest)} more positional arguments" if rest else ", ".join(map(repr, unknown))
            listed = f"its parameters are {', '.join(self.argument_names)}"
            options_listed = f"{listed}, and the launch options {', '.join(sorted(LAUNCH_OPTIONS))}"
            names = (*self.argument_names, *LAUNCH_OPTIONS)
            advice = listed if rest else "; ".join({nearest(name, names, options_listed): None for name in unknown})
            raise LaunchError(f"kernel '{self.name}' does not take {refused}; {advice}")
        given = {"debug": True, **options} if self.debug else options
        return tuple((name, option_key(value)) for name, value in given.items())

    def _argument_error(
        self, arguments: tuple[Any, ...], options: dict[str, Any], rest: tuple[Any, ...], error: Exception
    ) -> Exception:
        """What to raise when an argument cannot be classified: which one, and why.

        A name that nobody knows comes first: misspelt, it is why an argument is missing.
        """
        self._options_key(options, rest)
        for parameter, rule, value in zip(self.parameters, self.rules, arguments, strict=True):
            if value is MISSING:
                return LaunchError(f"kernel '{self.name}' needs a value for '{parameter.name}'")
            try:
                if parameter.constexpr:
                    constant_key(value)
                else:
                    kind = classify(value)[0]
                    if rule is not None:
                        rule(kind, value)
            except (LaunchError, DeviceError) as found:
                return type(found)(f"kernel '{self.name}', argument '{parameter.name}': {found}")
            except Exception as found:  # of the argument's own code, such as a property that fails
                return LaunchError(
                    f"kernel '{self.name}', argument '{parameter.name}': {a_kind(value)} that cannot be read "
                    f"({type(found).__name__}: {found}); pass an array, a tensor or a number"
                )
        return error

    def _changed(self) -> bool:
        """Whether something that a traced kernel captured has another value now; forgets what was compiled."""
        for look, name, value in self._guards:
            if look(name) is not value:
                return self._forget_changed()
        return False

    def _forget_changed(self) -> bool:
        with self._lock:
            for function, path, value in self._watched:
                current = function.captured(path[0], default=None)
                for name in path[1:]:
                    current = getattr(current, name, None)
                if current is not value and unwrap(current) != unwrap(value):
                    if settings.explain_recompile:
                        recompile.report_captured(self.name, path, value, current)
                    self._forget()
                    return True
        return False

    def _watch(self, constants: Mapping[str, Any]) -> None:
        """Watch what a trace with these constants depends on."""
        with self._lock:
            known = {(id(function), path) for function, path, _ in self._watched}
            for function, path, value in binaries.watched(self, constants):
                if (id(function), path) not in known:
                    self._watched.append((function, path, value))
                    self._guards.append(guard(function, path, value))

    def _prepare(self, key: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> PreparedLaunch:
        """Trace or compile for a signature that is new."""
        with self._lock:
            found = self._launches.get(key)
            if found is None:
                family = gpu_family(key[2:])
                mode = key[1] if family is None else settings.interpret
                canonical = (self._relevant(key[0], family), mode, *key[2:])
                found = self._launches.get(canonical) or self._make(key, canonical, arguments, options)
                if not isinstance(found, SkippedLaunch):
                    self._launches[key] = found
                if isinstance(found.kernel, CompiledKernel):
                    _report_ignored(found.kernel, options)
            return found

    def _make(self, key: Any, canonical: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> PreparedLaunch:
        """Compile a signature, now or in the background, unless a hook wants it left uncompiled."""
        warming, hook, mode = self._warming.value, hooks.compilation, active_mode.get()
        if hook.before is not None and announce(hook.before, self, canonical, arguments, warming):
            return SkippedLaunch()
        create = partial(self._create, canonical, arguments, options)

        def finalize(launch: PreparedLaunch) -> None:
            self._launches[canonical] = self._launches[key] = launch
            if hook.after is not None:
                announce(hook.after, self, canonical, arguments, warming)

        def cleanup() -> None:
            for entry in (canonical, key):
                self._launches.pop(entry, None)

        if mode is None or settings.interpret:
            launch = create()
            finalize(launch)
            return launch
        pending = PendingLaunch(mode.submit((id(self), canonical), create, finalize, cleanup))
        self._launches[canonical] = pending
        return pending

    @staticmethod
    def _relevant(options: tuple[Any, ...], family: str | None) -> tuple[Any, ...]:
        """Those of a key's options that code depends on, for the GPUs of a family or (None) the CPU: there, assertions
        kept and fusion forbidden; in the interpreter the warps too, which explicit kernels count."""
        if family is not None:
            names = FRONT_END_OPTIONS | TARGETS[family].option_names
            return tuple(sorted((entry for entry in options if entry[0] in names), key=lambda entry: str(entry[0])))
        changing = ("debug", (bool, True)), ("enable_fp_fusion", (bool, False))
        always = ("ir_override", "num_warps") if settings.interpret else ("ir_override",)
        return tuple(entry for entry in options if entry in changing or entry[0] in always)

    def _create(self, key: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> PreparedLaunch:
        self._check_constants()
        if settings.explain_recompile and self._launches:
            recompile.report(self.name, self.parameters, key, self._launches)
        types: dict[str, Any] = {}
        constants: dict[str, Any] = {}
        described: dict[str, Parameter] = {}
        for parameter, kind, value in zip(self.parameters, key[2:], arguments, strict=True):
            name = parameter.name
            if parameter.constexpr:
                constants[name] = unwrap(value)
            elif isinstance(kind, ValueGroup):
                types[name] = group_type(kind, name, described)
            elif kind.type is None:
                constants[name] = kind.constant
            else:
                types[name] = leaf(kind, name, described)
        self._watch(constants)
        family = gpu_family(key[2:])
        if family is not None:
            if settings.interpret:
                raise LaunchError(
                    f"kernel '{self.name}': the interpreter reads the CPU's memory and got an array on a GPU; pass "
                    "tensor.cpu(), or unset TILEWRIGHT_INTERPRET"
                )
            names = FRONT_END_OPTIONS | TARGETS[family].option_names
            given = {"debug": self.debug}
            given |= {name: unwrap(value) for name, value in options.items() if name in names}
            places = device_launching(family).places(self.name, key[2:], arguments)
            kernel = self.compile(types, constants, described, target=places.target, options=given)
            interface = RunTimeArguments(self.name, self.argument_names, types, kernel.written)
            return places.prepared(kernel, interface, self.launch_metadata)
        return self._launch(types, constants, described, dict(key[0]))

    def _launch(
        self, types: Types, constants: dict[str, Any], described: dict[str, Parameter], options: Mapping[str, Any]
    ) -> PreparedLaunch:
        """The signature, ready to run where the settings say."""
        debug = "debug" in options
        if settings.interpret:
            from tilewright.launch.eager import EagerLaunch, runs_eagerly

            debug = debug or settings.interpret == "check"
            if runs_eagerly(self, constants):
                return EagerLaunch(self, types, constants, described, debug)
            function = self._trace(types, constants, described, debug).function
            if isinstance(options.get("num_warps"), int):
                function.attributes.setdefault("num_warps", options["num_warps"])
            written = written_parameters(function)
            return InterpretedLaunch(function, RunTimeArguments(self.name, self.argument_names, types, written))
        # What overlapping arrays need is compiled when they come.
        given: dict[str, Any] = {"debug": debug, "overlap": "refuse", **options}
        if "enable_fp_fusion" in options:
            given["enable_fp_fusion"] = False
        if settings.check_bounds:
            given["check_bounds"] = True
        kernel = cast(CPUKernel, self.compile(types, constants, described, options=given))
        interface = RunTimeArguments(self.name, self.argument_names, types, kernel.written)
        return CPULaunch(kernel, interface, self.launch_metadata)

    def __repr__(self) -> str:
        return f"<tile kernel {self.__module__}.{self.__qualname__}>"


def _report_ignored(kernel: CompiledKernel, options: Mapping[str, Any]) -> None:
    """Say which launch options change nothing where the kernel runs."""
    chosen = {name: unwrap(value) for name, value in options.items() if name in LAUNCH_OPTIONS}
    plain = {"num_ctas": 1}  # what goes without saying
    given = {name for name, value in chosen.items() if value is not None and plain.get(name) != value}
    kernel.ignore(given - backend_of(kernel.target).option_names - FRONT_END_OPTIONS)


@overload
def jit(function: Callable[..., Any]) -> JITFunction: ...
@overload
def jit(**options: Any) -> Callable[[Callable[..., Any]], JITFunction]: ...


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator: make a function a kernel. Bare, or with options:

    `do_not_specialize`, `do_not_specialize_on_alignment`: parameters (names or positions) that are taken as
    they come; `debug`: keep device assertions (by default as the settings say); `repr`: a function from
    `Specialization` to the name of the compiled kernel; `launch_metadata`: a function of grid, metadata and the dict
    of arguments, whose dict launch hooks get.
    `version` is kept and changes nothing. `noinline` changes nothing either, for functions are always inlined: where
    one is called, the caller's remarks and `explain()` say so.
    """
    known = {
        "do_not_specialize", "do_not_specialize_on_alignment", "debug", "repr", "launch_metadata", "noinline", "version"
    }  # fmt: skip
    unknown = set(options) - known
    if unknown:
        raise TypeError(f"jit does not take {', '.join(sorted(unknown))}")

    def decorate(target: Callable[..., Any]) -> JITFunction:
        return JITFunction(target, **options)

    return decorate if function is None else decorate(function)


__all__ = ["CompiledKernel", "JITFunction", "jit"]
