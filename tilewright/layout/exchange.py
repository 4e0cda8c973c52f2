"""Conversions through shared memory: a memory layout computed for one pair of distributed layouts.

The memory is a basis of the elements' space: bit i of an offset stands for the element `memory[i]`.  Its bits are

    vector bits    neighbours in memory that a thread moves at once: common register vectors of both layouts, then
                   (in the wider of the two) more register vectors of that one
    word bits      what fills a word of 4 bytes, where vectors are narrower
    bank bits      the rest of the 128 bytes of all banks
    row bits       the elements of a bank's different rows
    step bits      where memory is limited: common register vectors, so that each step moves a part of every
                   thread's registers through the same memory, a barrier after each

Lanes that a phase of an access serves together conflict when the sum of their vectors lies in the span of the word
bits and row bits (and outside that of the word bits).  So row bits are chosen to meet the span of the phase's lanes as
little as can be, on the store and the load side at once: `gf2.common_complement`.  All pairs of vector widths are
tried; the fewest wavefronts win.  When both sides move vectors of the same width there are no conflicts at all.

The rest of what must hold is that no lane finds the elements of its vector in another order: vectors of threads have
zeros in the vector bits of their side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.layout.gf2 import Span, combine, common_complement, extension, intersection, rank
from tilewright.layout.linear import LinearLayout
from tilewright.layout.shared import ROW_BYTES
from tilewright.layout.vectorize import ACCESS_BYTES

BARRIER_CYCLES = 24  # what a barrier and the latency of two accesses cost a warp, besides its wavefronts


@dataclass(frozen=True)
class ExchangeAccess:
    """One instruction: the registers of a thread that lie at consecutive offsets, from `offset` ^ the thread's on."""

    offset: int
    registers: tuple[int, ...]
    step: int = 0


@dataclass(frozen=True)
class Side:
    """The stores or the loads.  `threads` is the XOR of offsets for each lane, then warp, then block bit."""

    accesses: tuple[ExchangeAccess, ...]
    threads: tuple[int, ...]
    wavefronts: int  # of one warp, for all accesses

    @property
    def width(self) -> int:
        return len(self.accesses[0].registers)

    def __str__(self) -> str:
        return f"{len(self.accesses)} x {self.width} elements in {self.wavefronts} wavefronts"


@dataclass(frozen=True)
class SharedExchange:
    """A conversion through memory: the stores of a step, a barrier of `scope`, its loads; a barrier before the next.

    `memory` maps offsets to elements; offsets from `size` on are those of the later steps.  `registers` gives for each
    target register the loaded one that has its element.  Threads that hold copies store equal values to one place.
    Whatever uses the memory before or after is kept apart by a barrier of the block, also when `scope` is "warp".
    """

    memory: LinearLayout
    store: Side
    load: Side
    registers: tuple[int, ...]
    scope: str  # "warp" or "block"
    steps: int = 1

    @property
    def size(self) -> int:
        """Elements of memory."""
        return self.memory.size("offset") // self.steps

    @property
    def cost(self) -> float:
        """Cycles of a warp."""
        return self.store.wavefronts + self.load.wavefronts + BARRIER_CYCLES * self.steps

    def __str__(self) -> str:
        steps = f" in {self.steps} steps" if self.steps > 1 else ""
        memory = f"shared memory of {self.size} elements{steps}"
        return f"{memory}, store {self.store}, {self.scope} barrier, load {self.load}"


@dataclass(frozen=True)
class Half:
    """One of the two layouts: packed vectors of registers (in which none is a sum of others) and of threads."""

    registers: tuple[int, ...]
    threads: tuple[int, ...]
    lanes: int  # the first of `threads` are lane bits


@dataclass(frozen=True)
class _ExchangeMemory:
    """A candidate: the basis, and the number of vector bits of the two halves."""

    basis: tuple[int, ...]
    words: tuple[int, ...]  # word bits
    rows: tuple[int, ...]
    bits: tuple[int, int]
    steps: int = 0  # the last bits of the basis are step bits


