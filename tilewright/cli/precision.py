"""`tilewright build --precision auto`: a format for each layer within an error bound, and the table of the search."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tilewright.cli.console import wrong_usage
from tilewright.cli.progress import BuildProgress
from tilewright.cli.scripts import run_script

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.graph.core import Graph
    from tilewright.quant.search import PrecisionSearch

AUTO = "auto"
_AUTO_OPTIONS = ("--data", "--max-drop", "--metric")
_TIMING_OPTIONS = ("--effort", "--timing-cache", "--reproducible", "--vendor")
MaxDropOption = Annotated[
    str | None,
    typer.Option(help="With --precision auto: the largest loss allowed, e.g. 1%.", show_default="0.5%"),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        help="With --precision auto: how to measure the loss: cosine, mse, top1 (by `label` in --data, else by the "
        "model in floats), or a Python file with a function score(outputs, inputs). The file is run: it is a "
        "program that can do anything you can.",
        show_default="cosine",
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        help="Samples of the inputs: a folder of .npz or .npy files, one .npz file, or a Python file with a function "
        "samples(). The Python file is run: it is a program that can do anything you can."
    ),
]


def parse_part(text: str) -> float:
    """``0.5%`` or ``0.005``; raises `typer.BadParameter`."""
    try:
        part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        part = -1.0
    if not 0 <= part < 1:
        raise wrong_usage(f"--max-drop {text}: expected a part such as 0.5% or 0.005")
    return part


def _function_of(option: str, text: str, name: str, parameters: str) -> Callable[..., Any]:
    """A function of a Python file, which is run; raises `typer.BadParameter`."""
    called = f"_tilewright_script_{hashlib.sha256(os.fsencode(Path(text).resolve())).hexdigest()[:16]}"
    if not Path(text).is_file():
        raise wrong_usage(f"{option} {text}: there is no such Python file")
    try:
        module = run_script(Path(text), called)
    except Exception as error:
        raise wrong_usage(f"{option} {text}: running it raised {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise wrong_usage(f"{option} {text}: it defines no function {name}({parameters})")
    return found


def load_data(path: Path | None) -> Any:
    """What `quant.calibration.samples_of` takes: a path, or what the function `samples` of a Python file gives; raises
    `typer.BadParameter`."""
    if path is None or path.suffix != ".py":
        return path
    samples = _function_of("--data", str(path), "samples", "")
    try:
        return list(samples())
    except Exception as error:
        raise wrong_usage(f"--data {path}: samples() raised {type(error).__name__}: {error}") from error


def load_metric(text: str) -> str | Callable[[Mapping[str, Any], Mapping[str, Any]], float]:
    """A metric's name, or the function `score` of a Python file; raises `typer.BadParameter`."""
    if not text.endswith(".py"):
        return text
    return _function_of("--metric", text, "score", "outputs, inputs")


def check_options(precision: str | None, auto: Sequence[object], timing: Sequence[object]) -> None:
    """Refuse `_AUTO_OPTIONS` without --precision auto and `_TIMING_OPTIONS` with it, where they are not None."""
    if precision == AUTO:
        for option, value in zip(_TIMING_OPTIONS, timing, strict=True):
            if value is not None:
                raise wrong_usage(
                    f"{option} cannot be combined with --precision auto, which times layers on CPUs itself"
                )
        return
    for option, value in zip(_AUTO_OPTIONS, auto, strict=True):
        if value is not None:
            raise wrong_usage(f"{option} needs --precision auto; `tilewright quantize` makes engines of one scheme")


def search(
    graph: Graph, source: str, data: Path | None, max_drop: str | None, metric: str | None, targets: Sequence[str],
    progress: BuildProgress,
) -> PrecisionSearch:  # fmt: skip
    """The search that the options ask for; raises `typer.BadParameter` for what is missing."""
    if data is None:
        raise wrong_usage("--precision auto needs --data: samples to measure the loss")
    from tilewright.quant.search import search_precision

    return search_precision(
        graph, load_data(data), max_drop=parse_part(max_drop or "0.5%"), metric=load_metric(metric or "cosine"),
        target=targets, progress=progress, source=source,
    )  # fmt: skip


def show_search(console: Console, data: Mapping[str, Any]) -> None:
    """Print a search's layers and points (`insight.search.search_of`)."""
    table = Table("layer", "format", "µs", "error", "why")
    for row in data["layers"]:
        formats = row["candidates"] or {row["chosen"]: None}
        for number, (name, pair) in enumerate(formats.items()):
            cells = ["", ""] if pair is None else [f"{pair[0] * 1e6:.0f}", f"{pair[1]:.2%}"]
            chosen = name == row["chosen"]
            table.add_row(
                row["name"] if number == 0 else "", name, *cells, row["why"] if chosen else "",
                style="bold" if chosen else None, end_section=number == len(formats) - 1,
            )  # fmt: skip
    console.print(table)
    points = Table("layers in narrow numbers", "sum of layers µs", f"{data['metric']} drop", "within the bound")
    for point in sorted(data["points"], key=lambda point: point["seconds"]):
        within = "yes" if point["drop"] <= data["max_drop"] else "no"
        points.add_row(str(point["layers"]), f"{point['seconds'] * 1e6:.0f}", f"{point['drop']:.4%}", within)
    console.print(points)
    ratio = data["float_seconds"] / data["seconds"] if data["seconds"] else 0.0
    count = f"{data['held_back']} " if data["held_back"] else ""  # engines of earlier versions have none
    console.print(
        f"on {count}samples that decided nothing it loses {data['drop']:.4%} ({data['metric']}, at "
        f"most {data['max_drop']:.4%}); {data['seconds'] * 1e3:.3g} ms a run, {data['float_seconds'] * 1e3:.3g} ms in "
        f"floats: {ratio:.2f}x as fast",
        soft_wrap=True,
        highlight=False,
    )
    for remark in data["remarks"]:
        console.print(remark, soft_wrap=True, highlight=False, markup=False)
