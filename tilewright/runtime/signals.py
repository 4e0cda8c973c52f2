"""Signals that come while native code runs: Python's handlers are called from there, and may end it.

A run of many program instances, or a plan, may take minutes, in which the interpreter cannot handle signals.  So the
native functions (`runtime.glue`) ask for them from time to time, with the GIL.  An exception that a handler raises, by
default KeyboardInterrupt for Ctrl-C, is taken off the thread and kept until the run has ended early.
"""

from __future__ import annotations

import ctypes
from typing import NoReturn

# Whether a handler of a signal raised: the exception is left at `raised`, three pointers.
TEXT = """
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyErr_CheckSignals()
declare void @PyErr_Fetch(ptr, ptr, ptr)
define internal i1 @signals(ptr %raised) nounwind {
entry:
  %state = call i32 @PyGILState_Ensure()
  %status = call i32 @PyErr_CheckSignals()
  %came = icmp ne i32 %status, 0
  br i1 %came, label %keep, label %out
keep:
  %value.p = getelementptr ptr, ptr %raised, i64 1
  %trace.p = getelementptr ptr, ptr %raised, i64 2
  call void @PyErr_Fetch(ptr %raised, ptr %value.p, ptr %trace.p)
  br label %out
out:
  call void @PyGILState_Release(i32 %state)
  ret i1 %came
}
"""
TEXT_WITHOUT_PYTHON = "define internal i1 @signals(ptr %raised) nounwind {\n  ret i1 false\n}"

_PYTHON = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch")
REFUSED, STOPPED = 1, 2  # what a run gives back, else 0
_raised = (ctypes.c_void_p * 3)()  # an exception of a signal's handler: signals are handled by one thread only
RAISED = ctypes.addressof(_raised)


def raise_kept() -> NoReturn:
    """Raise the exception of a signal's handler that stopped a run, KeyboardInterrupt by default."""
    kept = [ctypes.c_void_p(pointer) for pointer in _raised]
    _raised[:] = [None] * 3
    ctypes.pythonapi.PyErr_Restore(*kept)
    raise KeyboardInterrupt  # not reached: the call before raises what it restores


def functions() -> dict[str, int]:
    """The addresses of Python's functions that `TEXT` calls; nothing where one is missing."""
    python = getattr(ctypes, "pythonapi", None)
    if any(not hasattr(python, name) for name in _PYTHON):
        return {}
    found = {name: ctypes.cast(getattr(python, name), ctypes.c_void_p).value for name in _PYTHON}
    return {name: address for name, address in found.items() if address is not None}
