"""Operations whose result sizes depend on data: NumPy runs them between the compiled parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tilewright.dtypes import float32, int1, int64
from tilewright.graph.core import Value
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import TorchCall
from tilewright.importers.torch_ops.searching import places
from tilewright.symbolic import Size, product

TABLE = RuleTable("Choices that depend on data", "aten.")
rule = TABLE.rule


@rule("nonzero.default")
def nonzero(call: TorchCall, x: Value) -> Value:
    """Positions [n, rank]."""
    return call.permute(call.op("nonzero", x, shape=(x.rank, call.shape[0])), (1, 0))


@rule("nonzero_static.default")
def nonzero_static(call: TorchCall, x: Value, *, size: int, fill_value: int = -1) -> Value:
    """The first `size` positions, and rows of `fill_value` for those that are missing.

    How many elements are true up to each one is rising: the place of the kth is where k is reached, which no size that
    depends on data tells.
    """
    true = x if x.dtype == int1 else call.op("not_equal", x, 0)
    up_to = call.op("cumsum", call.cast(call.reshape(true, (-1,)), int64), axis=0)
    flat = places(call, up_to, call.iota(size, int64, 1), right=False)
    columns, rest = [], flat
    for axis in reversed(range(x.rank)):
        extent = call.op("maximum", call.value(x.shape[axis], int64), 1)
        columns.append(call.op("remainder", rest, extent))
        rest = call.op("floor_divide", rest, extent)
    if not columns:
        return call.full((size, 0), fill_value, int64)
    found = call.op("concat", *(call.unsqueeze(column, 1) for column in reversed(columns)), axis=1)
    there = call.op("less", flat, call.value(product(x.shape), int64))
    return call.op("where", call.unsqueeze(there, 1), found, call.builder.number(fill_value, int64))


@rule("masked_select.default")
def masked_select(call: TorchCall, x: Value, mask: Value) -> Value:
    shape = call.op("logical_or", call.full(x.shape, False, int1), mask).shape
    lines = [call.reshape(call.broadcast(item, shape), (-1,)) for item in (x, mask)]
    return call.op("compress", *lines, axis=0, shape=call.shape)


def select_rows(call: TorchCall, x: Value, mask: Value, axis: int) -> Value:
    """The slices of x where a mask is true: the mask covers some dimensions, from `axis` on, which become one."""
    merged = call.flatten(x, axis, axis + mask.rank) if mask.rank else call.unsqueeze(x, axis)
    shape = tuple(call.shape[place] if place == axis else size for place, size in enumerate(merged.shape))
    return call.op("compress", merged, call.reshape(mask, (-1,)), axis=axis, shape=shape)


def positions_of(call: TorchCall, mask: Value, count: Size | None) -> list[Value]:
    """Where a mask is true, as one list of positions for each of its dimensions; `count` is how many there must be."""
    size = call.builder.run_time_symbol("size") if count is None else count
    found = call.op("nonzero", mask, shape=(mask.rank, size))
    return [call.select(found, 0, axis) for axis in range(mask.rank)]


# Different elements ----------------------------------------------------------------------------------


def _unique(call: TorchCall, x: Value, axis: int, wanted: Sequence[str], consecutive: bool) -> tuple[Value | None, ...]:
    """The slices, the places of all among them, and how many of each there are, as far as they are wanted."""
    if not x.rank:
        x = call.reshape(x, (1,))
    fakes = call.results
    assert isinstance(fakes[0], torch.Tensor)
    for kind, fake in zip(("inverse", "counts"), fakes[1:], strict=True):
        if kind in wanted and fake is not None:
            _require_type(fake.dtype, torch.int64)
    count = call.symbols.size(fakes[0].shape[axis])
    shapes = {
        "values": tuple(count if place == axis else size for place, size in enumerate(x.shape)),
        "inverse": (x.shape[axis],),
        "counts": (count,),
    }
    return tuple(
        call.op("unique", x, axis=axis, shape=shape, gives=gives, consecutive=consecutive, nan_equal=False)
        if gives in wanted
        else None
        for gives, shape in shapes.items()
    )


def _require_type(traced: torch.dtype, computed: torch.dtype) -> None:
    """PyTorch 2.11 traces some results with another type than it computes, and what reads them with it."""
    if traced != computed:
        reason = f"PyTorch {torch.__version__} traces a result as {traced} that it computes as {computed}"
        raise Unsupported(reason, "take a newer PyTorch, 2.13 for example")


def _wanted(return_inverse: bool, return_counts: bool) -> list[str]:
    return ["values", *(["inverse"] if return_inverse else []), *(["counts"] if return_counts else [])]


def _of_all(call: TorchCall, x: Value, wanted: Sequence[str], consecutive: bool) -> tuple[Value | None, ...]:
    """The different elements of a whole tensor: the places have its shape."""
    values, inverse, counts = _unique(call, call.reshape(x, (-1,)), 0, wanted, consecutive)
    return values, None if inverse is None else call.reshape(inverse, x.shape), counts


@rule("_unique2.default")
def unique(
    call: TorchCall, x: Value, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Value | None, ...]:
    return _of_all(call, x, _wanted(return_inverse, return_counts), False)


@rule("unique_dim.default")
def unique_along(
    call: TorchCall, x: Value, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Value | None, ...]:
    return _unique(call, x, dim % max(x.rank, 1), _wanted(return_inverse, return_counts), False)


@rule("unique_consecutive.default")
def unique_consecutive(
    call: TorchCall, x: Value, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Value | None, ...]:
    wanted = _wanted(return_inverse, return_counts)
    if dim is None:
        return _of_all(call, x, wanted, True)
    return _unique(call, x, dim % max(x.rank, 1), wanted, True)


# Counts ----------------------------------------------------------------------------------------------


@rule("repeat_interleave.Tensor")
def repeat_interleave(call: TorchCall, repeats: Value, output_size: Size | None = None) -> Value:
    """The position of each repeat, as often as it says."""
    return call.op("repeated_positions", repeats, shape=call.shape)


@rule("bincount.default")
def bincount(call: TorchCall, x: Value, weights: Value | None = None, minlength: Size = 0) -> Value:
    """How often each number appears, or the sum of its weights."""
    least = call.value(minlength, int64)
    (result,) = call.results
    assert isinstance(result, torch.Tensor)
    if weights is None:
        _require_type(result.dtype, torch.int64)
        return call.op("occurrences", x, least, shape=call.shape)
    _require_type(result.dtype, torch.float32 if weights.dtype == float32 else torch.float64)
    return call.cast(call.op("occurrences", x, least, call.cast(weights, call.dtype), shape=call.shape), call.dtype)


# Boxes -----------------------------------------------------------------------------------------------

TORCHVISION = RuleTable("Choices of boxes", "torchvision.")


@TORCHVISION.rule("nms.default")
def suppress(call: TorchCall, boxes: Value, scores: Value, threshold: float) -> Value:
    """Positions of the boxes [N, 4] that overlap no better one by more than a share, best first."""
    count = boxes.shape[0]
    assert isinstance(call.results[0], torch.Tensor)
    call.symbols.any_count(call.results[0].shape[0])
    found = call.op(
        "non_max_suppression",
        call.reshape(boxes, (1, count, 4)),
        call.reshape(scores, (1, 1, count)),
        call.value(count, int64),
        call.constant(np.array(threshold, np.float64), "threshold"),
        shape=(call.shape[0], 3),
    )
    return call.select(found, 1, 2)
