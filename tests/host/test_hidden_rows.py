"""Rows of causal attention whose keys are all hidden by finite numbers: softmax of equal scores, as PyTorch has it.

Causal masks become a flag that skips keys; where padding hides the rest of a row by finite numbers too, the skipped
keys have the same weight as the others, so that they must not be skipped.
"""

import math

import pytest
import torch

import tilewright

pytestmark = pytest.mark.usefixtures("quick_engines")

LEAST = torch.finfo(torch.float32).min


def seen(rows, padding):
    return torch.ones(rows, rows, dtype=torch.bool).tril() & (padding[:, None, None, :] > 0)


def filled(scores, padding):
    causal = torch.full(scores.shape[-2:], LEAST).triu(1)
    return scores + causal.masked_fill(padding[:, None, None, :] == 0, LEAST)


def sums_of_masks(scores, padding):
    causal = torch.full(scores.shape[-2:], LEAST).triu(1)
    return scores + (causal + (1.0 - padding[:, None, None, :].float()) * LEAST).clamp(min=LEAST)


def both_at_once(scores, padding):
    return scores + torch.where(seen(scores.shape[-1], padding), 0.0, LEAST)


def scores_then_padding(scores, padding):
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.where(causal, scores, LEAST) + (1.0 - padding[:, None, None, :].float()) * LEAST


def scores_filled_twice(scores, padding):
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(~causal, LEAST).masked_fill(padding[:, None, None, :] == 0, LEAST)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "masked", [filled, sums_of_masks, both_at_once, scores_then_padding, scores_filled_twice], ids=lambda f: f.__name__
)
def test_left_padding(masked, dynamic):
    class Attention(torch.nn.Module):
        def forward(self, query, key, value, padding):
            scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
            return torch.softmax(masked(scores, padding), -1) @ value

    padding = torch.ones(2, 9, dtype=torch.long)
    padding[0, :4] = padding[1, 6:] = 0
    inputs = (*(torch.randn(2, 3, 9, 16) for _ in range(3)), padding)
    batch = torch.export.Dim("batch", max=4)
    dims = dict.fromkeys(("query", "key", "value", "padding"), {0: batch}) if dynamic else None
    engine = tilewright.compile(Attention().eval(), inputs, dynamic_shapes=dims)
    torch.testing.assert_close(torch.as_tensor(engine(*inputs)), Attention()(*inputs), rtol=1e-5, atol=1e-6)
