"""Models that take derivatives themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tilewright.errors import ImportModelError
from tilewright.graph import reference
from tilewright.importers import import_model


def _force(x: torch.Tensor) -> torch.Tensor:
    x = x.requires_grad_()
    return -torch.autograd.grad((x**3).sum(), x)[0]


def test_models_that_take_derivatives() -> None:
    """Forces: gradients are enabled where the model asks for them."""
    x = torch.randn(5)
    graph = import_model(_force, (x.clone(),))
    (found,) = reference.run(graph, {value.name: x.numpy() for value in graph.inputs}).values()
    np.testing.assert_allclose(found, -3 * x.square().numpy(), rtol=1e-5)


@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="PyTorch 2.11 does not say what it cannot export")
def test_transforms_are_refused_with_advice() -> None:
    with pytest.raises(ImportModelError, match=r"derivatives by torch.func.*\n.*torch.autograd.grad"):
        import_model(lambda x: torch.func.grad(lambda y: (y**2).sum())(x), (torch.randn(5),))
