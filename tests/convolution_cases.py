"""Convolutions for the Hopper kernel: configs, sizes, and their results in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import tilewright
import tilewright.language as tl
from tilewright.library.convolution.hopper.config import ConvolutionConfig


@tilewright.jit
def add(value, row, column, mask, extra, residual):
    return tl.maximum(value + residual.to(tl.float32), 0.0)


@tilewright.jit
def add_bias_and_row(value, row, column, mask, extra):
    bias, other, stride = extra
    return value + tl.load(bias + column, mask=mask) + tl.load(other + row * stride + column, mask=mask)


class Case(NamedTuple):
    """Images [images, rows, columns, all channels] and the columns of a group."""

    config: ConvolutionConfig
    images: int
    rows: int
    columns: int
    outputs: int
    end: tuple[int, int] = (0, 0)  # padding behind the image

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        config = self.config
        sizes = (self.rows, self.columns)
        windows = zip(sizes, config.PAD, self.end, config.DILATION, config.KERNEL, config.STRIDE, strict=True)
        height, width = ((n + low + high - d * (k - 1) - 1) // s + 1 for n, low, high, d, k, s in windows)
        return height, width

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Image, weights, and a tensor like the result."""
        config, kind = self.config, self.config.INPUT.element.numpy
        shapes = [
            (self.images, self.rows, self.columns, config.GROUPS * config.CHANNELS),
            (config.GROUPS * self.outputs, config.taps, config.CHANNELS),
            (self.images, *self.size, config.GROUPS * self.outputs),
        ]
        x, w, residual = (rng.standard_normal(shape, np.float32) for shape in shapes)
        return x.astype(kind), w.astype(kind), residual.astype(config.OUTPUT.element.numpy)

    def expected(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The convolution in float64."""
        config, (height, width) = self.config, self.size
        windows = zip(config.PAD, config.STRIDE, config.DILATION, config.KERNEL, strict=True)
        low = [(0, 0), *((p, p + s * d * k) for p, s, d, k in windows), (0, 0)]
        padded = np.pad(x.astype(np.float64), low)
        out = np.zeros((self.images, height, width, config.GROUPS, self.outputs))
        weights = w.astype(np.float64).reshape(config.GROUPS, self.outputs, config.taps, config.CHANNELS)
        for tap in range(config.taps):
            down, right = (
                step * place for step, place in zip(config.DILATION, divmod(tap, config.KERNEL[1]), strict=True)
            )
            seen = padded[:, down :: config.STRIDE[0], right :: config.STRIDE[1]][:, :height, :width]
            seen = seen.reshape(*seen.shape[:3], config.GROUPS, config.CHANNELS)
            out += np.einsum("nhwgc,goc->nhwgo", seen, weights[:, :, tap])
        return out.reshape(self.images, height, width, -1)


_SMALL = ConvolutionConfig((1, 8, 8), 64, 64, KERNEL=(3, 3), PAD=(1, 1), CONSUMERS=1)

CASES = {
    "one consumer": Case(_SMALL, 2, 10, 9, 72, (1, 1)),
    "strided": Case(
        ConvolutionConfig((2, 4, 7), 64, 72, KERNEL=(3, 3), PAD=(1, 1), STRIDE=(2, 2)), 3, 14, 14, 72, (1, 1)
    ),
    "few pixels": Case(_SMALL._replace(UNIT=(1, 8, 7)), 1, 7, 7, 64, (1, 1)),
    "shared": Case(_SMALL._replace(SPLIT=4, DEPENDENT=True), 1, 10, 9, 72, (1, 1)),
    "shared by eight": Case(_SMALL._replace(SPLIT=8, CHANNELS=256, UNIT=(1, 8, 7)), 1, 7, 7, 128, (1, 1)),
    "shared by two consumers": Case(_SMALL._replace(SPLIT=2, CONSUMERS=2, BN=128, STAGES=3), 2, 10, 9, 136, (1, 1)),
    "residual": Case(ConvolutionConfig((1, 1, 64), 128, 64, RESIDUAL_TILES=2, EPILOGUE=add), 1, 1, 200, 136),
    "residual, together": Case(
        ConvolutionConfig((1, 1, 64), 128, 64, TOGETHER=2, STAGES=3, BUFFERS=1, RESIDUAL_TILES=2, EPILOGUE=add),
        1, 1, 700, 264,
    ),
    "ping-pong": Case(
        ConvolutionConfig((1, 1, 64), 128, 128, PING_PONG=True, TOGETHER=2, STAGES=3, BUFFERS=1, RESIDUAL_TILES=2,
                          DEPENDENT=True, EPILOGUE=add),
        1, 1, 900, 264,
    ),
    "short ping-pong": Case(
        ConvolutionConfig((4, 4, 4), 64, 72, KERNEL=(3, 3), PAD=(1, 1), PING_PONG=True, STAGES=5), 5, 9, 9, 136, (1, 1)
    ),
    "together": Case(
        ConvolutionConfig((4, 4, 4), 256, 72, KERNEL=(3, 3), PAD=(1, 1), TOGETHER=2, STAGES=3), 5, 9, 9, 264, (1, 1)
    ),
    "residual, wide": Case(
        ConvolutionConfig((1, 1, 64), 256, 128, TOGETHER=2, BUFFERS=1, RESIDUAL_TILES=1, STAGES=3, DEPENDENT=True,
                          EPILOGUE=add),
        1, 1, 700, 512,
    ),
    "dilated groups": Case(
        ConvolutionConfig((1, 8, 8), 32, 32, BK=32, KERNEL=(3, 3), PAD=(2, 2), DILATION=(2, 2), GROUPS=2, CONSUMERS=1),
        2, 10, 9, 24, (2, 2),
    ),
    "wide": Case(_SMALL._replace(CONSUMERS=2, BN=256, STAGES=3, UNIT=(4, 4, 4), CHANNELS=128), 5, 9, 9, 256, (1, 1)),
    "narrow": Case(_SMALL._replace(BN=16, CHANNELS=24, BK=32, DEPENDENT=True), 1, 12, 12, 24, (1, 1)),
    "bfloat16 to float32": Case(
        _SMALL._replace(INPUT=tl.bfloat16, OUTPUT=tl.float32, KERNEL=(5, 3), PAD=(2, 1)), 2, 10, 9, 40, (2, 1)
    ),
}  # fmt: skip
