"""Convolutions for the Hopper kernel: forms, sizes, and their results in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import tilewright
import tilewright.language as tl
from tilewright.library.convolution.hopper.config import ConvolutionForm


@tilewright.jit
def add(value, row, column, mask, extra, beside):
    return tl.maximum(value + beside.to(tl.float32), 0.0)


@tilewright.jit
def add_bias_and_row(value, row, column, mask, extra):
    bias, other, stride = extra
    return value + tl.load(bias + column, mask=mask) + tl.load(other + row * stride + column, mask=mask)


class Case(NamedTuple):
    """Images [images, rows, columns, all channels] and the columns of a group."""

    form: ConvolutionForm
    images: int
    rows: int
    columns: int
    outputs: int
    end: tuple[int, int] = (0, 0)  # padding behind the image

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        form = self.form
        sizes = (self.rows, self.columns)
        windows = zip(sizes, form.PAD, self.end, form.DILATION, form.KERNEL, form.STRIDE, strict=True)
        height, width = ((n + low + high - d * (k - 1) - 1) // s + 1 for n, low, high, d, k, s in windows)
        return height, width

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Image, weights, and a tensor like the result."""
        form, kind = self.form, self.form.INPUT.element.numpy
        shapes = [
            (self.images, self.rows, self.columns, form.GROUPS * form.CHANNELS),
            (form.GROUPS * self.outputs, form.taps, form.CHANNELS),
            (self.images, *self.size, form.GROUPS * self.outputs),
        ]
        x, w, beside = (rng.standard_normal(shape, np.float32) for shape in shapes)
        return x.astype(kind), w.astype(kind), beside.astype(form.OUTPUT.element.numpy)

    def expected(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The convolution in float64."""
        form, (height, width) = self.form, self.size
        low = [(0, 0), *((p, p + s * d * k) for p, s, d, k in zip(form.PAD, form.STRIDE, form.DILATION, form.KERNEL,
                                                                  strict=True)), (0, 0)]  # fmt: skip
        padded = np.pad(x.astype(np.float64), low)
        out = np.zeros((self.images, height, width, form.GROUPS, self.outputs))
        weights = w.astype(np.float64).reshape(form.GROUPS, self.outputs, form.taps, form.CHANNELS)
        for tap in range(form.taps):
            down, right = (step * place for step, place in zip(form.DILATION, divmod(tap, form.KERNEL[1]), strict=True))
            seen = padded[:, down :: form.STRIDE[0], right :: form.STRIDE[1]][:, :height, :width]
            seen = seen.reshape(*seen.shape[:3], form.GROUPS, form.CHANNELS)
            out += np.einsum("nhwgc,goc->nhwgo", seen, weights[:, :, tap])
        return out.reshape(self.images, height, width, -1)


_SMALL = ConvolutionForm((1, 8, 8), 64, 64, KERNEL=(3, 3), PAD=(1, 1), CONSUMERS=1)

CASES = {
    "one consumer": Case(_SMALL, 2, 10, 9, 72, (1, 1)),
    "strided": Case(
        ConvolutionForm((2, 4, 7), 64, 72, KERNEL=(3, 3), PAD=(1, 1), STRIDE=(2, 2)), 3, 14, 14, 72, (1, 1)
    ),
    "few pixels": Case(_SMALL._replace(UNIT=(1, 8, 7)), 1, 7, 7, 64, (1, 1)),
    "shared": Case(_SMALL._replace(SPLIT=4, DEPENDENT=True), 1, 10, 9, 72, (1, 1)),
    "shared by eight": Case(_SMALL._replace(SPLIT=8, CHANNELS=256, UNIT=(1, 8, 7)), 1, 7, 7, 128, (1, 1)),
    "shared by two consumers": Case(_SMALL._replace(SPLIT=2, CONSUMERS=2, BN=128, STAGES=3), 2, 10, 9, 136, (1, 1)),
    "beside": Case(ConvolutionForm((1, 1, 64), 128, 64, BESIDE=2, EPILOGUE=add), 1, 1, 200, 136),
    "beside, together": Case(
        ConvolutionForm((1, 1, 64), 128, 64, TOGETHER=2, STAGES=3, BUFFERS=1, BESIDE=2, EPILOGUE=add), 1, 1, 700, 264
    ),
    "in turns": Case(
        ConvolutionForm((1, 1, 64), 128, 128, TURNS=True, TOGETHER=2, STAGES=3, BUFFERS=1, BESIDE=2, DEPENDENT=True,
                        EPILOGUE=add),
        1, 1, 900, 264,
    ),
    "short turns": Case(
        ConvolutionForm((4, 4, 4), 64, 72, KERNEL=(3, 3), PAD=(1, 1), TURNS=True, STAGES=5), 5, 9, 9, 136, (1, 1)
    ),
    "together": Case(
        ConvolutionForm((4, 4, 4), 256, 72, KERNEL=(3, 3), PAD=(1, 1), TOGETHER=2, STAGES=3), 5, 9, 9, 264, (1, 1)
    ),
    "beside, wide": Case(
        ConvolutionForm((1, 1, 64), 256, 128, TOGETHER=2, BUFFERS=1, BESIDE=1, STAGES=3, DEPENDENT=True, EPILOGUE=add),
        1, 1, 700, 512,
    ),
    "dilated groups": Case(
        ConvolutionForm((1, 8, 8), 32, 32, BK=32, KERNEL=(3, 3), PAD=(2, 2), DILATION=(2, 2), GROUPS=2, CONSUMERS=1),
        2, 10, 9, 24, (2, 2),
    ),
    "wide": Case(_SMALL._replace(CONSUMERS=2, BN=256, STAGES=3, UNIT=(4, 4, 4), CHANNELS=128), 5, 9, 9, 256, (1, 1)),
    "narrow": Case(_SMALL._replace(BN=16, CHANNELS=24, BK=32, DEPENDENT=True), 1, 12, 12, 24, (1, 1)),
    "bfloat16 to float32": Case(
        _SMALL._replace(INPUT=tl.bfloat16, OUTPUT=tl.float32, KERNEL=(5, 3), PAD=(2, 1)), 2, 10, 9, 40, (2, 1)
    ),
}  # fmt: skip
