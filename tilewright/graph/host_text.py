"""Ops of the host on text: tensors of Python strings, as NumPy arrays of objects.

What only moves or compares elements is done by the ops of numbers (`TEXT_TOO` in `graph.ops`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.dtypes import BY_NAME, int1, int64, string
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
    together = np.broadcast_arrays(*arrays)
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
    kept = [_cased(item, attributes["case"]) for item in x.reshape(-1) if _cased(item, compared) not in stops]
    result = np.empty(max(1, len(kept)), object)
    result[:] = kept or [""]
    return result.reshape((*x.shape[:-1], -1))


@functools.lru_cache(maxsize=64)
def _places(keys: tuple[str, ...]) -> dict[str, int]:
    """The position of each text; the last of equal ones."""
    return {key: place for place, key in enumerate(keys)}


def text_position(inputs: Arrays, attributes: Attributes) -> Array:
    places = _places(attributes["keys"])
    return _each(lambda text: places.get(text, -1), inputs[0], dtype=np.int64)


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
