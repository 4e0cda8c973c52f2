"""The options of a launch that change a CPU's code, as one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

OPTION_NAMES = frozenset(("enable_fp_fusion",))  # those that users give; the others are the launcher's


@dataclass(frozen=True)
class CPUOptions:
    """How a kernel is compiled; all of it is part of the cache key.

    Without `fuse` every product is rounded before it is added to something.  `overlap` says what becomes of arrays that
    overlap in a way that loops do not bear: "refuse" makes the entry point return 1 without having run anything (if
    `refuses` says so), "careful" makes a kernel that takes all arrays, and with "" the kernel has both versions in it.
    `check_bounds` stops it at accesses outside of its arrays, whose first address and size in bytes follow the
    arguments; without `watches` nothing ends a launch that waits for ever, and loops ask for no signals.  `keep_texts`
    adds "ir", "llvm" and "asm" to the binary's texts.
    """

    fuse: bool = True
    overlap: str = ""
    check_bounds: bool = False
    watches: bool = True
    keep_texts: bool = False

    @classmethod
    def of_launch(cls, given: Mapping[str, Any]) -> CPUOptions:
        """The record of a launch's options, of which others change nothing."""
        return cls(
            fuse=bool(given.get("enable_fp_fusion", True)),
            overlap=given.get("overlap") or "",
            check_bounds=bool(given.get("check_bounds")),
            watches=given.get("waits") != "unwatched",
            keep_texts=bool(given.get("keep_texts")),
        )

    @property
    def line_info(self) -> bool:
        """Whether code depends on where its source is: it does not."""
        return False

    @property
    def key(self) -> str:
        """What code depends on, as a text."""
        return repr(replace(self, keep_texts=False))
