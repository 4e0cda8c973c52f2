"""Attributes of a kernel and its signatures: parameters, source, keys, compiled kernels, and its text form.

A signature has a text form (JSON), so that one process can tell another what to compile: hooks get it as
``specialization_data``, and `JITFunction.preload` takes it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.errors import CompilationError, InvalidIRError, LaunchError, a_kind, brief
from tilewright.forks import cached_property
from tilewright.ir.core import Function
from tilewright.ir.parser import parse_function, parse_type
from tilewright.ir.verifier import verify
from tilewright.language.function import ParameterInfo, SourceFunction
from tilewright.language.types import NAMES, dtype, unwrap
from tilewright.launch.arguments import ArgumentClass, argument_class
from tilewright.launch.driver import driver
from tilewright.targets.registry import get_target

if TYPE_CHECKING:
    from tilewright.launch.compiled import CompiledKernel
    from tilewright.launch.jit import JITFunction
    from tilewright.launch.launching import PreparedLaunch


KERNELS: weakref.WeakSet[JITFunction] = weakref.WeakSet()  # all that there are


@dataclass(frozen=True)
class KernelParam:
    """One parameter as host code sees it."""

    num: int
    info: ParameterInfo
    annotation_text: str
    do_not_specialize: bool
    do_not_specialize_on_alignment: bool

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def annotation(self) -> str:
        """The annotation as text: "constexpr", a dtype's short name, or empty."""
        if self.info.constexpr:
            return "constexpr"
        return self.annotation_type or self.annotation_text

    @property
    def annotation_type(self) -> str:
        """The dtype that the annotation fixes, as in ``fp32`` and ``i64``; empty when it fixes none."""
        return "" if self.info.dtype is None else short_name(self.info.dtype)

    @property
    def is_constexpr(self) -> bool:
        return self.info.constexpr

    @property
    def is_const(self) -> bool:
        return self.info.const

    @property
    def default(self) -> Any:
        return self.info.default

    @property
    def has_default(self) -> bool:
        return self.info.has_default


def short_name(kind: dtype) -> str:
    """A dtype as signatures write it: fp32, bf16, i64, u8, u1, fp8e4nv."""
    name = kind.name
    if name == "int1":
        return "u1"
    for long, short in (("float", "fp"), ("bfloat", "bf"), ("uint", "u"), ("int", "i")):
        if name.startswith(long):
            return short + name[len(long) :]
    return name


@dataclass(frozen=True)
class JitFunctionInfo:
    """The kernel that a compilation hook is told of."""

    module: str
    name: str
    jit_function: JITFunction


class Compiled(Mapping[str, Any]):
    """The kernels compiled so far (or being compiled) by key. Clearing it forgets them."""

    def __init__(self, launches: dict[Any, PreparedLaunch]) -> None:
        self._launches = launches

    def _distinct(self) -> dict[str, CompiledKernel]:
        found: dict[int, tuple[str, CompiledKernel]] = {}
        for key, launch in list(self._launches.items()):
            if launch.kernel is not None:
                found.setdefault(id(launch.kernel), (str(key), launch.kernel))
        return dict(found.values())

    def __getitem__(self, key: str) -> CompiledKernel:
        return self._distinct()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._distinct())

    def __len__(self) -> int:
        return len(self._distinct())

    def clear(self) -> None:
        """Forget them: the next launch looks them up on disk, or compiles."""
        self._launches.clear()


class DeviceCaches(Mapping[int, tuple[Any, ...]]):
    """What is compiled for each device: ``caches[0][0]`` are the kernels by key."""

    def __init__(self, launches: dict[Any, PreparedLaunch]) -> None:
        self._compiled = Compiled(launches)

    def __getitem__(self, device: int) -> tuple[Any, ...]:
        return (self._compiled, {}, driver.active.get_current_target(), None, None)

    def __iter__(self) -> Iterator[int]:
        return iter((0,) if self._compiled else ())

    def __len__(self) -> int:
        return 1 if self._compiled else 0

    def clear(self) -> None:
        """Forget all compiled kernels."""
        self._compiled.clear()


