"""Forms of the Hopper product for a problem, with its epilogue, ranked by the estimate of `kernels.hopper.choice`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import tilewright.language as tl
from tilewright.errors import LaunchError
from tilewright.kernels import epilogues
from tilewright.kernels.hopper.choice import Gpu, Problem, ranked_forms
from tilewright.kernels.hopper.forms import SHARED_BYTES, MatmulForm
from tilewright.ops.problem import MatmulProblem

H200 = Gpu()
SPLIT_SCRATCH = 4096  # bytes with which CTAs that split the depth rearrange their sums, beside tiles and stages
MANY_ROWS = 4096  # tiles are walked in wider groups, too, where operands outgrow the L2 cache


@dataclass(frozen=True)
class Candidate:
    """A form with the time that the estimate expects of it, in seconds."""

    form: MatmulForm
    seconds: float

    def __str__(self) -> str:
        form = self.form
        parts = [f"{form.BM}x{form.BN}x{form.BK}", f"{form.STAGES} stages", f"{form.CONSUMERS} consumers"]
        parts += ["in turns"] if form.PINGPONG else []
        parts += [f"A shared by {form.SHARE_A}"] if form.SHARE_A > 1 else []
        parts += [f"B shared by {form.SHARE_B}"] if form.SHARE_B > 1 else []
        parts += [f"depth split by {form.SPLIT}"] if form.SPLIT > 1 else []
        parts += [f"{form.A_ROWS} rows of A"] if form.A_ROWS else []
        parts += [f"rows in groups of {form.GROUP}"] if form.GROUP != 8 else []
        return f"{', '.join(parts)}: {self.seconds * 1e6:.1f} us expected"


def _finished(form: MatmulForm, problem: MatmulProblem) -> MatmulForm | None:
    """The form with what comes behind the product; None when it cannot be built then."""
    spec = problem.epilogue
    if spec.scale_a == "block" and (form.BN not in (64, 128) or form.SPLIT > 1 or form.BK != epilogues.BLOCK):
        return None  # a tile's columns share a scale, and so do the depths of a stage
    if form.SPLIT > 1 and form.BN % 32:
        return None  # partial sums in rows of 128 bytes
    many = form.PINGPONG and form.BM * form.BN > 128 * 128  # sums of a thread
    if form.PINGPONG and (spec.scale_a == "block" or (many and spec.residual)):
        return None  # promotion would hold up the turns; a residual would not fit the registers
    # Of operands for each column, few registers hold many; a residual is as large as the sums.
    together = (spec.bias or spec.scale_b == "column") and not (spec.residual or spec.gate) and form.SPLIT == 1
    stages = form.STAGES
    while stages >= 2:  # staging tiles of other results may take more
        finished = form._replace(
            STAGES=stages,
            PROMOTE=epilogues.promotion(spec),
            GATE=epilogues.gating(spec),
            EPILOGUE=epilogues.function(replace(spec, gate="")),
            TOGETHER=2 if together and not many else 1,
            DEPENDENT=problem.weights_ready,
        )
        try:
            if form.SPLIT == 1 or finished.shared_bytes <= SHARED_BYTES - SPLIT_SCRATCH:
                return finished.check()
        except LaunchError:
            pass
        stages -= 1
    return None


def work(spec: epilogues.Epilogue) -> float:
    """Clocks of a processor for an epilogue, an element: its instructions, 128 of which are issued in a clock."""
    columns = spec.bias + (spec.scale_b == "column") + (spec.scale_a == "row")
    return (9.0 * bool(spec.activation or spec.gate) + 2.0 * columns + 5.0 * spec.residual) / 128


@lru_cache(maxsize=256)
def candidates(problem: MatmulProblem, gpu: Gpu = H200) -> tuple[Candidate, ...]:
    """All forms for a problem, the one expected to be fastest first; empty when no form takes it."""
    posed = Problem(
        problem.rows, problem.columns, problem.depth, problem.batches, tl.dtype(problem.input),
        tl.dtype(problem.output), problem.left_transposed, problem.right_transposed, work(problem.epilogue),
    )  # fmt: skip
    found = []
    for form, seconds in ranked_forms(posed, gpu):
        finished = _finished(form, problem)
        if finished is not None:
            found.append(Candidate(finished, seconds))
            if problem.rows >= MANY_ROWS and finished.cluster == 1:
                found.append(Candidate(finished._replace(GROUP=16), seconds))
    return tuple(found)


def close(ranked: tuple[Candidate, ...], count: int = 8, within: float = 1.2) -> list[Candidate]:
    """The candidates worth timing: those that the estimate cannot tell apart, of different tiles.

    Two of a tile, four of a number of rows: equals by the estimate differ in how they share and walk operands.  The
    tile of 128 x 256 moves least for what it computes, which keeps the clock up; it comes first within 3 percent.
    Forms in which warpgroups take turns come behind the others, three tiles that load least for what they compute.
    """
    in_turns = _in_turns(ranked)
    ranked = tuple(candidate for candidate in ranked if not candidate.form.PINGPONG)
    limit = within * min((candidate.seconds for candidate in ranked), default=0.0)
    largest = [candidate for candidate in ranked if (candidate.form.BM, candidate.form.BN) == (128, 256)]
    steady = [candidate for candidate in largest if candidate.seconds <= 1.03 * ranked[0].seconds]
    chosen: list[Candidate] = []
    tiles: Counter[Any] = Counter()
    for candidate in dict.fromkeys([*steady, *ranked]):
        form = candidate.form
        if len(chosen) < count and candidate.seconds <= limit and tiles[form.BM] < 4 and tiles[form.BM, form.BN] < 2:
            tiles.update((form.BM, (form.BM, form.BN)))
            chosen.append(candidate)
    return chosen + [candidate for candidate in in_turns if candidate.seconds <= limit]


def _in_turns(ranked: tuple[Candidate, ...], count: int = 3) -> list[Candidate]:
    """The forms in which warpgroups take turns that are worth timing: two of a number of rows, one of a tile."""

    def loaded(candidate: Candidate) -> float:  # rows and columns for each element of a tile
        form = candidate.form
        return (form.BM / form.SHARE_A + form.BN / form.SHARE_B) / (form.BM * form.BN)

    found = [candidate for candidate in ranked if candidate.form.PINGPONG]
    chosen: list[Candidate] = []
    tiles: Counter[Any] = Counter()
    for candidate in sorted((each for each in found if each.seconds <= 1.08 * found[0].seconds), key=loaded):
        tile = candidate.form.BM, candidate.form.BN
        if len(chosen) < count and tiles[tile[0]] < 2 and not tiles[tile]:
            tiles.update((tile[0], tile))
            chosen.append(candidate)
    return chosen
