"""A live display of a build: stage, current item, seconds; plain lines if there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from tilewright.cli.console import terminal


class BuildProgress:
    """Shows the events `(stage, item, seconds)` that `build.builder.build` reports.

    A stage is shown from its first event on, with the time that passed while its events came; `seconds` is the time
    an item took, or 0.0 when it has just begun.  Use it as a context manager and pass the object itself as the
    callback.
    """

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.title = title
        self.console = console or terminal(stderr=True)
        self._began = time.perf_counter()
        self._stages: dict[str, tuple[float, int]] = {}  # stage -> (seconds before it was taken up last, items done)
        self._current = ("", "")
        self._since = self._began  # the current stage was taken up
        self._live = Live(get_renderable=self._render, console=self.console, refresh_per_second=10, transient=True)

    def __enter__(self) -> BuildProgress:
        self._began = time.perf_counter()
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish_stage()
        if self.console.is_terminal:
            self._live.stop()
        if error is None:
            self.console.print(self._table(finished=True))

    def __call__(self, stage: str, item: str, seconds: float) -> None:
        if stage != self._current[0]:
            self._finish_stage()
            self._stages.setdefault(stage, (0.0, 0))
        passed, items = self._stages[stage]
        self._stages[stage] = (passed, items + (seconds > 0))
        self._current = (stage, item)

    def _finish_stage(self) -> None:
        stage, now = self._current[0], time.perf_counter()
        if stage:
            passed, items = self._stages[stage]
            self._stages[stage] = (passed + now - self._since, items)
        self._since = now

    def _table(self, finished: bool) -> Table:
        total = time.perf_counter() - self._began
        table = Table(title=f"{self.title}: {total:.1f} s", title_justify="left", box=None, padding=(0, 2, 0, 0))
        table.add_column("stage")
        table.add_column("items", justify="right")
        table.add_column("seconds", justify="right")
        if not finished:
            table.add_column("now", max_width=60, no_wrap=True)
        for stage, (passed, items) in self._stages.items():
            running = not finished and stage == self._current[0]
            seconds = passed + (time.perf_counter() - self._since if running else 0.0)
            row = [stage, str(items or ""), f"{seconds:.2f}"]
            table.add_row(*row, *([self._current[1] if running else ""] if not finished else []))
        return table

    def _render(self) -> Table:
        grid = Table.grid()
        grid.add_row(self._table(finished=False))
        grid.add_row(Spinner("dots"))
        return grid
