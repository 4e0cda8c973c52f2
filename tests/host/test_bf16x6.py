"""float32 products of three bfloat16 parts a number: the parts, and the Hopper kernel in the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright.language as tl
from tests.host.cuda_stand_in import Driver
from tests.host.hopper_support import traced_bf16x6
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import bfloat16, float32
from tilewright.engine.engine import Engine
from tilewright.graph.build import GraphBuilder
from tilewright.graph.passes.fuse import fuse
from tilewright.ir.interpreter import run
from tilewright.ir.verifier import verify
from tilewright.library import packing
from tilewright.library.matmul.hopper import bf16x6
from tilewright.library.matmul.hopper.bf16x6_kernel import split_float32
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.library.select import candidates
from tilewright.passes.pipeline import simplify
from tilewright.targets.nvidia.target import NvidiaTarget

LIMITS = np.finfo(np.float32)
CONFIG = MatmulConfig(BM=128, BN=64, BK=64, STAGES=2, GROUP=2, PARTS=3, OUTPUT=tl.float32)
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, LIMITS.max, -LIMITS.max, 3.39e38, LIMITS.tiny, 1e-45, 1 + 2**-23)


def line_of(columns: int) -> int:
    return -(-columns // 8) * 8


def planes_of(array: np.ndarray) -> np.ndarray:
    rows, columns = array.shape[-2:]
    return packing.apply(packing.parts_recipe(rows, columns, line_of(columns)), array)


def product(config: MatmulConfig, a: np.ndarray, b: np.ndarray, orders: int = 1) -> np.ndarray:
    """The kernel's product of [batches, M, K] and [batches, N, K], or turned as the config says."""
    function = simplify(traced_bf16x6(config))
    verify(function)
    batches, depth, rows = a.shape if config.A_TRANSPOSED else (a.shape[0], a.shape[2], a.shape[1])
    columns = b.shape[2] if config.B_TRANSPOSED else b.shape[1]
    left, right = planes_of(a), planes_of(b)
    maps = [each.reshape(-1, *each.shape[2:])[..., : x.shape[-1]] for each, x in ((left, a), (right, b))]
    for order in range(orders):
        c = np.full((batches, rows, columns), 7, np.float32)
        arguments = [*maps, left, right, c, rows, columns, depth, left.shape[-1], right.shape[-1], batches]
        run(function, arguments, config.grid(rows, columns, batches, 4), order=order)
    return c


def operands(rng: np.random.Generator, config: MatmulConfig, sizes: tuple[int, int, int, int]) -> Any:
    batches, rows, columns, depth = sizes
    a = rng.standard_normal((batches, rows, depth)).astype(np.float32)
    b = rng.standard_normal((batches, columns, depth)).astype(np.float32)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (a, b)]
    given = turned[0] if config.A_TRANSPOSED else a, turned[1] if config.B_TRANSPOSED else b
    return a, b, given


def test_parts_add_up_to_their_number() -> None:
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 1 << 32, 20000, dtype=np.uint32).view(np.float32).reshape(1, 1, -1)
    planes = packing.apply(packing.parts_recipe(1, 20000, 20000), numbers).astype(np.float64)[0, :, 0]
    with np.errstate(invalid="ignore"):
        sums, numbers = planes.sum(0), numbers[0, 0].astype(np.float64)
    finite = np.isfinite(numbers)
    np.testing.assert_array_equal(np.isnan(sums), np.isnan(numbers))
    large = finite & (np.abs(numbers) >= 2.0**-110)
    np.testing.assert_array_equal(sums[large], numbers[large])
    assert np.abs(sums - numbers)[finite].max() <= 2.0**-134
    assert np.all(np.abs(planes[1][finite]) <= 2.0**-8 * np.abs(planes[0][finite]) * (1 + 2.0**-7) + 2.0**-134)


def test_constants_come_back(rng: np.random.Generator) -> None:
    numbers = rng.standard_normal((2, 5, 7)).astype(np.float32)
    numbers[0, 0, :5] = -0.0, 0.0, np.inf, LIMITS.max, 2.0**-110
    recipe = packing.parts_recipe(5, 7, 8)
    assert packing.gives_back(recipe, numbers)
    back = packing.invert(recipe, packing.apply(recipe, numbers), numbers.shape)
    np.testing.assert_array_equal(back.view(np.uint32), numbers.view(np.uint32))
    for lost in (np.nan, 1e-45, 2.0**-111):
        numbers[1, 1, 1] = lost
        assert not packing.gives_back(recipe, numbers)


