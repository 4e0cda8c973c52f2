"""Operators of torchvision on boxes, by their names: torchvision itself need not be there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.host.test_import_torch_data import check  # noqa: E402
from tools.architectures.operators import suppress  # noqa: E402

SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "ps_roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio) -> (Tensor, Tensor)",
    "ps_roi_pool": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
    "-> (Tensor, Tensor)",
    "roi_pool": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
    "-> (Tensor, Tensor)",
}


def sampled(image: Any, y: float, x: float) -> Any:
    """An image [C, H, W] between its pixels, by torchvision's rules."""
    height, width = image.shape[1:]
    if y < -1 or y > height or x < -1 or x > width:
        return torch.zeros(image.shape[0], dtype=image.dtype)
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    down, across = y - top, x - left
    upper = image[:, top, left] * (1 - across) + image[:, top, right] * across
    lower = image[:, bottom, left] * (1 - across) + image[:, bottom, right] * across
    return upper * (1 - down) + lower * down


def align(x: Any, rois: Any, scale: float, rows: int, columns: int, ratio: int, aligned: bool) -> Any:
    result = torch.zeros(len(rois), x.shape[1], rows, columns, dtype=x.dtype)
    for number, (image, *corners) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (corner * scale - (0.5 if aligned else 0.0) for corner in corners)
        width, height = (size if aligned else max(size, 1.0) for size in (x2 - x1, y2 - y1))
        bin_height, bin_width = height / rows, width / columns
        down = ratio if ratio > 0 else max(-int(-bin_height // 1), 0)
        across = ratio if ratio > 0 else max(-int(-bin_width // 1), 0)
        for row in range(rows):
            for column in range(columns):
                samples = [
                    sampled(
                        x[int(image)],
                        y1 + bin_height * (row + (i + 0.5) / down),
                        x1 + bin_width * (column + (j + 0.5) / across),
                    )
                    for i in range(down)
                    for j in range(across)
                ]
                if samples:
                    result[number, :, row, column] = torch.stack(samples).mean(0)
    return result


def pool(x: Any, rois: Any, scale: float, rows: int, columns: int) -> tuple[Any, Any]:
    result = torch.zeros(len(rois), x.shape[1], rows, columns, dtype=x.dtype)
    for number, (image, *corners) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (int(corner * scale + 0.5) for corner in corners)
        height, width = max(y2 - y1 + 1, 1) / rows, max(x2 - x1 + 1, 1) / columns
        for row in range(rows):
            for column in range(columns):
                top, bottom = int(row * height) + y1, -int(-(row + 1) * height // 1) + y1
                left, right = int(column * width) + x1, -int(-(column + 1) * width // 1) + x1
                part = x[int(image), :, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
                if part.numel():
                    result[number, :, row, column] = part.amax((1, 2))
    return result, torch.zeros_like(result, dtype=torch.int32)


def of_own_channels(full: Any, rows: int, columns: int) -> tuple[Any, Any]:
    """Of bins [R, C rows columns, rows, columns] those of each bin's own channels."""
    parts = full.reshape(len(full), -1, rows, columns, rows, columns)
    result = torch.einsum("rcijij->rcij", parts).clone()
    return result, torch.zeros_like(result, dtype=torch.int32)


def align_own_channels(x: Any, rois: Any, scale: float, rows: int, columns: int, ratio: int) -> tuple[Any, Any]:
    return of_own_channels(align(x, rois, scale, rows, columns, ratio, True), rows, columns)


def pool_own_channels(x: Any, rois: Any, scale: float, rows: int, columns: int) -> tuple[Any, Any]:
    full = torch.zeros(len(rois), x.shape[1], rows, columns, dtype=x.dtype)
    for number, (image, *corners) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (int(corner * scale + 0.5) for corner in corners)
        height, width = max(y2 - y1, 1) / rows, max(x2 - x1, 1) / columns
        for row in range(rows):
            for column in range(columns):
                top, bottom = int(row * height) + y1, -int(-(row + 1) * height // 1) + y1
                left, right = int(column * width) + x1, -int(-(column + 1) * width // 1) + x1
                inner = x[int(image), :, :-1, :-1]
                part = inner[:, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
                if part.numel():
                    full[number, :, row, column] = part.mean((1, 2))
    return of_own_channels(full, rows, columns)


@pytest.fixture(scope="module")
def operators() -> Iterator[Any]:
    """The operators, where torchvision has not defined them."""
    if hasattr(torch.ops.torchvision, "ps_roi_pool"):
        yield torch.ops.torchvision
        return
    library = torch.library.Library("torchvision", "FRAGMENT")

    def sized(x: Any, rois: Any, scale: float, rows: int, columns: int, *_: Any) -> Any:
        return x.new_empty(rois.shape[0], x.shape[1], rows, columns)

    def parted(x: Any, rois: Any, scale: float, rows: int, columns: int, *_: Any) -> Any:
        return x.new_empty(rois.shape[0], x.shape[1] // (rows * columns), rows, columns)

    def chosen(boxes: Any, scores: Any, share: float) -> Any:
        # As torchvision's own, which assumes at least two.
        return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(min=2), dtype=torch.int64)

    fakes = {
        "nms": chosen,
        "roi_align": sized,
        "roi_pool": lambda *given: (sized(*given), sized(*given).to(torch.int32)),
        "ps_roi_align": lambda *given: (parted(*given), parted(*given).to(torch.int32)),
        "ps_roi_pool": lambda *given: (parted(*given), parted(*given).to(torch.int32)),
    }
    functions = {
        "nms": suppress, "roi_align": align, "roi_pool": pool, "ps_roi_align": align_own_channels,
        "ps_roi_pool": pool_own_channels,
    }  # fmt: skip
    for name, function in functions.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + SCHEMAS[name])
            library.impl(name, function, "CPU")
            torch.library.register_fake(f"torchvision::{name}", fakes[name], lib=library)
    yield torch.ops.torchvision
    library._destroy()


def boxes(count: int) -> Any:
    corners = torch.rand(count, 2) * 12
    return torch.cat([corners, corners + torch.rand(count, 2) * 6 + 0.5], 1)


def test_boxes_that_overlap_no_better_one(operators: Any) -> None:
    """Detections: those above a score, without those that overlap, the best four."""

    def detections(found: Any, scores: Any) -> Any:
        chosen = scores > 0.2
        found, scores = found[chosen], scores[chosen]
        kept = operators.nms(found, scores, 0.3)
        return found[kept], scores[kept]

    torch.manual_seed(2)
    calls = [
        (boxes(20), torch.rand(20)),
        (boxes(1), torch.ones(1)),
        (boxes(1).repeat(5, 1), torch.ones(5)),
        (boxes(3), torch.zeros(3)),
        (boxes(30), torch.rand(30)),
    ]
    check(detections, calls, {"found": {0: ("count", 1, 40)}, "scores": {0: ("count", 1, 40)}})


@pytest.mark.parametrize(("ratio", "aligned"), [(2, True), (2, False), (-1, True), (0, False)])
def test_boxes_resampled_to_one_size(operators: Any, ratio: int, aligned: bool) -> None:
    torch.manual_seed(3)
    x = torch.randn(2, 3, 9, 10)
    regions = torch.cat([torch.tensor([[0.0], [1.0], [1.0], [0.0]]), boxes(4)], 1)
    shapes = {"x": {2: ("h", 4, 12), 3: ("w", 4, 12)}, "regions": None} if ratio < 0 else None
    calls = [(x, regions), (torch.randn(2, 3, 12, 4), regions)][: 2 if shapes else 1]
    check(lambda x, regions: operators.roi_align(x, regions, 0.7, 3, 4, ratio, aligned), calls, shapes)


def test_largest_elements_of_the_bins_of_boxes(operators: Any) -> None:
    torch.manual_seed(4)
    x = torch.randn(2, 3, 9, 10)
    regions = torch.cat([torch.tensor([[0.0], [1.0], [1.0]]), boxes(3).round()], 1)
    check(lambda x, regions: operators.roi_pool(x, regions, 0.5, 3, 2)[0], [(x, regions)])


@pytest.mark.parametrize("ratio", [2, -1])
def test_bins_of_channels_of_their_own(operators: Any, ratio: int) -> None:
    def bins(x: Any, regions: Any) -> Any:
        aligned = operators.ps_roi_align(x, regions, 0.7, 3, 2, ratio)[0]
        return aligned, operators.ps_roi_pool(x, regions, 0.5, 3, 2)[0]

    torch.manual_seed(5)
    calls = []
    for count in (3, 1):
        images = torch.arange(count).remainder(2).float()[:, None]
        calls.append((torch.randn(2, 12, 9, 10), torch.cat([images, boxes(count)], 1)))
    check(bins, calls, {"x": None, "regions": {0: ("count", 1, 8)}})
