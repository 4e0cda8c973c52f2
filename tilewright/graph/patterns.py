"""Regular expressions in RE2's syntax, matched in time that is linear in the text, whatever the pattern.

    pattern = compiled(r"\\w+@(yahoo|gmail)\\.com")
    pattern.matches("me@gmail.com")          # of the whole text

A pattern becomes a program of few kinds of instructions; a match follows all ways through it at once, letter by letter.
"""

from __future__ import annotations

import functools
import re
import string
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Union

LONGEST_PATTERN = 10_000  # letters of a pattern
MOST_INSTRUCTIONS = 20_000  # instructions of a program
_MOST_STEPS = 4096  # that a pattern remembers
_FIRST = frozenset([0])
_MOST_REPEATS = 1000  # as in RE2
_DEEPEST_GROUP = 100  # groups inside each other

Letters = Callable[[str], bool]  # whether a letter is one of a set
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_CLASSES: dict[str, frozenset[str]] = {"d": frozenset(string.digits), "s": frozenset("\t\n\f\r "), "w": _WORD}
_ASCII = "".join(map(chr, range(128)))
_NAMED: dict[str, str] = {
    "alnum": string.ascii_letters + string.digits, "alpha": string.ascii_letters, "ascii": _ASCII, "blank": "\t ",
    "cntrl": _ASCII[:32] + "\x7f", "digit": string.digits, "graph": _ASCII[33:127], "lower": string.ascii_lowercase,
    "print": _ASCII[32:127],
    "punct": string.punctuation, "space": "\t\n\v\f\r ", "upper": string.ascii_uppercase,
    "word": string.ascii_letters + string.digits + "_", "xdigit": string.hexdigits,
}  # fmt: skip
_CONTROLS = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_CATEGORIES = frozenset("C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps "
                        "S Sc Sk Sm So Z Zl Zp Zs".split())  # fmt: skip


class PatternError(ValueError):
    """A pattern that is not understood, or too large: the message says where and why."""


# Trees ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class One:
    """A letter of a set."""

    letters: Letters


@dataclass(frozen=True)
class CheckPattern:
    """A condition on the letters before and after a place (None: an end of the text)."""

    holds: Callable[[str | None, str | None], bool]


@dataclass(frozen=True)
class ChainPattern:
    """One after the other."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class ChoicePattern:
    """One of them."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class RepeatPattern:
    """A part `low` to `high` times; None: any number."""

    part: Tree
    low: int
    high: int | None


Tree = Union[One, CheckPattern, ChainPattern, ChoicePattern, RepeatPattern]
_NOTHING = ChainPattern(())


def _is_word(letter: str | None) -> bool:
    return letter is not None and letter in _WORD


_CHECKS: dict[str, CheckPattern] = {
    "A": CheckPattern(lambda before, after: before is None),
    "z": CheckPattern(lambda before, after: after is None),
    "b": CheckPattern(lambda before, after: _is_word(before) != _is_word(after)),
    "B": CheckPattern(lambda before, after: _is_word(before) == _is_word(after)),
    "line begin": CheckPattern(lambda before, after: before is None or before == "\n"),
    "line end": CheckPattern(lambda before, after: after is None or after == "\n"),
}


@functools.lru_cache(maxsize=4096)
def _forms(letter: str) -> frozenset[str]:
    """A letter with those that differ from it in case only."""
    found = {letter}
    for _ in range(2):
        found |= {form for each in found for form in (each.lower(), each.upper()) if len(form) == 1}
    return frozenset(found)


def _any_case(letters: Letters) -> Letters:
    return lambda letter: any(map(letters, _forms(letter)))


def _between(low: str, high: str) -> Letters:
    return lambda found: low <= found <= high


# Reading -------------------------------------------------------------------------------------------


