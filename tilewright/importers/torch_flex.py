"""`flex_attention` in operators: PyTorch's own formula, with its changes of scores and its mask for all scores at once,
in the place of one operation with graphs inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch.nn.attention.flex_attention
from torch._higher_order_ops.flex_attention import FlexAttentionHOP, math_attention


def _formula(self: Any, *args: Any, **kwargs: Any) -> Any:
    return math_attention(*args, **kwargs)


@contextmanager
def flex_attention_in_operators() -> Iterator[None]:
    """For the time of a trace. An export otherwise compiles each call on its own, whose sizes have other symbols."""
    place = torch.nn.attention.flex_attention
    with (
        mock.patch.object(FlexAttentionHOP, "__call__", _formula),
        mock.patch.object(place, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True),
        mock.patch.object(place, "setup_compilation_env", nullcontext, create=True),  # would end the export's tracing
    ):
        yield
