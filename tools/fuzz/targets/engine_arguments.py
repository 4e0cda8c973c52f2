"""Calls of an engine with odd inputs, outputs and options: results are right, and refused calls change nothing."""

from __future__ import annotations

import importlib
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.host.handmade import COLUMNS, expected, make_engine
from tilewright.errors import TilewrightError
from tools.fuzz.odd_values import PLAIN, Given, Odd
from tools.fuzz.target import Base, Failed


class Case:
    """One call."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rows = self.chance.choice((1, 2, 5, 6))
        self.x = self._draw("float32", (self.rows, COLUMNS), 0.6)
        self.cache = self._draw("int64", (4,), 0.7)
        self.given = [self.x, self.cache]
        self.y: Given | None = None
        self.out: Any = None
        kind = self.chance.random()
        if kind < 0.5:
            self.y = self._draw("float32", (self.rows, COLUMNS), 0.6)
            self.given.append(self.y)
            self.out = {"y": self.y.value}
        elif kind < 0.65:
            self.out = self.chance.choice((*PLAIN, lambda: {"z": None}, lambda: {1: 2}, lambda: {"cache_out": 1}))()
        elif kind < 0.75:  # memory of an input
            self.y = self.chance.choice((self.x, self.cache))
            self.out = {"y": self.y.value}
        self.inputs: Any = {"x": self.x.value, "cache": self.cache.value}
        kind = self.chance.random()
        if kind < 0.05:
            self.inputs = self.chance.choice(PLAIN)()
        elif kind < 0.1:
            self.inputs.pop(self.chance.choice(("x", "cache")))
        elif kind < 0.15:
            self.inputs[self.chance.choice(("y", 1, None, (), "x "))] = 1
        self.threads = self.chance.choice((None, None, None, 1, 2, 0, -1, 1.5, "2", object()))
        self.named = self.chance.random() < 0.1

    def _draw(self, dtype: str, shape: tuple[int, ...], good: float) -> Given:
        odd = Odd(self.chance, dtype, shape)
        return odd.good() if self.chance.random() < good else odd.draw()

    def call(self, engine: Any) -> Any:
        """What the engine gives."""
        if self.named and isinstance(self.inputs, dict) and all(isinstance(name, str) for name in self.inputs):
            y, cache = engine(**self.inputs)
            self.y = None
            return {"y": y, "cache_out": cache}
        return engine.run(self.inputs, self.out, self.threads)


def _contents(given: Given) -> np.ndarray | None:
    """A copy of what an input holds, None for what is no array; what is described may lie about where it is."""
    if given.name == "described":
        return None
    try:
        return np.array(_numbers(given.value), np.float32)
    except Exception:
        return None


def _numbers(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return value.detach().resolve_neg().numpy()
    return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)


class Target(Base):
    def prepare(self, folder: Path) -> None:
        warnings.simplefilter("ignore")
        importlib.import_module("torch._dynamo")  # what a first tensor would import within its case
        self.engine = make_engine()

    def run(self, seed: int) -> str:
        case = Case(seed)
        x = _contents(case.x)
        try:
            results = case.call(self.engine)
        except TilewrightError:
            for given in case.given:
                if given.changed:
                    raise Failed("changed", f"a refused call changed {given.name}", given.name) from None
            raise
        if x is None:
            raise Failed("wrong", f"{case.x.name} was taken", case.x.name)
        np.testing.assert_allclose(_numbers(results["y"]), expected(x.reshape(-1, COLUMNS)), rtol=1e-5)
        if case.cache.memory is None or not case.cache.changed:
            raise Failed("wrong", f"cache of kind {case.cache.name} was not updated", case.cache.name)
        if (
            case.y is not None
            and case.y.value is not None
            and not np.array_equal(_numbers(case.y.value), _numbers(results["y"]))
        ):
            raise Failed("wrong", f"out of kind {case.y.name} was not written", case.y.name)
        return "right"


TARGET = Target()
