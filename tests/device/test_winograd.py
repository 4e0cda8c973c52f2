"""Float32 convolutions by Winograd's F(m, r), on the GPU: drawn taps, epilogues, and parts of the images."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.test_engine_gpu_winograd import channels_last, check, drawn, small  # noqa: F401


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("last", [False, True])
def test_drawn_convolutions(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, number: int, last: bool) -> None:
    if last:
        channels_last(monkeypatch)
    rng = np.random.default_rng((number, int(rng.integers(1 << 32))))
    taps = (int(rng.integers(1, 8)), int(rng.integers(2, 6)))
    assert check(drawn(rng, taps), rng) >= 3
