"""What `explain` says of the CPU lowering's decisions, on a fixed CPU."""

# mypy: ignore-errors

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host import test_language_kernels as families
from tilewright.language.extra import libdevice
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.registry import backend_of

SERVER = CPUTarget.named("sapphirerapids")


def notes(kernel, types, constants) -> dict[str, list[str]]:
    """The notes of each source line, by its text, and of the end, by ""."""
    found: dict[str, list[str]] = {}
    line = ""
    for text in backend_of(SERVER).explain(kernel.trace(types, constants), CPUOptions()).splitlines()[1:]:
        if " | " in text:
            line = text.split(" | ", 1)[1]
            found[line] = []
        elif text.lstrip().startswith("- "):
            found[line].append(text.lstrip()[2:])
        else:
            found.setdefault("", []).append(text.strip())
    return found


def of(found: dict[str, list[str]], start: str) -> str:
    """All notes of the lines that begin so."""
    lists = [texts for line, texts in found.items() if line.startswith(start)]
    assert lists, (start, list(found))
    return "\n".join(text for texts in lists for text in texts)


@tilewright.jit
def softmax(x, out, rows, columns, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    c = tl.arange(0, C)[None, :]
    inside = (r < rows) & (c < columns)
    value = tl.load(x + r * columns + c, mask=inside, other=float("-inf"))
    weights = tl.exp(value - tl.max(value, 1)[:, None])
    tl.store(out + r * columns + c, weights / tl.sum(weights, 1)[:, None], mask=inside)


def test_fused_rows_masks_and_buffers() -> None:
    types = {"x": "*f32", "out": "*f32", "rows": "i32", "columns": "i32"}
    found = notes(softmax, types, {"R": 4, "C": 1024})
    assert of(found, "value =") == "load of 'x': vectors of consecutive elements"
    weights = of(found, "weights =")
    assert "reduction along axis 1: axis 0: 4 one by one, up to the mask of line" in weights
    assert "axis 1: 1024 in vectors of 16, 4 at once, up to the mask of line" in weights
    assert "row by row with the exp of line" in weights
    assert "elements after it" not in weights  # the sum needs no exp of what is masked off, and nobody else does
    assert "the result of exp is kept in a buffer" in weights
    assert "of exp: a block of 4 x 1024 in scratch memory, 16384 bytes" in weights
    assert "in one loop nest with the exp of line" in of(found, "tl.store")
    assert any("reads 16384 bytes, writes 16384 bytes, 20480 float operations" in text for text in found[""])


@tilewright.jit
def joined(left, right, out, first, others, columns, C: tl.constexpr):
    """The largest element of a row of two parts, of `first` and of `others` elements."""
    c = tl.arange(0, C).to(tl.int64)
    inside, early, rest = c < columns, c < first, c - first
    late = (rest >= 0) & (rest < others)
    value = tl.where(early, tl.load(left + c, mask=inside & early), tl.load(right + rest, mask=inside & late))
    tl.store(out, tl.max(tl.where(inside, value, float("-inf")), 0))


def test_a_loop_ends_at_the_mask_after_which_nothing_is_needed() -> None:
    """The mask of a part holds as often as the one of the row, but elements after it count."""
    types = {"left": "*f32", "right": "*f32", "out": "*f32", "first": "i64", "others": "i64", "columns": "i64"}
    found = of(notes(joined, types, {"C": 1024}), "tl.store(out, tl.max")
    assert "up to the mask of line" in found and "elements after it" not in found


@tilewright.jit
def irregular(x, index, out, n, stride, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    far = tl.load(x + i * stride, mask=i < n)
    every = tl.load(x + i * 3)
    looked_up = tl.load(x + tl.load(index + i))
    wrapped = tl.load(x + i % n)
    short = tl.load(x + (i // 8) * 64 + i % 8)
    one = tl.load(x + i * 0)
    tl.store(out + i, far + every + looked_up + wrapped + short + one, mask=far > 0)
    tl.atomic_add(out + i, 1.0)


def test_why_accesses_are_irregular_and_what_is_scalar() -> None:
    types = {"x": "*k f32", "index": "*i32", "out": "*f32", "n": "i32", "stride": "i32"}
    found = notes(irregular, types, {"BLOCK": 256})
    assert "known at run time only, 'stride'; pass it as tl.constexpr" in of(found, "far =")
    assert "elements along axis 0 are 3 apart" in of(found, "every =")
    assert "the offsets along axis 0 are loaded from memory at line" in of(found, "looked_up =")
    assert "load of 'index': vectors of consecutive elements" in of(found, "looked_up =")
    assert "the remainder at line" in of(found, "wrapped =")
    assert "gather" not in of(found, "short =") and "in vectors of 8" in of(found, "tl.store")
    assert "one element for all lanes" in of(found, "one =")
    assert "store of 'out': vectors of consecutive elements, each lane by its mask" in of(found, "tl.store")
    assert "atomic_rmw: element by element, 256 times, without vectors" in of(found, "tl.atomic_add")


@tilewright.jit
def pairs(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    near = tl.load(x + (i // 2) * 64 + i % 2)
    tl.store(out + i, near)


def test_which_facts_would_help() -> None:
    found = notes(pairs, {"x": "*k f32", "out": "*f32"}, {"BLOCK": 64})
    assert "only 2 elements in a row are known to be consecutive" in of(found, "near =")
    assert "divisible by 16, as tl.constexpr or through tl.multiple_of" in of(found, "near =")


@tilewright.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * K + k[None, :], mask=(rows[:, None] < M) & (k[None, :] < K))
        right = tl.load(b + k[:, None] * N + columns[None, :], mask=(k[:, None] < K) & (columns[None, :] < N))
        acc += tl.dot(tl.exp(left), right)
    tl.store(c + rows[:, None] * N + columns[None, :], acc, mask=(rows[:, None] < M) & (columns[None, :] < N))


def test_products_and_loops() -> None:
    types = {name: "*f32" for name in "abc"} | {name: "i32" for name in "MNK"}
    found = notes(product, types, {"BM": 64, "BN": 64, "BK": 32})
    dot = of(found, "acc +=")
    rows, width = SERVER.microtile(tilewright.dtypes.float32)
    assert f"product [64 x 32] @ [32 x 64]: sums of {rows} x {width} in registers" in dot
    assert "its left operand is read from scratch memory" in dot
    assert "reads it in place; its mask ends the product's loops" in of(found, "right =")
    assert "carried by the loop: a block of 64 x 64 in scratch memory" in of(found, "for start")
    assert "initial value into scratch memory: axis 0: 64 one by one" in of(found, "for start")
    assert any(text.startswith("and each pass of the loop at line") and "264192 float" in text for text in found[""])


def test_narrow_products_tell_their_width() -> None:
    types = {name: "*f32" for name in "abc"} | {name: "i32" for name in "MNK"}
    dot = of(notes(product, types, {"BM": 8, "BN": 16, "BK": 16}), "acc +=")
    assert "product [8 x 16] @ [16 x 16]: sums of 8 x 16 in registers (1 vector of 16 a row)" in dot


@tilewright.jit
def both_ways(x, out, C: tl.constexpr):
    row, column = tl.arange(0, 8)[:, None], tl.arange(0, C)[None, :]
    value = tl.load(x + row * C + column)
    largest = tl.max(value, 0)
    tl.store(out + tl.arange(0, C), largest)
    tl.store(out + C + row * C + column, value - tl.sum(value, 1)[:, None] + largest[None, :])


def test_what_is_computed_again_has_uses_to_count() -> None:
    found = notes(both_ways, {"x": "*f32", "out": "*f32"}, {"C": 32})
    assert not any("its 1 uses" in text for texts in found.values() for text in texts)


@tilewright.jit
def turned(x, out, n, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    tl.store(out + i * n + j, tl.load(x + j * n + i))


@tilewright.jit
def running(x, out, BLOCK: tl.constexpr, APART: tl.constexpr = 1):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.cumsum(tl.load(x + i * APART), 0))


def test_transposition_and_scans() -> None:
    types = {"x": "*k f32", "out": "*f32"}
    found = notes(turned, types | {"n": "i32"}, {"BLOCK": 32})
    assert "read along axis 0 and written along axis 1: tiles of 16 x 16 are transposed" in of(found, "tl.store")
    found = notes(running, types, {"BLOCK": 32, "APART": 1})
    assert "scan: in vectors along axis 0" in of(found, "tl.store")
    for constants in ({"BLOCK": 31}, {"BLOCK": 32, "APART": 3}):
        found = notes(running, types, {"APART": 1} | constants)
        assert "scan: one combination after the other along axis 0" in of(found, "tl.store")


def test_exponentials_of_rows_are_vectors_where_blocks_stay_in_cache() -> None:
    types = {name: "*f32" for name in ("q", "k", "v", "out")} | {"queries": "i32", "keys": "i32", "scale": "f32"}
    for rows, how in ((64, "64 in vectors of 16"), (512, "512 one by one")):
        found = notes(families.attention, types, {"CAUSAL": False, "HEAD": 64, "BLOCK_M": rows, "BLOCK_N": 64})
        assert f"exp2 into scratch memory: axis 0: {how}" in of(found, "correction =")
        assert "row by row with the select of line" in of(found, "weights =")


def test_launched_and_cached_kernels_explain_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    x, out = np.zeros(32, np.float32), np.zeros(32, np.float32)
    for _ in range(2):
        running[(1,)](x, out, BLOCK=32).explain()
        text = capsys.readouterr().out
        assert text.startswith("kernel running on the CPU, with vectors of") and str(Path(__file__)) in text
        assert "tl.store(out + i, tl.cumsum(tl.load(x + i * APART), 0))" in text
        running._launches.clear()


def test_explaining_changes_no_code() -> None:
    """The report looks on: what is lowered does not depend on whether it is asked for."""
    types = {"a": "*f32", "b": "*f32", "c": "*f32", "M": "i32", "N": "i32", "K": "i32"}
    kernel = product.compile(types, {"BM": 32, "BN": 32, "BK": 32})
    before = kernel.dump("llvm")
    assert kernel.explanation and kernel.dump("llvm") == before


@tilewright.jit
def without_vectors(x, y, n, out, divisor, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    grown = tl.exp(tl.load(x + i))
    single = tl.exp(tl.load(y + i))
    gamma = libdevice.lgamma(single)
    power = libdevice.pow(single, gamma)
    wave = tl.sin(single)
    quotient = tl.load(n + i) // divisor
    halved = tl.load(n + i) // 16
    tl.store(out + i, grown + gamma + power + wave + quotient + halved)


def test_scalar_code_inside_of_vectors_is_listed() -> None:
    types = {"x": "*f64", "y": "*f32", "n": "*i64", "out": "*f64", "divisor": "i64"}
    found = notes(without_vectors, types, {"BLOCK": 64})
    assert "lane by lane: float64 exp is a call of the C library" in of(found, "grown =")
    assert "lane by lane: float64 log is a call of the C library" in of(found, "gamma =")
    assert "lane by lane: float32 power is a call of the C library" in of(found, "power =")
    assert "lane by lane: sin of numbers beyond 100000 is a call of the C library" in of(found, "wave =")
    assert "lane by lane: int64 divide of numbers beyond 51 bits is a scalar division" in of(found, "quotient")
    assert "lane by lane" not in of(found, "single =")
    assert "lane by lane" not in "".join(
        text for line, texts in found.items() if line[:6] == "halved" for text in texts
    )


@tilewright.jit
def halved(table, values, out, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + i)
    place = tl.zeros((BLOCK,), tl.int32)
    for step in tl.static_range(STEPS):
        middle = place + (1 << (STEPS - 1 - step))
        place = tl.where(tl.load(table + middle - 1) < value, middle, place)
    tl.store(out + i, place)


def test_long_bodies_are_vectors_although_they_look_up() -> None:
    found = notes(halved, {"table": "*f32", "values": "*f32", "out": "*i32"}, {"STEPS": 10, "BLOCK": 1024})
    assert "axis 0: 1024 in vectors of 16" in of(found, "tl.store")
