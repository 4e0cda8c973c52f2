"""Which form of the Hopper product suits a problem: candidates, and an estimate that ranks them.

for form, seconds in ranked_forms(Problem(512, 14336, 4096))[:3]: ...

The estimate counts clocks of the tensor cores, of operands coming from the L2 cache, of epilogues and of the last,
partly filled wave, and the bytes of global memory.  It ranks; among the first few the clock decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilewright.language as tl
from tilewright.errors import LaunchError
from tilewright.kernels.hopper.forms import ATOM, SHARED_BYTES, MatmulForm


@dataclass(frozen=True)
class Problem:
    """C[rows, columns] = A[rows, depth] @ B[depth, columns], `batches` times."""

    rows: int
    columns: int
    depth: int
    batches: int = 1
    input: Any = tl.bfloat16
    output: Any = tl.bfloat16
    a_transposed: bool = False
    b_transposed: bool = False
    work: float = 0.0  # clocks of a processor for what comes behind the product, an element

    @property
    def in_turns(self) -> bool:
        """Whether products are so short, or what comes behind them so long, that hiding it may pay."""
        return self.rows > 64 and (self.work > 0 or self.depth * self.input.itemsize < 4096)

    @property
    def sum(self) -> Any:
        """The element type of the sums."""
        return tl.float32 if self.input.is_floating() else tl.int32


@dataclass(frozen=True)
class Gpu:
    """Constants of an H200 as kernels meet them (hertz, bytes a second, clocks); those in use were measured on one."""

    processors: int = 132
    clusters_of_two: int = 66  # that are resident with one CTA a processor
    clusters_of_four: int = 30
    clock: float = 1.6e9  # under load
    cache_bytes: float = 52.0  # of one processor and clock, from L2
    memory: float = 4.4e12
    launch: float = 1.5e-6  # until the first product and after the last
    fill: float = 1800.0  # clocks from the first copy to the first product
    turn: float = 300.0  # clocks until products of another warpgroup follow (assumed)
    bytes_in_flight: float = 90e3  # of one processor, for all of the memory's rate

    def slots(self, cluster: int) -> int:
        """CTAs that run at once, in clusters of this size."""
        clusters = {1: self.processors, 2: self.clusters_of_two, 4: self.clusters_of_four}
        return clusters.get(cluster, self.processors // (2 * cluster)) * cluster


def seconds_of(form: MatmulForm, problem: Problem, gpu: Gpu = Gpu()) -> float:
    """The estimated time of a problem with a form."""
    size = form.INPUT.itemsize
    stages = -(-problem.depth // form.BK)
    depth = -(-stages // form.SPLIT) * form.BK
    tiles_of_rows = -(-problem.rows // (form.BM * form.SHARE_B)) * form.SHARE_B
    tiles = tiles_of_rows * -(-problem.columns // (form.BN * form.SHARE_A)) * form.SHARE_A * problem.batches
    ctas = tiles * form.SPLIT
    slots = gpu.slots(form.cluster)
    turns = -(-ctas // slots)
    # An instruction of 64 rows and 32 bytes of depth takes BN / 2 clocks, or as long as its operands take to be read.
    steps = depth * size / 32 * form.BM / 64
    product = steps * max(form.BN / 2, 16 + form.BN / 4)
    loaded = (form.loaded_rows / form.SHARE_A + form.BN / form.SHARE_B) * depth * size / gpu.cache_bytes
    if form.PINGPONG:
        # Half as many threads compute an epilogue, under the products of another tile; only the last is seen.
        epilogue = 700 + 2 * form.BM * form.BN * (1 / 20 + problem.work)
        clocks = gpu.fill + turns * max(product + gpu.turn, loaded, (product + epilogue) / 2) + epilogue
    else:
        epilogue = 700 + form.BM * form.BN * (1 / 20 + problem.work)
        epilogue += (form.SPLIT > 1) * (800 + form.BM * form.BN / 24)
        # Copies go on during an epilogue, products do not.
        clocks = gpu.fill + turns * (max(product, loaded) + epilogue)
    operands = (problem.rows + problem.columns) * problem.depth * size
    moved = (operands + problem.rows * problem.columns * form.OUTPUT.itemsize) * problem.batches
    pulling = min(1.0, min(ctas, slots) / (0.95 * gpu.processors))
    flight = min(1.0, form.STAGES * form.stage_bytes / gpu.bytes_in_flight)
    # A second turn that is not full leaves processors without anything to load.
    balance = ctas / (turns * slots) if turns > 1 else 1.0
    memory = moved / (gpu.memory * pulling * flight * max(balance, 0.3))
    return gpu.launch + max(clocks / gpu.clock, memory)


def candidate_forms(problem: Problem) -> list[MatmulForm]:
    """Forms that can be built for a problem, with as many stages as fit."""
    atom = ATOM // problem.input.itemsize
    few = problem.rows <= 64
    forms = []
    tile_rows = [(64, 1, False)] if few else [(64, 1, False), (128, 2, False), (192, 3, False), (256, 2, False)]
    tile_rows += [(64, 2, True), (128, 2, True)] if problem.in_turns else []
    step = 16 if problem.input.is_int() else 8
    for BM, consumers, in_turns in tile_rows:
        for BN in range(32, 257, step):
            for share_a, share_b, split in ((1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2)):
                for depth in (atom, 2 * atom):
                    form = MatmulForm(
                        BM=BM, BN=BN, BK=depth, CONSUMERS=consumers, PINGPONG=in_turns,
                        SHARE_A=share_a, SHARE_B=share_b, SPLIT=split,
                        A_ROWS=-(-problem.rows // 8) * 8 if problem.rows <= 56 and not problem.a_transposed else 0,
                        INPUT=problem.input, OUTPUT=problem.output, SUM=problem.sum, BATCHED=problem.batches > 1,
                        A_TRANSPOSED=problem.a_transposed, B_TRANSPOSED=problem.b_transposed,
                        EVICT_B="evict_first" if problem.rows <= 256 else "",
                    )  # fmt: skip
                    free = SHARED_BYTES - (form.shared_bytes - form.STAGES * (form.stage_bytes + 16))
                    form = form._replace(STAGES=min(16, free // (form.stage_bytes + 16)))
                    if buildable(form, problem):
                        forms.append(form)
    return forms


def buildable(form: MatmulForm, problem: Problem) -> bool:
    """Whether a form can be built, and every CTA of a split product has something to do."""
    try:
        form.check()
    except LaunchError:
        return False
    if form.rows // 64 * form.BN // 2 > (176 if form.PINGPONG else 128):
        return False  # more accumulators than leave registers for the rest
    # A stage of two rows of the swizzle pays where there are many, to wait for barriers half as often.
    many = form.BK * form.INPUT.itemsize == ATOM or form.STAGES >= 4
    return many and -(-problem.depth // form.BK) >= form.SPLIT and problem.columns > form.BN * (form.SHARE_A - 1)


def ranked_forms(problem: Problem, gpu: Gpu = Gpu()) -> list[tuple[MatmulForm, float]]:
    """All candidates with their estimates, the quickest first; of equals the simpler, then the one with more stages."""
    estimates = [(form, seconds_of(form, problem, gpu)) for form in candidate_forms(problem)]
    return sorted(estimates, key=lambda entry: (round(entry[1] * 1e9), entry[0].cluster, -entry[0].STAGES))
