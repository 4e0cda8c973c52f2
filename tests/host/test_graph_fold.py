"""Constants that are folded for the kernels that read them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.passes.fold_constants import fold_tables
from tilewright.importers import import_model

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
