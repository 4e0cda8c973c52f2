"""Ops that the host runs between compiled parts, because the sizes of their results are known only afterwards.

A rule's attribute `shape` (or `size`) names the result's dimensions, fresh symbols among them: whoever runs the node
binds those to what it finds.  The sizes of a reshape, a slice or a range are computed here from small integer
tensors, checked, and become symbols by `extent`; what takes such sizes is compiled as with those of an input.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tilewright.dtypes import DType, int1, int64
from tilewright.errors import InputError, ShapeError
from tilewright.graph.inference import MOST_TENSOR_ELEMENTS, Attributes, Inputs, Types, value
from tilewright.graph.semantics import Array, Arrays
from tilewright.graph.sorting import first_positions

# Types ---------------------------------------------------------------------------------------------


def extent_type(inputs: Inputs, attributes: Attributes) -> Types:
    """A tensor without memory, as long as an element says."""
    _integers(inputs, 0)
    return [(int1, (attributes["size"],))]


def condition_type(inputs: Inputs, attributes: Attributes) -> Types:
    """The boolean itself."""
    if value(inputs, 0).dtype != int1 or value(inputs, 0).shape:
        raise ShapeError(f"{value(inputs, 0)!r} is no boolean without dimensions")
    return [(int1, ())]


def declared(inputs: Inputs, attributes: Attributes) -> Types:
    """The element type of the first input, the shape of the attribute."""
    _one_of(attributes, "mode", ("constant", "reflect", "edge", "wrap"))
    return [(value(inputs, 0).dtype, attributes["shape"])]


def positions(inputs: Inputs, attributes: Attributes) -> Types:
    """Positions: int64 in the shape of the attribute."""
    value(inputs, 0)
    return [(int64, attributes["shape"])]


def values_or_positions(inputs: Inputs, attributes: Attributes) -> Types:
    """Elements of the first input, or int64 positions and counts, as `gives` says."""
    _one_of(attributes, "gives", ("values", "positions", "first", "inverse", "counts"))
    dtype: DType = value(inputs, 0).dtype if attributes["gives"] == "values" else int64
    return [(dtype, attributes["shape"])]


def counted(inputs: Inputs, attributes: Attributes) -> Types:
    """int64 counts of integers, or sums in the element type of the third input."""
    _integers(inputs, 0)
    return [(int64 if len(inputs) < 3 else value(inputs, 2).dtype, attributes["shape"])]


def extents_type(inputs: Inputs, attributes: Attributes) -> Types:
    """A list of `count` sizes."""
    for index in range(len(inputs)):
        _integers(inputs, index)
    return [(int64, (attributes["count"],))]


def number_type(inputs: Inputs, attributes: Attributes) -> Types:
    value(inputs, 0)
    return [(int64, ())]


def _one_of(attributes: Attributes, name: str, known: tuple[str, ...]) -> None:
    if name in attributes and attributes[name] not in known:
        raise ShapeError(f"{name} is {attributes[name]!r}, and must be one of {', '.join(known)}")


def _integers(inputs: Inputs, index: int) -> None:
    found = value(inputs, index)
    if not found.dtype.is_integer:
        raise ShapeError(f"{found!r} is no tensor of integers")


# Sizes ---------------------------------------------------------------------------------------------


def extent(inputs: Arrays, attributes: Attributes) -> Array:
    return without_memory(extent_of(inputs[0], attributes))


def extent_of(numbers: Array, attributes: Attributes) -> int:
    """The number that is a size; raises `ShapeError` for one that is none."""
    number = int(numbers.item(attributes["element"]))
    if not 0 <= number <= MOST_TENSOR_ELEMENTS:
        raise ShapeError(f"{attributes['what']} is {number}; 0 to {MOST_TENSOR_ELEMENTS} are possible")
    return number


@functools.lru_cache(maxsize=256)
def without_memory(count: int) -> Array:
    """So many elements that nobody reads or can write."""
    return np.broadcast_to(np.False_, (count,))


def condition(inputs: Arrays, attributes: Attributes) -> Array:
    """The condition, which holds; raises `InputError`, saying `what` was expected, where it does not."""
    if not bool(np.asarray(inputs[0]).reshape(())):
        raise InputError(f"the numbers in these inputs lead where the engine was not built for: {attributes['what']}")
    return np.array(True)


def resolved_shape(inputs: Arrays, attributes: Attributes) -> Array:
    """A reshape's target: a 0 is the input's own size (unless `allow_zero`), a -1 what is left."""
    target, extents, subject = [int(n) for n in inputs[0].reshape(-1)], list(map(int, inputs[1])), attributes["what"]
    if not attributes["allow_zero"]:
        for axis, size in enumerate(target):
            if size == 0 and axis >= len(extents):
                raise ShapeError(f"{subject} is {target}: its 0 stands for dimension {axis}, which {extents} has not")
        target = [extents[axis] if size == 0 else size for axis, size in enumerate(target)]
    total, rest = math.prod(extents), math.prod(size for size in target if size != -1)
    if any(size < -1 for size in target) or target.count(-1) > 1:
        raise ShapeError(f"{subject} is {target}: sizes are 0 or more, and one may be -1")
    if -1 in target and (rest == 0 or total % rest):
        raise ShapeError(f"{subject} is {target}: nothing in the place of -1 gives the {total} elements of {extents}")
    if -1 not in target and rest != total:
        raise ShapeError(f"{subject} is {target}, which has {rest} elements; the input {extents} has {total}")
    return np.array([total // rest if size == -1 else size for size in target], np.int64)


def broadcast_extents(inputs: Arrays, attributes: Attributes) -> Array:
    """The sizes that a tensor of the second list's sizes has when it is stretched to the first's."""
    target, extents = (item.reshape(-1).tolist() for item in inputs)
    return np.array(_common_extents(target, extents, attributes["what"]), np.int64)


def _common_extents(target: list[int], extents: list[int], subject: str) -> list[int]:
    """The sizes that two shapes are stretched to; raises `ShapeError` for ones that do not go together."""
    if target == extents:
        shape = target
    else:
        rank = max(len(target), len(extents))
        pairs = zip([1] * (rank - len(target)) + target, [1] * (rank - len(extents)) + extents, strict=True)
        shape = [own if size in (own, 1) else size if own == 1 else -1 for own, size in pairs]
        if -1 in shape:
            raise ShapeError(f"{subject} is {target}, to which {extents} does not broadcast")
    _check_elements(subject, shape)
    return shape


def range_count(inputs: Arrays, attributes: Attributes) -> Array:
    """How many elements start, start + step, ... lie before the limit."""
    start, limit, step = (item.reshape(()).item() for item in inputs)
    exact = isinstance(start, int)
    steps = math.nan if step == 0 else -((start - limit) // step) if exact else (limit - start) / step
    if not all(map(math.isfinite, (start, limit, step, steps))):
        raise ShapeError(f"{attributes['what']}: a range from {start} to {limit} in steps of {step} has no length")
    count = math.ceil(steps)
    _check_elements(attributes["what"], [count])
    return np.array(max(0, count), np.int64)


def inserted_extents(inputs: Arrays, attributes: Attributes) -> Array:
    """The sizes with ones at the axes of the result."""
    extents, rank = list(map(int, inputs[0])), len(inputs[0]) + len(inputs[1].reshape(-1))
    axes, rest = _axes(inputs[1], rank, attributes), iter(extents)
    return np.array([1 if axis in axes else next(rest) for axis in range(rank)], np.int64)


def removed_extents(inputs: Arrays, attributes: Attributes) -> Array:
    """The sizes without those at the axes, which must be one unless `reduced`; ones in their place with `keep`."""
    extents = list(map(int, inputs[0]))
    axes = _axes(inputs[1], len(extents), attributes)
    for axis in axes:
        if extents[axis] != 1 and not attributes["reduced"]:
            raise ShapeError(f"{attributes['what']}: dimension {axis} of {extents} is not 1 and cannot go")
    remaining = [
        1 if axis in axes else size for axis, size in enumerate(extents) if attributes["keep"] or axis not in axes
    ]
    return np.array(remaining, np.int64)


def _check_elements(subject: str, shape: Iterable[int]) -> None:
    """Raise `ShapeError` for a tensor of more elements than are supported."""
    sizes = list(shape)
    if math.prod(sizes) > MOST_TENSOR_ELEMENTS:
        raise ShapeError(f"{subject}: a tensor of shape {sizes} has more than {MOST_TENSOR_ELEMENTS} elements")


def _axes(array: Array, rank: int, attributes: Attributes) -> list[int]:
    """Axes counted from the front; raises `ShapeError` for ones that repeat or that a tensor does not have."""
    given = [int(n) for n in np.asarray(array).reshape(-1)]
    axes = [axis % rank if rank and -rank <= axis < rank else -1 for axis in given]
    if -1 in axes or len(set(axes)) != len(axes):
        raise ShapeError(f"{attributes['what']} is {given}: each must be one of -{rank}..{rank - 1}, none twice")
    return axes


# Movement ------------------------------------------------------------------------------------------


def broadcast_at(inputs: Arrays, attributes: Attributes) -> Array:
    x, target = inputs[0], inputs[1].reshape(-1).tolist()
    extents = list(x.shape)
    if target == extents:
        return x  # as nearly always, where two sizes could differ
    result = np.empty(_common_extents(target, extents, attributes["what"]), x.dtype)
    result[...] = x  # contiguous, as compiled parts read it
    return result


def axes_last(inputs: Arrays, attributes: Attributes) -> Array:
    """The dimensions at the axes, moved after the others, as one."""
    x = inputs[0]
    axes = _axes(inputs[1], x.ndim, attributes)
    other_axes = [axis for axis in range(x.ndim) if axis not in axes]
    count = math.prod(x.shape[axis] for axis in axes)
    return x.transpose([*other_axes, *sorted(axes)]).reshape([*(x.shape[axis] for axis in other_axes), count])


def last_axis_at(inputs: Arrays, attributes: Attributes) -> Array:
    """The last dimension in the place of the axis."""
    x = inputs[0]
    (axis,) = _axes(inputs[1], x.ndim, attributes)
    return np.moveaxis(x, -1, axis)


def slice_at(inputs: Arrays, attributes: Attributes) -> Array:
    """x, starts, ends, axes or none, steps or none: Python's slices, but backwards from the first element at least."""
    x, starts, ends, given, steps = [*inputs, None, None][:5]
    count = len(starts)
    axes = list(range(count)) if given is None else _axes(given, x.ndim, attributes)
    jumps = [1] * count if steps is None else list(map(int, steps))
    if not (len(ends) == len(axes) == len(jumps) == count <= x.ndim) or 0 in jumps:
        raise ShapeError(f"{attributes['what']}: {count} starts, {len(ends)} ends, axes {axes}, steps {jumps}")
    window: list[slice] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(map(int, starts), map(int, ends), axes, jumps, strict=True):
        stop = None if step < 0 and end < -x.shape[axis] else end
        first = max(start, 0) if step < 0 and start < -x.shape[axis] else start
        window[axis] = slice(first, stop, step)
    return x[tuple(window)]


