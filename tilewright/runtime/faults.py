"""What the process says when a kernel's machine code crashes: which kernel, which launch, and how to find the mistake.

A handler of SIGSEGV, SIGBUS, SIGILL and SIGFPE, in machine code of ours that is safe inside a signal (x86-64 Linux;
elsewhere there is none).  It writes a few lines to standard error if the fault came from a kernel, or from a function
of the C library that a kernel called, and then does what was set up before it: the handler of `faulthandler` or of
another library, or the system's own action with its core dump.  All other faults go there at once.

It costs a launch nothing here: a kernel's entry point keeps a frame on its stack while it runs (words of 8 bytes),

    0   MARK while the kernel runs, 0 afterwards
    1   the frame's own address, xor SEAL: stale words and data are not taken for a frame
    2   the kernel's text: its name, then of each parameter a letter (`p` pointer, `i` integer, `o` other) and its name,
        every one ended by a line feed
    3   the arguments, in which the grid's three extents follow the parameters
    4   the number of the program instance

and the handler looks for that frame above the stack pointer of the code that faulted.  `faulthandler` enabled after
the first kernel runs before it, and raises the signal again with its own frame on top: then the interrupted code is
found in the frame that the system made for that handler.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import signal
import struct
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence

from tilewright import forks
from tilewright.runtime.library import NativeLibrary, cached_object, load_objects, system_address

MARK, SEAL = 0x7469_6C65_7772_6974, 0x5F6B_6572_6E65_6C21
FRAME_WORDS = 5

_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE) if sys.platform == "linux" else ()
_ACTION = struct.Struct("=Q128si4xQ")  # struct sigaction: handler, mask, flags, restorer
_WITH_FACTS, _OWN_STACK, _NESTED = 0x4, 0x0800_0000, 0x4000_0000  # SA_SIGINFO, SA_ONSTACK, SA_NODEFER
_TRAMPOLINE = struct.Struct("<2sQ2sQ2s")  # mov rcx, state; mov rax, handler; jmp rax
# The handler's state: the table of code, its length, two flags, then the actions before ours and the text it writes.
_CODE, _COUNT, _BUSY, _SAID = range(4)  # the flags hold the thread that set them
_ACTIONS, _MOST_TEXT, _STATE_BYTES = 64, 8192, 16384
_MOST_LIBRARIES = 1 << 16
_ENTRY_WORDS = 3  # of the table of code: start, bytes, whether it is an engine's

_IR = """
declare i64 @write(i32, ptr, i64)
declare i32 @sigaction(i32, ptr, ptr)
declare i32 @raise(i32)
declare i64 @pthread_self()
declare i32 @poll(ptr, i64, i32)

