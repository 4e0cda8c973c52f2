"""The CPU's capability table, its names, and the registry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tilewright import dtypes, host
from tilewright.errors import TargetError
from tilewright.host import host_cpu, host_features, missing_features
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.registry import get_target


def test_host_is_read_once_and_hashable() -> None:
    target = CPUTarget.host()
    assert target is CPUTarget.host()
    assert {target: 1}[CPUTarget.host()] == 1
    assert target.triple == host_cpu().triple
    assert set(target.features) <= host_features()
    assert target.l1_bytes >= 8 << 10 and target.l2_bytes >= target.l1_bytes


@pytest.mark.parametrize(
    ("name", "bits", "registers", "tile"),
    [
        ("x86-64", 128, 16, (6, 8)),
        ("x86-64-v3", 256, 16, (6, 16)),
        ("x86-64-v4", 512, 32, (14, 32)),
        ("aarch64", 128, 32, (8, 12)),
        ("apple-m1", 128, 32, (8, 12)),
    ],
)
def test_named_tables(name: str, bits: int, registers: int, tile: tuple[int, int]) -> None:
    target = CPUTarget.named(name)
    assert (target.vector_bits, target.vector_registers) == (bits, registers)
    assert (
        target.microtile(dtypes.float32) == target.microtile(dtypes.bfloat16) == target.microtile(dtypes.int8) == tile
    )
    assert target.microtile(dtypes.float64) == (tile[0], tile[1] // 2)
    assert target.lanes(dtypes.float32) == bits // 32


def test_dot_instructions_are_noted() -> None:
    assert CPUTarget.named("sapphirerapids").bfloat16_dot and CPUTarget.named("sapphirerapids").matrix_registers
    assert CPUTarget.named("znver4").int8_dot and not CPUTarget.named("x86-64-v3").int8_dot
    assert not CPUTarget.named("x86-64-v2").fused_multiply_add


def test_matrix_registers_are_required_by_code_that_uses_them() -> None:
    """Code without products of narrow types must run where there is no AMX."""
    target = CPUTarget.named("sapphirerapids")
    assert not any(name.startswith("amx") for name in target.required_features(tiles=False))
    assert {"avx512f", "amx-tile"} <= set(target.required_features(tiles=True))


def test_keys_tell_targets_apart() -> None:
    names = ["x86-64", "x86-64-v3", "x86-64-v4", "znver4", "znver5", "aarch64", "apple-m1"]
    keys = {CPUTarget.named(name).key for name in names}
    assert len(keys) == len(names)


def test_registry() -> None:
    assert get_target() is get_target("cpu") is CPUTarget.host()
    assert get_target("cpu:apple-m1") == CPUTarget.named("apple-m1")
    assert get_target(CPUTarget.named("znver5")) == CPUTarget.named("znver5")
    with pytest.raises(TargetError, match="choose auto, cpu"):
        get_target("abacus")
    with pytest.raises(TargetError, match="x86-64-v3"):
        get_target("cpu:abacus")


def test_missing_features() -> None:
    assert missing_features(tuple(host_features())) == ()
    assert missing_features(("quantum",)) == ("quantum",)


def test_every_process_inspects_the_cpu(tmp_path: Path) -> None:
    """No file says what this CPU can do: one with a feature too many would end the process."""
    features = {feature for feature, present in llvm.get_host_cpu_features().items() if present}
    known = host.llvm_host()
    assert {name for name, present in known.flags.items() if present} == features
    assert (known.triple, known.name) == (llvm.get_process_triple(), llvm.get_host_cpu_name())
    assert known.features == ",".join(sorted(known.features.split(","), key=lambda entry: entry[1:]))
    script = "from tilewright.host import host_cpu; print(*sorted(host_cpu().features))"
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIRECTORY": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == sorted(host.host_cpu().features)
    assert not [path for path in tmp_path.rglob("host*")]
