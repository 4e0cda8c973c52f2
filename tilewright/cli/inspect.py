"""`tilewright inspect`: the plan of an engine, step by step, with the reason for each choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.cli import loading, tensors
from tilewright.cli.console import terminal, wrong_usage
from tilewright.cli.engine_checks import DigestOption, TrustedKeyOption
from tilewright.cli.loading import EngineArgument
from tilewright.cli.precision import show_search
from tilewright.cli.run import InputOption, SizeOption, TargetOption
from tilewright.cli.shapes import ShapesOption
from tilewright.engine.file import check_replaceable
from tilewright.insight.search import search_of
from tilewright.symbolic import evaluate

if TYPE_CHECKING:
    from tilewright.engine.engine import Engine


def inspect(
    engine: EngineArgument,
    inputs: InputOption = None,
    size: SizeOption = None,
    shapes: ShapesOption = None,
    target: TargetOption = None,
    evidence: Annotated[bool, typer.Option("--evidence", help="Show why each kernel was chosen.")] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page with times, bounds, memory, graph and candidate kernels."),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="With --html: time each step on this machine.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    trusted_key: TrustedKeyOption = None,
    expect_sha256: DigestOption = None,
) -> None:
    """Show the plan of an engine or a model: step, kernel, fused operations, bytes, FLOPs, memory.

    Runs none of its code, except with --profile.
    """
    if profile and html is None:
        raise wrong_usage("--profile needs --html; `tilewright bench --profile` prints the times of steps")
    if inputs and not profile:
        raise wrong_usage("--input is for --profile, which runs the engine")
    if html is not None and (as_json or evidence):
        raise wrong_usage("--html writes everything to the page; omit --json and --evidence")
    # Read, not loaded: it may be for another machine.
    loaded = loading.load(engine, target, False, expect_sha256, trusted_key, linked=False, shapes=shapes)
    sizes = tensors.parse_sizes(size or [], loaded.plan)
    if html is not None:
        from tilewright.insight.page import page
        from tilewright.insight.report import report

        rows = _profiled(loaded, inputs or [], sizes, size or []) if profile else None
        with loaded.reading():
            text = page(report(loaded, sizes, rows))
        check_replaceable(html)
        html.write_text(text, encoding="utf-8", errors="backslashreplace")  # halves of surrogate pairs in names
        terminal().print(f"{html}: {html.stat().st_size / 1e3:.0f} kB", soft_wrap=True)
        return
    with loaded.reading():
        data = describe(loaded, sizes)
    if as_json:
        print(json.dumps(data, indent=2))
        return
    show(terminal(), data, evidence)


def _profiled(loaded: Engine, files: list[str], sizes: dict[str, int], texts: list[str]) -> list[dict[str, Any]]:
    """The times of the steps; `sizes` takes those of given inputs."""
    arrays = tensors.gather_inputs(loaded.inputs, files, sizes, 0, texts)
    with tensors.advice_for_drawn(loaded.inputs, files):
        return loaded.profile(arrays)


def describe(loaded: Any, sizes: dict[str, int]) -> dict[str, Any]:
    """The whole plan as data, with symbolic figures evaluated for `sizes`."""
    from tilewright.insight.report import least_arena_bytes, transposes

    plan = loaded.plan
    steps = []
    for step in plan.steps:
        choice = next(c for c in step.choices if c.at_most is None or evaluate(c.size, sizes) <= c.at_most)
        steps.append(
            {
                "name": step.name,
                "kernel": loaded.kernel_name(choice.kernel),
                "choices": len(step.choices),
                "grid": [evaluate(extent, sizes) for extent in choice.grid],
                "operations": list(step.operations),
                "bytes": evaluate(step.bytes, sizes),
                "flops": evaluate(step.flops, sizes),
                "evidence": step.evidence,
            }
        )
    return {
        "target": loaded.target,
        "precision": loaded.precision,
        "targets": list(loaded.targets),
        "features": list(loaded.features),
        "producer": loaded.producer,
        "sizes": sizes,
        "ranges": {symbol.name: [symbol.low, symbol.high] for symbol in plan.symbols.values()},
        "inputs": [{"name": s.name, "dtype": s.dtype, "shape": [str(d) for d in s.shape]} for s in plan.inputs],
        "outputs": [{"name": s.name, "dtype": s.dtype, "shape": [str(d) for d in s.shape]} for s in plan.outputs],
        "arena_bytes": evaluate(plan.arena_bytes, sizes),
        "arena_least_bytes": least_arena_bytes(loaded, sizes),
        "weight_bytes": loaded.weight_bytes,
        "remarks": list(loaded.remarks),
        "advice": list(loaded.advice),
        "search": search_of(loaded),
        "steps": steps,
        "transposes": transposes(steps),
    }


def _over(arena: int, least: int) -> str:
    """How much larger the arena is than what is alive at once."""
    return f" ({arena / least:.2f} of what is alive at once)" if least else ""


def range_text(low: int, high: int) -> str:
    """`1..512`; an open end where there is no limit."""
    return f"{low}.." if high >= 2**31 - 1 else f"{low}..{high}"


def show(console: Console, data: dict[str, Any], evidence: bool) -> None:
    """Print the plan as tables."""
    from tilewright.insight.report import short

    console.print(f"target {data['target']}  float32 as {data['precision']}  producer {data['producer']}")
    others = [name for name in data["targets"] if name != data["target"]]
    if others:
        console.print(f"also for {', '.join(others)} (--target shows it)")
    ranges = ", ".join(
        f"{name} {range_text(low, high)} (shown for {data['sizes'][name]})"
        for name, (low, high) in data["ranges"].items()
    )
    console.print(f"sizes: {ranges or 'fixed'}")
    console.print(
        f"weights {data['weight_bytes'] / 1e6:.1f} MB, arena {data['arena_bytes'] / 1e6:.2f} MB a call"
        f"{_over(data['arena_bytes'], data['arena_least_bytes'])}, "
        f"{len(data['steps'])} steps, {sum(s['flops'] for s in data['steps']) / 1e9:.2f} GFLOP",
        highlight=False,
    )
    moved = data["transposes"]
    if moved["steps"]:
        counted = "1 step only transposes" if moved["steps"] == 1 else f"{moved['steps']} steps only transpose"
        console.print(f"{counted}: {moved['bytes'] / 1e6:.2f} MB")
    else:
        console.print("no step only transposes")
    table = Table("#", "step", "kernel", "grid", "fused operations", "MB", "MFLOP", box=None, padding=(0, 1, 0, 0))
    for index, step in enumerate(data["steps"]):
        grid = "x".join(map(str, step["grid"]))
        operations = short(step["operations"])
        figures = (f"{step['bytes'] / 1e6:.2f}", f"{step['flops'] / 1e6:.1f}")
        table.add_row(str(index), step["name"], step["kernel"], grid, operations, *figures)
    console.print(table)
    if data["search"] is not None:
        show_search(console, data["search"])
    for remark in data["remarks"]:
        console.print(f"note: {remark}")
    for text in data["advice"]:
        console.print(f"advice: {text}")
    if evidence:
        for step in data["steps"]:
            console.print(Text(step["name"], "bold"))
            console.print_json(json.dumps(step["evidence"]))
