"""Compile, check and time one case: ours under torch.compile, TorchInductor and eager PyTorch, in CUDA graphs."""

from __future__ import annotations

import gc
import logging
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.breadth.draw import Drawn
from benchmarks.models_cuda import alternate, in_graph, summary

OURS, SLOW = "tilewright", 0.9
PEERS = {"eager": None, "torch.compile": "inductor", OURS: "tilewright"}


class Heard(logging.Handler):
    """What the backend says: operations that stay with PyTorch, graphs that are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "PyTorch" in text or record.levelno > logging.INFO:
            self.lines.append(text)


def contestant(drawn: Drawn, name: str) -> Callable[[], Any]:
    """A call of the function as one of `PEERS` runs it."""
    backend = PEERS[name]
    function = torch.compile(drawn.function, backend=backend, dynamic=False) if backend else drawn.function
    return lambda: function(*drawn.inputs)


def results(found: Any) -> list[torch.Tensor]:
    return list(found) if isinstance(found, (tuple, list)) else [found]


def wider(drawn: Drawn) -> tuple[torch.Tensor, ...]:
    return tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in drawn.inputs)


def error_of(drawn: Drawn, found: Any, exact: list[torch.Tensor]) -> float:
    """The largest relative distance of a result, by Frobenius norm."""
    worst = 0.0
    for result, wanted in zip(results(found), exact, strict=True):
        if drawn.gather is not None and not wanted.is_floating_point():
            source, dimension = drawn.gather
            x = drawn.inputs[source].double()
            flat = result.dim() < x.dim()
            result, wanted = (t.unsqueeze(dimension) if flat else t for t in (result, wanted))
            result, wanted = x.gather(dimension, result), x.gather(dimension, wanted)
        difference = torch.linalg.vector_norm(result.double() - wanted.double())
        norm = max(float(torch.linalg.vector_norm(wanted.double())), 1e-30)
        value = float(difference) / norm
        worst = max(worst, value if math.isfinite(value) else float(not torch.equal(result.double(), wanted.double())))
    return worst


def hot_spots(run: Callable[[], Any]) -> list[str]:
    """The three kernels that take most of a call's time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda event: -event.device_time_total)
    total = sum(event.device_time_total for event in events) or 1
    return [
        f"{event.key[:60]} x{event.count} {event.device_time_total:.0f} us ({event.device_time_total / total:.0%})"
        for event in events[:3]
    ]


def exact_results(drawn: Drawn, record: dict[str, Any]) -> list[torch.Tensor]:
    """The results in float64, or eager PyTorch's where memory does not hold them, or the function makes float32."""
    try:
        return results((drawn.reference or drawn.function)(*wider(drawn)))
    except RuntimeError as error:
        torch.cuda.empty_cache()
        record["notes"]["reference"] = f"eager PyTorch; in float64: {summary(error)}"
        return results(drawn.function(*drawn.inputs))


def captured(drawn: Drawn, name: str, record: dict[str, Any], exact: list[torch.Tensor]) -> Callable[[], Any] | None:
    """A contestant, compiled, captured in a graph where it can be, and compared; what it cannot do is noted."""
    began = time.perf_counter()
    try:
        call = contestant(drawn, name)
        call()
        torch.cuda.synchronize()
        record["notes"][f"{name} first call, s"] = round(time.perf_counter() - began, 2)
        try:
            run, found = in_graph(call) if drawn.captures else (call, call())
            run()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            torch.cuda.synchronize()
            record["notes"][name] = f"not captured: {summary(error)}"
            run, found = call, call()
        record["errors"][name] = error_of(drawn, found, exact)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        record["notes"][name] = summary(error)
        return None
    return run


def together(drawn: Drawn, record: dict[str, Any], rounds: int, milliseconds: float) -> dict[str, list[float]]:
    """Times of all contestants, measured alternately."""
    exact = exact_results(drawn, record)
    found = {name: captured(drawn, name, record, exact) for name in PEERS}
    del exact
    return alternate({name: run for name, run in found.items() if run}, rounds, milliseconds)


def one_by_one(drawn: Drawn, record: dict[str, Any], rounds: int, milliseconds: float) -> dict[str, list[float]]:
    """Times of one contestant after the other, for what memory does not hold all at once."""
    record["notes"]["order"] = "one after the other: no memory for all at once"
    times: dict[str, list[float]] = {}
    for name in PEERS:
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        try:
            exact = exact_results(drawn, record)
            run = captured(drawn, name, record, exact)
            del exact
            times |= alternate({name: run}, rounds, milliseconds) if run else {}
        except torch.OutOfMemoryError as error:
            record["notes"][name] = summary(error)
        run = None
    return times


def timed(drawn: Drawn, record: dict[str, Any], rounds: int, milliseconds: float) -> dict[str, list[float]]:
    """Times of all contestants, together if memory holds them."""
    try:
        return together(drawn, record, rounds, milliseconds)
    except torch.OutOfMemoryError:
        pass  # what was captured is freed with the exception
    return one_by_one(drawn, record, rounds, milliseconds)


@torch.inference_mode()
def measure(drawn: Drawn, rounds: int, milliseconds: float) -> dict[str, Any]:
    """Compile, check and time one case."""
    torch._dynamo.reset()
    record: dict[str, Any] = {"name": drawn.name, "errors": {}, "notes": {}}
    heard, logger = Heard(), logging.getLogger("tilewright")
    logger.addHandler(heard)
    try:
        times = timed(drawn, record, rounds, milliseconds)
    finally:
        logger.removeHandler(heard)
    record["left to PyTorch"] = heard.lines
    record["milliseconds"] = {name: statistics.median(values) for name, values in times.items()}
    if OURS in times and len(times) > 1:
        best = min((name for name in times if name != OURS), key=record["milliseconds"].__getitem__)
        record |= {"best_peer": best, "ratio": record["milliseconds"][best] / record["milliseconds"][OURS]}
        if record["ratio"] < SLOW:
            record["slow"] = hot_spots(contestant(drawn, OURS))
    return record


def is_right(record: dict[str, Any]) -> bool:
    """Within four times the error of PyTorch in the same type, and what rounding the result explains."""
    errors = record["errors"]
    return (
        OURS in errors and errors[OURS] <= 4 * max((errors[name] for name in errors if name != OURS), default=0) + 1e-6
    )


def line(record: dict[str, Any]) -> str:
    parts = [f"{name} {value * 1e3:.1f}" for name, value in record.get("milliseconds", {}).items()]
    ratio = f"{record['ratio']:.3f}" if "ratio" in record else "-"
    wrong = "" if is_right(record) else f" ERRORS {record['errors']}"
    left = f" LEFT {record['left to PyTorch']}" if record.get("left to PyTorch") else ""
    failed = f" FAILED {record['failed']}" if "failed" in record else ""
    refused = f" {record['notes'][OURS]}" if OURS in record["notes"] else ""
    return f"{ratio:>7} {record['family']}: {record['name']}: us {', '.join(parts)}{wrong}{left}{failed}{refused}"


def report(records: list[dict[str, Any]], summaries: dict[str, dict[str, float]]) -> None:
    """Print the cases under `SLOW` with what our time went to, and a line for each family."""
    for record in sorted((r for r in records if r.get("ratio", 1) < SLOW), key=lambda r: r["ratio"]):
        print(f"{record['ratio']:.3f} {record['family']}: {record['name']}: {'; '.join(record['slow'])}")
    for name, row in summaries.items():
        print(f"{name:15} " + ", ".join(f"{key} {value:.3g}" for key, value in row.items()))
