"""The arguments of a module for `torch.export`: their tensors by name, and dynamic shapes in the neutral and in
PyTorch's form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tilewright.errors import ImportModelError, InputError, brief
from tilewright.importers.shapes import Axes, Dimension, check_names, parse_dynamic_shapes
from tilewright.importers.torch_objects import signature_of


def arguments_of(
    module: torch.nn.Module, example_inputs: Any, example_kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments for the export, NumPy arrays as tensors and no tensor twice.

    Export knows tensors by identity: one that is given for two inputs, or that the module owns, would make
    the exported program read one of the two wherever it reads the other. Of a view it asks how it lies in the whole.
    Raises `ImportModelError` for quantized tensors, and where there are no arguments or one is given twice.
    """
    seen = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def tensor(leaf: Any) -> Any:
        if type(leaf).__module__ == "numpy":
            leaf = torch.from_numpy(np.array(leaf))  # a copy: strides may be negative, memory read-only
        if isinstance(leaf, torch.Tensor) and leaf.is_quantized:
            raise ImportModelError(
                f"an example input is a quantized tensor ({leaf.dtype}), and inputs of engines are floats or integers: "
                "give floats to a module with a QuantStub in front"
            )
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach().clone() if id(leaf) in seen or leaf._is_view() else leaf
            seen.add(id(leaf))
        return leaf

    if example_inputs is None and example_kwargs is None:
        raise ImportModelError("a PyTorch module needs example_inputs: a tuple of tensors, or a dict by argument name")
    named = dict(example_kwargs or {})
    positional: tuple[Any, ...] = ()
    if isinstance(example_inputs, Mapping):
        twice = [key for key in named if key in example_inputs]
        if twice:
            raise ImportModelError(f"the argument {twice[0]!r} is in example_inputs and in example_kwargs")
        named = {**example_inputs, **named}
    elif isinstance(example_inputs, (tuple, list)):
        positional = tuple(example_inputs)
    elif example_inputs is not None:
        positional = (example_inputs,)
    return tuple(pytree.tree_map(tensor, value) for value in positional), {
        key: pytree.tree_map(tensor, value) for key, value in named.items()
    }


