"""Build an engine again from the graph inside its file, which need not load on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from tilewright.engine.builder import build
from tilewright.engine.engine import Engine, target_name
from tilewright.engine.file import read_source, read_targets
from tilewright.engine.graph_json import graph_from_json
from tilewright.errors import DeviceError, EngineDamagedError, EngineError, InvalidIRError, MissingDependencyError
from tilewright.graph.core import Graph
from tilewright.runtime.cuda.device import current_device

_log = logging.getLogger("tilewright")


def rebuild_engine(
    path: Path, reason: Exception, progress: Callable[[str, str, float], None] | None, target: str | None = None
) -> Engine:
    """The engine of a file, built anew for this machine because of `reason`: for `target`, else for its GPU and its CPU
    as far as the engine was for such, else for its CPU.

    Raises `EngineDamagedError` when the graph inside cannot be read.
    """
    graph, source = read_graph(path, f"{reason} It cannot be built again from its own graph either")
    targets = [target] if target is not None else _of_this_machine(targets_of(path))
    _log.warning("building the engine again, for %s: %s", ", ".join(targets), reason)
    return build(graph, targets, progress, source)


def targets_of(path: Path) -> list[str]:
    """What an engine was built for, as `build` takes it; none where the file does not tell."""
    try:
        return [target_name(target) for target in read_targets(path)]
    except (EngineError, KeyError, TypeError):
        return []


def _of_this_machine(targets: Sequence[str]) -> list[str]:
    """The kinds among these targets that this machine has, a GPU as it is here; the CPU if there is none."""
    found = []
    for name in targets:
        family, _, choices = name.partition("+")
        if family.startswith("cuda"):
            try:
                current_device()
            except (DeviceError, MissingDependencyError):
                continue
        kind = family.partition(":")[0]
        found.append(f"{kind}+{choices}" if choices else kind)
    return list(dict.fromkeys(found)) or ["cpu"]


def read_graph(path: Path, problem: str = "the engine cannot be built again from its own graph") -> tuple[Graph, str]:
    """The graph that an engine was built from, and where the model came from ("" when unknown).

    Raises `EngineDamagedError`, whose message begins with `problem` when the graph is malformed.
    """
    text, weights, source = read_source(path)
    try:
        return graph_from_json(text, weights), source
    except InvalidIRError as error:
        raise EngineDamagedError(f"{problem}: {error}") from error
