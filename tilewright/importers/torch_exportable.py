"""Modules made ready for `torch.export`, for its time: what it cannot trace is replaced by what means the same."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch._decomp import decompositions
from torch.nn.modules import transformer

from tilewright.errors import ImportModelError


@contextmanager
def exportable(module: torch.nn.Module) -> Iterator[None]:
    """Quantized linear layers as plain ones, conversions to the same type as nothing, masks as they are, and lengths of
    tensors as sizes.

    Raises `ImportModelError` for quantized modules of other kinds.
    """
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.nn.Module, "to", _converted))
        # nn.Transformer compares its mask with a causal one, to leave it out: with the mask the result is the same.
        stack.enter_context(mock.patch.object(transformer, "_detect_is_causal_mask", _says_causal))
        stack.enter_context(mock.patch.object(torch._VF, "_pack_padded_sequence", _refuse_packing))
        stack.enter_context(_sizes_as_lengths(module))
        stack.enter_context(_plain_layers(module))
        stack.enter_context(whole_layers())
        yield


def _length(items: Any) -> Any:
    """`len`; of a tensor its first size, which may be symbolic."""
    return items.shape[0] if isinstance(items, torch.Tensor) and items.dim() else len(items)


@contextmanager
def _sizes_as_lengths(module: torch.nn.Module) -> Iterator[None]:
    """`_length` as `len` in the files of the modules: the length of a tensor would be a number, and its first size that
    of the example in every call. PyTorch's own files, which it traces in other ways too, keep Python's."""
    spaces: dict[int, dict[str, Any]] = {}
    for child in module.modules():
        space = getattr(inspect.unwrap(child.forward), "__globals__", {})
        if "len" not in space and str(space.get("__name__", "torch")).partition(".")[0] != "torch":
            spaces[id(space)] = space
    for space in spaces.values():
        space["len"] = _length
    try:
        yield
    finally:
        for space in spaces.values():
            space.pop("len", None)


def _refuse_packing(*_: Any) -> Any:
    raise ImportModelError(
        "packed sequences (pack_padded_sequence): their sizes follow from the numbers in the tensor of lengths; give "
        "the recurrent layer the padded sequences, and take the states at the ends with gather"
    )


@contextmanager
def whole_layers() -> Iterator[None]:
    """Recurrent layers as one operation each, of any length: what PyTorch would take apart, step by step, to learn the
    shapes of their results."""
    with mock.patch.object(decompositions, "_rnn_helper", _shapes_of_layers):
        yield


def _shapes_of_layers(
    x: torch.Tensor, states: Sequence[Any], params: Any, has_biases: bool, layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool, layer: Any,
) -> tuple[torch.Tensor, list[Any]]:  # fmt: skip
    """Tensors in the shapes of the outputs and of each last state; `states` are tensors or pairs, [batch, width]."""
    first = states[0][0] if isinstance(states[0], tuple) else states[0]
    outputs = x.new_empty((*x.shape[:2], first.shape[-1] * (2 if bidirectional else 1)))
    last = [tuple(map(torch.empty_like, s)) if isinstance(s, tuple) else torch.empty_like(s) for s in states]
    return outputs, last


_to = torch.nn.Module.to


def _converted(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """`Module.to`; nothing where all tensors have the type and device already (export cannot replace parameters)."""
    device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    tensors = [*self.parameters(), *self.buffers()]
    same_device = device is None or all(tensor.device.type == torch.device(device).type for tensor in tensors)
    floats = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
    same = same_device and (dtype is None or all(tensor.dtype == dtype for tensor in floats))
    return self if same and memory_format is None else _to(self, *args, **kwargs)


def _says_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True


@contextmanager
def _plain_layers(module: torch.nn.Module) -> Iterator[None]:
    """Every dynamic-quantized linear layer as one that rounds its input as the quantized one does."""
    replaced: list[tuple[torch.nn.Module, str, torch.nn.Module]] = []
    for path, child in list(module.named_modules()):
        kind = type(child)
        if not kind.__module__.startswith("torch.ao.nn.quantized") or not path:
            continue
        holder, _, name = path.rpartition(".")
        if kind.__module__.endswith("dynamic.modules.linear"):
            parent = module.get_submodule(holder)
            replaced.append((parent, name, child))
            setattr(parent, name, _RoundedLinear(child))
        elif "linear" not in kind.__module__ and any(True for _ in child.children()):
            raise ImportModelError(
                f"module {path!r} is a quantized {kind.__name__}; only dynamic-quantized linear layers are taken: "
                "give the module as it was before quantize_dynamic"
            )
    try:
        yield
    finally:
        for parent, name, child in replaced:
            setattr(parent, name, child)


class _RoundedLinear(torch.nn.Module):
    """y = x' w + b, with x' the input rounded to 7 bits between its least and greatest element and w whole numbers
    times a scale: as PyTorch's dynamic-quantized layers compute it on x86."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, layer: Any) -> None:
        super().__init__()
        weight, bias = layer._weight_bias()
        self.register_buffer("weight", weight.dequantize())
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, high = x.amin().clamp(max=0.0), x.amax().clamp(min=0.0)
        scale = (high - low).clamp(min=1e-30) / 127
        zero = (-(low / scale)).round().clamp(0, 127)
        rounded = ((x / scale).round() + zero).clamp(0, 127) - zero
        return torch.nn.functional.linear(rounded * scale, self.weight, self.bias)