def pad_at(inputs: Arrays, attributes: Attributes) -> Array:
    """x, pads, value or none, axes or none; negative pads cut."""
    x, pads, number, given = [*inputs, None, None][:4]
    axes = list(range(x.ndim)) if given is None else _axes(given, x.ndim, attributes)
    numbers = list(map(int, pads.reshape(-1)))
    if len(numbers) != 2 * len(axes):
        raise ShapeError(f"{attributes['what']}: there are {len(numbers)} pads for {len(axes)} dimensions")
    width = [(0, 0)] * x.ndim
    for place, axis in enumerate(axes):
        low, high = numbers[place], numbers[place + len(axes)]
        cut = x.shape[axis] - max(0, -low) - max(0, -high)
        if cut < 0 or (cut == 0 and (low > 0 or high > 0) and attributes["mode"] != "constant"):
            raise ShapeError(
                f"{attributes['what']}: the pads {low} and {high} do not fit the {x.shape[axis]} elements of "
                f"dimension {axis} in mode {attributes['mode']!r}"
            )
        x = x[(slice(None),) * axis + (slice(max(0, -low), x.shape[axis] - max(0, -high)),)]
        width[axis] = (max(0, low), max(0, high))
    _check_elements(attributes["what"], (n + low + high for n, (low, high) in zip(x.shape, width, strict=True)))
    if attributes["mode"] != "constant":
        return np.pad(x, width, attributes["mode"])
    fill = x.dtype.type(0) if number is None else np.asarray(number).reshape(())
    result = np.full([n + low + high for n, (low, high) in zip(x.shape, width, strict=True)], fill, x.dtype)
    result[tuple(slice(low, low + n) for n, (low, _) in zip(x.shape, width, strict=True))] = x
    return result


