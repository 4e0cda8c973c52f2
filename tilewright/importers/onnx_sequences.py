"""Sequences and optionals: lists of tensors during the import, or host values of the graph.

A list whose length and places are known needs nothing of the graph.  Where only the run knows them, a list is a value
(`RunTimeList`) of one dimension, whose size is the number of its items.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tilewright.dtypes import DType, element_of, float32, int64, optional_of, sequence_of
from tilewright.graph.core import Value
from tilewright.importers.onnx_call import OnnxCall, Tensor, known_tensor
from tilewright.importers.onnx_structure import MOST_MODEL_NODES
from tilewright.importers.report import Invalid, Unsupported
from tilewright.symbolic import Size, lift, simplify

_ADVICE = "let the length of sequences and the positions in them be fixed"


@dataclass(eq=False)
class TensorSequence(Tensor):
    """A list of tensors of one element type; without items also an optional, of the type `nothing`, that holds none."""

    items: list[Tensor] = field(default_factory=list)
    element: DType = float32
    nothing: DType | None = None

    @property
    def dtype(self) -> DType:
        return sequence_of(self.element) if self.nothing is None else self.nothing

    @property
    def shape(self) -> tuple[Size, ...]:
        raise Unsupported("a sequence where a tensor is needed", _ADVICE)


@dataclass(frozen=True)
class ItemShape:
    """What is known of the shapes of a list's items: sizes, None for those that differ; None for any rank."""

    sizes: tuple[Size | None, ...] | None


@dataclass(eq=False)
class RunTimeList(Tensor):
    """A sequence or an optional in the graph; `item` is None where nothing was ever put into it."""

    item: ItemShape | None = None


def is_list(tensor: object) -> bool:
    """Whether a tensor is a sequence or an optional."""
    return isinstance(tensor, (TensorSequence, RunTimeList))


def joined(left: ItemShape | None, right: ItemShape | None) -> ItemShape | None:
    """What is known of items of either kind."""
    if left is None or right is None:
        return left or right
    if left.sizes is None or right.sizes is None or len(left.sizes) != len(right.sizes):
        return ItemShape(None)
    return ItemShape(tuple(a if a == b else None for a, b in zip(left.sizes, right.sizes, strict=True)))


def as_value(call: OnnxCall, tensor: Tensor) -> Tensor:
    """A tensor that is a value of the graph, or can become one: lists that are known become `RunTimeList`."""
    if not isinstance(tensor, TensorSequence):
        return tensor
    if tensor.nothing is not None:
        return RunTimeList("", call.op("optional", of=element_of(tensor.nothing).name))
    item: ItemShape | None = None
    for each in tensor.items:
        item = joined(item, ItemShape(each.shape))
    values = [call.materialize(each) for each in tensor.items]
    return RunTimeList("", call.op("sequence", *values, of=tensor.element.name), item=item)


def converted(call: OnnxCall, tensor: Tensor, dtype: DType) -> Tensor:
    """A tensor or a list as an optional of what it is, or what an optional holds, where `dtype` says so."""
    if tensor.dtype == dtype:
        return as_value(call, tensor)
    if dtype.kind == "optional" and element_of(dtype) == tensor.dtype:
        found = as_value(call, tensor)
        item = found.item if isinstance(found, RunTimeList) else ItemShape(found.shape)
        return RunTimeList("", call.op("optional", call.materialize(found), of=tensor.dtype.name), item=item)
    if tensor.dtype.kind == "optional" and element_of(tensor.dtype) == dtype:
        return _content_of(call, tensor)
    return as_value(call, tensor)


def _sequence(call: OnnxCall) -> TensorSequence | RunTimeList:
    """Input 0, a sequence."""
    found = call.tensor(0)
    if isinstance(found, RunTimeList) and found.dtype.kind == "optional":
        found = _content_of(call, found)
    if not isinstance(found, (TensorSequence, RunTimeList)) or found.dtype.kind != "sequence":
        raise Invalid(f"input 0 ({found.name!r}) is no sequence; it must be one")
    return found


def _in_graph(call: OnnxCall, sequence: TensorSequence | RunTimeList) -> tuple[Value, ItemShape | None]:
    """A sequence as a value, and what is known of its items."""
    found = as_value(call, sequence)
    assert isinstance(found, RunTimeList)
    return call.materialize(found), found.item


def _is_fixed(call: OnnxCall, sequence: TensorSequence | RunTimeList, index: int) -> bool:
    """Whether items and the position that input `index` gives are known."""
    known = call.tensor(index).known if call.has(index) else np.zeros(1)
    return isinstance(sequence, TensorSequence) and known is not None and known.dtype != object


def _position(call: OnnxCall, index: int, count: int, last: int) -> int:
    """A position in a sequence of `count` items, counted from the front; `last` where none is given."""
    if not call.has(index):
        return last
    known = call.tensor(index).known
    if known is None or known.size != 1:
        raise Invalid("the position in a sequence is not one number")
    number = int(known.reshape(-1)[0])
    if not -count <= number <= max(last, count - 1):
        raise Invalid(f"the position {number} is out of range for a sequence of {count} items")
    return number + count if number < 0 else number


