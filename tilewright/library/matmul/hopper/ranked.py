"""Configs of the Hopper product for a problem on arrays, with its epilogue, ranked by the estimate of `choice`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

import tilewright.language as tl
from tilewright.library.matmul.hopper.choice import Finish, close_configs, finished, ranked_configs
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.library.matmul.problem import MatmulProblem
from tilewright.targets.machine import Machine


@dataclass(frozen=True)
class RankedConfig:
    """A config with the time that the estimate expects of it, in seconds."""

    config: MatmulConfig
    seconds: float

    def __str__(self) -> str:
        return f"{self.config.described}: {self.seconds * 1e6:.1f} us expected"


def _with_epilogue(problem: MatmulProblem) -> Finish:
    """What finishes a config: the functions of the problem's epilogue."""
    right = None if problem.right is None else tl.dtype(problem.right)
    return partial(finished, problem=problem, RIGHT=right, DEPENDENT=problem.weights_ready, **problem.epilogue.fields)


def candidates(problem: MatmulProblem, machine: Machine) -> tuple[RankedConfig, ...]:
    """All configs for a problem, the one expected to be fastest first; empty when no config takes it."""
    ranked = ranked_configs(problem, machine, _with_epilogue(problem))
    return tuple(RankedConfig(*entry) for entry in ranked)


@lru_cache(maxsize=256)
def close(problem: MatmulProblem, machine: Machine) -> tuple[RankedConfig, ...]:
    """The candidates worth timing, the one to take untimed first."""
    ranked = close_configs(problem, machine, _with_epilogue(problem))
    return tuple(RankedConfig(*entry) for entry in ranked)
