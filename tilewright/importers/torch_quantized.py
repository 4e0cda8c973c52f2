"""Replaces dynamic-quantized modules (`quantize_dynamic`) by plain ones that round as PyTorch does on x86.

Weights are whole numbers of 8 bits times a scale; the input of a product is rounded to 7 bits between its least and its
greatest element, each time. Weights in float16 are float16 numbers, and nothing else is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from tilewright.errors import ImportModelError
from tilewright.importers.torch_packed import Padded, begin, inside_of

_STEPS = 127
_LEAST_STEP = 6.1e-5  # smaller ones PyTorch takes for this


@contextmanager
def plain_layers(module: nn.Module, packed: Padded) -> Iterator[None]:
    """The dynamic-quantized modules in a module as plain ones; `packed` has the packed sequences of the export.

    Raises `ImportModelError` for quantized modules of other kinds.
    """
    replaced: list[tuple[nn.Module, str, nn.Module]] = []
    try:
        plain: dict[nn.Module, nn.Module | None] = {}  # a module may have several names
        for path, child in list(module.named_modules(remove_duplicate=False)):
            if not type(child).__module__.startswith("torch.ao.nn.quantized") or _is_reference(child):
                continue
            if child not in plain:
                plain[child] = _plain(child, path, packed)
            made = plain[child]
            if made is not None:
                holder, _, name = path.rpartition(".")
                parent = module.get_submodule(holder)
                replaced.append((parent, name, child))
                setattr(parent, name, made)
        yield
    finally:
        for parent, name, child in replaced:
            setattr(parent, name, child)


def _is_reference(child: nn.Module) -> bool:
    """Whether it is a float module, which rounds its weights when it is called."""
    return ".quantized.reference." in type(child).__module__


def _plain(layer: Any, path: str, packed: Padded) -> nn.Module | None:
    """What computes as a quantized module does; None for a part of one, such as its packed weights."""
    kind = type(layer).__name__
    dynamic = ".dynamic." in type(layer).__module__
    if path and dynamic and kind in _DYNAMIC:
        return _DYNAMIC[kind](layer, packed)
    if path and kind in ("Embedding", "EmbeddingBag"):
        return _embedding(layer, kind)
    if "PackedParam" in kind or kind == "PackedParameter":
        return None
    where = f"module {path!r}" if path else "the model itself"
    raise ImportModelError(
        f"{where} is a quantized {kind}; only linear and recurrent layers, recurrent cells and embeddings of "
        "quantize_dynamic, inside a model, are taken: give the module as it was before it was quantized, as "
        "prepare_qat left it, or as convert_to_reference_fx makes it"
    )


def rounded(x: Tensor) -> Tensor:
    """`x` in 128 steps between its least and its greatest element, 0 among them."""
    low, high = x.amin().clamp(max=0.0), x.amax().clamp(min=0.0)
    step = (high - low) / _STEPS
    zero = torch.where(step > 0, -low / step, 0.0).round()
    step = torch.where(step > 0, step.clamp(min=_LEAST_STEP), 0.1)
    return (((x * step.reciprocal()).round() + zero).clamp(0, _STEPS) - zero) * step


class _QuantizedProduct(nn.Module):
    """y = x' w + b, with x' as the layer rounds x."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.rounds = weight.is_quantized
        self.register_buffer("weight", weight.dequantize() if self.rounds else weight.half().float())
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(rounded(x) if self.rounds else x, self.weight, self.bias)


def _linear(layer: Any, packed: Padded) -> nn.Module:
    return _QuantizedProduct(*layer._weight_bias())


