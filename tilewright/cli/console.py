"""How commands print: brackets in shapes, names and advice are text, never markup."""

from __future__ import annotations

from rich.console import Console


def terminal(stderr: bool = False, quiet: bool = False) -> Console:
    """What tables and lines go to. Colours are given by `rich.text.Text` and styles of columns."""
    return Console(stderr=stderr, quiet=quiet, markup=False, highlight=False)
