"""Build an engine again from the graph inside its file, which need not load on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.engine.engine import Engine, target_name
from tilewright.engine.file import RebuildSource, read_source, read_targets
from tilewright.engine.graph_json import graph_from_json
from tilewright.engine.trust import Trust
from tilewright.errors import (
    DeviceError,
    EngineDamagedError,
    EngineError,
    InvalidIRError,
    MissingDependencyError,
    TargetError,
    TilewrightError,
)
from tilewright.graph.core import Graph
from tilewright.precision import IEEE, TF32
from tilewright.targets.base import Target
from tilewright.targets.registry import get_target

_log = logging.getLogger("tilewright")
_PROBLEM = "the engine cannot be built again from its own graph"


def rebuild_engine(
    path: Path, reason: Exception | None, target: str | None = None, trust: Trust | None = None
) -> Engine:
    """The engine of a file, built anew for this machine: for `target`, else for its GPU and its CPU as far as the
    engine was for such, else for its CPU.  `reason` says why the engine in the file is not used, if it was looked at.

    Raises `EngineDamagedError` when the graph inside cannot be read or built, and `EngineUntrustedError` when the file
    is not what `trust` asks for.
    """
    problem = f"{reason} It cannot be built again from its own graph either" if reason is not None else _PROBLEM
    source = read_source(path, trust)
    graph = _graph(source, problem)
    wanted = [(target, IEEE)] if target is not None else _of_this_machine(_names(source.targets))
    if reason is not None:
        _log.warning("building the engine again, for %s: %s", ", ".join(_text(*each) for each in wanted), reason)
    targets = [get_target(*each) for each in wanted]
    return build_graph(graph, targets, None, source.origin, problem=f"{path}: {problem}")


def build_graph(
    graph: Graph, targets: Sequence[str | Target], progress: Callable[[str, str, float], None] | None, origin: str,
    tuning: Tuning | None = None, problem: str = _PROBLEM, precision: str = IEEE,
) -> Engine:  # fmt: skip
    """Build a graph that came from a file, so that it may be one that no importer would make.

    Raises as `build` does, and `EngineDamagedError` where the compiler meets what no importer makes.
    """
    try:
        return build(graph, targets, progress, origin, tuning, precision=precision)
    except (TilewrightError, OSError):
        raise
    except Exception as error:
        raise EngineDamagedError(
            f"{problem}: the compiler stopped at it ({type(error).__name__}: {str(error)[:300]}). Build the engine "
            "from its model again."
        ) from error


def targets_of(path: Path) -> list[tuple[str, str]]:
    """The targets and precisions that an engine was built for; none where the file does not tell."""
    try:
        return _names(read_targets(path))
    except EngineError:
        return []


def _names(targets: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The names of targets with their precisions; none where one of them is malformed."""
    try:
        return [(target_name(target), TF32 if target.get("tf32") else IEEE) for target in targets]
    except (AttributeError, KeyError, TypeError):
        return []


def _text(name: str, precision: str) -> str:
    return name if precision == IEEE else f"{name} in {precision}"


def _of_this_machine(targets: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The kinds among these targets that this machine has, a GPU as it is here; the CPU if there is none."""
    found = []
    for name, precision in targets:
        kind = name.partition(":")[0]
        try:
            get_target(kind)
        except (DeviceError, MissingDependencyError, TargetError):  # not here; or a name of the file that is none
            continue
        found.append((kind, precision))
    return list(dict.fromkeys(found)) or [("cpu", IEEE)]


def read_graph(path: Path) -> tuple[Graph, str]:
    """The graph that an engine was built from, and where the model came from ("" when unknown).

    Raises `EngineDamagedError` when the graph is malformed.
    """
    source = read_source(path)
    return _graph(source, f"{path}: {_PROBLEM}"), source.origin


def _graph(source: RebuildSource, problem: str) -> Graph:
    try:
        return graph_from_json(source.graph, source.weights)
    except InvalidIRError as error:
        raise EngineDamagedError(f"{problem}: {error}") from error
