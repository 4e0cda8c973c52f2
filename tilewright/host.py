"""What this machine's CPU is: triple, name, instruction set features, cache sizes.

Part of the foundation: the compiler reads its target from here, and the runtime refuses an engine
whose code needs a feature that `host_features()` lacks.  Features carry LLVM's names.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import llvmlite.binding as llvm

from tilewright.errors import SettingsError
from tilewright.settings import settings

# The features that generated code may use. Others (sgx, rtm, …) say nothing about arithmetic, and
# naming them would make an engine refuse a CPU on which its code runs.
_X86_FEATURES = frozenset(
    "cmov sse sse2 sse3 ssse3 sse4.1 sse4.2 popcnt avx avx2 fma f16c bmi bmi2 lzcnt movbe "
    "avx512f avx512bw avx512dq avx512vl avx512cd avx512vnni avx512bf16 avx512fp16 avx512vbmi avxvnni "
    "amx-tile amx-bf16 amx-int8 amx-fp16".split()
)
_AARCH64_FEATURES = frozenset("neon fp-armv8 fullfp16 dotprod bf16 i8mm sve sve2 lse".split())

# Feature sets by name, for the setting `cpu` and for compiling on another machine (`targets/cpu/target.py`).
_X86_64 = frozenset("cmov sse sse2".split())
_X86_64_V2 = _X86_64 | frozenset("sse3 ssse3 sse4.1 sse4.2 popcnt".split())
_X86_64_V3 = _X86_64_V2 | frozenset("avx avx2 fma f16c bmi bmi2 lzcnt movbe".split())
_X86_64_V4 = _X86_64_V3 | frozenset("avx512f avx512bw avx512dq avx512vl avx512cd".split())
_ZNVER4 = _X86_64_V4 | frozenset("avx512vnni avx512bf16 avx512vbmi".split())
_NEON = frozenset(("neon", "fp-armv8"))
_NEOVERSE_N1 = _NEON | frozenset(("fullfp16", "dotprod", "lse"))
NAMED_FEATURES: dict[str, frozenset[str]] = {
    "x86-64": _X86_64,
    "x86-64-v2": _X86_64_V2,
    "x86-64-v3": _X86_64_V3,
    "x86-64-v4": _X86_64_V4,
    "znver4": _ZNVER4,
    "znver5": _ZNVER4 | {"avxvnni"},
    "sapphirerapids": _ZNVER4 | frozenset("avx512fp16 avxvnni amx-tile amx-bf16 amx-int8".split()),
    "aarch64": _NEON,
    "neoverse-n1": _NEOVERSE_N1,
    "apple-m1": _NEOVERSE_N1,
}

_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE = 188, 191  # glibc's numbers, which Python has no names for

_DEFAULT_L1 = 32 << 10
_DEFAULT_L2 = 512 << 10


@dataclass(frozen=True)
class HostCPU:
    """This machine as the code generator sees it."""

    triple: str
    name: str  # LLVM's name of the CPU model, or the setting `cpu`
    features: frozenset[str]
    l1_bytes: int  # data cache of one core
    l2_bytes: int  # of one core


@lru_cache(maxsize=1)
def host_cpu() -> HostCPU:
    """This machine's CPU, read once."""
    known = llvm_host()
    l1, l2 = _cache_bytes()
    name = known.name if settings.cpu == "native" else settings.cpu
    return HostCPU(known.triple, name, host_features(), l1, l2)


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """The instruction set features of this CPU that generated code may use (LLVM's names).

    Those of the CPU that the setting `cpu` names, where it names one; raises `SettingsError` when this CPU lacks some.
    """
    cpu = llvm_host()
    architecture = cpu.triple.split("-")[0]
    known = arithmetic_features(architecture)
    found = {name for name, present in cpu.flags.items() if present}
    if not any(name.startswith("amx") for name in found) or not _allow_tile_registers():
        found = {name for name in found if not name.startswith("amx")}
    if architecture in ("aarch64", "arm64"):
        found |= {"neon", "fp-armv8"}  # part of every AArch64 application CPU; LLVM does not list them everywhere
    return _limited(frozenset(found & known), settings.cpu)


