"""`torch.narrow` from a place that a tensor holds: a copy, not PyTorch's view, whose place in memory no export knows.

What is written to a copy, or to what it was made of, does not reach the other: such models are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from tilewright.errors import ImportModelError
from tilewright.importers.torch_data_conditions import asking_line, required
from tilewright.importers.torch_indexed_writes import holds_a_place

_narrow = torch.narrow


@dataclass(frozen=True)
class _Cut:
    """A copy and what it was made of, with how often each was written before; `place`: the line."""

    tensors: tuple[torch.Tensor, torch.Tensor]
    versions: tuple[int, int]
    place: str

    @property
    def written(self) -> bool:
        return tuple(tensor._version for tensor in self.tensors) != self.versions


@contextmanager
def cuts_from_tensors() -> Iterator[None]:
    """For the time of an export: `torch.narrow` from a place in a tensor copies.

    Raises `ImportModelError` at the end where a copy, or what it was made of, was written afterwards.
    """
    cuts: list[_Cut] = []

    def narrowed(input: torch.Tensor, dim: int, start: Any, length: Any) -> torch.Tensor:
        if not _is_place(start):
            return _narrow(input, dim, start, length)
        found = _copied(input, dim, start, length)
        cuts.append(_Cut((found, input), (found._version, input._version), asking_line()))
        return found

    with ExitStack() as stack:
        for space in (torch, torch.Tensor):
            stack.enter_context(mock.patch.object(space, "narrow", narrowed))
        yield
    for cut in cuts:
        if cut.written:
            raise ImportModelError(
                f"what narrow cuts out from a place in a tensor is a copy, and the model writes to it, or to the "
                f"tensor that it comes from, afterwards: {cut.place}\n"
                "Write with x[:, place : place + length] = ..., or give narrow a number."
            )


def _is_place(start: Any) -> bool:
    """Whether it is a number in a tensor; code that Dynamo follows is left to PyTorch: it has no versions."""
    return isinstance(start, torch.Tensor) and not torch.compiler.is_dynamo_compiling() and holds_a_place(start)


def _copied(input: torch.Tensor, dim: int, start: torch.Tensor, length: Any) -> torch.Tensor:
    extent = input.shape[dim]
    begin = torch.where(start < 0, start + extent, start)
    required((begin >= 0) & (begin + length <= extent), "what narrow cuts out is within the tensor")
    return input.index_select(dim, begin + torch.arange(length, device=input.device))
