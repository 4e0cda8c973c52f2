"""Layout assignment: the written kernel means the same, every operand is where its operation needs it, text."""

# mypy: ignore-errors

from __future__ import annotations

import random

import pytest

import tilewright
import tilewright.language as tl
from tests.host.random_kernels import arguments_of, outputs_of, random_kernel
from tilewright.ir.core import Parameter
from tilewright.ir.interpreter import run
from tilewright.ir.ops import ELEMENTWISE
from tilewright.ir.parser import parse_function
from tilewright.ir.printer import print_function
from tilewright.ir.verifier import verify
from tilewright.layout import LinearLayout, Shuffles, wgmma_accumulator
from tilewright.passes.pipeline import simplify
from tilewright.targets.gpu.layouts import CONVERSION_ATTRIBUTE, assign
from tilewright.targets.gpu.memory_order import ordering_barriers
from tilewright.targets.gpu.scratch import scratch_sizes
from tilewright.targets.gpu.shared_memory import allocate
from tilewright.targets.gpu.transfer import (
    blocked_layout,
    conversion_plan,
    default_layout,
    gathered,
    operand_layout,
    padded,
)
from tilewright.targets.nvidia.layout_rules import layout_rules
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")


def assigned(kernel, types, constants, warps=4):
    parameters = {name: Parameter(name, 16, True) for name in types}
    return assign(simplify(kernel.trace(types, constants, parameters)), TARGET, warps, layout_rules(TARGET))


def conversions(assignment):
    return [op for op in assignment.function.walk() if CONVERSION_ATTRIBUTE in op.attributes]


@pytest.mark.parametrize("warps", [1, 4, 8])
def test_random_kernels_keep_their_meaning_and_every_operand_is_in_place(warps, rng):
    for _ in range(6):
        seed = int(rng.integers(2**60))
        print(f"kernel seed {seed}")
        function = random_kernel(random.Random(seed), 8, exact=True)
        assignment = assign(function, TARGET, warps, layout_rules(TARGET))
        verify(assignment.function)
        outputs = []
        for kernel in (function, parse_function(print_function(assignment.function))):
            arguments = arguments_of()
            run(kernel, arguments, (1, 1, 1))
            outputs.append(outputs_of(arguments))
        assert all(outputs[0][name].tobytes() == outputs[1][name].tobytes() for name in outputs[0])
        check_places(assignment, warps)


def check_places(assignment, warps):
    """Every block has a layout of its shape on all threads; operations that move nothing have fitting operands."""
    layouts = assignment.layouts
    inner = {
        id(operation)
        for outer in assignment.function.walk()
        if outer.opcode in ("reduce", "scan", "map")
        for region in outer.regions
        for operation in region.operations
    }
    for operation in assignment.function.walk():
        if id(operation) in inner:
            continue
        for value in operation.results:
            if value.type.rank:
                layout = layouts[value]
                assert layout.shape == padded(value.type.shape) and layout.is_surjective
                assert (layout.size("lane"), layout.size("warp")) == (32, warps)
        if CONVERSION_ATTRIBUTE in operation.attributes:
            continue
        if operation.opcode in ELEMENTWISE or operation.opcode in ("expand_dims", "broadcast", "permute"):
            for number, operand in enumerate(operation.operands):
                if operand.type.rank and operation.result.type.rank:
                    wanted = operand_layout(operation, number, layouts[operation.result])
                    assert layouts[operand] == wanted, operation.opcode


@tilewright.jit
def normalize(x, w, out, columns, N: tl.constexpr):
    c = tl.arange(0, N)
    row = tl.program_id(0) * columns
    v = tl.load(x + row + c, mask=c < columns, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(v * v, axis=0) / columns)
    tl.store(out + row + c, v * r * tl.load(w + c, mask=c < columns), mask=c < columns)


def test_rows_of_several_types_share_one_layout():
    types = {"x": "*bf16", "w": "*f32", "out": "*bf16", "columns": "i32"}
    assignment = assigned(normalize, types, {"N": 4096})
    assert conversions(assignment) == []
    (layout,) = {layout for layout in assignment.layouts.values() if layout.shape == (4096,)}
    assert str(layout).startswith("register (1) (2) (4) (1024) (2048); lane (8) (16)")


