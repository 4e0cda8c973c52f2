"""The forms of `few_planes`, convolutions whose groups have few output channels, and their times on a GPU.

seconds = launch + instructions of a thread x what one takes with so many warps on a scheduler

A thread with four pixels loads a weight once for them; where that leaves most of a GPU idle, threads have one pixel and
a part of the channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from tilewright.library.generated.generate import next_power_of_2
from tilewright.targets.machine import Machine

_MOST_NARROW = 2  # forms of one pixel a thread that become candidates
_LARGEST_BLOCK = 512  # pixels of a program whose threads have four
_CHANNEL_PARTS = (1, 2, 4, 8)
_THREADS = (64, 128, 256)
# Clocks of one instruction after the other: 1000 taps of 32 sums took 200 us with a warp on each scheduler (H200,
# 2026-11-29).
_INSTRUCTION = 4.0
_TAP = 3.0  # instructions for a pixel's place in a window, which may be outside of the image
_START = 1500.0  # clocks from a CTA's start to its first sum, and from its last to its end
_SUM_OF_PARTS = 800.0  # clocks for the sum of parts


@dataclass(frozen=True)
class FewProblem:
    """A convolution of `planes` images and groups of `pixels` each: its size in numbers."""

    rows: int  # sums of a pixel
    channels: int
    taps: int
    pixels: int
    planes: int
    itemsize: int


@dataclass(frozen=True)
class FewForm:
    """A program's pixels and threads, and the parts of its channels."""

    block: int
    parts: int
    threads: int

    def __str__(self) -> str:
        parts = f", channels in {self.parts} parts" if self.parts > 1 else ""
        return f"{self.block} pixels by {self.threads} threads{parts}"


def _forms(problem: FewProblem) -> list[FewForm]:
    """One pixel a thread in parts of the channels, or four pixels."""
    most = next_power_of_2(problem.pixels)
    block = min(_LARGEST_BLOCK, max(32, most))
    found = [FewForm(block, 1, block // 4)]
    for parts in _CHANNEL_PARTS:
        if parts < 2 * problem.channels:
            blocks = [(threads // parts, threads) for threads in _THREADS]
            found += [FewForm(block, parts, threads) for block, threads in blocks if 32 <= block <= max(32, most)]
    return found


def seconds_of(form: FewForm, problem: FewProblem, machine: Machine) -> float:
    """The expected time of a form, of arithmetic alone."""
    pixels = max(1, form.block * form.parts // form.threads)  # of a thread
    weights = problem.rows / 4 if problem.itemsize == 4 else problem.rows / 8 + problem.rows  # loaded, and widened
    tap = pixels * (problem.rows + 1 + _TAP) + weights + (pixels if problem.itemsize < 4 else 0)
    instructions = ceil(problem.channels / form.parts) * problem.taps * tap
    ctas = ceil(problem.pixels / form.block) * problem.planes
    together = ceil(ctas / machine.processors) * max(1.0, form.threads / machine.warp_threads)
    warps = together / machine.schedulers  # of each
    rounds = max(1.0, warps * machine.lanes / machine.threads)
    clocks = instructions * max(_INSTRUCTION * rounds, warps / machine.issue) + rounds * _START
    return machine.launches.kernel + (clocks + (_SUM_OF_PARTS if form.parts > 1 else 0.0)) / machine.clock


@lru_cache(maxsize=1024)
def ranked_forms(problem: FewProblem, machine: Machine) -> tuple[tuple[FewForm, float], ...]:
    """The form of four pixels a thread and the likeliest of one with their times, the quickest first."""
    wide, *narrow = ((form, seconds_of(form, problem, machine)) for form in _forms(problem))
    likeliest = sorted(narrow, key=lambda each: each[1])[:_MOST_NARROW]
    return tuple(sorted([wide, *likeliest], key=lambda each: each[1]))
