"""A language model on an NVIDIA GPU: steps of few sizes, each a CUDA graph, which choose tokens where the logits are.

Numbers of tokens, sequences, rows and pages are rounded up, so that steps repeat: what is added belongs to no sequence,
and its keys and values go to a page that no sequence has.  All inputs of a step are one copy to the GPU; what comes
back is a token for each row, and logits only where choosing a token needs more than `sampling.Draw` has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tilewright.dtypes import BY_NAME
from tilewright.engine.engine import Engine
from tilewright.llm.model import Chunk, Model, Rows
from tilewright.llm.sampling import ChosenRow, Draw
from tilewright.llm.step import Limits
from tilewright.runtime.cuda.memory import DeviceArray, DevicePart
from tilewright.runtime.cuda.staging import MirroredBuffer
from tilewright.runtime.cuda.streams import synchronize

_ALIGNMENT = 256  # bytes, of inputs
_CACHED_STEPS = 256  # sizes of steps
_DRAWS = ("temperatures", "shares", "floors")


class StepSizes(NamedTuple):
    """How many there are of each in a step."""

    tokens: int
    sequences: int
    rows: int
    columns: int


@dataclass(frozen=True)
class PreparedStep:
    """A step of one size: its inputs in the host's memory, and their bytes; what runs it."""

    inputs: dict[str, np.ndarray]
    bytes: int
    run: Callable[[], None]


class GPUModel(Model):
    """`Model` on the current GPU."""

    target = "cuda"
    chooses = True

    def __init__(self, engine: Engine, limits: Limits, pages: int) -> None:
        super().__init__(engine, limits, pages)
        (logits,) = (spec for spec in engine.outputs if spec.name == "logits")
        vocabulary = logits.shape[1]
        assert isinstance(vocabulary, int)
        rows = max(limits.tokens, limits.sequences)
        most = StepSizes(limits.tokens, limits.sequences, rows, limits.columns)
        self._inputs_memory = MirroredBuffer(max(end for _, _, _, end in self._places(most)))
        self._chosen = MirroredBuffer(4 * rows)
        self._logits = DeviceArray((limits.sequences, vocabulary), np.float32)
        self._steps: dict[StepSizes, PreparedStep] = {}

    def _pool(self, sizes: tuple[int, ...], dtype: str) -> Any:
        slots = (self.pages + 1) * self.limits.page  # the last page is for what belongs to no sequence
        return DeviceArray((slots, *sizes), BY_NAME[dtype].numpy)

    def run(self, chunks: Sequence[Chunk]) -> Rows:
        """As `Model.run`; rows with a `Draw` are `ChosenRow`s, whose logits are there until the next run."""
        inputs = self._inputs(chunks)
        draws = [draw for chunk in chunks for draw in chunk.draws or [None] * len(chunk.wanted)]
        sizes = self._rounded(inputs)
        step = self._steps.get(sizes) or self._prepare(sizes)
        self._fill(step.inputs, inputs, draws)
        self._inputs_memory.upload(step.bytes)
        step.run()
        self._chosen.download(4 * sizes.rows)
        synchronize(self._logits.ordinal)
        if not any(draws):
            return self._fetch(0, len(draws))
        chosen = self._chosen.host.view(np.int32).tolist()
        return [
            self._fetch(row, row + 1)[0] if draw is None else ChosenRow(chosen[row], partial(self._fetch_row, row))
            for row, draw in enumerate(draws)
        ]

    def _fetch(self, first: int, end: int) -> np.ndarray:
        """Rows of logits in the host's memory."""
        vocabulary = self._logits.shape[1]
        return DevicePart(self._logits, 4 * vocabulary * first, (end - first, vocabulary), self._logits.dtype).numpy()

    def _fetch_row(self, row: int) -> np.ndarray:
        found: np.ndarray = self._fetch(row, row + 1)[0]
        return found

    # -- Sizes ----------------------------------------------------------------------------------------------------

    def _rounded(self, inputs: dict[str, Any]) -> StepSizes:
        limits, tables = self.limits, inputs["tables"]
        return StepSizes(
            _rounded(len(inputs["tokens"]), limits.tokens), _rounded(tables.shape[0], limits.sequences),
            _rounded(max(1, len(inputs["rows"])), max(limits.tokens, limits.sequences)),
            min(1 << (tables.shape[1] - 1).bit_length(), limits.columns),
        )  # fmt: skip

    def _places(self, sizes: StepSizes) -> list[tuple[str, tuple[int, ...], int, int]]:
        """Name, shape, and first and last byte of a step's inputs."""
        shapes: dict[str, tuple[int, ...]] = {
            **dict.fromkeys(("tokens", "positions", "slots"), (sizes.tokens,)),
            **({"adapters": (sizes.tokens,)} if self._has_adapters else {}),
            "tables": (sizes.sequences, sizes.columns), "starts": (sizes.sequences + 1,),
            "lengths": (sizes.sequences,), **dict.fromkeys(("rows", *_DRAWS), (sizes.rows,)),
        }  # fmt: skip
        found, end = [], 0
        for name, shape in shapes.items():
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = begin + 4 * int(np.prod(shape))
            found.append((name, shape, begin, end))
        return found

    def _prepare(self, sizes: StepSizes) -> PreparedStep:
        """The step of one size, checked once."""
        self._make_room(sizes.rows)
        memory, vocabulary = self._inputs_memory, self._logits.shape[1]
        here: dict[str, np.ndarray] = {}
        there: dict[str, Any] = dict(self._pools)
        end = 0
        for name, shape, begin, end in self._places(sizes):
            dtype = np.dtype(np.float32 if name in _DRAWS else np.int32)
            here[name] = memory.host[begin:end].view(dtype).reshape(shape)
            there[name] = DevicePart(memory.there, begin, shape, dtype)
        out = {
            "logits": DevicePart(self._logits, 0, (sizes.rows, vocabulary), self._logits.dtype),
            "chosen": DevicePart(self._chosen.there, 0, (sizes.rows,), np.dtype(np.int32)),
        }
        self._steps[sizes] = step = PreparedStep(here, end, self.engine.prepare(there, out))
        return step

    def _make_room(self, rows: int) -> None:
        """For a further step, and for its rows of logits: there are many where a prompt's tokens are scored."""
        if len(self._steps) >= _CACHED_STEPS or rows > self._logits.shape[0]:
            self._steps.clear()
        if rows > self._logits.shape[0]:
            self._logits = DeviceArray((rows, self._logits.shape[1]), np.float32)

    def _fill(self, here: dict[str, np.ndarray], inputs: dict[str, Any], draws: Sequence[Draw | None]) -> None:
        """Write a step's inputs, followed by padding."""
        nothing = {"slots": self.pages * self.limits.page, "starts": inputs["starts"][-1]}
        for name, values in inputs.items():
            target = here[name]
            if values.ndim == 2:
                target[:] = 0
                target[: values.shape[0], : values.shape[1]] = values
            else:
                target[: len(values)] = values
                target[len(values) :] = nothing.get(name, 0)
        for name in _DRAWS:
            here[name][:] = 0.0
        for row, draw in enumerate(draws):
            if draw is not None and draw.temperature:
                here["temperatures"][row] = draw.temperature
                here["shares"][row], here["floors"][row] = draw.share, draw.floor


def _rounded(count: int, most: int) -> int:
    """Up to 16 the next power of two, then the next multiple of 16, and from 128 on of 64."""
    if count <= 16:
        return min(1 << (count - 1).bit_length(), most)
    step = 16 if count <= 128 else 64
    return min(-(-count // step) * step, most)
