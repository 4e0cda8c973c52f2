"""What an entry says of an architecture: how to make a small one, its inputs, and which of their axes vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Inputs = Callable[[int], Mapping[str, Any]]  # the keyword arguments for a batch size
Axes = Mapping[str, Mapping[int, tuple[str, int, int]]]

BATCH = ("batch", 1, 8)
SIZES = (1, 2, 5, 8)  # of a dynamic batch: the least, the largest and some between


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


def tokens(batch: int, length: int = 12, words: int = 60) -> torch.Tensor:
    """Random words; the first few numbers stand for padding and the like."""
    return torch.randint(3, words, (batch, length))


def padding_mask(batch: int, length: int = 12) -> torch.Tensor:
    """Ones, and zeros behind the end of each sequence."""
    return (torch.arange(length)[None] < torch.randint(length // 2, length + 1, (batch, 1))).long()


def images(batch: int, size: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.randn(batch, channels, size, size)