def both_forms(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> tuple[dict[str, Axes], Any]:
    """The neutral and PyTorch's form of `dynamic_shapes`, whichever is given."""
    if not dynamic_shapes:
        return {}, None
    bound, leaves = named_leaves(module, args, kwargs)
    dynamic_shapes = _by_argument(dynamic_shapes, bound)
    names = [name for name, _ in leaves]
    shapes = {name: tuple(getattr(leaf, "shape", ())) for name, leaf in leaves}
    if _is_neutral(dynamic_shapes):
        neutral = parse_dynamic_shapes(dynamic_shapes, from_zero=True)
        check_names(neutral, shapes)
        dims: dict[str, Any] = {}
        native = [native_axes(neutral.get(name, {}), dims) for name in names]
        return neutral, as_nested(bound, iter(native))
    dynamic_shapes = _with_dims(dynamic_shapes)
    named = _named_dims(dynamic_shapes, bound)
    check_names({name: axes for name, axes in named.items() if name in shapes}, shapes)
    return named, dynamic_shapes


def _by_argument(dynamic_shapes: Any, bound: Mapping[str, Any]) -> Any:
    """Entries in the order of arguments by their names, where they are in the neutral form.

    Raises `ImportModelError` where the entries are not those of the arguments.
    """
    names = f"the arguments {', '.join(bound)}" if len(bound) != 1 else f"the argument {next(iter(bound))}"
    if isinstance(dynamic_shapes, (tuple, list)):
        if len(dynamic_shapes) != len(bound):
            raise ImportModelError(
                f"dynamic_shapes has {len(dynamic_shapes)} entries for {names}: give each one, "
                "None for one without dynamic dimensions, or a dictionary by name"
            )
        by_name = dict(zip(bound, dynamic_shapes, strict=True))
        return by_name if _is_neutral(by_name) else dynamic_shapes
    if isinstance(dynamic_shapes, Mapping):
        others = [key for key in dynamic_shapes if key not in bound]
        if others and not _is_neutral(dynamic_shapes):
            raise ImportModelError(f"dynamic_shapes names {others[0]!r}, and the model has {names}")
        return dynamic_shapes
    if not hasattr(dynamic_shapes, "dynamic_shapes"):  # PyTorch's ShapesCollection
        raise ImportModelError(
            f"dynamic_shapes is {brief(dynamic_shapes)}: expected a dictionary by the names of {names}, such as "
            f"{{{next(iter(bound), 'x')!r}: {{0: ('batch', 1, 64)}}}}"
        )
    return dynamic_shapes


def named_leaves(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """The arguments by name, and the tensors in them by theirs (`pair_0`).  Raises `InputError`."""
    try:
        bound = dict(signature_of(module, kwargs).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise InputError(f"the example inputs do not fit the arguments of the model: {error}") from None
    leaves, _ = pytree.tree_flatten_with_path(bound)
    return bound, [("_".join(key_of(key) for key in path), leaf) for path, leaf in leaves]


def own_names(names: Sequence[str]) -> dict[str, str]:
    """Names of inputs by what export makes of them: small letters only, and a number where two are the same then."""
    small = [name.lower() for name in names]
    numbers = [small[:place].count(key) for place, key in enumerate(small)]
    exported = [f"{key}_{number}" if number else key for key, number in zip(small, numbers, strict=True)]
    return {key: name for key, name in zip(exported, names, strict=True) if exported.count(key) == 1}


def in_range(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dimensions: Mapping[str, Axes]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The examples with size 1 along dynamic axes repeated to 2: export takes a 1 for a fixed size.

    Raises `ImportModelError` for an example outside its range.
    """
    changed: dict[int, Any] = {}  # by the tensor's identity; no tensor is given twice
    for name, leaf in named_leaves(module, args, kwargs)[1]:
        tensor = leaf
        for axis, entry in dimensions.get(name, {}).items():
            if not (isinstance(entry, Dimension) and isinstance(leaf, torch.Tensor)):
                continue
            extent = leaf.shape[axis]
            if not entry.low <= extent <= entry.high:
                raise ImportModelError(
                    f"the example of input {name!r} has size {extent} along axis {axis}, outside the range "
                    f"{entry.low}..{entry.high} of {entry.name!r}; give an example inside it, or widen the range"
                )
            if extent == 0:
                raise ImportModelError(
                    f"the example of input {name!r} has size 0 along axis {axis}; give one with more, for which the "
                    f"other sizes of {entry.name!r} are exported"
                )
            if extent == 1:
                tensor = tensor.repeat_interleave(2, axis)
        changed[id(leaf)] = tensor

    def replace(leaf: Any) -> Any:
        return changed.get(id(leaf), leaf) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(replace, args), pytree.tree_map(replace, kwargs)


def key_of(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _is_neutral(dynamic_shapes: Any) -> bool:
    """Whether no entry is one of PyTorch's own dimension objects or a nested structure of axes."""
    if not isinstance(dynamic_shapes, Mapping):
        return False
    entries: list[Any] = []
    for axes in dynamic_shapes.values():
        if isinstance(axes, Mapping):
            entries += axes.values()
        elif isinstance(axes, (tuple, list)):
            entries += axes
    return all(entry is None or isinstance(entry, (int, str, tuple, list)) for entry in entries)


def native_axes(axes: Axes, dims: dict[str, Any]) -> dict[int, Any] | None:
    result: dict[int, Any] = {}
    for axis, entry in axes.items():
        if isinstance(entry, Dimension):
            if entry.name not in dims:
                dims[entry.name] = torch.export.Dim(entry.name, min=max(1, entry.low), max=entry.high)
            result[axis] = dims[entry.name]
    return result or None


def as_nested(value: Any, entries: Iterator[Any]) -> Any:
    """Entries for the leaves of a value in its structure; classes that are no containers of Python's are lists."""
    children, structure = pytree.tree_flatten(value, is_leaf=lambda item: item is not value)
    if len(children) == 1 and children[0] is value:
        return next(entries)
    nested = [as_nested(child, entries) for child in children]
    builtin = type(value) in pytree.BUILTIN_TYPES or isinstance(value, tuple)
    return pytree.tree_unflatten(nested, structure) if builtin else nested


def _is_axes(entry: Any) -> bool:
    return isinstance(entry, Mapping) and all(isinstance(key, int) for key in entry)


def _with_dims(dynamic_shapes: Any) -> Any:
    """PyTorch's form with its own `Dim` for each name and range that stands in it."""
    dims: dict[str, Any] = {}

    def convert(path: tuple[Any, ...], axes: Any) -> Any:
        if not _is_axes(axes):
            return axes
        name = "_".join(key_of(key) for key in path)
        given = {axis: entry for axis, entry in axes.items() if isinstance(entry, (tuple, str))}
        return {**axes, **(native_axes(parse_dynamic_shapes({name: given})[name], dims) or {})}

    if not isinstance(dynamic_shapes, (Mapping, tuple, list)):  # PyTorch's ShapesCollection
        return dynamic_shapes
    return pytree.tree_map_with_path(convert, dynamic_shapes, is_leaf=lambda entry: entry is None or _is_axes(entry))


def _named_dims(dynamic_shapes: Any, bound: Mapping[str, Any]) -> dict[str, Axes]:
    """Names and ranges of PyTorch's `Dim` objects by input leaf; hints without a name are left out."""
    if isinstance(dynamic_shapes, (tuple, list)):
        dynamic_shapes = dict(zip(bound, dynamic_shapes, strict=False))

    result: dict[str, Axes] = {}
    leaves, _ = pytree.tree_flatten_with_path(dynamic_shapes, is_leaf=_is_axes)
    for path, axes in leaves:
        if isinstance(axes, Mapping):
            name = "_".join(key_of(key) for key in path)
            named = {
                axis: entry for axis, entry in axes.items() if hasattr(entry, "__name__") and hasattr(entry, "min")
            }
            result.update(parse_dynamic_shapes({name: named}, derived=True))
    return result


def of_sizes(leaf: Any, axes: Axes, sizes: Mapping[str, int]) -> Any:
    """An example with other sizes of its dynamic dimensions: a part of it, or some of it again."""
    for axis, entry in axes.items() if isinstance(leaf, torch.Tensor) else ():
        if isinstance(entry, Dimension) and leaf.shape[axis] != sizes[entry.name]:
            leaf = leaf.index_select(axis, torch.arange(sizes[entry.name], device=leaf.device) % leaf.shape[axis])
    return leaf


def without(axes: Axes, fixed: frozenset[str]) -> Axes:
    """The dimensions that are not fixed, by their names."""
    return {axis: each for axis, each in axes.items() if not (isinstance(each, Dimension) and each.name in fixed)}
