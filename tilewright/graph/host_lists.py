"""Ops of the host on sequences and optionals: lists of tensors, as NumPy arrays of objects of one dimension.

An optional has no element or one, which is a tensor or a sequence.  A sequence may also hold dictionaries.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import ANY_BY_NAME, DType, element_of, optional_of, sequence_of
from tilewright.errors import ShapeError
from tilewright.graph.core import Value
from tilewright.graph.inference import Attributes, Inputs, Types, value
from tilewright.graph.semantics import Array, Arrays
from tilewright.symbolic import lift, simplify

# Types ---------------------------------------------------------------------------------------------


def sequence_type(inputs: Inputs, attributes: Attributes) -> Types:
    """A sequence of the inputs."""
    return [(_list_of("sequence", inputs, attributes), (len(inputs),))]


def optional_type(inputs: Inputs, attributes: Attributes) -> Types:
    """An optional that holds the input, or nothing."""
    return [(_list_of("optional", inputs, attributes), (len(inputs),))]


def insert_type(inputs: Inputs, attributes: Attributes) -> Types:
    found, item = _list(inputs, "sequence"), value(inputs, 1)
    if item.dtype != element_of(found.dtype):
        raise ShapeError(f"{item!r} is no tensor of {element_of(found.dtype)}")
    return [(found.dtype, (simplify(lift(found.shape[0]) + 1),))]


def erase_type(inputs: Inputs, attributes: Attributes) -> Types:
    found = _list(inputs, "sequence")
    return [(found.dtype, (simplify(lift(found.shape[0]) - 1),))]


def item_type(inputs: Inputs, attributes: Attributes) -> Types:
    """An item of a sequence, or what an optional holds, in the shape of the attribute."""
    found = _list(inputs, "sequence", "optional")
    return [(element_of(found.dtype), attributes["shape"])]


def join_type(inputs: Inputs, attributes: Attributes) -> Types:
    return [(element_of(_list(inputs, "sequence").dtype), attributes["shape"])]


def split_type(inputs: Inputs, attributes: Attributes) -> Types:
    """A sequence of slices; `shape` has its length."""
    if len(attributes["shape"]) != 1:
        raise ShapeError("a sequence has one size, its length")
    return [(_of("sequence", value(inputs, 0).dtype), attributes["shape"])]


def zipped_type(inputs: Inputs, attributes: Attributes) -> Types:
    """Of numbers [C] or [N, C], and C keys, a dictionary for each row."""
    x, keys = value(inputs, 0), value(inputs, 1)
    found = ANY_BY_NAME.get(f"map({keys.dtype.name},{x.dtype.name})")
    if found is None or x.rank not in (1, 2) or keys.shape != x.shape[-1:]:
        raise ShapeError(f"{keys!r} are no keys of the rows of {x!r}")
    return [(sequence_of(found), x.shape[:-1] or (1,))]


def _of(kind: str, element: DType) -> DType:
    try:
        return sequence_of(element) if kind == "sequence" else optional_of(element)
    except KeyError:
        raise ShapeError(f"there is no {kind} of {element}") from None


def _list_of(kind: str, inputs: Inputs, attributes: Attributes) -> DType:
    """The type of a list of the inputs, whose type the attribute `of` names."""
    element = ANY_BY_NAME.get(attributes["of"])
    if element is None:
        raise ShapeError(f"{str(attributes['of'])[:80]!r} is no name of an element type")
    for index in range(len(inputs)):
        if value(inputs, index).dtype != element:
            raise ShapeError(f"{value(inputs, index)!r} is not of the type {element}")
    return _of(kind, element)


def _list(inputs: Inputs, *kinds: str) -> Value:
    """The first input, which must be a list of one of these kinds."""
    found = value(inputs, 0)
    if found.dtype.kind not in kinds or found.rank != 1:
        raise ShapeError(f"{found!r} is no {' or '.join(kinds)}")
    return found


# Meanings ------------------------------------------------------------------------------------------


def listed(items: Any) -> Array:
    """An array of objects of one dimension."""
    items = items if type(items) is list else list(items)
    result = np.empty(len(items), object)
    for place, item in enumerate(items):
        result[place] = item
    return result


def make_list(inputs: Arrays, attributes: Attributes) -> Array:
    return listed(inputs)


def _position(inputs: Arrays, index: int, last: int, subject: str) -> int:
    """A position in a sequence from the front; `last`, the largest possible one, where none is given."""
    if len(inputs) <= index or inputs[index] is None:
        number = last
    else:
        number = int(np.asarray(inputs[index]).reshape(-1)[0])
    count = len(inputs[0])
    if not -count <= number <= last:
        raise ShapeError(f"{subject} is {number}, and the sequence has {count} items")
    return number + count if number < 0 else number


def sequence_insert(inputs: Arrays, attributes: Attributes) -> Array:
    items = list(inputs[0])
    items.insert(_position(inputs, 2, len(items), attributes["what"]), inputs[1])
    return listed(items)


def sequence_erase(inputs: Arrays, attributes: Attributes) -> Array:
    items = list(inputs[0])
    del items[_position(inputs, 1, len(items) - 1, attributes["what"])]
    return listed(items)


def list_item(inputs: Arrays, attributes: Attributes) -> Array:
    if not len(inputs[0]):
        raise ShapeError(f"{attributes['what']} is of an empty list: there is nothing in it")
    item: Array = inputs[0][_position(inputs, 1, len(inputs[0]) - 1, attributes["what"])]
    return item


def sequence_join(inputs: Arrays, attributes: Attributes) -> Array:
    items, axis = list(inputs[0]), attributes["along"]
    if not items:
        raise ShapeError("a sequence without items is joined; it must have one")
    try:
        return np.stack(items, axis) if attributes["stacked"] else np.concatenate(items, axis)
    except ValueError:  # NumPy's AxisError too
        shapes = ", ".join(str(list(item.shape)) for item in items[:8])
        raise ShapeError(f"items of the shapes {shapes} are joined along axis {axis}, and do not fit") from None


def sequence_split(inputs: Arrays, attributes: Attributes) -> Array:
    """x, sizes or none (one each): a number stands for parts of that size, of which the last may be smaller."""
    x, axis, subject = inputs[0], attributes["axis"], attributes["what"]
    extent = x.shape[axis]
    if len(inputs) < 2 or inputs[1] is None:
        sizes = [1] * extent
    elif inputs[1].ndim == 0:
        size = int(inputs[1])
        if size < 1:
            raise ShapeError(f"{subject} is {size}; the size of parts is 1 or more")
        sizes = [min(size, extent - start) for start in range(0, extent, size)]
    else:
        sizes = [int(size) for size in inputs[1].reshape(-1)]
    if any(size < 0 for size in sizes) or sum(sizes) != extent:
        raise ShapeError(f"{subject} is {sizes}, and dimension {axis} has {extent} elements")
    parts = np.split(x, np.cumsum(sizes)[:-1], axis) if sizes else []
    return listed(parts if attributes["keep"] else [part.squeeze(axis) for part in parts])


def zip_map(inputs: Arrays, attributes: Attributes) -> Array:
    x, keys = inputs[0], inputs[1].tolist()
    rows = [dict(zip(keys, row)) for row in x.reshape(-1, len(keys)).tolist()]  # noqa: B905
    result = np.empty(len(rows), object)
    result[:] = rows
    return result
