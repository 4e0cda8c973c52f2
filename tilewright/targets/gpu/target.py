"""The capabilities of a GPU that generic code needs."""

from __future__ import annotations

from typing import Protocol


class SimtTarget(Protocol):
    """The capabilities of a GPU that layouts and the lowering of blocks to threads depend on."""

    @property
    def architecture(self) -> str:
        """The name that LLVM knows it by."""
        ...

    @property
    def warp_threads(self) -> int:
        """Threads that run one instruction together: 32, or 64; a power of two."""
        ...

    @property
    def threads_per_multiprocessor(self) -> int:
        """Threads that a multiprocessor holds at once."""
        ...

    @property
    def registers_per_multiprocessor(self) -> int:
        """Registers of 32 bits that all threads of a multiprocessor share."""
        ...

    @property
    def shared_bytes(self) -> int:
        """The most shared memory that one CTA may have."""
        ...

    @property
    def shared_bytes_per_multiprocessor(self) -> int: ...

    @property
    def asynchronous_copies(self) -> bool:
        """Whether threads start copies from global to shared memory, and wait for them later."""
        ...

    @property
    def bfloat16_arithmetic(self) -> bool:
        """Whether bfloat16 adds and multiplies in itself, two at a time."""
        ...


def lane_bits(target: SimtTarget) -> int:
    """Bits of a thread's number that count within its warp."""
    return target.warp_threads.bit_length() - 1
