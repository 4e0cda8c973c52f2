"""LLVM text to objects: for this CPU, for others, and from the cache."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.host.cpu_support import load
from tilewright.ir.parser import parse_function
from tilewright.settings import settings
from tilewright.targets.cpu.assemble import assemble, function_attributes, machine_options
from tilewright.targets.cpu.backend import CPUBackend
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.cache import ObjectCache
from tilewright.targets.llvm.optimize import generate

NAMES = [
    "x86-64",
    "x86-64-v2",
    "x86-64-v3",
    "x86-64-v4",
    "sapphirerapids",
    "znver4",
    "aarch64",
    "neoverse-n1",
    "apple-m1",
]

DOUBLE = """
define void @double(ptr %data, i64 %count) {attributes} {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %p = getelementptr <16 x float>, ptr %data, i64 %i
  %x = load <16 x float>, ptr %p, align 4
  %y = fadd <16 x float> %x, %x
  store <16 x float> %y, ptr %p, align 4
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %out
out:
  ret void
}}
"""


def module_for(target: CPUTarget) -> str:
    return DOUBLE.format(attributes=function_attributes(target))


def test_runs_on_this_cpu(rng: np.random.Generator) -> None:
    target = CPUTarget.host()
    double = load(assemble(module_for(target), target), "double", [ctypes.c_void_p, ctypes.c_int64])
    data = rng.standard_normal(64).astype(np.float32)
    expected = data + data
    double(data.ctypes.data, 4)
    np.testing.assert_array_equal(data, expected)


@pytest.mark.parametrize("name", NAMES)
def test_compiles_for_named_cpus(name: str) -> None:
    target = CPUTarget.named(name)
    code = assemble(module_for(target), target, keep_texts=True)
    assert code.image and code.assembly and code.optimized
    magic = b"\xcf\xfa\xed\xfe" if "apple" in target.triple else b"\x7fELF"
    assert code.image.startswith(magic)
    used = {bits for bits, register in ((512, "zmm"), (256, "ymm"), (128, "xmm")) if register in code.assembly}
    if target.is_x86:
        assert max(used) == target.vector_bits, "vectors must have the full width, and no more"


def test_only_the_features_of_the_table_are_used() -> None:
    options = machine_options(CPUTarget.named("x86-64-v3"))
    assert "+avx2" in options.features and "-avx512f" in options.features
    assert "-avx2" in machine_options(CPUTarget.named("x86-64-v2")).features


def test_bad_text_is_an_internal_error() -> None:
    with pytest.raises(RuntimeError):
        assemble("define void @broken( {", CPUTarget.host())


KERNEL = """
kernel triple(%x: *f32, %n: i32) {
  %columns = arange {start = 0, end = 64} : <64xi32>
  %limit = splat %n {shape = [64]} : <64xi32>
  %mask = compare %columns, %limit {predicate = "lt"} : <64xi1>
  %base = splat %x {shape = [64]} : <64x*f32>
  %place = offset %base, %columns : <64x*f32>
  %value = load %place, %mask : <64xf32>
  %twice = add %value, %value : <64xf32>
  %thrice = add %twice, %value : <64xf32>
  store %place, %thrice, %mask
  return
}
"""


def test_compiled_kernels_come_from_the_cache(tmp_path: Path) -> None:
    function = parse_function(KERNEL)
    target = CPUBackend(CPUTarget.host())
    with settings.scope(cache_directory=tmp_path, always_compile=False, dump_directory=None):
        first = target.compile(function, CPUOptions())
        again = target.compile(function, CPUOptions())
        assert first.seconds and not again.seconds, "the second one must be read, not compiled"
        assert (again.image, again.symbol, again.key, again.parameters) == (
            first.image, first.symbol, first.key, first.parameters,
        )  # fmt: skip
        ObjectCache(tmp_path).path(first.key).write_bytes(b"damaged")
        assert target.compile(function, CPUOptions()).image == first.image
        of_gpus = target.options({"num_warps": 8})  # which change nothing on a CPU
        assert target.compile(function, of_gpus).key == first.key
        assert target.compile(function, CPUOptions(fuse=False)).key != first.key
        texts = target.compile(function, CPUOptions(keep_texts=True)).texts
        assert set(texts) == {"ir", "llvm", "asm"}
    other = CPUBackend(CPUTarget.named("x86-64-v3"))
    with settings.scope(cache_directory=tmp_path, dump_directory=tmp_path / "dump"):
        binary = other.compile(function, CPUOptions())
    assert binary.key != first.key and "avx2" in binary.features
    assert {path.suffix for path in (tmp_path / "dump").iterdir()} == {".tile", ".ll", ".s", ".txt"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_compiling_frees_its_memory() -> None:
    """LLVM's passes of one compilation take some 60 KB."""

    def pages() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1])

    options = machine_options(CPUTarget.host())
    text = "define i32 @seven() {\n  ret i32 7\n}\n"
    for _ in range(2):
        before = pages()
        for _ in range(30):
            generate(text, options)
    assert (pages() - before) * os.sysconf("SC_PAGE_SIZE") < 1 << 20
