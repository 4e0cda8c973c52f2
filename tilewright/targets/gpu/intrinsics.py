"""The table of intrinsics through which generic code emits operations that each GPU names differently.

Everything else is LLVM's own language, the same for all.  Words are integers of 32 bits; a thread's numbers are i32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.targets.gpu.conversions import RegisterConverter
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue

if TYPE_CHECKING:
    from tilewright.ir.core import Operation
    from tilewright.targets.gpu.lowering import KernelLowering


@dataclass(frozen=True)
class GlobalAccess:
    """One instruction that loads or stores global memory: where, and the condition under which it does.

    `constant`: nobody writes the memory while the kernel runs.
    """

    operation: Operation
    pointer: LLVMValue
    condition: LLVMValue | None
    constant: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether LLVM's own load or store does it: no condition, and nothing asked of caches."""
        attributes = self.operation.attributes
        hints = attributes.get("volatile"), attributes["cache"], attributes["eviction"] in NAMED_EVICTIONS
        return self.condition is None and not any(hints)


NAMED_EVICTIONS = ("evict_first", "evict_last")  # other policies are how accesses are anyway


class Intrinsics(ABC):
    """The instructions of one GPU that LLVM has no common name for."""

    header: str  # what every module begins with: the target, and the shared memory of a CTA as `@shared`
    linkage: str  # of kernels: LLVM's calling convention for them
    scopes: Mapping[str, str]  # of atomic operations: LLVM's text by Tile IR's "cta", "gpu", "sys"

    @abstractmethod
    def kernel_attributes(self, threads: int, resident: int | None) -> str:
        """LLVM's attributes of a kernel run by CTAs of so many threads, `resident` of which shall fit a processor."""

    # Threads -------------------------------------------------------------------------------------

    @abstractmethod
    def thread(self, builder: LLVMBuilder) -> LLVMValue:
        """The number of the thread in its CTA."""

    @abstractmethod
    def program_id(self, builder: LLVMBuilder, axis: int) -> LLVMValue:
        """The number of the CTA along an axis of the grid."""

    @abstractmethod
    def num_programs(self, builder: LLVMBuilder, axis: int) -> LLVMValue:
        """The CTAs along an axis of the grid."""

    @abstractmethod
    def barrier(self, builder: LLVMBuilder) -> None:
        """A barrier of all threads of a CTA, after which they see each other's memory accesses."""

    @abstractmethod
    def reconverge(self, builder: LLVMBuilder) -> None:
        """Join the lanes of a warp, after code that only some ran; they see each other's memory accesses then."""

    @abstractmethod
    def butterfly(self, builder: LLVMBuilder, word: LLVMValue, distance: LLVMValue) -> LLVMValue:
        """A word of the lane whose number differs by XOR."""

    @abstractmethod
    def shuffle(self, builder: LLVMBuilder, word: LLVMValue, lane: LLVMValue) -> LLVMValue:
        """A word of any lane."""

    def combined(self, builder: LLVMBuilder, opcode: str, word: LLVMValue, signed: bool) -> LLVMValue | None:
        """The words of all lanes as one, which every lane has, by Tile IR's opcode; None without an instruction."""
        return None

    @abstractmethod
    def unknown_zero(self, builder: LLVMBuilder) -> LLVMValue:
        """A word that is 0 although no compiler knows."""

    # Numbers -------------------------------------------------------------------------------------

    @abstractmethod
    def converter(self, builder: LLVMBuilder) -> RegisterConverter:
        """What converts between element types."""

    @abstractmethod
    def exp2(self, builder: LLVMBuilder, x: LLVMValue) -> LLVMValue:
        """2 to the power of a float32, within 2 units in the last place; below 2^-126 it may be 0."""

    @abstractmethod
    def reciprocal(self, builder: LLVMBuilder, x: LLVMValue) -> LLVMValue:
        """1 / x of a normal float32, within 1 unit in the last place."""

    @abstractmethod
    def rsqrt(self, builder: LLVMBuilder, x: LLVMValue) -> LLVMValue:
        """1 / sqrt x of a float32, within 2 units in the last place."""

    # Memory --------------------------------------------------------------------------------------

    def load(self, lowering: KernelLowering, access: GlobalAccess, fill: Sequence[LLVMValue]) -> list[LLVMValue]:
        """Words from neighbouring places, as many and of the types of `fill`, which is there where the condition does
        not hold.  For accesses that are not plain; by a branch, and without what is asked of caches."""
        builder, kind = lowering.builder, fill[0].type
        whole, align = f"<{len(fill)} x {kind}>", len(fill) * int(kind[1:]) // 8
        volatile = bool(access.operation.attributes["volatile"])
        if access.condition is None:
            loaded = builder.load(whole, access.pointer, align, volatile=volatile)
            return [builder.extract(loaded, place) for place in range(len(fill))]
        before, then, after = builder.block, builder.new_block("load"), builder.new_block("load.end")
        builder.branch_if(access.condition, then, after)
        builder.start(then)
        loaded = builder.load(whole, access.pointer, align, volatile=volatile)
        words = [builder.extract(loaded, place) for place in range(len(fill))]
        builder.branch(after)
        builder.start(after)
        pairs = zip(fill, words, strict=True)
        return [builder.phi(after, kind, [(other, before), (word, then)]) for other, word in pairs]

    def store(self, lowering: KernelLowering, access: GlobalAccess, words: Sequence[LLVMValue]) -> None:
        """Words to neighbouring places, for accesses that are not plain; as `load` does it."""
        builder = lowering.builder
        with builder.when(access.condition or builder.constant("i1", True), hint="store"):
            store_words(builder, access.pointer, words)

    # Messages ------------------------------------------------------------------------------------

    @abstractmethod
    def stop(self, builder: LLVMBuilder, message: LLVMValue, file: LLVMValue, line: int, function: LLVMValue) -> None:
        """End the kernel with a message and the place that it is about; nothing after it runs."""

    @abstractmethod
    def print(self, builder: LLVMBuilder, text: LLVMValue, values: Sequence[LLVMValue]) -> None:
        """Print by a format of C; values are i32, i64 or double."""


def store_words(builder: LLVMBuilder, pointer: LLVMValue, words: Sequence[LLVMValue]) -> None:
    """Words to neighbouring places by one store, which is aligned to all of them."""
    stored = words[0]
    if len(words) > 1:
        stored = builder.poison(f"<{len(words)} x {words[0].type}>")
        for lane, word in enumerate(words):
            stored = builder.insert(stored, word, lane)
    builder.store(stored, pointer, int(words[0].type[1:]) * len(words) // 8)
