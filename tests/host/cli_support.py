"""The command line in this process: a new one would import all of tilewright first, most of what a command takes."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import traceback
from unittest import mock

from tilewright.cli.main import main
from tilewright.settings import settings


class _Output(io.TextIOWrapper):
    """A stream of a process, as text afterwards."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    @property
    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


def tilewright(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What `python -m tilewright` does and says with these arguments; an exception is a traceback and status 1."""
    out, errors, status = _Output(), _Output(), 0
    with (
        settings.scope(threads=settings.threads),  # a command may change it, for its own process
        mock.patch.object(sys, "argv", ["tilewright", *arguments]),
        mock.patch("tilewright.cli.main._end_output"),  # which closes the output of the process
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except Exception:
            traceback.print_exc()
            status = 1
    return subprocess.CompletedProcess(arguments, status, out.text, errors.text)
