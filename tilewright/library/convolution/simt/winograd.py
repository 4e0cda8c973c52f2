"""Convolutions on GPUs by Winograd's F(m, r): when, in which tiles, at what cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, prod
from typing import Any

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage
from tilewright.library.convolution.problem import convolution_of
from tilewright.library.convolution.simt.winograd_kernel import transform_images, transform_sums
from tilewright.library.matmul.blocks import MatmulBlocks
from tilewright.library.matmul.launch import gemm_call
from tilewright.library.matmul.problem import GraphProduct
from tilewright.library.matmul.simt import product_cost
from tilewright.library.matmul.simt_tiles import ranked_tiles, simt_problem, varied_tiles
from tilewright.library.packing import filters_recipe
from tilewright.library.slots import Slots
from tilewright.symbolic import Size
from tilewright.targets.base import Target

# Points of a line by its taps. With 6 x 6 float32 errs by 9e-7 of the result, with 6 x 8 by 1.5e-6, for 64 channels of
# normal numbers, where direct sums err by 1.5e-7; 8 x 8 would err by 2.5e-6.
_POINTS = {1: 1, 2: 4, 3: 6, 4: 6, 5: 8, 6: 8, 7: 8}
_MOST_SHORT_TAPS = 5  # of the direction with fewer, which has no more than 6 points
_FEWEST_CHANNELS = 16  # of the image and of the result: transforms are shared by so many
_LEAST_SAVED = 1.5  # times as many products directly
_MOST_BYTES_BETWEEN = 1 << 30  # of what is between the kernels, at most: images are taken in parts
# Tiles of a program, and its threads. Stores of one warp wait for no others': each may be where another thread's was.
_OF_IMAGES, _OF_SUMS = (32, 32), (128, 128)
_COLUMNS = 128  # that the number of tiles is rounded up to a multiple of
_MOST_PRODUCT_COLUMNS = 32 * 65535  # of a product: blocks of 32 or more along an axis of the grid
_EFFICIENCY = 0.75  # of the memory's rate, which transforms reach (0.75 to 0.95 on an H200)
_PRODUCT_TILES = 2  # tiles of products that become candidates


def winograd_convolution(group: Group, slots: Slots, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a float32 convolution with known taps, of planes or of images whose channels are last; none
    where the config does not fit."""
    anchor, x, w = convolution_of(group)
    tiling = None if target.tf32 else _Tiling.of(anchor, x, w, graph)
    if tiling is None:
        return []
    machine, found = target.machine(), []
    sides = (tiling.columns, tiling.features) if tiling.last else (tiling.features, tiling.columns)
    problem = simt_problem((*sides, tiling.channels, tiling.points), x.dtype, target)
    moved = 4 * tiling.columns * tiling.points * (tiling.channels + tiling.features) * tiling.parts
    own = 4 * (prod(_known(x.shape)) + prod(_known(anchor.output.shape)))
    transforms = (moved + own) / (_EFFICIENCY * machine.memory)
    depth, pixels = prod(_known(w.shape[1:])), prod(_known(anchor.output.shape)) // tiling.features
    for tile, seconds in varied_tiles(ranked_tiles((problem,), machine), _PRODUCT_TILES):
        total = tiling.parts * (seconds + 2 * machine.launches.kernel) + transforms
        cost = product_cost(group, pixels, tiling.features, depth, 1, total)
        between = tiling.between(group.name)
        stages = tuple(
            Stage((call,))
            for part in range(tiling.parts)
            for call in (
                tiling.images(x, between[0], part),
                _product(tiling, w, between, MatmulBlocks(tile.rows, tile.columns, tile.depth), tile.threads),
                tiling.sums(between[1], slots, part),
            )
        )
        reasons = {"epilogue": slots.function.__name__, "config": str(tiling), "tile": str(tile)}
        found.append(Candidate("Winograd", stages, cost, between, reasons))
    return found


