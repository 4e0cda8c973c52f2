"""Products and convolutions of float32 in engines for GPUs: which tiles, and the depth divided where tiles are few."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import float16, float32
from tilewright.engine.engine import Engine
from tilewright.errors import CompilationError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Node
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.reference import run
from tilewright.library.matmul import simt_transposed
from tilewright.library.matmul.problem import MatmulProblem
from tilewright.library.matmul.simt_tiles import SimtTile, ranked_parts, ranked_tiles, seconds_of
from tilewright.library.select import candidates
from tilewright.runtime.plan import TiledReference
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.target import ARCHITECTURES, NvidiaTarget

GPU = NvidiaTarget.named("sm_90a").machine()


def linear(rng: np.random.Generator, rows: int, depth: int, columns: int, transposed: bool) -> Graph:
    b = GraphBuilder("linear")
    x, r = b.input("x", float32, (rows, depth)), b.input("r", float32, (rows, columns))
    w = rng.standard_normal((columns, depth) if transposed else (depth, columns)).astype(np.float32)
    bias = b.constant(rng.standard_normal(columns).astype(np.float32))
    y = b.op("add", [b.op("matmul", [x, b.constant(w)], transpose_b=transposed), bias])
    b.output(b.op("add", [b.op("gelu", [y]), r]), "y")
    return b.finish()


def convolution(rng: np.random.Generator, channels: int, columns: int, residual: bool, images: int | str = 2) -> Graph:
    b = GraphBuilder("convolution")
    x = b.input("x", float32, (b.symbol("images", 1, 40) if images == "images" else images, 7, 6, channels))
    w = rng.standard_normal((columns, channels, 3, 3)).astype(np.float32)
    bias = b.constant(rng.standard_normal(columns).astype(np.float32))
    y = b.op(
        "conv", [x, b.constant(w), bias], layout="NHWC", strides=(1, 1), padding=((1, 1), (1, 1)),
        dilation=(1, 1), groups=1,
    )  # fmt: skip
    b.output(b.op("relu", [b.op("add", [y, b.input("r", float32, y.shape)]) if residual else y]), "y")
    return b.finish()


def built(graph: Graph, name: str) -> Engine:
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    assert name in {step.evidence.get("chosen") for step in engine.plan.steps}
    return engine


def check(engine: Engine, graph: Graph, rng: np.random.Generator, images: int = 2) -> None:
    """Compare with the reference.

    A sum of k products of normal numbers is about sqrt(k), and each addition rounds by at most 2**-24 of the sum: the
    errors of `depth` additions have a deviation below 2**-24 * depth / 2. Eight deviations are allowed.
    """
    inputs = {}
    for value in graph.inputs:
        shape = tuple(extent if isinstance(extent, int) else images for extent in value.shape)
        inputs[value.name] = rng.standard_normal(shape).astype(np.float32)
    found, exact = engine.run(inputs)["y"], run(graph, inputs)["y"]
    allowed = 2.0**-22 * max(depth_of(node) for node in graph.nodes) + 2.0**-22 * np.max(np.abs(exact))
    assert np.max(np.abs(found - exact)) <= allowed


def depth_of(node: Node) -> int:
    """The terms of each sum of a product or convolution; 0 for other nodes."""
    if node.op == "conv":
        return math.prod(extent for extent in node.inputs[1].shape[1:] if isinstance(extent, int))
    depth = node.inputs[0].shape[-1] if node.op == "matmul" else 0
    return depth if isinstance(depth, int) else 0


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(3, 1024, 130), (37, 2048, 96), (1, 1536, 8), (5, 1091, 40)])
def test_few_tiles_of_a_product_share_its_depth(
    driver: Driver, rng: np.random.Generator, rows: int, depth: int, columns: int, transposed: bool
) -> None:
    graph = linear(rng, rows, depth, columns, transposed)
    check(built(graph, "matmul in parts"), graph, rng)


@pytest.mark.parametrize("depth", [30_008, 30_003])
def test_few_tiles_of_16_bits_share_a_long_depth(driver: Driver, rng: np.random.Generator, depth: int) -> None:
    b = GraphBuilder("linear")
    x, w = b.input("x", float16, (5, depth)), b.input("w", float16, (24, depth))
    b.output(b.op("matmul", [x, w], transpose_b=True), "y")
    engine = built(b.finish(), "matmul in parts")
    inputs = {name: rng.standard_normal((rows, depth)).astype(np.float16) for name, rows in (("x", 5), ("w", 24))}
    exact = inputs["x"].astype(np.float64) @ inputs["w"].astype(np.float64).T
    assert np.max(np.abs(engine.run(inputs)["y"] - exact)) <= 2.0**-11 * np.max(np.abs(exact))


def test_operands_along_the_depth_are_turned(
    driver: Driver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants in the build, and the left operand by a launch ahead; where it would be copied in vectors."""
    monkeypatch.setattr(simt_transposed, "_LEAST_WORK", 1 << 16)
    for number in ("_BOTH_TURNED", "_LEFT_TURNED"):
        monkeypatch.setattr(simt_transposed, number, 0.01)
    for transposed, turned in ((True, "both operands"), (False, "the left operand")):
        graph = linear(rng, 44, 72, 136, transposed)
        engine = built(graph, "tiled matmul")
        assert [step.evidence["reasons"].get("turned") for step in engine.plan.steps] == [turned] * 2
        check(engine, graph, rng)
    steps = build(linear(rng, 45, 72, 136, True), "cuda:sm_90a", tuning=Tuning(effort=0)).plan.steps
    assert not any("turned" in candidate["label"] for step in steps for candidate in step.evidence["candidates"])


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("columns", [136, 1])
def test_a_transposed_left_operand_is_read_as_it_lies(
    driver: Driver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, columns: int, transposed: bool,
    constant: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(simt_transposed, "_LEAST_WORK", 1 << 16)
    monkeypatch.setattr(simt_transposed, "_RIGHT_TURNED", 0.01)
    b = GraphBuilder("transposed")
    x = b.op("permute", [b.input("x", float32, (72, 44))], order=(1, 0))
    shape = (columns, 72) if transposed else (72, columns)
    w = b.constant(rng.standard_normal(shape).astype(np.float32)) if constant else b.input("w", float32, shape)
    b.output(b.op("matmul", [x, w], transpose_b=transposed), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0))
    turned = transposed and columns > 1
    assert [step.evidence["reasons"].get("turned") for step in engine.plan.steps] == (
        ["the right operand"] * (1 if constant else 2) if turned else [None]
    )
    check(engine, graph, rng)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("channels", "columns"), [(160, 40), (100, 64)])
