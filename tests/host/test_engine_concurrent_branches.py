"""Steps beside each other on a GPU: what may be, where it pays, and that results do not change."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tests.host.random_graphs import RandomGraph
from tilewright.build import concurrent_branches
from tilewright.build.builder import build
from tilewright.build.concurrent_branches import LANES, TaskWork, direct_dependencies, places
from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.reference import run
from tilewright.targets.nvidia.target import NvidiaTarget

CROSSING = NvidiaTarget.named("sm_90a").machine().launches.crossing


def work(reads: str, writes: str, seconds: float = 1e-5, fills: bool = False) -> TaskWork:
    return TaskWork(frozenset(reads), frozenset(writes), seconds, fills)


def test_tasks_depend_by_the_tensors_that_they_share() -> None:
    tasks = [work("x", "a"), work("x", "b"), work("a", "c"), work("cb", "a"), work("a", "y"), work("x", "x")]
    assert direct_dependencies(tasks) == [[], [], [0], [2, 1], [3], [1, 0]]


def test_lanes_are_used_where_they_pay() -> None:
    both = [work("x", "a"), work("x", "b"), work("ab", "y")]
    found = places(both, CROSSING)
    assert {found[0].lane, found[1].lane} == {0, 1} and found[2].after == (1 - found[2].lane,)
    assert all(
        place.lane == 0 for place in places([dataclasses.replace(t, seconds=1e-6) for t in both], CROSSING)
    )  # too short
    for changed in ({"seconds": 1e-6}, {"fills": True}):  # too short, or nothing left for others
        assert all(place.lane == 0 for place in places([dataclasses.replace(t, **changed) for t in both], CROSSING))
    chain = [work("abcde"[n], "bcdef"[n]) for n in range(5)]
    assert all(place == concurrent_branches.LanePlace(0, ()) for place in places(chain, CROSSING))


def test_every_dependency_is_kept_by_lanes_and_waits(rng) -> None:
    tasks = []
    for _ in range(40):
        names = "".join(rng.choice(list("abcdefghijkl"), 3))
        tasks.append(work(names[:2], names[2:], float(rng.uniform(1e-6, 2e-5)), bool(rng.integers(0, 5) == 0)))
    needed = direct_dependencies(tasks)
    found, _ = concurrent_branches._spread(tasks, needed, CROSSING)
    before: list[set[int]] = []
    for number, place in enumerate(found):
        assert 0 <= place.lane < LANES
        ordered = [n for n in range(number) if found[n].lane == place.lane] + list(place.after)
        before.append({*ordered, *(other for n in ordered for other in before[n])})
        assert all(other in before[number] for other in range(number) if tasks[other].conflicts(tasks[number]))
    users = [int(n) for n in rng.integers(0, 20, 3)]
    last = concurrent_branches.last_concurrent(found)(users)
    assert all(set(users) <= before[number] for number in range(last + 1, 40)) and not set(users) <= before[last]


def experts(rng: np.random.Generator) -> Graph:
    """Products of one input by chains of weights, then their sum."""
    b = GraphBuilder("experts")
    x = b.input("x", float32, (16, 512))
    results = []
    for _ in range(3):
        first, second = ((rng.standard_normal((512, 512)) / 22).astype(np.float32) for _ in range(2))
        hidden = b.op("softmax", [b.op("matmul", [x, b.constant(first)])], axis=1)
        results.append(b.op("softmax", [b.op("matmul", [hidden, b.constant(second)])], axis=1))
    b.output(b.op("add", [b.op("add", results[:2]), results[2]]), "y")
    return b.finish()


def test_branches_of_an_engine_run_on_streams_of_their_own(driver: Driver, rng, tmp_path) -> None:
    graph = experts(rng)
    engine = build(graph, "cuda:sm_90a")
    assert len({step.lane for step in engine.plan.steps}) > 1
    x = rng.standard_normal((16, 512), np.float32)
    for _ in range(4):  # launched one by one, then as a graph whose kernels run in any order that is allowed
        np.testing.assert_allclose(engine(x), run(graph, {"x": x})["y"], rtol=1e-4, atol=1e-5)
    waits = sum(len(step.after) for step in engine.plan.steps)
    assert driver.calls["cuStreamWaitEvent"] >= waits >= 2


@pytest.mark.parametrize("length", [10, 20])
def test_random_graphs_on_lanes_keep_their_results(driver: Driver, rng, monkeypatch, length: int) -> None:
    monkeypatch.setattr(concurrent_branches, "_LARGEST_SHARE_OF_ONE_LANE", 1e9)  # lanes wherever there are branches
    drawn = RandomGraph(int(rng.integers(2**32)), length)
    inputs = {name: array.astype(np.float32) for name, array in drawn.inputs(2, 3).items()}
    spread = build(drawn.graph, "cuda:sm_90a")
    monkeypatch.setattr(concurrent_branches, "_LARGEST_SHARE_OF_ONE_LANE", 0.0)
    alone = build(drawn.graph, "cuda:sm_90a")
    assert {step.lane for step in alone.plan.steps} == {0}
    wanted = alone.run(inputs)
    for _ in range(5):
        for name, found in spread.run(inputs).items():
            np.testing.assert_array_equal(found, wanted[name])
