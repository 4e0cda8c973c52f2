"""The current trace, into which every language function emits its operations.

The front end activates a `Tracer` while it walks a kernel; language functions reach it through
`active()`.  Calling one of them outside a kernel is a user error with a clear message.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from tilewright.errors import CompilationError
from tilewright.ir.builder import Builder
from tilewright.ir.core import Attribute, Operation, Region, SSAValue


class LanguageError(CompilationError):
    """A rule of the language is broken; inside a kernel the front end adds the place."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}\n  help: {advice}" if advice else message)
        self.message = message
        self.advice = advice


class Tracer(Protocol):
    """What the language needs from the front end."""

    builder: Builder

    @property
    def sanitize_overflow(self) -> bool:
        """Whether integer arithmetic of the line being traced is to stop at run time when it overflows."""
        ...

    @property
    def wide_grid(self) -> bool:
        """Whether places in the grid are numbers of 64 bits, as elements of tensors are counted by them."""
        ...

    def call(self, function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Inline a function of the language (or call a compile-time function)."""
        ...

    def remark(self, severity: str, message: str) -> None:
        """Tell the user something about the line being traced."""
        ...


# Functions that are written in the language, by name: operations that are made of them know no module of theirs.
written: dict[str, Any] = {}


class _State(threading.local):
    tracer: Tracer | None = None


_state = _State()


def active() -> Tracer:
    """The tracer of the kernel being traced; raises `LanguageError` outside of one."""
    if _state.tracer is None:
        raise LanguageError(
            "tile language functions work only inside a kernel",
            "call them in a function decorated with @tilewright.jit",
        )
    return _state.tracer


def in_kernel() -> bool:
    """Whether a kernel is being traced."""
    return _state.tracer is not None


@contextmanager
def activate(tracer: Tracer) -> Iterator[None]:
    """Make `tracer` the active one for a block; nests."""
    saved = _state.tracer
    _state.tracer = tracer
    try:
        yield
    finally:
        _state.tracer = saved


def create(
    opcode: str,
    operands: Sequence[SSAValue],
    attributes: dict[str, Attribute] | None = None,
    regions: list[Region] | None = None,
) -> Operation:
    """Emit one operation into the trace."""
    return active().builder.create(opcode, operands, attributes, regions or ())