def test_few_pixels_of_a_convolution_share_its_depth(
    driver: Driver, rng: np.random.Generator, channels: int, columns: int, residual: bool
) -> None:
    """Also where blocks of the depth are of several taps, and the last part has fewer of them."""
    graph = convolution(rng, channels, columns, residual)
    check(built(graph, "matmul in parts"), graph, rng)


def test_ranges_of_a_number_of_images_have_tiles_of_their_own(driver: Driver, rng: np.random.Generator) -> None:
    graph = convolution(rng, 64, 128, True, "images")
    engine = built(graph, "implicit matmul")
    (choices,) = (step.choices for step in engine.plan.steps if len(step.choices) > 1)
    assert [choice.at_most for choice in choices] == [1, 8, 32, None]
    for images in (1, 2, 9, 33):
        check(engine, graph, rng, images)


def exact_product(rows: int, columns: int, depth: int) -> MatmulProblem:
    return MatmulProblem(rows, columns, depth, 1, float32, float32, exact=True)


def test_large_products_take_the_largest_rectangles_of_a_thread() -> None:
    tile, seconds = ranked_tiles((exact_product(4096, 4096, 4096),), GPU)[0]
    assert tile.rows * tile.columns == 128 * tile.threads
    assert 2 * 4096**3 / seconds == pytest.approx(46e12, rel=0.1)  # an H100 reached 46
    assert ranked_parts(exact_product(4096, 4096, 4096), GPU)[0][2] > seconds


MEASURED: list[tuple[Any, SimtTile, float]] = [  # microseconds on an H200
    ((4096, 4096, 4096), SimtTile(64, 128, 32, 128), 3062), ((4096, 4096, 4096), SimtTile(64, 64, 32, 128), 3462),
    ((512, 4096, 4096), SimtTile(32, 64, 32, 64), 442), ((128, 512, 4608), SimtTile(32, 32, 32, 128), 70),
    ((128, 512, 4608), SimtTile(64, 64, 16, 128), 184), ((1024, 1024, 1024), SimtTile(64, 64, 32, 128), 64),
    ((1024, 1024, 1024), SimtTile(64, 128, 32, 128), 61), ((16, 4096, 4096), SimtTile(16, 32, 32, 64), 67),
    ((1024, 1024, 1024), SimtTile(128, 128, 32, 256), 104),
    # On an H100, as fast without tensor cores.
    ((4096, 4096, 4096), SimtTile(128, 128, 32, 128), 2965), ((4096, 4096, 4096), SimtTile(64, 128, 16, 64), 2991),
    ((2048, 2048, 2048), SimtTile(128, 128, 32, 128), 382), ((2048, 2048, 2048), SimtTile(64, 64, 16, 32), 401),
    # With as many CTAs on every SM.
    ((1024, 768, 768), SimtTile(64, 32, 32, 64), 41.3), ((1024, 768, 768), SimtTile(16, 64, 32, 32), 41.6),
    ((1024, 2304, 768), SimtTile(64, 32, 32, 64), 102.4), ((300, 1536, 768), SimtTile(32, 32, 32, 32), 25.2),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "tile", "measured"), MEASURED)
def test_estimates_are_near_what_was_measured(sizes: tuple[int, int, int], tile: SimtTile, measured: float) -> None:
    assert seconds_of(tile, exact_product(*sizes), GPU) * 1e6 == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_sm_holds_as_many_ctas_as_a_bound_says(architecture: str) -> None:
    target = NvidiaTarget.named(architecture)
    for count in range(1, 13):
        taken = target.least_shared_bytes(count) + target.reserved_shared_bytes
        assert count * taken <= target.shared_bytes_per_multiprocessor < (count + 1) * taken
        assert target.least_shared_bytes(count) <= target.shared_bytes
    assert target.least_shared_bytes(0) == target.least_shared_bytes(200) == 0


