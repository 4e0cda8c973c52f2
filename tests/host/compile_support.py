"""What the tests of `torch.compile(…, backend="tilewright")` share; the fixture is imported by name."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tilewright.importers.torch_compile import _tell_of_gradients

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    _tell_of_gradients.cache_clear()
    yield
    torch._dynamo.reset()


def compiled(module: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(module, backend="tilewright", **options)


class Module(nn.Module):
    """A module of a function `body(module, *arguments)` and its submodules."""

    def __init__(self, body: Callable[..., Any], **members: nn.Module) -> None:
        super().__init__()
        self.body = body
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, *arguments: Any) -> Any:
        return self.body(self, *arguments)


def check(
    module: nn.Module,
    calls: Sequence[Sequence[Any]],
    gradients: bool = False,
    tolerance: dict[str, float] | None = None,
    **options: Any,
) -> None:
    """Compare a compiled module with a copy in PyTorch.

    Results, arguments and buffers that were changed, the generator's state, and with `gradients` those of the arguments
    and parameters must be equal within `tolerance` (ten times that for gradients).
    """
    tolerance = tolerance or TOLERANCE
    expected = copy.deepcopy(module)
    run = compiled(module, options={"effort": 0}, **options)
    for call in calls:
        ours, theirs = ([_argument(item, gradients) for item in call] for _ in range(2))
        with torch.set_grad_enabled(gradients), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(7)
            wanted, state = expected(*theirs), None
            state = torch.get_rng_state()
            torch.manual_seed(7)
            found = run(*ours)
        assert torch.equal(state, torch.get_rng_state())
        _compare([found, ours], [wanted, theirs], tolerance)
        if gradients:
            _loss(wanted).backward()
            _loss(found).backward()
            _compare(
                _gradients(ours, module), _gradients(theirs, expected), {name: 10 * v for name, v in tolerance.items()}
            )
    _compare(list(module.buffers()), list(expected.buffers()), tolerance)


def _argument(item: Any, gradients: bool) -> Any:
    if not isinstance(item, torch.Tensor):
        return item
    return item.clone().requires_grad_(gradients and item.is_floating_point())


def _loss(results: Any) -> torch.Tensor:
    leaves = [item for item in torch.utils._pytree.tree_leaves(results) if isinstance(item, torch.Tensor)]
    total = torch.zeros(())
    for item in leaves:
        if item.requires_grad:
            total = total + (item * torch.linspace(0.5, 1.5, item.numel()).view(item.shape)).square().sum()
    return total


def _gradients(arguments: Sequence[Any], module: nn.Module) -> list[Any]:
    given = [item for item in arguments if isinstance(item, torch.Tensor)]
    return [item.grad for item in (*given, *module.parameters())]


def _compare(found: Any, wanted: Any, tolerance: dict[str, float]) -> None:
    pairs = zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(wanted), strict=True)
    for one, other in pairs:
        if isinstance(other, torch.Tensor):
            assert one.requires_grad == other.requires_grad
            torch.testing.assert_close(one, other, **tolerance)
        else:
            assert one == other
