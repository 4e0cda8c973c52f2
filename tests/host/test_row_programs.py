"""Several reductions over the same rows as one group, and its kernels, against the float64 reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tests.host.random_rows import TOLERANCES, RandomRows
from tests.host.tactics_support import Draw, Memory, check, parameter_types, run_call, run_graph
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, float16, float32, float64
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.stage_reductions import stage_reductions
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import run as reference
from tilewright.library.candidate import Candidate
from tilewright.library.rows import simt_program
from tilewright.library.select import candidates
from tilewright.symbolic import evaluate
from tilewright.targets.nvidia.target import NvidiaTarget

GPU = NvidiaTarget.named("sm_90a")
KERNELS = KernelFacts(row_programs=True)
SHORT = replace(KERNELS, short_loop=1 << 20)  # as GPUs have it
FORMS = ("rows at once", "rows in chunks", "rows in parts")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that a few numbers are several of them, and several parts."""
    for name, value in {"CHUNK_ELEMENTS": 16, "_LEAST_ROWS_OF_STRIP": 3, "STRIP": 8}.items():
        monkeypatch.setattr(simt_program, name, value)


def taking(form: str, seen: list[str]) -> Callable[[Sequence[Candidate]], Candidate]:
    """The candidate of a form, where there is one."""

    def choice(found: Sequence[Candidate]) -> Candidate:
        chosen = next((candidate for candidate in found if candidate.name == form), found[0])
        seen.append(chosen.name)
        return chosen

    return choice


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(5))
def test_random_programs(seed: int) -> None:
    drawn = RandomRows(seed, (1, 2, 3, 7, 31, 65), 700, dynamic=seed % 3 == 0)
    graph, inputs = optimize(drawn.graph), drawn.inputs()
    for form in FORMS if seed % 3 else FORMS[1:]:
        check(graph, inputs, False, TOLERANCES[drawn.type], GPU, taking(form, []), True)


def moments(b: GraphBuilder, x: Value, axes: tuple[int, ...]) -> tuple[Value, Value]:
    """The mean and the variance."""
    mean = b.op("reduce_mean", [x], axes=axes, keepdims=True)
    difference = b.op("subtract", [x, mean])
    return mean, b.op("reduce_mean", [b.op("multiply", [difference, difference])], axes=axes, keepdims=True)


def batch_norm(channels: int = 3) -> Graph:
    b = GraphBuilder("batch norm in training")
    x, scale = b.input("x", float32, (5, channels, 6, 11)), b.input("scale", float32, (channels, 1, 1))
    mean, variance = moments(b, x, (0, 2, 3))
    root = b.op("rsqrt", [b.op("add", [variance, 1e-5])])
    b.output(b.op("multiply", [b.op("multiply", [b.op("subtract", [x, mean]), root]), scale]), "y")
    b.output(mean, "mean")
    return b.finish()


def group_norm() -> Graph:
    b = GraphBuilder("group norm")
    x, scale = b.input("x", float16, (2, 6, 4, 5)), b.input("scale", float16, (6, 1, 1))
    y = b.op("layer_norm", [b.op("reshape", [x], shape=(2, 3, 40))], axis=2, epsilon=1e-5)
    b.output(b.op("silu", [b.op("multiply", [b.op("reshape", [y], shape=x.shape), scale])]), "y")
    return b.finish()


def norm_over_channels() -> Graph:
    b = GraphBuilder("norm over channels")
    x = b.input("x", float32, (2, 9, 70))
    total = b.op("reduce_sum", [b.op("multiply", [x, x])], axes=(1,), keepdims=True)
    b.output(b.op("divide", [x, b.op("clip", [b.op("sqrt", [total])], low=1e-12)]), "y")
    return b.finish()


def divergence() -> Graph:
    b = GraphBuilder("divergence")
    x, y = b.input("x", float32, (4, 37)), b.input("y", float32, (4, 37))
    p, logarithm = b.op("softmax", [y], axis=1), b.op("log_softmax", [x], axis=1)
    product = b.op("multiply", [p, b.op("subtract", [b.op("log", [p]), logarithm])])
    b.output(b.op("reduce_sum", [product], axes=(0, 1)), "y")
    return stage_reductions(b.finish())


