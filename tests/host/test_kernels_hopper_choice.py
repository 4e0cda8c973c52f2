"""The configs that were quickest on an H200 are among the first that the estimate names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright import dtypes
from tilewright.graph.build import GraphBuilder
from tilewright.graph.passes.fuse import fuse
from tilewright.library.epilogue import function_instructions
from tilewright.library.epilogue_parts import EpilogueParts
from tilewright.library.hopper import SHARED_BYTES
from tilewright.library.matmul.hopper.choice import (
    candidate_configs,
    close_configs,
    dependent,
    ranked_configs,
    seconds_of,
)
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.library.matmul.problem import MatmulProblem
from tilewright.library.select import candidates
from tilewright.library.slots import epilogue_slots
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")
H200 = TARGET.machine()

# The quickest of a sweep on one H200, with its time in microseconds.
MEASURED = [
    (MatmulProblem(4096, 4096, 4096), {"BM": 128, "BN": 256, "SPLIT": 1}, 190),
    (MatmulProblem(8192, 8192, 8192), {"BM": 128, "BN": 256, "SPLIT": 1}, 1590),
    (MatmulProblem(512, 14336, 4096), {"BM": 128, "BN": 224, "SPLIT": 1}, 85),
    (MatmulProblem(1280, 2304, 4160), {"BM": 128, "BN": 192, "SPLIT": 1}, 37.5),
    (MatmulProblem(2048, 4096, 14336), {"BM": 128, "BN": 256, "SPLIT": 1}, 329),
    (MatmulProblem(16, 14336, 4096), {"BM": 64, "BN": 112, "SPLIT": 1}, 30.5),
    (MatmulProblem(16, 4096, 14336), {"BM": 64, "BN": 32, "SPLIT": 1}, 30.4),
    (MatmulProblem(64, 4096, 14336), {"BM": 64, "BN": 64, "SPLIT": 2}, 31.1),
    (MatmulProblem(128, 4096, 14336), {"BM": 128, "BN": 64, "SPLIT": 2}, 33.9),
    (MatmulProblem(128, 14336, 4096), {"BM": 128, "BN": 112, "SPLIT": 1}, 32.6),
    (MatmulProblem(128, 28672, 8192), {"BM": 128, "BN": 224, "SPLIT": 1}, 119),
    (MatmulProblem(1, 28672, 8192), {"BM": 64, "BN": 224, "SPLIT": 1}, 110),
    (MatmulProblem(4096, 4096, 4096, input=dtypes.int8), {"BM": 128, "BN": 256, "SPLIT": 1}, 91),
]


@pytest.mark.parametrize(("problem", "best", "microseconds"), MEASURED, ids=lambda value: str(value)[:40])
def test_the_quickest_config_is_among_the_first(problem: MatmulProblem, best: dict[str, int], microseconds: float):
    ranked = ranked_configs(problem, H200)
    fitting = [(config, seconds) for config, seconds in ranked if best.items() <= config._asdict().items()]
    (_, first), (_, seconds) = ranked[0], fitting[0]
    assert seconds <= 1.1 * first and any(
        best.items() <= config._asdict().items() for config, _ in close_configs(problem, H200)
    )
    assert 0.75 * microseconds <= seconds * 1e6 <= 1.15 * microseconds


def test_candidates_can_be_built_and_fill_shared_memory():
    problems = (
        MatmulProblem(300, 500, 200), MatmulProblem(7, 4096, 600), MatmulProblem(64, 128, 64, input=dtypes.float32),
        MatmulProblem(128, 256, 512, left_transposed=True, right_transposed=True),
        MatmulProblem(256, 96, 96, batches=3),
    )  # fmt: skip
    for problem in problems:
        configs = candidate_configs(problem, H200)
        assert configs and all(config.check() is config for config in configs)
        fuller = [config._replace(STAGES=config.STAGES + 1) for config in configs if config.STAGES < 16]
        assert all(config.shared_bytes > SHARED_BYTES for config in fuller)


def test_a_gpu_with_fewer_processors_takes_longer():
    problem, config = MatmulProblem(4096, 4096, 4096), MatmulConfig()
    fewer = replace(NvidiaTarget.named("sm_90a"), multiprocessors=66).machine()
    assert seconds_of(config, problem, fewer) > 1.8 * seconds_of(config, problem, H200)


def test_configs_for_a_range_of_rows_take_all_of_it():
    for end in (8, 40, 56, 64, 128):
        chosen = close_configs(MatmulProblem(5, 4096, 14336, at_most=end), H200)
        assert chosen and all(not config.A_ROWS or config.A_ROWS >= end for config, _ in chosen)


def test_what_cannot_be_finished_is_left_out():
    problem = MatmulProblem(4096, 4096, 4096)
    chosen = close_configs(
        problem, H200, lambda config: None if config.BN > 200 else config._replace(EVICT_A="evict_last")
    )
    assert chosen and all(config.BN <= 200 and config.EVICT_A == "evict_last" for config, _ in chosen)
    assert not close_configs(problem, H200, lambda config: None)


@pytest.mark.parametrize("rows", [1, 32, 100, 2048])
def test_constant_weights_of_single_tiles_come_apart(rows: int) -> None:
    """By a thread of their own, and at first as many bytes at once as the memory's rate takes, two stages at least."""
    for config, _ in close_configs(MatmulProblem(rows, 28672, 4096), H200):
        early = dependent(config, H200).check()
        assert early.DEPENDENT and early.STAGES == config.STAGES
        if config.single and config.CONSUMERS == 1:
            flight = early.FLIGHT * early.right_stage_bytes
            least = H200.early_flight
            assert flight >= least and (early.FLIGHT == 2 or flight < least + early.right_stage_bytes)
        else:
            assert not early.FLIGHT


