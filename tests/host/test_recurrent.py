"""The op `recurrent`: the kernel against the meaning in float64, for every cell, in both directions, of any length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, float16, float32, int64
from tilewright.engine.engine import Engine
from tilewright.errors import ShapeError
from tilewright.graph import reference
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.recurrent import unrolled
from tilewright.graph.recurrent import GATES, SLOTS
from tilewright.graph.specialize import with_sizes
from tilewright.library.recurrent import cpu as recurrent
from tilewright.settings import settings
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.machine import Launches

FUNCTIONS = {
    "rnn": ("tanh",),
    "lstm": ("sigmoid", "tanh", "tanh"),
    "lstm_8bit": ("sigmoid", "tanh", "tanh"),
    "lstm_peephole": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
    "gru_first": ("sigmoid", "tanh"),
}


def layer(
    rng: np.random.Generator, cell: str, hidden: int, reverse: tuple[bool, ...], lengths: bool, dtype: DType = float32
) -> Graph:
    b = GraphBuilder(cell)
    steps, batch, directions = b.symbol("steps"), b.symbol("batch", 1, 64), len(reverse)
    gates, slots = GATES[cell] * hidden, SLOTS[cell] * hidden
    x = b.input("x", dtype, (steps, directions, batch, gates))
    initial = b.input("initial", dtype, (directions, batch, slots))
    weight = b.constant((rng.standard_normal((directions, hidden, gates)) / (4 * hidden**0.5)).astype(dtype.numpy), "w")
    of_memory = cell in ("lstm_peephole", "lstm_8bit")
    added = rng.standard_normal((directions, gates)) / (4 if of_memory else 1)
    has_bias = "gru" in cell or of_memory
    bias = b.constant(added.astype(dtype.numpy), "b") if has_bias else None
    ends = b.input("lengths", int64, (batch,)) if lengths else None
    inputs = [x, weight, initial, bias, ends]
    b.output(b.op("recurrent", inputs, cell=cell, functions=FUNCTIONS[cell], reverse=reverse), "y")
    return b.finish()


def feeds(rng: np.random.Generator, graph: Graph, steps: int, batch: int) -> dict[str, np.ndarray]:
    sizes = {"steps": steps, "batch": batch}
    found = {}
    for value in graph.inputs:
        shape = [size if isinstance(size, int) else sizes[str(size)] for size in value.shape]
        found[value.name] = rng.standard_normal(shape).astype(value.dtype.numpy)
    if "lengths" in found:
        found["lengths"] = rng.integers(0, steps + 1, batch)
    return found


def check(engine: Engine, graph: Graph, inputs: dict[str, np.ndarray], hidden: int | None = None) -> None:
    """The state's weights are small enough to pass on at most what they get, so that the roundings of every step
    add up: of what is stored, and of the sums of a product."""
    (wanted,) = reference.run(graph, inputs).values()
    found = engine.run(inputs)["y"]
    steps, hidden = wanted.shape[0], hidden or graph.nodes[0].inputs[1].shape[1]
    unit, single = float(np.finfo(found.dtype).eps), float(np.finfo(np.float32).eps)
    bound = (4 * unit + 4 * single * (hidden + 8)) * steps * max(1.0, np.abs(wanted).max())
    if graph.nodes[-1].attributes["cell"] == "lstm_8bit":  # a number between two levels becomes either of them
        bound += 2 * 2 / 255
    assert found.shape == wanted.shape
    assert np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max() <= bound


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("cell", sorted(GATES))
@pytest.mark.parametrize("reverse", [(False,), (True,), (False, True)])
def test_cells(cell: str, reverse: tuple[bool, ...], rng: np.random.Generator) -> None:
    graph = layer(rng, cell, 21, reverse, lengths=len(reverse) == 2)
    engine = build(graph, "cpu")
    for steps, batch in ((1, 1), (7, 3), (40, 2)):
        check(engine, graph, feeds(rng, graph, steps, batch))


@pytest.mark.parametrize(("hidden", "reverse", "largest"), [(21, (True,), 127), (96, (False, True), 60)])
def test_integer_weights_are_multiplied_as_integers(
    hidden: int, reverse: tuple[bool, ...], largest: int, rng: np.random.Generator
) -> None:
    """Depths that are groups or not, sums of two that fit 16 bits or not, blocks of rows, lengths; as the graph of
    `dequantize` says."""
    b = GraphBuilder("lstm_8bit")
    steps, batch, directions = b.symbol("steps"), b.symbol("batch", 1, 64), len(reverse)
    x = b.input("x", float32, (steps, directions, batch, 4 * hidden))
    shown, memory = (b.input(name, float32, (directions, batch, hidden)) for name in ("h", "c"))
    codes = b.constant(rng.integers(-largest, largest + 1, (directions, hidden, 4 * hidden)).astype(np.int8), "w")
    scale = b.constant((rng.uniform(0.5, 1, (directions, 1, 4 * hidden)) / 127 / hidden**0.5).astype(np.float32), "s")
    weight = b.op("dequantize", [codes, scale])
    initial = b.op("concat", [shown, memory, shown], axis=2)  # h is 0 or 1 in the first: steps of its range
    ends = b.input("lengths", int64, (batch,))
    attributes = {"cell": "lstm_8bit", "functions": FUNCTIONS["lstm_8bit"], "reverse": reverse}
    b.output(b.op("recurrent", [x, weight, initial, None, ends], **attributes), "y")
    graph = b.finish()
    engine = build(graph, "cpu")
    assert [step.evidence["chosen"] for step in engine.plan.steps][-1] == "recurrent levels"
    for count, rows in ((1, 1), (5, 3), (3, 60)):
        inputs = feeds(rng, graph, count, rows)
        inputs["h"] = np.rint(rng.uniform(0, 1, inputs["h"].shape)).astype(np.float32)
        check(engine, graph, inputs, hidden)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("cell", ["gru", "gru_first", "lstm", "rnn"])
@pytest.mark.parametrize("reverse", [(True,), (False, True)])
def test_threads_that_share_the_units(cell: str, reverse: tuple[bool, ...], rng: np.random.Generator,
                                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The same bits from any number of threads; both ways to walk the directions, blocks of rows, lengths."""
    machine = CPUTarget.machine
    free = Launches(kernel=0.0, overlapped=0.0, program=0.0, barrier=-1.0)  # no way to compute it is cheaper
    monkeypatch.setattr(CPUTarget, "machine", lambda target: replace(machine(target), launches=free))
    graph = layer(rng, cell, 85, reverse, lengths=len(reverse) == 2)
    for side_by_side in (1, len(reverse)):
        monkeypatch.setattr(recurrent, "_sides", lambda directions, chosen=side_by_side: [chosen])
        with settings.scope(threads=4):
            engine = build(graph, "cpu")
        assert [step.evidence["chosen"] for step in engine.plan.steps] == ["recurrent planes"]
        for steps, batch in ((1, 1), (13, 3), (5, 60)):
            inputs = feeds(rng, graph, steps, batch)
            check(engine, graph, inputs)
            once = engine.run(inputs, threads=1)["y"]
            for threads in (2, 3, 5, 8):
                assert engine.run(inputs, threads=threads)["y"].tobytes() == once.tobytes()


