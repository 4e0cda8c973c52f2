"""Time kernels on one GPU beside their peers, in one run, by device events.

    @family("softmax", floor=1.0)
    def softmax(quick: bool) -> Iterator[Case]:
        x = torch.randn(...)
        case = Case("16384 x 8192 bf16", gigabytes=2 * x.nbytes / 1e9)
        case.add("tilewright", lambda copy: ours(x, out), lambda: out)
        case.add("torch.compile", lambda copy: ..., lambda: ...)
        case.check(reference, tolerance)
        yield case

A case's contestants take turns, round by round; every number is a median, and ratios are taken inside a round, where
the chip's clock is the same for all.  Protocols:

    flush   the L2 is overwritten before every call, which is timed alone
    graph   a CUDA graph of calls over rotating copies of the inputs: weights come from memory, launches cost nothing
    host    what a call costs the calling thread; the GPU is idle

While cases run, the clocks, the power and the temperature are read (NVML, reading only).
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

OURS = "tilewright"
FLUSH_BYTES = 256 << 20
Run = Callable[[int], Any]  # takes the number of the copy of the inputs to work on


@dataclass
class Case:
    """One comparison. `gflop` and `gigabytes` are what one call must do; `copies` the inputs' copies, for `graph`."""

    name: str
    gflop: float = 0.0
    gigabytes: float = 0.0
    protocols: tuple[str, ...] = ("flush",)
    copies: int = 1
    runs: dict[str, Run] = field(default_factory=dict)
    results: dict[str, Callable[[], Any]] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    vendors: dict[str, Callable[[], Any]] = field(default_factory=dict)  # for errors, where a peer's call does less
    ceilings: tuple[str, ...] = ()  # contestants that are no peers, such as a copy of as many bytes
    notes: dict[str, Any] = field(default_factory=dict)  # configurations, registers: whatever helps to read a number

    def add(self, name: str, run: Run, result: Callable[[], Any] | None = None) -> None:
        """A contestant: a call, and the tensor that it leaves for the copy number 0."""
        self.runs[name] = run
        if result is not None:
            self.results[name] = result

    def check(self, reference: Any, tolerance: float) -> None:
        """Run every contestant once and compare with a reference: relative Frobenius norm of the difference.

        Raises `AssertionError` when ours is beyond the tolerance; the peers' errors are noted.
        """
        reference = reference.double()
        norm = float(torch.linalg.vector_norm(reference))
        for name, result in self.results.items():
            if result().is_floating_point():
                result().fill_(float("nan"))
            self.runs[name](0)
            torch.cuda.synchronize()
            self.errors[name] = float(torch.linalg.vector_norm(result().double() - reference)) / norm
        for name, compute in self.vendors.items():
            self.errors[name] = float(torch.linalg.vector_norm(compute().double() - reference)) / norm
        if not self.errors.get(OURS, 0.0) <= tolerance:
            raise AssertionError(f"{self.name}: relative error {self.errors[OURS]:.2e}, allowed {tolerance:.2e}")


@dataclass(frozen=True)
class Family:
    """Cases of one kind; `floor` is what the geometric mean of peer / ours must reach."""

    name: str
    cases: Callable[[bool], Iterator[Case]]
    floor: float | None = None


FAMILIES: dict[str, Family] = {}


def family(name: str, floor: float | None = None) -> Callable[[Callable[[bool], Iterator[Case]]], Any]:
    """Register a function that yields a family's cases, one at a time, so that the memory of one is free for the
    next; its argument says whether a quick run (few and small cases) is wanted."""

    def register(cases: Callable[[bool], Iterator[Case]]) -> Callable[[bool], Iterator[Case]]:
        FAMILIES[name] = Family(name, cases, floor)
        return cases

    return register


