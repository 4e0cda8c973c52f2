"""The explicit operations as text: they print, parse and verify, and break no rule silently."""

from __future__ import annotations

import pytest

from tilewright.errors import InvalidIRError
from tilewright.ir.builder import Builder
from tilewright.ir.core import Region, SSAValue
from tilewright.ir.explicit import OPCODES
from tilewright.ir.parser import parse_function, parse_type
from tilewright.ir.printer import print_function
from tilewright.ir.verifier import verify
from tilewright.passes.pipeline import simplify

KERNEL = """\
kernel product(%a: tensormap<128x64xbf16>, %b: tensormap<64x64xbf16>, %c: tensormap<64x64xbf16>, %w: *bf16, %n: i32) {
  %ring = shared_alloc {shape = [4, 128, 64], dtype = bf16, swizzle = 128} : shared<4x128x64xbf16,128>
  %weights = shared_alloc {shape = [4, 64, 64], dtype = bf16, swizzle = 128} : shared<4x64x64xbf16,128>
  %out = shared_alloc %ring {shape = [2, 64, 64], dtype = bf16, swizzle = 128} : shared<2x64x64xbf16,128>
  %full = barrier_alloc {count = 4, arrivals = 1} : barriers<4>
  %empty = barrier_alloc {count = 4, arrivals = 8} : barriers<4>
  %bytes = shared_alloc {shape = [2, 32], dtype = u8} : shared<2x32xu8,0>
  %0 = constant 0 : i32
  %mask = constant 3 : i16
  grid_launch_dependents
  warp_roles {warps = [4, 4], copies = [1, 2], registers = [40, 232], elected = [1, 0]} {(%copy: i32)
    %1 = barrier_index %empty, %0 : barrier
    barrier_wait %1, %0
    %2 = barrier_index %full, %0 : barrier
    barrier_expect %2 {bytes = 24576}
    %3 = shared_index %ring, %0 : shared<128x64xbf16,128>
    tma_load %a, %n, %0, %3, %2 {eviction = "evict_first"}
    %4 = shared_index %weights, %0 : shared<64x64xbf16,128>
    tma_load %b, %n, %0, %4, %2, %mask
    tma_prefetch %b, %n, %0, %4
    prefetch %w, %n
    grid_wait
    yield
  } {(%copy_1: i32)
    %5 = wgmma_start {shape = [64, 64], dtype = f32} : pending<64x64xf32>
    %6 = barrier_index %full, %0 : barrier
    barrier_wait %6, %0
    %7 = shared_index %ring, %0 : shared<128x64xbf16,128>
    %8 = shared_slice %7, %0 {axis = 0, extent = 64} : shared<64x64xbf16,128>
    %9 = shared_index %weights, %0 : shared<64x64xbf16,128>
    %10 = shared_transpose %9 : shared<64x64xbf16,128,t>
    %keep = constant false : i1
    %11 = wgmma %8, %10, %5, %keep : pending<64x64xf32>
    %12 = wgmma_wait %11 : <64x64xf32>
    %13 = barrier_index %empty, %0 : barrier
    barrier_arrive %13, %0
    %whole = block_slice %12 {axis = 1, start = 0, extent = 64} : <64x64xf32>
    %14 = cast %whole {dtype = bf16} : <64x64xbf16>
    %15 = shared_index %out, %copy_1 : shared<64x64xbf16,128>
    tma_wait {outstanding = 1, read = true}
    group_sync
    shared_store %15, %14
    fence_async
    group_sync
    tma_store %c, %n, %0, %15 {kind = "add"}
    tma_commit
    %16 = cluster_rank : i32
    %17 = shared_remote %15, %16 : shared<64x64xbf16,128,remote>
    %18 = shared_load %17 : <64x64xbf16>
    shared_wait {remote = true}
    %19 = compare %18, %14 {predicate = "gt"} : <64x64xi1>
    %20 = warp_any %19 : i1
    %21 = shared_index %bytes, %0 : shared<32xu8,0>
    %22 = shared_tile %21 {offset = 16, shape = [8], dtype = bf16} : shared<8xbf16,0>
    %23 = splat %w {shape = [8]} : <8x*bf16>
    copy_async %23, %22, %20
    copy_commit
    copy_wait {all = true}
    if %20 {
      named_arrive %0 {threads = 256}
      yield
    } {
      named_sync %0 {threads = 256}
      yield
    }
    cluster_arrive {relaxed = true}
    cluster_wait
    yield
  }
  return
}
"""


def test_every_operation_prints_parses_and_verifies():
    function = parse_function(KERNEL)
    verify(function)
    assert print_function(function) == KERNEL
    assert {operation.opcode for operation in function.walk()} >= OPCODES


