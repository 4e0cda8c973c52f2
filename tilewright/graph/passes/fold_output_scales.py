"""The scale by which results of integer products are quantized again goes into the scales and biases in front of it.

    max(sums s + b + (x - z) t, 0) c  ->  max(sums (s c) + b c + (x - z) (t c), 0)      for constants s, b, t, c; c > 0

Sums are int32 and x integers of few bits, whose steps are far larger than what float32 rounds.  Constants are
multiplied in float64 and rounded once.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter, apply_rules

_LONGEST = 6  # nodes one after the other


def fold_output_scales(graph: Graph) -> Graph:
    """The graph without factors after epilogues of integer products."""
    return apply_rules(graph, {"multiply": [_folded]})


def _folded(node: Node, rewriter: GraphRewriter) -> Value | None:
    value, factor = node.inputs
    number = rewriter.uniform(factor)
    if value is None or number is None or not 0 < number < float("inf") or node.output.dtype != float32:
        return None
    if value.shape != node.output.shape:  # the factor repeats it
        return None
    made = rewriter.producer(value)
    if made is None or made.op not in ("add", "relu") or not _is_of_sums(value, rewriter, _LONGEST):
        return None
    return _times(value, float(number), rewriter) if _takes(value, rewriter, _LONGEST) else None


def _is_of_sums(value: Value | None, rewriter: GraphRewriter, depth: int) -> bool:
    """Whether a float is computed of the sums of a product of integers, by additions and factors alone."""
    made = rewriter.producer(value)
    if made is None or depth == 0:
        return False
    if made.op == "cast":
        sums = made.inputs[0]
        sums = _shifted(sums, rewriter)
        source = rewriter.producer(sums, "matmul", "conv")
        return source is not None and source.attributes["dtype"] is not None and not source.output.dtype.is_float
    return made.op in ("add", "relu", "multiply") and any(
        _is_of_sums(item, rewriter, depth - 1) for item in made.inputs
    )


def _shifted(sums: Value | None, rewriter: GraphRewriter) -> Value | None:
    """Sums without what is subtracted of them for zero points."""
    less = rewriter.producer(sums, "subtract")
    return sums if less is None else less.inputs[0]


def _takes(value: Value | None, rewriter: GraphRewriter, depth: int) -> bool:
    """Whether a factor goes into constants of all that is added, and nobody else reads what changes."""
    if value is None or depth == 0 or value.dtype != float32:
        return False
    if rewriter.constant(value) is not None:
        return True
    made = rewriter.producer(value)
    if made is None or rewriter.uses(value) > 1:
        return False
    if made.op == "relu":
        return _takes(made.inputs[0], rewriter, depth - 1)
    if made.op == "add":
        return all(_takes(item, rewriter, depth - 1) for item in made.inputs)
    return made.op == "multiply" and any(rewriter.constant(item) is not None for item in made.inputs)


def _times(value: Value, factor: float, rewriter: GraphRewriter) -> Value:
    """A value that takes a factor, times that."""
    data = rewriter.constant(value)
    if data is not None:
        return rewriter.new_constant((data.astype(np.float64) * factor).astype(np.float32), value.name)
    made = rewriter.producer(value)
    assert made is not None
    inputs = [item for item in made.inputs if item is not None]
    if made.op == "multiply":
        place = next(place for place, item in enumerate(inputs) if rewriter.constant(item) is not None)
        inputs[place] = _times(inputs[place], factor, rewriter)
    else:
        inputs = [_times(item, factor, rewriter) for item in inputs]
    return rewriter.op(made.op, inputs)
