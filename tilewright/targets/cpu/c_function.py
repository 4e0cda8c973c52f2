"""A kernel as a C function in an object file: LLVM text that runs it over a grid with threads of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilewright.dtypes import DType
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.types import TensorType
from tilewright.runtime.failure_record import WORDS
from tilewright.targets.base import CFunction
from tilewright.targets.cpu.assemble import assemble
from tilewright.targets.cpu.failures import assertions, failed
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.cpu.pipeline import LoweredCPUKernel, lower
from tilewright.targets.cpu.target import CPUTarget

MOST_C_THREADS = 256


def c_function(function: Function, name: str, target: CPUTarget) -> CFunction:
    """The object of a verified kernel; AMX, which a program must ask its system for first, is left out."""
    target = target.without_tiles()
    lowered = lower(function, target, CPUOptions(watches=False))  # the C function has neither clock nor Python
    failing = list(assertions(function)) if lowered.records else []
    failures = [_failure_text(operation) for operation in failing]
    wrapper = _wrapper(name, function.region.arguments, lowered, failures, "windows" not in target.triple)
    whole = lowered.text + wrapper
    for called, declaration in _DECLARATIONS.items():
        if f"@{called}(" in wrapper and not _declared(called, lowered.text):
            whole += f"\n{declaration}"
    opcodes = frozenset(operation.opcode for operation in failing)
    machine = f"{target.architecture} {target.cpu}"
    return CFunction(assemble(whole + "\n", target).image, machine, target.required_features(tiles=False), opcodes)


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
# A kernel with assertions has one slot more, the address of a record; a failure is reported by a line of its own.
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
