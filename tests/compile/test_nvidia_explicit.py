"""Explicit kernels compile for sm_90a: no spill, no serialised product, and the instructions that were asked for."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest

from tests.explicit_cases import CASES, LARGE, Case, matmul, product, tensor_map
from tests.explicit_features import transpose
from tilewright.errors import CompilationError
from tilewright.ir.core import Function
from tilewright.ir.parser import parse_function
from tilewright.ir.verifier import verify
from tilewright.targets.nvidia.assemble import Assembly, AssemblyOptions
from tilewright.targets.nvidia.compile import assemble_kernel
from tilewright.targets.nvidia.lowered import LoweredKernel
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")


def compiled(case: Case) -> tuple[LoweredKernel, Assembly]:
    function = case.trace()
    verify(function)
    lowered = lower(function, TARGET, NvidiaOptions.of_launch(case.options))
    return lowered, assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", CASES)
def test_assembles_without_slow_code(name: str) -> None:
    lowered, assembly = compiled(CASES[name])
    assert not assembly.resources.stack and not assembly.remarks
    assert "ld.local" not in assembly.ptx and "st.local" not in assembly.ptx
    moved = [remark for remark in lowered.remarks if "changes its layout" in remark.message]
    assert not moved or name == "scratch of copies"


def test_memory_is_brought_near_by_one_thread() -> None:
    _, assembly = compiled(CASES["copy ahead"])
    assert assembly.ptx.count("cp.async.bulk.prefetch.L2.global") == 2
    assert assembly.ptx.count("cp.async.bulk.prefetch.tensor.2d.L2.global") == 1
    assert "bar.warp.sync" in assembly.ptx  # the lanes of its warp come together again


def main_loop(ptx: str) -> str:
    """The basic block with the first group of products, up to its branch."""
    blocks = re.split(r"\n(?=\$L)", ptx)
    return next(block for block in blocks if "wgmma.mma_async" in block)


def test_the_main_loop_of_a_persistent_product() -> None:
    """One wait for data, one group of four instructions, one group left in flight, one arrival: nothing else."""
    sizes = (4096, 4096, 4096)
    case = matmul("persistent", *sizes, LARGE, {"STAGES": 4, "GROUP": 8}, (132, 1, 1), sizes=sizes)
    lowered, assembly = compiled(case)
    assert lowered.warps == 12 and assembly.resources.registers == 168
    assert "setmaxnreg.dec.sync.aligned.u32 \t40" in assembly.ptx
    assert "setmaxnreg.inc.sync.aligned.u32 \t232" in assembly.ptx and ".minnctapersm 1" in assembly.ptx
    loop = main_loop(assembly.ptx)
    assert loop.count("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16") == 4
    assert loop.count("wgmma.fence") == loop.count("wgmma.commit_group") == 1
    assert "wgmma.wait_group.sync.aligned 1;" in loop
    instructions = [line for line in loop.splitlines() if line.startswith("\t") and "//" not in line]
    assert len(instructions) <= 26
    assert assembly.ptx.count("stmatrix.sync.aligned.m8n8.x4.shared.b16") == 16
    assert assembly.ptx.count("cvt.rn.bf16x2.f32") == 64  # pairs: no rounding of single numbers


def test_copies_of_a_role_have_scratch_and_barriers_of_their_own() -> None:
    lowered, assembly = compiled(CASES["scratch of copies"])
    assert lowered.warps == 7 and lowered.shared_bytes >= 3 * 64 * 32 * 4
    assert re.search(r"bar(rier)?\.sync\s+%r\d+, 64;", assembly.ptx)


def test_roles_share_out_warps_and_barriers() -> None:
    lowered, assembly = compiled(CASES["turns"])
    assert lowered.warps == 8 and lowered.dependent_launch and lowered.shared_bytes == 0
    assert "griddepcontrol.wait" in assembly.ptx and "vote.sync.any.pred" in assembly.ptx
    assert re.search(r"barrier\.sync\s+%r\d+, 256|bar\.sync\s+%r\d+, 256", assembly.ptx)


def test_clusters() -> None:
    lowered, assembly = compiled(CASES["multicast"])
    assert lowered.cluster == (2, 1, 1) and ".reqnctapercluster 2" in assembly.ptx
    assert "multicast::cluster" in assembly.ptx and "mapa.shared::cluster" in assembly.ptx
    assert "barrier.cluster.arrive.relaxed.aligned" in assembly.ptx  # makes the barriers known


def test_boxes_of_tensor_maps() -> None:
    """Rows wider than the swizzle are copied panel by panel, more than 256 rows in halves."""
    lowered, assembly = compiled(product("bf16", "bf16", 64, 96, 256))
    assert [(use.parameter, use.box, use.swizzle) for use in lowered.tensor_maps] == [
        (0, (64, 64), 128), (1, (96, 64), 128), (2, (64, 32), 128),
    ]  # fmt: skip
    assert assembly.ptx.count("cp.async.bulk.tensor.2d.shared::cluster") == 8
    types = {"a": tensor_map((512, 64)), "c": tensor_map((64, 512))}
    lowered = lower(transpose.trace(types, {"BY_LOAD": True}), TARGET, NvidiaOptions())
    assert [use.box for use in lowered.tensor_maps] == [(256, 64), (64, 64)]


def test_boxes_without_swizzle() -> None:
    """A row of more than 256 elements comes in parts, row by row."""
    body = """
  %zero = constant 0 : i32
  %one = shared_alloc {shape = [1000], dtype = f32, swizzle = 0} : shared<1000xf32,0>
  %two = shared_alloc {shape = [4, 320], dtype = bf16, swizzle = 0} : shared<4x320xbf16,0>
  %three = shared_alloc {shape = [2, 16, 64], dtype = bf16, swizzle = 0} : shared<2x16x64xbf16,0>
  tma_store %x, %zero, %one
  tma_store %y, %zero, %zero, %two
  tma_store %z, %zero, %zero, %zero, %three"""
    parameters = "%x: tensormap<1000xf32>, %y: tensormap<4x320xbf16>, %z: tensormap<2x16x64xbf16>"
    lowered = lower(text_of(body, parameters), TARGET, NvidiaOptions())
    assert [use.box for use in lowered.tensor_maps] == [(200,), (1, 160), (2, 16, 64)]
    assert lowered.text.count("s2g.tile.1d(ptr") == 5 + 1 and lowered.text.count("s2g.tile.2d(ptr") == 8 + 1


def test_bytes_move_sixteen_at_once() -> None:
    body = """
  %zero = constant 0 : i32
  %one = shared_alloc {shape = [64, 128], dtype = i8, swizzle = 128} : shared<64x128xi8,128>
  %two = shared_alloc {shape = [64, 128], dtype = i8, swizzle = 128} : shared<64x128xi8,128>
  %block = shared_load %one : <64x128xi8>
  shared_store %two, %block
  tma_store %x, %zero, %zero, %two"""
    lowered = lower(text_of(body, "%x: tensormap<64x128xi8>"), TARGET, NvidiaOptions())
    ptx = assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True)).ptx
    assert ptx.count("ld.shared.v4.b32") == ptx.count("st.shared.v4.b32") == 4


def test_single_elements_of_other_ctas_are_refused() -> None:
    body = """
  %zero = constant 0 : i32
  %one = shared_alloc {shape = [64, 64], dtype = bf16, swizzle = 128} : shared<64x64xbf16,128>
  %there = shared_remote %one, %zero : shared<64x64xbf16,128,remote>
  %turned = shared_transpose %there : shared<64x64xbf16,128,t,remote>
  %block = shared_load %turned : <64x64xbf16>
  shared_store %one, %block
  tma_store %x, %zero, %zero, %one"""
    with pytest.raises(CompilationError, match="words of 4 bytes"):
        lower(text_of(body), TARGET, NvidiaOptions())


@pytest.mark.parametrize("region", ["", "if %flag {", "for %zero, %rank, %rank {(%i: i32)"], ids=["flat", "if", "for"])
def test_ctas_leave_when_what_they_load_from_others_has_come(region: str) -> None:
    """Also warps that make no use of it, and arrive relaxed, in a region of its own too: the other CTA may end then."""
    leave = "  cluster_arrive {relaxed = true}\n  cluster_wait\n"
    end = "  yield\n  } {\n  yield\n  }" if "if" in region else "  yield\n  }"
    body = (
        """
  %rank = cluster_rank : i32
  %zero = constant 0 : i32
  %one = shared_alloc {shape = [64, 64], dtype = f32, swizzle = 0} : shared<64x64xf32,0>
  %there = shared_remote %one, %rank : shared<64x64xf32,0,remote>
  %block = shared_load %there : <64x64xf32>
  shared_wait {remote = true}
  %flag = compare %rank, %zero {predicate = "eq"} : i1
