"""Plans the conversion of a block between two distributed layouts, from the two maps alone.

    same registers        nothing to do                                  `RegisterMoves` in place
    same threads          other numbers for the same registers           `RegisterMoves`
    inside each warp      rounds of shuffles                             `Shuffles`
    inside each block     shared memory without conflicts                `SharedExchange`

Every plan is data: it prints itself, knows its cost, is lowered by reading it, and `simulate` runs it.

    >>> source = mma_accumulator((16, 16), (1, 1))
    >>> print(plan_conversion(source, mma_operand((16, 16), 0, (1, 1), 2), 16))
    nothing to do

A conversion never looks at what kind of layout it has before it.  With S the source and D the target, a thread that
is to hold D(place) looks for places of the source with the same element: first among its own registers, then in its
warp, then in its block.  By linearity it is enough to look for the basis vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.layout.distributed import REGISTER_INPUTS
from tilewright.layout.exchange import BARRIER_CYCLES, Half, SharedExchange, Side, plan_exchange, spans
from tilewright.layout.gf2 import Span, combine, extension
from tilewright.layout.linear import LinearLayout
from tilewright.layout.shuffles import Shuffles, WarpMaps, plan_shuffles


@dataclass(frozen=True)
class RegisterMoves:
    """Every thread has what it needs: target register i is source register `registers[i]`; no instruction."""

    registers: tuple[int, ...]
    in_place: bool

    cost = 0.0

    def __str__(self) -> str:
        if self.in_place:
            return "nothing to do"
        return f"registers {' '.join(map(str, self.registers))}"


Plan = RegisterMoves | Shuffles | SharedExchange


@lru_cache(maxsize=4096)
def plan_conversion(
    source: LinearLayout, target: LinearLayout, element_bits: int, memory_bytes: int | None = None
) -> Plan:
    """The cheapest plan that takes a block from `source` to `target`.

    With `memory_bytes`, an exchange goes in steps so that it needs no more shared memory, as far as both layouts have
    register bits in common to step over; its `size` says what it needs.

    Both have the inputs register, lane, warp, block with equally many lanes, warps and blocks
    (`distributed.on_threads` fills them up).  Raises `ValueError` for layouts of different blocks or threads, and when
    a block of the cluster needs elements that only another one has.
    """
    _check(source, target)
    moves = _register_moves(source, target)
    if moves is not None:
        return moves
    inside_warp = shuffles_between(source, target, element_bits)
    if inside_warp is not None and inside_warp.cost <= BARRIER_CYCLES:
        return inside_warp
    exchange = exchange_between(source, target, element_bits, memory_bytes)
    if inside_warp is None or exchange.cost < inside_warp.cost:
        return exchange
    return inside_warp


def _check(source: LinearLayout, target: LinearLayout) -> None:
    if source.outputs != target.outputs:
        raise ValueError(f"layouts of different blocks: {source.shape} and {target.shape}")
    for layout in (source, target):
        if layout.input_names != REGISTER_INPUTS:
            raise ValueError(f"a distributed layout has the inputs {REGISTER_INPUTS}, not {layout.input_names}")
    for name in REGISTER_INPUTS[1:]:
        if source.size(name) != target.size(name):
            raise ValueError(f"{source.size(name)} {name}s hold the source, {target.size(name)} the target")
    inside = [vector for name in REGISTER_INPUTS[:3] for vector in source.bases(name)]
    needed = [vector for name in REGISTER_INPUTS[:3] for vector in target.bases(name)]
    if not spans(inside, [*needed, *_differences(source, target, "block")]):
        raise ValueError(f"a block needs elements of another block of the cluster: {source} to {target}")


def _threads(layout: LinearLayout) -> tuple[int, ...]:
    return tuple(vector for name in REGISTER_INPUTS[1:] for vector in layout.bases(name))


def _differences(source: LinearLayout, target: LinearLayout, *names: str) -> tuple[int, ...]:
    """For the bits of some inputs: the sums of the two layouts' vectors."""
    return tuple(a ^ b for name in names for a, b in zip(source.bases(name), target.bases(name), strict=True))


def _register_moves(source: LinearLayout, target: LinearLayout) -> RegisterMoves | None:
    if any(_differences(source, target, *REGISTER_INPUTS[1:])):
        return None
    own = Span(source.bases("register"))
    found = [own.solve(vector) for vector in target.bases("register")]
    chosen = [place for place in found if place is not None]
    if len(chosen) < len(found):
        return None
    registers = tuple(combine(chosen, register) for register in range(target.size("register")))
    return RegisterMoves(registers, registers == tuple(range(source.size("register"))))


def shuffles_between(source: LinearLayout, target: LinearLayout, element_bits: int) -> Shuffles | None:
    """The plan by shuffles; None when a warp needs elements that only another one has."""
    maps = WarpMaps(
        source.bases("register"),
        source.bases("lane"),
        target.bases("register"),
        target.bases("lane"),
        _differences(source, target, "warp", "block"),
    )
    return plan_shuffles(maps, element_bits)


def exchange_between(
    source: LinearLayout, target: LinearLayout, element_bits: int, memory_bytes: int | None = None
) -> SharedExchange:
    """The plan through shared memory, in steps when it is limited.

    Each block of a cluster moves its own elements: relative to what the source has at the block's number.
    """
    distinct_registers = [extension((), layout.bases("register")) for layout in (source, target)]
    halves = []
    for layout, registers in zip((source, target), distinct_registers, strict=True):
        threads = [vector for name in REGISTER_INPUTS[1:3] for vector in layout.bases(name)]
        threads += [v ^ own for v, own in zip(layout.bases("block"), source.bases("block"), strict=True)]
        halves.append(Half(tuple(registers), tuple(threads), len(layout.bases("lane"))))
    elements = extension((), [*halves[0].registers, *halves[0].threads])
    element_bytes = max(1, element_bits // 8)
    needed_bytes = element_bytes << len(elements)
    step_bits = 0 if memory_bytes is None else (-(-needed_bytes // memory_bytes) - 1).bit_length()
    basis, step_bits, store, load = plan_exchange(halves[0], halves[1], elements, element_bytes, step_bits)
    scope = "warp" if _warps_apart(source, target, step_bits) else "block"
    loaded = Span(distinct_registers[1])
    numbers = [loaded.solve(target.element(register=register)) for register in range(target.size("register"))]
    return SharedExchange(
        LinearLayout((("offset", basis),), source.outputs),
        _renumbered(store, source, distinct_registers[0]),
        load,
        tuple(number for number in numbers if number is not None),
        scope,
        1 << step_bits,
    )


def _warps_apart(source: LinearLayout, target: LinearLayout, step_bits: int) -> bool:
    """Whether every warp loads only what it stored itself.

    Warps that hold copies store equal values to one place, which is harmless until a later step stores others there.
    """
    inside = [vector for name in REGISTER_INPUTS[:2] for vector in source.bases(name)]
    needed = [vector for name in REGISTER_INPUTS[:2] for vector in target.bases(name)]
    if not spans(inside, [*needed, *_differences(source, target, "warp", "block")]):
        return False
    return not step_bits or len(extension(inside, source.bases("warp"))) == len(source.bases("warp"))


def _renumbered(side: Side, layout: LinearLayout, vectors: list[int]) -> Side:
    """A side whose registers are numbered by `vectors`, with the layout's own register numbers."""
    bits = [1 << layout.bases("register").index(vector) for vector in vectors]
    accesses = tuple(
        replace(access, registers=tuple(combine(bits, register) for register in access.registers))
        for access in side.accesses
    )
    return replace(side, accesses=accesses)
