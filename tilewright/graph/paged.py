"""The graph op `paged_attention`: tokens of several sequences against keys and values in pages, types and meaning.

    query    [tokens, heads, width]           new tokens of all sequences, one sequence after the other
    keys     [slots, key_heads, width]        the pool: slot `page * size + offset` holds one token
    values   [slots, key_heads, value_width]
    tables   [sequences, columns] integers    the pages of each sequence, in the order of its tokens
    starts   [sequences + 1] integers         where each sequence's new tokens begin, and the end of the last
    lengths  [sequences] integers             tokens of each sequence that have keys: those before, and the new ones
    key_scales, value_scales [slots, key_heads] float32, both or none
    result   [tokens, heads, value_width]

Keys and values are of the query's type, or numbers of 8 bits: floats, or int8, which have scales.  What is read is the
number times the scale of its token and head.

The new tokens of a sequence are its last ones: token i of n new ones of a sequence of length l is at position
l - n + i, and sees the keys at positions up to its own, of which `window` (0: all) are the nearest.  A sequence may
have one new token (decoding) or many (a chunk of its prompt).  Scores are `scale q k`, with `softcap` c (0: none)
c tanh(scale q k / c).  A sequence without keys gives zeros; rows of tokens of no sequence may hold
anything: kernels leave them as they are.

Where the graph updates a pool, with `scatter_update`, it writes the new tokens, or slots of no sequence: kernels may
read the tokens before them while the update still runs.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float8e4nv, float8e5, float32, int8
from tilewright.errors import InputError, ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types, optional, value
from tilewright.graph.semantics import Array, Arrays, softmax_array
from tilewright.symbolic import lift, simplify

NARROW_KEYS = (float8e4nv, float8e5, int8)


def paged_attention_types(inputs: Inputs, attributes: Attributes) -> Types:
    """Raises `ShapeError` for inputs that do not fit together, and for a page size that is not positive."""
    query, keys, values, tables, starts, lengths = (value(inputs, index) for index in range(6))
    scales = [optional(inputs, index) for index in (6, 7)]
    if (query.rank, keys.rank, values.rank, tables.rank, starts.rank, lengths.rank) != (3, 3, 3, 2, 1, 1):
        raise ShapeError(f"{query!r}, {keys!r}, {values!r}, {tables!r}, {starts!r}, {lengths!r} have other ranks")
    if not query.dtype.is_float or keys.dtype != values.dtype or keys.dtype not in (query.dtype, *NARROW_KEYS):
        raise ShapeError(f"{query!r}, {keys!r} and {values!r} must be floats of one type, or the last two of 8 bits")
    if (scales[0] is None) != (scales[1] is None) or (keys.dtype == int8 and scales[0] is None):
        raise ShapeError("keys and values have scales, or neither has; those of integers have")
    for scale in scales:
        if scale is not None and (scale.dtype != float32 or scale.shape != keys.shape[:2]):
            raise ShapeError(f"scales {scale!r} are not float32 {keys.shape[:2]}, a number for each token and head")
    if not all(item.dtype.is_integer for item in (tables, starts, lengths)):
        raise ShapeError("tables, starts and lengths are integers")
    heads, key_heads = query.shape[1], keys.shape[1]
    fixed = (heads, key_heads, query.shape[2], values.shape[2])
    if not all(isinstance(size, int) for size in fixed):
        raise ShapeError("heads and widths are known")
    if keys.shape[:2] != values.shape[:2] or keys.shape[2] != query.shape[2] or simplify(lift(heads) % key_heads) != 0:
        raise ShapeError(f"{query!r}, {keys!r} and {values!r} do not fit together")
    if tables.shape[0] != lengths.shape[0] or simplify(lift(starts.shape[0]) - 1) != lengths.shape[0]:
        raise ShapeError(f"{tables!r}, {starts!r} and {lengths!r} are of different numbers of sequences")
    for name, least in (("page", 1), ("window", 0)):
        if type(attributes[name]) is not int or attributes[name] < least:
            raise ShapeError(f"{name} is {attributes[name]!r}, expected a whole number from {least}")
    if not 0 <= attributes["softcap"] < float("inf"):
        raise ShapeError(f"softcap is {attributes['softcap']!r}, expected a finite number from 0")
    return [(query.dtype, (*query.shape[:2], values.shape[2]))]


def paged_attention(inputs: Arrays, attributes: Attributes) -> Array:
    """Sequence by sequence; raises `InputError` for pages, starts and lengths that leave their tensors."""
    query, keys, values, tables, starts, lengths, *scales = inputs
    if keys.dtype != query.dtype:
        keys, values = (pool.astype(np.promote_types(query.dtype, np.float32)) for pool in (keys, values))
    if scales and scales[0] is not None:
        keys, values = (pool * scale[:, :, None] for pool, scale in zip((keys, values), scales, strict=True))
    page, window = attributes["page"], attributes["window"]
    result = np.zeros((*query.shape[:2], values.shape[2]), query.dtype)
    _check(query, keys, tables, starts, lengths, page)
    for number, length in enumerate(lengths.tolist()):
        first, end = int(starts[number]), int(starts[number + 1])
        if end == first or length == 0:
            continue
        slots = (tables[number].astype(np.int64)[:, None] * page + np.arange(page)).reshape(-1)[:length]
        position = np.arange(length - (end - first), length)[:, None]
        place = np.arange(length)[None, :]
        seen = (place <= position) & ((place > position - window) if window else True)
        result[first:end] = _attend(query[first:end], keys[slots], values[slots], seen, attributes)
    return result


def _attend(query: Array, keys: Array, values: Array, seen: Array, attributes: Attributes) -> Array:
    """The tokens of one sequence [n, heads, width] against its keys [l, key_heads, width]."""
    repeat = query.shape[1] // keys.shape[1]
    working = np.promote_types(query.dtype, np.float32)
    query, keys, values = (item.astype(working) for item in (query, keys, values))
    keys, values = np.repeat(keys, repeat, axis=1), np.repeat(values, repeat, axis=1)
    scores = np.einsum("nhw,lhw->hnl", query, keys) * attributes["scale"]
    cap = attributes["softcap"]
    if cap:
        scores = np.tanh(scores / cap) * cap
    scores = np.where(seen[None], scores, -np.inf)
    return np.einsum("hnl,lhw->nhw", softmax_array(scores, -1), values)


def _check(query: Array, keys: Array, tables: Array, starts: Array, lengths: Array, page: int) -> None:
    pages = keys.shape[0] // page
    new = np.diff(starts)
    if starts[0] < 0 or starts[-1] > query.shape[0] or (new < 0).any():
        raise InputError(f"paged_attention: starts {starts.tolist()} do not rise from 0 to {query.shape[0]} tokens")
    if (lengths < new).any() or (lengths > tables.shape[1] * page).any():
        raise InputError(
            f"paged_attention: lengths {lengths.tolist()} are less than the new tokens {new.tolist()}, "
            f"or more than {tables.shape[1]} pages of {page} hold"
        )
    used = np.arange(tables.shape[1])[None, :] * page < lengths[:, None]
    if tables.size and not ((tables >= 0) & (tables < pages))[used].all():
        raise InputError(f"paged_attention: a page number outside of 0..{pages - 1}")
