"""One ONNX node as its rule sees it: inputs as graph values or as known arrays of sizes, attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dtypes import DType, from_numpy, int64
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported
from tilewright.symbolic import Size, simplify

# Attributes that never change what an inference result means.
WITHOUT_EFFECT = frozenset(
    {"stash_type", "momentum", "seed", "storage_order", "training_mode", "softmax_precision", "kernel_shape"}
)


@dataclass(eq=False)
class Tensor:
    """An ONNX value: in the graph (`value`), known at import (`known`), or both.

    `known` is an ordinary array (an initializer), or an array of Python objects: int64 sizes, some of
    them symbolic.  A known tensor gets a `value` only when an op needs it in the graph.
    """

    name: str
    value: Value | None = None
    known: np.ndarray | None = None

    @property
    def symbolic(self) -> bool:
        """Whether the known elements include symbolic sizes."""
        return self.known is not None and self.known.dtype == object

    @property
    def dtype(self) -> DType:
        if self.value is not None:
            return self.value.dtype
        assert self.known is not None
        return int64 if self.symbolic else from_numpy(self.known.dtype)

    @property
    def shape(self) -> tuple[Size, ...]:
        if self.value is not None:
            return self.value.shape
        assert self.known is not None
        return self.known.shape


def known_tensor(name: str, data: Any) -> Tensor:
    """A tensor of known elements; sizes that are all numbers become an int64 array."""
    array = np.asarray(data)
    if array.dtype == object:
        flat = [simplify(item) for item in array.reshape(-1)]
        if all(isinstance(item, int) for item in flat):
            array = np.array(flat, np.int64).reshape(array.shape)
        else:
            filled = np.empty(len(flat), object)
            filled[:] = flat
            array = filled.reshape(array.shape)
    return Tensor(name, known=array)


class Call(Emitter):
    """An `Emitter` that also gives the node's inputs and attributes."""

    def __init__(
        self,
        builder: GraphBuilder,
        source: str,
        inputs: Sequence[Tensor | None],
        attributes: Mapping[str, Any],
        opset: int,
        outputs: int,
    ) -> None:
        super().__init__(builder)
        self.source = source
        self.inputs = list(inputs)
        self.attributes = attributes
        self.opset = opset
        self.outputs = outputs
        self.read: set[str] = set()  # attributes that the rule has looked at

    def has(self, index: int) -> bool:
        """Whether an optional input is there."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int) -> Tensor:
        """Input `index`; raises `Unsupported` when it is missing."""
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise Unsupported(f"input {index} is missing", "check the model with onnx.checker")
        return found

    def __getitem__(self, index: int) -> Value:
        """Input `index` as a graph value."""
        return self.materialize(self.tensor(index))

    def optional(self, index: int) -> Value | None:
        """Input `index` as a graph value, or None."""
        return self[index] if self.has(index) else None

    def materialize(self, tensor: Tensor) -> Value:
        """The graph value of a tensor; known ones become constants or dimension nodes once."""
        if tensor.value is None:
            assert tensor.known is not None
            tensor.value = self._sizes(tensor.known) if tensor.symbolic else self._constant(tensor)
        return tensor.value

    def _constant(self, tensor: Tensor) -> Value:
        assert tensor.known is not None
        if tensor.known.ndim == 0:
            return self.builder.number(tensor.known.item(), from_numpy(tensor.known.dtype))
        return self.constant(tensor.known, tensor.name)

    def _sizes(self, sizes: np.ndarray) -> Value:
        parts = [self.unsqueeze(self.value(size, int64), 0) for size in sizes.reshape(-1)]
        joined = parts[0] if len(parts) == 1 else self.op("concat", *parts, axis=0)
        return self.reshape(joined, sizes.shape)

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python value."""
        self.read.add(name)
        return self.attributes.get(name, default)

    def check_attributes(self) -> None:
        """Raise `Unsupported` for attributes that the rule never looked at: a newer opset's, perhaps."""
        unread = set(self.attributes) - self.read - WITHOUT_EFFECT
        if unread:
            raise Unsupported(f"the attributes {', '.join(sorted(unread))} of this operation", "leave them out")

    def sizes(self, index: int) -> list[Size]:
        """The elements of an integer input that must be known; raises `Unsupported` otherwise."""
        tensor = self.tensor(index)
        if tensor.known is None:
            raise Unsupported(
                f"input {index} ({tensor.name!r}) is computed from the data of a tensor",
                "make shapes depend on input shapes only",
            )
        return [item if tensor.symbolic else int(item) for item in tensor.known.reshape(-1)]

    def ints(self, index: int) -> list[int]:
        """As `sizes`, plain numbers only."""
        numbers = self.sizes(index)
        if not all(isinstance(number, int) for number in numbers):
            raise Unsupported(f"input {index} is a symbolic size where a number is needed", "fix that dimension")
        return [int(number) for number in numbers]  # type: ignore[arg-type]

    def number(self, index: int) -> int | float | bool:
        """The only element of an input that must be known."""
        tensor = self.tensor(index)
        if tensor.known is None or tensor.symbolic or tensor.known.size != 1:
            raise Unsupported(f"input {index} ({tensor.name!r}) must be a constant number")
        return tensor.known.reshape(-1)[0].item()

    def axes(self, index: int, rank: int) -> tuple[int, ...] | None:
        """Axes from input `index` or, in older opsets, the attribute; None when not given."""
        given = self.ints(index) if self.has(index) else self.attribute("axes")
        if given is None:
            return None
        return tuple(sorted(int(axis) % max(rank, 1) for axis in given))
