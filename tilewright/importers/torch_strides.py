"""The places of a result's elements in memory, where PyTorch's own has room between them: a view of every second
element, or of some columns, of a tensor that nobody else reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tilewright.importers.report import Unsupported
from tilewright.importers.torch_fx import is_contiguous
from tilewright.importers.torch_nodes import first_of, stride_order
from tilewright.importers.torch_symbols import SymbolTable
from tilewright.symbolic import Size, evaluate, free_symbols, plain_symbol

_Places = Mapping[str, tuple[int, int | None]]  # the argument that has a symbol, and its dimension if it is a tensor


@dataclass(frozen=True)
class Strides:
    """The strides of a result, which follow from sizes of the arguments."""

    steps: tuple[Size, ...]
    places: _Places

    def of(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """The strides in a call."""
        known = {
            name: int(arguments[position] if axis is None else arguments[position].shape[axis])
            for name, (position, axis) in self.places.items()
        }
        return tuple(evaluate(step, known) for step in self.steps)


def strides_of(fakes: Sequence[Any], symbols: SymbolTable, placeholders: Sequence[fx.Node]) -> list[Strides | None]:
    """The strides of results with room between their elements; None for others, and where no argument tells them."""
    found: list[Strides | None] = []
    for fake in fakes:
        steps = _steps(fake, symbols)
        names = {each.name for step in steps or () for each in free_symbols(step)}
        places = _places(symbols, placeholders) if names else {}
        known = steps is not None and names <= places.keys()
        found.append(Strides(steps, {name: places[name] for name in names}) if steps and known else None)
    return found


def _steps(fake: torch.Tensor, symbols: SymbolTable) -> tuple[Size, ...] | None:
    order = stride_order(fake)
    if order is None or is_contiguous(fake, order):
        return None
    with suppress(Unsupported):
        return symbols.shape(fake.stride())
    return None


def _places(symbols: SymbolTable, placeholders: Sequence[fx.Node]) -> _Places:
    found: dict[str, tuple[int, int | None]] = {}
    for position, node in enumerate(placeholders):
        fake = node.meta.get("val")
        entries = enumerate(fake.shape) if isinstance(fake, torch.Tensor) else [(None, fake)]
        for axis, size in entries:
            known = symbols.sizes.get(str(size.node.expr)) if isinstance(size, torch.SymInt) else None
            named = plain_symbol(known) if known is not None else None
            if named is not None:
                found.setdefault(named.name, (position, axis))
    return found


def spread(result: torch.Tensor, steps: Sequence[int]) -> torch.Tensor:
    """A result with these strides; as it is where elements share memory otherwise than in an expanded dimension."""
    shape = result.shape
    expanded = [axis for axis, step in enumerate(steps) if step == 0 and shape[axis] > 1]
    once = first_of(result, expanded)
    reach = 0
    for step, extent in sorted(zip(steps, once.shape, strict=True)):
        if extent > 1 and step <= reach:
            return result
        reach += max(extent - 1, 0) * step
    room = torch.empty_strided(once.shape, steps, dtype=result.dtype, device=result.device)
    return room.copy_(once).expand(shape)
