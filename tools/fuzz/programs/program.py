"""Random programs over tensors: drawn operation by operation, each tried at all sizes that the program will meet."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tools.fuzz.programs.operations import FLOATS, INTEGERS, OPERATIONS, Drawn

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
HIGHEST = (5, 9, 33, 40)  # of a dynamic size
LARGEST = 1 << 14  # elements of a value
STEPS = (2, 9)
SPECIAL = (math.inf, -math.inf, math.nan, 0.0, -0.0, 1e30, -1e-30, 65504.0)
_NAMES = list(OPERATIONS)
_WEIGHTS = [OPERATIONS[name].weight for name in _NAMES]


@dataclass(frozen=True)
class Step:
    """One operation on earlier values, by their numbers."""

    name: str
    operands: tuple[int, ...]
    parameters: tuple[Any, ...]

    def run(self, values: Sequence[Any]) -> Any:
        """The result."""
        return OPERATIONS[self.name].function(*[values[number] for number in self.operands], *self.parameters)

    def __str__(self) -> str:
        return f"{self.name}({', '.join([*(f'v{number}' for number in self.operands), *map(repr, self.parameters)])})"


@dataclass(frozen=True)
class Argument:
    """An input: its shape, in which None stands for the dynamic size, its element type and how it is filled."""

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    filled: str

    def at(self, size: int, seed: int) -> torch.Tensor:
        """The input for one size; the same for the same seed."""
        shape = [size if extent is None else extent for extent in self.shape]
        generator = torch.Generator().manual_seed(seed)
        if self.dtype == torch.bool:
            return torch.rand(shape, generator=generator) < 0.5
        if self.dtype in INTEGERS:
            low, high = (-9, 10) if self.filled == "small" else (-(2**31), 2**31)
            drawn = torch.randint(low, high, shape, generator=generator)
            return drawn.to(self.dtype)
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
        if self.filled == "whole":
            numbers = (2 * numbers).round()
        elif self.filled == "wide":
            numbers = numbers * 100
        elif self.filled == "special":
            chosen = torch.randint(0, 3 * len(SPECIAL), shape, generator=generator)
            for number, value in enumerate(SPECIAL):
                numbers = torch.where(chosen == number, value, numbers)
        return numbers.to(self.dtype)


class Program(torch.nn.Module):
    """The steps as a model; it returns the values that no step reads, and its last one."""

    def __init__(self, arguments: Sequence[Argument], steps: Sequence[Step]) -> None:
        super().__init__()
        self.arguments = tuple(arguments)
        self.steps = tuple(steps)
        read = {number for step in steps for number in step.operands}
        count = len(arguments) + len(steps)
        self.unread = tuple(
            number for number in range(len(arguments), count) if number not in read or number == count - 1
        )

    def forward(self, x: Any, y: Any = None, z: Any = None) -> tuple[Any, ...]:
        values = [value for value in (x, y, z) if value is not None]
        for step in self.steps:
            values.append(step.run(values))
        return tuple(values[number] for number in self.unread)

    def inputs(self, size: int, seed: int, device: str = "cpu") -> list[torch.Tensor]:
        """All inputs for one size."""
        return [argument.at(size, seed + number).to(device) for number, argument in enumerate(self.arguments)]

    def __str__(self) -> str:
        lines = [f"v{number} = {argument}" for number, argument in enumerate(self.arguments)]
        lines += [f"v{number} = {step}" for number, step in enumerate(self.steps, len(self.arguments))]
        return "\n".join([*lines, f"return {', '.join(f'v{number}' for number in self.unread)}"])


class Drawing:
    """A program while it is drawn; `values` holds every value at each of the sizes."""

    def __init__(self, seed: int, dynamic: bool, gpu: bool = False) -> None:
        self.random = random.Random(seed)
        self.gpu = gpu
        self.high = self.random.choice(HIGHEST)
        middle = self.random.randint(2, self.high - 1)
        self.sizes = [middle, 1, 2, self.high - 1, self.high] if dynamic else [middle]
        self.arguments = [self._argument(number, dynamic) for number in range(self.random.choice([1, 1, 2, 3]))]
        self.values = [
            [argument.at(size, seed + n) for size in self.sizes] for n, argument in enumerate(self.arguments)
        ]
        self.steps: list[Step] = []

    def _argument(self, number: int, dynamic: bool) -> Argument:
        rank = self.random.choice([1, 2, 2, 3, 3, 4])
        shape: list[int | None] = [self.random.choice(EXTENTS[:7] if rank > 3 else EXTENTS) for _ in range(rank)]
        if number and self.random.random() < 0.7:  # the end of the first input's shape: the two broadcast
            shape = list(self.arguments_shape[-self.random.randint(1, len(self.arguments_shape)) :])
        elif dynamic:
            shape[self.random.randrange(rank)] = None
        if not number:
            self.arguments_shape = shape
        kind = self.random.random()
        if kind < 0.08:
            return Argument(tuple(shape), torch.bool, "")
        if kind < 0.3:
            return Argument(tuple(shape), self.random.choice(INTEGERS), self.random.choice(["small", "small", "full"]))
        dtype = self.random.choice([torch.float32] * 6 + list(FLOATS))
        return Argument(tuple(shape), dtype, self.random.choice(["normal"] * 5 + ["whole", "wide", "special"]))

    # What rules ask

    def example(self, value: int) -> torch.Tensor:
        return self.values[value][0]

    def fixed(self, value: int) -> list[int]:
        shapes = [tuple(each.shape) for each in self.values[value]]
        return [axis for axis, extents in enumerate(zip(*shapes, strict=True)) if len(set(extents)) == 1]

    def pick(self, condition: Callable[[torch.Tensor], bool]) -> int | None:
        fitting = [number for number, value in enumerate(self.values) if condition(value[0])]
        if not fitting:
            return None
        return fitting[-1] if self.random.random() < 0.5 else self.random.choice(fitting)

    def broadcastable(self, value: int, condition: Callable[[torch.Tensor], bool]) -> int | None:
        fitting = [
            number for number, other in enumerate(self.values) if condition(other[0]) and self._fit(value, number)
        ]
        return self.random.choice(fitting) if fitting else None

    def _fit(self, left: int, right: int) -> bool:
        for one, other in zip(self.values[left], self.values[right], strict=True):
            if any(a != b and 1 not in (a, b) for a, b in zip(one.shape[::-1], other.shape[::-1], strict=False)):
                return False
        return True

    # Steps

    def step(self) -> None:
        """Draw a step and keep it if it runs at every size."""
        name = self.random.choices(_NAMES, _WEIGHTS)[0]
        drawn: Drawn = OPERATIONS[name].rule(self)
        if drawn is None:
            return
        step = Step(name, *drawn)
        results = []
        for number in range(len(self.sizes)):
            try:
                result = step.run([value[number] for value in self.values])
            except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
                return
            if not 0 < result.numel() <= LARGEST or result.dim() > 5 or result.is_complex():
                return
            results.append(result)
        if len({(result.dim(), result.dtype) for result in results}) == 1:
            self.values.append(results)
            self.steps.append(step)


def draw(seed: int, dynamic: bool, gpu: bool = False) -> tuple[Program, list[int]]:
    """A program and the sizes of its dynamic dimension, the example's first and the ends of the range among them."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawing = Drawing(seed, dynamic, gpu)
        wanted = drawing.random.randint(*STEPS)
        for _ in range(20 * wanted):
            if len(drawing.steps) < wanted:
                drawing.step()
    return Program(drawing.arguments, drawing.steps), drawing.sizes
