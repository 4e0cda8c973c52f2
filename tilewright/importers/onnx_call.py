"""One ONNX node as seen by its rule: inputs as graph values or known arrays of sizes, attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from tilewright.dtypes import DType, from_numpy, int64
from tilewright.errors import ShapeError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Value
from tilewright.graph.ops import definition
from tilewright.importers.assumptions import Assumptions
from tilewright.importers.emitter import Emitter, Number
from tilewright.importers.equal_sizes import agreed
from tilewright.importers.float_sizes import Ratio, parts
from tilewright.importers.onnx_tensors import ONNX_DTYPES
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.shapes import check_sizes
from tilewright.symbolic import Expression, Size, free_symbols, product, simplify

# Attributes that never change what an inference result means.
WITHOUT_EFFECT = frozenset(
    {"stash_type", "momentum", "seed", "storage_order", "training_mode", "softmax_precision", "consumed_inputs"}
)


@dataclass(eq=False)
class Tensor:
    """An ONNX value: in the graph (`value`), known at import (`known`), or both.

    `known` is an ordinary array (an initializer), or an array of Python objects: sizes, some of them symbolic, and
    ratios of sizes, of element type `size_type`.  A known tensor gets a `value` only when an op needs it in the graph.
    """

    name: str
    value: Value | None = None
    known: np.ndarray | None = None
    size_type: DType = int64
    hints: list[Size | None] | None = None  # of a list of integers that is not known as a whole: its known elements

    @property
    def symbolic(self) -> bool:
        """Whether the known elements include symbolic sizes."""
        return self.known is not None and self.known.dtype == object

    @property
    def dtype(self) -> DType:
        if self.value is not None:
            return self.value.dtype
        assert self.known is not None
        return self.size_type if self.symbolic else from_numpy(self.known.dtype)

    @property
    def shape(self) -> tuple[Size, ...]:
        if self.value is not None:
            return self.value.shape
        assert self.known is not None
        return self.known.shape


def _objects(items: Sequence[Any]) -> np.ndarray:
    filled = np.empty(len(items), object)
    filled[:] = items
    return filled


def known_tensor(name: str, data: Any, dtype: DType = int64) -> Tensor:
    """A tensor of known elements; sizes that are all numbers become an ordinary array of `dtype`."""
    array = np.asarray(data)
    if array.dtype != object:
        return Tensor(name, known=array)
    flat = [item if isinstance(item, Ratio) else simplify(item) for item in array.reshape(-1)]
    pairs = [parts(item) for item in flat]
    if all(isinstance(part, (int, float)) for pair in pairs for part in pair):
        numbers = [top if bottom == 1 else top / bottom for top, bottom in pairs]  # type: ignore[operator]
        return Tensor(name, known=np.array(numbers, dtype.numpy).reshape(array.shape))
    filled = np.empty(len(flat), object)
    filled[:] = flat
    return Tensor(name, known=filled.reshape(array.shape), size_type=dtype)


class OnnxCall(Emitter):
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
        self.assumptions = Assumptions()
        self.read: set[str] = set()  # attributes that the rule has looked at

    def op(self, name: str, *inputs: Value | Number | None, **attributes: Any) -> Value:
        """One node; sizes that only the run knows are made to fit there, and those that must be equal and are not the
        same expression become conditions of every call."""
        values = [item for item in inputs if isinstance(item, Value)]
        if len(values) > 1 and any(map(self.is_found_at_run_time, (size for value in values for size in value.shape))):
            inputs = self._fitting(name, inputs)
        try:
            return super().op(name, *inputs, **attributes)
        except ShapeError:
            found = agreed(self, name, inputs, attributes)
            if found is None:
                raise
        return super().op(name, *found, **attributes)

    def is_found_at_run_time(self, size: Size) -> bool:
        """Whether only the run knows a size."""
        return any(symbol.name in self.builder.run_time_names for symbol in free_symbols(size))

    def _fitting(self, name: str, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Operands whose sizes broadcast together, all of an elementwise op and the leading ones of a product: equal
        ones, or a 1 that only the run knows."""
        values = [item for item in inputs if isinstance(item, Value)]
        if definition(name).kind != "elementwise" and name != "matmul":
            return tuple(inputs)
        rank = max(value.rank for value in values)
        target: dict[int, Size] = {}  # by position from the end
        for position in range(-rank, -2 if name == "matmul" else 0):
            extents = [v.shape[position] for v in values if v.rank >= -position and v.shape[position] != 1]
            if any(extent != extents[0] for extent in extents) and any(map(self.is_found_at_run_time, extents)):
                fixed = [extent for extent in extents if isinstance(extent, int)]
                target[position] = fixed[0] if fixed else self._common(values, position)
        return tuple(self._stretched(item, target) if isinstance(item, Value) else item for item in inputs)

    def _common(self, values: Sequence[Value], position: int) -> Size:
        """The size to which dimensions of several tensors broadcast: one for each set of sizes that it is made of."""
        sizes = [value.shape[position] for value in values if value.rank >= -position and value.shape[position] != 1]
        made_of = frozenset().union(*(self.builder.made_of.get(size, {size}) for size in sizes))
        known = next((size for size, parts in self.builder.made_of.items() if parts == made_of), None)
        if known is not None:
            return known
        numbers: Value | None = None
        for value in values:
            if value.rank >= -position and value.shape[position] != 1:
                own = self.materialize(known_tensor("extents", _objects([value.shape[position]])))
                subject = f"the size {value.shape[position]} of %{value.name}"
                operands = (own, numbers)
                numbers = own if numbers is None else self.op("broadcast_extents", *operands, count=1, what=subject)
        assert numbers is not None
        (size,) = self.read_sizes(numbers, "size", "the common sizes")
        self.builder.made_of[size] = made_of
        return size

    def _stretched(self, value: Value, target: Mapping[int, Size]) -> Value:
        """A tensor stretched along the dimensions in `target`, where it is not of size 1."""
        shape = list(value.shape)
        for position, size in target.items():
            if value.rank >= -position and shape[position] != 1:
                shape[position] = size
        if tuple(shape) == value.shape:
            return value
        numbers = self.materialize(known_tensor("extents", _objects(shape)))
        return self.op("broadcast_at", value, numbers, shape=tuple(shape), what=f"the shape of %{value.name}")

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
        """The graph value of a tensor; known ones become constants or dimension nodes once.

        Raises `Unsupported` for sequences.
        """
        if tensor.value is None:
            if tensor.known is None:
                raise Unsupported("a sequence where only tensors are supported", "pass its items one by one")
            tensor.value = self._sizes(tensor.known, tensor.dtype) if tensor.symbolic else self._constant(tensor)
        return tensor.value

    def _constant(self, tensor: Tensor) -> Value:
        assert tensor.known is not None
        if tensor.known.ndim == 0:
            return self.builder.number(tensor.known.item(), from_numpy(tensor.known.dtype))
        return self.constant(tensor.known, tensor.name)

    def _sizes(self, sizes: np.ndarray, dtype: DType) -> Value:
        key = (dtype, sizes.shape, *map(str, sizes.reshape(-1)))
        known = self.builder.lists_of_sizes.get(key)
        if known is None:
            numbers = [self._size(size, dtype) for size in sizes.reshape(-1)]
            shaped = [self.unsqueeze(number, 0) for number in numbers]
            joined = shaped[0] if len(shaped) == 1 else self.op("concat", *shaped, axis=0)
            known = self.builder.lists_of_sizes[key] = self.reshape(joined, sizes.shape)
        return known

    def _size(self, size: Size | float | Ratio, dtype: DType) -> Value:
        if not isinstance(size, Ratio):
            return self.value(size, dtype)
        return self.op("divide", self.value(size.top, dtype), self.value(size.bottom, dtype))

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python value; a default that is a fraction is rounded to float32, as attributes are."""
        self.read.add(name)
        return self.attributes.get(name, float(np.float32(default)) if isinstance(default, float) else default)

    def check_attributes(self) -> None:
        """Raise `Unsupported` for attributes that the rule never looked at: a newer opset's, perhaps."""
        unread = set(self.attributes) - self.read - WITHOUT_EFFECT
        if unread:
            raise Unsupported(f"the attributes {', '.join(sorted(unread))} of this operation", "leave them out")

    def integers(self, name: str, count: int, default: int, least: int) -> list[int]:
        """A list attribute with one entry for each of `count` dimensions; raises `Invalid` for other lists."""
        found = list(self.attribute(name) or [default] * count)
        if len(found) != count:
            raise Invalid(f"the attribute {name!r} has {len(found)} entries; it must have {count}")
        if any(number < least for number in found):
            raise Invalid(f"the attribute {name!r} is {found}; each entry must be at least {least}")
        return found

    def positive(self, name: str, default: int | None = None) -> int:
        """An attribute that counts something; raises `Invalid` below 1."""
        number = self.attribute(name, default)
        if number is None or number < 1:
            raise Invalid(f"the attribute {name!r} is {number}; it must be at least 1")
        return int(number)

    def choice(self, name: str, default: str, *others: str) -> str:
        """A text attribute; raises `Invalid` for one that ONNX does not know."""
        found = self.attribute(name, default)
        if found not in (default, *others):
            raise Invalid(f"the attribute {name!r} is {found!r}; it must be one of {', '.join((default, *others))}")
        return str(found)

    def dtype(self, name: str) -> DType | None:
        """An element type, which the oldest opsets give as a text."""
        found = self.attribute(name)
        if isinstance(found, str):
            number = dict(TensorProto.DataType.items()).get(found, 0)
            if number not in ONNX_DTYPES:
                raise Invalid(f"the attribute {name!r} is {found!r}, which is no element type that is supported")
            return ONNX_DTYPES[number]
        return found

    def is_unknown(self, *indices: int) -> bool:
        """Whether one of these inputs is there, and its elements are not known at import."""
        return any(self.has(index) and self.tensor(index).known is None for index in indices)

    def count(self, index: int) -> int:
        """The elements of an input; raises `Unsupported` where their number is not known."""
        total = product(self.tensor(index).shape)
        if not isinstance(total, int):
            name = self.tensor(index).name
            raise Unsupported(
                f"input {index} ({name!r}) is a list of {total} elements, so that the number of dimensions of the "
                "result is not known",
                "give the list a fixed length; where it is an input of the model, as in "
                f"dynamic_shapes={{{name!r}: {{0: 3}}}} (on the command line --shapes {name}:3)",
            )
        return total

    def numbers(self, index: int, count: int | None = None) -> Value:
        """Input `index` as a list of int64 in the graph, of `count` elements where that is known otherwise."""
        return self.reshape(self.cast(self[index], int64), (self.count(index) if count is None else count,))

    def input_text(self, index: int) -> str:
        """An input for messages at run time."""
        return f"input {index} ({self.tensor(index).name!r})"

    def extents(self, x: Value) -> Value:
        """The shape of a tensor as a list of int64 in the graph."""
        if not x.shape:
            return self.constant(np.zeros(0, np.int64), "extents")
        return self.materialize(known_tensor("extents", _objects(x.shape)))

    def fresh(self, hint: str, low: int = 0) -> Size:
        """A size that only the run knows."""
        return self.builder.run_time_symbol(hint, low)

    def read_sizes(self, numbers: Value, hint: str, subject: str) -> list[Size]:
        """The elements of a list in the graph as sizes that only the run knows."""
        (count,) = numbers.shape
        assert isinstance(count, int)
        found = []
        for element in range(count):
            size = self.fresh(hint)
            text = f"element {element} of {subject}"
            self.op("extent", numbers, element=element, size=size, what=text)
            found.append(size)
        return found

    def lengths(self, index: int, hint: str = "size") -> list[Size]:
        """As `sizes`; what is not known at import is read at run time, where none may be negative."""
        if not self.is_unknown(index):
            return self.sizes(index)
        hints = self.tensor(index).hints or [None] * self.count(index)
        found: list[Size] = []
        for element, known in enumerate(hints):
            if known is None:
                known = self.size_read(self.numbers, index, element, hint, (self[index], element))
            found.append(known)
        return found

    def size_read(
        self, numbers: Callable[[int], Value], index: int, element: int, hint: str, key: tuple[Any, ...]
    ) -> Size:
        """An element of a list that is made from input `index`, as a size that only the run knows: one for each `key`,
        which tells what it is of."""
        if key not in self.builder.sizes_read:
            size = self.builder.sizes_read[key] = self.fresh(hint)
            text = f"element {element} of {self.input_text(index)}"
            self.op("extent", numbers(index), element=element, size=size, what=text)
        return self.builder.sizes_read[key]

    def sizes(self, index: int) -> list[Size]:
        """The elements of an integer input that must be known; raises `Unsupported` otherwise."""
        tensor = self.tensor(index)
        if tensor.known is None:
            raise Unsupported(
                f"input {index} ({tensor.name!r}) is computed from the data of a tensor",
                "make shapes depend on input shapes only",
            )
        if tensor.known.ndim > 1:
            raise Invalid(f"input {index} ({tensor.name!r}) has {tensor.known.ndim} dimensions; it must be a list")
        if tensor.symbolic:
            fractions = [item for item in tensor.known.reshape(-1) if isinstance(item, (Ratio, float))]
            if fractions:
                raise Unsupported(f"input {index} ({tensor.name!r}) holds {fractions[0]}, which may be no whole number")
            check_sizes(tensor.known.reshape(-1))
            return list(tensor.known.reshape(-1))
        if tensor.known.dtype.kind == "f" and not np.isfinite(tensor.known).all():
            raise Invalid(f"input {index} ({tensor.name!r}) holds what is no number")
        return [int(item) for item in tensor.known.reshape(-1)]

    def is_whole(self, index: int) -> bool:
        """Whether the known elements of an input are whole numbers."""
        known = self.tensor(index).known
        if known is None:
            return False
        return all(isinstance(item, (int, Expression)) or float(item).is_integer() for item in known.reshape(-1))

    def ints(self, index: int) -> list[int]:
        """As `sizes`, plain numbers only."""
        numbers = self.sizes(index)
        if not all(isinstance(number, int) for number in numbers):
            raise Unsupported(f"input {index} is a symbolic size where a number is needed", "fix that dimension")
        return [int(number) for number in numbers]  # type: ignore[arg-type]

    def listed(self, index: int, name: str) -> list[int] | None:
        """Numbers from input `index` or, in older opsets, the attribute `name`; None when neither is there."""
        if self.has(index):
            return self.ints(index)
        found = self.attribute(name)
        return None if found is None else list(found)

    def number(self, index: int) -> int | float | bool:
        """The only element of an input that must be known."""
        tensor = self.tensor(index)
        if tensor.known is not None and tensor.known.size != 1:
            raise Invalid(f"input {index} ({tensor.name!r}) has {tensor.known.size} elements; it must have one")
        if tensor.known is None or tensor.symbolic:
            raise Unsupported(f"input {index} ({tensor.name!r}) must be a constant number")
        return tensor.known.reshape(-1)[0].item()

    def place(self, axis: int, rank: int, subject: str = "axis") -> int:
        """An axis counted from the front; raises `Invalid` for one that a tensor of `rank` does not have."""
        if not -rank <= axis < rank:
            raise Invalid(f"the {subject} {axis} is out of range for a tensor of {rank} dimensions")
        return int(axis) % rank

    def places(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Axes counted from the front, in their order; raises `Invalid` for ones that repeat or are out of range."""
        found = tuple(self.place(axis, rank) for axis in axes)
        if len(set(found)) != len(found):
            raise Invalid(f"the axes {list(axes)} of a tensor of {rank} dimensions name one twice")
        return found

    def axis(self, rank: int, default: int) -> int:
        """The attribute `axis`, counted from the front."""
        return self.place(self.attribute("axis", default), rank)

    def axes(self, index: int, rank: int) -> tuple[int, ...] | None:
        """Axes from input `index` or, in older opsets, the attribute; sorted; None when not given."""
        given = self.listed(index, "axes")
        return None if given is None else tuple(sorted(self.places(given, rank)))

    def require_rank(self, value: Value, least: int, most: int | None = None) -> None:
        """Raise `Invalid` for a tensor of too few or too many dimensions."""
        if value.rank < least or (most is not None and value.rank > most):
            bounds = f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
            raise Invalid(f"{value!r} has {value.rank} dimensions; it must have {bounds}")
