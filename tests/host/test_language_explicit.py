"""`tilewright.language.explicit` in kernels: what it traces to, and its errors at the user's line."""

# mypy: ignore-errors
# Kernels are tile language, which has types of its own.

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tests.host.language_support import Recorder, compile_error
from tilewright.errors import CompilationError, ExecutionError, LaunchError
from tilewright.ir.printer import print_function
from tilewright.ir.verifier import verify

recorder = Recorder()
record = recorder.function

MAPS = {"a": "tensormap<64x64xbf16>", "n": "i32"}


@tilewright.jit
def rings(a: tx.tensor_map, n):
    ring = tx.make_ring(3, 4)
    first = tx.consumer_start(3)
    last = tx.producer_start(3)
    for _ in range(n):
        ring.wait_full(first)
        ring.release(first)
        first = first.next()
        ring.empty[last.stage].wait(last.parity)
        last = last.next()
    single = tx.ring_at(n, 1)
    power = tx.ring_at(n, 4)
    other = tx.ring_at(n, 3)
    tx.named_sync(single.stage + power.stage + other.stage + 1, 128)
    record(first.stages, ring.full.count, a.block_shape, a.dtype)


def test_rings_trace_to_their_arithmetic(golden):
    recorder.values.clear()
    function = rings.trace(MAPS, {})
    verify(function)
    golden(print_function(function))
    assert recorder.values == [3, 3, (64, 64), tl.bfloat16]


@tilewright.jit
def views(a: tx.tensor_map, n):
    ring = tx.shared((2, 128, 64), tl.float16, swizzle=128)
    tile = ring[n]
    part = tile.slice(64, 64)
    record(ring.shape, tile.shape, tile.bytes, part.shape, part.T.shape, tile.T.slice(64, 64, 1).shape, tile.dtype)
    record(part.load().shape, tx.block_slice(part.load(), 1, 8, 16).shape, part.remote(1).load().dtype)
    product = tx.wgmma(part, tile.T)
    record(product.shape, product.dtype)


def test_views_know_their_shapes():
    recorder.values.clear()
    verify(views.trace(MAPS, {}))
    assert recorder.values == [
        (2, 128, 64), (128, 64), 16384, (64, 64), (64, 64), (64, 64), tl.float16,
        (64, 64), (64, 16), tl.float16, (64, 128), tl.float32,
    ]  # fmt: skip


@tilewright.jit
def carried(a: tx.tensor_map, n):
    tiles = tx.shared((2, 64, 64), tl.bfloat16, swizzle=128)
    tile = tiles[0]
    acc = tx.accumulator((64, 64), tl.float32)
    for k in range(n):
        acc = tx.wgmma(tile, tile.T, acc, keep=k > 0)
        if k % 2 == 0:
            tile = tiles[1]
        else:
            tile = tiles[0]
    tile.store(tx.wgmma_wait(acc))


def test_loops_and_branches_carry_tiles_and_accumulators():
    function = carried.trace(MAPS, {})
    verify(function)
    (loop,) = [operation for operation in function.walk() if operation.opcode == "for"]
    assert {str(result.type) for result in loop.results} >= {"pending<64x64xf32>", "shared<64x64xbf16,128>"}


@tilewright.jit
def quiet(copy):
    pass


@tilewright.jit
def returning(copy):
    return copy


def plain(copy):
    pass


