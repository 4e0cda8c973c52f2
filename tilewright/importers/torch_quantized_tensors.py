"""Quantized tensors of models that `torch.ao` converted (`convert`, `convert_fx`), for the time of an export.

Each stands as the floats that `dequantize` makes of it, with its scale, zero point and type known by identity: an
operator computes with floats and rounds its result to the grid that PyTorch gives the result.  That is the reference
semantics of PyTorch.  Its kernels multiply sums of integers by a product of scales, which may round to the neighbour
where a sum is on the border of two steps; those of fbgemm without VNNI also saturate sums of two products at 16 bits,
which `reduce_range` of the observers avoids.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tilewright.errors import ImportModelError
from tilewright.importers.torch_fake_quantized import RANGES, quantized
from tilewright.importers.torch_quantized import (
    QUANTIZED_PACKAGES,
    UnpackedWeights,
    grid_of,
    is_reference,
    rounded,
    to_grid,
)

_CHOOSING = frozenset(
    "__getitem__ adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d alias amax amin broadcast_to "
    "channel_shuffle chunk clone contiguous detach dropout dropout1d dropout2d dropout3d expand expand_as flatten flip "
    "gather index_select masked_select max max_pool1d max_pool2d max_pool3d median min movedim moveaxis narrow permute "
    "pixel_shuffle pixel_unshuffle relu relu_ repeat repeat_interleave reshape reshape_as resolve_conj select sort "
    "split split_with_sizes squeeze squeeze_ swapaxes swapdims t tensor_split tile topk transpose unbind unflatten "
    "unsqueeze unsqueeze_ view view_as".split()
)  # their elements are some of their input's
_ROUNDING = frozenset(
    "_threshold clamp clamp_ clip elu elu_ hardtanh hardtanh_ hardswish leaky_relu leaky_relu_ pad relu6 "
    "threshold".split()
)  # their results are rounded to the grid of their input
_AVERAGING = frozenset(
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d avg_pool2d avg_pool3d interpolate mean "
    "upsample upsample_bilinear upsample_nearest".split()
)  # and theirs, which are often in the middle of two steps
_JOINING = frozenset(("cat", "concat", "stack"))  # as the first of their inputs
_STEPS_OF_UNIT = {"sigmoid": 256, "hardsigmoid": 256, "tanh": 128}  # their results have a grid of their own
_READING = frozenset(
    "__len__ argmax argmin dim element_size eq equal ge get_device gt is_contiguous is_floating_point le lt ndimension "
    "ne nelement numel qscheme size stride type".split()
)  # they say something of their input


class Grid(NamedTuple):
    """What the integers of a quantized tensor stand for."""

    scale: Any
    zero: Any
    dtype: torch.dtype


class QuantizedTensors(TorchFunctionMode):
    """Functions of quantized tensors in floats; `names` has the path of each module."""

    def __init__(self, names: Mapping[nn.Module, str]) -> None:
        super().__init__()
        self.names = names
        self.grids: dict[int, tuple[Tensor, Grid]] = {}  # by identity

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = _name_of(func)
        if name == "quantize_per_tensor":  # from a graph, whose functions are those of before the export
            return self.quantize(*args, **kwargs)
        if name.startswith("quantized::"):
            rule = _OPERATORS.get(name.removeprefix("quantized::"))
            return self._refuse(name) if rule is None else rule(self, *args, **kwargs)
        x = next((item for item in _tensors_in((args, kwargs)) if id(item) in self.grids), None)
        if x is None or name in _READING:
            return func(*args, **kwargs)
        return self._of_floats(func, name, x, args, kwargs)

    def _of_floats(self, func: Any, name: str, x: Tensor, args: Any, kwargs: Any) -> Any:
        """A function of PyTorch's that takes quantized tensors as it takes floats."""
        grid = self.grids[id(x)][1]
        if name == "__get__":
            of_grid = {Tensor.is_quantized: True, Tensor.dtype: grid.dtype}
            return of_grid[func.__self__] if func.__self__ in of_grid else func(*args, **kwargs)
        if name in ("q_scale", "q_zero_point"):
            return grid.scale if name == "q_scale" else grid.zero
        if name == "int_repr":
            kind = {torch.quint8: torch.uint8, torch.qint8: torch.int8}.get(grid.dtype, torch.int32)
            return torch.ops.quantized_decomposed.quantize_per_tensor(x, *grid[:2], *RANGES[kind], kind)
        if name in _AVERAGING:
            return self.averaged(func, x, grid, args, kwargs)
        if name in _CHOOSING or name in _JOINING or name in _ROUNDING:
            if name in ("max", "min") and len(args) > 1 and isinstance(args[1], Tensor):
                self._refuse(name)
            found = func(*args, **kwargs)
            return self.on_grid(found, grid) if name in _CHOOSING else self.rounded(found, grid)
        if name.removesuffix("_") in _STEPS_OF_UNIT:
            return self.rounded(func(*args, **kwargs), _grid_of_unit(name.removesuffix("_"), grid.dtype))
        return self._refuse(name)

    def _where(self) -> str:
        """The module that runs."""
        frame = inspect.currentframe()
        while frame is not None:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module) and self.names.get(module):
                return f"module {self.names[module]!r} ({type(module).__module__}.{type(module).__name__})"
            frame = frame.f_back
        return "the model"

    def _refuse(self, name: str) -> Any:
        raise ImportModelError(
            f"{self._where()} calls {name} of quantized tensors, which has no rule here: leave it in floats (a QConfig "
            "of None for it, or DeQuantStub in front of it), or give the model as convert_to_reference_fx makes it"
        )

    def grid_of(self, x: Tensor) -> Grid:
        """The grid of a quantized tensor; raises `ImportModelError` for floats."""
        if id(x) not in self.grids:
            raise ImportModelError(
                f"{self._where()} takes quantized tensors, and is given floats: put a QuantStub in front of it"
            )
        return self.grids[id(x)][1]

    def on_grid(self, found: Any, grid: Grid) -> Any:
        """The floats among results are known to be on a grid."""
        for item in _tensors_in(found):
            if item.is_floating_point():
                self.grids[id(item)] = item, grid
        return found

    def rounded(self, x: Tensor, grid: Grid) -> Tensor:
        """Floats rounded to a grid."""
        scale, zero, dtype = grid
        if isinstance(scale, Tensor) or isinstance(zero, Tensor):
            scale, zero = (torch.as_tensor(item) for item in (scale, zero))
            found = torch.fake_quantize_per_tensor_affine(x, scale.float(), zero.to(torch.int32), *RANGES[dtype])
        else:
            found = torch.fake_quantize_per_tensor_affine(x, float(scale), int(zero), *RANGES[dtype])
        self.grids[id(found)] = found, grid
        return found

    def quantize(self, input: Any, scale: Any, zero_point: Any, dtype: torch.dtype) -> Any:
        """In the place of `torch.quantize_per_tensor`."""
        if isinstance(input, (list, tuple)):
            return [self.quantize(*each, dtype) for each in zip(input, scale, zero_point, strict=True)]
        return self.on_grid(quantized(input, scale, zero_point, dtype), Grid(scale, zero_point, dtype))

    def averaged(self, func: Any, x: Tensor, grid: Grid, args: Any, kwargs: Any) -> Tensor:
        """A function that weighs elements: of whole steps, so that halves of steps are exact, and go to even integers
        as `quantized` rounds them."""
        scale, zero, dtype = grid
        steps = (x * (1 / scale)).round()
        args, kwargs = _with_other(args, x, steps), _with_other(kwargs, x, steps)
        near = quantized(func(*args, **kwargs) + zero, 1.0, 0, torch.qint32)
        low, high = RANGES[dtype]
        return self.rounded((near.clamp(low, high) - zero) * scale, grid)

    def dequantize(self, *given: Tensor) -> Any:
        """In the place of `Tensor.dequantize`: floats without a grid, of their own identity."""
        (x,) = given
        found = x.view_as(x) if id(x) in self.grids else x.float()
        self.grids.pop(id(found), None)
        return found