# Choices that depend on data -------------------------------------------------------------------------


def nonzero(inputs: Arrays, attributes: Attributes) -> Array:
    """Positions of the elements that are not zero: [rank, how many], in row-major order."""
    x = inputs[0]
    if x.ndim == 1:
        return x.nonzero()[0].astype(np.int64, copy=False)[None]
    found = np.nonzero(np.atleast_1d(x))
    return np.array(found, np.int64).reshape(len(found), -1)[: x.ndim]


def compress(inputs: Arrays, attributes: Attributes) -> Array:
    x, condition, axis = inputs[0], inputs[1].reshape(-1), attributes["axis"]
    if len(condition) > x.shape[axis]:
        raise ShapeError(f"a condition of {len(condition)} elements for {x.shape[axis]} along axis {axis}")
    return np.take(x, np.flatnonzero(condition), axis=axis)


def unique(inputs: Arrays, attributes: Attributes) -> Array:
    """Slices along `axis` that differ: they, their first places, the place of each slice among them, or how many."""
    x, axis = inputs[0], attributes["axis"]
    if x.dtype == object:  # text: the place of each element in their order, which compares in its place
        plain = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    else:
        plain = x if x.dtype.kind in "biuf" else x.astype(np.float32)  # NumPy sorts no formats of its own
    first, inverse, counts = _different(np.moveaxis(plain, axis, 0), attributes)
    if not attributes["sorted"]:  # in the order of their first places
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        first, counts, inverse = first[order], counts[order], place[inverse]
    if attributes["gives"] == "values":
        return np.take(x, first, axis=axis)
    return {"first": first, "inverse": inverse, "counts": counts}[attributes["gives"]].astype(np.int64)


