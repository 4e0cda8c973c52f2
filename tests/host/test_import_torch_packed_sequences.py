"""Packed sequences and dynamic-quantized recurrent layers in PyTorch modules."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence  # noqa: E402

import tilewright  # noqa: E402
from tilewright.errors import InputError  # noqa: E402

AXES = {"x": {0: ("batch", 1, 8), 1: ("steps", 1, 16)}, "lengths": {0: ("batch", 1, 8)}}
SIZES = ((1, 1), (2, 5), (8, 16), (3, 6))


class Packed(nn.Module):
    """As people write it; `what` is used of the results."""

    def __init__(self, kind: str, what: str = "all", enforce_sorted: bool = False, **options: Any) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(8, 12, batch_first=True, **options)
        self.project = nn.Linear(8, 8)
        self.what, self.sorted = what, enforce_sorted

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=self.sorted)
        if self.what == "rows":  # a layer on the rows of the packed sequence, which are results as well
            data = self.project(packed.data)
            packed = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        out, state = self.layer(input=packed)
        if self.what == "rows":
            return out.data, state
        if self.what == "state":
            return state
        padding, total = (-1.0, None) if self.what == "all" else (0.0, x.shape[1])
        return *pad_packed_sequence(out, batch_first=True, padding_value=padding, total_length=total), state


def difference(engine: Any, module: nn.Module, sizes: Any = SIZES, order: bool = False) -> float:
    """The largest one of the results, at sizes of the batch and the length."""
    worst = 0.0
    for batch, steps in sizes:
        x, lengths = torch.randn(batch, steps, 8), torch.randint(1, steps + 1, (batch,))
        lengths = lengths.sort(descending=True).values if order else lengths
        leaves = [torch.utils._pytree.tree_leaves(called(x, lengths)) for called in (module, engine)]
        for wanted, found in zip(*leaves, strict=True):
            assert wanted.shape == found.shape and wanted.dtype == found.dtype
            worst = max(worst, float((wanted.detach().double() - found.double()).abs().max()))
    return worst


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(
    "kind, what, order, options",
    [
        ("LSTM", "all", False, {"bidirectional": True, "num_layers": 2}),
        ("GRU", "state", False, {"bias": False}),
        ("GRU", "rows", True, {"bidirectional": True}),
        ("RNN", "whole length", True, {"nonlinearity": "relu"}),
    ],
)
def test_packed_sequences(kind: str, what: str, order: bool, options: Any) -> None:
    module = Packed(kind, what, order, **options).eval()
    example = (torch.randn(3, 6, 8), torch.tensor([6, 4, 2]))
    engine = tilewright.compile(module, example, target="cpu", effort=0, dynamic_shapes=AXES)
    assert difference(engine, module, order=order) < 1e-5
    with torch.no_grad():  # the module is as it was
        assert module(*example)[0].shape == engine(*example)[0].shape


def test_lengths_that_do_not_fit_are_an_error() -> None:
    engine = tilewright.compile(
        Packed("GRU", "state").eval(), (torch.randn(3, 6, 8), torch.tensor([6, 4, 2])), target="cpu", effort=0
    )
    for lengths in ([7, 4, 2], [6, 0, 2]):
        with pytest.raises(InputError, match=r"lengths of packed sequences are from 1 to the number of steps"):
            engine(torch.randn(3, 6, 8), torch.tensor(lengths))


def test_sequences_that_are_packed_one_by_one() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(8, 4)

        def forward(self, a: Any, b: Any) -> Any:
            out, (h, c) = self.layer(pack_sequence([a, b], enforce_sorted=False))
            return pad_packed_sequence(out)[0], h, c

    module, example = Several().eval(), (torch.randn(3, 8), torch.randn(5, 8))
    engine = tilewright.compile(module, example, target="cpu", effort=0)
    for wanted, found in zip(module(*example), engine(*example), strict=True):
        torch.testing.assert_close(wanted, found)


def test_a_packed_sequence_as_input_and_result() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(8, 4, bidirectional=True)

        def forward(self, packed: Any) -> Any:
            return self.layer(packed)

    module = Own().eval()
    packed = pack_sequence([torch.randn(3, 8), torch.randn(5, 8)], enforce_sorted=False)
    engine = tilewright.compile(module, (packed,), target="cpu", effort=0)
    (out, state), (found, last) = module(packed), engine(*packed)
    assert isinstance(found, PackedSequence)
    for wanted, tensor in zip((*out, state), (*found, last), strict=True):
        torch.testing.assert_close(wanted, tensor)


# Dynamic-quantized layers ------------------------------------------------------------------------------


def quantized(module: nn.Module, dtype: Any = torch.qint8) -> nn.Module:
    from torch.ao.quantization import quantize_dynamic

    kinds = {nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell, nn.RNNCell, nn.Linear}
    return quantize_dynamic(module.eval(), kinds, dtype=dtype)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize("kind, options", [("LSTM", {"bidirectional": True, "num_layers": 2}), ("GRU", {})])
@pytest.mark.filterwarnings("ignore")
def test_quantized_layers(kind: str, options: Any, dtype: Any) -> None:
    """States are rounded at every step, by the range over those sequences that are not at their end."""
    module = quantized(Packed(kind, "all", **options), dtype)
    example = (torch.randn(3, 6, 8), torch.tensor([6, 4, 2]))
    engine = tilewright.compile(module, example, target="cpu", effort=0, dynamic_shapes=AXES)
    # A number on the border of two steps may be rounded to either, in one of the calls.
    found = sorted(difference(engine, module, (size,)) for size in SIZES)
    assert found[2] < 1e-5 and found[-1] < 0.05


@pytest.mark.filterwarnings("ignore")
def test_quantized_layers_and_cells_of_plain_sequences() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LSTMCell(8, 12), nn.GRUCell(12, 8)
            self.third, self.layer = nn.RNNCell(8, 8, nonlinearity="relu"), nn.LSTM(8, 6, batch_first=True)

        def forward(self, x: Any) -> Any:
            h, c = self.first(x[:, 0])
            h, c = self.first(x[:, 1], (h, c))
            state = self.third(x[:, 2], self.second(h))
            return state, c, self.layer(x)

    module = quantized(Model())
    engine = tilewright.compile(module, (torch.randn(4, 12, 8),), target="cpu", effort=0)
    found = []
    for _ in range(5):
        x = torch.randn(4, 12, 8)
        pairs = zip(*(torch.utils._pytree.tree_leaves(called(x)) for called in (module, engine)), strict=True)
        found.append(max(float((wanted - result).abs().max()) for wanted, result in pairs))
    assert sorted(found)[2] < 1e-5 and max(found) < 0.05


@pytest.mark.filterwarnings("ignore")
def test_quantized_layers_of_several_names() -> None:
    """A layer in two places, and a part that is; the module is as it was afterwards."""
    module: Any = quantized(nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 8)))
    module.append(module[0])
    module[1].append(module[0])
    module.append(module[1])
    first, inner, engine = module[0], module[1][0], tilewright.compile(module, (torch.randn(4, 8),), effort=0)
    found = sorted(float((module(x) - engine(x)).abs().max()) for x in torch.randn(5, 4, 8))
    assert found[2] < 1e-5 and found[-1] < 0.05
    assert module[0] is module[3] is module[1][2] is first and module[1][0] is inner


@pytest.mark.filterwarnings("ignore")
def test_quantized_embeddings() -> None:
    from torch.ao.quantization import float_qparams_weight_only_qconfig, quantize_dynamic

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.bag = nn.Embedding(10, 8), nn.EmbeddingBag(10, 8, mode="sum")

        def forward(self, x: Any) -> Any:
            return self.table(x).sum(1) + self.bag(x)

    kinds = {nn.Embedding: float_qparams_weight_only_qconfig, nn.EmbeddingBag: float_qparams_weight_only_qconfig}
    module, x = quantize_dynamic(Model().eval(), kinds), torch.randint(10, (4, 3))
    torch.testing.assert_close(tilewright.compile(module, (x,), target="cpu", effort=0)(x), module(x))
