"""Linear algebra over GF(2), the field of one bit: a vector is an int, and the sum of two vectors is their XOR.

    vectors 0b01, 0b11      span all of the plane: 0b10 = 0b01 ^ 0b11
    vectors 0b01, 0b11, 0b10    have rank 2; the first two and the third add up to zero, so 0b111 is in the kernel

A linear map is the list of its columns: the images of the input bits 1, 2, 4, …
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Span:
    """The span of the vectors inserted so far, which also tells how a member is made of them."""

    def __init__(self, vectors: Iterable[int] = ()) -> None:
        self._rows: list[tuple[int, int]] = []  # (vector, which inserted ones add up to it), by falling leading bit
        self._count = 0
        self.kernel: list[int] = []  # sets of inserted vectors that add up to zero, one for each dependent one
        for vector in vectors:
            self.insert(vector)

    @property
    def rank(self) -> int:
        return len(self._rows)

    def reduce(self, vector: int) -> tuple[int, int]:
        """The one remainder of a vector modulo the span, and the set of inserted vectors taken away."""
        summands = 0
        for row, parts in self._rows:
            if vector ^ row < vector:  # the leading bit of the row is set
                vector, summands = vector ^ row, summands ^ parts
        return vector, summands

    def insert(self, vector: int) -> bool:
        """Take one more vector; whether it was not in the span yet."""
        position, self._count = self._count, self._count + 1
        remainder, summands = self.reduce(vector)
        parts = summands | 1 << position
        if not remainder:
            self.kernel.append(parts)
            return False
        self._rows.append((remainder, parts))
        self._rows.sort(reverse=True)
        return True

    def solve(self, vector: int) -> int | None:
        """The set of inserted vectors that add up to `vector`, as bits; None outside the span.

        Vectors that depended on earlier ones when they were inserted are never used.
        """
        remainder, summands = self.reduce(vector)
        return None if remainder else summands

    def __contains__(self, vector: int) -> bool:
        return self.reduce(vector)[0] == 0


def bits_of(mask: int) -> list[int]:
    """Positions of the set bits, lowest first."""
    return [position for position in range(mask.bit_length()) if mask >> position & 1]


def combine(columns: Sequence[int], index: int) -> int:
    """The sum of the columns chosen by the bits of `index`: the map applied to `index`."""
    result = 0
    for position in bits_of(index):
        result ^= columns[position]
    return result


def rank(vectors: Iterable[int]) -> int:
    return len(extension((), vectors))


def extension(basis: Iterable[int], candidates: Iterable[int]) -> list[int]:
    """The candidates, in order, that are independent of `basis` and of those taken before."""
    rows: list[int] = []  # in the order of insertion: a row has no leading bit of the rows before it
    independent = []
    for number, group in enumerate((basis, candidates)):
        for vector in group:
            rest = vector
            for row in rows:
                rest = min(rest, rest ^ row)
            if rest:
                rows.append(rest)
                if number:
                    independent.append(vector)
    return independent


def intersection(left: Iterable[int], right: Iterable[int]) -> list[int]:
    """A basis of the vectors in both spans; members of `left` come as they are where they can."""
    left, right = extension((), left), extension((), right)
    within = Span(right)
    whole = [vector for vector in left if vector in within]
    meeting = Span([*left, *right])
    mixed = [combine(left, parts & (1 << len(left)) - 1) for parts in meeting.kernel]
    return whole + extension(whole, mixed)


def common_complement(whole: Sequence[int], left: Sequence[int], right: Sequence[int], size: int) -> list[int]:
    """`size` independent vectors of `whole` whose span meets those of `left` and `right` as little as can be.

    With A and B the two spans (inside that of `whole`): what lies outside A + B meets neither; the sum of a vector
    of A and one of B, each outside A ∩ B, meets neither either; the larger of the two may have vectors left over,
    which meet only it; what both have comes last.  So the result avoids both when `size` is at most
    dim whole - max(dim A, dim B).
    """
    shared = intersection(left, right)
    only_left, only_right = extension(shared, left), extension(shared, right)
    outside = extension([*shared, *only_left, *only_right], whole)
    paired = min(len(only_left), len(only_right))
    sums = [a ^ b for a, b in zip(only_left, only_right, strict=False)]
    ordered = [*outside, *sums, *only_left[paired:], *only_right[paired:], *shared, *only_left[:paired]]
    return ordered[:size]
