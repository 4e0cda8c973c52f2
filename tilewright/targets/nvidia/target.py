"""The NVIDIA target: a frozen table of what one GPU architecture can do.

NvidiaTarget.named("sm_90a").wgmma        # True
get_target("cuda:sm_80")                  # compile for it on any machine
get_target("cuda:sm_90a", "tf32")         # with float32 products and convolutions of models in tf32
get_target("cuda")                        # the GPU of this machine
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import DeviceError, TargetError
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.precision import TF32
from tilewright.runtime.cuda import device as devices
from tilewright.runtime.gpu_program import LARGEST_GRID
from tilewright.targets.library_facts import GPU_KERNELS, unsupported_weights
from tilewright.targets.machine import Machine
from tilewright.targets.nvidia.machine import nvidia_machine

WARP_THREADS = 32


@dataclass(frozen=True)
class NvidiaTarget:
    """One GPU architecture: everything the lowering asks about it, and nothing that changes while it runs.

    `multiprocessors`, `l2_bytes` and `card` describe the usual card of the architecture, or the card of this machine
    (`host`); estimates may read them, generated code does not depend on them.
    """

    sm: int  # 80, 86, 89, 90, 100, 120
    suffix: str  # "a" where the code uses instructions of this architecture alone; it then runs on no other
    ptx_version: int  # 86: the PTX ISA 8.6, the oldest that has all that is generated
    shared_bytes: int  # the most that one CTA may have, after asking the driver for it
    shared_bytes_per_multiprocessor: int
    threads_per_multiprocessor: int
    multiprocessors: int
    l2_bytes: int
    tf32: bool = False  # the products and convolutions of float32 models multiply as tf32 (10 bits of mantissa)
    card: str = ""  # the driver's name of it; empty: the usual one

    name = "cuda"
    triple = "nvptx64-nvidia-cuda"
    warp_threads = WARP_THREADS
    registers_per_multiprocessor = 65536
    registers_per_thread = 255
    asynchronous_copies = True  # cp.async
    host_code = False
    concurrent_kernels = times_kernels = True
    tensor_alignment = 16
    largest_grid = LARGEST_GRID
    vector_bits = vector_registers = table_lanes = 0  # threads have numbers of their own
    shuffles_broadcasts = False
    compiles_quickly = quick = False
    reserved_shared_bytes = 1024  # of a multiprocessor, taken by the driver for every resident CTA

    @classmethod
    def host(cls) -> NvidiaTarget:
        """The architecture of the current (or first) GPU of this machine; raises `DeviceError` without one, and
        `MissingDependencyError` without the package that drives it."""
        try:
            device = devices.current_device()
        except DeviceError as error:
            raise DeviceError(
                f"{error}: the target `cuda` is this machine's GPU. Name an architecture, such as cuda:sm_90a, to "
                "compile for a GPU that is not here"
            ) from error
        return cls.of_device(device)

    @classmethod
    def of_device(cls, device: devices.Device) -> NvidiaTarget:
        """What to compile for a GPU; raises `TargetError` for one that no target serves."""
        return cls.for_capability(device.capability, device.multiprocessors, device.l2_bytes, device.name)

    @classmethod
    def for_capability(
        cls, capability: tuple[int, int], multiprocessors: int | None = None, l2_bytes: int | None = None,
        card: str = "",
    ) -> NvidiaTarget:  # fmt: skip
        """The best target whose code runs on a device of this compute capability.

        Machine code runs on later minor versions of its major version.  Raises `TargetError` for a capability
        that no target serves.
        """
        major, minor = capability
        fitting = [target for target in _NAMED.values() if target.sm // 10 == major and target.sm % 10 <= minor]
        if not fitting:
            raise TargetError(
                f"no code for GPUs of compute capability {major}.{minor}: there are targets {', '.join(_NAMED)}"
            )
        best = max(fitting, key=lambda target: target.sm)
        if multiprocessors is None or l2_bytes is None:
            return best
        return replace(best, multiprocessors=multiprocessors, l2_bytes=l2_bytes, card=card)

    @classmethod
    def of_generation(cls, capability: int | str) -> NvidiaTarget:
        """The best target for a compute capability as one number, 90; raises `TargetError`."""
        major, minor = divmod(int(capability), 10)
        return cls.for_capability((major, minor))

    @classmethod
    def recorded_machine(cls, architecture: str, features: Sequence[str], threads: int) -> Machine:
        """The rates of a GPU by the architecture that an engine's file has on record."""
        return cls.of_generation("".join(filter(str.isdigit, architecture))).machine()

    @classmethod
    def named(cls, name: str) -> NvidiaTarget:
        """An architecture by name, for compiling on any machine; raises `TargetError` listing the names."""
        if name not in _NAMED:
            raise TargetError(f"unknown GPU architecture {name!r}: choose one of {', '.join(_NAMED)}")
        return _NAMED[name]

    def with_precision(self, precision: str) -> NvidiaTarget:
        """The same with float32 products and convolutions of models as tf32, or as they are."""
        return replace(self, tf32=precision == TF32)

    @property
    def architecture(self) -> str:
        """The name that LLVM and ptxas know it by: ``sm_90a``."""
        return f"sm_{self.sm}{self.suffix}"

    @property
    def key(self) -> str:
        """Everything of the GPU that a binary depends on: architecture and PTX version."""
        return f"cuda-{self.architecture}-ptx{self.ptx_version}{'-tf32' if self.tf32 else ''}"

    @property
    def generation(self) -> int:
        """Its compute capability, as one number: how host code of kernels names it."""
        return self.sm

    def without_tensor_copies(self) -> NvidiaTarget:
        """The same without the instructions of its architecture alone, which the kernels of tensor copies have."""
        return replace(self, suffix="")

    def quick_variant(self) -> NvidiaTarget:
        """The same: code for GPUs is compiled in one way."""
        return self

    @property
    def facts(self) -> Mapping[str, Any]:
        """What an engine's file says of it."""
        facts = {"name": self.name, "architecture": self.architecture, "triple": self.triple}
        return {**facts, "tf32": True} if self.tf32 else facts

    @property
    def description(self) -> str:
        """The table in one line, for people."""
        extras = {
            "tensor memory accelerator": self.tma,
            "clusters": self.clusters,
            "wgmma": self.wgmma,
            "fp8 products": self.fp8_mma,
        }
        parts = [
            f"{self.architecture}",
            f"{self.multiprocessors} multiprocessors",
            f"{self.shared_bytes >> 10} KiB shared memory a CTA",
            f"L2 {self.l2_bytes >> 20} MiB",
            *(name for name, present in extras.items() if present),
        ]
        return ", ".join(parts)

    @property
    def wgmma(self) -> bool:
        """Whether warp groups multiply tiles of shared memory (wgmma), with setmaxnreg to share registers."""
        return self.sm == 90 and self.suffix == "a"

    @property
    def without_wgmma(self) -> str:
        """Why there is no wgmma, with the card's name; empty where there is."""
        return "" if self.wgmma else f"{self.card or self.architecture} has no wgmma (compute capability 9.0 has)"

    @property
    def tma(self) -> bool:
        """Whether tiles are copied through tensor maps, on mbarriers that count bytes."""
        return self.sm >= 90

    @property
    def clusters(self) -> bool:
        """Whether CTAs form clusters that read each other's shared memory."""
        return self.sm >= 90

    @property
    def stmatrix(self) -> bool:
        """Whether 8x8 matrices are stored to shared memory by a warp at once (ldmatrix is everywhere)."""
        return self.sm >= 90

    @property
    def dependent_launch(self) -> bool:
        """Whether a kernel may start before the one that it depends on has ended (griddepcontrol)."""
        return self.sm >= 90

    @property
    def fp8(self) -> bool:
        """Whether fp8 converts in hardware."""
        return self.sm >= 89

    @property
    def fp8_mma(self) -> bool:
        """Whether tensor cores multiply fp8."""
        return self.sm >= 89

    @property
    def bfloat16_arithmetic(self) -> bool:
        """Whether bfloat16 adds and multiplies in itself (its fused multiply-add is everywhere)."""
        return self.sm >= 90

    def supports(self, dtype: DType) -> bool:
        """Whether values of this element type can be computed with (narrow floats through wider ones)."""
        return dtype is not dtypes.void

    def microtile(self, dtype: DType) -> tuple[int, int]:
        """Rows and columns of the smallest tile of `dot`'s instruction: blocks in multiples of it run fastest."""
        return (64, 8) if self.wgmma and dtype.bits <= 32 else (16, 8)

    def panel_group(self, dtype: DType, rows: int, depth: int, pairs_fit: bool = False) -> int:
        """Steps of the depth that lie side by side in panels: 1, since operands are taken as they lie."""
        return 1

    def tile_depth(self, dtype: DType, rows: int) -> int:
        """0: there are no tile registers."""
        return 0

    def dot_rate(self, dtype: DType, group: int = 1) -> float:
        """Speed of `dot` on operands of this type, relative to float32 (which multiplies as tf32)."""
        if dtype.bits == 64:
            return 0.125 if self.sm in (80, 90) else 0.02
        if dtype.bits == 8:
            return 4.0 if self.fp8_mma or dtype.is_integer else 2.0
        return 2.0 if dtype.bits == 16 else 1.0

    @property
    def kernels(self) -> KernelFacts:
        """What the library's kernels take: with wgmma products compute norms, read quantized weights as they are stored
        and 16-bit operands transposed; tensor cores multiply fp8 from sm_89 on."""
        narrow, transposed = {dtypes.uint8, dtypes.int8}, set() if self.tf32 else {dtypes.float32}
        if self.fp8_mma:
            narrow |= {dtypes.float8e4nv, dtypes.float8e5}
        found = replace(GPU_KERNELS, exact=not self.tf32, weight_limits=(unsupported_weights,))
        if self.wgmma:
            copied = {dtypes.float16, dtypes.bfloat16}
            found = replace(found, normed_rows=8, projected_rows=64, narrow_register_head=256)
            found = replace(found, plane_types=frozenset(copied))
            transposed = {*transposed, *copied}
        return replace(found, narrow_types=frozenset(narrow), transposed_types=frozenset(transposed))

    def least_shared_bytes(self, ctas_per_sm: int) -> int:
        """The bytes of shared memory of a CTA of which an SM holds no more than so many; 0 for 0, or where registers
        and threads are the bound anyway."""
        if not 0 < ctas_per_sm < _MOST_BOUND_CTAS:
            return 0
        share = self.shared_bytes_per_multiprocessor // (ctas_per_sm + 1)
        return share - self.reserved_shared_bytes + _SHARED_ROUNDING

    def machine(self) -> Machine:
        """The rates that estimates count with."""
        return nvidia_machine(self)


