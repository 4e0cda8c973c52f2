"""Where the runs of neighbouring output pixels lie that convolutions on CPUs take at once."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl


@tilewright.jit
def run_place(run, across, width, out_height, out_width, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr,
              STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_X: tl.constexpr,
              PIXELS: tl.constexpr):  # fmt: skip
    """Of a run of `PIXELS` pixels, `across` to a line: its image, its first pixel in the line and in the output, the
    first line and column of its first window, and whether no window leaves the line."""
    line = run // across
    start = (run % across) * PIXELS
    top = (line % out_height) * STRIDE_Y - PAD_Y
    left = start * STRIDE_X - PAD_X
    whole = (left >= 0) & (left + ((PIXELS - 1) * STRIDE_X + (KERNEL_X - 1) * DILATION_X) < width)
    return (line // out_height).to(tl.int64), start, line.to(tl.int64) * out_width + start, top, left, whole