class KernelDescription:
    """What another process gets of a pickled kernel that has no function: its name and its parameters."""

    def __init__(self, name: str, module: str, arg_names: list[str], constants: list[str]) -> None:
        self.fn = None
        self.name = self.__name__ = self.__qualname__ = name
        self.__module__ = module
        self.arg_names = arg_names
        described = (ParameterInfo(entry, "plain", constexpr=entry in constants) for entry in arg_names)
        self.params = [KernelParam(number, entry, "", False, False) for number, entry in enumerate(described)]
        self.constexprs = [entry.num for entry in self.params if entry.is_constexpr]


class KernelSource(SourceFunction):
    """A function of the language under the names by which host code reads kernels."""

    @property
    def raw_src(self) -> list[str]:
        """The source's lines, decorators included."""
        return self._lines[0]

    @property
    def starting_line_number(self) -> int:
        """Number in the file of the first of them."""
        return self.first_line

    @property
    def module(self) -> str:
        return self.__module__

    @property
    def arg_names(self) -> list[str]:
        """Names of all parameters."""
        return list(self.argument_names)

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    _detached = False

    @property
    def fn(self) -> Any:
        """The Python function; host code sets it to None before it pickles the kernel, and puts it back.

        Until then the kernel is pickled as a description of its parameters; in this process it still compiles.
        """
        return None if self._detached else self.function

    @fn.setter
    def fn(self, function: Any) -> None:
        self._detached = function is None

    @cached_property
    def used_global_vals(self) -> Any:
        """Host code sets and puts back this name around pickling; `cache_key` holds what the kernel captures."""
        return {}

    def __reduce__(self) -> Any:
        """A kernel is pickled by its name, as functions are; without its function, what describes it."""
        if not self._detached:
            return self.__qualname__
        constants = [entry.name for entry in self.parameters if entry.constexpr]
        return KernelDescription, (self.name, self.__module__, self.arg_names, constants)

    @property
    def cache_key(self) -> str:
        """A hash of the source and of everything that it reaches and captures."""
        return self.fingerprint()


def read_override(path: str, kernel: str) -> Function:
    """The Tile IR that a file holds in place of a kernel's source; raises `CompilationError`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        function = parse_function(text)
        verify(function)
    except (OSError, TypeError, ValueError) as error:  # no file, no path, no text
        reason = getattr(error, "strerror", None) or error
        raise CompilationError(f"kernel '{kernel}': cannot read ir_override={brief(path)} ({reason})") from error
    except InvalidIRError as error:
        raise CompilationError(
            f"kernel '{kernel}': ir_override={path!r} holds no Tile IR of a kernel: {error}\n"
            "  help: the file begins as what compiled.asm['ttir'] or TILEWRIGHT_DUMP_DIRECTORY gives (NAME.tile)"
        ) from error
    return function


# The text form of a signature.


def to_text(kernel: JITFunction, key: Sequence[Any], arguments: Sequence[Any]) -> str | None:
    """JSON of one signature: what its parameters are, and the options; None where it holds what JSON cannot."""
    try:
        parameters = {
            parameter.name: {"constexpr": _encode(unwrap(value))} if parameter.constexpr else _encode_class(kind)
            for parameter, kind, value in zip(kernel.parameters, key[2:], arguments, strict=True)
        }
        options = {name: _encode(_plain(value)) for name, value in key[0]}
    except TypeError:
        return None
    target = {"backend": get_target().name}
    return json.dumps({"name": _full_name(kernel), "parameters": parameters, "options": options, "target": target})


def from_text(kernel: JITFunction, text: str) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Classes, arguments (of constants alone) and options of a signature's text; raises `LaunchError`."""
    try:
        data = json.loads(text)
        name, parameters, options = data["name"], data["parameters"], data["options"]
        machine = data["target"]["backend"]
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"this is no text of a signature: {error}") from error
    if name != _full_name(kernel):
        raise LaunchError(f"the signature is one of {name}, not of {_full_name(kernel)}")
    host = get_target().name
    if machine != host:
        raise LaunchError(f"the signature is for the target {machine!r}, only those for {host!r} have a text form")
    if set(parameters) != set(kernel.argument_names):
        raise LaunchError(f"the signature's parameters, {', '.join(parameters)}, are not those of {name}")
    kinds, arguments = [], []
    for parameter in kernel.parameters:
        entry = parameters[parameter.name]
        constant = _decode(entry["constexpr"]) if "constexpr" in entry else None
        kinds.append(constant if parameter.constexpr else _decode_class(entry))
        arguments.append(constant)
    return kinds, arguments, {option: _decode(value) for option, value in options.items()}


