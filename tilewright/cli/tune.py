"""`tilewright tune`: files of recorded kernel times (timing caches), merged and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from tilewright.cli.console import terminal
from tilewright.engine.timings import read_timings
from tilewright.measure.record import TimingCache

FilesArgument = Annotated[list[Path], typer.Argument(help="Timing caches or engines to read; later files win.")]

commands = typer.Typer(name="tune", help="Merge and show recorded kernel times.", no_args_is_help=True)


@commands.command("merge")
def merge(
    files: FilesArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="Timing cache to write.")],
) -> None:
    """Merge timing caches and the times inside engines into one file."""
    merged = TimingCache(timing for file in files for timing in read_timings(file))
    merged.write(output)
    terminal().print(f"{output}: {len(merged)} problems", soft_wrap=True)


@commands.command("show")
def show(files: FilesArgument) -> None:
    """Show recorded times: problem, device, candidates timed, the fastest and its time."""
    recorded = TimingCache(timing for file in files for timing in read_timings(file))
    if not len(recorded):
        terminal().print("no times are on record there: nothing was timed")
        return
    problem, fastest = Column("problem", overflow="fold"), Column("fastest", overflow="fold")
    table = Table(problem, "device", "timed", "failed", fastest, "us", box=None, padding=(0, 1, 0, 0))
    for timing in recorded:
        best = min(timing.microseconds, key=lambda name: timing.microseconds[name], default="")
        time = f"{timing.microseconds[best]:.2f}" if best else ""
        counts = (str(len(timing.microseconds)), str(len(timing.failures)))
        table.add_row(timing.problem, timing.device, *counts, best, time)
    terminal().print(table)
