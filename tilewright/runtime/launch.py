"""Launch one kernel of a native library over a grid."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable

from tilewright.runtime.glue import glue
from tilewright.runtime.memory import scratch_pool
from tilewright.runtime.parallel import run_parallel
from tilewright.runtime.signals import RAISED_ADDRESS, STOPPED, raise_pending
from tilewright.settings import settings

_GRID = struct.Struct("<3q")
_ADDRESS = struct.Struct("<Q")
_CONTEXT = struct.Struct("<2q")
_PARAMETERS = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_KERNEL = ctypes.CFUNCTYPE(None, *_PARAMETERS)
_REFUSING = ctypes.CFUNCTYPE(ctypes.c_int32, *_PARAMETERS)


def launch(
    address: int, slots: bytes, grid: tuple[int, int, int], scratch_bytes: int = 0, threads: int | None = None,
    record: int | None = None, refuses: bool = False,
) -> bool:  # fmt: skip
    """Run every instance of `grid` of the kernel at `address`; returns when all are finished.

    The result says whether one that `refuses` did so: then nothing was run.
    `slots` holds the parameters, 8 bytes each, as `targets.base.Binary` describes; the grid's three are
    added here, and of a kernel with assertions the address of a `record`.  `threads` is `settings.threads` when None.
    The GIL is released meanwhile; whoever calls keeps the memory that the slots point to alive.
    """
    total = grid[0] * grid[1] * grid[2]
    if total <= 0:
        return False
    last = b"" if record is None else _ADDRESS.pack(record)
    return bool(launcher(address, scratch_bytes, refuses)(slots + _GRID.pack(*grid) + last, total, threads))


@functools.lru_cache(maxsize=4096)
def launcher(address: int, scratch_bytes: int, refuses: bool = False) -> Callable[..., int | None]:
    """``run(arguments, total, threads=None)`` of the kernel at `address`: what a cached launch calls.

    `arguments` are the packed slots and the grid's three extents, `total` the number of instances, at least 1.
    It returns 1 if the kernel `refuses` these arguments, and has run nothing then.
    """
    kernel = (_REFUSING if refuses else _KERNEL)(address)
    take, give, run_alone = scratch_pool.take, scratch_pool.give, glue().run_alone

    def run(arguments: bytes, total: int, threads: int | None = None) -> int | None:
        if total > 1 and (workers := settings.threads if threads is None else threads) > 1:
            if refuses and kernel(arguments, None, 0, 0):  # a range of nothing: only the answer
                return 1
            context = _CONTEXT.pack(address, total) + arguments
            run_parallel(glue().launch_body, context, scratch_bytes, min(workers, total))
            return None
        if scratch_bytes == 0:
            if total == 1:
                refused: int | None = kernel(arguments, None, 0, 1)
                return refused
            outcome = run_alone(address, arguments, None, total, refuses, RAISED_ADDRESS)
        else:
            scratch = take(scratch_bytes)
            try:
                outcome = run_alone(address, arguments, scratch.address, total, refuses, RAISED_ADDRESS)
            finally:
                give(scratch)
        if outcome == STOPPED:
            raise_pending()
        return int(outcome)

    return run
