"""Finds the binary of a kernel and a signature, without tracing if it is in the disk cache.

The signature's key covers the source of every function that the kernel reaches, the values that they
capture, parameter types, constants, options, the target, and the sources of the compiler.  On disk the
key leads to the binary's own content key and to what a launch must know (`Interface`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType
from typing import Any

import tilewright
from tilewright.errors import InvalidIRError
from tilewright.frontend.tracer import Trace
from tilewright.frontend.values import Static, ValueGroup
from tilewright.garbage import collector_paused
from tilewright.ir.core import Function, Parameter
from tilewright.ir.verifier import verify
from tilewright.language.function import SourceFunction, describe
from tilewright.language.records import contents, is_users
from tilewright.language.types import unwrap
from tilewright.launch import hooks
from tilewright.launch.compiled import CompiledKernel, Interface, written_parameters
from tilewright.launch.launchers import launching
from tilewright.settings import settings
from tilewright.targets.base import Binary, Remark, Target, stored_remarks
from tilewright.targets.llvm.cache import CacheEntry, ObjectCache, kernel_digest
from tilewright.targets.registry import backend_of

logger = logging.getLogger("tilewright.jit")


@dataclass(frozen=True)
class Request:
    """Everything that a compiled kernel depends on, besides the target."""

    kernel: SourceFunction
    types: Mapping[str, Any]
    constants: Mapping[str, Any]
    parameters: Mapping[str, Parameter]
    options: Any  # the target's record
    launch_options: Mapping[str, Any]  # that the record was made of
    debug: bool
    sanitize: bool = True  # whether debug builds assert that integers do not overflow
    wide_grid: bool = False  # whether places in the grid are numbers of 64 bits
    override: str = ""  # a digest of the Tile IR that is compiled in place of the source

    @property
    def name(self) -> str:
        """The name of the compiled kernel."""
        name_of = getattr(self.kernel, "name_of", None)
        return self.kernel.name if name_of is None else name_of(self.types, self.constants)

    def key(self, target: Target) -> str:
        """A name for the result, found without tracing."""
        digest = hashlib.sha256()
        parts = [
            tilewright.__version__,
            kernel_digest(target.name),
            backend_of(target).key,
            self.kernel.fingerprint(),
            repr(sorted((name, _type_text(kind)) for name, kind in self.types.items())),
            repr(sorted((name, describe(unwrap(value), set())) for name, value in self.constants.items())),
            repr(sorted((name, repr(value)) for name, value in self.parameters.items())),
            self.options.key,
            repr((self.debug, self.sanitize, self.wide_grid, self.override)),
        ]
        for part in parts:
            digest.update(f"{len(part)}:{part}".encode())
        return f"signature-{digest.hexdigest()[:40]}"


def _type_text(kind: Any) -> str:
    if isinstance(kind, ValueGroup):
        return f"{kind.kind!r}({', '.join(_type_text(entry) for entry in kind.entries)})"
    return describe(kind.value, set()) if isinstance(kind, Static) else str(kind)


def compiled_kernel(request: Request, target: Target, trace: Callable[[], Trace]) -> CompiledKernel:
    """The compiled kernel: from the object cache, or traced, verified and compiled."""
    started = time.perf_counter()
    key = request.key(target)
    cache = ObjectCache(settings.cache_directory)
    # Lines a signature does not know, only the traced kernel.
    reusable = not settings.always_compile and settings.dump_directory is None and not request.options.line_info
    cached = cache.find(key, lambda entry: _decoded(entry, request.kernel)) if reusable else None
    if cached is not None:
        binary_key, interface = cached
        binary = backend_of(target).load(binary_key)
        if binary is not None:
            binary = replace(binary, remarks=tuple(_found_again(note, request.kernel) for note in binary.remarks))
            found = _kernel(request, target, binary, interface, lambda: trace().function)
            _listen(found, (time.perf_counter() - started, 0.0), cached=True)
            return found
    with collector_paused:  # the collector would go over the operations of the kernel again and again
        started = time.perf_counter()
        traced = trace()
        _verify(traced.function)
        tracing = time.perf_counter() - started
        _report(request.kernel.name, traced.remarks)
        binary = backend_of(target).compile(traced.function, request.options)
    _report(request.kernel.name, binary.remarks)
    interface = Interface(written_parameters(traced.function), traced.remarks)
    metadata = {
        "binary": binary.key,
        "written": sorted(interface.written),
        "remarks": stored_remarks(_unplaced(remark, request.kernel) for remark in interface.remarks),
    }
    started = time.perf_counter()
    cache.put(key, metadata, b"")
    compiled = _kernel(request, target, binary, interface, lambda: traced.function)
    _listen(compiled, (tracing, time.perf_counter() - started), cached=False)
    return compiled


def is_cached(request: Request, target: Target) -> bool:
    """Whether the object cache has an entry for a signature; what it leads to may have been removed since."""
    return ObjectCache(settings.cache_directory).path(request.key(target)).exists()


def _decoded(entry: CacheEntry, kernel: SourceFunction) -> tuple[str, Interface]:
    """The key of the binary and the interface in the entry of a signature."""
    binary, written = entry.metadata["binary"], entry.metadata["written"]
    if not isinstance(binary, str) or not all(isinstance(name, str) for name in written):
        raise ValueError("it is no entry of a signature")
    remarks = tuple(_placed(Remark(**remark), kernel) for remark in entry.metadata["remarks"])
    return binary, Interface(frozenset(written), remarks)


_OWN_FILE = "<the kernel's file>"


def _placed(remark: Remark, kernel: SourceFunction) -> Remark:
    """A kept remark with the place where the kernel is now."""
    if remark.file != _OWN_FILE:
        return remark
    return replace(remark, file=kernel.file, line=remark.line + kernel.function.__code__.co_firstlineno)


def _found_again(remark: Remark, kernel: SourceFunction) -> Remark:
    """A remark of the object cache, which keeps names of files alone, with the kernel's own file in full."""
    return replace(remark, file=kernel.file) if remark.file == os.path.basename(kernel.file) else remark


