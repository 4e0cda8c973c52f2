"""The configs that operations choose compile for sm_90a: no spill or serialised product; rows on every architecture."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tilewright import dtypes
from tilewright.ir.core import Parameter
from tilewright.library.attention.problem import AttentionProblem
from tilewright.library.epilogue import Epilogue
from tilewright.library.epilogue_parts import EpilogueParts
from tilewright.library.matmul.hopper.config import MATMUL_PARAMETERS
from tilewright.library.matmul.hopper.dequantized import close_configs
from tilewright.library.matmul.hopper.dequantized_config import DEQUANTIZED_PARAMETERS, DequantizedConfig
from tilewright.library.matmul.hopper.dequantized_kernel import dequantized_matmul
from tilewright.library.matmul.hopper.kernel import matmul as hopper_matmul
from tilewright.library.matmul.hopper.ranked import close
from tilewright.library.matmul.problem import DequantizedProblem, MatmulProblem
from tilewright.library.rows import simt_kernel as gpu_rows
from tilewright.ops import attentions, products
from tilewright.ops.attentions import hopper_configs
from tilewright.targets.nvidia.target import NvidiaTarget

BF16, F32, FP8, INT8 = dtypes.bfloat16, dtypes.float32, dtypes.float8e4nv, dtypes.int8
STRICT = {"strict": True}


def problem_of(M: int, N: int, K: int, dtype: dtypes.DType = BF16, output: dtypes.DType = BF16, **others: Any) -> Any:
    return MatmulProblem(M, N, K, others.pop("batches", 1), dtype, output, **others)


def parts(*kinds: str, **others: Any) -> Epilogue:
    return EpilogueParts(*kinds, **others).epilogue


ROW_AND_COLUMN = ("*k f32", "i32", "*k f32", "i32")  # scales, and how many there are

PROBLEMS = [
    problem_of(8192, 8192, 8192),
    problem_of(1, 14336, 4096, weights_ready=True),
    problem_of(64, 4096, 14336),
    problem_of(4096, 4096, 4096, epilogue=parts(bias=BF16, activation="gelu"), operands=("*k bf16", "i32")),
    problem_of(4096, 4096, 4096, epilogue=parts(residual=BF16), operands=("*k bf16", "i32")),
    problem_of(4096, 8192, 4096, epilogue=parts(gate="silu")),
    problem_of(4096, 4096, 4096, FP8, epilogue=parts("tensor", "tensor"), operands=("*k f32",) * 2),
    problem_of(4096, 4096, 4096, FP8, epilogue=parts("row", "column"), operands=ROW_AND_COLUMN),
    problem_of(4096, 4096, 4096, FP8, epilogue=parts("block", "block"), operands=(*("*k f32",) * 2, *("i32",) * 3)),
    problem_of(4096, 4096, 4096, INT8, epilogue=parts("block", "block"), operands=(*("*k f32",) * 2, *("i32",) * 3)),
    problem_of(4096, 4096, 4096, INT8, epilogue=parts("row", "column", sums=dtypes.int32), operands=ROW_AND_COLUMN),
    problem_of(4096, 4096, 4096, INT8, dtypes.int32),
    problem_of(4096, 4096, 4096, dtypes.uint8, INT8, right=INT8,
          epilogue=parts("tensor", "column", bias=F32, output=INT8, sums=dtypes.int32),
          operands=("f32", "*k f32", "*k f32", "i32", "*k f32")),
    problem_of(512, 4096, 4096, FP8, FP8, epilogue=parts("row", "column", residual=FP8, output=FP8),
          operands=("f32", *ROW_AND_COLUMN, "*k f8e4nv", "i32")),
    problem_of(4096, 4096, 4096, F32, F32),
    problem_of(512, 512, 512, batches=16, left_transposed=True, right_transposed=True),
]  # fmt: skip


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
def test_matmul_configs(problem: MatmulProblem) -> None:
    chosen = close(problem.shape_class, NvidiaTarget.named("sm_90a").machine())
    ping_pong = [candidate for candidate in chosen if candidate.config.PING_PONG]
    if problem.output.bits == 8:
        ping_pong = []  # the largest of these spills, and is rejected by timing
    for candidate in [chosen[0], *ping_pong[:1]]:
        types = MATMUL_PARAMETERS.types(candidate.config, problem.operands)
        facts = products.kernel_facts(problem)
        kernel = hopper_matmul.compile(types, {"CONFIG": candidate.config}, facts, target="cuda:sm_90a", options=STRICT)
        assert not kernel.binary.resources.spill_stores


WEIGHTS = [
    DequantizedProblem(1, 14336, 4096, group=128),
    DequantizedProblem(16, 4096, 14336, group=64, weights=dtypes.uint4, scale=BF16, zeros=True),
    DequantizedProblem(64, 4096, 4096, group=32, input=dtypes.float16, output=dtypes.float16),
    DequantizedProblem(32, 4096, 4096, group=4096, weights=INT8),
    DequantizedProblem(64, 14336, 4096, group=128, weights=FP8),
    DequantizedProblem(200, 4096, 4096, group=128),
]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("problem", WEIGHTS, ids=str)
def test_dequantized_configs(problem: DequantizedProblem) -> None:
    config, _ = close_configs(problem, NvidiaTarget.named("sm_90a").machine())[0]
    facts = {"out": Parameter("out", 16)}
    kernel = dequantized_matmul.compile(
        DEQUANTIZED_PARAMETERS.types(config), {"CONFIG": config}, facts, target="cuda:sm_90a", options=STRICT
    )
    resources = kernel.binary.resources
    assert not resources.spill_stores
    assert kernel.binary.shared_bytes <= config.shared_bytes


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("rows", [8, 16, 32, 64])
@pytest.mark.parametrize("others", [{}, {"SLICES": 2}, {"CONSUMERS": 2, "SPLIT": 3}], ids=str)
def test_weights_are_widened_ahead_of_products(rows: int, others: dict[str, Any]) -> None:
    """Products of two stages are under way at once: the assembler neither serialises them nor spills."""
    config = DequantizedConfig(BATCH=rows, STAGES=4, AHEAD=True, MULTIPLE=8, DEPENDENT=True, **others).check()
    facts = {"out": Parameter("out", 16)}
    kernel = dequantized_matmul.compile(
        DEQUANTIZED_PARAMETERS.types(config), {"CONFIG": config}, facts, target="cuda:sm_90a", options=STRICT
    )
    assert not kernel.binary.resources.spill_stores
    assert ptx_waits(kernel.dump("ptx")) == {0, 2}


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("others", [{}, {"AHEAD": True}, {"SPLIT": 6}, {"WARPS": 1}, {"CONSUMERS": 2}], ids=str)
def test_a_stage_is_released_after_its_loads(others: dict[str, Any]) -> None:
    """An arrival overtakes loads whose words nothing waits for: a word of each decides something in front of it."""
    config = DequantizedConfig(BATCH=8 if "WARPS" in others else 64, STAGES=8 if "WARPS" in others else 4, **others)
    kernel = dequantized_matmul.compile(
        DEQUANTIZED_PARAMETERS.types(config.check()), {"CONFIG": config}, target="cuda:sm_90a", options=STRICT
    )
    text = kernel.dump("ptx")
    arrivals = text.count("mbarrier.arrive.shared.b64")
    assert arrivals and text.count("setp.eq.b32 rare") >= arrivals
    for part in text.split("mbarrier.arrive.shared.b64")[:-1]:
        assert part.rindex("setp.eq.b32 rare") > part.rindex("ld.shared")


def ptx_waits(text: str) -> set[int]:
    """How many groups of wgmma may be under way after the waits of a kernel."""
    return {int(number) for number in re.findall(r"wgmma\.wait_group\.sync\.aligned (\d+);", text)}


@pytest.mark.slow(but_every=5)
@pytest.mark.parametrize("size", [64, 96, 128, 256])
@pytest.mark.parametrize("queries", [32, 4096])
def test_attention_configs(size: int, queries: int) -> None:
    for causal, window, ragged in ((False, 0, False), (True, 0, True)):
        problem = AttentionProblem(1, 8, 2, queries, 4096, size, BF16, causal, window, ragged, True, "")
        config = hopper_configs(problem)[0].check()
        kernel = attentions.compiled(config, NvidiaTarget.named("sm_90a"))
        assert not kernel.binary.resources.spill_stores, config


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "cuda:sm_120"])
def test_plain_kernels_compile_everywhere(target: str) -> None:
    sizes = {"rows": "i32", "columns": "i32", "x_stride": "i32", "out_stride": "i32"}
    types = {"x": "*bf16", "out": "*bf16", **sizes}
    constants = {"LOG": False, "ROWS": 1, "BLOCK": 8192, "MASK": False}
    kernel = gpu_rows.softmax.compile(types, constants, target=target, options={"num_warps": 8, **STRICT})
    assert not kernel.binary.resources.spill_stores
