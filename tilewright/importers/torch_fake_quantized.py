"""Replaces fake-quantizing modules (quantization-aware training, prepared models) by plain ones that round by the
stored range, and quantized tensors of reference models by floats that were rounded so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from tilewright.errors import ImportModelError

_PACKAGES = ("torch.ao.quantization", "torchao.quantization")
RANGES = {
    torch.quint8: (0, 255), torch.qint8: (-128, 127), torch.qint32: (-(2**31), 2**31 - 1), torch.quint4x2: (0, 15),
    torch.uint8: (0, 255), torch.int8: (-128, 127), torch.int32: (-(2**31), 2**31 - 1),
}  # fmt: skip


@contextmanager
def stored_ranges(module: nn.Module) -> Iterator[None]:
    """The fake-quantizing modules in a module as plain ones, and the functions that make quantized tensors as ones that
    round floats.

    Raises `ImportModelError` for a module whose range is not known before it runs.
    """
    replaced: list[tuple[nn.Module, str, nn.Module]] = []
    with ExitStack() as stack:
        for name, function in (
            ("quantize_per_tensor", quantized), ("quantize_per_channel", _quantized_channels)
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(torch, name, function))
        stack.enter_context(mock.patch.object(Tensor, "dequantize", _dequantized))
        _with_shapes(stack.enter_context(torch.library._scoped_library("aten", "IMPL")))
        stack.callback(_put_back, replaced)
        made: dict[nn.Module, nn.Module] = {}  # a module may have several names
        for path, child in list(module.named_modules(remove_duplicate=False)):
            if path and _fakes(child):
                holder, _, name = path.rpartition(".")
                parent = module.get_submodule(holder)
                if child not in made:
                    made[child] = _plain(child, path)
                replaced.append((parent, name, child))
                setattr(parent, name, made[child])
        yield


def _with_shapes(library: torch.library.Library) -> None:
    """Shapes of the results of fake quantization: without them PyTorch runs it, for sizes that are numbers alone."""
    for name in (
        "fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask",
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", "_fused_moving_avg_obs_fq_helper_functional",
        "_fake_quantize_learnable_per_tensor_affine", "_fake_quantize_learnable_per_channel_affine",
    ):  # fmt: skip
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, partial(_shapes, name), "Meta")


def _shapes(name: str, x: Tensor, *given: Any) -> Any:
    if "learnable" in name:
        return torch.empty_like(x)
    found = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
    return (*found, *map(torch.empty_like, given[2:6])) if "fused" in name else found


def _put_back(replaced: Sequence[tuple[nn.Module, str, nn.Module]]) -> None:
    for parent, name, child in replaced:
        setattr(parent, name, child)


def _fakes(child: nn.Module) -> bool:
    """Whether it is a fake-quantizing module of PyTorch's or torchao's, or computes as one does."""
    own = str(getattr(type(child).forward, "__module__", "")).startswith(_PACKAGES)
    return own and any(base.__name__ == "FakeQuantizeBase" for base in type(child).__mro__)


def _plain(child: Any, path: str) -> nn.Module:
    learned = hasattr(child, "static_enabled")
    observes = bool((child.static_enabled if learned else child.observer_enabled)[0])
    observer = child.activation_post_process
    least = getattr(observer, "min_val", None)  # None: the range is fixed
    if observes and bool(getattr(child, "is_dynamic", False)):
        raise ImportModelError(
            f"module {path!r} finds the range of its input at each call; convert the model (convert_pt2e), or quantize "
            "the float model with the scheme int8-dynamic"
        )
    if not child.fake_quant_enabled[0]:
        return nn.Identity()
    observes = observes and least is not None
    if observes and least is not None and not (least.numel() and bool(least.isfinite().all())):
        raise ImportModelError(
            f"module {path!r} has seen no data, and its observer is on: run data through the model, then call "
            "model.apply(torch.ao.quantization.disable_observer)"
        )
    return _StoredRange(child, observes, least, learned)


class _StoredRange(nn.Module):
    """Rounds its input by a fixed scale and zero point."""

    def __init__(self, child: Any, observes: bool, least: Tensor | None, learned: bool) -> None:
        super().__init__()
        own = child if learned else child.activation_post_process
        self.low, self.high, self.axis = int(own.quant_min), int(own.quant_max), int(child.ch_axis)
        self.by_channel = child.qscheme in (
            torch.per_channel_affine, torch.per_channel_symmetric, torch.per_channel_affine_float_qparams
        )  # fmt: skip
        scale, zero = child.scale.detach(), child.zero_point.detach()
        if learned:
            scale, zero = scale.clamp(min=float(child.eps)), zero.round().clamp(self.low, self.high).int()
            zero = zero * 0 if child.qscheme in (torch.per_channel_symmetric, torch.per_tensor_symmetric) else zero
        self.observes = observes
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)
        self.register_buffer("on", torch.ones(1, dtype=torch.long))
        self.register_buffer("least", least)

    def forward(self, x: Tensor) -> Tensor:
        own: Any = self
        if self.observes:  # the import says so
            helper = torch.ops.aten._fused_moving_avg_obs_fq_helper_functional
            return helper(x, own.on, own.on, own.least, own.least, own.scale, own.zero, 0.0, self.low, self.high,
                          self.axis, self.by_channel)[0]  # fmt: skip
        if self.by_channel:
            return torch.fake_quantize_per_channel_affine(x, own.scale, own.zero, self.axis, self.low, self.high)
        return torch.fake_quantize_per_tensor_affine(x, own.scale, own.zero, self.low, self.high)


# Quantized tensors of reference models ----------------------------------------------------------------

_to_floats = Tensor.dequantize


@torch.library.custom_op("tilewright::quantized_floats", mutates_args=())
def quantized_floats(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
    """Floats rounded as `torch.quantize_per_tensor` does, which adds the zero point first: halves go to even integers.

    `scale` and `zero` have one element; integers are from `low` to `high`.
    """
    steps = (x * scale.float().reciprocal() + zero).round().clamp(low, high)
    return (steps - zero) * scale.float()


@quantized_floats.register_fake
def _(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
    return torch.empty_like(x)


def quantized(input: Any, scale: Any, zero_point: Any, dtype: torch.dtype) -> Any:
    """`torch.quantize_per_tensor`, of which the result are floats."""
    if isinstance(input, (list, tuple)):
        return [quantized(*each, dtype) for each in zip(input, scale, zero_point, strict=True)]
    scale, zero = (item if isinstance(item, Tensor) else torch.tensor(item) for item in (scale, zero_point))
    return quantized_floats(input, scale, zero, *RANGES[dtype])


def _quantized_channels(input: Tensor, scales: Tensor, zero_points: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
    """`torch.quantize_per_channel`, of which the result are floats."""
    zeros = zero_points if zero_points.is_floating_point() else zero_points.to(torch.int32)
    return torch.fake_quantize_per_channel_affine(input, scales.float(), zeros, axis, *RANGES[dtype])


def _dequantized(self: Tensor) -> Tensor:
    """`Tensor.dequantize`; of floats nothing but float32."""
    return _to_floats(self) if self.is_quantized else self.float()
