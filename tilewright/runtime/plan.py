"""The plan: what an engine runs, as data.  Built by `build.builder`, stored in the engine's manifest.

Memory is one arena per call; every intermediate tensor has a place in it, given as a symbolic byte
offset.  Sizes are symbolic in the engine's symbols (batch, sequence, …), bound from the inputs'
shapes at each call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from tilewright.symbolic import Size, Symbol, floor_divide, lift, simplify


@dataclass(frozen=True)
class TensorSpec:
    """An input or output: name, dtype name and shape.

    `mutates` names the input whose memory an output is; an input that the run updates in place names itself.
    """

    name: str
    dtype: str
    shape: tuple[Size, ...]
    mutates: str | None = None


@dataclass(frozen=True)
class BufferReference:
    """A place in memory: `kind` is input, output, arena or weight.

    `name` is the tensor's name for inputs, outputs and weights; `offset` counts bytes from its start
    (from the arena's start for arena).
    """

    kind: str
    name: str
    offset: Size = 0


@dataclass(frozen=True)
class TiledReference:
    """A tensor that a GPU's kernel accesses in tiles: its place, extents and strides (elements, slowest axis first).

    `steps`: how far neighbours of a tile are apart along each axis; none for next to each other.  `rounded`: float32
    elements are rounded to tf32 on their way to shared memory.
    """

    place: BufferReference
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    steps: tuple[int, ...] = ()
    rounded: bool = False


@dataclass(frozen=True)
class TableReference:
    """A table of int32 that follows from sizes, `tables.TABLES[name](*sizes)`, in the GPU's memory.

    The argument is its address, or with `columns` the numbers of a row.
    """

    name: str
    sizes: tuple[Size, ...]
    columns: bool = False


@dataclass(frozen=True)
class Argument:
    """One kernel argument: a place in memory, a tensor, a table, a size, or a number, passed as IR type `type`."""

    type: str
    value: Union[BufferReference, TiledReference, TableReference, Size, float]


@dataclass(frozen=True)
class LaunchChoice:
    """One kernel launch. It is taken when `size` <= `at_most` (always, when `at_most` is None).

    With `planes`, the instances of one z run when those of the z before have ended (`runtime.planes`; CPUs alone).
    """

    kernel: str  # key of a binary in the engine
    arguments: tuple[Argument, ...]
    grid: tuple[Size, Size, Size]
    size: Size = 0
    at_most: int | None = None
    planes: bool = False


@dataclass(frozen=True)
class PlanStep:
    """One fused group's launch: the first choice whose condition holds; the last has none.

    On a GPU, steps of one `lane` run in order; a step waits for those of other lanes that `after` counts.
    """

    name: str
    choices: tuple[LaunchChoice, ...]
    operations: tuple[str, ...]  # the graph nodes that it computes
    bytes: Size = 0  # read and written
    flops: Size = 0
    evidence: dict[str, Any] = field(default_factory=dict)
    lane: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class IndexRange:
    """The numbers that an input of indices may hold: `low` to `high`, because `operation` looks them up.

    With a `column` only those at this place of the last dimension: of tuples that index several dimensions.
    """

    input: str
    low: Size
    high: Size
    operation: str  # for the error message
    column: int | None = None


@dataclass(frozen=True)
class Condition:
    """Two numbers of elements that must be equal in every call for `operation` to be what it says."""

    left: Size
    right: Size
    operation: str  # for the error message


@dataclass
class Plan:
    """Everything the session needs besides weights and binaries."""

    symbols: dict[str, Symbol]
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    steps: list[PlanStep]
    arena_bytes: Size
    scratch_bytes: int  # of one worker: the largest of all binaries
    nanoseconds: Size = 0  # rough estimate of a whole run on one core; 0 when unknown
    index_ranges: list[IndexRange] = field(default_factory=list)  # checked before every run
    conditions: list[Condition] = field(default_factory=list)  # checked when sizes are first met


# One core, roughly: what decides whether work is worth sharing, never what is reported as speed.
_BYTES_PER_NANOSECOND = 8
_OPERATIONS_PER_NANOSECOND = 32


def estimate_nanoseconds(bytes_moved: Size, operations: Size) -> Size:
    """A rough time on one core for so many bytes moved and arithmetic operations."""
    return simplify(
        lift(floor_divide(bytes_moved, _BYTES_PER_NANOSECOND)) + floor_divide(operations, _OPERATIONS_PER_NANOSECOND)
    )


@dataclass(frozen=True)
class ContextLayout:
    """Where a plan's native function finds what changes from call to call: an array of 8-byte words."""

    words: dict[tuple[str, str], int]
    size: int

    arena = 0
    weights = 1
    profile = 2  # where to store the time at the start and after every step, or null

    @classmethod
    def of(cls, plan: Plan) -> ContextLayout:
        """The base addresses, then symbols, inputs and outputs in the plan's order."""
        words = {("arena", ""): cls.arena, ("weight", ""): cls.weights}
        entries = [("symbol", name) for name in plan.symbols]
        entries += [("input", spec.name) for spec in plan.inputs]
        entries += [("output", spec.name) for spec in plan.outputs]
        words.update({entry: number for number, entry in enumerate(entries, cls.profile + 1)})
        return cls(words, cls.profile + 1 + len(entries))

    def word(self, kind: str, name: str) -> int:
        """The number of the word that holds a symbol's value or the address of something."""
        return self.words[kind, name]
