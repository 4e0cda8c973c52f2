"""`triton.compile`: a kernel compiled from types alone, for this machine or another.

source = ASTSource(fn=kernel, signature={"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}, constexprs={"BLOCK": 64})
compiled = compile(source, target=GPUTarget("cpu", "", 1))
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.errors import CompilationError, LaunchError
from tilewright.ir.core import Parameter
from tilewright.ir.types import PointerType, TensorType, scalar
from tilewright.language.types import NAMES, pointer_type, unwrap, wrap
from tilewright.launch import compiled
from tilewright.launch.arguments import classify
from tilewright.launch.compiled import Interface, written_parameters
from tilewright.launch.driver import GPUTarget, driver
from tilewright.launch.jit import FRONT_END_OPTIONS, LAUNCH_OPTIONS, JITFunction
from tilewright.launch.kernel_info import read_override, short_name
from tilewright.launch.launchers import launching
from tilewright.shim.backends import BaseBackend, backends
from tilewright.shim.compiled import CompiledSource
from tilewright.targets.base import Target
from tilewright.targets.registry import backend_of


def type_of(text: str) -> TensorType:
    """A parameter's type from a signature's text: ``*fp32``, ``*kbf16`` (only read), ``i64``; raises `LaunchError`."""
    name = text.strip().removeprefix("tl.")
    const = name.startswith(("*k", "const "))
    name = name.removeprefix("const ").strip()
    is_pointer = name.startswith("*")
    name = name.removeprefix("*").removeprefix("k" if const else "").strip()
    if name not in NAMES:
        raise LaunchError(f"{text!r} is no type of a parameter: write *fp32, *bf16, i32, fp32 or the like")
    element = NAMES[name]._number
    return scalar(PointerType(element, const) if is_pointer else element)


def _known(options: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """The options that concern a target; others are for other machines."""
    names = backend_of(target).option_names | FRONT_END_OPTIONS
    return {name: value for name, value in options.items() if name in names}


class ASTSource:
    """A kernel with the types of its parameters and its constants.

    `signature`: parameter -> type text, or "constexpr".  `constexprs`: parameter (or its position in a tuple) -> value.
    `attrs`: position in a tuple -> [["tt.divisibility", 16]].
    """

    ext = "ttir"

    def __init__(
        self, fn: JITFunction, signature: Mapping[str, str], constexprs: Mapping[Any, Any] | None = None,
        attrs: Any = None, constants: Mapping[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        self.fn = fn
        self.name = fn.name
        if any(not isinstance(name, str) for name in signature):
            raise TypeError("a signature's keys are names of parameters")
        self.signature = dict(signature)
        self.constants = {
            (fn.argument_names.index(key),)
            if isinstance(key, str)
            else key
            if isinstance(key, tuple)
            else (key,): value
            for key, value in {**(constants or {}), **(constexprs or {})}.items()
        }
        self.attrs = attrs or {}

    def _position(self, key: Any) -> tuple[int, ...]:
        """A parameter's position, which a tuple's entry follows, from its name or number."""
        if isinstance(key, str):
            return (self.fn.argument_names.index(key),)
        return key if isinstance(key, tuple) else (key,)

    def hash(self) -> str:
        """A name for all of it."""
        parts = (self.fn.cache_key, self.signature, sorted(self.constants.items(), key=str), self._divisors())
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def _divisors(self) -> dict[int, int]:
        return {
            (key[0] if isinstance(key, tuple) else key): int(value)
            for key, entries in self.attrs.items()
            for name, value in entries
            if name == "tt.divisibility"
        }

    def compile(self, target: GPUTarget, options: Mapping[str, Any]) -> compiled.CompiledKernel:
        """The compiled kernel."""
        names = self.fn.argument_names
        constants = {names[key[0]]: unwrap(value) for key, value in self.constants.items() if len(key) == 1}
        types: dict[str, Any] = {}
        for name, text in self.signature.items():
            if name not in constants and text != "constexpr":
                types[name] = type_of(text)
        described = {
            names[position]: Parameter(names[position], divisibility=divisor)
            for position, divisor in self._divisors().items()
            if names[position] in types
        }
        for parameter in self.fn.parameters:
            if parameter.name not in types and parameter.name not in constants and parameter.has_default:
                constants[parameter.name] = unwrap(parameter.default)
        chosen = target.target()
        given = {**_known(options, chosen), "sanitize_overflow": bool(options.get("sanitize_overflow", True))}
        return self.fn.compile(types, constants, described, chosen, given)


class IRSource:
    """A file of Tile IR (``.tile``, ``.ttir``)."""

    def __init__(self, path: str, context: Any = None, backend: Any = None) -> None:
        self.path = str(path)
        self.ext = Path(path).suffix.removeprefix(".")
        if self.ext not in ("tile", "ttir"):
            raise CompilationError(f"{path}: only Tile IR (.tile, .ttir) is compiled from a file, not .{self.ext}")
        self.function = read_override(self.path, Path(path).stem)
        self.name = self.function.name
        self.signature = {number: str(value.type) for number, value in enumerate(self.function.region.arguments)}

    def hash(self) -> str:
        """A name for the text."""
        return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()

    def compile(self, target: GPUTarget, options: Mapping[str, Any]) -> compiled.CompiledKernel:
        """The compiled kernel."""
        chosen = target.target()
        backend, interface = backend_of(chosen), Interface(written_parameters(self.function), ())
        record = backend.options(_known(options, chosen))
        binary = backend.compile(self.function, record)
        return launching(chosen.name).kernel(self.name, chosen, binary, record, interface, lambda: self.function)


def compile(
    src: ASTSource | IRSource | str,
    target: GPUTarget | None = None,
    options: Mapping[str, Any] | None = None,
    _env_vars: Mapping[str, str] | None = None,
) -> CompiledSource:
    """Compile a source, or a file of Tile IR, for a target (the current one when None).

    Raises `CompilationError`, `LaunchError` for unknown options, and `TargetError` for an unknown target.
    """
    given = dict(options or {})
    unknown = sorted(set(given) - LAUNCH_OPTIONS)
    if unknown:
        raise LaunchError(f"unknown options {', '.join(unknown)}: there are {', '.join(sorted(LAUNCH_OPTIONS))}")
    source = IRSource(src) if isinstance(src, str) else src
    return CompiledSource(source, source.compile(target or driver.active.get_current_target(), given))


def make_backend(target: GPUTarget) -> BaseBackend:
    """The backend of a machine; raises `TargetError` where there is none."""
    if target.backend not in backends:
        GPUTarget.target(target)  # raises
    return backends[target.backend].compiler(target)


def max_shared_mem(device: int) -> int:
    """Bytes of shared memory that one program instance may have."""
    return int(driver.active.utils.get_device_properties(device)["max_shared_mem"])


def mangle_type(arg: Any, specialize: bool = False) -> str:
    """The type of an argument as signatures write it."""
    if specialize and isinstance(arg, int) and not isinstance(arg, bool) and arg == 1 or arg is None:
        return "constexpr"
    if isinstance(arg, int) and not isinstance(arg, bool) and arg == 1:
        return "i32"
    kind = classify(arg)[0].type  # type: ignore[union-attr]
    assert kind is not None
    named = wrap(kind.element)
    if isinstance(named, pointer_type):
        return f"*{short_name(named.element_ty)}"
    return short_name(named)