def _different(rows: Array, attributes: Attributes) -> tuple[Array, Array, Array]:
    """Of different rows the first places, the place of each row among them, and how many of each there are.

    With `consecutive` only neighbours are compared. NaN is equal to itself with `nan_equal`.
    """
    if not attributes["consecutive"]:
        if rows.ndim == 1:
            _, first, inverse, counts = np.unique(
                rows, return_index=True, return_inverse=True, return_counts=True, equal_nan=attributes["nan_equal"]
            )
            return first, inverse.reshape(-1), counts
        columns = rows.reshape(len(rows), math.prod(rows.shape[1:])).T[::-1]  # -1 has no meaning without rows
        order = np.lexsort(columns) if len(columns) else np.arange(len(rows))
    else:
        order = np.arange(len(rows))
    new = _begins(rows[order], attributes["nan_equal"])
    inverse = np.empty(len(rows), np.int64)
    inverse[order] = np.cumsum(new) - 1
    return order[new], inverse, np.diff([*np.flatnonzero(new), len(rows)])


def _begins(rows: Array, nan_equal: bool) -> Array:
    """Whether each row differs from the one before it."""
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    other = flat[1:] != flat[:-1]
    if nan_equal and rows.dtype.kind == "f":
        other &= ~(np.isnan(flat[1:]) & np.isnan(flat[:-1]))
    return np.concatenate([np.ones(min(1, len(flat)), np.bool_), other.any(1)])