def test_a_single_row(rng: np.random.Generator) -> None:
    """Batches of one, whose products are of vectors; hidden sizes of whole panels and not."""
    b = GraphBuilder("single")
    for cell, hidden in (("rnn", 64), ("lstm", 48), ("gru", 21)):
        gates, slots = GATES[cell] * hidden, SLOTS[cell] * hidden
        x, initial = (b.input(f"{name}_{cell}", float32, (5, 1, 1, n)) for name, n in (("x", gates), ("h", slots)))
        initial = b.op("reshape", [initial], shape=(5, 1, slots))
        initial = b.op("slice", [initial], axis=0, start=0, stop=1)
        weight = b.constant((rng.standard_normal((1, hidden, gates)) / (4 * hidden**0.5)).astype(np.float32), "w")
        b.output(b.op("recurrent", [x, weight, initial], cell=cell, functions=FUNCTIONS[cell], reverse=(False,)), cell)
    graph = b.finish()
    inputs = {x.name: rng.standard_normal(x.shape).astype(np.float32) for x in graph.inputs}
    engine = build(graph, "cpu", tuning=Tuning(effort=0))
    for found, wanted in zip(engine.run(inputs).values(), reference.run(graph, inputs).values(), strict=True):
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("cell", ["gru", "lstm", "rnn"])
def test_few_steps_as_nodes(cell: str, rng: np.random.Generator) -> None:
    """What targets take that have no kernel for blocks of rows."""
    graph = layer(rng, cell, 3, (False, True), lengths=False)
    fixed = with_sizes(graph, {"steps": 4})
    apart = unrolled(fixed)
    assert "recurrent" not in {node.op for node in apart.nodes}
    inputs = feeds(rng, graph, 4, 2)
    (found,), (wanted,) = (list(reference.run(each, inputs).values()) for each in (apart, graph))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


def test_half_precision(rng: np.random.Generator) -> None:
    graph = layer(rng, "lstm", 16, (False,), lengths=False, dtype=float16)
    check(build(graph, "cpu"), graph, feeds(rng, graph, 6, 2))


def test_inputs_that_do_not_fit_are_refused(rng: np.random.Generator) -> None:
    b = GraphBuilder("wrong")
    x, weight = b.input("x", float32, (3, 1, 2, 16)), b.input("w", float32, (1, 4, 16))
    with pytest.raises(ShapeError, match=r"initial.* must have the shape \[1, 2, 8\]"):
        b.op("recurrent", [x, weight, b.input("initial", float32, (1, 2, 4))], cell="lstm", functions=("sigmoid",) * 3,
             reverse=(False,))  # fmt: skip
