"""`tilewright build`: build an engine file from a model file or a checkpoint folder."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.console import terminal, wrong_usage
from tilewright.cli.loading import EffortOption
from tilewright.cli.peers import remember_model
from tilewright.cli.precision import AUTO, DataOption, MaxDropOption, MetricOption, check_options, search, show_search
from tilewright.cli.progress import BuildProgress
from tilewright.cli.shapes import Ranges, ShapesOption, parse_shapes, read_graph
from tilewright.engine.file import check_replaceable
from tilewright.engine.timings import read_timings
from tilewright.errors import EngineError
from tilewright.graph.specialize import restrict_shapes
from tilewright.insight.search import search_of
from tilewright.measure.record import TimingCache
from tilewright.precision import IEEE

if TYPE_CHECKING:
    from tilewright.engine.engine import Engine
    from tilewright.graph.core import Graph
    from tilewright.measure.record import Timing
    from tilewright.targets.base import Target

_SOURCES = {
    "only": "without a choice", "estimate": "by estimate", "timed": "timed", "recorded": "by times on record"
}  # fmt: skip
_MOST_ADVICE = 5  # lines that a build prints
_OUTPUT = "Engine file to write; by default MODEL.engine in this folder. To rebuild an engine, name another file."


TimingCacheOption = Annotated[
    Path | None,
    typer.Option(
        help="Recorded times to use: a file of `tilewright tune`, to which new times are added, or an engine."
    ),
]
ReproducibleOption = Annotated[
    bool, typer.Option("--reproducible", help="Choose kernels by recorded times alone; fail where a time is missing.")
]
VendorOption = Annotated[
    str,
    typer.Option(
        help="allow: use products of cuBLASLt (nvmath-python), convolutions of cuDNN (nvidia-cudnn-frontend) and both "
        "of PyTorch where they are faster; the engine then needs that package. never: use only tilewright's kernels."
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Let PyTorch read a .pt2 file that cannot be read as data. This runs the pickles in the file: such a file "
        "is a program that can do anything you can.",
    ),
]


_PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help="ieee: multiply float32 as float32. tf32: as tf32, in products and convolutions on GPUs. auto: on CPUs, "
        "choose the fastest format for each layer within a loss of --max-drop over --data. By default ieee; "
        "for an engine, what it was built for."
    ),
]

_TargetOption = Annotated[
    str | None,
    typer.Option(
        help="What to compile for: auto (this CPU), cpu, cuda (this GPU), cuda:sm_90a …; several, separated by "
        "commas, share one file. By default auto; for an engine, what it was built for."
    ),
]


def build(
    model: Annotated[
        Path, typer.Argument(help="MODEL.onnx, MODEL.pt2, a Hugging Face checkpoint folder, or an engine.")
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help=_OUTPUT)] = None,
    shapes: ShapesOption = None,
    target: _TargetOption = None,
    precision: _PrecisionOption = None,
    max_drop: MaxDropOption = None,
    metric: MetricOption = None,
    data: DataOption = None,
    effort: EffortOption = None,
    timing_cache: TimingCacheOption = None,
    reproducible: ReproducibleOption = False,
    vendor: VendorOption = "never",
    trust: TrustOption = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Show no progress and no summary.")] = False,
) -> None:
    """Build an engine from a trained model, or rebuild one from the graph inside an engine."""
    timing = effort, timing_cache, reproducible or None, None if vendor == "never" else vendor
    check_options(precision, (data, max_drop, metric), timing)
    if vendor not in ("allow", "never"):
        raise wrong_usage(f"--vendor {vendor}: expected allow or never")
    ranges = parse_shapes(shapes or [])
    path = output or Path(f"{Path(os.path.realpath(model)).stem}.engine")
    if model.suffix == ".engine" and output is None:
        raise wrong_usage("building an engine again needs -o NEW.engine")
    check_written("-o", path)
    adds_times = timing_cache is not None and timing_cache.suffix != ".engine" and not reproducible
    if timing_cache is not None and adds_times:
        check_written("--timing-cache", timing_cache)
    from tilewright.build import builder
    from tilewright.build.tuning import Tuning

    tuning = Tuning(effort, _recorded(model, timing_cache, reproducible), reproducible, vendor == "allow")

    progress = BuildProgress(f"Building {path.name}", terminal(stderr=True, quiet=quiet))
    with progress:
        progress("import", str(model), 0.0)
        graph, source = _read(model, ranges, trust)
        if precision == AUTO:
            engine = search(graph, source, data, max_drop, metric, _names(model, target), progress).engine
        else:
            engine = builder.build(graph, _targets(model, target, precision), progress, source, tuning)
        progress("save", path.name, 0.0)
        engine.save(path)
    remember_model(path, model)
    if timing_cache is not None and adds_times:
        _write_times([*tuning.recorded], path, timing_cache)
    if not quiet:
        about_times = effort is not None or timing_cache is not None or reproducible or vendor == "allow"
        _describe(engine, path, about_times)


def _write_times(recorded: Sequence[Timing], path: Path, timing_cache: Path) -> None:
    """Add the times of an engine's file to those that were recorded."""
    TimingCache([*recorded, *read_timings(path)]).write(timing_cache)