class _Tiling:
    """How a convolution is cut into tiles, and its images into parts of equal size."""

    def __init__(self, anchor: Node, x: Value, w: Value) -> None:
        self.last = anchor.attributes["layout"] == "NHWC"
        axes = slice(1, -1) if self.last else slice(2, None)
        (self.images_of_all,) = _known(x.shape[:1])
        self.features, self.channels, *taps = _known(w.shape)
        self.height, self.width = ((1, *_known(x.shape[axes])))[-2:]
        self.out_height, self.out_width = ((1, *_known(anchor.output.shape[axes])))[-2:]
        taps_y, taps_x = ((1, *taps))[-2:]
        self.taps = taps_y, taps_x
        self.pads = ((0, *(low for low, _ in anchor.attributes["padding"])))[-2:]
        self.points_y, self.points_x = _points_of(self.taps)
        self.count_y, self.count_x = self.points_y - self.taps[0] + 1, self.points_x - self.taps[1] + 1
        self.points = self.points_y * self.points_x
        self.down, self.across = ceil(self.out_height / self.count_y), ceil(self.out_width / self.count_x)
        self.images_of_part = next(
            (count for count in _divisors(self.images_of_all) if self._bytes(count) <= _MOST_BYTES_BETWEEN), 0
        )
        self.parts = self.images_of_all // max(1, self.images_of_part)

    @staticmethod
    def of(anchor: Node, x: Value, w: Value, graph: Graph) -> _Tiling | None:
        """The tiling of a convolution; None where it does not fit."""
        attributes, sizes = anchor.attributes, (*x.shape, *w.shape, *anchor.output.shape)
        plain = x.dtype == float32 and w in graph.constants and attributes["groups"] == 1 and x.rank in (3, 4)
        plain = plain and not attributes["exact"] and {*attributes["strides"], *attributes["dilation"]} == {1}
        if not plain or not all(isinstance(size, int) and size > 0 for size in sizes):
            return None
        taps = ((1, *_known(w.shape[2:])))[-2:]
        if max(taps) == 1 or max(taps) not in _POINTS or min(taps) > _MOST_SHORT_TAPS:
            return None
        found = _Tiling(anchor, x, w)
        direct = found.out_height * found.out_width * prod(taps)
        enough = min(found.channels, found.features) >= _FEWEST_CHANNELS and found.images_of_part > 0
        near = max(prod(_known(value.shape[1:])) for value in (x, anchor.output)) < 2**31  # places are of 32 bits
        saves = direct >= _LEAST_SAVED * found.down * found.across * found.points
        return found if enough and near and saves and found.columns <= _MOST_PRODUCT_COLUMNS else None

    def __str__(self) -> str:
        parts = f", {self.parts} parts of the images" if self.parts > 1 else ""
        return f"F({self.count_y} x {self.count_x}, {self.taps[0]} x {self.taps[1]}){parts}"

    def _columns(self, images: int) -> int:
        return -(-images * self.down * self.across // _COLUMNS) * _COLUMNS

    def _bytes(self, images: int) -> int:
        return 4 * self._columns(images) * self.points * (self.channels + self.features)

    @property
    def tiles(self) -> int:
        """Of a part of the images."""
        return self.images_of_part * self.down * self.across

    @property
    def columns(self) -> int:
        """The tiles of a part, and some to make blocks whole."""
        return self._columns(self.images_of_part)

    def between(self, name: str) -> tuple[Value, Value]:
        """What the products read and write."""
        points, sums = (
            (self.points, *((self.columns, count) if self.last else (count, self.columns)))
            for count in (self.channels, self.features)
        )
        return Value(f"{name}.points", float32, points), Value(f"{name}.sums", float32, sums)

    def _constants(self) -> dict[str, Any]:
        return {
            "tiles": self.tiles, "columns": self.columns, "down": self.down, "across": self.across,
            "POINTS_Y": self.points_y, "POINTS_X": self.points_x, "COUNT_Y": self.count_y, "COUNT_X": self.count_x,
            "LAST": self.last,
        }  # fmt: skip

    def _grid(self, channels: int, block: int) -> tuple[int, int, int]:
        """Of programs with `block` tiles of a channel each."""
        return (-(-self.tiles * channels // block), 1, 1) if self.last else (-(-self.tiles // block), channels, 1)

    def images(self, x: Value, points: Value, part: int) -> KernelCall:
        """The launch that transforms a part of the images."""
        constants = self._constants() | {
            "height": self.height, "width": self.width, "CHANNELS": self.channels, "PAD_Y": self.pads[0],
            "PAD_X": self.pads[1], "BLOCK": _OF_IMAGES[0],
        }  # fmt: skip
        operands: dict[str, Operand] = {"x": x, "points": points, "first": part * self.images_of_part}
        grid = self._grid(self.channels, _OF_IMAGES[0])
        return KernelCall(transform_images, operands, {"first": "i32"}, constants, grid, threads=_OF_IMAGES[1])

    def sums(self, sums: Value, slots: Slots, part: int) -> KernelCall:
        """The launch that transforms the sums of a part."""
        whole = self.out_width % self.count_x == 0 and not self.last
        together = next(n for n in (4, 2, 1) if self.count_x % n == 0 and (whole or n == 1))
        constants = self._constants() | {
            "out_height": self.out_height, "out_width": self.out_width, "CHANNELS": self.features, "TOGETHER": together,
            "MASK_Y": self.out_height % self.count_y != 0, "BLOCK": _OF_SUMS[0], "EPILOGUE": slots.function,
        }  # fmt: skip
        operands: dict[str, Operand] = {"sums": sums, "out": slots.stored, "first": part * self.images_of_part}
        types = {"first": "i32"}
        bind_extra(slots.extra, operands, types)
        grid = self._grid(self.features, _OF_SUMS[0])
        return KernelCall(transform_sums, operands, types, constants, grid, threads=_OF_SUMS[1])


def _known(sizes: tuple[Size, ...]) -> tuple[int, ...]:
    """Sizes that are numbers."""
    return tuple(size for size in sizes if isinstance(size, int))


def _points_of(taps: tuple[int, int]) -> tuple[int, int]:
    """The points of the lines of a window: no more than 6 in one direction."""
    points_y, points_x = (_POINTS[count] for count in taps)
    if min(points_y, points_x) <= 6:
        return points_y, points_x
    return (6, points_x) if taps[0] <= taps[1] else (points_y, 6)


def _divisors(count: int) -> Iterator[int]:
    """The divisors of a number, from the largest on."""
    return (each for each in range(count, 0, -1) if count % each == 0)


def _product(tiling: _Tiling, w: Value, between: tuple[Value, Value], blocks: MatmulBlocks, threads: int) -> KernelCall:
    """The launch of the products of each point, over channels: features by tiles, or tiles by features."""
    points, sums = between
    count, channels = tiling.points, tiling.channels
    of_taps, of_points = (0, tiling.features * channels), (0, channels * tiling.columns)
    if tiling.last:
        problem = GraphProduct(
            tiling.columns, tiling.features, channels, points, points, channels, 1, tiling.features, 1, 0,
            batches=count, inner_batches=count, a_batch=of_points, b_batch=of_taps,
        )  # fmt: skip
    else:
        problem = GraphProduct(
            tiling.features, tiling.columns, channels, points, points, 1, tiling.features, tiling.columns, 1, 0,
            batches=count, inner_batches=count, a_batch=of_taps, b_batch=of_points,
        )  # fmt: skip
    call = gemm_call(problem, Slots(sums), blocks, None)
    weights = PackedConstant(w, filters_recipe(tiling.points_y, tiling.points_x))
    return replace(call, operands={**call.operands, "b" if tiling.last else "a": weights}, threads=threads, evenly=True)