def repeated_positions(inputs: Arrays, attributes: Attributes) -> Array:
    """Each position of a list of counts, as often as it says."""
    repeats = inputs[0].reshape(-1)
    if (repeats < 0).any():
        raise ShapeError(f"the repeats are as low as {repeats.min()}; they must be 0 or more")
    return np.repeat(np.arange(len(repeats), dtype=np.int64), repeats)


def occurrences(inputs: Arrays, attributes: Attributes) -> Array:
    """How often each number from 0 on appears, or the sums of the weights; at least as long as the second input."""
    x, least, weights = [*inputs, None][:3]
    if x.size and x.min() < 0:
        raise ShapeError(f"the numbers to count are as low as {x.min()}; they must be 0 or more")
    return np.bincount(x.reshape(-1), weights, int(least.reshape(-1)[0]))


def top_k(inputs: Arrays, attributes: Attributes) -> Array:
    """The k largest or smallest along `axis` in their order, of equal ones the first first."""
    x, axis, k = inputs[0], attributes["axis"], int(np.asarray(inputs[1]).reshape(-1)[0])
    if not 0 <= k <= x.shape[axis]:
        raise ShapeError(f"{attributes['what']} is {k}, and dimension {axis} has {x.shape[axis]} elements")
    order = np.moveaxis(first_positions(np.moveaxis(x, axis, -1), attributes["largest"], k), -1, axis)
    return order if attributes["gives"] == "positions" else np.take_along_axis(x, order, axis)


def coupled_type(inputs: Inputs, attributes: Attributes) -> Types:
    """Probabilities [N, C] from those of pairs [N, C, C]."""
    pairs = value(inputs, 0)
    if pairs.rank != 3 or pairs.shape[1] != pairs.shape[2] or not pairs.dtype.is_float:
        raise ShapeError(f"{pairs!r} must be floats of the shape [N, C, C]")
    return [(pairs.dtype, pairs.shape[:2])]


def coupled_probabilities(inputs: Arrays, attributes: Attributes) -> Array:
    """Probabilities of classes whose ratios fit those of every pair best: pairs [N, C, C] has the probability of the
    first class where it is one of the two.  The method of libsvm (Wu, Lin, Weng 2004), with its number of rounds and
    its bound."""
    pairs = inputs[0]
    kinds = pairs.shape[1]
    turned = np.swapaxes(pairs, 1, 2)
    off = 1 - np.eye(kinds, dtype=pairs.dtype)
    matrix = -turned * pairs * off
    matrix += np.eye(kinds, dtype=pairs.dtype) * (turned * turned * off).sum(2)[:, :, None]
    found = np.full(pairs.shape[:2], 1 / kinds, pairs.dtype)
    rows = np.arange(len(pairs))  # those that are not done
    for _ in range(100):
        products = np.einsum("nij,nj->ni", matrix[rows], found[rows])
        total = (found[rows] * products).sum(1)
        open_ = np.abs(products - total[:, None]).max(1, initial=0) >= 0.005 / kinds
        rows, products, total = rows[open_], products[open_], total[open_]
        if not rows.size:
            break
        for kind in range(kinds):
            line = matrix[rows, kind]
            step = (total - products[:, kind]) / line[:, kind]
            found[rows, kind] += step
            total = (total + step * (step * line[:, kind] + 2 * products[:, kind])) / (1 + step) ** 2
            products = (products + step[:, None] * line) / (1 + step)[:, None]
            found[rows] /= (1 + step)[:, None]
    return found


