"""Keeps a child of `os.fork` working: its locks must be free, because the threads that held them do not exist in it."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_fork_guards: list[Any] = []  # LLVM's lock, while the process forks


def lock() -> threading.RLock:
    """A re-entrant lock which is free in a forked child, unless the thread that forked holds it.

    What it guards must be whole, or be made anew, wherever its holder may be when another thread forks.
    """
    made = threading.RLock()
    _locks.add(made)
    return made


if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property(functools.cached_property):
        """That of Python, which before 3.12 locks all objects of a class."""

        def __init__(self, make: Any) -> None:
            super().__init__(make)
            if hasattr(self, "lock"):
                self.lock = lock()


def _before() -> None:
    """Wait for the call of LLVM that another thread is in: LLVM's own locks would stay held in the child."""
    binding = sys.modules.get("llvmlite.binding.ffi")
    guard = getattr(getattr(binding, "lib", None), "_lock", None)
    if guard is not None:
        guard.__enter__()
        _fork_guards.append(guard)


def _after() -> None:
    if _fork_guards:
        _fork_guards.pop().__exit__(None, None, None)


def _after_in_child() -> None:
    _after()
    for item in list(_locks):
        if item.acquire(blocking=False):  # free, or held by this thread
            item.release()
        else:
            item._at_fork_reinit()  # as the standard library does with its own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
