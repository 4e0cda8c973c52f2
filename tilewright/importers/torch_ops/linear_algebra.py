"""Linear algebra of matrices, distances between rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.dtypes import float64, int32, int64
from tilewright.graph.core import Value
from tilewright.graph.inference import broadcast_shapes
from tilewright.importers import matrices
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import TorchCall, nothing
from tilewright.symbolic import Size, lift, maximum, simplify

TABLE = RuleTable("Linear algebra", "aten.")
rule = TABLE.rule

TABLE.add("_linalg_check_errors.default", nothing)


def _transposed(call: TorchCall, x: Value) -> Value:
    return call.transpose(x, x.rank - 2, x.rank - 1)


def _first(call: TorchCall, failed: Value) -> Value:
    """PyTorch's `info` [...] of LAPACK: which of the steps [..., n], counted from 1, is the first that failed, or 0."""
    steps, last = failed.shape[-1], (failed.rank - 1,)
    none = call.value(simplify(lift(steps) + 1), int64)
    places = call.op("where", failed, call.op("add", call.iota(steps), 1), none)
    first = call.op("reduce_min", places, axes=last, keepdims=False)
    return call.cast(call.op("remainder", first, none), int32)


@rule("linalg_inv_ex.default")
def inverse_and_info(call: TorchCall, a: Value, check_errors: bool = False) -> tuple[Value, Value]:
    found, pivots = matrices.inverse(call, a)
    return found, _first(call, call.op("equal", pivots, 0.0))


@rule("inverse.default", "linalg_inv.default")
def inverse(call: TorchCall, a: Value) -> Value:
    return matrices.inverse(call, a)[0]


@rule("_linalg_solve_ex.default")
def solve(
    call: TorchCall, a: Value, b: Value, left: bool = True, check_errors: bool = False
) -> tuple[Value, None, None, Value]:
    vector = b.rank == a.rank - 1 and call.shape == b.shape and (a.rank == 2 or b.shape == a.shape[:-1])
    right = call.unsqueeze(b, -1) if vector else b
    if left or vector:
        found, pivots = matrices.solve(call, a, right)
    else:
        found, pivots = matrices.solve(call, _transposed(call, a), _transposed(call, right))
        found = _transposed(call, found)
    own = (1,) * (pivots.rank - a.rank + 1) + a.shape[:-2]  # those of a, which may have been stretched
    for axis, size in enumerate(own):
        pivots = call.slice(pivots, axis, 0, size)
    failed = call.op("equal", call.reshape(pivots, (*a.shape[:-2], pivots.shape[-1])), 0.0)
    return call.reshape(found, call.shape), None, None, _first(call, failed)


@rule("_linalg_det.default")
def determinant(call: TorchCall, a: Value) -> tuple[Value, None, None]:
    return matrices.determinant(call, a), None, None


@rule("linalg_det.default")
def determinant_alone(call: TorchCall, a: Value) -> Value:
    return matrices.determinant(call, a)


@rule("_linalg_slogdet.default")
def logarithm_of_determinant(call: TorchCall, a: Value) -> tuple[Value, Value, None, None]:
    return *matrices.logarithm_of_determinant(call, a), None, None


@rule("linalg_lu_factor_ex.default")
def factors_and_pivots(
    call: TorchCall, a: Value, pivot: bool = True, check_errors: bool = False
) -> tuple[Value, Value, Value]:
    """L and U in one matrix, and LAPACK's pivots, which count from 1."""
    found, places = matrices.lower_upper(call, a, pivot)
    zero = call.op("equal", matrices.diagonal(call, found), 0.0)
    return found, call.cast(call.op("add", places, 1), int32), _first(call, zero)


@rule("linalg_lu.default")
def factors(call: TorchCall, a: Value, pivot: bool = True) -> tuple[Value, Value, Value]:
    """P, L, U of P L U = a; without pivots P is empty."""
    found, places = matrices.lower_upper(call, a, pivot)
    rows = a.shape[-2]
    permutation = _permutation(call, places, rows) if pivot else call.full((0,), 0.0, a.dtype)
    return (call.cast(permutation, a.dtype), *_lower_and_upper(call, found))


@rule("lu_unpack.default")
def unpacked_factors(
    call: TorchCall, packed: Value, pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Value, Value, Value]:
    nothing_ = call.full((0,), 0.0, packed.dtype)
    lower, upper = _lower_and_upper(call, packed) if unpack_data else (nothing_, nothing_)
    if not unpack_pivots:
        return nothing_, lower, upper
    places = call.op("subtract", call.cast(pivots, int64), 1)
    return call.cast(_permutation(call, places, packed.shape[-2]), packed.dtype), lower, upper


