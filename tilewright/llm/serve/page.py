"""The page at /: a chat, and the state of the server; one file that loads nothing from other hosts."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib import resources


@functools.cache
def page() -> tuple[bytes, bytes]:
    """The page, and its content security policy: its own script and style alone, and requests to this server."""
    text = resources.files("tilewright.llm.serve").joinpath("page.html").read_text(encoding="utf-8")
    script, style = (_digest(text, name) for name in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), policy.encode()


def _digest(text: str, element: str) -> str:
    found = re.search(f"<{element}>(.*?)</{element}>", text, re.DOTALL)
    assert found is not None
    return "sha256-" + base64.b64encode(hashlib.sha256(found.group(1).encode()).digest()).decode()
