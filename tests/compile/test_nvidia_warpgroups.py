"""Plain products by wgmma on sm_90a: where they are used, and what their loops look like in PTX."""

# mypy: ignore-errors

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tests.compile.test_nvidia_plain import example, integers, pointers, traced
from tilewright.errors import CompilationError
from tilewright.targets.gpu.layouts import assign
from tilewright.targets.gpu.tiles import is_tile, tile_axis
from tilewright.targets.nvidia.assemble import AssemblyOptions, assemble
from tilewright.targets.nvidia.compile import assemble_kernel
from tilewright.targets.nvidia.layout_rules import layout_rules
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget
from tilewright.targets.nvidia.warpgroup_layout import product_of, tile_swizzle

SM90 = NvidiaTarget.named("sm_90a")


def built(function, warps, stages=3):
    """The lowered kernel and its assembly; spills and serialised products are errors."""
    lowered = lower(function, SM90, NvidiaOptions.of_launch({"num_warps": warps, "num_stages": stages}))
    return lowered, assemble(lowered.text, lowered.symbol, SM90, AssemblyOptions(strict=True))


def matmul(kind="bf16", rows=128, columns=256, depth=64):
    sizes = integers("m", "n", "k", "stride_a", "stride_b", "stride_c")
    blocks = {"ACTIVATION": None, "BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": depth, "GROUP": 8}
    return traced(example("matmul").matmul, {**pointers(kind, "a", "b", "c"), **sizes}, blocks)


def loop_of(ptx):
    """The text of the loop that multiplies: from its label to its branch."""
    lines = ptx.splitlines()
    labels = {line[:-1]: number for number, line in enumerate(lines) if re.match(r"\$L\w+:$", line)}
    for number, line in enumerate(lines):
        branch = re.search(r"bra(?:\.uni)?\s+(\$L\w+);", line)
        if branch and labels.get(branch[1], number) < number:
            text = "\n".join(lines[labels[branch[1]] : number + 1])
            if "wgmma" in text:
                return text
    raise AssertionError("no loop multiplies")


@tilewright.jit
def two_sums(a, b, c, d, out, n, M: tl.constexpr, K: tl.constexpr):
    row, column = tl.arange(0, M)[:, None] * K, tl.arange(0, K)
    first, total = tl.load(a + row + column), tl.zeros((M, K), tl.float32)
    for step in range(n):
        total += tl.dot(first, tl.load(b + (step * K + column[:, None]) * K + column))
    second = tl.load(c + row + column)
    for step in range(n):
        total += tl.dot(second, tl.load(d + (step * K + column[:, None]) * K + column))
    tl.store(out + row + column, total)


def test_tiles_that_are_read_one_after_the_other_share_memory():
    sizes = {"M": 128, "K": 64}
    lowered, _ = built(traced(two_sums, {**pointers("f16", "a", "b", "c", "d", "out"), "n": "i32"}, sizes), warps=4)
    stages = (lowered.shared_bytes - 128 * 64 * 2) // (64 * 64 * 2)  # one tile of 16 KiB, not two
    assert lowered.shared_bytes == 128 * 64 * 2 + stages * 64 * 64 * 2 and 2 <= stages <= 4


def test_a_matmul_keeps_one_group_under_way_and_copies_before_it_waits_for_copies():
    lowered, assembly = built(matmul(), warps=8)
    loop = loop_of(assembly.ptx)
    assert loop.count("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16") == 4
    assert re.findall(r"wgmma\.wait_group\.sync\.aligned (\d)", loop) == ["1"]
    steps = re.findall(r"wgmma\.wait_group|\b(?:bar|barrier)\S*sync|cp\.async\.commit|cp\.async\.wait", loop)
    assert steps == ["wgmma.wait_group", "bar.sync", "cp.async.commit", "cp.async.wait", "bar.sync"]
    assert "fence.proxy.async" not in assembly.ptx  # copies are the only writers of the tiles
    assert len(re.findall(r"cp\.async\.cg", loop)) == 12  # 16 bytes of 48 KiB for each of 256 threads
    assert "mma.sync" not in assembly.ptx and "ldmatrix" not in assembly.ptx
    assert lowered.shared_bytes == 4 * (128 * 64 + 64 * 256) * 2  # a stage more than asked for: there is room
    assert len(loop.splitlines()) < 260