def _name_of(func: Any) -> str:
    """`quantized::add` for an operator, `mean` for a function or method."""
    if isinstance(func, torch._ops.OpOverload):
        return func._schema.name
    if isinstance(func, torch._ops.OpOverloadPacket):
        return str(func._qualified_op_name)
    return str(getattr(func, "__name__", func))


def _tensors_in(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, (tuple, list)):
        for item in given:
            yield from _tensors_in(item)
    elif isinstance(given, dict):
        yield from _tensors_in(list(given.values()))


def _with_other(given: Any, x: Tensor, other: Tensor) -> Any:
    """Arguments with another tensor in the place of `x`."""
    if isinstance(given, dict):
        return {name: other if item is x else item for name, item in given.items()}
    return tuple(other if item is x else item for item in given)


def _grid_of_unit(name: str, dtype: torch.dtype) -> Grid:
    """The grid of sigmoid's results from 0 to 1, and of tanh's from -1 to 1."""
    low, high = RANGES[dtype]
    count = high - low + 1
    return Grid(1 / count, low, dtype) if _STEPS_OF_UNIT[name] == 256 else Grid(2 / count, (low + high + 1) // 2, dtype)


# Operators of torch.ops.quantized -----------------------------------------------------------------------

_Own = QuantizedTensors


def _static_layer(after: Callable[..., Tensor] | None = None) -> Callable[..., Tensor]:
    def rule(tensors: _Own, x: Tensor, packed: UnpackedWeights, scale: Any, zero: Any, *more: Any) -> Tensor:
        grid = tensors.grid_of(x)
        found = packed.product(x)
        return tensors.rounded(found if after is None else after(found, *more), Grid(scale, zero, grid.dtype))

    return rule


def _convolution(after: Callable[..., Tensor] | None = None) -> Callable[..., Tensor]:
    """Of either schema: the older one repeats what packed weights say themselves."""
    layer = _static_layer(after)
    return lambda tensors, x, packed, *rest, **named: layer(
        tensors, x, packed, *rest[-2:], **{_SCALES.get(name, name): item for name, item in named.items()}
    )


_SCALES = {"output_scale": "scale", "output_zero_point": "zero"}


def _added_layer(relu: bool) -> Callable[..., Tensor]:
    def rule(tensors: _Own, x: Tensor, other: Tensor, packed: UnpackedWeights, scale: Any, zero: Any) -> Tensor:
        grid = tensors.grid_of(x)
        found = packed.product(x) + other
        return tensors.rounded(found.relu() if relu else found, Grid(scale, zero, grid.dtype))

    return rule


def _dynamic_layer(relu: bool) -> Callable[..., Tensor]:
    def rule(tensors: _Own, x: Tensor, packed: UnpackedWeights, reduce_range: bool = False) -> Tensor:
        found = packed.product(rounded(x, 127 if reduce_range else 255) if packed.rounds else x)
        return found.relu() if relu else found

    return rule


def _dynamic_convolution(tensors: _Own, x: Tensor, packed: UnpackedWeights, reduce_range: bool = False) -> Tensor:
    """PyTorch rounds the result of a dynamic convolution to 8 bits too, by the scale and zero point of its input."""
    steps = 127 if reduce_range else 255
    grid = grid_of(x, steps)
    return to_grid(packed.product(to_grid(x, *grid, steps)), *grid, 255)


def _pair(function: Callable[[Tensor, Any], Tensor], of_number: Callable[..., Tensor], relu: bool) -> Any:
    """An operator of two quantized tensors, or of one and a number."""

    def rule(tensors: _Own, qa: Any, qb: Any, scale: Any = None, zero_point: Any = None) -> Tensor:
        if not isinstance(qa, Tensor):
            qa, qb = qb, qa
        if not isinstance(qb, Tensor):
            return of_number(tensors, qa, qb, relu)
        found = function(qa, qb)
        grid = Grid(scale, zero_point, tensors.grid_of(qa).dtype)
        return tensors.rounded(found.relu() if relu else found, grid)

    return rule


def _plus_number(tensors: _Own, x: Tensor, number: Any, relu: bool = False) -> Tensor:
    """x plus a number rounded to x's steps: the zero point moves, and at the end of its range the scale grows."""
    grid = tensors.grid_of(x)
    low, high = RANGES[grid.dtype]
    steps = round(float(number) / grid.scale)
    zero = grid.zero - steps
    span, moved = high - low, grid
    if zero < low:
        moved = Grid((high - zero) / span * grid.scale, low, grid.dtype)
    elif zero > high:
        moved = Grid((zero - low) / span * grid.scale, high, grid.dtype)
    else:
        moved = grid._replace(zero=zero)
    found = x + steps * grid.scale
    return tensors.rounded(found.relu() if relu else found, moved)


def _times_number(tensors: _Own, x: Tensor, number: Any, relu: bool = False) -> Tensor:
    """x times a number: the same integers, or those counted from the other end, at another scale."""
    grid, factor = tensors.grid_of(x), float(number)
    low, high = RANGES[grid.dtype]
    found = x * factor
    if factor:
        grid = Grid(abs(factor) * grid.scale, grid.zero if factor > 0 else high + low - grid.zero, grid.dtype)
    else:
        grid = Grid(1.0, 0, grid.dtype)
    return tensors.on_grid(found.relu() if relu else found, grid)


def _joined(relu: bool) -> Callable[..., Tensor]:
    def rule(tensors: _Own, qx: Sequence[Tensor], dim: int, scale: Any = None, zero_point: Any = None) -> Tensor:
        first = tensors.grid_of(qx[0])
        grid = Grid(first.scale if scale is None else scale, first.zero if zero_point is None else zero_point, first[2])
        found = torch.cat(list(qx), dim)
        return tensors.rounded(found.relu() if relu else found, grid)

    return rule


def _function(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An operator of one quantized tensor whose schema has the grid of the result."""

    def rule(tensors: _Own, x: Tensor, *args: Any, output_scale: Any, output_zero_point: Any) -> Tensor:
        grid = tensors.grid_of(x)
        return tensors.rounded(compute(x, *args), Grid(output_scale, output_zero_point, grid.dtype))

    return rule


def _with_schema(name: str, rule: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`rule` with arguments as the operator's schema names them: positional but for the grid of the result."""
    overload = getattr(torch.ops.quantized, name)
    schema = getattr(overload, overload.overloads()[0])._schema.arguments
    names = [item.name for item in schema]
    defaults = {item.name: item.default_value for item in schema if item.has_default_value()}

    def called(tensors: _Own, *args: Any, **named: Any) -> Tensor:
        given = defaults | dict(zip(names, args, strict=False)) | named
        grid = {key: given.pop(key) for key in ("output_scale", "output_zero_point")}
        return rule(tensors, *(given[key] for key in names if key in given), **grid)

    return called


def _same_grid(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda tensors, x, *args, **named: tensors.rounded(compute(x, *args, **named), tensors.grid_of(x))


def _batch_norm(x: Tensor, weight: Any, bias: Any, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    return nn.functional.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)


def _batch_norm_relu(x: Tensor, *given: Any) -> Tensor:
    return _batch_norm(x, *given).relu()


def _elu(x: Tensor, alpha: float, scale: float, input_scale: float) -> Tensor:
    return torch.where(x > 0, x * scale, ((x * input_scale).exp() - 1) * (alpha * scale))


_functional = nn.functional
_WITH_GRID: dict[str, Callable[..., Tensor]] = {
    **{f"batch_norm{kind}": _batch_norm for kind in ("", "1d", "2d", "3d")},
    **{f"batch_norm{kind}_relu": _batch_norm_relu for kind in ("1d", "2d", "3d")},
    "layer_norm": lambda x, shape, weight, bias, eps: _functional.layer_norm(x, list(shape), weight, bias, eps),
    "group_norm": lambda x, groups, weight, bias, eps: _functional.group_norm(x, groups, weight, bias, eps),
    "instance_norm": lambda x, weight, bias, eps: _functional.instance_norm(x, weight=weight, bias=bias, eps=eps),
    "hardswish": _functional.hardswish, "elu": _elu,
    "celu": lambda x, alpha: _functional.celu(x, float(alpha)),
    "leaky_relu": lambda x, slope, inplace: _functional.leaky_relu(x, slope), "sigmoid": torch.sigmoid,
    "softmax": lambda x, dim: torch.softmax(x, dim), "prelu": _functional.prelu,
    "dropout": lambda x, p, training: x,
}  # fmt: skip
_AFTER: dict[str, Callable[..., Tensor] | None] = {"": None, "_relu": torch.relu}
_OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: _with_schema(name, _function(compute)) for name, compute in _WITH_GRID.items()},
    **{f"linear{end}": _static_layer(after) for end, after in _AFTER.items()},
    "linear_tanh": _static_layer(torch.tanh), "linear_leaky_relu": _static_layer(_functional.leaky_relu),
    **{f"conv{rank}d{end}": _convolution(after) for rank in (1, 2, 3) for end, after in _AFTER.items()},
    **{f"conv_transpose{rank}d": _convolution() for rank in (1, 2, 3)},
    "conv2d_add": _added_layer(False), "conv2d_add_relu": _added_layer(True),
    **{f"conv{kind}{rank}d_dynamic": _dynamic_convolution for kind in ("", "_transpose") for rank in (1, 2, 3)},
    **{f"linear{end}_dynamic{kind}": _dynamic_layer(end == "_relu") for end in _AFTER for kind in ("", "_fp16")},
    "add": _pair(torch.add, _plus_number, False), "add_relu": _pair(torch.add, _plus_number, True),
    "mul": _pair(torch.mul, _times_number, False), "mul_relu": _pair(torch.mul, _times_number, True),
    "add_scalar": _plus_number, "add_scalar_relu": lambda tensors, x, number: _plus_number(tensors, x, number, True),
    "mul_scalar": _times_number, "mul_scalar_relu": lambda tensors, x, number: _times_number(tensors, x, number, True),
    "matmul": _pair(torch.matmul, _times_number, False), "cat": _joined(False), "cat_relu": _joined(True),
    "relu6": _same_grid(lambda x, inplace=False: x.clamp(0, 6)), "threshold": _same_grid(_functional.threshold),
    "clamp": _same_grid(lambda x, min=None, max=None: x.clamp(min, max)),
}  # fmt: skip


# Modules --------------------------------------------------------------------------------------------------


def holds_quantized(module: nn.Module) -> bool:
    """Whether a module is or has one that computes with quantized tensors."""
    return any(_is_quantized(child) or _calls_operators(child) for child in module.modules())


def _is_quantized(child: nn.Module) -> bool:
    own = type(child).__module__.startswith(QUANTIZED_PACKAGES) and not is_reference(child)
    return own or any(isinstance(item, torch.ScriptObject) for item in vars(child).values())


def _calls_operators(child: nn.Module) -> bool:
    """Whether it is a graph with quantized tensors."""
    nodes = child.graph.nodes if isinstance(child, torch.fx.GraphModule) else ()
    return any(node.op == "call_function" and _name_of(node.target).startswith("quantized::") for node in nodes)


@contextmanager
def quantized_tensors(module: nn.Module) -> Iterator[None]:
    """Quantized tensors as floats, in a module that has such; packed weights as integers with their scales.

    Raises `ImportModelError`, with the module's path, for what has no rule.
    """
    if not holds_quantized(module):
        yield
        return
    tensors = QuantizedTensors({child: path for path, child in module.named_modules()})
    with ExitStack() as stack:
        for child in list(module.modules()):
            _replace(stack, child)
        stack.enter_context(mock.patch.object(torch, "quantize_per_tensor", tensors.quantize))
        stack.enter_context(mock.patch.object(Tensor, "dequantize", lambda x: tensors.dequantize(x)))
        stack.enter_context(mock.patch.object(torch, "dequantize", tensors.dequantize))
        stack.enter_context(tensors)
        yield


def _replace(stack: ExitStack, child: nn.Module) -> None:
    """Packed weights as modules that unpacked them, scales and zero points of results as numbers, quantized tensors as
    floats; put back when the stack closes."""
    others: dict[str, Any] = {}
    for name, item in [*vars(child).items(), *child._buffers.items()]:
        if isinstance(item, torch.ScriptObject) and hasattr(item, "unpack"):
            others[name] = UnpackedWeights(item)
        elif isinstance(item, Tensor) and item.is_quantized:
            others[name] = item.dequantize()
        elif isinstance(item, Tensor) and item.numel() == 1 and name in _numbers_of(child):
            others[name] = item.item()
    attributes = {name: vars(child)[name] for name in others if name in vars(child)}
    attributes["_non_persistent_buffers_set"] = set(child._non_persistent_buffers_set)
    stack.callback(_put_back, child, attributes, dict(child._buffers), dict(child._modules))
    for name, other in others.items():
        delattr(child, name)
        setattr(child, name, other)


def _put_back(child: nn.Module, attributes: dict[str, Any], buffers: dict[str, Any], modules: dict[str, Any]) -> None:
    """Undo `_replace`, the order of buffers included."""
    for own, before in ((child._buffers, buffers), (child._modules, modules)):
        own.clear()
        own.update(before)
    vars(child).update(attributes)


def _numbers_of(child: nn.Module) -> set[str]:
    """The names of scales and zero points of whole tensors."""
    if type(child).__module__.startswith(QUANTIZED_PACKAGES):
        return {"scale", "zero_point"}
    nodes = child.graph.nodes if isinstance(child, torch.fx.GraphModule) else ()
    return {
        str(node.target) for node in nodes
        if node.op == "get_attr" and all(_takes_numbers(user) for user in node.users)
    }  # fmt: skip


def _takes_numbers(user: Any) -> bool:
    return user.op == "call_function" and (
        user.target is torch.quantize_per_tensor or _name_of(user.target).startswith("quantized::")
    )
