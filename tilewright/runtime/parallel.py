"""Who provides the threads of a launch or a plan: threads of our own, libdispatch, or an OpenMP runtime.

    run_parallel(body, context, scratch_bytes, workers)

`body` is a native function ``void body(ptr team, ptr context)``; it gives work to the team by calling
`parallel_for` (see `runtime.glue`).  Every provider only has to bring threads into the team; none can
deadlock a run, because the run never waits for a thread that has not come.
"""

from __future__ import annotations

import ctypes
import logging
import os
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from tilewright.errors import SettingsError
from tilewright.runtime.glue import MEMBERS, TEAM_BYTES, glue
from tilewright.runtime.memory import AlignedBuffer, scratch_pool
from tilewright.runtime.signals import RAISED_ADDRESS, raise_pending
from tilewright.settings import MOST_THREADS, settings

_RECORD = struct.Struct("=5q")  # of a run on the calling thread
_log = logging.getLogger("tilewright")


class Provider(Protocol):
    """Brings threads together for one run."""

    name: str  # for `doctor` and the profile
    detail: str  # the library's path or similar

    def start(self, body: int, context: int | bytes, scratch: int, stride: int, workers: int) -> int:
        """Run `body` with up to `workers` threads; returns when it has ended: 0, or `signals.STOPPED`."""
        ...


class InlineProvider:
    """No threads: the caller does everything."""

    name = "none"
    detail = "the calling thread"

    def start(self, body: int, context: int | bytes, scratch: int, stride: int, workers: int) -> int:
        if isinstance(context, bytes):
            record = _RECORD.pack(RAISED_ADDRESS, body, scratch, stride, 0) + context
        else:
            record = _RECORD.pack(RAISED_ADDRESS, body, scratch, stride, context)
        stopped: int = glue().start_inline(record)
        return stopped


class OpenMPProvider:
    """GNU's OpenMP entry point, which LLVM's and Intel's runtimes offer too. Its threads spin for a
    while after a region, so that the next one starts within microseconds, and other libraries of the
    process share them."""

    name = "openmp"

    def __init__(self, library: ctypes.CDLL, detail: str) -> None:
        address = ctypes.cast(library["GOMP_parallel"], ctypes.c_void_p).value
        assert address is not None
        self._library, self._entry, self.detail = library, address, detail

    def start(self, body: int, context: int | bytes, scratch: int, stride: int, workers: int) -> int:
        stopped: int = glue().start_openmp(self._entry, body, context, scratch, stride, workers, RAISED_ADDRESS)
        return stopped


class DispatchProvider:
    """macOS: ``dispatch_apply_f`` on the automatic queue."""

    name = "libdispatch"
    detail = "libSystem"

    def __init__(self, library: ctypes.CDLL) -> None:
        address = ctypes.cast(library["dispatch_apply_f"], ctypes.c_void_p).value
        assert address is not None
        self._library, self._entry = library, address

    def start(self, body: int, context: int | bytes, scratch: int, stride: int, workers: int) -> int:
        stopped: int = glue().start_dispatch(self._entry, body, context, scratch, stride, workers, RAISED_ADDRESS)
        return stopped


class ThreadProvider:
    """Threads of our own, created by Python, that live in a native loop, and end when they were idle for some seconds.

    A caller that finds all teams busy gets a new one, up to a limit, and works alone beyond it.
    """

    name = "threads"
    detail = "threads of our own"
    _MOST_TEAMS = 8  # for each number of workers
    _MOST_THREADS = MOST_THREADS  # of all teams; idle teams are sent away for a new one

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[int, list[_Team]] = {}
        self._counts: Counter[int] = Counter()

    def start(self, body: int, context: int | bytes, scratch: int, stride: int, workers: int) -> int:
        team = self._take(workers)
        if team is None:
            return _inline.start(body, context, scratch, stride, 1)
        try:
            if team.members.value < team.wanted:
                team.fill()
            stopped: int = glue().start_team(team.address, body, context, scratch, stride, workers)
            return stopped
        finally:
            with self._lock:
                self._idle[workers].append(team)

    def _take(self, workers: int) -> _Team | None:
        with self._lock:
            idle = self._idle.setdefault(workers, [])
            if idle:
                return idle.pop()
            if self._counts[workers] == self._MOST_TEAMS or not self._make_room(workers):
                return None
            self._counts[workers] += 1
        return _Team(workers)

    def _make_room(self, workers: int) -> bool:
        """Send idle teams away until there is room for another; False when the busy ones leave none."""
        for count in sorted(self._idle, reverse=True):
            while sum(size * teams for size, teams in self._counts.items()) + workers > self._MOST_THREADS:
                if not self._idle[count]:
                    break
                glue().dismiss_team(self._idle[count].pop().address)
                self._counts[count] -= 1
        return sum(size * teams for size, teams in self._counts.items()) + workers <= self._MOST_THREADS


