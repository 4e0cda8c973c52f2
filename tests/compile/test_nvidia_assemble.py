"""LLVM text becomes machine code for every NVIDIA architecture, on a machine without a GPU."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import re
import time

import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import CompilationError
from tilewright.targets.nvidia.assemble import AssemblyOptions, Ptxas, assemble, find_assembler, parse_report
from tilewright.targets.nvidia.target import ARCHITECTURES, NvidiaTarget

SCALE = """
@shared = external addrspace(3) global [0 x i8], align 1024

define ptx_kernel void @scale(ptr addrspace(1) noalias align 16 %x, ptr addrspace(1) align 16 %y, float %factor) #0 {
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %first = mul i32 %block, 128
  %index = add i32 %first, %thread
  %from = getelementptr <4 x float>, ptr addrspace(1) %x, i32 %index
  %to = getelementptr <4 x float>, ptr addrspace(1) %y, i32 %index
  %value = load <4 x float>, ptr addrspace(1) %from, align 16
  %one = insertelement <4 x float> poison, float %factor, i32 0
  %all = shufflevector <4 x float> %one, <4 x float> poison, <4 x i32> zeroinitializer
  %result = fmul <4 x float> %value, %all
  store <4 x float> %result, ptr addrspace(1) %to, align 16
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  ret void
}

declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
attributes #0 = { nounwind "nvvm.reqntid"="128" }
"""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_assembles_for(architecture: str) -> None:
    assembly = assemble(SCALE, "scale", NvidiaTarget.named(architecture), AssemblyOptions(strict=True))
    assert assembly.cubin.startswith(b"\x7fELF")
    assert f".target {architecture}" in assembly.ptx and "st.global.v" in assembly.ptx
    assert 4 <= assembly.resources.registers <= 32
    assert assembly.resources.barriers == 1
    assert (assembly.resources.stack, assembly.resources.spill_stores, assembly.resources.shared) == (0, 0, 0)
    assert assembly.remarks == ()


def test_options_reach_the_assembler() -> None:
    target = NvidiaTarget.named("sm_90a")
    options = AssemblyOptions(opt_level=0, maxnreg=24, line_info=True, ptxas_options=("--warn-on-spills",))
    assembly = assemble(SCALE, "scale", target, options)
    assert ".maxnreg 24" in assembly.ptx
    assert assembly.cubin != assemble(SCALE, "scale", target, AssemblyOptions()).cubin
    with pytest.raises(CompilationError, match=r"(?s)fatal.*given ptxas_options=.--no-such-option.: try"):
        assemble(SCALE, "scale", target, AssemblyOptions(ptxas_options=("--no-such-option",)))


def test_spills_with_free_registers_are_assembled_again_with_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ptxas does for large kernels on sm_80."""
    real, given = find_assembler(), []

    class Timid:
        identity = description = "timid"

        def assemble(self, ptx: str, architecture: str, options: AssemblyOptions) -> tuple[bytes, str]:
            given.append(ptx)
            cubin, log = real.assemble(ptx, architecture, options)
            if ".maxnreg" not in ptx:
                log = re.sub(r"\d+ bytes spill", "800 bytes spill", re.sub(r"Used \d+ reg", "Used 32 reg", log))
            return cubin, log

    monkeypatch.setattr("tilewright.targets.nvidia.assemble.find_assembler", Timid)
    target = NvidiaTarget.named("sm_80")
    assembly = assemble(SCALE, "scale", target, AssemblyOptions(strict=True))
    assert len(given) == 2 and ".maxnreg 255" in given[1] and ".maxnreg 255" in assembly.ptx
    assert assembly.resources.spill_stores == 0


def test_an_assembler_that_takes_long_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = find_assembler()

    class Slow:
        identity = description = "slow"

        def assemble(self, ptx: str, architecture: str, options: AssemblyOptions) -> tuple[bytes, str]:
            time.sleep(0.3)
            return real.assemble(ptx, architecture, options)

    monkeypatch.setattr("tilewright.targets.nvidia.assemble.find_assembler", Slow)
    target, symbol = NvidiaTarget.named("sm_90a"), "tw_scale_0123456789abcdef"
    text = SCALE.replace("@scale", f"@{symbol}")
    assemble(text, symbol, target, AssemblyOptions())
    assert not caplog.records
    monkeypatch.setattr("tilewright.targets.nvidia.assemble._PATIENCE", 0.01)
    assemble(text, symbol, target, AssemblyOptions())
    assert "working on kernel 'scale' for 0.01 s" in caplog.text and "num_warps" in caplog.text


@tilewright.jit
def too_large(x, y, N: tl.constexpr):
    index = tl.arange(0, N)
    tl.store(y + index, tl.gather(tl.load(x + index), tl.load(x + index).to(tl.int32), 0))


def test_too_much_shared_memory_is_reported_before_anything_is_assembled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.targets.nvidia.compile.assemble", None)
    with pytest.raises(CompilationError, match=r"kernel 'too_large' needs 262144 bytes .* sm_80 has 166912; use smal"):
        too_large.compile({"x": "*f32", "y": "*f32"}, {"N": 65536}, target="cuda:sm_80", options={"num_warps": 32})


def test_refused_code_shows_its_line() -> None:
    text = SCALE.replace("  ret void", '  call void asm sideeffect "nonsense.f32;", ""()\n  ret void')
    with pytest.raises(CompilationError, match=r"(?s)refuses.*line \d+: nonsense\.f32"):
        assemble(text, "scale", NvidiaTarget.named("sm_80"), AssemblyOptions())


def test_a_level_among_ptxas_own_options_is_the_one_taken():
    target = NvidiaTarget.named("sm_90a")
    found = assemble(SCALE, "scale", target, AssemblyOptions(ptxas_options=("-O1",)))
    assert not [remark for remark in found.remarks if "opt-level" in str(remark)]
    assert found.cubin == assemble(SCALE, "scale", target, AssemblyOptions(opt_level=1)).cubin


@pytest.mark.parametrize("options", [{"opt_level": 4}, {"maxnreg": 8}, {"maxnreg": "many"}, {"ptxas_options": 5}])
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(CompilationError, match=next(iter(options))):
        AssemblyOptions.from_options(options)


def test_options_of_a_launch() -> None:
    found = AssemblyOptions.from_options({"maxnreg": 128, "ptxas_options": "-O2 -dlcm=cg", "num_warps": 4})
    assert found == AssemblyOptions(maxnreg=128, ptxas_options=("-O2", "-dlcm=cg"))


def test_the_assembler_names_itself() -> None:
    assembler = find_assembler()
    assert isinstance(assembler, Ptxas)
    assert assembler.version in assembler.identity and assembler.version in assembler.description


REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'attend' for 'sm_90a'
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient \
register resources for the wgmma pipeline in the function 'attend'
ptxas info    : Function properties for attend
    48 bytes stack frame, 44 bytes spill stores, 52 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers, 48 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 95.151 ms
"""


def test_reads_spills_and_slow_code() -> None:
    resources, remarks = parse_report(REPORT, "attend")
    assert (resources.registers, resources.spill_stores, resources.spill_loads) == (168, 44, 52)
    assert (resources.stack, resources.shared, resources.barriers) == (48, 1024, 9)
    assert [remark.severity for remark in remarks] == ["warning", "warning"]
    assert "C7510" in remarks[0].message and "44 bytes" in remarks[1].message
