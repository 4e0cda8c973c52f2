"""Host ops that factor matrices with LAPACK through NumPy, where no fixed number of steps suffices."""

from __future__ import annotations

import numpy as np

from tilewright.errors import ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types, value
from tilewright.graph.semantics import Array, Arrays
from tilewright.symbolic import Size

# By factor: what it is of a matrix [..., m, n], k the smaller of the two.
PARTS = {
    "q": "orthogonal [..., m, k]",
    "r": "upper triangular [..., k, n], a = q r",
    "u": "orthogonal [..., m, k]",
    "s": "singular values [..., k], falling",
    "vh": "orthogonal [..., k, n], a = u s vh",
    "values": "eigenvalues [..., n] of a symmetric matrix, rising",
    "vectors": "its eigenvectors [..., n, n], as columns",
}


def matrix_part_type(inputs: Inputs, attributes: Attributes) -> Types:
    a, part = value(inputs, 0), attributes["part"]
    if a.rank < 2 or not a.dtype.is_float or part not in PARTS:
        raise ShapeError(f"{str(part)[:40]!r} of {a!r}: one of {', '.join(PARTS)} of matrices of floats [..., m, n]")
    *lead, rows, columns = a.shape
    if part in ("values", "vectors") and rows != columns:
        raise ShapeError(f"eigenvalues of {a!r}, which must be square")
    least = _least(rows, columns)
    high, wide = (rows, columns) if attributes["full"] else (least, least)
    shapes: dict[str, tuple[Size, ...]] = {
        "q": (rows, high), "r": (high, columns), "u": (rows, high), "s": (least,), "vh": (wide, columns),
        "values": (columns,), "vectors": (rows, columns),
    }  # fmt: skip
    return [(a.dtype, (*lead, *shapes[part]))]


def _least(rows: Size, columns: Size) -> Size:
    """The smaller side of a matrix; raises `ShapeError` where that depends on the call."""
    if rows == columns:
        return rows
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise ShapeError(f"the smaller of {rows} and {columns}: fix both sides of the matrix, or make it square")
    return min(rows, columns)


def matrix_part(inputs: Arrays, attributes: Attributes) -> Array:
    """Computed in float64; NaN for matrices with NaN or infinity, where LAPACK finds nothing."""
    a, part, full = np.asarray(inputs[0], np.float64), attributes["part"], attributes["full"]
    sound = np.asarray(np.isfinite(a).all((-2, -1)))
    a = np.where(sound[..., None, None], a, 0.0)
    if part in ("q", "r"):
        found = np.linalg.qr(a, "complete" if full else "reduced")[0 if part == "q" else 1]
    elif part in ("u", "vh"):
        found = np.linalg.svd(a, full_matrices=full)[0 if part == "u" else 2]
    elif part == "s":
        found = np.linalg.svd(a, compute_uv=False)
    else:
        found = np.linalg.eigh(a, "U" if attributes["upper"] else "L")[part == "vectors"]
    found = np.where(sound.reshape(sound.shape + (1,) * (found.ndim - sound.ndim)), found, np.nan)
    return found.astype(np.asarray(inputs[0]).dtype)