@tilewright.jit
def narrow_columns(
    a, b, out, n, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, LASTS: tl.constexpr, SUMS: tl.constexpr
):
    """Blocks of `N` columns; the left operand is the same for all of them, or comes with each."""
    row, column, deep = tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + row * K + deep)
    total = tl.zeros((M, N), tl.float32)
    for step in range(n):
        if not LASTS:
            left = tl.load(a + (step * M + row) * K + deep)
        right = tl.load(b + (step * N + column) * K + deep[:, None])
        if SUMS:
            total = tl.dot(left, right, total)
        else:
            total += tl.exp2(tl.dot(left, right))
    tl.store(out + row * N + column, total)


@pytest.mark.parametrize(
    ("columns", "lasts", "sums", "wide"),
    [(16, True, False, 16), (16, False, False, 0), (16, True, True, 0), (32, False, True, 32), (8, True, False, 0)],
)
def test_a_left_operand_that_lasts_pays_for_few_columns(columns, lasts, sums, wide):
    """In registers it would take room for a whole loop."""
    types = {**pointers("f16", "a", "b"), "out": "*f32", "n": "i32"}
    sizes = {"M": 128, "K": 64, "N": columns, "LASTS": lasts, "SUMS": sums}
    _, assembly = built(traced(narrow_columns, types, sizes), warps=4)
    assert (f"wgmma.mma_async.sync.aligned.m64n{wide}k16" in assembly.ptx) == bool(wide)
    assert ("mma.sync" in assembly.ptx) != bool(wide)


@tilewright.jit
def stored_tile(a, b, out, n, M: tl.constexpr, K: tl.constexpr):
    """The right operand is computed, and goes to shared memory from registers."""
    row, column = tl.arange(0, M)[:, None], tl.arange(0, K)
    total = tl.zeros((M, K), tl.float32)
    for step in range(n):
        left = tl.load(a + (step * M + row) * K + column)
        right = tl.load(b + column[:, None] * K + column).to(tl.float32) * step
        total += tl.exp2(tl.dot(left, right.to(tl.float16)))
    tl.store(out + row * K + column, total)


def test_tiles_that_threads_store_are_fenced():
    _, assembly = built(
        traced(stored_tile, {**pointers("f16", "a", "b"), "out": "*f32", "n": "i32"}, {"M": 128, "K": 64}), warps=4
    )
    stored = re.findall(r"stmatrix|st\.shared|fence\.proxy\.async|wgmma\.mma_async", assembly.ptx)
    first = stored.index("fence.proxy.async")
    assert first and set(stored[:first]) <= {"stmatrix", "st.shared"}
    loop = loop_of(assembly.ptx)  # what is computed before the product does not wait for copies
    assert loop.index("cp.async.cg") < loop.index("fence.proxy.async") < loop.index("wgmma.mma_async")


@tilewright.jit
def stored_tiles(a, b, out, SIDE: tl.constexpr, SUMS: tl.constexpr):
    """Both operands are computed, and go to shared memory from registers; one of them is read before, with `SUMS`."""
    row, column = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)
    left = tl.load(a + row * SIDE + column) * 2
    right = tl.load(b + row * SIDE + column) * 2
    total = tl.dot(left, right)
    if SUMS:
        right += tl.sum(total, 0)[None, :].to(tl.float16)
    tl.store(out + row * SIDE + column, tl.dot(right, right) + total)


@pytest.mark.parametrize("sums", [False, True])
def test_threads_wait_for_each_other_once_between_tiles_that_they_store(sums):
    types = {**pointers("f16", "a", "b"), "out": "*f32"}
    _, assembly = built(traced(stored_tiles, types, {"SIDE": 64, "SUMS": sums}), warps=4)
    found = re.findall(r"st\.shared|bar\.sync|fence\.proxy\.async|wgmma\.mma_async", assembly.ptx)
    steps = [step for before, step in pairwise(["", *found]) if step == "bar.sync" or step != before]
    store = ["st.shared", "fence.proxy.async", "bar.sync"]
    assert steps[:8] == ["bar.sync", *store, *store, "wgmma.mma_async"]
    if sums:  # all have read the tile before it is written again
        last = len(steps) - 1 - steps[::-1].index("fence.proxy.async")
        assert steps[last - 2 : last + 3] == ["bar.sync", *store, "wgmma.mma_async"]


