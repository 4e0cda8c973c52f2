"""Other runtimes on the model that an engine was built from, for `run --compare` and `bench --vs`."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.cli.placement import torch_tensor, torch_with_gpu
from tilewright.errors import ImportModelError, InputError, MissingDependencyError
from tilewright.settings import settings
from tilewright.targets.llvm.cache import ObjectCache

if TYPE_CHECKING:
    from tilewright.engine.engine import Engine

Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
PEER_NAMES = ("reference", "onnxruntime", "torch")


def load_peer(name: str, engine: Engine, model: Path | None, threads: int) -> Run:
    """A function that runs the engine's source model in another runtime.

    `name` is ``reference`` (float64 NumPy on the graph inside the engine), ``onnxruntime`` or
    ``torch``; the last two need the model's file: `model`, else one of the recorded name in the current folder.
    Raises `MissingDependencyError` and `ImportModelError`.
    """
    if name == "reference":
        return _reference(engine)
    path = _source(name, engine, model)
    return _onnxruntime(path, threads) if name == "onnxruntime" else _torch(path, threads, engine.seed)


def timed_peer(
    name: str, engine: Engine, model: Path | None, threads: int, arrays: Mapping[str, np.ndarray]
) -> Callable[[], Any]:
    """A call of ``onnxruntime`` or ``torch`` on these inputs, which returns when the results are there.

    Beside an engine for a GPU, PyTorch runs on the GPU, on tensors in its memory; ONNX Runtime is not timed there.
    Raises `MissingDependencyError` and `ImportModelError`.
    """
    gpu = engine.is_for_gpu
    if name == "onnxruntime" and gpu:
        raise MissingDependencyError("ONNX Runtime is compared with engines for CPUs alone, and this one is for a GPU")
    path = _source(name, engine, model)
    if name == "onnxruntime":
        run = _onnxruntime(path, threads, exact=False)
        return lambda: run(arrays)
    torch = torch_with_gpu() if gpu else _import_torch()
    if torch is None:
        raise MissingDependencyError("the engine is for a GPU, and there is no PyTorch here that uses it")
    place = "cuda" if gpu else "cpu"
    call = _torch_call(torch, path, threads, engine.seed, place)
    tensors = {key: torch_tensor(torch, array).to(place) for key, array in arrays.items()}
    if not gpu:
        return lambda: call(tensors)

    def call_and_wait() -> None:
        call(tensors)
        torch.cuda.synchronize()

    return call_and_wait


def every_tensor(
    engine: Engine, model: Path | None, threads: int, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """All tensors of the model's graph in ONNX Runtime, by name. Raises as `load_peer`."""
    import onnx

    path = _source("onnxruntime", engine, model)
    source = onnx.load(path)
    known = {entry.name for entry in source.graph.output}
    names = dict.fromkeys(name for node in source.graph.node for name in node.output if name and name not in known)
    source.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return _onnxruntime(path, threads, source.SerializeToString())(inputs)


def remember_model(engine_file: Path, model: Path) -> None:
    """Keep in this user's cache which model an engine was built from: the engine itself records no folder."""
    if model.suffix == ".engine":  # built again: its own model, where that is known
        found = _remembered(model)
        if found is None:
            return
        model = found
    ObjectCache(settings.cache_directory).put(_model_key(engine_file), {"model": str(model.resolve())}, b"")


def model_of(engine_file: Path, engine: Engine) -> Path | None:
    """The model that an engine was built from, if it was built here, or if the model lies in the engine's folder."""
    if not engine.source:
        return None
    places = (_remembered(engine_file), engine_file.parent / os.path.basename(engine.source))
    return next((path for path in places if path is not None and path.exists()), None)


def _remembered(engine_file: Path) -> Path | None:
    key = _model_key(engine_file)
    return ObjectCache(settings.cache_directory).find(key, lambda entry: Path(entry.metadata["model"]))


def _model_key(engine_file: Path) -> str:
    return f"model-{hashlib.sha256(os.fsencode(engine_file.resolve())).hexdigest()[:40]}"


