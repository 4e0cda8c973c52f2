"""Suppresses PyTorch's log messages for failures that it also raises, or that another way of exporting avoids."""

from __future__ import annotations

import builtins
import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch.export._trace

_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")
_ON_SIZES = logging.getLogger("torch.fx.experimental.symbolic_shapes")
_ON_GUARDS = logging.getLogger("torch._guards")


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """For the time of the block nothing that this thread does is logged there."""
    thread = threading.get_ident()

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(of_others)
    try:
        yield
    finally:
        logger.removeFilter(of_others)


def without_tracebacks() -> AbstractContextManager[None]:
    """For the time of the block: PyTorch does not log failed operations of this thread, which it raises as well."""
    return _silent(_LOGGER)


@contextmanager
def without_failed_attempts() -> Iterator[None]:
    """For the time of the block: PyTorch does not print the graphs that exports of this thread began before they
    failed, nor logs what it takes from examples, which the build's remarks say."""
    thread = threading.get_ident()

    def of_others(*values: Any, **options: Any) -> None:
        if threading.get_ident() != thread:
            builtins.print(*values, **options)

    with (
        _silent(_ON_SIZES),
        _silent(_ON_GUARDS),
        mock.patch.object(torch.export._trace, "print", of_others, create=True),
    ):
        yield
