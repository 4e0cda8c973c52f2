"""Plain kernels compile for every architecture; rows come out as wide accesses, in registers, with few barriers."""

# mypy: ignore-errors

from __future__ import annotations

import functools
import importlib.util
import math
import re
from pathlib import Path

import pytest

import tilewright
import tilewright.language as tl
from tests.compile.test_library import images, transformer
from tests.host.tactics_support import parameter_types
from tilewright.errors import CompilationError
from tilewright.graph.passes.fuse import fuse
from tilewright.ir.core import Parameter
from tilewright.ir.parser import parse_function
from tilewright.library.select import candidates, choose
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.nvidia.assemble import AssemblyOptions, assemble, to_ptx
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import ARCHITECTURES, NvidiaTarget

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    found = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def built(function, architecture="sm_90a", warps=4):
    """The lowered kernel and its assembly."""
    target = NvidiaTarget.named(architecture)
    lowered = lower(function, target, NvidiaOptions.of_launch({"num_warps": warps}))
    return lowered, assemble(lowered.text, lowered.symbol, target, AssemblyOptions())


def traced(kernel, types, constants):
    """Pointers are aligned to 16 bytes; numbers are multiples of 16."""
    parameters = {name: Parameter(name, 16, str(kind).startswith("*")) for name, kind in types.items() if kind != "f32"}
    return kernel.trace(types, constants, parameters)


def pointers(text, *names):
    return {name: f"*{text}" for name in names}


def integers(*names):
    return dict.fromkeys(names, "i32")


@functools.cache
def example_kernels():
    """The traced kernels of the examples, by name."""
    return [(kernel.name, traced(kernel, types, constants)) for kernel, types, constants in _example_kernels()]


def _example_kernels():
    norm, matmul = example("layer_norm"), example("matmul")
    yield example("vector_add").add, {**pointers("f32", "x", "y", "out"), "n": "i32"}, {"BLOCK": 1024}
    rows = integers("rows", "columns", "row_stride")
    yield example("softmax").softmax, {**pointers("f32", "x", "out"), **rows}, {"BLOCK": 1024}
    types = {**pointers("f32", "x", "out"), "n": "i32", "probability": "f32", "seed": "i32"}
    yield example("dropout").dropout, types, {"BLOCK": 1024}
    types = pointers("f32", "x", "weight", "bias", "out", "means", "scales")
    yield norm.forward, {**types, "columns": "i32", "epsilon": "f32"}, {"BLOCK": 1024}
    names = ("x", "weight", "grad_out", "means", "scales", "grad_x", "grad_weight", "grad_bias")
    types = {**pointers("f32", *names), "locks": "*i32", **integers("columns", "groups")}
    yield norm.backward, types, {"BLOCK": 1024}
    sizes = integers("m", "n", "k", "stride_a", "stride_b", "stride_c")
    blocks = {"ACTIVATION": matmul.leaky_relu, "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP": 4}
    for kind in ("f32", "f16"):
        yield matmul.matmul, {**pointers(kind, "a", "b", "c"), **sizes}, blocks
    types = {**pointers("f16", "q", "k", "v", "out"), "rows": "i32", "scale": "f32"}
    constants = {"CAUSAL": True, "HEAD": 64, "BLOCK_Q": 64, "BLOCK_K": 64}
    yield example("attention").attention, types, constants


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_example_compiles(architecture):
    for kernel, function in example_kernels():
        _, assembly = built(function, architecture)
        # No arrays on the stack; a register or two may be put there where the assembler trades them for occupancy.
        assert assembly.resources.stack <= 16, kernel
        assert assembly.cubin


@functools.cache
def library_kernels(make):
    """The kernels that a graph takes on a CPU, each in the smallest of its blocks: CPUs have larger ones than GPUs."""
    graph, cpu, smallest = make(), CPUTarget.named("x86-64-v3"), {}
    for group in fuse(graph).groups:
        stages = choose(candidates(group, graph, cpu)).stages if group.kind != "view" else ()
        for call in (call for stage in stages for call in stage.calls):
            blocks = {key: value for key, value in call.constants.items() if "BLOCK" in key and isinstance(value, int)}
            others = [(key, value) for key, value in call.constants.items() if key not in blocks]
            key = call.kernel, repr(group), str(others)
            area = math.prod(blocks.values())
            if key not in smallest or area < smallest[key][0]:
                smallest[key] = area, call
    return [call.kernel.trace(parameter_types(call), call.constants) for _, call in smallest.values()]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(
    ("architecture", "make"),
    [(name, make) for name in ARCHITECTURES for make in (transformer, images)],
)
def test_every_kernel_of_the_library_compiles(architecture, make):
    """To PTX for all, which LLVM checks against the architecture; to machine code for the oldest and for Hopper."""
    for function in library_kernels(make):
        if architecture in ("sm_80", "sm_90a"):
            assert built(function, architecture)[1].cubin
        else:
            target = NvidiaTarget.named(architecture)
            assert ".entry" in to_ptx(lower(function, target, NvidiaOptions()).text, target)[0]


