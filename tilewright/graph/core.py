"""The data structure of the Graph IR: tensor programs over symbolic shapes.

    graph  := symbols, inputs, constants, nodes (topological order, SSA), outputs, states
    node   := op, inputs: [value or None], attributes, outputs: [value], source
    value  := name, dtype, shape: (int or symbolic expression, …)

Ops are listed in `graph.ops`; each has shape inference, NumPy semantics and effects there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.symbolic import Size, Symbol


@dataclass(eq=False)
class Value:
    """A tensor in a graph. `shape` holds ints and symbolic expressions. Compared by identity."""

    name: str
    dtype: DType
    shape: tuple[Size, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"%{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(eq=False)
class Node:
    """One operation. `source` says where in the user's model it came from."""

    op: str
    inputs: list[Value | None]
    outputs: list[Value]
    attributes: dict[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def output(self) -> Value:
        """The only output."""
        (value,) = self.outputs
        return value


class Advice(str):
    """A remark on what is slower than it could be, and what the user can change."""

    __slots__ = ()


@dataclass(eq=False)
class Graph:
    """A tensor program.

    `constants` maps a value to its data (often memory-mapped, never changed in place).
    `mutations` maps an input to the value that it holds after the run: the caller's buffer is
    updated in place (a static KV cache); such values may or may not be outputs as well.
    `remarks` are the decisions that passes made, for the user; those that are `Advice` say what to change.
    `fixed` are the arguments of the model that are no tensors, and have the same value in every call: how many inputs
    stand before each, and the value.
    `seed` names the input that random numbers follow from: an i64 without dimensions, which an engine draws at each
    call that gives none.
    `results_of` makes what the model returns of the outputs in order, where that is no tensor and no tuple of them;
    engine files do not have it.
    `parts` are what its `part` nodes compute, by number, where the graph was cut (`graph.partition`).
    `at_zero` is what such a part computes where a size is 0, if it cannot tell itself.
    """

    name: str
    symbols: dict[str, Symbol] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[Value, np.ndarray] = field(default_factory=dict)
    mutations: dict[Value, Value] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    fixed: dict[str, tuple[int, bool | int | float | str | None]] = field(default_factory=dict)
    seed: str | None = None
    parts: list[Graph] = field(default_factory=list)
    at_zero: Graph | None = None
    results_of: Callable[[Sequence[Any]], Any] | None = None

    def keep_facts(self, old: Graph) -> None:
        """Take what passes leave as it is: mutations, remarks, arguments that are fixed, and the seed."""
        self.mutations, self.remarks, self.fixed, self.seed = old.mutations, old.remarks, old.fixed, old.seed

    def producers(self) -> dict[Value, Node]:
        """Each computed value's node."""
        return {output: node for node in self.nodes for output in node.outputs}

    def users(self) -> dict[Value, list[Node]]:
        """Each value's consuming nodes, in order; graph outputs are not counted."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                if value is not None:
                    found.setdefault(value, []).append(node)
        return found

    def results(self) -> Iterable[Value]:
        """Everything that must be computed: outputs and the new values of mutated inputs."""
        yield from self.outputs
        yield from self.mutations.values()
