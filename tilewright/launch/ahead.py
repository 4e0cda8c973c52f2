"""Compiles a kernel to an object file with a C header, for programs without Python.

built = build(kernel, parse_signature(kernel, "*f32:16, *f32:16, i32", {"BLOCK": 1024}), name="add")
built.write("out")                       # out/add.o, out/add.h

The object holds one plain C function, which runs the kernel over a grid with threads of its own:

    int add(const float *x, float *out, int32_t n, int64_t grid_x, int64_t grid_y, int64_t grid_z, int threads);

It needs no library but the C library (with its math functions and POSIX threads).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tilewright
from tilewright.dtypes import DType
from tilewright.errors import LaunchError, TargetError
from tilewright.ir.core import Parameter, SSAValue
from tilewright.ir.types import PointerType, TensorType, scalar
from tilewright.language.types import NAMES
from tilewright.launch.compiled import Accesses, accesses
from tilewright.launch.jit import JITFunction
from tilewright.runtime.safe_files import replacing
from tilewright.targets.base import CFunction, HostBackend, Target
from tilewright.targets.registry import backend_of, get_target

_ENTRY = re.compile(r"(?P<type>\*?k?\s*\w+)\s*(?::\s*(?P<divisor>\d+))?")
_C_TYPES = {
    "i1": "uint8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "f32": "float", "f64": "double",
    "f16": "uint16_t", "bf16": "uint16_t",
}  # fmt: skip


@dataclass(frozen=True)
class Signature:
    """Types of the run-time parameters, constants of the others, and what divides the former."""

    types: Mapping[str, TensorType]
    constants: Mapping[str, Any]
    divisors: Mapping[str, int]


@dataclass(frozen=True)
class AheadOfTime:
    """A compiled kernel for C: `name` is the function's name."""

    name: str
    image: bytes
    header: str

    def write(self, folder: str | Path) -> tuple[Path, Path]:
        """Write NAME.o and NAME.h into a folder, which is made if need be; returns their paths. Raises `OSError`."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        object_file, header = place / f"{self.name}.o", place / f"{self.name}.h"
        for path, data in ((object_file, self.image), (header, self.header.encode())):
            with replacing(path) as file:
                file.write(data)
        return object_file, header


def parse_signature(kernel: JITFunction, text: str, constants: Mapping[str, Any] | None = None) -> Signature:
    """A signature from text such as ``"*f32:16, *f32:16, i32"``.

    Each entry is for the next parameter that `constants` does not name: a type (``*bf16`` is a pointer, ``*kf32`` one
    that is only read) with, after a colon, what divides the address in bytes or the number; or a value, which makes
    the parameter a constant.  Raises `LaunchError`.
    """
    fixed = dict(constants or {})
    unknown = sorted(set(fixed) - set(kernel.argument_names))
    if unknown:
        raise LaunchError(
            f"kernel '{kernel.name}' has no parameter {', '.join(map(repr, unknown))}; it has "
            f"{', '.join(kernel.argument_names)}"
        )
    open_parameters = [entry for entry in kernel.parameters if entry.name not in fixed]
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    types: dict[str, TensorType] = {}
    divisors: dict[str, int] = {}
    for parameter, entry in zip(open_parameters, entries, strict=False):
        value = _value(entry)
        if value is not _TYPE:
            fixed[parameter.name] = value
            continue
        if parameter.constexpr:
            raise LaunchError(f"'{parameter.name}' is a compile-time parameter: give it a value, not the type {entry}")
        types[parameter.name], divisors[parameter.name] = _typed(entry)
    for parameter in open_parameters[len(entries) :]:
        if not parameter.has_default:
            raise LaunchError(f"the signature {text!r} says nothing of '{parameter.name}' of kernel '{kernel.name}'")
        fixed[parameter.name] = parameter.default
    if len(entries) > len(open_parameters):
        raise LaunchError(
            f"the signature {text!r} has {len(entries)} entries, kernel '{kernel.name}' {len(open_parameters)} "
            "parameters that are not constants"
        )
    return Signature(types, fixed, divisors)


_TYPE = object()


def _value(text: str) -> Any:
    """The value that an entry says, or `_TYPE`."""
    named = {"true": True, "false": False, "none": None}
    if text.lower() in named:
        return named[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return _TYPE


def parse_constant(text: str) -> Any:
    """A constant from the command line: a number, True, None, a quoted or plain word, or a dtype's name."""
    value = _value(text)
    if value is not _TYPE:
        return value
    return NAMES.get(text.removeprefix("tl."), text)


