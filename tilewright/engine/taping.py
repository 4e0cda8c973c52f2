"""Records loops and nodes in a row as tapes: with known sizes they run natively, by the lifetimes in `engine.schedule`.

A `TapePlace` is a value of a tape.  Words that own a buffer hold pairwise different ones: a value is handed on by
swapping two of them, so that a loop copies its carried values once, at its start.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.runtime.glue import glue
from tilewright.runtime.memory import ADDRESS_OFFSET, AlignedBuffer, array_address
from tilewright.runtime.parallel import on_this_thread, run_parallel
from tilewright.runtime.session import Frame, Session, is_shared, worker_count
from tilewright.runtime.tape import DONE, Label, Tape, Word, Words

_OUT_OF_RANGE = 1  # an outcome: a round was not run, because an index is wrong
_ENDLESS = 1 << 62
_ROW_BYTES, _MOST_ROWS = 32 << 20, 4096  # of what one run of a tape stacks

# Adds nodes to a tape: the places of their results, and the ids of those that own a buffer of a node's.
Write = Callable[["TapeWriter", "list[TapePlace]"], "tuple[list[TapePlace], set[int]]"]
Branch = Callable[[], "tuple[list[TapePlace], set[int]]"]


class NotFixedError(Exception):
    """Something that a tape does not hold: sizes that change, what the host computes."""


@dataclass(frozen=True, eq=False)
class TapePlace:
    """A value of a tape: contiguous, at the address that the word holds."""

    word: Word
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def same(self, other: TapePlace) -> bool:
        """Whether both are of one shape and type."""
        return self.shape == other.shape and self.dtype == other.dtype


class TapeWriter:
    """Writes a tape."""

    def __init__(self) -> None:
        self.tape = Tape()
        self.scratch_bytes, self.shared = 0, False
        self._contexts: list[Words] = []
        self._arena_bytes, self._buffer_bytes = 0, 0
        self._swapped: set[int] = set()

    @property
    def bytes(self) -> int:
        """Of the memory that the tape has."""
        return self._arena_bytes + self._buffer_bytes

    def given(self, array: np.ndarray) -> TapePlace:
        """A value whose address is set before each run."""
        return TapePlace(self.tape.word(), array.shape, array.dtype)

    def stays(self, place: TapePlace) -> bool:
        """Whether a value keeps its memory during a run: no other one got it in exchange."""
        return id(place.word) not in self._swapped

    def constant(self, array: np.ndarray) -> TapePlace:
        copied = np.array(array, order="C")
        self.tape.keep(copied)
        return TapePlace(self.tape.word(copied.ctypes.data), copied.shape, copied.dtype)

    def buffer(self, shape: tuple[int, ...], dtype: np.dtype) -> TapePlace:
        """A value that owns memory."""
        if dtype.hasobject:
            raise NotFixedError("values of the host")
        memory = AlignedBuffer(math.prod(shape) * dtype.itemsize)
        self._buffer_bytes += memory.capacity
        self.tape.keep(memory)
        return TapePlace(self.tape.word(memory.address), shape, dtype)

    def call(self, session: Session, frame: Frame, places: Sequence[TapePlace]) -> list[TapePlace]:
        """The outputs of a compiled part."""
        for number, low, high, allowed in frame.binding.index_ranges:
            found = places[number]
            if found.dtype not in (np.int32, np.int64):
                raise NotFixedError("indices of another type")
            count, column = math.prod(found.shape), allowed.column
            lies = (0, 1) if column is None else (column % found.shape[-1], found.shape[-1])
            self.tape.within(found.word, count, found.dtype.itemsize, low, high, _OUT_OF_RANGE, *lies)
        before = session.context(frame)
        types = zip(frame.binding.output_shapes, frame.output_types, strict=True)
        outputs = [self.buffer(shape, dtype) for shape, dtype in types]
        context = Words([*before, *[0] * (len(frame.input_shapes) + len(outputs))])
        self.tape.keep(context)
        first = context.address + 8 * len(before)
        for number, place in enumerate(places):
            self.tape.move(first + 8 * number, place.word.address)
        first += 8 * len(frame.input_shapes)
        for number, place in enumerate(outputs):
            self.tape.move(first + 8 * number, place.word.address)
        self.tape.call(session.entry, context.address)
        self._contexts.append(context)
        self._arena_bytes = max(self._arena_bytes, frame.binding.arena_bytes)
        self.scratch_bytes = max(self.scratch_bytes, session.plan.scratch_bytes)
        self.shared |= is_shared(frame.binding)
        return outputs

    def hand_on(self, pairs: Sequence[tuple[TapePlace, TapePlace]], own: set[int]) -> None:
        """Give each first place, which owns a buffer, the value of the second, which may be one of the first ones.

        `own` are the ids of places that own a buffer and that nothing reads afterwards.
        """
        swapped: list[tuple[TapePlace, TapePlace]] = []
        moved: set[int] = set()
        for into, source in pairs:
            if not into.same(source):
                raise NotFixedError("sizes change")
            if source is into:
                continue
            if id(source) not in own or id(source) in moved:
                copied = self.buffer(source.shape, source.dtype)
                self.tape.copy(copied.word, source.word, source.bytes)
                source = copied
            moved.add(id(source))
            swapped.append((into, source))
        between = self.tape.word()
        for into, source in swapped:
            self._swapped |= {id(into.word), id(source.word)}
            self.tape.move(between.address, into.word.address)
            self.tape.move(into.word.address, source.word.address)
            self.tape.move(source.word.address, between.address)

    def start(self, values: Sequence[TapePlace]) -> list[TapePlace]:
        """Places of a loop's own that begin with these values."""
        found = [self.buffer(place.shape, place.dtype) for place in values]
        for into, place in zip(found, values, strict=True):
            self.tape.copy(into.word, place.word, place.bytes)
        return found

    def rounds(
        self, body: Write, round_: TapePlace, limit: Word, carried: Sequence[TapePlace], captured: Sequence[TapePlace],
        rows: Callable[[Sequence[TapePlace]], None], going: TapePlace | None = None,
    ) -> Word:  # fmt: skip
        """Rounds while the number of the round is below the limit: the word of the flag that the last one left.

        `carried` are changed; `rows` is given what a round leaves besides; `going` is asked before the first.
        """
        tape, head, end = self.tape, Label(), Label()
        true = self.constant(np.array(True))
        flag = tape.word()
        tape.move(flag.address, (going or true).word.address)
        tape.here(head)
        tape.unless(flag, end)
        tape.when_reached(round_.word.number, limit, end)
        calls = len(self._contexts)
        (following, *results), own = body(self, [round_, true, *carried, *captured])
        if len(self._contexts) == calls:
            raise NotFixedError("rounds without a compiled part, which nothing could interrupt")
        if following.dtype != np.bool_:
            raise NotFixedError("a condition of another type")
        rows(results[len(carried) :])
        tape.move(flag.address, following.word.address)
        self.hand_on(list(zip(carried, results[: len(carried)], strict=True)), own)
        tape.add(round_.word.number, 1)
        tape.jump(head)
        tape.here(end)
        return flag

    def loop(
        self,
        body: Write,
        count: TapePlace | None,
        carried: Sequence[TapePlace],
        captured: Sequence[TapePlace],
        condition: TapePlace | None,
    ) -> None:
        """A loop in another one, which changes `carried` and leaves nothing else."""
        if condition is not None and condition.dtype != np.bool_:
            raise NotFixedError("a condition of another type")
        round_, zero = self.buffer((), np.dtype(np.int64)), self.constant(np.array(0, np.int64))
        self.tape.copy(round_.word, zero.word, zero.bytes)
        limit = self.constant(np.array(_ENDLESS)) if count is None else count
        self.rounds(body, round_, limit.word, carried, captured, lambda rows: None, condition)

    def choose(self, condition: TapePlace, then: Branch, otherwise: Branch) -> list[TapePlace]:
        """The results of one of two branches."""
        other, end = Label(), Label()
        self.tape.unless(condition.word, other)
        results, own = then()
        found = [self.buffer(place.shape, place.dtype) for place in results]
        self.hand_on(list(zip(found, results, strict=True)), own)
        self.tape.jump(end)
        self.tape.here(other)
        results, own = otherwise()
        self.hand_on(list(zip(found, results, strict=True)), own)
        self.tape.here(end)
        return found

    def finish(self) -> None:
        """End the tape: nothing can be added any more."""
        arena = AlignedBuffer(self._arena_bytes)
        self.tape.keep(arena)
        for context in self._contexts:
            context.data[0] = arena.address
        self.tape.finish()


