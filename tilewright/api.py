"""`tilewright.compile`: compiles a model of any supported kind to an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.build.builder import build
from tilewright.build.quick_start import build_quickly_first
from tilewright.build.tuning import Tuning
from tilewright.engine.engine import Engine
from tilewright.engine.file import as_path
from tilewright.engine.timings import read_timings
from tilewright.importers import import_model
from tilewright.precision import IEEE
from tilewright.runtime.cuda.device import on_gpu_of


def compile(
    model: Any,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    target: str | Sequence[str] = "auto",
    progress: Callable[[str, str, float], None] | None = None,
    effort: int | None = None,
    timing_cache: str | Path | None = None,
    reproducible: bool = False,
    vendor: bool = False,
    trust: bool = False,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    threads: int | None = None,
    quick_start: bool = False,
    precision: str = IEEE,
) -> Engine:
    """Build an engine from a model.

    `model` is a PyTorch module, a function of PyTorch tensors, an `ExportedProgram`, an ONNX `ModelProto` or its bytes,
    or the path of an .onnx file, a .pt2 file or a Hugging Face checkpoint folder.  A module or function needs
    `example_inputs` (a tuple, a dict by argument name, or one tensor) or `example_kwargs`; `dynamic_shapes`
    says which dimensions vary (see `importers.import_model`).  `threads` is the number of CPU threads of a run, by
    default `settings.threads`.  `target` is ``auto`` (this machine's CPU) or a target's name: ``cuda`` (this machine's
    GPU), ``cuda:sm_90a`` (on any machine).  Several targets make one engine with a program for each.
    The `precision` ``tf32`` multiplies float32 as tf32 in products and convolutions on GPUs; the default ``ieee``
    multiplies as float32.
    `progress` is called with (stage, item, seconds).  `trust` lets PyTorch read a .pt2 file that cannot be read as
    data: that runs the pickles in the file, so the file is a program.

    For this machine's GPU, kernels that the estimates cannot tell apart are timed: `effort` 0 times none, 1 (the
    default) the close ones, 2 more, 3 all.  For CPUs, `effort` 0 compiles fewer kernels without optimising them: the
    build is faster, the engine slower.  `timing_cache` names recorded times (a file of `tilewright tune`, or an
    engine) to use first; with `reproducible`, kernels are chosen by recorded times alone.  With `vendor`, products of
    cuBLASLt, convolutions of cuDNN and both of PyTorch are candidates where their packages are installed.  They are
    chosen where they are faster; such an engine needs the package.

    With `quick_start` (CPUs only) the call returns the engine of effort 0, and a thread runs the build at `effort`.
    When that is ready, the engine switches to its code between two runs.  The results of both are equal within
    rounding.  `Engine.wait_for_full_build` waits for it, as does `Engine.save`; a full build that fails is logged.

    Raises `UnsupportedOperationError` listing every unsupported operation, `ImportModelError` when the model cannot
    be read, `MissingDependencyError` when reading it needs a package, and `MissingTimingError` when a reproducible
    build would have to time kernels.
    """
    source = _source_of(model)
    if progress is not None:
        progress("import", source, 0.0)
    graph = import_model(model, example_inputs, dynamic_shapes, None, trust, example_kwargs, progress)
    recorded = read_timings(as_path(timing_cache, "a timing cache")) if timing_cache is not None else ()
    examples = [*_values(example_inputs), *(example_kwargs or {}).values()]
    with on_gpu_of(examples):  # kernels are timed where they will run
        how = build_quickly_first if quick_start else build
        tuning = Tuning(effort, recorded, reproducible, vendor)
        engine = how(graph, target, progress, source, tuning, precision=precision)
    engine.threads, engine.results_of = threads, graph.results_of
    return engine


def _source_of(model: Any) -> str:
    """The name of a model's file or folder, or of its class."""
    if not isinstance(model, (str, Path)):
        return type(model).__qualname__
    try:
        return Path(model).resolve().name
    except (OSError, RuntimeError, ValueError):  # no file can have such a name: the import says so
        return str(model)


def _values(example_inputs: Any) -> Sequence[Any]:
    if isinstance(example_inputs, Mapping):
        return tuple(example_inputs.values())
    return example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
