"""float32 numbers as three of bfloat16, whose sum they are: constants, before an engine is saved.

`matmul.hopper.bf16x6_kernel.parts_of` does the same to what is computed.  Weights have up to billions of numbers, so
that they are split in blocks that a core's cache holds, by the operations of integers, and by several threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from tilewright.dtypes import bfloat16
from tilewright.settings import settings

_SPLIT_AT_ONCE = 1 << 15  # numbers of a block
_PIECE = 1 << 21  # numbers that a thread does before it takes further ones
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_HIGH_BITS = np.uint32(0xFFFF0000)
_OVERFLOWS = np.uint32(0x7F7F8000)  # the least magnitude that rounds to infinity
_INFINITE = np.float32(np.inf).view(np.uint32)
_LEAST = np.float32(2.0**-110).view(np.uint32)  # the least magnitude whose parts bfloat16 has exactly


def split(matrices: np.ndarray, planes: np.ndarray) -> None:
    """Fill bfloat16 `planes` [matrices, 3, rows, line] with the parts of float32 [matrices, rows, columns], the largest
    first, as far as the columns go."""
    count, rows, columns = matrices.shape

    def work(matrix: int, first: int, end: int) -> None:
        found = planes[matrix, :, first:end, :columns].view(np.uint16)
        _split_block(matrices[matrix, first:end], found)

    _in_blocks(work, count, rows, columns)


def are_exact(numbers: np.ndarray) -> bool:
    """Whether all float32 numbers are the sums of their parts."""
    matrices = numbers.reshape(1, -1, numbers.shape[-1] if numbers.ndim and numbers.size else 1)
    found: list[bool] = []

    def work(matrix: int, first: int, end: int) -> None:
        magnitudes = matrices[matrix, first:end].view(np.uint32) & _MAGNITUDE
        if np.max(magnitudes) > _INFINITE or np.any((magnitudes < _LEAST) & (magnitudes > 0)):
            found.append(False)

    _in_blocks(work, *matrices.shape)
    return not found


def joined(planes: np.ndarray, columns: int) -> np.ndarray:
    """The float32 matrices [matrices, rows, columns] that were split."""
    count, _, rows, _ = planes.shape
    matrices = np.empty((count, rows, columns), np.float32)

    def work(matrix: int, first: int, end: int) -> None:
        high, middle, low = (planes[matrix, part, first:end, :columns].astype(np.float32) for part in range(3))
        matrices[matrix, first:end] = np.where(middle == 0, high, high + (middle + low))  # -0 stays -0

    _in_blocks(work, count, rows, columns)
    return matrices


def _in_blocks(work: Callable[[int, int, int], None], count: int, rows: int, columns: int) -> None:
    """Call ``work(matrix, first row, end)`` for blocks of rows of matrices, by threads where there are many."""
    if not count * rows * columns:
        return
    block = max(1, _SPLIT_AT_ONCE // columns)
    piece = block * max(1, _PIECE // (block * columns))

    def do(matrix: int, start: int) -> None:
        end = min(rows, start + piece)
        for first in range(start, end, block):
            work(matrix, first, min(end, first + block))

    pieces = [partial(do, matrix, start) for matrix in range(count) for start in range(0, rows, piece)]
    if len(pieces) < 2:
        pieces[0]()
        return
    with ThreadPoolExecutor(max(1, min(settings.threads, len(pieces)))) as pool:
        for done in [pool.submit(each) for each in pieces]:
            done.result()


def _split_block(numbers: np.ndarray, parts: np.ndarray) -> None:
    """Fill the bits of three blocks with the parts of one."""
    bits = numbers.view(np.uint32)
    if np.max(bits & _MAGNITUDE) >= _OVERFLOWS:
        parts[:] = np.stack(_parts_of_any(numbers)).view(np.uint16)
        return
    for part in range(3):
        rounded = _rounded(bits)
        parts[part] = rounded >> 16
        if part < 2:
            numbers = numbers - rounded.view(np.float32)
            bits = numbers.view(np.uint32)


def _rounded(bits: np.ndarray) -> np.ndarray:
    """The bits of finite float32 numbers rounded to bfloat16, ties to even."""
    odd = (bits >> 16) & np.uint32(1)
    odd += np.uint32(0x7FFF)
    odd += bits
    odd &= _HIGH_BITS
    return odd


def _parts_of_any(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The parts of numbers that may not be finite, or that round to infinity and are cut then."""
    finite = np.isfinite(numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        high = numbers.astype(bfloat16.numpy)
    cut = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(bfloat16.numpy)
    high = np.where(finite & ~np.isfinite(high), cut, high)
    rest = np.where(finite, numbers, 0) - np.where(finite, high, 0).astype(np.float32)
    middle = rest.astype(bfloat16.numpy)
    return high, middle, (rest - middle.astype(np.float32)).astype(bfloat16.numpy)
