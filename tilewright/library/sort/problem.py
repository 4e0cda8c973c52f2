"""What sorting is of: rows of numbers, whose keys are integers in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilewright.language as tl
from tilewright.dtypes import DType, uint8, uint16, uint32, uint64
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Operand
from tilewright.symbolic import Size, product, upper_bound
from tilewright.targets.library_facts import SORTED_ROW

KEY_TYPES: dict[int, DType] = {1: uint8, 2: uint16, 4: uint32, 8: uint64}  # by the bytes of a number


@dataclass(frozen=True)
class Sorting:
    """An `argsort` along the last dimension: rows, columns, how many of each are wanted (`limit`).

    What is stored are `places`, positions, and `values`, the elements themselves, or one of them.
    """

    anchor: Node
    source: Value
    places: Value | None
    values: Value | None
    rows: Size
    columns: Size
    limit: Size
    pack: DType  # of an element and its position together, if they have room in 64 bits
    shift: int  # bits of a position

    @property
    def packing(self) -> dict[str, Any]:
        """The constants of packed numbers."""
        return {"PACK": getattr(tl, self.pack.name), "SHIFT": self.shift}

    @property
    def keys(self) -> dict[str, Any]:
        """The constants of what makes them."""
        return {**self.packing, **self.plain_keys}

    @property
    def plain_keys(self) -> dict[str, Any]:
        """The constants of what makes keys without positions."""
        dtype = self.source.dtype
        sign = 1 << (8 * dtype.itemsize - 1) if dtype.is_float or dtype.is_signed else 0
        key = getattr(tl, KEY_TYPES[dtype.itemsize].name)
        return {"KEY": key, "SIGN": sign, "FLOAT": dtype.is_float, "DESCENDING": self.anchor.attributes["descending"]}

    def stored(self, between: Value | None = None, read: bool = False) -> tuple[dict[str, Operand], dict[str, None]]:
        """What a launch stores by the names of its parameters, and the parameters that have no tensor: `between`, for
        the next launch, or the results.  The last launch looks elements up in x; with `read` another one loads them."""
        last = between is None
        found = {
            "target": between,
            "places": self.places if last else None,
            "values": self.values if last else None,
            "x": self.source if read or (last and self.values is not None) else None,
        }
        return (
            {name: value for name, value in found.items() if value is not None},
            {name: None for name, value in found.items() if value is None},
        )

    def temporary(self, name: str, columns: Size) -> Value:
        """Packed numbers between launches."""
        return Value(f"{self.anchor.output.name}.{name}", self.pack, (self.rows, columns))


def sorting_of(group: Group) -> Sorting:
    """What a group sorts on a GPU.  Raises `UnsupportedOperationError` for what has no kernel."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    x = anchor.inputs[0]
    columns, bits = x.shape[-1], 8 * x.dtype.itemsize
    if anchor.attributes["axis"] != x.rank - 1 or (bits > 32 and upper_bound(columns) > SORTED_ROW):
        raise UnsupportedOperationError(
            f"argsort of {x!r} on a GPU: only the last axis has a kernel, of 64 bits rows of up to {SORTED_ROW}"
        )
    looked_up = [node.output for node in group.nodes if node is not anchor]
    if len(looked_up) > 1:
        raise NotImplementedError(f"{group.name}: sorting has no slots")
    pack = uint32 if bits < 32 and upper_bound(columns) <= 1 << (32 - bits) else uint64
    places = anchor.output if anchor.output in group.outputs else None
    values = looked_up[0] if looked_up else None
    shape = product(x.shape[:-1]), columns, anchor.output.shape[-1]
    return Sorting(anchor, x, places, values, *shape, pack, pack.bits - bits)
