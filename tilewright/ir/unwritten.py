"""Unwritten memory: arrays declared as such, tracked from launch to launch.

A declared array is filled with a pattern.  Kernels that run with checks clear the mark of what they store.  Anything
else that writes to the array (host code, a compiled kernel) is not seen, but leaves the pattern changed: a word of
eight bytes counts as written when one of its bytes is another, and the whole array does if its elements are so narrow
(under four bytes) that one which is written alone may well look like the pattern.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

_PATTERN = np.frombuffer(bytes.fromhex("a53cd2695a0fb487"), np.uint8)  # no number of 8, 16 or 32 bits comes twice
_WORD = _PATTERN.size


class _Declared:
    """The bytes of one array and which of them are unwritten."""

    def __init__(self, flat: np.ndarray, by_words: bool) -> None:
        self.start, self.size, self.by_words = flat.ctypes.data, flat.size, by_words
        self.mask = np.ones(flat.size, np.bool_)


_declared: dict[int, _Declared] = {}


def declare(flat: np.ndarray, itemsize: int, owner: Any) -> None:
    """Watch the memory of `flat` (bytes, one dimension) for as long as `owner`, which it belongs to, lives."""
    if not flat.size:
        return
    flat[:] = np.resize(_PATTERN, flat.size)
    entry = _Declared(flat, itemsize >= _WORD // 2)
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
        _clear_changed(part, mask, (first - entry.start) % _WORD, entry.by_words)
        if last - first == flat.size:
            return mask if mask.any() else None
        if result is None:
            result = np.zeros(flat.size, np.bool_)
        result[first - start : last - start] = mask
    return result if result is not None and result.any() else None


def _clear_changed(part: np.ndarray, mask: np.ndarray, phase: int, by_words: bool) -> None:
    """Take the mark off what a changed byte tells of; `part` begins at byte `phase` of a word."""
    whole = np.zeros(-(-(phase + part.size) // _WORD) * _WORD, np.bool_)
    here = slice(phase, phase + part.size)
    whole[here] = mask & (part != np.resize(_PATTERN, whole.size)[here])
    if not by_words and whole.any():
        mask[:] = False
    elif by_words and whole.any():
        changed = np.repeat(whole.reshape(-1, _WORD).any(1), _WORD)
        mask[changed[here]] = False
