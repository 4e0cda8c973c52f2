"""What the results of a program are allowed to be: PyTorch's own, and what rounding errors make of them.

The program runs in its own types, in float32 where it has narrower ones (kernels may leave out roundings between
operations), in float64, and some times with other roundings (`arithmetic`).  What these runs differ by is the
condition of a result: a number may lie that far from them, times a factor.  Whole numbers and truth values on which all
runs agree must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tools.fuzz.programs.arithmetic import EPSILON, Formulas, Fused, Perturbed, Widened
from tools.fuzz.programs.program import Program
from tools.fuzz.target import Failed

FORMULAS = 10  # runs by formulas
MORE_FORMULAS = (
    150  # where these do not explain a result: near a pole of an uncertain number, few of many runs are far off
)
FACTOR = 12.0  # times the spread of so few runs
ROUNDINGS = 16.0  # of a result's own size, for errors that the runs did not happen to show
NARROW = 4.0  # the same in the narrowest type of the program, whose roundings kernels may leave out between operations


class Reference:
    """The results of a program for some inputs."""

    def __init__(self, program: Program, inputs: Sequence[torch.Tensor]) -> None:
        self.program = program
        self.inputs = [value.cpu() for value in inputs]
        self.coarsest = 0.0
        with torch.no_grad():
            self.plain = program(*[value.clone() for value in self.inputs])

    @cached_property
    def others(self) -> list[tuple[Any, ...]]:
        """The other runs; made only where a result is not PyTorch's to within a few roundings."""
        with torch.no_grad():
            modes = [Perturbed(0), Fused(0, backwards=False), Fused(0, backwards=True)]
            found = [self._perturbed(mode) for mode in modes] + self._formulas(range(1, FORMULAS + 1))
            found += [exact for dtype in (torch.float32, torch.float64) if (exact := self._exact(dtype)) is not None]
        return found

    @cached_property
    def more(self) -> list[tuple[Any, ...]]:
        """`others` and many more."""
        with torch.no_grad():
            return self.others + self._formulas(range(FORMULAS + 1, FORMULAS + MORE_FORMULAS + 1))

    def _formulas(self, seeds: range) -> list[tuple[Any, ...]]:
        return [self._perturbed(Formulas(seed, backwards=seed % 2 == 0)) for seed in seeds]

    def _perturbed(self, mode: Perturbed) -> tuple[Any, ...]:
        with mode.attention(), mode:
            result = self.program(*[mode.changed(value.clone()) for value in self.inputs])
        self.coarsest = max(self.coarsest, mode.coarsest)
        return tuple(result)

    def _exact(self, dtype: torch.dtype) -> tuple[Any, ...] | None:
        """In a wider type, by the formula of attention; None where the program depends on the types of its inputs."""
        wide = [value.to(dtype) if value.dtype in EPSILON and value.dtype != torch.float64 else value
                for value in self.inputs]  # fmt: skip
        try:
            with sdpa_kernel(SDPBackend.MATH), Widened(dtype):  # other kernels of PyTorch differ where scores are NaN
                return self.program(*wide)
        except RuntimeError:
            return None

    def check(self, results: Sequence[Any], text: str) -> None:
        """Raises `Failed` for results that are not among those that rounding explains."""
        if len(results) != len(self.plain):
            raise Failed("wrong", f"{len(results)} results of {len(self.plain)}\n{text}", "number of results")
        for number, (result, plain) in enumerate(zip(results, self.plain, strict=True)):
            result = torch.as_tensor(result).cpu()
            if result.dtype != plain.dtype or result.shape != plain.shape:
                found = f"{result.dtype}{list(result.shape)}, not {plain.dtype}{list(plain.shape)}"
                raise Failed("wrong", f"result {number} is {found}\n{text}", "type or shape of a result")
            if not bool(_wrong(result, plain, (), 0.0).any()):
                continue
            for runs in ("others", "more"):
                others = [other[number] for other in getattr(self, runs) if other[number].shape == plain.shape]
                wrong = _wrong(result, plain, others, self.coarsest)
                if not bool(wrong.any()):
                    break
            if bool(wrong.any()):
                place = wrong.flatten().nonzero()[0].item()
                values = [each.flatten()[place].item() for each in (result, plain, *others[: FORMULAS + 5])]
                raise Failed(
                    "wrong",
                    f"result {number} of shape {list(plain.shape)}: {int(wrong.sum())} wrong, at {place}: "
                    f"{values[0]}, PyTorch {values[1]}, others {values[2:]}\n{text}",
                    f"wrong numbers in {text.rpartition('return')[0].strip().splitlines()[-1].partition('(')[0]}",
                )


def _wrong(result: torch.Tensor, plain: torch.Tensor, others: Sequence[torch.Tensor], coarsest: float) -> torch.Tensor:
    """Where a result is none that rounding explains."""
    if not plain.is_floating_point():
        agreed = torch.ones_like(plain, dtype=torch.bool)
        for other in others:
            agreed &= other == plain
        return agreed & (result != plain)
    wide, found = plain.double(), result.double()
    spread = torch.zeros_like(wide)
    stable = torch.ones_like(wide, dtype=torch.bool)
    for other in others:
        different = (other.double() - wide).abs()
        stable &= (other.isfinite() == wide.isfinite()) & (other.isnan() == wide.isnan())
        stable &= ~wide.isinf() | (other == wide)
        spread = torch.maximum(spread, torch.nan_to_num(different, 0.0, 0.0, 0.0))
    finite = wide.isfinite()
    information = torch.finfo(plain.dtype)
    allowed = FACTOR * spread + ROUNDINGS * information.tiny
    allowed += max(ROUNDINGS * information.eps, NARROW * coarsest) * wide.abs()
    allowed += NARROW * max(
        (torch.finfo(dtype).tiny * eps for dtype, eps in EPSILON.items() if eps == coarsest), default=0
    )
    near = (found - wide).abs() <= allowed
    overflow = finite & (wide.abs() + allowed >= information.max) & ~found.isfinite()
    same = (found == wide) | (found.isnan() & wide.isnan())
    return stable & ~same & ~(finite & near) & ~overflow
