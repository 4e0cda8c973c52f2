"""`tilewright run`: run an engine once, show its outputs, compare them with another runtime."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from tilewright.cli import loading, peers, tensors
from tilewright.cli.console import terminal
from tilewright.cli.loading import EngineArgument
from tilewright.cli.trust import DigestOption, RebuildOption, TrustedKeyOption
from tilewright.settings import MOST_THREADS, settings

InputOption = Annotated[
    list[str] | None, typer.Option("--input", help="NAME=FILE.npy; inputs not given are drawn at random.")
]
SizeOption = Annotated[list[str] | None, typer.Option("--size", help="NAME=NUMBER: a dynamic size, e.g. batch=4.")]
TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2}  # of outputs that are rounded, and were computed of such
TargetOption = Annotated[
    str | None,
    typer.Option(help="Which of the engine's programs: cpu, cuda, cuda:sm_90a … Without it the first that fits."),
]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of random inputs.")]
ThreadsOption = Annotated[
    int | None, typer.Option(min=1, max=MOST_THREADS, help="CPU threads, of every runtime that is run.")
]
ModelOption = Annotated[Path | None, typer.Option(help="The model to compare with, if it moved since the build.")]


def run(
    engine: EngineArgument,
    inputs: InputOption = None,
    random: Annotated[bool, typer.Option("--random", help="Draw all inputs at random (the default).")] = False,
    size: SizeOption = None,
    target: TargetOption = None,
    seed: SeedOption = 0,
    compare: Annotated[str | None, typer.Option(help=f"Compare with one of: {', '.join(peers.NAMES)}.")] = None,
    model: ModelOption = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Largest difference allowed, relative to the largest value: by default 0.001, for float16 0.01, for "
            "bfloat16 0.05."
        ),
    ] = None,
    threads: ThreadsOption = None,
    save: Annotated[Path | None, typer.Option(help="Write each output to FOLDER/NAME.npy.")] = None,
    trusted_key: TrustedKeyOption = None,
    expect_sha256: DigestOption = None,
    rebuild: RebuildOption = False,
) -> None:
    """Run an engine or a model once. An engine is a program: run only those of people you trust, or with --rebuild."""
    if random and inputs:
        raise typer.BadParameter("--random and --input exclude each other")
    if compare is not None and compare not in peers.NAMES:
        raise typer.BadParameter(f"--compare {compare}: expected one of {', '.join(peers.NAMES)}")
    console = terminal()
    if threads is not None:
        settings.threads = threads
    loaded = loading.load(engine, target, rebuild, expect_sha256, trusted_key)
    sizes = tensors.parse_sizes(size or [], loaded.plan)
    arrays = tensors.gather_inputs(loaded.inputs, inputs or [], sizes, seed, size or [])
    peer = (
        peers.load_peer(compare, loaded, model or loading.model_of(engine, loaded), settings.threads)
        if compare
        else None
    )
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
    if peer is not None:
        updated = {spec.name for spec in loaded.outputs if spec.mutates is not None}
        if not _compare(console, compare or "", outputs, peer(peer_inputs), tolerance, updated):
            raise typer.Exit(3)


def _compare(
    console: Console,
    name: str,
    ours: dict[str, np.ndarray],
    theirs: dict[str, np.ndarray],
    tolerance: float | None,
    updated: Collection[str] = (),
) -> bool:
    """Print the differences; outputs are matched by name, the rest in order. Any that only one side has differ,
    but for `updated` inputs, which other runtimes do not hand out."""
    table = Table("output", "largest difference", "relative to largest", "", title=f"Compared with {name}")
    others = [label for label in theirs if label not in ours]
    fits = True
    for label, array in ours.items():
        partner = label if label in theirs else others.pop(0) if others and label not in updated else None
        if partner is None:
            fits &= label in updated
            table.add_row(label, f"{name} has no such output", "", "not compared" if label in updated else "differs")
            continue
        other = np.asarray(theirs[partner])
        if other.shape != array.shape:
            shapes = f"shape {list(array.shape)} against {list(other.shape)} of {partner}"
            table.add_row(label, shapes, "", "differs")
            fits = False
            continue
        difference, relative = differences(array, other)
        good = relative <= (TOLERANCES.get(array.dtype.name, 1e-3) if tolerance is None else tolerance)
        fits &= good
        table.add_row(label, f"{difference:.3g}", f"{relative:.3g}", "agrees" if good else "differs")
    for label in others:
        table.add_row(label, "the engine has no such output", "", "differs")
    console.print(table)
    return fits and not others


def differences(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """The largest difference, also relative to the largest finite value of `theirs`; arrays of one shape.

    Equal infinities and two NaNs are equal; a NaN on one side alone is infinitely different.
    """
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(invalid="ignore"):
        gaps = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    difference = float(np.nan_to_num(gaps, nan=np.inf, posinf=np.inf).max(initial=0.0))
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    return difference, difference / (largest or 1.0)
