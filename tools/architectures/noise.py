"""PyTorch with the random numbers of an engine: the same draws in the same order, so that results can be compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.graph.random_bits import random_bits

Draw = Callable[["Noise", torch.Tensor, Any], torch.Tensor]  # of what PyTorch drew, and of the call's arguments


class Noise(TorchDispatchMode):
    """``with Noise(seed): module(x)``; raises `NotImplementedError` for a draw that it does not know."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = np.array(seed)
        self._stream = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in _DRAWS:
            if name.rstrip("_") in _UNKNOWN:
                raise NotImplementedError(f"no noise is given for {func}")
            return result
        drawn = _DRAWS[name](self, result, args).to(result.dtype).reshape(result.shape)
        return result.copy_(drawn) if name.endswith("_") else drawn

    def bits(self, shape: Any) -> np.ndarray:
        """The engine's next bits."""
        count = math.prod(shape)
        found = random_bits([np.arange(count), self._seed], {"stream": self._stream})
        self._stream += 1
        return found.reshape(shape)

    def uniform(self, x: torch.Tensor, digits: int = 24) -> torch.Tensor:
        return _fraction(self.bits(x.shape), digits, 0)

    def normal(self, x: torch.Tensor) -> torch.Tensor:
        drawn = self.bits(x.shape)
        first, second = _fraction(drawn, 24, 0), _fraction(drawn, 24, 24)
        return (-2 * (1 - first).log()).sqrt() * (2 * math.pi * second).cos()

    def exponential(self, x: torch.Tensor) -> torch.Tensor:
        return -(1 - self.uniform(x)).log()

    def integers(self, low: int, high: int, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy((self.bits(x.shape) & (2**63 - 1)) % (high - low) + low)

    def choices(self, weights: torch.Tensor, samples: int, replacement: bool = False) -> torch.Tensor:
        if replacement:
            raise NotImplementedError("no noise is given for choices with replacement")
        race = torch.where(weights > 0, weights / self.exponential(weights), -1.0)
        return race.topk(samples).indices


def _fraction(drawn: np.ndarray, digits: int, skipped: int) -> torch.Tensor:
    """Float64 numbers from 0 up to 1 of `digits` bits."""
    return torch.from_numpy((drawn >> (64 - skipped - digits) & (2**digits - 1)) * 2.0**-digits)


def _shifted(x: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
    return x * std + mean


def _range(args: Any, first: int) -> tuple[int, int]:
    """The bounds among the arguments of a call, from position `first` on: an upper one, or both."""
    numbers = [item for item in args[first:] if isinstance(item, int)]
    return (numbers[0], numbers[1]) if len(numbers) > 1 else (0, numbers[0])


_DRAWS: dict[str, Draw] = {
    "rand": lambda noise, x, args: noise.uniform(x),
    "rand_like": lambda noise, x, args: noise.uniform(x),
    "randn": lambda noise, x, args: noise.normal(x),
    "randn_like": lambda noise, x, args: noise.normal(x),
    "normal_": lambda noise, x, args: _shifted(noise.normal(x), *args[1:]),
    "randint": lambda noise, x, args: noise.integers(*_range(args, 0), x),
    "randint_like": lambda noise, x, args: noise.integers(*_range(args, 1), x),
    "randperm": lambda noise, x, args: torch.from_numpy(noise.bits(x.shape)).argsort(stable=True),
    "exponential_": lambda noise, x, args: noise.exponential(x) / (args[1] if len(args) > 1 else 1),
    "multinomial": lambda noise, x, args: noise.choices(*args),
}  # fmt: skip
_UNKNOWN = ("bernoulli", "cauchy", "geometric", "log_normal", "normal", "poisson", "random", "uniform")
