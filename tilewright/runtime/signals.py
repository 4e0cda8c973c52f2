"""Signals that come while native code runs: Python's handlers are called from there, and may end it.

A run of many program instances, or a plan, may take minutes, in which the interpreter cannot handle signals.  So the
native functions (`runtime.glue`) ask for them from time to time, with the GIL.  An exception that a handler raises, by
default KeyboardInterrupt for Ctrl-C, is taken off the thread and kept until the run has ended early.  In the same
places a run ends that was told to by another thread (`ended_by`).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from tilewright.errors import RunEndedError

# Whether a handler of a signal raised: the exception is left at `raised`, three pointers.  Or the run is to end.
_SIGNALS_TEXT = """
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyErr_CheckSignals()
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare i32 @tilewright_ends()
define internal i1 @signals(ptr %raised) nounwind {
entry:
  ; one exception at a time: a further signal is kept by Python until this one has been raised
  %kept = load ptr, ptr %raised, align 8
  %full = icmp ne ptr %kept, null
  br i1 %full, label %none, label %check
none:
  ret i1 false
check:
  %state = call i32 @PyGILState_Ensure()
  %status = call i32 @PyErr_CheckSignals()
  %came = icmp ne i32 %status, 0
  br i1 %came, label %keep, label %told
told:
  %told.ends = call i32 @tilewright_ends()
  %ends = icmp ne i32 %told.ends, 0
  br label %out
keep:
  %value.p = getelementptr ptr, ptr %raised, i64 1
  %trace.p = getelementptr ptr, ptr %raised, i64 2
  call void @PyErr_Fetch(ptr %raised, ptr %value.p, ptr %trace.p)
  br label %out
out:
  %result = phi i1 [ true, %keep ], [ %ends, %told ]
  call void @PyGILState_Release(i32 %state)
  ret i1 %result
}
"""
_TEXT_WITHOUT_PYTHON = "define internal i1 @signals(ptr %raised) nounwind {\n  ret i1 false\n}"

_ASK_TEXT = """
; Asked by the loops of an instance whose end nobody knows: whether it shall end. `record` is of its launch
; (`failure_record`), `asked` when it asked last, 0 before that.
define i1 @tilewright_ask(ptr %record, ptr %asked) nounwind {
entry:
  %state = load atomic i64, ptr %record monotonic, align 8
  %failed = icmp ne i64 %state, 0
  br i1 %failed, label %ends, label %goes
ends:
  ret i1 true
goes:
  %now = call i64 @ticks()
  %before = load i64, ptr %asked, align 8
  %since = sub i64 %now, %before
  %first = icmp eq i64 %before, 0
  %early = icmp ult i64 %since, ASK_TICKS
  br i1 %first, label %note, label %later
note:
  store i64 %now, ptr %asked, align 8
  ret i1 false
later:
  br i1 %early, label %on, label %due
on:
  ret i1 false
due:
  store i64 %now, ptr %asked, align 8
  %raised.p = getelementptr i64, ptr %record, i64 RECORD_RAISED
  %raised = load ptr, ptr %raised.p, align 8
  %came = call i1 @signals(ptr %raised)
  br i1 %came, label %stop, label %on
stop:
  %interrupted.p = getelementptr i64, ptr %record, i64 RECORD_INTERRUPTED
  store atomic i64 1, ptr %interrupted.p release, align 8
  store atomic i64 1, ptr %record release, align 8
  ret i1 true
}
"""

_PYTHON = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch")
# Words of a kernel's record: where an exception is left, and whether one was left for its launch.
RECORD_RAISED, RECORD_INTERRUPTED = 38, 39
REFUSED, STOPPED = 1, 2  # what a run gives back, else 0
_raised = (ctypes.c_void_p * 3)()  # an exception of a signal's handler: signals are handled by one thread only
RAISED_ADDRESS = ctypes.addressof(_raised)


def text(can_ask: bool, ask_ticks: int) -> str:
    """The LLVM text of `signals` and `tilewright_ask`, which asks every `ask_ticks` of the glue's `ticks`.

    `can_ask` says that Python's functions are there.
    """
    words = {"ASK_TICKS": ask_ticks, "RECORD_RAISED": RECORD_RAISED, "RECORD_INTERRUPTED": RECORD_INTERRUPTED}
    ask = _ASK_TEXT
    for name, value in words.items():
        ask = ask.replace(name, str(value))
    return (_SIGNALS_TEXT if can_ask else _TEXT_WITHOUT_PYTHON) + ask


def raise_pending() -> NoReturn:
    """Raise what stopped a run: a signal's handler's exception, by default KeyboardInterrupt, or `RunEndedError`."""
    if not _raised[0]:
        raise _ended_error()
    exception = [ctypes.c_void_p(pointer) for pointer in _raised]
    _raised[:] = [None] * 3
    ctypes.pythonapi.PyErr_Restore(*exception)
    raise KeyboardInterrupt  # not reached: the call before raises what it restores


# Runs that another thread ends ------------------------------------------------------------------------

_end_checks: dict[int, Callable[[], bool]] = {}  # by the threads whose runs may be told to end


@contextmanager
def ended_by(is_to_end: Callable[[], bool]) -> Iterator[None]:
    """Runs of this thread end early once `is_to_end()` is true, and raise `RunEndedError`."""
    thread = threading.get_ident()
    before = _end_checks.get(thread)
    _end_checks[thread] = is_to_end
    try:
        check_ended()
        yield
    finally:
        if before is None:
            del _end_checks[thread]
        else:
            _end_checks[thread] = before


def check_ended() -> None:
    """Raise `RunEndedError` if this thread's run was told to end."""
    if _end_checks and _ends():
        raise _ended_error()


def _ended_error() -> RunEndedError:
    return RunEndedError("the run ended early, because it was told to terminate; its results are not there")


@ctypes.CFUNCTYPE(ctypes.c_int)
def _native_ends() -> int:
    return _ends()


def _ends() -> bool:
    is_to_end = _end_checks.get(threading.get_ident())
    return is_to_end is not None and is_to_end()


def functions() -> dict[str, int]:
    """The addresses of the functions that `_SIGNALS_TEXT` calls; nothing where one of Python's is missing."""
    python = getattr(ctypes, "pythonapi", None)
    if any(not hasattr(python, name) for name in _PYTHON):
        return {}
    found = {name: ctypes.cast(getattr(python, name), ctypes.c_void_p).value for name in _PYTHON}
    found["tilewright_ends"] = ctypes.cast(_native_ends, ctypes.c_void_p).value
    return {name: address for name, address in found.items() if address is not None}
