"""Indices that wrap around at a run-time number become plain ones on CPUs, where what lies beyond is dropped."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.ir.verifier import verify
from tilewright.passes.pipeline import run_passes, simplify
from tilewright.passes.uniform_increments import carry_uniform_increments
from tilewright.targets.cpu.passes.unwrap_indices import unwrap_indices


@tilewright.jit
def product(a, b, c, M, N, K, sa, sb, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr, G: tl.constexpr):
    """As in Triton's tutorial: groups of blocks, wrapped rows and columns, advancing pointers."""
    pid, blocks = tl.program_id(0), tl.cdiv(N, C)
    first = pid // (G * blocks) * G
    group = min(tl.cdiv(M, R) - first, G)
    row_block, column_block = first + pid % (G * blocks) % group, pid % (G * blocks) // group
    rows = (row_block * R + tl.arange(0, R)) % M
    columns = (column_block * C + tl.arange(0, C)) % N
    depth = tl.arange(0, D)
    left, right = a + rows[:, None] * sa + depth[None, :], b + depth[:, None] * sb + columns[None, :]
    total = tl.zeros((R, C), tl.float32)
    for k in range(0, tl.cdiv(K, D)):
        x = tl.load(left, mask=depth[None, :] < K - k * D, other=0.0)
        y = tl.load(right, mask=depth[:, None] < K - k * D, other=0.0)
        total = tl.dot(x, y, total)
        left += D
        right += D * sb
    rows, columns = row_block * R + tl.arange(0, R), column_block * C + tl.arange(0, C)
    tl.store(c + rows[:, None] * N + columns[None, :], total, mask=(rows[:, None] < M) & (columns[None, :] < N))


@tilewright.jit
def hinted(x, out, n, m, R: tl.constexpr, C: tl.constexpr):
    """A hint about wrapped rows, a mask of the load's own, and a reduction along the other axis."""
    rows, columns = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, C)
    wrapped = tl.max_contiguous(tl.multiple_of(rows % n, R), R)
    value = tl.load(x + wrapped[:, None] * m + columns[None, :], mask=columns[None, :] < m, other=1.0)
    tl.store(out + rows, tl.sum(value, 1), mask=rows < n)


@tilewright.jit
def needed(x, out, n, R: tl.constexpr):
    """The sum takes the elements that wrap around, the first store takes them too, and another mask drops fewer."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    value = tl.load(x + rows % n)
    tl.store(out + rows, value)
    tl.store(out + 64 + rows, tl.load(x + rows % n + 1), mask=rows < n + 1)
    if tl.sum(tl.load(x + rows % n + 2)) > 0.0:
        tl.store(out + 128 + rows, value, mask=rows < n)


@tilewright.jit
def shifted(x, out, n, shift, R: tl.constexpr):
    """Numbers that may lie below zero."""
    rows = tl.arange(0, R) - shift
    tl.store(out + tl.arange(0, R), tl.load(x + rows % n), mask=rows < n)


@tilewright.jit
def divided(x, out, n, d, R: tl.constexpr):
    """Numbers whose sign is that of an argument."""
    rows = tl.program_id(0) // d * R + tl.arange(0, R)
    tl.store(out + tl.program_id(0) * R + tl.arange(0, R), tl.load(x + rows % n), mask=rows < n)


def _prepared(kernel, types, constants):
    function = run_passes(kernel.trace(types, constants), (simplify, carry_uniform_increments))
    found = unwrap_indices(function)
    verify(found)
    return function, found


def _wrapped_loads(function) -> int:
    """Loads whose address has a remainder in it."""

    def has(value) -> bool:
        operation = value.definition
        return operation is not None and (
            operation.opcode == "remainder" and bool(value.type.rank) or any(map(has, operation.operands))
        )

    return sum(operation.opcode == "load" and has(operation.operands[0]) for operation in function.walk())


_ARRAYS = {"x": "*f32", "out": "*f32", "n": "i32"}
_SIZES = {"M": "i32", "N": "i32", "K": "i32", "sa": "i32", "sb": "i32"}


def test_rows_and_columns_of_products_do_not_wrap():
    types = {"a": "*f32", "b": "*f32", "c": "*f32", **_SIZES}
    before, after = _prepared(product, types, {"R": 32, "C": 16, "D": 16, "G": 3})
    assert _wrapped_loads(before) == 2
    assert _wrapped_loads(after) == 0


def test_hinted_rows_do_not_wrap():
    types = {**_ARRAYS, "m": "i32"}
    before, after = _prepared(hinted, types, {"R": 8, "C": 16})
    assert (_wrapped_loads(before), _wrapped_loads(after)) == (1, 0)


@pytest.mark.parametrize(
    ("kernel", "types"),
    [(needed, _ARRAYS), (shifted, {**_ARRAYS, "shift": "i32"}), (divided, {**_ARRAYS, "d": "i32"})],
    ids=["needed", "shifted", "divided"],
)  # fmt: skip
def test_what_somebody_needs_wraps(kernel, types):
    before, after = _prepared(kernel, types, {"R": 16})
    assert after is before


@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(1, 1, 1), (33, 17, 50), (70, 45, 16), (32, 48, 64), (95, 7, 19)]
)
def test_products_of_wrapped_rows(rows, columns, depth):
    random = np.random.default_rng(rows)
    # Values next to the matrices are NaN: reading one would spoil the result.
    whole = [np.full(shape, np.nan, np.float32) for shape in ((rows + 40, depth), (depth + 40, columns))]
    a, b = random.standard_normal((rows, depth)), random.standard_normal((depth, columns))
    whole[0][:rows], whole[1][:depth] = a, b
    c = np.full((rows, columns), 7, np.float32)
    blocks = -(-rows // 32) * -(-columns // 16)
    product[(blocks,)](whole[0], whole[1], c, rows, columns, depth, depth, columns, 32, 16, 16, 2)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("n", "m"), [(1, 16), (13, 5), (16, 16), (29, 1)])
def test_sums_of_wrapped_rows(n, m):
    x = np.random.default_rng(n).standard_normal((n, m)).astype(np.float32)
    out = np.zeros(n, np.float32)
    hinted[(-(-n // 8),)](x, out, n, m, 8, 16)
    np.testing.assert_allclose(out, x.sum(1) + (16 - m), rtol=1e-4, atol=1e-4)


def test_needed_elements_are_those_that_wrap():
    x, out = np.arange(24, dtype=np.float32), np.zeros(192, np.float32)
    needed[(1,)](x, out, 5, 16)
    np.testing.assert_array_equal(out[:16], np.arange(16) % 5)
    np.testing.assert_array_equal(out[64:70], np.arange(6) % 5 + 1)
    np.testing.assert_array_equal(out[128:133], np.arange(5))
