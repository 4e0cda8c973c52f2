"""Drawn operators of `benchmarks/breadth` under torch.compile on the GPU, compared with PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.breadth import arithmetic, blocks, elements, operators, places, products, rows, windows  # noqa: F401
from benchmarks.breadth.draw import FAMILIES, Draw
from benchmarks.breadth.measure import contestant, error_of, exact_results, is_right


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", FAMILIES)
def test_drawn_operators_are_right(name: str, number: int, rng: np.random.Generator, torch: Any) -> None:
    torch._dynamo.reset()
    torch.cuda.empty_cache()  # other processes run tests on the same GPU
    drawn = FAMILIES[name](Draw(name, number, int(rng.integers(1 << 31))))
    print(drawn.name)
    record: dict[str, Any] = {"errors": {}, "notes": {}}
    with torch.inference_mode():
        exact = exact_results(drawn, record)
        for contestant_name in ("eager", "tilewright"):
            found = contestant(drawn, contestant_name)()
            record["errors"][contestant_name] = error_of(drawn, found, exact)
    assert is_right(record), (drawn.name, record["errors"])
