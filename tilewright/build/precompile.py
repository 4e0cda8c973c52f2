"""Compiles many kernels at once, in processes that put them into the object cache.

Tracing a kernel is Python and LLVM works for one thread at a time, so threads gain little.  Each worker is a fork of
this process: it has every kernel and constant at hand, compiles what it draws from a pipe that all share, tells by
another pipe that it is done with one, and leaves nothing but entries of the cache.  Whoever needs a kernel asks for it
as always, and finds it there; what a worker could not compile, or did not come to, is compiled then, where its error
is told.  A fork takes no other thread along and may find a lock held by one of them for ever (the driver's, a
library's), so workers that get nothing done for `_PATIENCE` are given up.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable, Sequence

from tilewright.settings import settings

logger = logging.getLogger("tilewright.engine")

_FEWEST_JOBS = 4  # jobs below which a fork costs more than it saves
_PATIENCE = 60.0  # seconds in which at least one of the jobs under way ends; the slowest kernels take some seconds
_GLANCE = 0.5  # seconds between looks at workers that tell nothing
_FEW_COLLECTIONS = 100_000  # objects that a worker makes between searches for garbage; 700 cost it a tenth of its time
_NUMBER = struct.Struct("<I")


def compile_ahead(
    jobs: Sequence[Callable[[], object]],
    workers: int | None = None,
    report: Callable[[int], None] = lambda ended: None,
) -> None:
    """Run jobs whose results lie in the object cache, in up to `workers` processes (by default `settings.threads`).

    `report` is called with how many have ended, each time that there are more.  Does nothing where there is one
    worker, where processes do not fork, or where the cache is not used.
    """
    count = min(settings.threads if workers is None else workers, len(jobs))
    cached = not settings.always_compile and settings.dump_directory is None
    if count < 2 or len(jobs) < _FEWEST_JOBS or not cached or not hasattr(os, "fork") or sys.platform == "darwin":
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    given = 0
    for number in range(len(jobs)):  # a pipe holds 16,000 of them
        try:
            given += os.write(write, _NUMBER.pack(number)) == _NUMBER.size
        except BlockingIOError:
            break
    os.close(write)
    heard, tell = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    started = time.perf_counter()
    children: list[int] = []
    ended = 0
    try:
        for _ in range(count):
            children.append(_fork(jobs, read, tell))
        os.close(tell)
        ended = _wait(children, heard, given, report)
    finally:  # an interrupted build leaves no process behind
        _end(children)
        os.close(read)
        os.close(heard)
    logger.info("%d of %d kernels in %d processes: %.1f s", ended, given, count, time.perf_counter() - started)


def _fork(jobs: Sequence[Callable[[], object]], read: int, tell: int) -> int:
    """The number of a new process that works until the pipe is empty, and writes a byte for each job that ended."""
    with warnings.catch_warnings():
        # Threads of this process do not go on in the child; what they may hold, `compile_ahead` is patient about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    status = 1
    try:
        _work(jobs, read, tell)
        status = 0
    finally:
        os._exit(status)


def _work(jobs: Sequence[Callable[[], object]], read: int, tell: int) -> None:
    gc.freeze()  # garbage of the parent (graphs and memory of a GPU, sockets) is the parent's to finish
    gc.set_threshold(_FEW_COLLECTIONS)
    logging.disable(logging.CRITICAL)  # remarks are told when the kernel is taken from the cache
    while number := os.read(read, _NUMBER.size):
        with contextlib.suppress(Exception):  # told by who needs the kernel
            jobs[_NUMBER.unpack(number)[0]]()
        os.write(tell, b".")


def _wait(children: list[int], heard: int, given: int, report: Callable[[int], None]) -> int:
    """How many jobs have ended when all have, when no process works any more, or when patience has ended.

    Takes processes that have ended off `children`.
    """
    ended = 0
    last = time.perf_counter()
    while ended < given and children:
        if select.select([heard], [], [], _GLANCE)[0] and (words := os.read(heard, 4096)):
            ended += len(words)
            last = time.perf_counter()
            report(ended)
            continue
        children[:] = [child for child in children if not os.waitpid(child, os.WNOHANG)[0]]
        if children and time.perf_counter() - last > _PATIENCE:
            logger.warning(
                "%d processes that compile kernels were given up: none of them got one done in %.0f s. "
                "The %d kernels that are missing are compiled one by one",
                len(children), _PATIENCE, given - ended,
            )  # fmt: skip
            break
    return ended


def _end(children: Sequence[int]) -> None:
    """End processes that still run."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
