"""Ops of the host on text: tensors of Python strings, as NumPy arrays of objects.

What only moves or compares elements is done by the ops of numbers (`TEXT_TOO` in `graph.ops`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.dtypes import BY_NAME, float32, int1, int32, int64, string, uint32
from tilewright.errors import InputError, ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types, broadcast_shapes, value
from tilewright.graph.patterns import PatternError, compiled
from tilewright.graph.semantics import Array, Arrays

_NUMBER = re.compile(r"\s*[+-]?(?:inf|infinity|nan|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*", re.ASCII | re.IGNORECASE)
_INTEGER = re.compile(r"\s*[+-]?\d{1,20}\s*", re.ASCII)
CASES = ("NONE", "LOWER", "UPPER")

# Types ---------------------------------------------------------------------------------------------


def text_type(inputs: Inputs, attributes: Attributes) -> Types:
    """A constant: as many elements as the shape has, all of them text."""
    elements, shape = attributes["elements"], attributes["shape"]
    if not all(isinstance(item, str) for item in elements):
        raise ShapeError("the elements of a tensor of text are texts")
    if not all(isinstance(size, int) for size in shape) or int(np.prod(shape, dtype=object)) != len(elements):
        raise ShapeError(f"{len(elements)} elements do not make a tensor {list(shape)}")
    return [(string, tuple(shape))]


def joined_type(inputs: Inputs, attributes: Attributes) -> Types:
    """Two tensors of text that broadcast."""
    return [(string, broadcast_shapes(_text(inputs, 0), _text(inputs, 1)))]


def split_type(inputs: Inputs, attributes: Attributes) -> Types:
    """Pieces: one dimension more, of the size `count`; or how many there are."""
    shape = _text(inputs, 0)
    if attributes["gives"] not in ("pieces", "counts"):
        raise ShapeError(f"gives is {attributes['gives']!r}, and must be pieces or counts")
    return [(int64, shape)] if attributes["gives"] == "counts" else [(string, (*shape, attributes["count"]))]


def normalized_type(inputs: Inputs, attributes: Attributes) -> Types:
    """[C] or [1, C], the last size as the attribute `count` says."""
    shape = _text(inputs, 0)
    if len(shape) not in (1, 2) or attributes["case"] not in CASES:
        raise ShapeError(f"text of {len(shape)} dimensions, case {attributes['case']!r}")
    return [(string, (*shape[:-1], attributes["count"]))]


def matched_type(inputs: Inputs, attributes: Attributes) -> Types:
    """A truth for each text; the pattern must be one that is understood."""
    try:
        compiled(attributes["pattern"])
    except PatternError as error:
        raise ShapeError(str(error)) from None
    return [(int1, _text(inputs, 0))]


def tokens_type(inputs: Inputs, attributes: Attributes) -> Types:
    """The tokens of each text: one dimension more, of the size `count`."""
    patterns = (attributes["pattern"], *attributes["separators"])
    try:
        [compiled(pattern) for pattern in patterns]
    except PatternError as error:
        raise ShapeError(str(error)) from None
    return [(string, (*_text(inputs, 0), attributes["count"]))]


def hash_type(inputs: Inputs, attributes: Attributes) -> Types:
    return [(uint32 if attributes["positive"] else int32, value(inputs, 0).shape)]


def counts_type(inputs: Inputs, attributes: Attributes) -> Types:
    """Rows of tokens [N, C] -> [N, size]; sequences lie in the pool and in the columns, and columns in the result."""
    rows, pool, columns = value(inputs, 0), attributes["pool"], attributes["columns"]
    if rows.dtype != int64 or rows.rank != 2 or attributes["skips"] < 0:
        raise ShapeError(f"{rows!r} are no rows of tokens")
    if not all(isinstance(column, int) and 0 <= column < attributes["size"] for column in columns):
        raise ShapeError(f"a column is outside of the {attributes['size']} of the result")
    for length, start, place, count in attributes["sequences"]:
        if not (length > 0 and start >= 0 and place >= 0 and count > 0) or (
            start + length * count > len(pool) or place + count > len(columns)
        ):
            raise ShapeError(f"{count} sequences of {length} tokens are not in a pool of {len(pool)}")
    return [(float32, (rows.shape[0], attributes["size"]))]


def position_type(inputs: Inputs, attributes: Attributes) -> Types:
    if not all(isinstance(item, str) for item in attributes["keys"]):
        raise ShapeError("the keys of text are texts")
    return [(int64, _text(inputs, 0))]


def number_type(inputs: Inputs, attributes: Attributes) -> Types:
    """Numbers of the element type whose name `to` is."""
    if attributes["to"] not in BY_NAME:
        raise ShapeError(f"{str(attributes['to'])[:80]!r} is no name of an element type")
    return [(BY_NAME[attributes["to"]], _text(inputs, 0))]


def written_type(inputs: Inputs, attributes: Attributes) -> Types:
    return [(string, value(inputs, 0).shape)]


def _text(inputs: Inputs, index: int) -> tuple[Any, ...]:
    """The shape of an input, which must be text."""
    found = value(inputs, index)
    if found.dtype != string:
        raise ShapeError(f"{found!r} is no tensor of text")
    return found.shape


# Meanings ------------------------------------------------------------------------------------------


def _each(function: Callable[..., Any], *arrays: Array, dtype: Any = object) -> Array:
    """A function of the elements of arrays that broadcast."""
    together = arrays if len(arrays) == 1 else np.broadcast_arrays(*arrays)
    result = np.empty(together[0].shape, dtype)
    flat = result.reshape(-1)
    for place, items in enumerate(zip(*(array.reshape(-1) for array in together), strict=True)):
        flat[place] = function(*items)
    return result


def text(inputs: Arrays, attributes: Attributes) -> Array:
    result = np.empty(len(attributes["elements"]), object)
    result[:] = attributes["elements"]
    return result.reshape(attributes["shape"])


def text_concat(inputs: Arrays, attributes: Attributes) -> Array:
    return _each(lambda left, right: left + right, *inputs)


def _pieces(text: str, delimiter: str, most: int | None) -> list[str]:
    """The pieces of a text, as ONNX Runtime: without a delimiter, runs of spaces separate."""
    if not delimiter:
        text = text.strip(" ")
        return re.split(" +", text, maxsplit=most or 0) if text and most != 0 else [text] * bool(text)
    return text.split(delimiter, -1 if most is None else most) if text else []


def text_split(inputs: Arrays, attributes: Attributes) -> Array:
    lists = _each(lambda text: _pieces(text, attributes["delimiter"], attributes["most"]), inputs[0])
    counts = _each(len, lists, dtype=np.int64)
    if attributes["gives"] == "counts":
        return counts
    width = int(counts.max(initial=0))
    result = np.full((lists.size, width), "", object)
    for row, pieces in zip(result, lists.reshape(-1), strict=True):
        row[: len(pieces)] = pieces
    return result.reshape([*lists.shape, width])


def _between(text: str, separator: str, least: int) -> list[str]:
    """The parts of a text between what a pattern describes, of `least` letters or more."""
    parts, start, begin, pattern = [], 0, 0, compiled(separator)
    while (place := pattern.find(text, begin)) is not None:
        parts.append(text[start : place[0]])
        # Nothing matched: go on after the next letter, which belongs to no part.
        start = begin = place[1] + (place[0] == place[1])
        if start > len(text):
            return [part for part in parts if len(part) >= least]
    return [part for part in (*parts, text[start:]) if len(part) >= least]


def _tokens(text: str, attributes: Attributes) -> list[str]:
    """As ONNX Runtime's Tokenizer: matches of a pattern, or what separators leave one after the other."""
    least, separators = attributes["least"], attributes["separators"]
    if separators == ("",):
        return list(text)
    if separators:
        parts = [text]
        for separator in separators:
            parts = [part for whole in parts for part in _between(whole, separator, least)]
        return parts
    parts, begin, pattern = [], 0, compiled(attributes["pattern"])
    while (place := pattern.find(text, begin)) is not None:
        parts.append(text[slice(*place)])
        begin = place[1] + (place[0] == place[1])
    return [part for part in parts if len(part) >= max(1, least)]


