"""Lanes that a load masks off without `other`: a checked run reports results that depend on them.

The op table says that such lanes are zero; in Triton they are undefined, and a kernel that relies on them is wrong
there.  A block of a checked run therefore has origins: for each element the load that left it undefined, or 0.  They
follow the values:

    elementwise    an element is undefined where an operand's is, unless the others decide it: a `select` whose
                   condition takes the other side, `and` with false or 0, `or` with true or all ones, an integer
                   times 0 (a float times 0 may be NaN)
    shapes         as the elements move
    dot            a row of the first block, or a column of the second, that has an undefined element makes its row or
                   column of the result so
    regions        `reduce`, `scan` and `map` step by step, as their regions combine elements

Reported is what leaves the block: an address, stored value or operand of an atomic in a lane that is accessed; any
element of a mask; the condition of a branch, loop, assertion or assumption; the bounds of a loop.  A lane that is
masked off again before that is never reported.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import ExecutionError
from tilewright.ir import semantics
from tilewright.ir.core import Location, Operation
from tilewright.ir.ops import OPS, REARRANGING

Array = np.ndarray

MASK_OPERAND = {"load": 1, "store": 2, "atomic_rmw": 2, "atomic_cas": 3}
"""Which operand of a memory operation is its mask."""

_STORED = {"store": ("value",), "atomic_rmw": ("value",), "atomic_cas": ("expected value", "value")}
_DECIDING = {
    "if": ("condition",),
    "for": ("lower bound", "upper bound", "step"),
    "assert": ("condition",),
    "assume": ("condition",),
}
_MOVING = REARRANGING | {"join", "split", "cat"}


class UndefinedLanes:
    """The origins of the blocks of one launch; raises `ExecutionError` where undefined elements are used."""

    def __init__(self) -> None:
        self.loads: list[Location | None] = [None]
        self.blocks: dict[int, tuple[weakref.ref[Array], Array]] = {}  # by identity: a block, its origins

    def origins(self, block: Array) -> Array | None:
        """For each element the number of the load that left it undefined, or 0; None for a block without such."""
        known = self.blocks.get(id(block))
        return None if known is None else known[1]

    def mark(self, block: Array, origins: Array) -> None:
        """Give a block its origins."""
        key = id(block)
        if origins.any():
            self.blocks[key] = weakref.ref(block, lambda _: self.blocks.pop(key, None)), origins

    # Uses

    def before(self, operation: Operation, operands: Sequence[Array]) -> None:
        """Check what decides what an operation does: addresses, masks, conditions and bounds."""
        if not self.blocks:
            return
        opcode = operation.opcode
        for operand, role in zip(operands, _DECIDING.get(opcode, ()), strict=False):
            self.decides(operation, operand, role)
        if opcode in MASK_OPERAND:
            mask = _mask(opcode, operands)
            if mask is not None:
                self.decides(operation, mask, "mask")
            self._accessed(operation, operands[0], mask, "address")

    def stored(self, operation: Operation, operands: Sequence[Array]) -> None:
        """Check what a store or an atomic, whose addresses are good, is about to give away."""
        if self.blocks:
            mask = _mask(operation.opcode, operands)
            for operand, role in zip(operands[1:], _STORED.get(operation.opcode, ()), strict=False):
                self._accessed(operation, operand, mask, role)

    def _accessed(self, operation: Operation, block: Array, mask: Array | None, role: str) -> None:
        found = self.origins(block)
        if found is not None:
            self._refuse(operation, found if mask is None else np.where(mask, found, 0), role)

    def decides(self, operation: Operation, block: Array, role: str = "condition") -> None:
        """Raise when any element of a block, which decides what an operation does, is undefined."""
        found = self.origins(block)
        if found is not None:
            self._refuse(operation, found, role)

    def _refuse(self, operation: Operation, origins: Array, role: str) -> None:
        wrong = np.argwhere(origins)
        if not len(wrong):
            return
        element = tuple(int(part) for part in wrong[0])
        place = f" at {operation.location}" if operation.location is not None else ""
        details = [f"it is the {role} of the {operation.opcode}{place}"]
        if origins.size > 1:
            details.append(f"{len(wrong)} of {origins.size} elements are undefined")
        error = ExecutionError(
            f"the {role} depends on lanes that a load has masked off: without `other` they are undefined",
            "give the load other=0.0, or what the kernel needs there; or choose these lanes away before their use: "
            "tl.where(mask, value, 0.0)",
            tuple(details),
            element=element,
        )
        error.location = self.loads[int(origins[element])]
        raise error

    # Values

    def after(self, operation: Operation, operands: Sequence[Array], results: Sequence[Array]) -> None:
        """Follow the operands' undefined elements into the results; called with their values."""
        opcode = operation.opcode
        if opcode == "load" and len(operands) > 1:
            self._load(operation, operands, results[0])
            return
        if not self.blocks or operation.regions or (opcode != "offset" and OPS[opcode].evaluate is None):
            return
        known = [self.origins(operand) for operand in operands]
        if all(origins is None for origins in known):
            return
        attributes = {name: operation.attributes[name] for name in OPS[opcode].attributes}
        found = _followed(opcode, attributes, operands, known)
        for result, origins in zip(results, found if isinstance(found, tuple) else (found,), strict=True):
            self.mark(result, np.broadcast_to(origins, result.shape))

    def derived(self, result: Array, function: Callable[..., Array], blocks: Sequence[Array]) -> None:
        """`result` is what a function that only moves elements has made of some blocks."""
        if self.blocks and any(id(block) in self.blocks for block in blocks):
            self.mark(result, np.asarray(function(*(_complete(self.origins(block), block) for block in blocks))))

    def _load(self, operation: Operation, operands: Sequence[Array], result: Array) -> None:
        _, mask, *other = operands
        if other:
            origins = self.origins(other[0])
            if origins is not None:
                self.mark(result, np.where(mask, 0, origins))
        elif not np.all(mask):
            if operation.location not in self.loads[1:]:
                self.loads.append(operation.location)
            self.mark(result, np.where(mask, 0, self.loads.index(operation.location, 1)))


