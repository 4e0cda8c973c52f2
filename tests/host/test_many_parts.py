"""A tensor in hundreds of parts: kernels are as long and as many as the forms of work, not as the parts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.host.tactics_support import Draw, check
from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.library.candidate import Candidate
from tilewright.library.generated.index import Coordinate, Index
from tilewright.library.generated.runs import SHORTEST_RUN, Store, find_runs
from tilewright.library.generated.trace import ElementwiseOperation, Literal, Load
from tilewright.symbolic import evaluate

UNARY = ("relu", "tanh", "sigmoid", "negate", "absolute", "exp", "sin")


def parts(b: GraphBuilder, x: Value, count: int, size: int, axis: int = 1) -> list[Value]:
    """Neighbouring slices of an axis."""
    return [b.op("slice", [x], axis=axis, start=size * number, stop=size * number + size) for number in range(count)]


def kernels(chosen: list[Candidate]) -> list[str]:
    """The different kernels that are called."""
    calls = [call for candidate in chosen for stage in candidate.stages for call in stage.calls]
    return sorted({call.kernel.source for call in calls} | {repr(call.constants) for call in calls if call.constants})


def joined(count: int, ops: int, axis: int = 1) -> Graph:
    """Each part through one of some functions, and joined again."""
    b = GraphBuilder("joined")
    n = b.symbol("n", 1, 9)
    x = b.input("x", float32, (n, count * 3) if axis == 1 else (count * 3, n))
    done = [b.op(UNARY[number % ops], [part]) for number, part in enumerate(parts(b, x, count, 3, axis))]
    b.output(b.op("concat", done, axis=axis), "y")
    return b.finish()


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("ops", [1, 3])
def test_parts_that_are_joined_again(ops: int, axis: int, draw: Draw, compiled: bool) -> None:
    lines = []
    for count in (60, 120):
        graph = joined(count, ops, axis)
        chosen = check(graph, {"x": draw(2, count * 3) if axis else draw(count * 3, 2)}, compiled)
        lines.append(sum(len(source.splitlines()) for source in kernels(chosen)))
    assert lines[0] == lines[1] < 60


def test_parts_in_another_order_and_with_gaps(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("reversed")
    x = b.input("x", float32, (4, 300))
    found = [b.op("exp", [part]) for part in parts(b, x, 100, 3)]
    b.output(b.op("concat", [*reversed(found[::2]), *found[1::2]], axis=1), "y")
    check(b.finish(), {"x": draw(4, 300)}, compiled)


def test_parts_of_what_is_computed_once(draw: Draw, compiled: bool) -> None:
    """What parts share, a factor of each row and a row of factors, and parts that are read backwards."""
    b = GraphBuilder("shared")
    x, factor, row = (b.input(name, float32, shape) for name, shape in zip("xfr", [(5, 96), (5, 1), (3,)], strict=True))
    scale = b.op("exp", [factor])
    found = [
        b.op("add", [b.op("multiply", [part, scale]), b.op("multiply", [row, row])]) for part in parts(b, x, 32, 3)
    ]
    backwards = [
        b.op("tanh", [b.op("slice", [x], axis=1, start=3 * n + 2, stop=3 * n - 1, step=-1)]) for n in range(1, 32)
    ]
    b.output(b.op("concat", [*found, *backwards], axis=1), "y")
    check(b.finish(), {"x": draw(5, 96), "f": draw(5, 1), "r": draw(3)}, compiled)


@pytest.mark.parametrize("op", ["relu", "softmax"])
def test_parts_that_stay_apart_share_a_kernel(op: str, draw: Draw, compiled: bool) -> None:
    counts = []
    for count in (10, 20):
        b = GraphBuilder("apart")
        x = b.input("x", float32, (4, count * 8))
        for part in parts(b, x, count, 8):
            b.output(b.op(op, [part], **({"axis": 1} if op == "softmax" else {})))
        counts.append(len(kernels(check(b.finish(), {"x": draw(4, count * 8)}, compiled))))
    assert counts[0] == counts[1]


def places(store: Store, turn: int = 0) -> list[tuple[Any, ...]]:
    """Where a store writes and reads, for a position of the loop over axis 0 and of a run's counter."""

    def at(index: Index) -> list[int]:
        known = {-1: turn}
        return [
            evaluate(index.constant, {}) + sum(int(step) * known.get(atom.axis, position) for atom, step in index.terms)  # type: ignore[call-overload, union-attr]
            for position in range(3)
        ]

    found: list[tuple[Any, ...]] = [(store.target, *at(store.index))]
    waiting = [store.expression]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Load):
            found.append((item.value, *at(item.index)))
        elif isinstance(item, ElementwiseOperation):
            waiting += item.operands
            found.append((item.node.op,))
    return found


@pytest.mark.parametrize("number", range(20))
def test_runs_store_what_their_stores_do(number: int, rng: np.random.Generator) -> None:
    """Stores at drawn places, some of which advance by equal steps: runs and single stores together do the same."""
    random = np.random.default_rng([number, int(rng.integers(2**31))])
    b = GraphBuilder("g")
    x, y = b.input("x", float32, (4096,)), b.input("y", float32, (4096,))
    node = b.node("add", [x, y])
    shared = Load(y, Index(((Coordinate(0, 3), 1),), 7), ())
    stores: list[Store] = []
    while len(stores) < 120:
        place, source = (int(each) for each in random.integers(0, 4000, 2))
        steps = [int(each) for each in random.integers(-9, 10, 2)]
        for turn in range(int(random.choice([1, 3, SHORTEST_RUN, 40]))):
            load = Load(x, Index(((Coordinate(0, 3), 1),), source + turn * steps[0]), ())
            other = shared if place % 2 else Literal(1.5, float32)
            index = Index(((Coordinate(0, 3), 1),), place + turn * steps[1])
            stores.append(Store(node.output, index, ElementwiseOperation(node, [load, other])))
    single, runs = find_runs(stores)
    assert all(run.count >= SHORTEST_RUN for run in runs) and runs
    found = [places(store) for store in single]
    found += itertools.chain.from_iterable(([places(run.store, turn) for turn in range(run.count)]) for run in runs)
    key = lambda item: repr(item)  # noqa: E731
    assert sorted(found, key=key) == sorted(map(places, stores), key=key)


def test_one_kernel_reads_few_tensors() -> None:
    """A concat of many tensors is several, and their kernels stay apart: LLVM's time grows with the square of one."""
    b = GraphBuilder("crossed")
    x = b.input("x", float32, (2, 500))
    found = parts(b, x, 500, 1)
    rng = np.random.default_rng(0)
    done = []
    for number, other in enumerate(rng.permutation(500)):
        offset = b.constant(rng.standard_normal(1).astype(np.float32))
        done.append(b.op("add", [found[number], b.op("add", [found[other], offset])]))
    b.output(b.op("concat", done, axis=1), "y")
    assert max(len(group.inputs) for group in fuse(optimize(b.finish())).groups) <= 256
