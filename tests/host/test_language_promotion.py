"""The promotion rules, as data: every pair of dtypes, and literals beside tensors."""

from __future__ import annotations

import itertools

import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import compile_error
from tilewright.errors import CompilationError

SEEN: list[tl.dtype] = []


@tilewright.constexpr_function
def record(dtype):
    SEEN.append(dtype)


@tilewright.jit
def apply(x, y, OPERATOR: tl.constexpr, LITERAL: tl.constexpr):
    if LITERAL is None:
        if OPERATOR == "+":
            record((x + y).dtype)
        elif OPERATOR == "/":
            record((x / y).dtype)
        elif OPERATOR == "%":
            record((x % y).dtype)
        elif OPERATOR == "where":
            record(tl.where(x == x, x, y).dtype)
        elif OPERATOR == "maximum":
            record(tl.maximum(x, y).dtype)
        elif OPERATOR == "fma":
            record(tl.fma(x, y, y).dtype)
    else:
        if OPERATOR == "+":
            record((x + LITERAL).dtype)
        elif OPERATOR == "/":
            record((x / LITERAL).dtype)
        elif OPERATOR == "%":
            record((x % LITERAL).dtype)


def result(left: str, right: str, operator: str = "+", literal: object = None) -> str:
    SEEN.clear()
    apply.trace({"x": getattr(tl, left), "y": getattr(tl, right)}, {"OPERATOR": operator, "LITERAL": literal})
    return SEEN[-1].element.name


# Rows and columns: the two operands; the dtype of their sum. "-" where there is none.
NAMES = "int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float8e5 float8e4nv float16 bfloat16 float32 float64"
SHORT = {
    "b": "int1", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "e5": "float8e5", "e4": "float8e4nv", "h": "float16", "bf": "bfloat16",
    "f": "float32", "d": "float64",
}  # fmt: skip
SUMS = """
    b   i8  i16 i32 i64 u8  u16 u32 u64 -   -   h   f   f   d
    i8  i8  i16 i32 i64 u8  u16 u32 u64 -   -   h   f   f   d
    i16 i16 i16 i32 i64 i16 u16 u32 u64 -   -   h   f   f   d
    i32 i32 i32 i32 i64 i32 i32 u32 u64 -   -   h   f   f   d
    i64 i64 i64 i64 i64 i64 i64 i64 u64 -   -   h   f   f   d
    u8  u8  i16 i32 i64 u8  u16 u32 u64 -   -   h   f   f   d
    u16 u16 u16 i32 i64 u16 u16 u32 u64 -   -   h   f   f   d
    u32 u32 u32 u32 i64 u32 u32 u32 u64 -   -   h   f   f   d
    u64 u64 u64 u64 u64 u64 u64 u64 u64 -   -   h   f   f   d
    -   -   -   -   -   -   -   -   -   e5  h   h   f   f   d
    -   -   -   -   -   -   -   -   -   h   e4  h   f   f   d
    h   h   h   h   h   h   h   h   h   h   h   h   h   f   d
    f   f   f   f   f   f   f   f   f   f   f   h   bf  f   d
    f   f   f   f   f   f   f   f   f   f   f   f   f   f   d
    d   d   d   d   d   d   d   d   d   d   d   d   d   d   d
"""
TABLE = {
    (left, right): SHORT.get(cell)
    for left, row in zip(NAMES.split(), SUMS.strip().splitlines(), strict=True)
    for right, cell in zip(NAMES.split(), row.split(), strict=True)
}


@pytest.mark.parametrize("left", NAMES.split())
def test_sum_of_two_tensors(left: str) -> None:
    for right in NAMES.split():
        expected = TABLE[left, right]
        if expected is None:
            with pytest.raises(CompilationError, match="no common type"):
                result(left, right)
        else:
            assert result(left, right) == expected, (left, right)


@pytest.mark.parametrize("operator", ["where", "maximum", "fma"])
def test_other_operators_promote_alike(operator: str) -> None:
    for left, right in itertools.product(["int8", "int32", "uint32", "float16", "bfloat16", "float32"], repeat=2):
        assert result(left, right, operator) == TABLE[left, right]


@pytest.mark.parametrize("operator", ["/", "%"])
def test_division_with_a_float_is_at_least_fp32(operator: str) -> None:
    for left, right in itertools.product(["float16", "bfloat16", "int32", "float32", "float64"], repeat=2):
        expected = TABLE[left, right]
        if expected in ("float16", "bfloat16"):
            expected = "float32"
        if operator == "/" and expected == "int32":
            expected = "float32"
        assert result(left, right, operator) == expected


LITERALS = [
    ("float16", 2.0, "+", "float16"),
    ("float16", 2, "/", "float32"),
    ("bfloat16", 3, "%", "float32"),
    ("bfloat16", 1, "+", "bfloat16"),
    ("int8", 3, "+", "int8"),
    ("int8", True, "+", "int8"),
    ("int1", 3, "+", "int32"),
    ("int1", 2**31, "+", "uint32"),
    ("int1", 2**40, "+", "int64"),
    ("int1", 2**63, "+", "uint64"),
    ("int32", 1.5, "+", "float32"),
    ("int64", 1.5, "+", "float32"),
    ("int64", 1e300, "+", "float64"),
    ("int32", float("inf"), "+", "float32"),
    ("float32", 1e300, "+", "float32"),
    ("int32", 3, "/", "float32"),
    ("uint64", 3, "%", "uint64"),
    ("float8e5", 2.0, "+", "float8e5"),
    ("float64", 3, "/", "float64"),
]


@pytest.mark.parametrize(("dtype", "literal", "operator", "expected"), LITERALS)
def test_literal_next_to_a_tensor(dtype: str, literal: object, operator: str, expected: str) -> None:
    assert result(dtype, dtype, operator, literal) == expected


@pytest.mark.parametrize(("dtype", "literal"), [("int8", 128), ("uint8", -1), ("uint32", -1), ("int32", 2**31)])
def test_literal_that_does_not_fit(dtype: str, literal: int) -> None:
    text = compile_error(apply, {"x": dtype_of(dtype), "y": dtype_of(dtype)}, OPERATOR="+", LITERAL=literal)
    assert f"the literal {literal} does not fit" in text


def dtype_of(name: str) -> tl.dtype:
    return getattr(tl, name)


def test_signs_do_not_mix_in_integer_division() -> None:
    with pytest.raises(CompilationError, match="different signedness"):
        result("int32", "uint32", "%")


@tilewright.jit
def kinds_of_numbers(x, scale, n):
    record((x * scale).dtype)  # an argument is a tensor: fp16 * fp32
    record((x * 2.5).dtype)  # a literal is not
    factor = 2.5
    record((x * factor).dtype)  # a variable is a tensor
    constant: tl.constexpr = 2.5
    record((x * constant).dtype)  # a constexpr is a literal
    record((x + n).dtype)


def test_arguments_and_variables_are_tensors_and_constexprs_are_literals() -> None:
    SEEN.clear()
    kinds_of_numbers.trace({"x": tl.float16, "scale": tl.float32}, {"n": 1})
    assert [dtype.name for dtype in SEEN] == ["fp32", "fp16", "fp32", "fp16", "fp16"]
