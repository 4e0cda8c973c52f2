"""Which config of the Hopper product suits a problem: candidates, an estimate that ranks them, those worth timing.

(config, seconds), *others = close_configs(MatmulProblem(512, 14336, 4096), target.machine())

The estimate counts clocks of the tensor cores, of operands coming from the L2 cache, of epilogues and of the last,
partly filled wave, and the bytes of global memory.  It ranks; among the first few the clock decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import tilewright.language as tl
from tilewright.graph.quantization import SCALE_BLOCK
from tilewright.library.hopper import ATOM, SHARED_BYTES, is_possible
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.library.matmul.problem import MatmulProblem
from tilewright.targets.base import Target
from tilewright.targets.machine import Machine

ONE_WAVE_ROWS = 128  # up to which weights are read once, by one wave of CTAs where columns allow it
MANY_ROWS = 4096  # tiles are walked in wider groups, too, where operands outgrow the L2 cache
_CLUSTERS = ((1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2), (1, 2, 2))  # that share A, that share B, that split the depth
# Clocks of the kernel's own waits.
_PRODUCT_FILL = 1800.0  # from the first copy to the first product
_TURN = 300.0  # until products of another warpgroup follow (assumed)
_STAGE = 300.0  # at least, for the copies and barriers of one
_NEXT = 1920.0  # that an SM loads nothing, between two CTAs of one tile each (of 7 and 30 waves)
# Of a tile: of more, CTAs that share a depth exchange each for longer (256 x 6144 x 4096 in tiles of 128 x 192 and
# 256 x 96 took 24.8 us, of 128 x 96 without an exchange 21.8, where 20.3 to 21.3 were expected; H200, 2026-11-30).
_EXCHANGED_SUMS = 128 * 160
_MANY_SUMS = 128 * 176  # of one warpgroup, that leave few registers to what comes behind the product
_STAGED_SUMS = 128  # of a thread, whose results all wait in registers …
_REGISTERS, _ADDRESSES = 240, 8  # … of which it has so many, and these for other things
_ALONE = 1.12  # times the estimate of a cluster that may be that of CTAs without one
Ranked = tuple[MatmulConfig, float]  # with the seconds that the estimate expects
Finish = Callable[[MatmulConfig], MatmulConfig | None]


def unsupported(problem: MatmulProblem, target: Target) -> str:
    """Why the kernel cannot compute a product on a target; nothing where it can."""
    return (
        target.without_wgmma
        or problem.obstacle
        or ("float32 is multiplied exactly, not as tf32" if problem.exact else "")
    )


def _is_one_wave(problem: MatmulProblem) -> bool:
    """Whether rows are so few that a CTA has one tile.  Of one A for all batches, the weights of convolutions, they are
    few for many tiles."""
    return problem.rows <= ONE_WAVE_ROWS and not problem.one_left


def _may_overlap_tiles(problem: MatmulProblem) -> bool:
    """Whether products are so short, or what comes behind them so long, that hiding it may pay."""
    if _is_one_wave(problem):
        return False
    return problem.cost.instructions > 0 or problem.depth * problem.input.itemsize <= 16384


def seconds_of(config: MatmulConfig, problem: MatmulProblem, machine: Machine) -> float:
    """The estimated time of a problem with a config."""
    size = config.INPUT.itemsize
    stages = -(-problem.depth // config.BK)
    depth = -(-stages // config.SPLIT) * config.BK
    tiles_of_rows = -(-problem.rows // (config.BM * config.SHARE_B)) * config.SHARE_B
    tiles = tiles_of_rows * -(-problem.columns // (config.BN * config.SHARE_A)) * config.SHARE_A * problem.batches
    ctas = tiles * config.SPLIT
    slots = machine.slots(config.cluster)
    waves = -(-ctas // slots)
    # An instruction of 64 rows and 32 bytes of depth takes as long as tensor cores need, or shared memory to give its
    # operands while the copies of others come in, which hold it up half the time.
    steps = depth * size / 32 * config.BM / 64
    instruction = 2 * 64 * 16 * config.BN / machine.wgmma
    shared = 16 + config.BN / 4 + 8 * (config.loaded_rows + config.BN) / config.BM
    product = max(steps * max(instruction, shared), depth / config.BK * _STAGE)
    # One warpgroup leaves the tensor cores idle when it waits, and few stages do (measured, some of it more).
    product *= 1 + 0.1 * (config.CONSUMERS == 1) + 0.1 * (config.STAGES < 4)
    loaded = (config.loaded_rows / config.SHARE_A + config.BN / config.SHARE_B) * depth * size / machine.l2_tiles
    if config.PING_PONG:
        # Half as many threads compute an epilogue, under the products of another tile; only the last is seen.
        epilogue = 700 + 2 * config.BM * config.BN * (1 / 20 + problem.cost.instructions / machine.lanes)
        clocks = _PRODUCT_FILL + waves * max(product + _TURN, loaded, (product + epilogue) / 2) + epilogue
    else:
        epilogue = 700 + config.BM * config.BN * (1 / 20 + problem.cost.instructions / machine.lanes)
        crowded = max(0, config.BM * config.BN - _EXCHANGED_SUMS)
        epilogue += (config.SPLIT > 1) * (800 + config.BM * config.BN / 24 + 0.6 * crowded)
        # Copies go on during an epilogue, products do not.
        clocks = _PRODUCT_FILL + waves * (max(product, loaded) + epilogue)
    moved = problem.input_bytes + problem.rows * problem.columns * config.OUTPUT.itemsize * problem.batches
    pulling = min(1.0, min(ctas, slots) / (0.95 * machine.processors))
    flight = min(1.0, config.STAGES * config.stage_bytes / machine.in_flight)
    # A second turn that is not full leaves processors without anything to load.
    balance = ctas / (waves * slots) if waves > 1 else 1.0
    memory = moved / (machine.memory * pulling * flight * max(balance, 0.3))
    memory += config.SINGLE * (waves - 1) * _NEXT / machine.wgmma_clock
    return machine.launches.hopper_product + max(clocks / machine.wgmma_clock, memory)


def candidate_configs(problem: MatmulProblem, machine: Machine) -> list[MatmulConfig]:
    """Configs that can be built for a problem, with as many stages as fit."""
    atom = ATOM // problem.input.itemsize
    few, most = problem.rows <= 64, problem.most_rows
    configs = []
    tile_rows = [(64, 1, False)] if few else [(64, 1, False), (128, 2, False), (192, 3, False), (256, 2, False)]
    tile_rows += [(64, 2, True), (128, 2, True)] if _may_overlap_tiles(problem) else []
    step = 8 if problem.input.is_float and problem.output.itemsize > 1 else 16
    given, made = tl.dtype(problem.input), tl.dtype(problem.output)
    for BM, consumers, ping_pong in tile_rows:
        for BN in range(32, 257, step):
            for share_a, share_b, split in _CLUSTERS:
                for depth in (atom, 2 * atom):
                    config = MatmulConfig(
                        BM=BM, BN=BN, BK=depth, CONSUMERS=consumers, PING_PONG=ping_pong,
                        SHARE_A=share_a, SHARE_B=share_b, SPLIT=split,
                        A_ROWS=-(-most // 8) * 8 if most <= 56 and not problem.left_transposed else 0,
                        INPUT=given, OUTPUT=made,
                        SUM=tl.float32 if problem.input.is_float else tl.int32, BATCHED=problem.batches > 1,
                        ONE_A=problem.one_left,
                        A_TRANSPOSED=problem.left_transposed, B_TRANSPOSED=problem.right_transposed,
                        EVICT_B="evict_first" if problem.rows <= 256 else "",
                    )  # fmt: skip
                    config = completed(config, problem)
                    if buildable(config, problem, machine):
                        configs.append(config)
    return configs


def completed(config: MatmulConfig, problem: MatmulProblem) -> MatmulConfig:
    """The config with what follows from its tile and the problem: how CTAs and consumers share the work, and stages."""
    whole = staged_whole(config, problem)
    many = (config.PING_PONG and config.BM * config.BN > _MANY_SUMS) or config.OUTPUT.itemsize == 1
    if whole is not None:
        config = whole
    elif many and not problem.cost.bare:
        config = config._replace(STORED=64)
    if config.SPLIT > 1 or config.PING_PONG:
        return filled(config)
    # Of few rows a CTA has one tile, whose results are staged in the room of the stages.
    config = filled(config._replace(SINGLE=_is_one_wave(problem)))
    apart = problem.cost.instructions > 0 and config.CONSUMERS == 2 and config.STAGES >= 4 and not config.SINGLE
    return config._replace(LAG=2 if apart else 0)


def staged_whole(config: MatmulConfig, problem: MatmulProblem) -> MatmulConfig | None:
    """The config with a tile's results staged all at once, which takes up to 8 percent less (8192 rows, depths of 768
    and 3072); None where registers have no room for all sums and what their columns load, or shared memory only in
    place of a stage, which is worth more."""
    cost, sums = problem.cost, config.rows * config.BN // 128
    most = (config.registers[1] or _REGISTERS) - _ADDRESSES
    if sums > _STAGED_SUMS or sums + cost.column_loads * config.BN // 4 > most:
        return None
    if cost.bare or cost.element_loads or cost.gated or cost.blocks or config.SPLIT > 1:
        return None
    if _is_one_wave(problem):
        return None
    whole = config._replace(WHOLE=True)
    whole = filled(whole._replace(BUFFERS=whole.pieces))
    return whole if not whole.tail and whole.STAGES >= filled(config).STAGES and is_possible(whole) else None


@lru_cache(maxsize=8192)  # the same configs come up for each number of rows
def filled(config: MatmulConfig) -> MatmulConfig:
    """The config with as many stages as shared memory has room for, 16 at most."""
    most = min(16, SHARED_BYTES // (config.stage_bytes + 16))
    several = (config._replace(STAGES=stages) for stages in range(most, 1, -1))
    return next((each for each in several if each.shared_bytes <= SHARED_BYTES), config)


def dependent(config: MatmulConfig, machine: Machine) -> MatmulConfig:
    """The config for constant weights, which are read before the kernels in front have ended.

    CTAs that have one tile each fill their stages then, all at once: so many bytes are under way that whatever small
    kernels in front still have to read would come last. As few as the memory's rate takes do not hold it up.
    """
    config = config._replace(DEPENDENT=True)
    if config.CONSUMERS > 1 or not config.single:
        return config
    apart = config._replace(FLIGHT=max(2, -(-machine.early_flight // config.right_stage_bytes)))
    return apart if apart.shared_bytes <= SHARED_BYTES else config


def buildable(config: MatmulConfig, problem: MatmulProblem, machine: Machine) -> bool:
    """Whether a config can be built, and every CTA of a split product has something to do."""
    if not is_possible(config):
        return False
    if config.rows // 64 * config.BN // 2 > (208 if config.PING_PONG else 128):
        return False  # more accumulators than leave registers for the rest
    # A stage of two rows of the swizzle pays where there are many, to wait for barriers half as often.
    slots = machine.slots(config.cluster)
    if config.SPLIT > 1 and config.grid(problem.rows, problem.columns, problem.batches, slots)[0] > slots:
        return False  # the depth is split where there are too few tiles, not to have more waves
    many = config.BK * config.INPUT.itemsize == ATOM or config.STAGES >= 4
    return (
        many and -(-problem.depth // config.BK) >= config.SPLIT and problem.columns > config.BN * (config.SHARE_A - 1)
    )


def finished(config: MatmulConfig, problem: MatmulProblem, **functions: Any) -> MatmulConfig | None:
    """The config with what comes behind the product, and before it: `functions` are fields of the config.  None when it
    cannot be built then."""
    cost, tile = problem.cost, config.BM * config.BN
    if cost.blocks and (config.BN not in (64, 128) or config.SPLIT > 1 or config.BK != SCALE_BLOCK or config.PING_PONG):
        return None  # a tile's columns and the depths of a stage share a scale; promotion would hold up the turns
    many = config.PING_PONG and tile > 128 * 128  # sums of a thread
    if (many and cost.element_loads) or (config.PING_PONG and tile > 128 * 176 and cost.row_loads):
        return None  # operands for each element would not fit the registers, nor would those of rows
    if cost.gated and (config.SPLIT > 1 or config.BN % 16):
        return None
    # Of operands for each column, few registers hold many; those of each element are as many as the sums.
    together = cost.column_loads and not (cost.element_loads or cost.gated or many or config.WHOLE)
    together = together and config.SPLIT == 1
    together = together and config.OUTPUT.itemsize > 1  # of whose elements a row of the swizzle has twice as many
    config = config._replace(TOGETHER=2 if together else 1, **functions)
    several = (config._replace(STAGES=stages) for stages in range(config.STAGES, 1, -1))
    return next((each for each in several if is_possible(each)), None)  # what is stored otherwise may take more memory


def ranked_configs(problem: MatmulProblem, machine: Machine, finish: Finish | None = None) -> list[Ranked]:
    """All candidates with their estimates, the quickest first; of equals the simpler, then the one with more stages.

    `finish` adds what comes behind the product to a config, or says with None that it cannot be built then.
    """
    estimates = [(config, seconds_of(config, problem, machine)) for config in candidate_configs(problem, machine)]
    ranked = sorted(estimates, key=lambda entry: (round(entry[1] * 1e9), entry[0].cluster, -entry[0].STAGES))
    found: list[Ranked] = []
    for config, seconds in ranked:
        whole = finish(config) if finish is not None else config
        if whole is None:
            continue
        found.append((whole, seconds))
        if problem.rows >= MANY_ROWS and whole.cluster == 1:
            found.append((whole._replace(GROUP=16), seconds))
    return found


def close_configs(
    problem: MatmulProblem, machine: Machine, finish: Finish | None = None, count: int = 8, within: float = 1.2
) -> list[Ranked]:
    """The configs worth timing, the one to take untimed first: those that the estimate cannot tell apart, of different
    tiles.

    Two of a tile, four of a number of rows (two of those that split the depth as often): equals by the estimate differ
    in how they share and walk operands.  The tile of 128 x 256 moves least for what it computes, which keeps the clock
    up; it comes first within 3 percent.  Ping-pong configs come after the others.
    """
    everything = ranked_configs(problem, machine, finish)
    ranked = [entry for entry in everything if not entry[0].PING_PONG]
    limit = within * min((seconds for _, seconds in ranked), default=0.0)
    largest = [entry for entry in ranked if (entry[0].BM, entry[0].BN) == (128, 256)]
    steady = [entry for entry in largest if entry[1] <= 1.03 * ranked[0][1]]
    chosen: list[Ranked] = []
    tiles: Counter[Any] = Counter()
    for config, seconds in dict.fromkeys([*steady, *ranked]):
        rows, tile = (config.BM, config.SPLIT), (config.BM, config.BN, config.SPLIT)
        if (
            len(chosen) < count
            and seconds <= limit
            and tiles[rows] < (4 if config.SPLIT == 1 else 2)
            and tiles[tile] < 2
        ):
            tiles.update((rows, tile))
            chosen.append((config, seconds))
    return chosen + [entry for entry in _ping_pong(everything) if entry[1] <= limit]


def _ping_pong(ranked: Sequence[Ranked], count: int = 3) -> list[Ranked]:
    """The ping-pong configs that are worth timing: those of the first tiles, two of a number of rows.

    Of a tile it is the one that shares least, unless the estimate is against it: a cluster costs up to 6 percent that
    are not counted (products of 8192 rows in 8 and 16 bits).
    """
    found = [entry for entry in ranked if entry[0].PING_PONG]
    chosen: list[Ranked] = []
    tiles: Counter[Any] = Counter()
    for first, seconds in found:
        tile = first.BM, first.BN
        if len(chosen) < count and tiles[tile[0]] < 2 and not tiles[tile]:
            alike = [each for each, own in found if (each.BM, each.BN) == tile and own <= _ALONE * seconds]
            tiles.update((tile[0], tile))
            chosen.append((min(alike, key=lambda config: config.cluster), seconds))
    return chosen
