"""Machine code that asks AddressSanitizer before each access: ``python -m tools.fuzz run TARGET --sanitize``.

llvmlite has no sanitizing pass, so the text of each module (kernels, plans, the loop of sessions and the team of
threads) gets a call of ``__asan_loadN`` or ``__asan_storeN`` in front of each load, store, atomic operation and masked
or indexed access before LLVM sees it.  GCC's libasan, which is loaded before all else, has these functions and puts
zones that nobody may touch around each piece of memory that Python, NumPy and PyTorch allocate.  Values of an engine
get places of their own in its arena, with such zones between them.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

VARIABLE = "FUZZ_SANITIZE"
FUNCTIONS = ("__asan_loadN", "__asan_storeN")
ZONE = 64  # bytes
OPTIONS = {
    "abort_on_error": 1,  # so that the harness sees a signal
    "detect_leaks": 0,  # Python leaves memory to the system when it ends
    "handle_segv": 0, "handle_sigbus": 0, "handle_sigfpe": 0, "handle_abort": 0,  # Python's own handlers tell more
    "allocator_may_return_null": 1,
    "quarantine_size_mb": 32,
    "alloc_dealloc_mismatch": 0,  # between libraries that were not built for it
    "detect_odr_violation": 0,
}  # fmt: skip


def environment() -> dict[str, str]:
    """What a process needs in its environment for `install` to work; raises `SystemExit` where GCC has no libasan."""
    libraries = [
        _of_gcc("libasan.so"),
        _of_gcc("libstdc++.so.6"),
    ]  # the second for exceptions of libraries loaded later
    return {
        VARIABLE: "1",
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in OPTIONS.items()),
        "PYTHONMALLOC": "malloc",
    }


def _of_gcc(name: str) -> str:
    try:
        found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        found = name
    path = Path(found.strip())
    if not path.is_absolute():
        raise SystemExit(f"--sanitize needs gcc and its {name}; install them (Debian: gcc)")
    return str(path.resolve())


def is_on() -> bool:
    """Whether this process was started with `environment`."""
    return os.environ.get(VARIABLE) == "1"


def install(folder: Path) -> None:
    """Let all machine code that is made from now on, and kept in `folder`, be sanitized."""
    from tilewright.build import storage
    from tilewright.engine import engine, taping
    from tilewright.runtime import library, memory, parallel
    from tilewright.runtime.session import Session
    from tilewright.settings import settings

    for name in ("LD_PRELOAD", VARIABLE):  # not for the processes that cases start
        os.environ.pop(name, None)
    settings.cache_directory = folder / "sanitized"
    os.environ["TILEWRIGHT_CACHE_DIRECTORY"] = str(settings.cache_directory)
    parse = llvm.parse_assembly
    llvm.parse_assembly = lambda text, *arguments, **options: parse(instrumented(text), *arguments, **options)
    library._SYSTEM = library._SYSTEM | set(FUNCTIONS)
    storage.plan_memory = _apart
    for module in (memory, parallel, taping):
        module.AlignedBuffer = _Guarded  # type: ignore[attr-defined]
    memory.scratch_pool._idle.clear()
    # The steps of a plan say where values lie; sessions have no other use for them.
    engine.plan_from_json = _with_steps(engine.plan_from_json)  # type: ignore[attr-defined]
    launch = Session._launch

    def guarded(self: Session, binding: Any, values: Sequence[int], *arguments: Any) -> None:
        symbols = dict(zip(self.plan.symbols, values, strict=True))
        with _zones(self, symbols):
            launch(self, binding, values, *arguments)

    Session._launch = guarded  # type: ignore[method-assign]


# The text ------------------------------------------------------------------------------------------

_LOAD = re.compile(r"\s*\S+ = load (?:atomic |volatile )*(.+?), ptr ([%@][\w.$]+)")
_STORE = re.compile(r"\s*store (?:atomic |volatile )*(.+), ptr ([%@][\w.$]+)(?:,| |$)")
_ATOMIC = re.compile(
    r"\s*\S+ = (?:atomicrmw (?:volatile )?\w+|cmpxchg (?:weak |volatile )*)\s*ptr ([%@][\w.$]+), (\S+) "
)
_RANGE = re.compile(r"\s*call void @llvm\.(memset|memcpy|memmove)\.\S+\((.*)\)")
_MASKED = re.compile(r".*call (?:\w+ )*?(.+?) @llvm\.masked\.(load|store|gather|scatter)\.\S+?\((.*)\)")
_VECTOR = re.compile(r"<(\d+) x (.+)>")
_BYTES = {"float": 4, "double": 8, "half": 2, "bfloat": 2, "ptr": 8}


def instrumented(text: str) -> str:
    """A module's text with a call in front of each access."""
    lines: list[str] = []
    helpers: dict[str, str] = {}
    counter = iter(range(1 << 60))
    for line in text.splitlines():
        lines += _checks(line, counter, helpers)
        lines.append(line)
    if len(lines) == len(text.splitlines()):
        return text
    lines += helpers.values()
    lines += [f"declare void @{name}(i64, i64)" for name in FUNCTIONS if f"declare void @{name}(" not in text]
    return "\n".join(lines) + "\n"


