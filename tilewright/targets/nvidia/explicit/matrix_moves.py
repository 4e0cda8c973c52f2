"""Moves blocks between registers and tiles in shared memory: ldmatrix and stmatrix, or vectors of up to 16 bytes.

The coordinates of a thread's element are the XOR of a part that depends on the thread and of one that depends on the
register alone.  Layouts have every bit of a coordinate in one of the two, so the parts may be added, except for the
16-byte chunk within a panel's row, which the swizzle XORs with the row:

    address = start + [panel * panel_bytes + row * pitch] + chunk,     chunk = (column * bytes) ^ swizzle(row)

each term having a thread's and a register's part.  Few different chunks exist (8 at most), so the addresses of a whole
tile are a handful of registers and immediate offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.layout.distributed import live_registers
from tilewright.layout.gf2 import combine
from tilewright.layout.linear import LinearLayout
from tilewright.targets.gpu.lowering import SHARED_POINTER
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue
from tilewright.targets.nvidia.explicit import cluster
from tilewright.targets.nvidia.explicit.ptx import address, call, inline, offset, pointer
from tilewright.targets.nvidia.explicit.views import SharedView

_CHUNK = 16  # bytes
_LANE_BITS = 5


@dataclass(frozen=True)
class Threads:
    """What the address of a thread is computed from: i32 numbers of its lane and of its warp in the group."""

    lane: LLVMValue
    warp: LLVMValue


@dataclass(frozen=True)
class Move:
    """One instruction of a thread: registers of the layout (in the order of memory), and where they lie."""

    registers: tuple[int, ...]
    place: int  # packed element of the register's part


@dataclass(frozen=True)
class AccessPlan:
    """How a block moves.  `threads` are packed elements for each bit of the lane, then of the warp; the block's layout
    has so many `columns`; `extents` are the rows (of all leading axes) and columns that exist, perhaps fewer.

    `matrices` is 0 for vectors; else each move is of that many 8 x 8 matrices, of two registers each.
    """

    moves: tuple[Move, ...]
    threads: tuple[int, ...]
    columns: int
    extents: tuple[int, int]
    matrices: int = 0
    transposed: bool = False


def plan(layout: LinearLayout, shape: Sequence[int], view: SharedView, stored: bool) -> AccessPlan:
    """The cheapest moves of a block of this layout (powers of two) and `shape` (any) to or from a view.

    `stored` leaves out registers that hold copies.
    """
    oriented = layout.permute((1, 0)) if view.transposed else layout
    order = tuple(reversed(shape)) if view.transposed else tuple(shape)
    live = frozenset(live_registers(oriented, order))
    extents = (prod(order[:-1]), order[-1])
    return _matrix_plan(oriented, extents, view, live) or _vector_plan(oriented, extents, view, live, stored)


def _matrix_plan(
    layout: LinearLayout, extents: tuple[int, int], view: SharedView, live: frozenset[int]
) -> AccessPlan | None:
    """Matrices of 8 rows of 16 bytes.  As they are: two registers and four lanes go along a row, eight lanes down the
    rows; transposed: eight lanes along a row, and two registers and four lanes down the rows."""
    registers, lanes = layout.bases("register"), layout.bases("lane")
    if len(layout.shape) != 2 or view.element.bits != 16 or view.peer is not None:
        return None
    if len(lanes) != _LANE_BITS or not registers:
        return None
    if view.pitch % _CHUNK or any(extent % 8 for extent in extents):
        return None
    columns = layout.shape[-1]
    pairs = (registers[0], *lanes[:2])
    if pairs == (1, 2, 4):
        transposed, rows = False, lanes[2:]
    elif lanes[2:] == (1, 2, 4):
        transposed, rows = True, pairs
    else:
        return None
    others = (*registers[1:], *layout.bases("warp"))
    if any(vector % columns for vector in rows) or any(vector % columns % 8 for vector in others):
        return None
    if any(vector // columns % 8 for vector in others) or sorted(rows) != [columns, 2 * columns, 4 * columns]:
        return None
    bits = min(2, len(registers) - 1)
    numbering = registers[1 : 1 + bits]
    moves = []
    for first in range(0, 1 << len(registers), 2 << bits):
        group = tuple(number for number in range(first, first + (2 << bits), 2) if number in live)
        if group and group != tuple(range(first, first + 2 * len(group), 2)):
            return None  # the matrices that exist are not the first ones
        moves += [Move(part, combine(registers, part[0])) for part in _powers(group)]
    threads = (*rows, *numbering, *(0,) * (2 - bits), *layout.bases("warp"))
    return AccessPlan(tuple(moves), threads, columns, extents, 1 << bits, transposed)


def _powers(group: tuple[int, ...]) -> list[tuple[int, ...]]:
    """A group of up to four matrices in instructions of 4, 2 and 1."""
    parts = []
    while group:
        size = 4 if len(group) >= 4 else 2 if len(group) >= 2 else 1
        parts.append(group[:size])
        group = group[size:]
    return parts


def _vector_plan(
    layout: LinearLayout, extents: tuple[int, int], view: SharedView, live: frozenset[int], stored: bool
) -> AccessPlan:
    """Vectors along the columns, as wide as neighbours lie in neighbouring registers and a chunk has room."""
    registers = layout.bases("register")
    bits = 0
    widest = max(1, _CHUNK // view.element.itemsize)
    while (2 << bits) <= widest and len(registers) > bits and registers[bits] == 1 << bits:
        if view.columns % (2 << bits) or view.pitch % ((2 << bits) * view.element.itemsize):
            break
        bits += 1
    seen: set[int] = set()
    moves = []
    for first in range(0, 1 << len(registers), 1 << bits):
        place = combine(registers, first)
        group = tuple(range(first, first + (1 << bits)))
        if group[0] not in live or (stored and place in seen):
            continue
        seen.add(place)
        moves.append(Move(group, place))
    return AccessPlan(tuple(moves), (*layout.bases("lane"), *layout.bases("warp")), layout.shape[-1], extents)


class Addresses:
    """The addresses of a plan's moves, each distinct thread-dependent part computed once."""

    def __init__(self, builder: LLVMBuilder, view: SharedView, chosen: AccessPlan, threads: Threads) -> None:
        self.builder, self.view, self.columns = builder, view, chosen.columns
        self.bytes = view.element.itemsize
        row, column = self._thread_coordinates(chosen.threads, threads)
        self.coordinates, self.extents = (row, column), chosen.extents
        self.masks = self._masks(chosen.threads)
        base = self._scale(row, view.pitch)
        if view.swizzle and self.masks[1] // view.panel_columns:  # without swizzle there is one panel, of any width
            panel = self._shift_right(column, view.panel_columns)
            base = builder.add(base, self._scale(panel, view.panel_bytes))
            column = builder.binary("and", column, builder.integer(view.panel_columns - 1, "i32"))
        self.first = view.start
        self.base = offset(builder, base, view.start)
        self.chunk = self._scale(column, self.bytes)
        if view.swizzle and self.masks[0]:
            self.chunk = builder.binary("xor", self.chunk, self._swizzle(row))
        self.chunk_mask = self._chunk_of(*self.masks, union=True)
        self.known: dict[int, LLVMValue] = {}

    def place(self, element: int) -> tuple[LLVMValue, int]:
        """The thread's base and the constant to add, for the register part `element`."""
        row, column = divmod(element, self.columns)
        panel = column // self.view.panel_columns if self.view.swizzle else 0
        constant = row * self.view.pitch + panel * self.view.panel_bytes
        chunk = self._chunk_of(row, column)
        mixed, added = chunk & self.chunk_mask, chunk & ~self.chunk_mask
        if mixed not in self.known:
            builder = self.builder
            within = builder.binary("xor", self.chunk, builder.integer(mixed, "i32")) if mixed else self.chunk
            self.known[mixed] = builder.add(self.base, within)
        return self.known[mixed], constant + added

    def pointer(self, element: int) -> LLVMValue:
        base, constant = self.place(element)
        start = pointer(self.builder, base)
        if not constant:
            return start
        return self.builder.emit(f"getelementptr inbounds i8, {start}, i32 {constant}", SHARED_POINTER)

    def inside(self, element: int) -> LLVMValue | None:
        """Whether the thread's element of the register part `element` exists; None: it does for every thread."""
        valid: LLVMValue | None = None
        parts = zip(divmod(element, self.columns), self.masks, self.coordinates, self.extents, strict=True)
        for part, mask, coordinate, extent in parts:
            if part | mask < extent:
                continue
            place = self.builder.binary("or", coordinate, self.builder.integer(part, "i32")) if part else coordinate
            below = self.builder.compare("ult", place, self.builder.integer(extent, "i32"))
            valid = below if valid is None else self.builder.binary("and", valid, below)
        return valid

    def _chunk_of(self, row: int, column: int, union: bool = False) -> int:
        """Bytes within a panel's row of constant coordinates; `union`: of masks, all bits that may be set."""
        if not self.view.swizzle:
            return column * self.bytes
        within = column % self.view.panel_columns * self.bytes
        turned = row * self.view.swizzle // 128 % (self.view.swizzle // _CHUNK) * _CHUNK
        return within | turned if union else within ^ turned

    def _swizzle(self, row: LLVMValue) -> LLVMValue:
        builder = self.builder
        turned = self._shift_right(row, 128 // self.view.swizzle)
        turned = builder.binary("and", turned, builder.integer(self.view.swizzle // _CHUNK - 1, "i32"))
        return self._scale(turned, _CHUNK)

    def _masks(self, vectors: Sequence[int]) -> tuple[int, int]:
        """All bits of rows and of columns that a thread's part may have."""
        rows = columns = 0
        for vector in vectors:
            row, column = divmod(vector, self.columns)
            rows, columns = rows | row, columns | column
        return rows, columns

    def _thread_coordinates(self, vectors: Sequence[int], threads: Threads) -> tuple[LLVMValue, LLVMValue]:
        sources = [(threads.lane, vectors[:_LANE_BITS]), (threads.warp, vectors[_LANE_BITS:])]
        split = [
            [(source, [divmod(v, self.columns)[part] for v in bits]) for source, bits in sources] for part in (0, 1)
        ]
        return xor_of_bits(self.builder, split[0]), xor_of_bits(self.builder, split[1])

    def _scale(self, value: LLVMValue, size: int) -> LLVMValue:
        if value.constant is not None:
            return self.builder.integer(value.constant * size, "i32")
        return self.builder.multiply(value, size)

    def _shift_right(self, value: LLVMValue, divisor: int) -> LLVMValue:
        if value.constant is not None:
            return self.builder.integer(value.constant // divisor, "i32")
        return self.builder.binary("lshr", value, self.builder.integer(divisor.bit_length() - 1, "i32"))


def xor_of_bits(builder: LLVMBuilder, sources: Sequence[tuple[LLVMValue, Sequence[int]]]) -> LLVMValue:
    """The XOR of `vectors[i]` over the bits i of each source that are set; runs of neighbouring bits move at once."""
    total: LLVMValue | None = None
    for source, vectors in sources:
        for first, count, target in _runs(vectors):
            field = source
            if first:
                field = builder.binary("lshr", field, builder.integer(first, "i32"))
            if first + count < len(vectors) or count < _LANE_BITS:
                field = builder.binary("and", field, builder.integer((1 << count) - 1, "i32"))
            if target:
                field = builder.binary("shl", field, builder.integer(target, "i32"))
            total = field if total is None else builder.binary("xor", total, field)
    return total if total is not None else builder.integer(0, "i32")


def _runs(vectors: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first source bit, number, first target bit) of the moves that make up a linear map."""
    runs: list[tuple[int, int, int]] = []
    for bit, vector in enumerate(vectors):
        for target in range(vector.bit_length()):
            if not vector >> target & 1:
                continue
            extended = next((run for run in runs if (run[0] + run[1], run[2] + run[1]) == (bit, target)), None)
            if extended is not None:
                runs[runs.index(extended)] = (extended[0], extended[1] + 1, extended[2])
            else:
                runs.append((bit, 1, target))
    return runs


Values = dict[int, LLVMValue]  # by number of the layout's register


def store(builder: LLVMBuilder, chosen: AccessPlan, view: SharedView, threads: Threads, values: Values) -> None:
    """Store a block's registers."""
    places = Addresses(builder, view, chosen, threads)
    for move in chosen.moves:
        where = places.pointer(move.place)
        if chosen.matrices:
            words = [pair(builder, values[number], values[number + 1]) for number in move.registers]
            form = "trans." if chosen.transposed else ""
            call(builder, f"stmatrix.sync.aligned.m8n8.x{len(words)}.{form}b16.p3", where, *words)
            continue
        parts = [values[number] for number in move.registers]
        vector = parts[0] if len(parts) == 1 else gathered(builder, parts)
        valid = places.inside(move.place)
        if valid is None:
            builder.store(vector, where, align=len(parts) * view.element.itemsize)
            continue
        inside, after = builder.new_block("inside"), builder.new_block("stored")
        builder.branch_if(valid, inside, after)
        builder.start(inside)
        builder.store(vector, where, align=len(parts) * view.element.itemsize)
        builder.branch(after)
        builder.start(after)


def load(
    builder: LLVMBuilder, chosen: AccessPlan, view: SharedView, threads: Threads, element: str, loading: list[LLVMValue]
) -> Values:
    """Load a block's registers, each of LLVM type `element`; of each instruction a word joins `loading`."""
    places = Addresses(builder, view, chosen, threads)
    values: Values = {}
    for move in chosen.moves:
        if chosen.matrices:
            loading.append(_load_matrices(builder, chosen, places.pointer(move.place), move, element, values))
        elif view.peer is not None:
            loading.append(_load_remote(builder, view, places, move, element, values))
        else:
            size = len(move.registers)
            where = places.pointer(move.place)
            if (valid := places.inside(move.place)) is not None:  # others read the tile's first elements
                where = builder.select(valid, where, pointer(builder, places.first))
            parts = builder.load_each(element, size, where, size * view.element.itemsize)
            values.update(zip(move.registers, parts, strict=True))
            loading.append(_word_of(builder, parts, view.element.itemsize))
    return values


def await_words(builder: LLVMBuilder, words: Sequence[LLVMValue]) -> None:
    """Let loads from shared memory end here: of each some 32-bit word that it loaded.

    ptxas issues an arrival while loads are under way, and sinks what uses their words, e.g. a sum into the branch that
    stores it.  An arrival at a barrier in shared memory then overtakes loads that wait in the queue, and the tile is
    filled again before they have read it: seen on an H200 in products by quantized weights, where the scales of a stage
    were those of the next one in its place.  Warps that store nothing would arrive at the cluster's barrier with loads
    under way, and let the CTA end whose memory is being read ("cluster target block not present").  A relaxed arrival
    does not order loads, and any other would wait for stores to global memory too.  Here a fence, which orders nothing
    that matters, is run or not by the words' value: every warp waits for them.
    """
    together = words[0]
    for word in words[1:]:
        together = builder.binary("xor", together, word)
    text = "{ .reg .pred rare; setp.eq.b32 rare, $0, 0x5f3759df; @rare fence.acq_rel.cta; }"
    inline(builder, text, [], [together])


def _word_of(builder: LLVMBuilder, parts: Sequence[LLVMValue], size: int) -> LLVMValue:
    """An i32 of the bits of what one instruction loaded, elements of `size` bytes."""
    together = max(1, 4 // size)
    if together > 1 and len(parts) >= together:
        return builder.cast("bitcast", gathered(builder, parts[:together]), "i32")
    bits = builder.cast("bitcast", parts[0], f"i{8 * size}")
    return bits if size == 4 else builder.cast("trunc" if size > 4 else "zext", bits, "i32")


def _load_matrices(
    builder: LLVMBuilder, chosen: AccessPlan, where: LLVMValue, move: Move, element: str, values: Values
) -> LLVMValue:
    """8 x 8 matrices, of which the first word is given back."""
    count = len(move.registers)
    kind = "i32" if count == 1 else "{" + ", ".join(["i32"] * count) + "}"
    form = "trans." if chosen.transposed else ""
    loaded = call(builder, f"ldmatrix.sync.aligned.m8n8.x{count}.{form}b16.p3", where, result=kind)
    words = [loaded if count == 1 else builder.emit(f"extractvalue {loaded}, {n}", "i32") for n in range(count)]
    for word, number in zip(words, move.registers, strict=True):
        halves = builder.cast("bitcast", word, f"<2 x {element}>")
        values[number], values[number + 1] = builder.extract(halves, 0), builder.extract(halves, 1)
    return words[0]


def _load_remote(
    builder: LLVMBuilder, view: SharedView, places: Addresses, move: Move, element: str, values: Values
) -> LLVMValue:
    """From another CTA, in 32-bit words, of which the first is given back."""
    assert view.peer is not None
    base, constant = places.place(move.place)
    size = len(move.registers) * view.element.itemsize
    where = address(builder, offset(builder, base, constant))
    words = cluster.load_remote(builder, where, view.peer, max(1, size // 4))
    per_word = max(1, len(move.registers) // len(words))
    for position, word in enumerate(words):
        numbers = move.registers[position * per_word : (position + 1) * per_word]
        if per_word == 1:
            values[numbers[0]] = builder.cast("bitcast", word, element)
        else:
            lanes = builder.cast("bitcast", word, f"<{per_word} x {element}>")
            values.update({number: builder.extract(lanes, lane) for lane, number in enumerate(numbers)})
    return words[0]


def pair(builder: LLVMBuilder, low: LLVMValue, high: LLVMValue) -> LLVMValue:
    """Two 16-bit values as one i32."""
    return builder.cast("bitcast", gathered(builder, [low, high]), "i32")


def gathered(builder: LLVMBuilder, parts: Sequence[LLVMValue]) -> LLVMValue:
    vector = builder.poison(f"<{len(parts)} x {parts[0].type}>")
    for lane, part in enumerate(parts):
        vector = builder.insert(vector, part, lane)
    return vector
