"""`tilewright run --compare`: compares an engine's outputs, or the results of its kernels, with a peer's."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.cli import peers
from tilewright.cli.console import wrong_usage
from tilewright.insight.difference import difference
from tilewright.settings import settings

if TYPE_CHECKING:
    from tilewright.engine.engine import Engine
    from tilewright.insight.layers import LayerTensor

TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2}  # of outputs that are rounded, and were computed of such
WITH_LAYERS = ("reference", "onnxruntime")


def check_options(compare: str | None, layers: str | None) -> None:
    """Raise `typer.BadParameter` for an unknown peer, and for layers that cannot be compared with it."""
    if compare is not None and compare not in peers.PEER_NAMES:
        raise wrong_usage(f"--compare {compare}: expected one of {', '.join(peers.PEER_NAMES)}")
    if layers is not None and (compare not in WITH_LAYERS or not re.fullmatch("all|[1-9][0-9]{0,5}", layers)):
        raise wrong_usage(f"--layers takes all or a number, with --compare {' or '.join(WITH_LAYERS)}")


def show_layers(
    console: Console, name: str, engine: Engine, model: Path | None, inputs: Mapping[str, np.ndarray], most: str
) -> None:
    """Print the layers with the largest errors of their own: `most` of them, or "all"."""
    from tilewright.insight.layers import compare_layers, with_layers

    layered = with_layers(engine)
    theirs = peers.every_tensor(engine, model, settings.threads, inputs) if name == "onnxruntime" else None
    layers = compare_layers(layered, inputs, theirs)
    table = Table(
        "step", "tensor", "type", "from", "own error", f"from {name}",
        title="What each layer adds, and how far it is from the peer, relative to its largest value",
    )  # fmt: skip
    for layer in layers if most == "all" else layers[: int(most)]:
        _add_row(table, layer)
    console.print(table)


def _add_row(table: Table, layer: LayerTensor) -> None:
    kind = f"{layer.dtype} {list(layer.shape)}"
    other = "" if layer.difference is None else f"{layer.difference:.3g}"
    cells = (layer.step, layer.name, kind, layer.source, f"{layer.own:.3g}", other)
    table.add_row(*map(Text, cells))  # names and shapes have brackets, which are no markup


def compare_outputs(
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

    def add(*cells: str) -> None:
        table.add_row(*map(Text, cells))  # names and shapes have brackets, which are no markup

    others = [label for label in theirs if label not in ours]
    fits = True
    for label, array in ours.items():
        partner = label if label in theirs else others.pop(0) if others and label not in updated else None
        if partner is None:
            fits &= label in updated
            add(label, f"{name} has no such output", "", "not compared" if label in updated else "differs")
            continue
        other = np.asarray(theirs[partner])
        if other.shape != array.shape:
            shapes = f"shape {list(array.shape)} against {list(other.shape)} of {partner}"
            add(label, shapes, "", "differs")
            fits = False
            continue
        if object in (array.dtype, other.dtype):
            good = bool((array == other).all())
            fits &= good
            add(label, "equal text" if good else "other text", "", "agrees" if good else "differs")
            continue
        largest, relative = difference(array, other)
        good = relative <= (TOLERANCES.get(array.dtype.name, 1e-3) if tolerance is None else tolerance)
        fits &= good
        add(label, f"{largest:.3g}", f"{relative:.3g}", "agrees" if good else "differs")
    for label in others:
        add(label, "the engine has no such output", "", "differs")
    console.print(table)
    return fits and not others
