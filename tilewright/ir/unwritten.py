"""Memory that nobody has written yet: arrays declared as such, watched from launch to launch.

A declared array is filled with a pattern.  Kernels that run with checks clear the mark of what they store.  Anything
else that writes to the array (host code, a compiled kernel) is not seen, but leaves the pattern changed: then the
whole array counts as written.  So nothing that was written is ever taken for unwritten.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

_PATTERN = 0xA5


class _Declared:
    """The bytes of one array and which of them are unwritten."""

    def __init__(self, flat: np.ndarray) -> None:
        self.start, self.size = flat.ctypes.data, flat.size
        self.mask = np.ones(flat.size, np.bool_)


_declared: dict[int, _Declared] = {}


def declare(flat: np.ndarray, owner: Any) -> None:
    """Watch the memory of `flat` (bytes, one dimension) for as long as `owner`, which it belongs to, lives."""
    if not flat.size:
        return
    flat[:] = _PATTERN
    entry = _Declared(flat)
    _declared[entry.start] = entry
    weakref.finalize(owner, _forget, entry)


def _forget(entry: _Declared) -> None:
    if _declared.get(entry.start) is entry:
        del _declared[entry.start]


def pending(flat: np.ndarray) -> np.ndarray | None:
    """Which bytes of this memory are unwritten; None when all are written.

    Clear the mask's bytes as they are written, when the memory is one declared array: it is the same mask each time.
    """
    start, end = flat.ctypes.data, flat.ctypes.data + flat.size
    result: np.ndarray | None = None
    for entry in list(_declared.values()):
        first, last = max(start, entry.start), min(end, entry.start + entry.size)
        if first >= last:
            continue
        mask = entry.mask[first - entry.start : last - entry.start]
        part = flat[first - start : last - start]
        if np.any(part[mask] != _PATTERN):
            mask[:] = False
        if last - first == flat.size:
            return mask if mask.any() else None
        if result is None:
            result = np.zeros(flat.size, np.bool_)
        result[first - start : last - start] = mask
    return result if result is not None and result.any() else None
