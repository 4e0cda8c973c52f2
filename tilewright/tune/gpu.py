"""What a GPU takes for a kernel: rates by architecture, and the time of products in tiles.

seconds = launch + max(waves of CTAs x the slowest unit of a CTA, bytes of global memory)

Rates are those of the usual card of an architecture (`NvidiaTarget`), from its data sheet; ratios alone matter, for
the model ranks candidates and promises nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

from tilewright.dtypes import DType
from tilewright.targets.base import Target

GPU_CLOCK = 1.5e9  # under load
_BYTES_A_SECOND = {80: 1.9e12, 86: 0.6e12, 89: 0.3e12, 90: 4.4e12, 100: 8e12, 120: 1.8e12}  # by sm
# Operations of one multiprocessor and clock: float32 on the ordinary units, 16-bit products on tensor cores (mma.sync).
_FLOAT32 = {80: 128, 86: 256, 89: 256, 90: 256, 100: 256, 120: 256}
_TENSOR = {80: 2048, 86: 1024, 89: 1024, 90: 2400, 100: 2400, 120: 1024}
GPU_CACHE_BYTES = 50.0  # that one multiprocessor gets from L2 in a clock
_FLOAT32_CLOCK = 1.75e9  # where tensor cores rest
_ISSUE = 0.87  # instructions of a scheduler and clock, of many warps
_ISSUE_ALONE = 0.85  # of one warp
_STEP = 330.0  # clocks from one block of the depth to the next that a CTA alone waits
_VECTOR_CLOCKS = 4.0  # of a multiprocessor, for a vector of 16 bytes to each lane of a warp from shared memory
_BESIDE = 110.0  # instructions for a block of the depth beside arithmetic and loads
_THREAD_SUMS = (8, 16, 32, 64)
_START = 1500.0  # clocks from a CTA's start to its first product
_PARTS = (2, 4, 8, 16)  # of a depth
_LEAST_STEPS = 3  # blocks of a part
LAUNCH = 2.5e-6  # seconds of a kernel in a graph, however short


@dataclass(frozen=True)
class Gpu:
    """The rates of one architecture; see the module's tables."""

    processors: int
    memory: float
    float32: float
    tensor: float
    shared_bytes: int
    l2_bytes: int
    tf32: bool = False

    def multiplies_by_addition(self, dtype: DType) -> bool:
        """Whether products of this type are multiply-adds on the ordinary units."""
        return dtype.is_float and dtype.bits == 32 and not self.tf32

    def rate(self, dtype: DType) -> float:
        """Operations of a multiprocessor and clock in `tl.dot` on operands of a type, float32 as tf32 where `tf32`."""
        if dtype.bits == 16:
            return self.tensor
        if self.tf32 and dtype.bits == 32:
            return self.tensor / 2
        return self.float32 / (1 if dtype.bits <= 32 else 2)


def gpu_of(target: Target) -> Gpu:
    """The rates for a target with the fields of `NvidiaTarget`."""
    table: Any = target
    rates = (_BYTES_A_SECOND[table.sm], _FLOAT32[table.sm], _TENSOR[table.sm])
    return Gpu(table.multiprocessors, *rates, table.shared_bytes, table.l2_bytes, table.tf32)


@dataclass(frozen=True)
class Tile:
    """A tile of a product: `rows` x `columns` of the result, `depth` at a time, by `warps` warps."""

    rows: int
    columns: int
    depth: int
    warps: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns}, depth {self.depth}, {self.warps} warps"


@dataclass(frozen=True)
class Product:
    """The sizes of a product: rows, columns, depth, how often, and the operands' element type."""

    rows: int
    columns: int
    depth: int
    batches: int
    dtype: DType


def tiles(product: Product, gpu: Gpu) -> list[Tile]:
    """Tiles that fit shared memory in three stages."""
    size = product.dtype.itemsize
    depths = (64, 32) if size <= 2 else (32, 16)
    found = []
    for rows in (16, 32, 64, 128):
        for columns in (32, 64, 128):
            if rows == 128 and columns == 32:
                continue
            for depth in depths:
                if 3 * (rows + columns) * depth * size <= gpu.shared_bytes - 2048:
                    found += [Tile(rows, columns, depth, warps) for warps in _warps(rows * columns, product, gpu)]
    return found


