"""A language model that is ready to run: the compiled step and its pools; tensors without policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Union, runtime_checkable

import numpy as np

from tilewright.build.builder import build
from tilewright.dtypes import BY_NAME, DType, from_numpy
from tilewright.engine.engine import Engine
from tilewright.errors import ImportModelError, InputError
from tilewright.graph.core import Graph
from tilewright.importers.gguf_files import is_gguf, open_checkpoint
from tilewright.importers.huggingface import Checkpoint
from tilewright.llm.adapters import Adapters
from tilewright.llm.families import LLM_FAMILIES, Family
from tilewright.llm.sampling import Draw
from tilewright.llm.step_graph import CACHE_FORMATS, COMPUTE_DTYPES, WEIGHT_FORMATS, GenerationStep, Limits
from tilewright.targets.base import Target
from tilewright.targets.registry import get_target


class Chunk(NamedTuple):
    """New tokens of one sequence in a step, a part of its prompt or the token sampled last.

    `pages` are those of the whole sequence; `wanted` are the places among `tokens` whose logits are wanted, `draws` how
    their tokens may be chosen where the logits are (none, or one for each).  A token -1 - n is the one that row n of
    the step before chooses, which may still run (`OverlappingRunner`).
    """

    tokens: Sequence[int]
    begin: int  # position of the first
    pages: Sequence[int]
    wanted: Sequence[int] = ()
    adapter: int = 0  # its number, or none
    draws: Sequence[Draw | None] = ()


# Logits float32 [wanted rows, vocabulary]; in the place of a row with a `Draw` may be its token: `Sampler.choose`.
Rows = Union[np.ndarray, Sequence[Any]]


class StepRunner(Protocol):
    """What computes a step: `Model`, or a stand-in for tests."""

    limits: Limits
    pages: int

    def run(self, chunks: Sequence[Chunk]) -> Rows:
        """The wanted rows, chunk by chunk."""
        ...


@runtime_checkable
class OverlappingRunner(StepRunner, Protocol):
    """A `StepRunner` whose next step can be prepared, and started, while one runs; at most one is ahead."""

    def start(self, chunks: Sequence[Chunk]) -> Callable[[], Rows]:
        """Begin a step: what this returns waits for it, and gives the wanted rows.

        When another step was started before that call, of rows with a `Draw` only the tokens are there.
        """
        ...


@dataclass(frozen=True)
class Description:
    """What a checkpoint says of itself."""

    family: str
    vocabulary: int
    length: int  # positions that it is made for
    dtype: DType


def describe(checkpoint: Checkpoint) -> Description:
    """Read the few settings that all families have; raises `ImportModelError` for an unknown family."""
    config = checkpoint.config
    family = config.get("model_type")
    if not isinstance(family, str) or family not in LLM_FAMILIES:
        raise ImportModelError(
            f"{checkpoint.folder / 'config.json'}: 'model_type' is {repr(family)[:100]}; language models of the "
            f"families {', '.join(sorted(LLM_FAMILIES))} can be run"
        )
    kind = config.get("dtype", config.get("torch_dtype"))
    floats = [data.dtype for data in checkpoint.tensors.values() if from_numpy(data.dtype).name in COMPUTE_DTYPES]
    stored = floats[0] if floats else np.dtype(np.float32)
    name = kind.removeprefix("torch.") if isinstance(kind, str) else from_numpy(stored).name
    if name not in COMPUTE_DTYPES:
        raise ImportModelError(
            f"{checkpoint.folder / 'config.json'}: 'dtype' is {name!r}; known are {', '.join(COMPUTE_DTYPES)}"
        )
    length = checkpoint.number("n_positions" if family == "gpt2" else "max_position_embeddings", 2048)
    return Description(family, checkpoint.number("vocab_size", 50257), length, COMPUTE_DTYPES[name])


def open_family(
    folder: str | Path, limits: Limits, dtype: str = "auto", weights: str = "auto", adapters: Adapters | None = None,
    chooses: bool = False, target: Target | None = None,
) -> Family:  # fmt: skip
    """The family that a checkpoint is of, which has read its settings and written nothing yet.

    Raises `ImportModelError` naming the key of config.json that cannot be used.
    """
    checkpoint = open_checkpoint(folder)
    known = describe(checkpoint)
    if dtype != "auto" and dtype not in COMPUTE_DTYPES:
        raise InputError(f"dtype is {dtype!r}; known are auto, {', '.join(COMPUTE_DTYPES)}")
    if limits.cache not in CACHE_FORMATS:
        raise InputError(f"kv_cache_dtype is {limits.cache!r}; known are {', '.join(CACHE_FORMATS)}")
    if weights not in WEIGHT_FORMATS:
        raise InputError(f"weights is {weights!r}; known are {', '.join(WEIGHT_FORMATS)}")
    if weights != "auto" and (is_gguf(folder) or checkpoint.config.get("quantization_config") is not None):
        raise InputError(f"weights is {weights!r}, and those of {folder} are quantized already; leave it out")
    name = checkpoint.folder.resolve().name
    computed = COMPUTE_DTYPES.get(dtype, known.dtype)
    step = GenerationStep(checkpoint, computed, limits, name, weights, adapters, chooses, target)
    return LLM_FAMILIES[known.family](step)


def step_graph(
    folder: str | Path, limits: Limits, dtype: str = "auto", weights: str = "auto", adapters: Adapters | None = None,
    chooses: bool = False, target: Target | None = None,
) -> Graph:  # fmt: skip
    """The graph of one step of a checkpoint; with `chooses` it chooses tokens as well.  Of a `target` it is known which
    quantized weights its kernels read.

    Raises `ImportModelError` naming the key of config.json, or the weights, that cannot be used.
    """
    return open_family(folder, limits, dtype, weights, adapters, chooses, target).build()


class Model:
    """A compiled step with pools of keys and values for `pages` pages, on a CPU; one caller at a time.

    `Model.open` reads a checkpoint. `bytes_per_page` says what a page takes in memory.
    """

    target = "cpu"
    chooses = False  # whether its steps choose tokens

    def __init__(self, engine: Engine, limits: Limits, pages: int) -> None:
        self.engine, self.limits, self.pages = engine, limits, pages
        self._has_adapters = any(spec.name == "adapters" for spec in engine.inputs)
        self._pools = {
            spec.name: self._pool(tuple(size for size in spec.shape[1:] if isinstance(size, int)), spec.dtype)
            for spec in engine.inputs if spec.name.startswith(("keys.", "values."))
        }  # fmt: skip

    def _pool(self, sizes: tuple[int, ...], dtype: str) -> Any:
        """The memory of a layer's keys or values, or of their scales; `sizes` are heads, and their width."""
        return np.zeros((self.pages * self.limits.page, *sizes), BY_NAME[dtype].numpy)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        pages: int,
        limits: Limits,
        dtype: str = "auto",
        progress: Callable[[str, str, float], None] | None = None,
        weights: str = "auto",
        adapters: Adapters | None = None,
    ) -> Model:
        """Read and compile, and make the pools; raises `ImportModelError` for what cannot be used."""
        target = get_target(cls.target)
        graph = step_graph(folder, limits, dtype, weights, adapters, cls.chooses, target)
        return cls(build(graph, target, progress, Path(folder).resolve().name), limits, pages)

    @property
    def bytes_per_page(self) -> int:
        """Of all layers."""
        return sum(pool.nbytes for pool in self._pools.values()) // self.pages

    def run(self, chunks: Sequence[Chunk]) -> Rows:
        """Run one step: logits float32 [wanted rows, vocabulary], chunk by chunk, in the order of `wanted`.

        Keys and values of all new tokens are kept in the pools.
        """
        inputs = self._inputs(chunks)
        wanted = bool(len(inputs["rows"]))
        if not wanted:
            inputs["rows"] = np.zeros(1, np.int32)
        logits: np.ndarray = self.engine.run({**inputs, **self._pools})["logits"]
        return logits if wanted else logits[:0]

    def _inputs(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        tables = np.zeros((len(chunks), max(len(chunk.pages) for chunk in chunks)), np.int32)
        for row, chunk in zip(tables, chunks, strict=True):
            row[: len(chunk.pages)] = chunk.pages
        return {"tables": tables, **{name: np.array(found, np.int32) for name, found in self._numbers(chunks).items()}}

    def _numbers(self, chunks: Sequence[Chunk]) -> dict[str, list[int]]:
        """A step's inputs but the tables of pages."""
        starts, ends = [0], [chunk.begin + len(chunk.tokens) for chunk in chunks]
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        for chunk, end in zip(chunks, ends, strict=True):
            rows += [len(tokens) + place for place in chunk.wanted]
            tokens += chunk.tokens
            positions += range(chunk.begin, end)
            slots += self._slots(chunk)
            starts.append(len(tokens))
        found = {
            "tokens": tokens, "positions": positions, "slots": slots, "starts": starts, "lengths": ends, "rows": rows,
        }  # fmt: skip
        if self._has_adapters:
            found["adapters"] = [chunk.adapter for chunk in chunks for _ in chunk.tokens]
        return found

    def _slots(self, chunk: Chunk) -> Sequence[int]:
        """Where a chunk's keys and values go."""
        page, begin = self.limits.page, chunk.begin
        if len(chunk.tokens) == 1:
            return [chunk.pages[begin // page] * page + begin % page]
        places = np.arange(begin, begin + len(chunk.tokens))
        slots: list[int] = (np.asarray(chunk.pages)[places // page] * page + places % page).tolist()
        return slots