; The entry of the table of code (start, bytes, whether it is an engine's) in which an address lies; null for none.
define internal ptr @entry_of(ptr %state, i64 %address) nounwind {{
entry:
  %table = load ptr, ptr %state
  %count.p = getelementptr i64, ptr %state, i64 {count}
  %count = load atomic i64, ptr %count.p acquire, align 8
  br label %next
next:
  %index = phi i64 [ 0, %entry ], [ %following, %look ]
  %more = icmp ult i64 %index, %count
  br i1 %more, label %look, label %no
look:
  %following = add i64 %index, {entry_words}
  %start.p = getelementptr i64, ptr %table, i64 %index
  %start = load i64, ptr %start.p
  %size.p = getelementptr i64, ptr %start.p, i64 1
  %size = load i64, ptr %size.p
  %distance = sub i64 %address, %start
  %inside = icmp ult i64 %distance, %size
  br i1 %inside, label %yes, label %next
yes:
  ret ptr %start.p
no:
  ret ptr null
}}

define internal i1 @in_code(ptr %state, i64 %address) nounwind {{
  %entry = call ptr @entry_of(ptr %state, i64 %address)
  %some = icmp ne ptr %entry, null
  ret i1 %some
}}

define internal i1 @of_engine(ptr %state, ptr %kernel) nounwind {{
entry:
  %address = ptrtoint ptr %kernel to i64
  %found = call ptr @entry_of(ptr %state, i64 %address)
  %none = icmp eq ptr %found, null
  br i1 %none, label %no, label %look
look:
  %flag.p = getelementptr i64, ptr %found, i64 2
  %flag = load i64, ptr %flag.p
  %set = icmp ne i64 %flag, 0
  ret i1 %set
no:
  ret i1 false
}}

; Appends a text up to a line feed or its end; the new place in the buffer.
define internal i64 @text(ptr %buffer, i64 %at, ptr %text) nounwind {{
entry:
  br label %next
next:
  %index = phi i64 [ 0, %entry ], [ %following, %copy ]
  %place = add i64 %at, %index
  %room = icmp ult i64 %place, {room}
  br i1 %room, label %look, label %out
look:
  %from = getelementptr i8, ptr %text, i64 %index
  %byte = load i8, ptr %from
  %zero = icmp eq i8 %byte, 0
  %feed = icmp eq i8 %byte, 10
  %ended = or i1 %zero, %feed
  br i1 %ended, label %out, label %copy
copy:
  %to = getelementptr i8, ptr %buffer, i64 %place
  store i8 %byte, ptr %to
  %following = add i64 %index, 1
  br label %next
out:
  ret i64 %place
}}

define internal i64 @byte(ptr %buffer, i64 %at, i8 %byte) nounwind {{
  %to = getelementptr i8, ptr %buffer, i64 %at
  store i8 %byte, ptr %to
  %after = add i64 %at, 1
  ret i64 %after
}}

; Appends a number without a sign.
define internal i64 @number(ptr %buffer, i64 %at, i64 %value, i64 %base) nounwind {{
  %rest = udiv i64 %value, %base
  %digit = urem i64 %value, %base
  %last = icmp eq i64 %rest, 0
  br i1 %last, label %write, label %before
before:
  %there = call i64 @number(ptr %buffer, i64 %at, i64 %rest, i64 %base)
  br label %write
write:
  %place = phi i64 [ %at, %0 ], [ %there, %before ]
  %decimal = icmp ult i64 %digit, 10
  %first = select i1 %decimal, i64 48, i64 87
  %code = add i64 %digit, %first
  %byte = trunc i64 %code to i8
  %after = call i64 @byte(ptr %buffer, i64 %place, i8 %byte)
  ret i64 %after
}}

define internal i64 @signed(ptr %buffer, i64 %at, i64 %value) nounwind {{
  %negative = icmp slt i64 %value, 0
  br i1 %negative, label %below, label %write
below:
  %minus = call i64 @byte(ptr %buffer, i64 %at, i8 45)
  %positive = sub i64 0, %value
  br label %write
write:
  %place = phi i64 [ %at, %0 ], [ %minus, %below ]
  %magnitude = phi i64 [ %value, %0 ], [ %positive, %below ]
  %after = call i64 @number(ptr %buffer, i64 %place, i64 %magnitude, i64 10)
  ret i64 %after
}}

; The text after the next line feed.
define internal ptr @line(ptr %text) nounwind {{
entry:
  br label %next
next:
  %from = phi ptr [ %text, %entry ], [ %after, %next ]
  %byte = load i8, ptr %from
  %after = getelementptr i8, ptr %from, i64 1
  %feed = icmp eq i8 %byte, 10
  br i1 %feed, label %out, label %next
out:
  ret ptr %after
}}

; The frame of the kernel that was running in an interrupted context; null when none was.
define internal ptr @frame(ptr %state, ptr %context, i64 %address) nounwind {{
entry:
  %pc.p = getelementptr i8, ptr %context, i64 168
  %pc = load i64, ptr %pc.p
  %sp.p = getelementptr i8, ptr %context, i64 160
  %sp = load i64, ptr %sp.p
  %own = call i1 @in_code(ptr %state, i64 %pc)
  br i1 %own, label %scan, label %other
other:
  ; a stack that overflowed cannot be read; neither can one that a wild stack pointer points to
  %far = sub i64 %address, %sp
  %shifted = add i64 %far, 65536
  %overflow = icmp ult i64 %shifted, 131072
  br i1 %overflow, label %none, label %callers
callers:
  %step = phi i64 [ 0, %other ], [ %step.next, %caller ]
  %some = icmp ult i64 %step, 512
  br i1 %some, label %caller, label %none
caller:
  %return.at = add i64 %sp, %step
  %return.p = inttoptr i64 %return.at to ptr
  %return = load i64, ptr %return.p
  %step.next = add i64 %step, 8
  %called = call i1 @in_code(ptr %state, i64 %return)
  br i1 %called, label %scan, label %callers
scan:
  %first = sub i64 %sp, 128
  br label %frames
frames:
  %offset = phi i64 [ 0, %scan ], [ %offset.next, %no ]
  %few = icmp ult i64 %offset, 131072
  br i1 %few, label %look, label %none
look:
  %at = add i64 %first, %offset
  %frame = inttoptr i64 %at to ptr
  %mark = load i64, ptr %frame
  %marked = icmp eq i64 %mark, {mark}
  br i1 %marked, label %check, label %no
check:
  %seal.p = getelementptr i64, ptr %frame, i64 1
  %seal = load i64, ptr %seal.p
  %expected = xor i64 %at, {seal}
  %sealed = icmp eq i64 %seal, %expected
  br i1 %sealed, label %found, label %no
no:
  %offset.next = add i64 %offset, 8
  br label %frames
found:
  ret ptr %frame
none:
  ret ptr null
}}

; The context that a handler was called with which has raised the signal again: its copy of the registers is known by
; the segments of a user's code and stack, and by the number of an exception after them.
define internal ptr @interrupted(ptr %context) nounwind {{
entry:
  %sp.p = getelementptr i8, ptr %context, i64 160
  %sp = load i64, ptr %sp.p
  br label %next
next:
  %offset = phi i64 [ 0, %entry ], [ %following, %no ]
  %some = icmp ult i64 %offset, 8192
  br i1 %some, label %look, label %none
look:
  %place = add i64 %sp, %offset
  %segments.p = inttoptr i64 %place to ptr
  %segments = load i64, ptr %segments.p
  %ours = icmp eq i64 %segments, 12103423998558259 ; ss 0x2b, cs 0x33
  br i1 %ours, label %check, label %no
check:
  %trap.p = getelementptr i8, ptr %segments.p, i64 16
  %trap = load i64, ptr %trap.p
  %known = icmp ult i64 %trap, 32
  br i1 %known, label %found, label %no
no:
  %following = add i64 %offset, 8
  br label %next
found:
  %start = getelementptr i8, ptr %segments.p, i64 -184
  ret ptr %start
none:
  ret ptr null
}}

define internal i64 @parameters(ptr %buffer, i64 %at, ptr %text, ptr %arguments, i64 %address) nounwind {{
entry:
  br label %next
next:
  %kinds = phi ptr [ %text, %entry ], [ %after, %written ]
  %slot = phi ptr [ %arguments, %entry ], [ %slot.next, %written ]
  %place = phi i64 [ %at, %entry ], [ %end, %written ]
  %kind = load i8, ptr %kinds
  %slot.next = getelementptr i64, ptr %slot, i64 1
  %done = icmp eq i8 %kind, 0
  %full = icmp ugt i64 %place, {nearly}
  %stop = or i1 %done, %full
  br i1 %stop, label %out, label %look
look:
  %name = getelementptr i8, ptr %kinds, i64 1
  %after = call ptr @line(ptr %name)
  %value = load i64, ptr %slot, align 1
  switch i8 %kind, label %written [ i8 112, label %pointer
                                    i8 105, label %integer ]
pointer:
{pointer}
  %distance = sub i64 %address, %value
  %absolute = call i64 @llvm.abs.i64(i64 %distance, i1 false)
  %above = icmp slt i64 %distance, 0
  %side = select i1 %above, ptr @after, ptr @before
  %near = icmp ult i64 %absolute, 1099511627776
  br i1 %near, label %relative, label %pointer.end
relative:
{relative}
  br label %pointer.end
pointer.end:
  %pointer.at = phi i64 [ %{pointer_at}, %pointer ], [ %{relative_at}, %relative ]
  %pointer.feed = call i64 @byte(ptr %buffer, i64 %pointer.at, i8 10)
  br label %written
integer:
{integer}
  %integer.feed = call i64 @byte(ptr %buffer, i64 %{integer_at}, i8 10)
  br label %written
written:
  %end = phi i64 [ %place, %look ], [ %pointer.feed, %pointer.end ], [ %integer.feed, %integer ]
  br label %next
out:
  ret i64 %place
}}

; The grid's extents follow the parameters.
define internal ptr @grid(ptr %text, ptr %arguments) nounwind {{
entry:
  br label %next
next:
  %kinds = phi ptr [ %text, %entry ], [ %after, %more ]
  %slot = phi ptr [ %arguments, %entry ], [ %slot.next, %more ]
  %kind = load i8, ptr %kinds
  %done = icmp eq i8 %kind, 0
  br i1 %done, label %out, label %more
more:
  %after = call ptr @line(ptr %kinds)
  %slot.next = getelementptr i64, ptr %slot, i64 1
  br label %next
out:
  ret ptr %slot
}}

define internal void @report(ptr %state, ptr %buffer, i32 %signal, i64 %address, ptr %frame) nounwind {{
entry:
  %text.p = getelementptr i64, ptr %frame, i64 2
  %kernel = load ptr, ptr %text.p
  %arguments.p = getelementptr i64, ptr %frame, i64 3
  %arguments = load ptr, ptr %arguments.p
  %instance.p = getelementptr i64, ptr %frame, i64 4
  %instance = load i64, ptr %instance.p
  %kinds = call ptr @line(ptr %kernel)
  %grid = call ptr @grid(ptr %kinds, ptr %arguments)
  %x.count = load i64, ptr %grid, align 1
  %y.p = getelementptr i64, ptr %grid, i64 1
  %y.count = load i64, ptr %y.p, align 1
  %z.p = getelementptr i64, ptr %grid, i64 2
  %z.count = load i64, ptr %z.p, align 1
  %x.some = call i64 @llvm.umax.i64(i64 %x.count, i64 1)
  %y.some = call i64 @llvm.umax.i64(i64 %y.count, i64 1)
  %plane = udiv i64 %instance, %x.some
  %x = urem i64 %instance, %x.some
  %y = urem i64 %plane, %y.some
  %z = udiv i64 %plane, %y.some
  %is.memory = icmp eq i32 %signal, 11
  %is.bus = icmp eq i32 %signal, 7
  %is.illegal = icmp eq i32 %signal, 4
  %bounds = or i1 %is.memory, %is.bus
  %engine = call i1 @of_engine(ptr %state, ptr %kernel)
  %name.1 = select i1 %is.illegal, ptr @illegal, ptr @arithmetic
  %name.2 = select i1 %is.bus, ptr @bus, ptr %name.1
  %name = select i1 %is.memory, ptr @memory, ptr %name.2
  %advice.1 = select i1 %is.illegal, ptr @other_cpu, ptr @no_advice
  %bus.advice = select i1 %is.bus, ptr @cut_short, ptr @checks
  %memory.advice = select i1 %engine, ptr @of_engines, ptr %bus.advice
  %advice = select i1 %bounds, ptr %memory.advice, ptr %advice.1
{report}
  %listed = call i64 @parameters(ptr %buffer, i64 %{report_at}, ptr %kinds, ptr %arguments, i64 %address)
{advise}
  %last = call i64 @byte(ptr %buffer, i64 %{advise_at}, i8 10)
  %written = call i64 @write(i32 2, ptr %buffer, i64 %last)
  ret void
}}

define void @tilewright_fault(i32 %signal, ptr %facts, ptr %context, ptr %state) nounwind {{
entry:
  %code.p = getelementptr i8, ptr %facts, i64 8
  %code = load i32, ptr %code.p
  %address.p = getelementptr i8, ptr %facts, i64 16
  %told = load i64, ptr %address.p
  %busy.p = getelementptr i64, ptr %state, i64 {busy}
  %thread.id = call i64 @pthread_self()
  %taken = cmpxchg ptr %busy.p, i64 0, i64 %thread.id seq_cst seq_cst
  %free = extractvalue {{ i64, i1 }} %taken, 1
  br i1 %free, label %where, label %occupied
occupied:
  ; by another thread that faulted: let it write and end the process; by this one: the search itself met bad memory
  %by = extractvalue {{ i64, i1 }} %taken, 0
  %by.us = icmp eq i64 %by, %thread.id
  br i1 %by.us, label %before, label %wait
where:
  %fault = icmp sgt i32 %code, 0
  br i1 %fault, label %search, label %sent
sent:
  %thread = icmp eq i32 %code, -6
  br i1 %thread, label %raised, label %leave
raised:
  %outer = call ptr @interrupted(ptr %context)
  %nested = icmp ne ptr %outer, null
  br i1 %nested, label %outer.address, label %leave
outer.address:
  %fault.p = getelementptr i8, ptr %outer, i64 216
  %fault.address = load i64, ptr %fault.p
  br label %search
search:
  %seen = phi ptr [ %context, %where ], [ %outer, %outer.address ]
  %address = phi i64 [ %told, %where ], [ %fault.address, %outer.address ]
  %frame = call ptr @frame(ptr %state, ptr %seen, i64 %address)
  %found = icmp ne ptr %frame, null
  br i1 %found, label %once, label %leave
once:
  %said.p = getelementptr i64, ptr %state, i64 {said}
  %claim = cmpxchg ptr %said.p, i64 0, i64 %thread.id seq_cst seq_cst
  %silent = extractvalue {{ i64, i1 }} %claim, 1
  br i1 %silent, label %say, label %said
said:
  store atomic i64 0, ptr %busy.p release, align 8
  %speaker = extractvalue {{ i64, i1 }} %claim, 0
  %again.us = icmp eq i64 %speaker, %thread.id
  br i1 %again.us, label %before, label %wait
wait:
  %waited = call i32 @poll(ptr null, i64 0, i32 1000)
  br label %before
say:
  %buffer = getelementptr i8, ptr %state, i64 {text}
  call void @report(ptr %state, ptr %buffer, i32 %signal, i64 %address, ptr %frame)
  br label %leave
leave:
  store atomic i64 0, ptr %busy.p release, align 8
  br label %before
before:
  %number = sext i32 %signal to i64
  %distance = mul i64 %number, {action_bytes}
  %offset = add i64 %distance, {actions}
  %action = getelementptr i8, ptr %state, i64 %offset
  %handler = load ptr, ptr %action
  %flags.p = getelementptr i8, ptr %action, i64 136
  %flags = load i32, ptr %flags.p
  %bits = ptrtoint ptr %handler to i64
  %system = icmp ult i64 %bits, 2
  br i1 %system, label %default, label %theirs
default:
  %ignored = icmp eq i64 %bits, 1
  %was.sent = icmp sle i32 %code, 0
  %dropped = and i1 %ignored, %was.sent
  br i1 %dropped, label %out, label %put.back
put.back:
  %status = call i32 @sigaction(i32 %signal, ptr %action, ptr null)
  br i1 %was.sent, label %again, label %out
again:
  %result = call i32 @raise(i32 %signal)
  br label %out
theirs:
  %with.facts = and i32 %flags, 4
  %plain = icmp eq i32 %with.facts, 0
  br i1 %plain, label %call.plain, label %call.facts
call.plain:
  call void %handler(i32 %signal)
  br label %out
call.facts:
  call void %handler(i32 %signal, ptr %facts, ptr %context)
  br label %out
out:
  ret void
}}

declare i64 @llvm.abs.i64(i64, i1)
declare i64 @llvm.umax.i64(i64, i64)
"""

_NAMES = {
    "memory": "segmentation fault (SIGSEGV)",
    "bus": "bus error (SIGBUS)",
    "illegal": "illegal instruction (SIGILL)",
    "arithmetic": "arithmetic error (SIGFPE)",
    "before": " bytes before the address",
    "after": " bytes after the address",
    "checks": "  help: the kernel uses memory outside of its arguments; run it with TILEWRIGHT_CHECK_BOUNDS=1, or "
    "TILEWRIGHT_INTERPRET=check, which name line, argument and element",
    "cut_short": "  help: a file that an argument is mapped from (np.memmap) was cut short; or the kernel uses memory "
    "outside of its arguments: TILEWRIGHT_CHECK_BOUNDS=1, or TILEWRIGHT_INTERPRET=check, name line and argument",
    "of_engines": "  help: shapes and strides fit, so memory of an input or output was freed too early, or a mapped "
    "file (np.memmap, load(mmap=True)) was cut short; if neither is so, the engine is at fault: please report it",
    "other_cpu": "  help: its machine code was made for a CPU with other instructions; compile it on this machine",
    "no_advice": "  help: run it with TILEWRIGHT_INTERPRET=check, which names line and element",
}


class _MessageWriter:
    """LLVM text that appends pieces to the buffer: constant texts, and values as `kind` has them."""

    def __init__(self, prefix: str, at: str) -> None:
        self._prefix, self.at = prefix, at
        self._lines: list[str] = []
        self.constants: list[str] = []

    def write(self, *pieces: str | tuple[str, str]) -> str:
        for piece in pieces:
            after = f"{self._prefix}.{len(self._lines)}"
            kind, value = ("text", self._constant(piece)) if isinstance(piece, str) else piece
            arguments = {
                "text": f"@text(ptr %buffer, i64 %{self.at}, ptr {value})",
                "hex": f"@number(ptr %buffer, i64 %{self.at}, i64 {value}, i64 16)",
                "number": f"@number(ptr %buffer, i64 %{self.at}, i64 {value}, i64 10)",
                "signed": f"@signed(ptr %buffer, i64 %{self.at}, i64 {value})",
                "feed": f"@byte(ptr %buffer, i64 %{self.at}, i8 10)",
            }[kind]
            self._lines.append(f"  %{after} = call i64 {arguments}")
            self.at = after
        return "\n".join(self._lines)

    def _constant(self, text: str) -> str:
        name = f"@{self._prefix}.text.{len(self.constants)}"
        self.constants.append(_constant(name, text))
        return name


def _constant(name: str, text: str) -> str:
    return f'{name} = private unnamed_addr constant [{len(text) + 1} x i8] c"{text}\\00"'


def handler_text() -> str:
    """The LLVM text of the handler."""
    pointer, relative = _MessageWriter("pointer", "place"), _MessageWriter("relative", "pointer.1")
    integer, report, advise = (
        _MessageWriter("integer", "place"),
        _MessageWriter("report", "start"),
        _MessageWriter("advise", "listed"),
    )
    pieces = {
        "pointer": pointer.write("  ", ("text", "%name"), " = 0x", ("hex", "%value")),
        "integer": integer.write("  ", ("text", "%name"), " = ", ("signed", "%value")),
        "report": "  %start = add i64 0, 0\n"
        + report.write(
            "tilewright: ", ("text", "%name"), " at address 0x", ("hex", "%address"), " in kernel ",
            ("text", "%kernel"), ", program instance (", ("number", "%x"), ", ", ("number", "%y"), ", ",
            ("number", "%z"), ") of grid (", ("number", "%x.count"), ", ", ("number", "%y.count"), ", ",
            ("number", "%z.count"), ")", ("feed", ""),
        ),
        "advise": advise.write(("text", "%advice")),
    }  # fmt: skip
    relative.at = pointer.at
    pieces["relative"] = relative.write(", which is ", ("number", "%absolute"), ("text", "%side"))
    writers = {"pointer": pointer, "relative": relative, "integer": integer, "report": report, "advise": advise}
    body = _IR.format(
        count=_COUNT, busy=_BUSY, said=_SAID, actions=_ACTIONS, text=_MOST_TEXT, action_bytes=_ACTION.size,
        entry_words=_ENTRY_WORDS, room=_STATE_BYTES - _MOST_TEXT - 512, nearly=_STATE_BYTES - _MOST_TEXT - 1536,
        mark=MARK, seal=SEAL,
        **pieces, **{f"{name}_at": writer.at for name, writer in writers.items()},
    )  # fmt: skip
    constants = [constant for writer in writers.values() for constant in writer.constants]
    return "\n".join([*(_constant(f"@{name}", text) for name, text in _NAMES.items()), *constants, body])


def _memory(size: int) -> ctypes.Array[ctypes.c_int64]:
    """Words of zero after a page that nobody may touch: a kernel that runs over its arrays must not reach them."""
    pages = mmap.mmap(-1, mmap.PAGESIZE + size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    guard = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(mmap.PAGESIZE), 0)
    return (ctypes.c_int64 * (size // 8)).from_buffer(pages, mmap.PAGESIZE)


class _Watch:
    """The handler in place, and the table of code that it looks at."""

    def __init__(self) -> None:
        self._words = _memory(_STATE_BYTES)
        self._code = _memory(8 * _ENTRY_WORDS * _MOST_LIBRARIES)
        self._state = ctypes.addressof(self._words)
        self._words[_CODE] = ctypes.addressof(self._code)
        self._free: list[int] = []
        self._lock = forks.lock()
        names = ("write", "sigaction", "raise", "poll", "pthread_self")
        imports = {name: address for name in names if (address := system_address(name)) is not None}
        self._library = load_objects([cached_object(handler_text(), "faults")], ["tilewright_fault"], imports)
        self._trampoline = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        handler = self._library.address("tilewright_fault")
        _TRAMPOLINE.pack_into(self._trampoline, 0, b"\x48\xb9", self._state, b"\x48\xb8", handler, b"\xff\xe0")
        self._install()

    def _install(self) -> None:
        system, place = ctypes.CDLL(None), ctypes.addressof(ctypes.c_char.from_buffer(self._trampoline))
        executable = mmap.PROT_READ | mmap.PROT_EXEC
        if system.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(mmap.PAGESIZE), executable):
            return  # the system allows no code of ours; `library` has found other ways
        action = ctypes.create_string_buffer(_ACTION.pack(place, bytes(128), _WITH_FACTS | _OWN_STACK | _NESTED, 0))
        for number in _SIGNALS:
            before = ctypes.c_void_p(self._state + _ACTIONS + number * _ACTION.size)
            system.sigaction(int(number), action, before)

    def add(self, library: NativeLibrary, of_engine: bool) -> None:
        """Take a library's code for a kernel's as long as it is loaded."""
        start, size = library.extent
        with self._lock:
            place = self._free.pop() if self._free else self._words[_COUNT]
            if place >= len(self._code):
                return
            self._code[place], self._code[place + 1], self._code[place + 2] = start, size, of_engine
            self._words[_COUNT] = max(self._words[_COUNT], place + _ENTRY_WORDS)
        weakref.finalize(library, self._remove, place).atexit = False

    def _remove(self, place: int) -> None:
        self._code[place] = self._code[place + 1] = self._code[place + 2] = 0
        self._free.append(place)


_watch: _Watch | None = None
_first = forks.lock()


def load_kernels(
    images: Iterable[bytes], symbols: Sequence[str], imports: Mapping[str, int] | None = None, strict: bool = False
) -> NativeLibrary:
    """`library.load_objects` for code whose faults are to be reported: kernels, and (`strict`) engines' plans."""
    global _watch
    library = load_objects(images, symbols, imports, strict)
    if sys.platform == "linux" and platform.machine() == "x86_64":
        if _watch is None:
            with _first:
                if _watch is None:  # nobody was faster
                    _watch = _Watch()
        _watch.add(library, of_engine=strict)
    return library
