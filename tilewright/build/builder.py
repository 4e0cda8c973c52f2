"""Building an engine: graph -> optimised -> fused -> kernels chosen and compiled -> plan -> engine.

engine = build(import_model("model.onnx"))
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.build.build_staged import build_staged, without_kernels
from tilewright.build.engine_builder import EngineBuilder, Order, Progress
from tilewright.build.tuning import Tuning
from tilewright.engine.engine import Engine
from tilewright.errors import TargetError, UnsupportedOperationError
from tilewright.graph.core import Graph
from tilewright.graph.partition import is_staged, partition
from tilewright.graph.pipeline import prepare_cut
from tilewright.precision import IEEE
from tilewright.targets.base import Target
from tilewright.targets.registry import get_targets, graph_passes


def build(
    graph: Graph,
    target: str | Target | Sequence[str | Target] = "auto",
    progress: Progress | None = None,
    source: str = "",
    tuning: Tuning | None = None,
    layers: bool = False,
    precision: str = IEEE,
) -> Engine:
    """Compile a graph into an engine; the graph is not changed.

    With `layers` everything that a kernel stores is an output, by the name of the value; fusion and kernels are those
    of the engine without.  The graph must then be of one part.

    With several targets the engine holds a program for each, and takes the first that fits the machine it runs on.
    `precision` ``tf32`` is for products and convolutions of float32 on GPUs.
    The last part of `source` is remembered as where the model came from, `tuning` says how kernels are chosen.  Raises
    `UnsupportedOperationError`, `ShapeError` when a dynamic size is not the size of any input, `TargetError` for an
    unknown target, and `MissingTimingError` in a reproducible build that would have to time kernels.
    """
    names = [target] if isinstance(target, str) or not isinstance(target, Sequence) else list(target)
    tuning = tuning or Tuning()
    targets = [_at_effort(target, tuning) for target in get_targets(names, precision)]
    if not targets:
        raise TargetError("an engine is built for at least one target")
    order = Order(targets, progress or (lambda stage, item, seconds: None), source, tuning, layers)
    cut = bool(graph.parts) or is_staged(graph)
    if cut and not graph.parts:
        graph = prepare_cut(graph, graph_passes(targets))
    try:
        return (
            build_staged(graph if graph.parts else partition(graph), order)
            if cut
            else EngineBuilder(graph, order).build()
        )
    except UnsupportedOperationError:
        missing = {} if graph.parts else without_kernels(graph, targets)
        if not missing:
            raise
    return build_staged(partition(graph, missing.__contains__), order, [missing[node] for node in missing])


def _at_effort(target: Target, tuning: Tuning) -> Target:
    """The target as kernels are compiled for it: for a CPU quickly, where that is asked for."""
    return target.quick_variant() if tuning.is_quick else target