def test_simplification_keeps_what_acts():
    function = simplify(parse_function(KERNEL))
    verify(function)
    left = [operation.opcode for operation in function.walk()]
    acts = "tma_load tma_store barrier_wait barrier_arrive barrier_expect wgmma wgmma_wait named_sync".split()
    before = [operation.opcode for operation in parse_function(KERNEL).walk()]
    assert all(left.count(opcode) == before.count(opcode) for opcode in acts)


def test_allocations_are_never_merged():
    text = """\
kernel two(%n: i32) {
  %0 = shared_alloc {shape = [64, 64], dtype = f16, swizzle = 128} : shared<64x64xf16,128>
  %1 = shared_alloc {shape = [64, 64], dtype = f16, swizzle = 128} : shared<64x64xf16,128>
  %2 = shared_alloc {shape = [64, 64], dtype = f16, swizzle = 128} : shared<64x64xf16,128>
  %3 = shared_load %0 : <64x64xf16>
  shared_store %1, %3
  return
}
"""
    assert print_function(simplify(parse_function(text))).count("shared_alloc") == 2


@pytest.mark.parametrize(
    "text", ["barrier", "barriers<3>", "shared<64xf32,0>", "shared<2x64x32xf32,128,t>", "shared<8x64xi8,64,remote>",
             "tensormap<1x64x64xf8e4nv>", "pending<64x8xi32>"],
)  # fmt: skip
def test_types_round_trip(text: str):
    assert str(parse_type(text)) == text


@pytest.mark.parametrize("text", ["shared<64x64xf32>", "pending<64x64xf32,128>", "barriers<x>", "tensormap<f32>"])
def test_malformed_types(text: str):
    with pytest.raises(InvalidIRError):
        parse_type(text)


@pytest.mark.parametrize(
    ("opcode", "types", "attributes", "reason"),
    [
        ("wgmma", ["shared<64x64xbf16,128>", "shared<64x64xf16,128>"], {}, "does not multiply"),
        ("wgmma", ["shared<64x64xbf16,128>", "shared<128x64xbf16,128>"], {}, "inner extents 64 and 128 differ"),
        ("wgmma", ["shared<64x128xi8,128>", "shared<128x64xi8,128>"], {}, "contiguous along the inner axis"),
        ("wgmma", ["shared<64x128xi8,128>", "shared<128x40xi8,128,t>"], {}, "multiple of 16"),
        ("wgmma", ["<32x64xbf16>", "shared<64x64xbf16,128>"], {}, "multiple of 64 rows"),
        ("wgmma", ["<64x64xbf16>", "shared<64x64xbf16,128>", "<64x64xbf16>"], {}, "the accumulator is"),
        ("add", ["pending<64x64xf32>", "pending<64x64xf32>"], {}, "takes numbers or pointers"),
        ("cast", ["pending<64x64xf32>"], {"dtype": "bf16"}, "takes numbers or pointers"),
        ("tma_load", ["tensormap<64x64xf16>", "i32", "i32", "shared<64x64xf16,128,t>", "barrier"], {}, "transposed"),
        ("tma_load", ["tensormap<64x64xf16>", "i32", "i32", "shared<32x64xf16,128>", "barrier"], {}, "not a tile of"),
        ("tma_load", ["tensormap<64x64xf16>", "i32", "shared<64x64xf16,128>", "barrier"], {}, "coordinate"),
        ("barrier_wait", ["barriers<2>", "i32"], {}, "choose one"),
        ("shared_store", ["shared<64x64xf16,128,remote>", "<64x64xf16>"], {}, "can only be loaded"),
        ("shared_slice", ["shared<64x64xf16,128>", "i32"], {"axis": 1, "extent": 32}, "no multiple of 64"),
        ("shared_alloc", [], {"shape": (64, 24), "dtype": "f16", "swizzle": 64}, "no multiple of the swizzle"),
        ("named_sync", ["i32"], {"threads": 1100}, "a CTA has 1 to 1024"),
    ],
)  # fmt: skip
def test_broken_rules(opcode: str, types: list[str], attributes: dict[str, object], reason: str):
    given = {name: parse_type(value).dtype if isinstance(value, str) else value for name, value in attributes.items()}
    with pytest.raises(InvalidIRError, match=reason):
        Builder(Region()).create(opcode, [SSAValue(parse_type(text)) for text in types], given)  # type: ignore[arg-type]


def test_a_leading_one_of_a_map_is_left_out():
    types = ["tensormap<1x64x64xf16>", "i32", "i32", "i32", "shared<64x64xf16,128>", "barrier"]
    Builder(Region()).create("tma_load", [SSAValue(parse_type(text)) for text in types])
