"""Views, joins, splits, repeats and pads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.dtypes import int64
from tilewright.graph.core import Value
from tilewright.importers import images
from tilewright.importers.emitter import Emitter, Number, Scalar
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.scatter import scatter_elements
from tilewright.importers.shapes import place_from_front
from tilewright.importers.torch_data_conditions import line_of_node
from tilewright.importers.torch_fx import TorchCall, hint_of, is_contiguous, nothing
from tilewright.symbolic import (
    Expression,
    Size,
    lift,
    lower_bound,
    maximum,
    minimum,
    modulo,
    product,
    simplify,
    upper_bound,
)

TABLE = RuleTable("Shapes, joins and splits", "aten.")
rule = TABLE.rule

LAST = 2**63 - 1  # PyTorch's "up to the end"


@rule(
    "view.default",
    "reshape.default",
    "_unsafe_view.default",
    "_reshape_alias.default",
    "view_copy.default",
    "_reshape_copy.default",
    "flatten.using_ints",
    "unflatten.int",
    "unsqueeze.default",
    "unsqueeze_copy.default",
)
def reshape(call: TorchCall, x: Value, *_: Any, **__: Any) -> Value:
    """PyTorch has computed the new shape already."""
    return call.reshape(x, call.shape)


@rule("squeeze.dim", "squeeze.dims", "squeeze.default", "squeeze_copy.dim", "squeeze_copy.dims")
def squeeze(call: TorchCall, x: Value, dim: int | Sequence[int] | None = None) -> Value:
    """PyTorch has decided which dimensions go: no size known only at run time may turn out to be 1."""
    dims = range(x.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    source: Any = call.node.args[0]
    for axis in dims:
        if (
            x.rank
            and not call.symbols.is_never_one(source.meta["val"].shape[axis])
            and lower_bound(x.shape[axis]) < 1 + (not isinstance(x.shape[axis], int))
        ):
            if not call.symbols.run_time:
                raise Unsupported(
                    f"a squeeze of a dimension of size {x.shape[axis]}, which may be 1 at run time",
                    "use reshape, or give the sizes a range in which this one is greater",
                )
            _require_not_one(call, x, axis)
    return call.reshape(x, call.shape)


def _require_not_one(call: TorchCall, x: Value, axis: int) -> None:
    """A condition of every call: a dimension that the squeeze would drop at a size of 1 has another size."""
    others = [place - x.rank for place in range(x.rank) if x.shape[place] == 1]
    dropped = others[0] if len(others) == 1 else tuple(others)
    emit = Emitter(call.builder)
    emit.source = (
        f"{line_of_node(call.node)}: the squeeze would drop dimension {axis} of {x!r} at a size of 1, which the engine "
        f"does not take: {f'use squeeze({dropped})' if others else 'leave it out'}"
    )
    emit.require_different(x.shape[axis], 1)
    call.builder.graph.remarks.append(f"a size of 1 is refused: {emit.source}")


@rule("permute.default", "permute_copy.default")
def permute(call: TorchCall, x: Value, dims: Sequence[int]) -> Value:
    return call.permute(x, dims)


@rule("transpose.int", "transpose_copy.int")
def transpose(call: TorchCall, x: Value, first: int, second: int) -> Value:
    return call.transpose(x, first, second) if x.rank else x


@rule("t.default", "t_copy.default")
def transpose_matrix(call: TorchCall, x: Value) -> Value:
    return call.transpose(x, 0, 1) if x.rank == 2 else x


@rule("movedim.int", "movedim.intlist")
def move_dimensions(call: TorchCall, x: Value, source: int | Sequence[int], target: int | Sequence[int]) -> Value:
    sources = [axis % x.rank for axis in ([source] if isinstance(source, int) else source)]
    targets = [axis % x.rank for axis in ([target] if isinstance(target, int) else target)]
    placed = dict(zip(targets, sources, strict=True))
    rest = iter([axis for axis in range(x.rank) if axis not in sources])
    return call.permute(x, [placed[axis] if axis in placed else next(rest) for axis in range(x.rank)])


@rule("expand.default", "expand_copy.default", "broadcast_to.default", "expand_as.default")
def expand(call: TorchCall, x: Value, *_: Any, **__: Any) -> Value:
    return call.broadcast(x, call.shape)


def bounds(x: Value, axis: int, start: Size | None, stop: Size | None) -> tuple[Size, Size]:
    """PyTorch's slice bounds from the front and inside the dimension."""
    extent = x.shape[axis]

    def inside(bound: Size) -> Size:
        return maximum(0, minimum(place_from_front(bound, extent), extent))

    first: Size = 0 if start is None else inside(start)
    last = extent if stop is None or stop == LAST else inside(stop)
    return first, maximum(first, last)


