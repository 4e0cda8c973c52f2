"""`triton.runtime.jit.KernelInterface`: the base class of programs' own launchers."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from tilewright.launch.heuristics import KernelWrapper
from tilewright.launch.jit import JITFunction
from tilewright.launch.wrappers import MockTensor

T = TypeVar("T")


class KernelInterface(Generic[T], metaclass=ABCMeta):
    """Something that is launched as ``kernel[grid](…)``; a class derived from it defines ``run``.

    Kernels, and what `autotune` and `heuristics` make of them, count as instances.
    """

    run: T

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        run: Any = self.run
        return partial(run, grid=grid, warmup=False)

    def warmup(self, *arguments: Any, grid: Any, **keywords: Any) -> Any:
        """Compile for these arguments, dtypes standing for arrays, without running."""
        run: Any = self.run
        return run(*map(MockTensor.wrap_dtype, arguments), grid=grid, warmup=True, **keywords)


KernelInterface.register(JITFunction)
KernelInterface.register(KernelWrapper)
