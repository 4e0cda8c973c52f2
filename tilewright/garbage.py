"""Holds Python's collector of cycles back where many objects are made and few become garbage."""

from __future__ import annotations

import gc
import os

from tilewright import forks


class _CollectorPaused:
    """Python's collector waits while any thread is inside, and afterwards is as it was before the first."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._inside, self._collecting = 0, False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin_again)

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._collecting = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside = max(0, self._inside - 1)  # 0 in a child process that was made inside
            self._resume()

    def _begin_again(self) -> None:
        """In a child process, which has none of the threads that were inside but the one that forked."""
        if self._inside:
            self._inside = 0
            self._resume()

    def _resume(self) -> None:
        if self._inside == 0 and self._collecting:
            gc.enable()


collector_paused = _CollectorPaused()