@dataclass(frozen=True)
class Rounds:
    """What some rounds of a loop came to: carried values, rows of each stacked result, the number of the next round,
    whether there shall be one, and whether that must be run otherwise."""

    values: list[np.ndarray]
    rows: list[np.ndarray]
    next: int
    going: bool
    refused: bool


class LoopTape:
    """A loop for known sizes. One thread at a time may run it."""

    def __init__(self, body: Write, carried: Sequence[np.ndarray], captured: Sequence[np.ndarray]) -> None:
        """Raises `NotFixedError` for a loop that is none; the arrays have the shapes and types of those to come."""
        self._writer = writer = TapeWriter()
        self._values = [writer.given(array) for array in carried]
        self._captured = [writer.given(array) for array in captured]
        self._round = writer.buffer((), np.dtype(np.int64))
        self._limit = writer.buffer((), np.dtype(np.int64))
        self._rows: list[TapePlace] = []
        self._carried = writer.start(self._values)
        self._flag = writer.rounds(
            body, self._round, self._limit.word, self._carried, self._captured, self._store_rows
        )  # fmt: skip
        writer.finish()

    def _store_rows(self, results: Sequence[TapePlace]) -> None:
        tape = self._writer.tape
        for place in results:
            if place.dtype.hasobject:
                raise NotFixedError("values of the host")
            row = TapePlace(tape.word(), place.shape, place.dtype)
            tape.copy(row.word, place.word, place.bytes)
            tape.add(row.word.address, place.bytes)
            self._rows.append(row)

    def run(
        self,
        carried: Sequence[np.ndarray],
        captured: Sequence[np.ndarray],
        first: int,
        trips: int | None,
        threads: int | None,
    ) -> Rounds:
        """Rounds from number `first` until the loop ends or some thousand rows are stacked."""
        last = _ENDLESS if trips is None else trips
        if self._rows:
            widest = max(1, *(row.bytes for row in self._rows))
            last = min(last, first + max(1, min(_MOST_ROWS, _ROW_BYTES // widest)))
        rows = [np.empty((last - first, *row.shape), row.dtype) for row in self._rows]
        values = [np.ascontiguousarray(array) for array in (*carried, *captured)]
        for place, array in zip((*self._values, *self._captured, *self._rows), (*values, *rows), strict=True):
            place.word.number = array.ctypes.data
        _integer(self._round).value, _integer(self._limit).value = first, last
        writer = self._writer
        workers = worker_count(threads) if writer.shared else 1
        run_parallel(glue().run_tape, writer.tape.state, writer.scratch_bytes, workers)
        end = _integer(self._round).value
        return Rounds(
            [_array(place) for place in self._carried],
            [row[: end - first] for row in rows],
            end,
            bool(ctypes.c_uint8.from_address(self._flag.number).value),
            writer.tape.outcome != DONE,
        )


class CallTape:
    """Nodes of known sizes as one native call. One thread at a time may run it."""

    def __init__(self, nodes: Write, arrays: Sequence[np.ndarray]) -> None:
        """Raises `NotFixedError` for nodes that no tape holds; the arrays have the shapes and types of later ones."""
        self._writer = writer = TapeWriter()
        tape, body, places, end = writer.tape, Label(), Label(), Label()
        tape.jump(places)  # written last: only the nodes tell which results can be written to the caller's arrays
        tape.here(body)
        inputs = [writer.given(array) for array in arrays]
        results, own = nodes(writer, list(inputs))
        # Nodes write their results to the caller's arrays; results without a buffer that stays their own are copied.
        targets: list[TapePlace] = []
        for place in results:
            if id(place) in own and writer.stays(place) and all(place is not other for other in targets):
                targets.append(place)
            else:
                targets.append(TapePlace(tape.word(), place.shape, place.dtype))
                tape.copy(targets[-1].word, place.word, place.bytes)
        tape.jump(end)
        tape.here(places)
        self._given = Words([0] * (len(inputs) + len(targets)))
        for number, place in enumerate((*inputs, *targets)):
            self._find(place, self._given.address + 8 * number)
        tape.jump(body)
        tape.here(end)
        writer.finish()
        self.bytes = writer.bytes
        self._set = struct.Struct(f"={len(self._given.data)}q").pack_into
        self._inputs = [(place.shape, place.dtype) for place in inputs]
        self._alone = (
            None if writer.shared else on_this_thread(glue().run_tape, writer.tape.state, writer.scratch_bytes)
        )
        self._shapes, self._types = [place.shape for place in results], [place.dtype for place in results]

    def _find(self, place: TapePlace, word: int) -> None:
        """Set a value's address from an array, or from its address where arrays do not tell it, in a word."""
        if ADDRESS_OFFSET is None:
            self._writer.tape.move(place.word.address, word)
        else:
            self._writer.tape.field(place.word.address, word, ADDRESS_OFFSET)

    def run(self, arrays: Sequence[np.ndarray], threads: int | None) -> list[np.ndarray] | None:
        """The results; None for arrays of other shapes or types, and where an index is wrong."""
        plain = []
        for array, (shape, dtype) in zip(arrays, self._inputs, strict=True):
            if array.shape != shape or array.dtype != dtype:
                return None
            plain.append(array if array.flags.num & _PLAIN == _PLAIN else np.array(array, order="C"))
        writer, results = self._writer, list(map(np.empty, self._shapes, self._types))
        self._set(self._given.data, 0, *map(_OF_ARRAY, plain), *map(_OF_ARRAY, results))
        if self._alone is not None:
            self._alone()
        else:
            run_parallel(glue().run_tape, writer.tape.state, writer.scratch_bytes, worker_count(threads))
        return results if writer.tape.outcome == DONE else None


_OF_ARRAY: Callable[[np.ndarray], int] = array_address if ADDRESS_OFFSET is None else id
_PLAIN = 0x0101  # flags of arrays: contiguous in the order of C, and aligned


def is_plain(array: np.ndarray) -> bool:
    """Whether an array lies in memory as native code reads it."""
    return array.flags.num & _PLAIN == _PLAIN


def _integer(place: TapePlace) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(place.word.number)


def _array(place: TapePlace) -> np.ndarray:
    """A copy of a value."""
    found = np.empty(place.shape, place.dtype)
    ctypes.memmove(found.ctypes.data, place.word.number, place.bytes)
    return found