def _typed(text: str) -> tuple[TensorType, int]:
    match = _ENTRY.fullmatch(text)
    name = match["type"].replace(" ", "") if match else ""
    element = name.removeprefix("*")
    const = element.startswith("k") and element[1:] in NAMES
    kind = NAMES.get(element[1:] if const else element)
    if match is None or kind is None or const and not name.startswith("*"):
        raise LaunchError(f"{text!r} is no type of a parameter: write *f32:16, *bf16, i32, f32 or the like")
    divisor = int(match["divisor"] or 1)
    if divisor < 1 or divisor & divisor - 1:
        raise LaunchError(f"{text!r}: what divides an argument is a power of two, such as 16")
    if name.startswith("*"):
        return scalar(PointerType(kind._number, const)), max(divisor, kind._number.itemsize)
    return scalar(kind._number), divisor


def build(
    kernel: JITFunction, signature: Signature, name: str | None = None, target: str | Target = "cpu"
) -> AheadOfTime:
    """Compile a kernel for a CPU, for C.

    `name` is the C function's (the kernel's when None), `target` the CPU: ``cpu`` is this machine's, ``cpu:x86-64-v3``
    one that many have.  Raises `CompilationError`, `LaunchError` for a name that C does not allow, and `TargetError`.
    """
    chosen = get_target(target)
    if not chosen.host_code:
        raise TargetError(
            f"objects with a C header are for CPUs, not for {chosen.name}; for a GPU, "
            "kernel.compile(types, constants, target=…).asm['cubin'] is the code"
        )
    exported = name or kernel.name
    if not exported.isidentifier() or not exported.isascii():
        raise LaunchError(f"{exported!r} is no name of a C function")
    described = {entry: Parameter(entry, divisibility=divisor) for entry, divisor in signature.divisors.items()}
    function = kernel.trace(signature.types, signature.constants, described)
    compiled = cast(HostBackend, backend_of(chosen)).c_function(function, exported)
    header = _header(exported, kernel, signature, function.region.arguments, accesses(function), compiled)
    return AheadOfTime(exported, compiled.image, header)


def _results(failing: frozenset[str]) -> str:
    """What the C function returns, for a kernel in which such operations may fail."""
    causes = {"assert": "an assertion failed", "for": "the step of a loop was not positive"}
    found = [cause for opcode, cause in causes.items() if opcode in failing]
    if not found:
        return "0, or 1 when there was no memory"
    return f"0, 1 when there was no memory, or 2 when {' or '.join(found)}, which is printed"


def _number(kind: TensorType) -> DType:
    assert isinstance(kind.element, DType)
    return kind.element


def _c_type(kind: TensorType, written: bool) -> str:
    if isinstance(kind.element, PointerType):
        element = _C_TYPES.get(kind.element.element.text, "uint8_t")
        return f"{element} *" if written else f"const {element} *"
    return f"{_C_TYPES.get(_number(kind).text, 'uint8_t')} "


def _header(
    name: str,
    kernel: JITFunction,
    signature: Signature,
    parameters: Sequence[SSAValue],
    accessed: Accesses,
    compiled: CFunction,
) -> str:
    """The C header: the function, and what its caller must know."""
    guard = f"TILEWRIGHT_{name.upper()}_H"
    arguments = [f"{_c_type(value.type, value.name in accessed.written)}{value.name}" for value in parameters]
    arguments += ["int64_t grid_x", "int64_t grid_y", "int64_t grid_z", "int threads"]
    facts = [
        f"   {value.name}: {_fact(value, signature.divisors.get(value.name, 1), accessed)}" for value in parameters
    ]
    constants = ", ".join(f"{entry} = {value!r}" for entry, value in signature.constants.items()) or "none"
    return "\n".join(
        [
            f"/* {name}: kernel '{kernel.name}' of {Path(kernel.file).name}, compiled by tilewright "
            f"{tilewright.__version__} for {compiled.machine}.",
            "",
            "   Runs all instances of the grid on up to `threads` threads, the calling one included, and returns when",
            f"   they are done: {_results(compiled.failing)}. Link with -lm and, on older systems, -lpthread.",
            f"   Constants: {constants}",
            *facts,
            f"   The CPU must have: {' '.join(compiled.features) or 'nothing special'} */",
            f"#ifndef {guard}",
            f"#define {guard}",
            "#include <stdint.h>",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            f"int {name}({', '.join(arguments)});",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "#endif",
            "",
        ]
    )


def _fact(value: SSAValue, divisor: int, accessed: Accesses) -> str:
    if isinstance(value.type.element, PointerType):
        uses = [use for use, names in (("read", accessed.read), ("written", accessed.written)) if value.name in names]
        use = " and ".join(uses) or "not accessed"
        return f"{value.type.element.element.name}, {use}; the address is divisible by {divisor}"
    known = f", divisible by {divisor}" if divisor > 1 else ""
    return f"{_number(value.type).name}{known}"
