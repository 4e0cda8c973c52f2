"""Grouped products on arrays, in the interpreter: the Hopper kernel and the plain one, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from tilewright import ops
from tilewright.errors import LaunchError
from tilewright.ops import calls
from tilewright.settings import settings


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    with settings.scope(interpret=True):
        yield


def exact_product(a: np.ndarray, b: np.ndarray, ends: np.ndarray) -> np.ndarray:
    result, start = np.zeros((len(a), b.shape[2])), 0
    for matrix, end in zip(b, ends, strict=True):
        end = min(max(int(end), start), len(a))
        result[start:end] = a[start:end].astype(np.float64) @ matrix.astype(np.float64)
        start = end
    return result


@pytest.mark.parametrize(
    ("dtype", "columns", "swapped", "hopper"),
    [
        (np.float16, 40, True, True), (ml_dtypes.bfloat16, 40, False, True), (np.float16, 37, True, False),
        (np.float32, 40, False, False),
    ],
)  # fmt: skip
def test_groups(dtype, columns: int, swapped: bool, hopper: bool, rng: np.random.Generator) -> None:
    """Groups that end inside tiles, one without rows, rows behind the last."""
    rows, depth = 150, 64
    ends = np.sort(rng.integers(0, rows, 4)).astype(np.int64 if swapped else np.int32)
    ends[2] = ends[1]
    a = rng.standard_normal((rows, depth)).astype(dtype)
    b = rng.standard_normal((4, columns, depth) if swapped else (4, depth, columns)).astype(dtype)
    b = b.swapaxes(1, 2) if swapped else b
    found = ops.grouped_matmul(a, b, ends, activation="gelu")
    operation = next(reversed(calls._PREPARED.values()))
    names = [candidate.name for each in operation.candidates for candidate in each]
    assert ("hopper grouped matmul" in names) == hopper and len(operation.candidates) == 1
    product = exact_product(a, b, ends)
    erf = np.vectorize(math.erf)
    exact = product * 0.5 * (1 + erf(product / math.sqrt(2)))
    epsilon = 2.0**-22 if dtype == np.float32 else float(ml_dtypes.finfo(dtype).eps)
    assert np.max(np.abs(found.astype(np.float64) - exact)) <= max(epsilon, 2.0**-20) * np.max(np.abs(exact))


def test_matrices_of_any_strides(rng: np.random.Generator) -> None:
    a = rng.standard_normal((20, 16)).astype(np.float16)
    b = rng.standard_normal((3, 16, 2, 24)).astype(np.float16)[:, :, 1]
    ends = np.array([5, 5, 20], np.int32)
    found = ops.grouped_matmul(a, b, ends).astype(np.float64)
    np.testing.assert_allclose(found, exact_product(a, b, ends), rtol=2**-10, atol=2**-10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ends": np.zeros(2, np.int32)}, "do not fit"), ({"ends": np.zeros(3, np.float32)}, "int32 or int64"),
        ({"b": np.zeros((3, 16, 8), np.float32)}, "must both be"),
        ({"a": np.zeros((16, 20), np.float16).T}, "contiguous"),
        ({"out": np.zeros((20, 9), np.float16)}, "out must be"), ({"activation": "swish"}, "there are relu"),
    ],
)  # fmt: skip
def test_refusals(change: dict[str, object], message: str) -> None:
    arguments = {"a": np.zeros((20, 16), np.float16), "b": np.zeros((3, 16, 8), np.float16),
                 "ends": np.zeros(3, np.int32), **change}  # fmt: skip
    with pytest.raises(LaunchError, match=message):
        ops.grouped_matmul(arguments.pop("a"), arguments.pop("b"), arguments.pop("ends"), **arguments)
