"""Atomics of every width, masked, on repeated addresses; loads, stores and polling."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import compile_error, launch
from tilewright.passes.pipeline import simplify
from tilewright.targets.cpu.assemble import assemble
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.cpu.pipeline import lower
from tilewright.targets.cpu.target import CPUTarget

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = {
    "float8e5": ml_dtypes.float8_e5m2, "float8e4nv": ml_dtypes.float8_e4m3fn, "float8e5b16": ml_dtypes.float8_e5m2fnuz,
    "float8e4b8": ml_dtypes.float8_e4m3fnuz, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32, "float64": np.float64,
}  # fmt: skip


@tilewright.jit
def update(p, value, old, KIND: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr, N: tl.constexpr):
    """Pairs of lanes share an address; every fifth lane is masked off."""
    i = tl.arange(0, N)
    place = p + i // 2
    x = tl.load(value + i)
    mask = i % 5 != 4
    if KIND == "add":
        before = tl.atomic_add(place, x, mask=mask, sem=SEM, scope=SCOPE)
    elif KIND == "max":
        before = tl.atomic_max(place, x, mask, SEM, SCOPE)
    elif KIND == "min":
        before = tl.atomic_min(place, x, mask, SEM, SCOPE)
    elif KIND == "and":
        before = tl.atomic_and(place, x, mask, SEM, SCOPE)
    elif KIND == "or":
        before = tl.atomic_or(place, x, mask, SEM, SCOPE)
    elif KIND == "xor":
        before = tl.atomic_xor(place, x, mask, SEM, SCOPE)
    else:
        before = tl.atomic_xchg(place, x, mask, SEM, SCOPE)
    tl.store(old + i, before, mask=mask)


FUNCTIONS: dict[str, Any] = {
    "add": lambda a, b: a + b, "max": max, "min": min, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "exchange": lambda a, b: b,
}  # fmt: skip


def check(kind: str, start: np.ndarray, value: np.ndarray, sem: str = "acq_rel", scope: str = "gpu") -> None:
    memory, old = start.copy(), np.zeros_like(value)
    launch(update, (1,), memory, value, old, KIND=kind, SEM=sem, SCOPE=scope, N=value.size)
    expected, before = start.copy(), np.zeros_like(value)
    with np.errstate(over="ignore"):
        for lane in range(value.size):
            if lane % 5 != 4:
                before[lane] = expected[lane // 2]
                expected[lane // 2] = FUNCTIONS[kind](expected[lane // 2], value[lane])
    assert memory.tobytes() == expected.tobytes()
    assert old.tobytes() == before.tobytes()


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: str, kind: str, rng: np.random.Generator) -> None:
    info = np.iinfo(dtype)
    start, value = (rng.integers(info.min, info.max, count, dtype, endpoint=True) for count in (16, 32))
    check(kind, start, value)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("kind", ["add", "max", "min", "exchange"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(dtype: str, kind: str, rng: np.random.Generator) -> None:
    # Small multiples of a quarter, so that all sums are exact whatever they are computed in.
    start, value = ((rng.integers(-7, 7, count) / 4).astype(FLOATS[dtype]) for count in (16, 32))
    start, value = start + FLOATS[dtype](0), value + FLOATS[dtype](0)  # no -0
    check(kind, start, value)


@pytest.mark.parametrize("sem", ["relaxed", "acquire", "release", "acq_rel"])
@pytest.mark.parametrize("scope", ["cta", "gpu", "sys"])
def test_orders_and_scopes(sem: str, scope: str, rng: np.random.Generator) -> None:
    check("add", np.zeros(16, np.int32), rng.integers(0, 9, 32).astype(np.int32), sem, scope)


@tilewright.jit
def exchange(p, expected, value, old, N: tl.constexpr):
    i = tl.arange(0, N)
    before = tl.atomic_cas(p + i, tl.load(expected + i), tl.load(value + i), mask=i % 3 != 0)
    tl.store(old + i, before)


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint32", "int64", "float8e5", "float16", "bfloat16", "float64"])
def test_masked_compare_and_swap(dtype: str, rng: np.random.Generator) -> None:
    kind = FLOATS.get(dtype, dtype)
    start, value = (rng.integers(0, 4, 16).astype(kind) for _ in range(2))
    expected = np.where(rng.random(16) < 0.5, start, start + np.asarray(1, kind)).astype(kind)
    memory, old = start.copy(), np.full(16, 9).astype(kind)
    launch(exchange, (1,), memory, expected, value, old, N=16)
    lanes = np.arange(16) % 3 != 0
    np.testing.assert_array_equal(memory, np.where(lanes & (start == expected), value, start))
    np.testing.assert_array_equal(old, np.where(lanes, start, np.asarray(0, kind)))


@tilewright.jit
def communicate(data, flag, seen, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_store(data + i, i * 3, sem="relaxed", scope="sys")
    tl.atomic_store(flag, 5)
    arrived = tl.atomic_poll(flag, 5, sem="acquire", scope="gpu")
    late = tl.atomic_poll(flag, 6, timeout_ns=0)
    each = tl.atomic_poll(data + i, i * 3, timeout_ns=1000)
    value = tl.atomic_load(data + i, mask=i < N - 1)
    tl.store(seen + i, value + arrived.to(tl.int32) * 100 + late.to(tl.int32) * 1000 + each.to(tl.int32) * 10000)


@pytest.mark.parametrize("dtype", ["int16", "int32", "uint64"])
def test_loads_stores_and_polls(dtype: str) -> None:
    data, flag, seen = np.zeros(8, dtype), np.zeros(1, dtype), np.zeros(8, np.int64)
    launch(communicate, (1,), data, flag, seen, N=8)
    assert flag[0] == 5 and data.tolist() == [3 * i for i in range(8)]
    assert seen.tolist() == [3 * i + 10100 for i in range(7)] + [10100]


@tilewright.jit
def float_access(p, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_store(p + i, i.to(tl.float32) / 2)
    tl.store(out + i, tl.atomic_load(p + i, sem="relaxed"))


@pytest.mark.parametrize("dtype", ["float8e5", "float16", "bfloat16", "float32", "float64"])
def test_loads_and_stores_of_floats(dtype: str) -> None:
    p, out = (np.zeros(8, FLOATS[dtype]) for _ in range(2))
    launch(float_access, (1,), p, out, N=8)
    np.testing.assert_array_equal(out.astype(np.float64), np.arange(8) / 2)


def bitwise_float(p, n):
    tl.atomic_and(p, 1.0)


def read_only(p: tl.const, n):
    tl.atomic_add(p, 1.0)


def unknown_order(p, n):
    tl.atomic_add(p, 1.0, sem="seq_cst")


def unknown_scope(p, n):
    tl.atomic_add(p, 1.0, scope="warp")


def wide_value(p, n):
    tl.atomic_add(p, tl.zeros((8,), tl.float32))


def release_load(p, n):
    tl.atomic_load(p, sem="release")


def float_poll(p, n):
    tl.atomic_poll(p, 1)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (bitwise_float, "atomic_and needs integers, got fp32"),
        (read_only, "through a const pointer"),
        (unknown_order, "sem must be one of"),
        (unknown_scope, "scope must be one of"),
        (wide_value, "cannot take a value of shape"),
        (release_load, "sem of atomic_load must be one of acquire, relaxed"),
        (float_poll, "needs 16-, 32- or 64-bit integers"),
    ],
)
def test_mistakes(mistake, message: str) -> None:
    kind = "*k f32" if mistake is read_only else "*f32"
    assert message in compile_error(tilewright.jit(mistake), {"p": kind, "n": "i32"})


@pytest.mark.parametrize("name", ["x86-64", "x86-64-v3", "x86-64-v4", "znver4", "aarch64"])
@pytest.mark.parametrize("kind", ["add", "max", "min", "exchange"])
def test_bfloat16_needs_no_library_function(kind: str, name: str) -> None:
    """Older systems have no `__truncsfbf2`, which LLVM calls where the CPU cannot convert."""
    target = CPUTarget.named(name)
    constants = {"KIND": kind, "SEM": "acq_rel", "SCOPE": "gpu", "N": 16}
    function = update.trace({"p": "*bf16", "value": "*bf16", "old": "*bf16"}, constants)
    assembly = assemble(lower(simplify(function), target, CPUOptions()).text, target, keep_texts=True).assembly
    assert assembly is not None and "sfbf2" not in assembly