def text_tokens(inputs: Arrays, attributes: Attributes) -> Array:
    x, marked = inputs[0], attributes["marked"]
    rows = [_tokens(text, attributes) for text in x.reshape(-1)]
    width = max(map(len, rows), default=0)
    if marked and width:
        rows, width = [["\x02", *row, "\x03"] for row in rows], width + 2
    result = np.full((len(rows), width), attributes["filler"], object)
    for place, row in enumerate(rows):
        result[place, : len(row)] = row
    return result.reshape((*x.shape, width))


def _murmur(data: bytes, seed: int) -> int:
    """MurmurHash3 of 32 bits, by Austin Appleby's definition."""
    wide, state = 0xFFFFFFFF, seed & 0xFFFFFFFF

    def mixed(word: int) -> int:
        word = word * 0xCC9E2D51 & wide
        return ((word << 15 | word >> 17) & wide) * 0x1B873593 & wide

    whole = len(data) // 4 * 4
    for place in range(0, whole, 4):
        state ^= mixed(int.from_bytes(data[place : place + 4], "little"))
        state = ((state << 13 | state >> 19) & wide) * 5 + 0xE6546B64 & wide
    state ^= mixed(int.from_bytes(data[whole:], "little")) ^ len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & wide
    state = (state ^ state >> 13) * 0xC2B2AE35 & wide
    return state ^ state >> 16


