"""Finds the user's source line: the innermost one outside PyTorch and the importers."""

from __future__ import annotations

import os
import re

import torch

_HERE = tuple(os.path.dirname(file).replace("\\", "/") + "/" for file in (torch.__file__, __file__))
_INSTALLED = re.compile(r"/(site|dist)-packages/(torch|tilewright/importers)/")  # in programs of other machines too


def is_written_by_user(file: str) -> bool:
    """Whether a file is the user's own, or a library's: a folder of theirs may be called torch as well."""
    name = file.replace("\\", "/")
    return not name.startswith(_HERE) and _INSTALLED.search(name) is None


def written_lines(trace: str) -> list[tuple[str, int]]:
    """The files and lines of a traceback's text that are the user's, or a library's, the innermost last."""
    found = re.findall(r'File "([^"]+)", line (\d+)', trace)
    return [(file, int(line)) for file, line in found if is_written_by_user(file) and not file.startswith("<")]
