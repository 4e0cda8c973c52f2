"""Compiling many kernels at once, in processes that put them into the object cache.

Tracing a kernel is Python and LLVM works for one thread at a time, so threads gain little.  Each worker is a fork of
this process: it has every kernel and constant at hand, compiles what it draws from a pipe that all share, and leaves
nothing but entries of the cache.  Whoever needs a kernel asks for it as always, and finds it there; what a worker
could not compile, or did not come to, is compiled then, where its error is told.
"""

from __future__ import annotations

import logging
import os
import struct
import sys
import time
import warnings
from collections.abc import Callable, Sequence

from tilewright.settings import settings

logger = logging.getLogger("tilewright.engine")

_WORTH_IT = 4  # jobs below which a fork costs more than it saves
_PATIENCE = 300.0  # seconds for all jobs; workers that are not done then are given up
_NUMBER = struct.Struct("<I")


def compile_ahead(jobs: Sequence[Callable[[], object]], workers: int | None = None) -> None:
    """Run jobs whose results lie in the object cache, in up to `workers` processes (by default `settings.threads`).

    Does nothing where there is one worker, where processes do not fork, or where the cache is not used.
    """
    count = min(settings.threads if workers is None else workers, len(jobs))
    cached = not settings.always_compile and settings.dump_directory is None
    if count < 2 or len(jobs) < _WORTH_IT or not cached or not hasattr(os, "fork") or sys.platform == "darwin":
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
    sys.stdout.flush()
    sys.stderr.flush()
    started = time.perf_counter()
    children = [_fork(jobs, read) for _ in range(count)]
    os.close(read)
    _wait(children)
    logger.info("%d kernels in %d processes: %.1f s", given, count, time.perf_counter() - started)


def _fork(jobs: Sequence[Callable[[], object]], read: int) -> int:
    """The number of a new process that works until the pipe is empty."""
    with warnings.catch_warnings():
        # Threads of this process do not go on in the child; those of ours and of PyTorch hold nothing it needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    status = 1
    try:
        logging.disable(logging.CRITICAL)  # remarks are told when the kernel is taken from the cache
        while number := os.read(read, _NUMBER.size):
            try:
                jobs[_NUMBER.unpack(number)[0]]()
            except Exception:  # told by who needs the kernel
                continue
        status = 0
    finally:
        os._exit(status)


def _wait(children: Sequence[int]) -> None:
    """Until all processes have ended, or patience has."""
    waiting = set(children)
    end = time.perf_counter() + _PATIENCE
    while waiting:
        waiting -= {child for child in waiting if os.waitpid(child, os.WNOHANG)[0]}
        if waiting and time.perf_counter() > end:
            for child in waiting:
                os.kill(child, 9)
                os.waitpid(child, 0)
            logger.warning("%d processes that compile were given up after %.0f s", len(waiting), _PATIENCE)
            return
        time.sleep(0.002)