def _describe(engine: Engine, path: Path, about_times: bool) -> None:
    """Print what was built; `about_times`: the user passed an option that has to do with timing."""
    console = terminal()
    size = f"{path.stat().st_size / 1e6:.1f} MB, {len(engine.plan.steps)} steps"
    console.print(f"{path}: {size}, for {', '.join(engine.targets)}")
    for spec in (*engine.inputs, *engine.outputs):
        kind = "input " if spec in engine.inputs else "output"
        console.print(f"  {kind} {spec.name}: {spec.dtype} [{', '.join(map(str, spec.shape))}]")
    for text in _choices(path, engine.targets, about_times):
        console.print(f"  {text}", soft_wrap=True)
    for text in engine.advice[:_MOST_ADVICE]:
        console.print(f"  advice: {text}", soft_wrap=True)
    if len(engine.advice) > _MOST_ADVICE:
        console.print(f"  and {len(engine.advice) - _MOST_ADVICE} more (tilewright inspect {path})")
    searched = search_of(engine)
    if searched is not None:
        show_search(console, searched)


def _targets(model: Path, names: str | None, precision: str | None) -> list[Target]:
    """What to build for: what was asked for, else what the engine that is built again was built for."""
    from tilewright.build.rebuild import targets_of
    from tilewright.targets.registry import get_target, get_targets

    built = targets_of(model) if names is None and model.suffix == ".engine" else []
    if built and precision is None:
        return [get_target(*each) for each in built]
    return get_targets(_names(model, names), precision or IEEE)


def _names(model: Path, names: str | None) -> list[str]:
    """The names of what to build for, as of `_targets`."""
    from tilewright.build.rebuild import targets_of

    built = targets_of(model) if names is None and model.suffix == ".engine" else []
    return list(dict.fromkeys(name for name, _ in built)) or (names or "auto").split(",")


def _choices(path: Path, targets: Sequence[str], about_times: bool) -> Iterator[str]:
    """For each target that lets kernels be timed, how many were chosen how; for the others that nothing was timed, if
    the user passed an option `about_times`."""
    from tilewright.engine.engine import Engine

    for target in targets:
        engine = Engine.read(path, target)
        if not engine.is_for_gpu:
            if about_times:
                yield f"kernels for {target}: by estimate (CPU kernels are not timed, and no other library is called)"
            continue
        chosen = {re.sub(r"\.\d+$", "", step.name): step.evidence.get("choice")
                  for step in engine.plan.steps}  # fmt: skip
        found = [choice for choice in chosen.values() if choice]
        kinds = Counter((choice["source"], choice["why"] * (choice["source"] == "estimate")) for choice in found)
        texts = [
            f"{count} {_SOURCES[source]}" + (f" ({why})" if why else "") for (source, why), count in kinds.most_common()
        ]
        yield f"kernels for {target}: {', '.join(texts)}"


def _recorded(model: Path, timing_cache: Path | None, reproducible: bool) -> tuple[Timing, ...]:
    """The times of the engine that is built again, and of the named file, which a first build need not have."""
    found: tuple[Timing, ...] = ()
    if model.suffix == ".engine":
        try:
            found = read_timings(model)
        except EngineError:
            pass  # such an engine is built again from its graph: its kernels are timed again
    if timing_cache is not None and (timing_cache.exists() or reproducible):
        found += read_timings(timing_cache)
    return found


def check_written(option: str, path: Path) -> None:
    """Refuse, before the build, a file that could not be written after it."""
    if not path.parent.is_dir():
        raise wrong_usage(f"{option} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise wrong_usage(f"{option} {path} is a folder; name a file")
    check_replaceable(path)
    if not os.access(path.parent, os.W_OK):
        raise wrong_usage(f"{option} {path}: the folder {path.parent} cannot be written to")


def _read(model: Path, ranges: Ranges, trust: bool) -> tuple[Graph, str]:
    """The graph of a model file or of an engine, its sizes held to the ranges, and where the model came from."""
    if model.suffix == ".engine":
        from tilewright.build import rebuild

        graph, source = rebuild.read_graph(model)
        return restrict_shapes(graph, ranges) if ranges else graph, source
    return read_graph(model, ranges, trust), os.path.basename(os.path.realpath(model))
