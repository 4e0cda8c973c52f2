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