def statistics(dtype: DType = float32) -> Graph:
    b = GraphBuilder("statistics")
    x = b.input("x", dtype, (3, b.symbol("n", 1, 99999)))
    for value in (*moments(b, x, (1,)), b.op("reduce_max", [x], axes=(1,)), b.op("reduce_min", [x], axes=(1,))):
        b.output(value)
    return b.finish()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("make", [batch_norm, group_norm, norm_over_channels, divergence, statistics])
def test_one_group_in_every_form(make: Callable[[], Graph], draw: Draw) -> None:
    graph = optimize(make())
    kinds = [group.kind for group in fuse(graph, KERNELS).groups if group.kind != "view"]
    assert kinds == ["rows"] + ["reduction"] * (make is divergence)
    inputs = {
        value.name: draw(*(extent if isinstance(extent, int) else 83 for extent in value.shape)).astype(
            value.dtype.numpy
        )
        for value in graph.inputs
    }
    seen: list[str] = []
    for form in ("separate rows", *FORMS):
        check(graph, inputs, False, 2e-2 if make is group_norm else 1e-4, GPU, taking(form, seen), True)
    assert len(set(FORMS).intersection(seen)) >= 1 + (make is not divergence)


@pytest.mark.parametrize("make", [group_norm, divergence])
def test_rows_on_cpus(make: Callable[[], Graph], draw: Draw) -> None:
    graph = optimize(make())
    inputs = {value.name: draw(*value.shape).astype(value.dtype.numpy) for value in graph.inputs}  # type: ignore[arg-type]
    seen: list[str] = []
    check(graph, inputs, True, 2e-2 if make is group_norm else 1e-4, choice=taking(FORMS[0], seen), row_programs=True)
    assert FORMS[0] in seen


def test_a_large_mean_costs_no_digits_of_a_variance(small: None, draw: Draw) -> None:
    for form in FORMS[1:]:
        check(optimize(statistics()), {"x": draw(3, 150) + 3000}, False, 1e-5, GPU, taking(form, []), True)
    wide = draw(3, 150).astype(np.float64) + 3000
    check(optimize(statistics(float64)), {"x": wide}, False, 1e-12, GPU, taking(FORMS[1], []), True)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("form", ["separate rows", *FORMS[1:]])
