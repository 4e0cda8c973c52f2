"""Packed sequences for `torch.export`: padded sequences that keep their lengths.

What `pack_padded_sequence` gives has as many rows as all sequences have steps, which only a run knows. Recurrent layers
do not need them: they take the padded sequences, by an operator that keeps the states after each sequence's end. Only
code that reads `PackedSequence.data` itself has the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

_Layer = Callable[..., Any]


@torch.library.custom_op("tilewright::known_lengths", mutates_args=())
def known_lengths(lengths: Tensor, steps: int) -> Tensor:
    """`lengths`, int64 [batch], of which each is from 1 to `steps`."""
    return lengths.clone()


@known_lengths.register_fake
def _(lengths: Tensor, steps: int) -> Tensor:
    return torch.empty_like(lengths)


@torch.library.custom_op("tilewright::padded_layers", mutates_args=())
def padded_layers(
    x: Tensor, lengths: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, layers: int,
    bidirectional: bool, kind: str,
) -> list[Tensor]:  # fmt: skip
    """Recurrent layers over padded sequences [steps, batch, width]: outputs, zeros after each end, and last states.

    `kind`: ``LSTM``, ``GRU``, ``RNN_TANH`` or ``RNN_RELU``; the rest as for PyTorch's operators.
    """
    data, sizes = torch.ops.aten._pack_padded_sequence(x, lengths, False)
    hidden: Any = list(states) if kind == "LSTM" else states[0]
    operator = getattr(torch.ops.aten, kind.lower()).data
    out, *last = operator(data, sizes, hidden, list(params), has_biases, layers, 0.0, False, bidirectional)
    padded, _ = torch.ops.aten._pad_packed_sequence(out, sizes, False, 0.0, x.shape[0])
    return [padded, *last]


@padded_layers.register_fake
def _(
    x: Tensor,
    lengths: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    bidirectional: bool,
    kind: str,
) -> list[Tensor]:
    width = states[0].shape[2] * (2 if bidirectional else 1)
    return [x.new_empty(*x.shape[:2], width), *(torch.empty_like(state) for state in states)]


class Padded:
    """The padded form [steps, batch, …] of every packed sequence, for the time of an export."""

    def __init__(self) -> None:
        # By identity: of a packed sequence's sizes its lengths and number of steps, of its rows the padded form.
        self.lengths: dict[int, tuple[Tensor, Tensor, Any]] = {}
        self.rows: dict[int, tuple[Tensor, Tensor]] = {}

    def pack(self, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        """In the place of PyTorch's `_pack_padded_sequence`: the rows of all steps, and how many each step has."""
        padded = x.transpose(0, 1) if batch_first else x
        steps, batch = padded.shape[0], padded.shape[1]
        torch._check(lengths.shape[0] == batch, lambda: f"{lengths.shape[0]} lengths of {batch} sequences")
        lengths = known_lengths(lengths, steps)
        longest: Any = lengths.max().item()
        torch._check(longest >= 1)
        torch._check(longest <= steps)
        sizes = inside_of(lengths, steps).sum(1).narrow(0, 0, longest)
        self.lengths[id(sizes)] = sizes, lengths, steps
        return self._rows(padded, sizes), sizes

    def _of(self, sizes: Tensor) -> tuple[Tensor, Any]:
        """Lengths and number of steps of a packed sequence, which may be an input of the module."""
        if id(sizes) not in self.lengths:
            batch: Any = sizes[0].item()
            torch._check(batch >= 1)
            lengths = (torch.arange(batch, device=sizes.device) < sizes[:, None]).sum(0)
            self.lengths[id(sizes)] = sizes, lengths, sizes.shape[0]
        return self.lengths[id(sizes)][1:]

    def _rows(self, padded: Tensor, sizes: Tensor) -> Tensor:
        lengths, steps = self._of(sizes)
        data = padded.flatten(0, 1)[inside_of(lengths, steps).flatten()]
        self.rows[id(data)] = data, padded
        return data

    def unpacked(self, data: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """The padded form of a packed sequence, and its lengths; what follows the ends has no meaning."""
        lengths, steps = self._of(sizes)
        if id(data) in self.rows:
            return self.rows[id(data)][1], lengths
        inside = inside_of(lengths, steps).flatten()  # rows that the module computed from others
        place = (inside.cumsum(0) - 1).clamp(min=0)
        padded = data.index_select(0, place).unflatten(0, (steps, lengths.shape[0]))
        self.rows[id(data)] = data, padded
        return padded, lengths

    def pad(self, data: Tensor, sizes: Tensor, batch_first: bool, padding: float, length: Any) -> tuple[Tensor, Tensor]:
        """In the place of PyTorch's `_pad_packed_sequence`."""
        padded, lengths = self.unpacked(data, sizes)
        inside = inside_of(lengths, padded.shape[0])
        inside = inside.reshape(*inside.shape, *[1] * (padded.dim() - 2))
        padded = torch.where(inside, padded, padding)
        longest = sizes.shape[0]
        if length is longest:
            padded = padded.narrow(0, 0, longest)
        elif length is not padded.shape[0]:
            more = padded.new_full((length, *padded.shape[1:]), padding)
            padded = torch.cat([padded, more]).narrow(0, 0, length)
        return (padded.transpose(0, 1) if batch_first else padded), lengths

    def layer(self, plain: _Layer) -> _Layer:
        """`forward` of a recurrent layer for packed sequences too."""
        around = self.walked

        def forward(self: Any, input: Any, hx: Any = None) -> Any:
            if not isinstance(input, PackedSequence):
                return plain(self, input, hx)

            def walk(padded: Tensor, lengths: Tensor, states: list[Tensor]) -> list[Tensor]:
                params, layers, bidirectional = self._flat_weights, self.num_layers, self.bidirectional
                return padded_layers(padded, lengths, states, params, self.bias, layers, bidirectional, self.mode)

            return around(input, hx, self, walk)

        return forward

    def walked(self, x: PackedSequence, hx: Any, module: Any, walk: Callable[..., list[Tensor]]) -> Any:
        """What a recurrent layer gives for a packed sequence: `walk` takes the padded form, its lengths and the first
        states, and gives outputs and last states."""
        padded, lengths = self.unpacked(x.data, x.batch_sizes)
        result, *last = walk(padded, lengths, begin(module, padded, hx, x.sorted_indices))
        packed = PackedSequence(self._rows(result, x.batch_sizes), x.batch_sizes, x.sorted_indices, x.unsorted_indices)
        if x.unsorted_indices is not None:
            last = [state.index_select(1, x.unsorted_indices) for state in last]
        return packed, tuple(last) if module.mode == "LSTM" else last[0]


def begin(module: Any, x: Tensor, hx: Any, order: Tensor | None = None) -> list[Tensor]:
    """The states before the first step, in the order of the packed sequences."""
    if hx is None:
        count, widths = module.num_layers * (2 if module.bidirectional else 1), [module.hidden_size]
        if module.mode == "LSTM":
            widths = [getattr(module, "proj_size", 0) or module.hidden_size, module.hidden_size]
        return [x.new_zeros(count, x.shape[1], width) for width in widths]
    states = list(hx) if module.mode == "LSTM" else [hx]
    return states if order is None else [state.index_select(1, order) for state in states]


def inside_of(lengths: Tensor, steps: Any) -> Tensor:
    """[steps, batch]: whether a step is one of the sequence."""
    return torch.arange(steps, device=lengths.device)[:, None] < lengths


@contextmanager
def packed_sequences() -> Iterator[Padded]:
    """PyTorch's packing and recurrent layers as those that keep the padded form, which it yields."""
    padded = Padded()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch._VF, "_pack_padded_sequence", padded.pack))
        stack.enter_context(mock.patch.object(torch._VF, "_pad_packed_sequence", padded.pad))
        for kind in (nn.RNN, nn.LSTM, nn.GRU):
            stack.enter_context(mock.patch.object(kind, "forward", padded.layer(kind.forward)))
        yield padded
