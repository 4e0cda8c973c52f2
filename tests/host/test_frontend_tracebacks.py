"""What an error that nobody catches looks like: the user's own call, then the message; advice on other libraries."""

# mypy: ignore-errors

from __future__ import annotations

import math
import re
import traceback

import numpy as np
import pytest
import torch

import tilewright
import tilewright.language as tl
from tests.host.language_support import compile_error
from tilewright.errors import AutotunerError, TilewrightError
from tilewright.settings import settings


@tilewright.jit
def mistaken(x, out, start, WRONG: tl.constexpr):
    value = tl.load(x + tl.arange(0, 4))
    if WRONG:
        value = value.unknown()
    tl.store(out + start + tl.arange(0, 4), value)


@tilewright.heuristics({"WRONG": lambda arguments: True})
@tilewright.jit
def filled(x, out, start, WRONG: tl.constexpr):
    tl.store(out, x.unknown())


@tilewright.autotune([tilewright.Config({"WRONG": True}), tilewright.Config({"WRONG": 1})], key=[])
@tilewright.jit
def tuned(x, out, start, WRONG: tl.constexpr):
    tl.store(out, x.unknown())


X, OUT = np.ones(4), np.ones(4)
TYPES = {"x": "*f64", "out": "*f64", "start": "i32"}


def twice_before(mode, *arguments):
    for _ in range(2):  # so that the third launch goes through the function generated for the kernel
        mistaken[(1,)](X, OUT, 0, WRONG=False)
    with settings.scope(interpret=mode):
        mistaken[(1,)](*arguments)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mistaken[(1,)](X, OUT, 0, WRONG=True),
        lambda: mistaken.warmup(X, OUT, 0, WRONG=True, grid=(1,)),
        lambda: mistaken.trace(TYPES, {"WRONG": True}),
        lambda: mistaken.compile(TYPES, {"WRONG": True}),
        lambda: filled[(1,)](X, OUT, 0),
        lambda: tuned[(1,)](X, OUT, 0),
        lambda: twice_before("", X, OUT, 0, True),
        lambda: twice_before("1", X, OUT, 9, False),
        lambda: twice_before("eager", X, OUT, 9, False),
        lambda: mistaken[(1,)](X, "text", 0, WRONG=False),
    ],
)
def test_a_traceback_ends_at_the_users_call(call) -> None:
    with pytest.raises(TilewrightError) as caught:
        call()
    files = {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)}
    assert files == {__file__}
    assert isinstance(caught.value, AutotunerError) or caught.value.__cause__ is None
    assert caught.value.__cause__ is None or caught.value.__cause__.__traceback__ is None


@tilewright.jit
def numpy_function(x, out, n):
    tl.store(out, np.exp(tl.load(x)))


@tilewright.jit
def torch_function(x, out, n):
    tl.store(out, torch.nn.functional.softplus(tl.load(x)))


@tilewright.jit
def torch_number(x, out, n):
    tl.store(out, torch.tanh(tl.load(x)))


@tilewright.jit
def math_function(x, out, n):
    tl.store(out, math.cbrt(tl.load(x)))


@tilewright.jit
def part_of_unknown_length(x, out, n):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, 4))[:n], 0))


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (numpy_function, "'exp' of numpy is not part of the tile language(.|\n)*help: use tl.exp"),
        (torch_function, "'softplus' of torch is not part of the tile language(.|\n)*help: write it with operations"),
        (torch_number, "'tanh' of torch is not part of the tile language(.|\n)*help: use tl.tanh"),
        (math_function, "'math.cbrt' computes with compile-time numbers only(.|\n)*help: use tl.extra.libdevice.cbrt"),
        (part_of_unknown_length, "a slice's bound must be a compile-time integer, got int32"),
    ],
)
def test_advice(kernel, text) -> None:
    assert re.search(text, compile_error(kernel, {"x": "*f32", "out": "*f32", "n": "i32"}))
