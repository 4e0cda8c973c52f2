"""One trace: the builder, the remarks, and how a function of the language is entered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright import language
from tilewright.errors import CompilationError, brief
from tilewright.ir.builder import Builder
from tilewright.ir.core import Location
from tilewright.ir.diagnostics import user_place
from tilewright.language.context import LanguageError
from tilewright.language.function import SourceFunction
from tilewright.settings import settings
from tilewright.targets.base import Remark

MAXIMUM_DEPTH = 60
_LANGUAGE = str(Path(language.__file__).parent)


Run = Callable[["TraceSession", SourceFunction, Sequence[Any], Mapping[str, Any], Location | None], Any]


class TraceSession:
    """What all functions of one trace share; the language's `Tracer`."""

    def __init__(
        self, builder: Builder, run: Run, debug: bool = False, sanitize: bool = True, wide_grid: bool = False
    ) -> None:
        """`run` traces the body of a function with its arguments, for a caller at a place."""
        self.builder = builder
        self._run = run
        self.debug = debug
        self.sanitize = sanitize  # whether debug builds assert that integers do not overflow
        self.wide_grid = wide_grid
        self.remarks: dict[tuple[str, str, int], Remark] = {}
        self.depth = 0

    @property
    def sanitize_overflow(self) -> bool:
        """In debug builds, for what users wrote; the language's own functions count on numbers that wrap.

        A checked run keeps assertions, but follows overflow to the addresses that it reaches by itself.
        """
        location = self.builder.location
        if location is None or settings.interpret == "check":
            return False
        return self.debug and self.sanitize and not location.file.startswith(_LANGUAGE)

    def call(self, function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Inline a function of the language; its caller is the operation being emitted."""
        if not isinstance(function, SourceFunction):
            raise LanguageError(
                f"a function of the tile language is needed here, got {brief(function)}",
                "decorate it with @tilewright.jit",
            )
        return self.inline(function, arguments, keywords, self.builder.location)

    def inline(
        self, function: SourceFunction, arguments: Sequence[Any], keywords: Mapping[str, Any], caller: Location | None
    ) -> Any:
        """Trace a function's body at this point, its parameters bound to the arguments."""
        self.check_depth(function)
        if getattr(function, "noinline", False):
            self.remark("note", f"'{function.name}' is inlined here, as every function is: noinline has no effect")
        saved = self.builder.location
        self.depth += 1
        try:
            return self._run(self, function, arguments, keywords, caller)
        except CompilationError as error:
            if not function.__module__.startswith("tilewright.language"):
                raise
            # Inside tl.zeros and the like a user has nothing to look for: the call is the place.
            raise LanguageError(error.message or str(error), error.advice) from None
        finally:
            self.depth -= 1
            self.builder.location = saved

    def check_depth(self, function: SourceFunction) -> None:
        """Raise `LanguageError` when functions call each other without an end."""
        if self.depth >= MAXIMUM_DEPTH:
            raise LanguageError(
                f"'{function.name}' is nested more than {MAXIMUM_DEPTH} calls deep", "recursion must end on a constexpr"
            )

    def remark(self, severity: str, message: str) -> None:
        """Note something about the line being traced, once a line.

        What the language's own functions do concerns the line that calls them; notes on how they do it concern nobody.
        """
        location = user_place(self.builder.location)
        if severity == "note" and location is not self.builder.location:
            return
        file, line = (location.file, location.line) if location else ("", 0)
        self.remarks.setdefault((message, file, line), Remark(severity, message, file, line))