class _PatternReader:
    """Reads a pattern; `flags` are those of i (case), m (lines) and s (dot) that are on."""

    def __init__(self, text: str) -> None:
        self.text, self.place, self.flags, self.depth = text, 0, frozenset[str](), 0

    def error(self, reason: str) -> PatternError:
        return PatternError(f"the pattern {self.text[:120]!r}, at letter {self.place}: {reason}")

    def peek(self, count: int = 1) -> str:
        return self.text[self.place : self.place + count]

    def take(self, expected: str = "") -> str:
        found = self.peek(len(expected) or 1)
        if not found or (expected and found != expected):
            raise self.error(f"{expected!r} is missing" if expected else "it ends too early")
        self.place += len(found)
        return found

    def group(self) -> Tree:
        """Choices up to a closing parenthesis or the end; flags that are set inside end with it."""
        flags, self.depth = self.flags, self.depth + 1
        if self.depth > _DEEPEST_GROUP:
            raise self.error(f"groups are more than {_DEEPEST_GROUP} deep")
        choices: list[Tree] = []
        parts: list[Tree] = []
        while self.peek() not in ("", ")"):
            if self.peek() == "|":
                self.take()
                choices.append(ChainPattern(tuple(parts)))
                parts = []
            else:
                parts.append(self.repeated())
        self.flags, self.depth = flags, self.depth - 1
        return ChoicePattern((*choices, ChainPattern(tuple(parts)))) if choices else ChainPattern(tuple(parts))

    def repeated(self) -> Tree:
        """A part with the repetition after it."""
        if self.peek() in ("*", "+", "?"):
            raise self.error("there is nothing to repeat")
        part = self.part()
        bounds = self.bounds()
        if bounds is None:
            return part
        if self.bounds() is not None:
            raise self.error("a repetition is repeated")
        return RepeatPattern(part, *bounds)

    def bounds(self) -> tuple[int, int | None] | None:
        """How often; whether as few times as possible makes no difference to whether a text matches."""
        found: tuple[int, int | None] | None = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self.peek())
        if found is not None:
            self.take()
        else:
            counted = re.compile(r"\{(\d{1,9})(,(\d{0,9}))?\}", re.ASCII).match(self.text, self.place)
            if counted is None:
                return None
            low = int(counted[1])
            high = low if counted[2] is None else int(counted[3]) if counted[3] else None
            if max(low, high or 0) > _MOST_REPEATS or (high is not None and high < low):
                raise self.error(f"the repetition {counted[0]} is not one of at most {_MOST_REPEATS} times")
            self.place, found = counted.end(), (low, high)
        if self.peek() == "?":
            self.take()
        return found

    def part(self) -> Tree:
        letter = self.take()
        if letter == "(":
            return self.parenthesis()
        if letter == "[":
            return One(self.brackets())
        if letter == ".":
            return One(lambda found: True) if "s" in self.flags else One(lambda found: found != "\n")
        if letter in "^$":
            ends = ("line begin", "A") if letter == "^" else ("line end", "z")
            return _CHECKS[ends["m" not in self.flags]]
        return self.escape() if letter == "\\" else self.literal(letter)

    def folded(self, letters: Letters) -> Letters:
        """A set with the other cases of its letters, where case does not matter."""
        return _any_case(letters) if "i" in self.flags else letters

    def literal(self, letter: str) -> Tree:
        return One(self.folded(lambda found: found == letter))

    def parenthesis(self) -> Tree:
        """What follows an opening parenthesis: a group, or flags for the rest of the group outside."""
        inner = self.flags
        if self.peek() == "?":
            named = re.compile(r"\?P?<[A-Za-z0-9_]+>").match(self.text, self.place)
            set_ = re.compile(r"\?([imsU]*)(?:-([imsU]+))?([:)])").match(self.text, self.place)
            if named:
                self.place = named.end()
            elif set_:
                self.place = set_.end()
                inner = (inner | set(set_[1])) - set(set_[2] or "")
                if set_[3] == ")":
                    self.flags = inner
                    return _NOTHING
            else:
                raise self.error("RE2 knows no such group: there is no looking ahead and behind")
        flags, self.flags = self.flags, inner
        found = self.group()
        self.take(")")
        self.flags = flags
        return found

    def escape(self) -> Tree:
        letter = self.peek()
        if letter in _CHECKS:
            return _CHECKS[self.take()]
        if letter == "Q":
            end = self.text.find("\\E", self.place)
            quoted = self.text[self.place + 1 : end if end >= 0 else None]
            self.place = end + 2 if end >= 0 else len(self.text)
            if len(quoted) != 1 and self.peek() and self.peek() in "*+?{":
                raise self.error("a quotation is repeated")
            return ChainPattern(tuple(map(self.literal, quoted)))
        found = self.letters_of_escape()
        return self.literal(found) if isinstance(found, str) else One(found)

    def letters_of_escape(self) -> str | Letters:
        """After a backslash: a letter, or the set that a letter stands for."""
        letter = self.take()
        if letter.lower() in _CLASSES:
            known, inside = self.folded(_CLASSES[letter.lower()].__contains__), letter.islower()
            return lambda found: known(found) == inside
        if letter in "pP":
            return self.category(letter == "p")
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        coded = re.compile(r"x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]{1,6})\}|(0[0-7]{0,2}|[1-7][0-7]{1,2})").match(
            self.text, self.place - 1
        )
        if coded:
            self.place = coded.end()
            number = int(coded[3], 8) if coded[3] else int(coded[1] or coded[2], 16)
            if number > 0x10FFFF:
                raise self.error(f"there is no letter {number:x}")
            return chr(number)
        if letter.isalnum() and letter.isascii():
            raise self.error(f"\\{letter} is not known")
        return letter

    def category(self, inside: bool) -> Letters:
        """Letters of a category of Unicode: ``L``, ``{Lu}``."""
        name = self.take()
        if name == "{":
            end = self.text.find("}", self.place)
            name, self.place = self.text[self.place : max(end, 0)], end + 1
        if name.startswith("^"):
            name, inside = name[1:], not inside
        if name not in _CATEGORIES:
            raise self.error(f"{name[:40]!r} is no category of letters that is supported")
        known = self.folded(lambda found: unicodedata.category(found).startswith(name))
        return lambda found: known(found) == inside

    def brackets(self) -> Letters:
        """A set in brackets."""
        inside = self.peek() != "^"
        if not inside:
            self.take()
        sets: list[Letters] = []
        singles: set[str] = set()
        first = True
        while first or self.peek() != "]":
            first = False
            low = self.member(sets)
            if low is None:
                continue
            if self.peek() == "-" and self.peek(2) not in ("-]", "-"):
                self.take()
                high = self.member(sets)
                if high is None or high < low:
                    raise self.error("a range of letters has no end, or ends before it begins")
                sets.append(self.folded(_between(low, high)))
            else:
                singles.add(low)
        self.take("]")
        sets.append(self.folded(singles.__contains__))
        return lambda found: any(each(found) for each in sets) == inside

    def member(self, sets: list[Letters]) -> str | None:
        """A letter in brackets; None for a set, which joins `sets`."""
        named = re.compile(r"\[:(\^?)([a-z]+):\]").match(self.text, self.place)
        if named and named[2] in _NAMED:
            self.place = named.end()
            known, inside = self.folded(frozenset(_NAMED[named[2]]).__contains__), not named[1]
            sets.append(lambda found: known(found) == inside)
            return None
        letter = self.take()
        if letter != "\\":
            return letter
        found = self.letters_of_escape()
        if isinstance(found, str):
            return found
        sets.append(found)
        return None


