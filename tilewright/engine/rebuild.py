"""Build an engine again from the graph inside its file, which need not load on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tilewright.engine.builder import build
from tilewright.engine.engine import Engine
from tilewright.engine.file import read_source
from tilewright.engine.graph_json import graph_from_json
from tilewright.errors import EngineDamagedError, InvalidIRError
from tilewright.graph.core import Graph

_log = logging.getLogger("tilewright")


def rebuild_engine(path: Path, reason: Exception, progress: Callable[[str, str, float], None] | None) -> Engine:
    """The engine of a file, built anew for this machine because of `reason`.

    Raises `EngineDamagedError` when the graph inside cannot be read.
    """
    _log.warning("building the engine again: %s", reason)
    graph, source = read_graph(path, f"{reason} It cannot be built again from its own graph either")
    return build(graph, progress=progress, source=source)


def read_graph(path: Path, problem: str = "the engine cannot be built again from its own graph") -> tuple[Graph, str]:
    """The graph that an engine was built from, and where the model came from ("" when unknown).

    Raises `EngineDamagedError`, whose message begins with `problem` when the graph is malformed.
    """
    text, weights, source = read_source(path)
    try:
        return graph_from_json(text, weights), source
    except InvalidIRError as error:
        raise EngineDamagedError(f"{problem}: {error}") from error
