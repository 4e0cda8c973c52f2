"""How well sentences are ranked: Spearman's correlation of the similarity of pairs with what they have in common."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def ranks(values: np.ndarray) -> np.ndarray:
    """The place of each number in order; equal ones share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def score(outputs: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray]) -> float:
    """Of one batch: `label` [sentences, sentences] is how much pairs share."""
    mask = inputs["attention_mask"][..., None].astype(np.float64)
    mean = (outputs["last_hidden_state"].astype(np.float64) * mask).sum(1) / mask.sum(1)
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    pairs = np.triu_indices(len(mean), 1)
    return float(np.corrcoef(ranks((mean @ mean.T)[pairs]), ranks(inputs["label"][pairs]))[0, 1])
