"""Sorting, selection and counting, written in the language, so that every target has them.

A bitonic network (K. Batcher, "Sorting networks and their applications", 1968) runs on integer keys whose order is
the wanted one.  Floats are ordered by their bits: -0 before +0, and NaNs, which count as equal, after all numbers
(before them when descending).  With indices the position breaks ties, which makes the sort stable.
"""

# Their bodies are tile language, which Python's type rules do not describe.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False
# mypy: disable-error-code="assignment,attr-defined,operator,arg-type,index"

from __future__ import annotations

from tilewright.language import core, standard
from tilewright.language.function import language_function
from tilewright.language.types import constexpr, constexpr_function, float32, get_int_dtype, int1, int8, int32

_LARGEST_BLOCK = 1 << 20


@constexpr_function
def _signed(dtype):
    """The signed integers as wide as a dtype."""
    return get_int_dtype(dtype.primitive_bitwidth, True)


@constexpr_function
def _largest(dtype):
    """The largest signed integer as wide as a dtype."""
    return (1 << (dtype.primitive_bitwidth - 1)) - 1


@constexpr_function
def _stages(extent):
    """log2 of the extent of the axis, which must be a power of two."""
    if extent & (extent - 1):
        raise core.convert.LanguageError(
            f"sorting needs a power of two of elements along its axis, got {extent}",
            "load a block of the next power of two, the rest filled with a value that sorts last",
        )
    return extent.bit_length() - 1


@constexpr_function
def _position(rank, dim):
    """The axis to sort along: the last one by default."""
    axis = rank - 1 if dim is None else core.shapes.static_int(dim, "dim")
    if not -rank <= axis < rank:
        raise core.convert.LanguageError(
            f"dim {axis} is out of range for a block of rank {rank}", "axes count from 0, or from -1 backwards"
        )
    return axis % rank


@constexpr_function
def _exchanged(rank, axis):
    """The order of axes that exchanges one with the last; its own inverse."""
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return tuple(order)


@constexpr_function
def _lanes_shape(shape):
    return (1,) * (len(shape) - 1) + (shape[-1],)


@language_function
def _lanes(shape):
    """The position of every element along the last axis, as int32."""
    row = core.reshape(core.arange(0, shape[-1]), _lanes_shape(shape))
    return core.broadcast_to(row, shape)


@language_function
def _turned(bits, ones):
    """Between the bits of floats and integers of the same order; its own inverse."""
    return bits ^ ((bits >> (bits.dtype.primitive_bitwidth - 1)) & ones)


@language_function
def _keys(x, descending):
    """Integers in the wanted order, ascending."""
    core.static_assert(x.dtype.is_int() or x.dtype.is_floating(), "only numbers can be sorted")
    if x.dtype.is_floating():
        ones: constexpr = _largest(x.dtype)
        keys = _turned(x.to(_signed(x.dtype), bitcast=True), ones)
        wide = x.to(float32) if x.dtype.primitive_bitwidth < 32 else x
        keys = core.where(wide != wide, core.full(x.shape, ones, keys.dtype), keys)
    elif x.dtype == int1:
        keys = x.to(int8)
    else:
        keys = x
    return ~keys if descending else keys


@language_function
def _values(keys, dtype: constexpr, descending):
    """The inverse of `_keys`."""
    bits = ~keys if descending else keys
    if dtype.is_floating():
        return _turned(bits, _largest(dtype)).to(dtype, bitcast=True)
    else:
        return bits.to(dtype)


@language_function
def _exchange(keys, places, lanes, distance, size, WITH_PLACES: constexpr):
    """Order the pairs of elements `distance` apart: ascending where the bit `size` of the position is 0."""
    partners = lanes ^ distance
    axis: constexpr = len(keys.shape) - 1
    other = core.gather(keys, partners, axis)
    keeps_smaller = ((lanes & distance) == 0) == ((lanes & size) == 0)
    if WITH_PLACES:
        other_places = core.gather(places, partners, axis)
        smaller = (keys < other) | ((keys == other) & (places < other_places))
        stays = smaller == keeps_smaller
        return core.where(stays, keys, other), core.where(stays, places, other_places)
    else:
        return core.where(keeps_smaller, core.minimum(keys, other), core.maximum(keys, other)), places


@language_function
def _merge(keys, places, lanes, stage, size, WITH_PLACES: constexpr):
    """Sort bitonic sequences of ``2**stage`` elements."""
    for step in range(stage):
        keys, places = _exchange(keys, places, lanes, 1 << (stage - 1 - step), size, WITH_PLACES)
    return keys, places


@language_function
def _network(keys, places, WITH_PLACES: constexpr):
    """Sort along the last axis, ascending."""
    lanes = _lanes(keys.shape)
    for stage in range(1, _stages(keys.shape[-1]) + 1):
        keys, places = _merge(keys, places, lanes, stage, 1 << stage, WITH_PLACES)
    return keys, places


@language_function
def _to_last(x, dim):
    return core.permute(x, _exchanged(len(x.shape), _position(len(x.shape), dim)))


