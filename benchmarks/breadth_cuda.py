"""Speed of randomly drawn operators under torch.compile, compared with eager PyTorch and TorchInductor.

    python benchmarks/breadth_cuda.py [--families scan sort] [--cases 8] [--seed 1] [--jobs 12] [--rounds 3]

Each family (`benchmarks/breadth/`) draws its cases from a seeded generator, so that another `--seed` is another set. A
case is a function of tensors, compiled by ``torch.compile(backend="tilewright")``, by TorchInductor, and run eagerly,
each in a CUDA graph where it can be captured. `--jobs` processes compile all cases first, so that the timed part finds
caches. Results are compared with eager PyTorch in float64; positions by the elements that lie there. Times are medians
of rounds in turns, by device events.

Prints every case, then those under 0.9 with what our time went to. Results: benchmarks/results/breadth_cuda.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
import torch

from benchmarks.breadth import products, rows  # noqa: F401
from benchmarks.breadth.draw import FAMILIES, Draw, Drawn
from benchmarks.gpu.harness import Monitor
from benchmarks.kernels_cuda import environment
from benchmarks.models_cuda import alternate, in_graph, summary

PATH = common.RESULTS / "breadth_cuda.json"
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
    return tuple(x.double() if x.is_floating_point() else x for x in drawn.inputs)


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


@torch.inference_mode()
def measure(drawn: Drawn, options: argparse.Namespace) -> dict[str, Any]:
    """Compile, check and time one case."""
    torch._dynamo.reset()
    record: dict[str, Any] = {"name": drawn.name, "errors": {}, "notes": {}}
    heard, logger = Heard(), logging.getLogger("tilewright")
    logger.addHandler(heard)
    runs: dict[str, Callable[[], Any]] = {}
    try:
        exact = results(drawn.function(*wider(drawn)))
        for name in PEERS:
            began = time.perf_counter()
            try:
                call = contestant(drawn, name)
                call()
                torch.cuda.synchronize()
                record["notes"][f"{name} first call, s"] = round(time.perf_counter() - began, 2)
                try:
                    runs[name], found = in_graph(call)
                    runs[name]()
                except Exception as error:
                    torch.cuda.synchronize()
                    record["notes"][name] = f"not captured: {summary(error)}"
                    runs[name], found = call, call()
                record["errors"][name] = error_of(drawn, found, exact)
            except Exception as error:
                record["notes"][name] = summary(error)
        del exact
        times = alternate(runs, options.rounds, options.milliseconds)
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


def drawn_cases(options: argparse.Namespace) -> list[tuple[str, int]]:
    return [(name, number) for name in options.families for number in range(options.cases)]


@torch.inference_mode()
def warm(options: argparse.Namespace) -> None:
    """Compile this process's share of the cases, so that caches know them."""
    share, shares = options.warm
    for name, number in drawn_cases(options)[share::shares]:
        for peer in ("torch.compile", OURS):
            try:
                torch._dynamo.reset()
                contestant(FAMILIES[name](Draw(name, number, options.seed)), peer)()
            except Exception as error:
                print(f"{name} {number}, {peer}: {summary(error)}", flush=True)
        torch.cuda.empty_cache()


def prepare(options: argparse.Namespace) -> None:
    """Run `warm` in processes."""
    command = [sys.executable, __file__, "--seed", str(options.seed), "--cases", str(options.cases), "--families",
               *options.families]  # fmt: skip
    environ = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, "--warm", str(share), str(options.jobs)], env=environ)
        for share in range(options.jobs)
    ]
    for process in processes:
        process.wait()


def tables(records: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By family: the geometric mean of the ratios, the worst, how many are not slower than the best peer."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(record["family"] for record in records):
        ratios = [record["ratio"] for record in records if record["family"] == name and "ratio" in record]
        if ratios:
            found[name] = {"cases": len(ratios), "geometric mean": statistics.geometric_mean(ratios),
                           "worst": min(ratios), "under 0.9": sum(ratio < SLOW for ratio in ratios)}  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--cases", type=int, default=8, help="of each family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=12, help="processes that compile beforehand; 0: none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--milliseconds", type=float, default=20, help="of one contestant in one round")
    parser.add_argument("--warm", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=PATH)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("breadth_cuda.py needs an NVIDIA GPU and a PyTorch that uses it")
    torch.backends.cudnn.allow_tf32 = False
    logging.getLogger("tilewright").setLevel(logging.INFO)
    if options.warm:
        warm(options)
        return 0
    if options.jobs:
        prepare(options)
    monitor, records = Monitor(), list[dict[str, Any]]()
    gpu: dict[str, Any] = {}
    with monitor.watch(gpu):
        for name, number in drawn_cases(options):
            try:
                record = measure(FAMILIES[name](Draw(name, number, options.seed)), options)
            except Exception as error:
                record = {"name": f"case {number}", "errors": {}, "notes": {}, "failed": summary(error)}
            records.append(record | {"family": name})
            print(line(records[-1]), flush=True)
            torch.cuda.empty_cache()
    summaries = tables(records)
    document = {"environment": environment(), "seed": options.seed, "gpu": gpu, "breadth": summaries, "cases": records}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    for record in sorted((r for r in records if r.get("ratio", 1) < SLOW), key=lambda r: r["ratio"]):
        print(f"{record['ratio']:.3f} {record['name']}: {'; '.join(record['slow'])}")
    for name, row in summaries.items():
        print(f"{name:15} " + ", ".join(f"{key} {value:.3g}" for key, value in row.items()))
    return 1 if any("failed" in record or not is_right(record) for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
