"""Host ops that factor matrices with LAPACK, through NumPy: no fixed number of steps suffices, or too many would be
unrolled."""

from __future__ import annotations

import numpy as np

from tilewright.errors import ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types, value
from tilewright.graph.semantics import Array, Arrays
from tilewright.symbolic import Size, minimum

# By factor: what it is of a matrix [..., m, n], k the smaller of the two.
MATRIX_PARTS = {
    "q": "orthogonal [..., m, k]",
    "r": "upper triangular [..., k, n], a = q r",
    "u": "orthogonal [..., m, k]",
    "s": "singular values [..., k], falling",
    "vh": "orthogonal [..., k, n], a = u s vh",
    "values": "eigenvalues [..., n] of a symmetric matrix, rising",
    "vectors": "its eigenvectors [..., n, n], as columns",
    "complex values": "eigenvalues of a square matrix, real and imaginary parts [..., n, 2]",
    "complex vectors": "its eigenvectors, as columns, real and imaginary parts [..., n, n, 2]",
    "values of pairs": "the same of a square matrix of real and imaginary parts [..., n, n, 2]",
    "vectors of pairs": "its eigenvectors, likewise",
    "inverse": "of a square matrix; NaN for a singular one",
    "pivots": "of an elimination in a square matrix, each step's [..., n]",
    "determinant": "[...] of a square matrix",
    "sign": "[...] of the determinant, or 0",
    "logarithm": "[...] of the determinant's size",
    "cholesky": "lower triangular l [..., n, n], a = l lᵀ; NaN from the step on that finds no positive pivot",
}
_OF_PAIRS = ("values of pairs", "vectors of pairs")
_COMPLEX = ("complex values", "complex vectors", *_OF_PAIRS)
_SQUARE = (*_COMPLEX, "values", "vectors", "inverse", "pivots", "determinant", "sign", "logarithm", "cholesky")


def matrix_part_type(inputs: Inputs, attributes: Attributes) -> Types:
    a, part = value(inputs, 0), attributes["part"]
    pairs = part in _OF_PAIRS
    if a.rank < 2 + pairs or not a.dtype.is_float or part not in MATRIX_PARTS or (pairs and a.shape[-1] != 2):
        raise ShapeError(
            f"{str(part)[:40]!r} of {a!r}: one of {', '.join(MATRIX_PARTS)} of matrices of floats [..., m, n]"
        )
    *lead, rows, columns = a.shape[:-1] if pairs else a.shape
    if part in _SQUARE and rows != columns:
        raise ShapeError(f"{part} of {a!r}, which must be square")
    least = minimum(rows, columns)
    high, wide = (rows, columns) if attributes["full"] else (least, least)
    shapes: dict[str, tuple[Size, ...]] = {
        "q": (rows, high), "r": (high, columns), "u": (rows, high), "s": (least,), "vh": (wide, columns),
        "values": (columns,), "vectors": (rows, columns),
        "complex values": (columns, 2), "complex vectors": (rows, columns, 2),
        "values of pairs": (columns, 2), "vectors of pairs": (rows, columns, 2),
        "inverse": (rows, columns), "pivots": (columns,),
        "determinant": (), "sign": (), "logarithm": (), "cholesky": (rows, columns),
    }  # fmt: skip
    return [(a.dtype, (*lead, *shapes[part]))]


def matrix_part(inputs: Arrays, attributes: Attributes) -> Array:
    """Computed in float64; NaN for matrices with NaN or infinity, where LAPACK finds nothing."""
    a, part, full = np.asarray(inputs[0], np.float64), attributes["part"], attributes["full"]
    if part in _OF_PAIRS:
        a = a[..., 0] + 1j * a[..., 1]
    sound = np.asarray(np.isfinite(a).all((-2, -1)))
    a = np.where(sound[..., None, None], a, 0.0)
    if part in ("q", "r"):
        found = np.linalg.qr(a, "complete" if full else "reduced")[0 if part == "q" else 1]
    elif part in ("u", "vh"):
        found = np.linalg.svd(a, full_matrices=full)[0 if part == "u" else 2]
    elif part == "s":
        found = np.linalg.svd(a, compute_uv=False)
    elif part in ("values", "vectors"):
        found = np.linalg.eigh(a, "U" if attributes["upper"] else "L")[part == "vectors"]
    elif part in _COMPLEX:
        found = np.linalg.eig(a)[part in ("complex vectors", "vectors of pairs")]
        found = np.stack([found.real, found.imag], -1)
    elif part == "determinant":
        found = np.linalg.det(a)
    elif part in ("sign", "logarithm"):
        found = np.linalg.slogdet(a)[part == "logarithm"]
    else:
        found = {"inverse": _inverse, "pivots": _pivots, "cholesky": _cholesky}[part](a)
    found = np.where(sound.reshape(sound.shape + (1,) * (found.ndim - sound.ndim)), found, np.nan)
    return found.astype(np.asarray(inputs[0]).dtype)


def _inverse(a: Array) -> Array:
    try:
        return np.linalg.inv(a)
    except np.linalg.LinAlgError:  # of one of them
        if a.ndim == 2:
            return np.full_like(a, np.nan)
        return np.stack([_inverse(each) for each in a])


def _pivots(a: Array) -> Array:
    """The pivots of an elimination that takes the largest element of each column, as LAPACK's does."""
    singular = np.asarray(np.linalg.slogdet(a)[0] == 0)
    a, found = a.copy(), np.ones(a.shape[:-1])
    for step in range(a.shape[-1]):
        best = np.abs(a[..., step:, step]).argmax(-1)[..., None, None] + step
        chosen = np.take_along_axis(a, best, -2)
        np.put_along_axis(a, best, a[..., step : step + 1, :], -2)
        found[..., step] = chosen[..., 0, step]
        divisor = np.where(chosen[..., step : step + 1] == 0, 1, chosen[..., step : step + 1])
        below = a[..., step + 1 :, :]
        below -= a[..., step + 1 :, step : step + 1] / divisor * chosen
    return _agreeing(found, singular)


def _agreeing(pivots: Array, singular: Array) -> Array:
    """One pivot is 0 where LAPACK found one, and none elsewhere: it rounds in another order, and gives the inverse."""
    if not pivots.size:
        return pivots
    least = np.zeros(pivots.shape, bool)
    np.put_along_axis(least, np.abs(pivots).argmin(-1)[..., None], True, -1)
    pivots = np.where(~singular[..., None] & (pivots == 0), np.finfo(np.float64).tiny, pivots)
    return np.where(singular[..., None] & ~(pivots == 0).any(-1, keepdims=True) & least, 0.0, pivots)


def _cholesky(a: Array) -> Array:
    """The upper triangle is not read."""
    try:
        return np.linalg.cholesky(a)
    except np.linalg.LinAlgError:  # of one of them
        factor = np.tril(a)
        with np.errstate(all="ignore"):
            for step in range(a.shape[-1]):
                column = factor[..., step:, step]
                column /= np.sqrt(column[..., :1])
                rest = factor[..., step + 1 :, step + 1 :]
                rest -= column[..., 1:, None] * column[..., None, 1:]
        return np.tril(factor)
