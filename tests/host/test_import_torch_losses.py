"""Losses that `torch.export` cannot trace, compared with PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tilewright.errors import InputError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

nn, F = torch.nn, torch.nn.functional
ROWS = torch.tensor([[1, 2, 2, 4], [3, 1, -100, -1], [7, 99, 0, -5]])  # entries past the lengths are padding
IN_A_LINE = torch.tensor([1, 2, 2, 4, 3, 1])
LENGTHS = [4, 2, 0]


def scores(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(3)).log_softmax(-1)


class Loss(nn.Module):
    """The loss with lengths as lists, or as arguments."""

    def __init__(self, inputs: Any = None, lengths: Any = None, **options: Any) -> None:
        super().__init__()
        self.inputs, self.lengths, self.loss = inputs, lengths, nn.CTCLoss(**options)

    def forward(self, x: Any, targets: Any, inputs: Any = None, lengths: Any = None) -> Any:
        inputs = self.inputs if inputs is None else inputs
        return self.loss(x, targets, inputs, self.lengths if lengths is None else lengths)


@pytest.mark.parametrize(
    ("inputs", "targets", "options"),
    [
        ([9, 7, 5], ROWS, {}),
        ([9, 3, 0], ROWS, {"reduction": "none"}),  # too few steps for two of the texts
        ([9, 3, 2], ROWS, {"reduction": "sum", "zero_infinity": True}),
        ([9, 3, 5], IN_A_LINE, {"reduction": "mean", "blank": 0}),
        ([9, 8, 5], IN_A_LINE - 1, {"reduction": "none", "blank": 4}),
    ],
)
@pytest.mark.parametrize("as_tensors", [False, True])
def test_losses(inputs: Any, targets: Any, options: Any, as_tensors: bool) -> None:
    example: Any = (scores(9, 3, 5), targets)
    model = Loss(**options) if as_tensors else Loss(inputs, LENGTHS, **options)
    example += (torch.tensor(inputs), torch.tensor(LENGTHS)) if as_tensors else ()
    graph = import_model(model, example)
    names = [value.name for value in graph.inputs]
    (found,) = reference.run(graph, {name: x.numpy() for name, x in zip(names, example, strict=True)}).values()
    np.testing.assert_allclose(found, model(*example).numpy(), rtol=1e-9)


def test_a_text_without_a_batch() -> None:
    model, example = Loss([9], [4], reduction="none"), (scores(9, 5), IN_A_LINE[:4])
    found = reference.run(import_model(model, example), {"x": example[0].numpy(), "targets": example[1].numpy()})
    np.testing.assert_allclose(next(iter(found.values())), model(*example).numpy(), rtol=1e-9)


def test_a_compiled_loss_of_any_size_and_what_it_refuses() -> None:
    model, lengths = Loss(reduction="none"), torch.tensor(LENGTHS)
    example = (scores(9, 3, 5, dtype=torch.float32), ROWS, torch.tensor([9, 7, 5]), lengths)
    axes = ({0: ("steps", 2, 20)}, {1: ("width", 2, 9)}, None, None)
    engine = tilewright.compile(model, example, target="cpu", effort=0, dynamic_shapes=axes)
    torch.testing.assert_close(engine(*example), model(*example))
    more = (scores(12, 3, 5, dtype=torch.float32), F.pad(ROWS, (0, 2), value=-100), torch.tensor([12, 0, 4]), lengths)
    torch.testing.assert_close(engine(*more), model(*more))
    for place, wrong in ((1, ROWS + 2), (2, torch.tensor([10, 7, 5])), (3, torch.tensor([5, 2, 0]))):
        with pytest.raises(InputError, match="of a CTC loss"):
            engine(*example[:place], wrong, *example[place + 1 :])


class _Adaptive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10], div_value=2.0)

    def forward(self, x: Any, target: Any) -> Any:
        return self.loss(x, target), self.loss(x[0], target[0]), self.loss.predict(x), self.loss.log_prob(x)


def test_adaptive_softmax_of_any_clusters() -> None:
    torch.manual_seed(0)
    module = _Adaptive().eval()
    example = (torch.randn(6, 8), torch.randint(0, 20, (6,)))
    shapes = {"x": {0: ("rows", 1, 9)}, "target": {0: ("rows", 1, 9)}}
    engine = tilewright.compile(module, example, shapes, "cpu", effort=0)
    for targets in ([3], [0, 1], [7, 3, 19], [15, 16, 19, 12], list(range(9))):
        x = torch.randn(len(targets), 8) * 3
        with torch.no_grad():
            expected = module(x, torch.tensor(targets))
        torch.testing.assert_close(engine(x, torch.tensor(targets)), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="targets are from 0 to 19"):
        engine(*example[:1], torch.tensor([0, 1, 2, 3, 4, -1]))
