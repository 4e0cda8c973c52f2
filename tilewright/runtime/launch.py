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
_CONTEXT = struct.Struct("<3q")
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@functools.lru_cache(maxsize=4096)
def _kernel(address: int) -> Callable[[bytes, int, int, int], None]:
    return _KERNEL(address)


def launch(
    address: int, slots: bytes, grid: tuple[int, int, int], scratch_bytes: int = 0, threads: int | None = None
) -> None:
    """Run every instance of `grid` of the kernel at `address`; returns when all are finished.

    `slots` holds the parameters, 8 bytes each, as `targets.base.Binary` describes; the grid's three are
    added here.  `threads` is `settings.threads` when None.  The GIL is released meanwhile; whoever calls
    keeps the memory that the slots point to alive.
    """
    total = grid[0] * grid[1] * grid[2]
    if total <= 0:
        return
    arguments = slots + _GRID.pack(*grid)
    workers = min(settings.threads if threads is None else threads, total)
    if workers <= 1:
        with scratch_pool.borrow(scratch_bytes) as scratch:
            _kernel(address)(arguments, scratch.address, 0, total)
        return
    memory = ctypes.create_string_buffer(arguments)
    context = ctypes.create_string_buffer(_CONTEXT.pack(address, ctypes.addressof(memory), total))
    run_parallel(glue().launch_body, ctypes.addressof(context), scratch_bytes, workers)
