"""Losses that `torch.export` cannot trace, or takes apart into others, as functions that it takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.modules.adaptive import AdaptiveLogSoftmaxWithLoss, _ASMoutput

from tilewright.importers.torch_data_conditions import required

_MEAN, _SUM = 1, 2  # PyTorch's numbers of reductions; 0 is none


@torch.library.custom_op("tilewright::ctc_losses", mutates_args=())
def ctc_losses(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, longest: int, blank: int
) -> Tensor:
    """The loss of each text [batch]: `log_probs` [steps, batch, classes]; `targets` [batch, width], of which nothing
    after a text's end is read, or the texts one after the other, each of at most `longest` labels; both lengths int64
    [batch]."""
    lengths = input_lengths.tolist(), target_lengths.tolist()
    return torch.ops.aten._ctc_loss(log_probs, targets, *lengths, blank)[0]


@ctc_losses.register_fake
def _(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, longest: int, blank: int
) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int] | int,
    target_lengths: Tensor | Sequence[int] | int,
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Tensor:
    """`torch.ctc_loss`, whose parts have sizes that PyTorch reads from its data."""
    batched = log_probs.dim() == 3
    steps = log_probs if batched else log_probs.unsqueeze(1)
    inputs, texts = (_as_tensor(item, log_probs) for item in (input_lengths, target_lengths))
    if targets.dim() == 2:
        longest = targets.shape[1]
    else:
        given = None if isinstance(target_lengths, Tensor) else target_lengths
        known = [given] if isinstance(given, int) else given
        longest = targets.shape[0] if known is None else max(known, default=0)
    losses = ctc_losses(steps, targets, inputs, texts, longest, blank)
    if zero_infinity:
        losses = torch.where(losses == torch.inf, 0.0, losses)
    if reduction == _MEAN:
        return (losses / texts.clamp(min=1).to(losses.dtype)).mean()
    if reduction == _SUM:
        return losses.sum()
    return losses if batched else losses.squeeze(0)


def _as_tensor(lengths: Tensor | Sequence[int] | int, like: Tensor) -> Tensor:
    """Lengths as int64 [batch]; numbers may be sizes that are not fixed."""
    if isinstance(lengths, Tensor):
        return lengths.reshape(-1).to(torch.int64)
    numbers = list(lengths) if isinstance(lengths, Sequence) else [lengths]
    if not numbers:
        return torch.zeros(0, dtype=torch.int64, device=like.device)
    return torch.stack([torch.full((), number, dtype=torch.int64, device=like.device) for number in numbers])


def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    """As PyTorch documents it: its own decomposition adds terms for the labels after the first -1."""
    scores, labels = torch.atleast_2d(input), torch.atleast_2d(target)
    classes = scores.shape[1]
    counted = (labels == -1).cumsum(1) == 0
    named = (torch.where(counted, labels, -1)[:, :, None] == torch.arange(classes, device=labels.device)).any(1)
    own = scores.gather(1, torch.where(counted, labels, 0))
    terms = (1 - own[:, :, None] + scores[:, None, :]).clamp(min=0)
    losses = torch.where(counted[:, :, None] & ~named[:, None, :], terms, 0).sum((1, 2)) / classes
    if reduction == _MEAN:
        return losses.mean()
    return losses.sum() if reduction == _SUM else losses.reshape(input.shape[:-1])


_adaptive_loss = AdaptiveLogSoftmaxWithLoss.forward


def adaptive_loss(self: AdaptiveLogSoftmaxWithLoss, input_: Tensor, target_: Tensor) -> _ASMoutput:
    """`AdaptiveLogSoftmaxWithLoss.forward` by the scores of all classes: its own reads which clusters there are."""
    if target_.dim() > 1 or input_.dim() != target_.dim() + 1:
        return _adaptive_loss(self, input_, target_)  # says what is wrong
    input, target = torch.atleast_2d(input_), torch.atleast_1d(target_)
    torch._check(input.shape[0] == target.shape[0])
    required(((target >= 0) & (target < self.n_classes)).all(), f"targets are from 0 to {self.n_classes - 1}")
    scores = self.log_prob(input).gather(1, target.unsqueeze(1)).squeeze(1)
    return _ASMoutput(scores.reshape(target_.shape), -scores.mean())


def adaptive_prediction(self: AdaptiveLogSoftmaxWithLoss, input: Tensor) -> Tensor:
    """`AdaptiveLogSoftmaxWithLoss.predict` by the scores of all classes: its own reads whether it needs them."""
    head = self.head(input)
    first = head.argmax(1)
    return torch.where(first < self.shortlist_size, first, self._get_full_log_prob(input, head).argmax(1))
