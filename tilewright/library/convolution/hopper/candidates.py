"""Convolutions on Hopper: the images that tensor copies can move, and the likeliest configs for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

import tilewright.language as tl
from tilewright.dtypes import DType, bfloat16, float8e4nv, float8e5, float16, float32, int8, uint8
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra, bind_sizes, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage, TiledOperand
from tilewright.library.convolution.hopper import kernel as hopper
from tilewright.library.convolution.hopper.choice import ranked_configs, row_bytes
from tilewright.library.convolution.hopper.config import ConvolutionConfig
from tilewright.library.convolution.hopper.folded_pixels import in_rows_of_pixels
from tilewright.library.convolution.operands import Moves
from tilewright.library.convolution.problem import ConvolutionProblem, convolution_of, image_ranges, is_pointwise
from tilewright.library.convolution.simt.kernel import pad_channels
from tilewright.library.cost import MEMORY_SECTOR, expected
from tilewright.library.generated.expressions import EXPRESSIONS
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.generated.index import dense_strides
from tilewright.library.generated.slot_functions import Chain
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.matmul.simt import product_cost
from tilewright.library.packing import Recipe, order_recipe, runs_recipe, windows_recipe
from tilewright.library.slots import Slots, epilogue_slots
from tilewright.library.weights import packed_weights
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, substitute
from tilewright.targets.base import Target
from tilewright.targets.machine import Machine

MOST_HOPPER_CANDIDATES = 6  # that become candidates
_TILED_BYTES = 16  # what strides and addresses of tensor copies are multiples of
_LONGEST_RUN = 2048  # elements of a line of the window that is read as one run
_LARGEST_PIXEL = 256  # elements that become one pixel of a copied image
_LARGEST_STEP = 8  # of a tensor copy
_COPIED_ROW = 128  # bytes of a row of a tensor copy
_MOST_ROW_COLUMNS = 256  # of a row of several pixels
_INTEGERS, _FLOATS = (int8, uint8), (float8e4nv, float8e5)  # of 8 bits


@dataclass(frozen=True)
class _Image:
    """An image as the Hopper kernel sees it: a place, its view [images, rows, columns, channels], and the window.

    `sizes` are images, height and width of the result in the same view.
    """

    place: Value
    shape: tuple[Size, Size, Size, int]
    strides: tuple[Size, Size, Size, int]
    sizes: tuple[Size, Size, Size]
    channels: int  # of a group, as many as weights have
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)


def is_padded(x: Value, w: Value) -> bool:
    """Whether the Hopper kernel reads a copy of the image with more channels: its own are no multiple of 16 bytes."""
    return not divides(_TILED_BYTES, lift(w.shape[1]) * x.dtype.itemsize)


def is_mostly_zeros(anchor: Node, x: Value, w: Value) -> bool:
    """Whether so many channels of zeros are added to a padded image that another kernel may be faster."""
    channels = x.shape[-1]
    assert isinstance(channels, int)
    return _Runs.of(anchor, x, w, 1).wide >= 2 * channels


def has_short_rows(anchor: Node, x: Value, w: Value, target: Target) -> bool:
    """Whether a pixel's channels are so few that lines of windows are better read as runs of a copy of the image."""
    channels, (_, kernel_x) = w.shape[1], _window(w)
    assert isinstance(channels, int)
    whole = anchor.attributes["groups"] == 1 and x.rank == 4
    short = channels * x.dtype.itemsize <= target.kernels.copied_pixel
    return whole and kernel_x > 2 and short and not is_padded(x, w)


def _fits_hopper(group: Group, stored: Value, x: Value, w: Value, target: Target) -> bool:
    """Whether the Hopper kernel has these types and can store the columns."""
    assert group.anchor is not None
    out, groups = group.anchor.output, group.anchor.attributes["groups"]
    same = x.dtype == w.dtype and x.dtype in (float16, bfloat16)
    fits = target.wgmma and len(group.outputs) == 1 and x.rank == 4
    narrow = (x.dtype in _INTEGERS and w.dtype == int8) or (x.dtype in _FLOATS and w.dtype in _FLOATS)
    fits = fits and (same or narrow)
    fits = fits and stored.dtype in (float16, bfloat16, float32, *_INTEGERS, *_FLOATS)
    columns = out.shape[-1]
    assert isinstance(columns, int)
    aligned = columns // groups * min(2, stored.dtype.itemsize) % _TILED_BYTES == 0
    return fits and aligned and product(stored.shape) == product(out.shape)


