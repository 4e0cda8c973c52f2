"""Writes to a part of a tensor that numbers in tensors choose: ``cache[:, place] = x``, ``cache[:, start:stop] = x``.

PyTorch makes views of them, whose places in memory are numbers that only the run knows, and asks for their signs. For
the time of an export the write is one to the places themselves, which asks nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from tilewright.importers.torch_data_conditions import required

_write = torch.Tensor.__setitem__


def written(self: torch.Tensor, index: Any, value: Any) -> None:
    """`Tensor.__setitem__` of any index; of views alone that numbers in tensors choose without a question."""
    items = list(index) if isinstance(index, tuple) else [index]
    if not any(map(_is_chosen, items)) or not all(map(_is_of_a_view, items)):
        _write(self, index, value)
        return
    if Ellipsis in [item for item in items if not isinstance(item, torch.Tensor)]:
        place = next(place for place, item in enumerate(items) if item is Ellipsis)
        indexed = sum(item is not None and item is not Ellipsis for item in items)
        items[place : place + 1] = [slice(None)] * (self.dim() - indexed)
    view = self[tuple(slice(None) if _is_chosen(item) else item for item in items)]
    dimensions = [
        item for item in items if _is_chosen(item) or item is None or isinstance(item, slice)
    ]  # dimensions of it
    chosen = {axis: item for axis, item in enumerate(dimensions) if _is_chosen(item)}
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, dtype=self.dtype, device=self.device)
    if any(isinstance(item, slice) for item in chosen.values()):
        _copy_masked(view, chosen, value)
        return
    rest = view.movedim(tuple(chosen), tuple(range(len(chosen))))
    value = _of_rank(value, view.dim() - len(chosen))
    rest.index_put_(tuple(_number(item, self).reshape(1) for item in chosen.values()), value.to(self.dtype))


def holds_a_place(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one signed integer, without dimensions; uint8 is a mask to PyTorch."""
    return tensor.dim() == 0 and tensor.dtype in (torch.int8, torch.int16, torch.int32, torch.int64)


def _is_read(item: Any) -> bool:
    """Whether an index or a bound is a number that is read from a tensor."""
    if isinstance(item, torch.Tensor):
        return holds_a_place(item)
    return isinstance(item, torch.SymInt) and not item.node.has_hint()


def _is_chosen(item: Any) -> bool:
    """Whether numbers in tensors choose what an index takes."""
    if isinstance(item, slice):
        return (_is_read(item.start) or _is_read(item.stop)) and item.step in (None, 1)
    return _is_read(item)


def _is_of_a_view(item: Any) -> bool:
    """Whether an index takes a view."""
    whole = isinstance(item, (int, torch.SymInt)) and not isinstance(item, bool)
    return item is None or item is Ellipsis or whole or isinstance(item, slice) or _is_read(item)


def _number(item: Any, like: torch.Tensor) -> torch.Tensor:
    """A number as an int64 tensor without dimensions."""
    if isinstance(item, torch.Tensor):
        return item.to(device=like.device, dtype=torch.int64)
    return torch.scalar_tensor(item, dtype=torch.int64, device=like.device)


def _of_rank(value: torch.Tensor, rank: int) -> torch.Tensor:
    """A value without leading dimensions (of 1) beyond a rank."""
    return value.reshape(value.shape[value.dim() - rank :]) if value.dim() > rank else value


def _copy_masked(view: torch.Tensor, chosen: dict[int, Any], value: torch.Tensor) -> None:
    """Write to the chosen places of some axes of a view; the others keep what they hold."""
    value = _of_rank(value, view.dim() - sum(not isinstance(item, slice) for item in chosen.values()))
    for axis, item in chosen.items():
        beyond = view.dim() - axis  # the axis counted from the end: a value may have fewer dimensions
        if not isinstance(item, slice) and value.dim() >= beyond:
            value = value.unsqueeze(value.dim() - beyond + 1)
    mask: Any = None
    for axis, item in chosen.items():
        extent = view.shape[axis]
        places = torch.arange(extent, device=view.device)
        if isinstance(item, slice):
            first = _bound(item.start, 0, extent, view)
            end = _bound(item.stop, extent, extent, view)
            along = value.dim() - view.dim() + axis
            if along >= 0 and not (isinstance(value.shape[along], int) and value.shape[along] == 1):
                count = value.shape[along]
                required((end - first).clamp(min=0) == count, "the slice that is written has the value's size")
                value = value.index_select(along, (places - first).clamp(min=0).minimum(_number(count - 1, view)))
        else:
            number = _number(item, view)
            required((number < extent) & (number >= -extent), "the place that is written is one of the tensor's")
            first = torch.where(number < 0, number + extent, number)
            end = first + 1
        here = ((places >= first) & (places < end)).reshape([-1] + [1] * (view.dim() - axis - 1))
        mask = here if mask is None else mask & here
    view.copy_(torch.where(mask, value.to(view.dtype), view))


def _bound(item: Any, default: Any, extent: Any, like: torch.Tensor) -> torch.Tensor:
    """A bound of a slice, which counts from the end where it is negative, within the tensor."""
    number = _number(default if item is None else item, like)
    number = torch.where(number < 0, number + extent, number)
    return number.clamp(min=0).minimum(_number(extent, like))


def select_scatter(x: torch.Tensor, source: torch.Tensor, dim: int, index: Any) -> Any:
    """`aten.select_scatter` at a number that is read, which PyTorch takes apart by its sign; others stay whole."""
    if not _is_read(index):
        return NotImplemented
    dim = dim % x.dim()
    places = torch.arange(x.shape[dim], device=x.device).reshape([-1] + [1] * (x.dim() - dim - 1))
    mask = (places == index) | (places == index + x.shape[dim])
    return torch.where(mask, source.unsqueeze(dim), x)
