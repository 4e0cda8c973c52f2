"""Products whose columns are heads, turned and stored: the kernel in the interpreter, and as a candidate of engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.hopper_support import ORDERS, traced_projection
from tests.projections import projection_graph, projection_inputs
from tilewright.build.builder import build
from tilewright.build.ranges import combined, representatives
from tilewright.build.tuning import Tuning
from tilewright.dtypes import bfloat16, float16, float32
from tilewright.errors import LaunchError
from tilewright.graph.core import Graph
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import run as run_graph
from tilewright.ir.interpreter import run
from tilewright.ir.verifier import verify
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.library.matmul.hopper.projection_config import ProjectionHeads, check_config, suits
from tilewright.library.select import candidates, choose
from tilewright.measure.choosing import Choice
from tilewright.passes.pipeline import simplify
from tilewright.symbolic import evaluate, product
from tilewright.targets.nvidia.target import NvidiaTarget
from tilewright.targets.registry import get_target, graph_passes

HOPPER = "cuda:sm_90a"

CONFIG = MatmulConfig(BM=64, BN=48, BK=128, STAGES=3, CONSUMERS=1, A_ROWS=8, SINGLE=True, DEPENDENT=True, FLIGHT=2)
WIDTHS = (64, 80, 96, 128, 256)


@tilewright.jit
def biased(value, row, column, mask, extra):  # type: ignore[no-untyped-def]
    return value + tl.load(extra[0] + column, mask=mask).to(tl.float32)


def drawn(seed: int) -> tuple[MatmulConfig, ProjectionHeads, int, int, bool]:
    """A config, heads, rows, a depth, and whether there is a bias."""
    rng = np.random.default_rng(seed)
    keys, width = int(rng.integers(1, 4)), int(rng.choice(WIDTHS))
    turned = int(rng.choice([width, width, width // 32 * 16, 0]))
    heads = ProjectionHeads(keys * int(rng.integers(1, 5)), keys, width, turned)
    rows = int(rng.choice([1, 2, 3, 5, 7, 8, 8, 13, 40, 64]))
    config = CONFIG._replace(
        BN=16 * int(rng.integers(2, 9)), BK=int(rng.choice([64, 128])), STAGES=int(rng.integers(2, 6)),
        A_ROWS=8 if rows <= 8 else 16 if rows <= 16 else 0, INPUT=(kind := rng.choice([tl.bfloat16, tl.float16])),
        OUTPUT=kind,
    )  # fmt: skip
    return check_config(config), heads, rows, 8 * int(rng.integers(1, 60)), bool(rng.random() < 0.3)


def turned_by(x: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> np.ndarray:
    """Heads [rows, heads, width] turned in their first elements, in float64."""
    half = cosine.shape[1]
    low, high, rest = x[:, :, :half], x[:, :, half : 2 * half], x[:, :, 2 * half :]
    cosine, sine = cosine[:, None], sine[:, None]
    return np.concatenate([low * cosine - high * sine, high * cosine + low * sine, rest], axis=2)


def maps_of(b: np.ndarray, turned: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights as the kernel's maps show them: both halves of turned heads, and the columns."""
    half, (line, step) = turned // 2, b.strides
    bits = b.view(np.uint16)
    shape = (2, len(b) - half, b.shape[1])
    return np.lib.stride_tricks.as_strided(bits, shape, (half * line, line, step)).view(b.dtype), b


