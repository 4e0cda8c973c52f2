"""`--shapes`: the sizes of a model's inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.console import wrong_usage

if TYPE_CHECKING:
    from tilewright.graph.core import Graph

_DIMENSION = re.compile(r"(\d{1,18})(?:\.\.(\d{1,18}))?", re.ASCII)

Ranges = dict[str, list[tuple[int, int]]]  # by input: the least and the largest size of each dimension

ShapesOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Sizes of an input to build the model for, e.g. x:1..64x128; a range stays dynamic. Repeat for each input."
    ),
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
            if low == 0 < high:
                raise wrong_usage(
                    f"{text!r}: the range {part} starts at 0; begin it at 1, and build the model once more with the "
                    "size 0 if it is to take nothing"
                )
            if low > high:
                raise wrong_usage(f"{text!r}: the range {part} is empty")
            ranges.append((low, high))
        shapes[name] = ranges
    return shapes


def read_graph(model: Path, ranges: Ranges, trust: bool = False) -> Graph:
    """The graph of a model, its sizes held to the ranges; the names of sizes are the model's. `trust` as of `compile`.

    Raises as `import_model` and `restrict_shapes` do.
    """
    from tilewright.graph.specialize import restrict_shapes
    from tilewright.importers import import_model

    graph = import_model(model, dynamic_shapes=_needed_at_import(model, ranges), trust=trust)
    return restrict_shapes(graph, ranges) if ranges else graph


def _needed_at_import(model: Path, ranges: Ranges) -> dict[str, dict[int, Any]] | None:
    """The `dynamic_shapes` for inputs of an ONNX file that declare no dimensions, or one of size 0, and for those that
    are to have none: what is imported for sizes from 1 does not hold for 0."""
    if model.suffix != ".onnx" or not ranges:
        return None
    from tilewright.importers.onnx import read_model

    found: dict[str, dict[int, Any]] = {}
    for entry in read_model(model).graph.input:
        tensor = entry.type.tensor_type
        dims = tensor.shape.dim if tensor.HasField("shape") else None
        sizes = enumerate(map(_size, ranges.get(entry.name, ())[: None if dims is None else len(dims)]))
        found[entry.name] = {axis: size for axis, size in sizes if size == 0 or _is_open(dims)}
    return {name: axes for name, axes in found.items() if axes} or None


def _is_open(dims: Sequence[Any] | None) -> bool:
    return dims is None or any(dim.HasField("dim_value") and not dim.dim_value for dim in dims)


def _size(limits: tuple[int, int]) -> int | tuple[int, int]:
    low, high = limits
    return low if low == high else (low, high)
