"""The ONNX project's node cases in three seconds: most of the fourteen that collecting them takes are spent on pooling,
window by window in Python. Here the windows are pooled together; `tests/host/test_import_onnx_ops.py` compares both.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np


@functools.cache
def node_cases() -> tuple[Any, ...]:
    """ONNX's test cases of single operators (`onnx.backend.test.case.test_case.TestCase`)."""
    from onnx.backend.test.case import base
    from onnx.backend.test.case.node import collect_testcases
    from onnx.reference.ops import op_pool_common

    with (
        warnings.catch_warnings(),
        mock.patch.object(op_pool_common, "pool", pooled),
        mock.patch.object(base, "process_snippet", lambda *_: ("", "")),  # examples for ONNX's documentation
    ):
        warnings.simplefilter("ignore")
        return tuple(collect_testcases(None))


def pooled(
    padded: np.ndarray, x_shape: Sequence[int], kernel: Sequence[int], strides: Sequence[int] | None,
    out_shape: Sequence[int], pooling_type: str, pads_required: Sequence[int] | None = None,
    pads: Sequence[int] | None = None, dilations: Sequence[int] | None = None, count_include_pad: int = 0, p: int = 1,
) -> np.ndarray:  # fmt: skip
    """`onnx.reference.ops.op_pool_common.pool` with an array operation for each element of the window: NaN is padding,
    which counts where `count_include_pad` says so."""
    axes = len(x_shape) - 2
    steps, gaps = strides or [1] * axes, [1] * axes if dilations is None else dilations
    required, added = (
        [0] * (2 * axes) if given is None else list(given) * (2 * axes if len(given) == 1 else 1)
        for given in (pads_required, pads)
    )
    limits = [x_shape[axis + 2] + added[axis] + added[axes + axis] for axis in range(axes)]
    reach = [x_shape[axis + 2] + required[axis] + required[axes + axis] for axis in range(axes)]
    counts = [int((reach[axis] - (1 + (kernel[axis] - 1) * gaps[axis])) / steps[axis] + 1) for axis in range(axes)]
    values, inside = [], []
    for offset in itertools.product(*(range(extent) for extent in kernel)):
        places = [np.arange(counts[axis]) * steps[axis] + offset[axis] * gaps[axis] for axis in range(axes)]
        clipped = (np.minimum(place, extent - 1) for place, extent in zip(places, padded.shape[2:], strict=True))
        values.append(padded[(slice(None), slice(None), *np.ix_(*clipped))])
        within = np.ones(counts, bool)
        for axis, limit in enumerate(limits):
            within &= np.expand_dims(places[axis] < limit, tuple(other for other in range(axes) if other != axis))
        inside.append(np.broadcast_to(within, values[-1].shape))
    window, counted = np.stack(values), np.stack(inside)
    if not (count_include_pad == 1 and pooling_type in ("AVG", "LPPOOL")):
        counted = counted & ~np.isnan(window)
    if pooling_type == "MAX":
        result = np.max(window, 0, initial=_least(padded.dtype), where=counted)
    elif pooling_type == "AVG":
        result = np.sum(window, 0, where=counted, dtype=np.float64) / np.sum(counted, 0)
    else:
        result = np.sum(np.abs(window) ** p, 0, where=counted) ** (1.0 / p)
    y = np.zeros([*x_shape[:2], *out_shape], padded.dtype)
    y[(slice(None), slice(None), *(slice(count) for count in counts))] = result
    return y


def _least(dtype: np.dtype) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min
