"""float32 convolutions of planes on the tensor cores of Hopper, as accurate as by multiply-adds (`bf16x6_kernel`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

import tilewright.language as tl
from tilewright.dtypes import DType, bfloat16, float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra, launch
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage, TiledOperand
from tilewright.library.convolution.hopper.bf16x6_kernel import bf16x6_convolution, split_image
from tilewright.library.convolution.problem import convolution_of
from tilewright.library.cost import Cost, expected
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.hopper import SHARED_BYTES, is_possible
from tilewright.library.matmul.hopper.bf16x6 import (
    ADDING,
    OTHER_LAG,
    PARTS,
    REASON,
    Planes,
    planes_of,
    split_seconds,
)
from tilewright.library.matmul.hopper.choice import dependent
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.library.matmul.simt import epilogue_seconds, perhaps_sooner, product_cost
from tilewright.library.packing import parts_recipe, windows_recipe
from tilewright.library.slots import Slots
from tilewright.library.weights import packed_weights
from tilewright.symbolic import Size, ceil_divide, lift, minimum, product, simplify, upper_bound
from tilewright.targets.base import Target
from tilewright.targets.machine import Machine

_CONFIGS = 4  # that become candidates
_TILES = (*((128, columns) for columns in (128, 112, 96, 80, 64, 48, 32, 16)), (192, 64), (64, 128), (64, 64))
_LEAST_CHANNELS = 8  # 16 bytes: copies begin at multiples of them
_SPLIT_CHANNELS, _SPLIT_ELEMENTS = 64, 4096  # of a CTA that splits
# Clocks (H200, 2026-12-01): of a row of a copy that begins in a line of memory where others do; of a result.
_ROW_CLOCKS, _RESULT_CLOCKS = 6.0, 0.56
_FEW_PIXELS = 2048  # pixels, below which all images are one row
_MOST_BYTES = 16 << 30  # of images in parts


class Window(NamedTuple):
    """The depth of a product that is a convolution: lines of `RUN` taps, `CHANNELS` of each, in whole stages.

    Extents, strides and dilation are along (depth, height, width). `FLAT`: all images are one batch.
    """

    KERNEL: tuple[int, int, int]
    STRIDE: tuple[int, int, int]
    DILATION: tuple[int, int, int]
    CHANNELS: int
    FLAT: bool
    BK: int = 64

    @property
    def RUN(self) -> int:
        """Taps that are one run of memory."""
        return self.KERNEL[2] if self.DILATION[2] == 1 else 1

    @property
    def lines(self) -> int:
        """Runs of a window."""
        return prod(self.KERNEL) // self.RUN

    @property
    def blocks_of_line(self) -> int:
        """Stages of a run."""
        return -(-self.RUN * self.CHANNELS // self.BK)

    @property
    def blocks(self) -> int:
        """Stages of a window."""
        return self.lines * self.blocks_of_line

    @property
    def pitch(self) -> int:
        """Elements from row to row."""
        return self.STRIDE[2] * self.CHANNELS

    @property
    def wide(self) -> int:
        """Elements that a window is wide."""
        return ((self.KERNEL[2] - 1) * self.DILATION[2] + 1) * self.CHANNELS


@dataclass(frozen=True)
class _Volume:
    """A convolution of volumes: images and lines have one slice, lines one row. `extents` are the pixels of a phase
    that windows see."""

    x: Value
    w: Value
    shape: tuple[int, int, int]
    out: tuple[int, int, int]
    pad: tuple[int, int, int]
    window: Window
    extents: tuple[int, int, int]

    @staticmethod
    def of(anchor: Node, x: Value, w: Value) -> _Volume | None:
        """The convolution of a node; None where the kernel does not take it."""
        attributes, sizes = anchor.attributes, (*x.shape[1:], *w.shape, *anchor.output.shape[1:])
        plain = x.dtype == w.dtype == float32 and attributes["groups"] == 1 and not attributes["exact"]
        if not plain or not all(isinstance(size, int) and size > 0 for size in sizes) or x.rank > 5:
            return None
        shape, out, kernel = (_along_all(value.shape[2:], 1) for value in (x, anchor.output, w))
        stride, dilation = (_along_all(attributes[name], 1) for name in ("strides", "dilation"))
        pad = _along_all([low for low, _ in attributes["padding"]], 0)
        channels = -(-expected(w.shape[1]) // _LEAST_CHANNELS) * _LEAST_CHANNELS
        seen = [pixels + (taps - 1) * apart // step
                for pixels, taps, apart, step in zip(out, kernel, dilation, stride, strict=True)]  # fmt: skip
        across = (out[2] - 1) * stride[2] + (kernel[2] - 1) * dilation[2] + 1
        extents = (seen[0], seen[1], -(-across // stride[2]) * stride[2])
        images = x.shape[0]
        flat = isinstance(images, int) and images > 1 and prod(extents) < _FEW_PIXELS
        volume = _Volume(x, w, shape, out, pad, Window(kernel, stride, dilation, channels, flat), extents)
        if upper_bound(images) * volume.columns >= 2**31:  # rows of the epilogue are numbers of 32 bits
            return None
        known = expected(volume.batches) * PARTS * volume.plane * bfloat16.itemsize
        return volume if volume.plane < 2**31 - 2**20 and known <= _MOST_BYTES else None

    @property
    def images(self) -> Size:
        return self.x.shape[0]

    @property
    def batches(self) -> Size:
        return 1 if self.window.FLAT else self.images

    @property
    def columns(self) -> int:
        return expected(self.w.shape[0])

    @property
    def phases(self) -> int:
        """Of strides across slices and down."""
        return self.window.STRIDE[0] * self.window.STRIDE[1]

    @property
    def pixels_of_phase(self) -> int:
        """Of an image, or of all."""
        return prod(self.extents) * (expected(self.images) if self.window.FLAT else 1)

    @property
    def plane(self) -> int:
        """Elements of a plane."""
        return self.phases * self.pixels_of_phase * self.window.CHANNELS

    @property
    def image_rows(self) -> int:
        """Rows of a phase of an image."""
        return prod(self.extents) // self.window.STRIDE[2]

    @property
    def line_rows(self) -> int:
        return self.extents[2] // self.window.STRIDE[2]

    @property
    def rows(self) -> int:
        """Rows of a plane that end in it."""
        return (self.plane - self.window.wide) // self.window.pitch + 1

    @property
    def result_rows(self) -> int:
        """Rows of a batch of the product: to the last pixel of the last image that begins a window."""
        last = ((self.out[0] - 1) * self.extents[1] + self.out[1] - 1) * self.line_rows + self.out[2]
        return self.pixels_of_phase // self.window.STRIDE[2] - self.image_rows + last

    @property
    def depth(self) -> int:
        """Numbers of a filter, in whole stages."""
        return self.window.blocks * self.window.BK


def _along_all(sizes: Sequence[Size], neutral: int) -> tuple[int, int, int]:
    """Known sizes along depth, height and width; lines and images have none along the first ones."""
    depth, height, width = (*(neutral,) * (3 - len(sizes)), *map(expected, sizes))
    return depth, height, width


def bf16x6_convolutions(
    group: Group, slots: Slots, graph: Graph, target: Target, others: Sequence[Candidate]
) -> list[Candidate]:
    """The candidates of a float32 convolution of planes in parts, where it may be sooner than the others."""
    anchor, x, w = convolution_of(group)
    volume = _Volume.of(anchor, x, w) if target.wgmma and not target.tf32 else None
    if volume is None or slots.stored.dtype.bits not in (16, 32):
        return []
    operands = _images(volume), _filters(volume, graph, target)
    pixels = product([anchor.output.shape[0], *anchor.output.shape[2:]])
    seconds = epilogue_seconds(product(anchor.output.shape), slots, target)
    seconds += sum(split_seconds(each, target.machine()) for planes in operands for each in planes.temporaries)
    cost = product_cost(group, pixels, volume.columns, product(w.shape[1:]), 1, seconds)
    ranked = ranked_configs(volume, slots.stored.dtype, target.machine())[:_CONFIGS]
    return perhaps_sooner([_candidate(volume, slots, operands, each, cost, target) for each in ranked], others)


def _candidate(
    volume: _Volume, slots: Slots, planes: tuple[Planes, Planes], ranked: tuple[MatmulConfig, float], cost: Cost,
    target: Target,
) -> Candidate:  # fmt: skip
    """The candidate of a config; `cost` is without the seconds of the product."""
    (images, filters), (config, seconds) = planes, ranked
    stages = (*images.stages, *filters.stages, Stage((_call(volume, slots, planes, config, target),)))
    reasons = {"epilogue": slots.function.__name__, "float32": REASON, "tile": config.described}
    whole = replace(cost, seconds=cost.seconds + seconds)
    return Candidate("convolution bf16x6", stages, whole, (*images.temporaries, *filters.temporaries), reasons)


def _images(volume: _Volume) -> Planes:
    """The image in parts."""
    x, window = volume.x, volume.window
    planes = Value(f"{x.name}.parts", bfloat16, (volume.batches, PARTS, volume.plane))
    names = ("depth", "height", "width", "extent_z", "extent_y", "extent_x")
    sizes: dict[str, Size] = {
        "channels": x.shape[1], **dict(zip(names, (*volume.shape, *volume.extents), strict=True)),
        "image_step": prod(volume.extents) * window.CHANNELS if window.FLAT else PARTS * volume.plane,
        "phase_step": volume.pixels_of_phase * window.CHANNELS, "part_step": volume.plane,
    }  # fmt: skip
    channels = min(_SPLIT_CHANNELS, next_power_of_2(window.CHANNELS))
    pixels = _SPLIT_ELEMENTS // channels
    blocks = (-(-prod(volume.extents) // pixels), -(-window.CHANNELS // channels), volume.phases, volume.images)
    constants = {"CHANNELS": window.CHANNELS, "STRIDE": window.STRIDE, "PAD": volume.pad}
    constants |= {"BLOCK_C": channels, "BLOCK_P": pixels}
    call = launch(split_image, {"x": x, "planes": planes}, sizes, constants, (product(blocks), 1, 1))
    return Planes(planes, volume.batches, volume.plane, (Stage((call,)),), (planes,))


def _filters(volume: _Volume, graph: Graph, target: Target) -> Planes:
    """The weights in parts, [filters, lines of the window in whole stages]."""
    w, rows, depth, window = volume.w, volume.columns, volume.depth, volume.window
    recipe = windows_recipe(window.CHANNELS, window.RUN, window.blocks_of_line * window.BK)
    if w in graph.constants:
        return Planes(PackedConstant(w, parts_recipe(rows, depth, depth, recipe)), 1, depth)
    packed = packed_weights(w, recipe, graph, target)
    assert isinstance(packed.operand, Value)
    planes = planes_of(packed.operand, (rows, depth), (depth, 1), 1, 0, None)
    stages, temporaries = (*packed.stages, *planes.stages), (*packed.temporaries, *planes.temporaries)
    return replace(planes, stages=stages, temporaries=temporaries)


def _call(
    volume: _Volume, slots: Slots, planes: tuple[Planes, Planes], config: MatmulConfig, target: Target
) -> KernelCall:
    """The launch of a config."""
    (images, filters), window, columns = planes, volume.window, volume.columns
    config = config._replace(EPILOGUE=slots.function)
    if isinstance(filters.operand, PackedConstant):
        config = dependent(config, target.machine())
    places = simplify(lift(volume.batches) * PARTS)
    operands: dict[str, Operand] = {
        "a": TiledOperand(
            images.operand, (places, volume.rows, window.wide), (volume.plane, window.pitch, 1), config.left_block
        ),
        "b": TiledOperand(
            filters.operand, (PARTS, columns, volume.depth), (columns * volume.depth, volume.depth, 1),
            config.right_block,
        ),
        "a_planes": images.operand, "b_planes": filters.operand, "c": slots.stored,
    }  # fmt: skip
    numbers: dict[str, Size] = {
        "M": volume.result_rows, "N": columns, "channels": volume.w.shape[1], "batches": volume.batches,
        "images": volume.images, "phase_rows": volume.pixels_of_phase // window.STRIDE[2],
        "image_rows": volume.image_rows, "slice_rows": volume.extents[1] * volume.line_rows,
        "line_rows": volume.line_rows, "plane": volume.plane,
        **dict(zip(("depth", "height", "width"), volume.out, strict=True)), "b_line": volume.depth,
    }  # fmt: skip
    operands |= numbers
    types = dict.fromkeys(numbers, "i32")
    bind_extra(slots.extra, operands, types)
    tiles = simplify(lift(ceil_divide(volume.result_rows, config.BM)) * -(-columns // config.BN) * volume.batches)
    grid = (minimum(tiles, target.machine().processors), 1, 1)
    return KernelCall(bf16x6_convolution, operands, types, {"CONFIG": config}, grid)


# Configs -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def ranked_configs(volume: _Volume, stored: DType, machine: Machine) -> tuple[tuple[MatmulConfig, float], ...]:
    """Configs that can be built with their estimated seconds, the quickest first."""
    estimates = [(config, seconds_of(config, volume, machine)) for config in _configs(volume, stored)]
    return tuple(sorted(estimates, key=lambda entry: round(entry[1] * 1e9)))


def _configs(volume: _Volume, stored: DType) -> Iterator[MatmulConfig]:
    for rows, columns in _TILES:
        if columns > 16 and columns - 16 >= volume.columns:
            continue
        config = MatmulConfig(
            BM=rows, BN=columns, CONSUMERS=rows // 64, PARTS=PARTS, OUTPUT=tl.dtype(stored), BATCHED=True,
            ONE_A=volume.window.FLAT, ONE_B=True, WINDOW=volume.window,
        )  # fmt: skip
        config = config._replace(STAGES=min(8, SHARED_BYTES // (config.stage_bytes + 16)))
        apart = (config._replace(LAG=lag) for lag in range(min(2, config.CONSUMERS)))
        yield from (each for each in apart if is_possible(each))


def seconds_of(config: MatmulConfig, volume: _Volume, machine: Machine) -> float:
    """The estimated time of a convolution of planes."""
    batches, window = expected(volume.batches), volume.window
    tiles = -(-volume.result_rows // config.BM) * -(-volume.columns // config.BN) * batches
    waves = -(-tiles // machine.processors)
    # A product of 64 rows and 16 elements of depth takes as long as tensor cores need, or as its operands to be read.
    instruction = max(2 * 64 * 16 * config.BN / machine.wgmma, 16 + config.BN / 4)
    multiplied = len(config.terms) * config.BM / 64 * config.BK / 16 * instruction
    row = _ROW_CLOCKS if window.pitch < config.BK else 1.0
    stage = max(multiplied + ADDING, PARTS * (config.BM * row + config.BN))
    clocks = waves * (window.blocks * stage + _RESULT_CLOCKS * config.BM * config.BN)
    clocks *= 1.0 if (config.LAG > 0) == (waves == 1) or config.CONSUMERS == 1 else OTHER_LAG
    moved = batches * (PARTS * bfloat16.itemsize * volume.plane + float32.itemsize * prod(volume.out) * volume.columns)
    return machine.launches.hopper_product + max(clocks / machine.wgmma_clock, moved / machine.memory)
