"""`@heuristics`: compile-time arguments computed from the others at each launch.

@tilewright.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@tilewright.jit
def kernel(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr): ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilewright.errors import brief, user_errors
from tilewright.launch.jit import LAUNCH_OPTIONS, JITFunction


class KernelWrapper:
    """Something that chooses arguments and passes the launch on: `Heuristics`, `Autotuner`.

    `fn` is what it wraps, `kernel` the kernel at the bottom, `base_fn` its Python function, `arg_names` its parameters.
    """

    def __init__(self, fn: JITFunction | KernelWrapper) -> None:
        if not isinstance(fn, (JITFunction, KernelWrapper)):
            raise TypeError(f"a kernel is needed (put @tilewright.jit below this decorator), got {brief(fn)}")
        self.fn = fn
        self.kernel: JITFunction = fn.kernel if isinstance(fn, KernelWrapper) else fn
        self.base_fn = self.kernel.function
        self.argument_names = self.arg_names = self.kernel.argument_names
        self.name = self.__name__ = self.kernel.name
        self.__module__ = self.kernel.__module__
        self.__qualname__ = self.kernel.__qualname__
        self.__doc__ = self.kernel.__doc__
        self.__wrapped__ = self.base_fn

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return partial(self.run, grid=grid)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        raise TypeError(f"kernel '{self.name}' needs a grid: {self.name}[grid](...)")

    def run(self, *arguments: Any, grid: Any, warmup: bool = False, **keywords: Any) -> Any:
        """Choose what is left to choose, and launch over `grid`; `warmup` only compiles."""
        raise NotImplementedError

    def warmup(self, *arguments: Any, grid: Any = None, **keywords: Any) -> Any:
        """Compile for these arguments without running."""
        raise NotImplementedError

    def named(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of a launch by name."""
        return {**dict(zip(self.argument_names, arguments, strict=False)), **keywords}


class Heuristics(KernelWrapper):
    """A kernel some of whose arguments are functions of the others; see `heuristics`."""

    def __init__(self, fn: JITFunction | KernelWrapper, values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> None:
        super().__init__(fn)
        unknown = [name for name in values if name not in self.argument_names and name not in LAUNCH_OPTIONS]
        if unknown:
            raise ValueError(
                f"heuristics for {', '.join(map(repr, unknown))}: kernel '{self.name}' has only the parameters "
                f"{', '.join(self.argument_names)}"
            )
        self.values = dict(values)

    def fill(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords with every heuristic's value; later ones see the values of earlier ones."""
        filled = dict(keywords)
        named = self.named(arguments, keywords)
        for name, function in self.values.items():
            filled[name] = named[name] = function(named)
        return filled

    def run(self, *arguments: Any, grid: Any, warmup: bool = False, **keywords: Any) -> Any:
        filled = self.fill(arguments, keywords)
        with user_errors:
            return self.fn.warmup(*arguments, grid=grid, **filled) if warmup else self.fn[grid](*arguments, **filled)

    def warmup(self, *arguments: Any, grid: Any = None, **keywords: Any) -> Any:
        with user_errors:
            return self.fn.warmup(*arguments, grid=grid, **self.fill(arguments, keywords))


def heuristics(values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> Callable[[Any], Heuristics]:
    """Decorator: fill the parameters named in `values` at each launch, by functions of the dict of arguments.

    Launch options (``num_warps``, …) can be filled as well.  Raises `ValueError` for a name that is neither.
    """
    return lambda fn: Heuristics(fn, values)
