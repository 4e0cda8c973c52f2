"""The driver's own assembler: PTX to a cubin for the current GPU."""

from __future__ import annotations

import ctypes
import uuid

from tilewright.runtime.cuda.device import current_device
from tilewright.runtime.cuda.driver import api, check

_LOG_BYTES = 1 << 16


def link_ptx(ptx: str, opt_level: int = 3, line_info: bool = False) -> tuple[bytes | None, str]:
    """The cubin of a module of PTX and the assembler's report (as of ``ptxas -v``); None where it refuses the code."""
    cubin, log = _link(ptx, opt_level, line_info)
    if cubin is not None and "ptxas info" not in log:
        # The driver found the code in its own cache, which keeps no report. It is asked only for what our cache does
        # not have, and whoever asks reads the report: registers and spills stand in the compiled kernel, spills make it
        # try with more registers, and `strict` refuses them. A comment that is always the same would be found as well.
        cubin, log = _link(f"{ptx}\n// {uuid.uuid4()}\n", opt_level, line_info)
    return cubin, log


def _link(ptx: str, opt_level: int, line_info: bool) -> tuple[bytes | None, str]:
    cuda = api()
    kinds = cuda.CUjit_option
    information, errors = bytearray(_LOG_BYTES), bytearray(_LOG_BYTES)
    options = {
        kinds.CU_JIT_OPTIMIZATION_LEVEL: opt_level,
        kinds.CU_JIT_GENERATE_LINE_INFO: int(line_info),
        kinds.CU_JIT_LOG_VERBOSE: 1,
        kinds.CU_JIT_INFO_LOG_BUFFER: information,
        kinds.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: _LOG_BYTES,
        kinds.CU_JIT_ERROR_LOG_BUFFER: errors,
        kinds.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: _LOG_BYTES,
    }
    text = ptx.encode() + b"\0"
    with current_device().active():
        state = check(cuda.cuLinkCreate(len(options), list(options), list(options.values())), "starting the assembler")
        try:
            kind = cuda.CUjitInputType.CU_JIT_INPUT_PTX
            (status,) = cuda.cuLinkAddData(state, kind, text, len(text), b"kernel.ptx", 0, [], [])
            cubin = None
            if int(status) == 0:
                status, address, size = cuda.cuLinkComplete(state)
                if int(status) == 0:
                    cubin = ctypes.string_at(int(address), size)
            log = "\n".join(_text(buffer) for buffer in (information, errors) if buffer[0])
        finally:
            check(cuda.cuLinkDestroy(state), "ending the assembler")
    return cubin, log


def _text(buffer: bytearray) -> str:
    return bytes(buffer).split(b"\0")[0].decode(errors="replace")
