"""Dataclasses as kernels' arguments, and objects of users' classes as constants."""

# mypy: ignore-errors

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import launch
from tilewright.errors import CompilationError, LaunchError
from tilewright.settings import settings


@dataclasses.dataclass
class Matrix:
    data: Any
    rows: int
    columns: int
    WIDTH: tl.constexpr = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Affine:
    factor: float
    bias: tuple[Any, ...]
    source: Matrix


@tilewright.jit
def transform(affine, out, R: tl.constexpr):
    x = affine.source
    row, column = tl.arange(0, R)[:, None], tl.arange(0, x.WIDTH)[None, :]
    inside = (row < x.rows) & (column < x.columns)
    at = row * x.columns + column
    best = affine
    for _ in range(x.rows):
        best = best
    value = tl.load(x.data + at, mask=inside)
    tl.store(out + at, value * best.factor + best.bias[0] + best.bias[1], mask=inside)


@pytest.mark.parametrize(("rows", "bias"), [(3, (1, 2.5)), (1, (0, 0))])
def test_dataclasses_are_flattened(rows: int, bias: tuple[Any, ...], rng: np.random.Generator) -> None:
    x, out = rng.normal(size=(rows, 5)).astype(np.float32), np.zeros((rows, 5), np.float32)
    affine = Affine(2.0, bias, Matrix(x, rows, 5))
    launch(transform, (1,), affine, out, R=4)
    np.testing.assert_allclose(out, 2 * x + sum(bias), rtol=1e-6, atol=1e-6)


def test_a_field_is_specialised_like_an_argument() -> None:
    x, kernels = np.zeros((4, 5), np.float32), []
    for rows, width in ((4, 8), (3, 8), (3, 16)):
        affine = Affine(1.0, (1, 0.0), Matrix(x, rows, 5, width))
        kernels.append(transform.warmup(affine, x, R=4, grid=(1,)))
    assert len({id(kernel) for kernel in kernels}) == 3
    names = [value.name for value in kernels[0].function.region.arguments]
    assert names == [
        "affine_factor", "affine_bias_1", "affine_source_data", "affine_source_rows", "affine_source_columns", "out"
    ]  # fmt: skip


class Settings:
    """A plain class whose instances are compared by identity."""

    def __init__(self, block: int, function: Any) -> None:
        self.block, self.function = block, function

    @property
    def half(self) -> int:
        return self.block // 2


@tilewright.jit
def twice(x):
    return x * 2


@tilewright.jit
def thrice(x):
    return x * 3


@tilewright.jit
def apply(x, out, n, SETTINGS: tl.constexpr):
    i = tl.program_id(0) * SETTINGS.block + tl.arange(0, SETTINGS.block)
    value = SETTINGS.function(tl.load(x + i, mask=i < n))
    tl.store(out + i, value + SETTINGS.half, mask=i < n)


@pytest.mark.parametrize(("function", "factor"), [(twice, 2), (thrice, 3)])
def test_objects_are_constants(function: Any, factor: int, rng: np.random.Generator, tmp_path) -> None:
    x = rng.normal(size=100).astype(np.float32)
    with settings.scope(cache_directory=tmp_path):
        for block in (16, 32):
            out = np.zeros_like(x)
            launch(apply, (-(-100 // block),), x, out, 100, SETTINGS=Settings(block, function))
            np.testing.assert_allclose(out, factor * x + block // 2, rtol=1e-6, atol=1e-5)


def test_what_an_object_holds_is_part_of_the_key_on_disk() -> None:
    types = {"x": "*f32", "out": "*f32", "n": "i32"}
    first, same, other, third = (
        apply.compile(types, {"SETTINGS": Settings(block, function)}).hash
        for block, function in ((16, twice), (16, twice), (32, twice), (16, thrice))
    )
    assert first == same and len({first, other, third}) == 3


def test_mistakes() -> None:
    with pytest.raises(CompilationError, match="Settings has no attribute 'blok'") as caught:
        misspelt.compile({}, {"SETTINGS": Settings(16, twice)})
    assert "did you mean 'block'?" in str(caught.value)
    with pytest.raises(LaunchError, match="an object cannot be passed at run time"):
        transform[(1,)](object(), np.zeros(4, np.float32), R=4)
    with pytest.raises(LaunchError, match="a list cannot be passed at run time"):
        transform[(1,)]([1], np.zeros(4, np.float32), R=4)


@tilewright.jit
def misspelt(SETTINGS: tl.constexpr):
    tl.static_print(SETTINGS.blok)
