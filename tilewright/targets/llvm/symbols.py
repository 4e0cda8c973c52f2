"""Names of compiled kernels."""

from __future__ import annotations

import hashlib
import re

from tilewright.ir.core import Function
from tilewright.ir.printer import print_function


def kernel_symbol(function: Function, machine: str, options: str, text: str = "") -> str:
    """A name that differs whenever the code may differ, so that many kernels link into one library; `machine` says what
    it is compiled for, `options` how; `text` is the function's, where it is at hand."""
    content = "\n".join((text or print_function(function), machine, options))
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    name = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in function.name)
    return f"tw_{name}_{digest}"


def kernel_name(symbol: str) -> str:
    """The kernel's own name in a symbol of `kernel_symbol`, for people; other symbols stay as they are."""
    found = re.fullmatch(r"tw_(.+)_[0-9a-f]{16}", symbol)
    return found[1] if found else symbol
