"""Single facts about the code of the CPU lowering, its analyses, remarks and errors."""

# mypy: ignore-errors

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.kernel_support import check, lowered
from tests.host.test_cpu_lowering_blocks import attention, chain, draw, moments, outer, softmax, traced, transpose
from tilewright.errors import CompilationError
from tilewright.ir.core import Parameter
from tilewright.ir.parser import parse_function
from tilewright.library.matmul.kernel import matmul
from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.assemble import assemble
from tilewright.targets.cpu.lowering import CPUKernelLowering
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.cpu.pipeline import lower
from tilewright.targets.cpu.placement import Placement
from tilewright.targets.cpu.storage import Storage, StoragePlan
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import Module

SERVER = CPUTarget.named("sapphirerapids")
FLOATS = ("x", "y", "out")


def instance(kernel):
    """The text of the instance function."""
    return kernel.text.split("\ndefine void")[0]


def add_kernel(alias_free=FLOATS, block=1024):
    types = {name: "*f32" for name in FLOATS} | {"n": "i32"}
    return traced(chain, types, {"BLOCK": block}, alias_free)


# Nests ---------------------------------------------------------------------------------------------


def test_elementwise_chain_has_whole_vectors_and_one_masked_tail():
    text = instance(lowered(add_kernel(), SERVER))
    assert len(re.findall(r"call .*masked\.store", text)) == 1
    assert len(re.findall(r"call .*masked\.load", text)) == 2
    assert "load <32 x float>" in text and "load <16 x float>" in text
    assert not re.search(r"load float|store float", text)


def rotated(rows: int = 32, columns: int = 64):
    """Rows by a mask that is no prefix, and columns by one that ends them."""

    @tilewright.jit
    def rotate(x, table, out, first, steps, width, R: tl.constexpr, C: tl.constexpr):
        r, c = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, C)
        present = (r < steps) & (r + first >= 0) & (r + first < steps)
        mask = present[:, None] & (c < width)[None, :]
        place = r[:, None] * (2 * C) + c[None, :]
        angle = tl.load(table + (r + first)[:, None] * C + c[None, :], mask=mask, other=1.0)
        left = tl.load(x + place, mask=mask, other=0.0)
        right = tl.load(x + place + C, mask=mask, other=0.0)
        tl.store(out + place, left * angle - right, mask=mask)
        tl.store(out + place + C, left + right * angle, mask=mask)

    types = {"x": "*f32", "table": "*f32", "out": "*f32", "first": "i32", "steps": "i32", "width": "i32"}
    return traced(rotate, types, {"R": rows, "C": columns}, ("x", "table", "out"))


def test_rows_by_a_mask_of_their_own_are_skipped_or_whole():
    text = instance(lowered(rotated(), SERVER))
    assert "row.then" in text
    whole = [part for part in text.split("loop.body") if "load <32 x float>" in part]
    assert whole and all("masked" not in part for part in whole)


@pytest.mark.parametrize("first", [-70, -9, 0, 13, 90])
@pytest.mark.parametrize("width", [1, 40, 64])
def test_rows_that_a_mask_skips_are_neither_read_nor_written(first, width, rng):
    steps = 75
    x = rng.standard_normal((steps, 128)).astype(np.float32)
    table = rng.standard_normal((steps, 64)).astype(np.float32)
    check(rotated(), [x, table, np.full_like(x, 7), first, steps, width], (4,))


def turned_heads(block: int = 128):
    """Rows of heads in place, whose halves are `size` long: all that is known of that is what divides it."""

    @tilewright.jit
    def turn(x, table, size, heads, stride, B: tl.constexpr):
        row = x + tl.program_id(0) * stride
        half = size // 2
        for first in range(0, heads * half, B):
            i = first + tl.arange(0, B)
            place = row + i // half * size + i % half
            mask = i < heads * half
            left, right = tl.load(place, mask=mask), tl.load(place + half, mask=mask)
            factor = tl.load(table + i % half, mask=mask)
            tl.store(place, left * factor - right, mask=mask)
            tl.store(place + half, right * factor + left, mask=mask)

    types = {"x": "*f32", "table": "*f32", "size": "i32", "heads": "i32", "stride": "i32"}
    return turn.trace(types, {"B": block}, {"size": Parameter("size", 16)})