_KIB, _MIB = 1 << 10, 1 << 20
_MOST_BOUND_CTAS = 13  # of an SM that a bound keeps evenly filled: with more, one more or less hardly counts
_SHARED_ROUNDING = 512  # at least the granularity in which shared memory is given to CTAs
# Limits are those of the CUDA programming guide's table of compute capabilities; multiprocessors and L2 are of
# A100, A10, L4, H100/H200 (SXM), B200 and RTX PRO 6000. sm_100 and sm_120 carry no suffix: nothing that is
# generated for them needs one, and code without it runs on later members of their families.
_NAMED: dict[str, NvidiaTarget] = {
    target.architecture: target
    for target in (
        NvidiaTarget(80, "", 86, 163 * _KIB, 164 * _KIB, 2048, 108, 40 * _MIB),
        NvidiaTarget(86, "", 86, 99 * _KIB, 100 * _KIB, 1536, 72, 6 * _MIB),
        NvidiaTarget(89, "", 86, 99 * _KIB, 100 * _KIB, 1536, 58, 48 * _MIB),
        NvidiaTarget(90, "a", 86, 227 * _KIB, 228 * _KIB, 2048, 132, 50 * _MIB),
        NvidiaTarget(100, "", 86, 227 * _KIB, 228 * _KIB, 2048, 148, 126 * _MIB),
        NvidiaTarget(120, "", 87, 99 * _KIB, 100 * _KIB, 1536, 188, 128 * _MIB),
    )
}
ARCHITECTURES = tuple(_NAMED)