# Rows --------------------------------------------------------------------------------------------


@tilewright.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + c, mask=c < columns, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * columns + c, (e / tl.sum(e, axis=0)).to(tl.bfloat16), mask=c < columns)


@tilewright.jit
def layer_norm(x, w, b, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    m = c < columns
    v = tl.load(x + row * columns + c, mask=m, other=0.0).to(tl.float32)
    d = tl.where(m, v - tl.sum(v, axis=0) / columns, 0.0)
    r = tl.rsqrt(tl.sum(d * d, axis=0) / columns + 1e-5)
    y = d * r * tl.load(w + c, mask=m).to(tl.float32) + tl.load(b + c, mask=m).to(tl.float32)
    tl.store(out + row * columns + c, y.to(tl.bfloat16), mask=m)


@tilewright.jit
def gelu(x, b, res, out, columns, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n).to(tl.float32) + tl.load(b + i % columns).to(tl.float32)
    y = 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476)) * tl.load(res + i, mask=i < n).to(tl.float32)
    tl.store(out + i, y.to(tl.bfloat16), mask=i < n)


@tilewright.jit
def column_sums(x, out, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, rows, ROWS):
        r = start + tl.arange(0, ROWS)
        block = tl.load(
            x + r[:, None] * columns + c[None, :], mask=(r[:, None] < rows) & (c[None, :] < columns), other=0
        )
        total += block.to(tl.float32)
    tl.store(out + c, tl.sum(total, axis=0), mask=c < columns)


def count(pattern, text):
    return len(re.findall(pattern, text))


ROWS = {
    "softmax": (softmax, {**pointers("bf16", "x", "out"), "columns": "i32"}, 1, 1, 2),
    "layer norm": (layer_norm, {**pointers("bf16", "x", "w", "b", "out"), "columns": "i32"}, 3, 1, 2),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("block", "warps"), [(8192, 8), (8192, 16), (16384, 16), (16384, 8), (1024, 4)])
def test_rows_pass_memory_once_in_wide_accesses(name, block, warps):
    kernel, types, inputs, outputs, barriers = ROWS[name]
    _, assembly = built(traced(kernel, types, {"BLOCK": block}), warps=warps)
    vectors = block // (32 * warps * 8)
    loads, stores = count(r"\bld\.global\S*", assembly.ptx), count(r"\bst\.global\S*", assembly.ptx)
    assert count(r"\bld\.global\S*\.v4\.b32", assembly.ptx) == loads == inputs * vectors
    assert count(r"\bst\.global\S*\.v4\.b32", assembly.ptx) == stores == outputs * vectors
    assert count(r"\b(bar|barrier)\.(sync|cta)", assembly.ptx) == barriers
    # Where rows are wide, more CTAs may be worth one register on the stack.
    assert assembly.resources.spill_stores == assembly.resources.spill_loads <= (4 if block // warps > 1024 else 0)
    # All of a row is asked for before any of it is used.
    first_use = assembly.ptx.index("shfl.sync")
    assert count(r"\bld\.global", assembly.ptx[:first_use]) >= vectors


def test_elementwise_kernels_use_wide_accesses():
    types = {**pointers("bf16", "x", "b", "res", "out"), **integers("columns", "n")}
    _, assembly = built(traced(gelu, types, {"BLOCK": 2048}))
    assert count(r"\bld\.global\S*", assembly.ptx) == count(r"\bld\.global\S*\.v4\.b32", assembly.ptx) == 6
    assert count(r"\bst\.global\S*\.v4\.b32", assembly.ptx) == 2


def test_column_sums_read_vectors_and_exchange_once():
    types = {**pointers("bf16", "x"), "out": "*f32", **integers("rows", "columns")}
    _, assembly = built(traced(column_sums, types, {"ROWS": 32, "BLOCK": 256}))
    loads = count(r"\bld\.global\S*", assembly.ptx)
    assert loads == count(r"\bld\.global\S*\.v4\.b32", assembly.ptx)
    assert count(r"\b(bar|barrier)\.(sync|cta)", assembly.ptx) <= 2


# Instructions ------------------------------------------------------------------------------------


@tilewright.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(x, y, input_precision=PRECISION))


