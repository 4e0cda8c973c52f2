"""Block pointers and tensor descriptors against NumPy slices, interpreted and compiled."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import compile_error, launch


@tilewright.jit
def copy_tiles(x, out, rows, columns, stride, M: tl.constexpr, N: tl.constexpr, PADDING: tl.constexpr):
    """Row tiles walked along the columns; the last ones hang over the edge."""
    first = tl.program_id(0) * M
    source = tl.make_block_ptr(x, (rows, columns), (stride, 1), (first, 0), (M, N), (1, 0))
    target = tl.make_block_ptr(out, (rows, columns), (columns, 1), (first, 0), (M, N), (1, 0))
    total = tl.zeros((M,), tl.float32)
    for _ in range(0, tl.cdiv(columns, N)):
        tile = tl.load(source, boundary_check=(0, 1), padding_option=PADDING)
        total += tl.sum(tl.where(tile == tile, 0.0, 1.0), 1)
        tl.store(target, (tile * 2).to(target.dtype.element_ty).to(tile.type), boundary_check=(0, 1))
        source = tl.advance(source, (0, N))
        target = tl.advance(target, [0, N])
    missing = tl.make_block_ptr(out, [rows * columns + 1000], [1], [rows * columns + first], [M], [0])
    tl.store(missing, total)


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_block_pointers_walk_over_the_edge(padding: str, rng: np.random.Generator) -> None:
    x = rng.normal(size=(5, 12)).astype(np.float32)
    out = np.full(5 * 10 + 8, -1, np.float32)
    launch(copy_tiles, (2,), x, out, 5, 10, 12, M=4, N=4, PADDING=padding)
    np.testing.assert_array_equal(out[:50].reshape(5, 10), 2 * x[:, :10])
    missing = [2, 2, 2, 2, 2, 12, 12, 12] if padding == "nan" else [0] * 8
    assert out[50:].tolist() == missing


@tilewright.jit
def transposed(x, out, n, N: tl.constexpr):
    columns = tl.make_block_ptr(x, (n, n), (1, n), (-1, 1), (N, N), order=(0, 1))
    i = tl.arange(0, N)
    tile = tl.load(columns.advance((0, 1)), boundary_check=[0, 1], padding_option="zero")
    tl.store(out + i[:, None] * N + i[None, :], tile)


def test_negative_offsets_are_outside(rng: np.random.Generator) -> None:
    x, out = rng.normal(size=(6, 6)).astype(np.float32), np.zeros((4, 4), np.float32)
    launch(transposed, (1,), x, out, 6, N=4)
    np.testing.assert_array_equal(out[1:], x.T[:3, 2:6])
    assert not out[0].any()


@tilewright.jit
def described(x, out, rows, columns, M: tl.constexpr, N: tl.constexpr, PADDING: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N], padding_option=PADDING)
    target = tl.make_tensor_descriptor(out, shape=[rows, columns], strides=[columns, 1], block_shape=[M, N])
    tl.static_assert(source.dtype == tl.float32 and source.block_shape[1] == N)
    at = [tl.program_id(0) * M, tl.program_id(1) * N]
    tile = source.load(at)
    tl.store_tensor_descriptor(
        target, at, tl.where(tile == tile, tl.load_tensor_descriptor(source, at), 9.0).to(tl.float64)
    )
    for k in range(2):
        target.atomic_add(at, tile * 0 + source.shape[0] + k)


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_descriptors_clip_tiles(padding: str, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 9, (5, 10)).astype(np.float32)
    out = np.zeros((6, 10), np.float32)
    launch(described, (2, 3), x, out, 5, 10, M=4, N=4, PADDING=padding)
    np.testing.assert_array_equal(out[:5], x + 11)
    assert not out[5].any()


@tilewright.jit
def picked_rows(x, out, picks, rows, columns, COUNT: tl.constexpr, N: tl.constexpr):
    places = tl.load(picks + tl.arange(0, COUNT))
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [1, N])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [1, N])
    target.scatter(source.gather(places, 4) + 1, rows - 1 - places, 2)


def test_rows_are_gathered_and_scattered(rng: np.random.Generator) -> None:
    x, out = rng.integers(0, 9, (10, 10)).astype(np.float16), np.zeros((10, 10), np.float16)
    picks = np.array([3, 0, 7, 99, 2, -1, 9, 5], np.int32)
    launch(picked_rows, (1,), x, out, picks, 10, 10, COUNT=8, N=8)
    expected = np.zeros_like(out)
    for row in (3, 0, 7, 2, 9, 5):
        expected[9 - row, 2:8] = x[row, 4:10] + 1
        expected[9 - row, 8:10] = 1
    np.testing.assert_array_equal(out, expected)


@tilewright.jit
def far_away(x, out, row, stride):
    tile = tl.make_block_ptr(x - row * stride.to(tl.int64), (row + 1, 4), (stride, 1), (row, 0), (1, 4), (1, 0))
    tl.store(out + tl.arange(0, 4), tl.ravel(tl.load(tile, boundary_check=(0,))))


def test_addresses_do_not_overflow() -> None:
    x, out = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    launch(far_away, (1,), x, out, 1 << 20, 1 << 14)
    assert out.tolist() == [0, 1, 2, 3]


@tilewright.jit
def wrong(x, n, KIND: tl.constexpr):
    if KIND == "mask":
        tl.load(tl.make_block_ptr(x, (n,), (1,), (0,), (8,), (0,)), mask=True)
    elif KIND == "rank":
        tl.make_block_ptr(x, (n, n), (1,), (0,), (8,), (0,))
    elif KIND == "axis":
        tl.load(tl.make_block_ptr(x, (n,), (1,), (0,), (8,), (0,)), boundary_check=(1,))
    elif KIND == "order":
        tl.make_block_ptr(x, (n,), (1,), (0,), (8,), (1,))
    elif KIND == "stride":
        tl.make_tensor_descriptor(x, [n], [n], [8])
    elif KIND == "small":
        tl.make_tensor_descriptor(x, [n], [1], [2])
    elif KIND == "nan":
        tl.make_tensor_descriptor(x.to(tl.pointer_type(tl.int32)), [n], [1], [8], padding_option="nan")
    elif KIND == "gather":
        tl.make_tensor_descriptor(x, [n], [1], [8]).gather(tl.arange(0, 8), 0)
    elif KIND == "offsets":
        tl.make_tensor_descriptor(x, [n], [1], [8]).load([0, 0])
    else:
        tl.advance(x, (0,))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("mask", "takes no mask"),
        ("rank", "the shape of a block pointer must have one number for each of 1 axes, got 2"),
        ("axis", "boundary_check names axis 1"),
        ("order", "order must be a permutation"),
        ("stride", "must be the constant 1"),
        ("small", "at least 16 bytes"),
        ("nan", "'nan' needs floats"),
        ("gather", "needs a descriptor of block shape [1, columns]"),
        ("offsets", "the offsets of a descriptor must have one number for each of 1 axes, got 2"),
        ("advance", "advance needs a block pointer"),
    ],
)
def test_mistakes_are_named(kind: str, message: str) -> None:
    assert message in compile_error(wrong, {"x": "*f32", "n": "i32"}, KIND=kind)
