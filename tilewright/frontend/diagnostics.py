"""How compile errors look: message, source line with caret, call chain, advice."""

from __future__ import annotations

import ast
import linecache

from tilewright.errors import CompilationError
from tilewright.ir.core import Location


def source_line(location: Location) -> str:
    """The text of the line that a location points to, without its line end."""
    return linecache.getline(location.file, location.line).rstrip()


def _excerpt(location: Location, width: int) -> list[str]:
    text = source_line(location)
    if not text:
        return []
    indent = len(text) - len(text.lstrip())
    start = max(location.column - indent, 0)
    span = max(1, min(width, len(text.lstrip()) - start))
    number = str(location.line)
    return [f"  {number} | {text.lstrip()}", f"  {' ' * len(number)} | {' ' * start}{'^' * span}"]


def render(message: str, location: Location, width: int = 1, advice: str = "") -> str:
    """The full text of an error.

    scale.py:7:12: shapes [16] and [32] cannot be broadcast together
      7 | y = x + w
        |     ^^^^^
      in 'scale', called from 'kernel' at scale.py:12
      12 | scale(x, w)
         | ^^^^^^^^^^^
      help: extents must be equal or 1
    """
    lines = [f"{location}: {message}", *_excerpt(location, width)]
    inner, caller = location, location.caller
    while caller is not None:
        lines.append(f"  in '{inner.function}', called from '{caller.function}' at {caller.file}:{caller.line}")
        lines.extend(_excerpt(caller, len(source_line(caller))))
        inner, caller = caller, caller.caller
    if advice:
        lines.append(f"  help: {advice}")
    return "\n".join(lines)


def node_width(node: ast.AST) -> int:
    """Columns that a node covers on its first line; the whole rest of the line if it spans several."""
    end_line, end_column = getattr(node, "end_lineno", None), getattr(node, "end_col_offset", None)
    if end_line != getattr(node, "lineno", None) or end_column is None:
        return 200
    return end_column - getattr(node, "col_offset", 0)


def located_error(message: str, location: Location, node: ast.AST, advice: str = "") -> CompilationError:
    """A `CompilationError` for a syntax node, with its parts as attributes."""
    error = CompilationError(render(message, location, node_width(node), advice))
    error.message, error.location, error.advice = message, location, advice
    return error