@rule("linalg_lu_solve.default")
def solve_by_factors(
    call: TorchCall, packed: Value, pivots: Value, b: Value, left: bool = True, adjoint: bool = False
) -> Value:
    """x of a x = b (x a = b), where P L U is a, or its transpose with `adjoint`."""
    if not left:
        turned = solve_by_factors(call, packed, pivots, _transposed(call, b), True, not adjoint)
        return _transposed(call, turned)
    lead = broadcast_shapes(packed.shape[:-2], b.shape[:-2])
    packed, b = (call.broadcast(item, (*lead, *item.shape[-2:])) for item in (packed, b))
    places = call.op("subtract", call.cast(pivots, int64), 1)
    permutation = call.cast(_permutation(call, places, packed.shape[-2]), packed.dtype)
    if adjoint:
        half = matrices.solve_triangular(call, _transposed(call, packed), b, upper=False)
        found = matrices.solve_triangular(call, _transposed(call, packed), half, upper=True, unit=True)
        return call.op("matmul", permutation, found)
    b = call.op("matmul", _transposed(call, permutation), b)
    half = matrices.solve_triangular(call, packed, b, upper=False, unit=True)
    return matrices.solve_triangular(call, packed, half, upper=True)


def _lower_and_upper(call: TorchCall, packed: Value) -> tuple[Value, Value]:
    """L [..., m, k] with its ones, and U [..., k, n]."""
    rows, columns = packed.shape[-2:]
    assert isinstance(rows, int) and isinstance(columns, int)
    least = min(rows, columns)
    lower = call.keep_triangle(call.slice(packed, packed.rank - 1, 0, least), -1, upper=False)
    ones = call.constant(np.eye(rows, least, dtype=packed.dtype.numpy), "ones")
    upper = call.keep_triangle(call.slice(packed, packed.rank - 2, 0, least), 0, upper=True)
    return call.op("add", lower, ones), upper


def _permutation(call: TorchCall, places: Value, rows: Size) -> Value:
    """The matrix P [..., m, m] that undoes the swaps: its column i has its one in the row that came to stand at i."""
    assert isinstance(rows, int)
    order = matrices.order_after(call, places, rows)
    return call.op("equal", call.unsqueeze(call.iota(rows), 1), call.unsqueeze(order, order.rank - 1))


@rule("linalg_cholesky_ex.default")
def cholesky_and_info(
    call: TorchCall, a: Value, upper: bool = False, check_errors: bool = False
) -> tuple[Value, Value]:
    factor = matrices.cholesky(call, a, upper)
    positive = call.op("greater", matrices.diagonal(call, factor), 0.0)
    return factor, _first(call, call.op("not_equal", positive, True))


@rule("cholesky.default", "linalg_cholesky.default")
def cholesky(call: TorchCall, a: Value, upper: bool = False) -> Value:
    return matrices.cholesky(call, a, upper)


@rule("cholesky_solve.default")
def cholesky_solve(call: TorchCall, b: Value, factor: Value, upper: bool = False) -> Value:
    """x of L Lᵀ x = b, or of Uᵀ U x = b."""
    lower = _transposed(call, factor) if upper else factor
    half = matrices.solve_triangular(call, lower, b, upper=False)
    return matrices.solve_triangular(call, _transposed(call, lower), half, upper=True)


@rule("linalg_solve_triangular.default")
def solve_triangular(
    call: TorchCall, a: Value, b: Value, upper: bool = False, left: bool = True, unitriangular: bool = False
) -> Value:
    if left:
        return matrices.solve_triangular(call, a, b, upper, unitriangular)
    turned = matrices.solve_triangular(call, _transposed(call, a), _transposed(call, b), not upper, unitriangular)
    return _transposed(call, turned)


@rule("triangular_solve.default")
def old_solve_triangular(
    call: TorchCall, b: Value, a: Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Value, Value]:
    matrix = _transposed(call, a) if transpose else a
    return matrices.solve_triangular(call, matrix, b, upper != transpose, unitriangular), a


@rule("cholesky_inverse.default")
def inverse_of_cholesky(call: TorchCall, factor: Value, upper: bool = False) -> Value:
    """The inverse of L Lᵀ, or of Uᵀ U; one triangle of the factor is read."""
    lower = _transposed(call, factor) if upper else factor
    identity = call.cast(matrices.identity(call, matrices.order_of(lower)), lower.dtype)
    half = matrices.solve_triangular(call, lower, call.broadcast(identity, lower.shape), upper=False)
    return call.op("matmul", _transposed(call, half), half)


@rule("linalg_matrix_exp.default")
def matrix_exponential(call: TorchCall, a: Value) -> Value:
    return matrices.exponential(call, a)


def _part(call: TorchCall, a: Value, part: str, **more: Any) -> Value:
    if not a.dtype.is_float:
        raise Unsupported(f"the factors of a matrix of {a.dtype}", "use real floating-point numbers")
    return call.op("matrix_part", a, part=part, **more)


@rule("_linalg_svd.default")
def singular_values(
    call: TorchCall, a: Value, full_matrices: bool = False, compute_uv: bool = True, driver: Any = None
) -> tuple[Value | None, Value, Value | None]:
    """u [..., m, k], s [..., k], vh [..., k, n]; of the signs of vectors, those that LAPACK gives."""
    found = _part(call, a, "s")
    if not compute_uv:
        return None, found, None
    return _part(call, a, "u", full=full_matrices), found, _part(call, a, "vh", full=full_matrices)