@language_function
def sort(x, dim=None, descending=False, return_indices=False):
    """The elements in order along an axis (the last by default) of a power-of-two extent.

    NaNs come last (first when descending).  With `return_indices` also where each element was, as int32; equal
    elements then keep their order.
    """
    moved = _to_last(x, dim)
    places = _lanes(moved.shape) if return_indices else 0
    keys, places = _network(_keys(moved, descending), places, return_indices)
    values = _to_last(_values(keys, x.dtype, descending), dim)
    if return_indices:
        return values, _to_last(places, dim)
    else:
        return values


@language_function
def argsort(x, dim=None, descending=False):
    """The positions, as int32, of the elements in order along an axis; equal elements keep their order."""
    _, places = sort(x, dim, descending, True)
    return places


@language_function
def bitonic_merge(x, dim=None, descending=False):
    """Sort an axis that holds a bitonic sequence: one that rises and then falls, or a rotation of one."""
    moved = _to_last(x, dim)
    stage: constexpr = _stages(moved.shape[-1])
    keys, _ = _merge(_keys(moved, descending), 0, _lanes(moved.shape), stage, moved.shape[-1], False)
    return _to_last(_values(keys, x.dtype, descending), dim)


@constexpr_function
def _rows_of(shape, k):
    return (*shape[:-1], shape[-1] // k, k)


@constexpr_function
def _pairs_of(shape):
    return (*shape[:-2], shape[-2] // 2, 2, shape[-1])


@constexpr_function
def _swapped_last(rank):
    return (*range(rank - 2), rank - 1, rank - 2)


@language_function
def _halves(x):
    """Every other row, and the rows between in reverse order: [..., 2 m, k] to twice [..., m, k]."""
    pairs = core.reshape(x, _pairs_of(x.shape))
    first, second = core.split(core.permute(pairs, _swapped_last(len(pairs.shape))))
    return first, core.flip(second, -1)


@language_function
def _select(keys, places, WITH_PLACES: constexpr):
    """The smallest k of every pair of sorted rows, sorted: [..., 2 m, k] to [..., m, k]."""
    keys, other = _halves(keys)
    if WITH_PLACES:
        places, other_places = _halves(places)
        smaller = (keys < other) | ((keys == other) & (places < other_places))
        keys, places = core.where(smaller, keys, other), core.where(smaller, places, other_places)
    else:
        keys = core.minimum(keys, other)
    stage: constexpr = _stages(keys.shape[-1])
    return _merge(keys, places, _lanes(keys.shape), stage, keys.shape[-1], WITH_PLACES)


@constexpr_function
def _check_count(extent, k):
    """k must be a power of two that fits the axis."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1 or k & (k - 1) or k > extent:
        raise core.convert.LanguageError(
            f"topk gives a power of two of at most {extent} elements, got k = {k}",
            "take the next power of two and mask the rest when storing",
        )
    return k


@language_function
def topk(x, k: constexpr, dim=None, descending=True, return_indices=False):
    """The k largest elements (smallest, with ``descending=False``) along an axis, in order; k is a power of two.

    NaNs count as larger than all numbers.  With `return_indices` also where each was; of equals the first are taken.
    """
    moved = _to_last(x, dim)
    size: constexpr = _check_count(moved.shape[-1], k)
    keys = core.reshape(_keys(moved, descending), _rows_of(moved.shape, size))
    places = core.reshape(_lanes(moved.shape), keys.shape) if return_indices else 0
    keys, places = _network(keys, places, return_indices)
    for _ in core.static_range(_stages(moved.shape[-1] // size)):
        keys, places = _select(keys, places, return_indices)
    values = _to_last(_values(core.squeeze(keys, -2), x.dtype, descending), dim)
    if return_indices:
        return values, _to_last(core.squeeze(places, -2), dim)
    else:
        return values


@constexpr_function
def _chunks(count, bins):
    """Into how many parts values are cut, for a block of parts by bins to stay in the limit."""
    chunks = 1
    while count // chunks * bins > _LARGEST_BLOCK and count % (2 * chunks) == 0:
        chunks *= 2
    return chunks


@language_function
def histogram(input, num_bins: constexpr, mask=None):
    """How many elements of a block of integers equal 0, 1, …, num_bins - 1, as int32; others are not counted.

    Where `mask` is false an element is left out.
    """
    standard.require(
        input.dtype.is_int(),
        f"histogram counts integers, got {input.dtype}",
        "scale the values to numbers of bins and cast them: (x * scale).to(tl.int32)",
    )
    standard.require(len(input.shape) == 1, "histogram needs a block of rank 1", "use tl.ravel")
    bins = core.arange(0, num_bins).to(input.dtype)[None, :]
    chunks: constexpr = _chunks(input.shape[0], num_bins)
    if mask is None:
        counted = core.full(input.shape, True, int1)
    else:
        counted = core.broadcast_to(mask, input.shape)
    if chunks == 1:
        return standard.sum(((input[:, None] == bins) & counted[:, None]).to(int32), 0)
    else:
        counts = core.full((num_bins,), 0, int32)
        values = core.reshape(input, (chunks, input.shape[0] // chunks))
        counted = core.reshape(counted, values.shape)
        for chunk in range(chunks):
            found = (values[chunk][:, None] == bins) & counted[chunk][:, None]
            counts += standard.sum(found.to(int32), 0)
        return counts


METHODS = {"sort": sort, "argsort": argsort, "topk": topk, "histogram": histogram}
