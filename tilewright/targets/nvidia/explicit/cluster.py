"""Clusters of CTAs."""

from __future__ import annotations

from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue
from tilewright.targets.nvidia.explicit.ptx import call, inline


def rank(builder: LLVMBuilder) -> LLVMValue:
    """The number of this CTA in its cluster (i32)."""
    return call(builder, "read.ptx.sreg.cluster.ctarank", result="i32")


def arrive(builder: LLVMBuilder, relaxed: bool = False, aligned: bool = False) -> None:
    """Arrive at the cluster's barrier; `relaxed` orders no memory; `aligned`: all lanes of a warp come together."""
    call(builder, f"barrier.cluster.arrive{'.relaxed' if relaxed else ''}{'.aligned' if aligned else ''}")


def wait(builder: LLVMBuilder, aligned: bool = False) -> None:
    """Wait until all threads of the cluster have arrived."""
    call(builder, f"barrier.cluster.wait{'.aligned' if aligned else ''}")


def load_remote(builder: LLVMBuilder, where: LLVMValue, peer: LLVMValue, words: int) -> list[LLVMValue]:
    """`words` (1, 2 or 4) 32-bit words from the shared memory of another CTA of the cluster.

    `where` is an address of the shared window (`ptx.address`), in bytes, a multiple of 4 `words`.  The text has effects
    and clobbers memory, else LLVM would move it above the cluster's barrier.
    """
    vector = f".v{words}" if words > 1 else ""
    names = ", ".join(f"${number}" for number in range(words))
    listed = f"{{{names}}}" if words > 1 else names
    text = (
        f"{{ .reg .b32 there; mapa.shared::cluster.u32 there, ${words}, ${words + 1}; "
        f"ld.shared::cluster{vector}.b32 {listed}, [there]; }}"
    )
    return inline(builder, text, ["i32"] * words, [where, peer])