def _given(call: OnnxCall, index: int) -> list[Value]:
    """An optional last operand."""
    return [call[index]] if call.has(index) else []


def _subject(call: OnnxCall, index: int) -> str:
    return call.input_text(index) if call.has(index) else "the position"


def _empty(call: OnnxCall) -> Tensor:
    return TensorSequence("", element=call.dtype("dtype") or float32)


def _construct(call: OnnxCall) -> Tensor:
    items = [call.tensor(index) for index in range(len(call.inputs))]
    return TensorSequence("", items=items, element=items[0].dtype)


def _insert(call: OnnxCall) -> Tensor:
    sequence, tensor = _sequence(call), call.tensor(1)
    if isinstance(sequence, TensorSequence) and _is_fixed(call, sequence, 2):
        items = list(sequence.items)
        items.insert(_position(call, 2, len(items), len(items)), tensor)
        return TensorSequence("", items=items, element=tensor.dtype)
    value, item = _in_graph(call, sequence)
    result = call.op("sequence_insert", value, call[1], *_given(call, 2), what=_subject(call, 2))
    return RunTimeList("", result, item=joined(item, ItemShape(tensor.shape)))


def _erase(call: OnnxCall) -> Tensor:
    sequence = _sequence(call)
    if isinstance(sequence, TensorSequence) and not sequence.items:
        raise Invalid("the sequence has no items")
    if isinstance(sequence, TensorSequence) and _is_fixed(call, sequence, 1):
        items = list(sequence.items)
        del items[_position(call, 1, len(items), len(items) - 1)]
        return TensorSequence("", items=items, element=sequence.element)
    value, item = _in_graph(call, sequence)
    return RunTimeList("", call.op("sequence_erase", value, *_given(call, 1), what=_subject(call, 1)), item=item)


def _at(call: OnnxCall) -> Tensor:
    sequence = _sequence(call)
    if isinstance(sequence, TensorSequence) and _is_fixed(call, sequence, 1):
        return sequence.items[_position(call, 1, len(sequence.items), len(sequence.items) - 1)]
    value, item = _in_graph(call, sequence)
    return Tensor("", _item(call, value, item, *_given(call, 1), subject=_subject(call, 1)))


def _item(call: OnnxCall, value: Value, item: ItemShape | None, *position: Value, subject: str) -> Value:
    """An item of a list, whose sizes that differ are read at run time."""
    if item is None or item.sizes is None:
        raise Unsupported(
            "an item of a sequence or an optional whose number of dimensions is not known",
            "declare the shape of what it holds, and let all of it have as many dimensions",
        )
    return call.op("list_item", value, *position, shape=_sizes(call, item.sizes), what=subject)


def _sizes(call: OnnxCall, sizes: tuple[Size | None, ...]) -> tuple[Size, ...]:
    return tuple(call.fresh("item") if size is None else size for size in sizes)


def _length(call: OnnxCall) -> Tensor:
    sequence = _sequence(call)
    if isinstance(sequence, TensorSequence):
        return known_tensor("", np.array(len(sequence.items), np.int64))
    return known_tensor("", sequence.shape[0])


def _join(call: OnnxCall) -> Tensor:
    sequence, stacked = _sequence(call), bool(call.attribute("new_axis", 0))
    if isinstance(sequence, RunTimeList):
        return _join_at_run_time(call, sequence, stacked)
    values = [call.materialize(item) for item in sequence.items]
    if not values:
        raise Invalid("the sequence has no items")
    axis = call.place(call.attribute("axis"), values[0].rank + stacked)
    if stacked:
        values = [call.unsqueeze(value, axis) for value in values]
    return Tensor("", values[0] if len(values) == 1 else call.op("concat", *values, axis=axis))


def _join_at_run_time(call: OnnxCall, sequence: RunTimeList, stacked: bool) -> Tensor:
    if sequence.item is None or sequence.item.sizes is None:
        raise Unsupported(
            "a sequence is joined whose items have a number of dimensions that is not known",
            "declare the shape of its items, and let all of them have as many dimensions",
        )
    sizes = list(sequence.item.sizes)
    axis = call.place(call.attribute("axis"), len(sizes) + stacked)
    if stacked:
        sizes.insert(axis, sequence.shape[0])
    else:
        sizes[axis] = None
    value, shape = call.materialize(sequence), _sizes(call, tuple(sizes))
    return Tensor("", call.op("sequence_join", value, shape=shape, along=axis, stacked=stacked))


