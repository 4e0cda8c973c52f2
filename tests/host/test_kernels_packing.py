"""Packing recipes: what they store where, and that they can be undone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.library import packing

SIZES = st.integers(1, 40)


@settings(max_examples=60, deadline=None)
@given(depth=SIZES, columns=SIZES, width=st.sampled_from([1, 4, 16, 32]), transposed=st.booleans())
def test_panels_round_trip(depth: int, columns: int, width: int, transposed: bool) -> None:
    shape = (columns, depth) if transposed else (depth, columns)
    array = np.arange(depth * columns, dtype=np.float32).reshape(shape)
    recipe = packing.panels_recipe(width, transposed)
    packed = packing.apply(recipe, array)
    assert packed.shape == packing.packed_shape(recipe, shape)
    matrix = array.T if transposed else array
    for panel in range(packed.shape[0]):
        part = matrix[:, panel * width : (panel + 1) * width]
        np.testing.assert_array_equal(packed[panel, :, : part.shape[1]], part)
        assert not packed[panel, :, part.shape[1] :].any()
    np.testing.assert_array_equal(packing.invert(recipe, packed, shape), array)


@settings(max_examples=40, deadline=None)
@given(groups=SIZES, columns=SIZES, group=st.sampled_from([2, 4]), transposed=st.booleans())
def test_grouped_panels_round_trip(groups: int, columns: int, group: int, transposed: bool) -> None:
    depth, width = groups * group, 8
    shape = (columns, depth) if transposed else (depth, columns)
    array = np.arange(depth * columns, dtype=np.float32).reshape(shape)
    recipe = packing.panels_recipe(width, transposed, group)
    packed = packing.apply(recipe, array)
    assert packed.flags.c_contiguous and packed.shape == packing.packed_shape(recipe, shape)
    row, column = depth - 1, columns - 1
    found = packed[column // width, row // group, column % width, row % group]
    assert found == (array.T if transposed else array)[row, column]
    np.testing.assert_array_equal(packing.invert(recipe, packed, shape), array)


@settings(max_examples=40, deadline=None)
@given(groups=st.integers(1, 3), out=st.integers(1, 20), channels=st.integers(1, 5), kernel=st.integers(1, 3))
def test_taps_round_trip(groups: int, out: int, channels: int, kernel: int) -> None:
    shape = (groups * out, channels, kernel, kernel + 1)
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    recipe = packing.taps_recipe(8, groups)
    packed = packing.apply(recipe, array)
    assert packed.shape == packing.packed_shape(recipe, shape)
    group, feature, tap_y, tap_x, channel = groups - 1, out - 1, kernel - 1, kernel // 2, channels // 2
    depth = (tap_y * (kernel + 1) + tap_x) * channels + channel
    expected = array[group * out + feature, channel, tap_y, tap_x]
    assert packed[group, feature // 8, depth, feature % 8] == expected
    np.testing.assert_array_equal(packing.invert(recipe, packed, shape), array)


@pytest.mark.parametrize("group", [1, 4])
def test_taps_filled_with_zeros(group: int, rng: np.random.Generator) -> None:
    taps = rng.integers(-127, 128, (21, 3, 7, 7)).astype(np.int8)
    recipe = packing.taps_recipe(16, group=group, depth=192)
    packed = packing.apply(recipe, taps)
    assert packed.shape == packing.packed_shape(recipe, taps.shape) and packed.size == 2 * 16 * 192
    assert int(np.abs(packed.astype(int)).sum()) == int(np.abs(taps.astype(int)).sum())
    np.testing.assert_array_equal(packing.invert(recipe, packed, taps.shape), taps)


def test_order_round_trip() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    recipe = packing.order_recipe((2, 0, 1))
    packed = packing.apply(recipe, array)
    assert packed.flags.c_contiguous and packed.shape == (4, 2, 3)
    np.testing.assert_array_equal(packing.invert(recipe, packed, array.shape), array)


def test_wrong_packed_shape_is_refused() -> None:
    recipe = packing.panels_recipe(8, False)
    with pytest.raises(ValueError, match="expected"):
        packing.invert(recipe, np.zeros((1, 3, 8), np.float32), (4, 5))


@pytest.mark.parametrize("transposed", [False, True])
def test_halves_in_turns(transposed: bool) -> None:
    array = np.arange(3 * 32, dtype=np.float32).reshape(3, 32)
    array = np.ascontiguousarray(array.T) if transposed else array
    recipe = packing.halves_recipe(8, transposed)
    packed = packing.apply(recipe, array)
    assert packed.shape == packing.packed_shape(recipe, array.shape) == array.shape
    columns = packed[:, 0] if transposed else packed[0]
    np.testing.assert_array_equal(columns, [*range(8), *range(16, 24), *range(8, 16), *range(24, 32)])
    np.testing.assert_array_equal(packing.invert(recipe, packed, array.shape), array)


def test_unknown_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown packing recipe"):
        packing.apply((("kind", "spiral"),), np.zeros((2, 2)))


@settings(max_examples=40, deadline=None)
@given(
    channels=st.integers(1, 4), rows=st.integers(1, 8), columns=st.integers(1, 8), fold=st.sampled_from([1, 2, 4]),
    pixels=st.integers(1, 3),
)  # fmt: skip
def test_runs_round_trip(channels: int, rows: int, columns: int, fold: int, pixels: int) -> None:
    array = np.arange(1, 1 + 3 * channels * rows * columns, dtype=np.float32).reshape(3, channels, rows, columns)
    step = 2
    recipe = packing.runs_recipe(4, fold, (columns + (pixels - 1) * step) * fold * 4 + 3, pixels, step)
    packed = packing.apply(recipe, array)
    assert packed.shape == packing.packed_shape(recipe, array.shape)
    row, column = rows - 1, columns - 1
    for pixel in range(pixels):
        place = ((column + pixel * step) * fold + row % fold) * 4
        found = packed[3 * pixel + 2, row // fold, place : place + channels]
        np.testing.assert_array_equal(found, array[2, :, row, column])
    assert np.count_nonzero(packed) == pixels * array.size
    np.testing.assert_array_equal(packing.invert(recipe, packed, array.shape), array)


def test_diagonal(rng: np.random.Generator) -> None:
    array = rng.standard_normal((3, 2, 1, 1)).astype(np.float16)
    recipe = packing.diagonal_recipe(4)
    packed = packing.apply(recipe, array)
    assert packed.shape == packing.packed_shape(recipe, array.shape) == (12, 8) and packed.dtype == array.dtype
    x = rng.standard_normal((5, 8))
    np.testing.assert_allclose((x @ packed.T).reshape(20, 3), x.reshape(20, 2) @ array[:, :, 0, 0].T, rtol=1e-6)
    np.testing.assert_array_equal(packing.invert(recipe, packed, array.shape), array)


def test_lines(rng: np.random.Generator) -> None:
    array = rng.standard_normal((2, 3, 5)).astype(np.float16)
    recipe = packing.lines_recipe(8)
    packed = packing.apply(recipe, array)
    assert packed.shape == packing.packed_shape(recipe, array.shape) == (2, 3, 8)
    assert not packed[..., 5:].any()
    np.testing.assert_array_equal(packing.invert(recipe, packed, array.shape), array)


@pytest.mark.parametrize(("groups", "out", "channels"), [(1, 20, 3), (2, 16, 5)])
def test_winograd_taps(groups: int, out: int, channels: int, rng: np.random.Generator) -> None:
    """Transformed taps multiply transformed tiles as the taps multiply the pixels; they are not turned back."""
    weights = rng.standard_normal((groups * out, channels, 3, 3))
    recipe = packing.winograd_recipe(8, groups)
    packed = packing.apply(recipe, weights)
    assert packed.shape == packing.packed_shape(recipe, weights.shape)
    tile = rng.standard_normal((4, 4))
    inputs = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    outputs = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
    column, channel = out - 1, channels - 1
    taps = packed[-1, :, column // 8, channel, column % 8].reshape(4, 4)
    found = outputs @ (taps * (inputs @ tile @ inputs.T)) @ outputs.T
    plain = weights[-1, channel]
    expected = [[np.sum(plain * tile[i : i + 3, j : j + 3]) for j in range(2)] for i in range(2)]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert not packing.is_exact(recipe)
    with pytest.raises(ValueError, match="cannot be undone"):
        packing.invert(recipe, packed, weights.shape)
