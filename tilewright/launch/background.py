"""Compiles in the background: inside an `AsyncCompileMode`, an executor compiles new signatures.

with ThreadPoolExecutor(4) as pool, AsyncCompileMode(pool):
    for block in (64, 128, 256):
        kernel.warmup(x, n, BLOCK=block, grid=(1,))     # returns a `FutureKernel` at once
                                                        # at the end of the block all of them are compiled
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.launch.compiled import CompiledKernel
    from tilewright.launch.launching import PreparedLaunch

active_mode: ContextVar[AsyncCompileMode | None] = ContextVar("active_mode", default=None)


class FutureKernel:
    """A kernel that is being compiled; `result` waits for it, and its attributes are the compiled kernel's."""

    def __init__(
        self, future: Future[PreparedLaunch], finalize: Callable[[PreparedLaunch], None], cleanup: Callable[[], None]
    ) -> None:
        self._future = future
        self._finalize = finalize
        self._cleanup = cleanup
        self._launch: PreparedLaunch | None = None

    def launch(self) -> PreparedLaunch:
        """The signature, ready to run; raises what compiling raised."""
        if self._launch is None:
            try:
                launch = self._future.result()
            except Exception:
                self._cleanup()
                raise
            self._finalize(launch)
            self._launch = launch
        return self._launch

    def result(self, ignore_errors: bool = False) -> CompiledKernel | None:
        """The compiled kernel; with `ignore_errors` None where compiling failed."""
        try:
            return self.launch().kernel
        except Exception:
            if ignore_errors:
                return None
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result(), name)


class PendingLaunch:
    """A signature that is being compiled: a launch waits for it."""

    def __init__(self, pending: FutureKernel) -> None:
        self._pending = pending

    @property
    def kernel(self) -> Any:
        """The future kernel."""
        return self._pending

    def run(self, grid: Any, arguments: tuple[Any, ...], slots: Sequence[Any]) -> CompiledKernel | None:
        """Wait, and run over `grid`."""
        return self._pending.launch().run(grid, arguments, slots)


class AsyncCompileMode:
    """Inside a `with` block, `warmup` returns `FutureKernel`s at once and `executor` (of threads) compiles.

    The end of the block waits for all of them and raises what the first failing one raised, unless `ignore_errors`.
    Raises `RuntimeError` inside another such block.
    """

    def __init__(self, executor: Executor, *, ignore_errors: bool = False) -> None:
        self.executor = executor
        self.ignore_errors = ignore_errors
        self.future_kernels: dict[Hashable, FutureKernel] = {}
        self._token: Any = None

    def submit(
        self,
        key: Hashable,
        compile_launch: Callable[[], PreparedLaunch],
        finalize: Callable[[PreparedLaunch], None],
        cleanup: Callable[[], None],
    ) -> FutureKernel:
        """Compile what `key` names in the background, once."""
        known = self.future_kernels.get(key)
        if known is None:
            known = FutureKernel(self.executor.submit(compile_launch), finalize, cleanup)
            self.future_kernels[key] = known
        return known

    def __enter__(self) -> AsyncCompileMode:
        if active_mode.get() is not None:
            raise RuntimeError("compiling in the background is on already: AsyncCompileMode does not nest")
        self._token = active_mode.set(self)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        active_mode.reset(self._token)
        kernels, self.future_kernels = list(self.future_kernels.values()), {}
        failures = []
        for kernel in kernels:
            try:
                kernel.result(self.ignore_errors)
            except Exception as failure:
                failures.append(failure)
        if failures and error is None:
            raise failures[0]