def warping_path(inputs: Arrays, attributes: Attributes) -> Array:
    """Row and column [2, n] of each point of the cheapest path from the first to the last element of a matrix of costs.

    It goes on by a row, a column or both; a point's costs are summed in the type of the matrix.  Of equally cheap
    points before it, that of the column before is chosen.
    """
    costs = inputs[0]
    rows, columns = costs.shape
    totals = np.full((rows + 1, columns + 1), np.inf, costs.dtype)
    totals[0, 0] = 0
    diagonal_step = np.zeros((rows + 1, columns + 1), bool)
    above = np.zeros_like(diagonal_step)
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        corner, upper, left = totals[i - 1, j - 1], totals[i - 1, j], totals[i, j - 1]
        diagonal_step[i, j] = (corner < upper) & (corner < left)
        above[i, j] = (upper < corner) & (upper < left)
        before = np.where(diagonal_step[i, j], corner, np.where(above[i, j], upper, left))
        totals[i, j] = before + costs[i - 1, j - 1]
    i, j, path = rows, columns, []
    while i and j:
        path.append((i - 1, j - 1))
        step = diagonal_step[i, j]
        i, j = i - int(step or above[i, j]), j - int(step or not above[i, j])
    return np.array(path[::-1], np.int64).reshape(-1, 2).T


def non_max_suppression(inputs: Arrays, attributes: Attributes) -> Array:
    """[batch, class, box] of the boxes kept: boxes [B, N, 4], scores [B, C, N], most of a class, the largest share of
    an overlap, the least score (each a number or none)."""
    boxes, scores, most, share, least = [*inputs, None, None, None][:5]
    limit = 0 if most is None else int(np.asarray(most).reshape(-1)[0])
    threshold = 0.0 if share is None else float(np.asarray(share).reshape(-1)[0])
    floor = -math.inf if least is None else float(np.asarray(least).reshape(-1)[0])
    corners = _corners(boxes.astype(np.float64), attributes["center"])
    found: list[tuple[int, int, int]] = []
    for batch in range(scores.shape[0]):
        for kind in range(scores.shape[1]):
            row = scores[batch, kind].astype(np.float64)
            above = np.flatnonzero(row > floor)
            order = above[np.argsort(-row[above], kind="stable")]
            found += [(batch, kind, box) for box in _boxes_apart(corners[batch], order, limit, threshold)]
    return np.array(found, np.int64).reshape(-1, 3)


_BOXES = 64  # that are compared with each other at once
_CORNERS = ((np.maximum, slice(0, 2)), (np.minimum, slice(2, 4)))  # of an intersection: its low one, its high one


def _boxes_apart(corners: Array, order: Array, limit: int, threshold: float) -> list[int]:
    """The boxes in this order that overlap none kept before by more than a share, at most `limit`."""
    chosen: list[int] = []
    for begin in range(0, len(order), _BOXES):
        if len(chosen) >= limit:
            break
        block = order[begin : begin + _BOXES]
        if chosen:
            block = block[(_overlaps(corners[block], corners[chosen]) <= threshold).all(1)]
        apart = _overlaps(corners[block], corners[block]) <= threshold
        free = np.ones(len(block), bool)
        for place, box in enumerate(block.tolist()):
            if free[place] and len(chosen) < limit:
                chosen.append(box)
                free &= apart[place]
    return chosen


def _corners(boxes: Array, center: bool) -> Array:
    """Boxes as (low, low, high, high), from two opposite corners or from centre and size."""
    if center:
        middle, half = boxes[..., :2], boxes[..., 2:] / 2
        return np.concatenate([middle - half, middle + half], -1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _overlaps(boxes: Array, others: Array) -> Array:
    """Intersection over union of each box with each of others."""
    low, high = (function(boxes[:, None, part], others[:, part]) for function, part in _CORNERS)
    sides = np.maximum(0.0, high - low)
    common = sides[..., 0] * sides[..., 1]
    areas = [(each[:, 2] - each[:, 0]) * (each[:, 3] - each[:, 1]) for each in (boxes, others)]
    total = areas[0][:, None] + areas[1] - common
    return np.divide(common, total, out=np.zeros_like(common), where=total > 0)


# Parts and bodies ------------------------------------------------------------------------------------


def given_types(inputs: Inputs, attributes: Attributes) -> Types:
    """What a part or a body gives, as its attribute `types` says."""
    return [(dtype, tuple(shape)) for dtype, shape in attributes["types"]]


def only_run(inputs: Arrays, attributes: Attributes) -> Any:
    raise AssertionError("parts and bodies are run by the evaluator")