def test_of_several_ranges_of_rows_each_has_its_first_config_untimed() -> None:
    """The candidate that is expected to be fastest is the first one, whatever the estimate of the largest range is."""
    b = GraphBuilder("projection")
    weight = b.constant(np.zeros((12288, 1024), dtypes.bfloat16.numpy), "w")
    b.output(
        b.op("matmul", [b.input("x", dtypes.bfloat16, (b.symbol("n", 1, 8192), 1024)), weight], transpose_b=True), "y"
    )
    graph = b.finish()
    (group,) = fuse(graph).groups
    found = [one for one in candidates(group, graph, TARGET) if one.name == "hopper matmul"]
    seconds = [one.cost.seconds for one in found]
    assert len(found) > 2 and seconds == sorted(seconds)
    configs = [call.constants["CONFIG"] for call in found[0].stages[0].calls]
    first = [close_configs(MatmulProblem(rows, 12288, 1024, at_most=rows), H200)[0][0] for rows in (8, 16, 64)]
    assert [(one.BM, one.BN) for one in configs[:3]] == [(one.BM, one.BN) for one in first]
    assert [one.A_ROWS for one in configs[:3]] == [8, 16, 0]  # fewer leave room for more weights


@pytest.mark.parametrize("inner", [14336, 4096, 11008, 5632])
def test_all_configs_of_gated_products_can_be_built(inner: int) -> None:
    """Stages leave room for the narrower last columns that a gate's results are stored in."""
    b = GraphBuilder("gate")
    x = b.input("x", dtypes.bfloat16, (b.symbol("n", 1, 8192), 4096))
    weight = b.constant(np.zeros((2 * inner, 4096), dtypes.bfloat16.numpy), "w")
    halves = b.op("matmul", [x, weight], transpose_b=True)
    gate, up = (b.op("slice", [halves], axis=1, start=at, stop=at + inner, step=1) for at in (0, inner))
    b.output(b.op("multiply", [b.op("silu", [gate]), up]), "y")
    graph = b.finish()
    (group,) = fuse(graph).groups
    found = [one for one in candidates(group, graph, TARGET) if one.name == "hopper gated matmul"]
    configs = [call.constants["CONFIG"] for one in found for call in one.stages[0].calls]
    assert any(config.tail for config in configs)
    for config in configs:
        config.check()


@pytest.mark.parametrize("made", [dtypes.bfloat16, dtypes.int8])
def test_products_without_an_epilogue_are_one_problem(made: dtypes.DType) -> None:
    """As an operation on arrays poses them, and as an engine does."""
    b = GraphBuilder("product")
    x, w = b.input("x", dtypes.bfloat16, (2048, 512)), b.constant(np.ones((512, 1024), dtypes.bfloat16.numpy))
    b.output(b.op("matmul", [x, w]))
    graph = b.finish()
    (group,) = fuse(graph).groups
    epilogues = (EpilogueParts().epilogue, epilogue_slots(group, graph).epilogue)
    problem = MatmulProblem(2048, 1024, 512, input=dtypes.int8 if made == dtypes.int8 else made, output=made)
    of_arrays, of_engines = (candidate_configs(replace(problem, epilogue=each), H200) for each in epilogues)
    assert of_arrays == of_engines


def test_a_bias_and_an_activation_take_one_multiply_add() -> None:
    """Of operations on arrays and of engines: half of the sum, which the hardware's form takes, comes with the bias."""
    b = GraphBuilder("layer")
    x, w = b.input("x", dtypes.bfloat16, (2048, 512)), b.constant(np.ones((512, 1024), dtypes.bfloat16.numpy))
    bias = b.constant(np.ones(1024, dtypes.bfloat16.numpy))
    b.output(b.op("gelu", [b.op("add", [b.op("matmul", [x, w]), bias])]))
    graph = b.finish()
    (group,) = fuse(graph).groups
    engine = epilogue_slots(group, graph).rounded(1024).epilogue
    arrays = EpilogueParts(bias=dtypes.bfloat16, activation="gelu").epilogue
    for epilogue in (engine, arrays):
        assert "gelu_of_half(tl.fma(acc, 0.5, 0.5 * " in epilogue.function.source
    assert engine.cost == arrays.cost


def test_functions_without_an_activation_count_as_the_instructions_that_they_are() -> None:
    b = GraphBuilder("mish")
    x, w = b.input("x", dtypes.float16, (2048, 512)), b.constant(np.ones((512, 1024), dtypes.float16.numpy))
    y = b.op("matmul", [x, w])
    b.output(b.op("multiply", [b.op("tanh", [b.op("log", [b.op("exp", [y])])]), y]))
    graph = b.finish()
    (group,) = fuse(graph).groups
    cost = epilogue_slots(group, graph).rounded(1024).epilogue.cost
    assert cost.activations == 0 and cost.instructions >= 60
    assert function_instructions({"add": 3, "exp": 2, "log": 1}) == 44
