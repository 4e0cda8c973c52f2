"""How often speech is detected correctly, at the usual threshold of one half."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def score(outputs: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray]) -> float:
    """Of one batch: `label` [chunks] is whether there is speech."""
    return float(np.mean((outputs["output"].reshape(-1) > 0.5) == inputs["label"].reshape(-1)))
