"""Ragged descriptors: tiles that end where their slice ends."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import launch
from tilewright.errors import LaunchError
from tilewright.shim.ragged_tma import atomic_add_ragged, create_ragged_descriptor, load_ragged, store_ragged


@tilewright.jit
def copy_slice(source, target, starts, sizes, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADD: tl.constexpr):
    number = tl.program_id(0)
    start, size = tl.load(starts + number), tl.load(sizes + number)
    for row in range(0, size, ROWS):
        for column in tl.static_range(0, 16, COLUMNS):
            block = load_ragged(source, start, size, [row, column])
            if ADD:
                atomic_add_ragged(target, start, size, [row, column], block + 1)
            else:
                store_ragged(target, start, size, [row, column], block + 1)


@pytest.mark.parametrize("add", [False, True])
def test_slices_of_rows(add: bool, rng: np.random.Generator) -> None:
    sizes = np.array([5, 1, 0, 8, 3], np.int32)
    starts = np.array([0, 5, 6, 7, 17], np.int32)  # row 6 and rows 15, 16 belong to none
    x, out = rng.normal(size=(20, 16)).astype(np.float32), np.zeros((20, 16), np.float32)
    inside = np.concatenate([np.arange(start, start + size) for start, size in zip(starts, sizes, strict=True)])
    tiles = [create_ragged_descriptor(array, [4, 8]) for array in (x, out)]
    launch(copy_slice, (5,), *tiles, starts, sizes, ROWS=4, COLUMNS=8, ADD=add)
    expected = np.zeros_like(out)
    expected[inside] = (x[inside] + 1) * (2 if add else 1)  # `launch` runs twice on these arrays
    np.testing.assert_allclose(out, expected, rtol=1e-6)


@tilewright.jit
def read_middle(source, out, start, size, N: tl.constexpr):
    block = load_ragged(source, start, size, [1, 2, 0], ragged_dim=1)
    tl.store(out + tl.arange(0, 4)[:, None] * N + tl.arange(0, N)[None, :], tl.reshape(block, (4, N)))


def test_the_middle_axis(rng: np.random.Generator) -> None:
    x, out = rng.normal(size=(3, 9, 4)).astype(np.float32), np.full((4, 4), -1, np.float32)
    launch(read_middle, (1,), create_ragged_descriptor(x, [1, 4, 4], -2), out, 1, 5, N=4)
    np.testing.assert_array_equal(out, np.concatenate([x[1, 3:6], np.zeros((1, 4))]))


def test_mistakes() -> None:
    for shape, axis in (((8, 8), 1), ((8, 8), -1), ((8,), 0), ((2, 2, 2, 2), 0)):
        with pytest.raises(LaunchError, match="a ragged descriptor is of a tensor of 2 or 3 axes"):
            create_ragged_descriptor(np.zeros(shape, np.float32), shape, axis)
