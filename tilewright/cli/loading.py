"""Loads the engine of `run`, `bench` and `inspect`: from its file, or by building a model first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import peers
from tilewright.cli.console import terminal, wrong_usage
from tilewright.cli.progress import BuildProgress
from tilewright.cli.shapes import parse_shapes, read_graph

if TYPE_CHECKING:
    from tilewright.engine.engine import Engine

EngineArgument = Annotated[
    Path,
    typer.Argument(help="Engine file, or a model to build first: MODEL.onnx, MODEL.pt2 or a checkpoint folder."),
]

EffortOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=3,
        help="How many kernels to time on this GPU: 0 none, 1 the close ones (default), 2 more, 3 all. On a CPU, 0 "
        "builds faster, to slower code.",
    ),
]


def load(
    path: Path,
    target: str | None,
    rebuild: bool = False,
    expect_sha256: str | None = None,
    trusted_keys: Sequence[Path] | None = None,
    linked: bool = True,
    effort: int | None = None,
    shapes: Sequence[str] | None = None,
) -> Engine:
    """The engine in a file, linked or only read; a model is built for `target`, for this CPU without one, at `effort`,
    with the sizes of `shapes`.

    Raises as `Engine.load`, `tilewright.compile` and `restrict_shapes` do.
    """
    from tilewright.engine.engine import Engine
    from tilewright.loading import load as load_engine

    if not is_model(path):
        if effort is not None or shapes:
            raise wrong_usage(f"{path} is an engine; --effort and --shapes are for models; --size gives a dynamic size")
        if linked:
            return load_engine(
                path,
                "always" if rebuild else False,
                target=target,
                expect_sha256=expect_sha256,
                trusted_keys=trusted_keys,
            )
        return Engine.read(path, target, expect_sha256=expect_sha256, trusted_keys=trusted_keys)
    if rebuild or expect_sha256 or trusted_keys:
        raise wrong_usage(f"{path} is a model; --rebuild, --expect-sha256 and --trusted-key go with engines")
    ranges = parse_shapes([*(shapes or [])])
    from tilewright.build.builder import build
    from tilewright.build.tuning import Tuning

    with BuildProgress(f"Building {path.name}", terminal(stderr=True)) as progress:
        progress("import", str(path), 0.0)
        graph = read_graph(path, ranges)
        return build(graph, target or "auto", progress, path.resolve().name, Tuning(effort))


def is_model(path: Path) -> bool:
    """Whether a path is that of a model, not of an engine."""
    return path.suffix in (".onnx", ".pt2") or path.is_dir()


def model_of(path: Path, engine: Engine) -> Path | None:
    """The model to compare an engine with: itself, or what its file was built from, where that is known."""
    return path if is_model(path) else peers.model_of(path, engine)