def _full_name(kernel: SourceFunction) -> str:
    return f"{kernel.__module__}.{kernel.__qualname__}"


def _plain(entry: Any) -> Any:
    """An option's value from its form in a key."""
    return entry[1] if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], type) else entry


def _encode_class(kind: Any) -> dict[str, Any]:
    if not isinstance(kind, ArgumentClass) or kind.place is not None:
        raise TypeError("a group, or an array on a GPU")
    if kind.type is None:
        return {"constant": _encode(kind.constant)}
    return {"type": str(kind.type), "divisibility": kind.divisibility}


def _decode_class(entry: Mapping[str, Any]) -> ArgumentClass:
    if "type" in entry:
        return argument_class(parse_type(entry["type"]), int(entry["divisibility"]))
    return argument_class(None, 1, _decode(entry["constant"]))


def _encode(value: Any) -> Any:
    value = unwrap(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_encode(entry) for entry in value]
    if isinstance(value, dtype) and value.name in NAMES:
        return {"dtype": value.name}
    if isinstance(value, SourceFunction):
        return {"function": f"{value.__module__}:{value.__qualname__}"}
    raise TypeError(f"{a_kind(value)} has no text form")


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(entry) for entry in value)
    if isinstance(value, dict):
        if "dtype" in value:
            return NAMES[value["dtype"]]
        module, _, name = value["function"].partition(":")
        for kernel in list(KERNELS):  # some are local to a function, where no import finds them
            if kernel.__module__ == module and kernel.__qualname__ == name:
                return kernel
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    return value


def announce(
    hook: Callable[..., Any],
    kernel: JITFunction,
    key: Sequence[Any],
    arguments: Sequence[Any],
    warming: bool,
) -> bool:
    """Tell a compilation hook of a signature; True when it answers that the kernel shall not be compiled."""
    signature = {
        parameter.name: "constexpr" if parameter.constexpr else _type_text(kind)
        for parameter, kind in zip(kernel.parameters, key[2:], strict=True)
    }
    constants = {
        (number,): unwrap(value)
        for number, (parameter, value) in enumerate(zip(kernel.parameters, arguments, strict=True))
        if parameter.constexpr
    }
    options = {name: _plain(value) for name, value in key[0]}
    name = kernel.__qualname__
    described = ", ".join(f"{parameter}: {kind}" for parameter, kind in signature.items())
    given = {
        "key": str(key),
        "signature": signature,
        "device": 0,
        "constants": constants,
        "num_warps": options.get("num_warps", 4),
        "num_ctas": options.get("num_ctas", 1),
        "num_stages": options.get("num_stages", 3),
        "enable_fp_fusion": options.get("enable_fp_fusion", True),
        "launch_cooperative_grid": options.get("launch_cooperative_grid", False),
        "extern_libs": options.get("extern_libs", ()),
        "configs": [{(number,): _attributes(kind) for number, kind in enumerate(key[2:])}],
        "specialization_data": to_text(kernel, key, arguments),
        "is_warmup": warming,
    }
    return bool(
        hook(
            key=str(key),
            repr=f"{name}({described})",
            fn=JitFunctionInfo(kernel.__module__, name, kernel),
            compile=given,
            is_manual_warmup=warming,
            already_compiled=False,
        )
    )


def _type_text(kind: Any) -> str:
    if isinstance(kind, ArgumentClass):
        return "constexpr" if kind.type is None else str(kind.type)
    return str(kind)


def _attributes(kind: Any) -> list[list[Any]]:
    """What is known of an argument's value, as compilers' attributes write it."""
    known = isinstance(kind, ArgumentClass) and kind.type is not None and kind.divisibility >= 16
    return [["tt.divisibility", 16]] if known else []


@dataclass(frozen=True)
class Specialization:
    """What `repr=` of a kernel is called with: types by parameter, and constants."""

    signature: Mapping[str, str]
    constants: Mapping[str, Any]
