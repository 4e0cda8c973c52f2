"""Sequences and optionals: lists of tensors during the import, so that nothing of them is left in the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tilewright.dtypes import DType, float32
from tilewright.importers.onnx_call import Call, Tensor, known_tensor
from tilewright.importers.report import Invalid, Unsupported
from tilewright.symbolic import Size, lift, simplify

_ADVICE = "let the length of sequences and the positions in them be fixed"


@dataclass(eq=False)
class Sequence(Tensor):
    """A list of tensors of one element type; without items, also an optional that holds nothing (`is_nothing`)."""

    items: list[Tensor] = field(default_factory=list)
    element: DType = float32
    is_nothing: bool = False

    @property
    def dtype(self) -> DType:
        return self.items[0].dtype if self.items else self.element

    @property
    def shape(self) -> tuple[Size, ...]:
        raise Unsupported("a sequence where a tensor is needed", _ADVICE)


def _items(call: Call) -> list[Tensor]:
    found = call.tensor(0)
    if not isinstance(found, Sequence):
        raise Invalid(f"input 0 ({found.name!r}) is a tensor; it must be a sequence")
    return list(found.items)


def _position(call: Call, index: int, count: int, last: int) -> int:
    """A position in a sequence of `count` items, counted from the front; `last` where none is given."""
    if not call.has(index):
        return last
    known = call.tensor(index).known
    if known is None or call.tensor(index).symbolic or known.size != 1:
        raise Unsupported("a position in a sequence that is computed from data", _ADVICE)
    number = int(known.reshape(-1)[0])
    if not -count <= number <= max(last, count - 1):
        raise Invalid(f"the position {number} is out of range for a sequence of {count} items")
    return number + count if number < 0 else number


def _empty(call: Call) -> Tensor:
    return Sequence("", element=call.dtype("dtype") or float32)


def _construct(call: Call) -> Tensor:
    return Sequence("", items=[call.tensor(index) for index in range(len(call.inputs))])


def _insert(call: Call) -> Tensor:
    items = _items(call)
    items.insert(_position(call, 2, len(items), len(items)), call.tensor(1))
    return Sequence("", items=items)


def _erase(call: Call) -> Tensor:
    items = _items(call)
    if not items:
        raise Invalid("the sequence has no items")
    del items[_position(call, 1, len(items), len(items) - 1)]
    return Sequence("", items=items, element=call.tensor(0).dtype)


def _at(call: Call) -> Tensor:
    items = _items(call)
    return items[_position(call, 1, len(items), len(items) - 1)]


def _length(call: Call) -> Tensor:
    return known_tensor("", np.array(len(_items(call)), np.int64))


def _join(call: Call) -> Tensor:
    values = [call.materialize(item) for item in _items(call)]
    if not values:
        raise Invalid("the sequence has no items")
    stacked = bool(call.attribute("new_axis", 0))
    axis = call.place(call.attribute("axis"), values[0].rank + stacked)
    if stacked:
        values = [call.unsqueeze(value, axis) for value in values]
    return Tensor("", values[0] if len(values) == 1 else call.op("concat", *values, axis=axis))


def _split(call: Call) -> Tensor:
    x = call[0]
    axis, keep = call.axis(x.rank, 0), bool(call.attribute("keepdims", 1))
    extent = x.shape[axis]
    if call.has(1):
        sizes, listed = call.ints(1), len(call.tensor(1).shape) == 1
        if not listed and isinstance(extent, int) and sizes[0] > 0:
            whole, rest = divmod(extent, sizes[0])
            sizes = sizes * whole + [rest] * (rest > 0)
        elif not listed:
            raise Unsupported(f"a split of {extent} elements into parts of {sizes[0]}", _ADVICE)
        keep = True
    elif isinstance(extent, int):
        sizes = [1] * extent
    else:
        raise Unsupported(f"a split of {extent} elements into as many items", _ADVICE)
    parts, start = [], 0
    for size in sizes:
        part = call.slice(x, axis, start, start + size)
        parts.append(Tensor("", part if keep else call.squeeze(part, [axis])))
        start += size
    if simplify(lift(extent) - start) != 0:
        raise Unsupported(f"a split of {extent} elements into {start}", _ADVICE)
    return Sequence("", items=parts, element=x.dtype)


def _optional(call: Call) -> Tensor:
    return call.tensor(0) if call.has(0) else Sequence("", is_nothing=True)


def _holds(call: Call) -> Tensor:
    found = call.tensor(0) if call.has(0) else None
    nothing = found is None or (isinstance(found, Sequence) and found.is_nothing)
    return known_tensor("", np.array(not nothing))


def _content(call: Call) -> Tensor:
    found = call.tensor(0)
    if isinstance(found, Sequence) and found.is_nothing:
        raise Invalid("the optional holds nothing")
    return found


def _same(call: Call) -> Tensor:
    return call.tensor(0)


SEQUENCES: dict[str, Callable[[Call], Tensor]] = {
    "SequenceEmpty": _empty,
    "SequenceConstruct": _construct,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": _length,
    "ConcatFromSequence": _join,
    "SplitToSequence": _split,
    "Optional": _optional,
    "OptionalHasElement": _holds,
    "OptionalGetElement": _content,
}


def rule_of(name: str, inputs: list[Tensor | None]) -> Callable[[Call], Tensor] | None:
    """The rule of an operation on sequences; None for other operations, which refuse them."""
    if name in SEQUENCES:
        return SEQUENCES[name]
    if not any(isinstance(item, Sequence) for item in inputs):
        return None
    if name == "Identity":
        return _same
    raise Unsupported("a sequence as its input", _ADVICE)
