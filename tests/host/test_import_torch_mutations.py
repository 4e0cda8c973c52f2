"""Parameters that a module writes."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tilewright.graph import reference  # noqa: E402
from tilewright.importers import import_model  # noqa: E402


class _Scaled(nn.Module):
    """A parameter that the model writes, and embeddings that scale their rows."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.tied = tied
        self.words = nn.Embedding(5, 3, max_norm=0.5)
        self.factor = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.factor.mul_(0.5)
        y = self.words(x) * self.factor + self.words(x[:1])
        return y @ self.words.weight.T if self.tied else y


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_that_the_model_writes_become_mutated_inputs(tied: bool) -> None:
    """Not those whose rows are scaled to a largest norm, alike at each call, unless more than embeddings reads them."""
    module = _Scaled(tied).eval()
    x = torch.tensor([[0, 3], [3, 1]])
    given = {name: each.detach().clone().numpy() for name, each in module.named_parameters()}
    graph = import_model(copy.deepcopy(module), (x,))
    written = {"factor", "words.weight"} if tied else {"factor"}
    assert {value.name for value in graph.inputs} == {"x", *written}
    assert {value.name for value in graph.mutations} == written
    with torch.no_grad():
        expected = module(x)
    found = reference.run(graph, {"x": x.numpy(), **{name: given[name] for name in written}})
    np.testing.assert_allclose(found["output"], expected.numpy(), rtol=1e-5)


class _ReadBefore(nn.Module):
    """A matrix that is read before an embedding scales its rows, or scaled to two norms."""

    def __init__(self, norms: tuple[float, ...]) -> None:
        super().__init__()
        self.norms = norms
        self.weight = nn.Parameter(torch.randn(5, 3) * 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = () if len(self.norms) > 1 else (self.weight.norm(dim=1),)
        return *before, *(nn.functional.embedding(x, self.weight, max_norm=norm) for norm in self.norms)


@pytest.mark.parametrize("norms", [(0.5,), (2.0, 0.5)])
def test_a_matrix_is_written_whose_numbers_are_read_before_they_are_scaled(norms: tuple[float, ...]) -> None:
    graph = import_model(_ReadBefore(norms).eval(), (torch.tensor([[0, 3], [3, 1]]),))
    assert {value.name for value in graph.mutations} == {"weight"}
