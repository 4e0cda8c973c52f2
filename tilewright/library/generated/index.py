"""The address of an element as a function of loop coordinates: the index algebra of generated kernels.

An `Index` is `constant + sum of coefficient * atom`.  Atoms are loop coordinates, values loaded from
index tensors, and quotients or remainders that do not simplify.  Coefficients and extents may be
symbolic sizes.  Following a reshape splits and merges coordinates:

    [batch, sequence, 384] seen as [batch, sequence, 12, 32]:
    flat = batch' * (sequence * 384) + s * 384 + h * 32 + d          (batch', s, h, d are coordinates)
    flat // 384 % sequence -> s,   flat % 384 -> h * 32 + d
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Union

from tilewright.symbolic import Size, floor_divide, lift, lower_bound, modulo, product, simplify, upper_bound


@dataclass(frozen=True)
class Coordinate:
    """A loop counter: 0 to `extent` - 1."""

    axis: int
    extent: Size


@dataclass(frozen=True)
class Loaded:
    """An element of an index tensor, counted from the front and clamped by the kernel: 0 to `extent` - 1.

    One that is not `clamped` may lie outside.
    """

    identity: int
    extent: Size
    clamped: bool = True


@dataclass(frozen=True)
class Division:
    """`index // divisor`, or `index % divisor` when `remainder`."""

    index: Index
    divisor: Size
    remainder: bool
    extent: Size


@dataclass(frozen=True)
class Bounded:
    """An index that is only used where it lies in 0 to `extent` - 1 (a guard sees to that)."""

    index: Index
    extent: Size


Atom = Union[Coordinate, Loaded, Division, Bounded]


@dataclass(frozen=True)
class Index:
    """`constant + sum of coefficient * atom`; build it with `coordinate`, `number` and the methods."""

    terms: tuple[tuple[Atom, Size], ...] = ()
    constant: Size = 0

    def plus(self, other: Index) -> Index:
        """The sum."""
        sums: dict[Atom, Size] = dict(self.terms)
        for atom, coefficient in other.terms:
            sums[atom] = simplify(lift(sums.get(atom, 0)) + coefficient)
        nonzero = tuple((atom, coefficient) for atom, coefficient in sums.items() if coefficient != 0)
        return Index(nonzero, simplify(lift(self.constant) + other.constant))._rejoined()

    def _rejoined(self) -> Index:
        """The same with every `(i // d) * d + i % d` replaced by `i`."""
        coefficients = dict(self.terms)
        for atom, coefficient in self.terms:
            if not isinstance(atom, Division) or not atom.remainder:
                continue
            for other, step in self.terms:
                if not isinstance(other, Division) or other.remainder:
                    continue
                if (other.index, other.divisor) != (atom.index, atom.divisor):
                    continue
                if step == simplify(lift(coefficient) * atom.divisor):
                    del coefficients[atom], coefficients[other]
                    return Index(tuple(coefficients.items()), self.constant).plus(atom.index.times(coefficient))
        return self

    def times(self, factor: Size) -> Index:
        """The product with a size."""
        if factor == 0:
            return Index()
        terms = tuple((atom, simplify(lift(coefficient) * factor)) for atom, coefficient in self.terms)
        return Index(terms, simplify(lift(self.constant) * factor))

    def coefficient(self, axis: int) -> Size:
        """What one step along a loop axis adds, as far as that is linear."""
        for atom, coefficient in self.terms:
            if isinstance(atom, Coordinate) and atom.axis == axis:
                return coefficient
        return 0

    def expanded(self) -> Index:
        """The same without `Bounded`, which has done its work once divisions are simplified."""
        total = number(self.constant)
        for atom, coefficient in self.terms:
            if isinstance(atom, Bounded):
                total = total.plus(atom.index.expanded().times(coefficient))
            elif isinstance(atom, Division):
                inner = Division(atom.index.expanded(), atom.divisor, atom.remainder, atom.extent)
                total = total.plus(Index(((inner, coefficient),)))
            else:
                total = total.plus(Index(((atom, coefficient),)))
        return total

    def nested(self) -> Iterator[Index]:
        """This index and those inside its quotients and remainders."""
        yield self
        for atom, _ in self.terms:
            if isinstance(atom, Division):
                yield from atom.index.nested()

    def is_followed(self) -> bool:
        """Whether it is arithmetic on loop coordinates alone: no index tensor is asked."""
        return all(
            isinstance(atom, Coordinate) or isinstance(atom, Division) and atom.index.is_followed()
            for atom, _ in self.terms
        )  # fmt: skip

    def last(self) -> Size:
        """An upper bound of the value (exact when the terms are independent and not negative)."""
        total: Size = self.constant
        for atom, coefficient in self.terms:
            if lower_bound(coefficient) < 0:
                continue
            total = simplify(lift(total) + lift(coefficient) * simplify(lift(atom.extent) - 1))
        return total

    def divide(self, divisor: Size) -> tuple[Index, Index]:
        """Quotient and remainder by a positive size; simplified where that is provably exact."""
        if divisor == 1:
            return self, Index()
        whole, rest = self._split(divisor)
        if _is_below(rest.last(), divisor) and rest.is_non_negative():
            return whole, rest
        if not rest.terms and isinstance(rest.constant, int) and isinstance(divisor, int):
            return whole.plus(number(rest.constant // divisor)), number(rest.constant % divisor)
        for _, step in rest.terms:
            if step != 1 and modulo(divisor, step) == 0:
                multiples, below = rest._split(step)
                if multiples.terms and _is_below(below.last(), step) and below.is_non_negative():
                    quotient, remainder = multiples.divide(floor_divide(divisor, step))
                    return whole.plus(quotient), remainder.times(step).plus(below)
        quotient_extent = simplify(lift(floor_divide(rest.last(), divisor)) + 1)
        quotient_atom = Division(rest, divisor, False, quotient_extent)
        return whole.plus(Index(((quotient_atom, 1),))), Index(((Division(rest, divisor, True, divisor), 1),))

    def is_non_negative(self) -> bool:
        """Whether no term can make the value negative."""
        return lower_bound(self.constant) >= 0 and all(
            lower_bound(c) >= 0 and getattr(atom, "clamped", True) for atom, c in self.terms
        )

    def is_below(self, limit: Size) -> bool:
        """Whether the value is certainly less than a size."""
        return _is_below(self.last(), limit)

    def _split(self, divisor: Size) -> tuple[Index, Index]:
        """(a, b) with self == a * divisor + b, a as large as its terms and its constant show."""
        whole: list[tuple[Atom, Size]] = []
        rest: list[tuple[Atom, Size]] = []
        for atom, coefficient in self.terms:
            if modulo(coefficient, divisor) == 0:
                whole.append((atom, floor_divide(coefficient, divisor)))
            else:
                rest.append((atom, coefficient))
        if not Index(tuple(rest)).is_non_negative():  # without the constant: kernels divide toward zero
            return Index(tuple(whole)), Index(tuple(rest), self.constant)
        if modulo(self.constant, divisor) == 0:
            return Index(tuple(whole), floor_divide(self.constant, divisor)), Index(tuple(rest))
        if isinstance(self.constant, int) and isinstance(divisor, int) and self.constant > divisor:
            return Index(tuple(whole), self.constant // divisor), Index(tuple(rest), self.constant % divisor)
        return Index(tuple(whole)), Index(tuple(rest), self.constant)


def _is_below(value: Size, limit: Size) -> bool:
    return upper_bound(simplify(lift(value) - limit)) < 0


def number(value: Size) -> Index:
    """A constant."""
    return Index((), simplify(value))


def bounded(index: Index, extent: Size) -> Index:
    """An index with a range that only holds under a guard."""
    return Index(((Bounded(index, extent), 1),))


def coordinate(axis: int, extent: Size) -> Index:
    """A loop coordinate; an axis of extent 1 is the number 0."""
    return Index() if extent == 1 else Index(((Coordinate(axis, extent), 1),))


def dense_strides(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides of a shape, in elements."""
    return tuple(product(list(shape[axis + 1 :])) for axis in range(len(shape)))


def flatten(coordinates: Sequence[Index], shape: Sequence[Size]) -> Index:
    """The row-major position of an element."""
    flat = Index()
    for index, stride in zip(coordinates, dense_strides(shape), strict=True):
        flat = flat.plus(index.times(stride))
    return flat


def unflatten(flat: Index, shape: Sequence[Size]) -> tuple[Index, ...]:
    """The coordinates of a row-major position."""
    coordinates: list[Index] = []
    rest = flat
    for extent, stride in zip(shape, dense_strides(shape), strict=True):
        if extent == 1:
            coordinates.append(Index())
            continue
        index, rest = rest.divide(stride)
        coordinates.append(index)
    return tuple(coordinates)
