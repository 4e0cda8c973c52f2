"""What keeps architectures from being built, as small modules: each is refused with its reason in the table."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilewright  # noqa: E402
from tilewright.errors import TilewrightError  # noqa: E402
from tools.architectures.table import meaning  # noqa: E402


class Named(nn.Module):
    """As Switch Transformers finds its experts: by a name that is made of numbers. Rows that are hit count too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({f"layer_{number}": nn.Linear(3, 3) for number in range(3)})

    def forward(self, x: Any) -> Any:
        y = x
        for number in (x[:, 0, 0] > -9).nonzero():
            y = y + self.layers[f"layer_{number[0]}"](x)
        return y


class OneBatch(nn.Module):
    """As anchors that are made for the batch of the first call."""

    def forward(self, x: Any) -> Any:
        return x.reshape(3, 15) * 2


def quantized() -> nn.Module:
    return nn.Sequential(torch.ao.nn.quantized.Conv1d(5, 2, 1))


@torch.library.custom_op("tilewright_tests::doubled", mutates_args=(), schema="(Tensor x) -> Tensor")
def doubled(x: Any) -> Any:
    """An operation of which PyTorch cannot tell the shapes of the results before it runs."""
    return x * 2


class WithoutShapes(nn.Module):
    """Calls such an operation."""

    def forward(self, x: Any) -> Any:
        return torch.ops.tilewright_tests.doubled(x)


REASONS = {
    "PyTorch does not export it": WithoutShapes,
    "its code depends on the numbers in tensors": Named,
    "PyTorch exports it for one size only": OneBatch,
    "quantized modules": quantized,
}


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.filterwarnings("ignore")
def test_reasons(reason: str) -> None:
    module = REASONS[reason]().eval()
    name = next(iter(inspect.signature(module.forward).parameters))
    axes = {name: {0: ("batch", 1, 8)}}
    with pytest.raises(TilewrightError) as refused:
        engine = tilewright.compile(module, (torch.randn(3, 5, 3),), target="cpu", effort=0, dynamic_shapes=axes)
        engine(torch.randn(1, 5, 3))
    assert meaning({"reason": f"{type(refused.value).__name__}: {refused.value}"}) == reason


def test_a_program_that_pytorch_does_not_decompose(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Switch Transformers in newer versions of PyTorch, which export it."""
    program = torch.export.export(nn.Linear(2, 2), (torch.randn(1, 2),))

    def fail(*arguments: Any) -> Any:
        raise AssertionError("expected sympy.Symbol")

    monkeypatch.setattr(type(program), "run_decompositions", fail)
    with pytest.raises(TilewrightError) as refused:
        tilewright.compile(program, target="cpu", effort=0)
    reason = meaning({"reason": f"{type(refused.value).__name__}: {refused.value}"})
    assert reason == "PyTorch does not decompose what it exported"


def test_a_failure_of_pytorch_itself() -> None:
    assert meaning({"reason": "PyTorch's own torch.compile fails as well: ValueError"}) == (
        "PyTorch's own torch.compile fails"
    )
