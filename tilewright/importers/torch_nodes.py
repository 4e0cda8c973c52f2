"""Queries about the nodes of an ATen graph: their results, and whether they are worth a kernel."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from tilewright.importers.torch_complex import is_complex
from tilewright.importers.torch_fx import hint_of, is_contiguous, target_name
from tilewright.importers.torch_symbols import linear_in

_NUMBER_TYPES = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
_SIZE_OPERATORS = ("aten.sym_size", "aten.sym_numel", "aten.sym_stride", "aten.sym_storage_offset")
_ASSERTIONS = ("aten._assert_async", "aten._assert_scalar", "aten._assert_tensor_metadata", "aten.sym_constrain_range")


def fakes_of(node: fx.Node) -> list[Any]:
    """What PyTorch says of a node's results: fake tensors, numbers, None."""
    value = node.meta.get("val")
    return list(value) if isinstance(value, (tuple, list)) else [value]


def is_getitem(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def is_token(node: fx.Node) -> bool:
    """Whether an argument only keeps operations in order: PyTorch passes None for it."""
    users = list(node.users)
    return bool(users) and all(target_name(user.target) == "with_effects" and user.args[0] is node for user in users)


def is_number(node: fx.Node) -> bool:
    """Whether a node gives a Python number: a size, or what is computed from sizes."""
    return isinstance(node.meta.get("val"), _NUMBER_TYPES)


def reads_number(node: fx.Node) -> bool:
    """Whether a node reads a number out of a tensor's elements."""
    given = any(isinstance(fake, torch.Tensor) for argument in node.all_input_nodes for fake in fakes_of(argument))
    return is_number(node) and given and not target_name(node.target).startswith(_SIZE_OPERATORS)


def is_check(node: fx.Node) -> bool:
    """Whether a node is an assertion."""
    return target_name(node.target).startswith(_ASSERTIONS)


def is_needed_check(node: fx.Node) -> bool:
    """Whether an assertion says more than what Dynamo's guards and the types of the graph say already."""
    name = target_name(node.target)
    if name.startswith("aten._assert_scalar"):
        condition = node.args[0].meta.get("val") if isinstance(node.args[0], fx.Node) else node.args[0]
        return bool(free_unbacked_symbols(condition))
    return name.startswith("aten._assert_async")


def is_view(node: fx.Node) -> bool:
    """Whether a node costs PyTorch no work on elements: a view, or one of the results of such."""
    if is_getitem(node):
        return is_view(node.args[0])  # type: ignore[arg-type]
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    aliases = bool(returns) and all(item.alias_info is not None for item in returns)
    return not node.target._schema.is_mutable and (aliases or node.target is torch.ops.aten._unsafe_view.default)


def viewed(node: fx.Node) -> fx.Node:
    """The tensor that a view looks at."""
    return viewed(node.args[0]) if is_getitem(node) else node.all_input_nodes[0]  # type: ignore[arg-type]


def is_ordered(node: fx.Node) -> bool:
    """Whether a call must keep its place among others of its kind: it draws random numbers, or changes something."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.op == "call_function" and not callable(getattr(operator, target_name(node.target), None))
    return torch.Tag.nondeterministic_seeded in node.target.tags or node.target._schema.is_mutable


def free_symbols(fake: Any) -> Iterator[sympy.Symbol]:
    """The symbols in a tensor's shape, or in a symbolic number, in the order of their names."""
    numbers = fake.shape if isinstance(fake, torch.Tensor) else [fake]
    found = {symbol for number in numbers if hasattr(number, "node") for symbol in number.node.expr.free_symbols}
    return iter(sorted(found, key=str))


def linear_sizes(node: fx.Node) -> list[tuple[int, Any]]:
    """The axes of a tensor whose size grows linearly with one symbol, and these sizes as expressions."""
    fake = node.meta.get("val")
    sizes = enumerate(fake.shape if isinstance(fake, torch.Tensor) else ())
    symbolic: list[tuple[int, Any]] = []
    for axis, size in sizes:
        if isinstance(size, torch.SymInt):
            symbolic.append((axis, size.node.expr))
    return [(axis, expression) for axis, expression in symbolic if linear_in(expression) is not None]


def elements(node: fx.Node) -> int:
    """About how many elements a node's results have."""
    return sum(math.prod(map(hint_of, fake.shape)) for fake in fakes_of(node) if isinstance(fake, torch.Tensor))


def stride_order(fake: torch.Tensor) -> list[int] | None:
    """Dimensions from the outermost in memory where PyTorch's result is not row-major, else None."""
    if is_contiguous(fake):
        return None
    strides = [hint_of(stride) for stride in fake.stride()]
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


def memory_order(fake: Any) -> list[int] | None:
    """Dimensions from the outermost in memory of a dense tensor of real numbers that is not row-major, else None."""
    if not isinstance(fake, torch.Tensor) or is_complex(fake):
        return None
    order = stride_order(fake)
    return order if order is not None and is_contiguous(fake, order) else None


def repeated_axes(fake: Any) -> list[int]:
    """Dimensions of known size along which a tensor of real numbers is the same memory again: those of an expand."""
    if not isinstance(fake, torch.Tensor) or is_complex(fake):
        return []
    return [
        axis for axis, (extent, step) in enumerate(zip(fake.shape, fake.stride(), strict=True))
        if isinstance(extent, int) and isinstance(step, int) and extent > 1 and step == 0
    ]  # fmt: skip


def first_of(tensor: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    """A tensor's first elements along some dimensions."""
    for axis in axes:
        tensor = tensor.narrow(axis, 0, 1)
    return tensor


def inverse_of(order: Sequence[int]) -> list[int]:
    """The order that undoes a permutation of dimensions."""
    return [order.index(axis) for axis in range(len(order))]


def ranges(nodes: Iterable[fx.Node]) -> dict[Any, Any]:
    """The value ranges of all symbols, from the shape environment of any symbolic size."""
    for node in nodes:
        for fake in fakes_of(node):
            for size in fake.shape if isinstance(fake, torch.Tensor) else [fake]:
                if isinstance(size, torch.SymInt):
                    return dict(size.node.shape_env.var_to_range)
    return {}
