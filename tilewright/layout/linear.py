"""Linear layouts: which place of the hardware holds which element of a block, as a linear map over GF(2).

A layout takes the bits of some named inputs (`register`, `lane`, `warp`, `block`, or `offset` in shared memory) to
the bits of some named outputs (the coordinates `dim0`, `dim1`, …).  Each input bit has a basis vector: the
coordinates of the element at that bit alone.  The element at any place is the XOR of the vectors of its bits.

Worked example: a 4 x 8 block on 8 lanes with 4 registers each.

    register  1 -> (0,1)   2 -> (0,2)          each thread holds four neighbours of a row
    lane      1 -> (0,4)   2 -> (1,0)   4 -> (2,0)

Register 3 of lane 6 holds (0,1) ^ (0,2) ^ (1,0) ^ (2,0) = (3,3).  Going to a transposed block permutes the
coordinates; a reduction along dim1 drops them, after which lane bit 1 maps to (0): two lanes hold the same sum.

A vector is kept as one int, the coordinates packed row-major (the last output in the lowest bits), so a row-major
reshape keeps every int.  Inputs are packed with the first one lowest: register, then lane, warp, block.

The idea of describing layouts by such maps is from arXiv 2505.23819; the algorithms here are our own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from tilewright.forks import cached_property
from tilewright.layout.gf2 import Span, combine

IntArray = npt.NDArray[np.int64]


def log2(size: int) -> int:
    """The exponent of a power of two; raises `ValueError` for other numbers."""
    if size < 1 or size & (size - 1):
        raise ValueError(f"{size} is not a power of two")
    return size.bit_length() - 1


def dimension_names(rank: int) -> tuple[str, ...]:
    return tuple(f"dim{axis}" for axis in range(rank))


@dataclass(frozen=True)
class LinearLayout:
    """A map from input bits to output coordinates, compared and hashed by value.

    `inputs` are pairs of a name and the packed basis vectors of its bits, lowest bit first; `outputs` pairs of a
    name and an extent (a power of two).
    """

    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        size = 1 << sum(log2(extent) for _, extent in self.outputs)
        for name, vectors in self.inputs:
            if any(not 0 <= vector < size for vector in vectors):
                raise ValueError(f"a vector of {name} lies outside {dict(self.outputs)}")
        for names in (self.input_names, self.output_names):
            if len(set(names)) != len(names):
                raise ValueError(f"a name occurs twice in {names}")

    # Making -----------------------------------------------------------------------------------

    @staticmethod
    def make(
        bases: Mapping[str, Sequence[Sequence[int]]], shape: Sequence[int], names: Sequence[str] | None = None
    ) -> LinearLayout:
        """From vectors given by coordinates; outputs are `dim0`, `dim1`, … unless named."""
        outputs = tuple(zip(names or dimension_names(len(shape)), shape, strict=True))
        empty = LinearLayout((), outputs)
        return LinearLayout(
            tuple((name, tuple(empty.pack(vector) for vector in vectors)) for name, vectors in bases.items()), outputs
        )

    @staticmethod
    def identity(source: str, target: str, size: int) -> LinearLayout:
        """`size` places, each holding the element of its own number."""
        return LinearLayout(((source, tuple(1 << bit for bit in range(log2(size)))),), ((target, size),))

    @staticmethod
    def from_table(table: Sequence[int], inputs: Mapping[str, int], shape: Sequence[int]) -> LinearLayout:
        """From the packed element at every packed place; raises `ValueError` when the table is not linear."""
        vectors = [table[1 << bit] for bit in range(log2(len(table)))]
        wrong = next((place for place, element in enumerate(table) if combine(vectors, place) != element), None)
        if wrong is not None:
            raise ValueError(
                f"place {wrong} holds {table[wrong]}; a linear map would put {combine(vectors, wrong)} there"
            )
        parts, used = [], 0
        for name, size in inputs.items():
            parts.append((name, tuple(vectors[used : used + log2(size)])))
            used += log2(size)
        if used != len(vectors):
            raise ValueError(f"a table of {len(table)} places does not fit inputs {dict(inputs)}")
        return LinearLayout(tuple(parts), tuple(zip(dimension_names(len(shape)), shape, strict=True)))

    @staticmethod
    def parse(text: str) -> LinearLayout:
        """The layout whose `str` is `text`."""
        left, separator, right = text.partition("->")
        if not separator:
            raise ValueError(f"no '->' in layout {text!r}")
        outputs = [part.split("=") for part in right.split()]
        bases: dict[str, list[tuple[int, ...]]] = {}
        for part in left.split(";"):
            name = part.split()[0] if part.split() else ""
            vectors = re.findall(r"\(([\d,]*)\)", part)
            if name:
                bases[name] = [tuple(int(number) for number in vector.split(",") if number) for vector in vectors]
        return LinearLayout.make(bases, [int(extent) for _, extent in outputs], [name for name, _ in outputs])

    def __str__(self) -> str:
        parts = []
        for name, vectors in self.inputs:
            parts.append(" ".join([name, *(f"({','.join(map(str, self.unpack(vector)))})" for vector in vectors)]))
        return f"{'; '.join(parts)} -> {' '.join(f'{name}={extent}' for name, extent in self.outputs)}"

    # Asking -----------------------------------------------------------------------------------

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.outputs)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the outputs."""
        return tuple(extent for _, extent in self.outputs)

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """The packed vectors of all input bits, first input lowest."""
        return tuple(vector for _, vectors in self.inputs for vector in vectors)

    def bases(self, name: str) -> tuple[int, ...]:
        """The packed vectors of one input; none for an input that the layout lacks."""
        return next((vectors for known, vectors in self.inputs if known == name), ())

    def size(self, name: str) -> int:
        """Number of places of one input."""
        return 1 << len(self.bases(name))

    @cached_property
    def input_sizes(self) -> dict[str, int]:
        return {name: 1 << len(vectors) for name, vectors in self.inputs}

    def vectors(self, name: str) -> tuple[tuple[int, ...], ...]:
        """The vectors of one input as coordinates."""
        return tuple(self.unpack(vector) for vector in self.bases(name))

    def pack(self, coordinates: Sequence[int]) -> int:
        """Row-major number of an element."""
        packed = 0
        for coordinate, (name, extent) in zip(coordinates, self.outputs, strict=True):
            if not 0 <= coordinate < extent:
                raise ValueError(f"{name} = {coordinate} is not below {extent}")
            packed = packed * extent + coordinate
        return packed

    def unpack(self, element: int) -> tuple[int, ...]:
        coordinates = []
        for extent in reversed(self.shape):
            element, coordinate = divmod(element, extent)
            coordinates.append(coordinate)
        return tuple(reversed(coordinates))

    def apply(self, **place: int) -> tuple[int, ...]:
        """Coordinates of the element at a place; inputs not given are 0."""
        return self.unpack(self.element(**place))

    def element(self, **place: int) -> int:
        """The same, packed."""
        result = 0
        for name, index in place.items():
            if not 0 <= index < self.size(name):
                raise ValueError(f"{name} = {index} is not below {self.size(name)}")
            result ^= combine(self.bases(name), index)
        return result

    def evaluate(self, **places: npt.ArrayLike) -> IntArray:
        """Packed elements for arrays of input indices that broadcast together (int64)."""
        result: IntArray = np.zeros(np.broadcast_shapes(*(np.shape(index) for index in places.values())), np.int64)
        for name, index in places.items():
            numbers = np.asarray(index, np.int64)
            for bit, vector in enumerate(self.bases(name)):
                result = result ^ (numbers >> bit & 1) * vector
        return result

    def table(self) -> IntArray:
        """Packed elements at all places; axes are the inputs, last one first, e.g. (block, warp, lane, register)."""
        result: IntArray = np.zeros(1, np.int64)
        for vector in self.columns:
            result = np.concatenate([result, result ^ vector])
        return result.reshape([1 << len(vectors) for _, vectors in reversed(self.inputs)])

    @cached_property
    def span(self) -> Span:
        """The span of all vectors, knowing how to solve for places (low inputs are used first)."""
        return Span(self.columns)

    @property
    def is_surjective(self) -> bool:
        """Whether every element has a place."""
        return 1 << self.span.rank == prod(self.shape)

    @property
    def is_injective(self) -> bool:
        """Whether no element has two places."""
        return not self.span.kernel

    @property
    def is_invertible(self) -> bool:
        return self.is_surjective and self.is_injective

    def free_variables(self) -> dict[str, int]:
        """For each input a mask of the bits that bring no new element: broadcasting.

        A bit is free when its vector is a sum of vectors of bits before it (register first).
        """
        free: dict[str, int] = {}
        span = Span()
        for name, vectors in self.inputs:
            free[name] = sum(1 << bit for bit, vector in enumerate(vectors) if not span.insert(vector))
        return free

    def bits_along(self, axis: int) -> dict[str, int]:
        """For each input a mask of the bits that move along an output: what a reduction must walk over."""
        return {
            name: sum(1 << bit for bit, vector in enumerate(self.vectors(name)) if vector[axis])
            for name in self.input_names
        }

    # Combining --------------------------------------------------------------------------------

    def then(self, outer: LinearLayout) -> LinearLayout:
        """This map, then `outer`, whose inputs are named like these outputs (`outer` after `self`)."""
        if set(self.output_names) - set(outer.input_names):
            raise ValueError(f"outputs {self.output_names} do not all enter {outer.input_names}")

        def image(vector: int) -> int:
            return outer.element(**dict(zip(self.output_names, self.unpack(vector), strict=True)))

        return LinearLayout(
            tuple((name, tuple(image(vector) for vector in vectors)) for name, vectors in self.inputs), outer.outputs
        )

    def solve(self, other: LinearLayout) -> LinearLayout | None:
        """P with P.then(self) == other: for each place of `other` a place here that holds the same element.

        None when some element of `other` has no place here.  Of several places the one with zeros in the
        free variables is taken.
        """
        if self.outputs != other.outputs:
            raise ValueError(f"layouts of different blocks: {self.outputs} and {other.outputs}")
        places = [self.span.solve(vector) for vector in other.columns]
        if any(place is None for place in places):
            return None
        return self._of_inputs(other.inputs, [place for place in places if place is not None])

    def pseudo_invert(self) -> LinearLayout:
        """From coordinates to a place that holds the element; free variables are 0.

        Raises `ValueError` when an element has no place.
        """
        if not self.is_surjective:
            raise ValueError(f"no inverse: not every element has a place in {self}")
        solutions = [self.span.solve(1 << bit) or 0 for bit in range(log2(prod(self.shape)))]
        bits = tuple((name, (0,) * log2(extent)) for name, extent in reversed(self.outputs))
        return self._of_inputs(bits, solutions)

    def _of_inputs(self, inputs: Sequence[tuple[str, tuple[int, ...]]], places: Sequence[int]) -> LinearLayout:
        """The map from the bits of `inputs` to packed places of this layout (outputs are these inputs)."""
        parts, used = [], 0
        for name, vectors in inputs:
            parts.append((name, tuple(places[used : used + len(vectors)])))
            used += len(vectors)
        return LinearLayout(tuple(parts), tuple((name, 1 << len(vectors)) for name, vectors in reversed(self.inputs)))

    def invert(self) -> LinearLayout:
        """The inverse of a map that is one to one; its inverse is this map again."""
        if not self.is_invertible:
            raise ValueError(f"not one to one: {self}")
        return self.pseudo_invert()

    def __mul__(self, other: LinearLayout) -> LinearLayout:
        """The product: `self` repeated as `other` says.

        Bits of an input of `other` stand above those of `self`; its coordinates count whole tiles of `self`.
        """
        extents = dict(self.outputs)
        names = [*self.output_names, *(name for name in other.output_names if name not in extents)]
        shape = [extents.get(name, 1) * dict(other.outputs).get(name, 1) for name in names]
        bases: dict[str, list[tuple[int, ...]]] = {}
        for layout, scale in ((self, {}), (other, extents)):
            for name, _ in layout.inputs:
                for vector in layout.vectors(name):
                    moved = dict(zip(layout.output_names, vector, strict=True))
                    bases.setdefault(name, []).append(tuple(moved.get(n, 0) * scale.get(n, 1) for n in names))
                bases.setdefault(name, [])
        return LinearLayout.make(bases, shape, names)

    # Changing outputs and inputs ---------------------------------------------------------------

    def permute(self, order: Sequence[int]) -> LinearLayout:
        """The layout of the permuted block: its dimension i is dimension order[i] of this one (names stay)."""
        shape = [self.shape[axis] for axis in order]
        bases = {name: [[v[axis] for axis in order] for v in self.vectors(name)] for name in self.input_names}
        return LinearLayout.make(bases, shape, self.output_names)

    def reshape(self, shape: Sequence[int]) -> LinearLayout:
        """The layout of the block reshaped row-major; every element keeps its packed number."""
        if prod(shape) != prod(self.shape):
            raise ValueError(f"{self.shape} cannot be reshaped to {tuple(shape)}")
        return LinearLayout(self.inputs, tuple(zip(dimension_names(len(shape)), shape, strict=True)))

    def expand(self, axis: int) -> LinearLayout:
        """With a new dimension of extent 1."""
        return self.reshape([*self.shape[:axis], 1, *self.shape[axis:]])

    def drop(self, axis: int) -> LinearLayout:
        """Without a dimension: coordinates along it are forgotten (the later ones are renumbered)."""

        def without(values: Sequence[int]) -> list[int]:
            return [value for position, value in enumerate(values) if position != axis]

        bases = {name: [without(vector) for vector in self.vectors(name)] for name in self.input_names}
        return LinearLayout.make(bases, without(self.shape))

    def with_bases(self, name: str, vectors: Sequence[int]) -> LinearLayout:
        """With other packed vectors for one input."""
        return LinearLayout(tuple((n, tuple(vectors) if n == name else v) for n, v in self.inputs), self.outputs)

    def without_repeats(self, name: str = "register") -> LinearLayout:
        """Without the bits of an input whose vectors are sums of earlier ones of the same input."""
        span = Span()
        return self.with_bases(name, [vector for vector in self.bases(name) if span.insert(vector)])