def _checks(line: str, counter: Iterator[int], helpers: dict[str, str]) -> list[str]:
    """The calls that belong in front of a line."""
    if (found := _LOAD.match(line)) is not None:
        return _check("load", found[2], size_of(found[1]), counter)
    if (found := _STORE.match(line)) is not None:
        return _check("store", found[2], size_of(_leading_type(found[1])), counter)
    if (found := _ATOMIC.match(line)) is not None:
        return _check("store", found[1], size_of(found[2]), counter)
    if (found := _RANGE.match(line)) is not None:
        first, second, size = (argument.rpartition(" ")[2] for argument in _arguments(found[2])[:3])
        reads = [] if found[1] == "memset" else _check("load", second, size, counter)
        return _check("store", first, size, counter) + reads
    if (found := _MASKED.match(line)) is not None:
        return _masked_check(found[1], found[2], _arguments(found[3]), helpers)
    return []


def _check(kind: str, pointer: str, size: int | str, counter: Iterator[int]) -> list[str]:
    name = f"%asan.{next(counter)}"
    return [f"  {name} = ptrtoint ptr {pointer} to i64", f"  call void @__asan_{kind}N(i64 {name}, i64 {size})"]


def _masked_check(result: str, kind: str, arguments: list[str], helpers: dict[str, str]) -> list[str]:
    """A call of a function that checks the lanes whose mask is set; it is made where there is none yet."""
    stores = kind in ("store", "scatter")
    value = _leading_type(arguments[0]) if stores else result
    places, mask = (arguments[1], arguments[2]) if stores else (arguments[0], arguments[1])
    lanes, element = _VECTOR.fullmatch(value).groups()  # type: ignore[union-attr]
    places = re.sub(r" align \d+", "", places)
    name = f"tw.asan.{kind}.{lanes}.{size_of(element)}"
    helpers.setdefault(name, _helper(name, "store" if stores else "load", int(lanes), size_of(element), kind))
    return [f"  call void @{name}({places}, {mask})"]


def _helper(name: str, access: str, lanes: int, size: int, kind: str) -> str:
    indexed = kind in ("gather", "scatter")
    places = f"<{lanes} x ptr>" if indexed else "ptr"
    place = (
        [f"  %place = extractelement {places} %places, i64 %lane"]
        if indexed
        else [f"  %offset = mul i64 %lane, {size}", "  %place = getelementptr i8, ptr %places, i64 %offset"]
    )
    body = [
        f"define internal void @{name}({places} %places, <{lanes} x i1> %mask) noinline nounwind {{",
        "entry:",
        "  br label %turn",
        "turn:",
        "  %lane = phi i64 [ 0, %entry ], [ %next, %turn ]",
        *place,
        f"  %set = extractelement <{lanes} x i1> %mask, i64 %lane",
        f"  %size = select i1 %set, i64 {size}, i64 0",
        "  %address = ptrtoint ptr %place to i64",
        f"  call void @__asan_{access}N(i64 %address, i64 %size)",
        "  %next = add i64 %lane, 1",
        f"  %more = icmp ult i64 %next, {lanes}",
        "  br i1 %more, label %turn, label %end",
        "end:",
        "  ret void",
        "}",
    ]
    return "\n".join(body)


