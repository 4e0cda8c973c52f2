"""`tilewright run`: run an engine once, show its outputs, compare them with another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.cli import comparison, loading, peers, tensors
from tilewright.cli.console import terminal, wrong_usage
from tilewright.cli.engine_checks import DigestOption, RebuildOption, TrustedKeyOption
from tilewright.cli.loading import EffortOption, EngineArgument
from tilewright.cli.shapes import ShapesOption
from tilewright.settings import MOST_THREADS, settings

InputOption = Annotated[
    list[str] | None, typer.Option("--input", help="NAME=FILE.npy; the other inputs are drawn at random.")
]
SizeOption = Annotated[
    list[str] | None,
    typer.Option("--size", help="NAME=NUMBER: the value of a dynamic size, e.g. batch=4; inspect lists the names."),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        help="The engine's program to use: cpu, cuda, cuda:sm_90a …; by default the first that fits. For a model, what "
        "to build it for; by default this CPU."
    ),
]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of random inputs.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, max=MOST_THREADS, help="CPU threads of each runtime.")]
ModelOption = Annotated[Path | None, typer.Option(help="The model to compare with, if it moved since the build.")]


def run(
    engine: EngineArgument,
    inputs: InputOption = None,
    random: Annotated[bool, typer.Option("--random", help="Draw all inputs at random (the default).")] = False,
    size: SizeOption = None,
    shapes: ShapesOption = None,
    target: TargetOption = None,
    seed: SeedOption = 0,
    compare: Annotated[str | None, typer.Option(help=f"Compare with one of: {', '.join(peers.PEER_NAMES)}.")] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="With --compare reference or onnxruntime: compare the results of each kernel as well, and show all or "
            "a number of them, largest added error first. Fusion and kernels do not change."
        ),
    ] = None,
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
    effort: EffortOption = None,
) -> None:
    """Run an engine or a model once. An engine is a program: run only those that you trust, or use --rebuild."""
    if random and inputs:
        raise wrong_usage("--random and --input exclude each other")
    comparison.check_options(compare, layers)
    console = terminal()
    if threads is not None:
        settings.threads = threads
    loaded = loading.load(engine, target, rebuild, expect_sha256, trusted_key, effort=effort, shapes=shapes)
    sizes = tensors.parse_sizes(size or [], loaded.plan)
    arrays = tensors.gather_inputs(loaded.inputs, inputs or [], sizes, seed, size or [])
    model = model or loading.model_of(engine, loaded)
    peer = peers.load_peer(compare, loaded, model, settings.threads) if compare else None
    peer_inputs = {name: array.copy() for name, array in arrays.items()}  # a run may update inputs in place
    with tensors.advice_for_drawn(loaded.inputs, inputs or []):
        outputs = tensors.flattened(loaded.run(arrays))
    _show_outputs(console, outputs)
    if save is not None:
        tensors.save_outputs(outputs, save)
    if compare is not None and layers is not None:
        comparison.show_layers(console, compare, loaded, model, peer_inputs, layers)
    if peer is not None:
        updated = {spec.name for spec in loaded.outputs if spec.mutates is not None}
        if not comparison.compare_outputs(
            console, compare or "", outputs, tensors.flattened(peer(peer_inputs)), tolerance, updated
        ):
            raise typer.Exit(3)


def _show_outputs(console: Console, outputs: dict[str, np.ndarray]) -> None:
    table = Table("output", "dtype", "shape", "mean", "smallest", "largest")
    for name, array in outputs.items():
        if array.dtype == object:
            table.add_row(Text(name), "text", str(list(array.shape)))
            continue
        wide = array.astype(np.float64)
        row = (wide.mean(), wide.min(), wide.max()) if wide.size else (np.nan,) * 3
        table.add_row(Text(name), str(array.dtype), str(list(array.shape)), *(f"{value:.6g}" for value in row))
    console.print(table)
