"""Single groups end to end: graph -> fusion -> tactics -> kernels -> numbers, against the float64 reference.

Every case runs in the interpreter, the definition of meaning, and as machine code of this machine.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.tactics_support import Draw, check
from tilewright.dtypes import float32, int32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.fuse import fuse
from tilewright.library.functions import total
from tilewright.library.reduce import simt_kernel
from tilewright.library.reduce.kernel import cumulative_columns as cumulative
from tilewright.library.select import candidates
from tilewright.settings import settings
from tilewright.targets.nvidia.target import NvidiaTarget

Case = tuple[Graph, dict[str, np.ndarray]]


def test_normalisations_take_their_neighbours(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("norms")
    n = b.symbol("n", 1, 64)
    x, r = b.input("x", float32, (n, 5, 24)), b.input("r", float32, (n, 5, 24))
    scale, bias = b.constant(draw(24)), b.constant(draw(24))
    b.output(b.op("layer_norm", [b.op("add", [x, r]), scale, bias], axis=2, epsilon=1e-5), "layer")
    b.output(b.op("multiply", [b.op("rms_norm", [x, scale], axis=2, epsilon=1e-5), r]), "rms")
    b.output(b.op("layer_norm", [x], axis=1, epsilon=1e-5), "two dimensions")
    chosen = check(b.finish(), {"x": draw(3, 5, 24), "r": draw(3, 5, 24)}, compiled)
    assert {candidate.name for candidate in chosen} == {"row kernel"}


@pytest.mark.parametrize("columns", [24, 1030])
def test_softmax(columns: int, draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("softmax")
    n, columns_ = b.symbol("n", 1, 64), b.symbol("columns", 1, 2000)
    x, y = b.input("x", float32, (n, columns)), b.input("y", float32, (n, columns_))
    b.output(b.op("softmax", [b.op("multiply", [x, 3.0])], axis=1), "known length")
    b.output(b.op("softmax", [y], axis=1), "run-time length")
    b.output(b.op("softmax", [y], axis=0), "other axis")
    b.output(b.op("layer_norm", [y], axis=1, epsilon=1e-5), "norm of run-time length")
    inputs = {"x": draw(3, columns), "y": draw(3, columns)}
    inputs["x"][0, :3] = -np.inf
    check(b.finish(), inputs, compiled)


AXES = [(3,), (1,), (1, 2), (0, 2), (0, 1, 2, 3)]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("op", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_product"])
def test_reductions(op: str, draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("reductions")
    n = b.symbol("n", 1, 64)
    x = b.input("x", float32, (n, 5, 6, 40))
    for axes in AXES:
        source = b.op("multiply", [x, 0.9]) if axes != (1,) else x
        b.output(b.op("relu", [b.op(op, [source], axes=axes, keepdims=axes == (1,))]))
    check(b.finish(), {"x": draw(2, 5, 6, 40)}, compiled, 1e-4)


def test_integer_reductions(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("integers")
    x = b.input("x", int32, (3, 30))
    b.output(b.op("reduce_sum", [x], axes=(1,)))
    b.output(b.op("reduce_max", [x], axes=(0,)))
    b.output(b.op("cumsum", [x], axis=1))
    check(b.finish(), {"x": draw.integers(-5, 90, (3, 30)).astype(np.int32)}, compiled)


@pytest.mark.parametrize("axis", [0, 1])
def test_extremes_of_one_number_everywhere(axis: int, draw: Draw, compiled: bool) -> None:
    """What a prologue gives is a number then, no block of them."""
    b = GraphBuilder("same")
    places = b.input("places", int32, (7, 17))
    same = b.op("gather", [b.op("full", [], shape=(17,), value=3, dtype=int32), places], axis=0)
    b.output(b.op("reduce_min", [same], axes=(axis,)), "y")
    check(b.finish(), {"places": np.arange(7 * 17, dtype=np.int32).reshape(7, 17) % 17}, compiled)


def test_maximum_keeps_not_a_number(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("nan")
    b.output(b.op("reduce_max", [b.input("x", float32, (2, 20))], axes=(1,)))
    x = draw(2, 20)
    x[1, 7] = np.nan
    check(b.finish(), {"x": x}, compiled)


def test_positions_of_extremes(draw: Draw, compiled: bool) -> None:
    b = GraphBuilder("positions")
    n = b.symbol("n", 1, 9)
    x, ties = b.input("x", float32, (n, 6, 40)), b.input("ties", float32, (4, 1100))
    b.output(b.op("argmax", [x], axis=2))
    b.output(b.op("argmin", [x], axis=1, keepdims=True))
    b.output(b.op("argmax", [b.op("negate", [x])], axis=2))
    b.output(b.op("argmax", [ties], axis=1))
    b.output(b.op("argmin", [ties], axis=1))
    tied = draw.integers(0, 3, (4, 1100)).astype(np.float32)
    tied[3, 50:60] = np.nan
    check(b.finish(), {"x": draw(3, 6, 40), "ties": tied}, compiled)


def running() -> Graph:
    b = GraphBuilder("running")
    n, m = b.symbol("n", 1, 9), b.symbol("m", 1, 9000)
    x, line = b.input("x", float32, (n, 3, 40)), b.input("line", float32, (2, m))
    for number, op in enumerate(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")):
        for axis in range(3):
            b.output(b.op(op, [x], axis=axis, reverse=(axis + number) % 2 == 1))
    b.output(b.op("cumsum", [line], axis=1))
    b.output(b.op("cummax", [line], axis=1, reverse=True))
    for reverse in (False, True):
        b.output(b.op("cumlogsumexp", [line], axis=1, reverse=reverse))
    return b.finish()


def test_running_sums_and_their_kin(draw: Draw, compiled: bool) -> None:
    x = draw(3, 3, 40)
    x[1, 2, 7] = np.nan
    check(running(), {"x": x, "line": draw(2, 300)}, compiled, 1e-4)


def test_running_sums_of_gpus(draw: Draw) -> None:
    """Of rows within a block, and of some that take three."""
    check(running(), {"x": draw(2, 3, 40), "line": draw(2, 4500)}, False, 1e-4, NvidiaTarget.named("sm_90a"))


@tilewright.jit
def _element(row, column, mask, extra):  # type: ignore[no-untyped-def]
    return tl.load(extra[0] + row + column, mask=mask, other=0.0)


@tilewright.jit
def _as_it_is(value, row, column, mask, extra):  # type: ignore[no-untyped-def]
    return value


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kernel", ["cpu", "one block", "blocks", "columns", "one block of columns"])
def test_running_sums_of_nothing_touch_nothing(kernel: str, reverse: bool) -> None:
    """The grid of a running sum does not depend on its length, which may be 0 at run time."""
    memory, combine = np.ones(64, np.float32), {"TYPE": tl.float32, "COMBINE": total, "REVERSE": reverse}
    out, nothing = memory[32:32], memory[:0]
    slots = {"PROLOGUE": _element, "EPILOGUE": _as_it_is, "PARTS": 1, "LANES": 1, "INITIAL": 0.0, "BLOCK": 8}
    with settings.scope(interpret=True):
        if kernel == "cpu":
            cumulative[(2, 1)](nothing, out, 0, 5, BLOCK=8, MASK=True, **combine)
        elif "columns" in kernel:
            constants = {"BLOCK_R": 4, "ONE_BLOCK": kernel != "columns", **combine, **slots}
            simt_kernel.cumulative_columns[(1,)](out, out, 0, 5, 8, nothing, **constants)
        else:
            whole = kernel == "one block"
            simt_kernel.cumulative_rows[(1,)](out, out, 2, 0, 8, nothing, ROWS=2, WHOLE=whole, **combine, **slots)
    assert (memory == 1).all()


@pytest.mark.parametrize("columns", [24, 64, 1030])
def test_rows_of_gpus(columns: int, draw: Draw) -> None:
    """The kernels of another target, in the interpreter: blocks that end inside and beyond rows and columns."""
    b = GraphBuilder("rows of GPUs")
    n = b.symbol("n", 1, 64)
    x, r = b.input("x", float32, (n, 6, columns)), b.input("r", float32, (n, 6, columns))
    scale, bias = b.constant(draw(columns)), b.constant(draw(columns))
    b.output(b.op("softmax", [b.op("multiply", [x, 3.0])], axis=2), "softmax")
    b.output(b.op("log_softmax", [x], axis=2), "logarithm")
    b.output(b.op("relu", [b.op("layer_norm", [b.op("add", [x, r]), scale, bias], axis=2, epsilon=1e-5)]), "layer")
    b.output(b.op("multiply", [b.op("rms_norm", [x, scale], axis=2, epsilon=1e-5), r]), "rms")
    for axes in AXES[:3]:
        axes = tuple(min(axis, 2) for axis in axes)
        b.output(b.op("reduce_sum", [b.op("multiply", [x, r])], axes=axes, keepdims=False), f"sum {axes}")
        b.output(b.op("reduce_max", [x], axes=axes, keepdims=True), f"max {axes}")
    check(b.finish(), {"x": draw(3, 6, columns), "r": draw(3, 6, columns)}, False, 1e-4, NvidiaTarget.named("sm_90a"))


@pytest.mark.parametrize(
    ("shape", "block"),
    [((1024, 2, 1024), (2, 1024)), ((1, 2, 4096), (2, 64)), ((8, 500, 4096), (128, 64)), ((2, 138, 128), (256, 16))],
)
def test_blocks_of_sums_over_rows(shape: tuple[int, ...], block: tuple[int, int]) -> None:
    """Wide where few rows are summed, as with experts, and processors have enough to do."""
    b = GraphBuilder("sums")
    b.output(b.op("reduce_sum", [b.input("x", float32, shape)], axes=(1,), keepdims=False), "y")
    graph = b.finish()
    (group,) = fuse(graph).groups
    call = candidates(group, graph, NvidiaTarget.named("sm_90a"))[0].stages[0].calls[0]
    assert (call.constants["BLOCK_R"], call.constants["BLOCK"]) == block


@pytest.mark.parametrize(("shape", "launches"), [((3, 1920, 31), 1), ((3, 12736, 7), 2), ((59, 192, 63), 1)])
def test_columns_of_medium_length_are_one_block_each(shape: tuple[int, int, int], launches: int) -> None:
    """Blocks that follow each other leave a GPU idle: few columns take narrow blocks, or parts with a block each."""
    b = GraphBuilder("running")
    b.output(b.op("cumsum", [b.input("x", float32, shape)], axis=1), "y")
    graph, target = b.finish(), NvidiaTarget.named("sm_90a")
    (group,) = fuse(graph, target.kernels).groups
    (candidate,) = candidates(group, graph, target)
    calls = [call for stage in candidate.stages for call in stage.calls]
    assert len(calls) == launches and calls[-1].constants["ONE_BLOCK"]
