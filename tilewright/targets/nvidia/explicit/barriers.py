"""Barriers in shared memory (mbarrier) and the hardware's named barriers."""

from __future__ import annotations

from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue
from tilewright.targets.nvidia.explicit.ptx import address, call, inline, pointer

BARRIER_BYTES = 8


def initialize(builder: LLVMBuilder, place: LLVMValue, arrivals: int) -> None:
    """Make the 8 bytes at `place` a barrier whose phase ends after `arrivals` arrivals; by one thread."""
    call(builder, "mbarrier.init.shared", pointer(builder, place), builder.integer(arrivals, "i32"))


def fence_initialization(builder: LLVMBuilder) -> None:
    """Let other CTAs of the cluster and the copy engine see initialised barriers (after a CTA or cluster barrier)."""
    call(builder, "fence.mbarrier_init.release.cluster")


def arrive(builder: LLVMBuilder, place: LLVMValue) -> None:
    """One arrival at a barrier of this CTA."""
    call(
        builder, "mbarrier.arrive.scope.cta.space.cta", pointer(builder, place), builder.integer(1, "i32"), result="i64"
    )


def arrive_remote(builder: LLVMBuilder, place: LLVMValue, rank: LLVMValue) -> None:
    """One arrival at the barrier in the same place of the CTA of a rank in the cluster."""
    text = (
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; mbarrier.arrive.shared::cluster.b64 _, [there]; }"
    )
    inline(builder, text, inputs=[address(builder, place), rank])


def arrive_expect(builder: LLVMBuilder, place: LLVMValue, count: int) -> None:
    """One arrival, and the phase ends only after `count` more bytes have come by asynchronous copies."""
    size = builder.integer(count, "i32")
    call(builder, "mbarrier.arrive.expect.tx.scope.cta.space.cta", pointer(builder, place), size, result="i64")


def wait(builder: LLVMBuilder, place: LLVMValue, parity: LLVMValue) -> None:
    """Wait until the phase of this parity (i32, 0 or 1) has ended; the hardware suspends the thread between tries."""
    again, done = builder.new_block("wait"), builder.new_block("wait.done")
    barrier = pointer(builder, place)
    builder.branch(again)
    builder.start(again)
    ended = call(builder, "mbarrier.try.wait.parity.scope.cta.space.cta", barrier, parity, result="i1")
    builder.branch_if(ended, done, again)
    builder.start(done)


def named_sync(builder: LLVMBuilder, number: LLVMValue, threads: int) -> None:
    """Wait at hardware barrier `number` until `threads` threads have arrived or wait."""
    call(builder, "barrier.cta.sync.aligned.count", number, builder.integer(threads, "i32"))


def named_arrive(builder: LLVMBuilder, number: LLVMValue, threads: int) -> None:
    """Arrive at hardware barrier `number` and go on."""
    call(builder, "barrier.cta.arrive.aligned.count", number, builder.integer(threads, "i32"))


def cta_sync(builder: LLVMBuilder) -> None:
    """Wait for all threads of the CTA (hardware barrier 0)."""
    call(builder, "barrier.cta.sync.aligned.all", builder.integer(0, "i32"))


def fence_async(builder: LLVMBuilder) -> None:
    """Let the copy engine and wgmma see this thread's ordinary writes to shared memory."""
    call(builder, "fence.proxy.async.shared_cta")
