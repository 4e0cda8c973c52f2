"""``python -m tilewright.shim script.py arguments…``: run a program written for Triton."""

from __future__ import annotations

from tilewright.shim import main

main()
