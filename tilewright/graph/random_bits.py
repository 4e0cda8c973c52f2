"""Random bits by counter: Philox-4x32 with 10 rounds, the same on every target, and in any order.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import int64
from tilewright.errors import ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types, binary
from tilewright.graph.semantics import Array, Arrays

_ROUNDS = 10  # of Philox-4x32-10
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # of the keys, from round to round
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WORD = np.uint64(32)
_MASK = np.uint64(0xFFFFFFFF)


def random_bits_type(inputs: Inputs, attributes: Attributes) -> Types:
    """64 bits for each place."""
    if any(value is None or value.dtype != int64 for value in inputs):
        raise ShapeError("random_bits: places and seed are i64")
    stream = attributes["stream"]
    if not (type(stream) is int and 0 <= stream < 2**32):
        raise ShapeError(f"random_bits: the stream {str(stream)[:80]} is no number of 32 bits")
    return binary(inputs, attributes)


def random_bits(inputs: Arrays, attributes: Attributes) -> Array:
    """The first two words of Philox with the seed as the key, and place and stream as the counter."""
    place, seed = (np.asarray(item, np.int64).view(np.uint64) for item in inputs)
    place, seed = np.broadcast_arrays(place, seed)
    keys = [seed & _MASK, seed >> _WORD]
    words = [place & _MASK, place >> _WORD, np.full_like(place, attributes["stream"]), np.zeros_like(place)]
    for _ in range(_ROUNDS):
        first, second = words[0] * np.uint64(MULTIPLIERS[0]), words[2] * np.uint64(MULTIPLIERS[1])
        words = [
            second >> _WORD ^ words[1] ^ keys[0],
            second & _MASK,
            first >> _WORD ^ words[3] ^ keys[1],
            first & _MASK,
        ]
        keys = [key + np.uint64(step) & _MASK for key, step in zip(keys, KEY_STEPS, strict=True)]
    return (words[1] << _WORD | words[0]).view(np.int64)