def test_vectors_are_whole_where_a_launch_divides_by_enough():
    text = instance(lowered(turned_heads(), SERVER))
    wide, plain = text.split("runs.wide.0:")[1].split("runs.plain.0:")
    cut, short = plain.split("runs.end.0:")[0].split("cut.short.0:")
    assert "load <16 x float>" in wide and "load <16 x float>" in cut and "load <16 x float>" not in short
    assert "gather" not in text and "scatter" not in text


@pytest.mark.parametrize("size", [16, 32, 48, 64, 80, 96, 128])
@pytest.mark.parametrize("heads", [1, 3])
def test_rows_of_heads_of_any_size(size, heads, rng):
    x = rng.standard_normal((3, heads * size)).astype(np.float32)
    table = rng.standard_normal(size // 2).astype(np.float32)
    check(turned_heads(), [x, table, size, heads, heads * size], (3,))


def test_block_without_a_limit_has_no_mask():
    @tilewright.jit
    def double(x, N: tl.constexpr):
        i = tl.program_id(0) * N + tl.arange(0, N)
        tl.store(x + i, tl.load(x + i) * 2.0)

    assert "masked" not in instance(lowered(traced(double, {"x": "*f32"}, {"N": 256}), SERVER))


def test_passes_of_a_softmax_run_row_by_row():
    types = {"x": "*f32", "out": "*f32", "rows": "i32", "columns": "i32"}
    kernel = lowered(traced(softmax, types, {"R": 4, "C": 256}, ("x", "out")), SERVER)
    text = instance(kernel)
    assert "loop.body.0" in re.findall(r"br i1 .*", text)[-1]  # the loop over rows, around all others
    assert "llvm.x86.avx512.mask.scalef" in text


def test_outer_loop_ends_at_the_row_limit():
    types = {"x": "*f32", "y": "*f32", "out": "*f32", "rows": "i32", "columns": "i32", "stride": "i32"}
    text = instance(lowered(traced(outer, types, {"R": 8, "C": 64}, FLOATS), SERVER))
    assert text.count("llvm.smin.i64(i64") >= 2  # both limits are counts
    assert "<16 x i1>" in text


def test_transposition_needs_no_gather():
    types = {"x": "*f32", "out": "*f32", "rows": "i32", "columns": "i32"}
    kernel = lowered(traced(transpose, types, {"R": 32, "C": 32}, ("x", "out")), SERVER)
    assert "gather" not in kernel.text and "scatter" not in kernel.text
    assert not kernel.remarks


@tilewright.jit
def streamed(x, out, n, MODIFIER: tl.constexpr, ORDERED: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1.0, mask=i < n, cache_modifier=MODIFIER)
    if ORDERED:
        tl.debug_barrier()


@pytest.mark.parametrize("modifier, ordered, around", [(".cs", False, True), (".cs", True, False), ("", False, False)])
def test_streaming_stores_go_around_the_caches(modifier, ordered, around):
    constants = {"MODIFIER": modifier, "ORDERED": ordered, "BLOCK": 1024}
    text = lowered(traced(streamed, {"x": "*f32", "out": "*f32", "n": "i32"}, constants, ("x", "out")), SERVER).text
    assert ("!nontemporal" in text) == around and ("sse.sfence" in text) == around


def test_loads_of_streams_fetch_what_follows():
    """A row of elements that is read once; not blocks of several rows, which lie apart."""

    @tilewright.jit
    def total(x, out, steps, MODIFIER: tl.constexpr, ROWS: tl.constexpr):
        row = tl.arange(0, ROWS)[:, None] * 1024 if ROWS > 1 else 0
        sums = tl.zeros((ROWS, 32) if ROWS > 1 else (32,), tl.float32)
        for step in range(steps):
            lane = tl.arange(0, 32)[None, :] if ROWS > 1 else tl.arange(0, 32)
            sums += tl.load(x + step * 32 + row + lane, cache_modifier=MODIFIER)
        tl.store(out, tl.sum(sums))

    types = {"x": "*f32", "out": "*f32", "steps": "i32"}
    for modifier, rows, lines in ((".cs", 1, 2), ("", 1, 0), (".cs", 2, 0)):
        text = instance(lowered(traced(total, types, {"MODIFIER": modifier, "ROWS": rows}, ("x", "out")), SERVER))
        assert text.count("call void @llvm.prefetch.p0") == lines


def test_small_tables_are_in_a_register():
    @tilewright.jit
    def numbers(x, out, TABLE: tl.constexpr):
        i = tl.arange(0, 32)
        table = tl.arange(0, TABLE).to(tl.float32) - 8
        tl.store(out + i, tl.gather(table, tl.load(x + i) >> 4 & 15, 0))

    for target, table, instructions in ((SERVER, 16, 2), (SERVER, 32, 0), (CPUTarget.named("x86-64-v3"), 16, 0)):
        kernel = lowered(traced(numbers, {"x": "*u32", "out": "*f32"}, {"TABLE": table}, ("x", "out")), target)
        text = instance(kernel)
        assert len(re.findall(r"call .*permvar\.sf\.512", text)) == instructions
        assert ("masked.gather" in text) == (instructions == 0)
        assert (" and " in text) == (instructions == 0)  # which bits of an index count is a matter of the instruction


def test_products_of_halves_of_words_are_added_in_pairs():
    """Where the CPU has the instruction; not of other halves, nor of words of two kinds."""

    @tilewright.jit
    def added(x, y, out, BITS: tl.constexpr, MASK: tl.constexpr):
        i = tl.arange(0, 32)
        left, right = tl.load(x + i), tl.load(y + i)
        high = tl.fma((left & MASK).to(tl.float32, bitcast=True), (right & MASK).to(tl.float32, bitcast=True),
                      tl.load(out + i))  # fmt: skip
        low = [(words << BITS).to(tl.float32, bitcast=True) for words in (left, right)]
        tl.store(out + i, tl.fma(low[0], low[1], high))

    types, pairs = {"x": "*u32", "y": "*u32", "out": "*f32"}, CPUTarget.named("znver4")
    for target, bits, mask, count in (
        (pairs, 16, 0xFFFF0000, 2), (pairs, 15, 0xFFFF0000, 0), (pairs, 16, 0xFFFE0000, 0), (SERVER, 16, 0xFFFF0000, 0),
    ):  # fmt: skip
        kernel = lowered(traced(added, types, {"BITS": bits, "MASK": mask}, tuple(types)), target)
        assert len(re.findall(r"call .*dpbf16ps\.512", instance(kernel))) == count
        assert ("subnormal" in kernel.explanation()) == (count > 0)


def test_streaming_stores_ask_for_addresses_of_one_register():
    """Two registers may be stored at once; arrays that begin at half of that must stream all the same."""
    constants = {"MODIFIER": ".cs", "ORDERED": False, "BLOCK": 1024}
    text = lowered(traced(streamed, {"x": "*f32", "out": "*f32", "n": "i32"}, constants, ("x", "out")), SERVER).text
    aligned = {int(size) for size in re.findall(r"!nontemporal|align (\d+), !nontemporal", text) if size}
    assert aligned == {64}


@pytest.mark.parametrize("offset", [0, 4, 5])
def test_streaming_stores_at_any_address(offset):
    n = 3000
    memory = np.zeros(n + 64, np.float32)
    x = np.random.default_rng().standard_normal(n).astype(np.float32)
    out = memory[offset : offset + n]
    streamed[(3,)](x, out, n, MODIFIER=".cs", ORDERED=False, BLOCK=1024)
    np.testing.assert_array_equal(out, x + np.float32(1.0))
    assert not memory[:offset].any() and not memory[offset + n :].any()


@tilewright.jit
def narrowed(x, out, n, ONE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i).to(out.dtype.element_ty)
    tl.store(out + i, value, mask=i == n if ONE else i < n)


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("block", [4, 16, 64, 256])
@pytest.mark.parametrize("narrow", [np.int8, np.uint8, np.int16, np.int32, ml_dtypes.bfloat16])
def test_masked_stores_of_narrowed_values_leave_neighbours_alone(narrow, block):
    """Where a mask turns out to hold one lane, LLVM's AVX-512 code stored the wide element whole."""
    for wide in (np.int32, np.int64, np.float32):
        x = (np.arange(block) % 50 + 1).astype(wide)
        for n, one in ((1, False), (3, False), (1, True), (3, True)):
            out = np.full(block + 16, 77).astype(narrow)
            expected = out.copy()
            chosen = slice(n, n + 1) if one else slice(0, n)
            expected[chosen] = x[chosen].astype(narrow)
            narrowed[(1,)](x, out, n, ONE=one, BLOCK=block)
            np.testing.assert_array_equal(out.astype(np.float32), expected.astype(np.float32))


# Products ------------------------------------------------------------------------------------------


def product_kernel(width, **constants):
    types = {name: "*f32" for name in "abc"}
    types |= {name: "i32" for name in "rows columns depth a_row a_depth b_depth b_column c_row".split()}
    types |= {"extra": ()}
    fixed = {"BLOCK_M": 56, "BLOCK_N": 64, "BLOCK_K": 64, "WIDTH": width, "a_depth": 1, "b_column": 1, **constants}
    types = {name: kind for name, kind in types.items() if name not in fixed}
    return traced(matmul, types, fixed, ("a", "b", "c"))


def test_operands_of_a_matrix_product_are_read_in_place():
    width = SERVER.microtile(tilewright.dtypes.float32)[1]
    for function, layout in ((product_kernel(width), "panels"), (product_kernel(0), "rows")):
        kernel = lowered(function, SERVER)
        calls = re.findall(r'call void @"?dot\.[^(]*', instance(kernel))
        assert len(calls) == 1 and f".{layout}." in calls[0]
        assert not [remark for remark in kernel.remarks if "operand" in remark.message]


@pytest.mark.parametrize("name, instruction", [("bf16", "tdpbf16ps"), ("f16", None), ("f32", None)])
def test_products_of_narrow_types_are_done_in_tile_registers(name, instruction):
    types = dict.fromkeys("abc", f"*{name}") | dict.fromkeys("rows columns depth a_row b_depth c_row".split(), "i32")
    fixed = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "WIDTH": 0, "a_depth": 1, "b_column": 1}
    text = lowered(traced(matmul, types | {"extra": ()}, fixed, ("a", "b", "c")), SERVER).text
    assert "llvm.x86.tile" not in text if instruction is None else f"llvm.x86.{instruction}" in text