@pytest.mark.parametrize(
    ("count", "rows", "columns", "line"), [(1, 700, 4099, 4104), (3, 1, 90000, 90000), (40, 9, 16, 16)]
)
def test_blocks_of_large_constants(count: int, rows: int, columns: int, line: int, rng: np.random.Generator) -> None:
    """By threads and by blocks, one of which has numbers that are not finite."""
    numbers = rng.standard_normal((count, rows, columns)).astype(np.float32)
    planes = packing.apply(packing.parts_recipe(rows, columns, line), numbers)
    high = numbers.astype(bfloat16.numpy)
    rest = numbers - high.astype(np.float32)
    middle = rest.astype(bfloat16.numpy)
    low = (rest - middle.astype(np.float32)).astype(bfloat16.numpy)
    for part, expected in enumerate((high, middle, low)):
        np.testing.assert_array_equal(planes[:, part, :, :columns].view(np.uint16), expected.view(np.uint16))
    assert not planes[..., columns:].astype(np.float32).any()
    numbers[-1, -1, -1] = np.inf
    changed = packing.apply(packing.parts_recipe(rows, columns, line), numbers)
    found = changed[-1, :, -1, columns - 1].astype(np.float32)
    np.testing.assert_array_equal(found, [np.inf, 0, 0])
    changed[-1, :, -1, columns - 1] = planes[-1, :, -1, columns - 1]
    np.testing.assert_array_equal(changed.view(np.uint16), planes.view(np.uint16))


@pytest.mark.parametrize("turned", [False, True])
def test_a_kernel_splits_as_the_build_does(turned: bool) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 1 << 32, (2, 21, 37), dtype=np.uint32).view(np.float32)
    x[1, 5, : len(SPECIAL)] = SPECIAL
    batch, row, column = (21 * 37, 1, 21) if turned else (21 * 37, 37, 1)
    lines = x.reshape(2, 37, 21).swapaxes(1, 2) if turned else x
    expected = planes_of(np.ascontiguousarray(lines))
    planes = np.zeros(expected.shape, bfloat16.numpy)
    types = {"x": "*f32", "planes": "*bf16", **dict.fromkeys(("rows", "columns"), "i32")}
    types |= dict.fromkeys(("x_batch", "x_row", "x_column", "line"), "i32")
    function = simplify(split_float32.trace(types, {"BLOCK_R": 8, "BLOCK_C": 32}))
    run(function, [x, planes, 21, 37, batch, row, column, 40], (2 * 3 * 2, 1, 1))
    np.testing.assert_array_equal(planes.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (CONFIG, (1, 200, 131, 203)),
        (CONFIG._replace(BM=64, CONSUMERS=1, BN=32, STAGES=3), (1, 66, 40, 1100)),
        (CONFIG._replace(SHARE_B=2, LAG=1), (1, 300, 72, 136)),
        (CONFIG._replace(SHARE_A=2, DEPENDENT=True), (1, 140, 200, 136)),
        (CONFIG._replace(A_TRANSPOSED=True, B_TRANSPOSED=True, BATCHED=True), (2, 133, 67, 70)),
        (CONFIG._replace(BM=64, CONSUMERS=1, B_TRANSPOSED=True), (1, 67, 90, 50)),
    ],
)
def test_products(config: MatmulConfig, sizes: tuple[int, int, int, int]) -> None:
    a, b, given = operands(np.random.default_rng(5), config, sizes)
    found = product(config, *given, orders=2)
    exact = a.astype(np.float64) @ b.astype(np.float64).swapaxes(1, 2)
    scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).swapaxes(1, 2)
    assert np.all(np.abs(found - exact) <= 2.0**-22 * scale)


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_not_finite(turned: bool) -> None:
    config = CONFIG._replace(A_TRANSPOSED=turned, B_TRANSPOSED=turned)
    a, b, _ = operands(np.random.default_rng(6), CONFIG, (1, 70, 66, 70))
    a[0, 3, 5], a[0, 4, 6], a[0, 60, 7], a[0, 61, 8] = np.inf, -np.inf, np.nan, LIMITS.max
    b[0, 40, 9], b[0, 41, 8] = np.inf, LIMITS.max
    b[0, 7] = 0.0
    a[0, :60, 8] *= 0.1  # products by the largest number do not overflow before they are added
    with np.errstate(all="ignore"):
        expected = a[0] @ b[0].T
    given = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (a, b)] if turned else (a, b)
    found = product(config, *given)[0]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-5, atol=1e-4)
    assert np.isnan(found).any() and np.isinf(found).any()


