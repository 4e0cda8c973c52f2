"""One neutral form of dynamic shapes for all importers.

    {"input_ids": {0: ("batch", 1, 64), 1: "sequence"}, "image": {2: 224}}

For each input and axis: ``(name, low, high)``, ``(low, high)``, a name, an int (fixed), or a
`torch.export.Dim` (anything with `__name__`, `min` and `max`); for PyTorch modules a derived one too:
`8 * Dim("tiles")`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, SupportsIndex

from tilewright.errors import ImportModelError, ShapeError
from tilewright.importers.report import Unsupported
from tilewright.symbolic import Expression, Size, Symbol, at_most, lift, maximum, minimum, simplify

LARGEST_SIZE = 2**31 - 1
MOST_TERMS = 256  # of one symbolic size, those inside its functions counted
MOST_PRODUCTS = 1024  # terms that the product of all sizes of a shape may have

_log = logging.getLogger("tilewright")


@dataclass(frozen=True)
class Dimension:
    """A dynamic dimension: its symbol's name and inclusive range.

    `derived`: the size follows from the symbol (``8*tiles``); the range is that of the size.
    """

    name: str
    low: int = 1
    high: int = LARGEST_SIZE
    derived: bool = False


def place_from_front(place: Size, extent: Size) -> Size:
    """A place in a dimension of `extent` elements, where negative ones count from its end, counted from the front.

    Where the sign of a symbolic place is not known, it is decided by the sizes of each call.
    """
    if at_most(0, place):
        return place
    shifted = simplify(lift(extent) + place)
    if at_most(place, -1):
        return shifted
    is_negative = minimum(maximum(simplify(0 - lift(place)), 0), 1)
    return simplify(lift(place) + lift(extent) * is_negative)


Axes = dict[int, "Dimension | int"]


def parse_dynamic_shapes(
    dynamic_shapes: Mapping[str, Any] | None, derived: bool = False, from_zero: bool = False
) -> dict[str, Axes]:
    """The neutral form as `Dimension` (or fixed int) by input name and axis; `derived` ones, and ranges `from_zero`, if
    the importer takes them.

    Raises `ImportModelError` for an entry that is none of the accepted forms, and for one name with
    two different ranges; `ShapeError` for other ranges from 0 to more (a `torch.export.Dim`, whose range is from 0
    when it is not given, begins at 1 instead).
    """
    result: dict[str, Axes] = {}
    seen: dict[str, Dimension] = {}
    for name, axes in (dynamic_shapes or {}).items():
        if axes is None:
            continue
        pairs = axes.items() if isinstance(axes, Mapping) else enumerate(axes)
        parsed: Axes = {}
        for axis, entry in pairs:
            where = f"dynamic_shapes[{name!r}][{axis!r}]"
            if not isinstance(axis, SupportsIndex):
                raise ImportModelError(f'{where}: axes are given by number: {{{name!r}: {{0: ("{axis}", 1, 8)}}}}')
            dimension = _parse(entry, f"{name}_{axis}", where, from_zero)
            if dimension is None:
                continue
            if isinstance(dimension, Dimension) and dimension.derived and not derived:
                raise ImportModelError(
                    f"{where} = {entry!r}: sizes that follow from others are for PyTorch modules; "
                    "give the axis a size of its own: (name, low, high), (low, high), a name or an int"
                )
            if isinstance(dimension, Dimension) and not dimension.derived:
                dimension = _merge(seen, dimension)
            parsed[index(axis)] = dimension
        result[name] = parsed
    return {name: {axis: _latest(seen, entry) for axis, entry in axes.items()} for name, axes in result.items()}


def _parse(entry: Any, default_name: str, where: str, from_zero: bool) -> Dimension | int | None:
    """One entry; `default_name` is for a range without a name."""
    if entry is None or isinstance(entry, Dimension):
        return entry
    if isinstance(entry, int) and not isinstance(entry, bool):
        return entry
    if hasattr(entry, "root"):
        return Dimension(entry.root.__name__, int(entry.min), _at_most(entry.max), derived=True)
    name, low, high = _fields(entry, symbol_name(default_name))
    numbers = isinstance(low, int) and isinstance(high, int) and 0 <= low <= high
    if not (numbers and isinstance(name, str) and name.isidentifier()):
        raise ImportModelError(f"{where} = {entry!r}: expected (name, low, high), (low, high), a name or an int")
    if low == 0 < high and not from_zero:
        raise ShapeError(
            f"{where} = {entry!r}: kernels for a range of sizes are compiled for at least one element; begin the range "
            f"of {name!r} at 1, and compile the model once more with the size 0 if it is to take nothing"
        )
    return low if low == high else Dimension(name, low, high)


def _fields(entry: Any, default_name: str) -> tuple[Any, Any, Any]:
    """Name, low and high of an entry as given; an empty name for what is none of the forms."""
    if isinstance(entry, str):
        return entry, 1, LARGEST_SIZE
    if isinstance(entry, Sequence) and len(entry) in (2, 3):
        return (default_name, *entry) if len(entry) == 2 else tuple(entry)
    if all(hasattr(entry, attribute) for attribute in ("__name__", "min", "max")):
        if entry.min < 1:
            _log.info(
                "dynamic dimension %s: begins at 1, not at %s; empty inputs are refused", entry.__name__, entry.min
            )
        return entry.__name__, max(1, int(entry.min)), _at_most(entry.max)
    return "", 0, 0


def _at_most(high: Any) -> int:
    """The end of a range; `torch.export.Dim` has an infinity of its own, which is no int, where none is given."""
    return int(min(LARGEST_SIZE, high))


def _merge(seen: dict[str, Dimension], dimension: Dimension) -> Dimension:
    """Join ranges of one name: a bare name takes the range that is given elsewhere."""
    known = seen.get(dimension.name)
    if known is None or known == Dimension(dimension.name):
        seen[dimension.name] = dimension
    elif dimension not in (known, Dimension(dimension.name)):
        raise ImportModelError(
            f"dynamic dimension {dimension.name!r} has two ranges: {known.low}..{known.high} and "
            f"{dimension.low}..{dimension.high}; use one range, or two names"
        )
    return seen[dimension.name]


def _latest(seen: Mapping[str, Dimension], entry: Dimension | int) -> Dimension | int:
    return seen[entry.name] if isinstance(entry, Dimension) and not entry.derived else entry


def symbol_name(text: str) -> str:
    """A name from a model file as an identifier: ``batch-size`` becomes ``batch_size``, ``2*n`` ``d2_n``."""
    name = re.sub(r"\W", "_", text)
    return name if name.isidentifier() else f"d{name}"


def check_names(dynamic_shapes: Mapping[str, Any], inputs: Mapping[str, Sequence[Size]]) -> None:
    """Raise `ImportModelError` when `dynamic_shapes` names an input or axis that is not there."""
    for name, axes in dynamic_shapes.items():
        if name not in inputs:
            raise ImportModelError(
                f"dynamic_shapes names an input {name!r} that the model does not have; inputs: {', '.join(inputs)}"
            )
        for axis in axes:
            if not 0 <= axis < len(inputs[name]):
                raise ImportModelError(
                    f"dynamic_shapes[{name!r}] names axis {axis}; the input has rank {len(inputs[name])}"
                )


def check_sizes(sizes: Iterable[Any]) -> None:
    """Raise `Unsupported` for symbolic sizes so long that arithmetic with them could take forever."""
    products = 1
    for size in sizes:
        if isinstance(size, Expression):
            products *= len(size.terms)
            if products > MOST_PRODUCTS or _length(size, MOST_TERMS) > MOST_TERMS:
                raise Unsupported(
                    f"a size is an expression of more than {MOST_TERMS} terms",
                    "compute sizes in fewer steps, or fix them",
                )


def _length(size: Expression, limit: int) -> int:
    """How many symbols and functions an expression has; it is not followed further than `limit`."""
    total = 0
    for monomial, _ in size.terms:
        total += 1
        for atom, power in monomial:
            parts = [] if isinstance(atom, Symbol) else atom.arguments
            total += power
            for part in parts:
                if total > limit:
                    return total
                total += power * _length(part, limit - total)
    return total
