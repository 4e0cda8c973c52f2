"""Structured output: text that follows a JSON schema, a regular expression, a list of choices, or a grammar.

The library llguidance says after each token which tokens may come next.  What it is given comes from callers who are
not trusted, so the size of a form is bounded before it sees one, its own work by its limits.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import InputError, MissingDependencyError

LARGEST_FORM = 64 << 10  # characters
DEEPEST_SCHEMA = 64  # objects and lists in each other
MOST_CHOICES = 1024  # of choice, and of an enum
MOST_REPEATS = 10_000  # what the repeats of a pattern amount to
_CACHED_FORMS = 32  # compiled forms
_DEEPEST_GRAMMAR = 200  # definitions in each other that are counted
_SPACES = r"\n?[ \t]{0,16}"  # between the parts of JSON: a model must not write spaces for ever
_LIMITS: dict[str, Any] = {"initial_lexer_fuel": 1_000_000, "step_max_items": 10_000, "max_lexer_states": 50_000,
           "max_grammar_size": 100_000, "precompute_large_lexemes": False, "verbose_errors": False}  # fmt: skip
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
# Possessive where a failure would be looked for again at every place: these run before anything bounds the work.
_REPEAT = re.compile(r"\{\s*+(\d*+)\s*+,?\s*+(\d*+)\s*+\}")
_LARK_REPEAT = re.compile(r"~\s*+(\d++)(?:\s*+\.\.\s*+(\d++))?")
_DEFINITION = re.compile(r"^[ \t]*[?!]?([A-Za-z_][\w-]*)(?:\.-?\d+)?[ \t]*(?:::=|:)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_][\w-]*")
_LARK = re.compile(r"^[^\S\n]*+(?:%llguidance\b|start\s*+:)", re.MULTILINE)  # how llguidance tells Lark's notation
# Comments, and what may hold their marks; what is not closed reaches to the end, so that nothing is looked at twice.
_TEXT, _CLASS = r'"(?:\\.|[^"\\])*(?:"|\\?\Z)', r"\[(?:\\.|[^\]\\])*(?:\]|\\?\Z)"
_COMMENTS = {
    "regex": re.compile(rf"{_CLASS}|\\.|(?P<comment>#[^\n]*)", re.DOTALL),
    "gbnf": re.compile(rf"{_TEXT}|{_CLASS}|(?P<comment>#[^\r\n]*)", re.DOTALL),
    "lark": re.compile(rf"{_TEXT}|(?P<comment>(?:#|//)[^\n]*)|/(?:\\.|[^/\\])*(?:/|\\?\Z)", re.DOTALL),
}


@dataclass(frozen=True)
class StructuredOutput:
    """What a result's text must be; exactly one of these is given.

    `json` is a JSON schema (an object or its text), `json_object` wants any JSON object, `regex` a text that the whole
    pattern matches (Rust's syntax, without look-around and back-references), `choice` one of several texts, `grammar`
    a text of a context-free grammar in Lark's or llama.cpp's (GBNF) notation.

    Raises `InputError` that names what is wrong or over a bound.
    """

    json: Mapping[str, Any] | bool | str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("json", "regex", "choice", "grammar") if getattr(self, name) is not None]
        given += ["json_object"] if self.json_object else []
        if len(given) != 1:
            raise InputError("structured output takes exactly one of json, json_object, regex, choice and grammar")
        object.__setattr__(self, "_form", _FORMS[given[0]](getattr(self, given[0])))

    @property
    def form(self) -> tuple[str, str]:
        """The kind, and its text as llguidance reads it."""
        form: tuple[str, str] = self._form  # type: ignore[attr-defined]
        return form


class Matcher:
    """Which tokens may come next in one result; masks are bool [vocabulary]."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def allowed(self) -> np.ndarray:
        """The tokens that may come next, end tokens among them where the text may end.

        Raises `InputError` when the form is too complex to go on.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(bits, count=self._vocabulary, bitorder="little").view(np.bool_)

    def take(self, token: int) -> None:
        """A token that was allowed has come."""
        self._matcher.consume_token(token)
        self._check()

    @property
    def is_complete(self) -> bool:
        """Whether the text is whole and nothing can follow."""
        return bool(self._matcher.is_stopped())

    def copy(self) -> Matcher:
        """One for another result that begins in the same way."""
        return Matcher(self._matcher.deep_copy(), self._vocabulary)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InputError(f"the structured output is too complex: {_first_line(self._matcher.get_error())}")


class FormCompiler:
    """Forms to matchers for one tokenizer; keeps the last ones.  Threads may share it.

    `tokenizer` is the text of tokenizer.json.  Raises `MissingDependencyError` without llguidance.
    """

    def __init__(self, tokenizer: str, vocabulary: int, end_tokens: Sequence[int]) -> None:
        try:
            import llguidance
            from llguidance.gbnf_to_lark import gbnf_to_lark
        except ImportError as error:
            raise MissingDependencyError(
                "structured output needs the package llguidance: pip install 'tilewright[structured]'"
            ) from error
        self._library: Any = llguidance
        self._gbnf_to_lark: Callable[[str], str] = gbnf_to_lark
        self._vocabulary = vocabulary
        self._limits = llguidance.LLParserLimits(**_LIMITS)
        self._tokenizer = llguidance.LLTokenizer(tokenizer, n_vocab=vocabulary, eos_token=list(end_tokens) or None)
        self._compiled: OrderedDict[tuple[str, str], Matcher] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, wanted: StructuredOutput) -> Matcher:
        """A matcher at the beginning of a text; raises `InputError` for a form that cannot be compiled."""
        form = wanted.form
        with self._lock:
            if form in self._compiled:
                self._compiled.move_to_end(form)
                return self._compiled[form].copy()
        matcher = self._compile(*form)
        with self._lock:
            self._compiled[form] = matcher
            while len(self._compiled) > _CACHED_FORMS:
                self._compiled.popitem(last=False)
        return matcher.copy()

    def _compile(self, kind: str, text: str) -> Matcher:
        kinds = self._library.LLMatcher
        try:
            if kind == "json":
                grammar = kinds.grammar_from_json_schema(text, overrides={"whitespace_pattern": _SPACES})
            elif kind == "grammar":  # the library's own test for Lark's notation takes quadratic time
                grammar = kinds.grammar_from_lark(text if _LARK.search(text) else self._as_lark(text))
            else:
                grammar = self._library.grammar_from(kind, text)
            found = kinds(self._tokenizer, grammar, log_level=0, limits=self._limits)
            error = found.get_error()
            if not error:
                found.compute_bitmask()  # the first step finds what the compiler does not
                error = found.get_error()
        except (ValueError, RecursionError) as reason:
            error = str(reason) or type(reason).__name__
        if error:
            raise InputError(f"the {'JSON schema' if kind == 'json' else kind} cannot be used: {_first_line(error)}")
        return Matcher(found, self._vocabulary)

    def _as_lark(self, text: str) -> str:
        try:
            return self._gbnf_to_lark(text)
        except Exception as error:  # the library raises `Exception` itself
            raise ValueError(f"it is no Lark, and as GBNF: {error}") from error


# -- Bounds of forms ---------------------------------------------------------------------------------


def _schema(given: Any) -> tuple[str, str]:
    if isinstance(given, str):
        _check_size("json", given)
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise InputError(f"json is no JSON: {str(error)[:100]}") from error
    if not isinstance(given, (Mapping, bool)):
        raise InputError("json takes a JSON schema: an object")
    try:
        text = json.dumps(given, sort_keys=False)
    except RecursionError as error:
        raise InputError(f"json is deeper than {DEEPEST_SCHEMA} levels") from error
    except (TypeError, ValueError) as error:
        raise InputError(f"json is no JSON schema: {str(error)[:100]}") from error
    _check_size("json", text)
    _check_schema(given, 0)
    return "json", text


def _check_schema(node: Any, depth: int) -> None:
    if depth > DEEPEST_SCHEMA:
        raise InputError(f"json is deeper than {DEEPEST_SCHEMA} levels")
    if isinstance(node, Mapping):
        enumeration = node.get("enum")
        if isinstance(enumeration, (list, tuple)) and len(enumeration) > MOST_CHOICES:
            raise InputError(f"json has an enum of more than {MOST_CHOICES} values")
        for key in _COUNTS:
            count = node.get(key)
            if isinstance(count, (int, float)) and count > MOST_REPEATS:
                raise InputError(f"json has a {key} of more than {MOST_REPEATS}")
        patterns = node.get("patternProperties")
        for pattern in (node.get("pattern"), *(patterns if isinstance(patterns, Mapping) else ())):
            if isinstance(pattern, str):
                _check_repeats("json", _pattern_size(pattern))
    if isinstance(node, (Mapping, list, tuple)):
        for child in node.values() if isinstance(node, Mapping) else node:
            _check_schema(child, depth + 1)


def _any_object(given: Any) -> tuple[str, str]:
    if given is not True:
        raise InputError("json_object is true or false")
    return "json", '{"type": "object"}'


def _regex(given: Any) -> tuple[str, str]:
    text = _check_size("regex", given)
    _check_repeats("regex", _pattern_size(text))
    return "regex", text


def _choice(given: Any) -> tuple[str, str]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not 0 < len(given) <= MOST_CHOICES:
        raise InputError(f"choice takes a list of 1 to {MOST_CHOICES} texts")
    if not all(isinstance(item, str) and item for item in given):
        raise InputError("choice takes texts that are not empty")
    return "choice", _check_size("choice", json.dumps(list(given)))


def _grammar(given: Any) -> tuple[str, str]:
    text = _check_size("grammar", given)
    without = _without_comments(text, "lark" if _LARK.search(text) else "gbnf")
    _check_repeats("grammar", max(_grammar_size(text), _grammar_size(without)))
    return "grammar", text


def _grammar_size(text: str) -> int:
    places = list(_DEFINITION.finditer(text))
    ends = [*(place.start() for place in places[1:]), len(text)][: len(places)]
    bodies = {place.group(1): text[place.end() : end] for place, end in zip(places, ends, strict=True)}
    size = _Size("", bodies)
    return max((size.of_name(name) for name in bodies), default=0)


def _pattern_size(text: str) -> int:
    return max(_Size(text).total(), _Size(_without_comments(text, "regex")).total())


def _without_comments(text: str, kind: str) -> str:
    """A text where nothing stands between an item and its repeat; in patterns the flag x makes comments."""
    return _COMMENTS[kind].sub(lambda found: " " if found.group("comment") else found.group(), text)


def _check_size(name: str, text: Any) -> str:
    if not isinstance(text, str) or not text:
        raise InputError(f"{name} is a text that is not empty")
    if len(text) > LARGEST_FORM:
        raise InputError(f"{name} has more than {LARGEST_FORM} characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name} is no valid Unicode text") from error
    return text


def _check_repeats(name: str, size: int) -> None:
    if size > MOST_REPEATS:
        raise InputError(f"{name} repeats its parts more than {MOST_REPEATS} times")


class _Size:
    """Counts what the repeats of a pattern amount to, an upper bound: `(a{9}b){100}` is 1,000.

    In a grammar's definition, names stand for the definitions of `named`.
    """

    def __init__(
        self, text: str, named: Mapping[str, str] | None = None, known: dict[str, int] | None = None, depth: int = 0
    ) -> None:
        self._text, self._named, self._depth = text, named or {}, depth
        self._known: dict[str, int] = {} if known is None else known
        self._groups: list[int] = []
        self._sum = self._last = 0

    def total(self) -> int:
        """The count; characters and names outside of repeats count once."""
        at = repeated = 0
        while at < len(self._text):
            at, count = self._item(at)
            repeated = max(repeated, count)
        return repeated

    def _item(self, at: int) -> tuple[int, int]:
        """The place after the item at a place, and what it amounts to where it repeats."""
        character = self._text[at]
        if character == "(":
            self._groups.append(self._sum + self._last)
            self._sum = self._last = 0
            return at + 1, 0
        if character == ")":
            inner = self._sum + self._last
            self._sum, self._last = (self._groups.pop() if self._groups else 0), inner
            return at + 1, 0
        if character.isspace():  # what follows may be the repeat of the item before
            self._sum += not self._named
            return at + 1, 0
        kind = _REPEAT if character == "{" else _LARK_REPEAT if character == "~" and self._named else None
        repeat = None if kind is None else kind.match(self._text, at)
        if repeat is not None:
            counts = [int(number[:9]) for number in repeat.groups() if number]
            self._last = max(self._last, 1) * max(1, *counts) if counts else self._last
            return repeat.end(), self._last
        self._sum += self._last
        self._last = 1
        if character == "[":
            return self._end_of_class(at), 0
        name = _NAME.match(self._text, at) if self._named else None
        if name is not None and name.group() in self._named:
            self._last = max(1, self.of_name(name.group()))
            return name.end(), self._last if self._last > 1 else 0
        return (name.end() if name is not None else at + (2 if character == "\\" else 1)), 0

    def of_name(self, name: str) -> int:
        """The count of a definition."""
        if name not in self._known:
            known = self._depth < _DEEPEST_GRAMMAR
            self._known[name] = 1 if known else MOST_REPEATS  # 1 while a definition that holds itself is counted
            if known:
                self._known[name] = _Size(self._named[name], self._named, self._known, self._depth + 1).total()
        return self._known[name]

    def _end_of_class(self, at: int) -> int:
        end = at + 1
        while end < len(self._text) and (self._text[end] != "]" or end == at + 1):
            end += 2 if self._text[end] == "\\" else 1
        return end + 1


def _first_line(error: str) -> str:
    return error.split("\n", 1)[0][:200]


_FORMS = {"json": _schema, "json_object": _any_object, "regex": _regex, "choice": _choice, "grammar": _grammar}