def size_of(kind: str) -> int:
    """The bytes that a value of a type has in memory."""
    kind = kind.strip()
    if (found := _VECTOR.fullmatch(kind)) is not None:
        element = found[2].strip()
        bits = int(element[1:]) if re.fullmatch(r"i\d+", element) else 8 * size_of(element)
        return -(-int(found[1]) * bits // 8)
    if (found := re.fullmatch(r"\[(\d+) x (.+)\]", kind)) is not None:
        return int(found[1]) * size_of(found[2])
    if re.fullmatch(r"i\d+", kind):
        return -(-int(kind[1:]) // 8)
    if kind.startswith("{"):
        return sum(map(size_of, _arguments(kind.strip("{} "))))
    return _BYTES[kind]


def _leading_type(text: str) -> str:
    """The type in front of a value."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in "<[{(") - (letter in ">]})")
        if not depth and letter == " ":
            return text[:place]
    return text


def _arguments(text: str) -> list[str]:
    """Parts between commas that stand in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<[{(") - (letter in ">]})")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


# Memory --------------------------------------------------------------------------------------------


_MARKS: dict[str, Any] = {}  # asan's functions, found once: Python may be about to end


def _mark(kind: str, address: int, size: int) -> None:
    if kind not in _MARKS:
        _MARKS[kind] = ctypes.CDLL(None)[f"__asan_{kind}_memory_region"]
        _MARKS[kind].argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    if size > 0:
        _MARKS[kind](address, size)


def _apart(intervals: Sequence[Any]) -> Any:
    """A place of its own for every value of an engine, with a zone in front of each and one behind the last."""
    from tilewright.graph.passes.memory import TENSOR_ALIGNMENT, MemoryPlan
    from tilewright.symbolic import Size, lift, round_up, simplify

    offsets: dict[str, Size] = {}
    end: Size = 0
    for item in intervals:
        offsets[item.name] = simplify(lift(end) + ZONE)
        end = simplify(lift(offsets[item.name]) + round_up(item.bytes, TENSOR_ALIGNMENT))
    return MemoryPlan(offsets, simplify(lift(end) + ZONE), tuple(intervals))


class _Guarded:
    """`runtime.memory.AlignedBuffer` of which no more than its bytes may be touched."""

    def __init__(self, capacity: int) -> None:
        import numpy as np

        from tilewright.runtime.memory import BUFFER_ALIGNMENT

        # Never one of NumPy's small pieces.
        self._owner = np.empty(max(capacity, 4096) + 2 * BUFFER_ALIGNMENT, np.uint8)
        self._whole = start, size = self._owner.ctypes.data, self._owner.nbytes
        self.address = (start + BUFFER_ALIGNMENT) // BUFFER_ALIGNMENT * BUFFER_ALIGNMENT
        self.capacity = capacity
        _mark("unpoison", start, size)
        _mark("poison", start, self.address - start)
        end = (self.address + capacity + 7) // 8 * 8  # what asan can tell apart
        _mark("poison", end, start + size - end)

    def __del__(self) -> None:
        _mark("unpoison", *self._whole)


def _with_steps(read: Callable[..., Any]) -> Callable[..., Any]:
    return lambda data, with_steps=True, in_parts=False: read(data, True, in_parts)


class _zones:
    """The zones between the values in a session's arena, for the length of a run."""

    def __init__(self, session: Any, symbols: dict[str, int]) -> None:
        from tilewright.symbolic import evaluate

        starts: dict[str, int] = {}
        for name, offset in _arena_places(session.plan):
            start = evaluate(offset, symbols)
            starts[name] = min(start, starts.get(name, start))
        self.buffer: Any = None
        self.offsets = sorted({start - ZONE for start in starts.values() if start >= ZONE})
        self.pool = session._arenas

    def __enter__(self) -> None:
        self.take = self.pool.take
        self.pool.take = self._take_poisoned

    def _take_poisoned(self, capacity: int) -> Any:
        self.buffer = self.take(capacity)
        for offset in self.offsets:
            _mark("poison", self.buffer.address + offset, ZONE)
        return self.buffer

    def __exit__(self, *error: Any) -> None:
        del self.pool.take
        for offset in self.offsets if self.buffer is not None else ():
            _mark("unpoison", self.buffer.address + offset, ZONE)


def _arena_places(item: Any) -> Iterator[tuple[str, Any]]:
    """The name and the offset of each reference to an arena."""
    from tilewright.runtime.plan import BufferReference

    if isinstance(item, BufferReference):
        if item.kind == "arena":
            yield item.name, item.offset
    elif isinstance(item, dict):
        for each in item.values():
            yield from _arena_places(each)
    elif isinstance(item, (tuple, list)):
        for each in item:
            yield from _arena_places(each)
    elif is_dataclass(item) and type(item).__module__ == BufferReference.__module__:
        for entry in fields(item):
            yield from _arena_places(getattr(item, entry.name))
