"""A drawn case, and what cases are drawn from: sizes with every kind of remainder, shapes of every aspect."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Drawn:
    """One operator on random tensors.

    `gather` is (input, dimension): whole-number results are positions in that input, compared by what lies there, since
    equal elements may be named in any order. `reference` computes the same from float64 inputs where `function` cannot.
    Without `captures` there is a result whose size depends on data, so that no contestant runs in a CUDA graph.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    gather: tuple[int, int] | None = None
    reference: Callable[..., Any] | None = None
    captures: bool = True


Function = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]  # and what it is called with
Family = Callable[["Draw"], Drawn]
FAMILIES: dict[str, Family] = {}


def family(make: Family) -> Family:
    """Register a family under its function's name."""
    FAMILIES[make.__name__] = make
    return make


class Draw(random.Random):
    """A seeded generator of sizes, types and tensors."""

    def __init__(self, family: str, number: int, seed: int, device: str = "cuda") -> None:
        super().__init__(f"{family}/{number}/{seed}")
        self.device = device
        torch.manual_seed(self.getrandbits(32))

    def size(self, low: int, high: int) -> int:
        """A size between the two, evenly on a logarithmic scale: half of them odd, a third multiples of 64."""
        found = round(math.exp(self.uniform(math.log(low), math.log(high))))
        kind = self.random()
        if kind < 0.35 and found >= 64:
            found -= found % 64
        elif kind < 0.85:
            found |= 1
        return max(low, min(high, found))

    def dtype(self, *names: str) -> torch.dtype:
        return DTYPES[self.choice(names or tuple(DTYPES))]

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, device=self.device) * scale).to(dtype)

    def whole(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, device=self.device)

    def rows(self, elements: int = 1 << 25) -> tuple[int, int]:
        """[rows, columns] of any aspect, with up to so many elements: few long rows as often as many short ones."""
        kind = self.choice(("few", "many", "even"))
        if kind == "few":
            rows = self.size(1, 64)
            return rows, self.size(1 << 14, max(1 << 15, elements // rows))
        if kind == "many":
            columns = self.size(2, 300)
            return self.size(1 << 14, elements // columns), columns
        columns = self.size(300, 20000)
        return self.size(64, max(65, elements // columns)), columns


def shape_text(*shape: int) -> str:
    """A shape in a case's name."""
    return "x".join(map(str, shape))


def short(dtype: torch.dtype) -> str:
    """A type in a case's name."""
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "f")
