"""The LLVM builder: what it knows without an instruction."""

from __future__ import annotations

from itertools import product

import pytest

from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, Module

MEANINGS = {"and": lambda a, b: a and b, "or": lambda a, b: a or b, "xor": lambda a, b: a != b}


@pytest.fixture
def builder() -> LLVMBuilder:
    return LLVMBuilder(Module(), "f", "void", [("i1", "flag", ""), ("<4 x i1>", "flags", ""), ("i32", "word", "")])


@pytest.mark.parametrize("operator", MEANINGS)
def test_known_conditions_are_folded(builder: LLVMBuilder, operator: str) -> None:
    for left, right in product((False, True), repeat=2):
        found = builder.binary(operator, builder.constant("i1", left), builder.constant("i1", right))
        assert found.truth is MEANINGS[operator](left, right)


@pytest.mark.parametrize("operator", MEANINGS)
@pytest.mark.parametrize("known", [False, True])
def test_a_condition_with_a_known_one(builder: LLVMBuilder, operator: str, known: bool) -> None:
    flag = builder.arguments[0]
    for operands in ((flag, builder.constant("i1", known)), (builder.constant("i1", known), flag)):
        found = builder.binary(operator, *operands)
        meanings = {MEANINGS[operator](flag_is, known) for flag_is in (False, True)}
        if len(meanings) == 1:
            assert found.truth is meanings.pop()
        else:  # the condition itself, or an instruction that inverts it
            assert (found == flag) == MEANINGS[operator](True, known)


def test_inverse(builder: LLVMBuilder) -> None:
    flag, flags, word = builder.arguments
    assert builder.inverse(builder.constant("i1", True)).truth is False
    for value, ones in ((flag, "true"), (flags, "splat (i1 true)"), (word, "-1")):
        assert builder.inverse(value).type == value.type
        assert builder.block.lines[-1].endswith(f"xor {value}, {ones}")
    assert LLVMValue("<4 x i1>", "true").truth is None
