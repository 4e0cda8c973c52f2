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
from tilewright.ir.core import Operation, Parameter, SSAValue
from tilewright.ir.types import PointerType, TensorType, scalar
from tilewright.language.types import NAMES
from tilewright.launch.compiled import Accesses, accesses
from tilewright.launch.jit import JITFunction
from tilewright.runtime.cache_files import replacing
from tilewright.targets.base import Target
from tilewright.targets.cpu.assemble import assemble
from tilewright.targets.cpu.failures import WORDS, assertions, failed
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.cpu.pipeline import LoweredCPUKernel, lower
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.registry import get_target

MOST_C_THREADS = 256
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
    cpu = cast(CPUTarget, chosen).without_tiles()
    exported = name or kernel.name
    if not exported.isidentifier() or not exported.isascii():
        raise LaunchError(f"{exported!r} is no name of a C function")
    described = {entry: Parameter(entry, divisibility=divisor) for entry, divisor in signature.divisors.items()}
    function = kernel.trace(signature.types, signature.constants, described)
    lowered = lower(function, cpu, CPUOptions(watches=False))  # the C function has neither clock nor Python
    parameters = function.region.arguments
    failing = list(assertions(function)) if lowered.records else []
    failures = [_failure_text(operation) for operation in failing]
    wrapper = _wrapper(exported, parameters, lowered, failures, "windows" not in cpu.triple)
    whole = lowered.text + wrapper
    for called, declaration in _DECLARATIONS.items():
        if f"@{called}(" in wrapper and not _declared(called, lowered.text):
            whole += f"\n{declaration}"
    code = assemble(whole + "\n", cpu)
    header = _header(exported, kernel, signature, parameters, accesses(function), cpu, failing)
    return AheadOfTime(exported, code.image, header)


def _results(failing: Sequence[Operation]) -> str:
    """What the C function returns, for a kernel in which these operations may fail."""
    causes = {"assert": "an assertion failed", "for": "the step of a loop was not positive"}
    found = [cause for opcode, cause in causes.items() if any(entry.opcode == opcode for entry in failing)]
    if not found:
        return "0, or 1 when there was no memory"
    return f"0, 1 when there was no memory, or 2 when {' or '.join(found)}, which is printed"


def _declared(name: str, text: str) -> bool:
    return re.search(rf"^declare [^@]*@{re.escape(name)}\(", text, re.MULTILINE) is not None