class _QuantizedCell(nn.Module):
    """The step of a recurrent layer: from the input's product and the states to new states, the output first."""

    def __init__(self, kind: str, state: _QuantizedProduct) -> None:
        super().__init__()
        self.kind = kind
        self.state = state

    def forward(self, x: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
        hidden = states[0]
        product = self.state(hidden)
        if self.kind in ("RNN_TANH", "RNN_RELU"):
            return [(x + product).tanh() if self.kind == "RNN_TANH" else (x + product).relu()]
        if self.kind == "GRU":
            (reset_x, update_x, new_x), (reset_h, update_h, new_h) = x.chunk(3, -1), product.chunk(3, -1)
            update = (update_x + update_h).sigmoid()
            new = (new_x + (reset_x + reset_h).sigmoid() * new_h).tanh()
            return [(hidden - new) * update + new]
        into, forget, new, out = (x + product).chunk(4, -1)
        memory = forget.sigmoid() * states[1] + into.sigmoid() * new.tanh()
        return [out.sigmoid() * memory.tanh(), memory]


class _SingleCell(nn.Module):
    """`LSTMCell`, `GRUCell`, `RNNCell`."""

    def __init__(self, layer: Any, packed: Padded) -> None:
        super().__init__()
        kind = type(layer).__name__.removesuffix("Cell")
        weights, biases = layer.get_weight(), layer.get_bias()
        self.input = _QuantizedProduct(weights["weight_ih"], biases["bias_ih"])
        name = f"RNN_{layer.nonlinearity.upper()}" if kind == "RNN" else kind
        self.cell = _QuantizedCell(name, _QuantizedProduct(weights["weight_hh"], biases["bias_hh"]))
        self.hidden = layer.hidden_size

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        pair = self.cell.kind == "LSTM"
        if hx is None:
            hx = input.new_zeros(input.shape[0], self.hidden)
            hx = (hx, hx) if pair else hx
        states = self.cell(self.input(input), hx if pair else [hx])
        return tuple(states) if pair else states[0]


class _Layers(nn.Module):
    """`LSTM` and `GRU`, every step of which rounds the states anew."""

    def __init__(self, layer: Any, packed: Padded) -> None:
        super().__init__()
        self.mode, self.hidden_size, self.batch_first = layer.mode, layer.hidden_size, layer.batch_first
        self.num_layers, self.bidirectional, self.packed = layer.num_layers, layer.bidirectional, packed
        weights, biases = layer.get_weight(), layer.get_bias()
        names = [f"l{number}" for number in range(layer.num_layers)]
        self.names = [[name, f"{name}_reverse"] if layer.bidirectional else [name] for name in names]
        self.inputs, self.cells = nn.ModuleDict(), nn.ModuleDict()
        for name in (name for pair in self.names for name in pair):
            self.inputs[name] = _QuantizedProduct(weights[f"weight_ih_{name}"], biases[f"bias_ih_{name}"])
            self.cells[name] = _QuantizedCell(
                layer.mode, _QuantizedProduct(weights[f"weight_hh_{name}"], biases[f"bias_hh_{name}"])
            )

    def forward(self, input: Any, hx: Any = None) -> Any:
        if isinstance(input, nn.utils.rnn.PackedSequence):
            return self.packed.walked(input, hx, self, self._walk)
        x = input.transpose(0, 1) if self.batch_first else input
        result, *last = self._walk(x, None, begin(self, x, hx))
        return result.transpose(0, 1) if self.batch_first else result, tuple(last) if self.mode == "LSTM" else last[0]

    def _walk(self, x: Tensor, lengths: Tensor | None, first: list[Tensor]) -> list[Tensor]:
        """Outputs [steps, batch, width] and last states; of padded sequences, if there are lengths."""
        inside = x.new_ones(x.shape[0], x.shape[1], 1, dtype=torch.bool)
        if lengths is not None:  # what follows the ends does not count for the ranges
            inside = inside_of(lengths, x.shape[0])[:, :, None]
        states = iter(zip(*(state.unbind(0) for state in first), strict=True))
        ends: list[list[Tensor]] = []
        for names in self.names:
            x = x if lengths is None else torch.where(inside, x, 0.0)
            sides = [self._direction(name, x, inside, next(states)) for name in names]
            x = torch.cat([out for out, _ in sides], -1)
            ends += [end for _, end in sides]
        return [x if lengths is None else torch.where(inside, x, 0.0), *map(torch.stack, zip(*ends, strict=True))]

    def _direction(self, name: str, x: Tensor, inside: Tensor, first: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The outputs of all steps and the last states."""
        cell = self.cells[name]

        def step(states: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], Tensor]:
            row, here = now
            new = cell(row, [torch.where(here, state, 0.0) for state in states])
            new = [torch.where(here, value, state) for value, state in zip(new, states, strict=True)]
            return new, new[0].clone()

        backwards = name.endswith("_reverse")
        start = [state.clone() for state in first]  # scan takes no state twice
        last, rows = scan(step, start, [self.inputs[name](x), inside], dim=0, reverse=backwards)
        return rows, last


def _layers(layer: Any, packed: Padded) -> nn.Module:
    """Recurrent layers; those with weights in float16 are PyTorch's own."""
    weights, biases = layer.get_weight(), layer.get_bias()
    if layer.dtype != torch.float16:
        return _Layers(layer, packed)
    kind = nn.LSTM if layer.mode == "LSTM" else nn.GRU
    made = kind(
        layer.input_size, layer.hidden_size, layer.num_layers, True, layer.batch_first, layer.dropout,
        layer.bidirectional,
    )  # fmt: skip
    made.load_state_dict({**{name: value.half().float() for name, value in weights.items()}, **biases})
    return made.eval()


def _embedding(layer: Any, kind: str) -> nn.Module:
    """Embeddings whose rows are rounded, as a table of what the rows stand for."""
    table = layer.weight().dequantize()
    if kind == "Embedding":
        return nn.Embedding.from_pretrained(table)
    return nn.EmbeddingBag.from_pretrained(table, mode="sum", include_last_offset=layer.include_last_offset)


_DYNAMIC = {
    "Linear": _linear, "LinearReLU": lambda *given: nn.Sequential(_linear(*given), nn.ReLU()), "LSTM": _layers,
    "GRU": _layers, "LSTMCell": _SingleCell, "GRUCell": _SingleCell, "RNNCell": _SingleCell,
}  # fmt: skip
