"""Loops without a known end check for signals, so that Ctrl-C ends a launch that would run forever.

A run asks Python for signals between instances (`runtime.glue`), so that one that stays in a `while` would not see
them.  Its passes are counted, and every `_PASSES_UNASKED` of them call the runtime's `tilewright_ask`, whose address is
in the launch's record.  That looks at the clock, calls Python's handlers a few times a second, and says whether the
instance shall end, because a handler raised or because another instance has failed.
"""

from __future__ import annotations

from tilewright.ir.core import Function
from tilewright.runtime.failure_record import ASK
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue

_PASSES_UNASKED = 1 << 16  # between two calls: a power of two


def loops_without_end(function: Function) -> bool:
    """Whether a kernel has loops that nothing bounds, in functions mapped over elements too."""
    return any(operation.opcode == "while" for operation in function.walk())


class AskEmitter:
    """Emits what the loops of one instance function do at each pass; they count together."""

    def __init__(self, builder: LLVMBuilder, record: LLVMValue) -> None:
        self._builder, self._record = builder, record
        self._passes = builder.alloca("i64", 1, 8)
        self._last_query = builder.alloca("i64", 1, 8)  # when this instance has asked last; 0 before that
        for place in (self._passes, self._last_query):
            builder.store(builder.integer(0), place, 8)

    def passed(self) -> None:
        """Count a pass, and leave the instance here if it shall end."""
        builder = self._builder
        passes = builder.add(builder.load("i64", self._passes, 8), 1)
        builder.store(passes, self._passes, 8)
        due = builder.compare("eq", builder.binary("and", passes, builder.integer(_PASSES_UNASKED - 1)), 0)
        with builder.when(due, (1, _PASSES_UNASKED), "asks"):
            ask = builder.load("ptr", builder.gep(self._record, ASK, "i64"), 8)
            ends = builder.emit(f"call i1 {ask.text}({self._record}, {self._last_query})", "i1")
            with builder.when(ends, (1, 1 << 20), "interrupted"):
                builder.ret()