@rule("slice.Tensor", "slice_copy.Tensor")
def slice_(
    call: TorchCall, x: Value, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1
) -> Value:
    axis = dim % x.rank
    length = call.results[0].shape[axis] if call.symbols.run_time and call.results[0] is not None else 0
    if isinstance(start, Value) or isinstance(end, Value) or call.symbols.is_untold(length):
        return _slice_at(call, x, axis, 0 if start is None else start, LAST if end is None else end, step)
    if step == 1 and isinstance(start, Expression) and (end is None or end == LAST):
        return call.slice(x, axis, simplify(lift(x.shape[axis]) - call.shape[axis]), x.shape[axis])
    first, last = bounds(x, axis, start, end)
    if step == 1:
        last = simplify(lift(first) + call.shape[axis])  # PyTorch knows the length in its simplest form
    return call.slice(x, axis, first, last, step)


def _slice_at(call: TorchCall, x: Value, axis: int, start: Scalar, end: Scalar, step: int) -> Value:
    """A slice whose bounds, or whose length, only the run knows."""
    numbers = [call.reshape(call.value(number, int64), (1,)) for number in (start, end, axis, step)]
    return call.op("slice_at", x, *numbers, shape=call.shape)


@rule("narrow.default", "narrow_copy.default")
def narrow(call: TorchCall, x: Value, dim: int, start: Size, length: Size) -> Value:
    first = place_from_front(start, x.shape[dim % x.rank])
    return call.slice(x, dim % x.rank, first, simplify(lift(first) + length))


@rule("select.int", "select_copy.int")
def select(call: TorchCall, x: Value, dim: int, index: Size | Value) -> Value:
    if isinstance(index, Value):  # a number read from a tensor; negative ones count from the end
        return call.op("gather", x, index, axis=dim % x.rank)
    return call.select(x, dim, index)