@pytest.mark.parametrize("dtype", [float32, float64])
def test_rows_of_the_least_number_and_large_means(form: str, dtype: DType) -> None:
    """Masks leave rows of nothing but the least number; lanes and parts without elements add nothing to a variance,
    not even where the square of a mean is infinite."""
    b = GraphBuilder("edges")
    x = b.input("x", dtype, (4, b.symbol("n", 1, 99999)))
    for value in (b.op("softmax", [x], axis=1), b.op("reduce_log_sum_exp", [x], axes=(1,)), *moments(b, x, (1,))):
        b.output(value)
    limits = np.finfo(dtype.numpy)
    large = 2.0 ** (3 * limits.maxexp // 4)
    rows = np.zeros((4, 32), dtype.numpy)
    rows[0], rows[1, 5], rows[2] = limits.min, limits.min, large
    seen: list[str] = []
    with np.errstate(all="ignore"):
        outputs, _ = run_graph(optimize(b.finish()), {"x": rows}, False, GPU, taking(form, seen), True)
    assert seen == [form]
    softmax, logarithm, mean, variance = outputs.values()
    np.testing.assert_allclose(softmax[[0, 2, 3]], 1 / 32, rtol=1e-5)
    np.testing.assert_allclose(softmax[1], (rows[1] == 0) / 31, rtol=1e-5)
    np.testing.assert_allclose(logarithm, [limits.min, np.log(31), large, np.log(32)], rtol=1e-5)
    np.testing.assert_allclose(mean[2:, 0], [large, 0], rtol=1e-5)
    np.testing.assert_array_equal(variance[2:, 0], 0)


@pytest.mark.parametrize("shape", [(1, (1 << 31) - 1), (1, (1 << 31) + 4096), ((1 << 29) + 999, 4)])
def test_parts_of_rows_whose_ends_32_bits_do_not_count(shape: tuple[int, ...]) -> None:
    """Parts begin and end at 64-bit places; of pieces of the same mean, those that do not exist change nothing."""
    b = GraphBuilder("long rows")
    for value in moments(b, b.input("x", float32, shape), (int(np.argmax(shape)),)):
        b.output(value)
    graph = optimize(b.finish())
    (group,) = fuse(graph, KERNELS).groups
    found = next(item for item in candidates(group, graph, GPU) if item.name == FORMS[2])
    memory = Memory(replace(graph, inputs=[]), {})
    for value in found.temporaries:
        extents = tuple(evaluate(extent, {}) for extent in value.shape)
        memory.arrays[value] = np.full(extents, 2.0 if value.name.endswith("first") else 0.0, np.float32)
    run_call(found.stages[-1].calls[0], memory, False)
    for value, wanted in zip(graph.outputs, (2, 0), strict=True):
        np.testing.assert_allclose(memory.array(value), wanted, rtol=1e-5)
    (first,) = found.stages[0].calls
    assert re.search(r"= for .*\{\(%\d+: i64,", str(first.kernel.trace(parameter_types(first), first.constants)))


def test_infinities_and_what_is_no_number(small: None) -> None:
    """As in the order of the operations: a softmax of nothing but -inf is NaN, its logarithm of sums -inf."""
    b = GraphBuilder("infinities")
    x = b.input("x", float32, (5, 70))
    total = b.op("reduce_log_sum_exp", [x], axes=(1,), keepdims=True)
    b.output(total, "log of sums")
    b.output(b.op("subtract", [b.op("softmax", [x], axis=1), b.op("multiply", [total, 0.0])]), "softmax")
    graph = optimize(b.finish())
    rows = np.zeros((5, 70), np.float32)
    rows[0, 3], rows[1], rows[2, 69], rows[3, 5] = -np.inf, -np.inf, np.nan, np.inf
    expected = reference(graph, {"x": rows})
    for form in FORMS[:2]:
        with np.errstate(all="ignore"):
            outputs, _ = run_graph(graph, {"x": rows}, False, GPU, taking(form, []), True)
        for name, wanted in expected.items():
            np.testing.assert_allclose(outputs[name], wanted, rtol=1e-5, err_msg=f"{form}, {name}")


def test_other_rows_stay_groups_of_their_own() -> None:
    """Reductions over other axes, and elementwise ops that share nothing of the size of rows."""
    b = GraphBuilder("others")
    x, y = b.input("x", float32, (8, 8)), b.input("y", float32, (8, 8))
    b.output(b.op("reduce_sum", [x], axes=(0,)))
    b.output(b.op("multiply", [y, b.op("reduce_max", [x], axes=(1,), keepdims=True)]))
    assert [group.kind for group in fuse(b.finish(), KERNELS).groups] == [
        "reduction",
        "reduction",
        "elementwise",
    ]


def test_small_rows_join_over_their_numbers_alone(draw: Draw) -> None:
    """Statistics of images become those of the batch, with the running ones that follow them, in one launch."""
    b = GraphBuilder("statistics of statistics")
    means, variances, old = (
        b.input("means", float32, (6, 40)),
        b.input("variances", float32, (6, 40)),
        b.input("old", float32, (40,)),
    )
    mean = b.op("reduce_mean", [means], axes=(0,), keepdims=True)
    centred = b.op("subtract", [means, mean])
    between = b.op("reduce_mean", [b.op("multiply", [centred, centred])], axes=(0,), keepdims=True)
    within = b.op("reduce_mean", [variances], axes=(0,), keepdims=False)
    mean = b.op("reshape", [mean], shape=(40,))
    b.output(b.op("rsqrt", [b.op("add", [within, b.op("reshape", [between], shape=(40,))])]))
    b.output(b.op("add", [b.op("multiply", [old, 0.9]), b.op("multiply", [mean, 0.1])]))
    b.output(mean)
    graph = optimize(b.finish())
    assert [group.kind for group in fuse(graph, SHORT).groups if group.kind != "view"] == ["rows"]
    assert [group.kind for group in fuse(graph, KERNELS).groups].count("rows") == 1  # a launch costs nothing on CPUs
    check(graph, {"means": draw(6, 40), "variances": abs(draw(6, 40)), "old": draw(40)}, False, 1e-5, GPU,
          row_programs=True)  # fmt: skip


def test_numbers_of_other_rows_are_refused_by_the_kernel(draw: Draw) -> None:
    """Of a square matrix, the sums of rows meet columns: as many numbers, but not at the same place."""
    b = GraphBuilder("square")
    x = b.input("x", float32, (8, 8))
    total = b.op("reduce_sum", [x], axes=(1,), keepdims=False)
    b.output(b.op("subtract", [x, total]))
    graph = b.finish()
    (group,) = fuse(graph, KERNELS).groups
    (only,) = candidates(group, graph, GPU)
    assert only.name == "separate rows" and "not possible" in only.reasons["one kernel"]
    check(graph, {"x": draw(8, 8)}, False, 1e-5, GPU, row_programs=True)


def test_groups_of_one_image_never_wait_for_each_other() -> None:
    """A group may need one that begins after its last node, by way of a third that spans both."""
    for seed in range(60):
        random, b = np.random.default_rng(seed), GraphBuilder(f"readers {seed}")
        x = b.input("x", float32, (1, 2, 6, 7))
        for _ in range(int(random.integers(2, 6))):
            axes = tuple(sorted(random.choice(4, int(random.integers(1, 4)), replace=False).tolist()))
            kind = random.choice(["norm", "sum", "window", "moments"])
            if kind == "sum":
                b.output(b.op("power", [b.op("reduce_sum", [b.op("absolute", [x])], axes=axes, keepdims=True), 0.5]))
            elif kind == "window":
                square = b.op("pad", [b.op("multiply", [x, x])], pads=((0, 0), (1, 1), (0, 0), (0, 0)))
                parts = [b.op("slice", [square], axis=1, start=i, stop=i + 2, step=1) for i in range(3)]
                total = b.op("add", [b.op("add", parts[:2]), parts[2]])
                b.output(b.op("divide", [x, b.op("power", [b.op("add", [total, 1.0]), 0.75])]))
            elif kind == "norm":
                b.output(b.op(str(random.choice(["softmax", "log_softmax"])), [x], axis=-1))
            else:
                mean, variance = moments(b, x, axes)
                b.output(b.op("divide", [b.op("subtract", [x, mean]), b.op("sqrt", [variance])]))
        fuse(optimize(b.finish()), KERNELS)


@pytest.mark.usefixtures("small")
def test_rows_and_columns_of_several_dimensions(driver: Driver, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are split from one counter, columns in a loop: names of one are none of the other's."""
    monkeypatch.setattr(simt_program, "WHOLE_ROW_ELEMENTS", 64)
    b = GraphBuilder("parts of volumes")
    given = draw(2, 7, 6, 8, 3).astype(np.float16)
    x = b.op("permute", [b.input("x", float16, given.shape)], order=(0, 4, 1, 2, 3))
    for axis in (2, 3, 4):
        x = b.op("slice", [x], axis=axis, start=1, stop=x.shape[axis])
    x = b.op("cast", [x], dtype=float32)
    b.output(b.op("subtract", [x, b.op("reduce_mean", [x], axes=(2, 3, 4), keepdims=True)]), "y")
    engine = build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    assert {step.evidence["chosen"] for step in engine.plan.steps} <= {"rows in chunks", "rows in parts"}
    wanted = given.transpose(0, 4, 1, 2, 3)[:, :, 1:, 1:, 1:].astype(np.float64)
    wanted = wanted - wanted.mean((2, 3, 4), keepdims=True)
    np.testing.assert_allclose(engine.run({"x": given})["y"], wanted, atol=1e-5)
