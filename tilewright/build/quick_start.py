"""Quick starts: an engine that is usable soon and is replaced by the full build when that is ready.

    engine = build_quickly_first(graph, "cpu")     # effort 0
    engine.run(inputs)                             # slower
    engine.wait_for_full_build()                   # for who wants to wait
    engine.run(inputs)                             # the same object, full speed

The full build runs in a thread at low priority, which forks processes that compile (`build.precompile`).  It ends with
the engine, and with the interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.build.builder import build
from tilewright.build.engine_builder import Progress
from tilewright.build.tuning import Tuning
from tilewright.engine.engine import Engine
from tilewright.errors import SettingsError
from tilewright.graph.core import Graph
from tilewright.precision import IEEE
from tilewright.targets.base import Target
from tilewright.targets.registry import get_targets

logger = logging.getLogger("tilewright")

_LOW_PRIORITY = 10  # of Unix: runs of the quick engine come first
_LONGEST_KERNEL = 30.0  # seconds that the end of the interpreter waits for a kernel that is being compiled


def build_quickly_first(
    graph: Graph, target: str | Target | Sequence[str | Target] = "auto", progress: Progress | None = None,
    source: str = "", tuning: Tuning | None = None, precision: str = IEEE,
) -> Engine:  # fmt: skip
    """The engine of effort 0, which takes the machine code of the full build when a thread has finished that.

    Arguments and errors are those of `build`, `progress` is told of the quick build alone.  What the full build raises
    is logged, and raised by `Engine.wait_for_full_build`; the engine stays as it is then.  The constants are copied
    first: the caller may change a module's weights or a file while the thread builds.  Raises `SettingsError` besides,
    for targets that are no CPUs and for effort 0.
    """
    tuning = tuning or Tuning()
    check_quick_start(target, tuning, precision)
    graph = _with_own_constants(graph)
    engine = build(graph, target, progress, source, dataclasses.replace(tuning, effort=0), precision=precision)
    full = dataclasses.replace(tuning, quick=False)
    _FullBuild(engine, lambda progress: build(graph, target, progress, source, full, precision=precision)).start()
    return engine


def check_quick_start(target: str | Target | Sequence[str | Target], tuning: Tuning, precision: str = IEEE) -> None:
    """Raise `SettingsError` where a quick start makes no sense, and `TargetError` for an unknown target."""
    targets = [target] if isinstance(target, str) or not isinstance(target, Sequence) else list(target)
    for each in get_targets(targets, precision):
        if not each.compiles_quickly:
            raise SettingsError(
                f"quick_start for the target {each.name}: only kernels for CPUs are compiled twice, since a full build "
                "for a GPU times kernels on it while the engine runs there; leave quick_start out"
            )
    if tuning.is_quick:
        raise SettingsError("quick_start with effort 0: that build is the quick one; leave one of the two out")


def _with_own_constants(graph: Graph) -> Graph:
    """The graph, and graphs inside it, with copies of the constants that views of other memory are."""
    nodes = []
    for node in graph.nodes:
        inside = {key: _with_own_constants(item) for key, item in node.attributes.items() if isinstance(item, Graph)}
        nodes.append(dataclasses.replace(node, attributes={**node.attributes, **inside}) if inside else node)
    constants = {value: array if _is_fixed(array) else array.copy() for value, array in graph.constants.items()}
    return dataclasses.replace(graph, nodes=nodes, constants=constants)


def _is_fixed(array: np.ndarray) -> bool:
    """Whether nobody can change the array: one of Python's `bytes` holds it."""
    base: Any = array
    while isinstance(base, np.ndarray) and type(base) is not np.memmap:
        base = base.base
    return type(base) is bytes


class _Stopped(Exception):
    """Nobody waits for the build any more."""


class _FullBuild:
    """The full build of an engine, in a thread."""

    def __init__(self, engine: Engine, build_full: Callable[[Progress], Engine]) -> None:
        self._engine = weakref.ref(engine)
        self._build = build_full
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tilewright-full-build", daemon=True)
        engine.becomes(self.wait)

    def start(self) -> None:
        """Begin; the interpreter does not wait for the thread, but for what it is at."""
        atexit.register(self.stop)
        self._thread.start()

    def stop(self) -> None:
        """End the build at the next kernel."""
        self._stop.set()
        self._thread.join(_LONGEST_KERNEL)

    def wait(self, seconds: float | None) -> bool:
        """Whether the build has ended within so many seconds; raises what it raised."""
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def _run(self) -> None:
        _lower_priority()
        try:
            full = self._build(self._check_stopped)
            engine = self._engine()
            if engine is not None:
                engine.become(full)
                logger.info("%s: the full build has replaced the quick one", engine.name)
        except _Stopped:
            pass
        except Exception as error:
            self._error = error
            logger.warning(
                "the full build of an engine failed in the background, and the quick one stays in use: %s",
                str(error) or type(error).__name__,
            )
        finally:
            del self._build  # which has the graph with all its weights
            atexit.unregister(self.stop)

    def _check_stopped(self, stage: str, item: str, seconds: float) -> None:
        if self._stop.is_set() or self._engine() is None:
            raise _Stopped


def _lower_priority() -> None:
    """Let other threads go first; processes that are forked from this thread inherit it."""
    if sys.platform == "linux":  # elsewhere priorities are of processes as a whole
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