@tilewright.jit
def transpose(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    block = tl.load(x + i[:, None] * N + i[None, :])
    tl.store(out + i[:, None] * N + i[None, :], tl.trans(block))


def test_a_transpose_is_one_conversion_that_is_reported():
    assignment = assigned(transpose, {"x": "*f32", "out": "*f32"}, {"N": 64})
    (conversion,) = conversions(assignment)
    assert "shared memory" in conversion.attributes[CONVERSION_ATTRIBUTE]
    parameters = {name: Parameter(name, 16, True) for name in ("x", "out")}
    (remark,) = lower(
        transpose.trace({"x": "*f32", "out": "*f32"}, {"N": 64}, parameters), TARGET, NvidiaOptions()
    ).remarks
    assert "changes its layout" in remark.message and remark.file.endswith("test_nvidia_layouts.py")


@tilewright.jit
def attention_scores(q, k, v, out, N: tl.constexpr, D: tl.constexpr):
    i, d = tl.arange(0, N), tl.arange(0, D)
    queries = tl.load(q + i[:, None] * D + d[None, :])
    keys = tl.load(k + i[None, :] * D + d[:, None])
    scores = tl.exp(tl.dot(queries, keys))
    mixed = tl.dot(scores.to(tl.float16), tl.load(v + i[:, None] * D + d[None, :]))
    tl.store(out + i[:, None] * D + d[None, :], mixed / tl.sum(scores, axis=1)[:, None])


def test_scores_enter_the_next_product_without_moving():
    types = {"q": "*f16", "k": "*f16", "v": "*f16", "out": "*f32"}
    assignment = assigned(attention_scores, types, {"N": 64, "D": 64})
    first, second = (op for op in assignment.function.walk() if op.opcode == "dot")
    operand = second.operands[0].definition
    if CONVERSION_ATTRIBUTE in operand.attributes:
        assert "shared" not in operand.attributes[CONVERSION_ATTRIBUTE]
    rows = assignment.layouts[first.result].vectors("warp")
    assert all(vector[1] == 0 for vector in rows)  # warps along the rows: a row's scores stay in one warp


@tilewright.jit
def walk(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    pointers, total = x + i, tl.zeros((N,), tl.float32)
    for _ in range(n):
        total += tl.load(pointers)
        pointers += N
    tl.store(out + i, total)


def test_carried_pointers_and_sums_are_laid_out_as_the_load():
    assignment = assigned(walk, {"x": "*f16", "out": "*f32", "n": "i32"}, {"N": 1024})
    assert conversions(assignment) == []
    (loop,) = (op for op in assignment.function.walk() if op.opcode == "for")
    layouts = {assignment.layouts[value] for value in loop.results}
    assert len(layouts) == 1


def test_layouts_stand_in_the_text():
    assignment = assigned(transpose, {"x": "*f32", "out": "*f32"}, {"N": 16})
    text = print_function(assignment.function)
    written = [op.attributes["gpu.layout"] for op in assignment.function.walk() if "gpu.layout" in op.attributes]
    assert written and all(str(LinearLayout.parse(layout)) == layout for layout in written)
    assert parse_function(text) is not None


@tilewright.jit
def through_memory(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) + 1.0)
    tl.store(out + i, tl.load(out + i) * 2.0)
    tl.store(out + N + i, tl.load(out + N - 1 - i))
    tl.store(out, tl.load(x))


def test_accesses_of_other_threads_wait_for_stores():
    """Loads through the pointers that were stored through are the thread's own; others need a barrier."""
    assignment = assigned(through_memory, {"x": "*f32", "out": "*f32"}, {"N": 256})
    accesses = [op for op in assignment.function.walk() if op.opcode in ("load", "store")]
    waiting = ordering_barriers(assignment, ())
    assert [accesses.index(op) for op in accesses if op in waiting] == [4, 5, 7]


@tilewright.jit
def in_a_loop(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    for k in range(n):
        tl.store(out + k * N + i, tl.load(x + k * N + i))


def test_loops_that_read_one_parameter_and_write_another_need_no_barrier():
    assignment = assigned(in_a_loop, {"x": "*f32", "out": "*f32", "n": "i32"}, {"N": 256})
    assert not ordering_barriers(assignment, ())


@tilewright.jit
def twice_over(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    for k in range(n):
        total += tl.load(x + k * N + i)
    for k in range(n):
        tl.store(x + k * N + i, tl.load(x + k * N + i) * 2.0)
    tl.store(out + i, total)


def test_a_loop_waits_once_for_what_was_loaded_before_it():
    """Its stores may overtake another thread's loads before the loop, but not those of the loop itself."""
    assignment = assigned(twice_over, {"x": "*f32", "out": "*f32", "n": "i32"}, {"N": 256})
    loops = [op for op in assignment.function.walk() if op.opcode == "for"]
    assert ordering_barriers(assignment, ()) == {loops[1]}


@tilewright.jit
def back_and_forth(x, n, N: tl.constexpr):
    i = tl.arange(0, N)
    for _ in range(n):
        tl.store(x + i, tl.load(x + N - 1 - i))


def test_a_loop_waits_inside_for_what_it_stores_itself():
    assignment = assigned(back_and_forth, {"x": "*f32", "n": "i32"}, {"N": 256})
    inside = [op for op in assignment.function.walk() if op.opcode in ("load", "store")]
    assert ordering_barriers(assignment, ()) == set(inside)


@tilewright.jit
def two_sums(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    for k in range(n):
        v = tl.load(x + k * N + i)
        tl.store(out + k, tl.sum(v / tl.sum(v, axis=0), axis=0))


def test_two_exchanges_in_a_loop_need_no_barriers_between_them():
    """The barrier inside one of them comes between reading and writing the other's place."""
    assignment = assigned(two_sums, {"x": "*f32", "out": "*f32", "n": "i32"}, {"N": 1024})
    allocation = allocate(assignment.function, scratch_sizes(assignment))
    assert len(allocation.scratch) == 2 and not allocation.barriers


@tilewright.jit
def one_sum(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    for k in range(n):
        tl.store(out + k, tl.sum(tl.load(x + k * N + i), axis=0))


def test_one_exchange_in_a_loop_waits_for_its_readers():
    assignment = assigned(one_sum, {"x": "*f32", "out": "*f32", "n": "i32"}, {"N": 1024})
    allocation = allocate(assignment.function, scratch_sizes(assignment))
    assert allocation.barriers == frozenset(allocation.scratch)


@pytest.mark.parametrize("shape", [(32, 40), (24, 64), (8, 48), (16, 112), (64, 1), (32, 64)])
@pytest.mark.parametrize("warps", [1, 4, 8])
def test_threads_hold_no_element_outside_a_block(shape: tuple[int, int], warps: int):
    """Where extents are no powers of two, what does not exist is in registers of its own: nobody stores it."""
    layout = default_layout(shape, 4, warps, 32)
    seen = set()
    for register in range(1 << len(layout.bases("register"))):
        places = {layout.apply(register=register, lane=lane, warp=warp) for lane in range(32) for warp in range(warps)}
        inside = {place for place in places if place[0] < shape[0] and place[1] < shape[1]}
        assert inside in (places, set())
        seen |= inside
    assert len(seen) == shape[0] * shape[1]


@tilewright.jit
def totals_of_rows(x, out, rows, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)[None, :]
    coming = tl.load(x + column)
    for row in range(rows):
        value = coming
        coming = tl.load(x + (row + 1) * BLOCK + column)
        tl.store(out + row, tl.sum(tl.sum(value.to(tl.float32), 1), 0))


def test_a_row_that_is_loaded_an_iteration_ahead_stays_where_it_was_loaded():
    assignment = assigned(totals_of_rows, {"x": "*bf16", "out": "*f32", "rows": "i32"}, {"BLOCK": 4096})
    assert conversions(assignment) == []


@pytest.mark.parametrize(("shape", "columns", "grid"), [((128, 256), 256, (2, 1)), ((64, 64), 64, (1, 1))])
def test_lanes_exchange_neighbours_so_that_each_has_a_vector(shape: tuple[int, int], columns: int, grid: tuple):
    home = wgmma_accumulator(shape, columns, grid)
    there = gathered(home, 1, 8)
    assert there.vectors("register")[:3] == ((0, 1), (0, 2), (0, 4)) and there.shape == home.shape
    assert isinstance(conversion_plan(home, there, 16), Shuffles)
    assert gathered(there, 1, 8) == there and gathered(home, 0, 8) == home  # rows are too far apart


def test_lanes_follow_the_axis_of_an_access_of_single_elements():
    layout = blocked_layout((256, 8), 0, 1, 4, 32)
    assert layout.vectors("lane") == tuple((1 << bit, 0) for bit in range(5))


def test_threads_have_neighbours_along_a_scanned_axis():
    layout = blocked_layout((512, 8), 1, 1, 8, 32, 0, 0)
    assert layout.vectors("register") == ((1, 0), (2, 0), (4, 0), (8, 0))
    assert layout.vectors("lane")[:3] == ((0, 1), (0, 2), (0, 4))


@pytest.mark.parametrize(
    ("rows", "columns", "run", "warps", "moved"),
    [(16, 128, 1, 4, True), (1, 4096, 1, 8, True), (4, 1024, 4, 4, False), (32, 4, 1, 4, False)],
)  # fmt: skip
def test_scans_of_rows_have_neighbours_in_threads(rows, columns, run, warps, moved):
    """Where lanes that load neighbours would hand over each of their elements."""

    @tilewright.jit
    def running(source, target, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RUN: tl.constexpr):
        place = (tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]) * (4 // RUN)
        tl.store(target + place, tl.cumsum(tl.load(source + place), 1))

    constants = {"ROWS": rows, "COLUMNS": columns, "RUN": run}
    assignment = assigned(running, {"source": "*fp32", "target": "*fp32"}, constants, warps)
    (scan,) = [operation for operation in assignment.function.walk() if operation.opcode == "scan"]
    layout = assignment.layouts[scan.operands[0]]
    each = rows * columns // (32 * warps)
    neighbours = [(0, 1 << bit) for bit in range(each.bit_length() - 1)]
    assert (list(layout.vectors("register"))[: len(neighbours)] == neighbours and each > 1) == moved
    check_places(assignment, warps)
