"""The precision of float32 products: as they are, or rounded to fewer bits where that is faster."""

from __future__ import annotations

import warnings

IEEE, TF32 = "ieee", "tf32"
PRECISIONS = (IEEE, TF32)


def split_name(target: str) -> tuple[str, str | None]:
    """A target's name, and the precision that the first releases took after it (``cuda+tf32``); None without one.

    Tells of the new way in a `FutureWarning`: the next release refuses the old one.
    """
    name, plus, choice = target.partition("+")
    if not plus:
        return name, None
    if choice == TF32:
        text = f"target={target!r}: the precision is an argument of its own now: target={name!r}, precision='tf32'"
        warnings.warn(f"{text} (--precision tf32). The next release refuses the old spelling.", FutureWarning, 3)
    return name, choice
