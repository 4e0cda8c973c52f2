"""Hooks for launches, compilations and loads of kernels.

    hooks.launch_enter.add(lambda metadata: print(metadata.get()["name"]))

A launch hook gets a `LaunchFacts` whose `get()` is the dict of facts: name, function, stream and what the kernel's
own `launch_metadata` adds; nothing of it is computed when nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Hook = Callable[..., Any]


class HookChain:
    """Functions that are called in the order in which they were added, or in the opposite one."""

    def __init__(self, reversed: bool = False) -> None:
        self.calls: list[Hook] = []
        self.reversed = reversed

    def add(self, hook: Hook) -> None:
        """Add a hook; one that is there already stays once."""
        if hook not in self.calls:
            self.calls.append(hook)

    def remove(self, hook: Hook) -> None:
        """Remove a hook, if it is there."""
        if hook in self.calls:
            self.calls.remove(hook)

    def replace(self, hook: Hook | None) -> None:
        """Let this hook be the only one; None for no hook."""
        self.calls[:] = [] if hook is None else list(hook.calls) if isinstance(hook, HookChain) else [hook]

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        for hook in self.calls[::-1] if self.reversed else list(self.calls):
            hook(*arguments, **keywords)


class LaunchFacts:
    """The facts of one launch for hooks: `get()` is a dict, computed when it is first asked for."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._facts = dict(known)
        self._later: list[tuple[Callable[..., Mapping[str, Any]], tuple[Any, ...]]] = []

    def add(self, function: Callable[..., Mapping[str, Any]], arguments: tuple[Any, ...]) -> None:
        """Facts that ``function(*arguments)`` tells when they are asked for."""
        self._later.append((function, arguments))

    def get(self) -> dict[str, Any]:
        """All facts by name."""
        while self._later:
            function, arguments = self._later.pop(0)
            self._facts.update(function(*arguments))
        return self._facts


launch_enter = HookChain()  # hook(LaunchFacts), before a launch
launch_exit = HookChain(reversed=True)  # hook(LaunchFacts), after it
load_start = HookChain()  # hook(module, function, name, metadata_group, hash), before machine code is loaded
load_end = HookChain(reversed=True)  # the same, after it


class CompilationHooks:
    """Hooks around the compilation of a signature; each is a function or None.

    `before(key=, repr=, fn=, compile=, is_manual_warmup=, already_compiled=)` may return True to leave the kernel
    uncompiled: the launch then does nothing and returns None.  `after` gets the same when the kernel is compiled.
    `listener(src=, metadata=, metadata_group=, times=, cache_hit=)` is told the time of each stage.
    """

    before: Hook | None = None
    after: Hook | None = None
    listener: Hook | None = None


compilation = CompilationHooks()


class TuningHooks:
    """`listener(fn=, key=, best_config=, configs_timings=, duration=, cache_hit=)` is told what autotune chose."""

    listener: Hook | None = None


tuning = TuningHooks()


@dataclass(frozen=True)
class CompileTimes:
    """What a compilation took, in microseconds: tracing (or finding it on disk), the stages after it, storing it."""

    ir_initialization: int
    lowering_stages: Sequence[tuple[str, int]]
    store_results: int

    @property
    def total_lowering(self) -> int:
        """All stages after tracing."""
        return sum(time for _, time in self.lowering_stages)

    @property
    def total(self) -> int:
        """Everything."""
        return self.ir_initialization + self.total_lowering + self.store_results