def test_a_bound_on_ctas_is_a_number() -> None:
    assert NvidiaOptions.of_launch({"ctas_per_sm": None}).ctas_per_sm == 0
    for wrong in (-1, 1.5, "two"):
        with pytest.raises(CompilationError, match="ctas_per_sm is 1 or more"):
            NvidiaOptions.of_launch({"ctas_per_sm": wrong})


@pytest.mark.parametrize(("rows", "shared"), [(1024, True), (65536, False), ("rows", False)])
def test_ctas_of_grids_that_fit_the_gpu_are_spread_evenly(rng: np.random.Generator, rows: int | str, shared) -> None:
    """768 CTAs are 6 for each of 132 SMs, which is less than fit; of many rounds, or an unknown number, nothing is
    bound."""
    b = GraphBuilder("spread")
    x = b.input("x", float32, (b.symbol("rows", 1, 300) if rows == "rows" else rows, 768))
    b.output(b.op("matmul", [x, b.constant(rng.standard_normal((768, 768)).astype(np.float32))]), "y")
    graph, target = b.finish(), NvidiaTarget.named("sm_90a")
    (group,) = fuse(graph).groups
    call = candidates(group, graph, target)[0].stages[0].calls[-1]
    bound = call.options_for(target).get("ctas_per_sm", 0)
    assert (0 < target.least_shared_bytes(bound)) == shared
    assert "ctas_per_sm" not in call.options_for(NvidiaTarget.named("sm_80"))  # its kernels wait for each other


def test_rows_that_begin_anywhere_cost_copies_of_single_elements() -> None:
    """An H100 takes 7.4 ms for 8205 x 2949 x 5921 with 64 sums a thread, 7.9 ms and more with 128 in two warps."""
    odd = replace(exact_product(8205, 5921, 2949), singly=(True, True))
    assert seconds_of(SimtTile(64, 128, 16, 128), odd, GPU) < seconds_of(SimtTile(64, 128, 32, 64), odd, GPU)
    assert seconds_of(SimtTile(64, 128, 16, 128), odd, GPU) * 1e3 == pytest.approx(7.4, rel=0.15)


def test_parts_of_a_batch_are_all_of_its_products() -> None:
    one, many = (replace(exact_product(128, 4096, 4608), batches=batches) for batches in (1, 32))
    assert ranked_parts(many, GPU)[0][2] > 16 * ranked_parts(one, GPU)[0][2]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_has_tiles(architecture: str) -> None:
    gpu = NvidiaTarget.named(architecture).machine()
    for sizes in ((1, 8, 16), (98, 512, 4608), (8192, 8192, 8192)):
        assert ranked_tiles((exact_product(*sizes),), gpu)
    parts = ranked_parts(exact_product(98, 512, 4608), gpu)
    assert parts[0][2] < ranked_tiles((exact_product(98, 512, 4608),), gpu)[0][1]


@pytest.mark.parametrize(
    ("batches", "rows", "depth", "columns", "weights"),
    [(0, 200, 96, 72, "columns first"), (0, "rows", 68, 40, "depth first"), (3, 33, 36, 48, "computed")],
)
def test_tensor_copies_and_tf32(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rng: np.random.Generator, batches, rows, depth,
    columns, weights,
) -> None:  # fmt: skip
    """With the precision tf32 the Hopper product takes float32, which copies round; constants lie along the depth."""
    b = GraphBuilder("tf32")
    lead = (batches,) if batches else ()
    x = b.input("x", float32, (*lead, b.symbol("rows", 1, 300) if rows == "rows" else rows, depth))
    shape = (depth, columns) if weights == "depth first" else (columns, depth)
    w = b.input("w", float32, (*lead, *shape)) if weights == "computed" else b.constant(
        rng.standard_normal(shape).astype(np.float32)
    )  # fmt: skip
    product = b.op("matmul", [x, w], transpose_b=weights != "depth first")
    b.output(b.op("relu", [b.op("add", [product, b.constant(rng.standard_normal(columns).astype(np.float32))])]), "y")
    graph = b.finish()
    names = {step.evidence["chosen"] for step in build(graph, "cuda:sm_90a", tuning=Tuning(effort=0)).plan.steps}
    assert not any("hopper" in name for name in names)  # exactly, by multiply-adds
    monkeypatch.setattr("tilewright.library.matmul.simt._plain", lambda *arguments: [])
    engine = build(graph, "cuda:sm_90a", precision="tf32", tuning=Tuning(effort=0))
    engine.save(tmp_path / "e.tw")
    (step,) = Engine.read(tmp_path / "e.tw").plan.steps
    assert step.evidence["chosen"].startswith("hopper")
    maps = [each.value for each in step.choices[0].arguments if isinstance(each.value, TiledReference)]
    assert [each.rounded for each in maps] == [True, True, False, False]
    check(engine, graph, rng, images=77)