def plan_exchange(
    source: Half, target: Half, elements: Sequence[int], element_bytes: int, step_bits: int
) -> tuple[tuple[int, ...], int, Side, Side]:
    """The memory's basis, the number of its step bits (at most `step_bits`), and what the two sides do.

    It is the memory with the fewest wavefronts, then the fewest instructions.  `elements` is a basis of the space of
    the elements that pass through.
    """
    whole = (source, target)
    steps, rest = _step_bits(whole, elements, step_bits)
    halves = (_without(source, steps, rest), _without(target, steps, rest))
    most = max(0, (ACCESS_BYTES // element_bytes).bit_length() - 1)
    candidates = sorted(_vector_bits(halves, rest, most), key=lambda found: _least(halves, found[2], element_bytes))
    best: tuple[tuple[int, int], _ExchangeMemory] | None = None
    for vectors, kernel, bits in candidates:
        if best is not None and best[0] <= _least(halves, bits, element_bytes):
            break
        memory = _complete(halves, vectors, kernel, bits, element_bytes)
        cost = _cost(halves, memory, element_bytes)
        if best is None or cost < best[0]:
            best = cost, memory
    assert best is not None  # no vector bits at all are always possible
    memory = replace(best[1], basis=(*best[1].basis, *steps), steps=len(steps))
    sides = [_side(half, memory, bits, element_bytes) for half, bits in zip(whole, memory.bits, strict=True)]
    return memory.basis, len(steps), sides[0], sides[1]


def _step_bits(halves: tuple[Half, Half], elements: Sequence[int], most: int) -> tuple[list[int], list[int]]:
    """Common register vectors, high registers first, and a complement of their span that holds all threads."""
    chosen: list[int] = []
    rest = extension((), elements)
    if not most:
        return chosen, rest
    for candidate in reversed(intersection(halves[0].registers, halves[1].registers)):
        kernel = _kernel(halves, elements, [*chosen, candidate], len(chosen) + 1, 0)
        if len(chosen) < most and kernel is not None:
            chosen.append(candidate)
            rest = kernel
    return chosen, rest


def _without(half: Half, steps: Sequence[int], rest: Sequence[int]) -> Half:
    """One step of a half: its registers modulo the step bits."""
    if not steps:
        return half
    basis = [*steps, *rest]
    span, low = Span(basis), (1 << len(steps)) - 1
    registers = [combine(basis, (span.solve(vector) or 0) & ~low) for vector in half.registers]
    return replace(half, registers=tuple(extension((), registers)))


def _vector_bits(
    halves: tuple[Half, Half], elements: Sequence[int], most: int
) -> Iterator[tuple[list[int], list[int], tuple[int, int]]]:
    """Candidates: the vector bits, a complement of their span in which the threads' vectors lie, the two widths."""
    common = intersection(halves[0].registers, halves[1].registers)
    for narrow in range(min(most, len(common)), -1, -1):
        for wide in (0, 1):
            chosen: list[int] = []
            for candidate in common:
                if len(chosen) == narrow:
                    break
                if _kernel(halves, elements, [*chosen, candidate], len(chosen) + 1, wide) is not None:
                    chosen.append(candidate)
            if len(chosen) < narrow:
                continue
            yield from _widened(halves, elements, most, chosen, wide)


def _widened(
    halves: tuple[Half, Half], elements: Sequence[int], most: int, chosen: list[int], wide: int
) -> Iterator[tuple[list[int], list[int], tuple[int, int]]]:
    """The common vector bits alone, then with more and more register vectors of the wider half."""
    narrow, vectors = len(chosen), list(chosen)
    for candidate in [None, *halves[wide].registers]:
        if candidate is not None:
            if len(vectors) == most or candidate in Span(vectors):
                continue
            if _kernel(halves, elements, [*vectors, candidate], narrow, wide) is None:
                continue
            vectors.append(candidate)
        kernel = _kernel(halves, elements, vectors, narrow, wide)
        assert kernel is not None
        yield list(vectors), kernel, (len(vectors), narrow) if wide == 0 else (narrow, len(vectors))


def _kernel(
    halves: tuple[Half, Half], elements: Sequence[int], vectors: Sequence[int], narrow: int, wide: int
) -> list[int] | None:
    """A complement of the vector bits that holds all threads of the wider half, and of the other half's all but
    what the bits beyond its own `narrow` may add; None when a lane would find its vector in another order."""
    span = Span(vectors)
    count, complement, inserted = len(vectors), [], list(vectors)
    for half, own in ((halves[wide], count), (halves[1 - wide], narrow)):
        for thread in half.threads:
            parts = span.solve(thread)
            if parts is None:
                span.insert(thread)
                inserted.append(thread)
                complement.append(thread)
            elif parts & (1 << own) - 1:
                return None
    complement += extension(inserted, elements)
    return complement


def _phase(half: Half, bits: int, element_bytes: int) -> tuple[int, ...]:
    """Vectors of the lanes that one phase of an access serves."""
    width = max(4, element_bytes << bits)
    lanes = min(half.lanes, (ROW_BYTES // width).bit_length() - 1)
    return half.threads[:lanes]


def _complete(
    halves: tuple[Half, Half], vectors: list[int], kernel: list[int], bits: tuple[int, int], element_bytes: int
) -> _ExchangeMemory:
    """Word, bank and row bits for given vector bits, all inside the complement `kernel`."""
    word_bits = max(0, (4 // element_bytes).bit_length() - 1)
    row_bits = max(0, len(vectors) + len(kernel) - (ROW_BYTES // element_bytes).bit_length() + 1)
    words = vectors[:word_bits]
    busy = []
    for half, own in zip(halves, bits, strict=True):
        together = [*words, *vectors[:own], *_phase(half, own, element_bytes)]
        busy.append(intersection(together, kernel))
    fill = extension((), [*intersection(busy[0], busy[1]), *busy[0], *busy[1], *kernel])[: word_bits - len(words)]
    rest = extension(fill, kernel)
    basis = Span([*fill, *rest])
    low = (1 << len(fill)) - 1
    # Modulo the word bits, written with representatives in the span of `rest`.
    reduced = [
        [combine([*fill, *rest], (basis.solve(vector) or 0) & ~low) for vector in vectors_of_half]
        for vectors_of_half in busy
    ]
    rows = common_complement(rest, extension((), reduced[0]), extension((), reduced[1]), row_bits)
    banks = extension(rows, [*reduced[0], *reduced[1], *rest])
    return _ExchangeMemory((*vectors, *fill, *banks, *rows), (*words, *fill), tuple(rows), bits)


def _wavefronts(half: Half, memory: _ExchangeMemory, bits: int, element_bytes: int) -> int:
    """Of one warp for all its accesses: every phase takes as many as some bank has rows to give."""
    phase = _phase(half, bits, element_bytes)
    moved = [*memory.basis[:bits], *phase]
    conflicts = len(intersection(moved, [*memory.words, *memory.rows])) - len(intersection(moved, memory.words))
    phases = half.lanes - len(phase)
    return 1 << (len(half.registers) - bits + phases + conflicts)


def _least(halves: tuple[Half, Half], bits: tuple[int, int], element_bytes: int) -> tuple[int, int]:
    """`_cost` of widths if nothing conflicts."""
    accesses = [len(half.registers) - own for half, own in zip(halves, bits, strict=True)]
    phases = [half.lanes - len(_phase(half, own, element_bytes)) for half, own in zip(halves, bits, strict=True)]
    return sum(1 << a + p for a, p in zip(accesses, phases, strict=True)), sum(1 << a for a in accesses)


def _cost(halves: tuple[Half, Half], memory: _ExchangeMemory, element_bytes: int) -> tuple[int, int]:
    """Wavefronts, then instructions."""
    pairs = list(zip(halves, memory.bits, strict=True))
    instructions = sum(1 << (len(half.registers) - bits) for half, bits in pairs)
    return sum(_wavefronts(half, memory, bits, element_bytes) for half, bits in pairs), instructions


def _side(half: Half, memory: _ExchangeMemory, bits: int, element_bytes: int) -> Side:
    """The accesses of one half; registers are numbered by its independent vectors."""
    places = Span(memory.basis)

    def offset(vector: int) -> int:
        found = places.solve(vector)
        assert found is not None  # everything that is moved lies in the memory
        return found

    groups: dict[int, dict[int, int]] = {}
    for register in range(1 << len(half.registers)):
        start, member = divmod(offset(combine(half.registers, register)), 1 << bits)
        groups.setdefault(start << bits, {})[member] = register
    size = 1 << (len(memory.basis) - memory.steps)
    accesses = tuple(
        ExchangeAccess(start % size, tuple(group[member] for member in range(1 << bits)), start // size)
        for start, group in sorted(groups.items())
    )
    threads = tuple(offset(vector) for vector in half.threads)
    return Side(accesses, threads, _wavefronts(half, memory, bits, element_bytes))


def spans(vectors: Sequence[int], others: Sequence[int]) -> bool:
    """Whether all of `others` lie in the span of `vectors`."""
    return rank([*vectors, *others]) == rank(vectors)
