"""What machine code for CPUs records of failed assertions, of loops whose step is not positive, of loops that wait for
ever, and of accesses out of bounds, where these are checked, and how it is read.

The launcher of a kernel with assertions or a `while` gives it the address of a record, an array of `WORDS` int64, all
zero but for what only kernels with a `while` read, which are words 35 to 38:

    0      1 once an assertion has failed: the first one of a launch writes the rest
    1      which assertion, by `targets.cpu.failures.number_assertions`
    2-4    the program instance
    5      axes of the condition's block, at most 16
    6-21   the element's index along each of them
    22-24  of an access out of bounds: the address (of a gather: the index), lanes outside, lanes
    32-34  what loops that wait have seen of the launch, away from word 0, which every pass reads
    35     the address of a function that gives the time in nanoseconds
    36     how long all may wait, in nanoseconds
    37     the address of a function that asks for signals, `tilewright_ask` of `glue`
    38     the address where it leaves an exception that a signal's handler raises
    39     1 once it has left one (`signals`): then no assertion need have failed

An instance whose assertion fails ends there, and instances that have not begun by then are left out; those that run
go on, but for the next pass of a `while`, in which one may wait for what the failed instance would have written.  So
the process stays as it was, and whoever launched tells what happened.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.runtime.signals import RECORD_INTERRUPTED, RECORD_RAISED

WORDS = 40
PROGRESS, RUNNING, VOTES, CLOCK, LIMIT, ASK = range(32, 38)
RAISED, INTERRUPTED = RECORD_RAISED, RECORD_INTERRUPTED
WAITING_SECONDS = 10.0  # for which all instances that run may wait before a launch fails
PROGRAM, AXES_WORD, INDEX, MOST_TOLD_AXES, FACTS, FACTS_END = 2, 5, 6, 16, 22, 25


@dataclass(frozen=True)
class Failure:
    """An assertion that failed: its number, in which program instance, and for which element of its block."""

    number: int
    program_id: tuple[int, ...]
    element: tuple[int, ...]
    facts: tuple[int, ...] = ()  # of an access: address (of a gather: index), lanes outside, lanes

    @staticmethod
    def read(record: Sequence[int] | ctypes.Array[ctypes.c_int64]) -> Failure | None:
        """What a launch left in its record; None when no assertion failed."""
        if not record[0]:
            return None
        index = record[INDEX : INDEX + record[AXES_WORD]]
        return Failure(record[1], tuple(record[PROGRAM : PROGRAM + 3]), tuple(index), tuple(record[FACTS:FACTS_END]))
