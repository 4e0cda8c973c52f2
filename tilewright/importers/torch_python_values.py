"""What a model asks of tensors as a whole, to get Python's values: as operations that `torch.export` takes.

The answers are numbers read from tensors: a branch on one is the example's, and checked at every call.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

_MOST_COMBINATIONS = 1 << 16
_combinations = torch.combinations
_data: Any = torch._C.TensorBase.data


@contextmanager
def answers_in_operators() -> Iterator[None]:
    """For the time of an export: comparisons of tensors as a whole, combinations of a fixed number of elements, the
    `data` of computed tensors, and truth values as floats."""
    with ExitStack() as stack:
        for name, function in (("allclose", _all_close), ("equal", _equal)):
            stack.enter_context(mock.patch.object(torch, name, function))
            stack.enter_context(mock.patch.object(torch.Tensor, name, function))
        stack.enter_context(mock.patch.object(torch, "combinations", _combined))
        stack.enter_context(mock.patch.object(torch.Tensor, "data", property(_detached, _assigned), create=True))
        stack.enter_context(mock.patch.object(torch.SymBool, "__float__", _as_float, create=True))
        yield


def _all_close(
    input: torch.Tensor, other: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    return torch.isclose(input, other, rtol, atol, equal_nan).all().item()


def _equal(input: torch.Tensor, other: torch.Tensor) -> Any:
    return input.shape == other.shape and (input == other).all().item()


def _combined(input: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    """`torch.combinations`, whose sizes PyTorch counts in a mask."""
    count = input.numel()
    if input.dim() != 1 or r < 1 or not isinstance(count, int) or math.comb(count + r, r) > _MOST_COMBINATIONS:
        return _combinations(input, r, with_replacement)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = torch.tensor(list(choose(range(count), r)), dtype=torch.int64, device=input.device)
    return input[places.reshape(-1, r)]


def _detached(self: torch.Tensor) -> torch.Tensor:
    """`data`; of tensors that stand for others, what an export can follow."""
    plain = type(self) in (torch.Tensor, torch.nn.Parameter)
    found: torch.Tensor = _data.__get__(self) if plain else self.detach()
    return found


def _assigned(self: torch.Tensor, value: torch.Tensor) -> None:
    """What sets `data`, which no export follows where that is a tensor of the model's call."""
    if type(self) not in (torch.Tensor, torch.nn.Parameter):
        raise NotImplementedError("assigning to the data of a tensor; write in place (`tensor.copy_(value)`) instead")
    _data.__set__(self, value)


def _as_float(self: torch.SymBool) -> float:
    return float(bool(self))
