"""`--shapes`: the sizes of a model's inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli.console import wrong_usage

_DIMENSION = re.compile(r"(\d{1,18})(?:\.\.(\d{1,18}))?", re.ASCII)

Ranges = dict[str, list[tuple[int, int]]]  # by input: the least and the largest size of each dimension

ShapesOption = Annotated[
    list[str] | None,
    typer.Option(help="Sizes of an input, e.g. x:1..64x128; a range stays dynamic. Repeat for each input."),
]


def parse_shapes(texts: list[str]) -> Ranges:
    """``["x:1..64x128"]`` as ``{"x": [(1, 64), (128, 128)]}``; raises `typer.BadParameter`."""
    shapes: Ranges = {}
    for text in texts:
        name, separator, dimensions = text.rpartition(":")
        ranges = []
        for part in dimensions.split("x"):
            match = _DIMENSION.fullmatch(part)
            if not (separator and name and match):
                raise wrong_usage(f"{text!r}: expected NAME:SIZExSIZE…, where SIZE is 128 or a range 1..64")
            low, high = int(match[1]), int(match[2] or match[1])
            if low < 1:
                raise wrong_usage(f"{text!r}: in {part}, the range starts at {low}; sizes start at 1")
            if low > high:
                raise wrong_usage(f"{text!r}: the range {part} is empty")
            ranges.append((low, high))
        shapes[name] = ranges
    return shapes


def as_dynamic_shapes(ranges: Ranges) -> dict[str, dict[int, Any]] | None:
    """The `dynamic_shapes` of `tilewright.compile` for these ranges; None for none."""
    return {name: dict(enumerate(map(_size, sizes))) for name, sizes in ranges.items()} or None


def needed_at_import(model: Path, ranges: Ranges) -> dict[str, dict[int, Any]] | None:
    """The `dynamic_shapes` for inputs of an ONNX file that declare no dimensions, or one of size 0."""
    if model.suffix != ".onnx" or not ranges:
        return None
    from tilewright.importers.onnx import read_model

    entries = {entry.name: entry.type.tensor_type for entry in read_model(model).graph.input}
    shapes = {name: entry.shape.dim if entry.HasField("shape") else None for name, entry in entries.items()}
    found = as_dynamic_shapes(
        {name: sizes for name, sizes in ranges.items() if name in shapes and _is_open(shapes[name])}
    )
    return found


def _is_open(dims: Sequence[Any] | None) -> bool:
    return dims is None or any(dim.HasField("dim_value") and not dim.dim_value for dim in dims)


def _size(limits: tuple[int, int]) -> int | tuple[int, int]:
    low, high = limits
    return low if low == high else (low, high)