def test_results_are_stored_in_whole_sectors_after_shuffles():
    _, assembly = built(matmul(), warps=8)
    assert len(re.findall(r"st\.global\S*v4", assembly.ptx)) == 16 and "st.shared" not in assembly.ptx
    assert 0 < assembly.ptx.count("shfl.sync.bfly") <= 64


def test_operands_much_smaller_than_the_result_are_copied_ahead_too():
    loop = loop_of(built(matmul(rows=64, columns=256, depth=32), warps=4, stages=4)[1].ptx)
    assert len(re.findall(r"cp\.async\.cg", loop)) == 10 and "ld.global" not in loop and "st.shared" not in loop


@pytest.mark.parametrize(("rows", "columns", "warps", "wide"),
                         [(64, 128, 8, 64), (256, 128, 8, 128), (128, 64, 4, 64), (64, 64, 4, 64)])  # fmt: skip
def test_warpgroups_divide_rows_first(rows, columns, warps, wide):
    _, assembly = built(matmul(rows=rows, columns=columns), warps)
    assert f"m64n{wide}k16" in assembly.ptx and "mma.sync" not in assembly.ptx


@pytest.mark.parametrize(("rows", "columns", "warps", "architecture"),
                         [(32, 64, 4, "sm_90a"), (64, 16, 4, "sm_90a"), (64, 64, 2, "sm_90a"), (128, 128, 4, "sm_100"),
                          (128, 64, 8, "sm_80"), (128, 64, 4, "sm_120")])  # fmt: skip
def test_small_products_and_other_gpus_keep_mma_sync(rows, columns, warps, architecture):
    target = NvidiaTarget.named(architecture)
    text = lower(
        matmul(rows=rows, columns=columns, depth=32), target, NvidiaOptions.of_launch({"num_warps": warps})
    ).text
    assert "wgmma" not in text and "mma.sync" in text


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("warps", [8, 16])
def test_tiles_of_one_element_to_a_thread_are_not_copied_ahead(warps, architecture):
    """cp.async moves four bytes at least."""
    target = NvidiaTarget.named(architecture)
    lowered = lower(matmul(rows=16, columns=16, depth=16), target, NvidiaOptions.of_launch({"num_warps": warps}))
    assembly = assemble(lowered.text, lowered.symbol, target, AssemblyOptions(strict=True))
    assert "mma.sync" in assembly.ptx and "cp.async.ca" not in assembly.ptx


def test_attention_keeps_probabilities_in_registers():
    types = {**pointers("f16", "q", "k", "v", "out"), "rows": "i32", "scale": "f32"}
    constants = {"CAUSAL": False, "HEAD": 128, "BLOCK_Q": 128, "BLOCK_K": 64}
    lowered, assembly = built(traced(example("attention").attention, types, constants), warps=8, stages=2)
    loop = loop_of(assembly.ptx)
    assert loop.count("m64n64k16") == 8 and loop.count("m64n128k16") == 4
    assert "st.shared" not in loop and "stmatrix" not in loop
    assert lowered.shared_bytes == (128 + 2 * 2 * 64) * 128 * 2  # the queries, and two stages of keys and values


