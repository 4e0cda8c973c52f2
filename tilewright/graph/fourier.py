"""The graph op `fourier`: discrete Fourier transforms of the rows of a tensor, types and meaning.

    x          [..., n] the real parts of the numbers, or all they have
    roots      [n, 2]   cos and sin of 2 pi k / n (`roots_of_unity`)
    imaginary  [..., n] optional

`form` says what is given and what is wanted; the sum over j is of x[j] exp(-2 pi i j k / n), without the sign for
`inverse`, never divided by anything.  The parts of the result stand side by side, all real ones first:

    half   the first n // 2 + 1 numbers             [..., 2 (n // 2 + 1)]
    whole  all n                                    [..., 2 n]
    real   an inverse with a real result; given are the first n // 2 + 1 numbers, of which the imaginary parts
           of the first, and of the last of an even n, do not count                                   [..., n]
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tilewright.dtypes import DType, float32, float64
from tilewright.errors import ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types, optional, value

TRANSFORM_FORMS = ("half", "whole", "real")
LARGEST_PRIME = 13  # that a length may have for its transform to be made of small ones
SHORTEST_TRANSFORM = 16  # numbers of a transform, below which it is a product
LONGEST_DOUBLE = (
    64  # numbers of one whose product is computed in float64, which costs nothing there and keeps zeros small
)
MOST_COSINES = 1 << 26  # cosines of a product
LONGEST_TRANSFORM = 1 << 20  # numbers of a transform: elements of a block


def half(length: int) -> int:
    """How many numbers of the transform of real ones the others follow from."""
    return length // 2 + 1


def roots_of_unity(length: int, dtype: DType) -> np.ndarray:
    """cos and sin of 2 pi k / length for all k, [length, 2], each rounded once; zeros and ones are exact."""
    steps = np.arange(length)
    angle = 2 * np.pi * steps / length
    sines = np.where(2 * steps % length == 0, 0.0, np.sin(angle))  # half a turn is none of sin's arguments
    cosines = np.where(4 * steps % (2 * length) == length, 0.0, np.cos(angle))
    return np.stack([cosines, sines], axis=1).astype(dtype.numpy)


@cache
def prime_factors(length: int) -> tuple[int, ...]:
    """In rising order."""
    found, factor = [], 2
    while factor * factor <= length:
        while length % factor == 0:
            found.append(factor)
            length //= factor
        factor += 1
    return (*found, length) if length > 1 else tuple(found)


def is_product(length: int) -> bool:
    """Whether transforms of a length are products on every target: short ones, and those of large prime factors."""
    return length < SHORTEST_TRANSFORM or prime_factors(length)[-1] > LARGEST_PRIME


def fourier_types(inputs: Inputs, attributes: Attributes) -> Types:
    """Raises `ShapeError` for an unknown form, and for inputs that do not fit together."""
    x, roots = value(inputs, 0), value(inputs, 1)
    imaginary, form = optional(inputs, 2), attributes["form"]
    length = roots.shape[0]
    if form not in TRANSFORM_FORMS or not isinstance(length, int) or roots.shape != (length, 2) or length < 1:
        raise ShapeError(f"a transform of the form {form!r} with the roots {roots!r}")
    given = half(length) if form == "real" else length
    if x.dtype not in (float32, float64) or x.rank < 1 or x.shape[-1] != given:
        raise ShapeError(f"{x!r} must be float32 or float64, with {given} numbers in a row")
    if roots.dtype != x.dtype or (imaginary is not None and (imaginary.dtype, imaginary.shape) != (x.dtype, x.shape)):
        raise ShapeError(f"the roots, or the imaginary parts, of {x!r} have another type or shape")
    columns = {"half": 2 * half(length), "whole": 2 * length, "real": length}[form]
    return [(x.dtype, (*x.shape[:-1], columns))]


def fourier(inputs: Any, attributes: Attributes) -> np.ndarray:
    """The meaning, computed in float64."""
    x, roots, imaginary = [*inputs, None][:3]
    length, form = len(roots), attributes["form"]
    numbers = x.astype(np.float64) if imaginary is None else x + 1j * imaginary.astype(np.float64)
    if form == "real":
        return np.asarray(np.fft.irfft(numbers, length, norm="forward"), x.dtype)
    if attributes["inverse"]:
        found = np.fft.ifft(numbers, norm="forward")
    elif imaginary is None and form == "half":
        found = np.fft.rfft(numbers)  # whose imaginary zeros are positive
    else:
        found = np.fft.fft(numbers)
    spectrum = found[..., : half(length)] if form == "half" else found
    return np.concatenate([spectrum.real, spectrum.imag], axis=-1).astype(x.dtype)