def _source(name: str, engine: Engine, model: Path | None) -> Path:
    path = model or (Path(os.path.basename(engine.source)) if engine.source else None)
    if path is None or not path.exists():
        raise ImportModelError(
            f"--compare/--vs {name} needs the model that the engine was built from"
            + (f"; {path} is neither in the engine's folder nor in this one" if path and not model else "")
            + (f"; {path} is not there" if model else "")
            + ". Name it with --model."
        )
    return path


def _reference(engine: Engine) -> Run:
    from tilewright.graph import reference

    graph = engine.source_graph()
    return lambda inputs: reference.run(graph, dict(inputs))


def _onnxruntime(path: Path, threads: int, contents: bytes | None = None, exact: bool = True) -> Run:
    """The model of a file, or of other contents with that name; `exact` where answers are compared."""
    if path.suffix != ".onnx":
        raise ImportModelError(f"ONNX Runtime runs .onnx files, and the engine's model is {path.name}")
    try:
        import onnxruntime
    except ImportError:
        raise MissingDependencyError("ONNX Runtime is not installed: pip install onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Without it, products of bytes saturate on CPUs that have no instruction for them.
    options.add_session_config_entry("session.x64quantprecision", "1" if exact else "0")
    if contents is not None:  # every tensor is an output, so nothing fuses; its optimiser fails on some of these models
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(contents or str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no base class but this
        raise ImportModelError(f"ONNX Runtime does not load {path.name}: {str(error).splitlines()[0]}") from None
    names = [output.name for output in session.get_outputs()]
    wanted = {entry.name for entry in session.get_inputs()}
    for entry in (*session.get_inputs(), *session.get_outputs()):
        if "bfloat16" in entry.type or "float8" in entry.type:
            raise ImportModelError(
                f"ONNX Runtime hands over no arrays of {entry.type}, which {entry.name} of {path.name} is"
            )

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not wanted <= inputs.keys():
            raise InputError(
                f"{path.name} is not the model that the engine was built from: it takes {', '.join(sorted(wanted))}, "
                f"and the engine {', '.join(inputs)}"
            )
        return dict(zip(names, session.run(names, {k: v for k, v in inputs.items() if k in wanted}), strict=True))

    return run


def _import_torch() -> ModuleType:
    try:
        import torch
    except ImportError:
        raise MissingDependencyError("PyTorch is not installed: pip install 'tilewright[torch]'") from None
    return torch


def _torch_call(
    torch: ModuleType, path: Path, threads: int, seed: str | None, place: str = "cpu"
) -> Callable[[Mapping[str, Any]], Any]:
    """The model in PyTorch, as a function of its inputs by name, tensors on the device `place`.

    `seed` names the engine's input that random numbers follow from: the model itself has no such argument.
    """
    from tilewright.importers.torch_export import load_program

    torch.set_num_threads(threads)
    if path.suffix == ".pt2":
        program = load_program(str(path))
        if place != "cpu":
            program = importlib.import_module("torch.export.passes").move_to_device_pass(program, place)
        module = program.module()
    elif path.is_dir():
        try:
            import transformers
        except ImportError:
            raise MissingDependencyError(
                "PyTorch runs a checkpoint folder through transformers: pip install transformers"
            ) from None
        module = (
            transformers.AutoModel.from_pretrained(
                str(path), use_safetensors=True, local_files_only=True, trust_remote_code=False
            )
            .eval()
            .to(place)
        )
    else:
        raise ImportModelError(f"PyTorch runs .pt2 files and checkpoint folders, and the engine's model is {path.name}")

    def call(tensors: Mapping[str, Any]) -> Any:
        tensors = {name: tensor for name, tensor in tensors.items() if name != seed}
        with torch.inference_mode():
            return module(*tensors.values()) if path.suffix == ".pt2" else module(**tensors)

    return call


def _torch(path: Path, threads: int, seed: str | None) -> Run:
    torch = _import_torch()
    from tilewright.importers.torch_fx import to_numpy

    call = _torch_call(torch, path, threads, seed)

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = call({name: torch_tensor(torch, array) for name, array in inputs.items()})
        if isinstance(results, torch.Tensor):
            results = (results,)
        pairs = results.items() if hasattr(results, "items") else enumerate(results)
        return {str(name): to_numpy(value) for name, value in pairs if isinstance(value, torch.Tensor)}

    return run
