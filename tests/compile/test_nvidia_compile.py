"""Kernels become cubins for every NVIDIA architecture: cached, with options, with their texts."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import CompilationError, TargetError
from tilewright.ir.core import Parameter
from tilewright.launch.cuda import CudaKernel
from tilewright.launch.jit import JITFunction
from tilewright.settings import settings
from tilewright.targets.llvm import cache as llvm_cache
from tilewright.targets.nvidia import compile as compilation
from tilewright.targets.nvidia.target import ARCHITECTURES, NvidiaTarget
from tilewright.targets.registry import backend_of, get_target


@tilewright.jit
def add(x, y, result, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    tl.store(result + index, tl.load(x + index, mask=mask) + tl.load(y + index, mask=mask), mask=mask)


def compiled(kernel: JITFunction = add, architecture: str = "sm_90a", **options: Any) -> CudaKernel:
    names = ("x", "y", "result")
    types = {**{name: "*f32" for name in names}, "count": "i32"}
    aligned = {name: Parameter(name, divisibility=16) for name in (*names, "count")}
    result = kernel.compile(types, {"BLOCK": 1024}, aligned, f"cuda:{architecture}", options)
    assert isinstance(result, CudaKernel)
    return result


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Any:
    with settings.scope(cache_directory=tmp_path):
        yield tmp_path


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiles_for(architecture: str) -> None:
    kernel = compiled(architecture=architecture)
    assert kernel.info.architecture == architecture
    assert set(kernel.info.access_bytes) == {16}  # wide accesses, although the count decides
    assert (kernel.info.spills, kernel.info.stack) == (0, 0)
    assert kernel.n_regs % 8 == 0 and 0 <= kernel.n_regs - kernel.info.registers < 8  # as they are handed out
    assert kernel.metadata.num_warps == 4


def test_the_second_time_is_read_from_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled()

    def assemble(*arguments: Any) -> None:
        raise AssertionError("assembled again")

    monkeypatch.setattr(compilation, "assemble", assemble)
    second = compiled()
    assert second.binary is not first.binary
    assert (second.binary.image, second.info) == (first.binary.image, first.info)
    with pytest.raises(AssertionError, match="again"):
        compiled(architecture="sm_80")


def test_options_are_part_of_the_key() -> None:
    keys = {
        compiled(**options).hash
        for options in (
            {},
            {"num_warps": 8},
            {"opt_level": 1},
            {"maxnreg": 32},
            {"ptxas_options": "--warn-on-spills"},
            {"line_info": True},
            {"dependent_launch": True},
        )
    }
    assert len(keys) == 7


@pytest.mark.parametrize(("options", "message"), [
    ({"num_wraps": 8}, "no option 'num_wraps'; did you mean 'num_warps'"), ({"num_warps": 0}, "num_warps is 1, 2, 4"),
    ({"num_stages": -1}, "num_stages is 1 or more"),
])  # fmt: skip
def test_options_that_there_are_not_are_reported(options: dict[str, int], message: str) -> None:
    with pytest.raises(CompilationError, match=message):
        compiled(**options)


def test_options_of_the_launch_reach_the_program() -> None:
    program = compiled(num_warps=8, launch_pdl=True, launch_cooperative_grid=True).binary.program("add")
    assert (program.threads, program.dependent_launch, program.cooperative) == (256, True, True)
    with pytest.raises(CompilationError, match="opt_level"):
        compiled(opt_level=7)


def test_machine_code_knows_its_source_lines() -> None:
    ptx = compiled(line_info=True).dump("ptx")
    assert f'"{Path(__file__).parent}/{Path(__file__).name}"' in ptx
    lines, first = inspect.getsourcelines(add.function)
    store = first + next(number for number, line in enumerate(lines) if "tl.store" in line)
    assert re.search(rf"\.loc\s+1 {store} ", ptx)
    assert ".loc" not in compiled().dump("ptx")


def test_every_stage_is_shown() -> None:
    kernel = compiled(maxnreg=40)
    assert "gpu.layout" in kernel.dump("layouts")
    assert "load" in kernel.dump("ir") and "define" in kernel.dump("llvm") and "LDG" in kernel.dump("sass")
    assert ".maxnreg 40" in kernel.dump("ptx")  # with the options that it was compiled with
    with pytest.raises(ValueError, match="choose ir, layouts, llvm, ptx or sass"):
        kernel.dump("asm")


def test_the_lowering_is_explained() -> None:
    kernel = compiled()
    backend = backend_of(kernel.target)
    assert "256 threads" in backend.explain(kernel.function, backend.options({"num_warps": 8}))


def test_targets_by_name() -> None:
    assert isinstance(get_target("cuda:sm_80"), NvidiaTarget)
    with pytest.raises(TargetError, match="sm_90a"):
        get_target("cuda:sm_70")
    chosen = {
        capability: NvidiaTarget.for_capability(capability).architecture for capability in ((8, 7), (9, 0), (10, 3))
    }
    assert chosen == {(8, 7): "sm_86", (9, 0): "sm_90a", (10, 3): "sm_100"}
    with pytest.raises(TargetError, match=r"7\.5"):
        NvidiaTarget.for_capability((7, 5))


def test_shared_memory_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.targets.nvidia import pipeline

    lower = pipeline.lower

    def greedy(*arguments: Any) -> Any:
        from dataclasses import replace

        return replace(lower(*arguments), shared_bytes=120_000)

    monkeypatch.setattr(pipeline, "lower", greedy)
    assert compiled(architecture="sm_90a").info.shared >= 120_000
    with pytest.raises(CompilationError, match=r"sm_86 has 101376.*fewer stages"):
        compiled(architecture="sm_86")


def test_signatures_depend_on_the_sources_of_their_target_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    without: dict[str, Any] = {}
    monkeypatch.setattr(llvm_cache, "source_digest", lambda *folders, **options: without.update(options) or "")
    for family, others in (("cuda", {"cpu"}), ("cpu", {"gpu", "nvidia"})):
        llvm_cache.kernel_digest.__wrapped__(family)
        assert without["without"] == others


@tilewright.jit
def sums_of_rows(x, out, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a, b, c = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    value = tl.load(x + (a[:, None, None] * B + b[None, :, None]) * C + c[None, None, :])
    tl.store(out + a[:, None] * B + b[None, :], tl.sum(value, 2))


def test_lanes_with_copies_write_the_same_outside_the_block() -> None:
    """Each lane has the sums; of 16 columns, 4 are of no block: what lanes hold there differs."""
    binary = sums_of_rows.compile(
        {"x": "*f32", "out": "*f32"},
        {"A": 16, "B": 12, "C": 256},
        {name: Parameter(name, divisibility=16) for name in ("x", "out")},
        "cuda:sm_90a",
        {"num_warps": 2, "keep_texts": True},
    )
    assert isinstance(binary, CudaKernel)
    stores = re.findall(r"st\.shared\.v4\.b32\s.*\{(.*)\}", binary.dump("ptx"))
    # The padded half of every other vector is zeros.
    assert stores and sum(store.endswith("0, 0") for store in stores) == len(stores) // 2


@tilewright.jit
def held_rows(x, out, N: tl.constexpr):
    index = tl.arange(0, N)
    row = tl.load(x + index)
    total = tl.sum(tl.exp(row), 0)
    tl.store(out + index, row / total)


def test_spills_are_reported_with_the_name_of_the_kernel(caplog: pytest.LogCaptureFixture) -> None:
    options = {"maxnreg": 32, "num_warps": 1}
    kernel = held_rows.compile({"x": "*f32", "out": "*f32"}, {"N": 4096}, target="cuda:sm_90a", options=options)
    assert isinstance(kernel, CudaKernel) and kernel.n_spills > 0
    assert "kernel 'held_rows': registers spill to local memory" in caplog.text