"""
        + (f"  {region}\n{leave}{end}" if region else leave)
        + """
  shared_store %one, %block
  tma_store %x, %zero, %zero, %one"""
    )
    parameters, options = "%x: tensormap<64x64xf32>", NvidiaOptions(cluster=(2, 1, 1))
    with pytest.raises(CompilationError, match="load overtaken: cluster_arrive does not wait for the load"):
        lower(text_of(body.replace("shared_wait {remote = true}", ""), parameters), TARGET, options)
    lowered = lower(text_of(body, parameters), TARGET, options)
    ptx = assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True)).ptx
    last = ptx.rindex("ld.shared::cluster")
    fence, arrival = ptx.index("fence.acq_rel.cta"), ptx.index("barrier.cluster.arrive.relaxed;")
    assert last < fence < arrival
    assert ptx[last:fence].count("xor.b32") == ptx.count("ld.shared::cluster") - 1


def text_of(body: str, parameters: str = "%x: tensormap<64x64xbf16>") -> Function:
    function = parse_function(f"kernel k({parameters}) {{\n{body}\n  return\n}}")
    verify(function)
    return function


def test_one_descriptor_has_one_form() -> None:
    body = """
  %zero = constant 0 : i32
  %one = shared_alloc {shape = [64, 64], dtype = bf16, swizzle = 128} : shared<64x64xbf16,128>
  %two = shared_alloc {shape = [64, 64], dtype = bf16, swizzle = 0} : shared<64x64xbf16,0>
  tma_store %x, %zero, %zero, %one
  tma_store %x, %zero, %zero, %two"""
    with pytest.raises(CompilationError, match="descriptor 'x' is used with tiles that lie differently"):
        lower(text_of(body), TARGET, NvidiaOptions())


def test_kernels_that_wait_for_nobody_do_not_start_early() -> None:
    for waits in ("", "  grid_wait\n"):
        text = f"kernel first(%x: *f32) {{\n{waits}  grid_launch_dependents\n  return\n}}\n"
        assert lower(parse_function(text), TARGET, NvidiaOptions()).dependent_launch == bool(waits)


def test_kernels_that_start_early_wait_before_they_prefetch_maps_and_make_barriers() -> None:
    lowered = lower(CASES["bf16"].trace(), TARGET, NvidiaOptions(wait_at_entry=True))
    waits, prefetches = (lowered.text.index(f"call void @llvm.nvvm.{name}") for name in _FIRST)
    assert waits < prefetches


_FIRST = ("griddepcontrol.wait", "prefetch.tensormap")


@pytest.mark.parametrize("cluster", [2, (0, 1, 1), (32,), (2, 1, 1, 1), "ab"])
def test_clusters_that_are_none_are_reported(cluster: object) -> None:
    with pytest.raises(CompilationError, match="cluster is CTAs along one to three axes, 1 to 16 in all"):
        lower(CASES["bf16"].trace(), TARGET, NvidiaOptions.of_launch({"cluster": cluster}))


@pytest.mark.parametrize("body", ["", "  group_sync\n"], ids=["plain", "explicit"])
def test_what_a_kernel_states_of_warps_counts_before_the_launch(body: str) -> None:
    """As in Triton: its author counted with it. Plain kernels took the launch's."""
    stated = parse_function(f"kernel stated(%x: *f32) {{num_warps = 8}} {{\n{body}  return\n}}\n")
    silent = parse_function(f"kernel silent(%x: *f32) {{\n{body}  return\n}}\n")
    assert (
        lower(stated, TARGET, NvidiaOptions.of_launch({"num_warps": 2})).warps
        == lower(stated, TARGET, NvidiaOptions()).warps
        == 8
    )
    assert (
        lower(silent, TARGET, NvidiaOptions.of_launch({"num_warps": 2})).warps == 2
        and lower(silent, TARGET, NvidiaOptions()).warps == 4
    )
    for wrong in (3, 64, "a"):
        with pytest.raises(CompilationError, match=f"num_warps is 1, 2, 4, 8, 16 or 32, not {wrong!r}"):
            lower(silent, TARGET, NvidiaOptions.of_launch({"num_warps": wrong}))


