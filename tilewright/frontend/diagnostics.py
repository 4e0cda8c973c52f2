"""Compile errors with the location of a syntax node, in the form of `ir.diagnostics`."""

from __future__ import annotations

import ast

from tilewright.errors import CompilationError
from tilewright.ir.core import Location
from tilewright.ir.diagnostics import render


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
