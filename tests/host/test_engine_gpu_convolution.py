"""Convolutions in engines for GPUs, on the stand-in: the Hopper kernel is interpreted, others run on this CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import float16
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.reference import run
from tilewright.library.candidate import Candidate
from tilewright.library.convolution.hopper.candidates import hopper_rows
from tilewright.library.convolution.hopper.folded_pixels import folded_pixels
from tilewright.library.pool import simt


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def window(kernel: Any = 3, stride: Any = 1, pad: Any = 0, dilation: Any = 1, groups: int = 1) -> dict[str, Any]:
    return {
        "kernel": pair(kernel), "strides": pair(stride), "padding": tuple((p, p) for p in pair(pad)),
        "dilation": pair(dilation), "groups": groups,
    }  # fmt: skip


def model(
    rng: np.random.Generator, batch: int | str, size: tuple[int, int], channels: int, outputs: int,
    kernel: tuple[int, int], residual: bool = False, **attributes: Any,
) -> Graph:  # fmt: skip
    """relu(conv(x) + bias) of images in channels-first order, or relu(conv(x) + bias + r) of channels-last ones."""
    b = GraphBuilder("convolution")
    images = b.symbol("batch", 1, 9) if batch == "batch" else batch
    x = b.input("x", float16, (images, *size, channels) if residual else (images, channels, *size))
    w = rng.standard_normal((outputs, channels // attributes["groups"], *kernel)) / np.sqrt(channels * np.prod(kernel))
    bias = b.constant(rng.standard_normal(outputs).astype(np.float16))
    y = b.op("conv", [x, b.constant(w.astype(np.float16)), bias], layout="NHWC" if residual else "NCHW", **attributes)
    if residual:
        y = b.op("add", [y, b.input("r", float16, y.shape)])
    b.output(b.op("relu", [y]), "y")
    return b.finish()


def check(graph: Graph, rng: np.random.Generator, batches: tuple[int, ...], chosen: str) -> None:
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    assert chosen in {step.evidence.get("chosen") for step in engine.plan.steps}
    for batch in batches:
        inputs = {
            value.name: rng.standard_normal((batch, *value.shape[1:])).astype(np.float16) for value in graph.inputs
        }
        exact = run(graph, inputs)["y"]
        found = engine.run(inputs)["y"].astype(np.float64)
        assert np.max(np.abs(found - exact)) <= 2.0**-9 * np.max(np.abs(exact))


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "3x3": ({"channels": 40, "outputs": 72, "size": (9, 10)}, window(3, pad=1)),
    "strided": ({"channels": 64, "outputs": 24, "size": (13, 14)}, window(3, stride=2, pad=1)),
    "strided 1x1": ({"channels": 64, "outputs": 64, "size": (14, 13)}, window(1, stride=2)),
    "1x1": ({"channels": 136, "outputs": 40, "size": (7, 7)}, window(1)),
    "dilated": ({"channels": 16, "outputs": 16, "size": (12, 12)}, window((3, 5), pad=(2, 4), dilation=2)),
    "grouped": ({"channels": 48, "outputs": 32, "size": (8, 9)}, window(3, pad=1, groups=2)),
    "deep": ({"channels": 256, "outputs": 64, "size": (7, 7)}, window(3, pad=1)),
    "few channels": ({"channels": 3, "outputs": 32, "size": (20, 22)}, window(7, stride=2, pad=3)),
    "patches": ({"channels": 3, "outputs": 48, "size": (16, 24)}, window(4, stride=4)),
    "patches of many channels": ({"channels": 24, "outputs": 40, "size": (12, 10)}, window(2, stride=2)),
    "large patches": ({"channels": 3, "outputs": 32, "size": (48, 32)}, window(16, stride=16)),
    "patches in the corner": ({"channels": 8, "outputs": 16, "size": (14, 13)}, window(4, stride=4)),
    "lines": ({"channels": 3, "outputs": 16, "size": (9, 11)}, window(3, pad=(0, 1))),
}


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("residual", [False, True])
def test_hopper_convolutions(
    driver: Driver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, name: str, residual: bool
) -> None:
    monkeypatch.setattr("tilewright.library.convolution.simt.candidates.few_channels", lambda *arguments: [])
    sizes, attributes = CASES[name]
    graph = model(rng, 2, residual=residual, **sizes, **attributes)
    check(graph, rng, (2,), "hopper convolution")


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", ["3x3", "1x1", "few channels"])
def test_any_number_of_images(
    driver: Driver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("tilewright.library.convolution.simt.candidates.few_channels", lambda *arguments: [])
    sizes, attributes = CASES[name]
    check(model(rng, "batch", **sizes, **attributes), rng, (1, 5), "hopper convolution")


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "stride", "pad"),
    [(8, 16, (9, 9), 1, 4), (1, 16, (5, 7), 1, 3), (2, 24, (3, 3), 2, 1), (16, 8, (3, 5), 1, (1, 2)),
     (3, 32, (7, 7), 4, 3), (8, 40, (1, 11), (1, 2), (0, 5))],
)  # fmt: skip
def test_lines_of_windows_as_runs_by_weights_that_are_inputs(
    driver: Driver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, channels: int, outputs: int,
    kernel: tuple[int, int], stride: Any, pad: Any,
) -> None:  # fmt: skip
    """Of few channels, with a copy of the image that is the only one of it."""
    monkeypatch.setattr("tilewright.library.convolution.simt.candidates.is_mostly_zeros", lambda *arguments: False)
    b = GraphBuilder("runs")
    x = b.input("x", float16, (2, channels, 17, 19))
    w = b.input("w", float16, (outputs, channels, *kernel))
    attributes = {name: value for name, value in window(kernel, stride, pad).items() if name != "kernel"}
    b.output(b.op("conv", [x, w], **attributes), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    assert "hopper convolution" in {step.evidence.get("chosen") for step in engine.plan.steps}
    assert len(engine.plan.steps) == 4  # weights, image, product, and the result to channels first
    inputs = {value.name: rng.standard_normal(value.shape).astype(np.float16) for value in graph.inputs}
    exact = run(graph, inputs)["y"]
    found = engine.run(inputs)["y"].astype(np.float64)
    assert np.max(np.abs(found - exact)) <= 2.0**-9 * np.max(np.abs(exact))


def test_one_channel_by_weights_that_are_inputs_is_no_copy_of_mostly_zeros(
    driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder("one channel")
    x, w = b.input("x", float16, (2, 1, 40, 40)), b.input("w", float16, (16, 1, 9, 9))
    b.output(b.op("conv", [x, w], strides=(1, 1), padding=((4, 4), (4, 4)), dilation=(1, 1)), "y")
    check(b.finish(), rng, (), "implicit matmul")


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize(  # every pair of values
    ("batch", "residual", "stride"), [(2, False, 1), (2, True, 2), ("batch", False, 2), ("batch", True, 1)]
)
def test_few_channels(driver: Driver, rng: np.random.Generator, batch: int | str, residual: bool, stride: int) -> None:
    graph = model(rng, batch, (9, 20), 3, 24, residual=residual, **window(3, stride=stride, pad=1))
    check(graph, rng, (2,) if batch == 2 else (1, 3), "few channels")


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize(("stride", "config"), [(1, (1, 1, 8)), (2, (1, 4, 8)), (1, (2, 7, 4)), (2, (2, 7, 4))])
def test_depthwise(
    driver: Driver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, stride: int, config: tuple[int, int, int]
) -> None:
    monkeypatch.setattr("tilewright.library.convolution.simt.depthwise._configs", lambda size, elements: [config])
    graph = model(rng, 2, (11, 12), 40, 40, **window(5, stride=stride, pad=2, groups=40))
    check(graph, rng, (2,), "depthwise runs")


def test_dilated_depthwise(driver: Driver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.library.convolution.simt.depthwise._configs", lambda size, elements: [(2, 3, 4)])
    attributes = window(3, pad=2, dilation=2, groups=24)
    check(model(rng, "batch", (9, 13), 24, 24, residual=True, **attributes), rng, (1, 3), "depthwise runs")


@pytest.mark.parametrize(("kernel", "groups"), [(3, 24), (7, 8)])
def test_groups_of_few_channels_stay_channels_first(
    driver: Driver, rng: np.random.Generator, kernel: int, groups: int
) -> None:
    graph = model(rng, "batch", (9, 13), 24, 24, **window(kernel, pad=kernel // 2, groups=groups))
    check(graph, rng, (1, 3), "few planes")


@pytest.mark.parametrize("op", ["max_pool", "average_pool"])
def test_pools(driver: Driver, rng: np.random.Generator, op: str) -> None:
    b = GraphBuilder("pool")
    x = b.input("x", float16, (b.symbol("batch", 1, 9), 24, 13, 12))
    attributes = window(3, stride=2, pad=1)
    del attributes["groups"]
    if op == "average_pool":
        attributes["count_include_pad"] = False
    b.output(b.op(op, [x], layout="NCHW", **attributes), "y")
    check(b.finish(), rng, (1, 3), "windows")


@pytest.mark.parametrize(("line", "gathered"), [(2048, 4096), (32, 64)])
def test_means_of_large_windows(
    driver: Driver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, line: int, gathered: int
) -> None:
    """Of whole lines, and of lines in parts."""
    monkeypatch.setattr(simt, "_LINE", line)
    monkeypatch.setattr(simt, "_MOST_GATHERED", gathered)
    b = GraphBuilder("means")
    x = b.input("x", float16, (b.symbol("batch", 1, 9), 3, 19, 53))
    windows = {"strides": (2, 3), "padding": ((2, 2), (3, 1)), "dilation": (1, 2), "count_include_pad": False}
    b.output(b.op("relu", [b.op("average_pool", [x], layout="NCHW", kernel=(5, 6), **windows)]), "y")
    check(b.finish(), rng, (1, 3), "lines")


@pytest.mark.parametrize(
    ("shape", "axes", "steps"), [((2, 40, 56, 24), (1, 2), 2), ((3, 7, 7, 72), (1, 2), 1), ((5000, 16), (0,), 2)]
)
@pytest.mark.parametrize("op", ["reduce_mean", "reduce_max"])
def test_many_rows_to_few_numbers(
    driver: Driver, rng: np.random.Generator, op: str, shape: tuple[int, ...], axes: tuple[int, ...], steps: int
) -> None:
    """What squeeze-and-excite layers begin with; in two launches where few programs would have all the work."""
    b = GraphBuilder("rows")
    x = b.input("x", float16, shape)
    y = b.op(op, [b.op("multiply", [x, x])], axes=axes, keepdims=False)
    b.output(b.op("sigmoid", [b.op("subtract", [y, 1.0])]), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    assert len(engine.plan.steps) == steps
    inputs = {"x": rng.standard_normal(shape).astype(np.float16)}
    exact = run(graph, inputs)["y"]
    assert np.max(np.abs(engine.run(inputs)["y"] - exact)) <= 2.0**-10


def preferred_pixels(*arguments: Any) -> list[Candidate]:
    """Rows of several pixels, whatever the estimates say."""
    return [replace(found, cost=replace(found.cost, seconds=0.0)) for found in folded_pixels(*arguments)]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("batch", [2, "batch"])
def test_pixels_in_rows_of_products(
    driver: Driver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, residual: bool, batch: int | str
) -> None:
    monkeypatch.setattr("tilewright.library.convolution.simt.candidates.folded_pixels", preferred_pixels)
    graph = model(rng, batch, (5, 12), 16, 24, residual=residual, **window(1))
    check(graph, rng, (2,) if batch == 2 else (1, 3), "4 pixels a row as hopper matmul")


def preferred_rows(*arguments: Any) -> list[Candidate]:
    return [replace(found, cost=replace(found.cost, seconds=0.0)) for found in hopper_rows(*arguments)]


@pytest.mark.parametrize(
    ("size", "attributes", "pixels", "batch"),
    [
        ((20, 24), window(7, stride=2, pad=3), 2, "batch"),
        ((9, 22), window(3, stride=2, pad=(1, 2)), 4, 2),
        ((6, 16), window(3, pad=1), 8, 2),
    ],
)
def test_few_channels_in_rows_of_pixels(
    driver: Driver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, size: Any, attributes: Any,
    pixels: int, batch: int | str,
) -> None:  # fmt: skip
    monkeypatch.setattr("tilewright.library.convolution.simt.candidates.hopper_rows", preferred_rows)
    graph = model(rng, batch, size, 3, 24, residual=pixels == 4, **attributes)
    check(graph, rng, (2,) if batch == 2 else (1, 3), f"hopper convolution, {pixels} pixels a row")


@pytest.mark.parametrize(
    ("size", "channels", "attributes", "pixels", "batch"),
    [
        ((10, 14), 24, window(3), 4, "batch"),
        ((9, 19), 40, window((4, 5), stride=2), 8, 2),
        ((7, 12), 16, window((3, 5), pad=(2, 0)), 8, 2),
        ((9, 16), 8, window(3, pad=1), 4, 2),
    ],
)
def test_narrow_pixels_in_rows(
    driver: Driver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, size: Any, channels: int,
    attributes: Any, pixels: int, batch: int | str,
) -> None:  # fmt: skip
    """The image is read in place if windows stay within its lines, else from a copy."""
    monkeypatch.setattr("tilewright.library.convolution.simt.candidates.hopper_rows", preferred_rows)
    graph = model(rng, batch, size, channels, 24, **attributes)
    check(graph, rng, (2,) if batch == 2 else (1, 3), f"hopper convolution, {pixels} pixels a row")
