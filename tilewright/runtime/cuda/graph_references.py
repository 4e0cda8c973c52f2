"""What CUDA graphs of the caller refer to: it stays as long as one of them, also where nobody else refers to it.

A call that is captured becomes part of the caller's graph, with the addresses of the engine's memory in it.  The graph,
its copies and its executables own a user object of the driver; when the last of them is gone, the driver posts a
semaphore of the C library.  It does that on a thread of its own, maybe while Python ends: no Python runs there.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.cuda.driver import api, check

_SEMAPHORE_BYTES = 64  # at least; 32 in glibc and musl
_NO_DESTRUCTOR_SYNC = _MOVE = 1  # flags of user objects and of graphs that own them


@dataclass(frozen=True, eq=False)
class _Reference:
    """What graphs of a capture refer to, and the semaphore that is posted when they are gone."""

    capture: int
    owners: tuple[Any, ...]
    semaphore: int


_references: list[_Reference] = []
_lock = threading.Lock()


def retain(stream: int, owners: Sequence[Any]) -> None:
    """Let `owners` live as long as the graph into which a stream is captured. A context is current."""
    cuda = api()
    _, capture, graph, *_ = check(cuda.cuStreamGetCaptureInfo(stream), "asking for the captured graph")
    release()
    with _lock:
        if any(found.capture == int(capture) and _same(found.owners, owners) for found in _references):
            return
        library = _library()
        semaphore = library.malloc(_SEMAPHORE_BYTES)
        library.sem_init(semaphore, 0, 0)
        _references.append(_Reference(int(capture), tuple(owners), semaphore))
    post = ctypes.cast(library.sem_post, ctypes.c_void_p).value
    action = "letting a graph own memory"
    user = check(cuda.cuUserObjectCreate(semaphore, post, 1, _NO_DESTRUCTOR_SYNC), action)
    check(cuda.cuGraphRetainUserObject(graph, user, 1, _MOVE), action)


def release() -> None:
    """Let go of what graphs referred to that are gone."""
    library = _library()
    with _lock:
        gone = [found for found in _references if library.sem_trywait(found.semaphore) == 0]
        for reference in gone:
            _references.remove(reference)
            library.free(reference.semaphore)


def _same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(map(lambda left, right: left is right, first, second))


@functools.cache
def _library() -> ctypes.CDLL:
    """The C library."""
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    library.sem_init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
    library.sem_trywait.argtypes = [ctypes.c_void_p]
    return library