def project(case: tuple[Any, ...], rng: np.random.Generator, orders: int) -> None:
    """Against float64; slots of no entry are left out, those below 0 count from the end."""
    config, heads, rows, depth, bias = case
    kind, entries = config.INPUT.element.numpy, 70
    function = simplify(traced_projection(config._replace(EPILOGUE=biased) if bias else config, heads,
                                          (f"*k {config.INPUT.element.text}",) if bias else ()))  # fmt: skip
    verify(function)
    a, b = (rng.standard_normal(shape).astype(kind) for shape in ((rows, depth), (heads.columns, depth)))
    added = rng.standard_normal(heads.columns).astype(kind)
    angles = rng.uniform(0, 7, (rows, heads.TURNED // 2))
    cosine, sine = np.cos(angles).astype(kind), np.sin(angles).astype(kind)
    slots = rng.permutation(entries)[:rows].astype(np.int32)
    given = slots.copy()
    given[0] -= entries
    if rows > 1:
        given[1] = entries
    sums = a.astype(np.float64) @ b.astype(np.float64).T + bias * added.astype(np.float64)
    whole = sums.reshape(rows, heads.heads, heads.WIDTH)
    wide = cosine.astype(np.float64), sine.astype(np.float64)
    parts = [whole[:, : heads.QUERIES], whole[:, heads.QUERIES : heads.turned_heads], whole[:, heads.turned_heads :]]
    expected = [turned_by(parts[0], *wide), turned_by(parts[1], *wide), parts[2]]
    # Sums of `depth` products in float32, rounded before and after they are turned.
    unit = 2.0**-8 if config.INPUT == tl.bfloat16 else 2.0**-11
    bound = 2.5 * unit * np.abs(sums).max() + 2e-6 * depth * np.abs(a.astype(np.float64)).max() ** 2
    for order in range(orders):
        queries = np.full((rows, heads.QUERIES, heads.WIDTH), 7, kind)
        pools = [np.full((entries, heads.KEYS, heads.WIDTH), 9, kind) for _ in range(2)]
        tables = [item.reshape(-1) if item.size else np.zeros(1, kind) for item in (cosine, sine)]
        arguments = [a, *maps_of(b, heads.TURNED), *tables, given, queries.reshape(-1)]
        arguments += [*(pool.reshape(-1) for pool in pools), rows, heads.columns, depth, entries]
        run(function, [*arguments, *([added] if bias else [])], (-(-heads.columns // config.BN),), order=order)
        stored = [row for row in range(rows) if 0 <= given[row] + entries * (given[row] < 0) < entries]
        assert np.abs(queries.astype(np.float64) - expected[0]).max() <= bound
        others = np.setdiff1d(np.arange(entries), slots[stored])
        for pool, values in zip(pools, expected[1:], strict=True):
            assert np.abs(pool[slots[stored]].astype(np.float64) - values[stored]).max() <= bound
            assert np.all(pool[others] == kind.type(9))


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("seed", range(48))
def test_heads_are_turned_and_stored(seed: int, rng: np.random.Generator) -> None:
    project(drawn(seed), rng, 1)


@pytest.mark.parametrize("turned", [64, 32])
def test_it_is_clean_in_any_order(turned: int, rng: np.random.Generator) -> None:
    """More stages than the ring has."""
    project((CONFIG, ProjectionHeads(2, 1, 64, turned), 5, 900, False), rng, ORDERS)


def test_what_the_kernel_does_not_take() -> None:
    for config in (
        CONFIG._replace(BN=40), CONFIG._replace(SINGLE=False), CONFIG._replace(SPLIT=2), CONFIG._replace(FLIGHT=0),
        CONFIG._replace(BM=128, CONSUMERS=2), CONFIG._replace(B_TRANSPOSED=True),
    ):  # fmt: skip
        assert not suits(config)
    for heads in (ProjectionHeads(4, 2, 72, 0), ProjectionHeads(4, 2, 96, 72), ProjectionHeads(4, 2, 64, 80)):
        with pytest.raises(LaunchError):
            heads.check()


# In engines -----------------------------------------------------------------------------------------------------------


def engine_of(graph: Graph) -> Any:
    return build(graph, HOPPER, tuning=Tuning(0))


def results(engine: Any, inputs: dict[str, Any]) -> list[np.ndarray]:
    """What is stored: queries, and both pools."""
    given = {name: array.copy() for name, array in inputs.items()}
    return [engine.run(given)["queries"], given["keys"], given["values"]]


def without_projections(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = NvidiaTarget.kernels.fget
    monkeypatch.setattr(NvidiaTarget, "kernels", property(lambda target: replace(facts(target), projected_rows=0)))


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("seed", range(16))
def test_one_kernel_stores_what_two_do(seed: int, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are right, and equal but where a sum that was added in another order is rounded to the next number."""
    rng = np.random.default_rng(seed)
    keys, width = int(rng.integers(1, 3)), int(rng.choice(WIDTHS))
    heads = ProjectionHeads(keys * int(rng.integers(1, 4)), keys, width, int(rng.choice([width, width // 32 * 16])))
    rows, depth, dtype = int(rng.choice([1, 3, 8, 20])), 8 * int(rng.integers(2, 9)), (bfloat16, float16)[seed % 2]
    graph = projection_graph(heads, rows, depth, dtype, seed % 3 == 0, rng)
    inputs = projection_inputs(heads, rows, depth, dtype, rng)
    found, expected = results(engine := engine_of(graph), inputs), run_graph(graph, inputs)
    assert [step.evidence["chosen"] for step in engine.plan.steps] == ["hopper projection"]
    without_projections(monkeypatch)
    plain = engine_of(graph)
    assert len(plain.plan.steps) == 2
    unit = 2.0**-8 if dtype == bfloat16 else 2.0**-11
    for ours, theirs, name in zip(found, results(plain, inputs), ("queries", "keys", "values"), strict=True):
        wanted, ours, theirs = (each.astype(np.float64) for each in (expected[name], ours, theirs))
        assert np.abs(ours - wanted).max() <= 4 * unit * np.abs(wanted).max()
        assert np.abs(ours - theirs).max() <= 4 * unit * np.abs(wanted).max() and np.mean(ours != theirs) < 0.02


def test_more_rows_are_stored_by_a_kernel_after_the_product(driver: Any, rng: np.random.Generator) -> None:
    """Of a run-time number of rows the two kernels are taken untimed; the launches of few rows are there to be timed,
    and the second stage is then empty."""
    heads, depth = ProjectionHeads(4, 2, 64, 64), 64
    graph = projection_graph(heads, None, depth, bfloat16, False, rng)
    optimized = optimize(graph, graph_passes([get_target(HOPPER)]))
    (group,) = [group for group in fuse(optimized, get_target(HOPPER).kernels).groups if group.kind == "projection"]
    found = candidates(group, optimized, get_target(HOPPER))
    assert choose(found).name == "hopper matmul" and found[-1].name == "hopper projection"
    assert min(each.cost.seconds for each in found) == found[-1].cost.seconds
    first, second = found[-1].stages
    for rows, kernel, programs in ((1, "project_heads", 0), (64, "project_heads", 0), (65, "matmul", 65)):
        sizes = {"rows": rows, "entries": 100}
        assert first.call_for(sizes).kernel.__name__ == kernel
        grid = evaluate(product(second.call_for(sizes).grid), sizes)
        assert (grid > 0) == (programs > 0)


def test_the_fastest_of_both_is_taken_for_each_range(driver: Any, rng: np.random.Generator) -> None:
    heads = ProjectionHeads(4, 2, 64, 64)
    graph = optimize(projection_graph(heads, None, 64, bfloat16, False, rng), graph_passes([get_target(HOPPER)]))
    (group,) = [group for group in fuse(graph, get_target(HOPPER).kernels).groups if group.kind == "projection"]
    found = candidates(group, graph, get_target(HOPPER))
    two, one = found.index(choose(found)), len(found) - 1
    examples = [value for value in representatives([found[two], found[one]])]
    times = [({"rows": rows}, {two: 10.0, one: 8.0 if rows <= 8 else 12.0}) for rows in examples]
    choice = Choice(two, "timed", "", {two: 10.0, one: 11.0})
    candidate, _ = combined(found, choice, times)
    assert candidate.temporaries == found[two].temporaries
    for rows in (1, 8, 9, 64, 65, 512):
        few = rows <= 8
        calls = [stage.call_for({"rows": rows, "entries": 100}) for stage in candidate.stages]
        assert (calls[0].kernel.__name__ == "project_heads") == few and (calls[1].grid[0] == 0) == few


@pytest.mark.parametrize(
    ("heads", "dtype", "change"),
    [
        (ProjectionHeads(4, 2, 64, 64), float32, None),
        (ProjectionHeads(4, 2, 64, 64), bfloat16, lambda b, x: b.op("relu", [x])),
        (ProjectionHeads(4, 2, 64, 64), bfloat16, lambda b, x: b.op("rms_norm", [x], axis=2, epsilon=1e-6)),
    ],
    ids=["float32", "changed", "normalised"],
)
def test_others_stay_groups_of_their_own(heads: Any, dtype: Any, change: Any, rng: np.random.Generator) -> None:
    target = get_target(HOPPER)
    graph = optimize(projection_graph(heads, 4, 64, dtype, False, rng, change), graph_passes([target]))
    assert "projection" not in {group.kind for group in fuse(graph, target.kernels).groups}


@pytest.mark.parametrize(("width", "turned"), [(72, 72), (96, 72)])
def test_heads_that_the_kernel_does_not_store(width: int, turned: int, driver: Any, rng: np.random.Generator) -> None:
    """The two kernels, with the reason."""
    heads = ProjectionHeads(4, 2, width, turned)
    graph = projection_graph(heads, 4, 64, bfloat16, False, rng)
    inputs = projection_inputs(heads, 4, 64, bfloat16, rng)
    engine = engine_of(graph)
    assert {step.evidence["chosen"] for step in engine.plan.steps} == {"hopper matmul"}
    assert "multiple" in engine.plan.steps[0].evidence["candidates"][0]["label"]
    found, expected = results(engine, inputs), run_graph(graph, inputs)
    for ours, name in zip(found, ("queries", "keys", "values"), strict=True):
        wanted = expected[name].astype(np.float64)
        assert np.abs(ours.astype(np.float64) - wanted).max() <= 2**-6 * np.abs(wanted).max()
