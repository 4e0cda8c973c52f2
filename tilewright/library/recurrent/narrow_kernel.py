"""LSTMs whose state is quantized at every step, by weights of int8, on CPUs: sums of integers, four gates of a panel of
units at a time.

A program walks the sequence of one direction, in blocks of rows of the batch, as `blocks_kernel.recurrent_rows` does.
The rows that have a step share its range.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.functions import maximum, minimum
from tilewright.library.matmul.kernel import load_panels
from tilewright.library.recurrent.blocks_kernel import running_rows, update_units


@tilewright.jit
def range_of_rows(state, batch, lengths, place, hidden: tl.constexpr, LENGTHS: tl.constexpr):
    """The least and the largest element of h, the last slot of the rows at `state` that have a step `place`, and 0."""
    low, high = 0.0, 0.0
    for row in range(0, batch):
        running = True
        if LENGTHS:
            running = place < tl.load(lengths + row)
        if running:
            outputs = tl.load(state + row * (3 * hidden) + 2 * hidden + tl.arange(0, hidden))
            low = minimum(low, tl.min(outputs, axis=0))
            high = maximum(high, tl.max(outputs, axis=0))
    return low, high


@tilewright.jit
def quantize_states(state, levels, ranges, row, live, running, low, high, hidden: tl.constexpr):
    """Put h of rows at `state` in 256 steps from `low` to `high`: uint8 at `levels`, size and zero point at `ranges`,
    and the numbers that these stand for in the first slot.  Rows that are not `running` keep theirs."""
    column = tl.arange(0, hidden)[None, :]
    mask = live
    if running is not None:
        mask = live & running
    width = (high - low) / 255.0
    size = tl.where(width == 0.0, 1.0, width)
    zero = tl.math.rint(-low / size)
    outputs = tl.load(state + row * (3 * hidden) + 2 * hidden + column, mask=mask, other=0.0)
    level = minimum(maximum(tl.math.rint(outputs / size) + zero, 0.0), 255.0)
    tl.store(levels + row * hidden + column, level.to(tl.uint8), mask=mask)
    tl.store(state + row * (3 * hidden) + column, (level - zero) * size, mask=mask)
    tl.store(ranges + row * 2, size + tl.zeros_like(row).to(tl.float32), mask=mask)
    tl.store(ranges + row * 2 + 1, zero + tl.zeros_like(row).to(tl.float32), mask=mask)


@tilewright.jit
def multiply_levels(
    x, block, weight, totals, scales, sums, levels, ranges, row, local, live, running, hidden: tl.constexpr,
    F: tl.constexpr, G: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The step of a block of rows, panel by panel; `block` are its input's products, old and new states."""
    own, old, new = block
    panels: tl.constexpr = (hidden + WIDTH - 1) // WIDTH
    lane = tl.arange(0, 4 * WIDTH)[None, :]
    for panel in range(0, panels):
        left = tl.load(levels + row * hidden + tl.arange(0, hidden)[None, :], mask=live, other=0)
        right = load_panels(weight, panel * 4, 0, hidden, panels * 4, 4, hidden, WIDTH, False, False, GROUP)
        product = tl.dot(left, right, input_precision=PRECISION)
        total = tl.load(totals + panel * (4 * WIDTH) + lane).to(tl.float32)
        scale = tl.load(scales + panel * (4 * WIDTH) + lane)
        size = tl.load(ranges + row * 2, mask=live, other=0.0)
        zero = tl.load(ranges + row * 2 + 1, mask=live, other=0.0)
        tl.store(sums + local * (4 * WIDTH) + lane, (product.to(tl.float32) - zero * total) * (size * scale),
                 mask=live)  # fmt: skip
        unit = panel * WIDTH + tl.arange(0, WIDTH)[None, :]
        mask = live
        if hidden % WIDTH != 0:
            mask = live & (unit < hidden)
        update_units(own, sums, x, old, new, local, unit, mask, running, hidden, "lstm_8bit", 4, 3, 0, 4, F, G, H,
                     False, WIDTH)  # fmt: skip


@tilewright.jit
def recurrent_levels(
    x, weight, totals, scales, initial, lengths, out, sums, levels, ranges, steps, directions, batch,
    hidden: tl.constexpr, REVERSE: tl.constexpr, F: tl.constexpr, G: tl.constexpr, H: tl.constexpr,
    LENGTHS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, BLOCK_B: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The graph op `recurrent` of the cell lstm_8bit with an int8 weight.  Grid: (1, directions).

    `weight`, `totals` and `scales` lie in panels of all gates (`library.packing`: `gates`, `gate_sums`).  For each
    direction `sums` has BLOCK_B x 4 x WIDTH elements, `levels` batch x hidden, `ranges` batch x 2.
    """
    direction = tl.program_id(1).to(tl.int64)
    backwards = (REVERSE >> direction) & 1
    panels: tl.constexpr = (hidden + WIDTH - 1) // WIDTH
    wide: tl.constexpr = 4 * hidden
    width: tl.constexpr = 3 * hidden
    sums += direction * (BLOCK_B * 4 * WIDTH)
    levels += direction * (batch * hidden)
    ranges += direction * (batch * 2)
    weight += direction * (panels * 4 * hidden * WIDTH)
    totals = totals.to(tl.pointer_type(tl.int32)) + direction * (panels * 4 * WIDTH)
    scales += direction * (panels * 4 * WIDTH)
    top = (direction * batch).to(tl.int64)
    rows = (directions * batch).to(tl.int64)
    column = tl.arange(0, width)[None, :]
    start = out + (backwards * steps * rows + top) * width
    for first in range(0, batch, BLOCK_B):
        row = first + tl.arange(0, BLOCK_B)[:, None]
        live = row < batch
        begin = tl.load(initial + top * width + row * width + column, mask=live, other=0.0)
        tl.store(start + row * width + column, begin, mask=live)
    low, high = range_of_rows(start, batch, lengths, 0, hidden, False)
    for first in range(0, batch, BLOCK_B):
        row = first + tl.arange(0, BLOCK_B)[:, None]
        quantize_states(start, levels, ranges, row, row < batch, None, low, high, hidden)
    for step in range(0, steps):
        place = step + backwards * (steps - 1 - 2 * step)
        old = out + ((place + backwards) * rows + top) * width
        new = out + ((place + 1 - backwards) * rows + top) * width
        own = x + (place * rows + top) * wide
        for first in range(0, batch, BLOCK_B):
            local = tl.arange(0, BLOCK_B)[:, None]
            row = first + local
            live = row < batch
            running = running_rows(lengths, place, 0, row, live, LENGTHS)
            if LENGTHS:
                begin = tl.load(old + row * width + tl.arange(0, hidden)[None, :], mask=live, other=0.0)
                tl.store(new + row * width + tl.arange(0, hidden)[None, :], begin, mask=live)
            block = (own + first * wide, old + first * width, new + first * width)
            multiply_levels(x, block, weight, totals, scales, sums, levels, ranges, row, local, live, running, hidden,
                            F, G, H, WIDTH, GROUP, PRECISION)  # fmt: skip
        low, high = range_of_rows(new, batch, lengths, place, hidden, LENGTHS)
        for first in range(0, batch, BLOCK_B):
            row = first + tl.arange(0, BLOCK_B)[:, None]
            live = row < batch
            running = running_rows(lengths, place, 0, row, live, LENGTHS)
            quantize_states(new, levels, ranges, row, live, running, low, high, hidden)
