"""The instructions of explicit kernels: LLVM and the assembler take each, and addresses are where layouts put them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.layout import Blocked, LinearLayout, nvmma, wgmma_accumulator, wgmma_operand
from tilewright.layout.matrix import wgmma_descriptor
from tilewright.targets.gpu.transfer import default_layout
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, Module
from tilewright.targets.nvidia.assemble import Assembly, AssemblyOptions, assemble
from tilewright.targets.nvidia.explicit import (
    barriers,
    cluster,
    dependent_launch,
    matrix_moves,
    ptx,
    roles,
    tma,
    views,
    wgmma,
)
from tilewright.targets.nvidia.target import NvidiaTarget

HEADER = 'target triple = "nvptx64-nvidia-cuda"\n@shared = external addrspace(3) global [0 x i8], align 1024'
MAP = ("ptr", "map", 'byval([128 x i8]) align 64 "nvvm.grid_constant"')
GLOBAL = "ptr addrspace(1)"
BF16 = dtypes.bfloat16


def kernel(
    body: Callable[..., None], parameters: Sequence[tuple[str, str, str]] = (), attributes: str = ""
) -> Assembly:
    """The assembled kernel of 128 threads whose code `body(builder, *parameters)` emits; slow code is an error."""
    module = Module(HEADER)
    given = f'nounwind "nvvm.reqntid"="128,1,1" "nvvm.minctasm"="1" {attributes}'
    builder = LLVMBuilder(module, "kernel", "void", parameters, linkage="ptx_kernel", attributes=given)
    body(builder, *builder.arguments)
    builder.finish()
    return assemble(module.text, "kernel", NvidiaTarget.named("sm_90a"), AssemblyOptions(strict=True))


def thread(builder: LLVMBuilder) -> LLVMValue:
    return ptx.call(builder, "read.ptx.sreg.tid.x", result="i32")


def write(builder: LLVMBuilder, target: LLVMValue, values: Sequence[LLVMValue]) -> None:
    """Keep values alive: each thread stores its own."""
    for number, value in enumerate(values):
        place = builder.emit(f"getelementptr {value.type}, {target}, i32 {number * 128}", GLOBAL)
        builder.store(value, builder.emit(f"getelementptr {value.type}, {place}, {thread(builder)}", GLOBAL))


def test_parts_of_columns_keep_rows_apart() -> None:
    """Of a tile without swizzle: rows of the part are as far apart as those of the tile, also in a ring of parts."""
    builder = LLVMBuilder(Module(HEADER), "kernel", "void", (), linkage="ptx_kernel", attributes="nounwind")
    ring = views.whole(builder.integer(0, "i32"), (3, 8, 64), dtypes.float32, 0)
    part = ring.slice(builder, builder.integer(16, "i32"), 2, 32)
    assert (part.pitch, part.panels, part.start.constant) == (256, 1, 64)
    one = part.index(builder, builder.integer(2, "i32"))
    assert (one.pitch, one.start.constant) == (256, 2 * 8 * 256 + 64)
    again = one.slice(builder, builder.integer(8, "i32"), 1, 8).slice(builder, builder.integer(4, "i32"), 0, 4)
    assert (again.pitch, again.shape, again.start.constant) == (256, (4, 8), 2 * 8 * 256 + 64 + 32 + 4 * 256)


def test_barriers() -> None:
    def body(builder: LLVMBuilder, parity: LLVMValue) -> None:
        first, second = builder.integer(0, "i32"), builder.integer(8, "i32")
        barriers.initialize(builder, first, 2)
        barriers.fence_initialization(builder)
        barriers.cta_sync(builder)
        barriers.arrive(builder, first)
        barriers.arrive_remote(builder, second, builder.integer(1, "i32"))
        barriers.arrive_expect(builder, first, 64)
        barriers.wait(builder, first, parity)
        barriers.named_sync(builder, builder.integer(1, "i32"), 128)
        barriers.named_arrive(builder, parity, 128)
        barriers.fence_async(builder)

    text = kernel(body, [("i32", "parity", "")]).ptx
    for instruction in (
        "mbarrier.init",
        "mapa.shared::cluster",
        "arrive.expect_tx",
        "try_wait.parity",
    ):
        assert instruction in text


def test_clusters_and_dependent_launch() -> None:
    def body(builder: LLVMBuilder, target: LLVMValue) -> None:
        peer = cluster.rank(builder)
        cluster.arrive(builder, relaxed=True, aligned=True)
        cluster.wait(builder, aligned=True)
        where = ptx.address(builder, builder.integer(64, "i32"))
        for words in (1, 2, 4):
            write(builder, target, cluster.load_remote(builder, where, peer, words))
        dependent_launch.grid_wait(builder)
        dependent_launch.launch_dependents(builder)
        cluster.arrive(builder)
        cluster.wait(builder)

    text = kernel(body, [(GLOBAL, "target", "")], '"nvvm.cluster_dim"="2,1,1"').ptx
    assert text.index("ld.shared::cluster.v4") > text.index("barrier.cluster.wait")


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_tensor_copies(rank: int) -> None:
    def body(builder: LLVMBuilder, tensor_map: LLVMValue, number: LLVMValue) -> None:
        place, barrier = builder.integer(1024, "i32"), builder.integer(0, "i32")
        coordinates = [number, *(builder.integer(axis, "i32") for axis in range(1, rank))]
        mask = builder.cast("trunc", number, "i16")
        tma.prefetch_map(builder, tensor_map)
        tma.load(builder, tensor_map, coordinates, place, barrier)
        tma.load(builder, tensor_map, coordinates, place, barrier, multicast=mask, eviction="evict_first")
        for kind in ("", *tma.TMA_REDUCTIONS):
            tma.store(builder, tensor_map, coordinates, place, kind, "evict_last" if kind else "")
        tma.commit(builder)
        tma.wait(builder, 1, read=True)
        tma.wait(builder, 0, read=False)

    text = kernel(body, [MAP, ("i32", "number", "")]).ptx
    assert text.count("cp.async.bulk.tensor") == 3 and text.count("cp.reduce.async.bulk.tensor") == 6
    assert f"tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast" in text


PRODUCTS = [
    (BF16, BF16, 256, "f32.bf16.bf16"),
    (dtypes.float16, dtypes.float16, 224, "f32.f16.f16"),
    (dtypes.float32, dtypes.float32, 128, "f32.tf32.tf32"),
    (dtypes.float8e4nv, dtypes.float8e4nv, 256, "f32.e4m3.e4m3"),
    (dtypes.float8e5, dtypes.float8e4nv, 64, "f32.e5m2.e4m3"),
    (dtypes.int8, dtypes.int8, 256, "s32.s8.s8"),
    (dtypes.uint8, dtypes.int8, 96, "s32.u8.s8"),
    (dtypes.uint8, dtypes.uint8, 24, "s32.u8.u8"),
]


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize(("a", "b", "columns", "types"), PRODUCTS)
@pytest.mark.parametrize("slices", [1, 2])
def test_products_of_shared_tiles(a: DType, b: DType, columns: int, types: str, slices: int) -> None:
    if slices * columns > 256:
        columns //= 2

    def body(builder: LLVMBuilder, target: LLVMValue, number: LLVMValue) -> None:
        left = views.whole(builder.integer(0, "i32"), (64 * slices, 128 // a.itemsize), a, 128)
        right = views.whole(builder.integer(32768, "i32"), (columns, 128 // b.itemsize), b, 128).transpose()
        operands = views.operand(builder, left, True, slices), views.operand(builder, right, False)
        instruction = wgmma.WgmmaInstruction(a, b, columns)
        result = wgmma.multiply(builder, instruction, *operands, None)
        result = wgmma.multiply(builder, instruction, *operands, result, builder.compare("ne", number, 0))
        write(builder, target, wgmma.wait(builder, 0, result))

    text = kernel(body, [(GLOBAL, "target", ""), ("i32", "number", "")]).ptx
    assert text.count(f"wgmma.mma_async.sync.aligned.m64n{columns}k{32 // a.itemsize}.{types}") == 8 * slices
    assert text.count("wgmma.commit_group") == 2


def test_products_with_registers_and_transposed_operands() -> None:
    def body(builder: LLVMBuilder, target: LLVMValue) -> None:
        left = views.whole(builder.integer(0, "i32"), (64, 128), BF16, 128).transpose()
        right = views.operand(builder, views.whole(builder.integer(32768, "i32"), (64, 128), BF16, 128), False)
        instruction = wgmma.WgmmaInstruction(BF16, BF16, 128)
        first = wgmma.multiply(builder, instruction, views.operand(builder, left, True, 2), right, None)
        numbers = wgmma.wait(builder, 0, first)
        narrow = [builder.cast("fptrunc", number, "bfloat") for number in numbers]
        pairs = [matrix_moves.pair(builder, *narrow[2 * i : 2 * i + 2]) for i in range(len(narrow) // 2)]
        words = tuple(tuple(tuple(pairs[32 * s + 4 * k :][:4]) for k in range(4)) for s in range(2))
        held = wgmma.RegisterOperand(words)
        second = wgmma.multiply(builder, instruction, held, right, numbers)
        write(builder, target, wgmma.wait(builder, 0, second, held.pinned))

    text = kernel(body, [(GLOBAL, "target", "")]).ptx
    assert "da, db, 0, 1, 1, 1, 1;" in text  # both operands lie along m and n
    assert re.search(r"m64n128k16\S+ \{[^}]*\}, \{[^}]*\}, db, 1, 1, 1, 1;", text)


@pytest.mark.parametrize(("warps", "registers", "expected"), [
    (12, 24, "dec.sync.aligned.u32 \t24"), (16, 160, "inc.sync.aligned.u32 \t160"), (12, 168, None), (8, 240, None),
])  # fmt: skip
def test_register_budgets(warps: int, registers: int, expected: str | None) -> None:
    """A CTA of 12 warps starts with 168 registers a thread; one of 8 with all that there are."""
    role = roles.RoleCopies(0, 0, 4, 1, registers, False)
    text = kernel(lambda builder: roles.set_registers(builder, role, warps, NvidiaTarget.named("sm_90a"))).ptx
    assert ("setmaxnreg" in text) == (expected is not None) and (expected or "") in text


@pytest.mark.parametrize(("element", "bytes_of"), [(BF16, 2), (dtypes.int8, 1), (dtypes.float32, 4)])
@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_descriptors_are_those_of_the_layout(element: DType, bytes_of: int, swizzle: int) -> None:
    """Powers of two, where the layout package can say it."""
    builder = LLVMBuilder(Module(), "f", "void", [])
    rows, columns = 128, 256 // bytes_of
    tile = nvmma((rows, columns), element.bits, swizzle)
    view = views.whole(builder.integer(0, "i32"), (rows, columns), element, swizzle)
    for is_a, k_axis in ((True, 1), (False, 0)) if element.bits == 16 else ((True, 1),):
        expected = wgmma_descriptor(tile, element.bits, swizzle, k_axis)
        operand = views.operand(builder, view, is_a)
        assert [16 * step for step in operand.steps[0]] == list(expected.steps)
        assert operand.transposed == (k_axis == 0) and operand.high == expected.bits >> 32
        leading = expected.bits & 0xFFFFFFFF
        assert not leading or builder.block.lines[-1].endswith(f", {leading}")


# -- Addresses ------------------------------------------------------------------------------------

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "mul": np.multiply, "xor": np.bitwise_xor, "and": np.bitwise_and, "lshr": np.right_shift,
    "shl": np.left_shift, "or": np.bitwise_or, "icmp ult": np.less,
}  # fmt: skip


def evaluate(lines: Sequence[str], known: dict[str, Any]) -> dict[str, Any]:
    """The i32 arithmetic of a block, on arrays."""
    for line in lines:
        match = re.fullmatch(r"(%\w+) = (icmp ult|\w+) i(?:32|1) (\S+), (\S+)", line)
        assert match is not None, line
        left, right = (known[name] if name in known else int(name) for name in match.groups()[2:])
        known[match[1]] = OPERATORS[match[2]](left, right)
    return known


def place_of(row: int, column: int, view: views.SharedView) -> int:
    """The byte offset of an element, by the definition in the docstring of `views`."""
    if not view.swizzle:
        return (row * view.columns + column) * view.element.itemsize
    panel, within = divmod(column * view.element.itemsize, view.swizzle)
    turned = row * view.swizzle // 128 % (view.swizzle // 16) * 16
    return panel * view.rows * view.swizzle + row * view.swizzle + (within ^ turned)


def rows_of(
    move: matrix_moves.Move, chosen: matrix_moves.AccessPlan, layout: LinearLayout, lane: int, warp: int
) -> list[Any]:
    """Coordinates of what a lane's address points at, in the order of memory."""
    if not chosen.matrices:
        return [layout.apply(register=register, lane=lane, warp=warp) for register in move.registers]
    matrix, row = divmod(lane, 8)
    if matrix >= len(move.registers):
        return []
    first = move.registers[matrix]
    if chosen.transposed:
        return [layout.apply(register=first + row % 2, lane=4 * i + row // 2, warp=warp) for i in range(8)]
    return [layout.apply(register=first + i % 2, lane=4 * row + i // 2, warp=warp) for i in range(8)]


ACCUMULATOR = wgmma_accumulator
ACCESSES = {
    "result": (ACCUMULATOR((64, 128), columns=128), (64, 128), BF16, 128, False, 4),
    "panels that end early": (ACCUMULATOR((64, 256), columns=224), (64, 224), BF16, 64, False, 4),
    "80 rows transposed": (ACCUMULATOR((64, 128), columns=80), (64, 80), BF16, 128, True, 4),
    "transposed": (ACCUMULATOR((64, 64), columns=64), (64, 64), BF16, 64, True, 4),
    "two slices": (ACCUMULATOR((128, 64), columns=64), (128, 64), BF16, 128, False, 4),
    "no swizzle": (ACCUMULATOR((64, 128), columns=104), (64, 104), BF16, 0, False, 4),
    "24 columns": (default_layout((32, 24), 4, 4, 32), (32, 24), BF16, 0, False, 4),
    "40 columns": (default_layout((32, 40), 4, 4, 32), (32, 40), BF16, 0, False, 4),
    "24 columns, single precision": (default_layout((16, 24), 4, 4, 32), (16, 24), dtypes.float32, 32, False, 0),
    "operand": (wgmma_operand((64, 128), 2), (64, 128), BF16, 128, False, 4),
    "single precision": (ACCUMULATOR((64, 128), columns=96), (64, 96), dtypes.float32, 128, False, 0),
    "rows": (Blocked((1, 8), (2, 16), (4, 1), (1, 0)).layout((64, 256)), (64, 192), BF16, 128, False, 0),
    "bytes": (Blocked((1, 16), (4, 8), (4, 1), (1, 0)).layout((64, 128)), (64, 128), dtypes.int8, 128, False, 0),
}


@pytest.mark.parametrize("name", ACCESSES)
def test_addresses(name: str) -> None:
    layout, shape, element, swizzle, transposed, matrices = ACCESSES[name]
    builder = LLVMBuilder(Module(), "f", "void", [("i32", "lane", ""), ("i32", "warp", "")])
    view = views.whole(builder.integer(0, "i32"), tuple(reversed(shape)) if transposed else shape, element, swizzle)
    view = view.transpose() if transposed else view
    chosen = matrix_moves.plan(layout, shape, view, stored=True)
    assert chosen.matrices == matrices
    places = matrix_moves.Addresses(builder, view, chosen, matrix_moves.Threads(*builder.arguments))
    found = [places.place(move.place) for move in chosen.moves]
    lanes, warps = np.meshgrid(np.arange(32), np.arange(4))
    known = evaluate(builder.block.lines, {"%lane": lanes, "%warp": warps})
    seen = set()
    for move, (base, constant) in zip(chosen.moves, found, strict=True):
        addresses = np.broadcast_to(known.get(base.text, base.constant or 0) + constant, lanes.shape)
        for warp, lane in np.ndindex(lanes.shape):
            for position, coordinates in enumerate(rows_of(move, chosen, layout, lane, warp)):
                row, column = coordinates[::-1] if transposed else coordinates
                assert addresses[warp, lane] + position * element.itemsize == place_of(row, column, view)
                seen.add(coordinates)
    assert seen >= set(np.ndindex(*shape))


@pytest.mark.parametrize("shape", [(16, 24), (32, 48), (12, 40), (6, 112), (200,), (3, 8, 24)])
def test_vectors_end_where_tiles_end(shape: tuple[int, ...]) -> None:
    """Layouts have powers of two: lanes beyond the tile must neither read what lies behind it nor store there."""
    covered = tuple(1 << (size - 1).bit_length() for size in shape)
    blocks = {
        1: Blocked((4,), (32,), (4,), (0,)),
        2: Blocked((1, 4), (2, 16), (4, 1), (1, 0)),
        3: Blocked((1, 1, 4), (1, 2, 16), (2, 2, 1), (2, 1, 0)),
    }
    layout = blocks[len(shape)].layout(covered)
    builder = LLVMBuilder(Module(), "f", "void", [("i32", "lane", ""), ("i32", "warp", "")])
    view = views.whole(builder.integer(0, "i32"), shape, dtypes.float32, 0)
    chosen = matrix_moves.plan(layout, shape, view, stored=False)
    places = matrix_moves.Addresses(builder, view, chosen, matrix_moves.Threads(*builder.arguments))
    valid = [places.inside(move.place) for move in chosen.moves]
    lanes, warps = np.meshgrid(np.arange(32), np.arange(4))
    known = evaluate(builder.block.lines, {"%lane": lanes, "%warp": warps})
    beyond = 0
    for move, inside in zip(chosen.moves, valid, strict=True):
        allowed = np.broadcast_to(True if inside is None else known[inside.text], lanes.shape)
        for warp, lane in np.ndindex(lanes.shape):
            elements = [layout.apply(register=number, lane=lane, warp=warp) for number in move.registers]
            exist = [all(np.less(element, shape)) for element in elements]
            assert all(there == allowed[warp, lane] for there in exist)
            beyond += not allowed[warp, lane]
    assert beyond


@pytest.mark.parametrize(("name", "instruction"), [
    ("result", "stmatrix.sync.aligned.m8n8.x4.shared.b16"), ("transposed", "x4.trans.shared.b16"),
    ("no swizzle", "stmatrix.sync.aligned.m8n8.x4.shared.b16"), ("single precision", "st.shared.v2.b32"),
    ("rows", "st.shared.v4.b32"),
])  # fmt: skip
def test_moves_of_tiles(name: str, instruction: str) -> None:
    layout, shape, element, swizzle, transposed, _ = ACCESSES[name]
    kind = {2: "bfloat", 4: "float"}[element.itemsize]

    def body(builder: LLVMBuilder) -> None:
        number = thread(builder)
        lane = builder.binary("and", number, builder.integer(31, "i32"))
        threads = matrix_moves.Threads(lane, builder.binary("lshr", number, builder.integer(5, "i32")))
        values: matrix_moves.Values = {}
        for start, stored in ((0, False), (65536, True)):
            stored_shape = tuple(reversed(shape)) if transposed else shape
            view = views.whole(builder.integer(start, "i32"), stored_shape, element, swizzle)
            view = view.transpose() if transposed else view
            chosen = matrix_moves.plan(layout, shape, view, stored)
            if stored:
                matrix_moves.store(builder, chosen, view, threads, values)
            else:
                values = matrix_moves.load(builder, chosen, view, threads, kind, [])

    assert instruction in kernel(body).ptx
