"""What an entry says of an architecture: how to make a small one, its inputs, and which of their axes vary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

Inputs = Callable[[int], Mapping[str, Any]]  # the keyword arguments for a batch size
Axes = Mapping[str, Mapping[int, tuple[str, int, int]]]

BATCH = ("batch", 1, 8)
SIZES = (1, 2, 5, 8)  # of a dynamic batch: the least, the largest and some between
LENGTHS = (1, 2, 5, 16)  # of dynamic sequences, in words; the least that PyTorch runs takes the place of the first
_EXAMPLE = 12  # words
_length = _EXAMPLE


@dataclass(frozen=True)
class Entry:
    """One architecture: `make` gives the module, in eval mode already or not, and its inputs.

    `axes` are the dynamic axes; None makes axis 0 of every tensor the batch. `fixed` names inputs without one.
    `compare` is False for results that are random by design.
    """

    name: str
    library: str
    make: Callable[[], tuple[torch.nn.Module, Inputs]]
    axes: Axes | None = None
    fixed: tuple[str, ...] = field(default=())
    batched: bool = True  # whether there is a batch at all


def dynamic_shapes(entry: Entry, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The entry's dynamic axes for all of its inputs."""
    if entry.axes is not None:
        return {name: dict(axes) for name, axes in entry.axes.items()}
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor) and value.ndim}
    return {name: {0: BATCH} for name in tensors if name not in entry.fixed}


@contextmanager
def of_length(length: int) -> Iterator[None]:
    """Inputs with sequences of so many words, and sounds of that part of their length."""
    global _length
    before, _length = _length, length
    try:
        yield
    finally:
        _length = before


def lasting(extent: int = _EXAMPLE) -> int:
    """The length that a sequence has now which is `extent` in the example."""
    return extent * _length // _EXAMPLE


def dynamic_lengths(inputs: Callable[[], Mapping[str, Any]], lengths: Sequence[int]) -> dict[str, Any]:
    """The axes that grow with sequences: those of the same sizes at all lengths are one size; empty for none."""
    shapes = []
    for length in (*lengths, _EXAMPLE):
        with of_length(length):
            shapes.append({k: tuple(v.shape) for k, v in inputs().items() if isinstance(v, torch.Tensor)})
    names: dict[tuple[int, ...], str] = {}
    found: dict[str, Any] = {}
    for name, example in shapes[-1].items():
        for axis in range(len(example)):
            sizes = tuple(shape[name][axis] for shape in shapes)
            if len(set(sizes)) > 1:
                symbol = names.setdefault(sizes, f"length_{len(names)}" if names else "length")
                found.setdefault(name, {})[axis] = (symbol, min(sizes), max(sizes))
    return found


def tokens(batch: int, length: int | None = None, words: int = 60) -> torch.Tensor:
    """Random words; the first few numbers stand for padding and the like."""
    return torch.randint(3, words, (batch, length or lasting()))


def padding_mask(batch: int, length: int | None = None) -> torch.Tensor:
    """Ones, and zeros behind the end of each sequence."""
    length = length or lasting()
    return (torch.arange(length)[None] < torch.randint(max(1, length // 2), length + 1, (batch, 1))).long()


def images(batch: int, size: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.randn(batch, channels, size, size)
