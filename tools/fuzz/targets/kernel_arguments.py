"""Launches with odd arguments, constants, grids and options, native and interpreted."""

from __future__ import annotations

import importlib
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tilewright
import tilewright.language as tl
from tilewright.errors import TilewrightError
from tilewright.settings import settings
from tools.fuzz.odd_values import PLAIN, Given, Odd
from tools.fuzz.target import Base, Failed

COUNT = 16


@tilewright.jit
def scale(x, out, n, factor, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    mask = (i < n) & (i < 16)
    value = tl.load(x + i, mask=mask, other=0.0)
    tl.store(out + i, (value * factor).to(out.dtype.element_ty), mask=mask)


@tilewright.jit
def scale_pair(pair, n, factor, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    mask = (i < n) & (i < 16)
    value = tl.load(pair[0] + i, mask=mask, other=0.0)
    tl.store(pair[1] + i, (value * factor).to(pair[1].dtype.element_ty), mask=mask)


NUMBERS: tuple[Any, ...] = (COUNT, COUNT, COUNT, 0, 1, 2, 8, np.int64(16), np.int8(5), True, -1)
FACTORS: tuple[Any, ...] = (1.0, 2.0, 2, np.float32(2), 1, True, 0.5)
BLOCKS: tuple[Any, ...] = (16, 16, 16, np.int64(16), 32, 1, 0, -1, 15, 2**30, 1.0, "16", None, (16,), [16], tl.float32)
GRIDS: tuple[Any, ...] = (
    (1,), (1,), (1,), (1, 1), (1, 1, 1), [1], 1, (0,), (), (1, 1, 1, 1), (-1,), (2**31,), (1.5,), ("1",), None, "1", {},
    (True,), (None,), np.array([1]), torch.ones(2), object(), (np.int64(1),), lambda meta: (1,), lambda meta: None,
)  # fmt: skip
OPTIONS: tuple[tuple[str, Any], ...] = (
    ("num_warps", 4), ("num_warps", "x"), ("num_warps", -1), ("num_stages", None), ("debug", True), ("debug", "x"),
    ("unknown", 1), ("BLOCKS", 16), ("enable_fp_fusion", False), ("enable_fp_fusion", 3), ("maxnreg", []),
    ("extern_libs", {"a": 1}), ("arch", object()), ("num_ctas", {1: 2}), ("ir_override", 7), ("ir_override", "none"),
)  # fmt: skip


class Case:
    """One launch."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.x, self.out = self._draw(0.6), self._draw(0.6)
        plain = chance.random() < 0.1
        self.n = chance.choice(PLAIN)() if plain else chance.choice(NUMBERS)
        self.factor = chance.choice(PLAIN)() if chance.random() < 0.05 else chance.choice(FACTORS)
        self.block = chance.choice(BLOCKS) if chance.random() < 0.15 else 16
        self.grid = chance.choice(GRIDS)
        self.options = dict(chance.choice(OPTIONS) for _ in range(chance.choice((0, 0, 0, 0, 1, 2))))
        self.paired = chance.random() < 0.2
        self.interpret: Any = chance.choice((False, False, False, True, "eager", "check"))

    def _draw(self, good: float) -> Given:
        odd = Odd(self.chance, "float32", (COUNT,))
        while True:
            given = odd.good() if self.chance.random() < good else odd.draw()
            if not _untrue(given):
                return given

    def launch(self) -> None:
        """Launch the kernel."""
        numbers = self.n, self.factor, self.block
        with settings.scope(interpret=self.interpret):
            if self.paired:
                scale_pair[self.grid]((self.x.value, self.out.value), *numbers, **self.options)
            else:
                scale[self.grid](self.x.value, self.out.value, *numbers, **self.options)


def _untrue(given: Given) -> bool:
    """Whether a value lies about its memory, or has less than the kernel reaches: native code cannot know."""
    value = given.value
    if given.name.startswith("array of rank") or given.name in ("strided", "expanded", "broadcast", "backwards"):
        return True
    facts = getattr(value, "__array_interface__", None)
    return (
        given.name == "described"
        and isinstance(facts, dict)
        and given.memory is not None
        and (facts != given.memory.__array_interface__)
    )


class Target(Base):
    seconds = 10.0

    def prepare(self, folder: Path) -> None:
        warnings.simplefilter("ignore")
        importlib.import_module("torch._dynamo")  # what a first tensor would import within its case
        self.cache = settings.scope(cache_directory=folder / "cache")
        self.cache.__enter__()

    def run(self, seed: int) -> str:
        case = Case(seed)
        source = None if case.x.memory is None else case.x.memory.copy()
        try:
            case.launch()
        except TilewrightError:
            if case.out.changed or case.x.changed:
                raise Failed("changed", f"a refused launch changed {case.out.name}", case.out.name) from None
            raise
        usual = case.x.name in USUAL and case.out.name in USUAL and case.out.memory is not None and source is not None
        if not usual or type(case.factor) not in (int, float, np.float32) or case.block != 16 or not _one(case.grid):
            return "launched"
        if not isinstance(case.n, (int, np.integer)):
            return "launched"
        count = min(COUNT, int(case.n))
        expected = np.frombuffer(case.out.before, np.float32).copy()
        if count > 0:
            expected[:count] = source[:count] * np.float32(case.factor)
        if case.out.memory.tobytes() != expected.tobytes():
            raise Failed("wrong", f"{case.out.memory} instead of {expected}", f"{case.x.name} to {case.out.name}")
        return "right"


USUAL = ("array", "subclass", "DLPack", "tensor", "parameter", "leaf")


def _one(grid: Any) -> bool:
    return (
        isinstance(grid, (tuple, list))
        and len(grid) > 0
        and all(type(extent) is int and extent == 1 for extent in grid)
    )


TARGET = Target()