# In engines ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any size is expected to be fastest in parts."""
    ranked = bf16x6.ranked_configs
    monkeypatch.setattr(bf16x6, "ranked_configs", lambda *given: tuple((config, 1e-9) for config, _ in ranked(*given)))
    monkeypatch.setattr(bf16x6, "split_seconds", lambda *given: 1e-9)


def check(engine: Engine, inputs: dict[str, np.ndarray], a: np.ndarray, b: np.ndarray) -> None:
    assert {step.evidence["chosen"] for step in engine.plan.steps} == {"hopper matmul bf16x6"}
    exact = a.astype(np.float64) @ b.astype(np.float64)
    scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    assert np.all(np.abs(engine.run(inputs)["y"] - exact) <= 2.0**-22 * scale)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [70, 5])
def test_engines(
    constant: bool, transposed: bool, rows: int, preferred: None, driver: Driver, rng: np.random.Generator
) -> None:
    """Constants are split in the build, others ahead; odd sizes; a number of rows that is known at run time."""
    a, w = rng.standard_normal((rows, 67)).astype(np.float32), rng.standard_normal((67, 43)).astype(np.float32)
    given = np.ascontiguousarray(w.T) if transposed else w
    b = GraphBuilder("linear")
    x = b.input("x", float32, (b.symbol("rows", 1, 200) if rows == 5 else rows, 67))
    right = b.constant(given) if constant else b.input("w", float32, given.shape)
    b.output(b.op("matmul", [x, right], transpose_b=transposed), "y")
    engine = build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    assert len(engine.plan.steps) == (2 if constant else 3)
    assert "bfloat16" in str(engine.plan.steps[0].evidence["reasons"]["float32"])
    check(engine, {"x": a} if constant else {"x": a, "w": given}, a, w)


def test_batches(preferred: None, driver: Driver, rng: np.random.Generator) -> None:
    a, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 66, 40), (3, 40, 70)))
    b = GraphBuilder("batches")
    b.output(b.op("matmul", [b.input("x", float32, a.shape), b.input("w", float32, w.shape)]), "y")
    check(build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0)), {"x": a, "w": w}, a, w)


def test_tf32_is_not_split(preferred: None, rng: np.random.Generator) -> None:
    b = GraphBuilder("tf32")
    b.output(b.op("matmul", [b.input("x", float32, (64, 64)), b.input("w", float32, (64, 64))]), "y")
    (group,) = fuse(b.finish()).groups
    for precision, there in (("ieee", True), ("tf32", False)):
        target = NvidiaTarget.named("sm_90a").with_precision(precision)
        names = {candidate.name for candidate in candidates(group, b.finish(), target)}
        assert ("hopper matmul bf16x6" in names) is there


@pytest.mark.parametrize("one", ["left", "right"])
def test_batches_of_one_matrix(one: str, preferred: None, driver: Driver, rng: np.random.Generator) -> None:
    shapes = ((66, 40), (3, 40, 70)) if one == "left" else ((3, 66, 40), (1, 40, 70))
    a, w = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    b = GraphBuilder("one")
    b.output(b.op("matmul", [b.input("x", float32, a.shape), b.constant(w)]), "y")
    check(build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0)), {"x": a}, a, w)


