"""Single groups end to end: graph -> fusion -> tactics -> kernels -> numbers, against the float64 reference.

Every case runs in the interpreter, the definition of meaning, and as machine code of this machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.host import tactics_support
from tests.host.tactics_support import Draw, check
from tilewright.dtypes import DType, bfloat16, float16, float32, float64, int32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.passes.fuse import fuse
from tilewright.library.convolution.cpu.candidates import is_direct
from tilewright.library.convolution.cpu.runs import run_edges
from tilewright.library.generated.slot_functions import Chain
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.select import candidates
from tilewright.library.slots import epilogue_slots
from tilewright.settings import settings
from tilewright.targets.cpu.target import CPUTarget

Case = tuple[Graph, dict[str, np.ndarray]]


def matmul_case(draw: Draw, rows: int, depth: int, columns: int, transpose_b: bool) -> Case:
    """A constant weight with bias, activation and residual behind it; `rows` is dynamic."""
    b = GraphBuilder("linear")
    batch = b.symbol("batch", 1, 64)
    x, residual = b.input("x", float32, (batch, 7, depth)), b.input("residual", float32, (batch, 7, columns))
    weight = b.constant(draw(columns, depth) if transpose_b else draw(depth, columns))
    y = b.op("add", [b.op("matmul", [x, weight], transpose_b=transpose_b), b.constant(draw(columns))])
    b.output(b.op("add", [b.op("gelu", [y]), residual]), "y")
    return b.finish(), {"x": draw(rows, 7, depth), "residual": draw(rows, 7, columns)}


@pytest.mark.parametrize("rows", [1, 2, 5, 20])
def test_linear_with_epilogue(rows: int, draw: Draw, compiled: bool) -> None:
    graph, inputs = matmul_case(draw, rows, 24, 40, True)
    (chosen,) = check(graph, inputs, compiled)
    assert len(chosen.stages[0].calls) == 3  # few, some and many rows
    assert chosen.reasons["epilogue"] == "fused_add_gelu_add"


def test_columns_and_depth_that_fit_no_block(draw: Draw, compiled: bool) -> None:
    graph, inputs = matmul_case(draw, 3, 1031, 70, False)
    check(graph, inputs, compiled)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_batched_product_of_two_tensors(transpose_b: bool, draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("scores")
    n = b.symbol("n", 1, 64)
    x = b.input("x", float32, (n, 3, 7, 24))
    y = b.input("y", float32, (n, 3, 9, 24) if transpose_b else (n, 3, 24, 9))
    b.output(b.op("multiply", [b.op("matmul", [x, y], transpose_b=transpose_b), 0.5]), "z")
    check(b.finish(), {"x": draw(2, 3, 7, 24), "y": draw(2, 3, 9, 24) if transpose_b else draw(2, 3, 24, 9)}, compiled)


def test_batches_that_share_an_operand(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("shared")
    n = b.symbol("n", 1, 64)
    x, y = b.input("x", float32, (n, 3, 7, 24)), b.input("y", float32, (3, 24, 20))
    b.output(b.op("matmul", [x, y]), "z")
    check(b.finish(), {"x": draw(2, 3, 7, 24), "y": draw(3, 24, 20)}, compiled)


def test_run_time_depth(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("mixing")
    n = b.symbol("n", 1, 600)
    x, y = b.input("x", float32, (5, n)), b.input("y", float32, (n, 33))
    b.output(b.op("matmul", [x, y]), "z")
    for depth in (1, 300):
        check(b.finish(), {"x": draw(5, depth), "y": draw(depth, 33)}, compiled, 1e-4)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_integer_product(transpose_b: bool, draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("integers")
    n = b.symbol("n", 1, 9)
    x, y = b.input("x", int32, (n, 3, 5)), b.input("y", int32, (4, 5) if transpose_b else (5, 4))
    b.output(b.op("add", [b.op("matmul", [x, y], transpose_b=transpose_b), 1]), "z")
    inputs = {"x": draw.integers(-9, 9, (2, 3, 5)), "y": draw.integers(-9, 9, (4, 5) if transpose_b else (5, 4))}
    check(b.finish(), {name: array.astype(np.int32) for name, array in inputs.items()}, compiled)


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("dtype", [float16, bfloat16, float64])
def test_other_element_types(dtype: DType, draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("types")
    n = b.symbol("n", 1, 9)
    x, w = b.input("x", dtype, (n, 6, 16)), b.constant(draw(16, 40).astype(dtype.numpy))
    y = b.op("gelu", [b.op("matmul", [x, w])])
    b.output(b.op("layer_norm", [y], axis=2, epsilon=1e-5))
    b.output(b.op("softmax", [b.op("tanh", [y])], axis=2))
    heads = b.op("reshape", [y], shape=(n, 6, 4, 10))
    q = b.op("permute", [heads], order=(0, 2, 1, 3))
    b.output(b.op("attention", [q, q, q], scale=0.3))
    b.output(b.op("reduce_mean", [x], axes=(1,)))
    tolerance = {float16: 2e-2, bfloat16: 0.15, float64: 1e-6}[dtype]
    check(b.finish(), {"x": draw(2, 6, 16).astype(dtype.numpy)}, compiled, tolerance)


@pytest.mark.parametrize("least", [1, 16])
def test_weights_for_tile_registers(least: int, draw: Draw, compiled: bool) -> None:
    """Weights are grouped along the depth where every kernel of the product multiplies in tile registers."""
    b = GraphBuilder("tiles")
    n = b.symbol("n", least, 64)
    x = b.input("x", bfloat16, (n, 96))
    weight, bias = (b.constant(draw(*shape).astype(bfloat16.numpy)) for shape in ((100, 96), (100,)))
    b.output(b.op("gelu", [b.op("add", [b.op("matmul", [x, weight], transpose_b=True), bias])]), "y")
    inputs = {"x": draw(37, 96).astype(bfloat16.numpy)}
    (chosen,) = check(b.finish(), inputs, compiled, 0.05, CPUTarget.named("sapphirerapids"))
    assert chosen.reasons["B"].startswith("panels, 2 steps" if least == 16 else "panels")
    assert {call.constants["GROUP"] for call in chosen.stages[0].calls} == {2 if least == 16 else 1}


def convolution_case(draw: Draw, layout: str = "NHWC", groups: int = 1, **changes: int) -> Case:
    """A convolution with bias and ReLU on a small image of any batch."""
    size = {
        "channels": 16,
        "features": 32,
        "kernel": 3,
        "stride": 1,
        "padding": 1,
        "dilation": 1,
        "height": 9,
        "width": 8,
    }
    size |= changes
    b = GraphBuilder("convolution")
    n = b.symbol("n", 1, 64)
    image = (size["height"], size["width"])
    shape = (*image, size["channels"]) if layout == "NHWC" else (size["channels"], *image)
    x = b.input("x", float32, (n, *shape))
    kernel = (size["kernel"], size["kernel"])
    w = b.constant(draw(size["features"], size["channels"] // groups, *kernel))
    attributes: dict[str, Any] = {
        "strides": (size["stride"],) * 2,
        "padding": ((size["padding"],) * 2,) * 2,
        "dilation": (size["dilation"],) * 2,
        "groups": groups,
        "layout": layout,
    }
    y = b.op("conv", [x, w, b.constant(draw(size["features"]))], **attributes)
    b.output(b.op("relu", [y]), "y")
    return b.finish(), {"x": draw(2, *shape)}


CONVOLUTIONS: dict[str, tuple[str, Callable[[Draw], Case]]] = {
    "3x3": ("Winograd F(2x2, 3x3)", lambda draw: convolution_case(draw, height=4, width=4)),
    "5x5": ("implicit matmul", lambda draw: convolution_case(draw, kernel=5, padding=2, channels=40)),
    "3x3 stride 2": ("implicit matmul", lambda draw: convolution_case(draw, stride=2, channels=40, features=64)),
    "3x3 dilated": (
        "implicit matmul",
        lambda draw: convolution_case(draw, dilation=2, padding=2, stride=2, channels=40),
    ),
    "3x3 dilated beyond the image": (
        "implicit matmul",
        lambda draw: convolution_case(draw, dilation=7, padding=7, channels=40),
    ),
    "1x1": ("pointwise convolution as matmul", lambda draw: convolution_case(draw, kernel=1, padding=0, features=40)),
    "1x1 stride 2": ("direct convolution", lambda draw: convolution_case(draw, kernel=1, padding=0, stride=2)),
    "1x1 stride 2, deep": (
        "implicit matmul",
        lambda draw: convolution_case(draw, kernel=1, padding=0, stride=2, channels=64),
    ),
    "7x7 of 3 channels": (
        "direct convolution",
        lambda draw: convolution_case(draw, channels=3, kernel=7, stride=2, padding=3, height=9, width=22),
    ),
    "grouped": ("direct convolution", lambda draw: convolution_case(draw, groups=4, height=4, width=5)),
    "grouped, deep": (
        "implicit matmul",
        lambda draw: convolution_case(draw, groups=2, channels=140, features=64, stride=2, height=5, width=4),
    ),
    "strided, side by side": (
        "direct convolution",
        lambda draw: convolution_case(draw, kernel=2, stride=2, padding=0, features=20, channels=5, height=2, width=32),
    ),
    "few channels to a tap": ("direct convolution", lambda draw: convolution_case(draw, stride=2, height=5)),
    "few columns": (
        "direct convolution",
        lambda draw: convolution_case(draw, kernel=5, padding=2, features=4, height=5),
    ),
    "depthwise": ("depthwise", lambda draw: convolution_case(draw, groups=16, features=16)),
    "channels first": ("anchor alone", lambda draw: convolution_case(draw, "NCHW")),
}


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, draw: Draw, compiled: bool) -> None:
    expected, make = CONVOLUTIONS[name]
    graph, inputs = make(draw)
    with settings.scope(threads=2):  # what is chosen follows from the number of threads
        (chosen,) = check(graph, inputs, compiled)
    assert chosen.name == expected


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding", "dilation", "width"),
    [
        ((37, 37, 37), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 14),  # two runs of seven pixels, each at an edge
        ((37, 37, 37), (5, 3), (2, 2), ((2, 1), (0, 3)), (1, 1), 11),  # more padding behind a line than before it
        ((37, 37, 37), (3, 3), (1, 2), ((1, 1), (1, 1)), (1, 1), None),  # a width that only the run knows
        ((3, 5, 1), (2, 4), (1, 3), ((0, 0), (0, 0)), (3, 2), 31),  # no edges, a short last run
        ((6, 9, 3), (3, 3), (2, 1), ((1, 1), (1, 1)), (1, 1), 24),  # runs at edges and between them
        ((4, 34, 2), (2, 7), (2, 1), ((1, 1), (9, 9)), (1, 3), 3),  # windows wider than the line
        ((6, 18, 1), (3, 3), (1, 2), ((1, 1), (2, 0)), (1, 1), None),
    ],
)
def test_runs_of_pixels(
    channels: tuple[int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
    dilation: tuple[int, int],
    width: int | None,
    draw: Draw,
    compiled: bool,
) -> None:
    inside, outside, groups = channels
    b = GraphBuilder("runs")
    n, across = b.symbol("n", 1, 9), b.symbol("width", 1, 40) if width is None else width
    x, w = b.input("x", float32, (n, 4, across, inside)), b.constant(draw(outside, inside // groups, *kernel))
    attributes: dict[str, Any] = {"strides": stride, "padding": padding, "dilation": dilation, "layout": "NHWC"}
    y = b.op("conv", [x, w, b.constant(draw(outside))], groups=groups, **attributes)
    b.output(b.op("relu", [y]), "y")
    (chosen,) = check(b.finish(), {"x": draw(2, 4, 9 if width is None else width, inside)}, compiled)
    assert chosen.name == ("depthwise" if groups == 37 else "direct convolution")


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(("kernel", "stride", "features"), [((7, 7), 2, 40), ((3, 5), 1, 20)])
def test_image_of_few_channels_is_copied_with_zeros_around_it(
    kernel: tuple[int, int], stride: int, features: int, draw: Draw, compiled: bool
) -> None:
    b = GraphBuilder("photograph")
    x = b.input("x", float32, (b.symbol("n", 1, 9), 3, 6, 19))
    image = b.op("permute", [x], order=(0, 2, 3, 1))
    padding = tuple((extent // 2, extent // 2) for extent in kernel)
    attributes = {"strides": (stride, stride), "padding": padding, "dilation": (1, 1), "groups": 1, "layout": "NHWC"}
    w = b.constant(draw(features, 3, *kernel))
    b.output(b.op("relu", [b.op("conv", [image, w, b.constant(draw(features))], **attributes)]), "y")
    (chosen,) = check(b.finish(), {"x": draw(2, 3, 6, 19)}, compiled)
    assert chosen.name == "direct convolution"
    assert chosen.stages[-1].calls[0].constants["EDGES"] == "none"


def test_one_tap_with_padding_has_no_pixels_beyond_its_result(draw: Draw, compiled: bool) -> None:
    """Each pixel of the copy with zeros around it is a row of the product, and so of the result."""
    b = GraphBuilder("padded")
    image = b.op("permute", [b.input("x", float32, (3, 5, 8, 3))], order=(0, 2, 3, 1))
    attributes = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1, "layout": "NHWC"}
    b.output(b.op("conv", [image, b.constant(draw(4, 5, 1, 1)), b.constant(draw(4))], **attributes), "y")
    (chosen,) = check(b.finish(), {"x": draw(3, 5, 8, 3)}, compiled)
    assert chosen.name == "pointwise convolution as matmul"
    assert [value.shape for value in chosen.temporaries] == [(3, 10, 5, 5)]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(
    ("channels", "padding", "dilation", "height", "width", "threads"),
    [
        ((24, 40, 1), ((1, 1), (1, 1)), (1, 1), 13, 11, 1),  # the last tiles reach beyond the image
        ((37, 19, 1), ((0, 0), (0, 0)), (1, 1), 9, 8, 2),  # ragged channels and columns, no padding
        ((24, 24, 1), ((2, 0), (0, 3)), (1, 1), 5, 6, 3),
        ((96, 96, 2), ((1, 1), (1, 1)), (1, 1), 7, 7, 4),  # groups, and columns shared among programs
        ((32, 32, 1), ((2, 2), (3, 3)), (2, 3), 12, 18, 1),
        ((32, 48, 1), ((2, 2), (2, 2)), (2, 2), 11, 9, 2),  # phases of a dilated window that end inside a tile
        ((32, 32, 1), ((1, 1), (1, 1)), (1, 1), None, None, 2),  # sizes that only the run knows
        ((24, 24, 1), ((0, 0), (0, 0)), (1, 1), 3, 3, 1),  # one output pixel
    ],
)
def test_winograd(
    channels: tuple[int, int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
    dilation: tuple[int, int],
    height: int | None,
    width: int | None,
    threads: int,
    draw: Draw,
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tiles, borders and shares of the work, with a residual and an activation behind."""
    monkeypatch.setattr(settings, "threads", threads)
    inside, outside, groups = channels
    b = GraphBuilder("winograd")
    down, across = (
        b.symbol("down", 1, 40) if height is None else height,
        b.symbol("across", 1, 40) if width is None else width,
    )
    x, w = b.input("x", float32, (2, down, across, inside)), b.constant(draw(outside, inside // groups, 3, 3))
    attributes: dict[str, Any] = {"strides": (1, 1), "padding": padding, "dilation": dilation, "layout": "NHWC"}
    y = b.op("conv", [x, w, b.constant(draw(outside))], groups=groups, **attributes)
    rest = b.input("rest", float32, y.shape)
    b.output(b.op("relu", [b.op("add", [y, rest])]), "y")
    graph = b.finish()
    image = draw(2, height or 10, width or 7, inside)
    shape = [
        2,
        *(
            extent + sum(pads) - 2 * step
            for extent, pads, step in zip(image.shape[1:3], padding, dilation, strict=True)
        ),
    ]
    # In the interpreter, which takes its time, only the smallest images.
    compiled = compiled or height is None or height > 5
    (chosen,) = check(
        graph, {"x": image, "rest": draw(*shape, outside)}, compiled, 4e-6, choice=lambda found: found[-1]
    )
    assert chosen.name == "Winograd F(2x2, 3x3)"


@pytest.mark.parametrize(
    ("shape", "stride", "padding", "dilation", "tile"),
    [
        ((12, 16), (1, 1), ((5, 5), (7, 7)), (5, 7), True),
        ((16, 15), (2, 1), ((9, 8), (3, 12)), (9, 8), True),  # strides, and more padding behind than before
        ((7, 11), (1, 1), ((4, 4), (4, 4)), (4, 4), True),  # lines that only tiles of whole lines divide
        ((12, None), (1, 1), ((5, 5), (5, 5)), (5, 5), False),  # a width that only the run knows
    ],
)
def test_tiles_of_pixels_for_widely_dilated_windows(
    shape: tuple[int, int | None],
    stride: tuple[int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
    dilation: tuple[int, int],
    tile: bool,
    draw: Draw,
    compiled: bool,
) -> None:
    b = GraphBuilder("dilated")
    across = b.symbol("width", 1, 40) if shape[1] is None else shape[1]
    x, w = b.input("x", float32, (2, shape[0], across, 24)), b.constant(draw(20, 24, 3, 3))
    attributes: dict[str, Any] = {"strides": stride, "padding": padding, "dilation": dilation, "layout": "NHWC"}
    b.output(b.op("conv", [x, w, b.constant(draw(20))], groups=1, **attributes), "y")
    graph = b.finish()
    (found, *_) = candidates(fuse(graph).groups[0], graph, tactics_support.TARGET)
    assert found.name == "implicit matmul"
    assert ("tiles" in found.reasons) == tile
    check(graph, {"x": draw(2, shape[0], shape[1] or 13, 24)}, compiled, choice=lambda found: found[0])


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(("features", "groups"), [(48, 1), (48, 2), (48, 16), (64, 2)])  # 64: whole panels, no padding
def test_convolution_with_run_time_weights(features: int, groups: int, draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("convolution")
    x, w = b.input("x", float32, (2, 5, 6, 16)), b.input("w", float32, (features, 16 // groups, 3, 2))
    attributes: dict[str, Any] = {"strides": (1, 2), "padding": ((1, 1), (0, 1)), "dilation": (1, 1), "layout": "NHWC"}
    b.output(b.op("conv", [x, w], groups=groups, **attributes))
    check(b.finish(), {"x": draw(2, 5, 6, 16), "w": draw(features, 16 // groups, 3, 2)}, compiled)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_windows_along_a_line(layout: str, draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("line")
    n = b.symbol("n", 1, 9)
    shape = (20, 16) if layout == "NHWC" else (16, 20)
    x, w = b.input("x", float32, (n, *shape)), b.constant(draw(24, 16, 3))
    windows: dict[str, Any] = {"strides": (2,), "padding": ((1, 1),), "dilation": (1,), "layout": layout}
    b.output(b.op("conv", [x, w, b.constant(draw(24))], **windows))
    b.output(b.op("max_pool", [x], kernel=(3,), **windows))
    b.output(b.op("average_pool", [x], kernel=(3,), count_include_pad=True, **windows))
    check(b.finish(), {"x": draw(2, *shape)}, compiled)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pools(layout: str, ceil_mode: bool, draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("pools")
    n = b.symbol("n", 1, 8)
    shape = (9, 8, 20) if layout == "NHWC" else (20, 9, 8)
    x = b.input("x", float32, (n, *shape))
    window: dict[str, Any] = {
        "kernel": (3, 3),
        "strides": (2, 2),
        "padding": ((1, 1), (1, 1)),
        "dilation": (1, 1),
        "ceil_mode": ceil_mode,
        "layout": layout,
    }
    b.output(b.op("max_pool", [x], **window))
    b.output(b.op("average_pool", [x], **window))
    b.output(b.op("average_pool", [x], count_include_pad=True, **window))
    check(b.finish(), {"x": draw(2, *shape)}, compiled)


def test_epilogues_of_tiles_are_cheaper(rng):
    """What does not depend on the row is masked by columns; activations are those of 16-bit results, where they are."""
    for dtype, rounded in ((float16, True), (float32, False)):
        b = GraphBuilder("product")
        x, r = b.input("x", dtype, (32, 16)), b.input("r", dtype, (32, 24))
        w, bias = (b.constant(np.ones(shape, dtype.numpy)) for shape in ((16, 24), (24,)))
        b.output(b.op("add", [b.op("gelu", [b.op("add", [b.op("matmul", [x, w]), bias])]), r]), "y")
        graph = b.finish()
        (group,) = fuse(graph).groups
        slots = epilogue_slots(group, graph)
        found = slots.rounded(24)
        assert (found.cost.column_loads, found.cost.element_loads, found.cost.activations) == (1, 1, 1)
        text = found.function.source
        assert text.count("mask=column < 24") == 1 and text.count("mask=mask") == 1
        assert ("gelu_of_half(" in text) == rounded and "gelu(" in slots.function.source
        assert slots.rounded(24).function is found.function


def test_what_depends_on_the_row_by_division_is_masked_by_rows():
    """Tiles reach beyond the last row, whose quotient would be a row that the residual does not have."""
    sums, r = Value("sums", float16, (24, 24)), Value("r", float16, (8, 1, 24))
    lines, y = Value("lines", float16, (8, 3, 24)), Value("y", float16, (8, 3, 24))
    nodes = (Node("reshape", [sums], [lines], {"shape": lines.shape}), Node("add", [lines, r], [y], {}))
    epilogue = Chain(nodes, sums, y, {}).written(ExtraReferences(), columns=24, rounded=True)
    assert "//" in epilogue.function.source and "mask=column" not in epilogue.function.source
    assert (epilogue.cost.column_loads, epilogue.cost.element_loads) == (0, 1)


def test_runs_of_pixels_whose_windows_leave_their_line():
    """As looking at every run says, without looking at every run of a line that is absurdly long."""
    for width, across, run, stride, size, pad in itertools.product(
        (3, 8), (0, 1, 5, 9), (1, 4), (1, 2), (1, 3), (0, 2)
    ):
        windows = {"STRIDE_X": stride, "KERNEL_X": size, "DILATION_X": 1, "PAD_X": pad}
        reach = (run - 1) * stride + size - 1
        lefts = range(-pad, across * stride - pad, run * stride)
        leaves = [left < 0 or left + reach >= width for left in lefts]
        expected = "any" if any(leaves[1:-1]) else "ends" if any(leaves) else "none"
        assert run_edges(width, across, run, windows) == expected
    assert run_edges(2**40, 2**40, 1, {"STRIDE_X": 1, "KERNEL_X": 3, "DILATION_X": 1, "PAD_X": 1}) == "ends"


@pytest.mark.parametrize(("taps", "wanted"), [(32, True), (400, False)])
def test_long_lines_of_taps_are_not_written_out(taps: int, wanted: bool) -> None:
    """The window of a Fourier transform that an exporter wrote as a convolution: code for each tap takes minutes."""
    b = GraphBuilder("frames")
    x, w = b.input("x", float32, (1, 1, 1600, 1)), b.constant(np.zeros((16, 1, 1, taps), np.float32))
    padding, ones = ((0, 0), (0, 0)), (1, 1)
    b.output(b.op("conv", [x, w], strides=(1, 160), padding=padding, dilation=ones, groups=1, layout="NHWC"))
    (node,) = b.finish().nodes
    assert is_direct(node, x, w) is wanted
