"""Prepares modules for `torch.export`: replaces what it cannot trace by equivalents, during the export only."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest import mock

import torch
from torch._decomp import decompositions
from torch.nn import AdaptiveLogSoftmaxWithLoss
from torch.nn.modules import transformer

from tilewright.importers.torch_fake_quantized import stored_ranges
from tilewright.importers.torch_flex import flex_attention_in_operators
from tilewright.importers.torch_indexed_writes import written
from tilewright.importers.torch_losses import adaptive_loss, adaptive_prediction, ctc_loss, multilabel_margin_loss
from tilewright.importers.torch_narrow import cuts_from_tensors
from tilewright.importers.torch_packed_sequences import packed_sequences
from tilewright.importers.torch_python_values import answers_in_operators
from tilewright.importers.torch_quantized import plain_layers
from tilewright.importers.torch_quantized_tensors import quantized_tensors


@contextmanager
def exportable(module: torch.nn.Module) -> Iterator[None]:
    """Quantized layers and tensors in floats that are rounded, fake quantization by stored ranges, packed sequences as
    padded ones, conversions to the same type as nothing,
    masks as they are, lengths of tensors as sizes, covariances without a check of their data, reads and writes at
    places that numbers in tensors choose, norms of matrices, lines and pools of dynamic sizes, boxes of any number,
    losses that it cannot trace or takes apart into others, and comparisons of tensors as a whole.

    Raises `ImportModelError` for quantized modules and functions without a rule, and for writes that a `torch.narrow`
    would lose.
    """
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.nn.Module, "to", _converted))
        # nn.Transformer compares its mask with a causal one, to leave it out: with the mask the result is the same.
        stack.enter_context(mock.patch.object(transformer, "_detect_is_causal_mask", _says_causal))
        stack.enter_context(mock.patch.object(torch._C._nn, "multilabel_margin_loss", multilabel_margin_loss))
        stack.enter_context(mock.patch.object(torch, "ctc_loss", ctc_loss))
        stack.enter_context(mock.patch.object(AdaptiveLogSoftmaxWithLoss, "forward", adaptive_loss))
        stack.enter_context(mock.patch.object(AdaptiveLogSoftmaxWithLoss, "predict", adaptive_prediction))
        stack.enter_context(mock.patch.object(torch.Tensor, "__setitem__", written))
        # Those in C++ fix dynamic sizes.
        stack.enter_context(mock.patch.object(torch, "div", _quotient))
        stack.enter_context(mock.patch.object(torch, "linspace", _line))
        stack.enter_context(mock.patch.object(torch, "max_pool1d", _largest_in_windows))
        stack.enter_context(mock.patch.object(torch.linalg, "matrix_norm", _matrix_norm))
        stack.enter_context(mock.patch.object(torch.linalg, "norm", _norm))
        stack.enter_context(mock.patch.object(torch.linalg, "lstsq", _least_squares))
        for name, function in (("cov", _covariance), ("corrcoef", _correlation)):
            stack.enter_context(mock.patch.object(torch, name, function))
            stack.enter_context(mock.patch.object(torch.Tensor, name, function))
        stack.enter_context(cuts_from_tensors())
        stack.enter_context(answers_in_operators())
        for place in ("torchvision.ops", "torchvision.ops.boxes"):
            if place in sys.modules:
                stack.enter_context(mock.patch.object(sys.modules[place], "batched_nms", _batched_nms))
        packed = stack.enter_context(packed_sequences())
        stack.enter_context(_sizes_as_lengths(module))
        stack.enter_context(plain_layers(module, packed))
        stack.enter_context(stored_ranges(module))
        stack.enter_context(quantized_tensors(module))
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


@contextmanager
def whole_layers() -> Iterator[None]:
    """Recurrent layers as one operation each, of any length: what PyTorch would take apart, step by step, to learn the
    shapes of their results; and writes without a condition on sizes."""
    with (
        mock.patch.object(decompositions, "_rnn_helper", _shapes_of_layers),
        mock.patch.object(torch, "_debug_has_internal_overlap", _overlap),
        flex_attention_in_operators(),
    ):
        yield


_SOME, _UNKNOWN_OVERLAP = 1, 2  # PyTorch's numbers of what overlaps
_overlap_of_fixed = torch._debug_has_internal_overlap


def _overlap(target: torch.Tensor) -> int:
    """Whether elements of a tensor share memory, which a write to it refuses: those along a dimension that was
    expanded do. PyTorch asks more of a view such as ``x[:, ::2]``, each of which would narrow the range of a size."""
    if all(isinstance(number, int) for number in (*target.shape, *target.stride())):
        return int(_overlap_of_fixed(target))
    sizes = zip(target.shape, target.stride(), strict=True)
    expanded = any(isinstance(step, int) and not step and not (isinstance(n, int) and n < 2) for n, step in sizes)
    return _SOME if expanded else _UNKNOWN_OVERLAP


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


def _batched_nms(boxes: torch.Tensor, scores: torch.Tensor, idxs: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """`torchvision.ops.batched_nms`, of any number of boxes: classes are moved apart, so that none overlap."""
    lowest = boxes.new_full((1,), -math.inf)
    beyond = torch.cat([boxes.flatten(), lowest]).amax() + 1
    return torch.ops.torchvision.nms(boxes + (idxs.to(boxes) * beyond)[:, None], scores, iou_threshold)


def _covariance(
    input: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """`torch.cov`, which looks at its data for what to warn of."""
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    rows = rows if rows.is_floating_point() or rows.is_complex() else rows.to(torch.get_default_dtype())
    weights = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    count: Any = rows.shape[1]
    if weights is None:
        centred = rows - rows.mean(1, keepdim=True)
        product = centred @ centred.mT.conj()
        count = count - correction
        count = torch.sym_max(count, 0)
    else:
        count = weights.sum()
        centred = rows - (rows * weights).sum(1, keepdim=True) / count
        product = (centred * weights) @ centred.mT.conj()
        lost = correction if aweights is None else correction * (weights * aweights).sum() / count
        count = (count - lost).clamp(min=0)
    return (product / count).squeeze()


def _correlation(input: torch.Tensor) -> torch.Tensor:
    """`torch.corrcoef`."""
    found = _covariance(input)
    if not found.dim():
        return found / found
    spread = torch.sqrt(found.diagonal().real if found.is_complex() else found.diagonal())
    found = found / spread[:, None] / spread[None, :]
    if found.is_complex():
        return torch.complex(found.real.clamp(-1, 1), found.imag.clamp(-1, 1))
    return found.clamp(-1, 1)


_div = torch.div


def _quotient(input: Any, other: Any, **options: Any) -> Any:
    """`torch.div`; of two sizes the number, which PyTorch would put into a tensor and read from there."""
    mode = options.get("rounding_mode")
    whole = isinstance(input, torch.SymInt) and isinstance(other, (int, torch.SymInt)) and not isinstance(other, bool)
    if not whole or mode not in ("floor", "trunc") or len(options) > 1:
        return _div(input, other, **options)
    return input // other  # sizes are never negative


_linspace: Any = torch.linspace


def _line(start: Any, end: Any, steps: Any, **options: Any) -> torch.Tensor:
    """`torch.linspace`, of floats for any number of steps: counted from the nearer end, as PyTorch does."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    arange: Any = torch.arange
    if not isinstance(steps, torch.SymInt) or isinstance(start, torch.Tensor) or isinstance(end, torch.Tensor):
        return cast(torch.Tensor, _linspace(start, end, steps, **options))
    if not dtype.is_floating_point or "out" in options:
        return cast(torch.Tensor, _linspace(start, end, steps, **options))
    place = arange(steps, device=options.get("device"))
    step = (end - start) / torch.sym_max(steps - 1, 1)
    from_end = end - (steps - 1 - place).to(dtype) * step
    return torch.where(place < torch.sym_max(steps // 2, 1), start + place.to(dtype) * step, from_end)


_max_pool1d = torch.max_pool1d


def _largest_in_windows(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> torch.Tensor:
    """`torch.max_pool1d`; of dynamic sizes as of images of one row."""
    if all(isinstance(size, int) for size in input.shape):
        return _max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode)
    given = (kernel_size, stride, padding, dilation)
    taps, step, pad, reach = ([item] if isinstance(item, int) else [*item] for item in given)
    image = input.unsqueeze(-2)
    return torch.max_pool2d(image, [1, *taps], [1, *(step or taps)], [0, *pad], [1, *reach], ceil_mode).squeeze(-2)


_norms = torch.linalg.matrix_norm, torch.linalg.norm
_OF_PLANES = (1, -1, math.inf, -math.inf, 2, -2, "nuc")


def _matrix_norm(
    A: torch.Tensor,
    ord: Any = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`torch.linalg.matrix_norm`: sums along rows or columns, or singular values."""
    if ord not in _OF_PLANES:
        return _norms[0](A, ord, tuple(dim), keepdim, dtype=dtype)
    rows, columns = (axis % A.dim() for axis in dim)
    planes = (A if dtype is None else A.to(dtype)).movedim((rows, columns), (-2, -1))
    values = torch.linalg.svdvals(planes) if ord in (2, -2, "nuc") else planes.abs().sum(-2 if abs(ord) == 1 else -1)
    found = values.sum(-1) if ord == "nuc" else values.amax(-1) if ord > 0 else values.amin(-1)
    for axis in sorted((rows, columns)) if keepdim else ():
        found = found.unsqueeze(axis)
    return found


def _norm(
    A: torch.Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """`torch.linalg.norm`."""
    plane = (0, 1) if dim is None and A.dim() == 2 else dim
    if ord in _OF_PLANES and isinstance(plane, (tuple, list)) and len(plane) == 2:
        return _matrix_norm(A, ord, plane, keepdim, dtype=dtype)
    return _norms[1](A, ord, dim, keepdim, dtype=dtype)


def _least_squares(A: torch.Tensor, B: torch.Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """`torch.linalg.lstsq`, of whose results export knows no shapes; residuals are those of a matrix of full rank."""
    rows, columns = A.shape[-2:]
    share = torch.finfo(A.dtype).eps * max(rows, columns) if rcond is None else rcond
    vector = B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])
    right = B.unsqueeze(-1) if vector else B
    solution = torch.linalg.pinv(A, rtol=share) @ right
    rank = torch.linalg.matrix_rank(A, rtol=share) if driver != "gels" else A.new_empty(0, dtype=torch.int64)
    residuals = (A @ solution - right).abs().square().sum(-2) if rows > columns else A.new_empty(0)
    values = torch.linalg.svdvals(A) if driver in ("gelsd", "gelss") else A.new_empty(0)
    found = solution.squeeze(-1) if vector else solution
    return torch.return_types.linalg_lstsq((found, residuals, rank, values))  # type: ignore[attr-defined]
