"""The steps of a recurrent layer in one launch on CPUs: a program walks the sequence of a block of rows of the batch.

The state's product of a step is a matrix product of the block, whose weights are read once for all of its rows.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.kernels.matmul import load_panels
from tilewright.kernels.recurrent import activation


@tilewright.jit
def gates_of(x, sums, row, unit, mask, hidden: tl.constexpr, GATES: tl.constexpr, WIDTH: tl.constexpr):
    """What the input and the state add to each gate of a block of units."""
    lane = tl.arange(0, WIDTH)[None, :]
    found = ()
    for gate in tl.static_range(GATES):
        own = tl.load(x + row * (GATES * hidden) + gate * hidden + unit, mask=mask, other=0.0)
        state = tl.load(sums + row * (GATES * WIDTH) + gate * WIDTH + lane, mask=mask, other=0.0)
        found = found + ((own, state),)
    return found


@tilewright.jit
def update_units(x, sums, bias, old, new, row, unit, mask, running, hidden: tl.constexpr, CELL: tl.constexpr,
                 GATES: tl.constexpr, SLOTS: tl.constexpr, F: tl.constexpr, G: tl.constexpr, H: tl.constexpr,
                 BIAS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """The new states of a block of units; rows that are not `running` (None: all are) keep the old ones."""
    parts = gates_of(x, sums, row, unit, mask, hidden, GATES, WIDTH)
    place = row * (SLOTS * hidden) + unit
    if CELL == "rnn":
        state = activation(parts[0][0] + parts[0][1], F)
    elif CELL == "lstm":
        kept = tl.load(old + place + hidden, mask=mask, other=0.0)
        memory = activation(parts[2][0] + parts[2][1], F) * kept
        memory += activation(parts[0][0] + parts[0][1], F) * activation(parts[3][0] + parts[3][1], G)
        state = activation(parts[1][0] + parts[1][1], F) * activation(memory, H)
        if running is not None:
            memory = tl.where(running, memory, kept)
        tl.store(new + place + hidden, memory, mask=mask)
    else:
        added = (0.0, 0.0, 0.0)
        if BIAS:
            inside = unit < hidden
            added = (tl.load(bias + unit, mask=inside, other=0.0),
                     tl.load(bias + hidden + unit, mask=inside, other=0.0),
                     tl.load(bias + 2 * hidden + unit, mask=inside, other=0.0))  # fmt: skip
        before = tl.load(old + place, mask=mask, other=0.0)
        update = activation(parts[0][0] + (parts[0][1] + added[0]), F)
        reset = activation(parts[1][0] + (parts[1][1] + added[1]), F)
        fresh = activation(parts[2][0] + reset * (parts[2][1] + added[2]), G)
        state = fresh + update * (before - fresh)
    if running is not None:
        state = tl.where(running, state, tl.load(old + place, mask=mask, other=0.0))
    tl.store(new + place, state, mask=mask)


@tilewright.jit
def recurrent_rows(
    x, weight, initial, bias, lengths, out, sums, steps, directions, batch, hidden: tl.constexpr, CELL: tl.constexpr,
    GATES: tl.constexpr, SLOTS: tl.constexpr, REVERSE: tl.constexpr, F: tl.constexpr, G: tl.constexpr, H: tl.constexpr,
    BIAS: tl.constexpr, LENGTHS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """The graph op `recurrent` (see graph.recurrent) of the cells rnn, lstm and gru.  Grid: (blocks of rows,
    directions).

    `weight` is [directions][hidden / WIDTH][GATES][hidden][WIDTH] (`kernels.packing`, recipe `gates`).  `sums` has
    BLOCK_B x GATES x WIDTH elements for each program.
    """
    direction = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK_B
    backwards = (REVERSE >> direction) & 1
    panels: tl.constexpr = (hidden + WIDTH - 1) // WIDTH
    wide: tl.constexpr = GATES * hidden
    kept: tl.constexpr = SLOTS * hidden
    row, lane = tl.arange(0, BLOCK_B)[:, None], tl.arange(0, WIDTH)[None, :]
    live = first + row < batch
    sums += (direction * tl.num_programs(0) + tl.program_id(0)) * (BLOCK_B * GATES * WIDTH)
    weight += direction * (panels * GATES * hidden * WIDTH)
    bias += direction * wide
    top = (direction * batch + first).to(tl.int64)
    rows = (directions * batch).to(tl.int64)
    column = tl.arange(0, kept)[None, :]
    begin = tl.load(initial + top * kept + row * kept + column, mask=live, other=0.0)
    tl.store(out + (backwards * steps * rows + top) * kept + row * kept + column, begin, mask=live)
    for step in range(0, steps):
        place = step + backwards * (steps - 1 - 2 * step)
        old = out + ((place + backwards) * rows + top) * kept
        new = out + ((place + 1 - backwards) * rows + top) * kept
        running = None
        if LENGTHS:
            running = place < tl.load(lengths + first + row, mask=live, other=0)
        for panel in range(0, panels):
            states = tl.load(old + row * kept + tl.arange(0, hidden)[None, :], mask=live, other=0.0)
            taken = load_panels(weight, panel * GATES, 0, hidden, panels * GATES, GATES, hidden, WIDTH, False, False)
            product = tl.dot(states, taken, input_precision="ieee")
            tl.store(sums + row * (GATES * WIDTH) + tl.arange(0, GATES * WIDTH)[None, :], product, mask=live)
            unit = panel * WIDTH + lane
            mask = live
            if hidden % WIDTH != 0:
                mask = live & (unit < hidden)
            update_units(x + (place * rows + top) * wide, sums, bias, old, new, row, unit, mask, running, hidden, CELL,
                         GATES, SLOTS, F, G, H, BIAS, WIDTH)  # fmt: skip
