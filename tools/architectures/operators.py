"""The operators of torchvision in Python, where its compiled library does not load (it is for another PyTorch)."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import torch

_SCHEMAS = {
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",  # whose shape torchvision declares
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "deform_conv2d": "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> Tensor",
}
_libraries: list[torch.library.Library] = []  # they are unregistered when they are dropped


def provide() -> None:
    """Define the operators unless torchvision's own library loads; before torchvision is imported."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or _libraries:
        return
    try:
        for library in Path(found.origin).parent.glob("_C*.so"):
            ctypes.CDLL(str(library))
        return
    except OSError:
        pass
    library = torch.library.Library("torchvision", "DEF")
    for name, schema in _SCHEMAS.items():
        library.define(name + schema)
    library.impl("nms", suppress, "CPU")
    library.impl("roi_align", align_regions, "CPU")
    library.impl("deform_conv2d", deformable_convolution, "CPU")
    _libraries.append(library)
    from torchvision import _meta_registrations, extension

    extension._has_ops = lambda: True
    library.impl("roi_align", _meta_registrations.meta_roi_align, "Meta")
    library.impl("deform_conv2d", _meta_registrations.meta_deform_conv2d, "Meta")


def suppress(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    """Positions of the boxes [N, 4] that overlap none of a higher score by more than `threshold`, best first."""
    order = scores.argsort(stable=True, descending=True)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    saved: list[torch.Tensor] = []
    while order.numel():
        best, order = order[0], order[1:]
        saved.append(best)
        low = torch.maximum(boxes[best, :2], boxes[order, :2])
        high = torch.minimum(boxes[best, 2:], boxes[order, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        order = order[shared / (areas[best] + areas[order] - shared) <= threshold]
    return torch.stack(saved) if saved else torch.empty(0, dtype=torch.int64)


def align_regions(
    x: torch.Tensor, regions: torch.Tensor, scale: float, height: int, width: int, ratio: int, aligned: bool
) -> torch.Tensor:
    """Means of bilinear samples in each bin of each region [K, 5], by torchvision's own formula in Python."""
    from torchvision.ops.roi_align import _roi_align

    return _roi_align(x, regions, scale, height, width, ratio, aligned)


def deformable_convolution(
    x: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor, bias: torch.Tensor,
    stride_h: int, stride_w: int, pad_h: int, pad_w: int, dilation_h: int, dilation_w: int,
    groups: int, offset_groups: int, use_mask: bool,
) -> torch.Tensor:  # fmt: skip
    """A convolution whose taps read the image at places moved by `offset` (row, column of each tap)."""
    batch, channels, height, width = x.shape
    outputs, _, rows, columns = weight.shape
    down, across = offset.shape[2:]
    offset = offset.view(batch, offset_groups, rows * columns, 2, down, across)
    taps = torch.arange(rows * columns)
    row = (taps // columns * dilation_h - pad_h).view(-1, 1, 1) + torch.arange(down).view(1, -1, 1) * stride_h
    column = (taps % columns * dilation_w - pad_w).view(-1, 1, 1) + torch.arange(across).view(1, 1, -1) * stride_w
    places = torch.stack(((offset[:, :, :, 1] + column + 0.5) * 2 / width - 1,
                          (offset[:, :, :, 0] + row + 0.5) * 2 / height - 1), -1)  # fmt: skip
    images = x.reshape(batch * offset_groups, channels // offset_groups, height, width)
    grid = places.reshape(batch * offset_groups, rows * columns * down, across, 2)
    sampled = torch.nn.functional.grid_sample(images, grid.to(x.dtype), align_corners=False)
    sampled = sampled.view(batch, offset_groups, -1, rows * columns, down, across)
    if use_mask:
        sampled = sampled * mask.view(batch, offset_groups, 1, rows * columns, down, across)
    sampled = sampled.reshape(batch, groups, channels // groups * rows * columns, down * across)
    matrix = weight.reshape(groups, outputs // groups, -1)
    return (matrix @ sampled).view(batch, outputs, down, across) + bias.view(1, -1, 1, 1)
