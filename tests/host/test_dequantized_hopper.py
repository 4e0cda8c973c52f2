"""Products by weights of 4 and 8 bits on Hopper: operations in the interpreter, engines on a stand-in for a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright
import tilewright.language as tl
from tests.host import cuda_stand_in
from tests.host.hopper_support import ORDERS
from tests.host.test_weight_products import product_of, random_matrix
from tilewright import ops
from tilewright.build.builder import build
from tilewright.dtypes import BY_NAME, DType, bfloat16, float8e4nv, float16, float32, int4, int8, uint4, uint8
from tilewright.errors import ExecutionError, LaunchError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.weight_products import weight_products
from tilewright.importers.emitter import Emitter
from tilewright.importers.quantized_weights import QuantizedMatrix, multiply
from tilewright.ir.core import Function, Parameter
from tilewright.ir.interpreter import run
from tilewright.ir.verifier import verify
from tilewright.library import packing
from tilewright.library.epilogue import Epilogue
from tilewright.library.epilogue_parts import EpilogueParts
from tilewright.library.hopper import is_possible
from tilewright.library.matmul.hopper.dequantized import _resident, close_configs
from tilewright.library.matmul.hopper.dequantized_config import DEQUANTIZED_PARAMETERS, GATE_COLUMNS, DequantizedConfig
from tilewright.library.matmul.hopper.dequantized_kernel import dequantized_matmul
from tilewright.library.matmul.problem import DequantizedProblem
from tilewright.ops import arrays, choosing, dequantized
from tilewright.passes.pipeline import simplify
from tilewright.runtime.cuda.device import current_device
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.settings import settings
from tilewright.targets.library_facts import unsupported_weights
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget
from tilewright.targets.registry import get_target


@tilewright.jit
def difference(left, right):  # type: ignore[no-untyped-def]
    """A gate."""
    return left - right


def gated_product_of(matrix: QuantizedMatrix, dtype: DType) -> Graph:
    """silu(left half) * right half of x W, + bias, of 1 to 64 rows."""
    b, half = GraphBuilder("gated"), len(matrix.codes) // 2
    x = b.input("x", dtype, (b.symbol("rows", 1, 64), matrix.codes.shape[1]))
    result = multiply(Emitter(b), x, matrix, "w")
    left, right = (b.op("slice", [result], axis=1, start=at, stop=at + half) for at in (0, half))
    bias = b.constant(np.linspace(-1, 1, half).astype(dtype.numpy), "bias")
    b.output(b.op("add", [b.op("multiply", [b.op("silu", [left]), right]), bias]), "y")
    return b.finish()


SILU = EpilogueParts(bias=float32, activation="silu").epilogue
TYPES = ("int4", "uint4", "int8", "uint8", "float8e4nv", "float8e5")


@dataclass(frozen=True)
class Case:
    """A product, drawn: `group` 0 is all of the depth."""

    seed: int
    dtype: DType
    rows: int
    columns: int
    depth: int
    group: int
    zeros: bool
    given: DType
    scale: DType


def drawn(seed: int) -> Case:
    draw = np.random.default_rng(seed)

    def one(*options: Any) -> Any:
        return options[draw.integers(len(options))]

    dtype = BY_NAME[TYPES[seed % len(TYPES)]]
    group = one(8, 16, 32, 64, 128, 256, 0)
    depth = int(draw.integers(1, 70)) * 8 if not group else group * int(draw.integers(1, max(2, 700 // group)))
    zeros = not dtype.is_signed and dtype.is_integer or (dtype.is_integer and one(True, False))
    rows, columns = one(1, 3, 8, 13, 40, 70), one(8, 64, 77, 200)
    return Case(
        seed, dtype, rows, columns, depth, group, zeros, one(bfloat16, float16), one(float32, bfloat16, float16)
    )


def weights_of(case: Case, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Codes (of 4 bits in bytes), scales and zero points."""
    groups = case.depth // case.group if case.group else 1
    codes = rng.integers(0, 1 << case.dtype.bits, (case.columns, case.depth)).astype(np.uint8)
    if not case.dtype.is_integer:
        codes = rng.standard_normal(codes.shape).astype(case.dtype.numpy)
    elif case.dtype.is_signed:
        codes = (codes.astype(np.int16) - (1 << (case.dtype.bits - 1))).astype(np.int8)
    scales = rng.uniform(0.5, 1.5, (case.columns, groups)).astype(case.scale.numpy)
    points = rng.integers(-7, 16, scales.shape) if case.dtype.is_signed else rng.integers(0, 16, scales.shape)
    return codes, scales, points if case.zeros else None


