"""`tilewright bench`: time an engine, and compare it with other runtimes in the same run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.cli import loading, peers, placement, tensors
from tilewright.cli.console import terminal, wrong_usage
from tilewright.cli.engine_checks import DigestOption, RebuildOption, TrustedKeyOption
from tilewright.cli.loading import EngineArgument
from tilewright.cli.run import InputOption, ModelOption, SeedOption, SizeOption, TargetOption, ThreadsOption
from tilewright.cli.shapes import ShapesOption
from tilewright.errors import ImportModelError, MissingDependencyError
from tilewright.settings import settings

if TYPE_CHECKING:
    from tilewright.engine.engine import Engine

TIMING_ROUNDS = 4  # runtimes take turns, so that a drift of the machine meets all of them


def sample(run: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of each call, for about `seconds` in all and at least three calls."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return times


def statistics(times: list[float]) -> dict[str, float]:
    """Milliseconds: min, mean, median, p90, p99; and calls per second."""
    milliseconds = np.array(times) * 1e3
    return {
        "min": float(milliseconds.min()),
        "mean": float(milliseconds.mean()),
        "median": float(np.median(milliseconds)),
        "p90": float(np.percentile(milliseconds, 90)),
        "p99": float(np.percentile(milliseconds, 99)),
        "calls_per_second": float(1e3 / milliseconds.mean()),
        "calls": len(times),
    }


def bench(
    engine: EngineArgument,
    inputs: InputOption = None,
    size: SizeOption = None,
    shapes: ShapesOption = None,
    target: TargetOption = None,
    seed: SeedOption = 0,
    vs: Annotated[str, typer.Option(help="Other runtimes to time, separated by commas: torch,onnxruntime.")] = "",
    model: ModelOption = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time to spend on each runtime.")] = 4.0,
    threads: ThreadsOption = None,
    profile: Annotated[bool, typer.Option("--profile", help="Time each step of the plan.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    trusted_key: TrustedKeyOption = None,
    expect_sha256: DigestOption = None,
    rebuild: RebuildOption = False,
) -> None:
    """Time an engine or a model: min, mean, median, p90, p99, throughput.

    On a GPU inputs and outputs stay in its memory. For language models, use tilewright bench llm.

    An engine is a program: run only those that you trust, or use --rebuild.
    """
    names = [name.strip() for name in vs.split(",") if name.strip()]
    for name in names:
        if name not in ("torch", "onnxruntime"):
            raise wrong_usage(f"--vs {name}: expected torch or onnxruntime")
    if threads is not None:
        settings.threads = threads
    loaded = loading.load(engine, target, rebuild, expect_sha256, trusted_key, shapes=shapes)
    sizes = tensors.parse_sizes(size or [], loaded.plan)
    arrays = tensors.gather_inputs(loaded.inputs, inputs or [], sizes, seed, size or [])
    ours = placement.timed(loaded, arrays)
    with tensors.advice_for_drawn(loaded.inputs, inputs or []):
        ours.call()
    runs: dict[str, Callable[[], Any]] = {"tilewright": ours.call}
    missing: dict[str, str] = {}
    for name in names:
        try:
            runs[name] = peers.timed_peer(
                name, loaded, model or loading.model_of(engine, loaded), settings.threads, arrays
            )
        except (MissingDependencyError, ImportModelError) as error:
            missing[name] = str(error)
    results = measure(runs, seconds)
    given = {name: list(array.shape) for name, array in arrays.items()}
    steps = profiled(loaded, arrays, sizes) if profile else []
    if as_json:
        print(json.dumps({"engine": str(engine), "inputs": given, "where": ours.where, "threads": settings.threads,
                          "milliseconds": results, "missing": missing, "steps": steps}, indent=2))  # fmt: skip
        return
    inputs_text = ", ".join(f"{name} {sizes}" for name, sizes in given.items())
    show(terminal(), f"{engine.name}, {ours.where}, inputs {inputs_text}", results, missing, steps)


def profiled(loaded: Engine, arrays: dict[str, np.ndarray], sizes: dict[str, int]) -> list[dict[str, Any]]:
    """The steps of the plan with their times, what bounds each, and the part of that bound that it reaches."""
    rows = loaded.profile(arrays)
    with loaded.reading():
        from tilewright.insight.report import report

        steps = report(loaded, sizes, rows)["steps"]
    return [
        {
            **row,
            "share": step["share"],
            "bound": step["bound"],
            "of_roofline": step["reached"],
            "module": step["module"],
        }
        for row, step in zip(rows, steps, strict=True)
    ]


def measure(runs: dict[str, Callable[[], Any]], seconds: float) -> dict[str, dict[str, float]]:
    """Statistics by runtime; the runtimes alternate in rounds after a warm-up of each."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
        run()
    for _ in range(TIMING_ROUNDS):
        for name, run in runs.items():
            times[name] += sample(run, seconds / TIMING_ROUNDS)
    return {name: statistics(values) for name, values in times.items()}


def show(
    console: Console,
    title: str,
    results: dict[str, dict[str, float]],
    missing: dict[str, str],
    steps: list[dict[str, Any]],
) -> None:
    """Print the tables."""
    console.print(Text(title))  # names may look like markup
    table = Table("ms", "min", "mean", "median", "p90", "p99", "calls/s", "/ ours")
    ours = results["tilewright"]["median"]
    for name, row in results.items():
        cells = [f"{row[key]:.3f}" for key in ("min", "mean", "median", "p90", "p99")]
        table.add_row(name, *cells, f"{row['calls_per_second']:.1f}", f"{row['median'] / ours:.2f}")
    console.print(table)
    for name, reason in missing.items():
        console.print(Text.assemble((f"{name} was not timed:", "yellow"), f" {reason}"))
    if steps:
        titles = ("step", "ms", "share", "bound", "of roofline", "GFLOP/s", "GB/s", "kernel")
        table = Table(*titles, box=None, padding=(0, 1, 0, 0))
        for step in steps:
            duration = step["milliseconds"]
            rates = [f"{step[key] / duration / 1e6:.1f}" if duration else "" for key in ("flops", "bytes")]
            parts = (
                f"{step['share']:.1%}",
                step["bound"],
                "" if step["of_roofline"] is None else f"{step['of_roofline']:.0%}",
            )
            table.add_row(step["name"], f"{duration:.4f}", *parts, *rates, step["kernel"])
        console.print(table)