FORMS = [
    ("f16", "f32", "tf32", "sm_80", r"m16n8k16\.row\.col\.f32\.f16", 32),
    ("bf16", "f32", "tf32", "sm_80", r"m16n8k16\.row\.col\.f32\.bf16", 32),
    ("f32", "f32", "tf32", "sm_80", r"m16n8k8\.row\.col\.f32\.tf32", 64),
    ("f32", "f32", "tf32x3", "sm_86", r"m16n8k8\.row\.col\.f32\.tf32", 192),
    ("f32", "f32", "bf16x6", "sm_90a", r"m16n8k16\.row\.col\.f32\.bf16", 192),
    ("f32", "f32", "ieee", "sm_90a", r"mma\.sync", 0),
    ("f64", "f64", "ieee", "sm_80", r"m8n8k4\.row\.col\.f64\.f64", 256),
    ("f64", "f64", "ieee", "sm_90a", r"m16n8k8\.row\.col\.f64\.f64", 64),
    ("i8", "i32", "tf32", "sm_120", r"m16n8k32\.row\.col\.s32\.s8\.s8", 16),
    ("f8e4nv", "f32", "tf32", "sm_89", r"m16n8k32\.row\.col\.f32\.e4m3\.e4m3", 16),
    ("f8e4nv", "f32", "tf32", "sm_80", r"m16n8k16\.row\.col\.f32\.f16", 32),
]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(("kind", "result", "precision", "architecture", "form", "number"), FORMS)
def test_products_use_the_instruction_of_their_type(kind, result, precision, architecture, form, number):
    constants = {"M": 64, "N": 64, "K": 64, "PRECISION": precision}
    types = {**pointers(kind, "a", "b"), "c": f"*{result}"}
    _, assembly = built(traced(product, types, constants), architecture)
    assert count(form, assembly.ptx) == number
    assert assembly.resources.spill_stores == 0


@tilewright.jit
def polynomial(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i) * tl.load(y + i) + 1.5
    tl.store(out + i, v * v + v)


@pytest.mark.parametrize(("kind", "architecture"), [("f16", "sm_80"), ("f16", "sm_90a"), ("bf16", "sm_90a")])
def test_sums_and_products_of_16_bits_are_done_in_pairs(kind, architecture):
    _, assembly = built(traced(polynomial, pointers(kind, "x", "y", "out"), {"N": 1024}), architecture)
    forms = re.findall(r"\b(add|sub|mul|fma)\.(\S*16\S*)", assembly.ptx)
    # Each is rounded for itself: nothing may be contracted.
    assert sorted(forms) == [("add", f"rn.{kind}x2")] * 8 + [("mul", f"rn.{kind}x2")] * 8
    assert count(r"\bcvt", assembly.ptx) == 0


def test_fp8_is_converted_in_hardware_where_there_is_any():
    source = """
    kernel convert(%x: *f32 {divisibility = 16}, %y: *f8e4nv {divisibility = 16}) {
      %i = arange {start = 0, end = 512} : <512xi32>
      %px = splat %x {shape = [512]} : <512x*f32>
      %qx = offset %px, %i : <512x*f32>
      %v = load %qx : <512xf32>
      %w = cast %v {dtype = f8e4nv} : <512xf8e4nv>
      %py = splat %y {shape = [512]} : <512x*f8e4nv>
      %qy = offset %py, %i : <512x*f8e4nv>
      store %qy, %w
      return
    }
    """
    for architecture, number in (("sm_80", 0), ("sm_89", 2)):
        _, assembly = built(parse_function(source), architecture)
        assert count(r"cvt\.rn\.satfinite\.e4m3x2\.f32", assembly.ptx) == number