def murmur_hash(inputs: Arrays, attributes: Attributes) -> Array:
    x, seed = inputs[0], attributes["seed"]
    data = (item.encode() if isinstance(item, str) else item.tobytes() for item in x.reshape(-1))
    result = np.array([_murmur(item, seed) for item in data], np.uint32).reshape(x.shape)
    return result if attributes["positive"] else result.view(np.int32)


def _cased(text: str, case: str) -> str:
    """A text in lower or upper case, letter by letter: those whose other form is several letters stay."""
    if case == "NONE":
        return text
    forms = ((letter, letter.lower() if case == "LOWER" else letter.upper()) for letter in text)
    return "".join(form if len(form) == 1 else letter for letter, form in forms)


def text_normalize(inputs: Arrays, attributes: Attributes) -> Array:
    x, sensitive = inputs[0], attributes["sensitive"]
    if x.ndim == 2 and len(x) != 1:
        raise ShapeError(f"the texts to normalise are {list(x.shape)}; they must be [C] or [1, C]")
    compared = "NONE" if sensitive else "LOWER"
    stops = {_cased(word, compared) for word in attributes["stopwords"]}
    words = [_cased(item, attributes["case"]) for item in x.reshape(-1) if _cased(item, compared) not in stops]
    result = np.empty(max(1, len(words)), object)
    result[:] = words or [""]
    return result.reshape((*x.shape[:-1], -1))


_PLACES: dict[int, tuple[tuple[str, ...], dict[str, int]]] = {}  # by the ids of lists, which the entries keep alive
_MOST_LISTS = 256


def _places(keys: tuple[str, ...]) -> dict[str, int]:
    """The position of each text; the last of equal ones. Once for each list, which is not compared with others."""
    found = _PLACES.get(id(keys))
    if found is None:
        if len(_PLACES) >= _MOST_LISTS:
            _PLACES.clear()
        found = _PLACES[id(keys)] = keys, {key: place for place, key in enumerate(keys)}
    return found[1]


def text_position(inputs: Arrays, attributes: Attributes) -> Array:
    places, texts = _places(attributes["keys"]), inputs[0]
    found = [places.get(text, -1) for text in texts.reshape(-1).tolist()]
    return np.array(found, np.int64).reshape(texts.shape)


