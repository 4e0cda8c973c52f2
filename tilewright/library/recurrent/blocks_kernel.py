"""The steps of a recurrent layer in one launch on CPUs, by matrix products of blocks of rows of the batch.

A step takes the hidden units in panels: a product of the block's states with the panel's weights of all gates, then
the new states of its units.  A program walks the sequence of its block alone (`recurrent_rows`), or it is one panel of
one step, and the grid is run plane by plane (`recurrent_planes`), so that threads share the units of a step.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.matmul.kernel import load_panels
from tilewright.library.recurrent.kernel import activation


@tilewright.jit
def gates_of(x, sums, bias, row, unit, mask, hidden: tl.constexpr, GATES: tl.constexpr, FIRST: tl.constexpr,
             COUNT: tl.constexpr, BIAS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """What the input and the state, with the bias of its products, add to gates of a block of units."""
    lane = tl.arange(0, WIDTH)[None, :]
    found = ()
    for number in tl.static_range(COUNT):
        gate: tl.constexpr = FIRST + number
        own = tl.load(x + row * (GATES * hidden) + gate * hidden + unit, mask=mask, other=0.0)
        state = tl.load(sums + row * (COUNT * WIDTH) + number * WIDTH + lane, mask=mask, other=0.0)
        if BIAS:
            state += tl.load(bias + gate * hidden + unit, mask=unit < hidden, other=0.0)
        found = found + ((own, state),)
    return found


@tilewright.jit
def keep(slot, state, old, new, place, mask, running, hidden: tl.constexpr):
    """Store one of the states; rows that are not `running` (None: all are) keep the old one."""
    place += slot * hidden
    if running is not None:
        state = tl.where(running, state, tl.load(old + place, mask=mask, other=0.0))
    tl.store(new + place, state, mask=mask)


@tilewright.jit
def update_units(x, sums, bias, old, new, row, unit, mask, running, hidden: tl.constexpr, CELL: tl.constexpr,
                 GATES: tl.constexpr, SLOTS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, F: tl.constexpr,
                 G: tl.constexpr, H: tl.constexpr, BIAS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """The new states of a block of units after the gates from `FIRST` on."""
    parts = gates_of(x, sums, bias, row, unit, mask, hidden, GATES, FIRST, COUNT, BIAS, WIDTH)
    place = row * (SLOTS * hidden) + unit
    if CELL == "rnn":
        keep(0, activation(parts[0][0] + parts[0][1], F), old, new, place, mask, running, hidden)
    elif CELL == "lstm" or CELL == "lstm_8bit":
        output_slot: tl.constexpr = 2 if SLOTS == 3 else 0  # 0, or the slot after those of the quantized steps
        memory = activation(parts[2][0] + parts[2][1], F) * tl.load(old + place + hidden, mask=mask, other=0.0)
        memory += activation(parts[0][0] + parts[0][1], F) * activation(parts[3][0] + parts[3][1], G)
        state = activation(parts[1][0] + parts[1][1], F) * activation(memory, H)
        keep(1, memory, old, new, place, mask, running, hidden)
        keep(output_slot, state, old, new, place, mask, running, hidden)
    elif CELL == "gru":
        before = tl.load(old + place, mask=mask, other=0.0)
        update = activation(parts[0][0] + parts[0][1], F)
        reset = activation(parts[1][0] + parts[1][1], F)
        fresh = activation(parts[2][0] + reset * parts[2][1], G)
        keep(0, fresh + update * (before - fresh), old, new, place, mask, running, hidden)
    elif FIRST == 0:
        reset = activation(parts[1][0] + parts[1][1], F) * tl.load(old + place, mask=mask, other=0.0)
        keep(1, reset, old, new, place, mask, running, hidden)
        keep(2, activation(parts[0][0] + parts[0][1], F), old, new, place, mask, running, hidden)
    else:
        before = tl.load(old + place, mask=mask, other=0.0)
        update = tl.load(new + place + 2 * hidden, mask=mask, other=0.0)
        fresh = activation(parts[0][0] + parts[0][1], G)
        keep(0, fresh + update * (before - fresh), old, new, place, mask, running, hidden)


@tilewright.jit
def update_panel(panel, x, weight, bias, old, new, sums, live, running, hidden: tl.constexpr, CELL: tl.constexpr,
                 GATES: tl.constexpr, SLOTS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, F: tl.constexpr,
                 G: tl.constexpr, H: tl.constexpr, BIAS: tl.constexpr, WIDTH: tl.constexpr,
                 BLOCK_B: tl.constexpr):  # fmt: skip
    """The new states of a panel of units after the `COUNT` gates from `FIRST` on: all of them, or, of a cell whose
    last gate multiplies what the others have made (`gru_first`), the others or the last."""
    width: tl.constexpr = SLOTS * hidden
    panels: tl.constexpr = (hidden + WIDTH - 1) // WIDTH
    row, lane = tl.arange(0, BLOCK_B)[:, None], tl.arange(0, WIDTH)[None, :]
    source = old
    if FIRST > 0:
        source = new + hidden
    states = tl.load(source + row * width + tl.arange(0, hidden)[None, :], mask=live, other=0.0)
    weights = load_panels(weight, panel * GATES + FIRST, 0, hidden, panels * GATES, COUNT, hidden, WIDTH, False, False)
    product = tl.dot(states, weights, input_precision="ieee")
    tl.store(sums + row * (COUNT * WIDTH) + tl.arange(0, COUNT * WIDTH)[None, :], product, mask=live)
    unit = panel * WIDTH + lane
    mask = live
    if hidden % WIDTH != 0:
        mask = live & (unit < hidden)
    update_units(x, sums, bias, old, new, row, unit, mask, running, hidden, CELL, GATES, SLOTS, FIRST, COUNT, F, G, H,
                 BIAS, WIDTH)  # fmt: skip


@tilewright.jit
def running_rows(lengths, place, first, row, live, LENGTHS: tl.constexpr):
    """Which sequences have a step `place`; None: all."""
    running = None
    if LENGTHS:
        running = place < tl.load(lengths + first + row, mask=live, other=0)
    return running


@tilewright.jit
def recurrent_rows(
    x, weight, initial, bias, lengths, out, sums, steps, directions, batch, hidden: tl.constexpr, CELL: tl.constexpr,
    GATES: tl.constexpr, SLOTS: tl.constexpr, LAST: tl.constexpr, REVERSE: tl.constexpr, F: tl.constexpr,
    G: tl.constexpr, H: tl.constexpr, BIAS: tl.constexpr, LENGTHS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_B: tl.constexpr,
):  # fmt: skip
    """The graph op `recurrent` (see graph.recurrent) of the cells rnn, lstm, gru and gru_first.  Grid: (blocks of rows,
    directions).

    `weight` is [directions][hidden / WIDTH][GATES][hidden][WIDTH] (`library.packing`, recipe `gates`).  `sums` has
    BLOCK_B x GATES x WIDTH elements for each program.  `LAST` gates multiply what the others have made.
    """
    direction = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK_B
    backwards = (REVERSE >> direction) & 1
    panels: tl.constexpr = (hidden + WIDTH - 1) // WIDTH
    wide: tl.constexpr = GATES * hidden
    width: tl.constexpr = SLOTS * hidden
    row = tl.arange(0, BLOCK_B)[:, None]
    live = first + row < batch
    sums += (direction * tl.num_programs(0) + tl.program_id(0)) * (BLOCK_B * GATES * WIDTH)
    weight += direction * (panels * GATES * hidden * WIDTH)
    bias += direction * wide
    top = (direction * batch + first).to(tl.int64)
    rows = (directions * batch).to(tl.int64)
    column = tl.arange(0, width)[None, :]
    begin = tl.load(initial + top * width + row * width + column, mask=live, other=0.0)
    tl.store(out + (backwards * steps * rows + top) * width + row * width + column, begin, mask=live)
    for step in range(0, steps):
        place = step + backwards * (steps - 1 - 2 * step)
        old = out + ((place + backwards) * rows + top) * width
        new = out + ((place + 1 - backwards) * rows + top) * width
        own = x + (place * rows + top) * wide
        running = running_rows(lengths, place, first, row, live, LENGTHS)
        for panel in range(0, panels):
            update_panel(panel, own, weight, bias, old, new, sums, live, running, hidden, CELL, GATES, SLOTS, 0,
                         GATES - LAST, F, G, H, BIAS, WIDTH, BLOCK_B)  # fmt: skip
        if LAST > 0:
            for panel in range(0, panels):
                update_panel(panel, own, weight, bias, old, new, sums, live, running, hidden, CELL, GATES, SLOTS,
                             GATES - LAST, LAST, F, G, H, BIAS, WIDTH, BLOCK_B)  # fmt: skip


@tilewright.jit
def recurrent_planes(
    x, weight, initial, bias, lengths, out, sums, steps, directions, batch, hidden: tl.constexpr, CELL: tl.constexpr,
    GATES: tl.constexpr, SLOTS: tl.constexpr, LAST: tl.constexpr, REVERSE: tl.constexpr, F: tl.constexpr,
    G: tl.constexpr, H: tl.constexpr, BIAS: tl.constexpr, LENGTHS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_B: tl.constexpr, IN_TURN: tl.constexpr,
):  # fmt: skip
    """As `recurrent_rows`, by programs of one panel and one step.  Grid: (panels x blocks of rows, directions, planes),
    run plane by plane: one that copies the initial states, then one for each step, two with `LAST` gates.  Directions
    `IN_TURN` have their planes one after the other, in a grid (panels x blocks, 1, directions x planes).
    """
    phases: tl.constexpr = 2 if LAST > 0 else 1
    direction, plane = tl.program_id(1).to(tl.int64), tl.program_id(2)
    if IN_TURN:
        direction, plane = (plane // (steps * phases + 1)).to(tl.int64), plane % (steps * phases + 1)
    blocks = tl.cdiv(batch, BLOCK_B)
    panel = tl.program_id(0) // blocks
    first = (tl.program_id(0) % blocks) * BLOCK_B
    backwards = (REVERSE >> direction) & 1
    panels: tl.constexpr = (hidden + WIDTH - 1) // WIDTH
    wide: tl.constexpr = GATES * hidden
    width: tl.constexpr = SLOTS * hidden
    row = tl.arange(0, BLOCK_B)[:, None]
    live = first + row < batch
    sums += (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * (BLOCK_B * GATES * WIDTH)
    weight += direction * (panels * GATES * hidden * WIDTH)
    bias += direction * wide
    top = (direction * batch + first).to(tl.int64)
    rows = (directions * batch).to(tl.int64)
    if plane == 0:
        unit = panel * WIDTH + tl.arange(0, WIDTH)[None, :]
        inside = live & (unit < hidden)
        for slot in tl.static_range(SLOTS):
            element = row * width + slot * hidden + unit
            begin = tl.load(initial + top * width + element, mask=inside, other=0.0)
            tl.store(out + (backwards * steps * rows + top) * width + element, begin, mask=inside)
    else:
        step = (plane - 1) // phases
        place = step + backwards * (steps - 1 - 2 * step)
        old = out + ((place + backwards) * rows + top) * width
        new = out + ((place + 1 - backwards) * rows + top) * width
        own = x + (place * rows + top) * wide
        running = running_rows(lengths, place, first, row, live, LENGTHS)
        if (plane - 1) % phases == 0:
            update_panel(panel, own, weight, bias, old, new, sums, live, running, hidden, CELL, GATES, SLOTS, 0,
                         GATES - LAST, F, G, H, BIAS, WIDTH, BLOCK_B)  # fmt: skip
        elif LAST > 0:
            update_panel(panel, own, weight, bias, old, new, sums, live, running, hidden, CELL, GATES, SLOTS,
                         GATES - LAST, LAST, F, G, H, BIAS, WIDTH, BLOCK_B)  # fmt: skip
