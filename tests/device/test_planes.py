"""Float32 convolutions that stay channels-first, on the GPU: drawn windows, groups, ranks and epilogues."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.test_engine_gpu_planes import Case, check
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("number", range(16))
def test_drawn_convolutions(rng: np.random.Generator, number: int, dynamic: bool) -> None:
    case = Case(rng)
    graph = case.graph(dynamic)
    engine = build(graph, "cuda", tuning=Tuning(effort=0))
    for images in (1, 5) if dynamic else (case.images,):
        check(graph, engine, case.rng, images, case.depth)
