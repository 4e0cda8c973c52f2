"""Linear layouts: algebra, text, and the GF(2) tools below them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.layout.gf2 import Span, combine, common_complement, extension, intersection, rank
from tilewright.layout.linear import LinearLayout

EXAMPLE = LinearLayout.make({"register": [(0, 1), (0, 2)], "lane": [(0, 4), (1, 0), (2, 0)]}, (4, 8))


def members(vectors: list[int]) -> set[int]:
    return {combine(vectors, index) for index in range(1 << len(vectors))}


vectors = st.lists(st.integers(0, 31), max_size=6)
layouts = st.builds(
    lambda registers, lanes, shape: LinearLayout((("register", tuple(registers)), ("lane", tuple(lanes))), shape),
    st.lists(st.integers(0, 31), max_size=4),
    st.lists(st.integers(0, 31), max_size=3),
    st.sampled_from([(("dim0", 32),), (("dim0", 4), ("dim1", 8)), (("dim0", 2), ("dim1", 4), ("dim2", 4))]),
)


@given(vectors, st.integers(0, 31))
def test_span_solves_exactly_its_members(inserted: list[int], vector: int):
    span = Span(inserted)
    parts = span.solve(vector)
    assert (parts is not None) == (vector in members(inserted)) == (vector in span)
    assert parts is None or combine(inserted, parts) == vector
    assert all(combine(inserted, parts) == 0 for parts in span.kernel)
    assert 1 << span.rank == len(members(inserted)) == 1 << rank(inserted)
    assert span.rank + len(span.kernel) == len(inserted)


@given(vectors, vectors)
def test_intersection_is_what_both_span(left: list[int], right: list[int]):
    common = intersection(left, right)
    assert members(common) == members(left) & members(right)
    assert rank(common) == len(common)


@given(vectors, vectors, vectors, st.integers(0, 5))
def test_common_complement_meets_as_little_as_can_be(more: list[int], left: list[int], right: list[int], size: int):
    whole = extension((), [*left, *right, *more])
    size = min(size, len(whole))
    chosen = common_complement(whole, left, right, size)
    assert len(chosen) == size == rank(chosen) and members(chosen) <= members(whole)
    if size <= len(whole) - max(rank(left), rank(right)):
        assert members(chosen) & (members(left) | members(right)) == {0}


def test_example_of_the_module():
    assert EXAMPLE.apply(register=3, lane=6) == (3, 3)
    assert str(EXAMPLE) == "register (0,1) (0,2); lane (0,4) (1,0) (2,0) -> dim0=4 dim1=8"
    assert EXAMPLE.is_invertible
    assert EXAMPLE.drop(1).free_variables() == {"register": 3, "lane": 1}
    assert EXAMPLE.bits_along(1) == {"register": 3, "lane": 1}


@given(layouts)
def test_text_and_table_come_back(layout: LinearLayout):
    assert LinearLayout.parse(str(layout)) == layout
    table = [int(element) for element in layout.table().reshape(-1)]
    assert LinearLayout.from_table(table, layout.input_sizes, layout.shape) == layout


@given(layouts)
def test_evaluation_agrees_with_apply(layout: LinearLayout):
    lanes, registers = np.indices((layout.size("lane"), layout.size("register")))
    np.testing.assert_array_equal(layout.evaluate(lane=lanes, register=registers), layout.table())
    for lane, register in product(range(layout.size("lane")), range(layout.size("register"))):
        assert layout.pack(layout.apply(lane=lane, register=register)) == layout.table()[lane, register]


@given(layouts)
def test_properties_by_counting(layout: LinearLayout):
    table = layout.table().reshape(-1)
    different = len(np.unique(table))
    assert layout.is_surjective == (different == 32)
    assert layout.is_injective == (different == len(table))
    free = sum(mask.bit_count() for mask in layout.free_variables().values())
    assert different << free == len(table)


@given(layouts)
def test_inverses(layout: LinearLayout):
    if not layout.is_surjective:
        with pytest.raises(ValueError, match="no inverse"):
            layout.pseudo_invert()
        return
    back = layout.pseudo_invert().then(layout)
    assert [back.columns[bit] for bit in range(5)] == [1, 2, 4, 8, 16]
    if layout.is_injective:
        assert layout.invert().invert() == layout
    else:
        with pytest.raises(ValueError, match="not one to one"):
            layout.invert()


@given(layouts, layouts)
def test_solve_finds_a_place_of_every_element(layout: LinearLayout, other: LinearLayout):
    other = LinearLayout(other.inputs, layout.outputs)
    found = layout.solve(other)
    held, needed = set(layout.table().reshape(-1)), set(other.table().reshape(-1))
    assert (found is not None) == (needed <= held)
    if found is not None:
        assert found.then(layout) == other


@given(layouts, layouts)
def test_product(tile: LinearLayout, repeats: LinearLayout):
    repeats = repeats.reshape(tile.shape) if repeats.shape != tile.shape else repeats
    registers, lanes = tile.size("register"), tile.size("lane")
    for register, lane in ((0, 0), (1, 2), (3, 1)):
        inner = {"register": register % registers, "lane": lane % lanes}
        outer = {"register": register % repeats.size("register"), "lane": lane % repeats.size("lane")}
        place = {name: inner[name] + outer[name] * tile.size(name) for name in inner}
        tiles = np.multiply(repeats.apply(**outer), tile.shape)
        assert (tile * repeats).apply(**place) == tuple(np.add(tile.apply(**inner), tiles))


@settings(max_examples=30)
@given(layouts, st.randoms(use_true_random=False))
def test_shape_operations_move_elements_as_numpy_does(layout: LinearLayout, random):
    block = np.arange(32).reshape(layout.shape)
    values = block.reshape(-1)[layout.table()]

    def same(changed: LinearLayout, block: np.ndarray) -> None:
        assert changed.shape == block.shape
        np.testing.assert_array_equal(block.reshape(-1)[changed.table()], values)

    order = random.sample(range(block.ndim), block.ndim)
    same(layout.permute(order), block.transpose(order))
    same(layout.reshape((8, 2, 2)), block.reshape(8, 2, 2))
    same(layout.expand(1), np.expand_dims(block, 1))
    axis = random.randrange(block.ndim)
    columns = block.take(0, axis).reshape(-1)[layout.drop(axis).table()] if block.ndim > 1 else None
    if columns is not None:
        dropped = np.broadcast_to(np.expand_dims(block.take(0, axis), axis), block.shape)
        np.testing.assert_array_equal(columns, dropped.reshape(-1)[layout.table()])


def test_errors():
    with pytest.raises(ValueError, match="not a power of two"):
        LinearLayout.identity("lane", "dim0", 6)
    with pytest.raises(ValueError, match="outside"):
        LinearLayout((("lane", (8,)),), (("dim0", 8),))
    with pytest.raises(ValueError, match="linear map would put 3"):
        LinearLayout.from_table([0, 1, 2, 0], {"lane": 4}, (4,))
    with pytest.raises(ValueError, match="not below 4"):
        EXAMPLE.apply(register=4)
    with pytest.raises(ValueError, match="different blocks"):
        EXAMPLE.solve(EXAMPLE.reshape((32,)))
