"""The command line: python -m tools.fuzz run|replay|list|tally."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tools.fuzz import tally, worker
from tools.fuzz.harness import Campaign
from tools.fuzz.target import load, names

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


def _known(name: str) -> str:
    """The name of a target, looked up before anything runs."""
    try:
        load(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return name


def _all_known(names: list[str] | None) -> list[str] | None:
    return names and [_known(name) for name in names]


State = Annotated[Path, typer.Option(help="folder of the records; a run continues where the last one ended")]


@app.command("list")
def list_targets() -> None:
    """List the targets."""
    for name in names():
        print(name)


@app.command()
def run(
    targets: Annotated[list[str] | None, typer.Argument(help="which targets; all without", callback=_all_known)] = None,
    cases: Annotated[int, typer.Option(help="cases of each target")] = 1000,
    seconds: Annotated[float, typer.Option(help="time for each target")] = 3600.0,
    jobs: Annotated[int, typer.Option(help="worker processes")] = 1,
    first: Annotated[int, typer.Option(help="seed at which a new record begins")] = 0,
    state: State = Path("build/fuzz"),
    device: Annotated[str, typer.Option(help="where random PyTorch programs run: cpu, cuda")] = "cpu",
    sanitize: Annotated[bool, typer.Option(help="machine code asks AddressSanitizer before each access")] = False,
) -> None:
    """Run cases; exits with 1 if any failed."""
    os.environ["FUZZ_DEVICE"] = device  # for the workers
    failed = 0
    for name in targets or names():
        record = Campaign(name, jobs, state.resolve(), first, sanitize).run(cases, seconds)
        failed += sum(record.failed.values())
        print(tally.line(record), flush=True)
    raise typer.Exit(1 if failed else 0)


@app.command()
def replay(target: Annotated[str, typer.Argument(callback=_known)], seed: int) -> None:
    """Run one case in this process, with its traceback."""
    found = load(target)
    with tempfile.TemporaryDirectory() as folder:
        found.prepare(Path(folder))
        result = worker.outcome(found, seed)
    print(result.get("label") or f"{result['failed']}: {result['text']}")
    raise typer.Exit(0 if "label" in result else 1)


@app.command("tally")
def write_tally(
    states: Annotated[list[Path], typer.Argument(help="folders of records, of one machine or of several")],
    write: Annotated[bool, typer.Option(help="write benchmarks/results/fuzz.json")] = False,
    add: Annotated[bool, typer.Option(help="add these records, of new seeds, to benchmarks/results/fuzz.json")] = False,
    replace: Annotated[bool, typer.Option(help="put these records in place of their targets' rows there")] = False,
) -> None:
    """Add up records."""
    tally.report(states, write, add, replace)


if __name__ == "__main__":
    app()