def has_narrow_rows(anchor: Node, x: Value, w: Value) -> bool:
    """Whether a pixel's channels are less than tensor copies take at once, and neighbours' windows share pixels; or
    they are copied anyway."""
    channels = w.shape[1]
    assert isinstance(channels, int)
    whole = anchor.attributes["groups"] == 1 and x.rank == 4 and x.dtype.itemsize > 1
    shared = whole and _window(w)[1] > anchor.attributes["strides"][1]
    return is_padded(x, w) or (shared and channels * x.dtype.itemsize < _COPIED_ROW)


def hopper_rows(group: Group, moves: Moves, graph: Graph, target: Target) -> list[Candidate]:
    """The Hopper convolution of an image of few channels with several pixels of a line as one row: of a copy as many as
    tensor copies take at once, of the image as it lies any number."""
    anchor, x, w = convolution_of(group)
    columns, copied = w.shape[0], is_padded(x, w) or _has_edges(anchor)
    assert isinstance(columns, int)
    found: list[Candidate] = []
    for pixels in (8, 4, 2):
        row = _Runs.of(anchor, x, w, pixels).length * x.dtype.itemsize
        whole = divides(pixels, anchor.output.shape[2])
        if not whole or (copied and row > _COPIED_ROW) or columns * pixels > _MOST_ROW_COLUMNS:
            continue
        folded = in_rows_of_pixels(group, pixels)
        try:
            slots = epilogue_slots(folded, graph)
        except NotImplementedError:
            return found
        found += hopper_candidates(folded, moves, graph, slots, target, pixels, copied)
        if copied:
            break
    return found


def _has_edges(anchor: Node) -> bool:
    """Whether windows reach over the ends of lines."""
    return any(anchor.attributes["padding"][1])


