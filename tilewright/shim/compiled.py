"""`triton.compiler.CompiledKernel`: the result of `triton.compile`, with the launcher that generated host code calls.

    kernel._init_handles()
    kernel.run(x, y, z, stream, kernel.function, kernel.packed_metadata, facts, enter_hook, exit_hook, *arguments)

TorchInductor pickles ``vars(kernel)`` for other processes, and makes a kernel of it there without `__init__`: all state
is in picklable attributes, and `run`, `function` and `module` are made again by `_init_handles`.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.errors import user_errors
from tilewright.launch import compiled, hooks
from tilewright.launch.compiled import full_grid
from tilewright.launch.driver import driver


class CompiledSource(metaclass=ABCMeta):  # noqa: B024  (of this metaclass for `register`)
    """A kernel compiled from a source: `src` is the source, `kernel` what tilewright made of it.

    What this class does not define is read from `kernel`; kernels that launches give count as instances.
    """

    def __init__(self, src: Any, kernel: compiled.CompiledKernel) -> None:
        self.src = src
        self.kernel = kernel
        self.name = kernel.name
        self.hash = kernel.hash
        self.metadata = kernel.metadata
        self.packed_metadata = kernel.packed_metadata
        self.module: Any = None
        self.function: int | None = None
        self.run: Any = self._run_first

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "kernel" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self.kernel, name)

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        return self.kernel[grid]

    def __repr__(self) -> str:
        return repr(self.kernel)

    def _init_handles(self) -> None:
        """Load the code, and make `run`."""
        if self.function is None:
            self.kernel._init_handles()
            self.module, self.function = self.kernel.module, self.kernel.address
            self.run = self._launch

    def _run_first(self, *arguments: Any) -> None:
        self._init_handles()
        self._launch(*arguments)

    def launch_metadata(self, grid: Sequence[int], stream: Any, *arguments: Any) -> hooks.LaunchFacts | None:
        """What hooks get of a launch; None where there is no hook."""
        if not (hooks.launch_enter.calls or hooks.launch_exit.calls):
            return None
        facts = hooks.LaunchFacts({"name": self.name, "function": self.function, "stream": stream})
        fn = getattr(self.src, "fn", None)
        describe = getattr(fn, "launch_metadata", None)
        if fn is not None and describe is not None:
            named = dict(zip(fn.arg_names, arguments, strict=False))
            facts.add(describe, (tuple(grid), self.metadata, named))
        return facts

    def _launch(
        self, x: int, y: int, z: int, stream: Any, function: Any, metadata: Any, facts: Any, enter: Any, leave: Any,
        *arguments: Any,
    ) -> None:  # fmt: skip
        """Launch over a grid with all arguments of the source, constants too; hooks are called where there are facts.

        Raises `LaunchError` for arguments that do not fit, and what the kernel's own assertions raise.
        """
        with user_errors:
            if facts is not None and enter is not None:
                enter(facts)
            self._start((x, y, z), stream, self.kernel.run_time_arguments(arguments))
            if facts is not None and leave is not None:
                leave(facts)

    def _start(self, grid: tuple[int, int, int], stream: Any, given: tuple[Any, ...]) -> None:
        kernel = self.kernel
        slots = kernel.slots(given)
        extents = full_grid(grid)
        kernel.run_given(extents, slots, given, driver.active.get_current_device(), stream)


CompiledSource.register(compiled.CompiledKernel)  # type: ignore[type-abstract]
