"""Weighted sums of looked-up numbers, as arrays of places and weights [tap, result]."""

from __future__ import annotations

import numpy as np


def read_again(places: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The taps without those that no result gives a weight, int64 places first.

    A result with fewer taps than others reads its first one again, with half of what is left of its weight each time:
    a place without a weight may hold an infinity or NaN, which times 0 would be NaN.
    """
    order = np.argsort(weights == 0, axis=0, kind="stable")
    places, weights = (np.take_along_axis(items, order, 0) for items in (places, weights))
    counts = np.maximum((weights != 0).sum(0), 1)
    most = int(counts.max(initial=1))
    places, weights = places[:most].astype(np.int64), weights[:most].copy()
    for tap in range(1, most):
        missing = counts <= tap
        places[tap, missing] = places[0, missing]
        weights[0, missing] /= 2
        weights[tap, missing] = weights[0, missing]
    return places, weights