_WORKER = """
define internal ptr @{name}.worker(ptr %state) nounwind {{
entry:
  %arguments = load ptr, ptr %state, align 8
  %total.p = getelementptr i64, ptr %state, i64 1
  %total = load i64, ptr %total.p, align 8
  %part.p = getelementptr i64, ptr %state, i64 2
  %part = load i64, ptr %part.p, align 8
  %next.p = getelementptr i64, ptr %state, i64 3
  %done.p = getelementptr i64, ptr %state, i64 4
  %memory = call ptr @malloc(i64 {scratch_bytes})
  %address = ptrtoint ptr %memory to i64
  %missing = icmp eq i64 %address, 0
  br i1 %missing, label %out, label %ready
ready:
  %above = add i64 %address, 127
  %aligned = and i64 %above, -128
  %scratch = inttoptr i64 %aligned to ptr
  br label %take
take:
  %begin = atomicrmw add ptr %next.p, i64 %part seq_cst, align 8
  %more = icmp slt i64 %begin, %total
  br i1 %more, label %run, label %give
run:
  %limit = add i64 %begin, %part
  %end = call i64 @llvm.smin.i64(i64 %limit, i64 %total)
  call void @{symbol}(ptr %arguments, ptr %scratch, i64 %begin, i64 %end)
  %count = sub i64 %end, %begin
  %before = atomicrmw add ptr %done.p, i64 %count seq_cst, align 8
  br label %take
give:
  call void @free(ptr %memory)
  br label %out
out:
  ret ptr null
}}

define i32 @{name}({parameters}i64 %grid.x, i64 %grid.y, i64 %grid.z, i32 %threads) nounwind {{
entry:
  %slots = alloca [{slot_count} x i64], align 16
  %state = alloca [5 x i64], align 16
  %workers = alloca [{most} x i64], align 16
{stores}
  %plane = mul i64 %grid.x, %grid.y
  %total = mul i64 %plane, %grid.z
  %any = icmp sgt i64 %total, 0
  br i1 %any, label %start, label %nothing
nothing:
  ret i32 0
start:
  %wide = sext i32 %threads to i64
  %wanted = call i64 @llvm.smin.i64(i64 %wide, i64 %total)
  %fewer = call i64 @llvm.smin.i64(i64 %wanted, i64 {most})
  %count = call i64 @llvm.smax.i64(i64 %fewer, i64 1)
  %parts = mul i64 %count, 8
  %share = udiv i64 %total, %parts
  %part = call i64 @llvm.smax.i64(i64 %share, i64 1)
  store ptr %slots, ptr %state, align 8
  %total.p = getelementptr i64, ptr %state, i64 1
  store i64 %total, ptr %total.p, align 8
  %part.p = getelementptr i64, ptr %state, i64 2
  store i64 %part, ptr %part.p, align 8
  %next.p = getelementptr i64, ptr %state, i64 3
  store i64 0, ptr %next.p, align 8
  %done.p = getelementptr i64, ptr %state, i64 4
  store i64 0, ptr %done.p, align 8
  br label %create
{threading}
check:
  %done = load atomic i64, ptr %done.p seq_cst, align 8
  %short = icmp ne i64 %done, %total
  %status = zext i1 %short to i32
{end}}}
"""
_END = """  ret i32 %status
"""
# A kernel with assertions has one slot more, the address of a record; what failed is told by a line of its own.
_WATCH = """  %record = alloca [{words} x i64], align 16
  store i64 0, ptr %record, align 8
  %slot.record = getelementptr i64, ptr %slots, i64 {place}
  store ptr %record, ptr %slot.record, align 8"""
_TELL = """  %state.failed = load i64, ptr %record, align 8
  %all.hold = icmp eq i64 %state.failed, 0
  br i1 %all.hold, label %hold, label %tell
hold:
  ret i32 %status
tell:
  %number.p = getelementptr i64, ptr %record, i64 1
  %number = load i64, ptr %number.p, align 8
  %text.p = getelementptr ptr, ptr @{name}.texts, i64 %number
  %text = load ptr, ptr %text.p, align 8
  %x.p = getelementptr i64, ptr %record, i64 2
  %y.p = getelementptr i64, ptr %record, i64 3
  %z.p = getelementptr i64, ptr %record, i64 4
  %x = load i64, ptr %x.p, align 8
  %y = load i64, ptr %y.p, align 8
  %z = load i64, ptr %z.p, align 8
  %printed = call i32 (ptr, ...) @printf(ptr %text, i64 %x, i64 %y, i64 %z)
  %flushed = call i32 @fflush(ptr null)
  ret i32 2
"""
_DECLARATIONS = {
    "malloc": "declare ptr @malloc(i64)",
    "free": "declare void @free(ptr)",
    "printf": "declare i32 @printf(ptr, ...)",
    "fflush": "declare i32 @fflush(ptr)",
    "pthread_create": "declare i32 @pthread_create(ptr, ptr, ptr, ptr)",
    "pthread_join": "declare i32 @pthread_join(i64, ptr)",
    "llvm.smin.i64": "declare i64 @llvm.smin.i64(i64, i64)",
    "llvm.smax.i64": "declare i64 @llvm.smax.i64(i64, i64)",
}
# The calling thread is a worker too; a thread that cannot be created is one worker fewer.
_POSIX_THREADS = """create:
  %created = phi i64 [ 1, %start ], [ %index.next, %created.one ]
  %enough = icmp sge i64 %created, %count
  br i1 %enough, label %own, label %one
one:
  %id.p = getelementptr i64, ptr %workers, i64 %created
  %status.create = call i32 @pthread_create(ptr %id.p, ptr null, ptr @{name}.worker, ptr %state)
  %failed = icmp ne i32 %status.create, 0
  br i1 %failed, label %own, label %created.one
created.one:
  %index.next = add i64 %created, 1
  br label %create
own:
  %running = phi i64 [ %created, %create ], [ %created, %one ]
  %ignored = call ptr @{name}.worker(ptr %state)
  br label %join
join:
  %joined = phi i64 [ 1, %own ], [ %joined.next, %join.one ]
  %all = icmp sge i64 %joined, %running
  br i1 %all, label %check, label %join.one
join.one:
  %join.p = getelementptr i64, ptr %workers, i64 %joined
  %id = load i64, ptr %join.p, align 8
  %status.join = call i32 @pthread_join(i64 %id, ptr null)
  %joined.next = add i64 %joined, 1
  br label %join"""