@tilewright.jit
def wrong(a: tx.tensor_map, n, CASE: tl.constexpr):
    tile = tx.shared((64, 64), tl.bfloat16, swizzle=128)
    full = tx.barriers(2, 1)
    if CASE == "use before wait":
        tl.store(n, tx.wgmma(tile, tile.T) + 1.0)
    elif CASE == "store before wait":
        tile.store(tx.wgmma(tile, tile.T))
    elif CASE == "two barriers":
        full.wait(0)
    elif CASE == "tile for barrier":
        tx.tma_load(a, (0, 0), tile, tile)
    elif CASE == "one coordinate":
        tx.tma_load(a, (n,), tile, full[0])
    elif CASE == "float coordinate":
        tx.tma_load(a, (n, 1.5), tile, full[0])
    elif CASE == "types":
        tx.wgmma(tile, tx.shared((64, 64), tl.float16, swizzle=128))
    elif CASE == "swizzle":
        tx.shared((64, 24), tl.float16, swizzle=128)
    elif CASE == "plain role":
        tx.warp_roles(tx.role(plain))
    elif CASE == "role that returns":
        tx.warp_roles(tx.role(returning))
    elif CASE == "no role":
        tx.warp_roles(quiet)
    elif CASE == "cluster":
        tx.cluster((4, 8))
    elif CASE == "any of a tile":
        tx.warp_any(tile)
    elif CASE == "run-time extent":
        tile.slice(0, n)
    elif CASE == "extents":
        tx.wgmma(tile, tx.shared((64, 128), tl.bfloat16, swizzle=128).T)
    elif CASE == "no swizzle":
        tx.wgmma(tile, tx.shared((64, 64), tl.bfloat16).T)
    elif CASE == "8 bits the other way":
        bytes_ = tx.shared((64, 64), tl.float8e4nv, swizzle=64)
        tx.wgmma(bytes_, bytes_)
    elif CASE == "ring for tile":
        tx.tma_load(a, (0, 0), tx.shared((2, 64, 64), tl.bfloat16), full[0])
    elif CASE == "kind":
        tx.tma_store(a, (0, 0), tile, kind="mul")
    elif CASE == "registers":
        tx.warp_roles(tx.role(quiet, registers=100))
    elif CASE == "accumulator of another shape":
        tx.wgmma(tile, tile.T, tx.accumulator((64, 32), tl.float32), keep=False)
    elif CASE == "accumulator of 16 bits":
        tx.accumulator((64, 64), tl.float16)
    elif CASE == "no barrier":
        tx.tma_load(source=a, coordinates=(0, 0), tile=tile)
    elif CASE == "barriers for barrier":
        tx.tma_load(source=a, coordinates=(0, 0), tile=tile, barrier=full)
    elif CASE == "byte count":
        tx.named_sync(1.5, 128)
    elif CASE == "dtype":
        tx.shared((64, 64), 16)
    elif CASE == "part":
        tx.block_slice(tile.load(), 1, 60, 8)
    elif CASE == "pointer":
        tx.prefetch(n, 64)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("use before wait", "'+' is not defined for pending<64x64xf32>"),
        ("store before wait", "a tensor or a number is needed here, got pending<64x64xf32>"),
        ("two barriers", "'barrier_array' has no field or method 'wait'"),
        ("tile for barrier", "the barrier must be a tx.barrier, got shared<64x64xbf16,128>"),
        ("one coordinate", "tensormap<64x64xbf16> needs 2 coordinates, got 1"),
        ("float coordinate", "a coordinate must be a scalar integer"),
        ("types", "wgmma does not multiply bf16 and f16"),
        ("swizzle", "rows of 48 bytes are no multiple of the swizzle, 128 bytes"),
        ("plain role", "a role needs a @tilewright.jit function"),
        ("role that returns", "the role 'returning' returns a value"),
        ("no role", "make them with tx.role(function, …)"),
        ("cluster", "a cluster has 1 to 16 CTAs"),
        ("any of a tile", "warp_any takes a block of conditions"),
        ("run-time extent", "extent"),
        ("use before wait", "help: the product is in flight: block = tx.wgmma_wait(accumulator)"),
        ("store before wait", "help: the product is in flight: block = tx.wgmma_wait(accumulator)"),
        ("swizzle", "help: a swizzle that divides the row, or rows of a multiple of 64 elements"),
        ("extents", "the inner extents 64 and 128 differ"),
        ("no swizzle", "wgmma reads swizzled tiles"),
        ("8 bits the other way", "help: a tile of [M, K], and for b the transposed view of a tile of [N, K]"),
        ("ring for tile", "help: one tile (of a ring: ring[stage])"),
        ("kind", "kind='mul' is not one of '', 'add', 'min'"),
        ("registers", "help: 104, or 0 for what there is"),
        ("accumulator of another shape", "help: tx.accumulator((64, 64), dtype)"),
        ("accumulator of 16 bits", "help: two axes, of tl.float32 for floats"),
        ("no barrier", "tx.tma_load: missing a required argument: 'barrier'"),
        ("barriers for barrier", "help: choose one of them: full[stage]"),
        ("byte count", "the barrier's number must be a scalar integer, got fp32"),
        ("dtype", "help: a tile or tensor map has one: a.dtype"),
        ("part", "60 .. 67 is outside axis 1"),
        ("pointer", "prefetch takes one pointer, got int32"),
    ],
)
def test_errors_stand_at_the_line(case: str, reason: str):
    text = compile_error(wrong, MAPS, CASE=case)
    assert reason in text and text.startswith("FILE:") and "\n  help: " in text, text


