"""What sorting is of: rows of numbers, whose keys are integers in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilewright.language as tl
from tilewright.dtypes import DType, uint8, uint16, uint32, uint64
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Node, Value
from tilewright.graph.fusion import Group
from tilewright.symbolic import Size, product, upper_bound

KEY_TYPES: dict[int, DType] = {1: uint8, 2: uint16, 4: uint32, 8: uint64}  # by the bytes of a number


@dataclass(frozen=True)
class Sorting:
    """An `argsort` along the last dimension: rows, columns, how many positions are wanted (`limit`)."""

    anchor: Node
    source: Value
    rows: Size
    columns: Size
    limit: Size
    pack: DType  # of an element and its position together
    shift: int  # bits of a position

    @property
    def packing(self) -> dict[str, Any]:
        """The constants of packed numbers."""
        return {"PACK": getattr(tl, self.pack.name), "SHIFT": self.shift}

    @property
    def keys(self) -> dict[str, Any]:
        """The constants of what makes them."""
        dtype = self.source.dtype
        sign = 1 << (8 * dtype.itemsize - 1) if dtype.is_float or dtype.is_signed else 0
        key = getattr(tl, KEY_TYPES[dtype.itemsize].name)
        return {**self.packing, "KEY": key, "SIGN": sign, "FLOAT": dtype.is_float,
                "DESCENDING": self.anchor.attributes["descending"]}  # fmt: skip

    def temporary(self, name: str, columns: Size) -> Value:
        """Packed numbers between launches."""
        return Value(f"{self.anchor.output.name}.{name}", self.pack, (self.rows, columns))


def sorting_of(group: Group) -> Sorting:
    """What a group sorts on a GPU.  Raises `UnsupportedOperationError` for 64 bits and other dimensions."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    x = anchor.inputs[0]
    if x.dtype.itemsize > 4 or anchor.attributes["axis"] != x.rank - 1:
        raise UnsupportedOperationError(f"argsort of {x!r} on a GPU: only the last axis of up to 32 bits has a kernel")
    if group.nodes != [anchor]:
        raise NotImplementedError(f"{group.name}: sorting has no slots")
    columns, bits = x.shape[-1], 8 * x.dtype.itemsize
    pack = uint32 if bits < 32 and upper_bound(columns) <= 1 << (32 - bits) else uint64
    shift = pack.bits - bits
    return Sorting(anchor, x, product(x.shape[:-1]), columns, anchor.output.shape[-1], pack, shift)
