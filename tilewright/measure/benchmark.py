"""`do_bench`: milliseconds of a call, as in Triton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.measure.timers import call_times, graph_call_times, quantiles_of

_MODES: dict[str, Callable[[np.ndarray], Any]] = {
    "min": lambda times: float(times.min()),
    "max": lambda times: float(times.max()),
    "mean": lambda times: float(times.mean()),
    "median": lambda times: float(np.median(times)),
    "all": lambda times: times.tolist(),
}


def do_bench(
    fn: Callable[[], Any], warmup: float = 25, rep: float = 100, grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None, return_mode: str = "mean",
) -> Any:  # fmt: skip
    """Milliseconds that a call of `fn` takes.

    `warmup` and `rep` are milliseconds to spend before and while timing; at least one call each.
    `grad_to_none` are tensors whose ``.grad`` is dropped before each call.  With `quantiles` the result is a
    list of these (a number when there is one), else what `return_mode` says: min, max, mean, median, or all.
    On the CPU, caches are not flushed between the calls: operands that fit in them are timed warm.  Once the
    process works on a GPU, calls are timed by events on the current stream with the GPU's L2 flushed before
    each; calls that return when their work is done by the host's clock.
    Raises `ValueError` for another mode; what `fn` raises passes through.
    """
    _check_mode(return_mode)
    return _summary(call_times(fn, warmup, rep, _dropping(grad_to_none or ())), quantiles, return_mode)


def _check_mode(return_mode: str) -> None:
    if return_mode not in _MODES:
        raise ValueError(f"return_mode is one of {', '.join(_MODES)}, got {return_mode!r}")


def _summary(times: Sequence[float], quantiles: Sequence[float] | None, return_mode: str) -> Any:
    return _MODES[return_mode](np.array(times)) if quantiles is None else quantiles_of(times, quantiles)


def do_bench_cudagraph(
    fn: Callable[[], Any],
    rep: float = 20,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Milliseconds that a call of `fn` takes without what launching it costs.

    On a GPU, where PyTorch works, calls are captured in a CUDA graph and its replays are timed; caches stay warm.
    On the CPU a launch costs microseconds and is done when it returns: there is no graph, `do_bench` measures.
    """
    _check_mode(return_mode)
    return _summary(graph_call_times(fn, rep, _dropping(grad_to_none or ())), quantiles, return_mode)


def _dropping(tensors: Sequence[Any]) -> Callable[[], None]:
    def drop() -> None:
        for tensor in tensors:
            tensor.grad = None

    return drop
