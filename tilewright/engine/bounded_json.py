"""JSON from an untrusted file: size, depth and number of values are bounded before parsing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tilewright.garbage import collector_paused

MOST_DEPTH = 100
MOST_VALUES = 4_000_000
_SCANNED_AT_ONCE = 1 << 20  # bytes that are looked at together: sums take eight times as much memory


def read_json(data: bytes | memoryview, most_bytes: int) -> Any:
    """The value of UTF-8 JSON text; raises `ValueError` for what is malformed or beyond the bounds."""
    if len(data) > most_bytes:
        raise ValueError(f"{len(data)} bytes of JSON, at most {most_bytes} are read")
    text = str(data, "utf-8")
    _check_marks(np.frombuffer(data, np.uint8))
    if len(data) < _SCANNED_AT_ONCE:
        return json.loads(text)
    with collector_paused:  # it would go over all values again and again: 6.8 s in place of 0.25 s for 3 million
        return json.loads(text)


def _check_marks(text: np.ndarray) -> None:
    """Raise `ValueError` where what stands outside of strings is nested too deep or has too many values.

    A string that is not closed reaches to the end.
    """
    depth = values = quotes = escapes = 0  # so far; `escapes` backslashes stand right in front
    for start in range(0, len(text), _SCANNED_AT_ONCE):
        piece = text[start : start + _SCANNED_AT_ONCE]
        places = np.arange(len(piece))
        # The number of backslashes in front of each place: an odd one escapes it.
        others = np.maximum.accumulate(np.where(piece == ord("\\"), -1 - escapes, places))
        in_front = places - 1 - np.concatenate([[-1 - escapes], others[:-1]])
        escapes = int(len(piece) - 1 - others[-1])
        within = quotes + np.cumsum((piece == ord('"')) & (in_front % 2 == 0))
        quotes = int(within[-1]) % 2
        outside = within % 2 == 0
        opening, closing = (outside & np.isin(piece, np.frombuffer(pair, np.uint8)) for pair in (b"[{", b"]}"))
        depths = depth + np.cumsum(opening.astype(np.int32) - closing)
        depth, deepest = int(depths[-1]), int(depths.max())
        if deepest > MOST_DEPTH:
            raise ValueError(f"JSON that is nested over {MOST_DEPTH} deep: at most {MOST_DEPTH} are read")
        values += int(np.count_nonzero(opening) + np.count_nonzero(outside & (piece == ord(","))))
        if values > MOST_VALUES:
            raise ValueError(f"JSON of over {MOST_VALUES} values: at most {MOST_VALUES} are read")
