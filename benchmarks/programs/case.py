"""A case: the host code of a package, and the same operation in PyTorch.

    @case("Liger softmax", cpu=[(4096, 2048)], cuda=[(8192, 4096)])
    def softmax(place: Place, rows: int, columns: int) -> Program:
        from liger_kernel.ops.softmax import _softmax_forward

        x = place.normal(rows, columns)
        return Program(lambda: _softmax_forward(x)[0], lambda x: torch.softmax(x, -1), (x,))

Packages are imported inside the functions, where ``import triton`` is Triton or the shim.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]
Shape = tuple[int, ...]


@dataclass
class Place:
    """Where a case runs: the device, the type of its floating-point tensors, and the source of their numbers.

    `configs` names those that autotuned kernels shall take on a GPU, by kernel; others take the first with about 4
    warps.  On a CPU they are tuned.
    """

    device: str
    seed: int = 0
    configs: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dtype = torch.float32 if self.device == "cpu" else torch.bfloat16
        self._generator = torch.Generator(self.device).manual_seed(self.seed)

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        numbers = torch.randn(shape, device=self.device, generator=self._generator)
        return numbers.to(dtype or self.dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Numbers from `low` up to, but not including, `high`."""
        return torch.randint(low, high, shape, device=self.device, generator=self._generator, dtype=dtype)


@dataclass
class Program:
    """What is timed: `call` runs the package's host code and returns its results.

    `function(*inputs)` is the same operation in PyTorch.  With `gradients`, the gradients of the results that ours
    starts from, the operation is the backward pass: it returns the gradients of the floating-point `inputs`.  With
    `both`, it is the results followed by these gradients.  `restored` are tensors that a call overwrites with
    something that it could not start from again; they are set back before each call, outside the clock.
    """

    call: Callable[[], Any]
    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor, ...] = ()
    with_gradients: bool = False
    restored: tuple[torch.Tensor, ...] = ()
    tolerance: float | None = None  # of the relative error; None: by the type of the first input

    def __post_init__(self) -> None:
        self._saved = [x.detach().clone() for x in self.restored]

    def restore(self) -> None:
        """Set back what calls have overwritten."""
        for tensor, saved in zip(self.restored, self._saved, strict=True):
            tensor.detach().copy_(saved)

    def results(self) -> list[torch.Tensor]:
        """What a call gives."""
        return tensors(self.call())

    def expected(self) -> list[torch.Tensor]:
        """The results in float64."""
        wide = tuple(x.detach().double() if x.is_floating_point() else x for x in self.inputs)
        return self.peer(self.function, wide)()

    def peer(self, function: Callable[..., Any], inputs: tuple[torch.Tensor, ...] | None = None) -> Callable[[], Any]:
        """A call of `function` (in PyTorch, or compiled by it) on these inputs, forward or backward."""
        given = tuple(x.detach().clone() for x in (inputs or self.inputs))
        if not self.gradients and not self.with_gradients:
            return lambda: _forward(function, given)
        free = tuple(x.requires_grad_() for x in given if x.is_floating_point())
        if self.with_gradients:
            return lambda: _with_gradients(function, given, free)
        starts = tuple(start.to(free[0].dtype) for start in self.gradients)
        found = tensors(function(*given))
        return lambda: list(torch.autograd.grad(found, free, starts, retain_graph=True))


def _forward(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    with torch.no_grad():
        return tensors(function(*inputs))


def _with_gradients(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], free: tuple[torch.Tensor, ...]
) -> list[torch.Tensor]:
    found = function(*inputs)
    return [found, *torch.autograd.grad(found, free)]


def tensors(found: Any) -> list[torch.Tensor]:
    """Results as a list."""
    return [found] if isinstance(found, torch.Tensor) else list(found)


class Context(SimpleNamespace):
    """Stands in for the context of a `torch.autograd.Function`, whose steps are called one by one."""

    saved_tensors: tuple[torch.Tensor, ...] = ()

    def save_for_backward(self, *saved: torch.Tensor) -> None:
        self.saved_tensors = saved


@dataclass(frozen=True)
class Case:
    """`make(place, *shape)` for the shapes of each device; dimensions of drawn shapes are multiples of `multiples`."""

    name: str
    make: Callable[..., Program]
    cpu: tuple[Shape, ...]
    cuda: tuple[Shape, ...]
    multiples: Shape | None

    def shapes(self, device: str, draw: int | None) -> list[Shape]:
        """The shapes of a device; with a seed, shapes of about the same sizes that nobody chose."""
        listed = list(self.cpu if device == "cpu" else self.cuda)
        if draw is None:
            return listed
        source = random.Random(f"{draw} {self.name}")
        return [self._drawn(shape, source) for shape in listed[:1]]

    def _drawn(self, shape: Shape, source: random.Random) -> Shape:
        steps = self.multiples or (1,) * len(shape)
        sizes = (
            size if step == 0 else size * 2 ** source.uniform(-1, 0.6) for size, step in zip(shape, steps, strict=True)
        )
        return tuple(
            int(size) if step == 0 else max(1, round(size / step)) * step
            for size, step in zip(sizes, steps, strict=True)
        )


CASES: dict[str, Case] = {}


def case(
    name: str, cpu: Sequence[Shape] = (), cuda: Sequence[Shape] = (), multiples: Shape | None = None
) -> Callable[[Callable[..., Program]], Callable[..., Program]]:
    """Register a case.  Drawn shapes keep dimensions whose entry in `multiples` is 0."""

    def register(make: Callable[..., Program]) -> Callable[..., Program]:
        CASES[name] = Case(name, make, tuple(cpu), tuple(cuda), multiples)
        return make

    return register
