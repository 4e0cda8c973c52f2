"""The report of why a kernel was compiled again, and hooks before a launch."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.settings import settings

FACTOR = tl.constexpr(2)


@tilewright.jit
def scale(x, n, extra, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) * FACTOR + extra[0], mask=i < n)


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"n": 32}, ""),
    ({"n": 64}, ""),
    ({"n": 1}, "'n': i32 divisible by 16 -> the constant 1"),
    ({"n": 1, "BLOCK": 128}, "'BLOCK': 64 -> 128"),
    ({"n": 32, "BLOCK": 256}, "'BLOCK': 64 -> 256"),
    ({"x": np.zeros(256)}, "'x': *f32 divisible by 16 -> *f64 divisible by 16"),
    ({"extra": (2.0,)}, "'extra': (i32 divisible by 2) -> (f32)"),
    ({"debug": True}, "options: none -> debug=True"),
]


def test_reports_what_changed(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"x": np.zeros(256, np.float32), "n": 32, "extra": (2,), "BLOCK": 64}
    caplog.set_level(logging.WARNING, "tilewright.jit")
    with settings.scope(explain_recompile=True):
        for change, expected in CHANGES:
            caplog.clear()
            scale[(1,)](**{**base, **change})
            wanted = [f"kernel 'scale' is compiled again: {expected}"] if expected else []
            assert caplog.messages == wanted
        caplog.clear()
        monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(3))
        scale[(1,)](**base)
        assert len(caplog.messages) == 1 and "the captured FACTOR" in caplog.text
    caplog.clear()
    scale[(1,)](**{**base, "BLOCK": 32})
    assert not caplog.messages


def test_pre_run_hook() -> None:
    @tilewright.jit
    def clear(x, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), 0.0)

    seen: list[Any] = []
    clear.add_pre_run_hook(lambda *arguments, **keywords: seen.append((arguments[0].sum(), keywords)))
    x = np.ones(16, np.float32)
    clear[(1,)](x, BLOCK=16)
    assert seen == [(16, {"BLOCK": 16})] and not x.any()
