"""One self-contained HTML page of a report: no network, no library; the data is inside as JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main id="page"><noscript>This page draws itself with the script inside it, which is turned off here.</noscript></main>
<script type="application/json" id="report">{data}</script>
<script>
{script}</script>
</body>
</html>
"""


def page(report: Mapping[str, Any]) -> str:
    """The page of what `insight.report.report` gives."""
    data = json.dumps(report, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    folder = files("tilewright.insight")
    return _PAGE.format(
        title=html.escape(f"{report['name'] or 'engine'} · {report['target']}"),
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        # Inside a script element only "</" and "<!" end or change what follows.
        data=data.replace("<", "\\u003c"),
        script=folder.joinpath("page.js").read_text(encoding="utf-8"),
    )