def close(found: np.ndarray, x: np.ndarray, numbers: np.ndarray, case: Case) -> None:
    """Within the rounding of the result, that of weights to the type of x where groups are small, and of the sums."""
    unit = float(ml_dtypes.finfo(case.given.numpy).eps)
    exact = x.astype(np.float64) @ numbers.T
    length = np.sqrt(np.square(x.astype(np.float64)) @ np.square(numbers).T)
    limit = unit * (np.abs(exact) + 4 * length)
    assert np.all(np.abs(found.astype(np.float64) - exact) <= limit), case


@pytest.mark.parametrize("seed", range(12))
def test_drawn_operations(seed: int) -> None:
    case, rng = drawn(seed), np.random.default_rng(seed)
    codes, scales, zeros = weights_of(case, rng)
    shift = 0 if zeros is None else np.repeat(zeros, case.depth // zeros.shape[1], 1)
    numbers = (codes.astype(np.float64) - shift) * np.repeat(
        scales.astype(np.float64), case.depth // scales.shape[1], 1
    )
    x = rng.standard_normal((case.rows, case.depth)).astype(case.given.numpy)
    with settings.scope(interpret=True):
        packed = ops.pack_weights(codes, scales, zeros, bits=case.dtype.bits)
        found = ops.dequantized_matmul(x, packed)
    assert packed.dtype.bits == case.dtype.bits and packed.nbytes < 2 * codes.size + 4096 * 16
    close(found, x, numbers, case)


def test_epilogue_and_scales_of_blocks(rng: np.random.Generator) -> None:
    codes = rng.standard_normal((200, 256)).astype(float8e4nv.numpy)
    scales = rng.uniform(0.5, 1.5, (2, 2)).astype(np.float32)
    x = rng.standard_normal((2, 5, 256)).astype(np.float16)
    bias, residual = rng.standard_normal(200).astype(np.float16), rng.standard_normal((2, 5, 200)).astype(np.float32)
    numbers = codes.astype(np.float64) * np.repeat(np.repeat(scales, 128, 0)[:200], 128, 1)
    with settings.scope(interpret=True):
        packed = ops.pack_weights(codes, scales)
        found = ops.dequantized_matmul(x, packed, bias=bias, activation="relu", residual=residual, out_dtype=np.float32)
    exact = np.maximum(x.astype(np.float64) @ numbers.T + bias, 0) + residual
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())