@tilewright.jit
def product_and_sum(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(out + i, value * value + 3.0)


def test_products_are_rounded_by_themselves_where_the_launch_says_so():
    types = {"x": "*f32", "out": "*f32"}
    for given, wanted in ((None, 1), (True, 1), (False, 0)):
        options = {} if given is None else {"enable_fp_fusion": given}
        kernel = product_and_sum.compile(types, {"N": 128}, target="cuda:sm_90a", options=options)
        assert count(r"\bfma\.rn\.f32", kernel.dump("ptx")) == wanted
        assert count(r"\bmul\.rn\.f32", kernel.dump("ptx")) == 1 - wanted
        assert not kernel.ignored_options


@tilewright.jit
def product_less_itself(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    product = value * value
    tl.store(out + i, product - product)


@tilewright.jit
def product_and_its_negation(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    product = value * value
    tl.store(out + i, -product + product)


@tilewright.jit
def product_less_its_maximum(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    product = value * value
    tl.store(out + i, product - tl.max(product, 0))


@pytest.mark.parametrize("function", [product_less_itself, product_and_its_negation, product_less_its_maximum])
def test_a_product_with_several_uses_is_rounded_once(function):
    kernel = function.compile({"x": "*f32", "out": "*f32"}, {"N": 128}, target="cuda:sm_90a")
    assert count(r"\bfma\.rn\.f32", kernel.dump("ptx")) == 0
    assert count(r"\bmul\.rn\.f32", kernel.dump("ptx")) == 1  # which the assembler does not fuse
    assert count(r"\bsub(\.rn)?\.f32", kernel.dump("ptx")) == 1


@tilewright.jit
def sum_and_maximum(x, out):
    value = tl.load(x + tl.arange(0, 96))
    tl.store(out, tl.sum(value, 0))
    tl.store(out + 1, tl.max(value, 0))


def test_lanes_without_elements_exchange_neutral_ones():
    """One number for each step, without a flag."""
    kernel = sum_and_maximum.compile({"x": "*f32", "out": "*f32"}, {}, target="cuda:sm_90a", options={"num_warps": 1})
    assert count(r"\bshfl\.sync\.bfly", kernel.dump("ptx")) == 2 * 5


@tilewright.jit
def sums_of_integers(x, out):
    value = tl.load(x + tl.arange(0, 256))
    tl.store(out, tl.sum(value, 0))
    tl.store(out + 1, tl.max(value, 0))


def test_integers_of_all_lanes_are_combined_at_once():
    parameters = {"x": "*u32", "out": "*u32"}
    kernel = sums_of_integers.compile(parameters, {}, target="cuda:sm_90a", options={"num_warps": 1})
    assert re.findall(r"\bredux\.sync\.(\S+)", kernel.dump("ptx")) == ["add.s32", "max.u32"]


@tilewright.jit
def product_of(a, b):
    return a * b


@tilewright.jit
def larger_of(a, b):
    return tl.maximum(a, b)


@tilewright.jit
def combined(x, out, COMBINE: tl.constexpr):
    tl.store(out, tl.reduce(tl.load(x + tl.arange(0, 40)), 0, COMBINE))


@pytest.mark.parametrize("combine", [product_of, larger_of])
@pytest.mark.parametrize("kind", ["bf16", "fp8e5"])
def test_lanes_without_elements_of_floats_that_registers_hold_as_bits_have_flags(kind, combine):
    kernel = combined.compile({"x": f"*{kind}", "out": f"*{kind}"}, {"COMBINE": combine}, target="cuda:sm_90a")
    assert not re.search(r"select i1 \S+ i(8|16) \S+ i(8|16) \d", kernel.dump("llvm"))
    assert count(r"\bshfl\.sync\.bfly", kernel.dump("ptx")) > 5


@tilewright.jit
def whole_numbers(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@pytest.mark.parametrize(
    ("source", "target", "form", "corrections"),
    [("f32", "i32", "s32.f32", 0), ("f32", "u32", "u32.f32", 0), ("f32", "i64", "s64.f32", 2),
     ("f64", "u32", "u32.f64", 2)],
)  # fmt: skip
def test_floats_to_integers_by_the_instruction_that_saturates(source, target, form, corrections):
    types = {"x": f"*{source}", "out": f"*{target}"}
    _, assembly = built(traced(whole_numbers, types, {"N": 512}), "sm_90a")
    assert count(r"cvt\.rzi\." + re.escape(form), assembly.ptx) == 4
    # NaN to 0 takes a test and a choice where the instruction gives another number.
    assert count(r"\b(setp\.nan|selp\.b64|selp\.b32|min\.[su]32|max\.s32)", assembly.ptx) == 4 * corrections


@pytest.mark.parametrize(("target", "form"), [("i8", "s8"), ("u8", "u8")])
def test_two_floats_become_two_bytes_by_what_ptxas_makes_one_instruction(target, form):
    types = {"x": "*f32", "out": f"*{target}"}
    _, assembly = built(traced(whole_numbers, types, {"N": 512}), "sm_90a")
    assert count(rf"cvt\.pack\.sat\.{form}\.s32\.b32", assembly.ptx) == 2
    assert count(r"cvt\.rzi\.s32\.f32", assembly.ptx) == 4
    assert not count(r"\b(setp\.nan|selp\.b32|min\.[su]32|max\.s32)", assembly.ptx)


@tilewright.jit
def accumulate(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(out + i, tl.load(x + i), sem="relaxed")


@pytest.mark.parametrize(
    ("kind", "architecture", "form", "number"),
    [("f32", "sm_90a", r"red\.relaxed\.gpu\.global\.v4\.add\.f32", 1), ("f32", "sm_80", r"global\.add\.f32", 4),
     ("f16", "sm_90a", r"\.v4\.add\.noftz\.f16x2", 1), ("f16", "sm_80", r"global\.add\.noftz\.f16x2", 4)],
)  # fmt: skip
def test_sums_in_memory_are_vectors_where_the_hardware_has_them(kind, architecture, form, number):
    size = 512 if kind == "f32" else 1024
    _, assembly = built(traced(accumulate, pointers(kind, "x", "out"), {"N": size}), architecture)
    assert count(form, assembly.ptx) == number


@tilewright.jit
def policies(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i, cache_modifier=".cg") + tl.load(x + N + i, eviction_policy="evict_first")
    tl.store(out + i, v + tl.load(x + 2 * N + i, volatile=True), cache_modifier=".cs")


def test_cache_policies_reach_the_instructions():
    _, assembly = built(traced(policies, pointers("f32", "x", "out"), {"N": 512}))
    for form in (
        r"ld\.global\.cg\.v4",
        r"createpolicy\.fractional\.L2::evict_first\.b64 policy, 1\.0;\s+"
        r"ld\.global\.L1::evict_first\.L2::cache_hint\.v4",
        r"ld\.volatile\.global\.v4",
        r"st\.global\.cs\.v4",
    ):
        assert count(form, assembly.ptx) == 1, form


@tilewright.jit
def watch(flag, out):
    while tl.load(flag, volatile=True) == 0:
        pass
    tl.store(out, tl.load(flag + 1))


def test_a_flag_is_watched_by_one_thread_for_all():
    """Threads that loaded for themselves might leave the loop at different times."""
    lowered, assembly = built(traced(watch, {"flag": "*i32", "out": "*i32"}, {}))
    assert count(r"@%p\d+ ld\.volatile\.global", assembly.ptx) == 1 and lowered.shared_bytes > 0
    assert count(r"\bbar\.sync", assembly.ptx) >= 1


def test_a_wrong_number_of_warps_is_reported():
    with pytest.raises(CompilationError, match="num_warps is 1, 2, 4"):
        built(traced(accumulate, pointers("f32", "x", "out"), {"N": 64}), warps=3)


def test_rounding_to_bytes_is_one_instruction():
    """A whole number that becomes an integer of 8 bits is rounded, and kept within its range, by its conversion."""

    @tilewright.jit
    def rounded(x, out, BLOCK: tl.constexpr):
        index = tl.arange(0, BLOCK)
        value = tl.load(x + index)
        tl.store(out + index, tl.math.rint(value).to(tl.uint8))
        tl.store(out + BLOCK + index, value.to(tl.int8).to(tl.uint8, bitcast=True))

    _, assembly = built(traced(rounded, {"x": "*f32", "out": "*u8"}, {"BLOCK": 128}))
    assert count(r"\bcvt\.rni\.sat\.u8\.f32", assembly.ptx) == count(r"\bcvt\.rzi\.sat\.s8\.f32", assembly.ptx) == 1
    assert not count(r"\bcvt\.rni\.f32\.f32", assembly.ptx)