def _split(call: OnnxCall) -> Tensor:
    """Parts of one element drop the dimension where that is asked for: those of no sizes, and, as in ONNX Runtime, of
    the size 1."""
    x = call[0]
    axis, keep = call.axis(x.rank, 0), bool(call.attribute("keepdims", 1))
    if call.has(1):
        known = call.tensor(1).known
        keep = keep or known is None or known.ndim > 0 or int(known) != 1
    extent, sizes = x.shape[axis], _known_sizes(call, x.shape[axis])
    if sizes is None or simplify(lift(extent) - sum(sizes)) != 0:
        attributes = {"axis": axis, "keep": keep, "what": call.input_text(1) if call.has(1) else "the sizes"}
        value = call.op("sequence_split", x, *_given(call, 1), shape=(call.fresh("length"),), **attributes)
        item = [None if place == axis else size for place, size in enumerate(x.shape) if keep or place != axis]
        return RunTimeList("", value, item=ItemShape(tuple(item)))
    parts, start = [], 0
    for size in sizes:
        part = call.slice(x, axis, start, start + size)
        parts.append(Tensor("", part if keep else call.squeeze(part, [axis])))
        start += size
    return TensorSequence("", items=parts, element=x.dtype)


def _known_sizes(call: OnnxCall, extent: Size) -> list[int] | None:
    """The sizes of the parts of a dimension; None where only the run knows them, and for more parts than nodes."""
    if not call.has(1):
        return [1] * extent if isinstance(extent, int) and extent <= MOST_MODEL_NODES else None
    if call.is_unknown(1) or call.tensor(1).symbolic:
        return None
    sizes = call.ints(1)
    if len(call.tensor(1).shape) == 1:
        if isinstance(extent, int) and (sum(sizes) != extent or min(sizes, default=0) < 0):
            raise Invalid(f"{extent} elements are split into {sizes}")
        return sizes
    if sizes[0] < 1:
        raise Invalid(f"the size of parts is {sizes[0]}; it must be at least 1")
    if not isinstance(extent, int) or extent > sizes[0] * MOST_MODEL_NODES:
        return None
    whole, rest = divmod(extent, sizes[0])
    return sizes * whole + [rest] * (rest > 0)


def _optional(call: OnnxCall) -> Tensor:
    if call.has(0):
        return call.tensor(0)
    item_type = call.attribute("type")
    if item_type is None:
        raise Invalid("an optional that holds nothing needs the attribute 'type'")
    return TensorSequence("", nothing=optional_of(item_type))


def _holds(call: OnnxCall) -> Tensor:
    found = call.tensor(0) if call.has(0) else None
    if isinstance(found, RunTimeList) and found.dtype.kind == "optional":
        return Tensor("", call.op("greater", call.value(found.shape[0], int64), 0))
    return known_tensor("", np.array(found is not None and found.dtype.kind != "optional"))


def _content(call: OnnxCall) -> Tensor:
    return _content_of(call, call.tensor(0))


def _content_of(call: OnnxCall, found: Tensor) -> Tensor:
    """What an optional holds; what is no optional as it is."""
    if found.dtype.kind != "optional":
        return found
    if not isinstance(found, RunTimeList):
        raise Invalid("the optional holds nothing")
    subject, value = f"the element of the optional {found.name!r}", call.materialize(found)
    if element_of(found.dtype).kind == "sequence":
        result = call.op("list_item", value, shape=(call.fresh("length"),), what=subject)
        return RunTimeList(found.name, result, item=found.item)
    return Tensor(found.name, _item(call, value, found.item, subject=subject))


def _zip_map(call: OnnxCall) -> Tensor:
    """A dictionary for each row of scores: scikit-learn's converters name classes so.

    ONNX Runtime's have their keys in order.
    """
    x, names, numbers = call[0], call.attribute("classlabels_strings"), call.attribute("classlabels_int64s")
    if bool(names) == bool(numbers):
        raise Invalid("the labels are given as text and as numbers" if names else "it has no labels")
    call.require_rank(x, 1, 2)
    labels = np.array(names or numbers, object if names else np.int64)
    order = np.argsort(labels, kind="stable")  # of equal ones the last counts
    keys = call.constant(labels[order], "labels")
    rows = call.reshape(call.cast(x, float32), (*x.shape[:-1], len(labels)))
    if (order != np.arange(len(order))).any():
        rows = call.op("gather", rows, call.constant(order.astype(np.int32), "order"), axis=x.rank - 1)
    return RunTimeList("", call.op("zip_map", rows, keys))


def _same(call: OnnxCall) -> Tensor:
    return call.tensor(0)


SEQUENCES: dict[str, Callable[[OnnxCall], Tensor]] = {
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
    "ai.onnx.ml::ZipMap": _zip_map,
}
_WITH_GRAPHS = ("If", "Loop", "SequenceMap")  # which take sequences, and have other rules


def rule_of(name: str, inputs: list[Tensor | None]) -> Callable[[OnnxCall], Tensor] | None:
    """The rule of an operation on sequences; None for other operations, which refuse them."""
    if name in SEQUENCES:
        return SEQUENCES[name]
    if name in _WITH_GRAPHS or not any(map(is_list, inputs)):
        return None
    if name == "Identity":
        return _same
    raise Unsupported("a sequence as its input", _ADVICE)