def _unplaced(remark: Remark, kernel: SourceFunction) -> Remark:
    """A remark with its line counted from the kernel's first one: keys do not hold where the kernel is."""
    if remark.file != kernel.file:
        return remark
    return replace(remark, file=_OWN_FILE, line=remark.line - kernel.function.__code__.co_firstlineno)


def _listen(compiled: CompiledKernel, seconds: tuple[float, float], cached: bool) -> None:
    """Tell the listener of compilations what tracing, each stage and storing took."""
    listener = hooks.compilation.listener
    if listener is None:
        return
    stages = [(stage, round(elapsed * 1e6)) for stage, elapsed in compiled.binary.seconds.items()]
    times = hooks.CompileTimes(round(seconds[0] * 1e6), [] if cached else stages, round(seconds[1] * 1e6))
    listener(
        src=compiled.source, metadata=compiled.metadata._asdict(), metadata_group={}, times=times, cache_hit=cached
    )


def _kernel(
    request: Request, target: Target, binary: Binary, interface: Interface, trace: Callable[[], Function]
) -> CompiledKernel:
    """The compiled kernel of a binary, of its target's kind.

    It is told the arguments of its source, unless some are tuples that became several.
    """
    compiled = launching(target.name).kernel(request.name, target, binary, request.options, interface, trace)
    compiled.launch_options = request.launch_options
    compiled.source = request.kernel
    if not any(isinstance(kind, ValueGroup) for kind in request.types.values()):
        names = request.kernel.argument_names
        compiled.argument_names = names
        compiled.run_time = tuple(index for index, name in enumerate(names) if name in request.types)
        declared = request.kernel.parameters
        compiled.variable = tuple(index for index, entry in enumerate(declared) if not entry.constexpr)
        known = [request.parameters.get(names[index]) for index in compiled.run_time]
        compiled.divisors = tuple(1 if parameter is None else parameter.divisibility for parameter in known)
    return compiled


def _report(kernel: str, remarks: tuple[Remark, ...]) -> None:
    for remark in remarks:
        level = logging.WARNING if remark.severity == "warning" else logging.INFO
        place = f"{remark.file}:{remark.line}: " if remark.file else f"kernel '{kernel}': "
        logger.log(level, "%s%s", place, remark.message)


def _verify(function: Function) -> None:
    if settings.verify:
        try:
            verify(function)
        except InvalidIRError as error:
            raise AssertionError(f"the front end traced invalid IR: {error}") from error


def watched(
    kernel: SourceFunction, constants: Mapping[str, Any]
) -> Iterator[tuple[SourceFunction, tuple[str, ...], Any]]:
    """Captured names of a kernel, and of every function that it reaches, whose values a trace depends on."""
    pending: list[Any] = [kernel, *constants.values()]
    seen: set[int] = set()
    while pending:
        function = pending.pop()
        if isinstance(function, (tuple, list)):
            pending.extend(function)
        elif is_users(function) and id(function) not in seen:
            seen.add(id(function))
            pending.extend(contents(function).values())
        if not isinstance(function, SourceFunction) or id(function) in seen or function.is_own:
            continue
        seen.add(id(function))
        for path, value in function.captured_values():
            if isinstance(value, SourceFunction):
                pending.append(value)
            if not _is_of_language(function.captured(path[0], default=None)):
                yield function, path, value


def _is_of_language(value: Any) -> bool:
    """Whether a name stands for a module or a function of the language, which programs leave as they are."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    known = isinstance(value, (ModuleType, FunctionType, SourceFunction, type))
    return known and str(name).startswith("tilewright.language")
