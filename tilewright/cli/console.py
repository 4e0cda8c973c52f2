"""Printing of commands: brackets in shapes, names and advice are text, never markup; no name controls the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from tilewright.errors import printable


def terminal(stderr: bool = False, quiet: bool = False) -> Console:
    """What tables and lines go to. Colours are given by `rich.text.Text` and styles of columns."""
    return _Terminal(stderr=stderr, quiet=quiet, markup=False, highlight=False)


def wrong_usage(text: str) -> typer.BadParameter:
    """The error for wrong usage, for messages with names that come from a file."""
    return typer.BadParameter(printable(text))


class _Terminal(Console):
    """A console that shows control characters of texts as escapes; only styles make control sequences."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)  # here, so that widths are those of what is shown

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