def _warps(elements: int, product: Product, gpu: Gpu) -> list[int]:
    """How many warps may have a tile of the result."""
    if gpu.multiplies_by_addition(product.dtype):
        return [warps for warps in (1, 2, 4, 8) if elements // (32 * warps) in _THREAD_SUMS]
    return [8 if elements >= 128 * 128 else 4 if elements > 16 * 32 else 2]


def seconds_of(tile: Tile, product: Product, gpu: Gpu) -> float:
    """The expected time of a product in tiles of `kernels.matmul`."""
    size = product.dtype.itemsize
    ctas = ceil(product.rows / tile.rows) * ceil(product.columns / tile.columns) * product.batches
    elements = product.rows * product.depth + product.depth * product.columns + product.rows * product.columns
    moved = elements * size * product.batches / (gpu.memory * min(1.0, 0.2 + 0.8 * ctas / gpu.processors))
    if gpu.multiplies_by_addition(product.dtype):
        return LAUNCH + max(_float32_clocks(tile, product, ctas, gpu) / _FLOAT32_CLOCK, moved)
    shared = 3 * (tile.rows + tile.columns) * tile.depth * size
    resident = max(1, min(16 // tile.warps, gpu.shared_bytes // shared))
    # CTAs of one multiprocessor share its units; a single one leaves them idle at times.
    busy = min(ceil(ctas / gpu.processors), resident)
    used = {1: 0.6, 2: 0.8}.get(busy, 0.9)
    # Small tiles read more from shared memory for a product than tensor cores can use.
    shape = min(1.0, (tile.rows * tile.columns / (tile.rows + tile.columns)) / 48)
    work = 2.0 * tile.rows * tile.columns * product.depth / (gpu.rate(product.dtype) * used * max(shape, 0.2))
    loads = (tile.rows + tile.columns) * product.depth * size / GPU_CACHE_BYTES
    turns = ceil(ctas / gpu.processors)
    clocks = _START + turns * max(work, loads) + ceil(turns / resident) * 600
    return LAUNCH + max(clocks / GPU_CLOCK, moved)


def _float32_clocks(tile: Tile, product: Product, ctas: int, gpu: Gpu) -> float:
    """Clocks of multiply-adds in tiles: those of the busiest multiprocessor.

    A block of the depth takes a CTA alone what its instructions take one after the other, and a wait; several share the
    schedulers, and the way from shared memory to registers.  Fitted to 20 tiles of eight products (H200, 2026-11-22).
    """
    sums = tile.rows * tile.columns // (32 * tile.warps)
    columns = min(8, max(4, sums // 4))  # of a thread, about as `scalar_layout` has them
    loads = tile.depth * (columns + sums / columns) / 4
    arithmetic = sums * tile.depth
    issued = arithmetic * 256 / gpu.float32 + loads + sums + _BESIDE
    alone = issued / _ISSUE_ALONE + _STEP
    read = (tile.rows + tile.columns) * tile.depth * 4 / GPU_CACHE_BYTES
    shared = tile.warps * max(issued / 4 / _ISSUE, loads * _VECTOR_CLOCKS)
    registers = min(255, 64 + 3 * sums)
    resident = min(
        65536 // (registers * 32 * tile.warps), gpu.shared_bytes // (3 * (tile.rows + tile.columns) * tile.depth * 4)
    )
    resident = max(1, min(32, resident))
    rounds, rest = divmod(ceil(ctas / gpu.processors), resident)
    steps = ceil(product.depth / tile.depth)

    def together(count: int) -> float:
        return steps * (max(alone, count * shared, count * read) + count * read / 50) + _START if count else 0.0

    return rounds * together(resident) + together(rest)


@lru_cache(maxsize=4096)
def ranked_tiles(products: tuple[Product, ...], gpu: Gpu) -> tuple[tuple[Tile, float], ...]:
    """All tiles with their times for the first of several examples; first the one whose times over all examples have
    the least product."""

    def score(tile: Tile) -> float:
        total = 1.0
        for product in products:
            total *= seconds_of(tile, product, gpu)
        return total

    return tuple((tile, seconds_of(tile, products[0], gpu)) for tile in sorted(tiles(products[0], gpu), key=score))


@lru_cache(maxsize=4096)
def ranked_parts(product: Product, gpu: Gpu) -> tuple[Tile, int, float] | None:
    """The tile, the number of parts of the depth (two or more, which divide it) and the time of the quickest product
    in parts, with that of their sum; None where nothing divides the depth."""
    best: tuple[Tile, int, float] | None = None
    elements = product.rows * product.columns
    for parts in _PARTS:
        length, rest = divmod(product.depth, parts)
        if rest:
            continue
        part = Product(product.rows, product.columns, length, parts, product.dtype)
        summing = LAUNCH + elements * (parts + 1) * 4 / gpu.memory
        for tile in tiles(part, gpu):
            if length < _LEAST_STEPS * tile.depth:
                continue
            seconds = seconds_of(tile, part, gpu) + summing
            if best is None or seconds < best[2]:
                best = tile, parts, seconds
    return best
