"""`tilewright run`: run an engine once, show its outputs, compare them with another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from tilewright.cli import peers, tensors
from tilewright.settings import settings

EngineArgument = Annotated[Path, typer.Argument(help="Engine file.")]
InputOption = Annotated[
    list[str] | None, typer.Option("--input", help="NAME=FILE.npy; inputs not given are drawn at random.")
]
SizeOption = Annotated[list[str] | None, typer.Option("--size", help="NAME=NUMBER: a dynamic size, e.g. batch=4.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of random inputs.")]
ModelOption = Annotated[Path | None, typer.Option(help="The model to compare with, if it moved since the build.")]


def run(
    engine: EngineArgument,
    inputs: InputOption = None,
    random: Annotated[bool, typer.Option("--random", help="Draw all inputs at random (the default).")] = False,
    size: SizeOption = None,
    seed: SeedOption = 0,
    compare: Annotated[str | None, typer.Option(help=f"Compare with one of: {', '.join(peers.NAMES)}.")] = None,
    model: ModelOption = None,
    tolerance: Annotated[float, typer.Option(help="Largest difference allowed, relative to the largest value.")] = 1e-3,
    save: Annotated[Path | None, typer.Option(help="Write each output to FOLDER/NAME.npy.")] = None,
) -> None:
    """Run an engine once."""
    from tilewright.engine import Engine

    if random and inputs:
        raise typer.BadParameter("--random and --input exclude each other")
    if compare is not None and compare not in peers.NAMES:
        raise typer.BadParameter(f"--compare {compare}: expected one of {', '.join(peers.NAMES)}")
    console = Console()
    loaded = Engine.load(engine)
    sizes = tensors.parse_sizes(size or [], loaded.plan)
    arrays = tensors.gather_inputs(loaded.inputs, inputs or [], sizes, seed)
    peer = peers.load_peer(compare, loaded, model, settings.threads) if compare else None
    peer_inputs = {name: array.copy() for name, array in arrays.items()}  # a run may update inputs in place
    outputs = {name: np.asarray(value) for name, value in loaded.run(arrays).items()}
    table = Table("output", "dtype", "shape", "mean", "smallest", "largest")
    for name, array in outputs.items():
        wide = array.astype(np.float64)
        row = (wide.mean(), wide.min(), wide.max()) if wide.size else (np.nan,) * 3
        table.add_row(name, str(array.dtype), str(list(array.shape)), *(f"{value:.6g}" for value in row))
    console.print(table)
    if save is not None:
        tensors.save_outputs(outputs, save)
    if peer is not None and not _compare(console, compare or "", outputs, peer(peer_inputs), tolerance):
        raise typer.Exit(3)


def _compare(
    console: Console, name: str, ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], tolerance: float
) -> bool:
    """Print the differences; outputs are matched by name, else by position."""
    table = Table("output", "largest difference", "relative to largest", "", title=f"Compared with {name}")
    fits = True
    for (label, array), (other_label, other) in zip(ours.items(), theirs.items(), strict=False):
        other = np.asarray(theirs.get(label, other), np.float64)
        if other.shape != array.shape:
            table.add_row(
                label, f"shape {list(array.shape)} against {list(other.shape)} of {other_label}", "", "differs"
            )
            fits = False
            continue
        difference = float(np.abs(array.astype(np.float64) - other).max()) if other.size else 0.0
        relative = difference / (float(np.abs(other).max()) or 1.0) if other.size else 0.0
        good = relative <= tolerance
        fits &= good
        table.add_row(label, f"{difference:.3g}", f"{relative:.3g}", "agrees" if good else "differs")
    console.print(table)
    return fits