@tilewright.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A_T: tl.constexpr, B_T: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.trans(tl.load(a + k[:, None] * M + m[None, :])) if A_T else tl.load(a + m[:, None] * K + k[None, :])
    y = tl.trans(tl.load(b + n[:, None] * K + k[None, :])) if B_T else tl.load(b + k[:, None] * N + n[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(x, y))


FORMS = [
    ("f16", "f32", False, False, "m64n64k16.f32.f16.f16"), ("bf16", "f32", True, False, "m64n64k16.f32.bf16.bf16"),
    ("f8e4nv", "f32", False, True, "m64n64k32.f32.e4m3.e4m3"), ("f8e5", "f32", False, True, "m64n64k32.f32.e5m2.e5m2"),
    ("i8", "i32", False, True, "m64n64k32.s32.s8.s8"), ("u8", "i32", False, True, "m64n64k32.s32.u8.u8"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "result", "first", "second", "form"), FORMS)
def test_types_and_orders(kind, result, first, second, form):
    constants = {"M": 64, "N": 64, "K": 64, "A_T": first, "B_T": second}
    _, assembly = built(traced(product, {**pointers(kind, "a", "b"), "c": f"*{result}"}, constants), warps=4)
    assert form in assembly.ptx


def test_an_operand_that_cannot_be_read_is_reported():
    """8-bit elements along n: only mma.sync takes them."""
    constants = {"M": 64, "N": 64, "K": 64, "A_T": False, "B_T": False}
    lowered, assembly = built(traced(product, {**pointers("i8", "a", "b"), "c": "*i32"}, constants), warps=4)
    assert "wgmma" not in assembly.ptx
    assert any("mma.sync instead of wgmma" in remark.message for remark in lowered.remarks)


@pytest.mark.parametrize(("kind", "depth", "warps", "axes", "swizzles"), [
    ("bf16", 64, 8, (1, 1), (128, 128)), ("bf16", 32, 8, (1, 1), (64, 128)), ("f16", 16, 4, (1, 1), (32, 128)),
])  # fmt: skip
def test_assigned_layouts(kind, depth, warps, axes, swizzles):
    assignment = assign(matmul(kind, 128, 128, depth), SM90, warps, layout_rules(SM90))
    (dot,) = (operation for operation in assignment.function.walk() if operation.opcode == "dot")
    layouts = [assignment.layouts[value] for value in dot.operands]
    assert all(is_tile(layout) for layout in layouts[:2]) and not is_tile(layouts[2])
    assert tuple(tile_axis(layout) for layout in layouts[:2]) == axes
    assert tuple(tile_swizzle(layout, 2) for layout in layouts[:2]) == swizzles
    assert product_of(layouts[2]).grid == (warps // 4, 1)
    assert layouts[2] == assignment.layouts[dot.result]


def test_a_kernel_whose_tiles_do_not_fit_multiplies_warp_by_warp():
    constants = {"M": 256, "N": 128, "K": 512, "A_T": False, "B_T": False}
    lowered = lower(
        traced(product, {**pointers("bf16", "a", "b"), "c": "*f32"}, constants),
        SM90,
        NvidiaOptions(num_warps=8),
    )
    assert "wgmma" not in lowered.text and lowered.shared_bytes <= SM90.shared_bytes


@tilewright.jit
def explicit_product(a, c):
    """A plain product beside the author's shared memory."""
    tile = tx.shared((64, 64), tl.bfloat16, swizzle=128)
    m = tl.arange(0, 64)
    x = tl.load(a + m[:, None] * 64 + m[None, :])
    tile.store(x)
    tx.group_sync()
    tl.store(c + m[:, None] * 64 + m[None, :], tl.dot(x, tile.load()))


def test_explicit_kernels_keep_their_shared_memory_to_themselves():
    lowered, assembly = built(traced(explicit_product, {"a": "*bf16", "c": "*f32"}, {}), warps=4)
    assert "wgmma" not in assembly.ptx and "mma.sync" in assembly.ptx


@tilewright.jit
def pages(q, keys, values, table, out, n, count, ROWS: tl.constexpr, PAGE: tl.constexpr, SIZE: tl.constexpr):
    """Attention over the pages that a table names: each is waited for, as the branch keeps loads where they are."""
    row, deep, entry = tl.arange(0, ROWS)[:, None], tl.arange(0, SIZE), tl.arange(0, PAGE)
    query = tl.load(q + row * SIZE + deep)
    total = tl.zeros((ROWS, SIZE), tl.bfloat16)
    for step in range(n):
        if step < count:
            place = tl.load(table + step) * PAGE * SIZE
            scores = tl.dot(query, tl.load(keys + place + entry[None, :] * SIZE + deep[:, None])).to(tl.bfloat16)
            total += tl.dot(scores, tl.load(values + place + entry[:, None] * SIZE + deep)).to(tl.bfloat16)
    tl.store(out + row * SIZE + deep, total)


def test_ctas_that_wait_for_loads_leave_room_for_more_of_them():
    types = {**pointers("bf16", "q", "keys", "values", "out"), "table": "*i32", "n": "i32", "count": "i32"}
    function = traced(pages, types, {"ROWS": 16, "PAGE": 16, "SIZE": 128})
    lowered = lower(function, SM90, NvidiaOptions.of_launch({"num_warps": 4}))
    alone = assemble(lowered.text, lowered.symbol, SM90, AssemblyOptions())
    assert lowered.waiting and not lower(matmul(), SM90, NvidiaOptions.of_launch({"num_warps": 8})).waiting
    crowded = assemble_kernel(lowered, SM90, AssemblyOptions())
    assert not crowded.resources.spill_stores
    assert SM90.registers_per_multiprocessor // (128 * crowded.resources.registers) > (
        SM90.registers_per_multiprocessor // (128 * alone.resources.registers)
    )
    asked = assemble_kernel(lowered, SM90, AssemblyOptions(maxnreg=200))
    assert asked.resources.registers >= crowded.resources.registers and ".maxnreg 200" in asked.ptx


@tilewright.jit
def waiting_products(a, b, out, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, TWICE: tl.constexpr):
    """Products that wait for loads; TWICE: of each, another product."""
    row, column, deep = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in tl.range(0, n, num_stages=1):
        y = tl.load(b + (step * DEPTH + deep[:, None]) * COLUMNS + column)
        x = tl.load(a + row * n * DEPTH + step * DEPTH + deep)
        if TWICE:
            scores = tl.dot(x, y)
            total = tl.dot(scores.to(x.dtype), tl.trans(scores).to(x.dtype), total)
        else:
            total = tl.dot(x, y, total)
    tl.store(out + row * COLUMNS + column, total)


def waiting(kind="bf16", rows=128, columns=256, depth=64, twice=False, warps=8):
    """The kernel, lowered."""
    blocks = {"ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "TWICE": twice}
    function = traced(waiting_products, {**pointers(kind, "a", "b"), "out": "*f32", "n": "i32"}, blocks)
    lowered = lower(function, SM90, NvidiaOptions.of_launch({"num_warps": warps}))
    assert lowered.waiting
    return lowered


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("columns", "depth"), [(256, 64), (128, 64), (64, 32)])
def test_registers_are_not_limited_to_fewer_than_products_take(kind, columns, depth):
    lowered = waiting(kind, 64, columns, depth, warps=4)
    assert lowered.waiting == columns // 2 + 26
    with pytest.raises(CompilationError, match=f"register target of {lowered.waiting} or higher"):
        assemble(lowered.text, lowered.symbol, SM90, AssemblyOptions(maxnreg=lowered.waiting - 2))
    assemble(lowered.text, lowered.symbol, SM90, AssemblyOptions(maxnreg=lowered.waiting + 6))
    crowded = assemble_kernel(lowered, SM90, AssemblyOptions())
    assert not [remark for remark in crowded.remarks if "refuses" in remark.message]


@pytest.mark.parametrize("known", [False, True])
def test_limits_that_the_assembler_refuses_are_dropped(known):
    lowered = waiting(rows=64, columns=64, depth=32, twice=True, warps=4) if known else waiting()
    lowered = lowered if known else replace(lowered, waiting=1)  # as if products took none
    crowded = assemble_kernel(lowered, SM90, AssemblyOptions())
    note = crowded.remarks[-1]
    refused = re.fullmatch(r"the assembler refuses (\d+) registers a thread, for \d CTAs at once", note.message)
    assert note.severity == "note" and not crowded.resources.spill_stores and refused
    with pytest.raises(CompilationError, match="register"):  # what the caller asks for stays an error
        assemble_kernel(lowered, SM90, AssemblyOptions(maxnreg=int(refused[1])))


@pytest.mark.parametrize("columns", [256, 128])
def test_products_that_threads_have_no_registers_for_take_mma(columns):
    lowered = waiting(rows=256, columns=columns, warps=16)  # 128 registers a thread
    assert ("wgmma.mma_async" in lowered.text) == (columns == 128)
    assemble_kernel(lowered, SM90, AssemblyOptions())
