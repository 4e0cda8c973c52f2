"""The index algebra: splitting and merging coordinates never changes where an element lies."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.reference import run
from tilewright.library.generated.index import Coordinate, Division, Index, flatten, number, unflatten
from tilewright.library.generated.source import merge_axes
from tilewright.library.generated.trace import axes_of
from tilewright.symbolic import Size, symbol


def value_of(index: Index, position: Sequence[int]) -> int:
    """The number that an index with known sizes gives at loop coordinates."""
    total = int(str(index.constant))
    for atom, coefficient in index.terms:
        if isinstance(atom, Coordinate):
            part = position[atom.axis]
        else:
            assert isinstance(atom, Division)
            inner = value_of(atom.index, position)
            part = inner % int(str(atom.divisor)) if atom.remainder else inner // int(str(atom.divisor))
        total += part * int(str(coefficient))
    return total


def shapes_of(total: int) -> list[tuple[int, ...]]:
    """Some shapes with the same number of elements."""
    divisors = [d for d in range(1, total + 1) if total % d == 0]
    found: list[tuple[int, ...]] = [(total,)]
    found += [(d, total // d) for d in divisors]
    found += [(d, e, total // d // e) for d in divisors for e in divisors if total % (d * e) == 0]
    return found


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_reshape_keeps_the_position(data: st.DataObject) -> None:
    shapes = shapes_of(data.draw(st.sampled_from([1, 6, 12, 24, 30])))
    first, second = data.draw(st.sampled_from(shapes)), data.draw(st.sampled_from(shapes))
    coordinates = unflatten(flatten(axes_of(first), first), second)
    for flat, position in enumerate(itertools.product(*(range(extent) for extent in first))):
        found = [value_of(index, position) for index in coordinates]
        wanted = []
        rest = flat
        for extent in reversed(second):
            wanted.insert(0, rest % extent)
            rest //= extent
        assert found == wanted
    assert flatten(coordinates, second).plus(flatten(axes_of(first), first).times(-1)) == Index()


def test_symbolic_split_is_exact() -> None:
    batch, sequence = symbol("batch", 1, 8), symbol("sequence", 1, 512)
    shape: tuple[Size, ...] = (batch, sequence, 384)
    heads = unflatten(flatten(axes_of(shape), shape), (batch, sequence, 12, 32))
    assert heads[0] == axes_of(shape)[0] and heads[1] == axes_of(shape)[1]
    assert heads[2].divide(1)[0] == heads[2]
    merged = unflatten(flatten(heads, (batch, sequence, 12, 32)), shape)
    assert merged == axes_of(shape)


def test_constant_indices_divide() -> None:
    quotient, remainder = number(17).divide(5)
    assert (quotient.constant, remainder.constant) == (3, 2)


def test_places_next_to_others_divide() -> None:
    """Pixel (y + 1, x + 1) of lines of 66 pixels, of which 64 by 65 are asked."""
    y, x = axes_of((64, 65))
    quotient, remainder = y.times(66).plus(x).plus(number(67)).divide(66)
    assert (quotient, remainder) == (y.plus(number(1)), x.plus(number(1)))


def test_axes_merge_where_every_access_allows_it() -> None:
    shape = (4, 5, 6)
    coordinates = axes_of(shape)
    dense = flatten(coordinates, shape)
    assert [variable.axes for variable in merge_axes(shape, [dense])] == [(0, 1, 2)]
    row = coordinates[2]  # a tensor of shape [6]
    assert [variable.axes for variable in merge_axes(shape, [dense, row])] == [(0, 1), (2,)]
    assert [variable.extent for variable in merge_axes(shape, [dense], frozenset({2}))] == [20, 6]


@pytest.mark.parametrize("permuted", [False, True])
def test_lines_that_are_read_backwards_after_a_reshape(permuted: bool) -> None:
    """Places such as 23 - i are divided whole: parts of them may be negative."""
    b = GraphBuilder("backwards")
    x = b.input("x", float32, (12, 5, 3))
    rows = b.op("permute", [x], order=(1, 0, 2)) if permuted else x
    lines = b.op("slice", [b.op("reshape", [rows], shape=(20, 9))], axis=0, start=19, stop=-1, step=-1)
    b.output(b.op("multiply", [b.op("reshape", [lines], shape=(60, 3)), 2.0]), "y")
    graph = b.finish()
    data = {"x": np.arange(180, dtype=np.float32).reshape(12, 5, 3)}
    np.testing.assert_array_equal(build(graph, "cpu", tuning=Tuning(effort=0)).run(data)["y"], run(graph, data)["y"])
