"""The text of machine code, and what is counted in it."""

from __future__ import annotations

import pytest

from tests.compile.test_nvidia_assemble import SCALE
from tilewright.errors import MissingDependencyError
from tilewright.targets.gpu.binary import GpuBinary
from tilewright.targets.nvidia import inspect
from tilewright.targets.nvidia.assemble import AssemblyOptions, assemble
from tilewright.targets.nvidia.target import ARCHITECTURES, NvidiaTarget


def scale(architecture: str) -> GpuBinary:
    assembly = assemble(SCALE, "scale", NvidiaTarget.named(architecture), AssemblyOptions())
    return GpuBinary(
        target="cuda",
        key="",
        symbol="scale",
        image=assembly.cubin,
        parameters=("*f32", "*f32", "f32"),
        scratch_bytes=0,
        features=(architecture,),
        warps=4,
        warp_threads=32,
        shared_bytes=2048,
        resources=assembly.resources,
    )


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_machine_code_is_shown_and_counted(architecture: str) -> None:
    binary = scale(architecture)
    assert "LDG" in inspect.sass(binary.image)
    info = inspect.describe(binary)
    assert info.instructions["LDG"] == info.instructions["STG"] == 1
    assert info.access_bytes == {16: 2}
    assert "NOP" not in info.instructions
    assert (info.shared, info.threads, info.barriers) == (2048, 128, 1)
    assert "2 of 16 bytes" in str(info) and f"{info.registers} registers" in str(info)


def test_opcodes_are_read_with_predicates() -> None:
    text = """
        /*0090*/              @!P0 LDG.E.U16 R8, desc[UR4][R2.64] ;   /* 0x0000000402087981 */
        /*00a0*/         @UP1 UTMALDG.2D [UR8], [UR4] ;
        /*1000*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*1010*/                   NOP;
    """
    assert inspect.instruction_mix(text) == {"LDG": 1, "UTMALDG": 1, "HGMMA": 1}
    assert inspect.access_widths(text) == {2: 1}


def test_without_a_disassembler_the_rest_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingDependencyError("pip install nvidia-cuda-nvdisasm")

    monkeypatch.setattr(inspect, "find_disassembler", missing)
    info = inspect.describe(scale("sm_80"))
    assert info.registers > 0 and not info.instructions and "nvdisasm" in str(info)