@rule("cat.default")
def concatenate(call: TorchCall, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Legacy empty tensors of one dimension are left out, as PyTorch does."""
    rank = max(value.rank for value in tensors)
    nonempty = [call.cast(value, call.dtype) for value in tensors if not (value.shape == (0,) and rank > 1)]
    return nonempty[0] if len(nonempty) == 1 else call.op("concat", *nonempty, axis=dim % rank)


@rule("stack.default")
def stack(call: TorchCall, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = dim % (tensors[0].rank + 1)
    return concatenate(call, [call.unsqueeze(value, axis) for value in tensors], axis)


@rule("split_with_sizes.default", "split_with_sizes_copy.default")
def split_with_sizes(call: TorchCall, x: Value, sizes: Sequence[Size], dim: int = 0) -> tuple[Value, ...]:
    axis, start = dim % x.rank, lift(0)
    parts = []
    for size in sizes:
        stop = lift(start + size)
        parts.append(call.slice(x, axis, simplify(start), simplify(stop)))
        start = stop
    return tuple(parts)


@rule("split.Tensor", "chunk.default", "tensor_split.sections", "split_copy.Tensor")
def split(call: TorchCall, x: Value, _: Size, dim: int = 0) -> tuple[Value, ...]:
    axis = dim % x.rank
    sizes = [call.symbols.shape(fake.shape)[axis] for fake in call.results if fake is not None]
    return split_with_sizes(call, x, sizes, axis)


@rule("unbind.int", "unbind_copy.int")
def unbind(call: TorchCall, x: Value, dim: int = 0) -> tuple[Value, ...]:
    if x.shape[dim] != len(call.results):
        call.require_equal(x.shape[dim], len(call.results))
    return tuple(call.select(x, dim, index) for index in range(len(call.results)))


@rule("repeat.default", "tile.default")
def repeat(call: TorchCall, x: Value, repeats: Sequence[Size]) -> Value:
    """`repeats` covers the last dimensions (tile) or adds leading ones (repeat)."""
    x = call.reshape(x, (1,) * (len(repeats) - x.rank) + x.shape)
    return images.tile(call, x, [1] * (x.rank - len(repeats)) + list(repeats))


@rule("repeat_interleave.self_int")
def repeat_elements(call: TorchCall, x: Value, repeats: Size, dim: int | None = None, output_size: Any = None) -> Value:
    if dim is None:
        x, dim = call.reshape(x, (-1,)), 0
    return images.repeat(call, x, dim % x.rank, repeats)


@rule("flip.default")
def flip(call: TorchCall, x: Value, dims: Sequence[int]) -> Value:
    for dim in dims if x.rank else ():
        x = call.flip(x, dim % x.rank)
    return x


@rule("roll.default")
def roll(call: TorchCall, x: Value, shifts: Sequence[Size | Value], dims: Sequence[int] = ()) -> Value:
    """Each dimension as its last `shift` elements, then the rest."""
    if not dims:
        return call.reshape(roll(call, call.reshape(x, (-1,)), shifts, [0]), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = dim % x.rank
        extent = x.shape[axis]
        if isinstance(shift, Value):  # a number that only the run knows
            length = call.builder.number(1, int64) if extent == 0 else call.value(extent, int64)
            places = call.op("remainder", call.op("subtract", call.iota(extent), shift), length)
            x = call.op("gather", x, places, axis=axis)
            continue
        cut = _cut(extent, shift)
        if cut != 0:
            x = call.op("concat", call.slice(x, axis, cut, extent), call.slice(x, axis, 0, cut), axis=axis)
    return x


def _cut(extent: Size, shift: Size) -> Size:
    """``-shift % extent``, in the simplest form that is right for all sizes."""
    if extent == 0:
        return 0
    if isinstance(shift, int) and -lower_bound(extent) <= shift <= lower_bound(extent):
        return modulo(-shift, extent) if isinstance(extent, int) else simplify(lift(extent if shift > 0 else 0) - shift)
    return modulo(-1 * lift(shift), extent)


@rule("constant_pad_nd.default", "pad.default")
def constant_pad(
    call: TorchCall, x: Value, pad: Sequence[Size], mode: str | Number = "constant", value: Number | None = None
) -> Value:
    """`pad` goes from the last dimension to the front; negative numbers crop."""
    if not isinstance(mode, str):
        value = mode
    elif mode != "constant":
        raise Unsupported(f"padding in mode {mode!r}", "use constant padding")
    pads = [(0, 0)] * x.rank
    for index in range(len(pad) // 2):
        axis = x.rank - 1 - index
        low, high = pad[2 * index], pad[2 * index + 1]
        if not (isinstance(low, int) and isinstance(high, int)):
            filled = call.builder.number(value or 0, x.dtype)
            x = images.pad_by_sizes(call, x, axis, low, high, filled)
            continue
        x = call.slice(x, axis, max(0, -low), simplify(lift(x.shape[axis]) - max(0, -high)))
        pads[axis] = (max(0, low), max(0, high))
    return call.op("pad", x, pads=pads, value=value or 0) if any(pair != (0, 0) for pair in pads) else x


def _pad_from_image(mode: str) -> Callable[[TorchCall, Value, Sequence[int]], Value]:
    def apply(call: TorchCall, x: Value, pad: Sequence[int]) -> Value:
        for index in range(len(pad) // 2):
            x = images.pad_from_image(call, x, x.rank - 1 - index, pad[2 * index], pad[2 * index + 1], mode)
        return x

    return apply


for _count in (1, 2, 3):
    TABLE.add(f"reflection_pad{_count}d.default", _pad_from_image("reflect"))
    TABLE.add(f"replication_pad{_count}d.default", _pad_from_image("edge"))


@rule("tril.default")
def lower_triangle(call: TorchCall, x: Value, diagonal: Scalar = 0) -> Value:
    return call.keep_triangle(x, diagonal, upper=False)


@rule("triu.default")
def upper_triangle(call: TorchCall, x: Value, diagonal: Scalar = 0) -> Value:
    return call.keep_triangle(x, diagonal, upper=True)


@rule("diagonal.default", "diagonal_copy.default")
def diagonal(call: TorchCall, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """A strided read of the flattened matrix."""
    first, second = dim1 % x.rank, dim2 % x.rank
    rest = [axis for axis in range(x.rank) if axis not in (first, second)]
    x = call.permute(x, [*rest, first, second])
    length, width = call.shape[-1], x.shape[-1]
    flat = call.flatten(x, x.rank - 2, x.rank)
    start = offset if offset >= 0 else simplify(lift(width) * -offset)
    if not isinstance(width, int):  # no step of a slice
        steps = call.op("multiply", call.iota(length), call.value(simplify(width + 1), int64))
        return call.op("gather", flat, call.op("add", steps, call.value(start, int64)), axis=flat.rank - 1)
    stop = simplify(lift(start) + (lift(length) - 1) * (width + 1) + 1)
    return call.slice(flat, flat.rank - 1, start, stop, width + 1)


@rule("pixel_shuffle.default")
def pixel_shuffle(call: TorchCall, x: Value, factor: int) -> Value:
    return images.depth_to_space(call, x, factor, columns_first=False)


@rule("pixel_unshuffle.default")
def pixel_unshuffle(call: TorchCall, x: Value, factor: int) -> Value:
    return images.space_to_depth(call, x, factor, columns_first=False)


for _name in (
    "_assert_tensor_metadata.default",
    "_assert_scalar.default",
    "_assert_async.msg",
    "_assert_async.default",
    "sym_constrain_range.default",
    "sym_constrain_range_for_size.default",
):
    TABLE.add(_name, nothing)


@rule("unfold.default")
def unfold(call: TorchCall, x: Value, dimension: int, size: int, step: int) -> Value:
    """Windows of one dimension, which begin `step` apart; places inside a window are a new last dimension."""
    if x.rank == 0:
        return call.reshape(x, call.shape)  # one window
    axis = dimension % x.rank
    windows = call.op("frames", x, axis=axis, count=call.shape[axis], length=size, step=step)
    return call.permute(windows, [*range(axis + 1), *range(axis + 2, windows.rank), axis + 1])


def _frames(call: TorchCall, x: Value, strides: Sequence[Size], stride: Sequence[Size]) -> Value | None:
    """Pieces of a line as a view by strides shows them; None for another view.

    Of [.., line, ..] in memory the view is [.., pieces, length, ..], in any order of its dimensions.
    """
    order = sorted(range(len(stride)), key=lambda axis: -upper_bound(stride[axis]))
    seen = [(call.shape[axis], stride[axis]) for axis in order]
    dimensions = list(zip(x.shape, strides, strict=True))
    for last in range(min(x.rank, len(seen) - 1)):  # dimensions after the pieces
        first, middle = len(seen) - 2 - last, x.rank - last
        if first < middle and _agree(seen[:first] + seen[first + 2 :], dimensions[:first] + dimensions[middle:]):
            line, place = product(x.shape[first:middle]), product(x.shape[middle:])
            step = _step(line, place, *seen[first : first + 2])
            if step is not None:
                x = call.reshape(x, (*x.shape[:first], line, *x.shape[middle:]))
                return _pieces(call, x, first, order, step)
    return None


def _pieces(call: TorchCall, x: Value, axis: int, order: Sequence[int], step: int) -> Value:
    """Pieces of a dimension, in the order of the view's dimensions, of which `order` is that in memory."""
    count, length = (call.shape[each] for each in order[axis : axis + 2])
    pieces = call.op("frames", x, axis=axis, count=count, length=length, step=step)
    return call.permute(pieces, [order.index(each) for each in range(len(order))])


def _agree(seen: Sequence[tuple[Size, Size]], dimensions: Sequence[tuple[Size, Size]]) -> bool:
    """Whether dimensions, each a size and a stride, are the same."""
    return all(
        one[0] == other[0] and (one[0] == 1 or simplify(lift(one[1]) - other[1]) == 0)
        for one, other in zip(seen, dimensions, strict=True)
    )


def _step(line: Size, place: Size, pieces: tuple[Size, Size], places: tuple[Size, Size]) -> int | None:
    """How many places of a line lie between the beginnings of pieces; None where a view does not show pieces of it.

    `place`: the elements of one; `pieces` and `places`: how many there are, of a piece for the latter, and the stride.
    """
    (count, apart), (length, unit) = pieces, places
    if not isinstance(length, int) or length < 1 or (length > 1 and simplify(lift(unit) - place) != 0):
        return None
    step = lower_bound(apart) // max(lower_bound(place), 1)
    if step < 1 or simplify(lift(apart) - lift(place) * step) != 0:
        return None
    left = simplify(lift(line) - (lift(count) - 1) * step - length)
    return None if lower_bound(left) < 0 and not isinstance(count, int) else step


@rule("as_strided.default", "as_strided_copy.default")
def as_strided(
    call: TorchCall, x: Value, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> Value:
    """A view of memory: the tensor itself where only strides of dimensions of 1 differ (how PyTorch tells that it is
    channels-last), else a gather of the elements of a tensor that fills its memory, in whatever order."""
    given = call.node.all_input_nodes[0].meta["val"]
    strides, offset = _memory(call, given)
    start = offset if storage_offset is None else storage_offset
    long = [axis for axis, extent in enumerate(x.shape) if extent != 1]
    same = tuple(size) == x.shape and all(stride[axis] == strides[axis] for axis in long)
    if same and start == offset:
        return x
    order = _order_in_memory(call, given, offset)
    x = call.permute(x, order)
    if start == 0 and (found := _frames(call, x, [strides[axis] for axis in order], stride)) is not None:
        return found
    return call.op("gather", call.reshape(x, (-1,)), _places(call, call.shape, start, stride), axis=0)


@rule("as_strided_scatter.default")
def as_strided_scatter(
    call: TorchCall, x: Value, source: Value, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> Value:
    """A tensor with other elements where a view by strides of it lies."""
    given = call.node.all_input_nodes[0].meta["val"]
    _, offset = _memory(call, given)
    order = _order_in_memory(call, given, offset)
    whole = call.permute(x, order)
    places = _places(call, tuple(size), offset if storage_offset is None else storage_offset, stride)
    places, source = call.reshape(places, (-1,)), call.reshape(call.cast(source, x.dtype), (-1,))
    written = scatter_elements(call, call.reshape(whole, (-1,)), places, source, 0)
    return call.permute(call.reshape(written, whole.shape), [order.index(axis) for axis in range(len(order))])


def _memory(call: TorchCall, given: torch.Tensor) -> tuple[tuple[Size, ...], Size]:
    """The strides and the offset of a tensor as sizes of the graph: what PyTorch's own are compared with becomes a
    condition, or is assumed to hold."""
    return call.symbols.shape(given.stride()), call.symbols.size(given.storage_offset())


def _order_in_memory(call: TorchCall, given: torch.Tensor, offset: Size) -> list[int]:
    """The dimensions of a tensor from the outermost in memory; raises `Unsupported` where it does not fill its own."""
    order = sorted(range(given.ndim), key=lambda axis: -hint_of(given.stride(axis)))
    if offset != 0 or not is_contiguous(given, order, call.symbols):
        raise Unsupported("a view by strides of a part of a tensor", "use slices, permutes and reshapes")
    return order


def _places(call: TorchCall, size: Sequence[Size], start: Size, stride: Sequence[Any]) -> Value:
    """Where in memory the elements of a view by strides lie."""
    place: Value = call.value(start, int64)
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        line = call.op("multiply", call.iota(extent), call.value(step, int64))
        place = call.op("add", place, call.reshape(line, (extent, *[1] * (len(stride) - 1 - axis))))
    return place