class Monitor:
    """Clocks (MHz), power (W) and temperature (C) of the GPU while something runs; empty where NVML is missing."""

    def __init__(self, interval: float = 0.05) -> None:
        self.interval = interval
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            unique = torch.cuda.get_device_properties().uuid  # NVML does not heed CUDA_VISIBLE_DEVICES
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{unique}")
        except Exception as error:  # a package, a library or a permission is missing: the run is no worse for it
            self.missing = f"{type(error).__name__}: {error}"

    @contextmanager
    def watch(self, into: dict[str, Any]) -> Iterator[None]:
        """Read until the block ends; minimum, mean and maximum of each reading go to `into`."""
        if self._handle is None:
            into["missing"] = self.missing
            yield
            return
        readings: list[tuple[float, ...]] = []
        done = threading.Event()
        thread = threading.Thread(target=self._read, args=(readings, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            for name, values in zip(("clock", "power", "temperature"), zip(*readings, strict=True), strict=False):
                into[name] = [round(number, 1) for number in (min(values), statistics.fmean(values), max(values))]

    def _read(self, readings: list[tuple[float, ...]], done: threading.Event) -> None:
        nvml, handle = self._nvml, self._handle
        while True:
            readings.append(
                (
                    nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                    nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                    nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                )
            )
            if done.wait(self.interval):
                return


def measure(case: Case, protocol: str, rounds: int, milliseconds: float) -> dict[str, Any]:
    """Time a case's contestants in turns: microseconds of a call, and ratios to ours."""
    time_one = {"flush": _flushed, "graph": _replayed, "host": _on_host}[protocol](case, milliseconds)
    for name in reversed(case.runs):  # ours last: it does not meet a cooler chip than its peers
        time_one(name)
    times: dict[str, list[float]] = {name: [] for name in case.runs}
    for _ in range(rounds):
        for name in case.runs:
            times[name].append(time_one(name))
    found: dict[str, Any] = {
        "microseconds": {
            name: {"median": statistics.median(values), "best": min(values), "rounds": [round(v, 3) for v in values]}
            for name, values in times.items()
        }
    }
    others = [name for name in times if not name.startswith(OURS)]  # other configurations of ours are no peers
    peers = [name for name in others if name not in case.ceilings]
    for name in case.ceilings:
        parts = [best / ours for best, ours in zip(times[name], times[OURS], strict=True)]
        found[f"of {name}"] = statistics.median(parts)
    if peers and OURS in times:
        best = min(peers, key=lambda name: statistics.median(times[name]))
        ratios = {
            name: statistics.median(theirs / ours for theirs, ours in zip(times[best], times[name], strict=True))
            for name in times
            if name.startswith(OURS)
        }
        found |= {"best_peer": best, "ratio": ratios.pop(OURS), "other_ratios": ratios}
    if protocol != "host":
        rates = {name: statistics.median(values) for name, values in times.items()}
        if case.gflop:
            found["tflops"] = {name: case.gflop / microseconds * 1e3 for name, microseconds in rates.items()}
        if case.gigabytes:
            found["terabytes_a_second"] = {name: case.gigabytes / value * 1e3 for name, value in rates.items()}
    return found


def _flushed(case: Case, milliseconds: float) -> Callable[[str], float]:
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    counts: dict[str, int] = {}

    def timed(run: Run, count: int) -> list[float]:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for number, (begin, end) in enumerate(events):
            flush.zero_()
            begin.record()
            run(number % case.copies)
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e3 for begin, end in events]

    def time_one(name: str) -> float:
        if name not in counts:
            estimate = statistics.median(timed(case.runs[name], 5))
            counts[name] = _count(milliseconds * 1e3, estimate + 60)  # the flush itself takes about 60 us
        return statistics.median(timed(case.runs[name], counts[name]))

    return time_one


def _replayed(case: Case, milliseconds: float) -> Callable[[str], float]:
    graphs: dict[str, tuple[Any, int, int]] = {}

    def prepare(name: str) -> tuple[Any, int, int]:
        run = case.runs[name]
        for copy in range(case.copies):
            run(copy)
        torch.cuda.synchronize()
        calls = case.copies * -(-20 // case.copies)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for number in range(calls):
                run(number % case.copies)
        graph.replay()
        elapsed = _replay(graph, 1)
        return graph, calls, _count(milliseconds * 1e3, elapsed)

    def time_one(name: str) -> float:
        if name not in graphs:
            graphs[name] = prepare(name)
        graph, calls, repeats = graphs[name]
        return statistics.median(_replay(graph, 1) for _ in range(repeats)) / calls

    return time_one


def _replay(graph: Any, times: int) -> float:
    """Microseconds of replays in a row."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _on_host(case: Case, milliseconds: float) -> Callable[[str], float]:
    batch = 200  # fewer than the driver queues: no call waits for the GPU

    def time_one(name: str) -> float:
        run, values = case.runs[name], []
        for _ in range(_count(milliseconds * 1e3, batch * 8.0)):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(batch):
                run(0)
            values.append((time.perf_counter() - began) / batch * 1e6)
        torch.cuda.synchronize()
        return statistics.median(values)

    return time_one


def _count(budget: float, one: float) -> int:
    return max(5, min(1000, int(budget / max(one, 0.1))))


def on_hopper() -> bool:
    """Whether the GPU runs code for sm_90a."""
    return bool(torch.cuda.get_device_capability() == (9, 0))


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return statistics.geometric_mean(values)


def run_family(chosen: Family, monitor: Monitor, options: Any) -> list[dict[str, Any]]:
    """Measure every case of a family; a case that fails is reported in its record and does not end the run."""
    records = []
    cases = chosen.cases(options.quick)
    while True:
        try:
            case = next(cases, None)
        except Exception as error:
            records.append({"family": chosen.name, "name": "-", "failed": f"{type(error).__name__}: {error}"})
            print(f"{chosen.name}: FAILED: {error}", flush=True)
            break
        if case is None:
            break
        for protocol in case.protocols:
            record: dict[str, Any] = {"family": chosen.name, "name": case.name, "protocol": protocol}
            try:
                with monitor.watch(record.setdefault("gpu", {})):
                    record |= measure(case, protocol, options.rounds, options.milliseconds)
            except Exception as error:
                record["failed"] = f"{type(error).__name__}: {error}"
            record |= {"errors": case.errors, "notes": case.notes}
            records.append(record)
            print(line(record), flush=True)
        case.runs.clear()
        case.results.clear()
        case.vendors.clear()
        torch.cuda.empty_cache()
    return records


def line(record: dict[str, Any]) -> str:
    """A record in one line."""
    head = f"{record['family']:12} {record['name']:30} {record['protocol']:5}"
    if "failed" in record:
        return f"{head} FAILED: {record['failed']}"
    parts = [f"{name} {value['median']:.2f} us" for name, value in record["microseconds"].items()]
    for key, unit in (("tflops", "TFLOP/s"), ("terabytes_a_second", "TB/s")):
        if OURS in record.get(key, {}):
            parts.append(f"{record[key][OURS]:.2f} {unit}")
    parts += [f"{value:.3f} {name}" for name, value in record.items() if name.startswith("of ")]
    if "ratio" in record:
        parts.append(f"{record['best_peer']} / ours {record['ratio']:.3f}")
        parts += [f"/ {name} {ratio:.3f}" for name, ratio in record["other_ratios"].items()]
    return f"{head} {', '.join(parts)}"
