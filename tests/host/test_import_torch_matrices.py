"""Factors of matrices that LAPACK finds on the host, and the exponential of a matrix, in engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilewright  # noqa: E402
from tilewright.dtypes import float32, int64  # noqa: E402
from tilewright.errors import TilewrightError, UnsupportedOperationError  # noqa: E402
from tilewright.graph.build import GraphBuilder  # noqa: E402
from tilewright.graph.host_matrices import matrix_part  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
BATCH = {0: ("batch", 1, 6)}


class Aligned(nn.Module):
    """The rotation between two clouds of points (Kabsch)."""

    def forward(self, x: Any, y: Any) -> Any:
        x, y = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
        u, _, vh = torch.linalg.svd(x.mT @ y)
        sign = torch.sign(torch.linalg.det(vh.mT @ u.mT))
        last = torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign], -1)
        return vh.mT @ torch.diag_embed(last) @ u.mT


class Whitened(nn.Module):
    """Principal components, by a decomposition that does not show the signs of vectors."""

    def forward(self, x: Any) -> Any:
        x = x - x.mean(1, keepdim=True)
        values, vectors = torch.linalg.eigh(x.mT @ x / x.shape[1])
        inverse = vectors @ torch.diag_embed(values.clamp(min=1e-3).rsqrt()) @ vectors.mT
        q, r = torch.linalg.qr(x)
        return x @ inverse, values, torch.linalg.svdvals(x), q @ r, torch.linalg.eigvalsh(x.mT @ x)


class Turned(nn.Module):
    """Rotations by the exponential of a skew matrix, and decays of very different rates."""

    def forward(self, x: Any) -> Any:
        skew = x[:, :, None] - x[:, None, :]
        rates = torch.diag_embed(-(10.0 ** (x * 2)))
        return torch.matrix_exp(skew), torch.matrix_exp(rates), torch.cholesky_inverse(torch.eye(3) + skew.abs().tril())


def compared(module: nn.Module, draw: Any, tolerance: float) -> None:
    example = draw(3)
    axes = dict.fromkeys(("x", "y")[: len(example)], BATCH)
    engine = tilewright.compile(module.eval(), example, target="cpu", effort=0, dynamic_shapes=axes)
    for batch in (1, 3, 6):
        given = draw(batch)
        want = module(*(item.double() for item in given))
        got = engine(*given)
        for mine, theirs in zip(*((item,) if torch.is_tensor(item) else item for item in (got, want)), strict=True):
            torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance)


def test_singular_values(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(request.config.getoption("--seed") or 0)
    compared(Aligned(), lambda batch: (torch.randn(batch, 7, 3), torch.randn(batch, 7, 3)), 1e-3)


def test_eigenvalues_and_orthogonal_factors(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(request.config.getoption("--seed") or 0)
    compared(Whitened(), lambda batch: (torch.randn(batch, 20, 4),), 1e-4)


def test_exponentials(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(request.config.getoption("--seed") or 0)
    compared(Turned(), lambda batch: (torch.randn(batch, 3),), 1e-4)


def test_matrices_with_nan_have_no_factors() -> None:
    class Values(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.svdvals(x)

    x = torch.eye(2).repeat(2, 1, 1)
    engine = tilewright.compile(Values().eval(), (x,), target="cpu", effort=0)
    x[1, 0, 1] = torch.nan
    np.testing.assert_array_equal(engine(x).numpy(), [[1, 1], [np.nan, np.nan]])


class Solved(nn.Module):
    """What is unrolled for small matrices of a fixed size."""

    def forward(self, x: Any) -> Any:
        a = x @ x.mT + torch.eye(x.shape[1])
        lower, info = torch.linalg.cholesky_ex(a)
        sign, logarithm = torch.linalg.slogdet(-a)
        solutions = torch.linalg.solve(a, x), torch.cholesky_solve(x, lower), torch.linalg.inv(a) @ x
        _, failed = torch.linalg.inv_ex(a * 0)
        return *solutions, torch.det(a / 4), sign, logarithm, info, torch.linalg.cholesky_ex(-a)[1], failed


def test_matrices_of_any_size() -> None:
    engine = tilewright.compile(
        Solved(), (torch.randn(2, 5, 3),), target="cpu", effort=0, dynamic_shapes={"x": {1: ("rows", 1, 50)}}
    )
    for rows in (1, 3, 50):
        x = torch.randn(2, rows, 3)
        for mine, theirs in zip(engine(x), Solved()(x.double()), strict=True):
            torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-3, atol=1e-4)


def test_singular_and_indefinite_matrices_among_others() -> None:
    """Each has its own result, as in the elimination that is unrolled."""
    good = np.diag([4.0, 1.0, 9.0])
    a = np.stack([good, np.ones((3, 3)), np.diag([4.0, -1.0, 1.0])])
    part = dict(full=False, upper=False)
    inverse, pivots, lower = (matrix_part([a], {"part": name, **part}) for name in ("inverse", "pivots", "cholesky"))
    np.testing.assert_allclose(inverse[0] @ good, np.eye(3))
    assert np.isnan(inverse[1]).all() and np.isfinite(inverse[2]).all()
    np.testing.assert_allclose(pivots, [[4, 1, 9], [1, 0, 0], [4, -1, 1]])
    np.testing.assert_allclose(lower[0], np.diag([2.0, 1.0, 3.0]))
    assert lower[2, 0, 0] == 2 and np.isnan(lower[2, 1, 1])


def test_nearly_singular_matrices_have_an_inverse_or_a_pivot_of_zero() -> None:
    """LAPACK's pivot is exactly 0 or a rounding, as its order of sums has it."""
    rng = np.random.default_rng(5)
    a = np.round(rng.integers(1, 10, (40, 5, 3, 3)) * 0.1, 1)
    a[..., 2, :] = a[..., 0, :] * 3
    a[0, 0] = [[0.1, 0.1, 0.6], [0.3, 0.9, 0.8], [0.3, 0.3, 1.8]]
    part = dict(full=False, upper=False)
    inverse, pivots = (matrix_part([a], {"part": name, **part}) for name in ("inverse", "pivots"))
    singular = np.isnan(inverse).all((-2, -1))
    assert singular.any() and not singular.all()
    np.testing.assert_array_equal((pivots == 0).any(-1), singular)
    np.testing.assert_array_equal(matrix_part([a[0, 0]], {"part": "inverse", **part}), inverse[0, 0])
    assert matrix_part([a[:, :, :0, :0]], {"part": "pivots", **part}).shape == (40, 5, 0)


