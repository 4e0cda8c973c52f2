"""What tells at each call that parameters of a compiled graph were changed, however they were written to."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.importers.torch_parameters import STRETCH, WHOLE, Contents, state_of  # noqa: E402


def drawn(rng: np.random.Generator) -> dict[int, torch.Tensor]:
    """Parameters by position: small ones and large ones, of several types; two share their memory."""
    kinds = (torch.float32, torch.float16, torch.int8)
    sizes = [*rng.integers(0, 3000, 4).tolist(), *rng.integers(WHOLE, 8 * WHOLE, 3).tolist()]
    found = {3 * at: torch.ones(size, dtype=kinds[at % 3]) for at, size in enumerate(sizes)}
    return {**found, 1: found[3 * (len(sizes) - 1)][5:]}


@pytest.mark.parametrize("seed", range(6))
def test_writes_to_most_of_parameters_are_found_at_once(seed: int) -> None:
    """All of them, where several were written to."""
    rng = np.random.default_rng(seed)
    parameters = drawn(rng)
    contents = Contents(parameters)
    assert not any(contents.changed() for _ in range(100))
    written = [at for at, item in parameters.items() if item.numel() and at != 1 and rng.random() < 0.5]
    for at in written:
        parameters[at].data.mul_(2)
    shared = max(parameters)  # position 1 has the same memory, and either of them tells
    found = {shared if at == 1 else at for at in contents.changed()}
    assert found == set(written)


def test_writes_to_a_part_are_found_soon() -> None:
    """Each stretch is compared once in as many calls as there are stretches."""
    parameters = {0: torch.zeros(40 * STRETCH, dtype=torch.uint8), 1: torch.zeros(7)}
    contents = Contents(parameters)
    parameters[0].numpy()[17 * STRETCH + 5] = 1
    found = [contents.changed() for _ in range(40)]
    assert found.count({0}) == 1 and found.count(set()) == 39


def test_what_pytorch_counts() -> None:
    parameter = torch.zeros(5)
    before = state_of(parameter)
    parameter.data.add_(1)
    assert state_of(parameter) == before
    parameter.add_(1)
    assert state_of(parameter) != before
    with torch.inference_mode():
        assert state_of(torch.zeros(3))[1] == 0
