"""Pools of volumes with one channel each on GPUs."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.convolution.simt.planes_kernel import in_image, window_starts
from tilewright.library.epilogue import identity
from tilewright.library.functions import maximum
from tilewright.library.pool.simt_kernel import counted_taps

MOST_UNROLLED: tl.constexpr = tl.constexpr(32)  # taps of a window that are written one after the other


@tilewright.jit
def pooled(best, value, IS_MAX: tl.constexpr):
    """The larger, or the sum, of two elements."""
    if IS_MAX:
        result = maximum(best, value)
    else:
        result = best + value.to(best.dtype)
    return result


@tilewright.jit
def pool_line(best, x, there, z, y, left, depth, height, width, LEAST: tl.constexpr, KERNEL_X: tl.constexpr,
              DILATION_X: tl.constexpr, WHOLE: tl.constexpr, IS_MAX: tl.constexpr):  # fmt: skip
    """`best` and the taps of one line of the windows, at depth `z` and height `y`, whose first one `x` points to."""
    for tap in tl.static_range(KERNEL_X):
        right = tap * DILATION_X
        inside = there
        if not WHOLE:
            inside = there & in_image(z, y, left + right, depth, height, width)
        best = pooled(best, tl.load(x + right, mask=inside, other=LEAST), IS_MAX)
    return best


@tilewright.jit
def pool_of_volumes(x, out, pixels, depth, height, width, out_depth, out_height, out_width, *extra,
                    IS_MAX: tl.constexpr, KERNEL_Z: tl.constexpr, KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr,
                    STRIDE_Z: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, PAD_Z: tl.constexpr,
                    PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_Z: tl.constexpr, DILATION_Y: tl.constexpr,
                    DILATION_X: tl.constexpr, ROWS: tl.constexpr, COUNT_Z: tl.constexpr = 0,
                    COUNT_Y: tl.constexpr = 0, COUNT_X: tl.constexpr = 0, COUNT_END_Z: tl.constexpr = 0,
                    COUNT_END_Y: tl.constexpr = 0, COUNT_END_X: tl.constexpr = 0, LOWEST: tl.constexpr = 0,
                    TYPE: tl.constexpr = tl.float32, WHOLE: tl.constexpr = False, COUNT: tl.constexpr = 0,
                    EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """EPILOGUE of the largest element or the mean of each window of x [volumes, depth, height, width, 1].

    `WHOLE`: no window reaches beyond its volume.  `COUNT`: the divisor of means, where all windows have the same one;
    see `library.pool.kernel.average_pool` for others.  Grid: (blocks of `ROWS` pixels,).
    """
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    there = pixel < pixels
    volume = pixel // (out_depth * out_height * out_width)
    own = pixel - volume * (out_depth * out_height * out_width)
    front, top, left = window_starts(own, out_height, out_width, STRIDE_Z, STRIDE_Y, STRIDE_X, PAD_Z, PAD_Y, PAD_X)
    x += volume.to(tl.int64) * (depth * height * width) + ((front * height + top) * width + left)
    if IS_MAX:
        best = tl.full((ROWS, 1), LOWEST, x.dtype.element_ty)
    else:
        best = tl.zeros((ROWS, 1), TYPE)
    LINES: tl.constexpr = KERNEL_Z * KERNEL_Y
    if LINES * KERNEL_X <= MOST_UNROLLED:
        for line in tl.static_range(LINES):
            deeper, down = line // KERNEL_Y * DILATION_Z, line % KERNEL_Y * DILATION_Y
            best = pool_line(best, x + (deeper * height + down) * width, there, front + deeper, top + down, left, depth,
                             height, width, LOWEST, KERNEL_X, DILATION_X, WHOLE, IS_MAX)  # fmt: skip
    else:
        for line in range(LINES):
            deeper, down = line // KERNEL_Y * DILATION_Z, line % KERNEL_Y * DILATION_Y
            best = pool_line(best, x + (deeper * height + down) * width, there, front + deeper, top + down, left, depth,
                             height, width, LOWEST, KERNEL_X, DILATION_X, WHOLE, IS_MAX)  # fmt: skip
    result = best.to(TYPE)
    if not IS_MAX:
        if COUNT > 0:
            result = result / COUNT
        else:
            count = counted_taps(front, depth, KERNEL_Z, DILATION_Z, COUNT_Z, COUNT_END_Z)
            count *= counted_taps(top, height, KERNEL_Y, DILATION_Y, COUNT_Y, COUNT_END_Y)
            count *= counted_taps(left, width, KERNEL_X, DILATION_X, COUNT_X, COUNT_END_X)
            result = result / count.to(TYPE)
    row = pixel.to(tl.int64)
    tl.store(out + row, EPILOGUE(result, row, 0, there, extra), mask=there)
