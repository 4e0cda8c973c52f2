"""Host values other than tensors of numbers: text, sequences, optionals, for callers and host ops.

Callers give and get arrays of strings, lists of arrays, and None or what an optional holds; ops of the host work on
arrays of objects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tilewright.dtypes import HOST_ONLY, DType, element_of, string
from tilewright.errors import InputError, a_kind


def host_array(value: Any, dtype: DType, name: str) -> np.ndarray:
    """The array of objects of a value of a `HOST_ONLY` type; raises `InputError`, which calls it the input `name`."""
    if dtype == string:
        return _text(value, name)
    if dtype.kind == "map" or (dtype.kind == "sequence" and element_of(dtype).kind == "map"):
        raise InputError(f"input {name!r} is made of dictionaries, which engines give and do not take")
    if dtype.kind == "sequence":
        if not isinstance(value, (list, tuple)):
            raise InputError(f"input {name!r} is a sequence, given as {a_kind(value)}: pass a list of tensors")
        items = [_item(item, element_of(dtype), f"{name}[{place}]") for place, item in enumerate(value)]
    else:
        items = [] if value is None else [_item(value, element_of(dtype), name)]
    result = np.empty(len(items), object)
    for place, item in enumerate(items):
        result[place] = item
    return result


def _item(value: Any, dtype: DType, name: str) -> np.ndarray:
    """A tensor or a sequence inside."""
    if dtype in HOST_ONLY:
        return host_array(value, dtype, name)
    if hasattr(value, "cpu") and not isinstance(value, np.ndarray):  # of PyTorch, maybe on a GPU
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"input {name!r}: {a_kind(value)} is no tensor ({error}); pass a NumPy array") from None
    if array.dtype != dtype.numpy:
        raise InputError(f"input {name!r} is a tensor of {array.dtype}, and must be one of {dtype.name}")
    return array


def _text(value: Any, name: str) -> np.ndarray:
    array = np.asarray(value, object) if isinstance(value, (str, bytes, list, tuple)) else np.asarray(value)
    if array.dtype.kind not in "OUST":
        raise InputError(f"input {name!r} is a tensor of text, given as one of {array.dtype}: pass an array of strings")
    items = array.reshape(-1).tolist()
    if all([type(item) is str for item in items]):
        return array.astype(object, copy=False)
    result = np.empty(array.shape, object)
    flat = result.reshape(-1)
    for place, item in enumerate(items):
        if isinstance(item, bytes):
            try:
                item = item.decode()
            except UnicodeDecodeError as error:
                raise InputError(f"input {name!r}: element {place} is no UTF-8 text ({error.reason})") from None
        if not isinstance(item, str):
            raise InputError(f"input {name!r}: element {place} is {a_kind(item)}, and must be a string")
        flat[place] = item
    return result


def returned(array: Any, dtype: DType) -> Any:
    """A result as callers get it; those of `HOST_ONLY` with memory of their own."""
    return returning(dtype)(array)


@functools.lru_cache(maxsize=256)
def returning(dtype: DType) -> Callable[[Any], Any]:
    """What makes of a result of a type what callers get: see `returned`."""
    if dtype not in HOST_ONLY:
        return lambda array: array
    if dtype == string:
        return lambda array: array.copy()
    if dtype.kind == "map":
        return dict
    element = element_of(dtype)
    own = returning(element) if element in HOST_ONLY else partial(np.array, order="C")
    if dtype.kind == "sequence":
        return lambda array: list(map(own, array))
    return lambda array: own(array[0]) if len(array) else None
