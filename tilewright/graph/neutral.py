"""The elements that change no sum, product, maximum or minimum."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import DType

# The kind of reduction of each running one.
RUNNING_KINDS = {"cumsum": "sum", "cumprod": "product", "cummax": "max", "cummin": "min",
                 "cumlogsumexp": "max"}  # fmt: skip


def neutral_element(kind: str, dtype: DType) -> float | int:
    """The neutral element of a reduction: `kind` is ``sum``, ``product``, ``max`` or ``min``."""
    if kind in ("max", "min"):
        if dtype.is_float:
            return float("-inf") if kind == "max" else float("inf")
        if dtype.is_bool:
            return 0 if kind == "max" else 1
        limits = np.iinfo(dtype.numpy)
        return int(limits.min if kind == "max" else limits.max)
    neutral = 1 if kind == "product" else 0
    return float(neutral) if dtype.is_float else neutral
