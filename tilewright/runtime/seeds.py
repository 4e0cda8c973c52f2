"""Seeds of runs that draw random numbers and are given none: the system's, or those that follow from one number."""

from __future__ import annotations

import random

from tilewright.errors import SettingsError, a_kind

_source: random.Random = random.SystemRandom()


def set_seed(seed: int) -> None:
    """Let the seeds of all runs from here on follow from this number. Raises `SettingsError` for what is none."""
    global _source
    if type(seed) is not int:
        raise SettingsError(f"the seed is a whole number, got {a_kind(seed)}")
    _source = random.Random(seed)


def next_seed() -> int:
    """A seed from 0 to 2**63 - 1."""
    return _source.getrandbits(63)
