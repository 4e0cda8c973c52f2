"""Conversions inside each warp: rounds of shuffles, computed from the two maps.

In round k every lane sends one register and reads the one that some lane sends.  Everything is linear:

    lane t sends register      rounds[k].register ^ send(thread)
    lane l reads lane          rounds[k].lane ^ read(thread)
    and keeps it as unit       k ^ place(lane)

where send, read and place XOR one number for each set bit of the lane (then of the warp and the block).  `send` and
`place` that are not zero cost selects: a register chosen by the lane, one select for each bit that can change.

Two elements of 16 bits that are neighbours in both layouts travel together; such a group is a *unit*.

How the rounds are found.  Let P take a place (register r, lane l) of the target to a place (s, t) of the source that
holds its element.  In round k lane l takes its register r = k + G l for some linear G, and the rounds work when any
two lanes that read from the same lane want the same register of it: G must be such that the lane part M of
l -> P(G l, l) sends to zero only what all of P sends to zero.  Where lanes of the target hold copies, G moves along
them (both parts are zero); on the other lanes M has to be one to one, which is reached by adding lanes that the
target's registers come from, or that hold copies in the source.  M = identity, when it is among the solutions, gives
butterflies: lane l reads lane l ^ constant, and nothing is sent where the constant is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.layout.gf2 import Span, bits_of, combine, extension, rank

WORD_BITS = 32  # what one shuffle moves


@dataclass(frozen=True)
class Round:
    """What lane 0 does in a round; other lanes XOR their own numbers."""

    register: int
    lane: int


@dataclass(frozen=True)
class Shuffles:
    """A conversion by shuffles; see the module.

    `send`, `read` and `place` have one number for each lane bit, then each warp bit, then each block bit.  Numbers of
    registers count units of `unit` elements; `registers` gives for each target register the (unit, member) it is.
    """

    unit: int
    rounds: tuple[Round, ...]
    send: tuple[int, ...]
    read: tuple[int, ...]
    place: tuple[int, ...]
    registers: tuple[tuple[int, int], ...]
    lane_bits: int
    element_bits: int

    @property
    def butterfly(self) -> bool:
        """Whether lane l reads from lane l ^ constant, in every warp."""
        own = tuple(1 << bit for bit in range(self.lane_bits))
        return self.read[: self.lane_bits] == own and not any(self.read[self.lane_bits :])

    @property
    def shuffles(self) -> int:
        """Instructions that move a word between lanes."""
        words = -(-self.unit * self.element_bits // WORD_BITS)
        return words * sum(1 for round_ in self.rounds if round_.lane or not self.butterfly)

    @property
    def selects(self) -> int:
        words = -(-self.unit * self.element_bits // WORD_BITS)
        return words * len(self.rounds) * (rank(self.send) + rank(self.place))

    @property
    def cost(self) -> float:
        """Cycles of a warp: a shuffle is one, two selects are one."""
        return self.shuffles + self.selects / 2

    def __str__(self) -> str:
        kind = "butterflies" if self.butterfly else "shuffles"
        rounds = ", ".join(f"r{round_.register} ^{round_.lane}" for round_ in self.rounds)
        moved = f" of {self.unit} elements" if self.unit > 1 else ""
        return f"{self.shuffles} {kind}{moved}, {self.selects} selects: {rounds}"


@dataclass(frozen=True)
class WarpMaps:
    """Two layouts as seen by a warp: packed vectors of registers and lanes.

    `others` are, for the warp and block bits, the sums of their two vectors: what the target has there and the
    source does not.
    """

    source_registers: tuple[int, ...]
    source_lanes: tuple[int, ...]
    target_registers: tuple[int, ...]
    target_lanes: tuple[int, ...]
    others: tuple[int, ...]


def plan_shuffles(maps: WarpMaps, element_bits: int) -> Shuffles | None:
    """Shuffles that convert, in the largest units that a word takes; None when a warp lacks what it needs."""
    plans = [_plan_units(maps, low, element_bits) for low in range(_common_bits(maps, element_bits), -1, -1)]
    return min((plan for plan in plans if plan is not None), key=lambda plan: plan.cost, default=None)


def _common_bits(maps: WarpMaps, element_bits: int) -> int:
    """How many low register bits are the same in both layouts, and fit into a word."""
    common = 0
    for source, target in zip(maps.source_registers, maps.target_registers, strict=False):
        if source != target or element_bits << (common + 1) > WORD_BITS:
            break
        common += 1
    return common


def _plan_units(maps: WarpMaps, low: int, element_bits: int) -> Shuffles | None:
    """The plan with units of 2^low registers, or None."""
    registers = maps.source_registers[low:]
    places = Span([*registers, *maps.source_lanes])
    register_span = Span()
    positions = [bit for bit, vector in enumerate(maps.target_registers[low:]) if register_span.insert(vector)]
    wanted = [maps.target_registers[low + bit] for bit in positions]
    # A target that needs little of the source may need more rounds than it has registers: of lanes that want
    # different registers of one lane, each keeps what came in its own round.
    spare = extension([*wanted, *maps.target_lanes], [*maps.source_lanes, *registers])
    for more in range(len(spare) + 1):
        queries = [*wanted, *spare[:more]]
        solved = [places.solve(vector) for vector in (*queries, *maps.target_lanes, *maps.others)]
        found = [place for place in solved if place is not None]
        if len(found) < len(solved):
            return None
        finder = _ShuffleFinder(len(registers), len(maps.source_lanes), found, len(queries), places.kernel)
        lanes = finder.butterflies() or finder.any_lanes(queries, maps.target_lanes)
        if lanes is not None:
            break
    else:
        return None
    rounds, send, read, place = finder.rounds(lanes)
    numbers = []
    unit = 1 << low
    for register in range(1 << len(maps.target_registers)):
        high = register_span.solve(combine(maps.target_registers[low:], register >> low))
        assert high is not None
        numbers.append((sum(1 << positions.index(bit) for bit in bits_of(high)), register % unit))
    return Shuffles(unit, rounds, send, read, place, tuple(numbers), len(maps.source_lanes), element_bits)


@dataclass(frozen=True)
class _LaneBit:
    """Of one lane bit: G (which round's register it takes), and the place it reads at that register."""

    register: int
    place: int


class _ShuffleFinder:
    """The search for G; places are packed as register | lane << register_bits."""

    def __init__(self, registers: int, lanes: int, found: Sequence[int], wanted: int, copies: Sequence[int]) -> None:
        self.registers, self.lanes = registers, lanes
        self.of_registers = found[:wanted]
        self.of_lanes = found[wanted : wanted + lanes]
        self.of_others = found[wanted + lanes :]
        self.copies = copies  # differences of places that hold the same element

    def lane_part(self, place: int) -> int:
        return place >> self.registers

    def register_part(self, place: int) -> int:
        return place & (1 << self.registers) - 1

    def butterflies(self) -> list[_LaneBit] | None:
        """Lane l reads from lane l ^ constant, if target registers and copies reach it."""
        sources = [*self.copies, *self.of_registers]
        reach = Span(self.lane_part(way) for way in sources)
        result = []
        for bit, place in enumerate(self.of_lanes):
            chosen = reach.solve(self.lane_part(place) ^ 1 << bit)
            if chosen is None:
                return None
            result.append(_LaneBit(chosen >> len(self.copies), place ^ combine(sources, chosen)))
        return result

    def any_lanes(self, wanted: Sequence[int], target_lanes: Sequence[int]) -> list[_LaneBit] | None:
        """G by basis vectors of the lanes: those that hold copies first, then the rest, one to one."""
        meeting = Span([*wanted, *target_lanes])
        basis: list[int] = [parts >> len(wanted) for parts in meeting.kernel]
        chosen = [_LaneBit(parts & (1 << len(wanted)) - 1, 0) for parts in meeting.kernel]
        rest = extension(basis, [1 << bit for bit in range(self.lanes)])
        covered, deferred = Span(), []
        for lanes in rest:
            place = combine(self.of_lanes, lanes)
            if covered.insert(self.lane_part(place)):
                basis.append(lanes)
                chosen.append(_LaneBit(0, place))
            else:
                deferred.append(lanes)
        sources = [*(_LaneBit(0, copy) for copy in self.copies)]
        sources += [_LaneBit(1 << bit, place) for bit, place in enumerate(self.of_registers)]
        for lanes in deferred:
            way = next((way for way in sources if self.lane_part(way.place) not in covered), None)
            if way is None:
                return None
            place = combine(self.of_lanes, lanes) ^ way.place
            covered.insert(self.lane_part(place))
            basis.append(lanes)
            chosen.append(_LaneBit(way.register, place))
        return [self._sum(chosen, Span(basis).solve(1 << bit) or 0) for bit in range(self.lanes)]

    @staticmethod
    def _sum(parts: Sequence[_LaneBit], which: int) -> _LaneBit:
        return _LaneBit(combine([part.register for part in parts], which), combine([p.place for p in parts], which))

    def rounds(
        self, lanes: Sequence[_LaneBit]
    ) -> tuple[tuple[Round, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Rounds and the XORs of send, read and place, from what each lane bit takes and reads.

        A sender must know its register from its own lane: H with H(M l) = the register part of P(G l, l).
        """
        read = [self.lane_part(lane.place) for lane in lanes]
        whole = [*read, *extension(read, [1 << bit for bit in range(self.lanes)])]
        every = Span(whole)
        needed = [*(self.register_part(lane.place) for lane in lanes), *(0 for _ in whole[len(read) :])]
        send = [combine(needed, every.solve(1 << bit) or 0) for bit in range(self.lanes)]
        rounds = []
        for number in range(1 << len(self.of_registers)):
            place = combine(self.of_registers, number)
            lane = self.lane_part(place)
            rounds.append(Round(self.register_part(place) ^ combine(send, lane), lane))
        for place in self.of_others:
            lane = self.lane_part(place)
            read.append(lane)
            send.append(self.register_part(place) ^ combine(send[: self.lanes], lane))
        places = [*(lane.register for lane in lanes), *(0 for _ in self.of_others)]
        return tuple(rounds), tuple(send), tuple(read), tuple(places)
