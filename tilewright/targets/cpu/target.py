"""The CPU target: a frozen table of what one CPU can do."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import TargetError
from tilewright.forks import cached_property
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.host import NAMED_FEATURES, arithmetic_features, host_cpu
from tilewright.settings import settings
from tilewright.targets.library_facts import CPU_KERNELS
from tilewright.targets.machine import Machine, cpu_machine

_LINUX_X86, _LINUX_ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"

# Named CPUs to compile for on any machine: triple, CPU to schedule for, L1 and L2 bytes of a core.
_NAMED: dict[str, tuple[str, str, int, int]] = {
    "x86-64": (_LINUX_X86, "x86-64", 32 << 10, 256 << 10),
    "x86-64-v2": (_LINUX_X86, "x86-64-v2", 32 << 10, 256 << 10),
    "x86-64-v3": (_LINUX_X86, "haswell", 32 << 10, 256 << 10),
    "x86-64-v4": (_LINUX_X86, "skylake-avx512", 32 << 10, 1 << 20),
    "sapphirerapids": (_LINUX_X86, "sapphirerapids", 48 << 10, 2 << 20),
    "znver4": (_LINUX_X86, "znver4", 32 << 10, 1 << 20),
    "znver5": (_LINUX_X86, "znver5", 48 << 10, 1 << 20),
    "aarch64": (_LINUX_ARM, "generic", 32 << 10, 512 << 10),
    "neoverse-n1": (_LINUX_ARM, "neoverse-n1", 64 << 10, 1 << 20),
    "apple-m1": ("arm64-apple-macosx", "apple-m1", 128 << 10, 4 << 20),
}


TILE_BYTES = 64  # of a row of a tile register
_FEW_STEPS, _FEW_CHANNELS = 20, 8  # of 8-bit convolutions that vectors with VNNI sum faster than floats
LEAST_TILE_ROWS = 16  # fewer leave tiles empty, and a copy of the right operand is used too seldom


@dataclass(frozen=True)
class CPUTarget:
    """One CPU: everything the lowering asks about it, and nothing that changes while it runs."""

    triple: str
    cpu: str  # whose instruction timings the scheduler uses; never a source of features
    features: tuple[str, ...]  # sorted
    vector_bits: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    quick: bool = False  # compile in less time to slower code: fewer forms of a loop, none of LLVM's optimisations

    name = "cpu"
    host_code = compiles_quickly = True
    concurrent_kernels = times_kernels = wgmma = dependent_launch = False
    without_wgmma = "CPUs have no wgmma"
    tensor_alignment = 1  # arrays of callers begin anywhere
    largest_grid = (2**31 - 1,) * 3
    warp_threads = 1
    tf32 = False  # float32 multiplies as float32

    @classmethod
    def host(cls) -> CPUTarget:
        """The CPU of this machine."""
        return _host_target()

    @classmethod
    def named(cls, name: str) -> CPUTarget:
        """A CPU by name, for compiling on another machine; raises `TargetError` listing the names."""
        if name not in _NAMED:
            raise TargetError(f"unknown CPU {name!r}: choose one of {', '.join(_NAMED)}, or 'auto' for this machine")
        triple, cpu, l1, l2 = _NAMED[name]
        return cls.from_features(triple, cpu, NAMED_FEATURES[name], l1, l2)

    @classmethod
    def of_generation(cls, name: int | str) -> CPUTarget:
        """The CPU that host code of kernels means: this machine's, whatever it is called."""
        return cls.host()

    @classmethod
    def of_device(cls, device: object) -> CPUTarget:
        """This machine's CPU, which is its own device."""
        return cls.host()

    @classmethod
    def recorded_machine(cls, architecture: str, features: Sequence[str], threads: int) -> Machine:
        """The rates of a CPU by the features that an engine's file has on record."""
        return cpu_machine(cls.from_features("", "", frozenset(features), 0, 0).vector_bits, 0, 0, threads)

    @classmethod
    def from_features(cls, triple: str, cpu: str, features: frozenset[str], l1: int, l2: int) -> CPUTarget:
        """The table of a CPU with these features (LLVM's names)."""
        if "avx512f" in features and {"avx512bw", "avx512dq", "avx512vl"} <= features:
            bits, registers = 512, 32
        elif "avx2" in features and "fma" in features:
            bits, registers = 256, 16
        else:
            bits, registers = 128, 32 if "neon" in features else 16
        return cls(triple, cpu, tuple(sorted(features)), bits, registers, l1, l2)

    @cached_property
    def key(self) -> str:
        """Everything of the target that a binary depends on, as one string."""
        table = (self.triple, self.cpu, self.features, self.vector_bits, self.l1_bytes, self.l2_bytes)
        digest = hashlib.sha256(repr(table).encode()).hexdigest()[:16]
        return f"cpu-{self.architecture}-{self.cpu}-{digest}{'-quick' if self.quick else ''}"

    @property
    def architecture(self) -> str:
        """The first part of the triple: x86_64, aarch64, arm64."""
        return self.triple.split("-")[0]

    @property
    def generation(self) -> str:
        """How host code of kernels names it."""
        return self.cpu

    def with_precision(self, precision: str) -> CPUTarget:
        """The same: float32 multiplies as float32."""
        return self

    def quick_variant(self) -> CPUTarget:
        """The same CPU, compiled for in less time to slower code."""
        return replace(self, quick=True)

    def without_tensor_copies(self) -> CPUTarget:
        """The same: a CPU has none."""
        return self

    def without_tiles(self) -> CPUTarget:
        """The same CPU without AMX, which a program must ask its system for before it may use it."""
        features = frozenset(name for name in self.features if not name.startswith("amx"))
        return self.from_features(self.triple, self.cpu, features, self.l1_bytes, self.l2_bytes)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What an engine's file says of it, besides the features that its code needs."""
        return {"name": self.name, "triple": self.triple, **({"quick": True} if self.quick else {})}

    @property
    def description(self) -> str:
        """The table in one line, for people."""
        extras = {"bf16 dot": self.bfloat16_dot, "int8 dot": self.int8_dot, "AMX": self.matrix_registers}
        parts = [
            f"{self.architecture} {self.cpu}",
            f"{self.vector_registers} vector registers of {self.vector_bits} bits",
            f"L1 {self.l1_bytes >> 10} KiB, L2 {self.l2_bytes >> 10} KiB",
            *(name for name, present in extras.items() if present),
        ]
        return ", ".join(parts)

    @property
    def is_x86(self) -> bool:
        return self.architecture in ("x86_64", "amd64")

    def has(self, feature: str) -> bool:
        """Whether the CPU has an instruction set feature (LLVM's name)."""
        return feature in self.features

    def required_features(self, tiles: bool) -> tuple[str, ...]:
        """What a CPU must have to run code: the features that code generation uses, AMX if the code uses `tiles`."""
        return tuple(name for name in self.features if tiles or not name.startswith("amx"))

    @property
    def fused_multiply_add(self) -> bool:
        """Whether `fma` is one instruction."""
        return self.has("fma") or self.has("neon") or self.vector_bits == 512

    @property
    def bfloat16_dot(self) -> bool:
        """Whether pairs of bfloat16 products are summed in float32 by one instruction (vdpbf16ps)."""
        return self.has("avx512bf16")

    @property
    def int8_dot(self) -> bool:
        """Whether groups of four int8 products are summed in int32 by one instruction (VNNI, sdot)."""
        return self.has("avx512vnni") or self.has("avxvnni") or self.has("dotprod")

    @property
    def table_lanes(self) -> int:
        """Numbers of 32 bits in a vector register from which one instruction picks for each lane (vpermps); 0: none."""
        return 16 if self.is_x86 and self.vector_bits == 512 else 0

    @property
    def shuffles_broadcasts(self) -> bool:
        """Whether copying a number from memory to all lanes takes a shuffle, but none as the operand of a product."""
        return self.cpu == "znver4" and self.vector_bits == 512

    @property
    def rounds_to_bytes(self) -> bool:
        """Whether vectors of float32 become integers, and these bytes that saturate, by one instruction each."""
        return self.is_x86 and self.vector_bits == 512

    @property
    def matrix_registers(self) -> bool:
        """Whether the CPU has AMX tiles."""
        return self.has("amx-tile")

    def multiplies_in_tiles(self, left: DType, right: DType) -> bool:
        """Whether AMX multiplies blocks of these types: bfloat16 into float32, 8-bit integers into int32."""
        if left.is_integer and right.is_integer:
            return self.has("amx-int8") and left.bits == right.bits == 8
        return self.has("amx-bf16") and left is right is dtypes.bfloat16

    def lanes(self, dtype: DType) -> int:
        """Elements of a type in one vector register."""
        return self.vector_bits // (8 * dtype.itemsize)

    def supports(self, dtype: DType) -> bool:
        """Whether values of this element type can be computed with (narrow floats through float32)."""
        return dtype is not dtypes.void

    def microtile(self, dtype: DType) -> tuple[int, int]:
        """Rows and columns of the register tile of `dot` for operands of this type.

        float64 computes in itself, every narrower float in float32, integers in int32.  With `quick` the rows are a
        power of two.
        """
        if self.multiplies_in_tiles(dtype, dtype):
            return 32, 32  # 2 x 2 tile registers
        rows, columns = self._largest_microtile(dtype)
        return (1 << rows.bit_length() - 1 if self.quick else rows), columns

    def _largest_microtile(self, dtype: DType) -> tuple[int, int]:
        """Rows and columns that fill the vector registers."""
        vector = self.vector_bits // (64 if dtype.bits == 64 else 32)
        if self.vector_registers == 32:
            # 28 accumulators, 2 right vectors, 1 broadcast; NEON has half the load width, so wider tiles
            return (14, 2 * vector) if self.vector_bits >= 256 else (8, 3 * vector)
        return (6, 2 * vector)  # 12 accumulators, 2 right vectors, 1 broadcast of 16

    def panel_group(self, dtype: DType, rows: int, depth: int, pairs_fit: bool = False) -> int:
        """Steps of the depth that lie side by side in panels for `dot`, for a product of at least `rows` rows with
        a left operand of this type; a right one of 8 bits is int8.  `pairs_fit`: sums of two neighbouring products are
        numbers of 16 bits.

        1: panels are [depth][width].  Tile registers and instructions that sum groups of products take
        [depth / group][width][group] where they lie, if the depth is whole tiles or groups.
        """
        group = 4 // dtype.itemsize if self.multiplies_in_tiles(dtype, dtype) else 1
        if rows >= LEAST_TILE_ROWS and group > 1 and depth % (16 * group) == 0:
            return group
        group = self.group_of_sums(dtype, pairs_fit)
        return group if depth % group == 0 else 1

    def tile_depth(self, dtype: DType, rows: int) -> int:
        """Steps of the depth that fill a row of a tile register, where products of so many rows use them; else 0."""
        tiles = rows >= LEAST_TILE_ROWS and self.multiplies_in_tiles(dtype, dtype)
        return TILE_BYTES // dtype.itemsize if tiles else 0

    @property
    def kernels(self) -> KernelFacts:
        """What the library's kernels take: x86 multiplies uint8 by int8, and vectors of a few steps of the depth at
        once, where tile registers would be filled up."""
        facts = replace(CPU_KERNELS, narrow_types=frozenset({dtypes.uint8} if self.is_x86 else ()))
        if self.vnni and not self.multiplies_in_tiles(dtypes.uint8, dtypes.uint8):
            facts = replace(facts, narrow_window=_FEW_STEPS, narrow_channels=_FEW_CHANNELS)
        return facts

    def group_of_sums(self, dtype: DType, pairs_fit: bool = False) -> int:
        """Products that vectors of int32 or float32 add at once, for a left operand of this type; 1: one.

        Of 8-bit integers four of uint8 and int8 with VNNI, or where sums of two fit 16 bits; else two, in 16 bits, on
        x86.  Of bfloat16 two, where there is an instruction for them and no tile registers.
        """
        if dtype is dtypes.bfloat16:
            pairs = self.bfloat16_dot and self.vector_bits == 512 and not self.multiplies_in_tiles(dtype, dtype)
            return 2 if pairs else 1
        if not self.is_x86 or not dtype.is_integer or dtype.bits != 8 or dtype.is_bool:
            return 1
        four = self.vnni or (pairs_fit and self.has("ssse3"))
        return 4 if four and dtype is dtypes.uint8 else 2

    @property
    def vnni(self) -> bool:
        """Whether one instruction on whole vectors adds groups of four products of uint8 by int8 (vpdpbusd)."""
        return self.has("avx512vnni") if self.vector_bits == 512 else self.has("avxvnni") and self.vector_bits == 256

    def dot_rate(self, dtype: DType, group: int = 1) -> float:
        """Speed of `dot` on operands of this type, relative to float32; pairs of bfloat16 must lie in groups."""
        if self.multiplies_in_tiles(dtype, dtype):
            return 16 * 2 / dtype.itemsize
        if dtype is dtypes.bfloat16:
            return 2.0 if group == self.group_of_sums(dtype) == 2 else 1.0
        group = self.group_of_sums(dtype)
        if group > 1:
            return 3.0 if group == 4 else 1.6
        return 0.5 if dtype.bits == 64 else 1.0

    def machine(self) -> Machine:
        """The rates that estimates count with, of as many threads as the settings say."""
        return cpu_machine(self.vector_bits, self.l1_bytes, self.l2_bytes, settings.threads)


@lru_cache(maxsize=1)
def _host_target() -> CPUTarget:
    host = host_cpu()
    known = host.features & arithmetic_features(host.triple.split("-")[0])
    return CPUTarget.from_features(host.triple, _model(host.name, known), known, host.l1_bytes, host.l2_bytes)


def _model(name: str, features: frozenset[str]) -> str:
    """The CPU to schedule for: hypervisors hide model numbers, so features outrank the reported name."""
    if "amx-int8" in features and "avx512fp16" in features:
        return "graniterapids" if "amx-fp16" in features else "sapphirerapids"
    return _NAMED[name][1] if name in _NAMED else name  # the setting `cpu`
