"""What the pointers of a launch with bounds checks (`TILEWRIGHT_CHECK_BOUNDS`) may reach."""

from __future__ import annotations

from typing import Any

from tilewright.ir.memory import Address, Extent, span
from tilewright.launch.arguments import as_memory


def extent_of(name: str, argument: Any) -> Extent:
    """Of an array the bytes that it spans; of an address everything, since nobody knows what is there."""
    if argument is None:
        return Extent(name, 0, 0)
    found = as_memory(argument)
    if isinstance(found, Address):
        return Extent(name)
    flat, _ = span(found)
    if flat.size:
        return Extent(name, flat.ctypes.data, flat.size)
    # An array without elements has a place too; a tensor of PyTorch is at 0 then.
    return Extent(name, argument.data_ptr() if hasattr(argument, "data_ptr") else found.ctypes.data, 0)
