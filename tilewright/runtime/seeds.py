"""Seeds of runs that draw random numbers and are given none: the system's, or those that follow from one number."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tilewright.errors import SettingsError, a_kind

_source: random.Random = random.SystemRandom()
_shared: ContextVar[list[int] | None] = ContextVar("_shared", default=None)  # the seed of `one_seed`, once it is drawn


def set_seed(seed: int) -> None:
    """Let the seeds of all runs from here on follow from this number. Raises `SettingsError` for what is none."""
    global _source
    if type(seed) is not int:
        raise SettingsError(f"the seed is a whole number, got {a_kind(seed)}")
    _source = random.Random(seed)


def next_seed() -> int:
    """A seed from 0 to 2**63 - 1."""
    shared = _shared.get()
    if shared:
        return shared[0]
    seed = _source.getrandbits(63)
    if shared is not None:
        shared.append(seed)
    return seed


@contextmanager
def one_seed() -> Iterator[None]:
    """Inside, all runs of a thread have the same seed: those of engines that compute parts of one model."""
    shared = _shared.get()
    token = _shared.set([] if shared is None else shared)  # the list of an outer one may be empty as yet
    try:
        yield
    finally:
        _shared.reset(token)