class _Team:
    """A native team and its threads, which sleep between runs without the GIL."""

    _PAUSE = 10.0  # seconds before threads are asked for again that the system did not give

    def __init__(self, workers: int) -> None:
        self._memory = AlignedBuffer(TEAM_BYTES)
        self.address = self._memory.address
        glue().create_team(self.address, RAISED_ADDRESS)
        self.members = ctypes.c_int64.from_address(self.address + MEMBERS)  # threads that are there
        self.wanted = workers - 1
        self._workers = workers
        self._threads: dict[int, threading.Thread] = {}
        self._refused = -self._PAUSE  # when the system gave no thread

    def fill(self) -> None:
        """Create the threads that are missing: all at first, later those that ended because they were idle."""
        if time.monotonic() - self._refused < self._PAUSE:
            return
        for index in range(1, self._workers):
            known = self._threads.get(index)
            if known is not None and known.is_alive():
                continue  # it begins, or it is about to end: its place in the scratch memory is taken
            thread = threading.Thread(target=_work, args=(self._memory, index), name=f"tilewright-{index}", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:  # a limit of the system, or Python is ending: fewer do too
                _log.warning("only %d of %d threads: %s", index, self._workers, error)
                self._refused = time.monotonic()
                return
            self._threads[index] = thread


def _work(memory: AlignedBuffer, index: int) -> None:
    """What each thread of a team does until it was idle for long."""
    glue().join_team(memory.address, index)


_chosen: tuple[str, Provider] | None = None  # what was asked for, and what was found
_choice_lock = threading.Lock()
_forked = False


def provider() -> Provider:
    """The provider that `settings.parallel` asks for, found once; raises `SettingsError` when it is absent."""
    global _chosen
    wanted = settings.parallel
    current = _chosen
    if current is None or current[0] != wanted:
        with _choice_lock:
            current = _chosen
            if current is None or current[0] != wanted:  # nobody was faster
                _chosen = current = (wanted, _find_provider(wanted))
                _log.debug("parallel provider: %s (%s)", current[1].name, current[1].detail)
    return current[1]


def provider_name() -> str:
    """The provider in use and where it comes from, for people."""
    return f"{provider().name} ({provider().detail})"


def run_parallel(body: int, context: int | bytes, scratch_bytes: int, workers: int) -> None:
    """Run a native body with up to `workers` threads, each with its own scratch memory.

    `context` is an address, or bytes whose address the body gets.  Raises `SettingsError` for more than `MOST_THREADS`,
    and what a signal's handler raises meanwhile (KeyboardInterrupt): then instances are left out.
    """
    if workers > MOST_THREADS:
        raise SettingsError(f"{workers} threads for one run: at most {MOST_THREADS} are possible; ask for fewer")
    stride = (scratch_bytes + 127) // 128 * 128
    if workers == 1 and not stride:
        if _inline.start(body, context, 0, 0, 1):
            raise_pending()
        return
    scratch = scratch_pool.take(stride * workers)
    try:
        stopped = (provider() if workers > 1 else _inline).start(body, context, scratch.address, stride, workers)
    finally:
        scratch_pool.give(scratch)
    if stopped:
        raise_pending()


_inline = InlineProvider()


def on_this_thread(body: int, context: int, scratch_bytes: int) -> Callable[[], None]:
    """A run on the calling thread, prepared, with scratch memory of its own: each call is one, and raises as
    `run_parallel`. One thread at a time may call it."""
    stride = (scratch_bytes + 127) // 128 * 128
    scratch = AlignedBuffer(stride) if stride else None
    start = glue().start_inline
    record = _RECORD.pack(RAISED_ADDRESS, body, 0 if scratch is None else scratch.address, stride, context)

    def run(scratch: AlignedBuffer | None = scratch) -> None:  # which lives as long as this
        if start(record):
            raise_pending()

    return run


def _find_provider(wanted: str) -> Provider:
    """By name; `auto` is libdispatch where there is one, else threads of our own.

    An OpenMP runtime must be asked for: its regions end only when their slowest thread was scheduled, which
    takes milliseconds on a busy machine (docs/internals/runtime.md has figures).
    """
    found: Provider | None = None
    if wanted in ("auto", "libdispatch"):
        found = _find_dispatch()
    if wanted == "openmp" and not _forked:
        found = _find_openmp()
    if wanted == "threads" or (wanted == "auto" and found is None) or (wanted == "openmp" and _forked):
        found = ThreadProvider()  # an OpenMP runtime's threads don't survive fork(), and it would wait for them
    if wanted == "none":
        found = _inline
    if found is None:
        raise SettingsError(
            f"TILEWRIGHT_PARALLEL={wanted}: not on this machine; use auto, openmp, libdispatch, threads or none"
        )
    return found


def _find_openmp() -> Provider | None:
    for path in _openmp_in_process():
        provider = _open(path)
        if provider is not None:
            return provider
    # LLVM's and Intel's runtimes refuse to be loaded twice, so a copy that we load could break a library that is
    # imported later; GNU's may be loaded at any time.
    return _open("libgomp.so.1") if sys.platform != "darwin" else None


def _open(path: str) -> Provider | None:
    try:
        return OpenMPProvider(ctypes.CDLL(path), path)
    except (OSError, AttributeError):
        return None


def _find_dispatch() -> Provider | None:
    if sys.platform != "darwin":
        return None
    try:
        return DispatchProvider(ctypes.CDLL(None))
    except (OSError, AttributeError):
        return None


def _openmp_in_process() -> list[str]:
    names = ("libgomp", "libiomp5", "libomp")
    return [path for path in _loaded_libraries() if os.path.basename(path).startswith(names)]


def _loaded_libraries() -> Iterator[str]:
    """Paths of the shared libraries in this process, where the system tells."""
    if os.name != "posix":
        return
    process = ctypes.CDLL(None)
    if hasattr(process, "_dyld_image_count"):  # macOS
        process._dyld_get_image_name.restype = ctypes.c_char_p
        for number in range(process._dyld_image_count()):
            yield os.fsdecode(process._dyld_get_image_name(number) or b"")
    elif hasattr(process, "dl_iterate_phdr"):  # Linux and the BSDs
        found: list[str] = []

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        def visit(info: int, size: int, data: int) -> int:
            # struct dl_phdr_info: the address, then the name
            name = ctypes.cast(info, ctypes.POINTER(ctypes.c_char_p))[1]
            found.append(os.fsdecode(name or b""))
            return 0

        process.dl_iterate_phdr(visit, None)
        yield from found


def _after_fork() -> None:
    global _chosen, _choice_lock, _forked
    _chosen, _choice_lock, _forked = None, threading.Lock(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