def test_carried_accumulator_is_updated_in_place():
    function = product_kernel(0)
    kernel = lowered(function, SERVER)
    loop = instance(kernel).split("for.body.0:")[1].split("for.exit.0:")[0]
    assert "dot." in loop and "loop.body" not in loop  # nothing is copied in the loop


def test_operand_that_is_computed_is_remarked():
    types = {"q": "*f32", "k": "*f32", "v": "*f32", "out": "*f32", "queries": "i32", "keys": "i32"}
    function = traced(attention, types, {"D": 32, "S": 32, "T": 16, "CAUSAL": False}, ("q", "k", "v", "out"))
    messages = [remark.message for remark in lowered(function, SERVER).remarks]
    assert any("left operand is written to a buffer" in message for message in messages)


# Remarks, errors, names ----------------------------------------------------------------------------


@pytest.mark.parametrize(("promise", "overlap"), [(False, "careful"), (False, "refuse"), (True, "careful")])
def test_copies_for_fear_of_overlap_are_remarked(promise, overlap):
    """There are none where a launch finds that what is stored between a load and its use lies elsewhere."""
    pointers = ("x", "scale", "bias", "out", "mean_out")
    types = {name: "*f32" for name in pointers} | {"rows": "i32", "columns": "i32"}
    function = traced(moments, types, {"R": 4, "C": 128}, pointers if promise else ())
    kernel = lower(function, SERVER, CPUOptions(overlap=overlap))
    copies = [remark for remark in kernel.remarks if "copied first" in remark.message]
    assert bool(copies) == (overlap == "careful" and not promise)
    assert kernel.refuses == (overlap == "refuse")
    assert all(remark.file.endswith("test_cpu_lowering_blocks.py") and remark.line for remark in copies)


