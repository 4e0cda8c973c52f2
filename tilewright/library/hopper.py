"""Shared code of the Hopper kernels: shared memory of a CTA, swizzles, and when a config can be built."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol, TypeVar

from tilewright.errors import LaunchError

SHARED_BYTES = 232448 - 1024  # of a CTA, less what alignment may take
ATOM = 128  # bytes: a row of the widest swizzle
Form = TypeVar("Form")


def swizzle_of(row_bytes: int) -> int:
    """The widest swizzle that rows of so many bytes are made of; 0 for none."""
    return next((width for width in (128, 64, 32) if row_bytes % width == 0), 0)


class Checked(Protocol):
    """A form of one of the kernels."""

    def check(self) -> object:
        """The form itself; raises `LaunchError` with the reason when it cannot be built."""


def checked(form: Form, rules: Iterable[tuple[bool, str]]) -> Form:
    """A form that keeps all rules, each of which is said in words; raises `LaunchError` with the first that it
    breaks."""
    for holds, reason in rules:
        if not holds:
            raise LaunchError(f"{form}: {reason}")
    return form


@lru_cache(maxsize=8192)
def is_possible(form: Checked) -> bool:
    """Whether a form can be built."""
    try:
        form.check()
    except LaunchError:
        return False
    return True
