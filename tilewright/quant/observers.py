"""Observers: choose the range of a tensor's 8-bit integers from a histogram of the calibration data.

    minmax       all of it
    percentile   without 0.01 % of the elements, half of them at each end
    mse          the cut at which the mean squared error of rounding and cutting is least
    entropy      the cut at which 128 levels of magnitudes tell the least less than all bins do: the least
                 Kullback-Leibler divergence (Migacz, "8-bit Inference with TensorRT", 2017)

Cuts of mse and entropy are at one magnitude on both sides of zero, within the range that was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

BINS = 2048
LEVELS = 255  # steps between the least and the largest number of 8 bits
TAIL = 20_000  # at each end `percentile` leaves out at most one of so many elements
_CUTS = 100  # that `mse` tries
_LEAST_BINS = 128  # of a cut that `entropy` tries, and levels that it compares with
Range = tuple[float, float]


@dataclass(frozen=True)
class Histogram:
    """Counts of elements in equal bins from `low` to `high`."""

    counts: np.ndarray
    low: float
    high: float

    @property
    def edges(self) -> np.ndarray:
        """[bins + 1] in float64."""
        return np.linspace(self.low, self.high, len(self.counts) + 1)

    @property
    def centers(self) -> np.ndarray:
        """The middle of each bin."""
        return (self.edges[:-1] + self.edges[1:]) / 2


def affine(low: float, high: float) -> tuple[np.float32, int]:
    """Scale and zero point of uint8 for a range, which is stretched to have 0 in it."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / LEVELS)
    if not scale > 0 or not np.isfinite(scale):
        return np.float32(1), 0
    return scale, int(np.clip(np.rint(-low / float(scale)), 0, LEVELS))


def minmax(histogram: Histogram) -> Range:
    """All that was seen."""
    return histogram.low, histogram.high


def percentile(histogram: Histogram) -> Range:
    """From the first bin up to which there are more elements than the tail has to the last one of the other end."""
    edges, tail = histogram.edges, int(histogram.counts.sum()) // TAIL
    first = int(np.argmax(np.cumsum(histogram.counts) > tail))
    last = len(histogram.counts) - 1 - int(np.argmax(np.cumsum(histogram.counts[::-1]) > tail))
    return float(edges[first]), float(edges[last + 1])


def mse(histogram: Histogram) -> Range:
    """The cut with the least mean squared error; of equal ones the widest."""
    centers, most = histogram.centers, max(abs(histogram.low), abs(histogram.high))
    best, least = minmax(histogram), np.inf
    for step in range(_CUTS, 0, -1):
        low, high = _within(histogram, most * step / _CUTS)
        scale, zero = affine(low, high)
        read = (np.clip(np.rint(centers / float(scale)) + zero, 0, LEVELS) - zero) * float(scale)
        error = float((histogram.counts * (centers - read) ** 2).sum())
        if error < least:
            best, least = (low, high), error
    return best


def entropy(histogram: Histogram) -> Range:
    """The cut with the least divergence; of equal ones the widest."""
    most, count = max(abs(histogram.low), abs(histogram.high)), len(histogram.counts)
    magnitudes = np.histogram(np.abs(histogram.centers), count, (0.0, most), weights=histogram.counts)[0]
    best, least = count, np.inf
    for bins in range(count, _LEAST_BINS - 1, -1):
        divergence = _divergence(magnitudes, bins)
        if divergence < least:
            best, least = bins, divergence
    return _within(histogram, most * best / count)


OBSERVERS: dict[str, Callable[[Histogram], Range]] = {
    "minmax": minmax, "percentile": percentile, "mse": mse, "entropy": entropy
}  # fmt: skip


def _within(histogram: Histogram, cut: float) -> Range:
    return max(histogram.low, -cut), min(histogram.high, cut)


def _divergence(counts: np.ndarray, bins: int) -> float:
    """The Kullback-Leibler divergence of the first `bins` bins, the last of which takes what is cut off, from the same
    bins at `_LEAST_BINS` levels."""
    seen = counts[:bins].astype(np.float64)
    occupied = seen > 0
    reference = seen.copy()
    reference[-1] += counts[bins:].sum()
    starts = np.arange(_LEAST_BINS) * bins // _LEAST_BINS
    sums, filled = np.add.reduceat(seen, starts), np.add.reduceat(occupied.astype(np.float64), starts)
    lengths = np.diff([*starts, bins])
    level = np.repeat(np.divide(sums, filled, out=np.zeros(_LEAST_BINS), where=filled > 0), lengths) * occupied
    if reference.sum() == 0 or level.sum() == 0 or (reference[~occupied] > 0).any():
        return np.inf
    p, q = reference[occupied] / reference.sum(), level[occupied] / level.sum()
    return float((p * np.log(p / q)).sum())