@tilewright.jit
def through_shared_memory(x):
    rows = tl.arange(0, 64)
    tile = tx.shared((64,), tl.float32)
    tile.store(tl.load(x + rows))
    tl.store(x + rows, tile.load())


@tilewright.jit
def without_roles(x, WARPS: tl.constexpr):
    index = tl.arange(0, 64)
    tile = tx.shared((64,), tl.float32)
    ready = tx.barriers(1, arrivals=WARPS)
    tile.store(tl.load(x + index))
    ready[0].arrive()
    ready[0].wait(0)
    tl.store(x + index, tl.flip(tile.load()))


def test_kernels_without_roles_have_the_warps_of_their_launch(assembler: object) -> None:
    with tilewright.settings.settings.scope(interpret=True):
        for warps in (4, 8, 1):
            x = np.arange(64, dtype=np.float32)
            without_roles[(1,)](x, WARPS=warps, num_warps=warps)
            np.testing.assert_array_equal(x, np.arange(64)[::-1])
        with pytest.raises(ExecutionError, match="arrival count mismatch"):
            without_roles[(1,)](x, WARPS=8)
    without_roles.compile({"x": "*f32"}, {"WARPS": 8}, target="cuda:sm_90a", options={"num_warps": 8})
    with pytest.raises(CompilationError, match="a phase ends after 8 arrivals, but there come: 'without_roles' 4"):
        without_roles.compile({"x": "*f32"}, {"WARPS": 8}, target="cuda:sm_90a")


@tilewright.jit
def halve(number, tile):
    half = tile.load() * 0.5
    tx.group_sync()
    tile.store(half)


@tilewright.jit
def rest(number):
    pass


@tilewright.jit
def after_roles(x):
    index = tl.arange(0, 64)
    tile = tx.shared((64,), tl.float32)
    ready = tx.barriers(1, arrivals=8)
    tile.store(tl.load(x + index))
    tx.group_sync()
    tx.warp_roles(tx.role(halve, (tile,)), tx.role(rest, ()))
    ready[0].arrive()
    ready[0].wait(0)
    tl.store(x + index, tile.load())


def test_after_roles_all_their_warps_arrive(assembler: object) -> None:
    """The four warps of a launch that says nothing were counted there, and a correct kernel refused."""
    x = np.arange(64, dtype=np.float32)
    with tilewright.settings.settings.scope(interpret=True):
        after_roles[(1,)](x)
    np.testing.assert_array_equal(x, np.arange(64) * 0.5)
    after_roles.compile({"x": "*f32"}, {}, target="cuda:sm_90a")


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "cuda:sm_100"])
def test_other_machines_have_no_explicit_operations(target: str):
    with pytest.raises(CompilationError, match="shared_alloc is an explicit operation of sm_90a, which") as caught:
        through_shared_memory.compile({"x": "*f32"}, {}, target=target)
    assert "| tile = tx.shared" in str(caught.value) and "help: write the kernel with tl alone" in str(caught.value)


def test_a_tensor_map_needs_a_descriptor():
    with tilewright.settings.settings.scope(interpret=True), pytest.raises(LaunchError, match="TensorDescriptor"):
        carried[(1,)](3, 4)
    with pytest.raises(LaunchError, match="made of an array or a tensor, got str"):
        tilewright.TensorDescriptor.from_tensor("x", [4])
