"""The bounds of JSON from files, beside a scan character by character."""

from __future__ import annotations

import gc
import json
import sys
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

from tilewright.engine import bounded_json
from tilewright.engine.bounded_json import read_json


def scanned(text: str) -> tuple[int, int]:
    """Depth and number of values outside of strings."""
    depth = deepest = values = place = 0
    inside = False
    while place < len(text):
        mark = text[place]
        if inside:
            place += mark == "\\"
            inside = mark != '"'
        elif mark == '"':
            inside = True
        elif mark in "[{":
            depth, values = depth + 1, values + 1
            deepest = max(deepest, depth)
        elif mark in "]}":
            depth -= 1
        else:
            values += mark == ","
        place += 1
    return deepest, values


def drawn(rng: np.random.Generator, depth: int = 0) -> Any:
    kind = rng.random()
    if depth > 6 or kind < 0.4:
        return "".join(rng.choice(list('\\"[]{},a')) for _ in range(rng.integers(0, 8)))
    if kind < 0.7:
        return [drawn(rng, depth + 1) for _ in range(rng.integers(0, 4))]
    return {drawn(rng, 9): drawn(rng, depth + 1) for _ in range(rng.integers(0, 3))}


def test_bounds_count_what_is_outside_of_strings(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(200):
        text = json.dumps(drawn(rng))
        depth, values = scanned(text)
        monkeypatch.setattr(bounded_json, "_SCANNED_AT_ONCE", int(rng.integers(1, 50)))
        for less_deep, fewer in ((0, 0), (1, 0), (0, 1)):
            monkeypatch.setattr(bounded_json, "MOST_DEPTH", depth - less_deep)
            monkeypatch.setattr(bounded_json, "MOST_VALUES", values - fewer)
            if (less_deep and depth) or (fewer and values):
                with pytest.raises(ValueError, match="at most"):
                    read_json(text.encode(), len(text))
            elif not less_deep and not fewer:
                assert read_json(text.encode(), len(text)) == json.loads(text)


def test_refusals_take_little_memory() -> None:
    tracemalloc.start()
    try:
        for data in (b"[" * 8_000_000, b'"",' * 5_000_000):
            with pytest.raises(ValueError, match="at most"):
                read_json(data, len(data))
        assert tracemalloc.get_traced_memory()[1] < 120 << 20
    finally:
        tracemalloc.stop()


def test_the_collector_goes_on_after_reads_in_many_threads() -> None:
    """A thread that begins while another one ends must not leave it off for the rest of the process."""
    text = b"[" + b"1," * (1 << 15) + b"1]"
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=lambda: [read_json(text, len(text)) for _ in range(4)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert gc.isenabled()
