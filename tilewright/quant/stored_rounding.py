"""Rounded weights in this user's cache, so that a long run that was interrupted goes on where it was.

An entry has the weights of one layer, under a key of all that decides them: weights, moments, method, bits and group.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace
from zipfile import BadZipFile

import numpy as np

from tilewright.dtypes import int4
from tilewright.importers.quantized_weights import QuantizedMatrix
from tilewright.quant.rounding import NEAREST, Moments, RoundedWeights, rounded
from tilewright.targets.llvm.cache import CacheEntry, arrays_key, rounded_weights

_VERSION = 1  # of what `rounded` computes: entries of another one are not read
_ARRAYS = ("scales", "zeros", "order", "offsets")  # of a matrix, besides its codes
_MOMENTS = ("lowest", "highest", "total", "magnitudes", "products")


def rounded_once(weights: np.ndarray, bits: int, group: int, method: str, moments: Moments | None) -> RoundedWeights:
    """As `quant.rounding.rounded`; by methods that take long, from the cache if they were rounded before."""
    if method == NEAREST or moments is None:
        return rounded(weights, bits, group, method, moments)
    cache, key = rounded_weights(), _key(weights, bits, group, method, moments)
    found = cache.find(key, lambda entry: _decoded(entry, bits))
    if found is None:
        found = rounded(weights, bits, group, method, moments)
        if cache.put(key, {"depth": found.matrix.depth}, _encoded(found)):
            cache.clean()  # entries are large, and few are written by one process
    return found


def _key(weights: np.ndarray, bits: int, group: int, method: str, moments: Moments) -> str:
    measured = {name: array for name in _MOMENTS if (array := getattr(moments, name)) is not None}
    arrays = arrays_key({"weights": weights, **measured})
    described = f"{_VERSION} {bits} {group} {method} {moments.count} {arrays}"
    return f"rounded-{hashlib.sha256(described.encode()).hexdigest()[:40]}"


def _encoded(found: RoundedWeights) -> bytes:
    arrays = {name: getattr(found.matrix, name) for name in _ARRAYS} | {"factors": found.factors}
    file = io.BytesIO()
    given = {name: array for name, array in arrays.items() if array is not None}
    np.savez(file, codes=found.matrix.codes.astype(np.int8), **given)
    return file.getvalue()


def _decoded(entry: CacheEntry, bits: int) -> RoundedWeights:
    """Raises `ValueError` for what is no entry of this kind."""
    try:
        arrays = dict(np.load(io.BytesIO(entry.image), allow_pickle=False))
    except BadZipFile as error:
        raise ValueError(str(error)) from error
    codes = arrays["codes"].astype(int4.numpy) if bits == 4 else arrays["codes"]
    matrix = QuantizedMatrix(codes, arrays["scales"], depth=int(entry.metadata["depth"]))
    others = {name: arrays[name] for name in _ARRAYS[1:] if name in arrays}
    return RoundedWeights(replace(matrix, **others), arrays.get("factors"))
