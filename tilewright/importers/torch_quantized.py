"""Replaces quantized embeddings and recurrent layers by plain ones that round as PyTorch does on x86, and unpacks the
weights of all others, whose operators `torch_quantized_tensors` computes.

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
from torch.ao.quantization.fx import _decomposed as _decomposed  # defines the operators

from tilewright.errors import ImportModelError
from tilewright.importers.torch_packed_sequences import Padded, begin, inside_of

QUANTIZED_PACKAGES = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.sparse.quantized")
_operators: Any = torch.ops.quantized_decomposed
_LEAST_STEP = 6.1e-5  # smaller ones PyTorch takes for this


@contextmanager
def plain_layers(module: nn.Module, packed: Padded) -> Iterator[None]:
    """Embeddings and dynamic-quantized recurrent layers as plain modules; `packed` has the packed sequences of the
    export.

    Raises `ImportModelError` for one of them that is the model itself, and for sparse modules.
    """
    replaced: list[tuple[nn.Module, str, nn.Module]] = []
    try:
        plain: dict[nn.Module, nn.Module | None] = {}  # a module may have several names
        for path, child in list(module.named_modules(remove_duplicate=False)):
            if not type(child).__module__.startswith(QUANTIZED_PACKAGES) or is_reference(child):
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


def is_reference(child: nn.Module) -> bool:
    """Whether it is a float module, which rounds its weights when it is called."""
    return ".quantized.reference." in type(child).__module__


def _plain(layer: Any, path: str, packed: Padded) -> nn.Module | None:
    """What computes as a quantized module does; None for one whose operators are computed one by one."""
    kind, where = type(layer).__name__, type(layer).__module__
    embeds = kind in ("Embedding", "EmbeddingBag")
    recurrent = ".dynamic." in where and kind in _DYNAMIC
    if (embeds or recurrent) and not path:
        raise ImportModelError(f"the model itself is a quantized {kind}: give a module that has it inside")
    if where.startswith("torch.ao.nn.sparse"):
        raise ImportModelError(
            f"module {path!r} is a sparse quantized {kind}, whose packed form has no dense weights: give the module as "
            "it was before it was converted"
        )
    if embeds:
        return _embedding(layer, kind)
    return _DYNAMIC[kind](layer, packed) if recurrent else None


def rounded(x: Tensor, steps: int = 127) -> Tensor:
    """`x` in this many steps between its least and its greatest element, 0 among them."""
    return to_grid(x, *grid_of(x, steps), steps)


def grid_of(x: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The scale and the zero point of a dynamic layer's input."""
    low, high = x.amin().clamp(max=0.0), x.amax().clamp(min=0.0)
    step = (high - low) / steps
    zero = torch.where(step > 0, -low / step, 0.0).round()
    return torch.where(step > 0, step.clamp(min=_LEAST_STEP), 0.1), zero


def to_grid(x: Tensor, step: Tensor, zero: Tensor, steps: int) -> Tensor:
    """`x` as integers from 0 to `steps` stand for it."""
    return (((x * step.reciprocal()).round() + zero).clamp(0, steps) - zero) * step


class UnpackedWeights(nn.Module):
    """Weights of a quantized layer as the integers, scales and zero points that its packed form holds, and the floats
    that a layer with weights in float16 has.

    `packed` is a `torch.classes.quantized` object of a linear layer or a convolution, or a weight and a bias.
    """

    weight: Tensor
    bias: Tensor | None
    scale: Tensor
    zero: Tensor

    def __init__(self, packed: Any) -> None:
        super().__init__()
        weight, bias = packed if isinstance(packed, tuple) else packed.unpack()
        self.rounds = weight.is_quantized
        self.axis = None
        self.convolution = None if isinstance(packed, tuple) or not hasattr(packed, "stride") else _options(packed)
        self.register_buffer("bias", None if bias is None else bias.detach())
        self.register_buffer("weight", weight.int_repr() if self.rounds else weight.half().float())
        if self.rounds and weight.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric):
            self.axis = weight.q_per_channel_axis()
            self.register_buffer("scale", weight.q_per_channel_scales().float())
            zeros = weight.q_per_channel_zero_points()
            self.register_buffer("zero", zeros if zeros.any() else None)
        elif self.rounds:
            self.number = weight.q_scale(), weight.q_zero_point()

    def floats(self) -> Tensor:
        """What the weights stand for."""
        if not self.rounds:
            return self.weight
        limits = (0, 255) if self.weight.dtype == torch.uint8 else (-128, 127)
        given = *limits, self.weight.dtype
        if self.axis is None:
            found: Tensor = _operators.dequantize_per_tensor(self.weight, *self.number, *given)
        else:
            found = _operators.dequantize_per_channel(self.weight, self.scale, self.zero, self.axis, *given)
        return found

    def product(self, x: Tensor) -> Tensor:
        """The layer in floats."""
        if self.convolution is None:
            return nn.functional.linear(x, self.floats(), self.bias)
        weights, (transposed, options) = self.floats(), self.convolution
        line = x.dim() == weights.dim() - 1  # PyTorch packs those of one dimension as images of one row
        image = x.unsqueeze(-2) if line else x
        names = ("conv_transpose2d", "conv_transpose3d") if transposed else ("conv2d", "conv3d")
        found: Tensor = getattr(nn.functional, names[weights.dim() - 4])(image, weights, self.bias, **options)
        return found.squeeze(-2) if line else found


def _options(packed: Any) -> tuple[bool, dict[str, Any]]:
    """Whether a convolution is transposed, and its arguments after the weights and the bias."""
    options = {name: list(getattr(packed, name)()) for name in ("stride", "padding", "dilation")}
    transposed = bool(packed.transpose())
    more = {"output_padding": list(packed.output_padding())} if transposed else {}
    return transposed, {**options, **more, "groups": packed.groups()}


class _QuantizedProduct(UnpackedWeights):
    """y = x' w + b, with x' as a dynamic layer rounds x."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__((weight, bias))

    def forward(self, x: Tensor) -> Tensor:
        return self.product(rounded(x) if self.rounds else x)


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
    "LSTM": _layers, "GRU": _layers, "LSTMCell": _SingleCell, "GRUCell": _SingleCell, "RNNCell": _SingleCell,
}  # fmt: skip
