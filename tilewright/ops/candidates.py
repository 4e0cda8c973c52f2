"""Forms of the Hopper product for a problem, with its epilogue, ranked by the estimate of `matmul.hopper.choice`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial

import tilewright.language as tl
from tilewright.errors import LaunchError
from tilewright.library import epilogue as epilogues
from tilewright.library.matmul.hopper.choice import Problem, close_forms, ranked_forms
from tilewright.library.matmul.hopper.config import MatmulForm
from tilewright.library.matmul.problem import MatmulProblem
from tilewright.targets.machine import Machine


@dataclass(frozen=True)
class Candidate:
    """A form with the time that the estimate expects of it, in seconds."""

    form: MatmulForm
    seconds: float

    def __str__(self) -> str:
        form = self.form
        parts = [f"{form.BM}x{form.BN}x{form.BK}", f"{form.STAGES} stages", f"{form.CONSUMERS} consumers"]
        parts += ["in turns"] if form.TURNS else []
        parts += [f"A shared by {form.SHARE_A}"] if form.SHARE_A > 1 else []
        parts += [f"B shared by {form.SHARE_B}"] if form.SHARE_B > 1 else []
        parts += [f"depth split by {form.SPLIT}"] if form.SPLIT > 1 else []
        parts += [f"{form.A_ROWS} rows of A"] if form.A_ROWS else []
        parts += [f"{form.LAG} stages apart"] if form.LAG else []
        parts += [f"rows in groups of {form.GROUP}"] if form.GROUP != 8 else []
        return f"{', '.join(parts)}: {self.seconds * 1e6:.1f} us expected"


def _finished(form: MatmulForm, problem: MatmulProblem) -> MatmulForm | None:
    """The form with what comes behind the product; None when it cannot be built then."""
    spec = problem.epilogue
    if spec.scale_a == "block" and (form.BN not in (64, 128) or form.SPLIT > 1 or form.BK != epilogues.BLOCK):
        return None  # a tile's columns share a scale, and so do the depths of a stage
    many = form.TURNS and form.BM * form.BN > 128 * 128  # sums of a thread
    if form.TURNS and (spec.scale_a == "block" or (many and spec.residual)):
        return None  # promotion would hold up the turns; a residual would not fit the registers
    if form.TURNS and form.BM * form.BN > 128 * 176 and spec.scale_a == "row":
        return None  # nor would scales of rows
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
            return finished.check()
        except LaunchError:
            stages -= 1
    return None


def work(spec: epilogues.Epilogue) -> float:
    """Clocks of a processor for an epilogue, an element: its instructions, 128 of which are issued in a clock."""
    columns = spec.bias + (spec.scale_b == "column") + (spec.scale_a == "row")
    return (8.0 * bool(spec.activation or spec.gate) + 1.0 * columns + 3.0 * spec.residual) / 128


def posed(problem: MatmulProblem) -> Problem:
    """The problem as `matmul.hopper.choice` knows it."""
    spec = problem.epilogue
    bare = not (spec.operands or spec.activation or spec.gate)
    return Problem(
        problem.rows, problem.columns, problem.depth, problem.batches, tl.dtype(problem.input),
        tl.dtype(problem.output), problem.left_transposed, problem.right_transposed, work(spec), bare=bare,
    )  # fmt: skip


def candidates(problem: MatmulProblem, machine: Machine) -> tuple[Candidate, ...]:
    """All forms for a problem, the one expected to be fastest first; empty when no form takes it."""
    ranked = ranked_forms(posed(problem), machine, partial(_finished, problem=problem))
    return tuple(Candidate(*entry) for entry in ranked)


@lru_cache(maxsize=256)
def close(problem: MatmulProblem, machine: Machine) -> tuple[Candidate, ...]:
    """The candidates worth timing, the one to take untimed first."""
    ranked = close_forms(posed(problem), machine, partial(_finished, problem=problem))
    return tuple(Candidate(*entry) for entry in ranked)