@tilewright.jit
def turned_pairs(x, SHIFT: tl.constexpr):
    near = x + tl.arange(0, 8)[:, None] * 64 + tl.arange(0, 32)[None, :]
    left, right = tl.load(near), tl.load(near + SHIFT)
    tl.store(near, left - right)
    tl.store(near + SHIFT, left + right)


@pytest.mark.parametrize(("shift", "copies"), [(32, 1), (16, 2), (8, 2)])
def test_halves_of_rows_never_meet(shift, copies):
    """In place: the first half is stored before it is used again, the second is not; parts that overlap are copied."""
    function = traced(turned_pairs, {"x": "*f32"}, {"SHIFT": shift})
    found = [remark for remark in lowered(function, SERVER).remarks if "copied first" in remark.message]
    assert len(found) == copies
    check(function, [draw((8, 64))])


@tilewright.jit
def turned_halves(x, out):
    near = tl.arange(0, 8)[:, None] * 64 + tl.arange(0, 32)[None, :]
    left, right = tl.load(x + near), tl.load(x + near + 32)
    tl.store(out + near, left - right)
    tl.store(out + near + 32, left + right)


def test_halves_of_two_arrays_are_not_copied_where_a_launch_finds_them_apart():
    function = traced(turned_halves, {"x": "*f32", "out": "*f32"}, {})
    kernel = lowered(function, SERVER)
    assert not [remark for remark in kernel.remarks if "copied first" in remark.message]
    check(function, [draw((8, 64)), draw((8, 64))])


