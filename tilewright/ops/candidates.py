"""Forms of the Hopper product for a problem, ranked by an analytical model of the machine.

seconds = launch + max(memory, waves x stages x max(tensor cores, L2, shared memory)) + epilogue

The model is that of DeepGEMM (whole waves, times the slowest unit), with clusters counted as they are resident.  It
ranks, and what it holds to be close is timed (`choices`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import tilewright.language as tl
from tilewright.errors import LaunchError
from tilewright.frontend.sizes import cdiv
from tilewright.kernels import epilogues
from tilewright.kernels.hopper.forms import SHARED_BYTES, MatmulForm
from tilewright.ops.problem import MatmulProblem


@dataclass(frozen=True)
class Machine:
    """Rates of an H100 or H200: cycles at the clock that large products run at, bytes and operations of one SM."""

    processors: int = 132
    clock: float = 1.45e9
    memory: float = 4.4e12  # bytes a second, all SMs
    l2: float = 54.0  # bytes a cycle that one SM gets
    shared: float = 128.0  # bytes a cycle
    in_flight: float = 80e3  # bytes on their way that keep an SM's share of the memory's rate
    launch: float = 3e-6

    def resident(self, cluster: int) -> int:
        """Clusters of so many CTAs, one on an SM, that run at once: processors in groups lose some to rounding."""
        whole = {1: 132, 2: 66, 4: 30, 8: 15}[cluster]
        return max(1, whole * self.processors // 132)


@dataclass(frozen=True)
class Candidate:
    """A form with what the model expects of it: seconds, and the part that takes longest."""

    form: MatmulForm
    seconds: float
    waves: int
    limit: str  # "tensor", "l2", "shared" or "memory"

    def __str__(self) -> str:
        form = self.form
        parts = [f"{form.BM}x{form.BN}x{form.BK}", f"{form.STAGES} stages", f"{form.CONSUMERS} consumers"]
        parts += [f"A shared by {form.SHARE_A}"] if form.SHARE_A > 1 else []
        parts += [f"B shared by {form.SHARE_B}"] if form.SHARE_B > 1 else []
        parts += [f"depth split by {form.SPLIT}"] if form.SPLIT > 1 else []
        parts += [f"{form.A_ROWS} rows of A"] if form.A_ROWS else []
        parts += [f"rows in groups of {form.GROUP}"] if form.GROUP != 8 else []
        return f"{', '.join(parts)}: {self.seconds * 1e6:.1f} us expected, {self.waves} waves, limit {self.limit}"


_TALL_COLUMNS = (64, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)


def base_form(problem: MatmulProblem) -> MatmulForm:
    """What the problem says of a form; tile, stages and clusters are still to be chosen."""
    spec = problem.epilogue
    integers = problem.input.kind == "int"
    return MatmulForm(
        BK=128 // problem.input.itemsize,
        INPUT=tl.dtype(problem.input),
        OUTPUT=tl.dtype(problem.output),
        SUM=tl.int32 if integers else tl.float32,
        A_TRANSPOSED=problem.left_transposed,
        B_TRANSPOSED=problem.right_transposed,
        BATCHED=problem.batches > 1,
        PROMOTE=epilogues.promotion(spec),
        GATE=epilogues.gating(spec),
        EPILOGUE=epilogues.function(replace(spec, gate="")),
        DEPENDENT=problem.weights_ready,
    )


def _tiles(problem: MatmulProblem) -> Iterator[dict[str, Any]]:
    """Tiles and clusters that may suit the problem."""
    if problem.epilogue.scale_a == "block":
        yield from ({"BM": rows, "BN": 128, "CONSUMERS": rows // 64} for rows in (64, 128))
        return
    if problem.rows <= 64:
        loaded = problem.rows if problem.rows < 64 and not problem.left_transposed else 0
        for columns in range(16, 257, 16 if problem.batches > 1 else 8):
            for split in (1, 2, 4):
                tile = {"BM": 64, "BN": columns, "CONSUMERS": 1, "A_ROWS": loaded, "SPLIT": split}
                yield tile
                if columns <= 64 and split < 4:  # larger copies
                    yield {**tile, "BK": 256 // problem.input.itemsize}
        return
    if problem.rows <= 128:
        for columns in range(16, 257, 8):
            yield from ({"BM": 128, "BN": columns, "SPLIT": split} for split in (1, 2, 4))
            yield {"BM": 128, "BN": columns, "SHARE_A": 2}
            yield {"BM": 64, "BN": columns, "CONSUMERS": 1}
        return
    for columns in _TALL_COLUMNS:
        yield {"BM": 128, "BN": columns}
        yield {"BM": 128, "BN": columns, "SHARE_B": 2}
        if problem.rows >= 4096:
            yield {"BM": 128, "BN": columns, "GROUP": 16}
        yield {"BM": 64, "BN": columns, "CONSUMERS": 1}
        if problem.rows <= 1024:
            yield {"BM": 128, "BN": columns, "SPLIT": 2}
        if columns <= 192:
            yield {"BM": 192, "BN": columns, "CONSUMERS": 3}
        if columns <= 128:
            yield {"BM": 256, "BN": columns}


def _staged(form: MatmulForm) -> MatmulForm | None:
    """The form with as many stages as fit, up to 16; None when it cannot be built at all."""
    fixed = form._replace(STAGES=0).shared_bytes
    stages = min(16, (SHARED_BYTES - fixed) // (form.stage_bytes + 16))
    try:
        return form._replace(STAGES=stages).check()
    except LaunchError:
        return None


def _forms(problem: MatmulProblem) -> Iterator[MatmulForm]:
    base = base_form(problem)
    streams = problem.rows <= 256  # the columns' operand is read once: it need not stay in the L2 cache
    for tile in _tiles(problem):
        form = base._replace(**tile)
        if form.SPLIT > 1 and cdiv(problem.depth, form.BK) < 2 * form.SPLIT:
            continue
        if streams:
            form = form._replace(EVICT_B="evict_first")
        staged = _staged(form)
        if staged is not None:
            yield staged


def cost(form: MatmulForm, problem: MatmulProblem, machine: Machine) -> Candidate:
    """What the model expects of a form."""
    size = problem.input.itemsize
    rows = cdiv(problem.rows, form.BM * form.SHARE_B)
    columns = cdiv(problem.columns, form.BN * form.SHARE_A)
    waves = cdiv(rows * columns * problem.batches, machine.resident(form.cluster))
    stages = cdiv(cdiv(problem.depth, form.BK), form.SPLIT)
    # Cycles of a stage.  Products of 64 rows by 32 bytes of depth take half a cycle a column, whatever the type.
    products = form.BM // 64 * form.BK * size / 32
    tensor = products * form.BN / 2
    shared = products * (2048 + 32 * form.BN) / machine.shared
    bytes_of_stage = form.BK * size * (form.loaded_rows / form.SHARE_A + form.BN / form.SHARE_B)
    loads = bytes_of_stage / machine.l2
    tensor += 24 + 0.06 * loads  # a stage's barriers; what is moved costs clock
    if form.PROMOTE is not None:
        tensor += form.BM * form.BN / 64  # a fused multiply-add an element, on the ordinary units
    cycles, limit = max((tensor, "tensor"), (shared, "shared"), (loads, "l2"))
    outputs = form.BM * form.out_columns / form.SPLIT
    epilogue = 700 + outputs / 20 * (1 + 0.4 * len(problem.epilogue.operands) + 0.5 * bool(problem.epilogue.activation))
    if form.cluster > 1:
        epilogue += 300 + (outputs / 8 * form.SPLIT if form.SPLIT > 1 else 0)
    starts = waves if form.SPLIT > 1 else 1  # CTAs that split the depth are not persistent
    overhead = (starts * (1500 if waves * stages > form.STAGES else 900) + waves * epilogue) / machine.clock
    compute = waves * stages * cycles / machine.clock + overhead
    in_flight = min(1.0, form.STAGES * form.stage_bytes / machine.in_flight)
    busy = rows * columns * problem.batches * form.cluster / (waves * machine.processors)
    memory = problem.bytes / (machine.memory * min(1.0, in_flight**0.5, 0.25 + 0.75 * busy)) + overhead
    if memory > compute:
        compute, limit = memory, "memory"
    return Candidate(form, machine.launch + compute, waves, limit)


@lru_cache(maxsize=256)
def candidates(problem: MatmulProblem, machine: Machine = Machine()) -> tuple[Candidate, ...]:
    """All forms for a problem, the one expected to be fastest first; empty when no form takes it."""
    ranked = [cost(form, problem, machine) for form in _forms(problem)]
    return tuple(sorted(ranked, key=lambda candidate: (candidate.seconds, -candidate.form.BN, candidate.form.cluster)))


def close(ranked: tuple[Candidate, ...], count: int = 8, within: float = 1.25) -> list[Candidate]:
    """The candidates worth timing: those that the model cannot tell apart, at most three of each kind."""
    chosen: list[Candidate] = []
    kinds: dict[Any, int] = {}
    for candidate in ranked:
        form = candidate.form
        kind = (form.BM, form.BK, form.SHARE_A, form.SHARE_B, form.SPLIT, form.GROUP)
        if candidate.seconds > within * ranked[0].seconds or len(chosen) == count:
            break
        if kinds.get(kind, 0) < 3:
            kinds[kind] = kinds.get(kind, 0) + 1
            chosen.append(candidate)
    return chosen
