"""Plans called again and again, or one of two, without Python: instructions that a native function walks, a tape.

An instruction is four words: its number and up to three operands, addresses but where stated otherwise.  A value is a
word that holds the address of its elements, so that a loop hands on what it computed by moving words.

    tape = Tape()
    x, y = tape.word(), tape.word()
    ...                          # tape.call(entry, context), tape.move(y, x), tape.jump(label), ...
    tape.finish()
    run_parallel(glue().run_tape, tape.state, scratch_bytes, workers)
    tape.outcome
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

CALL, MOVE, COPY, ADD, UNLESS, JUMP, REACHED, RANGE, FIELD, STOP = range(10)
DONE: Final = 0  # outcomes; others are given to `stop` and `within`
_WORDS = 4  # of an instruction

# `STOPPED` stands for the number of the team's word that ends a run early.
TAPE_TEXT = """
; Walks a tape. The state: the address of the first instruction, then room for the outcome.
define void @run_tape(ptr %team, ptr %state) nounwind {
entry:
  %start = load ptr, ptr %state, align 8
  %outcome.p = getelementptr i64, ptr %state, i64 1
  %stopped.p = getelementptr i64, ptr %team, i64 STOPPED
  br label %step
step:
  %at = phi ptr [ %start, %entry ], [ %following, %next ], [ %target, %jump ]
  %op = load i64, ptr %at, align 8
  %a.p = getelementptr i64, ptr %at, i64 1
  %b.p = getelementptr i64, ptr %at, i64 2
  %c.p = getelementptr i64, ptr %at, i64 3
  %a = load ptr, ptr %a.p, align 8
  %b = load ptr, ptr %b.p, align 8
  %b.number = load i64, ptr %b.p, align 8
  %c = load ptr, ptr %c.p, align 8
  %c.number = load i64, ptr %c.p, align 8
  %following = getelementptr i64, ptr %at, i64 4
  switch i64 %op, label %stop [
    i64 0, label %call
    i64 1, label %move
    i64 2, label %copy
    i64 3, label %add
    i64 4, label %unless
    i64 5, label %jump.always
    i64 6, label %reached
    i64 7, label %range
    i64 8, label %field
  ]
call:
  call void %a(ptr %team, ptr %b)
  %now = call i64 @ticks()
  call void @ask(ptr %team, i64 %now)
  %stopped = load atomic i64, ptr %stopped.p monotonic, align 8
  %goes = icmp eq i64 %stopped, 0
  br i1 %goes, label %next, label %out
move:
  %moved = load i64, ptr %b, align 8
  store i64 %moved, ptr %a, align 8
  br label %next
field:
  %object = load ptr, ptr %b, align 8
  %field.p = getelementptr i8, ptr %object, i64 %c.number
  %loaded = load i64, ptr %field.p, align 8
  store i64 %loaded, ptr %a, align 8
  br label %next
copy:
  %into = load ptr, ptr %a, align 8
  %from = load ptr, ptr %b, align 8
  call void @llvm.memcpy.p0.p0.i64(ptr %into, ptr %from, i64 %c.number, i1 false)
  br label %next
add:
  %before = load i64, ptr %a, align 8
  %sum = add i64 %before, %b.number
  store i64 %sum, ptr %a, align 8
  br label %next
unless:
  %flag.p = load ptr, ptr %a, align 8
  %flag = load i8, ptr %flag.p, align 1
  %true = icmp ne i8 %flag, 0
  br i1 %true, label %next, label %jump
jump.always:
  br label %jump
reached:
  %number = load i64, ptr %a, align 8
  %limit.p = load ptr, ptr %b, align 8
  %limit = load i64, ptr %limit.p, align 8
  %less = icmp slt i64 %number, %limit
  br i1 %less, label %next, label %jump
jump:
  %target = phi ptr [ %b, %unless ], [ %a, %jump.always ], [ %c, %reached ]
  br label %step
range:
  %numbers = load ptr, ptr %a, align 8
  %bytes.p = getelementptr i64, ptr %b, i64 1
  %low.p = getelementptr i64, ptr %b, i64 2
  %high.p = getelementptr i64, ptr %b, i64 3
  %first.p = getelementptr i64, ptr %b, i64 4
  %apart.p = getelementptr i64, ptr %b, i64 5
  %count = load i64, ptr %b, align 8
  %bytes = load i64, ptr %bytes.p, align 8
  %low = load i64, ptr %low.p, align 8
  %high = load i64, ptr %high.p, align 8
  %first = load i64, ptr %first.p, align 8
  %apart = load i64, ptr %apart.p, align 8
  %long = icmp eq i64 %bytes, 8
  br label %range.head
range.head:
  %position = phi i64 [ %first, %range ], [ %position.next, %range.next ]
  %more = icmp slt i64 %position, %count
  br i1 %more, label %range.load, label %next
range.load:
  br i1 %long, label %range.long, label %range.short
range.long:
  %long.p = getelementptr i64, ptr %numbers, i64 %position
  %long.value = load i64, ptr %long.p, align 8
  br label %range.test
range.short:
  %short.p = getelementptr i32, ptr %numbers, i64 %position
  %short.value = load i32, ptr %short.p, align 4
  %extended = sext i32 %short.value to i64
  br label %range.test
range.test:
  %value = phi i64 [ %long.value, %range.long ], [ %extended, %range.short ]
  %under = icmp slt i64 %value, %low
  %over = icmp sgt i64 %value, %high
  %outside = or i1 %under, %over
  br i1 %outside, label %range.fail, label %range.next
range.next:
  %position.next = add i64 %position, %apart
  br label %range.head
range.fail:
  store i64 %c.number, ptr %outcome.p, align 8
  br label %out
next:
  br label %step
stop:
  %outcome = ptrtoint ptr %a to i64
  store i64 %outcome, ptr %outcome.p, align 8
  br label %out
out:
  ret void
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


class Words:
    """Some words at an address."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.data = (ctypes.c_int64 * len(numbers))(*numbers)
        self.address = ctypes.addressof(self.data)


class Word:
    """One word: its address, and what it holds between runs."""

    __slots__ = ("_words", "address")

    def __init__(self, number: int = 0, among: Words | None = None, place: int = 0) -> None:
        """A new word that holds a number, or the one at a place `among` others, which stays as it is."""
        if among is None:
            self._words = ctypes.c_int64(number)
        else:
            self._words = ctypes.c_int64.from_buffer(among.data, 8 * place)
        self.address = ctypes.addressof(self._words)

    @property
    def number(self) -> int:
        return self._words.value

    @number.setter
    def number(self, number: int) -> None:
        self._words.value = number


class Label:
    """A place of a tape, which may be jumped to before it is known."""

    def __init__(self) -> None:
        self.place: int | None = None


class Tape:
    """Instructions, and the memory that they work on. One thread at a time may run it."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, tuple[int | Label, ...]]] = []
        self._owners: list[object] = []
        self._code: Words | None = None
        self._state = Words([DONE, DONE])

    def keep(self, owner: object) -> None:
        """Keep what owns memory that instructions use."""
        self._owners.append(owner)

    def word(self, number: int = 0) -> Word:
        """A new word, for the address of a value or for a number."""
        word = Word(number)
        self.keep(word)
        return word

    def call(self, entry: int, context: int) -> None:
        """Run a plan's native function. A signal's exception ends the tape after it."""
        self._add(CALL, entry, context)

    def move(self, into: int, source: int) -> None:
        """Copy the word at an address to another."""
        self._add(MOVE, into, source)

    def field(self, into: int, source: int, offset: int) -> None:
        """Copy to the word at an address the one so many bytes after the address that the word at `source` holds."""
        self._add(FIELD, into, source, offset)

    def copy(self, into: Word, source: Word, count: int) -> None:
        """Copy `count` bytes between the values of two words, which are the same or lie apart."""
        self._add(COPY, into.address, source.address, count)

    def add(self, word: int, amount: int) -> None:
        """Add a number to the word at an address."""
        self._add(ADD, word, amount)

    def unless(self, flag: Word, label: Label) -> None:
        """Jump when the byte that is the value of a word is 0."""
        self._add(UNLESS, flag.address, label)

    def jump(self, label: Label) -> None:
        self._add(JUMP, label)

    def when_reached(self, number: int, limit: Word, label: Label) -> None:
        """Jump when the i64 at an address is not below the one that is the value of a word."""
        self._add(REACHED, number, limit.address, label)

    def within(
        self, value: Word, count: int, width: int, low: int, high: int, outcome: int, first: int = 0, apart: int = 1
    ) -> None:
        """End with an outcome unless integers are from `low` to `high`: of `count` ones of `width` bytes (4 or 8) each
        `apart`-th one from the `first`."""
        words = Words([count, width, low, high, first, apart])
        self.keep(words)
        self._add(RANGE, value.address, words.address, outcome)

    def stop(self, outcome: int) -> None:
        self._add(STOP, outcome)

    def here(self, label: Label) -> None:
        """The label stands for the next instruction."""
        label.place = len(self._rows)

    def finish(self) -> None:
        """End the tape; nothing can be added any more."""
        self.stop(DONE)
        code = Words([0] * (_WORDS * len(self._rows)))
        for row, (number, operands) in enumerate(self._rows):
            words = [code.address + 8 * _WORDS * (place.place or 0) if isinstance(place, Label) else place
                     for place in operands]  # fmt: skip
            code.data[_WORDS * row : _WORDS * row + 1 + len(words)] = [number, *words]
        self._code = code
        self._state.data[0] = code.address

    @property
    def state(self) -> int:
        """The address that the native function takes."""
        return self._state.address

    @property
    def outcome(self) -> int:
        """Of the last run."""
        return self._state.data[1]

    def _add(self, number: int, *operands: int | Label) -> None:
        self._rows.append((number, operands))
