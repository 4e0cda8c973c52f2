"""Addresses and bounds of tiles in strided tensors are computed with fewer operations, and stay the same."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.ir.interpreter import run
from tilewright.ir.parser import parse_function
from tilewright.ir.printer import print_function
from tilewright.ir.verifier import verify
from tilewright.passes.pipeline import simplify
from tilewright.passes.tile_addresses import simplify_tile_addresses


@tilewright.jit
def moving(x, out, rows, columns, stride, first, left, steps, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Tiles below one another, from row `first` and column `left` on, added up."""
    view = tl.make_tensor_descriptor(x, [rows, columns], [stride, 1], [ROWS, COLUMNS])
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(steps):
        total += view.load([first + step * ROWS, left])
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(out + place, total)


@tilewright.jit
def scattered(x, out, rows, columns, stride, first, left, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """One tile stored."""
    tile = tl.make_block_ptr(out, (rows, columns), (stride, 1), (first, left), (ROWS, COLUMNS), (1, 0))
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(tile, tl.load(x + place), boundary_check=(0, 1))


def both(kernel, types, constants):
    """The kernel's Tile IR before and after."""
    before = simplify(kernel.trace(types, constants, {}))
    after = simplify(simplify_tile_addresses(before, 128, 255))
    verify(after)
    return before, after


SIZES = {"rows": "i32", "columns": "i32", "stride": "i32", "first": "i32", "left": "i32"}


def test_a_loop_counts_in_scalars_and_compares_words_once():
    before, after = both(moving, {"x": "*f32", "out": "*f32", **SIZES, "steps": "i32"}, {"ROWS": 16, "COLUMNS": 8})
    (loop,) = (entry for entry in after.walk() if entry.opcode == "for")
    blocks = [entry for entry in loop.regions[0].operations if entry.results and entry.result.type.rank]
    assert not [entry for entry in blocks if entry.opcode == "multiply"]
    assert sum(entry.opcode == "compare" for entry in blocks) == 1
    assert not [entry for entry in blocks if not entry.result.type.is_pointer and entry.result.type.dtype.text == "i64"]
    (old,) = (entry for entry in before.walk() if entry.opcode == "for")
    assert sum(entry.opcode == "compare" and bool(entry.result.type.rank) for entry in old.regions[0].operations) == 2


@pytest.mark.parametrize("seed", range(24))
def test_results_are_the_same(seed):
    rng = np.random.default_rng(seed)
    height, width = (int(2 ** rng.integers(least, 5)) for least in (0, 2))
    rows, columns = (int(rng.integers(0, 40)) for _ in range(2))
    stride = columns + int(rng.integers(0, 5))
    offsets = [int(rng.choice([rng.integers(-20, 45), -(2**31), 2**31 - 1 - 8 * height])) for _ in range(2)]
    steps = int(rng.integers(0, 5))
    x = rng.standard_normal(max(1, rows * stride)).astype(np.float32)
    tile = rng.standard_normal(height * width).astype(np.float32)
    sizes = {"rows": rows, "columns": columns, "stride": stride, "first": offsets[0], "left": offsets[1]}
    constants, found = {"ROWS": height, "COLUMNS": width}, []
    for kernel, data, extra in ((moving, x, {"steps": steps}), (scattered, tile, {})):
        types = {"x": "*f32", "out": "*f32", **SIZES, **dict.fromkeys(extra, "i32")}
        for function in both(kernel, types, constants):
            out = np.zeros(max(1, rows * stride, height * width), np.float32)
            given = {"x": data.copy(), "out": out, **sizes, **extra}
            run(function, [given[parameter.name] for parameter in function.parameters])
            found.append(out)
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[2], found[3])
    expected = np.zeros((height, width), np.float32)
    whole = x[: rows * stride].reshape(rows, stride) if rows and stride else np.zeros((0, 0), np.float32)
    for step in range(steps):
        for row in range(height):
            for column in range(width):
                at = offsets[0] + step * height + row, offsets[1] + column
                if 0 <= at[0] < rows and 0 <= at[1] < columns:
                    expected[row, column] += whole[at]
    assert np.array_equal(found[0][: height * width].reshape(height, width), expected)


@pytest.mark.parametrize(
    ("least", "number"),
    [("%wide", "1"), ("%wide", "0")],  # bounds that are not those of a tile, and extents of 64 bits
)
def test_other_comparisons_stay(least, number):
    text = f"""\
kernel k(%x: *f32, %n: i64) {{
  %i = arange {{start = 0, end = 16}} : <16xi32>
  %wide = cast %i {{dtype = i64}} : <16xi64>
  %c = constant {number} {{dtype = i64, shape = [16]}} : <16xi64>
  %l = splat %n {{shape = [16]}} : <16xi64>
  %a = compare {least}, %c {{predicate = "ge"}} : <16xi1>
  %b = compare %wide, %l {{predicate = "lt"}} : <16xi1>
  %m = and %a, %b : <16xi1>
  %p = splat %x {{shape = [16]}} : <16x*f32>
  %q = offset %p, %i : <16x*f32>
  %z = constant 0.0 {{dtype = f32, shape = [16]}} : <16xf32>
  store %q, %z, %m
  return
}}
"""
    function = parse_function(text)
    assert print_function(simplify_tile_addresses(function, 128, 255)) == print_function(function)


@pytest.mark.parametrize(("less", "compared_once"), [(0, True), (5, False)])
def test_extents_below_all_words_are_compared_in_64_bits(less, compared_once):
    """The low word of INT_MIN - 5 is a positive number."""
    function = parse_function(f"""\
kernel k(%x: *f32, %n: i32) {{
  %i = arange {{start = 0, end = 16}} : <16xi32>
  %wide = cast %i {{dtype = i64}} : <16xi64>
  %zero = constant 0 {{dtype = i64, shape = [16]}} : <16xi64>
  %extent = cast %n {{dtype = i64}} : i64
  %less = constant {-less} : i64
  %rest = add %extent, %less : i64
  %limit = splat %rest {{shape = [16]}} : <16xi64>
  %a = compare %wide, %zero {{predicate = "ge"}} : <16xi1>
  %b = compare %wide, %limit {{predicate = "lt"}} : <16xi1>
  %m = and %a, %b : <16xi1>
  %p = splat %x {{shape = [16]}} : <16x*f32>
  %q = offset %p, %i : <16x*f32>
  %one = constant 1.0 {{dtype = f32, shape = [16]}} : <16xf32>
  store %q, %one, %m
  return
}}
""")
    simple = simplify_tile_addresses(function, 128, 255)
    assert ("u32" in print_function(simple)) == compared_once
    for extent in (-(2**31), -1, 0, 9, 2**31 - 1):
        x = np.zeros(16, np.float32)
        run(simple, [x, extent])
        assert x.sum() == min(max(extent - less, 0), 16)