def combination(body):
    return parse_function(f"""
    kernel combine(%x: *f32, %out: *f32) {{
      %i = arange {{start = 0, end = 64}} : <64xi32>
      %p = splat %x {{shape = [64]}} : <64x*f32>
      %q = offset %p, %i : <64x*f32>
      %b = load %q : <64xf32>
      %r = reduce %b {{axis = 0}} : f32 {{(%l: f32, %s: f32)
        {body}
        yield %w
      }}
      store %out, %r
      return
    }}
    """)


def test_combination_with_a_loop_is_refused_with_its_line():
    body = """%one = constant 1 : i32
        %w = for %one, %one, %one, %l : f32 {(%n: i32, %c: f32)
          %d = add %c, %s : f32
          yield %d
        } loc("user.py":7:3)"""
    with pytest.raises(CompilationError, match="user.py:7.*for"):
        CPUKernelLowering(combination(body), SERVER, Module(), "kernel").run()


def test_combination_with_a_branch_selects():
    body = """%c = compare %l, %s {predicate = "gt"} : i1
        %w = if %c : f32 {
          yield %l
        } {
          yield %s
        }"""
    check(combination(body), [draw(64), np.zeros(1, np.float32)])


def test_names_tell_kernels_and_targets_apart():
    kernels = [lowered(add_kernel(), SERVER), lowered(add_kernel(), CPUTarget.named("x86-64-v3")),
               lowered(add_kernel(block=512), SERVER)]  # fmt: skip
    assert len({kernel.symbol for kernel in kernels}) == 3
    assert lowered(add_kernel(), SERVER) == kernels[0]


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("name", ["x86-64", "x86-64-v3", "znver5", "aarch64", "apple-m1"])
@pytest.mark.parametrize("text", ["f32", "bf16", "f16", "i8"])
def test_compiles_for_other_cpus(name, text):
    target = CPUTarget.named(name)
    function = traced(chain, {"x": f"*{text}", "y": f"*{text}", "out": f"*{text}", "n": "i32"}, {"BLOCK": 100})
    code = assemble(lowered(function, target).text, target, keep_texts=True)
    assert code.image and not re.search(r"__trunc\w*bf2", code.assembly)


