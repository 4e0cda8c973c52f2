"""Build an engine again, for this machine, from the graph inside a file that does not load."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tilewright.engine.builder import build
from tilewright.engine.engine import Engine
from tilewright.engine.graph_json import graph_from_json
from tilewright.engine.weights import Weights
from tilewright.errors import EngineDamagedError, InvalidIRError

_log = logging.getLogger("tilewright")


def rebuild_engine(
    graph: bytes, weights: Weights, reason: Exception, progress: Callable[[str, str, float], None] | None
) -> Engine:
    """The engine that `graph` and `weights` describe, built anew because of `reason`.

    Raises `EngineDamagedError` when the graph cannot be read.
    """
    _log.warning("building the engine again: %s", reason)
    try:
        source = graph_from_json(graph, weights)
    except InvalidIRError as error:
        raise EngineDamagedError(f"{reason} It cannot be built again from its own graph either: {error}") from error
    return build(source, progress=progress)
