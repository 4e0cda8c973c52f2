"""``python -m tilewright``: the `tilewright` command."""

from __future__ import annotations

from tilewright.cli.main import main

main()