def test_long_chains_of_operations_compile():
    lines = "".join(f"  %v{n + 1} = add %v{n}, %v{n // 2} : <64xf32>\n" for n in range(1500))
    source = f"""kernel long(%x: *f32) {{
      %i = arange {{start = 0, end = 64}} : <64xi32>
      %b = splat %x {{shape = [64]}} : <64x*f32>
      %p = offset %b, %i : <64x*f32>
      %v0 = load %p : <64xf32>
    {lines}
      store %p, %v1500
      return
    }}"""
    assert lowered(parse_function(source), SERVER).text.count("fadd") >= 1500


@pytest.mark.parametrize(
    "kind,lower,upper,step", [("i8", 100, 127, 20), ("u8", 200, 255, 30), ("u32", 0, 4000000000, 1000000000)]
)
def test_loops_near_the_end_of_their_type(kind, lower, upper, step):
    source = f"""kernel count(%out: *i32) {{
      %a = constant {lower} : {kind}
      %b = constant {upper} : {kind}
      %c = constant {step} : {kind}
      %zero = constant 0 : i32
      %one = constant 1 : i32
      %n = for %a, %b, %c, %zero : i32 {{(%i: {kind}, %s: i32)
        %t = add %s, %one : i32
        yield %t
      }}
      store %out, %n
      return
    }}"""
    check(source, [np.zeros(1, np.int32)])


# Analyses ------------------------------------------------------------------------------------------


def facts_of(body, name):
    """The steps of a value of a small kernel."""
    function = parse_function(f"kernel k(%p: *f32, %n: i32 {{divisibility = 16}}) {{\n{body}\n  return\n}}")
    found = {value.name: value for operation in function.walk() for value in operation.results}
    return AffineAnalysis(function).all_axes(found[name])


INDEX = "  %i = arange {start = 0, end = 128} : <128xi32>\n"
FARTHER = """%program = program_id {axis = 0} : i32
  %block = constant 128 : i32
  %first = multiply %program, %block : i32
  %begin = splat %first {shape = [128]} : <128xi32>
  %j = add %begin, %i : <128xi32>
"""


