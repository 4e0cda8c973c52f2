"""Losses that PyTorch does not decompose."""

from __future__ import annotations

import math

from tilewright.dtypes import int64
from tilewright.graph.core import Value
from tilewright.importers import formulas
from tilewright.importers.emitter import Emitter
from tilewright.importers.loops import loop
from tilewright.importers.torch_fx import TorchCall
from tilewright.symbolic import Size, lift, simplify


def ctc_losses(
    call: TorchCall, log_probs: Value, targets: Value, given: Value, lengths: Value, longest: Size, blank: int
) -> Value:
    """`importers.torch_losses.ctc_losses`: minus the logarithm of the probability of each text, [N] (Graves et al.,
    2006).  Every call checks lengths and labels.

    `log_probs` [T, N, C]; `targets` [N, S], or the texts one after the other.  Forward variables of the labels with
    blanks around them go from step to step.
    """
    steps, batch, classes = log_probs.shape
    wide = call.wide(log_probs)
    rows = targets if targets.rank == 2 else _rows(call, targets, lengths, longest)
    inside = call.op("less", call.iota(rows.shape[1]), call.unsqueeze(lengths, 1))
    rows = call.op("where", inside, call.cast(rows, int64), blank)  # what follows the end of a text has no meaning
    for numbers, most, subject in (
        (given, steps, "each input length of a CTC loss is from 0 to the number of steps"),
        (lengths, rows.shape[1], "each target length of a CTC loss is from 0 to the width of its targets"),
        (rows, simplify(lift(classes) - 1), "each label of a CTC loss is from 0 to the number of classes - 1"),
    ):
        _require_range(call, numbers, most, subject)
    labels = _with_blanks(call, rows, blank)  # [N, 2 S + 1]
    count = labels.shape[1]
    line = call.iota(count)
    last = call.op("multiply", call.unsqueeze(lengths, 1), 2)
    odd = call.op("equal", call.op("remainder", line, 2), 1)
    before = call.op("gather", labels, call.op("maximum", call.op("subtract", line, 2), 0), axis=1)
    skips = call.op(
        "logical_and", call.op("not_equal", labels, before), call.op("logical_and", odd, call.op("greater", line, 1))
    )
    never = call.builder.number(-math.inf, wide.dtype)
    first = call.op("gather_elements", call.select(wide, 0, 0), labels, axis=1)
    begins = call.op("logical_and", call.op("less", line, 2), call.op("less_equal", line, last))
    forward = call.op("where", begins, first, never)

    def step(inner: Emitter, number: Value, carried: list[Value], fixed: list[Value]) -> tuple[None, list[Value]]:
        """One step further; texts whose inputs have ended keep theirs."""
        every, known, over, ends = fixed
        (old,) = carried
        time = inner.op("add", number, 1)
        moved = [_shifted(inner, old, places) for places in (1, 2)]
        moved[1] = inner.op("where", over, moved[1], inner.builder.number(-math.inf, old.dtype))
        terms = inner.op("concat", *(inner.unsqueeze(item, 2) for item in (old, *moved)), axis=2)
        total = inner.reshape(formulas.logsumexp(inner, terms, (2,)), old.shape)
        own = inner.op("gather_elements", inner.op("gather", every, time, axis=0), known, axis=1)
        found = inner.op("add", total, own)
        return None, [inner.op("where", inner.op("less", time, inner.unsqueeze(ends, 1)), found, old)]

    trips = simplify(lift(steps) - 1)
    (forward,) = loop(call, step, [forward], [wide, labels, skips, given], trips=trips)
    ends = [
        call.op("gather_elements", forward, place, axis=1)
        for place in (last, call.op("maximum", call.op("subtract", last, 1), 0))
    ]
    ends[1] = call.op("where", call.op("equal", last, 0), never, ends[1])
    total = formulas.logsumexp(call, call.op("concat", *ends, axis=1), (1,))
    silent = call.op("equal", call.unsqueeze(given, 1), 0)  # no step at all: only the empty text has a probability
    empty = call.op("where", call.op("equal", last, 0), call.builder.number(0.0, wide.dtype), never)
    total = call.op("where", silent, empty, total)
    return call.cast(call.reshape(call.op("negate", total), (batch,)), log_probs.dtype)


def _require_range(call: TorchCall, numbers: Value, most: Size, subject: str) -> None:
    """A condition of every call: all numbers are from 0 to `most`."""
    if 0 in numbers.shape:
        return
    fits = call.op("logical_and", call.op("greater_equal", numbers, 0),
                   call.op("less_equal", numbers, call.value(most, int64)))  # fmt: skip
    call.op("condition", call.op("reduce_min", fits, axes=tuple(range(fits.rank)), keepdims=False), what=subject)


def _rows(call: TorchCall, targets: Value, lengths: Value, longest: Size) -> Value:
    """Texts that stand one after the other as rows [N, S], filled up with what follows them."""
    total = call.op("reduce_sum", lengths, axes=(0,), keepdims=False)
    _require_range(call, total, targets.shape[0], "the target lengths of a CTC loss are those of its targets")
    ends = call.op("cumsum", lengths, axis=0)
    begins = call.op("subtract", ends, lengths)
    places = call.op("add", call.unsqueeze(begins, 1), call.unsqueeze(call.iota(longest), 0))
    last = call.value(simplify(lift(targets.shape[0]) - 1), int64)
    return call.op("gather", targets, call.op("minimum", places, last), axis=0)


def _with_blanks(call: TorchCall, rows: Value, blank: int) -> Value:
    """[N, S] as [N, 2 S + 1], with blanks before, between and after."""
    batch, length = rows.shape
    pairs = call.op("concat", call.full((batch, length, 1), blank, int64), call.unsqueeze(rows, 2), axis=2)
    flat = call.reshape(pairs, (batch, simplify(lift(length) * 2)))
    return call.op("concat", flat, call.full((batch, 1), blank, int64), axis=1)


def _shifted(emit: Emitter, x: Value, places: int) -> Value:
    """Rows [N, M] moved to the right, filled up with minus infinity."""
    line = emit.iota(x.shape[1])
    source = emit.op("maximum", emit.op("subtract", line, places), 0)
    moved = emit.op("gather", x, source, axis=1)
    return emit.op("where", emit.op("less", line, places), emit.builder.number(-math.inf, x.dtype), moved)
