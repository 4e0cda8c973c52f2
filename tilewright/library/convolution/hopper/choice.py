"""Which config of the Hopper convolution suits a problem: candidates, and an estimate that ranks them.

The estimate counts clocks of the tensor cores, of boxes and weights coming from the L2 cache, of epilogues and of
waves, and the bytes that are moved.  It ranks; among the first few the clock decides.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod

import tilewright.language as tl
from tilewright.library.convolution.hopper.config import UNIT_PIXELS, ConvolutionConfig
from tilewright.library.convolution.problem import ConvolutionProblem
from tilewright.library.hopper import SHARED_BYTES, is_possible
from tilewright.targets.machine import Machine

_OVERLAP_BYTES = 100_000  # bytes of shared memory with which a CTA lets that of the next kernel begin next to it
# Clocks, measured on an H200 with dependent launch: from a copy to its product, of an epilogue and of each call of it,
# of the barriers and reads with which a cluster adds up.
_LATENCY = 1400.0
_EPILOGUE = 600.0
_SPAN = 700.0
_JOIN = 3000.0
_TURN = 300.0  # until the products of another warpgroup follow
_CONVOLUTION_FILL = 1200.0
# Of a stage, and of each row of its copies: rows that are no longer than 64 bytes, runs of memory that reach over each
# other, and rows that reach over the end of the channels (H200: stages of 96, 160 and 224 runs took 483, 731 and 921;
# 2026-12-01: stages of 80, 96, 208 and 224 short rows 288, 337, 586 and 738, and 128 more cut rows 589; the box of
# pixels does not matter).
_STAGE_CLOCKS, _SHORT_ROW, _RUN, _CUT_ROW = 100.0, 2.4, 3.7, 4.6
_SHORT_ROW_BYTES = 64
_FEW_SHARED = 3  # configs whose CTAs share their depth that are listed before others


@lru_cache(maxsize=1024)
def unit_of(images: int, height: int, width: int) -> tuple[int, int, int]:
    """The box of up to 64 pixels, a multiple of 8, of which the fewest cover the result; the widest of equals."""
    sides = range(1, UNIT_PIXELS + 1)
    boxes = [
        (n, h, w)
        for w, h in product(sides, sides)
        if w * h <= UNIT_PIXELS
        for n in range(1, UNIT_PIXELS // (w * h) + 1)
        if n * h * w % 8 == 0
    ]

    def order(box: tuple[int, int, int]) -> tuple[int, int, int, int]:
        units = prod(-(-extent // side) for extent, side in zip((images, height, width), box, strict=True))
        # Squares share more of what the windows of neighbours see.
        return (units, prod(box), box[0], abs(box[1] - box[2]))

    return min(boxes, key=order)


def seconds_of(config: ConvolutionConfig, problem: ConvolutionProblem, machine: Machine) -> float:
    """The estimated time of a problem with a config."""
    tiles = config.tiles(problem.images, problem.height, problem.width, problem.columns * problem.groups)
    ctas = tiles * config.SPLIT
    blocks = -(-config.blocks // config.SPLIT)
    # A product of 64 rows and 16 elements of depth takes as long as tensor cores need, or as its operands to be read.
    instruction = 2 * 64 * 16 * config.BN / machine.wgmma
    multiplied = config.units * config.BK * config.INPUT.itemsize / 32 * max(instruction, 16 + config.BN / 4)
    loaded = _loaded(config, problem, machine)
    elements = UNIT_PIXELS * config.units * config.stored_columns
    epilogue = _EPILOGUE + config.spans * _SPAN + elements * (1 / 20 + problem.work / machine.lanes)
    if config.SPLIT > 1:
        epilogue += _JOIN * max(1, config.SPLIT // 4) + UNIT_PIXELS * config.units * config.BN / 24
    if problem.residual and not config.RESIDUAL_TILES:
        epilogue += elements / 3
    elif problem.residual and config.RESIDUAL_TILES < 2 * config.spans:
        epilogue += _LATENCY  # the next tile's comes only when this one's has been read
    slots = machine.slots(config.SPLIT) * config.resident
    waves = -(-ctas // slots)
    step = max(multiplied, loaded, _LATENCY / (config.STAGES - 1))
    alone = waves * (blocks * step + epilogue)
    if config.PING_PONG:
        # One computes results under the products of the other; only the last are seen.
        alone = waves * max(blocks * step + _TURN, (blocks * step + epilogue) / 2) + epilogue
    crowd = -(-ctas // machine.processors) * blocks * max(multiplied, loaded)
    size = problem.input.itemsize
    results = problem.pixels * problem.columns * problem.groups * problem.output.itemsize
    images = problem.read or problem.pixels * problem.channels * problem.groups * size
    weights = problem.columns * problem.groups * config.taps * config.CHANNELS * size
    moved = images + weights + results * (2 if problem.residual else 1)
    rate = machine.l2_together if moved < machine.l2_left else machine.memory
    pulling = min(1.0, min(ctas, slots) / (0.95 * machine.processors))
    least, most = sorted(((_CONVOLUTION_FILL + max(alone, crowd)) / machine.wgmma_clock, moved / (rate * pulling)))
    # What is not the limit still gets in its way.
    return machine.launches.hopper_convolution + most + least / 8


def row_bytes(run: int) -> int:
    """Bytes of a row of a stage, of a tap with so many bytes of channels."""
    if 128 < run < 256 and run % 64 == 0 and run % 128 <= 64:
        return 64  # a second stage of 128 bytes would be half empty
    return next(step for step in (32, 64, 128) if run <= step or step == 128)


def _loaded(config: ConvolutionConfig, problem: ConvolutionProblem, machine: Machine) -> float:
    """Clocks until the copies of a stage have come, on average."""
    rows = config.units * config.pixels + config.BN
    whole = config.stage_bytes / machine.l2_windows
    if problem.overlapped or config.BK * config.INPUT.itemsize <= _SHORT_ROW_BYTES:
        whole = max(whole, _STAGE_CLOCKS + rows * (_RUN if problem.overlapped else _SHORT_ROW))
    if config.CHANNELS % config.BK == 0:
        return whole
    # The stages of the last channels of a tap have rows that are cut.
    cut = max(whole, _STAGE_CLOCKS + config.units * config.pixels * _CUT_ROW + config.BN * _SHORT_ROW)
    return whole + (cut - whole) / config.channel_blocks


def candidate_configs(problem: ConvolutionProblem, machine: Machine) -> list[ConvolutionConfig]:
    """Configs that can be built for a problem, with as many stages as are of use."""
    line = problem.images == problem.height == 1 and problem.kernel == (1, 1)
    unit = (1, 1, UNIT_PIXELS) if line else unit_of(problem.images, problem.height, problem.width)
    depth = row_bytes(problem.channels * problem.input.itemsize)
    configs = []
    shares = ((1, 1, False), (2, 1, False), (3, 1, False), (2, 1, True), *((1, s, False) for s in (2, 4, 8)))
    for columns, (consumers, split, ping_pong) in product((16, 32, 64, 96, 128, 192, 256), shares):
        if columns >= 2 * max(16, problem.columns) or (columns % 128 > 64 and problem.columns % columns):
            continue
        config = ConvolutionConfig(
            UNIT=unit, BN=columns, CHANNELS=problem.channels, KERNEL=problem.kernel, STRIDE=problem.stride,
            PAD=problem.pad, DILATION=problem.dilation, GROUPS=problem.groups, BK=depth // problem.input.itemsize,
            STAGES=2, CONSUMERS=consumers, SPLIT=split, PING_PONG=ping_pong, INPUT=problem.input, RIGHT=problem.right,
            SUM=tl.float32 if problem.input.is_floating() else tl.int32, OUTPUT=problem.output,
        )  # fmt: skip
        for staged in _with_epilogues(config, problem):
            configs += [built for built in _with_stages(staged, machine) if is_possible(built)]
    return configs


def _with_epilogues(config: ConvolutionConfig, problem: ConvolutionProblem) -> list[ConvolutionConfig]:
    """The config with chunks of columns in pairs, and with as much memory for its second operand as is of use."""
    together = 2 if config.chunks % 2 == 0 and config.SPLIT == 1 and config.OUTPUT.itemsize > 1 else 1
    config = config._replace(TOGETHER=together)
    config = config._replace(BUFFERS=1 if config.spans == 1 else 2)
    if not problem.residual or config.SPLIT > 1 or config.pixels != UNIT_PIXELS:
        return [config]
    # What is loaded along with a tile is asked for while the tile before is finished.
    return [
        config._replace(RESIDUAL_TILES=config.spans * count, BUFFERS=1)
        for count in ((2,) if config.PING_PONG else (1, 2, 3))
    ]


def _with_stages(config: ConvolutionConfig, machine: Machine) -> list[ConvolutionConfig]:
    """The config with stages for all shared memory, and for so much that two kernels find room; no more than are used.

    CTAs of a cluster get a processor each: they are given so much memory that two do not fit.
    """
    used = -(-config.blocks // config.SPLIT)
    limits: tuple[int, ...] = (_OVERLAP_BYTES, SHARED_BYTES)
    if config.SPLIT == 1:
        used = max(4, used + 1)  # stages of the next tile come during the epilogue
    else:
        fixed = config.shared_bytes - config.STAGES * (config.stage_bytes + 16)
        used = max(used, (machine.shared_bytes_of_sm // 2 - fixed) // (config.stage_bytes + 16) + 1)
        limits = (SHARED_BYTES,)
    found: list[ConvolutionConfig] = []
    for limit in limits:
        free = limit - (config.shared_bytes - config.STAGES * (config.stage_bytes + 16))
        stages = min(24 if config.SPLIT > 1 else 12, max(2, used), free // (config.stage_bytes + 16))
        if stages >= 2 and all(other.STAGES != stages for other in found):
            found.append(config._replace(STAGES=stages))
    return found


@lru_cache(maxsize=1024)
def ranked_configs(problem: ConvolutionProblem, machine: Machine) -> tuple[tuple[ConvolutionConfig, float], ...]:
    """All candidates with their estimates, the quickest first; of equals the one in the smallest clusters.

    Of the configs whose CTAs share their depth, of which the estimate knows least, all but the first are listed last.
    """
    estimates = [(config, seconds_of(config, problem, machine)) for config in candidate_configs(problem, machine)]
    ranked = sorted(estimates, key=lambda entry: (round(entry[1] * 1e9), entry[0].SPLIT, -entry[0].STAGES))
    late = [entry for entry in ranked if entry[0].SPLIT > 1][_FEW_SHARED:]
    return (*(entry for entry in ranked if entry not in late), *late)
