"""The contract of a target: a table of capabilities and a way from Tile IR to a binary."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from tilewright.dtypes import DType
from tilewright.errors import ExecutionError
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.ir.core import Function, Operation
from tilewright.ir.memory import Extent
from tilewright.runtime.failure_record import Failure
from tilewright.targets.machine import Machine

if TYPE_CHECKING:
    from tilewright.graph.target_passes import TargetPasses


@dataclass(frozen=True)
class Remark:
    """One thing the compiler reports about a kernel, with the source line."""

    severity: str  # "note" or "warning"
    message: str
    file: str = ""
    line: int = 0


def stored_remarks(remarks: Iterable[Remark]) -> list[dict[str, Any]]:
    """Remarks as the object cache keeps them, with the names of files only: keys do not hold where a kernel is, so that
    several checkouts may find one entry."""
    return [asdict(replace(remark, file=os.path.basename(remark.file))) for remark in remarks]


@dataclass(frozen=True)
class Binary:
    """A compiled kernel: machine code and what is needed to launch it.

    How `symbol` is called is the target's matter: of a GPU's kernel see `targets.gpu.binary.GpuBinary`.  On
    the CPU it is a function, one call for a run of program instances:

        void symbol(ptr arguments, ptr scratch, i64 begin, i64 end)

    `arguments` is an array of 8-byte slots, one for each entry of `parameters` in order (pointers and
    integers as 64-bit values, sign- or zero-extended; floats in the low bytes of their slot, in the
    parameter's own format), followed by three slots with the grid's x, y and z extents, and in a kernel
    that `records` one with the address of a record (`runtime.failure_record`).  Instances
    `begin` to `end - 1` of the linear grid (x fastest) are run in order.  `scratch` is private to the
    call, 64-byte aligned, and at least `scratch_bytes` long.  One that `refuses` returns an i32: 1, and nothing was
    run, where arrays overlap in a way that its loops do not bear; the answer depends on the arguments only.
    """

    target: str  # "cpu", "cuda"
    key: str  # content hash: the cache's and the engine's name of this binary
    symbol: str  # unique to this key, so that many binaries link into one library
    image: bytes  # object file, cubin
    parameters: tuple[str, ...]  # IR text of each parameter's type: "*f32", "i32", "f32", …
    scratch_bytes: int  # of memory that the launcher provides
    records: bool = False  # whether a CPU's kernel has assertions, or loops without a known end
    asks: bool = False  # whether it has such loops, which want functions of the runtime in the record
    refuses: bool = False  # whether a CPU's kernel returns 1 for arrays that overlap
    features: tuple[str, ...] = ()  # what the machine must have: LLVM's names of CPU features, a GPU architecture
    remarks: tuple[Remark, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)  # by stage, "ir", "llvm", "asm", "ptx", where kept
    seconds: Mapping[str, float] = field(default_factory=dict)  # compile time by stage


class Target(Protocol):
    """A machine that kernels are compiled for: what it can do, and nothing of how that is done (`Backend`)."""

    name: str

    @property
    def architecture(self) -> str:
        """The kind of machine: ``x86_64``, ``sm_90a``."""
        ...

    @property
    def generation(self) -> int | str:
        """How host code of kernels tells machines of a family apart: a compute capability (90), a CPU's name."""
        ...

    @property
    def host_code(self) -> bool:
        """Whether kernels and plans are functions of the host's processor; others are launched on a device."""
        ...

    @property
    def warp_threads(self) -> int:
        """Threads that run one instruction together; 1 on CPUs."""
        ...

    @property
    def vector_bits(self) -> int:
        """Bits of a vector register; 0 on GPUs, whose threads have numbers of their own."""
        ...

    @property
    def vector_registers(self) -> int:
        """Vector registers of a CPU; 0 on GPUs."""
        ...

    @property
    def table_lanes(self) -> int:
        """Numbers of 32 bits in a vector register from which one instruction picks for each lane; 0: there is none."""
        ...

    @property
    def shuffles_broadcasts(self) -> bool:
        """Whether copying a number from memory to all lanes takes a shuffle, but none as the operand of a product."""
        ...

    @property
    def l2_bytes(self) -> int:
        """The L2 cache: of a CPU's core, of all of a GPU."""
        ...

    @property
    def concurrent_kernels(self) -> bool:
        """Whether kernels of an engine that do not depend on each other may run at once."""
        ...

    @property
    def times_kernels(self) -> bool:
        """Whether a build times candidates whose estimates are close, where this machine has such a device."""
        ...

    @property
    def tensor_alignment(self) -> int:
        """Bytes that the address of every tensor of an engine is a multiple of, the caller's included."""
        ...

    @property
    def largest_grid(self) -> tuple[int, int, int]:
        """The most programs of a launch along each axis."""
        ...

    @property
    def wgmma(self) -> bool:
        """Whether warp groups multiply tiles of shared memory: explicit kernels for Hopper run."""
        ...

    @property
    def without_wgmma(self) -> str:
        """Why explicit kernels for Hopper do not run; empty where they do."""
        ...

    @property
    def dependent_launch(self) -> bool:
        """Whether a kernel may start before the one that it depends on has ended, and waits for it itself."""
        ...

    @property
    def tf32(self) -> bool:
        """Whether products and convolutions of float32 models multiply as tf32."""
        ...

    @property
    def compiles_quickly(self) -> bool:
        """Whether there is a `quick_variant`, which compiles in less time to slower code."""
        ...

    @property
    def quick(self) -> bool:
        """Whether this is one."""
        ...

    def with_precision(self, precision: str) -> Target:
        """The same with a precision of float32 (`tilewright.precision`), where the machine has it."""
        ...

    def without_tensor_copies(self) -> Target:
        """The same machine as the library sees it where tensor copies cannot move the operands."""
        ...

    def quick_variant(self) -> Target:
        """The same machine, compiled for in less time to slower code where `compiles_quickly`."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What an engine's file says of the machine that it is for, besides the features that its code needs."""
        ...

    @property
    def key(self) -> str:
        """Everything of the machine that a binary depends on: triple, CPU, features."""
        ...

    @property
    def description(self) -> str:
        """The capability table in one line, for people."""
        ...

    def supports(self, dtype: DType) -> bool:
        """Whether values of this element type can be computed with."""
        ...

    def microtile(self, dtype: DType) -> tuple[int, int]:
        """Rows and columns of the register tile of `dot`: blocks in multiples of it run fastest."""
        ...

    def panel_group(self, dtype: DType, rows: int, depth: int, pairs_fit: bool = False) -> int:
        """Steps of the depth that `dot` wants side by side in panels, for products of at least `rows` rows;
        `pairs_fit`: of 8-bit integers, sums of whose products of two neighbours are numbers of 16 bits."""
        ...

    def tile_depth(self, dtype: DType, rows: int) -> int:
        """Steps of the depth that tile registers multiply at once, for products of at least `rows` rows of this type;
        0: they do not, or there are none."""
        ...

    def dot_rate(self, dtype: DType, group: int = 1) -> float:
        """Speed of `dot` on operands of this type, relative to float32; `group` steps of the depth of a right one that
        is constant lie side by side."""
        ...

    @property
    def kernels(self) -> KernelFacts:
        """What kernels the library has for it, and how much they take: graph passes go by it."""
        ...

    def machine(self) -> Machine:
        """The rates that estimates count with; a CPU has as many threads as the settings say."""
        ...


class CodeOptions(Protocol):
    """The options of a launch that change a target's code, checked, as one frozen record (`targets/*/options.py`)."""

    @property
    def key(self) -> str:
        """What code depends on, as a text."""
        ...

    @property
    def line_info(self) -> bool:
        """Whether code depends on where its source is."""
        ...

    @property
    def keep_texts(self) -> bool:
        """Whether the binary has the texts of all stages."""
        ...


class Backend(Protocol):
    """What compiles for one target; `registry.backend_of` has the one of each.  `options` of its methods are the
    target's record, `CodeOptions`."""

    @property
    def target(self) -> Target: ...

    @property
    def option_names(self) -> frozenset[str]:
        """Options of a launch that change the code: others are accepted, and reported."""
        ...

    @property
    def key(self) -> str:
        """Everything besides kernel and options that a binary depends on: the target's key, and who assembles."""
        ...

    @property
    def graph_passes(self) -> TargetPasses:
        """What is done with graphs for this target alone."""
        ...

    def prepare(self) -> None:
        """Import what `compile` needs: once, before processes are forked that compile."""
        ...

    def options(self, given: Mapping[str, Any]) -> CodeOptions:
        """The record of a launch's options; others change nothing.  Raises `CompilationError` for bad values."""
        ...

    def compile(self, function: Function, options: Any) -> Binary:
        """Lower a verified Tile IR kernel to machine code; results are cached on disk by content."""
        ...

    def explain(self, function: Function, options: Any) -> str:
        """What lowering a verified kernel decides, for people: line by line of the source where it is known."""
        ...

    def load(self, key: str) -> Binary | None:
        """The binary of a key that `compile` gave before, from the cache on disk; None when it is not there."""
        ...


@dataclass(frozen=True)
class CFunction:
    """A kernel as a C function in an object file."""

    image: bytes
    machine: str  # what it is for: "x86_64 znver4"
    features: tuple[str, ...]  # what that must have
    failing: frozenset[str]  # opcodes of operations that may fail, which is printed


class DeviceBackend(Backend, Protocol):
    """The backend of a target whose kernels are launched on a device."""

    def describe(self, binary: Any) -> Any:
        """What a binary takes and is made of: registers, spills, shared memory, instructions by kind."""
        ...

    def disassemble(self, image: bytes) -> str:
        """The instructions of machine code; raises `MissingDependencyError` where there is no disassembler."""
        ...


class HostBackend(Backend, Protocol):
    """The backend of a target whose kernels and plans are functions of the host's processor (`host_code`)."""

    def assemble_plan(self, text: str) -> bytes:
        """The object file of a plan's LLVM module; plans of other targets are walked by the runtime."""
        ...

    def failed_operation(
        self, function: Function, failure: Failure, extents: Sequence[Extent]
    ) -> tuple[Operation, ExecutionError]:
        """What failed in a traced kernel, an assertion, a loop or an access, and its error.

        `extents` are what its pointers may reach, none where that is not checked.
        """
        ...

    def c_function(self, function: Function, name: str) -> CFunction:
        """A verified kernel as a C function that runs all of its grid by threads of its own."""
        ...
