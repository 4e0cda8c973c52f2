"""Single groups end to end: graph -> fusion -> tactics -> kernels -> numbers, against the float64 reference.

Every case runs in the interpreter, the definition of meaning, and as machine code of this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.host.tactics_support import Draw, Memory, check, run_call, run_graph
from tilewright.dtypes import DType, bfloat16, float8e4nv, float16, float32, int1, int8, int32, int64, uint8, uint32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.library.generated.generate import Result, elementwise_call
from tilewright.library.generated.joint import joint_call
from tilewright.settings import settings
from tilewright.targets.nvidia.target import NvidiaTarget

Case = tuple[Graph, dict[str, np.ndarray]]


UNARY = "negate absolute sign exp sin cos tanh erf sigmoid floor ceil round relu silu gelu reciprocal atan".split()
BITWISE = "bitwise_and bitwise_or bitwise_xor shift_left shift_right".split()
BINARY = (
    "add subtract multiply divide maximum minimum remainder floor_divide equal not_equal less less_equal greater "
    "greater_equal"
).split()


def test_one_input_functions(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("unary")
    n = b.symbol("n", 1, 64)
    x = b.input("x", float32, (n, 50))
    for op in UNARY:
        b.output(b.op(op, [x]), op)
    for op in ("log", "sqrt", "rsqrt"):
        b.output(b.op(op, [b.op("absolute", [x])]), op)
    b.output(b.op("gelu", [x], approximate="tanh"), "gelu_tanh")
    b.output(b.op("clip", [x], low=-0.5, high=0.5), "clip")
    b.output(b.op("clip", [x], low=None, high=0.5), "clip above")
    check(b.finish(), {"x": draw(3, 50)}, compiled)


def test_two_input_functions(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("binary")
    x, y = b.input("x", float32, (3, 50)), b.input("y", float32, (3, 50))
    i, j = b.input("i", int64, (3, 50)), b.input("j", int64, (3, 50))
    for op in BINARY:
        b.output(b.op(op, [x, y]), op)
        b.output(b.op(op, [i, j]), f"{op} of integers")
    b.output(b.op("power", [b.op("absolute", [x]), y]), "power")
    divisors = draw.integers(1, 9, (3, 50)) * draw.rng.choice([-1, 1], (3, 50))
    check(
        b.finish(),
        {"x": draw(3, 50), "y": draw(3, 50), "i": draw.integers(-9, 9, (3, 50)), "j": divisors},
        compiled,
        1e-4,
    )


def test_functions_of_a_range(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("ranges")
    x, y = b.input("x", float32, (3, 50)), b.input("y", float32, (3, 50))
    for op in ("asin", "acos", "erfinv"):
        b.output(b.op(op, [x]), op)
    b.output(b.op("lgamma", [b.op("add", [x, 1.5])]), "lgamma")
    b.output(b.op("atan2", [x, y]), "atan2")
    check(b.finish(), {"x": draw.rng.uniform(-0.99, 0.99, (3, 50)).astype(np.float32), "y": draw(3, 50)}, compiled)


@pytest.mark.parametrize("dtype", [int64, int32, int8, uint8, uint32], ids=str)
def test_bits(draw: Draw, compiled: bool, dtype: DType) -> None:
    b = GraphBuilder("bits")
    x, y = b.input("x", dtype, (3, 50)), b.input("y", dtype, (3, 50))
    for op in BITWISE:
        b.output(b.op(op, [x, y]), op)
        b.output(b.op("divide", [b.op(op, [x, y]), y]), f"{op} divided")
    b.output(b.op("bitwise_not", [x]), "not")
    limits = np.iinfo(dtype.numpy)
    numbers = draw.rng.integers(limits.min, limits.max, (3, 50), dtype.numpy, endpoint=True)
    shifts = draw.rng.integers(-2 if dtype.is_signed else 0, dtype.bits + 3, (3, 50)).astype(dtype.numpy)
    check(b.finish(), {"x": numbers, "y": shifts}, compiled, 0.0)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("dtype", [int8, uint8], ids=str)
def test_numbers_do_not_widen_narrow_integers(dtype: DType, draw: Draw, compiled: bool) -> None:
    """Results of an operation with a constant wrap in their own type before they get a wider one."""
    b = GraphBuilder("narrow")
    x = b.input("x", dtype, (256,))
    limits = np.iinfo(dtype.numpy)
    for op in ("add", "subtract", "multiply", "maximum", "floor_divide", "remainder", *BITWISE):
        for value in (limits.max, 3):
            number = b.constant(np.array(value, dtype.numpy))
            for swapped in (False, True) if op not in ("floor_divide", "remainder") else (False,):
                found = b.op(op, [number, x] if swapped else [x, number])
                b.output(b.op("cast", [found], dtype=int32), f"{op} {value} {swapped}")
    for op in ("negate", "absolute", "bitwise_not"):
        b.output(b.op("cast", [b.op(op, [x])], dtype=int32), op)
    check(b.finish(), {"x": np.arange(limits.min, limits.max + 1).astype(dtype.numpy)}, compiled, 0.0)


@pytest.mark.parametrize("reduction", ["add", "multiply", "maximum", "minimum"])
def test_updates_are_combined(draw: Draw, compiled: bool, reduction: str) -> None:
    b = GraphBuilder("combined")
    n = b.symbol("n", 1, 64)
    x, updates, i = b.input("x", float32, (2, 7, 33)), b.input("u", float32, (2, n, 33)), b.input("i", int64, (n,))
    b.output(b.op("scatter_reduce", [x, i, updates], axis=1, reduction=reduction), "rows")
    line, places = b.input("line", float32, (50,)), b.input("places", int32, (n,))
    b.output(b.op("scatter_reduce", [line, places, b.input("v", float32, (n,))], axis=0, reduction=reduction), "line")
    inputs = {"x": draw(2, 7, 33), "u": draw(2, 20, 33), "i": draw.integers(-7, 7, (20,))}
    inputs |= {"line": draw(50), "v": draw(20), "places": draw.integers(-50, 50, (20,)).astype(np.int32)}
    check(b.finish(), inputs, compiled, 1e-5)


def test_booleans_casts_and_sources(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("others")
    n = b.symbol("n", 1, 64)
    x, y, i = b.input("x", float32, (n, 10)), b.input("y", float32, (n, 10)), b.input("i", int64, (n, 10))
    smaller = b.op("less", [x, y])
    b.output(b.op("where", [smaller, x, 0.0]))
    b.output(b.op("logical_and", [smaller, b.op("logical_not", [b.op("isnan", [x])])]))
    casts: list[tuple[Any, DType]] = [(x, int32), (x, float16), (smaller, float32), (i, float32), (i, int1)]
    for value, dtype in casts:
        b.output(b.op("cast", [value], dtype=dtype))
    column = b.op("iota", [], shape=(n, 10), axis=1, dtype=int64)
    row = b.op("iota", [], shape=(n, 10), axis=0, dtype=int64)
    b.output(b.op("less_equal", [b.op("add", [column, i]), row]))
    b.output(b.op("add", [i, b.op("dimension", [], expression=n)]))
    b.output(b.op("iota", [], shape=(n, 10), axis=1, dtype=float32, start=0.5, step=0.25))
    b.output(b.op("full", [], shape=(n, 4), value=3.0, dtype=float32))
    check(b.finish(), {"x": draw(3, 10), "y": draw(3, 10), "i": draw.integers(-2, 3, (3, 10))}, compiled, 2e-3)


@pytest.mark.parametrize("narrow", [float16, bfloat16, float8e4nv], ids=str)
def test_widened_results_are_rounded(draw: Draw, compiled: bool, narrow: DType) -> None:
    """A number that a kernel stores in two types is the same in both."""
    b = GraphBuilder("widened")
    x = b.input("x", narrow, (6, 50))
    sine = b.op("sin", [x])
    b.output(sine, "narrow")
    b.output(b.op("cast", [sine], dtype=float32), "wide")
    b.output(b.op("pad", [b.op("cast", [sine], dtype=float32)], pads=((0, 1), (2, 0)), value=0.1), "padded")
    outputs, _ = run_graph(b.finish(), {"x": draw(6, 50).astype(narrow.numpy)}, compiled)
    same = outputs["narrow"].astype(np.float32)
    np.testing.assert_array_equal(outputs["wide"], same)
    np.testing.assert_array_equal(outputs["padded"][:-1, 2:], same)
    assert (outputs["padded"][-1] == np.float32(0.1)).all()


def test_broadcasts_and_several_outputs(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("broadcast")
    n = b.symbol("n", 1, 64)
    x, row, column = b.input("x", float32, (n, 5, 24)), b.input("row", float32, (24,)), b.input("c", float32, (5, 1))
    y = b.op("multiply", [b.op("exp", [b.op("minimum", [x, 1.0])]), column])
    b.output(b.op("add", [y, row]), "sum")
    b.output(b.op("relu", [x]), "relu")
    check(b.finish(), {"x": draw(3, 5, 24), "row": draw(24), "c": draw(5, 1)}, compiled)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (3, 2, 0, 1), (0, 3, 1, 2), (0, 1, 3, 2)])
def test_permute(order: tuple[int, ...], draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("permute")
    n = b.symbol("n", 1, 64)
    b.output(b.op("permute", [b.input("x", float32, (n, 5, 33, 40))], order=order))
    check(b.finish(), {"x": draw(3, 5, 33, 40)}, compiled)


def test_movement(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("movement")
    n = b.symbol("n", 1, 64)
    x, y = b.input("x", float32, (n, 5, 6, 40)), b.input("y", float32, (n, 5, 3, 40))
    b.output(b.op("concat", [x, y, x], axis=2))
    b.output(b.op("relu", [b.op("concat", [x, y], axis=2)]))
    b.output(b.op("slice", [x], axis=3, start=3, stop=33, step=2))
    b.output(b.op("slice", [x], axis=1, start=4, stop=0, step=-1))
    b.output(b.op("pad", [x], pads=((0, 0), (1, 2), (0, 0), (3, 0)), value=2.5))
    b.output(b.op("broadcast_to", [b.op("slice", [x], axis=1, start=0, stop=1)], shape=(n, 5, 6, 40)))
    b.output(b.op("reshape", [b.op("permute", [x], order=(0, 2, 1, 3))], shape=(n, 6, 200)))
    check(b.finish(), {"x": draw(3, 5, 6, 40), "y": draw(3, 5, 3, 40)}, compiled)


def test_gather_and_scatter(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("indices")
    n = b.symbol("n", 1, 64)
    table, i = b.input("table", float32, (11, 24)), b.input("i", int64, (n, 7))
    x, e = b.input("x", float32, (n, 5, 40)), b.input("e", int64, (n, 5, 4))
    updates, where = b.input("updates", float32, (n, 2, 40)), b.input("where", int64, (2,))
    b.output(b.op("gather", [table, i], axis=0))
    b.output(b.op("gather", [table, i], axis=1))
    b.output(b.op("gather_elements", [x, e], axis=2))
    b.output(b.op("scatter_update", [x, where, updates], axis=1))
    embedded = b.op("add", [b.op("gather", [table, i], axis=0), b.op("slice", [table], axis=0, start=1, stop=8)])
    b.output(b.op("layer_norm", [embedded], axis=2, epsilon=1e-5))
    inputs = {"table": draw(11, 24), "i": draw.integers(-11, 11, (3, 7)), "x": draw(3, 5, 40)}
    inputs |= {"e": draw.integers(-40, 40, (3, 5, 4)), "updates": draw(3, 2, 40), "where": np.array([3, -5])}
    check(b.finish(), inputs, compiled)


def test_update_in_place(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("cache")
    cache, where = b.input("cache", float32, (2, 3, 8, 4)), b.input("where", int64, (1,))
    new = b.input("new", float32, (2, 3, 1, 4))
    updated = b.op("scatter_update", [cache, where, new], axis=2)
    b.mutate(cache, updated)
    b.output(updated, "cache after")
    inputs = {"cache": draw(2, 3, 8, 4), "where": np.array([5]), "new": draw(2, 3, 1, 4)}
    (chosen,) = check(b.finish(), inputs, compiled)
    assert len(chosen.stages) == 1  # no copy of the cache


@pytest.mark.parametrize("place", [5, -3, 8, -9])
def test_computed_updates_in_place(place: int, draw: Draw, compiled: bool) -> None:
    """Stored by the kernel that computes them; a place outside of the tensor is left out."""
    b = GraphBuilder("cache")
    n = b.symbol("n", 1, 9)
    cache, where = b.input("cache", float32, (n, 3, 8, 4)), b.input("where", int64, (1,))
    moved = b.op("tanh", [b.input("new", float32, (n, 3, 1, 4))])
    updated = b.op("scatter_update", [cache, where, moved], axis=2)
    b.mutate(cache, updated)
    b.output(updated, "after")
    b.output(b.op("exp", [moved]), "y")
    inputs = {"cache": draw(2, 3, 8, 4), "where": np.array([place]), "new": draw(2, 3, 1, 4)}
    graph = b.finish()
    if place in (8, -9):
        found, (chosen,) = run_graph(graph, inputs, compiled)
        np.testing.assert_array_equal(found["after"], inputs["cache"])
    else:
        (chosen,) = check(graph, inputs, compiled)
    assert len(chosen.stages) == 1


@pytest.mark.parametrize("n", [1, 7])
def test_loops_in_one_launch(n: int, draw: Draw) -> None:
    """Known and run-time grids of one to three dimensions, in the order of their programs."""
    b = GraphBuilder("loops")
    size = b.symbol("n", 1, 64)
    x = b.op("relu", [b.input("x", float32, (size, 40, 70))])
    y = b.input("y", float32, (40, 70))
    outputs = [
        b.op("exp", [b.op("slice", [x], axis=1, start=3, stop=9)]),
        b.op("permute", [x], order=(0, 2, 1)),
        b.op("exp", [x]),
        b.op("permute", [y], order=(1, 0)),
    ]
    graph = b.finish()
    target = NvidiaTarget.named("sm_90a")
    calls = [elementwise_call(graph.nodes, [Result(value, value)], {}, target) for value in outputs]
    call = joint_call(calls)
    assert {len([extent for extent in call.grid if extent != 1]) for call in calls} == {1, 2, 3}
    inputs = {"x": draw(n, 40, 70), "y": draw(40, 70)}
    memory = Memory(graph, inputs)
    run_call(call, memory, False)
    positive = np.maximum(inputs["x"], 0)
    wanted = (np.exp(positive[:, 3:9]), positive.swapaxes(1, 2), np.exp(positive), inputs["y"].T)
    for value, array in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(memory.array(value), array, rtol=1e-6)


def test_gpus_walk_lines_that_begin_anywhere_as_one(draw: Draw) -> None:
    """Lines of whole vectors are rows: what depends on the row alone is computed once."""
    target = NvidiaTarget.named("sm_90a")
    for columns, is_one in ((35, True), (36, False)):
        b = GraphBuilder("lines")
        x, scale, shift = (b.input(name, float32, shape) for name, shape in (
            ("x", (6, 5, columns)), ("scale", (5, 1)), ("shift", (columns,)),
        ))  # fmt: skip
        y = b.op("add", [b.op("multiply", [x, b.op("exp", [scale])]), shift])
        graph = b.finish()
        call = elementwise_call(graph.nodes, [Result(y, y)], {}, target)
        assert ("BLOCK" in call.constants) == is_one
        inputs = {"x": draw(6, 5, columns), "scale": draw(5, 1), "shift": draw(columns)}
        memory = Memory(graph, inputs)
        run_call(call, memory, False)
        wanted = inputs["x"] * np.exp(inputs["scale"]) + inputs["shift"]
        np.testing.assert_allclose(memory.array(y), wanted, rtol=1e-6, atol=1e-6)


def test_equal_layers_share_a_kernel(draw: Draw) -> None:
    b = GraphBuilder("layers")
    x, y = b.input("x", float32, (4, 64)), b.input("y", float32, (4, 64))
    for value in (x, y):
        b.output(b.op("permute", [value], order=(1, 0)))
    chosen = check(b.finish(), {"x": draw(4, 64), "y": draw(4, 64)})
    first, second = (candidate.stages[0].calls[0].kernel for candidate in chosen)
    assert first is second


def test_generated_source(draw: Draw, golden: Callable[..., None]) -> None:
    b = GraphBuilder("source")
    n = b.symbol("n", 1, 64)
    x, row, i = b.input("x", float32, (n, 5, 24)), b.input("row", float32, (24,)), b.input("i", int64, (n, 5))
    flat = b.op("add", [b.op("gelu", [x]), 1.5])
    b.output(b.op("multiply", [flat, flat]), "flat")
    b.output(b.op("add", [b.op("gather", [b.constant(draw(9, 24)), i], axis=0), row]), "rows")
    b.output(b.op("permute", [x], order=(2, 0, 1)), "tiles")
    with settings.scope(threads=2):  # block sizes follow the number of threads
        chosen = check(b.finish(), {"x": draw(2, 5, 24), "row": draw(24), "i": draw.integers(0, 9, (2, 5))})
    golden("\n".join(stage.calls[0].kernel.source for candidate in chosen for stage in candidate.stages))


def test_one_column_next_to_several(draw: Draw, compiled: bool) -> None:
    """A piece of a concat that does not follow the columns is read once a row, or not at all."""
    b = GraphBuilder("columns")
    n = b.symbol("n", 1, 9)
    one, three = b.input("one", float32, (n, 1)), b.input("three", float32, (n, 3))
    b.output(b.op("relu", [b.op("concat", [b.op("negate", [one]), three, one], axis=1)]))
    check(b.finish(), {"one": draw(4, 1), "three": draw(4, 3)}, compiled)


def test_tiles_with_a_short_side_are_long() -> None:
    b = GraphBuilder("short")
    x = b.input("x", float32, (5, 257047))
    y = b.op("permute", [x], order=(1, 0))
    b.output(y, "y")
    call = elementwise_call(b.finish().nodes, [Result(y, y)], {}, NvidiaTarget.named("sm_90a"))
    assert call.constants == {"TILE_ROWS": 256, "TILE_COLUMNS": 8}


@pytest.mark.parametrize(
    ("dtypes", "elements", "times"),
    [((float16,), 1 << 22, 2), ((float16,), 1 << 21, 1), ((float32,), 1 << 22, 1), ((bfloat16, bfloat16), 1 << 22, 1),
     ((int8,), (1 << 22) + 8, 4), ((int8, float16), 1 << 23, 1)],
)  # fmt: skip
def test_programs_that_read_few_bytes_take_more_elements(dtypes: tuple[DType, ...], elements: int, times: int) -> None:
    b = GraphBuilder("few")
    inputs = [b.op("cast", [b.input(f"x{n}", dtype, (elements,))], dtype=float32) for n, dtype in enumerate(dtypes)]
    y = b.op("exp", [inputs[0] if len(inputs) == 1 else b.op("add", inputs)])
    b.output(y, "y")
    call = elementwise_call(b.finish().nodes, [Result(y, y)], {}, NvidiaTarget.named("sm_90a"))
    assert call.constants == {"BLOCK": 1024 * times}


@pytest.mark.parametrize(
    ("dtype", "shape", "tile"),
    [(float16, (352, 8000), (64, 64)), (float32, (360, 8000), (64, 64)), (float16, (80, 32000), (32, 32)),
     (float16, (341, 8000), (32, 128)), (float32, (8001, 353), (32, 128)), (float16, (129, 32000), (64, 64))],
)  # fmt: skip
def test_tiles_are_large_where_little_is_left_over(dtype: DType, shape: tuple[int, int], tile: tuple[int, int]) -> None:
    """Those whose lines begin within sectors of memory have longer ones."""
    b = GraphBuilder("tiles")
    y = b.op("permute", [b.input("x", dtype, shape)], order=(1, 0))
    b.output(y, "y")
    call = elementwise_call(b.finish().nodes, [Result(y, y)], {}, NvidiaTarget.named("sm_90a"))
    assert tuple(call.constants.values()) == tile


def test_places_that_are_clipped_and_multiplied_are_not_checked_again(draw: Draw) -> None:
    b = GraphBuilder("places")
    x, at, row = b.input("x", float32, (42,)), b.input("at", float32, (30,)), b.input("row", float32, (30,))
    places = [b.op("clip", [b.op("cast", [v], dtype=int32)], low=0, high=n) for v, n in ((row, 5), (at, 6))]
    flat = b.op("add", [b.op("multiply", [places[0], 7]), places[1]])
    y = b.op("gather_elements", [x, flat], axis=0)
    b.output(y, "y")
    graph = b.finish()
    call = elementwise_call(graph.nodes, [Result(y, y)], graph.constants, NvidiaTarget.named("sm_90a"))
    assert "where" not in call.kernel.source
    inputs = {"x": draw(42), "at": draw(30) * 9, "row": draw(30) * 9}
    memory = Memory(graph, inputs)
    run_call(call, memory, False)
    row_at, column = (np.clip(inputs[name].astype(np.int32), 0, high) for name, high in (("row", 5), ("at", 6)))
    np.testing.assert_array_equal(memory.array(y), inputs["x"][row_at * 7 + column])
