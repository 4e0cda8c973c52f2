"""Constants that are folded for the kernels that read them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.passes.fold_constants import fold_tables
from tilewright.graph.reference import run
from tilewright.importers import images, import_model

torch = pytest.importorskip("torch")


def test_taps_of_a_transposed_convolution_are_arranged_when_it_is_built() -> None:
    module = torch.nn.ConvTranspose2d(40, 48, 5, stride=2, padding=1).eval()
    graph = fold_tables(import_model(module, (torch.randn(1, 40, 6, 7),)))
    (conv,) = [node for node in graph.nodes if node.op == "conv"]
    assert conv.inputs[1] in graph.constants
    assert graph.constants[conv.inputs[1]].nbytes == np.prod((40, 48, 6, 6)) * 4


def test_loops_of_several_results_stay() -> None:
    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            below = lambda i, a: i < n  # noqa: E731
            return torch._higher_order_ops.while_loop(below, lambda i, a: (i + 1, a * 2), (torch.zeros_like(n), x))

    graph = import_model(Both(), (torch.ones(3), torch.tensor(4)))
    assert [node.op for node in fold_tables(graph).nodes if len(node.outputs) > 1] == ["loop"]


@pytest.mark.parametrize("groups", [1, 2])
def test_phases_with_fewer_taps_have_convolutions_of_their_own(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where zeros in their place were much work: three taps at a stride of two are two and one, along each axis."""
    monkeypatch.setattr(images, "_MUCH", 1)
    monkeypatch.setattr(images, "_MUCH_OF_EACH", 1)
    torch.manual_seed(3)
    module = torch.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=groups).eval()
    x = torch.randn(2, 4, 5, 6)
    graph = import_model(module, (x,))
    taps = [node.inputs[1].shape[2:] for node in graph.nodes if node.op == "conv"]
    assert sorted(taps) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    (found,) = run(graph, {graph.inputs[0].name: x.numpy()}).values()
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5, atol=1e-5)
