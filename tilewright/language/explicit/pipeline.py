"""Rings: stage and parity arithmetic, in one place.

A ring of N stages has N barriers "full" (a copy has arrived) and N barriers "empty" (the stage may be written again).
Both sides walk the stages in the same order; each time around the parity changes.  Producers begin with parity 1, which
fresh barriers count as ended: all stages are empty at first.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright.language as tl
from tilewright.language.aggregate import aggregate
from tilewright.language.explicit.objects import barrier_array
from tilewright.language.explicit.operations import barriers
from tilewright.language.function import language_function
from tilewright.language.types import constexpr_function


@constexpr_function
def exponent(number):
    """The power of two that a number is."""
    return number.bit_length() - 1


@aggregate
class ring_position:
    """Where one side of a ring is: `stage`, and the `parity` of the phase that it waits for."""

    stage: tl.tensor
    parity: tl.tensor
    stages: tl.constexpr

    @language_function
    def next(self):
        """The position one stage on."""
        following = self.stage + 1
        around = following == self.stages
        return ring_position(tl.where(around, 0, following), self.parity ^ around.to(tl.int32), self.stages)


@language_function
def consumer_start(STAGES: tl.constexpr):
    """The first position of a side that waits for stages to be full."""
    return ring_position(0, 0, STAGES)


@language_function
def producer_start(STAGES: tl.constexpr):
    """The first position of a side that waits for stages to be empty."""
    return ring_position(0, 1, STAGES)


@language_function
def ring_at(count, STAGES: tl.constexpr):
    """A consumer's position after `count` stages, for rings whose sides count; producers wait for ``1 - parity``."""
    if STAGES == 1:
        position = ring_position(0, count & 1, STAGES)
    elif STAGES & (STAGES - 1) == 0:
        position = ring_position(count & (STAGES - 1), (count >> exponent(STAGES)) & 1, STAGES)
    else:
        laps = count // STAGES
        position = ring_position(count - laps * STAGES, laps & 1, STAGES)
    return position


@aggregate
class ring_barriers:
    """The barriers of a ring: `full` and `empty`, one of each a stage."""

    full: barrier_array
    empty: barrier_array
    stages: tl.constexpr

    @language_function
    def wait_full(self, position):
        """A consumer waits for the stage's data."""
        self.full[position.stage].wait(position.parity)

    @language_function
    def wait_empty(self, position):
        """A producer waits until the stage may be written again."""
        self.empty[position.stage].wait(position.parity)

    @language_function
    def release(self, position):
        """A consumer is done with the stage."""
        self.empty[position.stage].arrive()


@language_function
def make_ring(STAGES: tl.constexpr, arrivals: tl.constexpr):
    """Barriers of a ring that one thread fills and `arrivals` warps release."""
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, arrivals)
    return ring_barriers(full, empty, STAGES)
