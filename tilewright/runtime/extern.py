"""Steps of a plan that another library computes, as keys: what stands in place of a kernel's key, and its parts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_PREFIX = "extern "


def extern_key(function: str, dtypes: Sequence[str], options: Mapping[str, Any]) -> str:
    """The key of a step: the function, the types of its tensors (IR texts), and numbers."""
    return f"{_PREFIX}{function} {json.dumps({'dtypes': list(dtypes), 'options': dict(options)}, sort_keys=True)}"


def is_extern(key: str) -> bool:
    """Whether a plan's step is computed by another library."""
    return key.startswith(_PREFIX)


def parts(key: str) -> tuple[str, list[str], Mapping[str, Any]]:
    """What `extern_key` was given; raises `ValueError` or the like for a key that is malformed."""
    _, function, text = key.split(" ", 2)
    facts = json.loads(text)
    return function, [str(dtype) for dtype in facts["dtypes"]], facts["options"]


def extern_name(key: str) -> str:
    """The function of a key, for people: ``torch.mm``, ``cublaslt.product``."""
    return function_name(key.split(" ", 2)[1])


def function_name(function: str) -> str:
    """PyTorch's functions go by their names alone."""
    return function if "." in function else f"torch.{function}"
