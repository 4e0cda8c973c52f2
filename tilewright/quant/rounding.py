"""Rounds weights to few bits: to the nearest, or so that results on calibration data change least.

    nearest   each weight by itself
    gptq      column after column of the depth, what one loses is made up for by those after it (Frantar et al., "GPTQ:
              Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2023)
    awq       inputs with large magnitudes are divided by a factor, and their weights multiplied by it before they are
              rounded; the factors' exponent is searched for (Lin et al., "AWQ: Activation-aware Weight Quantization for
              LLM Compression and Acceleration", 2024)

`smoothing` is the like for products whose inputs are rounded too (Xiao et al., "SmoothQuant", 2023).  Without rounding
all of them are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import int4
from tilewright.importers.quantized_weights import QuantizedMatrix, nearest

NEAREST, GPTQ, AWQ = "nearest", "gptq", "awq"
ROUNDING_METHODS = {
    NEAREST: "each weight by itself; needs no data",
    GPTQ: "what one weight loses is made up for by later ones, by second moments of the inputs",
    AWQ: "weights of large inputs are scaled up before they are rounded",
}
_DAMPING = 0.01  # of the mean second moment, added to each, so that its inverse exists
_EXPONENTS = 20  # that `awq` tries, from 0 to 1
_RUN = 128  # steps of the depth of which `gptq` makes up within at once


@dataclass
class Moments:
    """What calibration data says of a layer's inputs: sums over rows."""

    count: int
    lowest: np.ndarray  # [depth], at most 0
    highest: np.ndarray  # [depth], at least 0
    total: np.ndarray  # [depth]
    magnitudes: np.ndarray  # [depth] sums of magnitudes
    products: np.ndarray | None  # [depth, depth] float64, where a method needs them

    @classmethod
    def of(cls, depth: int, with_products: bool) -> Moments:
        products = np.zeros((depth, depth)) if with_products else None
        return cls(0, np.zeros(depth), np.zeros(depth), np.zeros(depth), np.zeros(depth), products)

    def add(self, x: np.ndarray) -> None:
        """Rows [.., depth]."""
        rows = x.reshape(-1, x.shape[-1]).astype(np.float32, copy=False)
        self.count += len(rows)
        self.lowest = np.minimum(self.lowest, rows.min(axis=0, initial=0))
        self.highest = np.maximum(self.highest, rows.max(axis=0, initial=0))
        self.total += rows.sum(axis=0, dtype=np.float64)
        self.magnitudes += np.abs(rows).sum(axis=0, dtype=np.float64)
        if self.products is not None:
            self.products += (rows.T @ rows).astype(np.float64)

    @property
    def mean(self) -> np.ndarray:
        """[depth]"""
        return self.total / max(self.count, 1)

    @property
    def largest(self) -> np.ndarray:
        """[depth] magnitudes"""
        return np.maximum(-self.lowest, self.highest)

    def range(self, factors: np.ndarray | float = 1.0) -> tuple[float, float]:
        """From the lowest to the highest number, and 0, after a division by `factors` [depth]."""
        low, high = self.lowest / factors, self.highest / factors
        return float(low.min(initial=0)), float(high.max(initial=0))


@dataclass(frozen=True)
class RoundedWeights:
    """A matrix [columns, depth]; inputs are divided by `factors` [depth] first, where there are any."""

    matrix: QuantizedMatrix
    factors: np.ndarray | None = None

    def numbers(self) -> np.ndarray:
        """float32 [columns, depth] that inputs as they are would have to be multiplied by."""
        found = self.matrix.numbers()
        return found if self.factors is None else (found / self.factors).astype(np.float32)


def rounded(weights: np.ndarray, bits: int, group: int, method: str, moments: Moments | None) -> RoundedWeights:
    """Weights [columns, depth] by a method; ``gptq`` and ``awq`` need moments of the inputs, with products."""
    if method == NEAREST or moments is None or moments.products is None or moments.count == 0:
        return RoundedWeights(nearest(weights, bits, group))
    if method == GPTQ:
        return RoundedWeights(gptq(weights, moments.products / moments.count, bits, group))
    return awq(weights, moments, bits, group)


def gptq(weights: np.ndarray, products: np.ndarray, bits: int, group: int) -> QuantizedMatrix:
    """Weights [columns, depth] for inputs with these second moments [depth, depth]; a scale for each group is that of
    the weights as they are when their turn comes."""
    columns, depth = weights.shape
    group = group or depth
    if depth % group:
        return nearest(weights, bits, group)  # the last group would have a scale of its own size
    most = (1 << (bits - 1)) - 1
    left = weights.astype(np.float64)
    moments = products.copy()
    unused = np.diag(moments) == 0
    moments[unused, unused] = 1
    left[:, unused] = 0
    moments[np.diag_indices(depth)] += _DAMPING * np.mean(np.diag(moments))
    factor = np.linalg.cholesky(np.linalg.inv(moments)).T  # upper
    codes = np.empty((columns, depth), np.int8)
    scales = np.empty((columns, depth // group), np.float32)
    for begin in range(0, depth, _RUN):
        end = min(begin + _RUN, depth)
        errors = np.empty((columns, end - begin))
        for step in range(begin, end):
            if step % group == 0:
                largest = np.abs(left[:, step : step + group]).max(axis=1)
                scales[:, step // group] = np.where(largest > 0, largest / most, 1)
            scale = scales[:, step // group].astype(np.float64)
            codes[:, step] = np.clip(np.rint(left[:, step] / scale), -most, most)
            error = (left[:, step] - codes[:, step] * scale) / factor[step, step]
            left[:, step:end] -= np.outer(error, factor[step, step:end])
            errors[:, step - begin] = error
        left[:, end:] -= errors @ factor[begin:end, end:]
    return QuantizedMatrix(codes.astype(int4.numpy) if bits == 4 else codes, scales, depth=depth)


def awq(weights: np.ndarray, moments: Moments, bits: int, group: int) -> RoundedWeights:
    """The factors mean|x|^e / sqrt(greatest least), 0 <= e <= 1, with the least squared error of results."""
    assert moments.products is not None
    magnitudes = np.maximum(
        moments.magnitudes / moments.count, 1e-4 * (moments.magnitudes.max() / moments.count + 1e-30)
    )
    best, least = RoundedWeights(nearest(weights, bits, group)), np.inf
    for step in range(_EXPONENTS):
        factors = magnitudes ** (step / _EXPONENTS)
        factors = (factors / np.sqrt(factors.max() * factors.min())).astype(np.float32)
        found = RoundedWeights(nearest(weights * factors, bits, group), factors if step else None)
        error = loss(weights, found.numbers(), moments.products)
        if error < least:
            best, least = found, error
    return best


def loss(weights: np.ndarray, found: np.ndarray, products: np.ndarray) -> float:
    """The squared error of results for inputs with these second moments, summed over columns."""
    change = (found - weights).astype(np.float64)
    return float(np.einsum("nk,nk->", change @ products, change))


def smoothing(weights: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """What inputs [depth] of these magnitudes are divided by and weights [columns, depth] multiplied by, so that both
    round well: (max|x| / max|w|)^(1/2), of SmoothQuant (Xiao and others, 2022)."""
    heights = np.abs(weights).max(axis=0, initial=0)
    known = (largest > 0) & (heights > 0)
    factors = np.ones(len(largest))
    factors[known] = np.sqrt(largest[known]) / np.sqrt(heights[known])
    return np.clip(factors, 1e-4, 1e4).astype(np.float32)
