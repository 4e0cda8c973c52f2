"""From a fused group to the kernels that could compute it, as data.

group (graph.fusion) -> candidates -> cost -> the chosen one -> plan step (build.builder)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from tilewright.graph.core import Value
from tilewright.library.cost import Cost
from tilewright.runtime.extern import function_name
from tilewright.symbolic import Size, evaluate, product

if TYPE_CHECKING:
    from tilewright.launch.jit import JITFunction
    from tilewright.targets.base import Target


@dataclass(frozen=True)
class PackedConstant:
    """A constant stored in another order than the graph's, so that a kernel reads it in sequence.

    `recipe` is data that `library.packing` can apply and invert, e.g.
    ``{"kind": "panels", "width": 32, "transposed": True}``.
    """

    value: Value
    recipe: tuple[tuple[str, Any], ...]
    offset: int = 0  # elements in front of those that the kernel reads


@dataclass(frozen=True)
class TiledOperand:
    """A tensor that a kernel reads or writes in tiles of `block` by the tensor memory accelerator.

    `shape` and `strides` (elements) may be other than the value's own: leading dimensions seen as one.
    `steps`: how far neighbours of a tile are apart along each axis; none for next to each other.
    `offset`: elements before the first one.  `rounded`: float32 elements are rounded to tf32 on their way.
    """

    value: Union[Value, PackedConstant]
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    block: tuple[int, ...]
    steps: tuple[int, ...] = ()
    offset: Size = 0
    rounded: bool = False


@dataclass(frozen=True)
class TensorPart:
    """A tensor from one of its elements on.

    Kernels that read slices of tensors at different places are one kernel then, called with different addresses: the
    steps of a recurrent layer.
    """

    value: Value
    offset: int  # elements before the first one


@dataclass(frozen=True)
class Table:
    """Numbers that follow from sizes, `runtime.tables.TABLES[name](*sizes)`: their address, or how many a row has."""

    name: str
    sizes: tuple[Size, ...]
    columns: bool = False


Operand = Union[Value, PackedConstant, TiledOperand, TensorPart, Table, Size, float]


@dataclass(frozen=True)
class ExternKernel:
    """A function of another library in place of a kernel (`runtime.extern`): its operands are `TiledOperand`s in
    order, its constants JSON values."""

    function: str

    @property
    def __name__(self) -> str:
        return function_name(self.function)


@dataclass(frozen=True)
class KernelCall:
    """One launch: parameters by name (`operands`), compile-time constants, grid.

    `types` gives the IR text of scalar parameters ("i32", "i64", "f32"); tensors get a pointer to
    their dtype. `condition` is (size, at_most): the call applies while size <= at_most. `options` go to the
    target's compiler, and `threads`, of a CTA of a GPU, as so many warps of it (0: the compiler chooses). With
    `planes`, which CPUs know, the instances of one z run when those of the z before have ended.

    `sectors`: bytes of memory that it moves, in whole sectors, for each byte of its tensors.

    With `evenly` every SM of a GPU gets as many CTAs of a grid of known size that fits the GPU at once.  Where the next
    kernel starts before the one ahead has ended, the SMs that are free first would otherwise take more than their
    share, and all wait for them (a float32 product of 1024 x 768 x 768: 60 us for 41; H200, 2026-11-30).
    """

    kernel: Union[JITFunction, ExternKernel]
    operands: dict[str, Operand]
    types: dict[str, str]
    constants: dict[str, Any]
    grid: tuple[Size, Size, Size]
    condition: tuple[Size, int] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    planes: bool = False
    threads: int = 0
    evenly: bool = False
    sectors: float = 1.0

    def options_for(self, target: Target) -> dict[str, Any]:
        """The options that a target's compiler is given."""
        options = dict(self.options)
        if self.threads:
            options["num_warps"] = max(1, self.threads // target.warp_threads)
        if self.evenly and target.dependent_launch and isinstance(ctas := product(self.grid), int):
            options["ctas_per_sm"] = -(-ctas // target.machine().processors)
        return options


@dataclass(frozen=True)
class Stage:
    """Alternatives of one launch, for ranges of run-time sizes: the first that applies is run."""

    calls: tuple[KernelCall, ...]

    def call_for(self, sizes: Mapping[str, int]) -> KernelCall:
        """The alternative that runs at these sizes."""
        return next(c for c in self.calls if c.condition is None or evaluate(c.condition[0], sizes) <= c.condition[1])


@dataclass(frozen=True)
class Candidate:
    """One way to compute a group: stages run in order; `temporaries` are tensors between them."""

    name: str
    stages: tuple[Stage, ...]
    cost: Cost
    temporaries: tuple[Value, ...] = ()
    reasons: dict[str, Any] = field(default_factory=dict)


def labels(found: Sequence[Candidate]) -> list[str]:
    """A text for each candidate that tells it from the others of its group."""
    texts = []
    counts: dict[str, int] = {}
    for candidate in found:
        details = [f"{name} {value}" for name, value in candidate.reasons.items() if name not in ("epilogue", "split")]
        text = ", ".join([candidate.name, *details])
        counts[text] = counts.get(text, 0) + 1
        texts.append(text if counts[text] == 1 else f"{text} ({counts[text]})")
    return texts
