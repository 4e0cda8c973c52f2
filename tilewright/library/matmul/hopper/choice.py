"""Which form of the Hopper product suits a problem: candidates, an estimate that ranks them, and the ones worth timing.

(form, seconds), *others = close_forms(MatmulProblem(512, 14336, 4096), target.machine())

The estimate counts clocks of the tensor cores, of operands coming from the L2 cache, of epilogues and of the last,
partly filled wave, and the bytes of global memory.  It ranks; among the first few the clock decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import tilewright.language as tl
from tilewright.library.epilogue import SCALE_BLOCK
from tilewright.library.hopper import ATOM, SHARED_BYTES, is_possible
from tilewright.library.matmul.hopper.config import MatmulForm
from tilewright.library.matmul.problem import MatmulProblem
from tilewright.targets.machine import Machine
from tilewright.targets.nvidia.target import NvidiaTarget

ONE_WAVE_ROWS = 128  # up to which weights are read once, by one wave of CTAs where columns allow it
MANY_ROWS = 4096  # tiles are walked in wider groups, too, where operands outgrow the L2 cache
FLIGHT_BYTES = 48 << 10  # of a processor, that are under way before the kernels in front have ended
_CLUSTERS = ((1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2), (1, 2, 2))  # that share A, that share B, that split the depth
# Clocks of the kernel's own waits.
_FILL = 1800.0  # from the first copy to the first product
_TURN = 300.0  # until products of another warpgroup follow (assumed)
_STAGE = 300.0  # at least, for the copies and barriers of one
_MANY_SUMS = 128 * 176  # of one warpgroup, that leave few registers to what comes behind the product
Ranked = tuple[MatmulForm, float]  # with the seconds that the estimate expects
Finish = Callable[[MatmulForm], MatmulForm | None]


def unsupported(problem: MatmulProblem, target: NvidiaTarget) -> str:
    """Why the kernel cannot compute a product on a target; nothing where it can."""
    return (
        target.without_wgmma
        or problem.obstacle
        or ("float32 is multiplied exactly, not as tf32" if problem.exact else "")
    )


def _may_take_turns(problem: MatmulProblem) -> bool:
    """Whether products are so short, or what comes behind them so long, that hiding it may pay."""
    return problem.rows > ONE_WAVE_ROWS and (problem.cost.work > 0 or problem.depth * problem.input.itemsize <= 16384)


def seconds_of(form: MatmulForm, problem: MatmulProblem, machine: Machine) -> float:
    """The estimated time of a problem with a form."""
    size = form.INPUT.itemsize
    stages = -(-problem.depth // form.BK)
    depth = -(-stages // form.SPLIT) * form.BK
    tiles_of_rows = -(-problem.rows // (form.BM * form.SHARE_B)) * form.SHARE_B
    tiles = tiles_of_rows * -(-problem.columns // (form.BN * form.SHARE_A)) * form.SHARE_A * problem.batches
    ctas = tiles * form.SPLIT
    slots = machine.slots(form.cluster)
    turns = -(-ctas // slots)
    # An instruction of 64 rows and 32 bytes of depth takes as long as tensor cores need, or shared memory to give its
    # operands while the copies of others come in, which hold it up half the time.
    steps = depth * size / 32 * form.BM / 64
    instruction = 2 * 64 * 16 * form.BN / machine.wgmma
    shared = 16 + form.BN / 4 + 8 * (form.loaded_rows + form.BN) / form.BM
    product = max(steps * max(instruction, shared), depth / form.BK * _STAGE)
    # One warpgroup leaves the tensor cores idle when it waits, and few stages do (measured, some of it more).
    product *= 1 + 0.1 * (form.CONSUMERS == 1) + 0.1 * (form.STAGES < 4)
    loaded = (form.loaded_rows / form.SHARE_A + form.BN / form.SHARE_B) * depth * size / machine.l2_tiles
    if form.TURNS:
        # Half as many threads compute an epilogue, under the products of another tile; only the last is seen.
        epilogue = 700 + 2 * form.BM * form.BN * (1 / 20 + problem.cost.work)
        clocks = _FILL + turns * max(product + _TURN, loaded, (product + epilogue) / 2) + epilogue
    else:
        epilogue = 700 + form.BM * form.BN * (1 / 20 + problem.cost.work)
        epilogue += (form.SPLIT > 1) * (800 + form.BM * form.BN / 24)
        # Copies go on during an epilogue, products do not.
        clocks = _FILL + turns * (max(product, loaded) + epilogue)
    operands = (problem.rows + problem.columns) * problem.depth * size
    moved = (operands + problem.rows * problem.columns * form.OUTPUT.itemsize) * problem.batches
    pulling = min(1.0, min(ctas, slots) / (0.95 * machine.processors))
    flight = min(1.0, form.STAGES * form.stage_bytes / machine.in_flight)
    # A second turn that is not full leaves processors without anything to load.
    balance = ctas / (turns * slots) if turns > 1 else 1.0
    memory = moved / (machine.memory * pulling * flight * max(balance, 0.3))
    return machine.launches.hopper_product + max(clocks / machine.wgmma_clock, memory)


def candidate_forms(problem: MatmulProblem, machine: Machine) -> list[MatmulForm]:
    """Forms that can be built for a problem, with as many stages as fit."""
    atom = ATOM // problem.input.itemsize
    few, most = problem.rows <= 64, problem.most_rows
    forms = []
    tile_rows = [(64, 1, False)] if few else [(64, 1, False), (128, 2, False), (192, 3, False), (256, 2, False)]
    tile_rows += [(64, 2, True), (128, 2, True)] if _may_take_turns(problem) else []
    step = 8 if problem.input.is_float and problem.output.itemsize > 1 else 16
    given, made = tl.dtype(problem.input), tl.dtype(problem.output)
    for BM, consumers, in_turns in tile_rows:
        for BN in range(32, 257, step):
            for share_a, share_b, split in _CLUSTERS:
                for depth in (atom, 2 * atom):
                    form = MatmulForm(
                        BM=BM, BN=BN, BK=depth, CONSUMERS=consumers, TURNS=in_turns,
                        SHARE_A=share_a, SHARE_B=share_b, SPLIT=split,
                        A_ROWS=-(-most // 8) * 8 if most <= 56 and not problem.left_transposed else 0,
                        INPUT=given, OUTPUT=made,
                        SUM=tl.float32 if problem.input.is_float else tl.int32, BATCHED=problem.batches > 1,
                        A_TRANSPOSED=problem.left_transposed, B_TRANSPOSED=problem.right_transposed,
                        EVICT_B="evict_first" if problem.rows <= 256 else "",
                    )  # fmt: skip
                    form = completed(form, problem)
                    if buildable(form, problem, machine):
                        forms.append(form)
    return forms


def completed(form: MatmulForm, problem: MatmulProblem) -> MatmulForm:
    """The form with what follows from its tile and the problem: how CTAs and consumers share the work, and stages."""
    many = (form.TURNS and form.BM * form.BN > _MANY_SUMS) or form.OUTPUT.itemsize == 1
    if many and not problem.cost.bare:
        form = form._replace(STORED=64)
    if form.SPLIT > 1 or form.TURNS:
        return filled(form)
    # Of few rows a CTA has one tile, whose results are staged in the room of the stages.
    form = filled(form._replace(SINGLE=problem.rows <= ONE_WAVE_ROWS))
    apart = problem.cost.work > 0 and form.CONSUMERS == 2 and form.STAGES >= 4 and not form.SINGLE
    return form._replace(LAG=2 if apart else 0)


@lru_cache(maxsize=8192)  # the same forms come up for each number of rows
def filled(form: MatmulForm) -> MatmulForm:
    """The form with as many stages as shared memory has room for, 16 at most."""
    most = min(16, SHARED_BYTES // (form.stage_bytes + 16))
    several = (form._replace(STAGES=stages) for stages in range(most, 1, -1))
    return next((each for each in several if each.shared_bytes <= SHARED_BYTES), form)


def dependent(form: MatmulForm) -> MatmulForm:
    """The form for constant weights, which are read before the kernels in front have ended.

    CTAs that have one tile each fill their stages then, all at once: so many bytes are under way that whatever small
    kernels in front still have to read would come last. As few as the memory's rate takes do not hold it up.
    """
    form = form._replace(DEPENDENT=True)
    if form.CONSUMERS > 1 or not form.single:
        return form
    apart = form._replace(FLIGHT=max(2, -(-FLIGHT_BYTES // form.right_stage_bytes)))
    return apart if apart.shared_bytes <= SHARED_BYTES else form


def buildable(form: MatmulForm, problem: MatmulProblem, machine: Machine) -> bool:
    """Whether a form can be built, and every CTA of a split product has something to do."""
    if not is_possible(form):
        return False
    if form.rows // 64 * form.BN // 2 > (208 if form.TURNS else 128):
        return False  # more accumulators than leave registers for the rest
    # A stage of two rows of the swizzle pays where there are many, to wait for barriers half as often.
    ctas = form.grid(problem.rows, problem.columns, problem.batches, machine.processors)[0]
    if form.SPLIT > 1 and ctas > machine.slots(form.cluster):
        return False  # the depth is split where there are too few tiles, not to have more waves
    many = form.BK * form.INPUT.itemsize == ATOM or form.STAGES >= 4
    return many and -(-problem.depth // form.BK) >= form.SPLIT and problem.columns > form.BN * (form.SHARE_A - 1)


def finished(form: MatmulForm, problem: MatmulProblem, **functions: Any) -> MatmulForm | None:
    """The form with what comes behind the product, and before it: `functions` are fields of the form.  None when it
    cannot be built then."""
    cost, tile = problem.cost, form.BM * form.BN
    if cost.blocks and (form.BN not in (64, 128) or form.SPLIT > 1 or form.BK != SCALE_BLOCK or form.TURNS):
        return None  # a tile's columns and the depths of a stage share a scale; promotion would hold up the turns
    many = form.TURNS and tile > 128 * 128  # sums of a thread
    if (many and cost.element_loads) or (form.TURNS and tile > 128 * 176 and cost.row_loads):
        return None  # operands for each element would not fit the registers, nor would those of rows
    if cost.gated and (form.SPLIT > 1 or form.BN % 16):
        return None
    # Of operands for each column, few registers hold many; those of each element are as many as the sums.
    together = cost.column_loads and not (cost.element_loads or cost.gated or many) and form.SPLIT == 1
    together = together and form.OUTPUT.itemsize > 1  # of whose elements a row of the swizzle has twice as many
    form = form._replace(TOGETHER=2 if together else 1, **functions)
    several = (form._replace(STAGES=stages) for stages in range(form.STAGES, 1, -1))
    return next((each for each in several if is_possible(each)), None)  # what is stored otherwise may take more memory


def ranked_forms(problem: MatmulProblem, machine: Machine, finish: Finish | None = None) -> list[Ranked]:
    """All candidates with their estimates, the quickest first; of equals the simpler, then the one with more stages.

    `finish` adds what comes behind the product to a form, or says with None that it cannot be built then.
    """
    estimates = [(form, seconds_of(form, problem, machine)) for form in candidate_forms(problem, machine)]
    ranked = sorted(estimates, key=lambda entry: (round(entry[1] * 1e9), entry[0].cluster, -entry[0].STAGES))
    found: list[Ranked] = []
    for form, seconds in ranked:
        whole = finish(form) if finish is not None else form
        if whole is None:
            continue
        found.append((whole, seconds))
        if problem.rows >= MANY_ROWS and whole.cluster == 1:
            found.append((whole._replace(GROUP=16), seconds))
    return found


def close_forms(
    problem: MatmulProblem, machine: Machine, finish: Finish | None = None, count: int = 8, within: float = 1.2
) -> list[Ranked]:
    """The forms worth timing, the one to take untimed first: those that the estimate cannot tell apart, of different
    tiles.

    Two of a tile, four of a number of rows (two of those that split the depth as often): equals by the estimate differ
    in how they share and walk operands.  The tile of 128 x 256 moves least for what it computes, which keeps the clock
    up; it comes first within 3 percent.  Forms in which warpgroups take turns come behind the others, three tiles that
    load least for what they compute.
    """
    everything = ranked_forms(problem, machine, finish)
    ranked = [entry for entry in everything if not entry[0].TURNS]
    limit = within * min((seconds for _, seconds in ranked), default=0.0)
    largest = [entry for entry in ranked if (entry[0].BM, entry[0].BN) == (128, 256)]
    steady = [entry for entry in largest if entry[1] <= 1.03 * ranked[0][1]]
    chosen: list[Ranked] = []
    tiles: Counter[Any] = Counter()
    for form, seconds in dict.fromkeys([*steady, *ranked]):
        rows, tile = (form.BM, form.SPLIT), (form.BM, form.BN, form.SPLIT)
        if len(chosen) < count and seconds <= limit and tiles[rows] < (4 if form.SPLIT == 1 else 2) and tiles[tile] < 2:
            tiles.update((rows, tile))
            chosen.append((form, seconds))
    return chosen + [entry for entry in _in_turns(everything) if entry[1] <= limit]


def _in_turns(ranked: Sequence[Ranked], count: int = 3) -> list[Ranked]:
    """The forms in which warpgroups take turns that are worth timing: two of a number of rows, one of a tile."""

    def loaded(entry: Ranked) -> float:  # rows and columns for each element of a tile
        form = entry[0]
        return (form.BM / form.SHARE_A + form.BN / form.SHARE_B) / (form.BM * form.BN)

    found = [entry for entry in ranked if entry[0].TURNS]
    chosen: list[Ranked] = []
    tiles: Counter[Any] = Counter()
    for entry in sorted((each for each in found if each[1] <= 1.08 * found[0][1]), key=loaded):
        tile = entry[0].BM, entry[0].BN
        if len(chosen) < count and tiles[tile[0]] < 2 and not tiles[tile]:
            tiles.update((tile[0], tile))
            chosen.append(entry)
    return chosen
