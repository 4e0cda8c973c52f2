"""Compiling in the background: `kernel.warmup` inside an `AsyncCompileMode` hands the work to an executor.

with ThreadPoolExecutor(4) as pool, AsyncCompileMode(pool):
    for block in (64, 128, 256):
        kernel.warmup(x, n, BLOCK=block, grid=(1,))
                                                   # at the end of the block all of them are compiled
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from typing import Any

active_mode: ContextVar[AsyncCompileMode | None] = ContextVar("active_mode", default=None)


class FutureKernel:
    """A kernel that is being compiled; `result` waits for it, and its attributes are the compiled kernel's."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def result(self, ignore_errors: bool = False) -> Any:
        """The compiled kernel; with `ignore_errors` None where compiling failed."""
        try:
            return self._future.result()
        except Exception:
            if ignore_errors:
                return None
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result(), name)


class AsyncCompileMode:
    """Inside a `with` block, `warmup` returns `FutureKernel`s at once and `executor` (of threads) compiles.

    The end of the block waits for all of them and raises what the first failing one raised, unless `ignore_errors`.
    Raises `RuntimeError` inside another such block.
    """

    def __init__(self, executor: Executor, *, ignore_errors: bool = False) -> None:
        self.executor = executor
        self.ignore_errors = ignore_errors
        self._kernels: list[FutureKernel] = []
        self._token: Any = None

    def submit(self, compile_kernel: Callable[[], Any]) -> FutureKernel:
        """Compile in the background."""
        kernel = FutureKernel(self.executor.submit(compile_kernel))
        self._kernels.append(kernel)
        return kernel

    def __enter__(self) -> AsyncCompileMode:
        if active_mode.get() is not None:
            raise RuntimeError("compiling in the background is on already: AsyncCompileMode does not nest")
        self._token = active_mode.set(self)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        active_mode.reset(self._token)
        kernels, self._kernels = self._kernels, []
        failures = []
        for kernel in kernels:
            try:
                kernel.result(self.ignore_errors)
            except Exception as failure:
                failures.append(failure)
        if failures and error is None:
            raise failures[0]
