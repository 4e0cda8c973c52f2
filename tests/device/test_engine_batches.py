"""Batched products in engines on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.batched_products import product  # noqa: E402
from tilewright.build.builder import build  # noqa: E402
from tilewright.build.tuning import Tuning  # noqa: E402
from tilewright.dtypes import float16  # noqa: E402


@pytest.mark.hopper
@pytest.mark.parametrize("transposed", [True, False])
def test_batches(monkeypatch: pytest.MonkeyPatch, transposed: bool, rng: np.random.Generator) -> None:
    """The Hopper kernel, untimed, for batches that end inside tiles; no bit differs from run to run."""
    monkeypatch.setattr("tilewright.library.matmul.simt._plain", lambda *arguments: [])
    engine = build(product(float16, "batches", "rows", transposed), "cuda", tuning=Tuning(0))
    for count, rows in ((1, 1), (3, 129), (8, 150)):
        shapes = {"left": (rows, 48), "right": (40, 48) if transposed else (48, 40), "residual": (rows, 40)}
        given = {name: torch.randn((count, *shape), device="cuda").half() for name, shape in shapes.items()}
        right = given["right"].double().mT if transposed else given["right"].double()
        exact = torch.nn.functional.gelu(given["left"].double() @ right + given["residual"].double())
        found, again = engine.run(given)["y"], engine.run(given)["y"]
        assert torch.equal(found, again) and (found.double() - exact).abs().max() <= 2.0**-7 * exact.abs().max()