class _Sequences:
    """Sequences of one length, found token by token: each prefix has a number."""

    def __init__(self, table: Array, columns: Array) -> None:
        self.tokens, ranks = np.unique(table, return_inverse=True)
        ranks, prefixes = ranks.reshape(table.shape), np.zeros(len(table), np.int64)
        self.levels = []
        for rank in ranks.T:
            keys, prefixes = np.unique(prefixes * len(self.tokens) + rank, return_inverse=True)
            self.levels.append(keys)
        self.columns = np.zeros(len(self.levels[-1]), np.int64)
        self.columns[prefixes] = columns

    def add_to(self, totals: Array, rows: Array, step: int) -> None:
        """Count those whose tokens are `step` apart."""
        count = rows.shape[1] - step * (len(self.levels) - 1)
        if count < 1 or not len(rows):
            return
        ranks, known = _found(self.tokens, rows)
        prefixes, fit = np.zeros((len(rows), count), np.int64), np.ones((len(rows), count), bool)
        for index, keys in enumerate(self.levels):
            part = slice(index * step, index * step + count)
            prefixes, there = _found(keys, prefixes * len(self.tokens) + ranks[:, part])
            fit &= there & known[:, part]
        row, place = np.nonzero(fit)
        np.add.at(totals, (row, self.columns[prefixes[row, place]]), 1)


def _found(keys: Array, items: Array) -> tuple[Array, Array]:
    """The places of items in sorted keys, and which of them are there."""
    places = np.minimum(np.searchsorted(keys, items), len(keys) - 1)
    return places, keys[places] == items


@functools.lru_cache(maxsize=16)
def _sequences(
    pool: tuple[int, ...], columns: tuple[int, ...], sequences: tuple[tuple[int, ...], ...]
) -> list[_Sequences]:
    tokens, places = np.array(pool, np.int64), np.array(columns, np.int64)
    return [
        _Sequences(tokens[start : start + length * count].reshape(count, length), places[place : place + count])
        for length, start, place, count in sequences
    ]


def sequence_counts(inputs: Arrays, attributes: Attributes) -> Array:
    rows = inputs[0]
    result = np.zeros((len(rows), attributes["size"]), np.float32)
    for each in _sequences(attributes["pool"], attributes["columns"], attributes["sequences"]):
        for step in range(1, 2 + (attributes["skips"] if len(each.levels) > 1 else 0)):
            each.add_to(result, rows, step)
    return result


def text_matches(inputs: Arrays, attributes: Attributes) -> Array:
    return _each(compiled(attributes["pattern"]).matches, inputs[0], dtype=np.bool_)


def text_to_number(inputs: Arrays, attributes: Attributes) -> Array:
    dtype = BY_NAME[attributes["to"]]
    pattern, kind = (_NUMBER, "number") if dtype.is_float else (_INTEGER, "whole number")

    def number(text: str) -> float | int:
        if not pattern.fullmatch(text):
            raise InputError(f"a model reads the text {text[:80]!r} as a {kind}, which it is not; give numbers")
        return float(text) if dtype.is_float else int(text)

    if dtype.is_float:
        return _each(number, inputs[0], dtype=np.float64).astype(dtype.numpy)
    wide = _each(lambda text: int(number(text)) & (2**64 - 1), inputs[0], dtype=np.uint64)
    return (wide != 0) if dtype.is_bool else wide.astype(dtype.numpy)


def _written(item: Any) -> str:
    """A number as ONNX Runtime writes it."""
    if isinstance(item, (bool, int)):
        return str(int(item))
    if item != item:
        return "NaN"
    return f"{item:.8g}".replace("inf", "INF")


def number_to_text(inputs: Arrays, attributes: Attributes) -> Array:
    x = inputs[0] if inputs[0].dtype.kind in "biuf" else inputs[0].astype(np.float32)
    return _each(_written, x.astype(object))