def hopper_candidates(
    group: Group, moves: Moves, graph: Graph, slots: Slots, target: Target, pixels: int = 1, runs: bool = False
) -> list[Candidate]:
    """The Hopper convolution in its likeliest configs; none where tensor copies cannot move the operands.

    `pixels` of a line are one of the result, as in `in_rows_of_pixels`; with `runs` lines of windows are read as one
    run each even if tensor copies can move the image as it is.
    """
    anchor, x, w = convolution_of(group)
    out, groups = anchor.output, anchor.attributes["groups"]
    columns, channels = out.shape[-1], w.shape[1]
    assert isinstance(columns, int) and isinstance(channels, int)
    stored = slots.stored.dtype
    if not _fits_hopper(group, slots.stored, x, w, target):
        return []
    stages: tuple[Stage, ...] = ()
    temporaries: tuple[Value, ...] = ()
    if not is_padded(x, w) and not runs and pixels > 1:
        if w not in graph.constants or anchor.attributes["dilation"][1] != 1:
            return []
        (image, weights), stages, temporaries = _as_they_lie(anchor, x, w, pixels), moves.stages, moves.temporaries
    elif not is_padded(x, w) and not runs:
        image = _direct_image(anchor, x, w, groups)
        packed = packed_weights(w, _taps_recipe(channels, image), graph, target)
        weights, stages, temporaries = packed.operand, packed.stages, packed.temporaries
        stages, temporaries = (*moves.stages, *stages), (*moves.temporaries, *temporaries)
    else:
        found = _padded_image(anchor, moves, x, w, graph, pixels, target) if x.dtype.itemsize > 1 else None
        if found is None:
            return []
        image, stages, temporaries, weights = found
    image = _by_lines(image)
    if max(image.stride) > _LARGEST_STEP:
        return []
    residual = _residual(group, slots, (x, w))
    slots = slots.rounded(columns)
    ranges, machine = image_ranges(x.shape[0]), target.machine()
    epilogue = residual is not None, slots.cost.instructions
    ranked = [
        _configs(image, (x, w), columns // groups, groups, stored, epilogue, known, machine) for _, known in ranges
    ]
    dependent = isinstance(weights, PackedConstant)
    candidates = []
    for chosen in zip(*ranked, strict=False):
        calls = []
        for (at_most, _), (config, _) in zip(ranges, chosen, strict=True):
            config = config._replace(DEPENDENT=dependent)
            call = _call(config, image, weights, group, graph, slots, residual, machine.processors)
            if call is not None:
                calls.append(call if at_most is None else replace(call, condition=(x.shape[0], at_most)))
        if len(calls) < len(ranges):
            continue
        seconds = chosen[-1][1] + machine.launches.kernel * len(stages)
        cost = product_cost(group, product(image.sizes), columns // groups, product(w.shape[1:]), groups, seconds)
        reasons: dict[str, Any] = {"epilogue": slots.function.__name__, **({"pixels": pixels} if pixels > 1 else {})}
        for (at_most, _), (config, _) in zip(ranges, chosen, strict=True):
            reasons["tile" if at_most is None else f"images <= {at_most}"] = _described(config)
        name = "hopper convolution" if pixels == 1 else f"hopper convolution, {pixels} pixels a row"
        candidates.append(Candidate(name, (*stages, Stage(tuple(calls))), cost, temporaries, reasons))
    return candidates


def _configs(
    image: _Image, operands: tuple[Value, Value], columns: int, groups: int, stored: DType,
    epilogue: tuple[bool, int], known: dict[str, int], machine: Machine,
) -> list[tuple[ConvolutionConfig, float]]:  # fmt: skip
    """The likeliest configs with their estimates, where symbols have the values `known`, others those expected.

    `epilogue`: whether it reads a tensor like the result, and its instructions for an element.
    """

    def at(size: Size) -> int:
        return expected(substitute(size, known))

    images, height, width = map(at, image.sizes)
    residual, work = epilogue
    x, w = operands
    problem = ConvolutionProblem(
        images, height, width, columns, image.channels, groups, image.kernel, image.stride, image.pad, image.dilation,
        tl.dtype(x.dtype), tl.dtype(stored), None if w.dtype == x.dtype else tl.dtype(w.dtype), residual,
        prod(map(at, x.shape)) * x.dtype.itemsize, work, _is_overlapped(image),
    )  # fmt: skip
    return list(ranked_configs(problem, machine)[:MOST_HOPPER_CANDIDATES])


def _is_overlapped(image: _Image) -> bool:
    """Whether pixels are runs of memory that begin in one sector or in neighbours."""
    apart = image.strides[2]
    near = isinstance(apart, int) and apart * image.place.dtype.itemsize <= MEMORY_SECTOR
    return near and expected(apart) < image.shape[3]


def _taps_recipe(channels: int, image: _Image) -> Recipe:
    """The recipe of weights as [columns, taps, channels]; neighbouring taps may be one run of the image."""
    whole, taps = _in_whole_rows(image.channels, image.place), image.channels // channels
    return order_recipe((0, 2, 3, 1)) if whole == image.channels else windows_recipe(channels, taps, whole)


def _in_whole_rows(channels: int, x: Value) -> int:
    """The channels of a tap of the weights, in whole rows of tensor copies: rows of weights that are cut take many
    times as long."""
    size = x.dtype.itemsize
    row = row_bytes(channels * size)
    return -(-channels * size // row) * row // size


def _described(config: ConvolutionConfig) -> str:
    unit = " x ".join(map(str, config.UNIT))
    text = f"{config.units} units of {unit} pixels by {config.BN}, {config.CONSUMERS} warpgroups, depth {config.BK}, "
    text += f"{config.STAGES} stages{', ping-pong' if config.PING_PONG else ''}"
    return text if config.SPLIT == 1 else f"{text}, depth shared by {config.SPLIT}"


def _direct_image(anchor: Node, x: Value, w: Value, groups: int) -> _Image:
    """The image as it lies; pixels that a 1x1 window passes over are left out of the view."""
    attributes = anchor.attributes
    images, height, width, channels = x.shape
    _, out_height, out_width, _ = anchor.output.shape
    assert isinstance(channels, int)
    if is_pointwise(anchor, w):
        pixels = product(x.shape[:-1])
        line = simplify(lift(pixels) * channels)
        return _Image(x, (1, 1, pixels, channels), (line, line, channels, 1), (1, 1, pixels), channels)
    image_step, line_step = simplify(lift(height) * width * channels), simplify(lift(width) * channels)
    kernel, steps, dilation = _window(w), attributes["strides"], attributes["dilation"]
    (top, _), (left, _) = attributes["padding"]
    sizes = (images, out_height, out_width)
    padded = any(low or high for low, high in attributes["padding"])
    if kernel == steps and groups == 1 and dilation == (1, 1) and not padded:
        # Patches side by side: a line of one is a run of memory.
        run = kernel[1] * channels
        shape = (images, height, out_width, run)
        return _Image(x, shape, (image_step, line_step, run, 1), sizes, run, (kernel[0], 1), (kernel[0], 1))
    if kernel == (1, 1) and not padded:
        shape = (images, out_height, out_width, channels)
        strides = (image_step, simplify(lift(line_step) * steps[0]), channels * steps[1], 1)
        return _Image(x, shape, strides, sizes, channels // groups)
    return _Image(
        x, (images, height, width, channels), (image_step, line_step, channels, 1), sizes, channels // groups,
        kernel, steps, (top, left), dilation,
    )  # fmt: skip


def _as_they_lie(anchor: Node, x: Value, w: Value, pixels: int) -> tuple[_Image, Operand]:
    """The image, of whose lines `pixels` windows side by side are one pixel, with the weights to it; windows do not
    reach over the ends."""
    direct = _direct_image(anchor, x, w, 1)
    (kernel_y, kernel_x), (step_y, step_x) = _window(w), anchor.attributes["strides"]
    channels = direct.channels
    run = (kernel_x + (pixels - 1) * step_x) * channels
    images, height, width = anchor.output.shape[:3]
    image = replace(
        direct, shape=(*direct.shape[:2], width, run), sizes=(images, height, width), channels=run,
        strides=(*direct.strides[:2], pixels * step_x * channels, 1), kernel=(kernel_y, 1), stride=(step_y, 1),
        pad=(direct.pad[0], 0), dilation=(direct.dilation[0], 1),
    )  # fmt: skip
    return image, PackedConstant(w, runs_recipe(channels, 1, _in_whole_rows(run, x), pixels, step_x))


def _window(w: Value) -> tuple[int, int]:
    """Height and width of the window; `checked_convolution` has seen that weights have a fixed shape."""
    height, width = w.shape[2:]
    assert isinstance(height, int) and isinstance(width, int)
    return height, width


def _by_lines(image: _Image) -> _Image:
    """Where lines of windows neither share pixels nor leave any out, each line of the result as an image of its own."""
    lines, step = image.kernel[0], image.stride[0]
    _, height, width = image.sizes
    apart = lines == step > 1 and image.pad[0] == 0 and image.dilation[0] == 1 and image.stride[1] == 1
    if not apart or simplify(lift(height) * lines) != image.shape[1]:
        return image
    images = simplify(lift(image.sizes[0]) * height)
    row = image.strides[1]
    shape, strides = (images, lines, *image.shape[2:]), (simplify(lift(row) * lines), *image.strides[1:])
    return replace(image, shape=shape, strides=strides, sizes=(images, 1, width), stride=(1, 1))


@dataclass(frozen=True)
class _Runs:
    """How the lines of a window lie in a copy of the image: `fold` rows together, pixels of `wide` channels.

    A run of `length` elements has the windows of neighbouring pixels.
    """

    fold: int
    wide: int
    length: int

    @staticmethod
    def of(anchor: Node, x: Value, w: Value, pixels: int) -> _Runs:
        """Runs that begin a multiple of 16 bytes apart, with no more channels of zeros than that takes."""
        step_y, step_x = anchor.attributes["strides"]
        channels, kernel_x = x.shape[-1], _window(w)[1]
        assert isinstance(channels, int)
        fold = step_y if step_y & (step_y - 1) == 0 else 1
        unit = _TILED_BYTES // x.dtype.itemsize
        apart = unit // gcd(unit, pixels * step_x * fold)
        wide = -(-channels // apart) * apart
        return _Runs(fold, wide, (kernel_x + (pixels - 1) * step_x) * fold * wide)


def _padded_image(
    anchor: Node, moves: Moves, x: Value, w: Value, graph: Graph, pixels: int, target: Target
) -> tuple[_Image, tuple[Stage, ...], tuple[Value, ...], Operand] | None:
    """A copy of an image of few channels in which every line of a window is one run, with the weights to it.

    The run's begin moves by a multiple of 16 bytes from pixel to pixel, which takes some channels of zeros; the image's
    edges are filled with zeros, too.  Where the window moves down by several rows, these become channels as well, so
    that the lines of a window are fewer and longer.  The windows of `pixels` neighbours are read as one.
    """
    attributes = anchor.attributes
    images, height, width, channels = x.shape
    _, out_height, out_width, _ = anchor.output.shape
    kernel_y, (step_y, step_x) = _window(w)[0], attributes["strides"]
    (top, _), (left, _) = attributes["padding"]
    assert isinstance(channels, int)
    other = attributes["groups"] != 1 or attributes["dilation"] != (1, 1) or (pixels > 1 and w not in graph.constants)
    if other or not isinstance(width, int) or not isinstance(out_width, int):
        return None
    unit, runs = _TILED_BYTES // x.dtype.itemsize, _Runs.of(anchor, x, w, pixels)
    fold, pixel, run = runs.fold, runs.fold * runs.wide, runs.length
    taps, step = -(-kernel_y // fold), step_y // fold
    lines = simplify(lift(out_height) * step + (taps - step))
    if pixel > _LARGEST_PIXEL or run > _LONGEST_RUN:
        return None
    along = unit // gcd(unit, pixel)
    padded = -(-max(left + width, ((out_width - 1) * pixels * step_x * pixel + run) // pixel) // along) * along
    copy = Value(f"{x.name}.runs", x.dtype, (images, lines, padded, pixel))
    row = padded * pixel
    length = -(-run // unit) * unit
    image = _Image(
        copy, (images, lines, out_width, run), (simplify(lift(lines) * row), row, pixels * step_x * pixel, 1),
        (images, out_height, out_width), length, (taps, 1), (step, 1),
    )  # fmt: skip
    wide = runs_recipe(runs.wide, fold, _in_whole_rows(length, x), pixels, step_x)
    weights = packed_weights(w, wide, graph, target)
    entries = next_power_of_2(pixel)
    block = min(256, next_power_of_2(padded), max(1, 1024 // entries))
    source, steps = x, (simplify(lift(height) * width * channels), width * channels, channels, 1)
    before, values = moves.stages, moves.temporaries
    if [node.op for node in moves.nodes] == ["permute"] and moves.nodes[0].inputs[0] is not None:
        # The copy reads in any order.
        source, before, values = moves.nodes[0].inputs[0], (), ()
        dense = dense_strides(source.shape)
        steps = tuple(dense[axis] for axis in moves.nodes[0].attributes["order"])
    constants: dict[str, Any] = {
        "TOP": top, "LEFT": left, "CHANNELS": channels, "FOLD": fold, "WIDE": runs.wide, "ENTRIES": entries,
        "BLOCK": block,
    }  # fmt: skip
    operands: dict[str, Operand] = {"x": source, "out": copy}
    types: dict[str, str] = {}
    names = ("image_step", "row_step", "column_step", "channel_step")
    sizes = {
        "height": height, "width": width, "lines": lines, "out_width": padded, **dict(zip(names, steps, strict=True)),
    }  # fmt: skip
    bind_sizes(sizes, operands, types, constants)
    grid = (product([images, lines]), ceil_divide(padded, block), 1)
    options = {"num_warps": max(1, block * entries // 256)}
    call = KernelCall(pad_channels, operands, types, constants, grid, options=options)
    stages, temporaries = (*before, *weights.stages, Stage((call,))), (*values, *weights.temporaries, copy)
    return image, stages, temporaries, weights.operand


def _residual(group: Group, slots: Slots, operands: tuple[Value, ...]) -> Value | None:
    """A tensor like the result that the epilogue reads element by element: a residual."""
    assert group.anchor is not None
    output = group.anchor.output
    for node in group.epilogue:
        for value in node.inputs if node.op in EXPRESSIONS else ():
            alike = value is not None and value.shape == output.shape and value.dtype == slots.stored.dtype
            if alike and value in group.inputs and value not in operands:
                return value
    return None


def _call(
    config: ConvolutionConfig, image: _Image, weights: Operand, group: Group, graph: Graph, slots: Slots,
    residual: Value | None, processors: int,
) -> KernelCall | None:  # fmt: skip
    """One launch; None where the epilogue needs its second tensor at other places than the result's."""
    assert group.anchor is not None and isinstance(weights, (Value, PackedConstant))
    extra, function = slots.extra, slots.function
    all_columns = group.anchor.output.shape[-1]
    assert isinstance(all_columns, int)
    if config.RESIDUAL_TILES:
        assert residual is not None
        extra = ExtraReferences()
        chain = Chain((*group.prologue, *group.epilogue), group.anchor.output, slots.stored, graph.constants)
        try:
            function = chain.written(extra, all_columns, rounded=True, residual=residual).function
        except NotImplementedError:
            return None
    config = config._replace(EPILOGUE=function)
    columns = all_columns // config.GROUPS
    images, height, width = image.sizes
    shape: tuple[Size, ...] = (images, height, width, all_columns)
    strides: tuple[Size, ...] = (
        simplify(lift(height) * width * all_columns), simplify(lift(width) * all_columns), all_columns, 1
    )  # fmt: skip
    if config.GROUPS > 1:
        shape, strides = (images, height, width, config.GROUPS, columns), (*strides[:-1], columns, 1)
    taps, row = config.KERNEL[0] * config.KERNEL[1], _in_whole_rows(image.channels, image.place)
    result = TiledOperand(slots.stored, shape, strides, config.out_block)
    operands: dict[str, Operand] = {
        "x": TiledOperand(image.place, image.shape, image.strides, config.image_block, config.steps),
        "w": TiledOperand(
            weights, (all_columns, taps, row), (taps * row, row, 1), config.weight_block
        ),
        "residual": result if not config.RESIDUAL_TILES or residual is None else replace(result, value=residual),
        "out": result, "images": images, "height": height, "width": width, "columns": columns,
    }  # fmt: skip
    types = dict.fromkeys(("images", "height", "width", "columns"), "i32")
    bind_extra(extra, operands, types)
    return KernelCall(
        hopper.convolution, operands, types, {"CONFIG": config}, _grid(config, image, all_columns, processors)
    )


def _grid(config: ConvolutionConfig, image: _Image, columns: int, processors: int) -> tuple[Size, Size, Size]:
    """CTAs to launch: persistent ones for a number of tiles that is not known are as many as run at once."""
    units: Size = 1
    for extent, side in zip(image.sizes, config.UNIT, strict=True):
        units = simplify(lift(units) * ceil_divide(extent, side))
    across = -(-(columns // config.GROUPS) // config.BN) * config.GROUPS
    tiles = simplify(lift(ceil_divide(units, config.units)) * across)
    if isinstance(tiles, int):
        return config.grid(tiles, processors)
    return (simplify(lift(tiles) * config.SPLIT) if config.SPLIT > 1 else processors * config.resident, 1, 1)