# Programs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fork:
    """An instruction that goes on at several places."""

    places: tuple[int, ...]


Instruction = Union[
    One, CheckPattern, _Fork
]  # the first two go on at the next place; the end of the program is a match


def _write(tree: Tree, program: list[Instruction]) -> None:
    """Append the instructions of a tree."""
    if len(program) > MOST_INSTRUCTIONS:
        raise PatternError(f"the pattern becomes more than {MOST_INSTRUCTIONS} instructions; repeat less")
    if isinstance(tree, (One, CheckPattern)):
        program.append(tree)
    elif isinstance(tree, ChainPattern):
        for part in tree.parts:
            _write(part, program)
    elif isinstance(tree, ChoicePattern):
        _write_choice(tree, program)
    else:
        for _ in range(tree.low):
            before = len(program)
            _write(tree.part, program)
            if len(program) == before:  # nothing, however often
                return
        if tree.high is None:
            _write_loop(tree.part, program)
        else:
            skips = []
            for _ in range(tree.high - tree.low):
                skips.append(len(program))
                program.append(_NOWHERE)
                _write(tree.part, program)
            for place in skips:
                program[place] = _Fork((place + 1, len(program)))


_NOWHERE = _Fork(())  # in the place of an instruction whose ends are not known yet


def _write_choice(tree: ChoicePattern, program: list[Instruction]) -> None:
    start, begins, ends = len(program), [], []
    program.append(_NOWHERE)
    for part in tree.parts:
        begins.append(len(program))
        _write(part, program)
        ends.append(len(program))
        program.append(_NOWHERE)
    program[start] = _Fork(tuple(begins))
    for place in ends:
        program[place] = _Fork((len(program),))