def test_what_has_no_factors_is_refused() -> None:
    builder = GraphBuilder("factors")
    whole = builder.input("whole", int64, (2, 2))
    tall = builder.input("tall", float32, (builder.symbol("n", 1, 8), 2))
    for a, part in ((whole, "q"), (tall, "values"), (tall, "z")):
        with pytest.raises(TilewrightError):
            builder.op("matrix_part", [a], part=part)


def test_factors_of_matrices_of_any_shape() -> None:
    class Factors(nn.Module):
        def forward(self, x: Any) -> Any:
            (q, r), (u, s, vh) = torch.linalg.qr(x), torch.linalg.svd(x, full_matrices=False)
            return q @ r, (u * s[:, None]) @ vh, torch.linalg.lstsq(x.mT, x.mT).solution

    engine = tilewright.compile(
        Factors().eval(), (torch.randn(2, 3, 4),), target="cpu", effort=0, dynamic_shapes={"x": {1: ("rows", 1, 9)}}
    )
    for rows in (1, 4, 9):
        x = torch.randn(2, rows, 4)
        for mine, theirs in zip(engine(x), Factors()(x), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_eigenvalues_of_any_matrix() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: Any) -> Any:
            values, vectors = torch.linalg.eig(x)
            return (vectors * values[:, None] - x.to(vectors.dtype) @ vectors).abs(), torch.linalg.eigvals(x).real.sum(
                -1
            )

    x = torch.randn(3, 4, 4)
    left, trace = tilewright.compile(Spectrum().eval(), (x,), target="cpu", effort=0)(x)
    torch.testing.assert_close(left, torch.zeros(3, 4, 4), rtol=0, atol=1e-5)
    torch.testing.assert_close(trace, x.diagonal(dim1=1, dim2=2).sum(-1), rtol=1e-4, atol=1e-5)


class ComplexEigen(nn.Module):
    def forward(self, x: Any) -> Any:
        a = torch.view_as_complex(x)
        values, vectors = torch.linalg.eig(a)
        error = (a @ vectors - vectors * values[:, None]).abs().amax((1, 2))
        sums = [torch.view_as_real(each.sum(1)) for each in (values, torch.linalg.eigvals(a))]
        return *sums, values.abs().sum(1), error, vectors.abs().square().sum(1)


def test_eigenvalues_of_complex_matrices(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(request.config.getoption("--seed") or 0)
    for size in (1, 4):
        compared(ComplexEigen(), lambda batch, size=size: (torch.randn(batch, size, size, 2),), 1e-4)
    x = torch.randn(2, 3, 3, 2)
    x[1, 0, 2, 1] = torch.inf
    found = matrix_part([x.numpy()], {"part": "values of pairs", "full": False})
    assert np.isfinite(found[0]).all() and np.isnan(found[1]).all()


@pytest.mark.parametrize("order", [1, 3, 40])  # in steps, and on the host
def test_inverses_of_complex_matrices(order: int) -> None:
    def function(x: Any, y: Any) -> Any:
        found = torch.linalg.inv(torch.complex(x, y))
        return found.real, found.imag

    x, y = torch.randn(2, 2, order, order, dtype=torch.float64)
    for found, wanted in zip(tilewright.compile(function, (x, y))(x, y), function(x, y), strict=True):
        torch.testing.assert_close(torch.as_tensor(found), wanted)


def test_sparse_tensors_are_named() -> None:
    with pytest.raises(UnsupportedOperationError, match="sparse layout"):
        tilewright.compile(lambda x: torch.sparse.mm(x.relu().to_sparse(), x), (torch.randn(4, 4),))
