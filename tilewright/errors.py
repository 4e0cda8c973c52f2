"""Errors that users can cause or see, one class each; every message says what to do.

All of them derive from `TilewrightError`.  Internal mistakes raise ordinary Python exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def printable(text: str) -> str:
    """`text` with every character that a terminal acts on or that cannot be seen as its escape, such as ``\\x1b``.

    Newlines and tabs stay.  Names in files are chosen by whoever wrote the file.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char in "\n\t" or char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


class TilewrightError(Exception):
    """Base of every error tilewright raises on purpose.  The message's text is `printable`."""

    def __str__(self) -> str:
        return printable(super().__str__())


class UserErrors:
    """``with user_errors:`` takes tilewright's own frames off the errors that come out of a block.

    Their messages say where in the user's kernel; a traceback then ends at the user's own call.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TilewrightError):
            error.__traceback__ = None


user_errors = UserErrors()


class CompilationError(TilewrightError):
    """A kernel cannot be compiled; the message carries file, line, caret, call chain and advice.

    `message` and `advice` are its parts, `location` the place (an `ir.core.Location`), where they are known.
    """

    message: str = ""
    advice: str = ""
    location: Any = None


class InvalidIRError(TilewrightError):
    """Tile IR or Graph IR that breaks its rules, found by a verifier or a parser.

    `rule` is what is broken, without the place; `advice`, where there is some, what to do in a kernel.
    """

    def __init__(self, message: str, rule: str = "", advice: str = "") -> None:
        super().__init__(message)
        self.rule = rule or message
        self.advice = advice


class LaunchError(TilewrightError):
    """A kernel was called with arguments it cannot take."""


class PrecisionBoundError(TilewrightError):
    """No layer of a model can be computed in narrow numbers within the bound on what it may lose."""


class SettingsError(TilewrightError, ValueError):
    """A `TILEWRIGHT_*` variable or another setting that is malformed, or asks for what this machine does not have."""


class OutOfResources(TilewrightError):
    """A kernel needs more of something than the machine has: `required` of `name`, of which there are `limit`."""

    def __init__(self, required: int, limit: int, name: str) -> None:
        super().__init__(required, limit, name)
        self.required, self.limit, self.name = required, limit, name

    def __str__(self) -> str:
        return (
            f"out of resource: {self.name}, required: {self.required}, the machine's limit: {self.limit}; "
            "smaller blocks or fewer stages need less"
        )


class AutotunerError(TilewrightError):
    """No configuration of an autotuned kernel runs; the message has a line for each with the reason."""


class ExecutionError(TilewrightError):
    """A kernel did what it must not while it was interpreted: access out of bounds, failed assertion, …

    `message`, `details` and `advice` are the parts of the text.  Where they are known, `location` is the place (an
    `ir.core.Location`), `program_id` the instance, `element` the index within the block, and `address` the memory
    as argument name and element, ``out[1024]``.
    """

    location: Any = None
    program_id: tuple[int, ...] | None = None

    def __init__(
        self,
        message: str,
        advice: str = "",
        details: tuple[str, ...] = (),
        element: tuple[int, ...] = (),
        address: str = "",
        text: str = "",
    ) -> None:
        super().__init__(text or message)
        self.message, self.advice, self.details = message, advice, details
        self.element, self.address = element, address
        self.lane: int | None = None  # which of the addresses of an access, counted without those masked off


class UnsupportedOperationError(TilewrightError):
    """A model uses operations that no importer rule knows; lists all of them.

    `reasons` has the name and the node of each operation and why it is not supported, where an importer says it.
    """

    def __init__(self, message: str, reasons: tuple[tuple[str, str, str], ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


class ImportModelError(TilewrightError):
    """A model file or checkpoint cannot be read: missing, damaged, or of an unknown kind."""


class UnknownRankError(ImportModelError):
    """A model does not say how many dimensions an input has."""


class ShapeError(TilewrightError):
    """Shapes that do not fit together, or an input outside an engine's range.

    `sizes` are those by name that a condition of the model does not allow; empty where something else is wrong.
    """

    def __init__(self, message: object = "", sizes: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.sizes: Mapping[str, int] = sizes or {}


class InputError(TilewrightError):
    """An engine was called with an input it cannot take: a wrong name, element type, device or kind."""


class PromptTooLongError(InputError):
    """A prompt has more tokens than a language model takes with a result."""


class RunEndedError(TilewrightError):
    """A run ended early because another thread told it to; it has no results."""


class OutOfMemoryError(TilewrightError, MemoryError):
    """The system does not give the memory that is needed."""


def out_of_memory(subject: str, error: MemoryError) -> OutOfMemoryError:
    """The error for something that needs more memory than there is."""
    reason = str(error) or "no number is known"
    return OutOfMemoryError(f"{subject} needs more memory than the system gives ({reason[:200]}): use smaller sizes")


class EngineError(TilewrightError):
    """An engine file does not load; the message says exactly why."""


class EngineDamagedError(EngineError):
    """The file is truncated, altered, or not an engine."""


class EngineVersionError(EngineError):
    """The file was written by an incompatible version of the format."""


class EngineTargetError(EngineError):
    """The engine's code needs a device or CPU features that this machine lacks."""


class EngineUntrustedError(EngineError):
    """The file is not the one that was expected, or no trusted key has signed it; nothing of it was used."""


class SigningKeyError(TilewrightError):
    """A key file that cannot be read or written, is malformed, or is a key of another kind than Ed25519."""


class TargetError(TilewrightError):
    """A target to compile for that tilewright does not know; the message lists those it knows."""


class DeviceError(TilewrightError):
    """A GPU that is missing, cannot be used, or reported a failure; the message names the driver's error."""


class TimingCacheError(TilewrightError):
    """A file of recorded times cannot be read or written."""


class MissingTimingError(TilewrightError):
    """A reproducible build met kernels that no recorded time chooses among; the message names the group."""


class MissingDependencyError(TilewrightError):
    """An optional package is needed; the message names it and how to install it."""


def a_kind(value: Any) -> str:
    """A value's class with its article, for messages: "a list", "an object"."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def brief(value: Any) -> str:
    """A value for messages: its kind with extents and element type where it is an array or a tensor, which are not
    written out; of others what fits."""
    ours = type(value).__module__.startswith("tilewright.")  # values of the language have a short text of their own
    try:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if isinstance(shape, tuple) and dtype is not None and not ours:
            return f"{a_kind(value)} of {dtype} {list(shape)}"
        if type(value) in (tuple, list):
            text = ", ".join(map(brief, value[:_BRIEF]))
            text = f"[{text}]" if type(value) is list else f"({text}{',' * (len(value) == 1)})"
        else:
            text = repr(value)
    except Exception:  # of the value's own code
        return a_kind(value)
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 1]}…"


_BRIEF = 120  # characters
