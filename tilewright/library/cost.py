"""The expected time of a kernel call: the analytical model that ranks candidates.

seconds = launch + max(compute, memory) / parallel efficiency, with the rates of a `Machine`.
The model ranks; it is not a promise of speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from tilewright.dtypes import DType, float32
from tilewright.symbolic import Size, evaluate, free_symbols, lower_bound, upper_bound
from tilewright.targets.machine import Machine

MEMORY_SECTOR = 32  # bytes that a GPU's memory moves at least


@dataclass(frozen=True)
class Cost:
    """Estimate for the sizes the builder expects: bytes moved, operations, seconds."""

    bytes: Size
    flops: Size
    seconds: float


def expected(size: Size) -> int:
    """A representative value of a size: each symbol at 64, kept inside its range."""
    symbols = {symbol.name: min(max(64, symbol.low), symbol.high) for symbol in free_symbols(size)}
    return evaluate(size, symbols)


def spans(size: Size, ends: Sequence[int]) -> list[tuple[int, int | None]]:
    """A representative value of each range of a size, and the range's end: `ends` inside of its bounds, and None."""
    if isinstance(size, int):
        return [(size, None)]
    low, high = lower_bound(size), upper_bound(size)
    inside = [end for end in ends if low <= end < high]
    past = max([low, *(2 * end for end in inside)])
    return [*((end, end) for end in inside), (min(high, max(past, expected(size))), None)]


def balance(programs: int, threads: int) -> float:
    """The part of the threads' time that is used when equal programs are shared out."""
    rounds = ceil(programs / threads)
    return programs / (rounds * threads)


def estimate(
    machine: Machine, bytes_moved: Size, flops: Size, programs: Size, dtype: DType = float32, efficiency: float = 1.0,
    in_turns: bool = False,
) -> Cost:  # fmt: skip
    """The cost of one launch of `programs` equal program instances.

    `in_turns`: none computes while it waits for memory, so that these overlap only where a processor has several.
    """
    count = max(1, expected(programs))
    used = balance(count, machine.processors)
    peak = machine.flops * machine.processors * efficiency * 4 / max(dtype.itemsize, 4)
    compute = expected(flops) / peak
    memory = expected(bytes_moved) / machine.memory
    overhead = machine.launches.kernel + ceil(count / machine.processors) * machine.launches.program
    alone = in_turns and count <= machine.processors
    return Cost(bytes_moved, flops, overhead + (compute + memory if alone else max(compute, memory)) / used)