_ONE_THREAD = """create:
  %ignored = call ptr @{name}.worker(ptr %state)
  br label %check"""


def _failure_text(operation: Operation) -> str:
    """What is printed when an assertion fails, a format of the three program ids."""
    place = f"{operation.location}: " if operation.location else ""
    text = f"{place}{failed(operation).message}".replace("%", "%%")
    return f"{text}, in program instance (%lld, %lld, %lld)\n"


def _texts(name: str, texts: Sequence[str]) -> str:
    """A table of C strings."""
    lines = []
    for number, text in enumerate(texts):
        letters = [*text.encode(), 0]
        encoded = "".join(f"\\{letter:02X}" for letter in letters)
        lines.append(f'@{name}.text.{number} = private constant [{len(letters)} x i8] c"{encoded}"')
    listed = ", ".join(f"ptr @{name}.text.{number}" for number in range(len(texts)))
    return "\n".join([*lines, f"@{name}.texts = private constant [{len(texts)} x ptr] [{listed}]", ""])


def _wrapper(
    name: str, parameters: Sequence[SSAValue], lowered: LoweredCPUKernel, failures: Sequence[str], threads: bool
) -> str:
    """LLVM text of the C function and of its workers, which goes after the kernel's."""
    given, stores = [], []
    for index, value in enumerate(parameters):
        kind = _llvm_type(value.type)
        given.append(f"{kind} %p{index}, ")
        stores.append(f"  %slot{index} = getelementptr i64, ptr %slots, i64 {index}")
        stored = f"%p{index}"
        if kind in ("i1", "i8", "i16", "i32"):
            extend = "sext" if _number(value.type).is_signed and kind != "i1" else "zext"
            stores.append(f"  %wide{index} = {extend} {kind} %p{index} to i64")
            kind, stored = "i64", f"%wide{index}"
        stores.append(f"  store {kind} {stored}, ptr %slot{index}, align 8")
    for axis, extent in enumerate(("x", "y", "z"), len(parameters)):
        stores.append(f"  %slot{axis} = getelementptr i64, ptr %slots, i64 {axis}")
        stores.append(f"  store i64 %grid.{extent}, ptr %slot{axis}, align 8")
    if failures:
        stores.append(_WATCH.format(words=WORDS, place=len(parameters) + 3))
    text = _WORKER.format(
        name=name,
        symbol=lowered.symbol,
        scratch_bytes=lowered.scratch_bytes + 128,
        parameters="".join(given),
        slot_count=len(parameters) + 3 + bool(failures),
        stores="\n".join(stores),
        most=MOST_C_THREADS,
        threading=(_POSIX_THREADS if threads else _ONE_THREAD).format(name=name),
        end=_TELL.format(name=name) if failures else _END,
    )
    return text + _texts(name, failures) if failures else text


def _number(kind: TensorType) -> DType:
    assert isinstance(kind.element, DType)
    return kind.element


def _llvm_type(kind: TensorType) -> str:
    if kind.is_pointer:
        return "ptr"
    element = _number(kind)
    if element.text in ("f32", "f64"):
        return {"f32": "float", "f64": "double"}[element.text]
    return "i8" if element.text == "i1" else f"i{element.bits}"


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
    target: CPUTarget,
    failing: Sequence[Operation],
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
            f"{tilewright.__version__} for {target.architecture} {target.cpu}.",
            "",
            "   Runs all instances of the grid on up to `threads` threads, the calling one included, and returns when",
            f"   they are done: {_results(failing)}. Link with -lm and, on older systems, -lpthread.",
            f"   Constants: {constants}",
            *facts,
            f"   The CPU must have: {' '.join(target.required_features(tiles=False)) or 'nothing special'} */",
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