def _mask(opcode: str, operands: Sequence[Array]) -> Array | None:
    position = MASK_OPERAND[opcode]
    return operands[position] if len(operands) > position else None


def _complete(origins: Array | None, block: Array) -> Array:
    return np.zeros(block.shape, np.int64) if origins is None else origins


def _followed(
    opcode: str, attributes: dict[str, Any], operands: Sequence[Array], known: Sequence[Array | None]
) -> Array | tuple[Array, ...]:
    """The origins of the results of an operation that has a NumPy meaning."""
    origins = [_complete(entry, operand) for entry, operand in zip(known, operands, strict=True)]
    if opcode in _MOVING:
        meaning = OPS[opcode].evaluate
        assert meaning is not None
        return meaning(*origins, **attributes)
    if opcode == "select":
        condition, x, y = operands
        chosen = np.where(condition, origins[1], origins[2])
        return np.where(origins[0] != 0, np.where(_same(x, y), chosen, origins[0]), chosen)
    if opcode == "gather":
        return _either(semantics.gather(origins[0], operands[1], **attributes), origins[1])
    if opcode == "dot":
        a, b, accumulator = origins
        return _either(accumulator, _either(a.max(axis=-1)[..., :, None], b.max(axis=-2)[..., None, :]))
    if opcode in ("and", "or") or (opcode == "multiply" and not semantics.is_float(operands[0].dtype)):
        return _decided(opcode, operands, origins)
    joined = origins[0]
    for entry in origins[1:]:
        joined = _either(joined, entry)
    return joined


def _decided(opcode: str, operands: Sequence[Array], origins: Sequence[Array]) -> Array:
    """The origins of an operation one of whose operands may decide the result alone."""
    kind = operands[0].dtype
    absorbing = ~np.zeros((), kind) if opcode == "or" else np.zeros((), kind)
    decided = [(origin == 0) & (operand == absorbing) for operand, origin in zip(operands, origins, strict=True)]
    return np.where(decided[0] | decided[1], 0, _either(*origins))


def _either(first: Array, second: Array) -> Array:
    return np.where(first != 0, first, second)


def _same(x: Array, y: Array) -> Array:
    """Where two blocks have the same bits."""
    bits = np.dtype(f"u{x.dtype.itemsize}")
    return np.ascontiguousarray(x).view(bits).reshape(x.shape) == np.ascontiguousarray(y).view(bits).reshape(y.shape)
