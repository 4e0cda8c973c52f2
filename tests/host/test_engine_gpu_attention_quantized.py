"""Attention in engines for GPUs that stores its results quantized, on a stand-in for one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tests.quantized_attention import CASES, check, quantizing
from tilewright.build.builder import build


@pytest.mark.parametrize("name", CASES)
def test_results_are_stored_quantized(name: str, driver: Driver, rng: np.random.Generator) -> None:
    graph = quantizing(CASES[name])
    check(CASES[name], graph, build(graph, "cuda:sm_90a"), rng)