def _write_loop(part: Tree, program: list[Instruction]) -> None:
    start = len(program)
    program.append(_NOWHERE)
    _write(part, program)
    program.append(_Fork((start,)))
    program[start] = _Fork((start + 1, len(program)))


_Groups = tuple[frozenset[int], ...]


class Pattern:
    """A compiled pattern.

    A state is the places of the program that are reached, in groups: those of matches that begin earlier come first.
    The steps between states are remembered, so that a letter mostly costs one look into a table.
    """

    def __init__(self, program: list[Instruction]) -> None:
        self._program = program
        self._looks_back = any(isinstance(instruction, CheckPattern) for instruction in program)
        self._steps: dict[tuple[_Groups, str | None, str | None], tuple[int, tuple[int, ...], _Groups]] = {}

    def matches(self, text: str) -> bool:
        """Whether the whole text is one that the pattern describes."""
        groups: _Groups = (_FIRST,)
        before: str | None = None
        for letter in text:
            _, _, groups = self._step(groups, before, letter)
            if not groups:
                return False
            before = letter
        return self._step(groups, before, None)[0] >= 0

    def find(self, text: str, begin: int = 0) -> tuple[int, int] | None:
        """Where the first part of a text from `begin` on that the pattern describes begins and ends, the longest of
        those that begin there; None where there is none."""
        found: tuple[int, int] | None = None
        groups: _Groups = ()
        starts: list[int] = []  # of each group
        before = text[begin - 1] if 0 < begin <= len(text) else None
        for position in range(begin, len(text) + 1):
            after = text[position] if position < len(text) else None
            if found is None:
                groups, starts = (*groups, _FIRST), [*starts, position]
            matched, origins, groups = self._step(groups, before, after)
            if matched >= 0:
                found = (starts[matched], position)
            if found is not None and not groups:
                break
            starts = [starts[origin] for origin in origins]
            before = after
        return found

    def _step(self, groups: _Groups, before: str | None, after: str | None) -> tuple[int, tuple[int, ...], _Groups]:
        """The first group that has reached the program's end before `after` (-1: none), the groups after that letter,
        and which one each of them was; a place belongs to the first group that reaches it."""
        key = (groups, before if self._looks_back else None, after)
        if key in self._steps:
            return self._steps[key]
        matched, seen, following = -1, set[int](), set[int]()
        origins, left = [], []
        for number, group in enumerate(groups):
            reached = self._reached(group, before, after) - seen
            seen |= reached
            places = frozenset(self._after(reached, after) - following) if after is not None else frozenset[int]()
            if places:
                following |= places
                origins.append(number)
                left.append(places)
            if len(self._program) in reached:
                matched = number
                break  # what begins later is no longer of interest
        if len(self._steps) >= _MOST_STEPS:
            self._steps.clear()
        self._steps[key] = found = matched, tuple(origins), tuple(left)
        return found

    def _reached(self, places: Iterable[int], before: str | None, after: str | None) -> set[int]:
        """The places that are reached from these without a letter."""
        found, waiting = set[int](), list(places)
        while waiting:
            place = waiting.pop()
            if place in found:
                continue
            found.add(place)
            instruction = self._program[place] if place < len(self._program) else None
            if isinstance(instruction, _Fork):
                waiting += instruction.places
            elif isinstance(instruction, CheckPattern) and instruction.holds(before, after):
                waiting.append(place + 1)
        return found

    def _after(self, places: set[int], letter: str) -> set[int]:
        """The places after a letter."""
        found = set()
        for place in places:
            instruction = self._program[place] if place < len(self._program) else None
            if isinstance(instruction, One) and instruction.letters(letter):
                found.add(place + 1)
        return found


@functools.lru_cache(maxsize=64)
def compiled(text: str) -> Pattern:
    """The pattern of a text; raises `PatternError`."""
    if len(text) > LONGEST_PATTERN:
        raise PatternError(f"a pattern of {len(text)} letters, at most {LONGEST_PATTERN} are supported")
    reader = _PatternReader(text)
    tree = reader.group()
    if reader.place < len(text):
        raise reader.error("a parenthesis is closed that is not open")
    program: list[Instruction] = []
    _write(tree, program)
    return Pattern(program)
