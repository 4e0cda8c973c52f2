"""Promises, options, printing, and the compile-time values of the language."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import interpret, launch
from tilewright.errors import CompilationError


@tilewright.jit
def promised(x, out, n, N: tl.constexpr):
    tl.assume(n > 0)
    tl.assume(N == 8)
    n = tl.multiple_of(n, 8)
    i = tl.max_contiguous(tl.multiple_of(tl.arange(0, N), 8), 8)
    rows = tl.max_constancy(i[:, None] // 4, (4, 1))
    tl.store(out + i, tl.load(x + i) + tl.sum(rows + tl.zeros((N, 2), tl.int32), 1))
    for k in tl.range(0, n, 2, num_stages=3, loop_unroll_factor=4, flatten=True, warp_specialize=False):
        tl.store(out + k, k, cache_modifier=".cs", eviction_policy="evict_first")
    while tl.condition(n > 0, disable_licm=True):
        n -= 4


def test_promises_and_options_are_kept() -> None:
    function = promised.trace({"x": "*f32", "out": "*f32", "n": "i32"}, {"N": 8})
    operations = list(function.walk())
    hints = [operation.attributes for operation in operations if operation.opcode == "hint"]
    assert [hint["divisibility"] for hint in hints] == [(8,), (8,), (), ()]
    assert [hint["contiguity"] for hint in hints] == [(), (), (8,), ()] and hints[3]["constancy"] == (4, 1)
    assert sum(operation.opcode == "assume" for operation in operations) == 1
    (loop,) = [operation for operation in operations if operation.opcode == "for"]
    assert loop.attributes["num_stages"] == 3 and loop.attributes["unroll"] == 4
    store = [operation for operation in operations if operation.opcode == "store"][-1]
    assert store.attributes["cache"] == "cs" and store.attributes["eviction"] == "evict_first"
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    launch(promised, (1,), x, out, 8, N=8)
    assert out.tolist() == [0, 1, 2, 3, 4, 7, 6, 9]


@tilewright.jit
def promised_by_statements(x, out, n, stride, N: tl.constexpr):
    rows = x + tl.arange(0, N) * stride
    same = rows
    total = tl.zeros((N,), tl.float32)
    for _ in range(n):
        tl.multiple_of(rows, 16)
        total += tl.load(rows)
        rows += N * stride
    if n > 2:
        tl.multiple_of(same, 4)
        total += tl.load(same)
    tl.store(out + tl.arange(0, N), total + tl.load(same))


def test_hints_as_statements_are_about_the_values_of_names() -> None:
    """As in the reference, where a hint is a note on the value itself: what reads the name later knows it."""
    function = promised_by_statements.trace({"x": "*f32", "out": "*f32", "n": "i32", "stride": "i32"}, {"N": 8})
    loads = [operation.operands[0].definition for operation in function.walk() if operation.opcode == "load"]
    assert [None if found is None else found.opcode for found in loads] == ["hint", "hint", "offset"]
    assert [found.attributes["divisibility"] for found in loads[:2] if found is not None] == [(16,), (4,)]
    x, out = np.arange(64, dtype=np.float32), np.zeros(8, np.float32)
    launch(promised_by_statements, (1,), x, out, 3, 1, N=8)
    first = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(out, 5 * first + 24)


@tilewright.jit
def printing(x):
    tl.static_print("tracing", x.dtype, 3)
    tl.device_print("value", tl.load(x))
    print("again", tl.load(x))


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    interpret(printing, (1,), np.array([2.5], np.float32))
    text = capsys.readouterr().out
    assert "tracing pointer<fp32> 3" in text and "value" in text and "again" in text and "2.5" in text


def test_constexpr_computes_like_its_value() -> None:
    four = tl.constexpr(4)
    assert (four + 1).value == 5 and (10 - four).value == 6 and (-four).value == -4
    assert (-7 // tl.constexpr(2)).value == -4 and (2**four).value == 16 and (four / 8).value == 0.5
    assert four == 4 and four > 3 and bool(four != 5) and range(four)[-1] == 3 and hash(four) == hash(4)
    assert (tl.constexpr(6) & 3).value == 2 and (tl.constexpr(1) << four).value == 16


def test_dtypes_answer_kernels_questions() -> None:
    assert tl.bfloat16.is_floating() and tl.bfloat16.is_bf16() and not tl.bfloat16.is_fp16()
    assert tl.int1.is_int() and tl.int1.is_int_unsigned() and tl.uint8.is_int_unsigned() and tl.int8.is_int_signed()
    assert tl.float8e5.is_fp8() and tl.float16.primitive_bitwidth == 16 and tl.float64.itemsize == 8
    assert str(tl.float32) == "fp32" and tl.int64.name == "int64" and tl.float32.scalar is tl.float32
    pointer = tl.pointer_type(tl.float16)
    assert pointer.is_ptr() and pointer.element_ty == tl.float16 and pointer == tl.pointer_type(tl.float16)
    assert tl.core.get_int_dtype(16, True) == tl.int16 and tl.block_type(tl.int8, [4, 2]).numel == 8


@tilewright.jit
def sized_in_the_kernel(out, N: tl.constexpr):
    EXTENT: tl.constexpr = tilewright.next_power_of_2(N)
    HALVES: tl.constexpr = tl.standard._log2(EXTENT)
    dtype: tl.constexpr = tl.core.get_int_dtype(16, signed=True)
    index = tl.arange(0, EXTENT)
    total = tl.reduce(index, 0, tl.standard._sum_combine)
    tl.store(out + index, (index + tilewright.cdiv(N, 4) + 100 * HALVES + total).to(dtype), mask=index < N)


def test_sizes_and_dtypes_are_computed_in_kernels() -> None:
    out = np.zeros(10, np.int16)
    launch(sized_in_the_kernel, (1,), out, N=10)
    np.testing.assert_array_equal(out, np.arange(10) + 3 + 400 + 120)


@tilewright.jit
def wrong_hint(x, N: tl.constexpr):
    tl.multiple_of(tl.arange(0, N), (8, 8))


def test_a_hint_needs_one_number_an_axis() -> None:
    with pytest.raises(CompilationError, match="a hint on a block of rank 1 needs 1 numbers, got 2"):
        wrong_hint.trace({"x": "*f32"}, {"N": 8})


@tilewright.jit
def read_only(x: tl.const, out):
    tl.store(x, tl.load(out))


def test_const_pointers_cannot_be_stored_through() -> None:
    with pytest.raises(CompilationError, match="store through a const pointer"):
        read_only[(1,)](np.zeros(1, np.float32), np.zeros(1, np.float32))
