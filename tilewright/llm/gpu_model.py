"""A language model on an NVIDIA GPU: steps of few sizes, each a CUDA graph, which choose tokens where the logits are.

Numbers of tokens, sequences, rows and pages are rounded up, so that steps repeat: what is added belongs to no sequence,
and its keys and values go to a page that no sequence has.  All inputs of a step are one copy to the GPU; what comes
back is a token for each row, and logits only where choosing a token needs more than `sampling.Draw` has.

A step may be started while the one before runs, whose tokens it finds on the GPU.  The host therefore has two places
for inputs and results, which steps use alternately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, eq
from typing import Any, NamedTuple

import numpy as np

from tilewright.dtypes import BY_NAME
from tilewright.engine.engine import Engine
from tilewright.llm.model import Chunk, Model, Rows
from tilewright.llm.sampling import GREEDY, Draw
from tilewright.llm.step_graph import Limits
from tilewright.llm.token_counts import TokenCounts
from tilewright.runtime.cuda.memory import DeviceArray, DevicePart
from tilewright.runtime.cuda.staging import MirroredBuffer
from tilewright.runtime.cuda.streams import StreamMark

_ALIGNMENT = 256  # bytes, of inputs
_CACHED_STEPS = 256  # sizes of steps
_PLACES = 2  # in the host's memory, for the steps that are under way
_DRAWS = {
    "temperatures": np.float32, "shares": np.float32, "floors": np.float32, "portions": np.float32, "counts": np.int32,
    "histories": np.int32, "presences": np.float32, "frequencies": np.float32, "repetitions": np.float32,
}  # fmt: skip
_FIELDS = attrgetter("tokens", "begin", "pages", "adapter")  # of a chunk


class StepSizes(NamedTuple):
    """How many there are of each in a step."""

    tokens: int
    sequences: int
    rows: int
    columns: int


@dataclass(frozen=True, eq=False)
class PreparedStep:
    """A step of one size: its inputs in each place of the host's memory, and their bytes; what runs it."""

    inputs: list[dict[str, np.ndarray]]
    bytes: int
    run: Callable[[], None]
    arguments: dict[str, Any] = field(default_factory=dict)  # its inputs in the GPU's memory
    # of each sequence, as its table was written last, in each place
    pages: list[list[list[int]]] = field(default_factory=lambda: [[] for _ in range(_PLACES)])