@pytest.mark.parametrize(
    "line,step,run",
    [
        ("%x = add %i, %i : <128xi32>", 2, 0),
        ("%c = constant 32 : <128xi32>\n  %x = divide %i, %c : <128xi32>", 0, 32),
        ("%c = constant 32 : <128xi32>\n  %x = remainder %i, %c : <128xi32>", 1, 32),
        ("%c = splat %n {shape = [128]} : <128xi32>\n  %x = add %c, %i : <128xi32>", 1, 0),
        ("%c = splat %n {shape = [128]} : <128xi32>\n  %x = multiply %c, %i : <128xi32>", None, 0),
        ("%b = splat %p {shape = [128]} : <128x*f32>\n  %x = offset %b, %i : <128x*f32>", 1, 0),
        (f"{FARTHER}  %c = constant 5632 : <128xi32>\n  %x = remainder %j, %c : <128xi32>", 1, 128),
        (f"{FARTHER}  %c = constant 96 : <128xi32>\n  %x = remainder %j, %c : <128xi32>", 1, 32),
        (f"{FARTHER}  %c = constant 96 : <128xi32>\n  %x = divide %j, %c : <128xi32>", 0, 32),
        ("%c = splat %n {shape = [128]} : <128xi32>\n  %x = remainder %i, %c : <128xi32>", 1, 16),
        ("%c = splat %n {shape = [128]} : <128xi32>\n  %x = divide %i, %c : <128xi32>", 0, 16),
    ],
)
def test_steps_of_indices(line, step, run):
    (fact,) = facts_of(f"{INDEX}  {line}", "x")
    assert (fact.step, fact.run, fact.uniform) == (step, run, True)


def test_numbers_that_loops_add_to():
    body = (
        INDEX
        + """  %zero = constant 0 : i32
  %step = constant 64 : i32
  %last = for %zero, %n, %step, %zero : i32 {(%index: i32, %sum: i32)
    %where = splat %sum {shape = [128]} : <128xi32>
    %place = add %where, %i : <128xi32>
    %group = constant 96 : <128xi32>
    %x = remainder %place, %group : <128xi32>
    %next = add %sum, %step : i32
    yield %next
  }"""
    )
    (fact,) = facts_of(body, "x")
    assert (fact.step, fact.run) == (1, 32)


def test_steps_after_reshape_and_permute():
    body = INDEX + (
        "  %r = reshape %i {shape = [4, 32]} : <4x32xi32>\n  %x = permute %r {order = [1, 0]} : <32x4xi32>\n"
        "  %y = reshape %x {shape = [128]} : <128xi32>"
    )
    assert [fact.step for fact in facts_of(body, "r")] == [32, 1]
    assert [fact.step for fact in facts_of(body, "x")] == [1, 32]
    (fact,) = facts_of(body, "y")
    assert (fact.step, fact.run) == (32, 4)


def test_values_are_stored_when_computing_again_costs_more():
    body = INDEX + (
        "  %b = splat %p {shape = [128]} : <128x*f32>\n  %q = offset %b, %i : <128x*f32>\n"
        "  %v = load %q : <128xf32>\n  %cheap = negate %v : <128xf32>\n  %dear = exp %v : <128xf32>\n"
        "  %s = add %cheap, %dear : <128xf32>\n  store %q, %s\n  %t = subtract %cheap, %dear : <128xf32>\n"
        "  store %q, %t\n"
    )
    function = parse_function(f"kernel k(%p: *f32) {{\n{body}\n  return\n}}")
    stored = {value.name for value in Placement(function, AffineAnalysis(function), SERVER).stored}
    assert "dear" in stored and "s" not in stored


@pytest.mark.parametrize("element", [tilewright.dtypes.int8, tilewright.dtypes.float32, tilewright.dtypes.int64])
def test_rows_of_buffers_hold_whole_vectors(element):
    storage = Storage.for_block(element, (2, 20))
    assert storage.strides[0] % 16 == 0 and storage.bytes == 2 * storage.strides[0] * element.itemsize


def test_buffers_share_memory_when_their_lives_do_not_meet():
    from tilewright.dtypes import float32

    plan = StoragePlan(loops=[(4, 8)])
    lives = [(0, 1), (2, 3), (0, 5), (5, 6), (7, 8)]
    for first, last in lives:
        storage = plan.add(Storage.for_block(float32, (64,)))
        storage.touch(first)
        storage.touch(last)
    size = plan.assign()
    first, second, through, inner, _ = plan.storages
    assert first.offset == second.offset and through.last == 8  # it lives to the end of the loop
    assert inner.offset != through.offset and size == 2 * 256