def test_one_number_and_groups_of_two_sizes(rng: np.random.Generator) -> None:
    """Scales may be a number of Python or a tensor without dimensions; zero points may have finer groups than scales,
    and coarser ones."""
    codes, points = rng.integers(0, 16, (64, 256), np.uint8), rng.integers(0, 16, (64, 4), np.uint8)
    wide = rng.uniform(0.5, 1.5, (64, 1)).astype(np.float32)
    fine = rng.uniform(0.5, 1.5, (64, 4)).astype(np.float32)
    x = rng.standard_normal((2, 256)).astype(np.float16)
    cases: list[tuple[Any, Any]] = [
        (0.5, 8), (np.float32(0.5), np.uint8(8)), (torch.tensor(0.5), torch.tensor(8)), (wide[:, 0], points),
        (fine, points[:, :1]), (torch.from_numpy(fine)[:, ::2], points[0, 0]),
    ]  # fmt: skip
    for scales, zeros in cases:
        both = [np.asarray(each, np.float64) for each in (scales, zeros)]
        scale, zero = (each[:, None] if each.ndim == 1 else np.atleast_2d(each) for each in both)
        scale, zero = (np.repeat(each, 256 // each.shape[1], axis=1) for each in (scale, zero))
        with settings.scope(interpret=True):
            found = ops.dequantized_matmul(x, ops.pack_weights(codes, scales, zeros, bits=4), out_dtype=np.float32)
        exact = x.astype(np.float64) @ ((codes - zero) * scale).T
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())


def test_refused(rng: np.random.Generator) -> None:
    codes, scales = rng.integers(-8, 8, (64, 256)).astype(np.int8), np.ones((64, 2), np.float32)
    with settings.scope(interpret=True):
        packed = ops.pack_weights(codes, scales, bits=4)
        refused = {
            "from -8 to 7": lambda: ops.pack_weights(codes * 2, scales, bits=4),
            "equal groups": lambda: ops.pack_weights(codes, np.ones((64, 3), np.float32)),
            "8, 16, 32, 64 or multiples of 128": lambda: ops.pack_weights(codes[:, :192], np.ones((64, 2), np.float32)),
            "multiple of 8 elements": lambda: ops.pack_weights(codes[:, :252], np.ones(64, np.float32)),
            "must divide": lambda: ops.pack_weights(codes[:, :192], scales, np.ones((64, 3), np.int8)),
            "have no zero points": lambda: ops.pack_weights(codes.astype(float8e4nv.numpy), scales, 1),
            "zeros must be integers": lambda: ops.pack_weights(codes, scales, np.ones((64, 2), np.float32)),
            "bfloat16 or float16": lambda: ops.dequantized_matmul(np.ones((2, 256), np.float32), packed),
            r"\[..., 256\]": lambda: ops.dequantized_matmul(np.ones((2, 128), np.float16), packed),
            "made by pack_weights": lambda: ops.dequantized_matmul(np.ones((2, 256), np.float16), codes),
        }
        for text, call in refused.items():
            with pytest.raises(LaunchError, match=text):
                call()


def test_packing(rng: np.random.Generator) -> None:
    """Threads of a warpgroup find their 16 bytes; and back again."""
    for name in TYPES:
        dtype = BY_NAME[name]
        codes = rng.integers(0, 1 << dtype.bits, (70, 100)).astype(np.uint8)
        codes = codes.view(dtype.numpy) if not (dtype == int4) else (codes.view(np.int8) - 8).astype(dtype.numpy)
        for recipe in (packing.fragments_recipe(dtype), packing.fragments_recipe(dtype, halves=7)):
            packed = packing.apply(recipe, codes)
            assert packed.shape == packing.packed_shape(recipe, codes.shape)
            assert packed.dtype == packing.packed_dtype(recipe, codes.dtype)
            assert packing.invert(recipe, packed, codes.shape).tobytes() == codes.tobytes()
    scales = rng.standard_normal((192, 5)).astype(np.float32)
    panels = packing.panels_recipe(64, True, halves=32)
    packed = packing.apply(panels, scales)
    assert packed.shape == (3, 5, 64) and packing.invert(panels, packed, scales.shape).tobytes() == scales.tobytes()
    np.testing.assert_array_equal(packed[1].T, np.concatenate([scales[32:64], scales[128:160]]))
    codes = np.zeros((64, 64), np.uint8)
    codes[16 + 8 + 3, 16 + 8 + 2 * 2 + 1] = 13  # warp 1, row 3, upper half; step 1, upper half, thread 2, odd
    (place,) = np.argwhere(packing.apply(packing.fragments_recipe(uint4), codes.astype(uint4.numpy)).reshape(-1, 4))
    assert place.tolist() == [32 + 3 * 4 + 2, 1]


CONFIGS = [
    DequantizedConfig(STAGES=3),
    DequantizedConfig(STAGES=2, CONSUMERS=2, GROUP=64, ZEROS=True, LOW=0, DEPENDENT=True),
    DequantizedConfig(STAGES=2, GROUP=32, SCALED=True, SPLIT=2, BITS=8, LOW=128),
    DequantizedConfig(STAGES=4, BATCH=16, CONSUMERS=4, GROUP=0, BITS=8, CODES=tl.float8e4nv, SPLIT=2, DEPENDENT=True),
    DequantizedConfig(STAGES=8, WARPS=1, SLICES=4, DEPENDENT=True),
    DequantizedConfig(STAGES=8, WARPS=1, SLICES=4, CONSUMERS=2, GROUP=64, ZEROS=True, LOW=0, SPLIT=2),
    DequantizedConfig(STAGES=4, WARPS=1, SLICES=2, BATCH=16, GROUP=0, BITS=8, LOW=128, SPLIT=2, DEPENDENT=True),
    DequantizedConfig(STAGES=4, WARPS=1, SLICES=2, GROUP=8, SCALED=True, BITS=8, CODES=tl.float8e4nv),
    DequantizedConfig(STAGES=4, WARPS=1, GROUP=16),
    DequantizedConfig(STAGES=4, WARPS=1, GROUP=32, BATCH=16, BITS=8, CODES=tl.float8e5, SLICES=2),
    DequantizedConfig(STAGES=4, SLICES=4, BATCH=16, GROUP=64),
    DequantizedConfig(STAGES=4, SLICES=2, SPLIT=2, DEPENDENT=True),
    DequantizedConfig(STAGES=3, AHEAD=True, SPLIT=2, GROUP=0, DEPENDENT=True),
    DequantizedConfig(STAGES=4, SLICES=2, AHEAD=True, BATCH=16, ZEROS=True, LOW=0),
    DequantizedConfig(STAGES=4, CONSUMERS=2, SPLIT=3, BATCH=16, BITS=8, CODES=tl.float8e4nv),
]


def traced(config: DequantizedConfig) -> Function:
    return simplify(dequantized_matmul.trace(DEQUANTIZED_PARAMETERS.types(config), {"CONFIG": config}))


def interpreted(function: Function, config: DequantizedConfig, x: np.ndarray, columns: int, order: int) -> np.ndarray:
    """x times weights that are all zero as they lie, with scales of 1, in an order of the roles."""
    rows, depth = x.shape
    groups = depth // config.GROUP if config.GROUP else 1
    blocks = -(-columns // 64)
    codes = np.zeros((blocks, depth // config.unit * config.unit_lines, 256), config.CODES.element.numpy)
    scales, zeros = np.ones((blocks, groups, 64), np.float32), np.ones((blocks, groups, 64), np.uint8)
    out = np.full((rows, columns), np.nan, config.OUTPUT.element.numpy)
    points = zeros if config.ZEROS else scales
    run(function, [x, codes, scales, points, out, rows, columns, depth], config.grid(rows, columns), order=order)
    return out


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.described)
def test_clean_in_any_order(config: DequantizedConfig, rng: np.random.Generator) -> None:
    rows, columns, depth = 11, 200, 640
    function = traced(config)
    verify(function)
    x = rng.standard_normal((rows, depth)).astype(config.TYPE.element.numpy)
    for order in range(ORDERS // 4):
        out = interpreted(function, config, x, columns, order)
        number = 0.0 if not config.CODES.element.is_integer else -float(config.LOW + config.ZEROS)
        exact = number * np.repeat(x.astype(np.float64).sum(1)[:, None], columns, 1)
        np.testing.assert_allclose(out.astype(np.float64), exact, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[5], CONFIGS[12]], ids=lambda config: config.described)
def test_a_stage_is_released_after_its_loads(config: DequantizedConfig, rng: np.random.Generator) -> None:
    """Without any one of the waits in front of arrivals in loops a stage is filled while a consumer loads from it."""
    function = traced(config)
    x = rng.standard_normal((8, 2560)).astype(config.TYPE.element.numpy)
    waits = [
        (loop.regions[0].operations, place)
        for loop in function.walk()
        if loop.opcode == "for"
        for place, operation in enumerate(loop.regions[0].operations)
        if operation.opcode == "barrier_arrive" and loop.regions[0].operations[place - 1].opcode == "shared_wait"
    ]
    assert waits
    for operations, place in waits:
        wait = operations.pop(place - 1)
        for order in range(ORDERS // 8):
            with pytest.raises(ExecutionError, match="load overtaken: .* is filled again") as caught:
                interpreted(function, config, x, 64, order)
            assert "shared_load of role 'multiply'" in str(caught.value)
            assert "barrier_arrive of role 'multiply'" in str(caught.value)
        operations.insert(place - 1, wait)


@pytest.mark.parametrize(
    "config",
    [
        DequantizedConfig(STAGES=2, GATE=difference),
        DequantizedConfig(STAGES=4, SLICES=2, SPLIT=2, GATE=difference),
        DequantizedConfig(STAGES=4, CONSUMERS=2, SPLIT=3, BATCH=16, GATE=difference),
    ],
    ids=lambda config: config.described,
)
def test_gates_take_columns_half_a_block_apart(config: DequantizedConfig, rng: np.random.Generator) -> None:
    rows, half, depth = 11, 96, 640
    codes = rng.integers(0, 16, (2 * half, depth)).astype(np.uint8)
    scales = rng.uniform(0.5, 1.5, (2 * half, depth // config.GROUP)).astype(np.float32)
    x = rng.standard_normal((rows, depth)).astype(config.TYPE.element.numpy)
    exact = x.astype(np.float64) @ ((codes.astype(np.float64) - 8) * np.repeat(scales, config.GROUP, 1)).T
    exact = exact[:, :half] - exact[:, half:]
    packed = packing.apply(packing.fragments_recipe(uint4, GATE_COLUMNS), codes.astype(uint4.numpy))
    panels = packing.apply(packing.panels_recipe(64, True, halves=GATE_COLUMNS), scales)
    function = simplify(dequantized_matmul.trace(DEQUANTIZED_PARAMETERS.types(config), {"CONFIG": config}))
    out = np.full((rows, half), np.nan, config.OUTPUT.element.numpy)
    run(function, [x, packed, panels, panels, out, rows, half, depth], config.grid(rows, 2 * half))
    np.testing.assert_allclose(out.astype(np.float64), exact, rtol=2**-7, atol=2**-8 * np.abs(exact).max())


@pytest.mark.parametrize(
    ("dtype", "half", "group", "zeros", "given"),
    [(int4, 256, 64, False, bfloat16), (uint4, 96, 32, True, float16), (float8e4nv, 64, 64, False, bfloat16)],
)
def test_engines_take_gates(
    dtype: DType, half: int, group: int, zeros: bool, given: DType, monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """silu(left) * right of a product's halves, and what follows, is one kernel."""
    cuda_stand_in.install(monkeypatch)
    matrix = random_matrix(rng, dtype, 2 * half, 192, group, zeros)
    engine = build(gated_product_of(matrix, given), "cuda:sm_90a")
    (step,) = engine.plan.steps
    assert step.evidence["chosen"] == "hopper product by quantized weights"
    weights, bias = matrix.numbers().astype(np.float64), np.linspace(-1, 1, half).astype(given.numpy)
    for rows in (1, 13, 40):
        x = rng.standard_normal((rows, 192)).astype(given.numpy)
        left, right = np.split(x.astype(np.float64) @ weights.T, 2, axis=1)
        exact = left / (1 + np.exp(-left)) * right + bias.astype(np.float64)
        found = np.asarray(engine.run({"x": x})["y"]).astype(np.float64)
        np.testing.assert_allclose(found, exact, rtol=2e-2, atol=2.0**-7 * np.abs(exact).max())


@pytest.mark.parametrize(("half", "target"), [(72, "cuda:sm_90a"), (96, "cpu")])
def test_gates_that_no_kernel_takes_are_steps_of_their_own(
    half: int, target: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Halves that are no whole blocks of packed weights; on CPUs all."""
    if target != "cpu":
        cuda_stand_in.install(monkeypatch)
    matrix = random_matrix(rng, int4, 2 * half, 192, 64)
    engine = build(gated_product_of(matrix, bfloat16), target)
    x = rng.standard_normal((5, 192)).astype(bfloat16.numpy)
    left, right = np.split(x.astype(np.float64) @ matrix.numbers().astype(np.float64).T, 2, axis=1)
    exact = left / (1 + np.exp(-left)) * right + np.linspace(-1, 1, half).astype(bfloat16.numpy).astype(np.float64)
    found = np.asarray(engine.run({"x": x})["y"]).astype(np.float64)
    np.testing.assert_allclose(found, exact, rtol=3e-2, atol=2.0**-6 * np.abs(exact).max())


def test_configs_of_all_problems() -> None:
    """There is a config for every problem that is not refused, and it can be built."""
    machine = NvidiaTarget.named("sm_90a").machine()
    draw = np.random.default_rng(3)
    for _ in range(60):
        group, depth = int(draw.choice([8, 32, 64, 128, 384])), int(draw.integers(1, 40)) * 384
        dtype = BY_NAME[TYPES[draw.integers(len(TYPES))]]
        assert not unsupported_weights(bfloat16, dtype, float32, group, depth)
        rows, columns = int(draw.integers(1, 300)), int(draw.integers(1, 9000))
        zeros = bool(draw.integers(2)) and dtype.is_integer
        for epilogue in (Epilogue(), SILU):
            problem = DequantizedProblem(
                rows, columns, depth, input=bfloat16, group=group, weights=dtype, zeros=zeros, epilogue=epilogue
            )
            found = close_configs(problem, machine)
            assert found and all(is_possible(config) and seconds > 0 for config, seconds in found)


@pytest.mark.parametrize(
    ("problem", "rows"),
    [
        (DequantizedProblem(300, 1280, 512, group=64, epilogue=SILU), 256),
        (DequantizedProblem(300, 200, 128, group=32, weights=float8e4nv, epilogue=SILU), 128),  # 256 have no room
    ],
)
def test_configs_know_what_epilogues_take(problem: DequantizedProblem, rows: int) -> None:
    """After an epilogue, layouts change through shared memory."""
    target = NvidiaTarget.named("sm_90a")
    for config, _ in close_configs(problem, target.machine()):
        types, facts = DEQUANTIZED_PARAMETERS.types(config, ("*k bf16", "i32")), {"out": Parameter("out", 16)}
        lowered = lower(dequantized_matmul.trace(types, {"CONFIG": config}, facts), target, NvidiaOptions())
        assert config.BATCH == rows and lowered.shared_bytes <= config.shared_bytes


@pytest.mark.parametrize(
    ("dtype", "group", "zeros", "given"),
    [
        (int4, 32, False, bfloat16),
        (uint4, 64, True, float16),
        (int8, 192, False, bfloat16),
        (uint8, 64, True, bfloat16),
    ],
)
def test_engines(
    dtype: DType, group: int, zeros: bool, given: DType, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """One kernel with bias and activation, in a config for each range of rows."""
    cuda_stand_in.install(monkeypatch)
    matrix = random_matrix(rng, dtype, 133, 192, group, zeros)
    engine = build(product_of(matrix, given), "cuda:sm_90a")
    (step,) = engine.plan.steps
    assert step.evidence["chosen"] == "hopper product by quantized weights"
    weights, bias = matrix.numbers().astype(np.float64), np.linspace(-1, 1, 133).astype(given.numpy)
    for rows in (1, 16, 40):
        x = rng.standard_normal((rows, 192)).astype(given.numpy)
        exact = np.maximum(x.astype(np.float64) @ weights.T + bias.astype(np.float64), 0)
        found = np.asarray(engine.run({"x": x})["y"]).astype(np.float64)
        np.testing.assert_allclose(found, exact, rtol=2e-2, atol=2.0**-8 * np.abs(exact).max())


def test_what_stays_floats_is_named(rng: np.random.Generator) -> None:
    graph = product_of(random_matrix(rng, int4, 256, 192, 96), bfloat16)
    (remark,) = weight_products(graph, get_target("cuda:sm_90a").kernels).remarks
    assert "become floats: on GPUs groups are" in remark
    wide = product_of(random_matrix(rng, int4, 256, 192, 64), float32)
    (remark,) = weight_products(wide, get_target("cuda:sm_90a").kernels).remarks
    assert "not by float32" in remark


@pytest.mark.parametrize("group", [16, 32, 128])
def test_weights_of_warps_stay_in_registers(group: int) -> None:
    """Parts of the depth with scales of their own are where the products read them, and no block moves."""
    config = DequantizedConfig(STAGES=8, WARPS=1, SLICES=2, CONSUMERS=2, GROUP=group)
    function = dequantized_matmul.trace(
        DEQUANTIZED_PARAMETERS.types(config), {"CONFIG": config}, {"out": Parameter("out", 16)}
    )
    lowered = lower(function, NvidiaTarget.named("sm_90a"), NvidiaOptions())
    assert not [remark for remark in map(str, lowered.remarks) if "changes its layout" in remark and "bf16" in remark]
    assert lowered.text.count("mma.sync.aligned.m16n8k16") == 32


@pytest.mark.parametrize("sizes", [(64, 4096, 4096), (64, 4096, 14336), (64, 8192, 8192), (128, 4096, 4096)])
def test_clusters_of_the_first_config_run_at_once(sizes: tuple[int, int, int]) -> None:
    machine = NvidiaTarget.named("sm_90a").machine()
    (config, _), *_ = close_configs(DequantizedProblem(*sizes, group=128), machine)
    assert config.grid(*sizes[:2])[0] <= machine.slots(config.SPLIT), config.described


def test_clusters_never_wait_for_others() -> None:
    """With more clusters than run at once sums were wrong."""
    machine, draw = NvidiaTarget.named("sm_90a").machine(), np.random.default_rng(11)
    split = set()
    for _ in range(60):
        rows, columns, depth = (
            int(draw.integers(1, 400)),
            int(draw.integers(1, 300)) * 64,
            int(draw.integers(1, 120)) * 128,
        )
        for config, _ in close_configs(DequantizedProblem(rows, columns, depth, group=128), machine):
            split.add(config.SPLIT)
            assert config.SPLIT == 1 or rows <= 256, config.described
            assert config.SPLIT == 1 or config.grid(rows, columns)[0] <= _resident(config) * machine.slots(config.SPLIT)
    assert {1, 2, 3, 6} <= split


def test_clusters_of_sizes_that_were_not_measured() -> None:
    machine = NvidiaTarget.named("sm_90a").machine()
    assert [machine.slots(size) for size in (1, 2, 3, 4, 5, 6, 7, 8)] == [132, 132, 120, 120, 120, 120, 119, 120]


@pytest.mark.parametrize("ready", [False, True])
def test_close_configs_are_timed_once(ready: bool, driver: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, in graphs, into a result of their own, with copies of the codes that do not fit the L2 cache; rows of a
    class share what is on record."""
    gpu, timed, launched = current_device(), list[int](), list[Any]()

    def times(runs: dict[int, Any], expected: float) -> dict[int, float]:
        timed.append(len(runs))
        assert 0 < expected < 1e-3
        for launches in runs.values():
            assert len({each.operands.weights.codes.address for each in launches}) == len(launches) > 1
            assert all(each.operands.out.base is not out.base for each in launches)
        return {number: 9.0 - number for number in runs}

    def start(config: DequantizedConfig, *rest: Any) -> Any:
        return lambda *arguments: launched.append(config)

    monkeypatch.setattr(choosing, "device", lambda ordinal: gpu)
    monkeypatch.setattr(arrays, "target_at", lambda ordinal: NvidiaTarget.named("sm_90a"))
    monkeypatch.setattr(arrays, "capturing", lambda stream, ordinal: False)
    monkeypatch.setattr(arrays, "stream_of", lambda views: 0)
    monkeypatch.setattr(choosing.timers, "in_graphs", times)
    monkeypatch.setattr(dequantized, "_start", start)
    codes, scales = (DeviceArray(shape, dtype) for shape, dtype in (((4, 8, 32), np.int32), ((4, 4, 64), np.float32)))
    weights = ops.PackedWeights(256, 512, 128, int4, codes, scales, None)
    for rows in (70, 70, 120):
        x, out = (arrays.view(DeviceArray(shape, np.float16), "x") for shape in ((rows, 512), (rows, 256)))
        problem = DequantizedProblem(rows, 256, 512, input=float16, output=float16, group=128, weights_ready=ready)
        with settings.scope(tune=True):
            config = dequantized._config(dequantized._DequantizedCall(problem, weights, x, out, (), (x, out), 0))
        ranked = [config for config, _ in close_configs(problem.shape_class, NvidiaTarget.named("sm_90a").machine())]
        assert timed == [len(ranked)] and config == ranked[-1]._replace(DEPENDENT=ready)
    assert {config.DEPENDENT for config in launched} == {ready}