@rule("_linalg_eigh.default")
def eigenvalues(call: TorchCall, a: Value, uplo: str = "L", compute_v: bool = True) -> tuple[Value, Value | None]:
    upper = uplo.upper() == "U"
    found = _part(call, a, "values", upper=upper)
    return found, _part(call, a, "vectors", upper=upper) if compute_v else None


@rule("linalg_pinv.atol_rtol_tensor")
def pseudo_inverse(
    call: TorchCall, a: Value, atol: Value | None = None, rtol: Value | None = None, hermitian: bool = False
) -> Value:
    """The Moore-Penrose inverse [..., n, m]: singular values of at most max(atol, rtol * the largest) count as 0.

    `rtol` is by default max(m, n) units in the last place, or 0 with an `atol` above 0.
    Of a `hermitian` matrix the lower triangle is read.
    """
    rows, columns = a.shape[-2:]
    if 0 in (rows, columns):
        return call.full(call.shape, 0.0, a.dtype)
    if hermitian:
        line = call.iota(rows)
        is_lower = call.op("greater_equal", call.unsqueeze(line, 1), call.unsqueeze(line, 0))
        a = call.op("where", is_lower, a, _transposed(call, a))
    left, values, right = (_part(call, a, part, **more) for part, more in
                           (("u", {"full": False}), ("s", {}), ("vh", {"full": False})))  # fmt: skip
    largest = call.op("reduce_max", values, axes=(values.rank - 1,), keepdims=True)
    larger_side = call.value(maximum(rows, columns), a.dtype)
    share = call.op("multiply", larger_side, float(np.finfo(a.dtype.numpy).eps))
    relative = share if rtol is None else _column(call, rtol, a)
    least = call.op("multiply", relative, largest)
    if atol is not None:
        absolute = _column(call, atol, a)
        larger = call.op("maximum", absolute, least)
        least = larger if rtol is not None else call.op("where", call.op("greater", absolute, 0.0), absolute, larger)
    counts = call.op("greater", values, least)
    inverted = call.op("where", counts, call.op("divide", 1.0, values), call.builder.number(0.0, a.dtype))
    scaled = call.op("multiply", _transposed(call, right), call.unsqueeze(inverted, inverted.rank - 1))
    return call.op("matmul", scaled, _transposed(call, left))


def _column(call: TorchCall, numbers: Value, a: Value) -> Value:
    """A tolerance of each matrix, shaped like its singular values."""
    return call.unsqueeze(call.cast(numbers, a.dtype), numbers.rank)


@rule("linalg_qr.default")
def orthogonal(call: TorchCall, a: Value, mode: str = "reduced") -> tuple[Value | None, Value]:
    full = mode == "complete"
    return None if mode == "r" else _part(call, a, "q", full=full), _part(call, a, "r", full=full)


@rule("_cdist_forward.default")
def distances(call: TorchCall, left: Value, right: Value, p: float, mode: Any = None) -> Value:
    """Distances [..., P, R] between rows [..., P, M] and [..., R, M], from their differences."""
    gaps = call.op("subtract", call.unsqueeze(left, left.rank - 1), call.unsqueeze(right, right.rank - 2))
    size, last = call.op("absolute", gaps), (gaps.rank - 1,)
    if p == 0:
        return call.op("reduce_sum", call.cast(call.op("not_equal", gaps, 0.0), left.dtype), axes=last)
    if p == 1:
        return call.op("reduce_sum", size, axes=last)
    if p == 2:
        return call.op("sqrt", call.op("reduce_sum", call.op("multiply", gaps, gaps), axes=last))
    if p == math.inf:
        return call.op("reduce_max", size, axes=last)
    return call.op("power", call.op("reduce_sum", call.op("power", size, p), axes=last), 1 / p)


@rule("_euclidean_dist.default")
def euclidean_distances(call: TorchCall, left: Value, right: Value) -> Value:
    return distances(call, left, right, 2.0)


@rule("_pdist_forward.default")
def own_distances(call: TorchCall, x: Value, p: float = 2) -> Value:
    """Distances between all pairs of rows [N, M], in the order of the upper triangle."""
    count = x.shape[0]
    if not isinstance(count, int):
        # Of pair k, counted from the end, the first row is i from the end while i(i+1)/2 is at most k.
        pairs = call.shape[0]
        back = call.op("subtract", call.value(simplify(lift(pairs) - 1), int64), call.iota(pairs))
        root = call.op("sqrt", call.op("add", call.op("multiply", call.cast(back, float64), 8.0), 1.0))
        row = call.cast(call.op("floor", call.op("multiply", call.op("subtract", root, 1.0), 0.5)), int64)
        start = call.op("floor_divide", call.op("multiply", row, call.op("add", row, 1)), 2)
        last = call.value(simplify(lift(count) - 1), int64)
        places = [call.op("subtract", call.op("subtract", last, 1), row),
                  call.op("subtract", last, call.op("subtract", back, start))]  # fmt: skip
    else:
        places = [call.constant(side.astype(np.int64), "pairs") for side in np.triu_indices(count, 1)]
    left, right = (call.op("gather", x, place, axis=0) for place in places)
    found = distances(call, call.unsqueeze(left, 1), call.unsqueeze(right, 1), p)
    return call.reshape(found, call.shape)
