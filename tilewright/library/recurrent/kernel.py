"""The steps of a recurrent layer in one launch: a program walks the sequence of one row of the batch."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.functions import maximum, minimum, sigmoid


@tilewright.jit
def activation(x, NAME: tl.constexpr):
    """A gate's function by its name."""
    if NAME == "sigmoid":
        result = sigmoid(x)
    elif NAME == "tanh":
        result = tl.math.tanh(x)
    else:
        result = maximum(x, 0.0)
    return result


@tilewright.jit
def rnn_step(x, old, new, weight, bias, hidden: tl.constexpr, F: tl.constexpr, G: tl.constexpr, H: tl.constexpr,
             BIAS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """h = f(x + h W)."""
    for start in range(0, hidden, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < hidden
        total = tl.load(x + column, mask=mask, other=0).to(tl.float32)
        for k in range(0, hidden):
            state = tl.load(old + k).to(tl.float32)
            total += state * tl.load(weight + k * hidden + column, mask=mask, other=0).to(tl.float32)
        tl.store(new + column, activation(total, F).to(new.dtype.element_ty), mask=mask)


@tilewright.jit
def lstm_step(x, old, new, weight, bias, hidden: tl.constexpr, F: tl.constexpr, G: tl.constexpr, H: tl.constexpr,
              BIAS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Gates i, o, f, g; c = f c + i g; h = o tanh(c).  A bias holds what i, o and f add of c (`lstm_peephole`)."""
    wide: tl.constexpr = 4 * hidden
    for start in range(0, hidden, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < hidden
        into = tl.load(x + column, mask=mask, other=0).to(tl.float32)
        out = tl.load(x + hidden + column, mask=mask, other=0).to(tl.float32)
        forget = tl.load(x + 2 * hidden + column, mask=mask, other=0).to(tl.float32)
        fresh = tl.load(x + 3 * hidden + column, mask=mask, other=0).to(tl.float32)
        for k in range(0, hidden):
            state = tl.load(old + k).to(tl.float32)
            row = weight + k * wide + column
            into += state * tl.load(row, mask=mask, other=0).to(tl.float32)
            out += state * tl.load(row + hidden, mask=mask, other=0).to(tl.float32)
            forget += state * tl.load(row + 2 * hidden, mask=mask, other=0).to(tl.float32)
            fresh += state * tl.load(row + 3 * hidden, mask=mask, other=0).to(tl.float32)
        memory = tl.load(old + hidden + column, mask=mask, other=0).to(tl.float32)
        if BIAS:
            into += tl.load(bias + column, mask=mask, other=0).to(tl.float32) * memory
            forget += tl.load(bias + 2 * hidden + column, mask=mask, other=0).to(tl.float32) * memory
        memory = activation(forget, F) * memory + activation(into, F) * activation(fresh, G)
        if BIAS:
            out += tl.load(bias + hidden + column, mask=mask, other=0).to(tl.float32) * memory
        result = activation(out, F) * activation(memory, H)
        tl.store(new + column, result.to(new.dtype.element_ty), mask=mask)
        tl.store(new + hidden + column, memory.to(new.dtype.element_ty), mask=mask)


@tilewright.jit
def gate_bias(bias, column, mask, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """A part of the bias, or zeros."""
    if BIAS:
        result = tl.load(bias + column, mask=mask, other=0).to(tl.float32)
    else:
        result = tl.zeros((BLOCK,), tl.float32)
    return result


@tilewright.jit
def gru_step(x, old, new, weight, bias, hidden: tl.constexpr, F: tl.constexpr, G: tl.constexpr, H: tl.constexpr,
             BIAS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Gates z, r, n; the reset gate multiplies the state's product."""
    wide: tl.constexpr = 3 * hidden
    for start in range(0, hidden, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < hidden
        update = gate_bias(bias, column, mask, BIAS, BLOCK)
        reset = gate_bias(bias, hidden + column, mask, BIAS, BLOCK)
        fresh = gate_bias(bias, 2 * hidden + column, mask, BIAS, BLOCK)
        for k in range(0, hidden):
            state = tl.load(old + k).to(tl.float32)
            row = weight + k * wide + column
            update += state * tl.load(row, mask=mask, other=0).to(tl.float32)
            reset += state * tl.load(row + hidden, mask=mask, other=0).to(tl.float32)
            fresh += state * tl.load(row + 2 * hidden, mask=mask, other=0).to(tl.float32)
        update = activation(update + tl.load(x + column, mask=mask, other=0).to(tl.float32), F)
        reset = activation(reset + tl.load(x + hidden + column, mask=mask, other=0).to(tl.float32), F)
        fresh = activation(reset * fresh + tl.load(x + 2 * hidden + column, mask=mask, other=0).to(tl.float32), G)
        state = tl.load(old + column, mask=mask, other=0).to(tl.float32)
        tl.store(new + column, (fresh + update * (state - fresh)).to(new.dtype.element_ty), mask=mask)


@tilewright.jit
def gru_first_step(x, old, new, weight, bias, hidden: tl.constexpr, F: tl.constexpr, G: tl.constexpr, H: tl.constexpr,
                   BIAS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Gates z, r, n; the reset gate multiplies the state, so that all of it must be known before the last product."""
    wide: tl.constexpr = 3 * hidden
    for start in range(0, hidden, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < hidden
        update = gate_bias(bias, column, mask, BIAS, BLOCK) + tl.load(x + column, mask=mask, other=0).to(tl.float32)
        reset = gate_bias(bias, hidden + column, mask, BIAS, BLOCK)
        reset += tl.load(x + hidden + column, mask=mask, other=0).to(tl.float32)
        for k in range(0, hidden):
            state = tl.load(old + k).to(tl.float32)
            row = weight + k * wide + column
            update += state * tl.load(row, mask=mask, other=0).to(tl.float32)
            reset += state * tl.load(row + hidden, mask=mask, other=0).to(tl.float32)
        state = tl.load(old + column, mask=mask, other=0).to(tl.float32)
        tl.store(new + hidden + column, (activation(reset, F) * state).to(new.dtype.element_ty), mask=mask)
        tl.store(new + 2 * hidden + column, activation(update, F).to(new.dtype.element_ty), mask=mask)
    tl.debug_barrier()
    for start in range(0, hidden, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < hidden
        fresh = gate_bias(bias, 2 * hidden + column, mask, BIAS, BLOCK)
        fresh += tl.load(x + 2 * hidden + column, mask=mask, other=0).to(tl.float32)
        for k in range(0, hidden):
            state = tl.load(new + hidden + k).to(tl.float32)
            fresh += state * tl.load(weight + k * wide + 2 * hidden + column, mask=mask, other=0).to(tl.float32)
        fresh = activation(fresh, G)
        update = tl.load(new + 2 * hidden + column, mask=mask, other=0).to(tl.float32)
        state = tl.load(old + column, mask=mask, other=0).to(tl.float32)
        tl.store(new + column, (fresh + update * (state - fresh)).to(new.dtype.element_ty), mask=mask)


@tilewright.jit
def copy_row(source, target, count: tl.constexpr, BLOCK: tl.constexpr):
    """`count` elements from one place to another."""
    for start in range(0, count, BLOCK):
        column = start + tl.arange(0, BLOCK)
        tl.store(target + column, tl.load(source + column, mask=column < count, other=0), mask=column < count)


@tilewright.jit
def recurrent(
    x, weight, initial, bias, lengths, out, steps, directions, batch, hidden: tl.constexpr,
    GATES: tl.constexpr, SLOTS: tl.constexpr, STEP: tl.constexpr, REVERSE: tl.constexpr, F: tl.constexpr,
    G: tl.constexpr, H: tl.constexpr, BIAS: tl.constexpr, LENGTHS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The graph op `recurrent` (see graph.recurrent).  Grid: (batch, directions).

    Bit d of `REVERSE` says that direction d begins with the last step.  States are read from the rows of `out` that the
    step before has written.
    """
    direction = tl.program_id(1).to(tl.int64)
    row = direction * batch + tl.program_id(0)
    rows = directions * batch
    backwards = (REVERSE >> direction) & 1
    wide: tl.constexpr = GATES * hidden
    width: tl.constexpr = SLOTS * hidden
    copy_row(initial + row * width, out + (backwards * steps * rows + row) * width, width, BLOCK)
    tl.debug_barrier()
    length = steps
    if LENGTHS:
        length = tl.load(lengths + tl.program_id(0))
    for step in range(0, steps):
        place = step + backwards * (steps - 1 - 2 * step)
        old = out + ((place + backwards) * rows + row) * width
        new = out + ((place + 1 - backwards) * rows + row) * width
        source = x + (place * rows + row) * wide
        if place < length:
            STEP(source, old, new, weight + direction * (hidden * wide), bias + direction * wide, hidden, F, G, H,
                 BIAS, BLOCK)  # fmt: skip
        else:
            copy_row(old, new, width, BLOCK)
        tl.debug_barrier()


@tilewright.jit
def recurrent_8bit(
    x, weight, initial, bias, lengths, out, steps, directions, batch, hidden: tl.constexpr,
    GATES: tl.constexpr, SLOTS: tl.constexpr, STEP: tl.constexpr, REVERSE: tl.constexpr, F: tl.constexpr,
    G: tl.constexpr, H: tl.constexpr, BIAS: tl.constexpr, LENGTHS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As `recurrent`, of the cell lstm_8bit, whose rows share the range of a step.  Grid: (1, directions)."""
    direction = tl.program_id(1).to(tl.int64)
    first, rows = direction * batch, directions * batch
    backwards = (REVERSE >> direction) & 1
    wide: tl.constexpr = GATES * hidden
    width: tl.constexpr = SLOTS * hidden
    weight += direction * (hidden * wide)
    for row in range(0, batch):
        begin = out + (backwards * steps * rows + first + row) * width
        copy_row(initial + (first + row) * width, begin, width, BLOCK)
    tl.debug_barrier()
    for step in range(0, steps):
        place = step + backwards * (steps - 1 - 2 * step)
        old = out + ((place + backwards) * rows + first) * width
        new = out + ((place + 1 - backwards) * rows + first) * width
        low, high = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for row in range(0, batch):
            source, before, after = x + (place * rows + first + row) * wide, old + row * width, new + row * width
            if place < length_of(lengths, row, steps, LENGTHS):
                STEP(source, before, after, weight, bias + direction * wide, hidden, F, G, H, BIAS, BLOCK)
                tl.debug_barrier()
                for start in range(0, hidden, BLOCK):
                    column = start + tl.arange(0, BLOCK)
                    state = tl.load(after + column, mask=column < hidden, other=0).to(tl.float32)
                    low, high = minimum(low, state), maximum(high, state)
            else:
                copy_row(before, after, width, BLOCK)
        least, most = tl.min(low, axis=0), tl.max(high, axis=0)
        for row in range(0, batch):
            if place < length_of(lengths, row, steps, LENGTHS):
                put_in_steps(new + row * width, least, most, hidden, BLOCK)
        tl.debug_barrier()


@tilewright.jit
def length_of(lengths, row, steps, LENGTHS: tl.constexpr):
    """The number of steps of a row."""
    length = steps
    if LENGTHS:
        length = tl.load(lengths + row)
    return length


@tilewright.jit
def put_in_steps(state, least, most, hidden: tl.constexpr, BLOCK: tl.constexpr):
    """Slot 0 of a row in 256 steps from `least` to `most`; what it was goes to slot 2."""
    width = (most - least) / 255.0
    size = tl.where(width == 0.0, 1.0, width)
    zero = tl.math.rint(-least / size)
    for start in range(0, hidden, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < hidden
        exact = tl.load(state + column, mask=mask, other=0)
        tl.store(state + 2 * hidden + column, exact, mask=mask)
        level = minimum(maximum(tl.math.rint(exact.to(tl.float32) / size) + zero, 0.0), 255.0)
        tl.store(state + column, ((level - zero) * size).to(state.dtype.element_ty), mask=mask)
