"""Loops of the graph, for rules that run a step several times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.dtypes import int1, int64
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.symbolic import Size

# (emitter of the body, iteration, carried values, captured values) -> (whether to go on, the next carried values and
# what the step adds to the results)
LoopStep = Callable[[Emitter, Value, "list[Value]", "list[Value]"], "tuple[Value | None, list[Value]]"]


def loop(
    emit: Emitter,
    step: LoopStep,
    carried: Sequence[Value],
    captured: Sequence[Value] = (),
    going: Value | None = None,
    trips: Size | None = None,
) -> list[Value]:
    """The carried values after the last step, of the types and shapes that they begin with.

    What a step of a loop of `trips` steps gives after these is put together, [trips, …], and follows them.
    `going` (boolean, without dimensions) tells whether the first step is taken, `trips` limits the number of steps; a
    body's values are those of its own graph.
    """
    body = GraphBuilder("body", emit.builder)
    inner = Emitter(body)
    inner.source = emit.source
    iteration = body.input("iteration", int64, ())
    before = body.input("going", int1, ())
    values = [body.input(f"carried_{place}", item.dtype, item.shape) for place, item in enumerate(carried)]
    outside = [body.input(f"captured_{place}", item.dtype, item.shape) for place, item in enumerate(captured)]
    after, found = step(inner, iteration, values, outside)
    body.output(inner.op("copy", before) if after is None else after, "going")
    for place, value in enumerate(found):
        body.output(inner.op("copy", value) if value in body.graph.inputs else value, f"next_{place}")
    types = [(item.dtype, item.shape) for item in carried]
    types += [(item.dtype, (trips, *item.shape)) for item in found[len(carried) :] if trips is not None]
    count = None if trips is None else emit.value(trips, int64)
    inputs = [count, going, *carried, *captured]
    made = emit.builder.node(
        "loop", inputs, source=emit.source, body=body.finish(), carried=len(carried), types=tuple(types)
    )
    return list(made.outputs)


def any_of(emit: Emitter, truth: Value) -> Value:
    """Whether any element is true: without dimensions."""
    return emit.op("reduce_max", truth, axes=tuple(range(truth.rank))) if truth.rank else truth