def _limited(present: frozenset[str], wanted: str) -> frozenset[str]:
    """The features of the CPU that is `wanted`, all of which must be present; "native": all that are."""
    if wanted == "native":
        return present
    lacking = NAMED_FEATURES[wanted] - present
    if lacking:
        possible = [name for name, features in NAMED_FEATURES.items() if features <= present]
        raise SettingsError(
            f"TILEWRIGHT_CPU={wanted}: this CPU lacks {', '.join(sorted(lacking))}, and code that uses them would end "
            f"the process; name one that it can stand for ({', '.join(['native', *possible])}), or unset the variable"
        )
    return NAMED_FEATURES[wanted]


@dataclass(frozen=True)
class LLVMHost:
    """What LLVM finds out about this machine: triple, CPU model and every feature, present (True) or not."""

    triple: str
    name: str
    flags: Mapping[str, bool]

    @property
    def features(self) -> str:
        """The features as LLVM's target machines take them: ``+avx2,-avx512f,…``."""
        return ",".join(f"{'+' if present else '-'}{name}" for name, present in sorted(self.flags.items()))


@lru_cache(maxsize=1)
def llvm_host() -> LLVMHost:
    """Asked once in each process, and never taken from a file: code with a feature too many ends the process.

    LLVM asks the CPU itself, which takes some tenths of a millisecond on virtual machines.
    """
    return LLVMHost(llvm.get_process_triple(), llvm.get_host_cpu_name(), dict(llvm.get_host_cpu_features()))


def _allow_tile_registers() -> bool:
    """Ask Linux to let this process use AMX's tile registers, which it saves for those only that asked."""
    if sys.platform != "linux":
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    try:
        return ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0
    except (OSError, AttributeError):
        return False


def arithmetic_features(architecture: str) -> frozenset[str]:
    """The features that code for an architecture (a triple's first part) may ever use."""
    if architecture in ("x86_64", "amd64"):
        return _X86_FEATURES
    return _AARCH64_FEATURES if architecture in ("aarch64", "arm64") else frozenset()


def missing_features(required: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `required` that this CPU lacks, in order."""
    available = host_features()
    return tuple(name for name in required if name not in available)


def _cache_bytes() -> tuple[int, int]:
    """Level 1 data and level 2 bytes of one core; cautious defaults where the system does not tell."""
    if sys.platform == "linux":
        l1, l2 = _sysconf(_SC_LEVEL1_DCACHE_SIZE), _sysconf(_SC_LEVEL2_CACHE_SIZE)
        return (l1, l2) if l1 and l2 else _linux_caches("/sys/devices/system/cpu/cpu0/cache")
    if sys.platform == "darwin":
        return _sysctl("hw.perflevel0.l1dcachesize", _DEFAULT_L1), _sysctl("hw.perflevel0.l2cachesize", _DEFAULT_L2)
    return _DEFAULT_L1, _DEFAULT_L2


def _sysconf(number: int) -> int:
    """A number that the C library knows; 0 where it does not.  The kernel's files take ten times as long to read."""
    try:
        return max(0, os.sysconf(number))
    except (OSError, ValueError):
        return 0


def _linux_caches(folder: str) -> tuple[int, int]:
    sizes = {"1": _DEFAULT_L1, "2": _DEFAULT_L2}
    for index in range(8):
        try:
            level, kind = (_first_line(f"{folder}/index{index}/{name}") for name in ("level", "type"))
            if kind not in ("Data", "Unified") or level not in sizes:
                continue
            text = _first_line(f"{folder}/index{index}/size")
        except OSError:
            break
        if text[:-1].isdigit():
            sizes[level] = int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1], 0)
    return sizes["1"], sizes["2"]


def _first_line(path: str) -> str:
    with open(path, "rb") as file:
        return file.readline().decode().strip()


def _sysctl(name: str, default: int) -> int:
    try:
        answer = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=True)
        return int(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return default