def test_plain_kernels_have_no_clusters() -> None:
    plain = parse_function("kernel nothing(%x: *f32) {\n  return\n}\n")
    with pytest.raises(CompilationError, match="'nothing' is no explicit kernel"):
        lower(plain, TARGET, NvidiaOptions.of_launch({"cluster": (2, 1, 1)}))


def test_other_architectures_are_reported() -> None:
    with pytest.raises(CompilationError, match="is an explicit operation of sm_90a, which sm_80 does not have"):
        lower(CASES["bf16"].trace(), NvidiaTarget.named("sm_80"), NvidiaOptions())


@pytest.mark.parametrize(("shape", "lowered"), [((3, 8, 24), True), ((2, 12, 16), False)])
def test_tiles_of_three_axes(shape: tuple[int, ...], lowered: bool) -> None:
    """Layouts have powers of two, and only of the first and the last axis what is too much can be left out."""
    block = "x".join(map(str, shape)) + "xf32"
    body = f"""
  %tile = shared_alloc {{shape = {list(shape)}, dtype = f32, swizzle = 0}} : shared<{block},0>
  %block = shared_load %tile : <{block}>
  shared_store %tile, %block"""
    with nullcontext() if lowered else pytest.raises(CompilationError, match="powers of two"):
        lower(text_of(body), TARGET, NvidiaOptions())