def _fetch(logits: DeviceArray, first: int, end: int) -> np.ndarray:
    """Rows of logits in the host's memory."""
    vocabulary = logits.shape[1]
    return DevicePart(logits, 4 * vocabulary * first, (end - first, vocabulary), logits.dtype).numpy()


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
        self._inputs_memory = MirroredBuffer(max(end for _, _, _, end in self._places(most)), _PLACES)
        self._chosen = MirroredBuffer(4 * rows, _PLACES)
        self._previous = DeviceArray.from_numpy(np.zeros(rows, np.int32))  # what the last step chose
        self._place = 0  # in the host's memory, of the next step
        self._done = [StreamMark(self._previous.ordinal) for _ in range(_PLACES)]  # the last step of each place
        self._logits = DeviceArray((limits.sequences, vocabulary), np.float32)
        self._steps: dict[StepSizes, PreparedStep] = {}
        self._filled: list[PreparedStep | None] = [None] * _PLACES  # whose inputs are in the memory that all share
        self._each = np.arange(limits.sequences, dtype=np.int32)
        self._token_counts = TokenCounts(limits.sequences, vocabulary)

    @property
    def _spare_slot(self) -> int:
        """Where keys and values of what belongs to no sequence go."""
        return self.pages * self.limits.page

    def _pool(self, sizes: tuple[int, ...], dtype: str) -> Any:
        slots = (self.pages + 1) * self.limits.page  # the last page is for what belongs to no sequence
        return DeviceArray((slots, *sizes), BY_NAME[dtype].numpy)

    def run(self, chunks: Sequence[Chunk]) -> Rows:
        """As `Model.run`; of rows with a `Draw` the tokens."""
        return self.start(chunks)()

    def start(self, chunks: Sequence[Chunk]) -> Callable[[], Rows]:
        """Begin a step, as `OverlappingRunner.start`."""
        place, self._place = self._place, (self._place + 1) % _PLACES
        self._done[place].wait()  # the host's memory is read, and written, until then
        draws = [draw for chunk in chunks for draw in chunk.draws or [None] * len(chunk.wanted)]
        if any(draw is not None and draw.history is not None for draw in draws):
            if self._token_counts.make_room():
                self._steps.clear()  # their tables are others now
            self._token_counts.hold(draws)
        step = self._filled_step(chunks, draws, place)
        try:
            self._inputs_memory.upload(step.bytes, place)
            step.run()
            if draws:
                self._chosen.download(4 * len(draws), place)
        finally:  # a step that fails may have started copies
            self._done[place].set()
        return partial(self._rows, draws, place)

    def _rows(self, draws: Sequence[Draw | None], place: int) -> Rows:
        """The rows of the last step of a place, once it is done."""
        self._done[place].wait()
        if not any(draws):
            return _fetch(self._logits, 0, len(draws))
        chosen: list[int] = self._chosen.hosts[place].view(np.int32)[: len(draws)].tolist()
        if all(draws):
            return chosen
        return [
            _fetch(self._logits, row, row + 1)[0] if draw is None else chosen[row] for row, draw in enumerate(draws)
        ]

    def _filled_step(self, chunks: Sequence[Chunk], draws: Sequence[Draw | None], place: int) -> PreparedStep:
        """The step of these sizes, with its inputs in a place of the host's memory."""
        tokens, begins, pages, adapters = zip(*map(_FIELDS, chunks), strict=True)
        counts = list(map(len, tokens))
        sizes = self._rounded(sum(counts), len(chunks), len(draws), max(map(len, pages)))
        step = self._steps.get(sizes) or self._prepare(sizes)
        inputs = step.inputs[place]
        self._fill_tables(step, pages, place)
        if max(counts) == 1 and len(draws) == len(chunks):
            self._fill_tokens(inputs, [first for (first,) in tokens], begins, adapters)
        else:
            self._fill(inputs, self._numbers(chunks))
        self._fill_draws(inputs, draws)
        return step

    # -- Sizes ----------------------------------------------------------------------------------------------------

    def _rounded(self, tokens: int, sequences: int, rows: int, columns: int) -> StepSizes:
        limits = self.limits
        return StepSizes(
            _rounded(tokens, limits.tokens), _rounded(sequences, limits.sequences),
            _rounded(max(1, rows), max(limits.tokens, limits.sequences)),
            min(1 << (columns - 1).bit_length(), limits.columns),
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
        here: list[dict[str, np.ndarray]] = [{} for _ in range(_PLACES)]
        tables = {"seen": self._token_counts.seen, "biases": self._token_counts.biases}
        there: dict[str, Any] = {**self._pools, **tables, "previous": self._previous}
        end = 0
        for name, shape, begin, end in self._places(sizes):
            dtype = np.dtype(_DRAWS.get(name, np.int32))
            for inputs, host in zip(here, memory.hosts, strict=True):
                inputs[name] = host[begin:end].view(dtype).reshape(shape)
            there[name] = DevicePart(memory.there, begin, shape, dtype)
        out = {
            "logits": DevicePart(self._logits, 0, (sizes.rows, vocabulary), self._logits.dtype),
            "chosen": DevicePart(self._chosen.there, 0, (sizes.rows,), np.dtype(np.int32)),
        }
        self._steps[sizes] = step = PreparedStep(here, end, self.engine.prepare(there, out), there)
        return step

    def _make_room(self, rows: int) -> None:
        """For a further step, and for its rows of logits: there are many where a prompt's tokens are scored."""
        if len(self._steps) >= _CACHED_STEPS or rows > self._logits.shape[0]:
            self._steps.clear()
        if rows > self._logits.shape[0]:
            self._logits = DeviceArray((rows, self._logits.shape[1]), np.float32)

    def _fill(self, inputs: dict[str, np.ndarray], numbers: dict[str, list[int]]) -> None:
        """Write a step's inputs but tables and draws, followed by padding."""
        nothing = {"slots": self._spare_slot, "starts": numbers["starts"][-1]}
        for name, values in numbers.items():
            target = inputs[name]
            target[: len(values)] = values
            target[len(values) :] = nothing.get(name, 0)

    def _fill_tokens(
        self, inputs: dict[str, np.ndarray], tokens: Sequence[int], begins: Sequence[int], adapters: Sequence[int]
    ) -> None:
        """The same for one token and one row of each sequence, after their tables: here Python's time matters."""
        count, page = len(tokens), self.limits.page
        each = self._each[:count]
        inputs["tokens"][:count], inputs["positions"][:count] = tokens, begins
        positions = inputs["positions"][:count]
        inputs["slots"][:count] = inputs["tables"][each, positions // page] * page + positions % page
        inputs["slots"][count:] = self._spare_slot
        np.add(positions, 1, out=inputs["lengths"][:count])
        inputs["starts"][:count], inputs["starts"][count:] = each, count
        inputs["rows"][:count] = each
        if self._has_adapters:
            inputs["adapters"][:count] = adapters
        for name in ("tokens", "positions", "lengths", "rows", "adapters"):
            if name in inputs:
                inputs[name][count:] = 0

    def _fill_draws(self, inputs: dict[str, np.ndarray], draws: Sequence[Draw | None]) -> None:
        """Write how tokens are chosen."""
        inputs["temperatures"][:], inputs["histories"][:] = 0.0, 0
        rows = [(row, draw) for row, draw in enumerate(draws) if draw is not None and draw is not GREEDY]
        if rows:
            places = [row for row, _ in rows]
            columns = zip(*(draw[:5] + self._token_counts.numbers(draw) for _, draw in rows), strict=True)
            for name, values in zip(_DRAWS, columns, strict=True):
                inputs[name][places] = values

    def _fill_tables(self, step: PreparedStep, pages: Sequence[Sequence[int]], place: int) -> None:
        """Write the pages of sequences that have others than when the place was filled last; nothing reads after them.

        Most steps repeat the one before with a token more, so that comparing is much less than writing.
        """
        known = step.pages[place]
        if self._filled[place] is not step:
            known.clear()
        self._filled[place] = step
        known += [[]] * (len(pages) - len(known))
        for row in [row for row, same in enumerate(map(eq, pages, known)) if not same]:
            step.inputs[place]["tables"][row, : len(pages[row])] = pages[row]
            known[row] = list(pages[row])


def _rounded(count: int, most: int) -> int:
    """Up to 16 the next power of two, then the next multiple of 16, and from 128 on of 64."""
    if count <= 16:
        return min(1 << (count - 1).bit_length(), most)
    step = 16 if count <= 128 else 64
    return min(-(-count // step) * step, most)
