"""Why a kernel was compiled again: the difference from the most similar existing signature.

TILEWRIGHT_EXPLAIN_RECOMPILE=1 python program.py
    kernel 'scale' is compiled again: 'n': i32 divisible by 16 -> the constant 1; 'BLOCK': 64 -> 128
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from tilewright.frontend.values import ValueGroup
from tilewright.language.function import ParameterInfo
from tilewright.launch.arguments import ArgumentClass

logger = logging.getLogger("tilewright.jit")
Key = tuple[Any, ...]  # launch options, `binding.mode_now`, then a class or a constant for each parameter


def report(name: str, parameters: tuple[ParameterInfo, ...], key: Key, known: Iterable[Key]) -> None:
    """Log how `key` differs from the nearest of the `known` keys of kernel `name`."""
    nearest = min(known, key=lambda other: sum(left != right for left, right in zip(other, key, strict=True)))
    changes = [
        f"{label}: {_text(old, constant)} -> {_text(new, constant)}"
        for (label, constant), old, new in zip(_labels(parameters), nearest[1:], key[1:], strict=True)
        if old != new
    ]
    if nearest[0] != key[0]:
        changes.insert(0, f"options: {_option_text(nearest[0])} -> {_option_text(key[0])}")
    logger.warning("kernel '%s' is compiled again: %s", name, "; ".join(changes))


def report_captured(name: str, path: tuple[str, ...], old: Any, new: Any) -> None:
    """Log that a value captured by kernel `name` has changed, which invalidates all that was compiled."""
    logger.warning("kernel '%s' is compiled again: the captured %s: %r -> %r", name, ".".join(path), old, new)


def report_overlap(name: str) -> None:
    """Log that kernel `name` was given arrays that overlap, which it is compiled again for."""
    logger.warning("kernel '%s' is compiled again: arrays that it reads and writes overlap", name)


def _labels(parameters: tuple[ParameterInfo, ...]) -> list[tuple[str, bool]]:
    """What each entry of a key after the options is called, and whether it is a compile-time constant."""
    return [("mode", True), *((f"'{entry.name}'", entry.constexpr) for entry in parameters)]


def _option_text(options: tuple[tuple[str, Any], ...]) -> str:
    return ", ".join(f"{name}={_text(value, True)}" for name, value in options) or "none"


def _text(kind: Any, constant: bool) -> str:
    if isinstance(kind, ArgumentClass):
        if kind.type is None:
            return f"the constant {kind.constant!r}"
        return f"{kind.type} divisible by {kind.divisibility}" if kind.divisibility > 1 else str(kind.type)
    if constant and isinstance(kind, tuple) and len(kind) == 2 and isinstance(kind[0], type):
        return repr(kind[1])  # a constant is kept with its type
    if isinstance(kind, ValueGroup):
        return f"({', '.join(_text(entry, constant) for entry in kind.entries)})"
    if isinstance(kind, tuple):
        return f"({', '.join(_text(entry, constant) for entry in kind)})"
    return repr(kind)
