"""The kernels of `explicit_features` and `explicit_ladder` with arguments and the results they must have.

Each case is compiled, run in the interpreter, and run on a GPU, by different tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tests import explicit_features as features
from tests import explicit_ladder as ladder
from tilewright.dtypes import BY_TEXT
from tilewright.ir.core import Function

BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Run:
    """One call of a kernel: arguments (arrays and numbers), which of them is written, what it must become."""

    arguments: list[Any]
    expected: np.ndarray  # float64, or integers
    output: int = -1
    tolerance: float = 0.0  # of the absolute difference, relative to the root mean square of the expected numbers


@dataclass(frozen=True)
class Case:
    """`trace()` gives the kernel, `make(rng)` a call of it, `grid` the CTAs; `options` are those of the launch."""

    trace: Callable[[], Function]
    make: Callable[[np.random.Generator], Run]
    grid: tuple[int, int, int] = (1, 1, 1)
    options: dict[str, Any] = field(default_factory=dict)


def tensor_map(shape: tuple[int, ...], element: str = "bf16") -> str:
    return f"tensormap<{'x'.join(map(str, shape))}x{element}>"


def numbers(rng: np.random.Generator, shape: tuple[int, ...], element: str) -> np.ndarray:
    """Random numbers of an element type; integers are all of its range."""
    dtype = BY_TEXT[element].numpy
    if BY_TEXT[element].is_integer:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return rng.integers(low, high, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def product(
    a: str, b: str, m: int, n: int, k: int, *, transposed_a: bool = False, transposed_b: bool = False,
    registers: bool = False, swizzle: int = 128, warps: int = 4,
) -> Case:  # fmt: skip
    """Twice the product of one tile of each, with an exact accumulator: integers, or float32 sums of k products."""
    shape_a, shape_b = ((k, m) if transposed_a else (m, k)), ((k, n) if transposed_b else (n, k))
    result = "i32" if BY_TEXT[a].is_integer else "f32"
    constants = {
        "TRANSPOSED_A": transposed_a, "TRANSPOSED_B": transposed_b, "REGISTERS": registers, "SWIZZLE": swizzle,
    }  # fmt: skip
    types = {"a": tensor_map(shape_a, a), "b": tensor_map(shape_b, b), "c": tensor_map((m, n), result)}
    # tf32 keeps 10 bits of each factor, cut off; fp8 products are summed in 14 bits.
    tolerance = {"f32": 2**-8, "f8e4nv": 2**-9, "f8e5": 2**-9}.get(a, 2**-18)

    def make(rng: np.random.Generator) -> Run:
        left, right = numbers(rng, shape_a, a), numbers(rng, shape_b, b)
        wide = np.int64 if BY_TEXT[a].is_integer else np.float64
        x, y = left.astype(wide), right.astype(wide)
        expected = 2 * ((x.T if transposed_a else x) @ (y if transposed_b else y.T))
        out = np.zeros((m, n), BY_TEXT[result].numpy)
        return Run([left, right, out], expected, tolerance=0.0 if wide is np.int64 else tolerance)

    return Case(lambda: features.product.trace(types, constants), make, options={"num_warps": warps})


def transposition(element: str, by_load: bool) -> Case:
    types = {"a": tensor_map((64, 128), element), "c": tensor_map((128, 64), element)}

    def make(rng: np.random.Generator) -> Run:
        a = numbers(rng, (64, 128), element)
        return Run([a, np.zeros((128, 64), a.dtype)], a.T.astype(np.float64))

    return Case(lambda: features.transpose.trace(types, {"BY_LOAD": by_load}), make)


def accumulation(element: str, kind: str, combine: Any) -> Case:
    types = {"a": tensor_map((32, 64), element), "c": tensor_map((32, 64), element)}

    def make(rng: np.random.Generator) -> Run:
        a, c = numbers(rng, (160, 64), element) // 4, numbers(rng, (32, 64), element) // 4
        tiles = np.concatenate([c[None], a.reshape(5, 32, 64)]).astype(np.float64)
        return Run([a, c], combine(tiles, axis=0), tolerance=2**-20 if element == "f32" else 0.0)

    return Case(lambda: features.accumulate.trace(types, {"KIND": kind}), make, grid=(5, 1, 1))


def copy_ahead() -> Case:
    types = {"a": tensor_map((32, 64), "bf16"), "c": tensor_map((32, 64), "bf16"), "following": "*f32"}

    def make(rng: np.random.Generator) -> Run:
        a = numbers(rng, (96, 64), "bf16")
        out = np.zeros_like(a)
        return Run([a, out, np.zeros(3 * 512, np.float32)], a.astype(np.float64), output=1)

    return Case(lambda: features.copy_ahead.trace(types, {"SIZE": 512}), make, grid=(3, 1, 1))


def exchange(element: str, swizzle: int) -> Case:
    types = {"a": tensor_map((64, 64), element), "c": tensor_map((64, 64), element)}

    def make(rng: np.random.Generator) -> Run:
        a = numbers(rng, (256, 64), element)
        wide = a.astype(np.float64).reshape(2, 2, 64, 64)
        expected = (wide + wide[:, ::-1]).reshape(256, 64)
        return Run([a, np.zeros_like(a)], expected, tolerance=2**-7 if element == "bf16" else 2**-20)

    return Case(lambda: features.exchange.trace(types, {"SWIZZLE": swizzle}), make, grid=(4, 1, 1))


def turns(rounds: int) -> Case:
    def make(rng: np.random.Generator) -> Run:
        x = np.zeros((2 * rounds, 128), np.int32)
        expected = x.copy()
        for turn in range(2 * rounds):
            value = (expected[turn - 1] if turn else 0) + np.arange(128) % 3
            expected[turn] = np.where(value > 100, value - 100, value)
        return Run([x], expected)

    return Case(lambda: features.turns.trace({"x": "*i32"}, {"ROUNDS": rounds}), make)


def scratch() -> Case:
    constants = {"ROWS": 64, "COLUMNS": 32}

    def make(rng: np.random.Generator) -> Run:
        x = rng.integers(-1000, 1000, (3, 64, 32)).astype(np.float32)
        expected = (x + x.sum(1, keepdims=True)).transpose(0, 2, 1)
        return Run([x, np.zeros(expected.shape, np.float32)], expected)

    return Case(lambda: features.scratch.trace({"x": "*k f32", "y": "*f32"}, constants), make)


def matmul(
    kernel: str, m: int, n: int, k: int, blocks: tuple[tuple[int, int], ...], constants: dict[str, int],
    grid: tuple[int, int, int], *, sizes: tuple[int, ...], element: str = "bf16",
) -> Case:  # fmt: skip
    """A product a @ b.T of whole matrices, in bf16; `blocks` are the tiles of a, b and c."""
    function = getattr(ladder, kernel, None) or getattr(features, kernel)
    types = {
        name: tensor_map(block, "bf16" if name == "c" else element) for name, block in zip("abc", blocks, strict=True)
    }
    names = ("M", "N", "K")[3 - len(sizes) :]
    types.update(dict.fromkeys(names, "i32"))

    def make(rng: np.random.Generator) -> Run:
        a, b = numbers(rng, (m, k), element), numbers(rng, (n, k), element)
        expected = a.astype(np.float64) @ b.astype(np.float64).T
        tolerance = 2**-6 if BY_TEXT[element].bits == 8 else 2**-7  # of the largest, which a row of some may be
        return Run([a, b, np.full((m, n), np.nan, BF16), *sizes], expected, output=2, tolerance=tolerance)

    return Case(lambda: function.trace(types, constants), make, grid)


LARGE = ((128, 64), (256, 64), (64, 64))
CASES: dict[str, Case] = {
    "bf16": product("bf16", "bf16", 64, 96, 128),
    "f16, swizzle 64": product("f16", "f16", 64, 64, 64, swizzle=64),
    "f16, swizzle 32": product("f16", "f16", 64, 128, 32, swizzle=32),
    "bf16, two slices from registers": product("bf16", "bf16", 128, 96, 64, registers=True),
    "bf16, both transposed": product("bf16", "bf16", 128, 128, 64, transposed_a=True, transposed_b=True),
    "bf16, two warpgroups": product("bf16", "bf16", 256, 64, 64, warps=8),
    "bf16, a transposed, two warpgroups": product("bf16", "bf16", 128, 32, 64, transposed_a=True, warps=8),
    "bf16, from transposed registers": product("bf16", "bf16", 64, 64, 64, transposed_a=True, registers=True),
    "tf32": product("f32", "f32", 64, 64, 64),
    "tf32 from registers": product("f32", "f32", 64, 32, 64, registers=True),
    "e4m3": product("f8e4nv", "f8e4nv", 64, 128, 128),
    "e4m3 with e5m2, from registers": product("f8e4nv", "f8e5", 64, 64, 128, registers=True),
    "s8": product("i8", "i8", 64, 224, 128),
    "u8 with s8, from registers": product("u8", "i8", 128, 64, 128, registers=True),
    "transpose by loads": transposition("bf16", True),
    "transpose by stores": transposition("bf16", False),
    "transpose float32": transposition("f32", False),
    "add": accumulation("f32", "add", np.sum),
    "min": accumulation("i32", "min", np.min),
    "copy ahead": copy_ahead(),
    "exchange": exchange("f32", 128),
    "exchange bf16, no swizzle": exchange("bf16", 0),
    "multicast": matmul(
        "multicast", 256, 128, 200, ((128, 64), (64, 64), (64, 128)), {"STAGES": 2}, (2, 1, 1), sizes=(200,)
    ),
    "turns": turns(60),
    "scratch of copies": scratch(),
    "one tile": matmul("one_tile", 64, 128, 328, ((64, 64), (128, 64), (64, 128)), {}, (1, 1, 1), sizes=(328,)),
    "staged": matmul(
        "staged", 300, 520, 200, ((128, 64), (128, 64), (64, 128)), {"STAGES": 3, "CONSUMERS": 2}, (3, 5, 1),
        sizes=(200,),
    ),
    "persistent": matmul(
        "persistent", 300, 520, 200, LARGE, {"STAGES": 3, "GROUP": 2}, (4, 1, 1), sizes=(300, 520, 200)
    ),
    "persistent, 224 columns": matmul(
        "persistent", 300, 520, 328, ((128, 64), (224, 64), (64, 32)), {"STAGES": 4, "GROUP": 8}, (2, 1, 1),
        sizes=(300, 520, 328),
    ),
    "persistent s8": matmul(
        "persistent", 260, 264, 400, ((128, 128), (256, 128), (64, 64)), {"STAGES": 3, "GROUP": 8}, (3, 1, 1),
        sizes=(260, 264, 400), element="i8",
    ),
    "persistent e4m3": matmul(
        "persistent", 260, 264, 400, ((128, 128), (192, 128), (64, 64)), {"STAGES": 3, "GROUP": 8}, (3, 1, 1),
        sizes=(260, 264, 400), element="f8e4nv",
    ),
}  # fmt: skip


def check(run: Run) -> None:
    """Raises `AssertionError` where the output is not what it must be."""
    found = np.asarray(run.arguments[run.output])
    if run.tolerance == 0.0:
        assert np.array_equal(found.astype(run.expected.dtype), run.expected)
        return
    scale = np.sqrt(np.mean(run.expected**2))
    worst = np.abs(found.astype(np.float64) - run.expected).max() / scale
    assert worst <= run.tolerance * 4, f"the worst difference is {worst:.2e} of the root mean square"
