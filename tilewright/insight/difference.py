"""Measures the difference of two arrays."""

from __future__ import annotations

import numpy as np


def difference(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """The largest difference, also relative to the largest finite value of `theirs`; arrays of one shape.

    Equal infinities and two NaNs are equal; a NaN on one side alone is infinitely different.
    """
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(invalid="ignore"):
        gaps = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    largest_gap = float(np.nan_to_num(gaps, nan=np.inf, posinf=np.inf).max(initial=0.0))
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    return largest_gap, largest_gap / (largest or 1.0)