def test_products_need_whole_warpgroups() -> None:
    with pytest.raises(CompilationError, match="a product of 64 rows by 8 warps"):
        lower(CASES["bf16"].trace(), TARGET, NvidiaOptions.of_launch({"num_warps": 8}))


def test_tiles_may_lie_over_others() -> None:
    body = """
  %one = shared_alloc {shape = [8, 64], dtype = bf16, swizzle = 128} : shared<8x64xbf16,128>
  %two = shared_alloc %one {shape = [16, 64], dtype = bf16, swizzle = 128} : shared<16x64xbf16,128>
  %three = barrier_alloc {count = 2, arrivals = 1} : barriers<2>
  %zero = constant 0 : i32
  %first = barrier_index %three, %zero : barrier
  barrier_wait %first, %zero
  tma_store %x, %zero, %zero, %one
  tma_store %y, %zero, %zero, %two"""
    parameters = "%x: tensormap<8x64xbf16>, %y: tensormap<16x64xbf16>, %unused: tensormap<64x64xbf16>"
    lowered = lower(text_of(body, parameters), TARGET, NvidiaOptions())
    assert lowered.shared_bytes == 2048 + 2 * 8  # memory to read on is for operands A of products
    assert [use.box for use in lowered.tensor_maps] == [(8, 64), (16, 64), (1, 8)]


def test_blocks_from_outside_are_computed_in_the_role() -> None:
    body = """
  %range = arange {start = 0, end = 128} : <128xi32>
  %all = splat %y {shape = [128]} : <128x*i32>
  warp_roles {warps = [4], copies = [2], registers = [0], elected = [0]} {(%copy: i32)
    %place = offset %all, %range : <128x*i32>
    store %place, %range
    yield
  }"""
    lowered = lower(text_of(body, "%y: *i32"), TARGET, NvidiaOptions())
    assert lowered.text.count("and i32 %v0, 127") >= 1 and lowered.warps == 8