@pytest.mark.parametrize(("images", "layout"), [(1, "NCHW"), (3, "NCHW"), (2, "NHWC")])
def test_pointwise_convolutions(
    images: int, layout: str, preferred: None, driver: Driver, rng: np.random.Generator
) -> None:
    """Of planes: the weights times each image; else pixels times the weights; with an epilogue by channels."""
    image = rng.standard_normal((images, 40, 9, 8)).astype(np.float32)
    w, bias = rng.standard_normal((66, 40, 1, 1)).astype(np.float32), rng.standard_normal(66).astype(np.float32)
    b = GraphBuilder("pointwise")
    attributes = {"layout": layout, "strides": (1, 1), "padding": ((0, 0),) * 2, "dilation": (1, 1), "groups": 1}
    given = image if layout == "NCHW" else np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    y = b.op("conv", [b.input("x", float32, given.shape), b.constant(w), b.constant(bias)], **attributes)
    b.output(b.op("relu", [y]), "y")
    engine = build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    assert {step.evidence["chosen"] for step in engine.plan.steps} == {"pointwise convolution as hopper matmul bf16x6"}
    exact = np.einsum("ncyx,oc->noyx", image.astype(np.float64), w[:, :, 0, 0]) + bias[:, None, None]
    found = engine.run({"x": given})["y"]
    found = found if layout == "NCHW" else found.transpose(0, 3, 1, 2)
    assert np.abs(found - np.maximum(exact, 0)).max() <= 1e-4


@pytest.mark.parametrize(("transposed", "constant"), [(False, True), (True, False)])
def test_slices_of_the_depth(
    transposed: bool, constant: bool, preferred: None, driver: Driver, monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Few tiles share their depth, of which the last slices may have less; another launch adds them, with epilogue."""
    ranked = bf16x6.ranked_slices
    monkeypatch.setattr(bf16x6, "ranked_slices", lambda *given: tuple((config, 1e-10) for config, _ in ranked(*given)))
    a, w = rng.standard_normal((70, 2000)).astype(np.float32), rng.standard_normal((2000, 43)).astype(np.float32)
    a[3, 70], a[4, 1999], a[5, 640] = np.inf, np.nan, 3.4e38
    w[640] = 0.5
    given = np.ascontiguousarray(w.T) if transposed else w
    b = GraphBuilder("linear")
    right = b.constant(given) if constant else b.input("w", float32, given.shape)
    product = b.op("matmul", [b.input("x", float32, a.shape), right], transpose_b=transposed)
    b.output(b.op("relu", [product]), "y")
    engine = build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    assert {step.evidence["chosen"] for step in engine.plan.steps} == {"hopper matmul bf16x6 in slices"}
    assert "slices" in str(engine.plan.steps[-1].evidence["reasons"]["tile"])
    with np.errstate(all="ignore"):
        exact = np.maximum(a.astype(np.float64) @ w.astype(np.float64), 0)
        scale = np.abs(a).astype(np.float64) @ np.abs(w).astype(np.float64)
    found = engine.run({"x": a} if constant else {"x": a, "w": given})["y"]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(exact))
    finite = np.isfinite(exact)
    assert np.isnan(found).any() and np.isinf(found).any()
    assert np.all(np.abs(found - exact)[finite] <= 2.0**-21 * scale[finite])


def test_one_split_serves_all_that_read_it(preferred: None, driver: Driver, rng: np.random.Generator) -> None:
    a, w, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 67), (67, 43), (67, 66)))
    b = GraphBuilder("twice")
    x, first, second = (b.input(name, float32, array.shape) for name, array in (("x", a), ("w", w), ("v", v)))
    b.output(b.op("matmul", [b.op("reshape", [x], shape=(70, 67)), first]), "y")
    b.output(b.op("relu", [b.op("matmul", [x, second])]), "z")
    engine = build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    assert len(engine.plan.steps) == 5  # three splits, two products
    found = engine.run({"x": a, "w": w, "v": v})
    np.testing.assert_allclose(found["y"], a.astype(np.float64) @ w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["z"], np.maximum(a.astype(np.float64) @ v, 0), rtol=1e-5, atol=1e-5)


def test_what_is_overwritten_is_split_again(preferred: None, driver: Driver, rng: np.random.Generator) -> None:
    """An input that a call changes may not be what it was."""
    a, w, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((66, 67), (67, 67), (67, 66)))
    b = GraphBuilder("changed")
    x, first, second = (b.input(name, float32, array.shape) for name, array in (("x", a), ("w", w), ("v", v)))
    y = b.op("matmul", [x, first])
    b.mutate(x, y)
    b.output(b.op("matmul", [x, second]), "z")
    engine = build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    inputs = {"x": a.copy(), "w": w, "v": v}
    np.testing.assert_allclose(engine.run(inputs)["z"], a.astype(np.float64) @ v, rtol=1e-5, atol=1e-5)
