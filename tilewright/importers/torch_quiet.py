"""PyTorch writes a traceback to the log for each operation whose shapes do not fit; here the error says it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")


@contextmanager
def without_tracebacks() -> Iterator[None]:
    """For the time of the block: PyTorch does not log failed operations of this thread, which it raises as well."""
    thread = threading.get_ident()

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    _LOGGER.addFilter(of_others)
    try:
        yield
    finally:
        _LOGGER.removeFilter(of_others)
