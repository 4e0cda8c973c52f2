"""The graph pipeline, read aloud: each line is a pass and the reason for its place."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.core import Graph
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.common_subexpressions import share_common_subexpressions
from tilewright.graph.passes.dead_code import eliminate_dead_code
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.verifier import verify
from tilewright.settings import settings

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (
    eliminate_dead_code,  # importers may leave unused branches; nobody should look at them
    canonicalize,  # one way to write each thing, before anything is matched
    fold_constants,  # shape arithmetic and transposed weights become data
    share_common_subexpressions,  # masks and position tables are built once for all layers
    canonicalize,  # folding and sharing uncover identities
)


def optimize(graph: Graph) -> Graph:
    """The graph in the form that fusion and the kernels want; the given graph is not changed.

    Verified after every pass under ``TILEWRIGHT_VERIFY=1``.
    """
    for transform in PASSES:
        graph = transform(graph)
        if settings.verify:
            verify(graph)
    return graph
