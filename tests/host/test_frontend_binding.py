"""The function generated for each kernel's launches: it does what the first launch does, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import LaunchError
from tilewright.launch import hooks


@tilewright.jit
def kinds(x, out, n, scale, flag, nothing, BLOCK: tl.constexpr = 16):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i).to(tl.float64) * scale + n
    if flag:
        value += 1
    tl.store(out + i, value)


def fresh(kernel: tilewright.JITFunction, **options: Any) -> tilewright.JITFunction:
    return tilewright.JITFunction(kernel.function, **options)


BUFFER = np.arange(64, dtype=np.float32)
ARRAYS = [
    np.arange(16, dtype=np.float32),
    BUFFER[1:17],  # aligned to 4 bytes
    BUFFER[32:],
    np.arange(16, dtype=np.int8),
    np.arange(17, dtype=np.int8)[1:],
    np.arange(16, dtype=np.float16),
]
NUMBERS: list[Any] = [0, 1, 2, 16, -16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**62, np.int16(7), True]


def test_later_launches_do_what_the_first_does() -> None:
    kernel = fresh(kinds)
    for scale, flag in ((2.0, True), (np.float32(0.5), False)):
        for x in ARRAYS:
            for n in NUMBERS:
                expected = x[:16].astype(np.float64) * float(scale) + int(n) + flag
                for launched in (fresh(kinds), kernel):
                    out = np.zeros(16)
                    launched[(1,)](x, out, n, scale, flag, None)
                    np.testing.assert_array_equal(out, expected)
    assert len(kernel.cache[0]) == len({str(key) for key in kernel.cache[0]})


@tilewright.jit
def with_constants(out, BLOCK: tl.constexpr, SHAPE: tl.constexpr, FACTOR: tl.constexpr, FLAG: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.reshape(i, SHAPE) * FACTOR + 3
    if FLAG:
        value += 1
    tl.store(out + tl.reshape(i, SHAPE), value)


def test_constants_may_be_numpy_numbers() -> None:
    out = np.zeros(16, np.float32)
    constants = np.int64(16), (np.int32(4), np.int64(4)), np.float32(0.5), np.bool_(True)
    for _ in range(3):
        with_constants[(1,)](out, *constants)
        np.testing.assert_array_equal(out, np.arange(16) * 0.5 + 4)
    with_constants[(1,)](out, 16, (4, 4), 0.5, True)
    assert len(with_constants.cache[0]) == 1


@tilewright.jit
def backwards(x, out, n):
    i = tl.arange(0, 8)
    tl.store(out + i, tl.load(x - i))


def test_negative_strides_point_at_the_first_element() -> None:
    kernel = fresh(backwards)
    x = np.arange(8, dtype=np.float32)
    for _ in range(3):
        out = np.zeros(8, np.float32)
        kernel[(1,)](x[::-1], out, 3)  # its first element is the last one in memory
        assert out.tolist() == x[::-1].tolist()


def test_torch_tensors_and_arrays_share_a_signature() -> None:
    torch = pytest.importorskip("torch")
    kernel = fresh(kinds)
    tensors = [torch.arange(16, dtype=torch.float32), torch.arange(17, dtype=torch.float32)[1:]]
    tensors.append(torch.nn.Parameter(torch.arange(16, dtype=torch.float32)))  # type: ignore[arg-type]
    for _ in range(2):
        for x in tensors:
            out = torch.zeros(16, dtype=torch.float64)
            kernel[(1,)](x, out, 16, 2.0, False, None)
            assert torch.equal(out, x.detach().double() * 2 + 16)
            again = np.zeros(16)
            kernel[(1,)](x.detach().numpy(), again, 16, 2.0, False, None)
            np.testing.assert_array_equal(again, out.numpy())
    assert len(kernel.cache[0]) == 2  # aligned, and not


@tilewright.jit
def shadows(type, id, tuple, callable, int, Exception: tl.constexpr):
    tl.store(type, id + tuple + callable + int + Exception)


def test_parameters_may_have_any_name() -> None:
    out = np.zeros(1, np.int32)
    for number in range(4):
        shadows[lambda meta: (meta["Exception"],)](out, number, 1, 1, 1, Exception=1)
        assert out[0] == number + 4


@tilewright.jit
def options(out, *rest, first=1, num_warps: tl.constexpr = 4):
    total = first * num_warps
    for entry in rest:
        total += entry
    tl.store(out, total)


def test_defaults_variadic_and_keyword_parameters() -> None:
    out = np.zeros(1, np.int32)
    for _ in range(3):
        for arguments, keywords, expected in [
            ((), {}, 4), ((5, 6), {}, 15), ((5,), {"first": 2}, 13), ((), {"num_warps": 8, "num_stages": 2}, 8)
        ]:  # fmt: skip
            options[(1,)](out, *arguments, **keywords)
            assert out[0] == expected


@tilewright.jit
def guarded(x, out, n, BLOCK: tl.constexpr):
    tl.store(out, tl.load(x) + n)


def test_mistakes_are_reported_at_every_launch() -> None:
    kernel = fresh(guarded)
    x, out = np.ones(1, np.float32), np.zeros(1, np.float32)
    read_only = np.zeros(1, np.float32)
    read_only.flags.writeable = False
    odd = np.zeros(8, np.uint8)[1:5].view(np.float32)
    mistakes: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
        ((x, read_only, 2, 8), {}, LaunchError, "writes to argument 'out', a read-only array"),
        ((x, out, 2), {}, LaunchError, "needs a value for 'BLOCK'"),
        ((x, out), {"BLOCK": 8}, LaunchError, "needs a value for 'n'"),
        ((x, out, 2, 8, 9), {}, LaunchError, "1 more positional"),
        ((x, out, 2), {"BLOCK": 8, "speed": 1}, LaunchError, "does not take 'speed'"),
        ((x, out, 2, 8), {"n": 3}, TypeError, r"guarded\(\) got multiple values for argument 'n'"),
        ((x, out, [2], 8), {}, LaunchError, "argument 'n': a list cannot be passed"),
        ((odd, out, 2, 8), {}, LaunchError, "argument 'x'.*which its dtype does not divide"),
        ((x.astype(">f4"), out, 2, 8), {}, LaunchError, "argument 'x'"),
    ]
    for launches in range(4):
        for arguments, keywords, error, message in mistakes:
            with pytest.raises(error, match=message):
                kernel[(1,)](*arguments, **keywords)
        for grid, message in ((1.5, "whole numbers"), ((-1,), "at least 0"), ((1, 2, 3, 4), "one to three")):
            with pytest.raises(LaunchError, match=message):
                kernel[grid](x, out, 2, 8)
        for grid in ((1,), (1, 1), [1, 1, 1], 1, np.int64(1), lambda meta: (meta["n"] // 2,)):
            out[0] = 0
            kernel[grid](x, out, 2, BLOCK=8)
            assert out[0] == 3
        out[0] = 0
        kernel[(0,)](x, out, 2, BLOCK=8)
        assert out[0] == 0, launches


def test_hooks_that_come_later_are_seen() -> None:
    kernel = fresh(guarded)
    x, out = np.ones(1, np.float32), np.zeros(1, np.float32)
    for _ in range(3):
        kernel[(1,)](x, out, 2, BLOCK=8)
    told: list[Any] = []
    hooks.launch_enter.add(told.append)
    try:
        kernel[(1,)](x, out, 2, BLOCK=8)
    finally:
        hooks.launch_enter.remove(told.append)
    kernel.add_pre_run_hook(lambda *arguments, **keywords: told.append(keywords))
    kernel[(1,)](x, out, 2, BLOCK=8)
    assert told[0].get()["name"] == "guarded" and told[1:] == [{"BLOCK": 8}]


def test_replaced_text_is_seen() -> None:
    kernel = fresh(guarded)
    x, out = np.ones(1, np.float32), np.zeros(1, np.float32)
    original = kernel.src
    for _ in range(2):
        for text, expected in ((original, 3.0), (original.replace("+ n", "- n"), -1.0)):
            kernel._unsafe_update_src(text)
            for _ in range(3):
                kernel[(1,)](x, out, 2, BLOCK=8)
                assert out[0] == expected


@tilewright.jit
def sums(out, *rest, FACTOR: tl.constexpr, TWICE: tl.constexpr = False):
    i = tl.arange(0, 8)
    total = tl.zeros((8,), tl.float32)
    for part in tl.static_range(len(rest)):
        value, weight = rest[part]
        total += tl.load(value + i) * weight
    tl.store(out + i, total * FACTOR + (10 if TWICE else 0))


def test_rest_and_flags_of_later_launches() -> None:
    """Groups are taken apart, nothing is a group too, and True is another constant than 1."""
    kernel = fresh(sums)
    x, y = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    for _ in range(3):
        for rest, expected in (((), 0 * x), (((x, 3),), 3 * x), (((x, 3), (y, 0.5)), 3 * x + 0.5)):
            for flag, added in ((True, 10), (1, 10), (False, 0)):
                out = np.zeros(8, np.float32)
                kernel[(1,)](out, *rest, FACTOR=2, TWICE=flag)
                assert out.tolist() == (expected * 2 + added).tolist()
    assert len({str(key) for key in kernel.cache[0]}) == 9
    out.flags.writeable = False
    with pytest.raises(LaunchError, match="read-only"):
        kernel[(1,)](out, (x, 3), FACTOR=2)
