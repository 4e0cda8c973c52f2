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
    """The `dynamic_shapes` for inputs of an ONNX file that declare no dimensions, or one of size 0, for those that are
    to have none: what is imported for sizes from 1 does not hold for 0; and for the lengths of lists, which may be the
    number of dimensions of a tensor."""
    if model.suffix != ".onnx" or not ranges:
        return None
    from tilewright.importers.onnx import read_model

    dims = {entry.name: _dims(entry) for entry in read_model(model).graph.input}
    lengths: dict[str, int] = {}  # that are given, by the model's names of them
    found: dict[str, dict[int, Any]] = {}
    for name, own in dims.items():
        sizes = [_size(limits) for limits in ranges.get(name, ())[: None if own is None else len(own)]]
        found[name] = {axis: size for axis, size in enumerate(sizes) if size == 0 or _is_open(own)}
        if own is not None and len(own) == 1 and sizes and isinstance(sizes[0], int) and not own[0].dim_value:
            found[name][0] = lengths.setdefault(own[0].dim_param, sizes[0]) if own[0].dim_param else sizes[0]
    for name, own in dims.items():
        for axis, dim in enumerate(own or ()):
            if dim.dim_param in lengths:
                found[name].setdefault(axis, lengths[dim.dim_param])
    return {name: axes for name, axes in found.items() if axes} or None


def _dims(entry: Any) -> Sequence[Any] | None:
    """The dimensions that an input declares."""
    tensor = entry.type.tensor_type
    return tensor.shape.dim if tensor.HasField("shape") else None


def _is_open(dims: Sequence[Any] | None) -> bool:
    return dims is None or any(dim.HasField("dim_value") and not dim.dim_value for dim in dims)


def _size(limits: tuple[int, int]) -> int | tuple[int, int]:
    low, high = limits
    return low if low == high else (low, high)
