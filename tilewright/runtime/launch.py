"""Launch one kernel of a native library over a grid."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable

from tilewright.runtime.glue import glue
from tilewright.runtime.memory import scratch_pool
from tilewright.runtime.parallel import run_parallel
from tilewright.settings import settings

_GRID = struct.Struct("<3q")
_ADDRESS = struct.Struct("<Q")
_CONTEXT = struct.Struct("<2q")
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def launch(
    address: int,
    slots: bytes,
    grid: tuple[int, int, int],
    scratch_bytes: int = 0,
    threads: int | None = None,
    record: int | None = None,
) -> None:
    """Run every instance of `grid` of the kernel at `address`; returns when all are finished.

    `slots` holds the parameters, 8 bytes each, as `targets.base.Binary` describes; the grid's three are
    added here, and of a kernel with assertions the address of a `record`.  `threads` is `settings.threads` when None.
    The GIL is released meanwhile; whoever calls keeps the memory that the slots point to alive.
    """
    total = grid[0] * grid[1] * grid[2]
    if total > 0:
        last = b"" if record is None else _ADDRESS.pack(record)
        launcher(address, scratch_bytes)(slots + _GRID.pack(*grid) + last, total, threads)


@functools.lru_cache(maxsize=4096)
def launcher(address: int, scratch_bytes: int) -> Callable[..., None]:
    """``run(arguments, total, threads=None)`` of the kernel at `address`: what a cached launch calls.

    `arguments` are the packed slots and the grid's three extents, `total` the number of instances, at least 1.
    """
    kernel = _KERNEL(address)
    take, give = scratch_pool.take, scratch_pool.give

    def run(arguments: bytes, total: int, threads: int | None = None) -> None:
        if total > 1 and (workers := settings.threads if threads is None else threads) > 1:
            context = _CONTEXT.pack(address, total) + arguments
            run_parallel(glue().launch_body, context, scratch_bytes, min(workers, total))
        elif scratch_bytes == 0:
            kernel(arguments, None, 0, total)
        else:
            scratch = take(scratch_bytes)
            try:
                kernel(arguments, scratch.address, 0, total)
            finally:
                give(scratch)

    return run
